"""The two faces of `Broker` and `Cluster`: one implementation, called by blocking or by awaiting."""

from __future__ import annotations

import asyncio
import gc
import inspect
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel
import uvloop

from muster.coordinator.testing import (
    AsyncBroker,
    AsyncClock,
    AsyncCluster,
    AsyncGroup,
    AsyncMarkerHold,
    AsyncMember,
    AsyncTopic,
    AsyncTransaction,
    Broker,
    Clock,
    Cluster,
    Group,
    MarkerHold,
    Member,
    Topic,
    Transaction,
    WaitFailed,
)
from muster.coordinator.testing import broker as broker_module
from muster.coordinator.testing.faces import both
from tests.support.each import each

ROOT = Path(__file__).parents[2]
LONG_S = 30.0
PAIRS = [
    (Cluster, AsyncCluster),
    (Broker, AsyncBroker),
    (Group, AsyncGroup),
    (Member, AsyncMember),
    (Topic, AsyncTopic),
    (Transaction, AsyncTransaction),
    (Clock, AsyncClock),
    (MarkerHold, AsyncMarkerHold),
]
OF_ONE_FACE = {"aio", "blocking"}


def public(face: type) -> dict[str, Any]:
    members = {name: inspect.getattr_static(face, name) for name in dir(face) if not name.startswith("_")}
    return {name: each for name, each in members.items() if not inspect.ismemberdescriptor(each)}


def parameters(attribute: Any) -> object:
    call = getattr(attribute, "__wrapped__", attribute)
    return list(inspect.signature(call).parameters.values()) if callable(call) else None


@each("blocking, awaited", PAIRS)
def test_both_faces_have_the_same_calls(blocking: type, awaited: type) -> None:
    one, other = public(blocking), public(awaited)
    assert one.keys() - OF_ONE_FACE == other.keys() - OF_ONE_FACE
    for name in one.keys() - OF_ONE_FACE:
        assert parameters(one[name]) == parameters(other[name]), name
        assert inspect.getdoc(one[name]), f"{name} says nothing of itself"
        assert isinstance(one[name], both) == isinstance(other[name], both), name


async def walk(broker: AsyncBroker) -> list[object]:
    await broker.create_topic("t", 2)
    first = await broker.produce("t", [b"tea", (b"k", b"v")], partition=1)
    facts = await broker.group("g").empty()
    return [first, facts, await broker.topic("t").has_records(at_least=2), broker.group("g").state]


WALKED = [0, ("Dead", 0), 2, "Dead"]


async def awaiting() -> list[object]:
    async with Broker() as broker:
        return await walk(broker)


def run_uvloop(main: Callable[[], Coroutine[Any, Any, list[object]]]) -> list[object]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def run_asyncio(main: Callable[[], Coroutine[Any, Any, list[object]]]) -> list[object]:
    return asyncio.run(main())


def run_trio(main: Callable[[], Coroutine[Any, Any, list[object]]]) -> list[object]:
    found: list[object] = trio.run(main)
    return found


@each("run", [run_asyncio, run_uvloop, run_trio])
def test_it_is_awaited_on_any_loop(run: Callable[..., list[object]]) -> None:
    assert run(awaiting) == WALKED


def test_the_blocking_face_does_the_same() -> None:
    with Broker() as broker:
        broker.create_topic("t", 2)
        first = broker.produce("t", [b"tea", (b"k", b"v")], partition=1)
        facts = broker.group("g").empty()
        assert [first, facts, broker.topic("t").has_records(at_least=2), broker.group("g").state] == WALKED


async def test_one_face_leads_to_the_other() -> None:
    async with Broker() as broker:
        assert isinstance(broker, AsyncBroker)
        assert isinstance(broker.blocking, Broker)
        broker.blocking.create_topic("t")
        assert await broker.blocking.aio.topic("t").exists() == 1
        assert broker.blocking.aio.port == broker.port
    with Cluster(2) as cluster:
        await cluster.aio.create_topic("t", 3)
        assert cluster.topic("t").exists() == 3
        assert isinstance(cluster.aio.blocking, Cluster)


