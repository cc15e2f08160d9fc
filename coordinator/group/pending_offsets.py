"""Offsets of open transactions, and transactional producers: tables that only records change.

Whether a later commit has overtaken a pending offset follows from the order of the records, as it does in
Kafka from their positions in the log: the store returns a shard's rows in the order in which they were
written. So an offset's record overtakes what is pending for its partition at that moment, until the offset is
deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from muster.coordinator.group.committed_offset import CommittedOffset
from muster.coordinator.group.group_offsets import TopicPartition
from muster.protocol.messages.coordinator_records import TransactionalProducerValue

_NOTHING: Final[Mapping[int, PendingOffset]] = MappingProxyType({})


class PendingOffset(NamedTuple):
    """What becomes the group's offset for a partition if the transaction commits."""

    committed: CommittedOffset
    is_overtaken: bool = False
    """A newer commit for the partition exists, and stays."""


class TransactionalProducer(NamedTuple):
    """What a shard knows about a transactional producer."""

    epoch: int
    coordinator_epoch: int
    """As of its last marker."""
    last_ms: int
    """When its transaction began here or its last marker arrived; epoch milliseconds."""
    in_transaction: bool
    """Whether it has committed offsets here since its last marker, even if they are gone by now."""


class PendingOffsets:
    """Pending offsets by group, partition and producer, each partition's in the order of their records; and
    the producers."""

    __slots__ = ("_by_group", "_by_producer", "producers")

    def __init__(self) -> None:
        self.producers: dict[int, TransactionalProducer] = {}
        self._by_group: dict[str, dict[TopicPartition, dict[int, PendingOffset]]] = {}
        self._by_producer: dict[int, dict[tuple[str, TopicPartition], None]] = {}

    def __repr__(self) -> str:
        pending = sum(map(len, self._by_producer.values()))
        return f"<PendingOffsets {pending} of {len(self._by_producer)} producers>"

    # --- what there is --------------------------------------------------------------------------------------

    def groups(self) -> Iterator[str]:
        """Groups with pending offsets."""
        return iter(self._by_group)

    def of_group(self, group_id: str) -> Mapping[TopicPartition, Mapping[int, PendingOffset]]:
        """The group's pending offsets, by partition and producer id."""
        return self._by_group.get(group_id, {})

    def of_partition(self, group_id: str, partition: TopicPartition) -> Mapping[int, PendingOffset]:
        """The partition's pending offsets, by producer id, oldest first."""
        if not self._by_group:
            return _NOTHING  # the usual case
        return self.of_group(group_id).get(partition, _NOTHING)

    def of_producer(self, producer_id: int) -> list[tuple[str, TopicPartition]]:
        """Groups and partitions of the producer's pending offsets."""
        return list(self._by_producer.get(producer_id, ()))

    def durable(self) -> tuple[object, ...]:
        """A comparable copy, including the order of what is pending for a partition."""
        pending = {
            group_id: {partition: tuple(of.items()) for partition, of in partitions.items()}
            for group_id, partitions in self._by_group.items()
        }
        return dict(self.producers), pending

    # --- what records change --------------------------------------------------------------------------------

    def put(
        self, producer_id: int, group_id: str, partition: TopicPartition, offset: CommittedOffset
    ) -> None:
        """Put a producer's offset for the partition, as its newest."""
        of_partition = self._by_group.setdefault(group_id, {}).setdefault(partition, {})
        of_partition.pop(producer_id, None)
        of_partition[producer_id] = PendingOffset(offset)
        self._by_producer.setdefault(producer_id, {})[group_id, partition] = None

    def delete(self, producer_id: int, group_id: str, partition: TopicPartition) -> None:
        of_producer = self._by_producer.get(producer_id, {})
        if (group_id, partition) not in of_producer:
            return
        del of_producer[group_id, partition]
        if not of_producer:
            del self._by_producer[producer_id]
        of_group = self._by_group[group_id]
        del of_group[partition][producer_id]
        if not of_group[partition]:
            del of_group[partition]
            if not of_group:
                del self._by_group[group_id]

    def overtake(self, group_id: str, topic: str, partitions: Iterable[int]) -> None:
        """The group has newer offsets for these partitions."""
        of_group = self._by_group.get(group_id)
        if of_group is None:
            return
        for partition in partitions:
            of_partition = of_group.get((topic, partition), {})
            for producer_id, pending in of_partition.items():
                of_partition[producer_id] = pending._replace(is_overtaken=True)

    def restore(self, group_id: str, partition: TopicPartition) -> None:
        """The group's offset for this partition is gone, and overtakes nothing any more."""
        if not self._by_group:
            return  # the usual case
        of_partition = self._by_group.get(group_id, {}).get(partition, {})
        for producer_id, pending in of_partition.items():
            of_partition[producer_id] = pending._replace(is_overtaken=False)

    def put_producer(self, producer_id: int, value: TransactionalProducerValue) -> None:
        self.producers[producer_id] = TransactionalProducer(
            value.producer_epoch, value.coordinator_epoch, value.last_timestamp, value.in_transaction
        )

    def delete_producer(self, producer_id: int) -> None:
        self.producers.pop(producer_id, None)
