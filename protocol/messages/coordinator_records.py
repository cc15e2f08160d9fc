"""The coordinator's own records: what Kafka keeps in the topic `__consumer_offsets`.

A key is an int16 record type followed by its fields, a value an int16 schema version followed by its fields;
a tombstone (no value) deletes the key. Readers of a log skip records of an unknown type, so that a store
written by a later version can still be opened.

What Kafka expresses through a record's batch has record types of muster's own, from 10,000 on, which readers
of the topic never see.
"""

from __future__ import annotations

import uuid
from functools import lru_cache
from typing import Final

from muster.protocol.errors import EncodeError
from muster.protocol.message import Message, Struct, field, record, struct
from muster.protocol.messages.keyed_records import Schemas, decode, frame_key, frame_value
from muster.protocol.types import (
    ZERO_UUID,
    Array,
    Boolean,
    Bytes,
    Int8,
    Int16,
    Int32,
    Int64,
    String,
    Uuid,
)


@record(versions="0")
class OffsetCommitKey(Message):
    """Key of a committed offset (record type 1; type 0 before Kafka 0.9). Never flexible."""

    group: str = field(String, "0")
    topic: str = field(String, "0")
    partition: int = field(Int32, "0")


@record(versions="0-4", flexible="4+")
class OffsetCommitValue(Message):
    """Value of a committed offset, v0-4: v1 its own expiry (written if the commit asked for a retention
    time), v2 none, v3 leader epoch, v4 flexible, topic id as tag 0.

    Timestamps are epoch milliseconds. `expire_timestamp` -1 means that the broker's retention applies,
    `topic_id` zero that the commit named the topic only.
    """

    offset: int = field(Int64, "0+")
    leader_epoch: int = field(Int32, "3+", default=-1, ignorable=True)
    metadata: str = field(String, "0+")
    commit_timestamp: int = field(Int64, "0+")
    expire_timestamp: int = field(Int64, "1", default=-1, ignorable=True)
    topic_id: uuid.UUID = field(Uuid, "4+", tag=0, default=ZERO_UUID, ignorable=True)


@record(versions="0")
class GroupMetadataKey(Message):
    """Key of a classic group (record type 2). Never flexible."""

    group: str = field(String, "0")


@record(versions="0-4", flexible="4+")
class GroupMetadataValue(Message):
    """Value of a classic group, v0-4: v1 rebalance timeout, v2 timestamp of the state, v3 group instance id
    (KIP-345), v4 flexible.

    Timestamps are epoch milliseconds, timeouts milliseconds. An empty group has protocol type "", generation
    0, null protocol and leader, and no members. `subscription` is the member's metadata for the selected
    protocol alone; `client_host` is written as Java prints an address ("/127.0.0.1").
    """

    @struct
    class MemberMetadata(Struct):
        member_id: str = field(String, "0+")
        group_instance_id: str | None = field(String, "3+", nullable="3+", default=None, ignorable=True)
        client_id: str = field(String, "0+")
        client_host: str = field(String, "0+")
        rebalance_timeout: int = field(Int32, "1+", default=-1, ignorable=True)
        session_timeout: int = field(Int32, "0+")
        subscription: bytes = field(Bytes, "0+")
        assignment: bytes = field(Bytes, "0+")

    protocol_type: str = field(String, "0+")
    generation: int = field(Int32, "0+")
    protocol: str | None = field(String, "0+", nullable="0+")
    leader: str | None = field(String, "0+", nullable="0+")
    current_state_timestamp: int = field(Int64, "2+", default=-1, ignorable=True)
    members: list[MemberMetadata] = field(Array(MemberMetadata), "0+")


# --- consumer groups (KIP-848) ------------------------------------------------------------------------------


@record(versions="0")
class ConsumerGroupMetadataKey(Message):
    """Key of a consumer group (record type 3). Never flexible, like every key."""

    group_id: str = field(String, "0")


@record(versions="0", flexible="0+")
class ConsumerGroupMetadataValue(Message):
    """The group's epoch, and a hash of the metadata of the topics it subscribes to (KIP-1101)."""

    epoch: int = field(Int32, "0+")
    metadata_hash: int = field(Int64, "0+", tag=0, default=0)


@record(versions="0")
class ConsumerGroupPartitionMetadataKey(Message):
    """Key of the topics a consumer group subscribes to (record type 4); written by Kafka before 4.1."""

    group_id: str = field(String, "0")