async def test_whoever_is_given_either_face_takes_the_one_it_needs() -> None:
    for kind, awaited in ((Broker, AsyncBroker), (Cluster, AsyncCluster)):
        with kind() as blocking:
            assert blocking.blocking is blocking
            aio = blocking.aio
            assert type(aio) is awaited
            assert aio.aio is aio
            assert type(aio.blocking) is kind


# --- cancelling ---------------------------------------------------------------------------------------------


def tasks_of(broker: Cluster) -> set[str]:
    """Names of the tasks on the brokers' loop, except the one asking."""

    async def running() -> set[str]:
        return {task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()}

    return broker._core.thread.run(running, LONG_S)


async def test_a_cancelled_wait_is_taken_back() -> None:
    async with Broker() as broker:
        before = tasks_of(broker.blocking)
        waiting = [asyncio.create_task(broker.group("g").stable(members=each)) for each in range(10)]
        async with asyncio.timeout(LONG_S):
            while len(tasks_of(broker.blocking) - before) < len(waiting):  # noqa: ASYNC110 - all have begun
                await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        assert all(task.cancelled() for task in waiting)
        async with asyncio.timeout(LONG_S):
            while tasks_of(broker.blocking) - before:  # noqa: ASYNC110 - until all have ended
                await asyncio.sleep(0)


def test_a_wait_that_trio_cancels_is_taken_back() -> None:
    async def main() -> None:
        async with Broker() as broker:
            before = tasks_of(broker.blocking)
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(broker.group("g").stable)
                    while not tasks_of(broker.blocking) - before:
                        await trio.lowlevel.checkpoint()
                    scope.cancel()
            assert scope.cancelled_caught
            with trio.fail_after(LONG_S):
                while tasks_of(broker.blocking) - before:
                    await trio.lowlevel.checkpoint()

    trio.run(main)


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
async def test_who_is_cancelled_while_it_starts_leaves_nothing_behind(turns: int) -> None:
    before = threading.active_count()

    async def starting() -> None:
        async with Broker():
            await asyncio.Event().wait()  # a slow machine may get this far

    task = asyncio.create_task(starting())
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert threading.active_count() == before


async def test_who_is_cancelled_when_it_has_just_started_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, done = threading.active_count(), broker_module.finished

    async def cancelled_as_it_is_done(*call: Any, **more: Any) -> None:
        await done(*call, **more)
        raise asyncio.CancelledError

    monkeypatch.setattr(broker_module, "finished", cancelled_as_it_is_done)
    with pytest.raises(asyncio.CancelledError):
        async with Broker():
            pass
    assert threading.active_count() == before
    gc.collect()  # reports any socket left open


async def test_who_is_cancelled_while_it_closes_leaves_nothing_behind() -> None:
    before = threading.active_count()
    closing = asyncio.Event()

    async def running() -> None:
        async with Cluster(2):
            closing.set()

    task = asyncio.create_task(running())
    await closing.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert threading.active_count() == before


def test_trio_cancelling_everything_leaves_nothing_behind() -> None:
    before = threading.active_count()

    async def main() -> None:
        with trio.CancelScope() as scope:
            async with Broker():
                scope.cancel()
                await trio.lowlevel.checkpoint()
        assert scope.cancelled_caught

    trio.run(main)
    assert threading.active_count() == before


# --- misuse -------------------------------------------------------------------------------------------------


async def test_a_call_before_the_start_says_so() -> None:
    with pytest.raises(RuntimeError, match="not started"):
        Broker().create_topic("t")
    with pytest.raises(RuntimeError, match="not started"):
        await Broker().aio.group("g").stable()


def test_the_brokers_own_thread_is_not_waited_on() -> None:
    with Broker() as broker:

        async def from_within() -> str:
            return broker.group("g").state

        with pytest.raises(RuntimeError, match="own thread"):
            broker._core.thread.run(from_within, LONG_S)


