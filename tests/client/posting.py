"""Shared by the tests of the producer."""

from __future__ import annotations

from typing import Any

from muster.client.producer import Producer


def numbered(count: int, size: int = 0) -> list[bytes]:
    return [b"%06d" % number + b"x" * size for number in range(count)]


async def post_all(producer: Producer[Any, Any], topic: str, records: list[bytes], **given: Any) -> list[Any]:
    return [await producer.post(topic, value, **given) for value in records]


def give(producer: Producer[Any, Any], delivery_timeout_s: float) -> None:
    """From now on records have this delivery timeout, including those already there. (With a short one from
    the start, a test would depend on how fast a machine connects.)"""
    producer._accumulator._delivery_timeout_s = producer._sender._delivery_timeout_s = delivery_timeout_s
    producer._sender._next_expiry = 0.0
    producer._sender.wake()
