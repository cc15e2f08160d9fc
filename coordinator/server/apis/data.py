"""The data plane: Produce, Fetch, ListOffsets, OffsetForLeaderEpoch, DeleteRecords.

Topics come by name or, in the newest versions, by id; both are resolved here, and a refusal concerns one
partition at a time. What happens to the records is `muster.coordinator.topics`'.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Final
from uuid import UUID

from muster.coordinator.base.answers import IN_LINE, Answered
from muster.coordinator.base.endpoints import reached_at
from muster.coordinator.base.step import RequestContext
from muster.coordinator.server.api import Api, Parts, awaited
from muster.coordinator.server.apis.several import IN_A_TURN, Turns
from muster.coordinator.server.memory import ResponseReservation
from muster.coordinator.server.names import TOPICS, TOPICS_BY_TOPIC, Listed, Names, by
from muster.coordinator.server.needs import Asking, Needs, Twice, transactional_id_refusal
from muster.coordinator.server.needs import topics as on_topics
from muster.coordinator.server.refusal import Each, Refusal, entry, partitions
from muster.coordinator.server.serving import Broker
from muster.coordinator.server.unexpected import unexpected
from muster.coordinator.server.unserved import CloseConnection
from muster.coordinator.server.verifying import Part, Verified, has_transactional, verify
from muster.coordinator.storage.store import NodeRow
from muster.coordinator.topics.catalogue import Topic
from muster.coordinator.topics.log import Listed as ListedOffset
from muster.coordinator.topics.partitions import Appended, FetchedPartition, FetchPartition
from muster.protocol.api import ApiKey
from muster.protocol.elements import EncodedElements
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.message import Versions
from muster.protocol.messages.acls import Operation
from muster.protocol.messages.data import (
    LISTED_PARTITION,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    ProduceRequest,
    ProduceResponse,
    encode_listed_partition,
)

ProducedPartition = ProduceResponse.TopicProduceResponse.PartitionProduceResponse
FetchedPartitionData = FetchResponse.FetchableTopicResponse.PartitionData
AskedOfTopic = ListOffsetsRequest.ListOffsetsTopic
AskedPartition = ListOffsetsRequest.ListOffsetsPartition
EpochEndOffset = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult.EpochEndOffset
CutPartition = DeleteRecordsResponse.DeleteRecordsTopicResult.DeleteRecordsPartitionResult

_ZSTD_PRODUCED_FROM: Final = 7
_IDS_PRODUCED_FROM: Final = 13
_IDS_FETCHED_FROM: Final = 13
_PRODUCE_LEADERS_FROM: Final = 10
_FETCH_LEADERS_FROM: Final = 16
_EPOCHS_LISTED_FROM: Final = 4
_IN_LINE_PARTS_MAX: Final = 100
"""Partitions of a Produce that is begun at one go."""
_READ_COMMITTED: Final = 1
_NO_SUCH_LOG: Final = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
)
_LEADER_MOVED: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
_NOT_DIVERGING: Final = FetchedPartitionData.EpochEndOffset()
_NO_OTHER_LEADER: Final = FetchedPartitionData.LeaderIdAndEpoch()
_NO_SNAPSHOT: Final = FetchedPartitionData.SnapshotId()
_STORED_HERE: Final = ProducedPartition.LeaderIdAndEpoch()
"""What partitions without an error say there; to make them anew takes as long as all the rest. Nobody changes
them."""

_SPECIAL_TIMESTAMPS: Final = {-1: 1, -2: 1, -3: 7, -4: 8, -5: 9, -6: 11}
"""Timestamps that ask for a place in the log rather than a time, and the ListOffsets version that brought
each."""


def _resolve(broker: Broker, name: str, topic_id: UUID, *, by_id: bool) -> Topic:
    return broker.catalogue.identified(topic_id) if by_id else broker.catalogue.named(name)


# --- Produce ------------------------------------------------------------------------------------------------


def produce(broker: Broker, request: ProduceRequest, context: RequestContext, answered: Answered) -> object:
    """Append to each partition, all at once; with acks=0 nothing is answered, and an error closes the
    connection.

    What need not be asked about first is in the writer's queue when this returns. A producer's next requests
    may then follow it there, so that a producer is not held to one request for each write to the disk or the
    database; not behind acks=0, since nothing may be written behind what closes the connection.
    """
    parts = sum(len(topic.partition_data) for topic in request.topic_data)
    if request.acks not in (-1, 1) or request.transactional_id is not None or parts > _IN_LINE_PARTS_MAX:
        return _PRODUCED_IN_TURNS(broker, request, context, answered)
    version = context.api_version
    appends = [
        [_append(broker, topic, data, version, None) for data in topic.partition_data]
        for topic in request.topic_data
    ]
    in_line = _InLine(broker, request, context, answered, appends)
    return IN_LINE if in_line.begin() else in_line.response()


class _InLine:
    """A Produce whose appends wait to be written."""

    __slots__ = ("_answered", "_appends", "_broker", "_context", "_pending", "_request", "_timer")

    def __init__(
        self,
        broker: Broker,
        request: ProduceRequest,
        context: RequestContext,
        answered: Answered,
        appends: list[list[asyncio.Future[Appended]]],
    ) -> None:
        self._broker = broker
        self._request = request
        self._context = context
        self._answered = answered
        self._appends = appends
        self._pending = {each for of_topic in appends for each in of_topic if not each.done()}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> bool:
        """Have it answered when all appends are done, or its time is over; False if there is nothing to wait
        for."""
        if not self._pending:
            return False
        timeout_s = max(self._request.timeout_ms, 0) / 1000
        self._timer = asyncio.get_running_loop().call_later(timeout_s, self._answer)
        for each in self._pending:
            each.add_done_callback(self._done)
        return True

    def _done(self, append: asyncio.Future[Appended]) -> None:
        self._pending.discard(append)
        if not self._pending and self._timer is not None:
            self._answer()

    def _answer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        answer: object
        try:
            answer = self.response()
        except Exception as error:
            answer = error
        self._answered(answer)

    def response(self) -> ProduceResponse:
        leaders: dict[int, NodeRow] = {}
        answers = [
            _produced_of_topic(
                topic,
                [
                    _produced_part(self._broker, topic, data, append, self._context, leaders)
                    for data, append in zip(topic.partition_data, of_topic, strict=True)
                ],
            )
            for topic, of_topic in zip(self._request.topic_data, self._appends, strict=True)
        ]
        return _produce_response(answers, leaders, self._context)


async def _produce_in_turns(
    broker: Broker, request: ProduceRequest, context: RequestContext
) -> ProduceResponse | None:
    """As `produce`, of any request, which may list a hundred thousand partitions."""
    if request.acks not in (-1, 0, 1):
        raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks must be -1, 0 or 1, not {request.acks}")
    version = context.api_version
    verified = None if request.transactional_id is None else await _verify(broker, request, version)
    appends: list[list[asyncio.Future[Appended]]] = []
    turns = Turns()
    for topic in request.topic_data:
        appends.append([])
        for data in topic.partition_data:
            await turns.next()
            appends[-1].append(_append(broker, topic, data, version, verified))
    await _settle([each for of_topic in appends for each in of_topic], request.timeout_ms)
    answers = []
    leaders: dict[int, NodeRow] = {}
    for topic, of_topic in zip(request.topic_data, appends, strict=True):
        parts = []
        for data, append in zip(topic.partition_data, of_topic, strict=True):
            await turns.next()
            parts.append(_produced_part(broker, topic, data, append, context, leaders))
        answers.append(_produced_of_topic(topic, parts))
    if request.acks == 0:
        if any(part.error_code for topic in answers for part in topic.partition_responses):
            raise CloseConnection("a Produce with acks=0 failed")
        return None
    return _produce_response(answers, leaders, context)


_PRODUCED_IN_TURNS: Final = awaited(_produce_in_turns, "Produce")


def _produced_part(
    broker: Broker,
    topic: ProduceRequest.TopicProduceData,
    data: ProduceRequest.TopicProduceData.PartitionProduceData,
    append: asyncio.Future[Appended],
    context: RequestContext,
    leaders: dict[int, NodeRow],
) -> ProducedPartition:
    """What became of one append; `leaders` gets the node that leads the partition, where that is told."""
    version = context.api_version
    part = _produced(data.index, append, context)
    if part.error_code in _LEADER_MOVED and version >= _PRODUCE_LEADERS_FROM:
        with suppress(KafkaError):  # it was deleted meanwhile, and others may have been stored
            asked = _resolve(broker, topic.name, topic.topic_id, by_id=version >= _IDS_PRODUCED_FROM)
            _point_to_leader(broker, asked, data.index, part.current_leader, leaders)
    return part


def _produced_of_topic(
    topic: ProduceRequest.TopicProduceData, parts: list[ProducedPartition]
) -> ProduceResponse.TopicProduceResponse:
    return ProduceResponse.TopicProduceResponse(
        name=topic.name, topic_id=topic.topic_id, partition_responses=parts
    )


def _produce_response(
    answers: list[ProduceResponse.TopicProduceResponse], leaders: dict[int, NodeRow], context: RequestContext
) -> ProduceResponse:
    endpoints = [
        ProduceResponse.NodeEndpoint(node_id=node.node_id, host=at.host, port=at.port, rack=node.rack)
        for node in leaders.values()
        for at in (reached_at(node, context.listener),)
    ]
    return ProduceResponse(responses=answers, node_endpoints=endpoints)


async def _verify(broker: Broker, request: ProduceRequest, version: int) -> Verified:
    """Of a request with a transactional id."""
    parts = []
    turns = Turns()
    for topic in request.topic_data:
        for data in topic.partition_data:
            await turns.next()
            with suppress(KafkaError):  # which `_append` meets again
                found = _written(broker, topic, data.index, version)
                parts.append(Part(found, data.index, data.records or b""))
    return await verify(broker, request, version, parts, turns.next)


def _written(broker: Broker, asked: ProduceRequest.TopicProduceData, partition: int, version: int) -> Topic:
    topic = _resolve(broker, asked.name, asked.topic_id, by_id=version >= _IDS_PRODUCED_FROM)
    _check_written_by_clients(topic, partition)
    return topic


def _append(
    broker: Broker,
    asked: ProduceRequest.TopicProduceData,
    data: ProduceRequest.TopicProduceData.PartitionProduceData,
    version: int,
    verified: Verified | None,
) -> asyncio.Future[Appended]:
    """`verified`: with a transactional id."""
    try:
        topic = _written(broker, asked, data.index, version)
        guard = None if verified is None else verified.guard(topic, data.index)
    except KafkaError as error:
        refused: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        refused.set_exception(error)
        return refused
    return broker.partitions.append(
        topic,
        data.index,
        data.records or b"",
        zstd_allowed=version >= _ZSTD_PRODUCED_FROM,
        transactional=verified is not None,
        guard=guard,
    )


async def _settle(appends: list[asyncio.Future[Appended]], timeout_ms: int) -> None:
    """Wait for the appends, but no longer than the client does; what is then under way may still be
    stored."""
    if pending := [each for each in appends if not each.done()]:
        await asyncio.wait(pending, timeout=max(timeout_ms, 0) / 1000)


def _produced(index: int, append: asyncio.Future[Appended], context: RequestContext) -> ProducedPartition:
    if not append.done():
        late = KafkaError(
            ErrorCode.REQUEST_TIMED_OUT, "the records were not stored within the request's timeout"
        )
        append.add_done_callback(_retrieve)
        return entry(ProducedPartition, context.api_version, late, index=index)
    error = append.exception()
    if error is None:
        stored = append.result()
        return ProducedPartition(
            index=index,
            base_offset=stored.base_offset,
            log_append_time_ms=stored.log_append_time_ms,
            log_start_offset=stored.log_start_offset,
            current_leader=_STORED_HERE,
        )
    if not isinstance(error, KafkaError):
        if not isinstance(error, Exception):
            raise error
        # Of this partition alone: what other partitions stored must not be answered with an error.
        error = unexpected(error, ApiKey.PRODUCE, context.api_version, context.client_id)
    part = entry(ProducedPartition, context.api_version, error, index=index)
    part.record_errors = [
        ProducedPartition.BatchIndexAndErrorMessage(batch_index=at, batch_index_error_message=why)
        for at, why in getattr(error, "record_errors", ())
    ]
    return part


def _retrieve(append: asyncio.Future[Appended]) -> None:
    """Take the outcome nobody waits for any more, or asyncio complains that it was never looked at."""
    if not append.cancelled():
        append.exception()


def _point_to_leader(
    broker: Broker,
    topic: Topic,
    partition: int,
    current_leader: ProducedPartition.LeaderIdAndEpoch | FetchedPartitionData.LeaderIdAndEpoch,
    leaders: dict[int, NodeRow],
) -> None:
    """Name node and leader epoch, so that the client need not ask for Metadata first (KIP-951)."""
    leader, epoch = broker.leader(topic, partition)
    node = broker.topology.nodes.get(leader)
    # While our own leadership is only starting we would send the client to ourselves, without a pause.
    if node is not None and leader != broker.node_id:
        current_leader.leader_id, current_leader.leader_epoch = leader, epoch
        leaders[leader] = node


# --- Fetch --------------------------------------------------------------------------------------------------


async def fetch(broker: Broker, request: FetchRequest, context: RequestContext) -> FetchResponse:
    """Records of each partition, waiting up to `max_wait_ms` for `min_bytes`.

    Sessions (KIP-227) are not kept: session id 0 answers every attempt to open one, which clients take for
    "none".
    """
    # What is read counts until the answer is handed over; from then on the connection counts what it cannot
    # send.
    with ResponseReservation(broker.responses) as share:
        return await _fetch(broker, request, context, share)


async def _fetch(
    broker: Broker, request: FetchRequest, context: RequestContext, share: ResponseReservation
) -> FetchResponse:
    version = context.api_version
    turns = Turns()
    if (request.session_id != 0 and request.session_epoch != -1) or request.session_epoch > 0:
        raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "this broker keeps no fetch sessions")
    read_committed = request.isolation_level == _READ_COMMITTED
    resolved: dict[int, Topic] = {}
    refused: dict[int, KafkaError] = {}
    asked: list[FetchPartition] = []
    for position, topic in enumerate(request.topics):
        try:
            found = _resolve(broker, topic.topic, topic.topic_id, by_id=version >= _IDS_FETCHED_FROM)
        except KafkaError as error:
            refused[position] = error
            continue
        resolved[position] = found
        asked += [
            FetchPartition(
                topic=found,
                partition=each.partition,
                fetch_offset=each.fetch_offset,
                max_bytes=each.partition_max_bytes,
                current_leader_epoch=each.current_leader_epoch,
                last_fetched_epoch=each.last_fetched_epoch,
                read_committed=read_committed,
            )
            for each in topic.partitions
            if each.partition in range(found.partitions)
        ]
    fetched: list[FetchedPartition] = []
    if asked:  # what is not there neither ends nor begins a wait
        fetched = await broker.partitions.fetch(
            asked,
            min_bytes=request.min_bytes,
            max_bytes=max(min(request.max_bytes, broker.settings.fetch_max_bytes), 0),
            max_wait_ms=max(request.max_wait_ms, 0),
            lend=share.lend,
        )
    answers = iter(fetched)
    response = FetchResponse(responses=[])
    leaders: dict[int, NodeRow] = {}
    for position, topic in enumerate(request.topics):
        parts = []
        for each in topic.partitions:
            await turns.next()
            if position in refused:
                parts.append(_unfetched(each.partition, version, refused[position]))
                continue
            if each.partition not in range(resolved[position].partitions):
                parts.append(_unfetched(each.partition, version, _absent(topic.topic, each.partition)))
                continue
            part = _fetched(each.partition, version, next(answers), read_committed)
            if version >= _FETCH_LEADERS_FROM and part.error_code in _LEADER_MOVED:
                _point_to_leader(broker, resolved[position], each.partition, part.current_leader, leaders)
            parts.append(part)
        response.responses.append(
            FetchResponse.FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=parts)
        )
    response.node_endpoints = [
        FetchResponse.NodeEndpoint(node_id=node.node_id, host=at.host, port=at.port, rack=node.rack)
        for node in leaders.values()
        for at in (reached_at(node, context.listener),)
    ]
    return response


def _absent(topic: str, partition: int) -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic}-{partition}")


def _unfetched(partition: int, version: int, error: KafkaError) -> FetchedPartitionData:
    return entry(
        FetchedPartitionData,
        version,
        error,
        partition_index=partition,
        # As Kafka, which has none to look at where there is no log.
        aborted_transactions=[] if error.code in _NO_SUCH_LOG else None,
        records=b"",  # not null: kafka-python and old Java clients take its length
    )


def _fetched(partition: int, version: int, answer: FetchedPartition, committed: bool) -> FetchedPartitionData:
    if answer.error is not None:
        refused = _unfetched(partition, version, answer.error)
        refused.aborted_transactions = None  # as Kafka, also of a topic that was deleted during the wait
        return refused
    part = FetchedPartitionData(
        partition_index=partition,
        high_watermark=answer.high_watermark,
        last_stable_offset=answer.last_stable_offset,
        log_start_offset=answer.log_start_offset,
        aborted_transactions=[
            FetchedPartitionData.AbortedTransaction(
                producer_id=aborted.producer_id, first_offset=aborted.first_offset
            )
            for aborted in answer.aborted
        ]
        if committed
        else None,
        records=answer.records,
        diverging_epoch=_NOT_DIVERGING,
        current_leader=_NO_OTHER_LEADER,
        snapshot_id=_NO_SNAPSHOT,
    )
    if answer.diverging_epoch is not None:
        epoch, end_offset = answer.diverging_epoch
        part.diverging_epoch = FetchedPartitionData.EpochEndOffset(epoch=epoch, end_offset=end_offset)
    return part


# --- ListOffsets, OffsetForLeaderEpoch, DeleteRecords -------------------------------------------------------


async def list_offsets(
    broker: Broker, request: ListOffsetsRequest, context: RequestContext
) -> ListOffsetsResponse:
    """Offsets by time, or by a special timestamp the request's version knows."""
    version = context.api_version
    read_committed = request.isolation_level == _READ_COMMITTED
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
    """The topic's partitions that are not among those `met` yet: once is enough, as Kafka does."""
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
    """What a partition is refused for, wherever its records are."""
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
    """What is found of partitions of one topic. Only what is not in memory is waited for."""
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
    """Where the largest leader epoch not above the one asked for ends: how clients find out about lost
    records."""
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


