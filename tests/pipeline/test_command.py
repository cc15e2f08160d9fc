"""The command line, up to the point where Spark would start."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from muster.coordinator.testing import Broker
from muster.pipeline import cli, session
from muster.pipeline.arguments import duration_ms
from muster.pipeline.environment import check_packages
from muster.pipeline.errors import from_spark
from tests.support.ports import free_ports


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "muster.pipeline.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | variables,
    )


@pytest.fixture
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*_: object) -> None:
        raise AssertionError("this is found before Spark starts")

    monkeypatch.setattr(session, "spark_session", opened)


def told(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
    """The one line that a refused command prints to standard error."""
    ended: object
    try:
        ended = cli.main(arguments)
    except SystemExit as exited:
        ended = exited.code
    assert ended == code
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1, err
    return err


def test_help_and_version_take_no_spark() -> None:
    """They work without the extra: here none of its packages can be imported."""
    blocked = (
        "import sys\n"
        "for name in ('pyspark', 'pyarrow', 'pandas', 'matplotlib', 'numpy'): sys.modules[name] = None\n"
        "from muster.pipeline.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    for arguments in (["--version"], ["--help"], ["ingest", "--help"]):
        done = subprocess.run(
            [sys.executable, "-c", blocked, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "muster-pipeline" in done.stdout


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_its_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        cli.main([name, "--help"])
    assert exited.value.code == 0
    shown = capsys.readouterr().out
    assert ("--master" in shown) == (name != "report"), "which starts no Spark"
    summary = cli.COMMANDS[name][1]
    assert summary[0].upper() + summary[1:] in " ".join(shown.split())


def test_the_file_for_spark_submit_is_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        cli.main(["--submit-file"])
    assert exited.value.code == 0
    path = capsys.readouterr().out.rstrip("\n")
    assert path.endswith(".py"), "spark-submit takes others for jars"
    done = subprocess.run(
        [sys.executable, path, "--version"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.startswith("muster-pipeline ")
    assert len(list(Path(path).parent.glob("*.py"))) == 1, "modules beside it would go before all others"


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "ingest" in capsys.readouterr().out


def test_without_the_extra_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "check_packages", lambda: check_packages({}))
    err = told(capsys, 1, "ingest", "--topics", "orders", "--to", "lake")
    assert "pip install 'muster-kafka[spark]'" in err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["ingest", "--to", "lake"], "one of the arguments --topics --pattern is required"),
        (["ingest", "--topics", "orders"], "required: --to"),
        (
            ["ingest", "--topics", "a", "--to", "lake", "--every", "10"],
            "'10' is not allowed; it takes a duration",
        ),
        (
            ["ingest", "--topics", "a", "--to", "lake", "--once", "--every", "1s"],
            "not allowed with argument --once",
        ),
        (["ingest", "--topics", "a", "--to", "lake", "--batch-records", "0"], "a whole number above 0"),
        (["ingest", "--topics", "a", "--to", "lake", "--tpoic", "b"], "unrecognized arguments: --tpoic b"),
        (
            ["ingest", "--topics", "a", "--to", "lake", "--option", "x"],
            "'x' is not allowed; it takes NAME=VALUE",
        ),
        (["ingets"], "invalid choice: 'ingets'"),
        (
            ["rebalances", "--to", "lake", "--conf", "executor.memory=4g"],
            "settings of Spark begin with spark.",
        ),
        (["rebalances", "--to", "lake", "--conf", "spark.executor.memory"], "it takes NAME=VALUE"),
        (["rebalances", "--to", "lake", "--conf", "spark.master=local"], "is given by --master"),
        (
            ["rebalances", "--to", "lake", "--command-config", ""],
            "--command-config: '' is not allowed; it takes the path of a file",
        ),
    ],
)
def test_a_wrong_command_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    assert expected in told(capsys, 2, *arguments)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--topics", " , ", "--to", "lake"], "--topics ' , ': it takes names"),
        (["--topics", "orders", "--to", ""], "--to '': it takes a folder"),
        (["--topics", "a", "--to", "b", "--option", "minPartition=4"], "minPartition"),
        (["--topics", "a", "--to", "b", "--option", "subscribe=c"], ": --option subscribe: ingest has"),
        (["--topics", "a", "--to", "b", "--from", "last"], "--from: "),
        (["--topics", "a b", "--to", "b"], "--topics: "),
        (["--pattern", "(", "--to", "b"], "--pattern: "),
        (["--topics", "a", "--to", "b", "--group", ""], "--group: "),
        (["--topics", "a", "--to", "b", "--avro-schema", "no.avsc"], "--avro-schema: no.avsc cannot be read"),
        (
            ["--topics", "a", "--to", "b", "--option", "startingoffsets=x"],
            "--option startingoffsets: ingest has",
        ),
    ],
)
@pytest.mark.usefixtures("no_session")
def test_a_value_that_will_not_do(
    capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    assert expected in told(capsys, 2, "ingest", *arguments)


@pytest.mark.parametrize("command", [["ingest", "--topics", "a"], ["rebalances"]], ids=lambda each: each[0])
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--bootstrap-server", "host:abc"], "--bootstrap-server: 'host:abc' is no address; it takes"),
        (["--bootstrap-server", ""], "--bootstrap-server: '' is no address; it takes"),
        (["--command-config", "/nowhere"], "--command-config: /nowhere: no such file or directory;"),
    ],
)
@pytest.mark.usefixtures("no_session")
def test_an_error_names_the_argument(
    capsys: pytest.CaptureFixture[str], command: list[str], arguments: list[str], expected: str
) -> None:
    err = told(capsys, 2, *command, "--to", "lake", *arguments)
    assert err.startswith(f"muster-pipeline {command[0]}: {expected}")


@pytest.mark.parametrize("command", [["ingest", "--topics", "a"], ["rebalances"]], ids=lambda each: each[0])
@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("MUSTER_BOOTSTRAP_SERVERS", "host:abc", "'host:abc' is no address; it takes"),
        ("MUSTER_COMMAND_CONFIG", "/nowhere", "/nowhere: no such file or directory;"),
    ],
)
@pytest.mark.usefixtures("no_session")
def test_an_error_names_the_variable(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
    variable: str,
    value: str,
    expected: str,
) -> None:
    monkeypatch.setenv(variable, value)
    err = told(capsys, 2, *command, "--to", "lake")
    assert err.startswith(f"muster-pipeline {command[0]}: {variable}: {expected}")


def test_that_no_broker_answers_is_said_once() -> None:
    """In its own process, where the log goes to standard error as well."""
    nowhere = f"127.0.0.1:{free_ports(1)}"
    program = (
        "import sys\nfrom muster.pipeline.access import Access\n"
        "from muster.pipeline.cluster import check_topics\n"
        "from muster.pipeline.errors import PipelineError\n"
        f"try: check_topics({nowhere!r}, ['orders'], Access())\n"
        "except PipelineError as error: print(error, file=sys.stderr)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    assert ended.stderr.count(nowhere) == 1


@pytest.mark.usefixtures("no_session")
def test_no_broker_and_no_topic_are_told_before_spark_starts(
    capsys: pytest.CaptureFixture[str], broker: Broker
) -> None:
    nowhere = f"127.0.0.1:{free_ports(1)}"
    err = told(capsys, 1, "ingest", "--topics", "orders", "--to", "lake", "--bootstrap-server", nowhere)
    assert nowhere in err
    assert "is a broker running there?" in err
    given = ["--to", "lake", "--bootstrap-server", broker.bootstrap]
    err = told(capsys, 1, "ingest", "--topics", "orders", *given)
    assert "orders" in err
    assert "muster topics list" in err


@pytest.mark.usefixtures("no_session")
def test_no_java_is_told_before_spark_starts(
    capsys: pytest.CaptureFixture[str], broker: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broker.create_topic("orders")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("MUSTER_BOOTSTRAP_SERVERS", broker.bootstrap)
    assert f"JAVA_HOME={tmp_path}: there is no" in told(
        capsys, 1, "ingest", "--topics", "orders", "--to", "lake"
    )


@pytest.mark.usefixtures("no_session")
@pytest.mark.parametrize(
    ("variables", "master", "expected"),
    [
        (
            {},
            "sprak://here:7077",
            "master sprak://here:7077: Spark has none like this; --master takes local[*]",
        ),
        ({}, "spark://127.0.0.1:1", "no Spark master answers at spark://127.0.0.1:1 (127.0.0.1:1: "),
        ({"SPARK_REMOTE": "sc://here"}, "local[1]", "SPARK_REMOTE is set"),
    ],
)
def test_a_master_is_looked_at_before_spark_starts(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    variables: dict[str, str],
    master: str,
    expected: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    events = tmp_path / "events.jsonl"
    events.touch()
    err = told(capsys, 1, "rebalances", "--events", str(events), "--to", "lake", "--master", master)
    assert expected in err


def test_something_that_is_no_master(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """For example a master's web page. Spark tries for a minute, then fails in the middle of its start."""

    def ended(*_: object, **__: object) -> None:
        raise captured("java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.")

    monkeypatch.setattr(session, "spark_session", ended)
    events = tmp_path / "events.jsonl"
    events.touch()
    with socket.create_server(("127.0.0.1", 0)) as page:
        master = f"spark://127.0.0.1:{page.getsockname()[1]}"
        err = told(capsys, 1, "rebalances", "--events", str(events), "--to", "lake", "--master", master)
    assert f"{master} answers, but not as a master of this Spark" in err


