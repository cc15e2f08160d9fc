"""Topics: list, describe, create, delete, add partitions."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from muster.client.admin.answers import Outcomes, left_ms, of_controller, refused, settle
from muster.client.errors import ClientError, refusal
from muster.client.network.cluster import Cluster
from muster.client.network.connection import deadline
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.metadata import MetadataResponse
from muster.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
)
from muster.protocol.types import ZERO_UUID

BROKER_DEFAULT: Final = -1
"""Use the broker's default (KIP-464)."""

_APPEARS_S: Final = 5.0
"""How long to wait for a topic that a broker may auto-create; it does not say whether it will."""


class PartitionDescription(NamedTuple):
    """A partition and its replicas, by node id; `leader` is -1 while it has none."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    offline: list[int]


class TopicDescription(NamedTuple):
    """A topic with its partitions in order."""

    name: str
    topic_id: uuid.UUID
    internal: bool
    partitions: list[PartitionDescription]

    @property
    def replication_factor(self) -> int:
        """The number of replicas of the first partition: Kafka has no number for the topic."""
        return len(self.partitions[0].replicas) if self.partitions else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to create. -1 means the broker's default. `replica_assignments`, node ids by partition with the
    preferred leader first, replace both numbers."""

    name: str
    num_partitions: int = BROKER_DEFAULT
    replication_factor: int = BROKER_DEFAULT
    replica_assignments: Mapping[int, Sequence[int]] | None = None
    configs: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        numbers = {self.num_partitions, self.replication_factor}
        if self.replica_assignments and numbers != {BROKER_DEFAULT}:
            raise ValueError(
                f"topic {self.name}: replica_assignments say how many partitions and replicas there are; "
                "leave out num_partitions and replication_factor"
            )
        for name, value in self.configs.items():
            if not isinstance(value, str):
                raise TypeError(
                    f"topic {self.name}: config {name}: it takes text such as {str(value)!r}, not {value!r}"
                )


class CreatedTopic(NamedTuple):
    """A topic as created. The topic id is None if it was only validated. Numbers are -1 if the broker does
    not report them: one before Kafka 2.4, or any if you may not describe the topic and its configs."""

    name: str
    topic_id: uuid.UUID | None
    num_partitions: int
    replication_factor: int


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """A topic's new total of partitions, and for each new one the node ids of its replicas, the preferred
    leader first; None lets the cluster choose them."""

    total_count: int
    assignments: Sequence[Sequence[int]] | None = None


# --- reading ------------------------------------------------------------------------------------------------


async def list_topics(
    cluster: Cluster, until: float, *, include_internal: bool = False
) -> list[TopicDescription]:
    """All topics, by name."""

    async def attempt() -> list[TopicDescription]:
        response = await cluster.metadata(None, until)
        for each in response.topics:
            if each.error_code:
                raise refusal(each.error_code, about=f"topic {each.name}")
        return sorted(map(_described, response.topics))

    topics = await cluster.retrying(attempt, until)
    return [each for each in topics if include_internal or not each.internal]


async def describe_topics(
    cluster: Cluster, names: Iterable[str], until: float
) -> Outcomes[str, TopicDescription]:
    """Describe topics. A topic that does not exist gets KafkaError(UNKNOWN_TOPIC_OR_PARTITION)."""

    async def ask(wanted: list[str]) -> dict[str, TopicDescription | KafkaError]:
        response = await cluster.metadata(wanted, until)
        return {
            each.name or "": refusal(each.error_code, about=f"topic {each.name}")
            if each.error_code
            else _described(each)
            for each in response.topics
        }

    return await settle(cluster, names, ask, until, api="Metadata")


def _described(told: MetadataResponse.Topic) -> TopicDescription:
    partitions = [
        PartitionDescription(
            each.partition_index,
            each.leader_id,
            each.leader_epoch,
            list(each.replica_nodes),
            list(each.isr_nodes),
            list(each.offline_replicas),
        )
        for each in told.partitions
    ]
    assert told.name is not None, "asked for by name"
    return TopicDescription(told.name, told.topic_id, told.is_internal, sorted(partitions))


# --- creating -----------------------------------------------------------------------------------------------


async def create_topics(
    cluster: Cluster, topics: Iterable[NewTopic], until: float, *, validate_only: bool = False
) -> Outcomes[str, CreatedTopic]:
    """Create topics. Returns once their partitions have leaders, so that the next call finds them.
    `validate_only`: only check whether it would work."""
    wanted: dict[str, NewTopic] = {}
    for topic in topics:
        if not isinstance(topic, NewTopic):
            raise TypeError(f"topics: it takes NewTopic, not {topic!r}")
        if topic.name in wanted:
            raise ValueError(f"topic {topic.name} is to be created twice")
        wanted[topic.name] = topic

    async def ask(node: int, names: list[str]) -> dict[str, CreatedTopic | KafkaError]:
        request = CreateTopicsRequest(
            topics=[_creatable(wanted[name]) for name in names],
            timeout_ms=left_ms(until),
            validate_only=validate_only,
        )
        response = await cluster.call(request, until, node=node)
        return {each.name: _created(each, validate_only) for each in response.topics}

    outcomes = await of_controller(cluster, wanted, ask, until, api="CreateTopics")
    if validate_only:
        return outcomes
    led = await _led(cluster, dict.fromkeys(outcomes.succeeded, 1), until)
    for name, found in led.items():
        outcomes[name] = (
            found
            if isinstance(found, KafkaError)
            else CreatedTopic(name, found.topic_id, len(found.partitions), found.replication_factor)
        )
    return outcomes


