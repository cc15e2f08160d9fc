"""What administrators ask of a cluster, each with its answer as plain data.

Functions that act on several topics or groups return an outcome per name: None, or the KafkaError that kept
this one from it. The others raise. What only reads is asked again while a failure may pass; what changes
something is not sent twice.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from muster.client.cluster import Cluster, all_of, backoff_s, left_out
from muster.client.connection import Address, deadline
from muster.client.errors import may_pass, refusal
from muster.client.partitions import TopicPartition, grouped
from muster.protocol.embedded import decode_assignment
from muster.protocol.errors import DecodeError, ErrorCode, KafkaError
from muster.protocol.messages.configs import DescribeConfigsRequest, IncrementalAlterConfigsRequest
from muster.protocol.messages.data import ListOffsetsRequest
from muster.protocol.messages.group_admin import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
)
from muster.protocol.messages.metadata import DescribeClusterRequest, MetadataResponse
from muster.protocol.messages.offsets import OffsetFetchRequest
from muster.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)

EARLIEST: Final = -2
LATEST: Final = -1
"""What ListOffsets takes in place of a timestamp: the start and the end of the log."""

_APPEARS_S: Final = 5.0
"""How long a topic that a broker was allowed to create may take to appear; it does not say if it will."""

OWN: Final = "topic"
_SOURCES: Final = {
    1: OWN,
    2: "dynamic broker",
    3: "dynamic cluster",
    4: "broker",
    5: "default",
}
_TOPIC: Final = 2  # the type of a config resource
_SET: Final = 0
_DELETE: Final = 1

_CONSUMER: Final = -1  # the replica id of those who are none


class Node(NamedTuple):
    """A broker."""

    node_id: int
    host: str
    port: int
    rack: str | None

    @property
    def address(self) -> Address:
        return Address(self.host, self.port)


class ClusterFacts(NamedTuple):
    """The cluster as one broker describes it. `controller` is -1 when there is none."""

    cluster_id: str
    controller: int
    brokers: list[Node]


class Partition(NamedTuple):
    """A partition and where it lives, by node id; `leader` is -1 while it has none."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    offline: list[int]


class Topic(NamedTuple):
    """A topic with its partitions in order."""

    name: str
    topic_id: uuid.UUID
    internal: bool
    partitions: list[Partition]

    @property
    def replication_factor(self) -> int:
        """Copies of the first partition: Kafka has no number for the topic."""
        return len(self.partitions[0].replicas) if self.partitions else 0


class Config(NamedTuple):
    """A config; the value is None when the broker keeps it to itself. `source` says where it was set: OWN,
    or what a topic inherits from."""

    name: str
    value: str | None
    source: str


class ListedGroup(NamedTuple):
    """A group as lists show it; type and state are "" from brokers before Kafka 3.8 and 2.6."""

    group_id: str
    group_type: str
    protocol_type: str
    state: str


