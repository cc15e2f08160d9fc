"""Offsets in transactions: TxnOffsetCommit, and the markers that end transactions (KIP-98, KIP-447, KIP-890).

In Kafka, a partition of `__consumer_offsets` is a log like any other: it refuses stale epochs and markers,
takes the first record of a transaction only from a producer whose coordinator has been queried, and positions
in the log tell which of two commits is newer. Here, a row per producer and the order of the shard's rows do
that (see `pending_offsets`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from muster.coordinator.base.step import Step
from muster.coordinator.group import records
from muster.coordinator.group.committed_offset import CommittedOffset
from muster.coordinator.group.config import GroupConfig
from muster.coordinator.group.group_offsets import TopicPartition
from muster.coordinator.group.hard_state import HardState
from muster.coordinator.group.offsets import is_too_long
from muster.coordinator.group.pending_offsets import TransactionalProducer
from muster.coordinator.transactions.marker import NO_COORDINATOR_EPOCH, Marker, check_marker
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.transactions import TxnOffsetCommitRequest, TxnOffsetCommitResponse

_NO_EXPIRY: Final = -1


class _LastMarker(NamedTuple):
    number: int
    """In the order in which markers arrived."""
    next_epoch: int | None
    """The epoch that the producer continues with, if the marker raised it."""


class Guards:
    """The guards of a shard. A guard is valid until a marker of its producer arrives: what the coordinator
    said before that is about a transaction that is over. But a marker that raises the epoch to the guard's
    has ended the previous transaction: its producer learns the new epoch before markers are written. As in
    Kafka, guards die with the shard."""

    __slots__ = ("_last_markers", "_markers")

    def __init__(self) -> None:
        self._markers = 0
        self._last_markers: dict[int, _LastMarker] = {}
        """Of known producers."""

    def give(self, epoch: int) -> Guard:
        """Give a guard to a producer in this epoch."""
        return Guard(self, epoch, self._markers)

    def holds(self, guard: Guard | None, producer_id: int) -> bool:
        """Whether the producer may begin a transaction with this guard."""
        if guard is None or guard.guards is not self:
            return False
        last = self._last_markers.get(producer_id)
        return last is None or guard.markers >= last.number or guard.epoch == last.next_epoch

    def marked(self, marker: Marker) -> None:
        """A marker has arrived."""
        self._markers += 1
        next_epoch = marker.producer_epoch if marker.epoch_raised else None
        self._last_markers[marker.producer_id] = _LastMarker(self._markers, next_epoch)

    def forget(self, producer_id: int) -> None:
        """The producer is no longer known."""
        self._last_markers.pop(producer_id, None)


class Guard(NamedTuple):
    """Permission to begin a transaction, given before its coordinator is queried about it (KIP-890)."""

    guards: Guards
    epoch: int
    """The producer's epoch."""
    markers: int
    """How many markers had arrived when it was given."""


class CommitInTransaction(NamedTuple):
    """A TxnOffsetCommit for existing partitions, with topics given by name."""

    request: TxnOffsetCommitRequest
    guard: Guard | None
    """None: a transaction of this producer and epoch was under way in the shard."""


# --- commit -------------------------------------------------------------------------------------------------


def is_under_way(request: TxnOffsetCommitRequest, hard: HardState) -> bool:
    """Whether the producer has a transaction of the request's epoch under way here. Raises
    INVALID_PRODUCER_EPOCH for a past epoch."""
    producer = hard.pending.producers.get(request.producer_id)
    if producer is None:
        return False
    if request.producer_epoch < producer.epoch:
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"producer {request.producer_id} is at epoch {producer.epoch}; the commit has epoch "
            f"{request.producer_epoch}",
        )
    return producer.in_transaction and request.producer_epoch == producer.epoch


def require_leave(commit: CommitInTransaction, hard: HardState, guards: Guards) -> None:
    """Raises INVALID_PRODUCER_EPOCH for a past epoch, INVALID_TXN_STATE for a commit that would begin a
    transaction without permission, COORDINATOR_LOAD_IN_PROGRESS if the permission is from before the shard
    was loaded: its producer sends the commit again, and the coordinator is asked again."""
    producer_id = commit.request.producer_id
    if not is_under_way(commit.request, hard) and not guards.holds(commit.guard, producer_id):
        if commit.guard is not None and commit.guard.guards is not guards:
            raise KafkaError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                "the shard was loaded while the transaction's coordinator was asked",
            )
        raise KafkaError(
            ErrorCode.INVALID_TXN_STATE,
            f"no coordinator says that producer {producer_id} has a transaction here",
        )