def _creatable(topic: NewTopic) -> CreateTopicsRequest.CreatableTopic:
    return CreateTopicsRequest.CreatableTopic(
        name=topic.name,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=[
            CreateTopicsRequest.CreatableReplicaAssignment(partition_index=index, broker_ids=list(nodes))
            for index, nodes in (topic.replica_assignments or {}).items()
        ],
        configs=[
            CreateTopicsRequest.CreatableTopicConfig(name=name, value=value)
            for name, value in topic.configs.items()
        ],
    )


def _created(
    told: CreateTopicsResponse.CreatableTopicResult, validate_only: bool
) -> CreatedTopic | KafkaError:
    if told.error_code:
        return refusal(told.error_code, told.error_message, about=f"topic {told.name}")
    # Kafka makes up an id for what it only validates.
    topic_id = None if validate_only or told.topic_id == ZERO_UUID else told.topic_id
    return CreatedTopic(told.name, topic_id, told.num_partitions, told.replication_factor)


async def ensure_topic(cluster: Cluster, name: str, until: float) -> TopicDescription:
    """The topic, auto-created with the broker's defaults if it is missing and the broker allows it, as for
    any producer."""
    await cluster.retrying(lambda: cluster.metadata([name], until, create=True), until)
    led = await _until_led(cluster, {name: 1}, min(until, deadline(_APPEARS_S)))
    found = led[name]
    if isinstance(found, KafkaError) and found.code == ErrorCode.LEADER_NOT_AVAILABLE:
        # It exists. A leader that died is replaced when its lease expires.
        led = await _until_led(cluster, {name: 1}, until)
    return led.raise_for_failures()[name]


async def _led(
    cluster: Cluster, partitions_min: Mapping[str, int], until: float
) -> Outcomes[str, TopicDescription]:
    """Like `_until_led`, for topics known to exist: a ClientError becomes their outcome,
    LEADER_NOT_AVAILABLE. Those that you may not describe are left out."""
    try:
        found = await _until_led(cluster, partitions_min, until)
        hidden = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        for name in [name for name, error in found.failed.items() if error.code == hidden]:
            del found[name]
        return found
    except ClientError as error:
        why = f"partitions were created, but their leaders are unknown: {error}"
        return Outcomes(dict.fromkeys(partitions_min, KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, why)))


async def _until_led(
    cluster: Cluster, partitions_min: Mapping[str, int], until: float
) -> Outcomes[str, TopicDescription]:
    """The topics, once each has at least this many partitions and all have leaders: brokers learn of new ones
    after a moment."""
    tries = cluster.tries()
    found: Outcomes[str, TopicDescription] = Outcomes()
    missing = list(partitions_min)
    while missing:
        with tries:
            found |= await describe_topics(cluster, missing, until)
        early = {
            name: failure
            for name in missing
            if (failure := _not_led(name, found[name], partitions_min[name])) is not None
        }
        missing = list(early)
        if not missing:
            break
        wait_s = tries.again()
        if deadline(wait_s) >= until:
            found |= early
            break
        await asyncio.sleep(wait_s)
    return found


def _not_led(name: str, topic: TopicDescription | KafkaError, partitions_min: int) -> KafkaError | None:
    """Why the topic must be described again; None if it is ready, or never will be."""
    if isinstance(topic, KafkaError):
        return topic if topic.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else None
    if len(topic.partitions) >= partitions_min and all(each.leader >= 0 for each in topic.partitions):
        return None
    return KafkaError(
        ErrorCode.LEADER_NOT_AVAILABLE, f"topic {name} exists, but some of its partitions have no leader yet"
    )


async def create_partitions(
    cluster: Cluster, counts: Mapping[str, int | NewPartitions], until: float, *, validate_only: bool = False
) -> Outcomes[str, None]:
    """Add partitions to topics; the number is each topic's new total. Returns once they have leaders."""
    wanted = {
        name: NewPartitions(count) if isinstance(count, int) else count for name, count in counts.items()
    }

    async def ask(node: int, names: list[str]) -> dict[str, KafkaError | None]:
        asked = [
            CreatePartitionsRequest.CreatePartitionsTopic(
                name=name, count=wanted[name].total_count, assignments=_assignments(wanted[name])
            )
            for name in names
        ]
        request = CreatePartitionsRequest(
            topics=asked, timeout_ms=left_ms(until), validate_only=validate_only
        )
        response = await cluster.call(request, until, node=node)
        return {
            each.name: refused(each.error_code, each.error_message, about=f"topic {each.name}")
            for each in response.results
        }

    outcomes: Outcomes[str, None] = await of_controller(cluster, wanted, ask, until, api="CreatePartitions")
    if not validate_only:
        grown = {name: wanted[name].total_count for name in outcomes.succeeded}
        outcomes |= (await _led(cluster, grown, until)).failed
    return outcomes


def _assignments(wanted: NewPartitions) -> list[CreatePartitionsRequest.CreatePartitionsAssignment] | None:
    if wanted.assignments is None:
        return None
    return [
        CreatePartitionsRequest.CreatePartitionsAssignment(broker_ids=list(nodes))
        for nodes in wanted.assignments
    ]


# --- deleting -----------------------------------------------------------------------------------------------


async def delete_topics(cluster: Cluster, names: Iterable[str], until: float) -> Outcomes[str, None]:
    """Delete topics, with their records and the offsets committed for them."""

    async def ask(node: int, wanted: list[str]) -> dict[str, KafkaError | None]:
        request = DeleteTopicsRequest(topic_names=wanted, timeout_ms=left_ms(until))
        response = await cluster.call(request, until, node=node)
        return {
            each.name: refused(each.error_code, each.error_message, about=f"topic {each.name}")
            for each in response.responses
        }

    return await of_controller(cluster, names, ask, until, api="DeleteTopics")
