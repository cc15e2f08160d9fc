"""Checks the machines of a Spark cluster with a task on each core, before anything else runs.

Otherwise a stream's first batch would fail with only the symptom: a module that is not found, a socket that
timed out after half a minute.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from muster import __version__
from muster.pipeline.cluster import Address
from muster.pipeline.environment import INSTALL, NEEDED
from muster.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_NOTICE_S: Final = 15.0
"""How long executors may take before the wait is reported."""
_LIMIT_S: Final = 300.0
_CONNECT_S: Final = 5.0

_PROBE: Final = """\
import socket, sys
from importlib.util import find_spec
def is_there(name):
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False
lacking = [name for name in needed if not is_there(name)]
version = None if "muster" in lacking else __import__("muster").__version__
unreached = []
for address in brokers:
    try:
        socket.create_connection(address, timeout_s).close()
    except OSError as error:
        unreached.append((address, str(error)))
answer = socket.gethostname(), sys.executable, tuple(lacking), version, tuple(unreached)
"""


class _Answer(NamedTuple):
    """A task's answer: where it ran, and what is wrong there."""

    host: str
    python: str
    lacking: tuple[str, ...]
    version: str | None
    """muster's version."""
    unreached: tuple[tuple[Address, str], ...]
    """Unreachable brokers, and why."""


def check_format(spark: SparkSession) -> None:
    """Raises PipelineError if Spark does not find the format "muster": its driver looks for it in separate
    Python processes, which do not see what --py-files added."""
    if not spark._jsparkSession.sessionState().dataSourceManager().dataSourceExists("muster"):
        raise PipelineError(
            "this Python has muster, but the processes in which Spark's driver looks for formats do not."
            f" Install it in the driver's Python ({INSTALL}), or let PYTHONPATH name the archive too:"
            " PYTHONPATH=muster.zip spark-submit --py-files muster.zip ..."
        )


def check_executors(
    spark: SparkSession,
    brokers: Sequence[Address] = (),
    also_needed: Sequence[str] = (),
    *,
    limit_s: float = _LIMIT_S,
) -> None:
    """Raises PipelineError, naming the machine, if its Python lacks a package (or a module of `also_needed`)
    or has another version of muster, or if it cannot reach one of the `brokers`; also if the cluster provides
    no executor within `limit_s` seconds.

    Checks each core that the cluster has now; executors that come later are not checked.
    """
    context = spark.sparkContext
    if context.master.startswith("local"):
        return
    scope = {"needed": (*NEEDED, *also_needed), "brokers": tuple(brokers), "timeout_s": _CONNECT_S}
    # As text: a function of ours would be pickled by name, and fail on exactly the machines to be found.
    expression = f"(lambda scope: exec({_PROBE!r}, scope) or scope['answer'])({scope!r})"
    _judge(_Answer(*each) for each in sorted(set(_answers(context, expression, limit_s))))


def _answers(context: SparkContext, expression: str, limit_s: float) -> list[Any]:
    """Evaluate the expression on each core. The job has its own thread: a Spark call interrupted by a signal
    leaves its thread unable to make another one."""
    count = context.defaultParallelism

    def run() -> list[Any]:
        answers: list[Any] = context.parallelize([expression] * count, count).map(eval).collect()
        return answers

    with ThreadPoolExecutor(1, "executors") as thread:
        job = thread.submit(run)
        try:
            if not wait([job], min(_NOTICE_S, limit_s)).done:
                print(f"waiting for executors of {context.master} ({limit_s:g} s at most)", file=sys.stderr)
                if not wait([job], limit_s - _NOTICE_S).done:
                    raise PipelineError(
                        f"{context.master} gave no executor in {limit_s:g} s. Its page tells whether workers"
                        " have the cores and the memory that are asked for"
                        " (--conf spark.executor.memory=...), and why executors ended: they have to reach"
                        " the driver, whose address is"
                        f" {context.getConf().get('spark.driver.host')} (--conf spark.driver.host=...)"
                    )
            return job.result()
        except BaseException:
            with suppress(Exception):  # the JVM may be gone
                context.cancelAllJobs()
            raise


def _judge(answers: Iterable[_Answer]) -> None:
    for host, python, lacking, version, unreached in answers:
        if lacking:
            raise PipelineError(
                f"executors lack {', '.join(lacking)}: {python} on {host}. Install muster-kafka[spark] in the"
                " Python of every worker, which PYSPARK_PYTHON names"
            )
        if version != __version__:
            raise PipelineError(
                f"executors have muster-kafka {version}, the driver {__version__}: {python} on {host}."
                " Install the same in the Python of every worker"
            )
        if unreached:
            (name, port), why = unreached[0]
            raise PipelineError(
                f"executors on {host} do not reach the broker at {name}:{port}, the address that it gives to"
                f" clients ({why}). Let it give one that all machines of the Spark cluster reach"
                " (muster serve --advertised-listeners, Kafka's advertised.listeners)"
            )
