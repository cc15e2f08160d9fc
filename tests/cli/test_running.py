"""How every command handles failing brokers, closed pipes and signals; and that `serve` imports none of the
commands."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from muster.coordinator import command_line
from muster.coordinator.commands import consume
from muster.coordinator.testing import Broker
from tests.cli.running import DEADLINE_S, Muster, environment, run, started
from tests.support.each import each
from tests.support.ports import free_ports
from tests.support.wire_topics import until

_PYPROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
_SCRIPT: str = _PYPROJECT["project"]["scripts"]["muster"]
COMMANDS = (
    ["topics", "list"],
    ["topics", "create", "t"],
    ["topics", "describe", "t"],
    ["topics", "alter", "t", "--partitions", "2"],
    ["topics", "delete", "t"],
    ["groups", "list"],
    ["groups", "describe", "g"],
    ["groups", "delete", "g"],
    ["groups", "reset-offsets", "g", "--topic", "t", "--to-latest"],
    ["groups", "delete-offsets", "g", "--topic", "t"],
    ["groups", "why", "g"],
    ["groups", "timeline", "g"],
    ["groups", "evict", "g", "--all"],
    ["cluster", "describe"],
    ["cluster", "ready"],
    ["cluster", "drain", "1"],
    ["cluster", "undrain", "1"],
    ["top"],
    ["produce", "t", "--file", os.devnull],
    ["consume", "t"],
    ["consume", "t", "--group", "g"],
)


@contextlib.contextmanager
def server(handle: Callable[[socket.socket], None]) -> Iterator[str]:
    """Listen on a port and let `handle` serve one connection after another."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        held = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    held.append(connection)
                    handle(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listening.getsockname()[1]}"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in held:
                connection.close()


def named(arguments: list[str]) -> str:
    """How messages begin."""
    return "muster " + " ".join(arguments[: 1 if arguments[0] in ("top", "produce", "consume") else 2])