@pytest.mark.parametrize(
    ("text", "ms"), [("10s", 10_000), ("500ms", 500), ("5m", 300_000), ("24h", 86_400_000)]
)
def test_durations(text: str, ms: int) -> None:
    assert duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "10", "0s", "-1s", "1.5s", "25h", "10 s", "s", "1d"])
def test_no_durations(text: str) -> None:
    with pytest.raises(ArgumentTypeError):
        duration_ms(text)


def captured(text: str) -> Exception:
    """An exception like those that Spark raises."""
    return type("AnalysisException", (Exception,), {"__module__": "pyspark.errors.exceptions.captured"})(text)


def test_what_spark_brings_back_is_told_as_it_was_raised() -> None:
    text = """[PYTHON_DATA_SOURCE_ERROR] Failed to create Python reader: Traceback (most recent call last):
  File "/site/muster/pipeline/options.py", line 1, in of
    raise OptionError("x")
muster.pipeline.errors.OptionError: option subscirbe is not known
\tat org.apache.spark.sql.Some.method(Some.scala:12)
"""
    assert from_spark(captured(text)) == "option subscirbe is not known"


def test_what_a_function_of_the_users_raised_is_told_without_sparks_words_for_it() -> None:
    text = """[STREAM_FAILED] Query terminated: Return Message: Traceback (most recent call last):
  File "/site/py4j/clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
                   ^^^^^^^^^^^^^^^
ValueError: the database is another's
 SQLSTATE: 39000
"""
    assert from_spark(captured(text)) == "ValueError: the database is another's"