@record(versions="0", flexible="0+")
class ConsumerGroupPartitionMetadataValue(Message):
    """The subscribed topics, their partitions and racks: read from old stores, no longer written."""

    @struct
    class TopicMetadata(Struct):
        @struct
        class PartitionMetadata(Struct):
            partition: int = field(Int32, "0+")
            racks: list[str] = field(Array(String), "0+")

        topic_id: uuid.UUID = field(Uuid, "0+")
        topic_name: str = field(String, "0+")
        num_partitions: int = field(Int32, "0+")
        partition_metadata: list[PartitionMetadata] = field(Array(PartitionMetadata), "0+")

    topics: list[TopicMetadata] = field(Array(TopicMetadata), "0+")


@record(versions="0")
class ConsumerGroupMemberMetadataKey(Message):
    """Key of what a consumer group member reports about itself (record type 5)."""

    group_id: str = field(String, "0")
    member_id: str = field(String, "0")


@record(versions="0", flexible="0+")
class ConsumerGroupMemberMetadataValue(Message):
    """What a consumer group member reports about itself; `classic_member_metadata` if it speaks the classic
    protocol. Timeouts are in milliseconds."""

    @struct
    class ClassicMemberMetadata(Struct):
        @struct
        class ClassicProtocol(Struct):
            name: str = field(String, "0+")
            metadata: bytes = field(Bytes, "0+")

        session_timeout_ms: int = field(Int32, "0+")
        supported_protocols: list[ClassicProtocol] = field(Array(ClassicProtocol), "0+")

    instance_id: str | None = field(String, "0+", nullable="0+")
    rack_id: str | None = field(String, "0+", nullable="0+")
    client_id: str = field(String, "0+")
    client_host: str = field(String, "0+")
    subscribed_topic_names: list[str] = field(Array(String), "0+")
    subscribed_topic_regex: str | None = field(String, "0+", nullable="0+")
    rebalance_timeout_ms: int = field(Int32, "0+", default=-1)
    server_assignor: str | None = field(String, "0+", nullable="0+")
    classic_member_metadata: ClassicMemberMetadata | None = field(
        ClassicMemberMetadata, "0+", nullable="0+", tag=0, default=None
    )


@record(versions="0")
class ConsumerGroupTargetAssignmentMetadataKey(Message):
    """Key of the epoch and time of a consumer group's target assignment (record type 6)."""

    group_id: str = field(String, "0")


@record(versions="0", flexible="0+")
class ConsumerGroupTargetAssignmentMetadataValue(Message):
    """The group epoch of a target assignment, and when it was computed, in epoch milliseconds (0 when the
    group became empty)."""

    assignment_epoch: int = field(Int32, "0+")
    assignment_timestamp: int = field(Int64, "0+", tag=0, default=0, ignorable=True)


@record(versions="0")
class ConsumerGroupTargetAssignmentMemberKey(Message):
    """Key of a consumer group member's target assignment (record type 7)."""

    group_id: str = field(String, "0")
    member_id: str = field(String, "0")


@record(versions="0", flexible="0+")
class ConsumerGroupTargetAssignmentMemberValue(Message):
    """A member's target assignment."""

    @struct
    class TopicPartition(Struct):
        topic_id: uuid.UUID = field(Uuid, "0+")
        partitions: list[int] = field(Array(Int32), "0+")

    topic_partitions: list[TopicPartition] = field(Array(TopicPartition), "0+")


@record(versions="0")
class ConsumerGroupCurrentMemberAssignmentKey(Message):
    """Key of a consumer group member's current assignment (record type 8)."""

    group_id: str = field(String, "0")
    member_id: str = field(String, "0")


@record(versions="0", flexible="0+")
class ConsumerGroupCurrentMemberAssignmentValue(Message):
    """What a member has, and what it has yet to revoke; each partition with the epoch at which it was
    assigned (KIP-1251), which records of older brokers lack."""

    @struct
    class TopicPartitions(Struct):
        topic_id: uuid.UUID = field(Uuid, "0+")
        partitions: list[int] = field(Array(Int32), "0+")
        assignment_epochs: list[int] | None = field(Array(Int32), "0+", nullable="0+", tag=0, default=None)

    member_epoch: int = field(Int32, "0+")
    previous_member_epoch: int = field(Int32, "0+")
    state: int = field(Int8, "0+")
    assigned_partitions: list[TopicPartitions] = field(Array(TopicPartitions), "0+")
    partitions_pending_revocation: list[TopicPartitions] = field(Array(TopicPartitions), "0+")


@record(versions="0")
class ConsumerGroupRegularExpressionKey(Message):
    """Key of the topics that a consumer group's regular expression matches (record type 16)."""

    group_id: str = field(String, "0")
    regular_expression: str = field(String, "0")


