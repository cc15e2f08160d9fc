"""The jobs on a real cluster, a standalone master and two workers, with the commands that people type."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import venv
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow.dataset
import pyarrow.parquet
import pytest

import muster
from muster.client import Consumer, TopicPartition
from muster.coordinator.journal.entries import Entry
from muster.coordinator.journal.explain import explain_all
from muster.coordinator.testing import Broker
from muster.pipeline.cli import main
from tests.pipeline.logs import committed, fill
from tests.pipeline.standalone import LIMIT_S, Standalone, wait_for
from tests.support.ports import free_ports

SUBMITTED: Final = Path(__file__).parent / "submitted"
COUNTS: Final = (6_000, 5_000)
"""Number of records in each partition of `orders`."""
ALL: Final = Counter((partition, offset) for partition, count in enumerate(COUNTS) for offset in range(count))
COLUMNS: Final = ["partition", "offset"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("standalone") / "cluster") as started:
        yield started


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """Holds records, and a group that came and went."""
    with Broker(lease_term_ms=60_000) as started:
        fill(started, "orders", *COUNTS)
        asyncio.run(_come_and_go(started))
        started.wait_for_group("billing", "Empty")
        yield started


async def _come_and_go(broker: Broker) -> None:
    async with Consumer(broker.bootstrap, group_id="billing", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["orders"])
        await anext(aiter(consumer))


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package in one file, as `pip wheel --no-deps` would make it."""
    path = tmp_path_factory.mktemp("archive") / "muster.zip"
    package = Path(muster.__file__).parent
    with zipfile.ZipFile(path, "w") as made:
        for folder, _, names in os.walk(package, followlinks=True):
            for name in names:
                if name.endswith((".py", ".properties")):
                    file = Path(folder, name)
                    made.write(file, Path("muster") / file.relative_to(package))
        made.write(package.parent / "pyspark_muster.py", "pyspark_muster.py")
    return path


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with everything that the package needs, but not the package."""
    folder = tmp_path_factory.mktemp("bare") / "python"
    venv.create(folder, symlinks=True, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    # In a folder that a .pth file names, .pth files do not count: an editable install is one of them.
    (site / "others.pth").write_text(str(Path(pyarrow.__file__).parents[1]))
    python = folder / "bin" / "python"
    looked = subprocess.run(
        [python, "-c", "import pyspark, pyarrow, construct; import muster"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        cwd=folder,
    )
    assert "No module named 'muster'" in looked.stderr, "this takes an editable install, as make does it"
    return python


def submit_file(capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as exited:
        main(["--submit-file"])
    assert exited.value.code == 0
    return capsys.readouterr().out.strip()


def for_others(folder: Path) -> Counter[tuple[int, int]]:
    """What readers see that go by the files alone: how often each partition and offset appears."""
    rows = pyarrow.dataset.dataset(folder, format="parquet", partitioning="hive").to_table(COLUMNS)
    return Counter((row["partition"], row["offset"]) for row in rows.to_pylist())


def for_spark(folder: Path) -> Counter[tuple[int, int]]:
    """What Spark's readers see: only the files in its list of what finished."""
    rows: Counter[tuple[int, int]] = Counter()
    for note in (folder / "_spark_metadata").glob("[0-9]*"):
        for line in note.read_text().splitlines()[1:]:
            file = json.loads(line)["path"].removeprefix("file://")
            rows.update(for_others(Path(file)))
    return rows


def check_rebalances(lake: Path, broker: Broker) -> None:
    rows = pyarrow.dataset.dataset(lake / "silver" / "rebalances", format="parquet").to_table().to_pylist()
    entries = [Entry.from_json(each.value or b"") for each in broker.records("__group_events")]
    expected = Counter((each.group, each.generation) for each in explain_all(entries))
    assert expected
    assert Counter((row["group"], row["generation"]) for row in rows) == expected


# --- the package is installed in the Python of the driver and of the executors ------------------------------


