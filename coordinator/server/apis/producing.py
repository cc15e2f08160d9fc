"""Produce: append to partitions. What happens to the records is `muster.coordinator.topics`'."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from muster.coordinator.base.answers import IN_LINE, Answered
from muster.coordinator.base.step import RequestContext
from muster.coordinator.server.api import Api, awaited
from muster.coordinator.server.apis.located import (
    LEADER_MOVED,
    check_written_by_clients,
    endpoints,
    point_to_leader,
    resolve,
)
from muster.coordinator.server.apis.several import Turns
from muster.coordinator.server.names import Listed, Names, by
from muster.coordinator.server.needs import Asking, Needs, Twice, transactional_id_refusal
from muster.coordinator.server.needs import topics as on_topics
from muster.coordinator.server.refusal import entry, partitions
from muster.coordinator.server.serving import Broker
from muster.coordinator.server.unexpected import unexpected
from muster.coordinator.server.unserved import produce_failed
from muster.coordinator.server.verifying import Part, Verified, has_transactional, verify
from muster.coordinator.storage.store import NodeRow
from muster.coordinator.topics.catalogue import Topic
from muster.coordinator.topics.partitions import Appended
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.acls import Operation
from muster.protocol.messages.data import ProduceRequest, ProduceResponse

ProducedPartition = ProduceResponse.TopicProduceResponse.PartitionProduceResponse

_ZSTD_PRODUCED_FROM: Final = 7
_IDS_PRODUCED_FROM: Final = 13
_PRODUCE_LEADERS_FROM: Final = 10
_IN_LINE_PARTS_MAX: Final = 100
"""Most partitions of a Produce that is begun at once."""
_WRITE_TIMEOUT_S: Final = 30.0
"""The least that a write is waited for. As in Kafka, a request's timeout is meant for replicas, not for the
write; this bound is for a store that stands still."""
_STORED_HERE: Final = ProducedPartition.LeaderIdAndEpoch()
"""Shared by partitions without an error: creating it takes as long as all the rest. Never modified."""


def produce(broker: Broker, request: ProduceRequest, context: RequestContext, answered: Answered) -> object:
    """Append to all partitions at once; with acks=0 nothing is answered, and an error closes the connection.

    What needs no verification first is in the writer's queue when this returns. A producer's next requests
    may then follow it there, so that a producer is not limited to one request per write to the disk or the
    database; not after acks=0, since nothing may be written after what closes the connection.
    """
    if request.transactional_id is None and has_transactional(request):
        return _without_id()  # for all of it, as in Kafka, also where nobody needs rights
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
        """Answer it when all appends are done, or take too long; False if there is nothing to wait for."""
        if not self._pending:
            return False
        self._timer = asyncio.get_running_loop().call_later(_timeout_s(self._request), self._answer)
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
    """`produce` for any request, which may list a hundred thousand partitions."""
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
    await _settle([each for of_topic in appends for each in of_topic], _timeout_s(request))
    answers = []
    leaders: dict[int, NodeRow] = {}
    for topic, of_topic in zip(request.topic_data, appends, strict=True):
        parts = []
        for data, append in zip(topic.partition_data, of_topic, strict=True):
            await turns.next()
            parts.append(_produced_part(broker, topic, data, append, context, leaders))
        answers.append(_produced_of_topic(topic, parts))
    if request.acks == 0:
        for topic_answer in answers:
            for part in topic_answer.partition_responses:
                if part.error_code:
                    where = f"{topic_answer.name or topic_answer.topic_id}-{part.index}"
                    raise produce_failed(f"{where}: {ErrorCode(part.error_code).name}")
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
    """The outcome of one append; `leaders` gets the node that leads the partition, if that is reported."""
    version = context.api_version
    part = _produced(data.index, append, context)
    if part.error_code in LEADER_MOVED and version >= _PRODUCE_LEADERS_FROM:
        with suppress(KafkaError):  # deleted meanwhile, while others may have been stored
            asked = resolve(broker, topic.name, topic.topic_id, by_id=version >= _IDS_PRODUCED_FROM)
            point_to_leader(broker, asked, data.index, part.current_leader, leaders)
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
    return ProduceResponse(
        responses=answers, node_endpoints=endpoints(ProduceResponse.NodeEndpoint, leaders, context)
    )


async def _verify(broker: Broker, request: ProduceRequest, version: int) -> Verified:
    """Verify a request with a transactional id."""
    parts = []
    turns = Turns()
    for topic in request.topic_data:
        for data in topic.partition_data:
            await turns.next()
            with suppress(KafkaError):  # `_append` will meet it again
                found = _written(broker, topic, data.index, version)
                parts.append(Part(found, data.index, data.records or b""))
    return await verify(broker, request, version, parts, turns.next)


def _written(broker: Broker, asked: ProduceRequest.TopicProduceData, partition: int, version: int) -> Topic:
    topic = resolve(broker, asked.name, asked.topic_id, by_id=version >= _IDS_PRODUCED_FROM)
    check_written_by_clients(topic, partition)
    return topic


def _append(
    broker: Broker,
    asked: ProduceRequest.TopicProduceData,
    data: ProduceRequest.TopicProduceData.PartitionProduceData,
    version: int,
    verified: Verified | None,
) -> asyncio.Future[Appended]:
    """`verified` is given with a transactional id."""
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


def _timeout_s(request: ProduceRequest) -> float:
    return max(request.timeout_ms / 1000, _WRITE_TIMEOUT_S)


async def _settle(appends: list[asyncio.Future[Appended]], timeout_s: float) -> None:
    """Wait for the appends, but not for ever; those then in flight may still be stored."""
    if pending := [each for each in appends if not each.done()]:
        await asyncio.wait(pending, timeout=timeout_s)


def _produced(index: int, append: asyncio.Future[Appended], context: RequestContext) -> ProducedPartition:
    if not append.done():
        late = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the records were not stored in time")
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
        # For this partition alone: what other partitions stored must not be answered with an error.
        error = unexpected(error, ApiKey.PRODUCE, context.api_version, context.client_id)
    part = entry(ProducedPartition, context.api_version, error, index=index)
    part.record_errors = [
        ProducedPartition.BatchIndexAndErrorMessage(batch_index=at, batch_index_error_message=why)
        for at, why in getattr(error, "record_errors", ())
    ]
    return part


def _retrieve(append: asyncio.Future[Appended]) -> None:
    """Take an outcome that nobody waits for any more, or asyncio complains that it was never retrieved."""
    if not append.cancelled():
        append.exception()


def _without_id() -> KafkaError:
    return KafkaError(
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "a transactional batch without transactional id"
    )


def _needs_to_write_transactions(asking: Asking, request: ProduceRequest) -> KafkaError | None:
    if not has_transactional(request):
        return None
    if request.transactional_id is None:
        return _without_id()
    return transactional_id_refusal(asking, Operation.WRITE, request.transactional_id)


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
)