@record(versions="0", flexible="0+")
class ConsumerGroupRegularExpressionValue(Message):
    """The topics that a regular expression matches, as of a metadata version and a time (when the lookup
    began, in epoch milliseconds)."""

    topics: list[str] = field(Array(String), "0+")
    version: int = field(Int64, "0+")
    timestamp: int = field(Int64, "0+")


# --- transactions: record types of muster's own -------------------------------------------------------------


@record(versions="0")
class PendingOffsetKey(Message):
    """Key of an offset committed in an open transaction (record type 10000). Its value is an
    OffsetCommitValue. In Kafka, the record's batch says that it is transactional."""

    producer_id: int = field(Int64, "0")
    group: str = field(String, "0")
    topic: str = field(String, "0")
    partition: int = field(Int32, "0")


@record(versions="0")
class TransactionalProducerKey(Message):
    """Key of a producer that has committed offsets in transactions, or received a marker (record type
    10001)."""

    producer_id: int = field(Int64, "0")


@record(versions="0", flexible="0+")
class TransactionalProducerValue(Message):
    """What decides which of the producer's markers and commits are accepted. Kafka derives it from batch
    headers. `last_timestamp` is epoch milliseconds, `coordinator_epoch` that of the last marker, or -1."""

    producer_epoch: int = field(Int16, "0+")
    coordinator_epoch: int = field(Int32, "0+")
    last_timestamp: int = field(Int64, "0+")
    in_transaction: bool = field(Boolean, "0+")


GROUP_METADATA_VALUE_VERSION: Final = 3
"""The version in which Kafka 4.x writes group metadata; v4 is only read."""


def offset_commit_value_version(value: OffsetCommitValue) -> int:
    """The version in which Kafka 4.x writes `value`: v1 if it has its own expiry, which no other version can
    hold (v1 drops leader epoch and topic id), else v4."""
    return 4 if value.expire_timestamp == -1 else 1


_OWN_RECORD_TYPES_FROM: Final = 10_000

_SCHEMAS: Final[Schemas] = {
    0: (OffsetCommitKey, OffsetCommitValue),  # as Kafka wrote them before 0.9; only ever read
    1: (OffsetCommitKey, OffsetCommitValue),
    2: (GroupMetadataKey, GroupMetadataValue),
    3: (ConsumerGroupMetadataKey, ConsumerGroupMetadataValue),
    4: (ConsumerGroupPartitionMetadataKey, ConsumerGroupPartitionMetadataValue),
    5: (ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue),
    6: (ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue),
    7: (ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue),
    8: (ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue),
    16: (ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue),
    _OWN_RECORD_TYPES_FROM: (PendingOffsetKey, OffsetCommitValue),
    _OWN_RECORD_TYPES_FROM + 1: (TransactionalProducerKey, TransactionalProducerValue),
}

_REMEMBERED_MAX: Final = 512
"""Longest names whose keys are remembered, in characters: those of a group and a topic together."""

_RECORD_TYPES: Final = {key_class: record_type for record_type, (key_class, _) in _SCHEMAS.items()}
"""Key -> record type; of several, the last, which is the one to write."""


def encode_key(key: Message) -> bytes:
    """The key's record type and fields. Raises EncodeError for a message that is not a record's key."""
    if isinstance(key, OffsetCommitKey):
        is_short = len(key.group) + len(key.topic) <= _REMEMBERED_MAX
        offset_key = _remembered_offset_key if is_short else _offset_key
        return offset_key(key.group, key.topic, key.partition)
    record_type = _RECORD_TYPES.get(type(key))
    if record_type is None:
        raise EncodeError(f"{type(key).__name__} is not the key of a coordinator record")
    return frame_key(record_type, key)


def _offset_key(group: str, topic: str, partition: int) -> bytes:
    key = OffsetCommitKey(group=group, topic=topic, partition=partition)
    return frame_key(_RECORD_TYPES[OffsetCommitKey], key)


_remembered_offset_key = lru_cache(maxsize=4096)(_offset_key)
"""The same partitions are committed again and again."""


def is_own(key: bytes) -> bool:
    """Whether the record is of a type that Kafka does not have."""
    return int.from_bytes(key[:2], "big", signed=True) >= _OWN_RECORD_TYPES_FROM


def encode_value(value: Message, version: int) -> bytes:
    """The schema version and the value's fields in that version."""
    return frame_value(value, version)


def decode_record(key: bytes, value: bytes | None) -> tuple[Message, Message | None] | None:
    """The record's key and value; (key, None) for a tombstone; None for a record type this module does not
    know.

    Keys of type 0 are returned as today's OffsetCommitKey. Raises DecodeError for bytes that do not fit the
    schema, and for value versions that are newer than the schema.
    """
    return decode(_SCHEMAS, key, value)
