"""The partitions that requests for records name: their topic by its name or, in newer versions, by its id;
and the leader to ask if it is another broker."""

from __future__ import annotations

from typing import Final, TypeVar
from uuid import UUID

from muster.coordinator.base.endpoints import reached_at
from muster.coordinator.base.step import RequestContext
from muster.coordinator.server.serving import Broker
from muster.coordinator.storage.store import NodeRow
from muster.coordinator.topics.catalogue import Topic
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.message import Struct
from muster.protocol.messages.data import FetchResponse, ProduceResponse

CurrentLeader = (
    ProduceResponse.TopicProduceResponse.PartitionProduceResponse.LeaderIdAndEpoch
    | FetchResponse.FetchableTopicResponse.PartitionData.LeaderIdAndEpoch
)

E = TypeVar("E", bound=Struct)

_READ_UNCOMMITTED: Final = 0
_READ_COMMITTED: Final = 1
LEADER_MOVED: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


def reads_committed(isolation_level: int) -> bool:
    """Whether a request asks for committed records alone. Raises INVALID_REQUEST for an unknown level."""
    if isolation_level not in (_READ_UNCOMMITTED, _READ_COMMITTED):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"unknown isolation level {isolation_level}")
    return isolation_level == _READ_COMMITTED


def resolve(broker: Broker, name: str, topic_id: UUID, *, by_id: bool) -> Topic:
    """The topic. Raises KafkaError if it does not exist."""
    return broker.catalogue.identified(topic_id) if by_id else broker.catalogue.named(name)


def check_written_by_clients(topic: Topic, partition: int) -> None:
    """INVALID_TOPIC_EXCEPTION for an internal topic's partition; a missing one is refused later."""
    if topic.internal and 0 <= partition < topic.partitions:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} is internal; clients cannot write to it"
        )


def point_to_leader(
    broker: Broker,
    topic: Topic,
    partition: int,
    current_leader: CurrentLeader,
    leaders: dict[int, NodeRow],
) -> None:
    """Name the leader and its epoch, so that the client need not ask for Metadata first (KIP-951)."""
    leader, epoch = broker.leader(topic, partition)
    node = broker.topology.nodes.get(leader)
    # While our own leadership is still starting, we would send the client to ourselves, without a pause.
    if node is not None and leader != broker.node_id:
        current_leader.leader_id, current_leader.leader_epoch = leader, epoch
        leaders[leader] = node


def endpoints(made: type[E], leaders: dict[int, NodeRow], context: RequestContext) -> list[E]:
    """Where the client of a request reaches these nodes; `made`: the response's NodeEndpoint."""
    found = []
    for node in leaders.values():
        at = reached_at(node, context.listener)
        found.append(made(node_id=node.node_id, host=at.host, port=at.port, rack=node.rack))
    return found
