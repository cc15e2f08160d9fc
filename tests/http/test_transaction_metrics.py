"""Transactions at `/metrics`: how they ended, what is open, and what they hold back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping

import pytest

from muster.coordinator.peers.marker_holds import MarkerHold
from muster.coordinator.server.broker import Broker
from muster.coordinator.server.brokers import Brokers
from muster.coordinator.topics.undecided import HeldBack
from muster.coordinator.web import metrics, transaction_facts
from muster.coordinator.web.feed import Feed
from muster.coordinator.web.scrape import Scrape
from muster.coordinator.web.tallies import Tallies
from muster.protocol.errors import ErrorCode
from tests.http.conftest import Show, Shown
from tests.http.test_metrics import Samples, scrape
from tests.http.test_transactions_api import MINUTE_MS, is_over, now_ms
from tests.http.transactional import UNVERIFIED, Transactional
from tests.support.wire import Wire
from tests.support.wire_transactions import ending, starting

STATES = {"Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"}
WHERE = {"topic": "orders", "partition": "0"}


def ids(found: Samples) -> dict[str, float]:
    return {
        state: count
        for state in STATES
        if (count := found.value("muster_transactional_ids", broker="1", state=state))
    }


def ended(found: Samples) -> dict[str, float]:
    """Nonzero counts by cause."""
    name = "muster_transactions_ended_total"
    return {each["cause"]: count for each in found.of(name) if (count := found.value(name, **each))}


async def test_how_transactions_ended_and_how_long_they_took(shown: Shown) -> None:
    first = await scrape(shown)
    assert ids(first) == {}
    assert len(first.of("muster_transactions_ended_total")) == 4
    async with (
        await Transactional.connect(shown.port, "a") as a,
        await Transactional.connect(shown.port, "b") as b,
        await Transactional.connect(shown.port, "c") as c,
    ):
        for producer, commits in ((a, True), (b, False)):
            await producer.begin(0)
            await producer.end(commits=commits)
            await is_over(shown, producer)
        await c.begin(1)
        found = await scrape(shown)
        assert ids(found) == {"CompleteCommit": 1, "CompleteAbort": 1, "Ongoing": 1}
        assert ended(found) == {"committed by its producer": 1, "aborted by its producer": 1}
        assert found.value("muster_transaction_seconds_count", broker="1") == 2
        assert found.kinds["muster_transaction_seconds"] == "histogram"
        assert found.value("muster_transaction_markers_due", broker="1") == 0
        await shown.brokers.advance(MINUTE_MS + 1)
        await is_over(shown, c)
        found = await scrape(shown)
        committed = {"outcome": "committed", "cause": "committed by its producer"}
        timed_out = {"outcome": "aborted", "cause": "timed out"}
        for labels in (committed, timed_out):
            assert found.value("muster_transactions_ended_total", broker="1", **labels) == 1
        assert (found.value("muster_transaction_seconds_sum", broker="1") or 0) >= 60


async def test_producers_that_are_fenced_and_ids_that_expire(shown: Shown) -> None:
    async with await Wire.connect(shown.port) as wire:
        first = await wire.call(starting("etl-1"), 4)
        await wire.call(starting("etl-1"), 4)
        late = await wire.call(ending("etl-1", (first.producer_id, first.producer_epoch), commits=True), 3)
    assert late.error_code == ErrorCode.PRODUCER_FENCED
    found = await scrape(shown)
    assert found.value("muster_transaction_requests_fenced_total", broker="1") == 1
    await shown.brokers.advance(shown.brokers.settings.transactional_id_expiration_ms + 1)
    found = await scrape(shown)
    assert found.value("muster_transactional_ids_expired_total", broker="1") == 1
    assert ids(found) == {}


async def test_markers_that_do_not_come_are_counted_with_their_age(shown: Shown) -> None:
    holds = shown.brokers.faults.marker_holds
    holds.hold(MarkerHold("etl-1"))
    async with await Transactional.connect(shown.port) as producer:
        await producer.begin(0, 1)
        await producer.end(commits=True)
    await shown.brokers.advance(30_000)
    found = await scrape(shown)
    assert ids(found) == {"PrepareCommit": 1}
    assert found.value("muster_transaction_markers_due", broker="1") == 2
    assert (found.value("muster_transaction_markers_oldest_seconds", broker="1") or 0) >= 30
    _, body = await shown.get("/api/transactions/etl-1")
    assert (body["unmarked"], [each["marked"] for each in body["partitions"]]) == (2, [False, False])
    holds.release_all()
    await is_over(shown, producer)
    found = await scrape(shown)
    assert found.value("muster_transaction_markers_due", broker="1") == 0
    assert found.value("muster_transaction_markers_oldest_seconds", broker="1") == 0


async def test_what_is_undecided_is_told_of_partitions_that_have_any(show: Show) -> None:
    shown = await show(**UNVERIFIED)
    await shown.create_topic()
    async with (
        await Transactional.connect(shown.port) as open,
        await Transactional.stray(shown.port) as stray,
    ):
        await open.begin(1)
        await open.write(1, 2, at_ms=now_ms(shown))
        await stray.write(0, 3, at_ms=now_ms(shown) - MINUTE_MS)
        found = await scrape(shown)
        assert found.value("muster_topic_partition_undecided_records", **WHERE) == 3
        assert (found.value("muster_topic_partition_undecided_seconds", **WHERE) or 0) >= 60
        assert len(found.of("muster_topic_partition_undecided_records")) == 2
        assert found.value("muster_transactions_hanging") == 1
        await open.end(commits=True)
        await is_over(shown, open)
        found = await scrape(shown)
        assert found.of("muster_topic_partition_undecided_records") == [WHERE]


async def test_a_disk_that_stalls_holds_up_no_scrape(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_facts, "_LOOK_S", 0.2)
    shown = await show(**UNVERIFIED)
    await shown.create_topic()
    topic, partitions = shown.broker.catalogue.named("orders"), shown.broker.partitions
    assert topic is not None
    stalled, goes_on = threading.Event(), threading.Event()
    async with await Transactional.stray(shown.port) as stray:
        await stray.write(0, 3, at_ms=now_ms(shown))
        log = partitions._led[topic.topic_id, 0].ready_log
        assert log is not None

        def stall() -> None:
            with log.lock:
                stalled.set()
                goes_on.wait()

        disk = threading.Thread(target=stall)
        disk.start()
        try:
            stalled.wait()
            for _ in range(3):
                found = await asyncio.wait_for(scrape(shown), 8)
                assert found.of("muster_coordinator_shards")
                assert found.of("muster_topic_partition_undecided_records") == []
            assert len(partitions._running) == 1, "those that gave up take no thread each"
            status, body = await asyncio.wait_for(shown.get("/api/transactions"), 8)
            assert (status, body["held_back"]) == (200, [])
        finally:
            goes_on.set()
            disk.join()
        assert (await scrape(shown)).of("muster_topic_partition_undecided_records") == [WHERE]


async def test_what_hung_still_does_if_the_second_look_is_not_answered(
    show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = await show(**UNVERIFIED)
    await shown.create_topic()
    looks = iter([transaction_facts._look])

    async def once(broker: Broker) -> Mapping[tuple[str, int], HeldBack] | None:
        look = next(looks, None)
        return None if look is None else await look(broker)

    async with await Transactional.stray(shown.port) as stray:
        await stray.write(0, 3, at_ms=now_ms(shown))
        monkeypatch.setattr(transaction_facts, "_look", once)
        assert (await scrape(shown)).value("muster_transactions_hanging") == 1


async def test_a_scrape_waits_for_another_one_but_not_for_ever(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    gather, begun, goes_on = metrics.gather, asyncio.Event(), asyncio.Event()

    async def slow(brokers: Brokers, feed: Feed, tallies: Tallies) -> Scrape:
        begun.set()
        await goes_on.wait()
        return await gather(brokers, feed, tallies)

    monkeypatch.setattr(metrics, "gather", slow)
    monkeypatch.setattr(metrics, "_WAIT_S", 0.1)
    first = asyncio.create_task(scrape(shown))
    await begun.wait()
    answer = await asyncio.wait_for(shown.get("/metrics"), 4)
    assert answer == (503, {"error": "another scrape is under way; it takes long"})
    goes_on.set()
    assert (await first).of("muster_coordinator_shards")
