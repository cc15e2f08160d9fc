"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords: where partitions' logs begin, end, and are cut."""

from __future__ import annotations

from collections import Counter
from typing import Final

from muster.coordinator.base.step import RequestContext
from muster.coordinator.server.api import Api
from muster.coordinator.server.apis.located import check_written_by_clients, reads_committed
from muster.coordinator.server.apis.several import IN_A_TURN, Turns
from muster.coordinator.server.names import TOPICS, TOPICS_BY_TOPIC, Names
from muster.coordinator.server.needs import Needs, Twice
from muster.coordinator.server.needs import topics as on_topics
from muster.coordinator.server.refusal import entry, partitions
from muster.coordinator.server.serving import Broker
from muster.coordinator.topics.log import Listed as ListedOffset
from muster.protocol.api import ApiKey
from muster.protocol.elements import EncodedElements
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.acls import Operation
from muster.protocol.messages.data import (
    LISTED_PARTITION,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    encode_listed_partition,
)

AskedOfTopic = ListOffsetsRequest.ListOffsetsTopic
AskedPartition = ListOffsetsRequest.ListOffsetsPartition
EpochEndOffset = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult.EpochEndOffset
CutPartition = DeleteRecordsResponse.DeleteRecordsTopicResult.DeleteRecordsPartitionResult

_EPOCHS_LISTED_FROM: Final = 4
_SPECIAL_TIMESTAMPS: Final = {-1: 1, -2: 1, -3: 7, -4: 8, -5: 9, -6: 11}
"""Timestamps that ask for a place in the log rather than a time, and the ListOffsets version that introduced
each."""


async def list_offsets(
    broker: Broker, request: ListOffsetsRequest, context: RequestContext
) -> ListOffsetsResponse:
    """Offsets by time, or by a special timestamp the request's version knows."""
    version = context.api_version
    read_committed = reads_committed(request.isolation_level)
    twice = _named_twice(request)
    met: set[tuple[str, int]] = set()
    response = ListOffsetsResponse(topics=[])
    turns = Turns()
    for topic in request.topics:
        asked = _not_met(topic, met) if twice else topic.partitions
        parts: list[bytes] = []
        for at in range(0, len(asked), IN_A_TURN):
            some = asked[at : at + IN_A_TURN]
            await turns.next(len(some))
            refused = [_unlistable(topic.name, each, version, twice) for each in some]
            rest = [each for each, refusal in zip(some, refused, strict=True) if refusal is None]
            found = iter(await _listed(broker, topic.name, rest, read_committed))
            for each, refusal in zip(some, refused, strict=True):
                parts.append(_listed_part(each.partition_index, refusal or next(found), version))
        response.topics.append(
            ListOffsetsResponse.ListOffsetsTopicResponse(
                name=topic.name,
                partitions=EncodedElements(LISTED_PARTITION, len(parts), b"".join(parts)),
            )
        )
    return response


def _named_twice(request: ListOffsetsRequest) -> set[tuple[str, int]]:
    """The partitions that the request names more than once."""
    of_topics: dict[str, list[int]] = {}
    for topic in request.topics:
        of_topics.setdefault(topic.name, []).extend([each.partition_index for each in topic.partitions])
    found: set[tuple[str, int]] = set()
    for name, indexes in of_topics.items():
        if len(set(indexes)) < len(indexes):
            found.update((name, index) for index, times in Counter(indexes).items() if times > 1)
    return found


def _not_met(topic: AskedOfTopic, met: set[tuple[str, int]]) -> list[AskedPartition]:
    """The topic's partitions that are not in `met` yet: each is answered once, as in Kafka."""
    found = []
    for each in topic.partitions:
        where = topic.name, each.partition_index
        if where not in met:
            met.add(where)
            found.append(each)
    return found


def _unlistable(
    topic: str, asked: AskedPartition, version: int, twice: set[tuple[str, int]]
) -> KafkaError | None:
    """Why a partition is refused, wherever its records are; None if it is not."""
    if twice and (topic, asked.partition_index) in twice:
        return KafkaError(ErrorCode.INVALID_REQUEST, "the partition is named twice")
    if asked.timestamp < 0 and version < _SPECIAL_TIMESTAMPS.get(asked.timestamp, version + 1):
        return KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"ListOffsets v{version} does not support timestamp {asked.timestamp}",
        )
    return None