class Member(NamedTuple):
    """A member of a classic group. `assignment` is None when its bytes are no assignment of consumers."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    host: str
    assignment: list[TopicPartition] | None


class Group(NamedTuple):
    """A classic group; `assignor` is the selected protocol, "" unless the group is stable."""

    group_id: str
    state: str
    protocol_type: str
    assignor: str
    coordinator: Node
    members: list[Member]


class Committed(NamedTuple):
    """A committed offset."""

    offset: int
    leader_epoch: int
    metadata: str


# --- cluster ------------------------------------------------------------------------------------------------


async def describe_cluster(cluster: Cluster, until: float) -> ClusterFacts:
    """Its id, controller and brokers."""

    async def attempt() -> ClusterFacts:
        response = await cluster.call(
            DescribeClusterRequest(include_cluster_authorized_operations=False), until
        )
        if response.error_code:
            raise refusal(response.error_code, response.error_message)
        brokers = [Node(each.broker_id, each.host, each.port, each.rack) for each in response.brokers]
        return ClusterFacts(response.cluster_id, response.controller_id, sorted(brokers))

    return await cluster.retrying(attempt, until)


# --- topics -------------------------------------------------------------------------------------------------


async def topics(cluster: Cluster, until: float, names: Sequence[str] | None = None) -> list[Topic]:
    """These topics as asked for, or all of them by name. Raises KafkaError for one that is not there."""

    async def attempt() -> list[Topic]:
        response = await cluster.metadata(names, until)
        for each in response.topics:
            if each.error_code:
                raise refusal(each.error_code, about=f"topic {each.name}")
        found = {topic.name: topic for topic in map(_topic, response.topics)}
        left_out(set(names or ()) - found.keys(), "Metadata")
        return [found[name] for name in (sorted(found) if names is None else names)]

    return await cluster.retrying(attempt, until)


def _topic(told: MetadataResponse.Topic) -> Topic:
    partitions = [
        Partition(
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
    return Topic(told.name, told.topic_id, told.is_internal, sorted(partitions))


async def create_topic(
    cluster: Cluster,
    name: str,
    until: float,
    *,
    partitions: int = -1,
    replication_factor: int = -1,
    configs: Mapping[str, str] | None = None,
) -> Topic:
    """Create a topic; -1 leaves a number to the broker's settings. Returns it once its partitions are led, so
    that what comes next finds them."""

    async def attempt() -> None:
        request = CreateTopicsRequest(
            topics=[
                CreateTopicsRequest.CreatableTopic(
                    name=name,
                    num_partitions=partitions,
                    replication_factor=replication_factor,
                    assignments=[],
                    configs=[
                        CreateTopicsRequest.CreatableTopicConfig(name=key, value=value)
                        for key, value in (configs or {}).items()
                    ],
                )
            ],
            timeout_ms=_left_ms(until),
        )
        response = await cluster.call_controller(request, until)
        for each in response.topics:
            if each.error_code:
                raise refusal(each.error_code, each.error_message, about=f"topic {name}")

    await cluster.retrying(attempt, until, repeatable=False)
    return await _until_led(cluster, name, until)


async def ensure_topic(cluster: Cluster, name: str, until: float) -> Topic:
    """The topic, created by the broker with its defaults if it is missing and the broker's settings allow it,
    as for any producer."""
    await cluster.retrying(lambda: cluster.metadata([name], until, create=True), until)
    return await _until_led(cluster, name, min(until, deadline(_APPEARS_S)))


async def _until_led(cluster: Cluster, name: str, until: float, partitions_min: int = 1) -> Topic:
    """A topic or partition that was created takes a moment until brokers know it."""
    tries = 0
    while True:
        failed: Exception
        try:
            (topic,) = await topics(cluster, until, [name])
        except KafkaError as error:
            if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            failed = error
        else:
            led = [each for each in topic.partitions if each.leader >= 0]
            if len(led) == len(topic.partitions) >= partitions_min:
                return topic
            failed = KafkaError(
                ErrorCode.LEADER_NOT_AVAILABLE,
                f"partitions of topic {name} were created, but have no leader yet",
            )
        if deadline(backoff_s(tries)) >= until:
            raise failed
        await asyncio.sleep(backoff_s(tries))
        tries += 1


async def delete_topics(cluster: Cluster, names: Iterable[str], until: float) -> dict[str, KafkaError | None]:
    """Delete topics, with their records and the offsets committed for them."""
    wanted = list(dict.fromkeys(names))

    async def attempt() -> dict[str, KafkaError | None]:
        request = DeleteTopicsRequest(topic_names=wanted, timeout_ms=_left_ms(until))
        response = await cluster.call_controller(request, until)
        return _outcomes((each.name, each.error_code, each.error_message) for each in response.responses)

    return await cluster.retrying(attempt, until, repeatable=False)


async def create_partitions(cluster: Cluster, name: str, count: int, until: float) -> None:
    """Give a topic more partitions, `count` in all. Returns once they are led."""

    async def attempt() -> None:
        asked = CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count, assignments=None)
        request = CreatePartitionsRequest(topics=[asked], timeout_ms=_left_ms(until), validate_only=False)
        response = await cluster.call_controller(request, until)
        for each in response.results:
            if each.error_code:
                raise refusal(each.error_code, each.error_message, about=f"topic {name}")

    await cluster.retrying(attempt, until, repeatable=False)
    await _until_led(cluster, name, until, count)


# --- configs ------------------------------------------------------------------------------------------------


async def topic_configs(cluster: Cluster, names: Iterable[str], until: float) -> dict[str, list[Config]]:
    """All configs of each topic, by name."""
    asked = [
        DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=_TOPIC, resource_name=name, configuration_keys=None
        )
        for name in names
    ]

    async def attempt() -> dict[str, list[Config]]:
        response = await cluster.call(DescribeConfigsRequest(resources=asked), until)
        configs = {}
        for told in response.results:
            if told.error_code:
                raise refusal(told.error_code, told.error_message, about=f"topic {told.resource_name}")
            configs[told.resource_name] = sorted(
                Config(each.name, each.value, _SOURCES.get(each.config_source, "unknown"))
                for each in told.configs
            )
        left_out({each.resource_name for each in asked} - configs.keys(), "DescribeConfigs")
        return configs

    return await cluster.retrying(attempt, until)


async def alter_topic_configs(
    cluster: Cluster,
    name: str,
    until: float,
    *,
    values: Mapping[str, str],
    deleted: Iterable[str] = (),
    validate_only: bool = False,
) -> None:
    """Set configs of a topic, and let those `deleted` go back to the broker's; the others stay as they are
    (IncrementalAlterConfigs, KIP-339)."""
    changes: list[tuple[str, int, str | None]] = [(config, _SET, value) for config, value in values.items()]
    changes += [(config, _DELETE, None) for config in deleted]
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=_TOPIC,
        resource_name=name,
        configs=[
            IncrementalAlterConfigsRequest.AlterableConfig(
                name=config, config_operation=operation, value=value
            )
            for config, operation, value in changes
        ],
    )

    async def attempt() -> None:
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
        response = await cluster.call_controller(request, until)
        for each in response.responses:
            if each.error_code:
                raise refusal(each.error_code, each.error_message, about=f"topic {name}")

    await cluster.retrying(attempt, until, repeatable=False)


# --- offsets ------------------------------------------------------------------------------------------------


async def list_offsets(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], until: float
) -> dict[TopicPartition, int]:
    """For each partition the first offset at or after a timestamp (epoch ms), or EARLIEST or LATEST; -1 where
    no record is as young."""

    async def ask(node: int, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        asked = [
            ListOffsetsRequest.ListOffsetsTopic(
                name=topic,
                partitions=[
                    ListOffsetsRequest.ListOffsetsPartition(partition_index=index, timestamp=timestamp)
                    for index, timestamp in parts
                ],
            )
            for topic, parts in grouped((where, wanted[where]) for where in partitions).items()
        ]
        request = ListOffsetsRequest(replica_id=_CONSUMER, topics=asked, timeout_ms=_left_ms(until))
        response = await cluster.call(request, until, node=node)
        offsets = {}
        for topic in response.topics:
            for each in topic.partitions:
                where = TopicPartition(topic.name, each.partition_index)
                if each.error_code:
                    raise refusal(each.error_code, about=str(where))
                offsets[where] = each.offset
        return offsets

    async def attempt() -> dict[TopicPartition, int]:
        led = await cluster.by_leader(wanted, until)
        answers = await all_of(ask(node, partitions) for node, partitions in led.items())
        offsets = {where: offset for answer in answers for where, offset in answer.items()}
        left_out(wanted.keys() - offsets.keys(), "ListOffsets")
        return offsets

    return await cluster.retrying(attempt, until)


async def committed_offsets(
    cluster: Cluster, group_id: str, until: float, *, lane: str = ""
) -> dict[TopicPartition, Committed]:
    """Every offset the group has committed; none for a group that does not exist."""

    async def attempt() -> dict[TopicPartition, Committed]:
        node = await cluster.coordinator(group_id, until)
        request = OffsetFetchRequest(group_id=group_id, topics=None)
        response = await cluster.call(request, until, node=node, lane=lane)
        if response.error_code:
            raise refusal(response.error_code, about=f"group {group_id}")
        committed = {}
        for topic in response.topics:
            for each in topic.partitions:
                where = TopicPartition(topic.name, each.partition_index)
                if each.error_code:
                    raise refusal(each.error_code, about=f"group {group_id}, {where}")
                if each.committed_offset >= 0:
                    committed[where] = Committed(
                        each.committed_offset, each.committed_leader_epoch, each.metadata or ""
                    )
        return committed

    return await cluster.retrying(attempt, until)


# --- groups -------------------------------------------------------------------------------------------------


async def list_groups(
    cluster: Cluster, until: float, *, states: Iterable[str] = (), types: Iterable[str] = ()
) -> list[ListedGroup]:
    """The groups of all brokers by id, in one of these states and of one of these types if any are given."""
    request = ListGroupsRequest(states_filter=list(states), types_filter=list(types))

    async def attempt() -> list[ListedGroup]:
        groups = set()
        for node, response in (await cluster.call_all(request, until)).items():
            if response.error_code:
                raise refusal(response.error_code, about=f"broker {node}")
            groups |= {
                ListedGroup(each.group_id, each.group_type, each.protocol_type, each.group_state)
                for each in response.groups
            }
        return sorted(groups)

    return await cluster.retrying(attempt, until)


async def describe_group(cluster: Cluster, group_id: str, until: float) -> Group:
    """A classic group. Raises KafkaError(GROUP_ID_NOT_FOUND) when there is none of that id."""

    async def attempt() -> Group:
        node = await cluster.coordinator(group_id, until)
        response = await cluster.call(DescribeGroupsRequest(groups=[group_id]), until, node=node)
        left_out({group_id} - {each.group_id for each in response.groups}, "DescribeGroups")
        told = response.groups[0]
        if told.error_code:
            raise refusal(told.error_code, told.error_message, about=f"group {group_id}")
        if told.group_state == "Dead":  # how brokers before DescribeGroups v6 say it
            raise refusal(ErrorCode.GROUP_ID_NOT_FOUND, about=f"group {group_id}")
        address = cluster.address_of(node)
        assert address is not None
        return Group(
            group_id,
            told.group_state,
            told.protocol_type,
            told.protocol_data,
            Node(node, address.host, address.port, None),
            [_member(each) for each in told.members],
        )

    return await cluster.retrying(attempt, until)


def _member(told: DescribeGroupsResponse.DescribedGroup.DescribedGroupMember) -> Member:
    assignment: list[TopicPartition] | None = None
    try:
        assigned = decode_assignment(told.member_assignment).assigned_partitions
    except DecodeError:
        if not told.member_assignment:
            assignment = []
    else:
        assignment = sorted(
            TopicPartition(each.topic, partition) for each in assigned for partition in each.partitions
        )
    return Member(told.member_id, told.group_instance_id, told.client_id, told.client_host, assignment)


async def delete_groups(
    cluster: Cluster, group_ids: Iterable[str], until: float
) -> dict[str, KafkaError | None]:
    """Delete groups without members, with their offsets."""

    async def delete(group_id: str) -> dict[str, KafkaError | None]:
        async def attempt() -> dict[str, KafkaError | None]:
            node = await cluster.coordinator(group_id, until)
            response = await cluster.call(DeleteGroupsRequest(groups_names=[group_id]), until, node=node)
            return _outcomes(
                (each.group_id, each.error_code, each.error_message) for each in response.results
            )

        return await cluster.retrying(attempt, until, repeatable=False)

    answers = await all_of(delete(group_id) for group_id in dict.fromkeys(group_ids))
    return {group_id: outcome for answer in answers for group_id, outcome in answer.items()}


# --- answers ------------------------------------------------------------------------------------------------


def _outcomes(answers: Iterable[tuple[Any, int, str | None]]) -> dict[str, KafkaError | None]:
    """An outcome per name; a failure that may pass is raised instead, if it is the only answer."""
    outcomes = {name: refusal(code, why) if code else None for name, code, why in answers}
    if len(outcomes) == 1:
        for outcome in outcomes.values():
            if outcome is not None and may_pass(outcome.code):
                raise outcome
    return outcomes


def _left_ms(until: float) -> int:
    """What is left until the deadline, for the broker to know."""
    return max(1, int((until - deadline(0)) * 1000))