def test_ingest_by_spark_submit(
    cluster: Standalone, broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["ingest", "--once", "--topics", "orders", "--bootstrap-server", broker.bootstrap]
    arguments += ["--to", str(tmp_path), "--batch-records", "4000"]
    command = cluster.spark_submit(submit_file(capsys), *arguments)
    with cluster.running("ingest", command, PYSPARK_PYTHON=sys.executable) as job:
        done = job.wait()
    assert done.returncode == 0, done
    assert "11,000 records in 3 batches" in done.stdout
    assert for_spark(tmp_path / "topics") == ALL
    ends = {TopicPartition("orders", partition): count for partition, count in enumerate(COUNTS)}
    assert committed(broker, "muster-pipeline-ingest") == ends


def test_rebalances_by_the_command_itself(cluster: Standalone, broker: Broker, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "muster.pipeline.cli", "rebalances", "--master", cluster.url]
    options = ["--bootstrap-server", broker.bootstrap, "--to", str(tmp_path)]
    with cluster.running("rebalances", [*command, *options, "--conf", "spark.app.name=chosen"]) as job:
        done = job.wait()
    assert done.returncode == 0, done
    check_rebalances(tmp_path, broker)
    ended = wait_for(lambda: cluster.state()["completedapps"], "the job's end, as the master sees it")
    assert "chosen" in {each["name"] for each in ended}, "--conf is for Spark"
    assert " WARN " not in done.stderr, "--log-level is off"


# --- an archive: the package is installed nowhere -----------------------------------------------------------


@pytest.mark.long
def test_an_archive_for_executors_and_driver(
    cluster: Standalone, broker: Broker, archive: Path, bare_python: Path, tmp_path: Path
) -> None:
    """--py-files alone is not enough. Spark's driver looks for formats, and runs the reader of a stream, in
    separate Python processes, which see what PYTHONPATH names when spark-submit starts."""
    job_file = str(SUBMITTED / "all_jobs.py")
    command = cluster.spark_submit("--py-files", str(archive), job_file, broker.bootstrap, str(tmp_path))
    python = {"PYSPARK_PYTHON": str(bare_python)}
    with cluster.running("py-files-alone", command, **python) as job:
        done = job.wait()
    assert done.returncode == 1, done
    assert "PYTHONPATH=muster.zip spark-submit --py-files muster.zip" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    with cluster.running("archive", command, **python, PYTHONPATH=str(archive)) as job:
        done = job.wait()
    assert done.returncode == 0, done
    assert for_spark(tmp_path / "topics") == ALL
    assert for_others(tmp_path / "batch") == ALL
    assert for_spark(tmp_path / "stream") == ALL


# --- misconfiguration ---------------------------------------------------------------------------------------


def script(path: Path, *lines: str) -> str:
    path.write_text("\n".join(("#!/bin/sh", *lines)) + "\n")
    path.chmod(0o755)
    return str(path)


def test_what_executors_lack_is_told(
    cluster: Standalone, broker: Broker, bare_python: Path, tmp_path: Path
) -> None:
    closed = free_ports(1)
    newer = (
        "import collections, runpy, sys;"
        " of = collections.namedtuple('of', 'major minor micro releaselevel serial');"
        " sys.version_info = of(3, 99, 0, 'final', 0);"
        " runpy.run_module('pyspark.daemon', run_name='__main__')"
    )
    pythons = {
        str(bare_python): f"executors lack muster: {bare_python} on ",
        str(tmp_path / "nowhere"): f"an executor has no Python at {tmp_path}/nowhere: PYSPARK_PYTHON names",
        # It is called with -m pyspark.daemon before the other arguments.
        script(tmp_path / "newer", "shift 2", f'exec "{sys.executable}" -c "{newer}" "$@"'): (
            "executors run Python 3.99, the driver 3."
        ),
        script(tmp_path / "none", "echo nonsense"): f"{tmp_path}/none, which an executor took for its",
    }
    told = tmp_path / "told.json"
    question = [str(SUBMITTED / "questions.py"), str(told), str(broker.port), str(closed), *pythons]
    with cluster.running("questions", cluster.spark_submit(*question), PYSPARK_PYTHON=sys.executable) as job:
        done = job.wait()
    assert done.returncode == 0, done
    expected = [None, f"do not reach the broker at 127.0.0.1:{closed}, the address that it gives to clients"]
    answers = json.loads(told.read_text())
    for wanted, words in zip([*expected, *pythons.values()], answers, strict=True):
        assert words == wanted or (wanted and words and wanted in words), answers


# --- something dies in the middle ---------------------------------------------------------------------------


@pytest.mark.long
def test_an_executor_and_a_worker_die_in_the_middle(
    cluster: Standalone, broker: Broker, tmp_path: Path
) -> None:
    """A user's own script. Each time, both executors are held in the middle of a read."""
    command = cluster.spark_submit(str(SUBMITTED / "own_job.py"), broker.bootstrap, str(tmp_path))
    with (
        broker.faults.add(api="Fetch", client_id="own-batch", delay="1m", times=None) as batch,
        broker.faults.add(api="Fetch", client_id="own-stream", delay="1m", times=None) as stream,
        cluster.running("own-job", command, PYSPARK_PYTHON=sys.executable) as job,
    ):
        batch.hit(2, timeout=LIMIT_S)
        (executor,) = cluster.executors(0)
        os.kill(executor, signal.SIGKILL)
        wait_for(lambda: executor not in cluster.executors(0), "the end of an executor")
        batch.remove()
        stream.hit(2, timeout=LIMIT_S)
        cluster.workers[1].kill()
        stream.remove()
        done = job.wait()
    assert done.returncode == 0, done
    assert "ExecutorLostFailure" in done.stderr, "it was in the middle of a task"
    assert for_others(tmp_path / "batch") == ALL
    assert for_spark(tmp_path / "stream") == ALL
    assert cluster.alive() == 1