def test_of_other_errors_the_traces_are_left_out() -> None:
    text = "Job aborted: disk is full\n\tat org.apache.Some$1.call(Some.scala:1)\n\t... 12 more\nCaused by: x"
    assert from_spark(captured(text)) == "Job aborted: disk is full\nCaused by: x"
    assert from_spark(ValueError("ours, and a bug")) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            'java.io.IOException: Cannot run program "/opt/python": error=2, No such file',
            "no Python at /opt/python: PYSPARK_PYTHON",
        ),
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that in driver: 3.11,"
            " PySpark cannot run with different minor versions.",
            "executors run Python 3.9, the driver 3.11",
        ),
        (
            "Bad data in pyspark.daemon's standard output. Invalid port number/socket path:\n  17 (0x11)\n"
            "Python command to execute the daemon was:\n  /opt/python -m pyspark.daemon pyspark.worker\n",
            "/opt/python, which an executor took for its Python, is none that works",
        ),
        (
            "Error from python worker:\n  Traceback (most recent call last):\n  ImportError: no SSL\n"
            "PYTHONPATH was:\n  /spark/python",
            "the Python of an executor does not run (ImportError: no SSL)",
        ),
        (
            "PythonException: Traceback\nModuleNotFoundError: No module named 'pyarrow'\n",
            "a Python of Spark's lacks the module pyarrow",
        ),
        (
            "PythonException: Traceback\nModuleNotFoundError: No module named 'google.protobuf'\n",
            "a Python of Spark's lacks the module google.protobuf",
        ),
    ],
)
def test_what_is_wrong_with_the_python_of_executors(text: str, expected: str) -> None:
    told = from_spark(captured(f"Job aborted due to stage failure: {text}\n\tat org.apache.Some.x(Y.scala)"))
    assert expected in (told or "")
    assert "PYSPARK_PYTHON names one that every machine of the cluster has" in (told or "")
