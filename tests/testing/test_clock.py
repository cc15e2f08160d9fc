"""`broker.clock`: time that a test advances, on both faces."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from muster.client import Producer
from muster.coordinator.testing import Broker, Cluster, WaitFailed
from muster.coordinator.testing.clock import ClockFixed
from muster.protocol.messages.classic_group import HeartbeatRequest
from tests.server.test_classic_group import stable_member
from tests.support.each import each
from tests.support.frozen import frozen
from tests.support.leases import TERM_MS
from tests.support.wire import Wire

DAY = timedelta(days=1)
LONG_S = 60.0


async def test_the_awaited_face_moves_time_and_keeps_live_members() -> None:
    async with Broker() as broker, await Wire.connect(broker.port) as wire:
        member_id, generation = await stable_member(wire)
        before = broker.clock.now()
        await broker.clock.advance("7 days")
        assert timedelta(days=7) <= broker.clock.now() - before < timedelta(days=7, hours=1)
        beat = HeartbeatRequest(group_id="orders", generation_id=generation, member_id=member_id)
        assert (await wire.call(beat, 4)).error_code == 0
        await broker.clock.stall("orders", member_id)
        await broker.clock.advance(10)
        assert broker.group("orders").facts == ("Empty", 0)


@each("by", ["1 day", timedelta(days=1), 86_400, 86_400.0, "P1D"])
def test_the_blocking_face_takes_a_duration_in_any_form(by: str | timedelta | float) -> None:
    with Broker() as broker:
        before_ms = broker.clock.now_ms()
        broker.clock.advance(by)
        assert 0 <= broker.clock.now_ms() - before_ms - 86_400_000 < 3_600_000


async def test_what_clients_write_after_a_week_stays_unless_its_topic_says_otherwise() -> None:
    async with Broker() as broker:
        await broker.create_topic("kept")
        await broker.create_topic("expiring", configs={"retention.ms": str(7 * 86_400_000)})
        await broker.clock.advance("8 days")
        async with Producer(broker.bootstrap) as producer:
            for topic in ("kept", "expiring"):
                await producer.send(topic, b"tea")
        await broker.clock.advance("1s")
        assert [record.value for record in await broker.records("kept")] == [b"tea"]
        assert await broker.records("expiring") == []


def test_it_begins_with_the_real_time() -> None:
    with Broker() as broker:
        assert abs(broker.clock.now() - datetime.now(UTC)) < timedelta(hours=1)


def test_a_test_in_which_time_stands_still_does_not_stop_the_broker() -> None:
    failed: list[str] = []

    def wait_in_vain(broker: Broker) -> None:
        try:
            broker.group("orders").stable(timeout=0.2)
        except WaitFailed as error:
            failed.append(str(error))

    for started_before in (True, False):
        broker = Broker()
        if started_before:
            broker.start()
        with frozen(), broker:
            waiting = threading.Thread(target=wait_in_vain, args=[broker], daemon=True)
            waiting.start()
            waiting.join(LONG_S)
            assert failed, "the wait does not end"
            assert failed.pop().startswith("timed out after 0.2 s")
            assert abs(broker.clock.now() - datetime.now(UTC)) < timedelta(hours=1)
            broker.clock.advance(DAY)
            assert broker.clock.now() - datetime.now(UTC) > timedelta(hours=23)


def test_what_is_no_duration_is_refused() -> None:
    with Broker() as broker:
        with pytest.raises(ValueError, match="has no unit"):
            broker.clock.advance("45")
        with pytest.raises(ValueError, match="negative"):
            broker.clock.advance(-1)
        with pytest.raises(LookupError, match="group 'orders' has no member 'nobody'"):
            broker.clock.stall("orders", "nobody")


def test_a_broker_without_test_mode_refuses_to_be_moved() -> None:
    with Broker(test_mode=False) as broker, pytest.raises(ClockFixed, match="--test-mode"):
        broker.clock.advance("1s")


async def test_everything_expires_if_that_is_asked_for(tmp_path: Path) -> None:
    async with Broker(data=tmp_path) as broker, await Wire.connect(broker.port) as wire:
        await stable_member(wire)
        await broker.clock.advance("10s", expire_all=True)
        assert broker.group("orders").facts == ("Empty", 0)


async def test_a_killed_broker_is_missed_at_once_and_may_come_back() -> None:
    async with Cluster(3, lease_term_ms=TERM_MS) as cluster:
        index = cluster.coordinator_of("orders")
        assert index is not None
        await cluster.kill(index)
        await cluster.clock.advance(TERM_MS / 1_000)
        taken_by = cluster.coordinator_of("orders")
        assert taken_by not in (None, index)
        await cluster.restart(index)
        before = cluster.clock.now()
        await cluster.clock.advance(DAY)  # on the way, the broker that came back gets its shards back
        assert cluster.clock.now() - before >= DAY
        assert cluster.coordinator_of("orders") == index
