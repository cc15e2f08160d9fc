"""Metadata, DescribeTopicPartitions, DescribeCluster, FindCoordinator: who is there, and who serves what."""

from __future__ import annotations

from typing import Final

from muster.build import version
from muster.coordinator.base.endpoints import reached_at
from muster.coordinator.base.step import RequestContext
from muster.coordinator.cluster.coordinators import COORDINATORS, GROUPS, TRANSACTIONS
from muster.coordinator.server.api import Api
from muster.coordinator.server.apis.several import Turns
from muster.coordinator.server.names import TOPICS, Listed, Names, itself
from muster.coordinator.server.needs import (
    Asking,
    Elements,
    Needs,
    decided_by_handler,
    group_refusal,
    nothing,
    transactional_id_refusal,
)
from muster.coordinator.server.refusal import entry, listing
from muster.coordinator.server.rights import Rights, denied
from muster.coordinator.server.serving import Broker
from muster.coordinator.server.unexpected import unexpected
from muster.coordinator.server.unserved import no_share_groups
from muster.coordinator.storage.store import Grant, Lease, LeaseKind, NodeRow, StoreError, StoreFull
from muster.coordinator.topics.catalogue import Topic, check_name
from muster.protocol.api import ApiKey
from muster.protocol.elements import EncodedElements, encode_element, form_in
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.acls import Operation, ResourceType
from muster.protocol.messages.metadata import (
    AUTHORIZED_OPERATIONS_OMITTED,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from muster.protocol.types import ZERO_UUID

_Coordinator = FindCoordinatorResponse.Coordinator

_BROKERS, _CONTROLLERS = 1, 2
_KEYS_FROM: Final = 4
_SHARES: Final = 2
"""The key type of coordinators that muster does not have."""
_PARTITIONS_DESCRIBED_MAX: Final = 2_000
"""Kafka's max.request.partition.size.limit."""


async def metadata(broker: Broker, request: MetadataRequest, context: RequestContext) -> MetadataResponse:
    """The live brokers and the topics asked for.

    A missing topic is created when the broker's setting and the request both allow it and the request names
    it; the answer has its leaders already, where Kafka makes the client ask again.
    """
    version = context.api_version
    rights = broker.rights(context)

    form = form_in(MetadataResponse, MetadataResponse.Topic, version)

    def operations(name: str) -> int:
        if request.include_topic_authorized_operations:
            return rights.operations(ResourceType.TOPIC, name)
        return AUTHORIZED_OPERATIONS_OMITTED

    def encode(topic: Topic) -> bytes:
        return encode_element(form, _topic(broker, topic, operations(topic.name)))

    def encoded(topic: Topic) -> bytes:
        if request.include_topic_authorized_operations:
            return encode(topic)
        return broker.encoded_topics.of(topic, broker.topology, version, encode)

    topics: list[bytes] = []
    turns = Turns()
    if request.topics is None or (version == 0 and not request.topics):
        for topic in list(broker.catalogue.topics()):
            await turns.next()
            if rights.may(Operation.DESCRIBE, ResourceType.TOPIC, topic.name, logged=False):
                topics.append(encoded(topic))
    else:
        if version < 12 and any(each.topic_id != ZERO_UUID or each.name is None for each in request.topics):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Metadata v{version} does not support topic ids")
        # Each once: an answer is large, and a request may repeat a name fifty thousand times.
        for asked in {(each.name, each.topic_id): each for each in request.topics}.values():
            await turns.next()
            try:
                topic = await _asked_topic(
                    broker, context, rights, asked, create=request.allow_auto_topic_creation
                )
            except KafkaError as error:
                refused = _refused_topic(asked, version, error)
                if asked.name is not None and error.code is not ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                    refused.topic_authorized_operations = operations(asked.name)
                topics.append(encode_element(form, refused))
            else:
                topics.append(encoded(topic))
    topology = broker.topology
    return MetadataResponse(
        brokers=[
            MetadataResponse.Broker(node_id=node.node_id, host=at.host, port=at.port, rack=node.rack)
            for node in topology.nodes.values()
            for at in (reached_at(node, context.listener),)
        ],
        cluster_id=broker.cluster_id,
        controller_id=topology.controller_id,
        topics=EncodedElements(form, len(topics), b"".join(topics)),
        cluster_authorized_operations=(
            _cluster_operations(rights)
            if request.include_cluster_authorized_operations
            else AUTHORIZED_OPERATIONS_OMITTED
        ),
    )


def _cluster_operations(rights: Rights) -> int:
    may_know = rights.may_with_cluster(Operation.DESCRIBE, logged=False)
    return rights.operations(ResourceType.CLUSTER) if may_know else 0


def _refused_topic(asked: MetadataRequest.Topic, version: int, error: KafkaError) -> MetadataResponse.Topic:
    # Before v12 a name cannot be null in the response: a topic asked for by id has none to return.
    name = asked.name if asked.name is not None or version >= 12 else ""
    return entry(MetadataResponse.Topic, version, error, name=name, topic_id=asked.topic_id)


async def _asked_topic(
    broker: Broker, context: RequestContext, rights: Rights, asked: MetadataRequest.Topic, *, create: bool
) -> Topic:
    if asked.topic_id != ZERO_UUID:
        topic = broker.catalogue.identified(asked.topic_id)
        _require(rights, Operation.DESCRIBE, topic.name)
        return topic
    if asked.name is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "neither a topic name nor a topic id")
    _require(rights, Operation.DESCRIBE, asked.name)
    if create:
        if (
            broker.settings.auto_create_topics_enable
            and broker.catalogue.by_name(asked.name) is None
            and not rights.may_with_cluster(Operation.CREATE, logged=False)
        ):
            _require(rights, Operation.CREATE, asked.name)
        try:
            mutations = broker.meters.mutations(context, strict_from=0)
            return await broker.catalogue.ensure(asked.name, permit=mutations.use)
        except KafkaError as error:
            if error.code is not ErrorCode.THROTTLING_QUOTA_EXCEEDED:
                raise
            # As in Kafka: there is no topic yet. Clients ask again.
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, error.why) from error
        except StoreFull as error:
            raise unexpected(error, ApiKey.METADATA, context.api_version, context.client_id) from error
        except StoreError as error:
            # The answer still lists the brokers: a client without them would have nobody to ask again.
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the topic could not be created") from error
    return named_topic(broker, asked.name)


