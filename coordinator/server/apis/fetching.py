"""Fetch: read records of partitions, in a session or without one (`fetch_sessions`)."""

from __future__ import annotations

from typing import Final

from muster.coordinator.base.step import RequestContext
from muster.coordinator.server.api import Api, Parts
from muster.coordinator.server.apis.located import (
    LEADER_MOVED,
    endpoints,
    point_to_leader,
    reads_committed,
    resolve,
)
from muster.coordinator.server.apis.several import IN_A_TURN, Turns
from muster.coordinator.server.fetch_sessions import KeptPartition, fetch_partition
from muster.coordinator.server.memory import ResponseReservation
from muster.coordinator.server.names import TOPICS_BY_TOPIC, Names
from muster.coordinator.server.needs import Needs, Twice
from muster.coordinator.server.needs import topics as on_topics
from muster.coordinator.server.refusal import Each, Refusal, entry
from muster.coordinator.server.serving import Broker
from muster.coordinator.storage.store import NodeRow
from muster.coordinator.topics.catalogue import Topic
from muster.coordinator.topics.partitions import FetchedPartition, FetchPartition
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.message import Versions
from muster.protocol.messages.acls import Operation
from muster.protocol.messages.data import FetchRequest, FetchResponse

FetchedPartitionData = FetchResponse.FetchableTopicResponse.PartitionData

_IDS_FETCHED_FROM: Final = 13
_FETCH_LEADERS_FROM: Final = 16
_STORAGE_ERRORS_FROM: Final = 6
"""First version whose clients know KAFKA_STORAGE_ERROR."""
_NO_SUCH_LOG: Final = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
)
# Shared by partitions without an error: creating them takes as long as all the rest. Never modified.
_NOT_DIVERGING: Final = FetchedPartitionData.EpochEndOffset()
_NO_OTHER_LEADER: Final = FetchedPartitionData.LeaderIdAndEpoch()
_NO_SNAPSHOT: Final = FetchedPartitionData.SnapshotId()


async def fetch(broker: Broker, request: FetchRequest, context: RequestContext) -> FetchResponse:
    """Records of each partition, waiting up to `max_wait_ms` for `min_bytes`.

    In a session, the request lists all that the session has (`fetch_sessions`), and the answer what is new.
    If the session's next request comes during the wait, the answer is INVALID_FETCH_SESSION_EPOCH instead.
    """
    # What is read counts until the answer is handed over; then the connection counts what it cannot send.
    with ResponseReservation(broker.responses) as share:
        return await _fetch(broker, request, context, share)


async def _fetch(
    broker: Broker, request: FetchRequest, context: RequestContext, share: ResponseReservation
) -> FetchResponse:
    version = context.api_version
    turns = Turns()
    session = broker.fetch_sessions.get(request.session_id)
    read_committed = reads_committed(request.isolation_level)
    resolved: list[Topic | KafkaError] = []
    asked: list[FetchPartition] = []
    for topic in request.topics:
        try:
            found = resolve(broker, topic.topic, topic.topic_id, by_id=version >= _IDS_FETCHED_FROM)
        except KafkaError as error:
            resolved.append(error)
            continue
        resolved.append(found)
        there = [each for each in topic.partitions if 0 <= each.partition < found.partitions]
        if session is None:
            asked += [fetch_partition(found, each, read_committed) for each in there]
        else:
            kept: list[KeptPartition] = there  # type: ignore[assignment]
            asked += [each.asked_of(found, read_committed) for each in kept]
    fetched: list[FetchedPartition] = []
    if asked:  # missing partitions neither end nor begin a wait
        fetched = await broker.partitions.fetch(
            asked,
            min_bytes=request.min_bytes,
            max_bytes=max(min(request.max_bytes, broker.settings.fetch_max_bytes), 0),
            max_wait_ms=max(request.max_wait_ms, 0),
            lend=share.lend,
        )
    if session is not None and session.overtaken(request.session_epoch):
        code = ErrorCode.INVALID_FETCH_SESSION_EPOCH
        return FetchResponse(error_code=code, session_id=request.session_id, responses=[])
    answers = iter(fetched)
    response = FetchResponse(session_id=request.session_id, responses=[])
    had_records: list[KeptPartition] = []
    leaders: dict[int, NodeRow] = {}
    for topic, found_or_not in zip(request.topics, resolved, strict=True):
        parts: list[FetchedPartitionData] = []
        for at in range(0, len(topic.partitions), IN_A_TURN):
            some = topic.partitions[at : at + IN_A_TURN]
            await turns.next(len(some))
            for each in some:
                if isinstance(found_or_not, KafkaError):
                    parts.append(_unfetched(each.partition, version, found_or_not))
                    continue
                if not 0 <= each.partition < found_or_not.partitions:
                    parts.append(_unfetched(each.partition, version, _absent(topic.topic, each.partition)))
                    continue
                answer = next(answers)
                if session is not None:
                    known: KeptPartition = each  # type: ignore[assignment]
                    if not known.news(request.session_epoch, answer):
                        continue
                    if answer.records and request.session_epoch > 0:  # as in Kafka, not in the first answer
                        had_records.append(known)
                part = _fetched(each.partition, version, answer, read_committed)
                if version >= _FETCH_LEADERS_FROM and part.error_code in LEADER_MOVED:
                    point_to_leader(broker, found_or_not, each.partition, part.current_leader, leaders)
                parts.append(part)
        if parts or session is None:
            response.responses.append(
                FetchResponse.FetchableTopicResponse(
                    topic=topic.topic, topic_id=topic.topic_id, partitions=parts
                )
            )
    if session is not None:
        session.had_records(had_records)
    response.node_endpoints = endpoints(FetchResponse.NodeEndpoint, leaders, context)
    return response


def _absent(topic: str, partition: int) -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic}-{partition}")


def _unfetched(partition: int, version: int, error: KafkaError) -> FetchedPartitionData:
    return entry(
        FetchedPartitionData,
        version,
        error,
        partition_index=partition,
        # As in Kafka, which finds none where there is no log.
        aborted_transactions=[] if error.code in _NO_SUCH_LOG else None,
        records=b"",  # not null: kafka-python and old Java clients take its length
    )


def _fetched(partition: int, version: int, answer: FetchedPartition, committed: bool) -> FetchedPartitionData:
    if answer.error is not None:
        refused = _unfetched(partition, version, answer.error)
        refused.aborted_transactions = None  # as in Kafka, also for a topic deleted during the wait
        if version < _STORAGE_ERRORS_FROM and answer.error.code is ErrorCode.KAFKA_STORAGE_ERROR:
            refused.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER  # as in Kafka: these clients retry then
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


def _complete(broker: Broker, request: FetchRequest, context: RequestContext) -> KafkaError | None:
    return broker.fetch_sessions.complete(request, by_id=context.api_version >= _IDS_FETCHED_FROM)


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
            Refusal((_FETCH_OF_PARTITIONS,), mirrored=("session_id",)),
            version=_WITHOUT_A_CODE_UNTIL,
        ),
        reads=True,
        pieces=True,
        complete=_complete,
    ),
)
