"""Cluster metadata in a client: nodes, topics, partition leaders and their epochs. An image is immutable;
updates make a new one. Brokers may lag behind each other, so the newer of two leader epochs wins, unless the
topic id shows that the topic was re-created in between (KIP-320, KIP-516).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from muster.client.partitions import NO_LEADER_EPOCH, TopicPartition
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.metadata import MetadataResponse
from muster.protocol.types import ZERO_UUID

NO_NODE: Final = -1
"""Stands for no node: no leader, no controller."""


def no_partition(where: TopicPartition, count: int) -> KafkaError:
    """The error for a partition that its topic, which has `count`, does not have."""
    return KafkaError(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        f"topic {where.topic} has no partition {where.partition}; it has {count}",
    )


class Node(NamedTuple):
    """A broker and its address for clients."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class PartitionImage(NamedTuple):
    """A partition: its leader and replicas, by node id. `leader` is NO_NODE while there is none,
    `leader_epoch` is -1 if the broker does not report it (before Kafka 2.1)."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...]


class TopicImage(NamedTuple):
    """A topic, with partitions by number; `topic_id` is None if the broker does not report it (before Kafka
    2.8)."""

    name: str
    topic_id: uuid.UUID | None
    is_internal: bool
    partitions: Mapping[int, PartitionImage]


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """The cluster as last reported; its parts may differ in age."""

    nodes: Mapping[int, Node] = field(default_factory=dict)
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    cluster_id: str | None = None
    controller: int = NO_NODE
    _names: Mapping[uuid.UUID, str] = field(default_factory=dict)

    def topic(self, name: str) -> TopicImage | None:
        """The topic, if known."""
        return self.topics.get(name)

    def name_of(self, topic_id: uuid.UUID) -> str | None:
        """The name of the topic with this id, if known."""
        return self._names.get(topic_id)

    def partition(self, where: TopicPartition) -> PartitionImage | None:
        """The partition, if known."""
        topic = self.topics.get(where.topic)
        return None if topic is None else topic.partitions.get(where.partition)

    def no_leader(self, where: TopicPartition) -> KafkaError:
        """Why nobody can be asked about a partition of a topic: it does not exist, or has no leader."""
        topic = self.topics.get(where.topic)
        if topic is not None and where.partition not in topic.partitions:
            return no_partition(where, len(topic.partitions))
        return KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{where} has no leader at the moment")

    def updated(self, response: MetadataResponse, *, of_all_topics: bool = False) -> MetadataImage:
        """The image updated by a broker's response. Topics not in it stay, unless the request was
        `of_all_topics`; a topic that does not exist is removed, one with a temporary error is unchanged."""
        topics = {} if of_all_topics else dict(self.topics)
        for told in response.topics:
            if told.name is None:
                continue  # requested by an id that the broker does not know
            known = self.topics.get(told.name)
            if not told.error_code:
                topics[told.name] = _merged(told, told.name, known)
            elif told.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                topics.pop(told.name, None)
            elif known is not None:
                topics[told.name] = known
        nodes = {
            each.node_id: Node(each.node_id, each.host, each.port, each.rack) for each in response.brokers
        }
        return MetadataImage(
            # A broker that has just started may not know any broker, itself included.
            nodes or self.nodes,
            topics,
            response.cluster_id,
            response.controller_id,
            {topic.topic_id: name for name, topic in topics.items() if topic.topic_id is not None},
        )

    def with_node(self, node: Node) -> MetadataImage:
        """The image with this node added, from a FindCoordinator, Produce or Fetch response (KIP-951)."""
        return (
            self
            if self.nodes.get(node.node_id) == node
            else replace(self, nodes={**self.nodes, node.node_id: node})
        )

    def with_leader(self, where: TopicPartition, leader: int, leader_epoch: int) -> MetadataImage:
        """The image with this leader of a partition (KIP-951), if its epoch is newer than the one known and
        the leader is a known node."""
        topic, known = self.topics.get(where.topic), self.partition(where)
        if topic is None or known is None or leader_epoch <= known.leader_epoch or leader not in self.nodes:
            return self
        led = known._replace(leader=leader, leader_epoch=leader_epoch)
        led_topic = topic._replace(partitions={**topic.partitions, where.partition: led})
        return replace(self, topics={**self.topics, where.topic: led_topic})

    def without_nodes(self, nodes: Iterable[int] | None = None) -> MetadataImage:
        """The image without these nodes (None: all), which were wrong and must be learned again (KIP-899)."""
        gone = set(self.nodes if nodes is None else nodes)
        return replace(self, nodes={key: node for key, node in self.nodes.items() if key not in gone})


def _merged(told: MetadataResponse.Topic, name: str, known: TopicImage | None) -> TopicImage:
    topic_id = None if told.topic_id == ZERO_UUID else told.topic_id
    before: Mapping[int, PartitionImage] = {}
    if known is not None and (topic_id is None or known.topic_id is None or topic_id == known.topic_id):
        before = known.partitions
        topic_id = topic_id or known.topic_id
    partitions = {}
    for each in sorted(told.partitions, key=_index):
        partition = PartitionImage(
            each.leader_id,
            each.leader_epoch,
            tuple(each.replica_nodes),
            tuple(each.isr_nodes),
            tuple(each.offline_replicas),
        )
        earlier = before.get(each.partition_index)
        if earlier is not None and NO_LEADER_EPOCH < partition.leader_epoch < earlier.leader_epoch:
            partition = earlier
        partitions[each.partition_index] = partition
    return TopicImage(name, topic_id, told.is_internal, partitions)


def _index(partition: MetadataResponse.Partition) -> int:
    return partition.partition_index