def _require(rights: Rights, operation: Operation, name: str) -> None:
    if not rights.may(operation, ResourceType.TOPIC, name):
        raise denied(operation, ResourceType.TOPIC)


def named_topic(broker: Broker, name: str) -> Topic:
    """The topic; UNKNOWN_TOPIC_OR_PARTITION, or INVALID_TOPIC_EXCEPTION for a name that no topic can have."""
    if broker.catalogue.by_name(name) is None:
        check_name(name)
    return broker.catalogue.named(name)


def _topic(broker: Broker, topic: Topic, operations: int) -> MetadataResponse.Topic:
    return MetadataResponse.Topic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=[_partition(broker, topic, index) for index in range(topic.partitions)],
        topic_authorized_operations=operations,
    )


def _partition(broker: Broker, topic: Topic, index: int) -> MetadataResponse.Topic.Partition:
    leader, epoch = broker.leader(topic, index)
    assignment = topic.assignments.get(index)
    # The store keeps the records, so every live replica is in sync; without a list, the leader is the only
    # one.
    replicas = list(assignment.replicas) if assignment is not None else [leader] if leader >= 0 else []
    nodes = broker.topology.nodes
    return MetadataResponse.Topic.Partition(
        error_code=ErrorCode.LEADER_NOT_AVAILABLE if leader < 0 else 0,
        partition_index=index,
        leader_id=leader,
        leader_epoch=epoch,
        replica_nodes=replicas,
        isr_nodes=[node_id for node_id in replicas if node_id in nodes],
        offline_replicas=[node_id for node_id in replicas if node_id not in nodes],
    )