def test_a_wait_of_no_time_takes_one_look() -> None:
    with Broker() as broker:
        assert broker.group("g").empty(timeout=0) == ("Dead", 0)
        with pytest.raises(WaitFailed, match=r"timed out after 0 s waiting for group g to be Stable"):
            broker.group("g").stable(timeout=0)
        with pytest.raises(ValueError, match="banana"):
            broker.group("g").stable(timeout="banana")


# --- types --------------------------------------------------------------------------------------------------

TYPED = """
from typing import assert_type

from muster.coordinator.testing import AsyncBroker, AsyncCluster, Broker, Cluster
from muster.coordinator.testing import AsyncFaultRule, AsyncMarkerHold, FaultRule, GroupFacts, MarkerHold
from muster.coordinator.testing import Record, Snapshot, TransactionFacts


def blocking() -> None:
    with Broker(group_max_size=3) as broker:
        assert_type(broker, Broker)
        assert_type(broker.group("g").stable(members=2, timeout="30s"), GroupFacts)
        assert_type(broker.produce("t", [b"v", (b"k", None)]), int)
        assert_type(broker.records("t"), list[Record])
        assert_type(broker.snapshot(), Snapshot)
        assert_type(broker.group("g").state, str)
        assert_type(broker.group("g").member("a").crash(), FaultRule)
        assert_type(broker.transaction("t").ended(), TransactionFacts)
        with broker.faults.hold_markers("t") as held:
            assert_type(held, MarkerHold)
        broker.clock.advance("45s")
    with Cluster(3) as cluster:
        assert_type(cluster, Cluster)
        cluster.kill(0)


async def awaited() -> None:
    async with Broker() as broker:
        assert_type(broker, AsyncBroker)
        assert_type(await broker.group("g").stable(members=2), GroupFacts)
        assert_type(await broker.topic("t").has_records(at_least=2), int)
        assert_type(await broker.records("t"), list[Record])
        assert_type(broker.group("g").state, str)
        assert_type(broker.blocking, Broker)
        assert_type(await broker.group("g").member("a").crash(), AsyncFaultRule)
        assert_type(await broker.transaction("t").fence(), TransactionFacts)
        async with broker.faults.hold_markers("t", topic="orders") as held:
            assert_type(held, AsyncMarkerHold)
        assert_type(await broker.faults.add(close_after=True), AsyncFaultRule)
        await broker.clock.advance("45s")
    async with Cluster(3) as cluster:
        assert_type(cluster, AsyncCluster)
        await cluster.kill(0)
"""
MISTYPED = """
from muster.coordinator.testing import Broker


async def awaited() -> None:
    async with Broker() as broker:
        broker.group("g").stable(members="2")
        await broker.group("g").stable(member=2)
        await broker.create_topic()
    with Broker() as other:
        other.group("g").committed("t", "0")
        await other.group("g").empty()
"""


def mypy(*programs: Path) -> subprocess.CompletedProcess[str]:
    # Without the project's own settings, the way its users run it.
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        "--cache-dir",
        str(ROOT / ".mypy_cache" / "users"),
    ]
    return subprocess.run(
        [*command, *map(str, programs)], capture_output=True, text=True, cwd=ROOT, timeout=600
    )


def test_strict_users_of_mypy_see_either_face_as_it_is(tmp_path: Path) -> None:
    right, mistyped = tmp_path / "right.py", tmp_path / "mistyped.py"
    right.write_text(TYPED)
    mistyped.write_text(MISTYPED)
    judged = mypy(right, mistyped)
    assert [line for line in judged.stdout.splitlines() if "right.py" in line] == [], judged.stdout
    wrong = {
        line.split(":")[1]
        for line in judged.stdout.splitlines()
        if "mistyped.py" in line and "error:" in line
    }
    assert wrong == {"7", "8", "9", "11", "12"}, judged.stdout
