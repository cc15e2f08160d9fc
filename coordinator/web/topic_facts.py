"""Facts about topics: the offsets and sizes of their partitions, their leaders, and the groups that read
them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar

from aiohttp import web

from muster.coordinator.group.group_offsets import TopicPartition
from muster.coordinator.server.broker import Broker
from muster.coordinator.server.brokers import Brokers
from muster.coordinator.storage.store import StoreError
from muster.coordinator.topics.catalogue import Topic
from muster.coordinator.topics.logs import PartitionId
from muster.coordinator.topics.sources import Looked
from muster.coordinator.web import facts
from muster.coordinator.web.guard import refusal
from muster.protocol.errors import ErrorCode, KafkaError

_T = TypeVar("_T")

_MEASURE_S: Final = 2.0
"""How long to wait for a disk or a database."""


class Measured(NamedTuple):
    """A partition; None for what is not known in time."""

    start: int | None = None
    end: int | None = None
    size_bytes: int | None = None


class Reader(NamedTuple):
    """A group that has committed an offset in a partition, or has a member assigned to it."""

    group: str
    offset: int | None
    member: str | None

    def to_json(self, end: int | None) -> dict[str, Any]:
        lag = None if end is None or self.offset is None else max(end - self.offset, 0)
        return {**self._asdict(), "lag": lag}


def named(brokers: Brokers, name: str) -> Topic:
    """The topic. Raises HTTPNotFound."""
    topic = facts.any_broker(brokers).catalogue.by_name(name)
    if topic is None:
        raise refusal(web.HTTPNotFound, f"there is no topic {name!r}")
    return topic


def leader_here(brokers: Brokers, topic: Topic, partition: int) -> Broker:
    """The broker of this process that leads the partition. Raises HTTPMisdirectedRequest if a broker of
    another process does (the response names it), HTTPServiceUnavailable if none does at the moment."""
    for broker in brokers.running:
        if _leads(broker, topic, partition):
            return broker
    known = facts.any_broker(brokers)
    node = known.topology.nodes.get(known.leader(topic, partition).node_id)
    name = f"{topic.name}-{partition}"
    if node is None or node.node_id in {each.node_id for each in brokers.running}:
        why = f"no broker leads {name} {facts.NOT_SERVED}"
        raise refusal(web.HTTPServiceUnavailable, why)
    raise refusal(
        web.HTTPMisdirectedRequest,
        f"{name} is led by broker {node.node_id}, {facts.page_words(node)}",
        broker=facts.node_json(node),
    )


def _leads(broker: Broker, topic: Topic, partition: int) -> bool:
    return broker.partitions.leader_epoch(topic, partition) is not None


async def measure(brokers: Brokers, asked: Sequence[tuple[Topic, int]]) -> dict[PartitionId, Measured]:
    """Start, end and size of partitions, as far as known here or reported in time."""
    by_broker: dict[Broker, list[PartitionId]] = defaultdict(list)
    turns = facts.Turns()
    for topic, partition in asked:
        await turns.next()
        leads = (each for each in brokers.running if _leads(each, topic, partition))
        broker = next(leads, None) or facts.any_broker(brokers)
        by_broker[broker].append(PartitionId(topic.topic_id, partition))
    bounds: dict[PartitionId, Looked] = {}
    sizes: dict[PartitionId, int] = {}
    for broker, some in by_broker.items():
        with suppress(TimeoutError, OSError, StoreError, KafkaError):  # requests and the log report it
            async with asyncio.timeout(_MEASURE_S):
                bounds.update(zip(some, await broker.partitions.look(some), strict=True))
                sizes.update(zip(some, await broker.partitions.sizes(some), strict=True))
    found: dict[PartitionId, Measured] = {}
    for broker, where in ((broker, each) for broker, some in by_broker.items() for each in some):
        looked = bounds.get(where) or broker.partitions.known(where)
        start, end = looked if isinstance(looked, tuple) else (None, None)
        found[where] = Measured(start, end, sizes.get(where))
    return found


async def groups_of_topics(brokers: Brokers) -> dict[str, list[str]]:
    """The groups coordinated here, by the topics they have committed offsets in or subscribe to."""
    found: dict[str, list[str]] = defaultdict(list)
    turns = facts.Turns()
    for _, group, offsets in list(facts.held(brokers)):
        await turns.next()
        for topic in {topic for topic, _ in offsets} | group.view().subscribed_topics:
            found[topic].append(group.group_id)
    return {topic: sorted(groups) for topic, groups in found.items()}


async def readers(brokers: Brokers, topic: str) -> dict[int, list[Reader]]:
    """The readers of the topic's partitions among the groups coordinated here."""
    found: dict[int, list[Reader]] = defaultdict(list)
    turns = facts.Turns()
    for _, group, offsets in sorted(facts.held(brokers), key=lambda each: each.group.group_id):
        await turns.next()
        committed = _of_topic(topic, ((where, each.offset) for where, each in offsets.items()))
        owners: dict[int, str] = {}
        view = group.view()
        if topic in view.subscribed_topics:
            for member in group.member_views():
                await turns.next()
                assigned = facts.assignment_of(view, member) or ()
                owners |= _of_topic(topic, ((where, member.member_id) for where in assigned))
        for number in committed.keys() | owners.keys():
            found[number].append(Reader(group.group_id, committed.get(number), owners.get(number)))
    return found


def _of_topic(topic: str, known: Iterable[tuple[TopicPartition, _T]]) -> dict[int, _T]:
    return {where[1]: each for where, each in known if where[0] == topic}


def as_http(error: KafkaError, name: str) -> web.HTTPException:
    """The response for a partition that cannot be read; `name` is its name."""
    match error.code:
        case ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return refusal(web.HTTPNotFound, f"there is no partition {name}")
        case ErrorCode.NOT_LEADER_OR_FOLLOWER:
            why = f"no broker leads {name} {facts.NOT_SERVED}"
            return refusal(web.HTTPServiceUnavailable, why)
    return refusal(web.HTTPServiceUnavailable, f"{name} cannot be read: {error.why}")