async def describe_topic_partitions(
    broker: Broker, request: DescribeTopicPartitionsRequest, context: RequestContext
) -> DescribeTopicPartitionsResponse:
    """A page of the partitions of the topics asked for, in the order of the topics' names, each topic once.

    A cursor must name one of the topics asked for (INVALID_REQUEST), whether or not the client may see it; if
    all topics are asked for, it may name one that no longer exists. Refused topics take no room in the page,
    but a full one ends before them too.
    """
    cursor = request.cursor
    begin = "" if cursor is None else cursor.topic_name
    rights = broker.rights(context)
    asked = {topic.name for topic in request.topics}
    if cursor is not None and asked and begin not in asked:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"the cursor's topic {begin} is not among the requested topics"
        )
    if cursor is not None and cursor.partition_index < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"the cursor's partition is {cursor.partition_index}")
    response = DescribeTopicPartitionsResponse(topics=[])
    room = max(1, min(request.response_partition_limit, _PARTITIONS_DESCRIBED_MAX))
    turns = Turns()
    names: list[str] = []
    refused: list[str] = []
    for name in sorted(asked or {topic.name for topic in broker.catalogue.topics()}):
        await turns.next()
        if name >= begin:
            may_see = rights.may(Operation.DESCRIBE, ResourceType.TOPIC, name, logged=bool(asked))
            (names if may_see else refused).append(name)
    for name in names:
        await turns.next()
        if not room:
            response.next_cursor = DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=0)
            break
        try:
            topic = named_topic(broker, name)
        except KafkaError as error:
            if asked:  # otherwise it has been deleted since, and nobody asked for it by name
                response.topics.append(
                    entry(DescribeTopicPartitionsResponse.Topic, context.api_version, error, name=name)
                )
            continue
        first = 0 if cursor is None or name != begin else cursor.partition_index
        page = range(topic.partitions)[first : first + room]
        response.topics.append(_described_topic(broker, topic, page))
        room -= len(page)
        if first + len(page) < topic.partitions:
            response.next_cursor = DescribeTopicPartitionsResponse.Cursor(
                topic_name=name, partition_index=first + len(page)
            )
            break
    for described in response.topics:
        described.topic_authorized_operations = rights.operations(ResourceType.TOPIC, described.name or "")
    if asked:
        refusal = denied(Operation.DESCRIBE, ResourceType.TOPIC)
        response.topics += [
            entry(DescribeTopicPartitionsResponse.Topic, context.api_version, refusal, name=name)
            for name in refused
        ]
    return response


def _described_topic(broker: Broker, topic: Topic, page: range) -> DescribeTopicPartitionsResponse.Topic:
    return DescribeTopicPartitionsResponse.Topic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=[
            DescribeTopicPartitionsResponse.Partition(
                error_code=each.error_code,
                partition_index=each.partition_index,
                leader_id=each.leader_id,
                leader_epoch=each.leader_epoch,
                replica_nodes=each.replica_nodes,
                isr_nodes=each.isr_nodes,
                offline_replicas=each.offline_replicas,
                eligible_leader_replicas=[],
                last_known_elr=[],
            )
            for each in (_partition(broker, topic, index) for index in page)
        ],
    )


async def describe_cluster(
    broker: Broker, request: DescribeClusterRequest, context: RequestContext
) -> DescribeClusterResponse:
    """The live brokers. There are no controllers apart from them, and no fenced brokers.

    A client that asks for the leases gets the nodes and leases that the store has now; KAFKA_STORAGE_ERROR if
    the store cannot be read.
    """
    if request.endpoint_type == _CONTROLLERS:
        raise KafkaError(ErrorCode.MISMATCHED_ENDPOINT_TYPE, "this is a broker, not a controller")
    if request.endpoint_type != _BROKERS:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"unknown endpoint type {request.endpoint_type}"
        )
    rights = broker.rights(context)
    response = DescribeClusterResponse(
        endpoint_type=_BROKERS,
        cluster_id=broker.cluster_id,
        controller_id=broker.topology.controller_id,
        brokers=[_cluster_broker(node, context.listener) for node in broker.topology.nodes.values()],
        cluster_authorized_operations=(
            _cluster_operations(rights)
            if request.include_cluster_authorized_operations
            else AUTHORIZED_OPERATIONS_OMITTED
        ),
    )
    if request.include_leases and rights.may_with_cluster(Operation.DESCRIBE):
        await _add_leases(broker, response, context.listener)
    return response


def _cluster_broker(node: NodeRow, listener: str) -> DescribeClusterResponse.DescribeClusterBroker:
    at = reached_at(node, listener)
    return DescribeClusterResponse.DescribeClusterBroker(
        broker_id=node.node_id, host=at.host, port=at.port, rack=node.rack
    )


async def _add_leases(broker: Broker, response: DescribeClusterResponse, listener: str) -> None:
    """Nodes and leases as the store has them now, which is more than other brokers report."""
    try:
        nodes = await broker.store.nodes()
        grants: dict[Lease, Grant] = {}
        for kind in LeaseKind:
            grants |= {grant.lease: grant for grant in (await broker.store.holders(kind)).values()}
    except StoreError as error:
        why = "the broker cannot read its store at the moment; its log says why"
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, why) from error
    response.brokers = []
    for node in nodes:
        told = _cluster_broker(node, listener)
        told.is_drained = node.drained
        told.registered_ago_ms, told.term_ms = node.age_ms, node.term_ms
        response.brokers.append(told)
    response.answering_id, response.version = broker.node_id, version()
    response.why_short = broker.membership.why_short(grants) or ""
    response.leases = [_lease(lease, grants.get(lease)) for lease in broker.topology.leases]