def _check_written_by_clients(topic: Topic, partition: int) -> None:
    """INVALID_TOPIC_EXCEPTION for an internal topic's partition; one that is not there is refused later."""
    if topic.internal and 0 <= partition < topic.partitions:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} is internal; clients cannot write to it"
        )


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
                _check_written_by_clients(asked, each.partition_index)
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


def _needs_to_write_transactions(asking: Asking, request: ProduceRequest) -> KafkaError | None:
    if request.transactional_id is None or not has_transactional(request):
        return None
    return transactional_id_refusal(asking, Operation.WRITE, request.transactional_id)


# --- declarations -------------------------------------------------------------------------------------------

_FETCH_SESSION_CODES: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
_FETCH_OF_PARTITIONS: Final = Each(
    "responses",
    "topics",
    Each(
        "partitions",
        "partitions",
        entry=lambda asked, version, error: _unfetched(asked.partition, version, error),
    ),
)
_WITHOUT_A_CODE_UNTIL: Final = 6

APIS: Final = (
    Api(
        ApiKey.PRODUCE,
        produce,
        needs=Needs(
            (_needs_to_write_transactions,),
            on_topics(
                Operation.WRITE,
                "topic_data",
                ids_from=_IDS_PRODUCED_FROM,
                twice=Twice.ONCE,
                partitions="partition_data",
            ),
        ),
        names=Names(topics=(Listed("topic_data", by("name")),), transactional_id="transactional_id"),
        refuse=partitions("responses", "topic_data", "partition_responses", "partition_data"),
        size_max=None,
        closing=True,
    ),
    Api(
        ApiKey.FETCH,
        fetch,
        needs=Needs(
            elements=on_topics(
                Operation.READ,
                named="topic",
                ids_from=_IDS_FETCHED_FROM,
                twice=Twice.ONCE,
                partitions="partitions",
            )
        ),
        names=Names(topics=TOPICS_BY_TOPIC),
        refuse=Refusal((_FETCH_OF_PARTITIONS._replace(versions=Versions(0, _WITHOUT_A_CODE_UNTIL)),)),
        parts=Parts(
            lambda code: code not in _FETCH_SESSION_CODES,
            Refusal((_FETCH_OF_PARTITIONS,)),
            version=_WITHOUT_A_CODE_UNTIL,
        ),
        reads=True,
        pieces=True,
    ),
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
