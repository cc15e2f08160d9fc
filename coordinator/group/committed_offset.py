"""A committed offset, and its record in the store.

Most records that a group writes are of this type, so they are encoded by hand here, besides what `records`
makes of the declarations for a reader of the store.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from typing import Final, NamedTuple

from muster.coordinator.base.step import Row
from muster.protocol.messages.coordinator_records import (
    OffsetCommitKey,
    OffsetCommitValue,
    encode_key,
    encode_value,
    offset_commit_value_version,
)
from muster.protocol.types import ZERO_UUID


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


_VERSION: Final = 4
_PARTITION: Final = struct.Struct(">l")
_FRONT: Final = struct.Struct(">hqlB")
"""Version, offset, leader epoch, and the length of the metadata plus one."""
_BEHIND: Final = struct.Struct(">qB")
"""Timestamp and number of tags."""
_BEHIND_WITH_ID: Final = struct.Struct(">qBBB16s")
"""Timestamp, one tag: its number, its size, the topic id."""
_PLAIN: Final = struct.Struct(">hqlBqB")
_PLAIN_WITH_ID: Final = struct.Struct(">hqlBqBBB16s")
_ID_BYTES: Final = 16
_SHORT_BYTES_MAX: Final = 126


def value_of(committed: CommittedOffset) -> OffsetCommitValue:
    """The value of its record."""
    return OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_timestamp,
        expire_timestamp=committed.expire_timestamp,
        topic_id=committed.topic_id,
    )


def key_front(group_id: str, topic: str) -> bytes:
    """What the keys of all partitions of a topic begin with, before the partition."""
    return encode_key(OffsetCommitKey(group=group_id, topic=topic, partition=0))[: -_PARTITION.size]


def rows_of(key_front: bytes, committing: Sequence[tuple[int, CommittedOffset]]) -> list[Row]:
    """The store's rows for offsets with the same topic id, each with its partition. Raises struct.error for
    numbers that are too large."""
    topic_id = committing[0][1].topic_id
    id_bytes = b"" if topic_id == ZERO_UUID else topic_id.bytes
    return [
        (key_front + _PARTITION.pack(partition), _encoded(committed, id_bytes))
        for partition, committed in committing
    ]


def _encoded(committed: CommittedOffset, id_bytes: bytes) -> bytes:
    offset, leader_epoch, metadata, commit_timestamp, expire_timestamp, _ = committed
    content = metadata.encode()
    if expire_timestamp != -1 or len(content) > _SHORT_BYTES_MAX:
        value = value_of(committed)
        return encode_value(value, offset_commit_value_version(value))
    if not id_bytes:
        if not content:
            return _PLAIN.pack(_VERSION, offset, leader_epoch, 1, commit_timestamp, 0)
        behind = _BEHIND.pack(commit_timestamp, 0)
    elif not content:
        return _PLAIN_WITH_ID.pack(
            _VERSION, offset, leader_epoch, 1, commit_timestamp, 1, 0, _ID_BYTES, id_bytes
        )
    else:
        behind = _BEHIND_WITH_ID.pack(commit_timestamp, 1, 0, _ID_BYTES, id_bytes)
    return _FRONT.pack(_VERSION, offset, leader_epoch, len(content) + 1) + content + behind
