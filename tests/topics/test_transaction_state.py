"""`__transaction_state`: what differs from `__consumer_offsets`, whose tests cover the rest."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from muster.coordinator.base.step import Row
from muster.coordinator.storage.store import Append, Lease, LeaseKind, Outcome
from muster.coordinator.topics.catalogue import transactions_topic
from muster.coordinator.topics.transaction_state import TransactionStates
from muster.coordinator.transactions.states import TransactionState
from muster.coordinator.transactions.transaction import Transaction, to_row
from muster.protocol.record_batch import Record
from tests.topics.rows_node import SHARDS, GatedStore, RowsNode
from tests.topics.support import NOW_MS, read_records
from tests.topics.test_partitions import fetch, parked


class Node(RowsNode[GatedStore, TransactionStates]):
    """A broker's partitions, including those of `__transaction_state`."""

    def __init__(self) -> None:
        super().__init__(transactions_topic(UUID(int=7), SHARDS), GatedStore(), TransactionStates)

    async def write(self, *rows: Row, number: int = 0) -> None:
        lease = Lease(LeaseKind.TRANSACTION, number)
        append = Append(lease, self.epochs[number], rows, at_ms=self.clock.now_ms())
        assert await self.store.append([append]) == [Outcome.WRITTEN]
        self.rows.written(number, rows)

    async def read(self, offset: int = 0) -> list[Record]:
        (answer,) = await fetch(self.partitions, self.ask(offset))
        assert answer.error is None
        return read_records(answer.records)


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    node = Node()
    await node.start()
    yield node
    await node.close()


def state(transactional_id: str, *, at_ms: int, epoch: int = 0) -> Row:
    return to_row(transactional_id, Transaction(7, epoch, 60_000, TransactionState.EMPTY, at_ms))


async def test_records_have_the_time_of_their_last_update(node: Node) -> None:
    rows = [
        state("a", at_ms=NOW_MS + 5),
        state("b", at_ms=NOW_MS + 3),
        state("a", at_ms=NOW_MS + 9, epoch=1),
    ]
    await node.write(*rows)
    node.clock.advance(50)
    await node.write(to_row("b", None))
    found = await node.read()
    assert [(each.key, each.value) for each in found] == [rows[2], to_row("b", None)]
    assert [(each.offset, each.timestamp) for each in found] == [(2, NOW_MS + 9), (3, NOW_MS + 50)]
    listed = await node.partitions.of(node.topic).list_offsets(node.topic, 0, NOW_MS + 10)
    assert listed == (3, NOW_MS + 50, node.epochs[0])


async def test_what_no_schema_fits_is_passed_on(node: Node) -> None:
    await node.write((b"\x00\x63later", b"\x00\x00"), (state("a", at_ms=1)[0], b"\x00\x63"))
    assert [each.timestamp for each in await node.read()] == [-1, -1]


async def test_it_has_the_records_of_transaction_shards_alone(node: Node) -> None:
    (grant,) = await node.store.claim([Lease(LeaseKind.GROUP, 0)], 1, 10_000)
    assert grant is not None
    await node.store.append([Append(grant.lease, grant.epoch, [(b"\x00\x02\x00\x01g", b"\x00\x63")])])
    assert await node.read() == []
    assert await node.rows.look(0) == (0, 0)
    assert await node.rows.size(0) == 0


async def test_a_fetch_waits_for_the_next_record(node: Node) -> None:
    waiting = await parked(fetch(node.partitions, node.ask(0), max_wait_ms=60_000))
    await node.write(state("a", at_ms=NOW_MS))
    (answer,) = await waiting
    assert [each.key for each in read_records(answer.records)] == [state("a", at_ms=NOW_MS)[0]]


async def test_ids_that_are_forgotten_stay_as_tombstones_for_a_day(node: Node) -> None:
    kept = state("b", at_ms=NOW_MS)
    await node.write(state("a", at_ms=NOW_MS))
    await node.write(to_row("a", None), kept)
    for after_ms, found in ((86_400_000, [to_row("a", None), kept]), (1, [kept])):
        node.clock.advance(after_ms)
        await node.rows.expire()
        assert [(each.key, each.value) for each in await node.read()] == found
