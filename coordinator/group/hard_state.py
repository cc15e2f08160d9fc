"""What a shard keeps through a failover: committed offsets, the offsets of open transactions, each classic
group's last GroupMetadata, and the state of consumer groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from muster.coordinator.base.step import BrokenInvariant, Step
from muster.coordinator.group.committed_offset import CommittedOffset, rows_of
from muster.coordinator.group.consumer.records import TABLES as CONSUMER_TABLES
from muster.coordinator.group.consumer.state import ConsumerState
from muster.coordinator.group.effects import Record
from muster.coordinator.group.group_offsets import GroupOffsets, TopicPartition
from muster.coordinator.group.pending_offsets import PendingOffsets
from muster.protocol.message import Message
from muster.protocol.messages.coordinator_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    PendingOffsetKey,
    TransactionalProducerKey,
    TransactionalProducerValue,
)

UNKNOWN_TIME: Final = -1
"""Stands in for an unknown timestamp."""


class StoredMember(NamedTuple):
    """A member as of the last GroupMetadata. Timeouts are milliseconds."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    """The member's metadata for the selected protocol."""
    assignment: bytes


class StoredGroup(NamedTuple):
    """A group as of its last GroupMetadata."""

    protocol_type: str
    """"": the group never had members."""
    generation_id: int
    protocol_name: str | None
    leader: str | None
    state_timestamp: int
    """When the group entered the state it was stored in; UNKNOWN_TIME in records of old brokers."""
    members: tuple[StoredMember, ...]


class Durable(NamedTuple):
    """What the records say, in a comparable form."""

    groups: dict[str, StoredGroup]
    """The classic groups."""
    consumers: dict[str, tuple[object, ...]]
    """The consumer groups."""
    offsets: dict[str, dict[TopicPartition, CommittedOffset]]
    pending: tuple[object, ...]


class HardState:
    """The tables that only records change."""

    __slots__ = ("consumers", "groups", "offsets", "pending")

    def __init__(self) -> None:
        self.groups: dict[str, StoredGroup] = {}
        """The classic groups."""
        self.consumers: dict[str, ConsumerState] = {}
        """The consumer groups."""
        self.offsets: dict[str, GroupOffsets] = {}
        """Of groups that have any."""
        self.pending = PendingOffsets()

    def __repr__(self) -> str:
        offsets = sum(map(len, self.offsets.values()))
        groups = len(self.groups) + len(self.consumers)
        return f"<HardState groups={groups} offsets={offsets} in {len(self.offsets)} groups>"

    def emit(self, record: Record, step: Step) -> None:
        """Change hard state: persist and apply (promise 2). Later steps build on the change at once, and the
        host reveals nothing of it before the record is durable. If the write fails, the shard is dropped with
        all that was built on it (promise 6)."""
        step.rows.append(record.row())
        self.apply(record)

    def emit_offsets(
        self, group_id: str, topic: str, committing: Sequence[tuple[int, CommittedOffset]], step: Step
    ) -> None:
        """Like `emit`, for a topic's committed offsets, each with its partition, but without making records
        of them. They all have the same topic id."""
        if not committing:
            return
        offsets = self.offsets.get(group_id)
        if offsets is None:
            offsets = self.offsets[group_id] = GroupOffsets()
        of_topic = offsets.of_topic(topic, committing[0][1].topic_id)
        step.rows += rows_of(of_topic.key_front(group_id, topic), committing)
        for partition, committed in committing:
            of_topic.put(partition, committed)
        self.pending.overtake(group_id, topic, [partition for partition, _ in committing])

    def apply(self, record: Record) -> None:
        """Apply the change a record stands for; also used to replay a store. Deleting what is not there is no
        error: the store forgets a key together with its tombstone."""
        key, value = record.key, record.value
        table = _TABLES.get(type(key))
        if table is None and type(key) in CONSUMER_TABLES:
            self._apply_to_consumers(key, value)
            return
        if table is None or not (value is None or isinstance(value, table.value)):
            raise BrokenInvariant(f"a record nobody here writes: {key!r} {value!r}")
        if value is None:
            table.delete(self, key)
        else:
            table.put(self, key, value)

    def _apply_to_consumers(self, key: Any, value: Message | None) -> None:
        table = CONSUMER_TABLES[type(key)]
        if not (value is None or isinstance(value, table.value)):
            raise BrokenInvariant(f"a record nobody here writes: {key!r} {value!r}")
        state = self.consumers.get(key.group_id)
        if value is not None:
            if state is None:
                state = self.consumers[key.group_id] = ConsumerState()
            table.put(state, key, value)
        elif state is not None:
            table.delete(state, key)
            if state.is_gone:
                del self.consumers[key.group_id]

    def has_offsets(self, group_id: str) -> bool:
        """Whether the group has any offsets, even pending ones."""
        return group_id in self.offsets or bool(self.pending.of_group(group_id))

    def partitions_of(self, group_id: str) -> list[TopicPartition]:
        """The partitions that the group has an offset for, even a pending one."""
        return list(dict.fromkeys((*self.offsets.get(group_id, ()), *self.pending.of_group(group_id))))

    def durable(self) -> Durable:
        """A comparable copy."""
        return Durable(
            dict(self.groups),
            {group_id: state.durable() for group_id, state in self.consumers.items()},
            {group_id: dict(offsets) for group_id, offsets in self.offsets.items()},
            self.pending.durable(),
        )


