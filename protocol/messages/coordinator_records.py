"""The coordinator's own records: what Kafka keeps in the topic `__consumer_offsets`.

A key is an int16 record type followed by its fields, a value an int16 schema version followed by its fields;
no value (a tombstone) deletes the key. Reading a log, records of an unknown type are passed over, so that a
store written by a later version can still be opened.
"""

from __future__ import annotations

import struct as binary
import uuid
from functools import lru_cache
from typing import Final

from muster.protocol import codec
from muster.protocol.errors import DecodeError, EncodeError
from muster.protocol.message import Message, Struct, field, record, struct
from muster.protocol.types import ZERO_UUID, Array, Bytes, Int32, Int64, String, Uuid

_INT16: Final = binary.Struct(">h")


@record(versions="0")
class OffsetCommitKey(Message):
    """Key of a committed offset (record type 1; type 0 before Kafka 0.9). Never flexible."""

    group: str = field(String, "0")
    topic: str = field(String, "0")
    partition: int = field(Int32, "0")


@record(versions="0-4", flexible="4+")
class OffsetCommitValue(Message):
    """Value of a committed offset, v0-4: v1 an expiry of its own (written when the commit asked for a
    retention time), v2 none, v3 leader epoch, v4 flexible, topic id as tag 0.

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
    protocol alone; `client_host` is spelt as Java prints an address ("/127.0.0.1").
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


GROUP_METADATA_VALUE_VERSION: Final = 3
"""The version Kafka 4.x writes group metadata in; v4 is read only."""


def offset_commit_value_version(value: OffsetCommitValue) -> int:
    """The version Kafka 4.x writes `value` in: v1 if it has an expiry of its own, which no other version can
    say (v1 drops leader epoch and topic id), else v4."""
    return 4 if value.expire_timestamp == -1 else 1


_SCHEMAS: Final[dict[int, tuple[type[Message], type[Message]]]] = {
    0: (OffsetCommitKey, OffsetCommitValue),  # as Kafka wrote them before 0.9; only ever read
    1: (OffsetCommitKey, OffsetCommitValue),
    2: (GroupMetadataKey, GroupMetadataValue),
}
"""Record type -> key and value."""

_RECORD_TYPES: Final = {key_class: record_type for record_type, (key_class, _) in _SCHEMAS.items()}
"""Key -> record type; of several the last, which is the one to write."""


def encode_key(key: Message) -> bytes:
    """The key's record type and fields. Raises EncodeError for a message that is not a record's key."""
    if isinstance(key, OffsetCommitKey):
        return _offset_key(key.group, key.topic, key.partition)
    record_type = _RECORD_TYPES.get(type(key))
    if record_type is None:
        raise EncodeError(f"{type(key).__name__} is not the key of a coordinator record")
    return _INT16.pack(record_type) + codec.encode(key, 0)


@lru_cache(maxsize=4096)
def _offset_key(group: str, topic: str, partition: int) -> bytes:
    """The same partitions are committed again and again."""
    key = OffsetCommitKey(group=group, topic=topic, partition=partition)
    return _INT16.pack(_RECORD_TYPES[OffsetCommitKey]) + codec.encode(key, 0)


def encode_value(value: Message, version: int) -> bytes:
    """The schema version and the value's fields in that version."""
    return _INT16.pack(version) + codec.encode(value, version)


def decode_record(key: bytes, value: bytes | None) -> tuple[Message, Message | None] | None:
    """The record's key and value; (key, None) for a tombstone; None for a record type this module does not
    know.

    Keys of type 0 come out as the OffsetCommitKey of today. Raises DecodeError for bytes that do not fit the
    schema, and for value versions that are newer than the schema.
    """
    schemas = _SCHEMAS.get(_int16(key, "record type"))
    if schemas is None:
        return None
    key_class, value_class = schemas
    decoded_key = codec.decode(key_class, 0, key, 2)
    if value is None:
        return decoded_key, None
    return decoded_key, codec.decode(value_class, _int16(value, "value version"), value, 2)


def _int16(blob: bytes, what: str) -> int:
    if len(blob) < 2:
        raise DecodeError(f"{what}: 2 bytes expected, {len(blob)} there")
    number: int = _INT16.unpack_from(blob)[0]
    return number
