"""Spark's standalone cluster from the installed pyspark: a master and workers on loopback, and jobs on it.

    with Standalone(folder) as cluster, cluster.running("job", cluster.spark_submit("job.py")) as job:
        done = job.wait()

Every program is the first of a session of processes (see processes.py), and is ended with all of them:
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
"""How long anything here may take: a job is done in some fifteen seconds where nothing else runs."""
_LOOK_S: Final = 0.05

_DEFAULTS: Final = {
    # Small, and quick to begin: the cluster is here to be there, not to be fast.
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
"""What an administrator writes into conf/spark-defaults.conf."""
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
    """The first result that is true."""
    until = time.monotonic() + limit_s
    while not (result := fact()):
        assert time.monotonic() < until, f"{what}: not within {limit_s:g} s"
        time.sleep(_LOOK_S)
    return result


class Program:
    """A command in a session of its own; what it prints goes to the files `<log>.out` and `<log>.err`."""

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
        """What came of it, once it has ended by itself."""
        try:
            code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end within {limit_s:g} s:\n{self.out}\n{self.err}") from None
        return subprocess.CompletedProcess(self.process.args, code, self.out, self.err)

    def kill(self) -> None:
        """End it and all that it started, at once."""
        processes.kill(self.process.pid)
        self.process.wait()

    def processes(self) -> dict[int, str]:
        """It and all that it started, by process id, with their names."""
        return processes.of_session(self.process.pid)


class Standalone:
    """A master and workers with a core each. `folder` takes what they and their jobs leave lying about."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self.folder = folder
        self._port = free_ports(2)
        self._count = workers
        self._master: Program | None = None
        self.workers: list[Program] = []

    @property
    def url(self) -> str:
        """What `--master` takes."""
        return f"spark://127.0.0.1:{self._port}"

    def state(self) -> dict[str, Any]:
        """What the master says of its workers and jobs; nothing while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port + 1}/json/", timeout=10) as answer:
                told: dict[str, Any] = json.load(answer)
                return told
        except OSError:
            return {}
        except json.JSONDecodeError:  # as it starts, its page is there before what this asks for
            return {}

    def alive(self) -> int:
        """How many workers the master counts on."""
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
        """Start workers; returns when the master counts on them."""
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
        """The executors that run on a worker, by process id."""
        return [each for each in self.workers[worker].processes() if _is_executor(each)]

    def variables(self, **more: str) -> dict[str, str]:
        """The environment of everything here, with nothing of Spark's in it but what is said here."""
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
        """A command in the cluster's folder, ended with everything it started."""
        program = Program(command, self.folder / name, self.variables(**variables), self.folder)
        try:
            yield program
        finally:
            program.kill()

    def spark_submit(self, *arguments: str) -> list[str]:
        """The command that hands a job to this cluster."""
        return [str(SPARK_HOME / "bin/spark-submit"), "--master", self.url, *arguments]


def _is_executor(pid: int) -> bool:
    try:
        return b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