@each("arguments", COMMANDS, ids=lambda arguments: " ".join(arguments))
def test_a_broker_that_is_not_there(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    bootstrap = f"127.0.0.1:{free_ports(1)}"
    assert Muster(bootstrap, capfd).refused(*arguments) == (
        f"{named(arguments)}: no connection to {bootstrap}: connection refused "
        "(is a broker running there? use --bootstrap-server for another)\n"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "no such file or directory"),
        ("security.protocol=TLS\n", "security.protocol='TLS': it takes 'PLAINTEXT', 'SSL'"),
        ("ssl.truststore.location=ca.jks\n", "set ssl.truststore.type=PEM"),
        ("bootstrap.servers=nowhere\n", "bootstrap.servers of --command-config: 'nowhere' is no address"),
    ],
)
def test_a_client_properties_that_cannot_be_used(
    text: str | None, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "client.properties"
    if text is not None:
        path.write_text(text)
    ended = Muster("127.0.0.1:1", capfd)("topics", "list", "--command-config", str(path))
    (line,) = ended.err.splitlines()
    assert ended.code == 2
    assert line.startswith("muster topics list: ")
    assert said in line


def test_a_program_that_calls_a_command_still_hears_of_brokers_that_are_gone(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    Muster(f"127.0.0.1:{free_ports(1)}", capfd).refused("topics", "list")
    assert not caplog.messages
    assert logging.getLogger("muster.client.network.pool").isEnabledFor(logging.WARNING)


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: " ".join(arguments))
def test_a_broker_that_hangs(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    with server(lambda connection: None) as bootstrap:
        said = Muster(bootstrap, capfd).refused(*arguments, "--timeout", "0.3")
    # "did not answer", or "no connection to" if even connecting took that long.
    assert said.startswith(named(arguments))
    assert bootstrap in said
    assert "in time" in said


@each("arguments", COMMANDS, ids=lambda arguments: " ".join(arguments))
def test_a_broker_that_closes(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    with server(lambda connection: connection.close()) as bootstrap:
        said = Muster(bootstrap, capfd).refused(*arguments)
    assert bootstrap in said
    assert "it may be a listener for TLS or SASL (security.protocol)" in said


@each("arguments", COMMANDS, ids=lambda arguments: " ".join(arguments))
def test_what_is_no_broker(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    with server(lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as bootstrap:
        said = Muster(bootstrap, capfd).refused(*arguments)
    assert f"{bootstrap} does not answer as a Kafka broker does" in said


def test_the_option_beats_the_variable_and_several_are_tried(muster: Muster) -> None:
    nobody = f"127.0.0.1:{free_ports(1)}"
    good = muster.bootstrap
    muster.bootstrap = nobody
    assert muster("topics", "list", "--bootstrap-server", good).code == 0
    assert muster("topics", "list", "--bootstrap-server", f"{nobody},{good}").code == 0
    muster.bootstrap = "nonsense"
    assert "MUSTER_BOOTSTRAP_SERVERS: 'nonsense' is no address" in muster.misused("topics", "list")


@pytest.mark.parametrize("options", [(), ("--group", "g")], ids=["alone", "in a group"])
def test_a_broker_that_goes_away_is_not_waited_for_without_end(options: tuple[str, ...]) -> None:
    with Broker() as broker:
        run(broker.bootstrap, "produce", "t", stdin=b"x\n")
        process = started(broker.bootstrap, "consume", "t", "--from-beginning", "--timeout", "5", *options)
        assert process.stdout is not None
        assert process.stdout.readline() == b"x\n"
    out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out) == (1, b""), err
    assert b"127.0.0.1" in err


@pytest.mark.parametrize("options", [(), ("--until-end",), ("--group", "g")], ids=" ".join)
def test_a_broker_that_goes_away_is_not_an_idle_topic(options: tuple[str, ...]) -> None:
    with Broker() as broker:
        broker.create_topic("t")
        for _ in range(60):  # more than pipes and the client hold
            broker.produce("t", [b"x" * 100_000 for _ in range(9)])
        process = started(
            broker.bootstrap, "consume", "t", "--from-beginning", "--idle-timeout", "2", *options
        )
        assert process.stdout is not None
        begun = process.stdout.read(100_000)
    rest, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, (begun + rest).count(b"\n") < 540) == (1, True), err
    assert b"127.0.0.1" in err


def test_an_idle_timeout_before_the_end_is_a_failure(broker: Broker, muster: Muster) -> None:
    run(broker.bootstrap, "produce", "t", stdin=b"1\n2\n")
    options = ("consume", "t", "--from-beginning", "--until-end", "--idle-timeout", "1")
    assert muster.done(*options, "--max-messages", "1") == "1\n"
    with broker.faults.add(api="Fetch", delay="1h", times=None):
        assert muster.refused(*options) == "muster consume: no record for 1 s; t-0 is at 0 of 2\n"
    with broker.faults.add(api="Fetch", error="KAFKA_STORAGE_ERROR", times=None):
        assert "KAFKA_STORAGE_ERROR" in muster.refused(*options)


@each(
    "protocol, api, error",
    [
        ("classic", "FindCoordinator", "COORDINATOR_NOT_AVAILABLE"),
        ("classic", "JoinGroup", "COORDINATOR_LOAD_IN_PROGRESS"),
        ("consumer", "FindCoordinator", "COORDINATOR_NOT_AVAILABLE"),
        ("consumer", "ConsumerGroupHeartbeat", "COORDINATOR_LOAD_IN_PROGRESS"),
    ],
)
def test_a_group_that_cannot_be_joined_is_not_waited_for_without_end(
    muster: Muster, broker: Broker, protocol: str, api: str, error: str
) -> None:
    muster("topics", "create", "t", "--if-not-exists")
    options = ("consume", "t", "--group", "g", "--timeout", "2", "--group-protocol", protocol)
    with broker.faults.add(api=api, group="g", error=error, times=None):
        said = muster.refused(*options)
    assert said.startswith("muster consume: group g: no assignment within 2 s: ")
    assert error in said


@each("protocol, api, beats", [("classic", "Heartbeat", 1), ("consumer", "ConsumerGroupHeartbeat", 3)])
def test_the_time_between_heartbeats_is_not_held_against_the_coordinator(
    protocol: str, api: str, beats: int
) -> None:
    interval_ms = 2_500
    with Broker(
        group_consumer_min_heartbeat_interval_ms=interval_ms, group_consumer_heartbeat_interval_ms=interval_ms
    ) as broker:
        run(broker.bootstrap, "produce", "t", stdin=b"x\n")
        options = ("consume", "t", "--group", "g", "--from-beginning", "--group-protocol", protocol)
        with broker.faults.add(api=api, group="g", delay="1ms", times=None) as rule:
            process = started(broker.bootstrap, *options, "--timeout", "2")
            assert process.stdout is not None
            assert process.stdout.readline() == b"x\n"
            rule.hit(beats)
        assert process.poll() is None
        with broker.faults.add(api=api, group="g", error="COORDINATOR_NOT_AVAILABLE", times=None):
            out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out) == (1, b""), err
    assert b"COORDINATOR_NOT_AVAILABLE" in err


@pytest.mark.parametrize("api", ["JoinGroup", "SyncGroup"])
def test_a_member_that_has_to_wait_for_its_group_says_so(broker: Broker, api: str) -> None:
    run(broker.bootstrap, "produce", "t", stdin=b"x\n")
    options = ("consume", "t", "--group", "g", "--from-beginning", "--max-messages", "1", "--timeout", "1")
    with broker.faults.add(api=api, group="g", delay="1h", times=None):
        process = started(broker.bootstrap, *options)
        assert process.stderr is not None
        line = process.stderr.readline()
    assert line == b"muster consume: group g has not formed within 1 s; still waiting\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130


def test_a_member_that_has_waited_for_its_group_gets_over_a_passing_error(broker: Broker) -> None:
    run(broker.bootstrap, "produce", "t", stdin=b"x\n")
    options = ("consume", "t", "--group", "g", "--from-beginning", "--max-messages", "1", "--timeout", "4")
    loads = "COORDINATOR_LOAD_IN_PROGRESS"
    with broker.faults.add(api="JoinGroup", group="g", delay="1h"):
        process = started(broker.bootstrap, *options)
        assert process.stderr is not None
        assert b"still waiting" in process.stderr.readline()
        refusals = broker.faults.add(api="JoinGroup", group="g", error=loads, times=4)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out, refusals.fired) == (0, b"x\n", 4), err


@pytest.mark.parametrize("api", ["JoinGroup", "SyncGroup"])
def test_a_member_that_waits_for_its_group_again_has_no_idle_topic(
    muster: Muster, broker: Broker, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("t", 1)
    group, deadline, passed_s = broker.group("g"), consume.deadline, 0.0

    def have_it_wait() -> None:
        nonlocal passed_s
        broker.wait_for_group("g", "Stable", timeout_s=DEADLINE_S)
        rule = broker.faults.add(api=api, group="g", delay="1h", times=None)
        group.evict(group.members[0].id)
        rule.hit()
        broker.produce("t", [b"x"])
        passed_s = DEADLINE_S

    monkeypatch.setattr(consume, "deadline", lambda seconds: deadline(seconds) + passed_s)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(have_it_wait)
        shown = muster("consume", "t", "--group", "g", "--idle-timeout", f"{DEADLINE_S}", "--timeout", "600")
        waiting.result(DEADLINE_S)
    said = "muster consume: group g has not formed again, so nothing could be read\n"
    assert (shown.code, shown.out) == (1, "")
    assert shown.err == f"muster consume: group g assigned t-0\n{said}"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_a_member_leaves_its_group(broker: Broker, number: signal.Signals) -> None:
    broker.create_topic("t")
    process = started(broker.bootstrap, "consume", "t", "--group", "g")
    assert process.stderr is not None
    assert process.stderr.readline() == b"muster consume: group g assigned t-0\n"
    assert broker.group("g").facts == ("Stable", 1)
    process.send_signal(number)
    assert process.communicate(timeout=DEADLINE_S) == (b"", b"")
    assert process.returncode == 128 + number
    assert broker.group("g").facts.members == 0


def test_ctrl_c_ends_it_while_it_waits_for_input(broker: Broker) -> None:
    process = started(broker.bootstrap, "produce", "t", "--output", "json")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"x\n")
    process.stdin.flush()
    assert process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(DEADLINE_S) == 130
    assert process.communicate(timeout=DEADLINE_S) == (b"", b"")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_signal_ends_it_while_nobody_writes_to_its_fifo(broker: Broker, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    process = started(broker.bootstrap, "produce", "t", "--file", str(fifo))
    try:
        # The only thread besides the loop's is the one that opens the FIFO.
        until(lambda: len(os.listdir(f"/proc/{process.pid}/task")) == 2, "the FIFO is being opened")
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=DEADLINE_S) == (b"", b"")
        assert process.returncode == 128 + signal.SIGTERM
    finally:
        process.kill()


@each(
    "start",
    [
        "from runpy import run_module\nrun_module('muster', run_name='__main__')",
        "from runpy import run_module\nrun_module('muster.coordinator', run_name='__main__')",
        f"from importlib.metadata import EntryPoint\nsys.exit(EntryPoint('', '{_SCRIPT}', '').load()())",
    ],
)
def test_ctrl_c_ends_it_while_it_imports_what_it_needs(start: str) -> None:
    script = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'muster.coordinator.config': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        f"{start}"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (130, "")


def test_ctrl_c_ends_it_while_nobody_takes_what_it_prints(broker: Broker) -> None:
    """As in `muster consume t | less`: the member leaves even if the pipe is full."""
    run(broker.bootstrap, "produce", "t", stdin=b"x" * 1000 + b"\n" + b"y" * 500_000 + b"\n")
    process = started(broker.bootstrap, "consume", "t", "--group", "g", "--from-beginning")
    assert process.stdout is not None
    assert process.stdout.read(1) == b"x"
    process.send_signal(signal.SIGINT)
    assert process.wait(DEADLINE_S) == 130
    process.communicate(timeout=DEADLINE_S)
    assert broker.group("g").facts.members == 0


@pytest.mark.parametrize(
    "command", ["consume t --from-beginning", "consume t --group g --from-beginning", "topics describe"]
)
def test_a_closed_pipe_is_quiet(broker: Broker, command: str) -> None:
    broker.create_topic("t", 1)
    lines = b"".join(b"%d\n" % index for index in range(100_000))
    run(broker.bootstrap, "produce", "t", stdin=lines)
    process = subprocess.Popen(
        ["bash", "-c", f'set -o pipefail; "{sys.executable}" -m muster {command} | head -n 1'],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(broker.bootstrap),
    )
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, err
    assert out.count(b"\n") == 1
    assert err in (b"", b"muster consume: group g assigned t-0\n")


@each("unbuffered", ["", "1"])
@each(
    "arguments, code, said",
    [
        (["topics", "list"], 0, ""),
        (["topics", "list", "--help"], 0, ""),
        (["--version"], 0, ""),
        ([], 2, ""),
        (["topics", "delete", "nope"], 1, "nope"),
        (["topics", "delete", "nope", "--output", "json"], 1, "nope"),
        (["groups", "delete", "nope", "--output", "json"], 1, "nope"),
        (["groups", "reset-offsets", "g", "--topic", "nope", "--to-latest", "--output", "json"], 1, "nope"),
        (["groups", "reset-offsets", "g", "--topic", "t", "--topic", "nope", "--to-latest"], 1, "nope"),
        (["consume", "t", "--from-beginning", "--max-messages", "1"], 0, ""),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else str(given),
)
def test_what_nobody_reads_does_not_change_what_was_done(
    broker: Broker, filled: None, arguments: list[str], code: int, said: str, unbuffered: str
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as nobody:
        ended = subprocess.run(
            [sys.executable, "-m", "muster", *arguments],
            stdout=nobody,
            stderr=subprocess.PIPE,
            text=True,
            timeout=DEADLINE_S,
            env=environment(broker.bootstrap) | {"PYTHONUNBUFFERED": unbuffered},
            check=False,
        )
    assert ended.returncode == code, ended.stderr
    assert ended.stderr.count("\n") == (1 if said else 0), ended.stderr
    assert said in ended.stderr


@pytest.fixture
def filled(broker: Broker) -> None:
    """Creates topic `t`, with a record."""
    run(broker.bootstrap, "produce", "t", stdin=b"x\n")


@pytest.mark.parametrize("more", ["", "--group g"])
def test_a_closed_pipe_ends_it_though_no_more_records_come(broker: Broker, more: str) -> None:
    run(broker.bootstrap, "produce", "t", stdin=b"1\n2\n")
    process = started(broker.bootstrap, "consume", "t", "--from-beginning", *more.split())
    assert process.stdout is not None
    assert process.stdout.readline() == b"1\n"
    process.stdout.close()
    process.stdout = None  # `communicate` would read it
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    assert err in (b"", b"muster consume: group g assigned t-0\n")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("topics list > /dev/full", 1, "I/O error: No space left on device"),
        ("produce t --output json > /dev/full", 1, "I/O error: No space left on device"),
        ("completion bash > /dev/full", 1, "I/O error: No space left on device"),
        ("--help > /dev/full", 1, "I/O error: No space left on device"),
        ("topics list >&-", 0, ""),
        ("groups timeline g >&-", 0, ""),
        ("produce t <&-", 1, "standard input is closed; use --file"),
    ],
)
def test_input_and_output_that_fail(broker: Broker, unbuffered: str, line: str, code: int, said: str) -> None:
    if "timeline" in line:
        broker.create_topic("t")
        run(broker.bootstrap, "consume", "t", "--group", "g", "--idle-timeout", "0.1")
    ended = subprocess.run(
        ["bash", "-c", f'echo x | "{sys.executable}" -m muster {line}'],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env=environment(broker.bootstrap) | {"PYTHONUNBUFFERED": unbuffered},
        check=False,
    )
    words = line.partition(" >")[0].partition(" <")[0].split()
    command = " ".join(("muster", *words[: 1 if words[0] in ("produce", "completion") else 2]))
    command = command.removesuffix(" --help")
    assert (ended.returncode, ended.stderr) == (code, f"{command}: {said}\n" if said else "")


@pytest.mark.parametrize(
    ("line", "code", "printed"),
    [
        ("consume t --group g --from-beginning --max-messages 1", 0, "x\n"),
        ("topics describe nope", 1, ""),
        ("topics describe --nope", 2, ""),
        ("users create --salt nope", 2, ""),
    ],
)
def test_without_a_standard_error_nothing_is_told_on_standard_output(
    broker: Broker, line: str, code: int, printed: str
) -> None:
    broker.create_topic("t")
    run(broker.bootstrap, "produce", "t", stdin=b"x\n")
    ended = subprocess.run(
        ["bash", "-c", f'"{sys.executable}" -m muster {line} 2>&-'],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env=environment(broker.bootstrap),
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (code, printed)


def test_names_are_shown_in_encodings_that_do_not_have_them(broker: Broker) -> None:
    broker.create_topic("t")
    group = "gr\u00fcppe"
    member = started(broker.bootstrap, "consume", "t", "--group", group)
    assert member.stderr is not None
    member.stderr.readline()  # the member has been assigned

    def shown(*arguments: str) -> bytes:
        ended = subprocess.run(
            [sys.executable, "-m", "muster", "groups", "list", *arguments],
            capture_output=True,
            check=True,
            timeout=DEADLINE_S,
            env=environment(broker.bootstrap) | {"PYTHONIOENCODING": "ascii"},
        )
        return ended.stdout

    try:
        assert rb"gr\xfcppe" in shown()
        assert json.loads(shown("--output", "json"))[0]["group_id"] == group
    finally:
        member.send_signal(signal.SIGINT)
        member.communicate(timeout=DEADLINE_S)


def test_every_help_is_there_and_says_what_json_looks_like(capfd: pytest.CaptureFixture[str]) -> None:
    muster = Muster("127.0.0.1:9092", capfd)
    for arguments in COMMANDS:
        words = named(arguments).split()[1:]
        ended = muster(*words, "--help")
        assert (ended.code, ended.err) == (0, "")
        assert f"usage: muster {' '.join(words)}" in ended.out
        for said in ("JSON:", "--bootstrap-server", "--timeout SECONDS", "--output", "Exit codes: 0 done"):
            assert said in ended.out
    assert all(f"    {command}" in muster("--help").out for command in command_line.EVERYTHING)


def test_the_summary_of_a_command_names_each_of_its_actions(capfd: pytest.CaptureFixture[str]) -> None:
    in_other_words = {
        "find-hanging": "find",
        "migrate": "prepare a database",
        "passwd": "change passwords",
        "timeline": "explain rebalances",
        "undrain": "drain",
        "why": "explain rebalances",
    }
    called = [named(arguments).split() for arguments in COMMANDS]
    summaries = command_line.CLIENTS | {name: summary for name, (_, summary) in command_line.OTHERS.items()}
    muster = Muster("127.0.0.1:9092", capfd)
    for command in sorted({words[1] for words in called if len(words) == 3} | {"store"}):
        for action in re.findall(r"^    ([a-z-]+) ", muster(command, "--help").out, re.MULTILINE):
            verb = in_other_words.get(action, action.partition("-")[0])
            assert verb in summaries[command], f"{command} {action}"


def test_serve_starts_without_the_client() -> None:
    """Ready in a fraction of a second: the client, the commands and their dependencies are not imported."""
    script = (
        "import sys\n"
        "from muster.coordinator import cli\n"
        "cli.main(['serve', '--port', 'x'])\n"
        "rooms = ('muster.client', 'muster.coordinator.commands', 'rich', 'shtab')\n"
        "print([name for name in sys.modules if name.startswith(rooms)])"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"
