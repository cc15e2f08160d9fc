"""What the machines of a Spark cluster have, found out by a task on each core before anything else runs.

Without it a stream fails in its first batch with the symptom: a module that is not found, a socket that timed
out after half a minute.
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
"""How long executors may take before it is told that they are waited for."""
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
    """Of a task: where it ran, and what is not as it should be."""

    host: str
    python: str
    lacking: tuple[str, ...]
    version: str | None
    """Of muster."""
    unreached: tuple[tuple[Address, str], ...]
    """Brokers, and why."""


def check_format(spark: SparkSession) -> None:
    """Raises PipelineError where Spark does not find the format "muster": its driver looks for it in Python
    processes of its own, which do not see what came by --py-files."""
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
    """Raises PipelineError that names a machine whose Python lacks a package (or one of `also_needed`,
    modules) or has another muster, or that does not reach one of the `brokers`; and where the cluster gives
    no executor in `limit_s` seconds.

    Each core that the cluster has now is asked: executors that come later are not.
    """
    context = spark.sparkContext
    if context.master.startswith("local"):
        return
    scope = {"needed": (*NEEDED, *also_needed), "brokers": tuple(brokers), "timeout_s": _CONNECT_S}
    # As text: a function of ours would be sent by its name, and fail on exactly the machines looked for.
    expression = f"(lambda scope: exec({_PROBE!r}, scope) or scope['answer'])({scope!r})"
    _judge(_Answer(*each) for each in sorted(set(_answers(context, expression, limit_s))))


def _answers(context: SparkContext, expression: str, limit_s: float) -> list[Any]:
    """What each core makes of the expression. The job has a thread of its own: a call of Spark's that a
    signal breaks off leaves its thread unable to make another one."""
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
