"""Spark's standalone cluster from the installed pyspark: a master and workers on loopback, and jobs on it.

    with Standalone(folder) as cluster, cluster.running("job", cluster.spark_submit("job.py")) as job:
        done = job.wait()

Every program leads its own session of processes (see processes.py), and all of them are killed together:
executors, their Python daemons, the Python of a driver.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pyspark

from tests.pipeline import processes
from tests.pipeline.processes import ENDING_WITH_THE_TESTS
from tests.support.java import SPARK
from tests.support.ports import free_ports

SPARK_HOME: Final = Path(pyspark.__file__).parent
LIMIT_S: Final = 300.0
"""Limit for every wait here: a job takes some fifteen seconds on an idle machine."""
_LOOK_S: Final = 0.05

_DEFAULTS: Final = {
    # Small and quick to start: the cluster only has to exist, not to be fast.
    "spark.driver.memory": "768m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": SPARK,
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": SPARK,
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}
"""Settings that an administrator writes into conf/spark-defaults.conf."""
_LOG4J: Final = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


def wait_for(fact: Callable[[], Any], what: str, limit_s: float = LIMIT_S) -> Any:
    """Wait for the first true result and return it."""
    until = time.monotonic() + limit_s
    while not (result := fact()):
        assert time.monotonic() < until, f"{what}: not within {limit_s:g} s"
        time.sleep(_LOOK_S)
    return result


class Program:
    """A command in its own session; its output goes to the files `<log>.out` and `<log>.err`."""

    def __init__(self, command: Sequence[str], log: Path, variables: Mapping[str, str], cwd: Path) -> None:
        self._out, self._err = log.with_suffix(".out"), log.with_suffix(".err")
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [*ENDING_WITH_THE_TESTS, *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=dict(variables),
                cwd=cwd,
                start_new_session=True,
            )

    @property
    def out(self) -> str:
        return self._out.read_text(errors="replace")

    @property
    def err(self) -> str:
        return self._err.read_text(errors="replace")

    def wait(self, limit_s: float = LIMIT_S) -> subprocess.CompletedProcess[str]:
        """Wait until it ends by itself; return its result."""
        try:
            code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end within {limit_s:g} s:\n{self.out}\n{self.err}") from None
        return subprocess.CompletedProcess(self.process.args, code, self.out, self.err)

    def kill(self) -> None:
        """Kill it and everything it started, at once."""
        processes.kill(self.process.pid)
        self.process.wait()

    def processes(self) -> dict[int, str]:
        """Command lines of it and of everything it started, by process id."""
        return processes.of_session(self.process.pid)


class Standalone:
    """A master, and workers with one core each. `folder` takes the files that they and their jobs leave
    behind."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self.folder = folder
        self._port = free_ports(2)
        self._count = workers
        self._master: Program | None = None
        self.workers: list[Program] = []

    @property
    def url(self) -> str:
        """The value for `--master`."""
        return f"spark://127.0.0.1:{self._port}"

    def state(self) -> dict[str, Any]:
        """The master's report on its workers and jobs; empty while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port + 1}/json/", timeout=10) as answer:
                told: dict[str, Any] = json.load(answer)
                return told
        except OSError:
            return {}
        except json.JSONDecodeError:  # as it starts, the page is there before this data
            return {}

    def alive(self) -> int:
        """Number of workers that the master considers alive."""
        return sum(each["state"] == "ALIVE" for each in self.state().get("workers", []))

    def __enter__(self) -> Self:
        conf = self.folder / "conf"
        conf.mkdir(parents=True)
        (conf / "spark-defaults.conf").write_text(
            "".join(f"{name} {value}\n" for name, value in _DEFAULTS.items())
        )
        (conf / "log4j2.properties").write_text(_LOG4J)
        try:
            where = ("--host", "127.0.0.1", "--port", str(self._port), "--webui-port", str(self._port + 1))
            self._master = self._daemon("master", "master.Master", *where)
            self.add_workers(self._count)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def add_workers(self, count: int) -> None:
        """Start workers; returns once the master considers them alive."""
        before = self.alive()
        for _ in range(count):
            name = f"worker-{len(self.workers)}"
            where = ("--host", "127.0.0.1", "--webui-port", "0", "--work-dir", str(self.folder / name))
            size = ("--cores", "1", "--memory", "1g")
            self.workers.append(self._daemon(name, "worker.Worker", *where, *size, self.url))
        wait_for(lambda: self.alive() == before + count, "workers that are ALIVE")

    def close(self) -> None:
        for each in (*self.workers, *([self._master] if self._master else [])):
            each.kill()

    def executors(self, worker: int) -> list[int]:
        """Process ids of the executors on a worker."""
        return [each for each in self.workers[worker].processes() if _is_executor(each)]

    def variables(self, **more: str) -> dict[str, str]:
        """The environment of all processes here; of Spark's variables only those set here."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SPARK_", "PYSPARK_", "PYTHON"))
        }
        return kept | {
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_CONF_DIR": str(self.folder / "conf"),
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": SPARK,
            **more,
        }

    def _daemon(self, name: str, what: str, *options: str) -> Program:
        command = [str(SPARK_HOME / "bin/spark-class"), f"org.apache.spark.deploy.{what}", *options]
        return Program(command, self.folder / name, self.variables(), self.folder)

    @contextmanager
    def running(self, name: str, command: Sequence[str], **variables: str) -> Iterator[Program]:
        """Run a command in the cluster's folder; it is killed with everything it started."""
        program = Program(command, self.folder / name, self.variables(**variables), self.folder)
        try:
            yield program
        finally:
            program.kill()

    def spark_submit(self, *arguments: str) -> list[str]:
        """The command that submits a job to this cluster."""
        return [str(SPARK_HOME / "bin/spark-submit"), "--master", self.url, *arguments]


def _is_executor(pid: int) -> bool:
    try:
        return b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
