"""What a shard keeps through a failover: committed offsets and each group's last GroupMetadata."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from muster.coordinator.base.step import BrokenInvariant, Step
from muster.coordinator.group.effects import Record
from muster.protocol.message import Message
from muster.protocol.messages.coordinator_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)

UNKNOWN_TIME: Final = -1
"""In place of a timestamp."""

TopicPartition = tuple[str, int]


class CommittedOffset(NamedTuple):
    """A position a group has committed for a partition. Timestamps are epoch milliseconds."""

    offset: int
    leader_epoch: int
    """-1: not known."""
    metadata: str
    commit_timestamp: int
    expire_timestamp: int
    """-1: the broker's retention applies. Else the time the commit asked for (OffsetCommit v2-4)."""
    topic_id: uuid.UUID
    """ZERO_UUID: not known."""


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
    """Since when the group is in the state it was stored in; UNKNOWN_TIME in records of old brokers."""
    members: tuple[StoredMember, ...]


class HardState:
    """The tables that records change, and nothing else does."""

    __slots__ = ("groups", "offsets")

    def __init__(self) -> None:
        self.groups: dict[str, StoredGroup] = {}
        self.offsets: dict[str, dict[TopicPartition, CommittedOffset]] = {}

    def __repr__(self) -> str:
        offsets = sum(map(len, self.offsets.values()))
        return f"<HardState groups={len(self.groups)} offsets={offsets} in {len(self.offsets)} groups>"

    def emit(self, record: Record, step: Step) -> None:
        """Change hard state: persist and apply (promise 2). Later steps build on it at once, and the host
        lets nothing of it be seen before the record is durable. Should that fail, the shard and all that was
        built goes (promise 6).
        """
        step.rows.append(record.row())
        self.apply(record)

    def apply(self, record: Record) -> None:
        """The change a record stands for; also what replays a store. Deleting what is not there is no error:
        the store forgets a key together with its tombstone."""
        key, value = record.key, record.value
        table = _TABLES.get(type(key))
        if table is None or not (value is None or isinstance(value, table.value)):
            raise BrokenInvariant(f"a record nobody here writes: {key!r} {value!r}")
        if value is None:
            table.delete(self, key)
        else:
            table.put(self, key, value)

    def durable(self) -> tuple[dict[str, StoredGroup], dict[str, dict[TopicPartition, CommittedOffset]]]:
        """A copy that compares."""
        return dict(self.groups), {group_id: dict(offsets) for group_id, offsets in self.offsets.items()}


class _Table(NamedTuple):
    """How a type of record changes hard state."""

    value: type[Message]
    put: Callable[[HardState, Any, Any], None]
    delete: Callable[[HardState, Any], None]


def _put_offset(hard: HardState, key: OffsetCommitKey, value: OffsetCommitValue) -> None:
    hard.offsets.setdefault(key.group, {})[key.topic, key.partition] = CommittedOffset(
        value.offset,
        value.leader_epoch,
        value.metadata,
        value.commit_timestamp,
        value.expire_timestamp,
        value.topic_id,
    )


def _delete_offset(hard: HardState, key: OffsetCommitKey) -> None:
    offsets = hard.offsets.get(key.group)
    if offsets is not None:
        offsets.pop((key.topic, key.partition), None)
        if not offsets:
            del hard.offsets[key.group]


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
}
"""By the type of a record's key."""
