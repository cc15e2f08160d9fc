"""A cluster that keeps one producer's transactions as Apache Kafka does (KIP-98, KIP-890), unless a test
wants something else."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, Final, NamedTuple

from muster.client.network.connection import Address
from muster.client.produce.accumulator import ProducerIdentity
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode
from muster.protocol.message import Message
from muster.protocol.messages.data import ProduceRequest, ProduceResponse
from muster.protocol.messages.transactions import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from muster.protocol.record_batch import batches, records
from tests.client.fake_cluster import FakeCluster
from tests.client.listeners import answer, listener, read_request, shake_hands
from tests.client.scripted import Log, Say

LAST_EPOCH: Final = 2**15 - 2
"""The last epoch that a transaction can have: the one after it only fences."""
_VERSIONS: Final = {
    ApiKey.PRODUCE: (3, 12),
    ApiKey.INIT_PRODUCER_ID: (0, 5),
    ApiKey.ADD_PARTITIONS_TO_TXN: (0, 3),
    ApiKey.ADD_OFFSETS_TO_TXN: (0, 4),
    ApiKey.END_TXN: (0, 5),
    ApiKey.TXN_OFFSET_COMMIT: (0, 5),
}
_JOINS_BY_WRITING: Final = {ApiKey.PRODUCE: 12, ApiKey.TXN_OFFSET_COMMIT: 5, ApiKey.END_TXN: 5}
"""From these versions on, the protocol of transaction.version 2 applies."""
_OF_THE_COORDINATOR: Final = frozenset(
    {
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.END_TXN,
        ApiKey.TXN_OFFSET_COMMIT,
    }
)
_WRITES: Final = Say(write=True)


class Asked(NamedTuple):
    """A request to one of the nodes."""

    node: int
    api_key: ApiKey
    version: int
    request: Any


class TransactionCluster(FakeCluster):
    """Topics with one partition, led by node 1. Node `coordinator` is the transaction coordinator, and every
    group's as well. `script` holds the fate of the next requests of an API, in order; later ones are carried
    out."""

    def __init__(self, level: int) -> None:
        super().__init__()
        self.versions |= {int(key): span for key, span in _VERSIONS.items()}
        self.level = level
        """Level of transaction.version, as reported on connections opened from now on."""
        self.script: defaultdict[ApiKey, deque[Say]] = defaultdict(deque)
        self.deaf: set[ApiKey] = set()
        """Requests of these APIs are neither carried out nor answered."""
        self.held: dict[ApiKey, asyncio.Event] = {}
        """Requests of these APIs, and later ones on their connection, wait for the event."""
        self.moves_at: ApiKey | None = None
        """When a request of this API arrives, the coordinator has just moved to the next node."""
        self.seen: list[Asked] = []
        self.identity = ProducerIdentity(100, -1)
        self.committed: list[object] = []
        """Values and offsets of everything that was committed."""
        self.aborted: list[object] = []
        self.ends: list[bool] = []
        """Whether it was a commit, for each end that was carried out."""
        self.identities: list[ProducerIdentity] = []
        """The identities of all batches that were written."""
        self._logs: defaultdict[str, Log] = defaultdict(Log)
        self._pending: list[object] = []
        self._partitions: set[str] = set()
        self._groups: set[str] = set()
        self._before: tuple[ProducerIdentity, bool | None] | None = None
        """The identity whose request led to the present one, and to which end."""
        self._ended = self._before
        """The same, as it is recorded: later coordinators know it, too."""

    @asynccontextmanager
    async def listening(self, *node_ids: int) -> AsyncIterator[list[Address]]:
        async with AsyncExitStack() as stack:
            addresses = [
                await stack.enter_async_context(listener(partial(self._serve, node))) for node in node_ids
            ]
            self.nodes |= dict(zip(node_ids, addresses, strict=True))
            yield addresses

    def requests_of(self, api_key: ApiKey) -> list[Any]:
        return [each.request for each in self.seen if each.api_key is api_key]

    def versions_of(self, api_key: ApiKey) -> list[int]:
        return [each.version for each in self.seen if each.api_key is api_key]

    def hold(self, api_key: ApiKey) -> asyncio.Event:
        return self.held.setdefault(api_key, asyncio.Event())

    def cut(self) -> None:
        """Close every connection."""
        for writer in self.writers:
            writer.close()

    def time_out(self) -> None:
        """Abort the transaction because it took too long: its epoch is over."""
        self._end(commit=False)
        self._before = self._ended = (self.identity, False)
        self.identity = self._next()

    def succeeded_by(self, node: int) -> None:
        """From now on this node is the coordinator. As in Kafka, it fences who asks InitProducerId with the
        epoch before, but answers EndTxn from the record."""
        self.coordinator, self._before = node, None

    async def _serve(self, node: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        await shake_hands(reader, writer, self.versions, {"transaction.version": self.level})
        while True:
            head, request = await read_request(reader)
            api_key = ApiKey(head.api_key)
            self.seen.append(Asked(node, api_key, head.api_version, request))
            if api_key in self.held:
                await self.held[api_key].wait()
            if api_key in self.deaf:
                continue
            if api_key is self.moves_at:
                self.coordinator, self.moves_at = self.coordinator + 1, None
            script = self.script[api_key]
            say = script.popleft() if script else _WRITES
            if api_key in _OF_THE_COORDINATOR and node != self.coordinator:
                say = Say(code=ErrorCode.NOT_COORDINATOR)
            reply = self._answered(api_key, head.api_version, request, say)
            if say.cut:
                return
            if not say.hang:
                answer(writer, head, reply)

    def _answered(self, api_key: ApiKey, version: int, request: Any, say: Say) -> Message:
        if api_key is ApiKey.METADATA:
            return self.metadata(request)
        if api_key is ApiKey.FIND_COORDINATOR:
            return self.found(request)
        by_writing = version >= _JOINS_BY_WRITING.get(api_key, version + 1)
        code = say.code
        if say.write and not code:
            code = self._carry_out(api_key, request, by_writing=by_writing)
        given = ProducerIdentity(-1, -1) if code else self.identity
        match api_key:
            case ApiKey.INIT_PRODUCER_ID:
                return InitProducerIdResponse(
                    error_code=code, producer_id=given.producer_id, producer_epoch=given.epoch
                )
            case ApiKey.ADD_PARTITIONS_TO_TXN:
                return _of_partitions(request, code)
            case ApiKey.ADD_OFFSETS_TO_TXN:
                return AddOffsetsToTxnResponse(error_code=code)
            case ApiKey.TXN_OFFSET_COMMIT:
                return _of_offsets(request, code)
            case ApiKey.PRODUCE:
                return self._of_batches(request, code)
        return EndTxnResponse(error_code=code, producer_id=given.producer_id, producer_epoch=given.epoch)

    # --- what it keeps --------------------------------------------------------------------------------------

    def _carry_out(self, api_key: ApiKey, request: Any, *, by_writing: bool) -> int:
        match api_key:
            case ApiKey.INIT_PRODUCER_ID:
                return self._identify(request)
            case ApiKey.END_TXN:
                return self._end_asked(request, by_writing=by_writing)
            case ApiKey.PRODUCE:
                return self._write(request, by_writing=by_writing)
            case ApiKey.ADD_PARTITIONS_TO_TXN:
                identity = ProducerIdentity(
                    request.v3_and_below_producer_id, request.v3_and_below_producer_epoch
                )
                if identity != self.identity:
                    return ErrorCode.PRODUCER_FENCED
                self._partitions |= {topic.name for topic in request.v3_and_below_topics}
                return 0
        if _identity_of(request) != self.identity:
            return ErrorCode.PRODUCER_FENCED
        if api_key is ApiKey.ADD_OFFSETS_TO_TXN:
            self._groups.add(request.group_id)
            return 0
        if not by_writing and request.group_id not in self._groups:
            return ErrorCode.INVALID_TXN_STATE
        self._groups.add(request.group_id)
        self._pending += [each.committed_offset for topic in request.topics for each in topic.partitions]
        return 0

    @property
    def is_open(self) -> bool:
        return bool(self._partitions or self._groups)

    def _identify(self, request: InitProducerIdRequest) -> int:
        asked = _identity_of(request)
        if asked.producer_id >= 0 and asked != self.identity:
            again = self._before is not None and self._before[0] == asked
            return 0 if again else ErrorCode.PRODUCER_FENCED
        if self.is_open:
            self._end(commit=False)
        self._before = self._ended = (asked, None)
        self.identity = self._next()
        return 0

    def _next(self) -> ProducerIdentity:
        producer_id, epoch = self.identity
        return (
            ProducerIdentity(producer_id + 1, 0)
            if epoch >= LAST_EPOCH
            else ProducerIdentity(producer_id, epoch + 1)
        )

    def _end_asked(self, request: EndTxnRequest, *, by_writing: bool) -> int:
        asked = _identity_of(request)
        if not self.is_open and self._ended == (asked, request.committed):  # a repeat
            return 0
        if asked != self.identity:
            known = by_writing and self._ended is not None and self._ended[0] == asked
            return ErrorCode.INVALID_TXN_STATE if known else ErrorCode.PRODUCER_FENCED
        if not self.is_open and (request.committed or not by_writing):
            return ErrorCode.INVALID_TXN_STATE
        self._end(commit=request.committed)
        self._before = self._ended = (asked, request.committed)
        if by_writing:
            self.identity = self._next()
        return 0

    def _end(self, *, commit: bool) -> None:
        (self.committed if commit else self.aborted).extend(self._pending)
        self.ends.append(commit)
        self._pending = []
        self._partitions, self._groups = set(), set()

    def _write(self, request: ProduceRequest, *, by_writing: bool) -> int:
        for topic in request.topic_data:
            for each in topic.partition_data:
                assert each.records is not None
                ((position, header),) = batches(each.records)
                identity = ProducerIdentity(header.producer_id, header.producer_epoch)
                if identity != self.identity:
                    return ErrorCode.INVALID_PRODUCER_EPOCH
                if not by_writing and topic.name not in self._partitions:
                    return ErrorCode.INVALID_TXN_STATE
                values = [record.value for record in records(each.records, position, header)]
                log = self._logs[topic.name]
                before = len(log.records)
                if code := log.write(identity, header.base_sequence, values):
                    return code
                self._pending += log.records[before:]
                self._partitions.add(topic.name)
                self.identities.append(identity)
        return 0

    def _of_batches(self, request: ProduceRequest, code: int) -> ProduceResponse:
        told = ProduceResponse.TopicProduceResponse
        return ProduceResponse(
            responses=[
                told(
                    name=topic.name,
                    partition_responses=[
                        told.PartitionProduceResponse(
                            index=each.index, error_code=code, base_offset=-1 if code else 0
                        )
                        for each in topic.partition_data
                    ],
                )
                for topic in request.topic_data
            ]
        )


def _identity_of(request: Any) -> ProducerIdentity:
    return ProducerIdentity(request.producer_id, request.producer_epoch)


def _of_partitions(request: AddPartitionsToTxnRequest, code: int) -> AddPartitionsToTxnResponse:
    told = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            told(
                name=topic.name,
                results_by_partition=[
                    told.AddPartitionsToTxnPartitionResult(partition_index=each, partition_error_code=code)
                    for each in topic.partitions
                ],
            )
            for topic in request.v3_and_below_topics
        ]
    )


def _of_offsets(request: TxnOffsetCommitRequest, code: int) -> TxnOffsetCommitResponse:
    told = TxnOffsetCommitResponse.Topic
    return TxnOffsetCommitResponse(
        topics=[
            told(
                name=topic.name,
                partitions=[
                    told.Partition(partition_index=each.partition_index, error_code=code)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
