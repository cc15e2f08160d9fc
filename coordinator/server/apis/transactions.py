"""InitProducerId, WriteTxnMarkers, DescribeProducers.

There are no transaction coordinators yet, and whoever wants a transaction is told at once and for good. What
partitions and groups do when one ends is there: tools end transactions that hang by markers of their own.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from muster.coordinator.base.step import RequestContext
from muster.coordinator.cluster.placement import OFFSETS_TOPIC
from muster.coordinator.server.api import Api
from muster.coordinator.server.apis.metadata import named_topic
from muster.coordinator.server.apis.several import Turns
from muster.coordinator.server.names import TOPICS, Names
from muster.coordinator.server.needs import Asking, Needs
from muster.coordinator.server.needs import topics as on_topics
from muster.coordinator.server.refusal import Each, Refusal, entry, partitions
from muster.coordinator.server.rights import denied
from muster.coordinator.server.serving import Broker
from muster.coordinator.server.unserved import no_transactions
from muster.coordinator.storage.store import StoreError
from muster.coordinator.topics.catalogue import Topic
from muster.coordinator.topics.partitions import Appended
from muster.coordinator.topics.writer import refuse
from muster.coordinator.transactions.marker import Marker
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.acls import Operation, ResourceType
from muster.protocol.messages.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

_Producers = DescribeProducersResponse.TopicResponse.PartitionResponse
_Ended = WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult


async def init_producer_id(
    broker: Broker, request: InitProducerIdRequest, context: RequestContext
) -> InitProducerIdResponse:
    """A new id with epoch 0 for an idempotent producer.

    One that comes back with the id it has (KIP-360) gets a new one too, as from Kafka: only transactional ids
    keep theirs.
    """
    if request.transactional_id == "":
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
    if request.transactional_id is not None:
        raise no_transactions()
    if (request.producer_id == -1) != (request.producer_epoch == -1):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "producer id and epoch must be given together")
    try:
        producer_id = await broker.producer_ids.allocate()
    except StoreError as error:
        # Clients try again after it; the store may have recovered.
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


async def write_txn_markers(
    broker: Broker, request: WriteTxnMarkersRequest, context: RequestContext
) -> WriteTxnMarkersResponse:
    """End transactions in the partitions named: answered when all markers are stored, or refused.

    Markers of one producer share their answer, as from Kafka.
    """
    appends: dict[int, dict[str, dict[int, asyncio.Future[Any]]]] = {}
    turns = Turns()
    for asked in request.markers:
        marker = Marker(
            asked.producer_id,
            asked.producer_epoch,
            asked.coordinator_epoch,
            asked.transaction_result,
            asked.transaction_version,
        )
        of_producer = appends.setdefault(asked.producer_id, {})
        for topic in asked.topics:
            of_topic = of_producer.setdefault(topic.name, {})
            for index in topic.partition_indexes:
                await turns.next()
                of_topic[index] = _append_marker(broker, topic.name, index, marker)
    response = WriteTxnMarkersResponse(markers=[])
    for producer_id, of_producer in appends.items():
        result = WriteTxnMarkersResponse.WritableTxnMarkerResult(producer_id=producer_id, topics=[])
        for name, of_topic in of_producer.items():
            ended = [
                _Ended(partition_index=index, error_code=await _outcome(append))
                for index, append in of_topic.items()
            ]
            result.topics.append(
                WriteTxnMarkersResponse.WritableTxnMarkerTopicResult(name=name, partitions=ended)
            )
        response.markers.append(result)
    return response


def _append_marker(broker: Broker, name: str, partition: int, marker: Marker) -> asyncio.Future[Any]:
    try:
        topic = broker.catalogue.named(name)
    except KafkaError as refusal:
        refused: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        refuse(refused, refusal)
        return refused
    if topic.name == OFFSETS_TOPIC:
        return _end_in_groups(broker, topic, partition, marker)
    return broker.partitions.append_marker(topic, partition, marker)


def _end_in_groups(broker: Broker, topic: Topic, partition: int, marker: Marker) -> asyncio.Future[None]:
    """The marker is the group coordinator's: offsets are in its rows."""

    async def end() -> None:
        if not 0 <= partition < topic.partitions:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic.name}-{partition}"
            )
        await broker.runtime.end_transaction(partition, marker)

    ending = asyncio.ensure_future(end())
    ending.add_done_callback(lambda done: done.cancelled() or done.exception())  # its caller may be gone
    return ending


