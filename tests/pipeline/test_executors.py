"""The checks of executors, without Spark; test_standalone.py runs them on a real cluster."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from muster import __version__
from muster.pipeline import executors
from muster.pipeline.errors import PipelineError
from muster.pipeline.executors import check_executors, check_format
from tests.support.ports import free_ports

HOST = socket.gethostname()


class Context:
    """A SparkContext whose tasks are run by `work`, or by nobody."""

    defaultParallelism = 2

    def __init__(self, work: Callable[[list[Any]], list[Any]] | None = None, master: str = "yarn") -> None:
        self.master = master
        self.asked: list[Any] = []
        self._work = work
        self._cancelled = Event()

    def parallelize(self, data: list[Any], parts: int) -> Context:
        assert len(data) == parts
        self.asked = data
        return self

    def map(self, function: Callable[[Any], Any]) -> Context:
        assert function is eval, "a function of ours is sent by its name, and is not found there"
        return self

    def collect(self) -> list[Any]:
        if self._work is not None:
            return self._work(self.asked)
        assert self._cancelled.wait(60)
        raise RuntimeError("Job 0 cancelled")

    def cancelAllJobs(self) -> None:
        self._cancelled.set()

    def getConf(self) -> dict[str, str]:
        return {"spark.driver.host": "driver.example"}


def here(asked: list[Any]) -> list[Any]:
    return [eval(each) for each in asked]


def check(context: Context, **more: Any) -> None:
    check_executors(SimpleNamespace(sparkContext=context), **more)  # type: ignore[arg-type]


def test_what_is_asked_can_be_answered() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        check(Context(here), brokers=[server.getsockname()])


def test_nothing_is_asked_of_this_machine_alone() -> None:
    context = Context(here, master="local[2]")
    check(context, brokers=[("127.0.0.1", 1)])
    assert not context.asked


def test_a_broker_that_executors_do_not_reach() -> None:
    port = free_ports(1)
    told = rf"executors on {HOST} do not reach the broker at 127\.0\.0\.1:{port}, the address that it gives"
    with pytest.raises(PipelineError, match=told):
        check(Context(here), brokers=[("127.0.0.1", port)])


def test_a_package_that_executors_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "NEEDED", ("muster", "no_such_package", "pyarrow"))
    with pytest.raises(PipelineError, match=f"executors lack no_such_package: {sys.executable} on {HOST}"):
        check(Context(here))


def test_a_package_that_this_job_needs_too() -> None:
    with pytest.raises(PipelineError, match=r"executors lack no_such\.package, no_such_package: "):
        check(Context(here), also_needed=["no_such.package", "pyarrow", "no_such_package"])


def test_another_muster_on_an_executor() -> None:
    def older(asked: list[Any]) -> list[Any]:
        answer = here(asked)[0]
        return [answer, (*answer[:3], "0.0.1", answer[4])]

    with pytest.raises(
        PipelineError, match=rf"executors have muster-kafka 0\.0\.1, the driver {__version__}"
    ):
        check(Context(older))


def test_a_cluster_that_gives_no_executor(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "_NOTICE_S", 0.0)
    with pytest.raises(PipelineError, match=r"yarn gave no executor in 0\.5 s.* is driver\.example"):
        check(Context(), limit_s=0.5)
    assert capsys.readouterr().err == "waiting for executors of yarn (0.5 s at most)\n"


def test_what_spark_raises_itself_is_passed_on() -> None:
    def broken(_: list[Any]) -> list[Any]:
        raise ValueError("of Spark's")

    with pytest.raises(ValueError, match="of Spark's"):
        check(Context(broken))


def test_a_format_that_spark_does_not_find() -> None:
    def spark(found: bool) -> Any:
        manager = SimpleNamespace(dataSourceExists=lambda name: found and name == "muster")
        state = SimpleNamespace(dataSourceManager=lambda: manager)
        return SimpleNamespace(_jsparkSession=SimpleNamespace(sessionState=lambda: state))

    check_format(spark(True))
    with pytest.raises(PipelineError, match=r"PYTHONPATH=muster\.zip spark-submit --py-files muster\.zip"):
        check_format(spark(False))
