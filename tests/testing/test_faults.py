"""`broker.faults` on both faces, and how our own client copes with the faults."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Callable
from typing import Any, Final

import pytest

from muster.client import Committed, TopicPartition
from muster.coordinator.server.test_mode.faults import FaultError
from muster.coordinator.testing import Broker, Cluster, WaitFailed
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.classic_group import HeartbeatRequest, HeartbeatResponse
from tests.client.reading import reading, send
from tests.support.leases import TERM_MS
from tests.support.wire import Wire
from tests.support.wire_blocking import ConnectionClosed, WireConnection

PLACE = TopicPartition("orders", 0)
MEMBER: Final[dict[str, Any]] = {"topics": ["orders"], "group_id": "billing", "enable_auto_commit": False}
BEAT = HeartbeatRequest(group_id="billing", generation_id=1, member_id="m")


def beat(broker: Broker) -> int:
    with WireConnection("127.0.0.1", broker.port, "app") as wire:
        return wire.call(BEAT, 4, HeartbeatResponse).error_code


# --- the two faces ------------------------------------------------------------------------------------------


def test_blocking() -> None:
    with Broker() as broker:
        with broker.faults.add(
            api="Heartbeat", group="billing", error="NOT_COORDINATOR", nth=2, times=2
        ) as rule:
            assert [beat(broker) for _ in range(2)] == [
                ErrorCode.UNKNOWN_MEMBER_ID,
                ErrorCode.NOT_COORDINATOR,
            ]
            rule.hit()
            assert (rule.matched, rule.fired) == (2, 1)
            with pytest.raises(
                WaitFailed,
                match=r"(?s)after 0.01 s waiting for rule 1 .*2 times.*now: applied 1 times, matched 2",
            ):
                rule.hit(2, timeout="10ms")
            with pytest.raises(FaultError, match=r"^rule 1 has times=2: it is never applied 3 times$"):
                rule.hit(3)
            (firing,) = broker.faults.history()
            assert (firing.api, firing.client_id, firing.action) == (
                "Heartbeat",
                "app",
                "error NOT_COORDINATOR",
            )
        assert broker.faults.rules() == []
        rule.remove()
        with pytest.raises(FaultError, match="there is no rule 1"):
            _ = rule.fired
        broker.faults.add(close_before=True, times=None)
        with pytest.raises(ConnectionClosed):
            beat(broker)
        broker.faults.clear()
        assert beat(broker) == ErrorCode.UNKNOWN_MEMBER_ID
        with pytest.raises(FaultError, match=r"api: 'Heartbeet' .*did you mean Heartbeat"):
            broker.faults.add(api="Heartbeet", close_after=True)
        with pytest.raises(FaultError, match=r"^broker: 7 is not a broker here; choose from 1$"):
            broker.faults.add(broker=7, close_after=True)


async def test_awaited() -> None:
    async with Broker() as broker, await Wire.connect(broker.blocking.ports[0]) as wire:
        async with broker.faults.add(api="Heartbeat", delay="1h", times=2) as rule:
            await wire.send(BEAT, 4)
            await rule.hit()
            await broker.clock.advance("1h")
            assert (await wire.receive()).error_code == ErrorCode.UNKNOWN_MEMBER_ID
            with pytest.raises(WaitFailed):
                await rule.hit(2, timeout=0.01)
        rule = await broker.faults.add(api="Heartbeat", error=int(ErrorCode.ILLEGAL_GENERATION))
        assert (await wire.call(BEAT, 4)).error_code == ErrorCode.ILLEGAL_GENERATION
        assert rule.fired == 1
        await broker.faults.clear()
        with pytest.raises(FaultError, match="exactly one of"):
            await broker.faults.add(api="Heartbeat")
        with pytest.raises(FaultError, match="truncate: -1"):
            async with broker.faults.add(api="Heartbeat", truncate=-1):
                pass


async def test_a_rule_is_taken_back_when_the_block_fails() -> None:
    async with Broker() as broker:
        with pytest.raises(ZeroDivisionError):
            async with broker.faults.add(close_after=True):
                raise ZeroDivisionError
        assert broker.faults.rules() == []


async def test_a_fault_that_is_forgotten_warns() -> None:
    def forget(add: Callable[[], object]) -> None:
        add()
        gc.collect()

    async with Broker() as broker:
        with pytest.warns(RuntimeWarning, match=r"faults\.add\(\.\.\.\) was neither awaited nor entered"):
            forget(lambda: broker.faults.add(close_after=True))
        with pytest.warns(RuntimeWarning, match=r"faults\.hold_markers\(\.\.\.\) was neither awaited"):
            forget(lambda: broker.faults.hold_markers("etl-1"))
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            await broker.faults.add(api="Heartbeat", close_after=True)
            async with broker.faults.hold_markers("etl-1"):
                pass
            gc.collect()
        assert RuntimeWarning not in [each.category for each in warned]


# --- our client ---------------------------------------------------------------------------------------------


async def test_a_refused_commit_is_made_again() -> None:
    async with Broker() as broker:
        await broker.create_topic("orders")
        await send(broker.bootstrap, "orders", 3)
        async with reading(
            broker.bootstrap, topics=["orders"], group_id="billing", enable_auto_commit=False
        ) as reader:
            await reader.until(lambda: len(reader.seen) == 3)
            rule = await broker.faults.add(
                api="OffsetCommit", group="billing", error="NOT_COORDINATOR", times=2
            )
            result = await reader.consumer.commit({PLACE: 2})
            assert isinstance(result[PLACE], Committed)
            assert rule.fired == 2
            assert broker.group("billing").offsets() == {PLACE: 2}


async def test_a_commit_whose_response_is_lost_is_made_again() -> None:
    async with Broker() as broker:
        await broker.create_topic("orders")
        await send(broker.bootstrap, "orders", 3)
        settings = {
            "topics": ["orders"],
            "group_id": "billing",
            "request_timeout_ms": 1_000,
            "enable_auto_commit": False,
        }
        async with reading(broker.bootstrap, **settings, fetch_max_wait_ms=500) as reader:
            await reader.until(lambda: len(reader.seen) == 3)
            rule = await broker.faults.add(api="OffsetCommit", group="billing", drop_response=True)
            result = await reader.consumer.commit({PLACE: 2})
            assert isinstance(result[PLACE], Committed)
            assert rule.fired == 1
            assert broker.group("billing").offsets() == {PLACE: 2}


async def test_a_member_goes_on_while_its_coordinator_loads_or_moves() -> None:
    async with Cluster(2, lease_term_ms=TERM_MS) as cluster:
        await cluster.create_topic("orders")
        await send(cluster.bootstrap, "orders", 3)
        async with reading(
            cluster.bootstrap, topics=["orders"], group_id="billing", enable_auto_commit=False
        ) as reader:
            await reader.until(lambda: len(reader.seen) == 3)
            generation = cluster.group("billing").generation
            await cluster.hold("billing")
            committing = asyncio.create_task(reader.consumer.commit({PLACE: 2}))
            async with cluster.faults.add(api="OffsetCommit", delay="0s") as asked:
                await asked.hit()  # the commit was sent and answered: the coordinator is loading
            assert not committing.done()
            await cluster.release("billing")
            assert isinstance((await committing)[PLACE], Committed)
            for index in (0, 1):
                await cluster.move("billing", index)
                assert isinstance((await reader.consumer.commit({PLACE: 1 + index}))[PLACE], Committed)
            assert cluster.group("billing").generation == generation
