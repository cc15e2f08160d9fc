"""The blobs that members of protocol type "consumer" pass through the group: subscriptions and assignments.

To the coordinator and to JoinGroup and SyncGroup they are opaque bytes; the members' assignors read and write
them, and the coordinator looks inside only for the topics a member subscribes to. Each blob is an int16
version followed by its fields, never flexible.

Readers are lenient in one direction, as Kafka's are: a version above 3 is read as 3 and bytes after the known
fields are ignored, since later versions only append fields.

A blob may list millions of things in a few megabytes. Who does not trust its sender passes `elements_max`: if
it lists more topics and partitions, in total, that is a TooLargeError, which is a DecodeError.
"""

from __future__ import annotations

import struct as binary
from typing import Final, TypeVar

from muster.protocol import codec
from muster.protocol.errors import DecodeError
from muster.protocol.message import Message, Struct, field, record, struct
from muster.protocol.types import ELEMENTS_UNLIMITED, Array, Bytes, Int32, String

_INT16: Final = binary.Struct(">h")
_LATEST_VERSION: Final = 3


@record(versions="0-3")
class ConsumerProtocolSubscription(Message):
    """What a member sends in JoinGroup, v0-3: v1 owned partitions (KIP-429), v2 the generation in which it
    owned them (KIP-792; -1 unknown), v3 rack (KIP-881)."""

    @struct
    class TopicPartition(Struct):
        topic: str = field(String, "1+")
        partitions: list[int] = field(Array(Int32), "1+")

    topics: list[str] = field(Array(String), "0+")
    user_data: bytes | None = field(Bytes, "0+", nullable="0+", default=None)
    owned_partitions: list[TopicPartition] = field(
        Array(TopicPartition), "1+", default_factory=list, ignorable=True
    )
    generation_id: int = field(Int32, "2+", default=-1, ignorable=True)
    rack_id: str | None = field(String, "3+", nullable="3+", default=None, ignorable=True)


@record(versions="0-3")
class ConsumerProtocolAssignment(Message):
    """What a member receives from SyncGroup, v0-3: all versions are alike; the number follows the
    subscription's."""

    @struct
    class TopicPartition(Struct):
        topic: str = field(String, "0+")
        partitions: list[int] = field(Array(Int32), "0+")

    assigned_partitions: list[TopicPartition] = field(Array(TopicPartition), "0+")
    user_data: bytes | None = field(Bytes, "0+", nullable="0+", default=None)


_Blob = TypeVar("_Blob", bound=Message)


def decode_subscription(
    blob: bytes | memoryview, elements_max: int = ELEMENTS_UNLIMITED
) -> ConsumerProtocolSubscription:
    """Raises DecodeError for a negative version and for bytes that do not fit the version they claim."""
    return _decode(ConsumerProtocolSubscription, blob, elements_max)


def encode_subscription(subscription: ConsumerProtocolSubscription, version: int = _LATEST_VERSION) -> bytes:
    """Fields that `version` lacks are left out. Equal subscriptions should give equal bytes, since the
    coordinator compares bytes to detect changes: sort topics and owned partitions first."""
    return _INT16.pack(version) + codec.encode(subscription, version)


def decode_assignment(
    blob: bytes | memoryview, elements_max: int = ELEMENTS_UNLIMITED
) -> ConsumerProtocolAssignment:
    """Raises DecodeError for a negative version and for bytes that do not fit, including the empty blob: a
    member gets it if the leader left that member out, and it is not an empty assignment."""
    return _decode(ConsumerProtocolAssignment, blob, elements_max)


def encode_assignment(assignment: ConsumerProtocolAssignment, version: int = _LATEST_VERSION) -> bytes:
    return _INT16.pack(version) + codec.encode(assignment, version)


def subscribed_topics(blob: bytes | memoryview, elements_max: int = ELEMENTS_UNLIMITED) -> list[str]:
    """The topics of a subscription of any version, read as Kafka's coordinator reads them: it reads only the
    part common to all versions, so a client still works if it gets the later fields of its version wrong.

    Raises DecodeError for a negative version or a broken topic list.
    """
    _version(blob)
    return codec.decode_prefix(ConsumerProtocolSubscription, 0, blob, 2, elements_max)[0].topics


def blob_version(blob: bytes | memoryview) -> int:
    """The version of a subscription or assignment, 3 for later ones. Raises DecodeError."""
    return min(_version(blob), _LATEST_VERSION)


def _decode(blob_class: type[_Blob], blob: bytes | memoryview, elements_max: int) -> _Blob:
    version = blob_version(blob)
    message, _ = codec.decode_prefix(blob_class, version, blob, 2, elements_max)
    return message


def _version(blob: bytes | memoryview) -> int:
    if len(blob) < 2:
        raise DecodeError(f"version: 2 bytes expected, {len(blob)} there")
    version: int = _INT16.unpack_from(blob)[0]
    if version < 0:
        raise DecodeError(f"version {version} is negative")
    return version