async def _outcome(append: asyncio.Future[Any]) -> int:
    try:
        await append
    except KafkaError as refusal:
        return refusal.code
    return 0


async def describe_producers(
    broker: Broker, request: DescribeProducersRequest, context: RequestContext
) -> DescribeProducersResponse:
    """The producers of each partition that its leader still knows (producer.id.expiration.ms).

    A partition is described once, however often it is named: it may have many producers.
    """
    response = DescribeProducersResponse(topics=[])
    described: set[tuple[str, int]] = set()
    turns = Turns()
    for asked in request.topics:
        described_here = []
        for index in asked.partition_indexes:
            await turns.next()
            if (asked.name, index) in described:
                continue
            described.add((asked.name, index))
            try:
                topic = named_topic(broker, asked.name)
                found = await broker.partitions.of(topic).active_producers(topic, index)
            except KafkaError as error:
                described_here.append(entry(_Producers, context.api_version, error, partition_index=index))
                continue
            active = [
                _Producers.ProducerState(
                    producer_id=each.producer_id,
                    producer_epoch=each.epoch,
                    last_sequence=each.last_sequence,
                    last_timestamp=each.last_ms,
                    coordinator_epoch=each.coordinator_epoch,
                    current_txn_start_offset=each.transaction_start,
                )
                for each in found
            ]
            described_here.append(_Producers(partition_index=index, active_producers=active))
        response.topics.append(
            DescribeProducersResponse.TopicResponse(name=asked.name, partitions=described_here)
        )
    return response


def _needs_to_write(asking: Asking, request: InitProducerIdRequest) -> KafkaError | None:
    """A transactional id; or without one the leave to write somewhere."""
    rights, transactional_id = asking.rights, request.transactional_id
    if transactional_id is not None:
        allowed = rights.may(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
        return None if allowed else denied(Operation.WRITE, ResourceType.TRANSACTIONAL_ID)
    if rights.may_with_cluster(Operation.IDEMPOTENT_WRITE, logged=False) or rights.may_with_any(
        Operation.WRITE, ResourceType.TOPIC
    ):
        return None
    rights.may_with_cluster(Operation.IDEMPOTENT_WRITE)  # tells the log
    return denied(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER)


def _needs_to_end_transactions(asking: Asking, request: WriteTxnMarkersRequest) -> KafkaError | None:
    rights = asking.rights
    if rights.may_with_cluster(Operation.ALTER, logged=False):
        return None
    allowed = rights.may_with_cluster(Operation.CLUSTER_ACTION)
    return None if allowed else denied(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)


APIS: Final = (
    Api(ApiKey.INIT_PRODUCER_ID, init_producer_id, needs=Needs((_needs_to_write,))),
    Api(
        ApiKey.WRITE_TXN_MARKERS,
        write_txn_markers,
        needs=Needs((_needs_to_end_transactions,)),
        refuse=Refusal(
            (
                Each(
                    "markers",
                    "markers",
                    Each(
                        "topics", "topics", Each("partitions", "partition_indexes", itself="partition_index")
                    ),
                ),
            )
        ),
    ),
    Api(
        ApiKey.DESCRIBE_PRODUCERS,
        describe_producers,
        needs=Needs(elements=on_topics(Operation.READ)),
        names=Names(topics=TOPICS),
        refuse=partitions(in_asked="partition_indexes", itself="partition_index"),
    ),
)