def commit(
    request: TxnOffsetCommitRequest, *, hard: HardState, config: GroupConfig, step: Step
) -> TxnOffsetCommitResponse:
    """Keep what may be stored until the transaction is over. OFFSET_METADATA_TOO_LARGE is reported per
    partition."""
    _Topic, _Partition = TxnOffsetCommitResponse.Topic, TxnOffsetCommitResponse.Topic.Partition
    topics: list[TxnOffsetCommitResponse.Topic] = []
    for topic in request.topics:
        answers: list[TxnOffsetCommitResponse.Topic.Partition] = []
        for each in topic.partitions:
            metadata = each.committed_metadata or ""
            code = ErrorCode.NONE
            if is_too_long(metadata, config):
                code = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                _begin(request, hard, step)
                committed = CommittedOffset(
                    each.committed_offset,
                    each.committed_leader_epoch,
                    metadata,
                    step.now_ms,
                    _NO_EXPIRY,
                    topic.topic_id,
                )
                partition = topic.name, each.partition_index
                hard.emit(
                    records.pending_offset(request.producer_id, request.group_id, partition, committed), step
                )
            answers.append(_Partition(partition_index=each.partition_index, error_code=code))
        topics.append(_Topic(name=topic.name, topic_id=topic.topic_id, partitions=answers))
    return TxnOffsetCommitResponse(topics=topics)


def _begin(request: TxnOffsetCommitRequest, hard: HardState, step: Step) -> None:
    """Begin the producer's transaction here, unless one of this epoch is under way."""
    if is_under_way(request, hard):
        return
    before = hard.pending.producers.get(request.producer_id)
    coordinator_epoch = NO_COORDINATOR_EPOCH if before is None else before.coordinator_epoch
    producer = TransactionalProducer(request.producer_epoch, coordinator_epoch, step.now_ms, True)
    hard.emit(records.transactional_producer(request.producer_id, producer), step)


# --- markers ------------------------------------------------------------------------------------------------


def end(marker: Marker, hard: HardState, step: Step) -> None:
    """Turn the producer's pending offsets into those of their groups, or drop them. Raises what
    `check_marker` raises."""
    producer_id = marker.producer_id
    producer = hard.pending.producers.get(producer_id)
    if producer is not None:
        check_marker(
            marker,
            epoch=producer.epoch,
            is_open=producer.in_transaction,
            coordinator_epoch=producer.coordinator_epoch,
        )
    for group_id, partition in hard.pending.of_producer(producer_id):
        _end(producer_id, group_id, partition, hard, step, commits=marker.committed)
    marked = TransactionalProducer(marker.producer_epoch, marker.coordinator_epoch, step.now_ms, False)
    hard.emit(records.transactional_producer(producer_id, marked), step)


def _end(
    producer_id: int, group_id: str, partition: TopicPartition, hard: HardState, step: Step, *, commits: bool
) -> None:
    of_partition = dict(hard.pending.of_partition(group_id, partition))
    ending = of_partition[producer_id]
    hard.emit(records.pending_offset_tombstone(producer_id, group_id, partition), step)
    if not commits or ending.is_overtaken:
        return
    hard.emit(records.offset_commit(group_id, *partition, ending.committed), step)
    # Write again, behind it, what others have committed since: their transactions may still replace it. None
    # of it is overtaken, since whatever overtakes one overtakes those before it.
    others = iter(of_partition.items())
    next(other for other, _ in others if other == producer_id)
    for other, pending in others:
        hard.emit(records.pending_offset(other, group_id, partition, pending.committed), step)


# --- expiration ---------------------------------------------------------------------------------------------


def expire(hard: HardState, guards: Guards, expiration_ms: int, step: Step) -> None:
    """Forget the producers without a transaction that have been idle for producer.id.expiration.ms."""
    for producer_id, producer in list(hard.pending.producers.items()):
        if not producer.in_transaction and producer.last_ms + expiration_ms <= step.now_ms:
            hard.emit(records.transactional_producer_tombstone(producer_id), step)
            guards.forget(producer_id)


def next_expiry(hard: HardState, expiration_ms: int) -> int | None:
    """When the first producer expires, in epoch milliseconds; None: none will, as things are."""
    idle = (each.last_ms for each in hard.pending.producers.values() if not each.in_transaction)
    return min((last_ms + expiration_ms for last_ms in idle), default=None)
