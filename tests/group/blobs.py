"""Converts between words and blobs: real ConsumerProtocol subscriptions and assignments, or raw bytes."""

from __future__ import annotations

from collections.abc import Sequence

from muster.protocol.embedded import (
    decode_assignment,
    decode_subscription,
)
from muster.protocol.errors import DecodeError
from tests.group.cast import Cast
from tests.support import embedded

_SUBSCRIPTION_VERSION = 1
_ASSIGNMENT_VERSION = 1


def partition(word: str) -> tuple[str, int]:
    """Parse `orders-0`."""
    topic, _, index = word.rpartition("-")
    return topic, int(index)


def subscription(
    topics: Sequence[str], user_data: str | None, cast: Cast, owned: Sequence[str] = ()
) -> bytes:
    """`owned` as in `assignment`."""
    return embedded.subscription(
        map(cast.real, topics),
        _SUBSCRIPTION_VERSION,
        owned=[(cast.real(topic), index) for topic, index in map(partition, owned)],
        user_data=None if user_data is None else user_data.encode(),
    )


def subscription_text(blob: bytes, cast: Cast) -> str:
    try:
        topics = decode_subscription(blob).topics
    except DecodeError:
        return _raw(blob)
    return ",".join(cast.told(topic) for topic in topics) or "none"


def assignment(text: str, cast: Cast) -> bytes:
    """Encode `orders-0,orders-1` or `none`, either with user data as in `none:x`, or `raw:x`."""
    if text.startswith("raw:"):
        return text[4:].encode()
    text, _, user_data = text.partition(":")
    parts = [partition(word) for word in text.split(",")] if text != "none" else []
    by_topic = embedded.by_topic((cast.real(topic), index) for topic, index in parts)
    return embedded.assignment(by_topic, _ASSIGNMENT_VERSION, user_data=user_data.encode() or None)


def assignment_text(blob: bytes, cast: Cast) -> str:
    try:
        assigned = decode_assignment(blob).assigned_partitions
    except DecodeError:
        return _raw(blob)
    return (
        ",".join(f"{cast.told(topic.topic)}-{index}" for topic in assigned for index in topic.partitions)
        or "none"
    )


def _raw(blob: bytes) -> str:
    return f"raw:{blob.decode('utf-8', 'backslashreplace')}"