async def _listed(
    broker: Broker, topic: str, asked: list[AskedPartition], read_committed: bool
) -> list[ListedOffset | KafkaError]:
    """The offsets found for partitions of one topic. Waits only for what is not in memory."""
    try:
        named = broker.catalogue.named(topic)
    except KafkaError as refusal:
        return [refusal] * len(asked)
    source = broker.partitions.of(named)
    found: list[ListedOffset | KafkaError] = []
    for each, at_once in zip(asked, source.listed(named, asked, read_committed=read_committed), strict=True):
        outcome = at_once
        if outcome is None:
            try:
                outcome = await source.list_offsets(
                    named,
                    each.partition_index,
                    each.timestamp,
                    current_leader_epoch=each.current_leader_epoch,
                    read_committed=read_committed,
                )
            except KafkaError as refusal:
                outcome = refusal
        found.append(outcome)
    return found


def _listed_part(partition: int, outcome: ListedOffset | KafkaError, version: int) -> bytes:
    if isinstance(outcome, KafkaError):
        return encode_listed_partition(partition, outcome.code, -1, -1, -1)
    # Fields a version lacks must keep their default.
    leader_epoch = outcome.leader_epoch if version >= _EPOCHS_LISTED_FROM else -1
    return encode_listed_partition(partition, 0, outcome.timestamp, outcome.offset, leader_epoch)


async def offset_for_leader_epoch(
    broker: Broker, request: OffsetForLeaderEpochRequest, context: RequestContext
) -> OffsetForLeaderEpochResponse:
    """Where the largest leader epoch not above the requested one ends: it shows clients whether records were
    lost."""
    response = OffsetForLeaderEpochResponse(topics=[])
    turns = Turns()
    for topic in request.topics:
        parts = []
        for each in topic.partitions:
            await turns.next()
            try:
                named = broker.catalogue.named(topic.topic)
                epoch, end_offset = await broker.partitions.of(named).end_offset_for_epoch(
                    named,
                    each.partition,
                    each.leader_epoch,
                    current_leader_epoch=each.current_leader_epoch,
                )
            except KafkaError as error:
                parts.append(entry(EpochEndOffset, context.api_version, error, partition=each.partition))
            else:
                parts.append(
                    EpochEndOffset(partition=each.partition, leader_epoch=epoch, end_offset=end_offset)
                )
        response.topics.append(
            OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(topic=topic.topic, partitions=parts)
        )
    return response


async def delete_records(
    broker: Broker, request: DeleteRecordsRequest, context: RequestContext
) -> DeleteRecordsResponse:
    """Drop records below an offset."""
    response = DeleteRecordsResponse(topics=[])
    turns = Turns()
    for topic in request.topics:
        parts = []
        for each in topic.partitions:
            await turns.next()
            try:
                asked = broker.catalogue.named(topic.name)
                check_written_by_clients(asked, each.partition_index)
                low = await broker.partitions.delete_records(asked, each.partition_index, each.offset)
            except KafkaError as error:
                parts.append(
                    entry(CutPartition, context.api_version, error, partition_index=each.partition_index)
                )
            else:
                parts.append(CutPartition(partition_index=each.partition_index, low_watermark=low))
        response.topics.append(
            DeleteRecordsResponse.DeleteRecordsTopicResult(name=topic.name, partitions=parts)
        )
    return response


APIS: Final = (
    Api(
        ApiKey.LIST_OFFSETS,
        list_offsets,
        needs=Needs(elements=on_topics(Operation.DESCRIBE)),
        names=Names(topics=TOPICS),
        refuse=partitions(),
        reads=True,
    ),
    Api(
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        offset_for_leader_epoch,
        needs=Needs(
            elements=on_topics(Operation.DESCRIBE, named="topic", or_cluster=Operation.CLUSTER_ACTION)
        ),
        names=Names(topics=TOPICS_BY_TOPIC),
        refuse=partitions(),
        reads=True,
    ),
    Api(
        ApiKey.DELETE_RECORDS,
        delete_records,
        needs=Needs(elements=on_topics(Operation.DELETE, twice=Twice.ONCE, partitions="partitions")),
        names=Names(topics=TOPICS),
        refuse=partitions(),
    ),
)
