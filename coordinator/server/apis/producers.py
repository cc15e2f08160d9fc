"""WriteTxnMarkers, DescribeProducers: transactions as the partitions see them.

Markers come from transaction coordinators, and from tools that end a hanging transaction.
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
from muster.coordinator.topics.catalogue import Topic
from muster.coordinator.topics.partitions import Appended
from muster.coordinator.topics.producers import NO_TRANSACTION, ActiveProducer
from muster.coordinator.topics.writer import refuse
from muster.coordinator.transactions.marker import Marker
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.acls import Operation, ResourceType
from muster.protocol.messages.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

_STARTS_PER_MS: Final = 1_000

_Producers = DescribeProducersResponse.TopicResponse.PartitionResponse
_Ended = WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult


async def write_txn_markers(
    broker: Broker, request: WriteTxnMarkersRequest, context: RequestContext
) -> WriteTxnMarkersResponse:
    """End transactions in the partitions named: answered when all markers are stored, or refused.

    Markers of one producer share their answer, as in Kafka.
    """
    appends: dict[int, dict[str, dict[int, asyncio.Future[Any]]]] = {}
    turns = Turns()
    for asked in request.markers:
        marker = _marker(asked)
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


async def end_transactions(
    broker: Broker, request: WriteTxnMarkersRequest, context: RequestContext
) -> WriteTxnMarkersResponse:
    """WriteTxnMarkers of a client: brokers ask each other by letters (`apis.peers`), so it is a tool that
    ends a hanging transaction. What it has ended is reported."""
    response = await write_txn_markers(broker, request, context)
    done = {
        (result.producer_id, topic.name, each.partition_index)
        for result in response.markers
        for topic in result.topics
        for each in topic.partitions
        if each.error_code == ErrorCode.NONE
    }
    for asked in request.markers:
        ended = [
            (topic.name, index)
            for topic in asked.topics
            for index in topic.partition_indexes
            if (asked.producer_id, topic.name, index) in done
        ]
        if ended:
            broker.endings.ended_by_client(_marker(asked), ended, context)
    return response


def _marker(asked: WriteTxnMarkersRequest.WritableTxnMarker) -> Marker:
    return Marker(
        asked.producer_id,
        asked.producer_epoch,
        asked.coordinator_epoch,
        asked.transaction_result,
        asked.transaction_version,
    )


def _require_producer(marker: Marker) -> None:
    """Raises INVALID_REQUEST unless the marker can be some producer's."""
    if marker.producer_id < 0 or marker.producer_epoch < 0:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"a marker of producer {marker.producer_id} at epoch {marker.producer_epoch} ends nothing",
        )


def _append_marker(broker: Broker, name: str, partition: int, marker: Marker) -> asyncio.Future[Any]:
    try:
        _require_producer(marker)
        topic = broker.catalogue.named(name)
    except KafkaError as refusal:
        refused: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        refuse(refused, refusal)
        return refused
    if topic.name == OFFSETS_TOPIC:
        return _end_in_groups(broker, topic, partition, marker)
    return broker.partitions.append_marker(topic, partition, marker)


def _end_in_groups(broker: Broker, topic: Topic, partition: int, marker: Marker) -> asyncio.Future[None]:
    """The group coordinator handles the marker: the offsets are in its rows."""

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
                found = await _producers(broker, topic, index)
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


async def _producers(broker: Broker, topic: Topic, partition: int) -> list[ActiveProducer]:
    found = await broker.partitions.of(topic).active_producers(topic, partition)
    if topic.name != OFFSETS_TOPIC:
        return found
    return [
        ActiveProducer(
            producer_id,
            each.epoch,
            -1,
            each.last_ms,
            each.coordinator_epoch,
            _start(producer_id, each.last_ms) if each.in_transaction else NO_TRANSACTION,
        )
        for producer_id, each in sorted(broker.runtime.transactional_producers(partition).items())
    ]


def _start(producer_id: int, began_ms: int) -> int:
    """Stands for the first offset of a transaction in `__consumer_offsets`, which has none: a number by which
    to tell it from others, beyond any record's offset."""
    return began_ms * _STARTS_PER_MS + producer_id % _STARTS_PER_MS


def _needs_to_end_transactions(asking: Asking, request: WriteTxnMarkersRequest) -> KafkaError | None:
    rights = asking.rights
    if rights.may_with_cluster(Operation.ALTER, logged=False):
        return None
    allowed = rights.may_with_cluster(Operation.CLUSTER_ACTION)
    return None if allowed else denied(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)


APIS: Final = (
    Api(
        ApiKey.WRITE_TXN_MARKERS,
        end_transactions,
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
