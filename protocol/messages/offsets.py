"""Committed offsets: OffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

import struct as structs
import uuid
from collections.abc import Sequence
from typing import Final, TypeAlias

from muster.protocol.elements import Form
from muster.protocol.message import (
    VERSION_MAX,
    Message,
    Struct,
    Versions,
    field,
    request,
    response,
    struct,
)
from muster.protocol.source import string_uvarint
from muster.protocol.types import ZERO_UUID, Array, Boolean, Int16, Int32, Int64, String, Uuid


@request(8, versions="2-10", flexible="8+")
class OffsetCommitRequest(Message):
    """OffsetCommit v2-10 (Kafka 4.0 removed v0-1): v2-4 retention time, v5 only the broker's retention
    applies (KIP-211), v6 leader epoch of the committed offset (KIP-320), v7 group instance id (KIP-345), v8
    flexible, v9 first version for members of the consumer group protocol (KIP-848), v10 topics by id instead
    of name.

    A commit from outside the group has `generation_id_or_member_epoch` -1 and `member_id` "".
    `retention_time_ms` -1 stands for the broker's `offsets.retention.minutes`.
    """

    @struct
    class Topic(Struct):
        @struct
        class Partition(Struct):
            partition_index: int = field(Int32, "0+")
            committed_offset: int = field(Int64, "0+")
            committed_leader_epoch: int = field(Int32, "6+", default=-1, ignorable=True)
            committed_metadata: str | None = field(String, "0+", nullable="0+")

        name: str = field(String, "0-9", default="", ignorable=True)
        topic_id: uuid.UUID = field(Uuid, "10+", default=ZERO_UUID, ignorable=True)
        partitions: list[Partition] = field(Array(Partition), "0+")

    Partition: TypeAlias = Topic.Partition  # type: ignore[misc]

    group_id: str = field(String, "0+")
    generation_id_or_member_epoch: int = field(Int32, "1+", default=-1, ignorable=True)
    member_id: str = field(String, "1+", ignorable=True)
    group_instance_id: str | None = field(String, "7+", nullable="7+", default=None)
    retention_time_ms: int = field(Int64, "2-4", default=-1, ignorable=True)
    topics: list[Topic] = field(Array(Topic), "0+")


@response(8, versions="2-10", flexible="8+")
class OffsetCommitResponse(Message):
    """OffsetCommit v2-10: v3 throttle time, v4 throttling after the reply, v5-7 no change here, v8 flexible,
    v9 STALE_MEMBER_EPOCH and GROUP_ID_NOT_FOUND possible (KIP-848), v10 topics by id instead of name.

    There is no top-level error: a refusal of the whole commit is repeated at every partition.
    """

    @struct
    class Topic(Struct):
        @struct
        class Partition(Struct):
            partition_index: int = field(Int32, "0+")
            error_code: int = field(Int16, "0+", default=0)

        name: str = field(String, "0-9", default="", ignorable=True)
        topic_id: uuid.UUID = field(Uuid, "10+", default=ZERO_UUID, ignorable=True)
        partitions: Sequence[Partition] = field(Array(Partition, encoded=True), "0+")

    Partition: TypeAlias = Topic.Partition  # type: ignore[misc]

    throttle_time_ms: int = field(Int32, "3+", default=0, ignorable=True)
    topics: list[Topic] = field(Array(Topic), "0+")


COMMITTED_PARTITION: Final = Form(OffsetCommitResponse.Partition, Versions(8, VERSION_MAX), 8)
"""The form that `encode_committed_partition` writes."""

_COMMITTED: Final = structs.Struct(">lhx")


def encode_committed_partition(partition_index: int, error_code: int) -> bytes:
    """Encode a partition of an OffsetCommitResponse; hand-written, like `encode_fetched_partition`. Raises
    struct.error for numbers that are too large."""
    return _COMMITTED.pack(partition_index, error_code)


@request(9, versions="1-10", flexible="6+")
class OffsetFetchRequest(Message):
    """OffsetFetch v1-10 (Kafka 4.0 removed v0): v2 null topics ask for all, v3-5 no change here, v6 flexible,
    v7 require_stable (KIP-447), v8 several groups: `groups` replaces `group_id` and `topics` (KIP-709), v9
    member id and epoch (KIP-848), v10 topics by id instead of name.

    `Topic` describes a topic in v1-7, `Topics` in v8+ (the names are Kafka's).
    """

    @struct
    class Topic(Struct):
        name: str = field(String, "0-7")
        partition_indexes: list[int] = field(Array(Int32), "0-7")

    @struct
    class Group(Struct):
        @struct
        class Topics(Struct):
            name: str = field(String, "8-9", default="", ignorable=True)
            topic_id: uuid.UUID = field(Uuid, "10+", default=ZERO_UUID, ignorable=True)
            partition_indexes: list[int] = field(Array(Int32), "8+")

        group_id: str = field(String, "8+")
        member_id: str | None = field(String, "9+", nullable="9+", default=None, ignorable=True)
        member_epoch: int = field(Int32, "9+", default=-1, ignorable=True)
        topics: list[Topics] | None = field(Array(Topics), "8+", nullable="8+")

    Topics: TypeAlias = Group.Topics  # type: ignore[misc]

    group_id: str = field(String, "0-7", default="")
    topics: list[Topic] | None = field(Array(Topic), "0-7", nullable="2-7", default_factory=list)
    groups: list[Group] = field(Array(Group), "8+", default_factory=list)
    require_stable: bool = field(Boolean, "7+", default=False)


@response(9, versions="1-10", flexible="6+")
class OffsetFetchResponse(Message):
    """OffsetFetch v1-10: v2 error code of the group (v1 repeats it at every partition), v3 throttle time, v4
    throttling after the reply, v5 leader epoch (KIP-320), v6 flexible, v7 UNSTABLE_OFFSET_COMMIT possible
    (KIP-447), v8 everything under `groups` (KIP-709), v9 STALE_MEMBER_EPOCH possible (KIP-848), v10 topics by
    id instead of name.

    A partition without a committed offset has `committed_offset` -1, leader epoch -1 and empty metadata.
    `Topic` and `Partition` belong to v1-7, `Topics` and `Partitions` to v8+ (the names are Kafka's).
    """

    @struct
    class Topic(Struct):
        @struct
        class Partition(Struct):
            partition_index: int = field(Int32, "0-7")
            committed_offset: int = field(Int64, "0-7")
            committed_leader_epoch: int = field(Int32, "5-7", default=-1, ignorable=True)
            metadata: str | None = field(String, "0-7", nullable="0-7")
            error_code: int = field(Int16, "0-7", default=0)

        name: str = field(String, "0-7")
        partitions: Sequence[Partition] = field(Array(Partition, encoded=True), "0-7")

    Partition: TypeAlias = Topic.Partition  # type: ignore[misc]

    @struct
    class Group(Struct):
        @struct
        class Topics(Struct):
            @struct
            class Partitions(Struct):
                partition_index: int = field(Int32, "8+")
                committed_offset: int = field(Int64, "8+")
                committed_leader_epoch: int = field(Int32, "8+", default=-1, ignorable=True)
                metadata: str | None = field(String, "8+", nullable="8+")
                error_code: int = field(Int16, "8+", default=0)

            name: str = field(String, "8-9", default="", ignorable=True)
            topic_id: uuid.UUID = field(Uuid, "10+", default=ZERO_UUID, ignorable=True)
            partitions: Sequence[Partitions] = field(Array(Partitions, encoded=True), "8+")

        group_id: str = field(String, "8+")
        topics: list[Topics] = field(Array(Topics), "8+")
        error_code: int = field(Int16, "8+", default=0)

    Topics: TypeAlias = Group.Topics  # type: ignore[misc]
    Partitions: TypeAlias = Topics.Partitions  # type: ignore[misc]

    throttle_time_ms: int = field(Int32, "3+", default=0, ignorable=True)
    topics: list[Topic] = field(Array(Topic), "0-7", default_factory=list)
    error_code: int = field(Int16, "2-7", default=0, ignorable=True)
    groups: list[Group] = field(Array(Group), "8+", default_factory=list)


FETCHED_PARTITION: Final = Form(OffsetFetchResponse.Partitions, Versions(6, VERSION_MAX), 8)
"""The form that `encode_fetched_partition` writes. The `Partition` of v6-7 and the `Partitions` of v8+ are
encoded alike."""

_FETCHED: Final = structs.Struct(">lqlB")
_FETCHED_WITHOUT_METADATA: Final = structs.Struct(">lqlBhx")
_FETCHED_BEHIND_METADATA: Final = structs.Struct(">hx")
_SHORT_LENGTH_MAX: Final = 127


def encode_fetched_partition(
    partition_index: int, offset: int, leader_epoch: int, metadata: str, error_code: int
) -> bytes:
    """Encode a partition of an OffsetFetchResponse. The result is kept with each offset, so this is
    hand-written, alongside the compiled codec. Raises EncodeError for metadata that is too long, struct.error
    for numbers that are too large."""
    if not metadata:
        return _FETCHED_WITHOUT_METADATA.pack(partition_index, offset, leader_epoch, 1, error_code)
    content = metadata.encode()
    length = len(content) + 1
    if length <= _SHORT_LENGTH_MAX:
        front = _FETCHED.pack(partition_index, offset, leader_epoch, length)
    else:
        front = _FETCHED.pack(partition_index, offset, leader_epoch, 0)[:-1] + string_uvarint(length)
    return front + content + _FETCHED_BEHIND_METADATA.pack(error_code)


@request(47, versions="0")
class OffsetDeleteRequest(Message):
    """OffsetDelete v0 (KIP-496): forget offsets of topics the group does not subscribe to. Never flexible."""

    @struct
    class Topic(Struct):
        @struct
        class Partition(Struct):
            partition_index: int = field(Int32, "0+")

        name: str = field(String, "0+")
        partitions: list[Partition] = field(Array(Partition), "0+")

    Partition: TypeAlias = Topic.Partition  # type: ignore[misc]

    group_id: str = field(String, "0+")
    topics: list[Topic] = field(Array(Topic), "0+")


@response(47, versions="0")
class OffsetDeleteResponse(Message):
    """OffsetDelete v0 (KIP-496): GROUP_SUBSCRIBED_TO_TOPIC at the partitions of a topic still subscribed to.
    Never flexible."""

    @struct
    class Topic(Struct):
        @struct
        class Partition(Struct):
            partition_index: int = field(Int32, "0+")
            error_code: int = field(Int16, "0+", default=0)

        name: str = field(String, "0+")
        partitions: list[Partition] = field(Array(Partition), "0+")

    Partition: TypeAlias = Topic.Partition  # type: ignore[misc]

    error_code: int = field(Int16, "0+", default=0)
    throttle_time_ms: int = field(Int32, "0+", default=0, ignorable=True)
    topics: list[Topic] = field(Array(Topic), "0+")
