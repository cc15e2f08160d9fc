"""Guards of new transactions (KIP-890): a batch is appended under a guard made before its transaction
coordinator was queried, unless a marker came in between."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from muster.coordinator.cluster.placement import data_shard
from muster.coordinator.topics.catalogue import Topic
from muster.coordinator.topics.guards import UNVERIFIED, Guard
from muster.coordinator.topics.partitions import Partitions
from muster.coordinator.topics.producers import Marker
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.record_batch import peek
from tests.support.each import each
from tests.topics.support import NOW_MS, SHARDS, Brokers, batch
from tests.topics.test_partitions import topic_at
from tests.topics.test_transactions import P, Q, Transactions, refusal

FIRST, SECOND = False, True
"""Generations of transactions: whether each transaction has an epoch of its own."""
_EPOCH_MAX = 2**15 - 1


class Guarded(Transactions):
    """A log whose transactions are verified."""

    def begin(
        self, producer: int = P, *, epoch: int = 0, sequence: int = 0, epoch_raised: bool = FIRST
    ) -> Guard | None:
        """The guard, made before the coordinator is queried."""
        header = peek(batch(b"v", producer=(producer, epoch, sequence), transactional=True))
        return self.log.begin_verification(header, epoch_raised=epoch_raised)


@pytest.fixture
def one() -> Guarded:
    return Guarded()


def test_a_verified_batch_opens_its_transaction(one: Guarded) -> None:
    guard = one.begin()
    assert guard is not None
    assert one.put(P, guard=guard) == 0
    assert one.begin() is None, "it is open"
    assert one.put(P, guard=None) == 1
    assert len(one.log.producers.guards) == 0


def test_a_batch_that_comes_after_the_marker_is_refused(one: Guarded) -> None:
    guard = one.begin()
    one.end(P, False)
    assert refusal(one.put, P, guard=guard) is ErrorCode.INVALID_TXN_STATE
    assert one.put(P, guard=one.begin()) == 1, "the next transaction is verified anew"


def test_a_batch_that_comes_after_the_transaction_is_refused(one: Guarded) -> None:
    late = one.begin()
    one.put(P, guard=one.begin())
    one.end(P, True)
    assert refusal(one.put, P, guard=late) is ErrorCode.INVALID_TXN_STATE


def test_the_guard_of_one_producer_is_none_of_another(one: Guarded) -> None:
    mine, others = one.begin(P), one.begin(Q)
    assert refusal(one.put, P, guard=others) is ErrorCode.INVALID_TXN_STATE
    one.end(Q, False)
    assert one.put(P, guard=mine) == 1


def test_batches_that_are_verified_at_once_share_their_guard(one: Guarded) -> None:
    guard = one.begin(sequence=0)
    assert one.begin(sequence=1) is guard
    one.put(P, guard=guard)
    assert one.put(P, guard=guard) == 1


@each(
    "epoch, version, kept",
    [
        (1, 2, True),  # of the previous transaction: it has raised the epoch to that of the guard
        (1, 1, False),
        (1, 0, False),
        (0, 2, False),
        (2, 2, False),
        (2, 0, False),
    ],
)
def test_a_guard_outlives_the_marker_before_its_transaction(epoch: int, version: int, kept: bool) -> None:
    one = Guarded()
    guard = one.begin(epoch=1, epoch_raised=SECOND)
    one.end(P, True, epoch=epoch, version=version)
    if kept:
        assert one.put(P, epoch=1, guard=guard) == 1
        assert one.begin(epoch=1) is None
    else:
        late = refusal(one.put, P, epoch=1, guard=guard)
        fenced = epoch > 1
        assert late is (ErrorCode.INVALID_PRODUCER_EPOCH if fenced else ErrorCode.INVALID_TXN_STATE)


def test_a_marker_that_is_refused_leaves_the_guard(one: Guarded) -> None:
    one.end(P, True, epoch=3)
    guard = one.begin(epoch=3)
    assert refusal(one.end, P, False, epoch=2) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert one.put(P, epoch=3, guard=guard) == 1


def test_a_batch_of_the_epoch_that_was_ended_is_refused_under_the_guard_of_the_next(one: Guarded) -> None:
    late = one.begin(epoch=0, epoch_raised=SECOND)
    next_one = one.begin(epoch=1, epoch_raised=SECOND)
    one.end(P, False, epoch=1, version=2)
    assert refusal(one.put, P, epoch=0, guard=late) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert one.put(P, epoch=1, guard=next_one) == 1


def test_a_producer_that_is_known_with_a_higher_epoch_is_refused_at_once(one: Guarded) -> None:
    one.end(P, True, epoch=2)
    assert refusal(one.begin, epoch=1) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert one.begin(epoch=2) is not None


def test_a_transaction_that_is_open_in_another_epoch_is_verified(one: Guarded) -> None:
    one.put(P, guard=one.begin())
    guard = one.begin(epoch=1)
    assert guard is not None
    assert one.put(P, epoch=1, guard=guard) == 1


# --- sequences ----------------------------------------------------------------------------------------------


def test_no_batch_goes_before_a_lower_one_that_was_verified_too(one: Guarded) -> None:
    guard = one.begin(sequence=7)
    assert one.begin(sequence=5) is guard
    assert one.begin(sequence=9) is guard
    assert refusal(one.put, P, sequence=7, guard=guard) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert one.put(P, sequence=5, guard=guard) == 0
    assert one.put(P, sequence=6, guard=None) == 1


def test_a_higher_epoch_counts_its_own_sequences(one: Guarded) -> None:
    one.begin(sequence=3)
    guard = one.begin(sequence=7, epoch=1)
    one.begin(sequence=0, epoch=0)
    assert one.put(P, sequence=7, epoch=1, guard=guard) == 0


def test_an_epoch_from_the_future_holds_no_batch_back(one: Guarded) -> None:
    one.put(P, guard=one.begin())
    one.end(P, True)
    one.begin(epoch=9, sequence=0, epoch_raised=SECOND)
    assert one.put(P, sequence=1, guard=one.begin(sequence=1)) == 2


@each("epoch_raised, sequence, taken", [(SECOND, 7, False), (SECOND, 0, True), (FIRST, 7, True)])
def test_a_transactions_own_epoch_begins_at_sequence_0(
    epoch_raised: bool, sequence: int, taken: bool
) -> None:
    one = Guarded()
    guard = one.begin(sequence=sequence, epoch_raised=epoch_raised)
    if taken:
        assert one.put(P, sequence=sequence, guard=guard) == 0
    else:
        late = refusal(one.put, P, sequence=sequence, guard=guard)
        assert late is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_producer_that_has_batches_here_goes_on_in_its_own_epoch(one: Guarded) -> None:
    one.put(P, b"1", b"2", guard=one.begin(epoch_raised=SECOND))
    one.end(P, True)
    assert one.put(P, sequence=2, guard=one.begin(sequence=2, epoch_raised=SECOND)) == 3


# --- how long they are kept ---------------------------------------------------------------------------------


def test_guards_expire_like_producers(one: Guarded) -> None:
    guard = one.begin()
    one.log.producers.expire(NOW_MS)
    assert one.begin() is guard
    one.log.producers.expire(NOW_MS + 1)
    assert len(one.log.producers.guards) == 0
    assert refusal(one.put, P, guard=guard) is ErrorCode.INVALID_TXN_STATE


def test_guards_are_gone_with_the_log_and_open_transactions_are_not(one: Guarded) -> None:
    one.put(Q, guard=one.begin(Q))
    guard = one.begin()
    one.reopen()
    assert refusal(one.put, P, guard=guard) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert one.begin(Q) is None
    assert one.put(Q, guard=None) == 1


def test_where_nothing_is_verified_any_batch_opens_a_transaction(one: Guarded) -> None:
    assert one.put(P, guard=UNVERIFIED) == 0
    assert one.put(Q, sequence=9, guard=UNVERIFIED) == 1


# --- a broker's partitions ----------------------------------------------------------------------------------


@pytest.fixture
async def brokers() -> AsyncIterator[Brokers]:
    brokers = Brokers()
    yield brokers
    await brokers.close()


def first_batch(producer: int = P, epoch: int = 0) -> bytes:
    return batch(b"v", producer=(producer, epoch, 0), transactional=True)


async def code_of(node: Partitions, topic: Topic, guard: Guard | None, epoch: int = 0) -> ErrorCode:
    append = node.append(topic, 0, first_batch(epoch=epoch), transactional=True, guard=guard)
    with pytest.raises(KafkaError) as caught:
        await append
    return caught.value.code


async def test_a_partition_is_verified_whether_its_log_is_open_or_not(brokers: Brokers) -> None:
    node, topic = await brokers.add(), await topic_at(brokers)
    guard = await node.begin_verification(topic, 0, first_batch(), epoch_raised=FIRST)
    assert await node.begin_verification(topic, 0, first_batch(), epoch_raised=FIRST) is guard
    await node.append(topic, 0, first_batch(), transactional=True, guard=guard)
    assert await node.begin_verification(topic, 0, first_batch(), epoch_raised=FIRST) is None
    await node.append_marker(topic, 0, Marker(P, 0, 0, True))
    assert await code_of(node, topic, None, epoch=1) is ErrorCode.INVALID_TXN_STATE
    with pytest.raises(KafkaError) as caught:
        await node.begin_verification(topic, 0, first_batch(epoch=-1), epoch_raised=FIRST)
    assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


async def test_a_new_leader_verifies_again(brokers: Brokers) -> None:
    node, topic = await brokers.add(), await topic_at(brokers)
    guard = await node.begin_verification(topic, 0, first_batch(), epoch_raised=FIRST)
    lease = data_shard(topic.topic_id, 0, SHARDS)
    await node.disown(lease)
    with pytest.raises(KafkaError) as caught:
        await node.begin_verification(topic, 0, first_batch(), epoch_raised=FIRST)
    assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    await node.close()
    again = await brokers.add(epoch=2)
    assert await code_of(again, topic, guard) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    guard = await again.begin_verification(topic, 0, first_batch(), epoch_raised=FIRST)
    assert (await again.append(topic, 0, first_batch(), transactional=True, guard=guard)).base_offset == 0


async def test_a_log_that_was_reopened_meanwhile_verifies_again(brokers: Brokers) -> None:
    node, topic = await brokers.add(), await topic_at(brokers)
    guard = await node.begin_verification(topic, 0, first_batch(), epoch_raised=FIRST)
    (led,) = node._led.values()
    assert led.log is not None
    led.log.segments.failed = True  # type: ignore[misc]  # as a failed write leaves it
    assert await code_of(node, topic, guard) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    guard = await node.begin_verification(topic, 0, first_batch(), epoch_raised=FIRST)
    assert (await node.append(topic, 0, first_batch(), transactional=True, guard=guard)).base_offset == 0
