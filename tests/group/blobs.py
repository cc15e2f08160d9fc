"""Subscriptions and assignments as words: real ConsumerProtocol blobs, or raw bytes."""

from __future__ import annotations

from collections.abc import Sequence

from muster.protocol.embedded import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from muster.protocol.errors import DecodeError
from tests.group.cast import Cast

_SUBSCRIPTION_VERSION = 1
_ASSIGNMENT_VERSION = 1


def partition(word: str) -> tuple[str, int]:
    """`orders-0`"""
    topic, _, index = word.rpartition("-")
    return topic, int(index)


def subscription(topics: Sequence[str], user_data: str | None, cast: Cast) -> bytes:
    return encode_subscription(
        ConsumerProtocolSubscription(
            topics=[cast.real(topic) for topic in topics],
            user_data=None if user_data is None else user_data.encode(),
        ),
        _SUBSCRIPTION_VERSION,
    )


def subscription_text(blob: bytes, cast: Cast) -> str:
    try:
        topics = decode_subscription(blob).topics
    except DecodeError:
        return _raw(blob)
    return ",".join(cast.told(topic) for topic in topics) or "none"


def assignment(text: str, cast: Cast) -> bytes:
    """`orders-0,orders-1`, `none`, or `raw:x`."""
    if text.startswith("raw:"):
        return text[4:].encode()
    by_topic: dict[str, list[int]] = {}
    for word in text.split(",") if text != "none" else []:
        topic, index = partition(word)
        by_topic.setdefault(cast.real(topic), []).append(index)
    return encode_assignment(
        ConsumerProtocolAssignment(
            assigned_partitions=[
                ConsumerProtocolAssignment.TopicPartition(topic=topic, partitions=indexes)
                for topic, indexes in by_topic.items()
            ]
        ),
        _ASSIGNMENT_VERSION,
    )


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
