"""AlterPartitionReassignments, ListPartitionReassignments: which brokers a partition is on.

Records are in the store that all brokers share, so nothing is copied: a reassignment changes a list, and is
complete when the previous leader has heard of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from muster.coordinator.base.step import RequestContext
from muster.coordinator.server.api import Api
from muster.coordinator.server.apis.several import Attempts, Turns, heard_of_all
from muster.coordinator.server.names import TOPICS, Names
from muster.coordinator.server.needs import Needs, cluster
from muster.coordinator.server.refusal import entry, partitions
from muster.coordinator.server.serving import Broker
from muster.coordinator.storage.store import Grant, Replicas
from muster.coordinator.topics.catalogue import Topic
from muster.coordinator.topics.replicas import factor_of
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.acls import Operation
from muster.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

PartitionReassignment = (
    AlterPartitionReassignmentsResponse.ReassignableTopicResponse.ReassignablePartitionResponse
)

_LOOK_AGAIN_S: Final = 0.05
"""Pause between attempts while leases move, whether or not this broker hears of that."""
_LED_S: Final = 2.0
"""How long the answer about new partitions waits for their leaders."""


def has_partitions(broker: Broker, name: str, partitions: Iterable[int]) -> bool:
    """Whether this broker has heard of the topic, and of partitions up to the highest of these."""
    topic = broker.catalogue.by_name(name)
    return topic is not None and max(partitions, default=-1) < topic.partitions


def named_partition(broker: Broker, name: str, partition: int) -> Topic:
    """The topic, if it has the partition; otherwise UNKNOWN_TOPIC_OR_PARTITION."""
    topic = broker.catalogue.by_name(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
    if not 0 <= partition < topic.partitions:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{partition}")
    return topic


async def until_led(broker: Broker, partitions: Sequence[tuple[Topic, int]], timeout_s: float) -> bool:
    """Whether all of these have leaders, or get them in time: their leases may be moving, or new."""

    def led() -> bool:
        return all(broker.leader(topic, partition).node_id >= 0 for topic, partition in partitions)

    return await broker.membership.until(led, max(timeout_s, 0.0))


async def until_new_are_led(broker: Broker, grown: Sequence[tuple[Topic, int]], timeout_ms: int) -> None:
    """Give new partitions (of each topic, from the given one on) a moment to get their leaders: a new replica
    list may mean a new lease. Partitions without a replica list have their leaders."""
    new = [(topic, each) for topic, first in grown for each in topic.assignments if each >= first]
    await until_led(broker, new, min(timeout_ms / 1_000, _LED_S))


# --- AlterPartitionReassignments ----------------------------------------------------------------------------


async def alter_partition_reassignments(
    broker: Broker, request: AlterPartitionReassignmentsRequest, context: RequestContext
) -> AlterPartitionReassignmentsResponse:
    """Assign partitions to other brokers. Each entry is checked on its own; the partitions of a topic are
    changed together, and of the valid entries for one partition the last counts.

    All topics are assigned before any is waited for. What has been assigned but is not led within the
    request's timeout is refused with REQUEST_TIMED_OUT, and stays assigned. A request that allows no time is
    refused as a whole.
    """
    attempts = Attempts(ApiKey.ALTER_PARTITION_REASSIGNMENTS, context, request.timeout_ms)
    if request.topics:
        attempts.check()
    until = asyncio.get_running_loop().time() + request.timeout_ms / 1_000
    known = all(
        has_partitions(broker, each.name, (partition.partition_index for partition in each.partitions))
        for each in request.topics
    )
    await heard_of_all(broker, attempts, known)
    turns = Turns()
    changes = []
    for asked in request.topics:
        change = _Change(asked.name, [], {}, {})
        changes.append(change)
        for each in asked.partitions:
            await turns.next()
            try:
                change.lists[each.partition_index] = _checked(
                    broker, asked.name, each, may_resize=request.allow_replication_factor_change
                )
            except KafkaError as error:
                change.invalid.append(error)
            else:
                change.invalid.append(None)
    await _assign(broker, attempts, changes, until)
    await _wait_for_leaders(broker, changes, until)
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_message=None,
        responses=[
            AlterPartitionReassignmentsResponse.ReassignableTopicResponse(
                name=asked.name,
                partitions=[
                    _outcome(
                        each.partition_index,
                        invalid or change.refused.get(each.partition_index),
                        context.api_version,
                    )
                    for each, invalid in zip(asked.partitions, change.invalid, strict=True)
                ],
            )
            for asked, change in zip(request.topics, changes, strict=True)
        ],
    )


def _outcome(partition: int, error: KafkaError | None, version: int) -> PartitionReassignment:
    if error is None:
        return PartitionReassignment(partition_index=partition, error_message=None)
    return entry(PartitionReassignment, version, error, partition_index=partition)


@dataclass(slots=True)
class _Change:
    """What a request changes in one topic."""

    name: str
    invalid: list[KafkaError | None]
    """Why each entry is refused by itself, or None."""
    lists: dict[int, Replicas]
    """Of the partitions with a valid entry that are not refused."""
    refused: dict[int, KafkaError]
    """The other partitions with a valid entry."""
    topic: Topic | None = None
    """With the new lists, once they are assigned."""

    def refuse(self, error: KafkaError) -> None:
        """Refuse what has not been refused yet."""
        self.refused |= dict.fromkeys(self.lists, error)
        self.lists = {}


def _checked(
    broker: Broker,
    name: str,
    asked: AlterPartitionReassignmentsRequest.ReassignablePartition,
    *,
    may_resize: bool,
) -> Replicas:
    topic = named_partition(broker, name, asked.partition_index)
    if asked.replicas is None:
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")
    replicas = tuple(asked.replicas)
    hosts = broker.hosts
    hosts.check(replicas)
    factor = factor_of(topic.assignments, asked.partition_index)
    if not may_resize and len(replicas) != factor:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"the replication factor would change from {factor} to {len(replicas)}, "
            "which the request does not allow",
        )
    if not hosts.keeps_replicas:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            "a running broker is too old to know replica lists: upgrade it first",
        )
    return replicas


async def _assign(broker: Broker, attempts: Attempts, changes: Sequence[_Change], until: float) -> None:
    """Make each change, or refuse it. Where leases are moving, try again in time."""
    loop = asyncio.get_running_loop()
    left = [each for each in changes if each.lists]
    while True:
        for each in left:
            try:
                each.topic = await attempts.make(_reassign(broker, each.name, each.lists))
            except KafkaError as error:
                each.refuse(error)
        left = [each for each in left if each.lists and each.topic is None]
        if not left:
            return
        if loop.time() + _LOOK_AGAIN_S >= until:
            break
        await broker.membership.until(lambda: False, _LOOK_AGAIN_S)
    why = "leases are moving, so nothing was reassigned; try again"
    for each in left:
        each.refuse(KafkaError(ErrorCode.REQUEST_TIMED_OUT, why))


async def _reassign(broker: Broker, name: str, lists: dict[int, Replicas]) -> Topic | None:
    """The topic with its new lists; None while its leases are moving."""
    topic = named_partition(broker, name, max(lists))
    return await broker.catalogue.reassign(topic, lists, partial(_led_under, broker))


async def _wait_for_leaders(broker: Broker, changes: Sequence[_Change], until: float) -> None:
    """Return when the partitions are led by their new brokers, and refuse those that are not in time."""
    loop = asyncio.get_running_loop()
    why = "reassigned, but the new leader did not take over within the request's timeout"
    for each in changes:
        topic = each.topic
        if topic is None or await until_led(
            broker, [(topic, partition) for partition in each.lists], until - loop.time()
        ):
            continue
        for partition in each.lists:
            if broker.leader(topic, partition).node_id < 0:
                each.refused[partition] = KafkaError(ErrorCode.REQUEST_TIMED_OUT, why)


def _led_under(broker: Broker, topic: Topic, partition: int) -> Grant | None:
    """The lease under which a partition is led, with its epoch, by what this broker knows now."""
    topology = broker.topology
    lease = topology.data_lease(topic.topic_id, partition, topic.assignments.get(partition))
    return None if lease is None else topology.holders.get(lease)


# --- ListPartitionReassignments -----------------------------------------------------------------------------


async def list_partition_reassignments(
    broker: Broker, request: ListPartitionReassignmentsRequest, context: RequestContext
) -> ListPartitionReassignmentsResponse:
    """None is ever in progress: each is complete when it is answered."""
    return ListPartitionReassignmentsResponse(error_message=None, topics=[])


APIS: Final = (
    Api(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        alter_partition_reassignments,
        needs=Needs((cluster(Operation.ALTER),)),
        names=Names(topics=TOPICS),
        refuse=partitions("responses", mirrored=("allow_replication_factor_change",)),
    ),
    Api(
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        list_partition_reassignments,
        needs=Needs((cluster(Operation.DESCRIBE),)),
        names=Names(topics=TOPICS),
    ),
)
