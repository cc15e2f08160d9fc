"""What a group shard is told besides requests, and the records it writes."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import NamedTuple

from muster.coordinator.base.step import Row
from muster.protocol.message import Message
from muster.protocol.messages.coordinator_records import decode_record, encode_key, encode_value


class Record(NamedTuple):
    """A change to hard state: upsert (value) or delete (None) by key, in Kafka's `__consumer_offsets`
    schemas."""

    key: Message
    value: Message | None
    value_version: int
    """The schema version to write the value in; 0 for a tombstone."""

    def row(self) -> Row:
        """The record as the store keeps it."""
        value = self.value
        return encode_key(self.key), None if value is None else encode_value(value, self.value_version)

    @classmethod
    def from_row(cls, key: bytes, value: bytes | None) -> Record | None:
        """Returns None for a record of an unknown type. Raises DecodeError."""
        decoded = decode_record(key, value)
        if decoded is None:
            return None
        # Every value starts with its schema version (int16).
        return cls(*decoded, 0 if value is None else int.from_bytes(value[:2], "big"))


class TopicsDifference(NamedTuple):
    """How an image differs from the one before it."""

    live: Mapping[str, uuid.UUID]
    """`TopicsImage.live` of the one before."""
    partitions: Mapping[str, int]
    """`TopicsImage.partitions` of the one before."""
    changed: frozenset[str]
    """The names whose topic or partition count differs."""
    names: Mapping[uuid.UUID, str]
    """The name of each topic in the later image, by its id."""


class TopicsImage(NamedTuple):
    """Which topics have changed, and which exist now."""

    deleted: frozenset[tuple[str, uuid.UUID]] = frozenset()
    """Name and id of topics deleted since the last image."""
    live: Mapping[str, uuid.UUID] | None = None
    """Name and id of every topic that exists, at least as recent as any offset of the shard: a topic missing
    here was deleted, perhaps while no broker held the shard. None: not given."""
    partitions: Mapping[str, int] | None = None
    """Partition count of each of them. None: not given."""
    since: TopicsDifference | None = None
    """Worked out once for all shards that took the image before. None: not given."""