def _lease(lease: Lease, grant: Grant | None) -> DescribeClusterResponse.Lease:
    if grant is None:
        return DescribeClusterResponse.Lease(kind=lease.kind, number=lease.number)
    return DescribeClusterResponse.Lease(
        kind=lease.kind,
        number=lease.number,
        holder_id=grant.node_id,
        epoch=grant.epoch,
        remaining_ms=grant.remaining_ms,
        announced=grant.announced,
    )


async def find_coordinator(
    broker: Broker, request: FindCoordinatorRequest, context: RequestContext
) -> FindCoordinatorResponse:
    """The holder of the shard of each group or transactional id. Refusals are per key from v4 on; before,
    there is only one key."""
    if context.api_version < _KEYS_FROM:
        node = _coordinator(broker, request.key, request.key_type, context.api_version)
        at = reached_at(node, context.listener)
        return FindCoordinatorResponse(node_id=node.node_id, host=at.host, port=at.port)
    found: list[_Coordinator] = []
    turns = Turns()
    for key in request.coordinator_keys:
        await turns.next(1 + len(key) // 256)  # a long one takes long to hash
        try:
            node = _coordinator(broker, key, request.key_type, context.api_version)
        except KafkaError as error:
            broker.unserved.refused(error, context)
            found.append(entry(_Coordinator, context.api_version, error, key=key))
        else:
            at = reached_at(node, context.listener)
            found.append(_Coordinator(key=key, node_id=node.node_id, host=at.host, port=at.port))
    return FindCoordinatorResponse(coordinators=found)


def _coordinator(broker: Broker, key: str, key_type: int, version: int) -> NodeRow:
    kind = COORDINATORS.get(key_type)
    if kind is not None:
        node = broker.topology.coordinator(key, kind)
        if node is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no broker holds its shard right now")
        return node
    if key_type == _SHARES and version >= 6:
        raise no_share_groups()
    raise KafkaError(
        ErrorCode.INVALID_REQUEST, f"FindCoordinator v{version} does not support key type {key_type}"
    )


def _needs_one(asking: Asking, request: FindCoordinatorRequest) -> KafkaError | None:
    if request.key_type == _SHARES and not asking.rights.may_with_cluster(Operation.CLUSTER_ACTION):
        return denied(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    if asking.context.api_version >= _KEYS_FROM:
        return None
    return _needs_key(asking, request, request.key)


def _needs_key(asking: Asking, request: FindCoordinatorRequest, key: str) -> KafkaError | None:
    if request.key_type == GROUPS.key_type:
        return group_refusal(asking, Operation.DESCRIBE, key)
    if request.key_type == TRANSACTIONS.key_type:
        return transactional_id_refusal(asking, Operation.DESCRIBE, key)
    return None


APIS: Final = (
    Api(
        ApiKey.METADATA,
        metadata,
        needs=decided_by_handler(
            "topics that may not be seen look as if they were not there, or are left out"
        ),
        names=Names(topics=TOPICS, empty_is_all_until=0),
        refuse=listing("topics", "topics"),
        about_the_cluster=True,
    ),
    Api(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        describe_topic_partitions,
        needs=decided_by_handler(
            "topics before the cursor are not answered, and the cursor may be at one that may not be seen"
        ),
        names=Names(topics=TOPICS, empty_is_all_until=0),
        refuse=listing("topics", "topics"),
        about_the_cluster=True,
    ),
    Api(
        ApiKey.DESCRIBE_CLUSTER,
        describe_cluster,
        needs=nothing("every client is to find the brokers; it leaves out the rest itself"),
    ),
    Api(
        ApiKey.FIND_COORDINATOR,
        find_coordinator,
        needs=Needs((_needs_one,), Elements("coordinator_keys", _needs_key, str)),
        names=Names(
            group="key",
            groups=Listed("coordinator_keys", itself),
            about_groups=lambda request: request.key_type == GROUPS.key_type,
            transactional_id="key",
            transactional_ids=Listed("coordinator_keys", itself),
            about_transactions=lambda request: request.key_type == TRANSACTIONS.key_type,
        ),
        refuse=listing("coordinators", "coordinator_keys", "key")._replace(
            fields={"node_id": -1, "port": -1}
        ),
        about_the_cluster=True,
    ),
)
