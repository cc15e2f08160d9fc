"""The transactions that the bench sends are what they are counted as: to a real broker, read back from it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from muster.coordinator.testing import Broker
from muster.protocol.api import ApiKey
from muster.protocol.messages.data import FetchRequest
from muster.protocol.record_batch import Record, batches, build, crc_matches, peek
from tests.bench import load
from tests.bench.bulk import fetch
from tests.bench.peers.driver import Target
from tests.bench.peers.measures import transactions as measure
from tests.bench.transactional import RECORDS, Frame, Transactions, _produce, shares
from tests.support.each import each

P = 71
TOPIC = "orders"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Of a broker with a topic of four partitions."""
    with Broker() as broker:
        broker.create_topic(TOPIC, partitions=4)
        yield int(broker.bootstrap.rpartition(":")[2])


async def asked(port: int) -> Target:
    return await Target.ask([port], [], [], [], None, False)


async def fetched(target: Target, partition: int) -> Any:
    (link,) = await load.connect(target.ports[0], 1)
    answer = await link.call(fetch(TOPIC, partition, committed=True), target.version(FetchRequest))
    link.close()
    return answer.responses[0].partitions[0]


def test_a_frame_becomes_that_of_another_producer_with_checksums_that_match() -> None:
    frame = Frame(_produce("tx", TOPIC, {0: 4, 2: 3}))
    for producer in ((P, 0), (P + 1, 32_766)):
        frame.of(producer)
        sent = frame.next()
        found = [peek(sent, begin) for begin, _ in frame._batches]
        assert [(each.producer_id, each.producer_epoch) for each in found] == [producer] * 2
        assert [(each.base_sequence, each.record_count) for each in found] == [(0, 4), (0, 3)]
        assert all(map(crc_matches, [sent] * 2, [begin for begin, _ in frame._batches], found))


def test_the_records_of_a_transaction_are_shared_out_among_three_partitions() -> None:
    assert shares(0, 30) == {0: 4, 1: 3, 2: 3}
    assert shares(9, 30) == {27: 4, 28: 3, 29: 3}
    assert shares(10, 30) == shares(0, 30)
    assert shares(1, 4) == {3: 4, 0: 3, 1: 3}


async def test_transactions_are_committed_and_aborted_as_counted(port: int) -> None:
    target = await asked(port)
    transactions = Transactions(limit=12, aborts_every=4)
    async with measure.producing(target, TOPIC, 4, 2) as producers:
        transactions.start(producers)
        await transactions.quiet()
    assert (transactions.ended, len(transactions.end.seconds)) == (12, 12)
    assert len(transactions.next.seconds) == 10  # each producer's first comes after none
    assert all(took > 0 for took in transactions.end.seconds + transactions.next.seconds)
    async with asyncio.timeout(10):
        parts = [await fetched(target, partition) for partition in range(4)]
        while any(part.last_stable_offset < part.high_watermark for part in parts):
            parts = [await fetched(target, partition) for partition in range(4)]
    written = [header for part in parts for _, header in batches(part.records)]
    assert sum(header.record_count for header in written if not header.is_control) == 12 * RECORDS
    assert sum(measure.records_of(part.records) for part in parts) == 12 * RECORDS
    aborted = {
        (each.producer_id, each.first_offset, index)
        for index, part in enumerate(parts)
        for each in part.aborted_transactions
    }
    assert len(aborted) == 3 * 3


async def test_producers_stop_when_they_are_told(port: int) -> None:
    transactions = Transactions()
    async with measure.producing(await asked(port), TOPIC, 4, 3) as producers, asyncio.timeout(10):
        transactions.start(producers)
        while transactions.ended < 6:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        await transactions.stop()
    assert transactions.ended == transactions._begun
    assert transactions.end.seconds
    transactions.reset()
    assert not transactions.ended
    assert not transactions.end.seconds


async def test_what_is_refused_is_told(port: int) -> None:
    target = await asked(port)
    async with (
        measure.producing(target, TOPIC, 4, 1) as fenced,
        measure.producing(target, TOPIC, 4, 1),  # of the same name
    ):
        transactions = Transactions()
        transactions.start(fenced)
        with pytest.raises(RuntimeError, match=r"Produce: .*INVALID_PRODUCER_EPOCH"):
            await transactions.quiet()


async def test_a_server_without_the_versions_is_left_out(port: int) -> None:
    target = await asked(port)
    target.versions[ApiKey.END_TXN] = 4
    with pytest.raises(RuntimeError, match="EndTxnRequest v5 is not there"):
        async with measure.producing(target, TOPIC, 4, 1):
            pass


@each("cut", [0, 1, 60])
def test_records_are_counted_without_markers_and_without_a_batch_that_was_cut_off(cut: int) -> None:
    batch = build([Record(0, 1, b"k", b"v"), Record(1, 1, b"k", b"v")])
    marker = build([Record(2, 1, b"k", b"v")], producer_id=P, producer_epoch=0, control=True)
    data = batch + marker + batch
    assert measure.records_of(data[: len(data) - cut]) == (2 if cut else 4)