class _Table(NamedTuple):
    """How a type of record changes hard state."""

    value: type[Message]
    put: Callable[[HardState, Any, Any], None]
    delete: Callable[[HardState, Any], None]


def _committed(value: OffsetCommitValue) -> CommittedOffset:
    return CommittedOffset(
        value.offset,
        value.leader_epoch,
        value.metadata,
        value.commit_timestamp,
        value.expire_timestamp,
        value.topic_id,
    )


def _put_offset(hard: HardState, key: OffsetCommitKey, value: OffsetCommitValue) -> None:
    offsets = hard.offsets.get(key.group)
    if offsets is None:
        offsets = hard.offsets[key.group] = GroupOffsets()
    offsets.put(key.topic, key.partition, _committed(value))
    hard.pending.overtake(key.group, key.topic, (key.partition,))


def _delete_offset(hard: HardState, key: OffsetCommitKey) -> None:
    offsets = hard.offsets.get(key.group)
    if offsets is not None:
        offsets.remove(key.topic, key.partition)
        if not offsets.topics:
            del hard.offsets[key.group]
    # Whoever replays the records finds neither this one nor the offset that overtook what is pending.
    hard.pending.restore(key.group, (key.topic, key.partition))


def _put_pending(hard: HardState, key: PendingOffsetKey, value: OffsetCommitValue) -> None:
    hard.pending.put(key.producer_id, key.group, (key.topic, key.partition), _committed(value))


def _delete_pending(hard: HardState, key: PendingOffsetKey) -> None:
    hard.pending.delete(key.producer_id, key.group, (key.topic, key.partition))


def _put_producer(hard: HardState, key: TransactionalProducerKey, value: TransactionalProducerValue) -> None:
    hard.pending.put_producer(key.producer_id, value)


def _delete_producer(hard: HardState, key: TransactionalProducerKey) -> None:
    hard.pending.delete_producer(key.producer_id)


def _put_group(hard: HardState, key: GroupMetadataKey, value: GroupMetadataValue) -> None:
    hard.groups[key.group] = _stored_group(value)


def _delete_group(hard: HardState, key: GroupMetadataKey) -> None:
    hard.groups.pop(key.group, None)


def _stored_group(value: GroupMetadataValue) -> StoredGroup:
    return StoredGroup(
        value.protocol_type,
        value.generation,
        value.protocol,
        value.leader,
        value.current_state_timestamp,
        tuple(
            StoredMember(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                # Value v0 has no rebalance timeout: members of that time used the session timeout for both.
                member.session_timeout if member.rebalance_timeout == -1 else member.rebalance_timeout,
                member.session_timeout,
                member.subscription,
                member.assignment,
            )
            for member in value.members
        ),
    )


_TABLES: Final[Mapping[type[Message], _Table]] = {
    OffsetCommitKey: _Table(OffsetCommitValue, _put_offset, _delete_offset),
    GroupMetadataKey: _Table(GroupMetadataValue, _put_group, _delete_group),
    PendingOffsetKey: _Table(OffsetCommitValue, _put_pending, _delete_pending),
    TransactionalProducerKey: _Table(TransactionalProducerValue, _put_producer, _delete_producer),
}
"""By the type of a record's key."""
