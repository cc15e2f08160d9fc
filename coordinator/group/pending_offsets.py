"""Offsets in transactions that are not over, and the producers of transactions: tables that records alone
change.

Whether a later commit has overtaken a pending offset follows from the order of the records, as in Kafka it
does from their places in the log: the store gives a shard's rows back in the order in which they were
written. So an offset's record overtakes what is pending for its partition at that moment.
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
    """What the commit of a transaction makes the group's offset for a partition."""

    committed: CommittedOffset
    is_overtaken: bool = False
    """Another commit for the partition is newer, and stays."""


class TransactionalProducer(NamedTuple):
    """A producer of transactions, as far as a shard knows it."""

    epoch: int
    coordinator_epoch: int
    """Of its last marker."""
    last_ms: int
    """When its transaction began here, or its last marker came; epoch milliseconds."""
    in_transaction: bool
    """Whether it has committed offsets here since its last marker, be they gone by now."""


class PendingOffsets:
    """Pending offsets by group, partition and producer, those of a partition in the order of their records;
    and the producers."""

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
        """Those that have any."""
        return iter(self._by_group)

    def of_group(self, group_id: str) -> Mapping[TopicPartition, Mapping[int, PendingOffset]]:
        """By partition and producer id."""
        return self._by_group.get(group_id, {})

    def of_partition(self, group_id: str, partition: TopicPartition) -> Mapping[int, PendingOffset]:
        """By producer id, the oldest first."""
        if not self._by_group:
            return _NOTHING  # as a rule
        return self.of_group(group_id).get(partition, _NOTHING)

    def of_producer(self, producer_id: int) -> list[tuple[str, TopicPartition]]:
        """Groups and partitions."""
        return list(self._by_producer.get(producer_id, ()))

    def durable(self) -> tuple[object, ...]:
        """A copy that compares, the order of what is pending for a partition included."""
        pending = {
            group_id: {partition: tuple(of.items()) for partition, of in partitions.items()}
            for group_id, partitions in self._by_group.items()
        }
        return dict(self.producers), pending

    # --- what records change --------------------------------------------------------------------------------

    def put(
        self, producer_id: int, group_id: str, partition: TopicPartition, offset: CommittedOffset
    ) -> None:
        """A producer's offset for the partition, which is the newest now."""
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
        """The group has other offsets for these partitions."""
        of_group = self._by_group.get(group_id)
        if of_group is None:
            return
        for partition in partitions:
            of_partition = of_group.get((topic, partition), {})
            for producer_id, pending in of_partition.items():
                of_partition[producer_id] = pending._replace(is_overtaken=True)

    def put_producer(self, producer_id: int, value: TransactionalProducerValue) -> None:
        self.producers[producer_id] = TransactionalProducer(
            value.producer_epoch, value.coordinator_epoch, value.last_timestamp, value.in_transaction
        )

    def delete_producer(self, producer_id: int) -> None:
        self.producers.pop(producer_id, None)
