"""Transactions at `/metrics`: how they ended, what is open, and what they hold back."""

from __future__ import annotations

from muster.coordinator.peers.marker_holds import MarkerHold
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
