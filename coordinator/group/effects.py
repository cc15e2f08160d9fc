"""What goes into a step of the core, and what comes out of it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from muster.coordinator.group.events import Event
from muster.protocol.message import Message

__all__ = [
    "BrokenInvariant",
    "Effects",
    "Event",
    "Record",
    "Reply",
    "RequestContext",
    "Ticket",
    "TopicsImage",
]

Ticket = int
"""A request in flight. The host keeps the way back from a ticket to its caller; the core answers each exactly
once."""


class BrokenInvariant(AssertionError):
    """The core found itself in a state that cannot be: a bug. The shard stops and is loaded again (promise
    6)."""


class Record(NamedTuple):
    """A change of hard state: upsert (value) or delete (None) by key, in Kafka's `__consumer_offsets`
    schemas."""

    key: Message
    value: Message | None
    value_version: int
    """The schema version to write the value in; 0 for a tombstone."""


class Reply(NamedTuple):
    """The answer to a ticket: the API's response (or its part for one group), or a KafkaError, from which the
    router makes the response that says so."""

    ticket: Ticket
    response: object


@dataclass(slots=True, init=False)
class Effects:
    """What a step did. The host makes `records` durable, then releases the rest, steps in order."""

    records: list[Record]
    replies: list[Reply]
    events: list[Event]
    requests: list[object]
    """Idempotent messages to other shards, redelivered until acknowledged. The classic group sends none."""
    reads_hard_state: bool
    """The replies tell hard state: release them only when every earlier record of the shard is durable."""

    def __init__(self) -> None:
        # Written out: what dataclass generates takes three times as long, and every request makes one.
        self.records = []
        self.replies = []
        self.events = []
        self.requests = []
        self.reads_hard_state = False

    def reply(self, ticket: Ticket, response: object) -> None:
        self.replies.append(Reply(ticket, response))


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Who asks."""

    api_version: int
    client_id: str
    client_host: str
    """As Java prints an address: "/127.0.0.1". It is stored and described like that."""
    connection_id: int
    listener: str = ""
    """Name of the listener that the connection came by; empty where there is only one."""


class TopicsImage(NamedTuple):
    """What changed among the topics, and what there is now."""

    deleted: frozenset[tuple[str, uuid.UUID]] = frozenset()
    """Name and id of topics deleted since the last image."""
    live: Mapping[str, uuid.UUID] | None = None
    """Name and id of every topic that exists, at least as new as any offset of the shard: a topic that is not
    among them was deleted, perhaps while nobody had the shard. None: not told."""
    partitions: Mapping[str, int] | None = None
    """How many partitions each of them has. None: not told."""
