"""A cluster of brokers that store what a producer sends as Apache Kafka does, and otherwise answer as a test
wants."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from muster.client.network.connection import Address
from muster.client.produce.accumulator import ProducerIdentity
from muster.protocol.errors import ErrorCode
from muster.protocol.message import Message
from muster.protocol.messages.data import ProduceRequest, ProduceResponse
from muster.protocol.messages.metadata import MetadataRequest, MetadataResponse
from muster.protocol.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from muster.protocol.record_batch import NO_PRODUCER_ID, advance_sequence, batches, records
from tests.client.listeners import answer, listener, read_request, shake_hands

PartitionAnswer = ProduceResponse.TopicProduceResponse.PartitionProduceResponse
VERSIONS = {0: (3, 13), 3: (0, 13), 18: (0, 4), 22: (0, 5)}


class Log:
    """A partition's records, and what it knows of its one producer (KIP-98)."""

    def __init__(self) -> None:
        self.records: list[object] = []
        self.identity: ProducerIdentity | None = None
        self.written: list[tuple[int, int, int]] = []
        """First sequence, count and offset of the last five batches."""

    def write(self, identity: ProducerIdentity, sequence: int, added: Sequence[object]) -> ErrorCode:
        """A broker's answer to a batch; a duplicate is no error and is not added."""
        if identity.producer_id != NO_PRODUCER_ID:
            if identity == self.identity:
                if self.offset_of(sequence, len(added)) is not None:
                    return ErrorCode.NONE
                last, count, _ = self.written[-1]
                if sequence != advance_sequence(last, count):
                    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            else:
                if self.identity is not None and identity.producer_id == self.identity.producer_id:
                    if identity.epoch < self.identity.epoch:
                        return ErrorCode.INVALID_PRODUCER_EPOCH
                    if sequence:
                        return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
                self.identity, self.written = identity, []
        self.written = [*self.written[-4:], (sequence, len(added), len(self.records))]
        self.records += added
        return ErrorCode.NONE

    def offset_of(self, sequence: int, count: int) -> int | None:
        """Offset of the batch, if it is one of the last five."""
        at = [offset for first, size, offset in self.written if (first, size) == (sequence, count)]
        return at[0] if at else None


@dataclass(frozen=True)
class Say:
    """What to do with a batch instead of writing and acknowledging it."""

    code: int = 0
    write: bool = False
    """Write it all the same."""
    hang: bool = False
    """Do not answer the request."""
    cut: bool = False
    """Close the connection instead of answering."""
    leave_out: bool = False
    """Leave the partition out of the answer."""
    throttle_ms: int = 0
    leader: int = -1
    """The leader that the answer names, with its address (KIP-951)."""
    leader_epoch: int = -1


@dataclass
class Scripted:
    """Topic t, with the leaders in `leaders` (-1: none). `script` holds the fate of the next batches of
    partition 0, in order."""

    leaders: list[int] = field(default_factory=lambda: [1])
    script: deque[Say] = field(default_factory=deque)
    versions: dict[int, tuple[int, int]] = field(default_factory=lambda: dict(VERSIONS))
    topic_error: int = 0
    identity_errors: deque[int] = field(default_factory=deque)
    nodes: dict[int, Address] = field(default_factory=dict)
    logs: list[Log] = field(default_factory=list)
    requests: Counter[int] = field(default_factory=Counter)
    """Number of requests by API, except ApiVersions."""
    seen: list[tuple[int, int, int, int, int, list[bytes | None]]] = field(default_factory=list)
    """For every batch: node, partition, producer id, epoch, sequence, values."""
    produced_at: list[float] = field(default_factory=list)
    foreign: set[int] = field(default_factory=set)
    """APIs whose next request is answered in another protocol than Kafka's."""
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    leader_epoch: int = 0
    answering: asyncio.Event = field(default_factory=asyncio.Event)
    """Node 1 answers Produce only while this is set."""

    def __post_init__(self) -> None:
        self.answering.set()

    @asynccontextmanager
    async def listening(self, *node_ids: int) -> AsyncIterator[str]:
        """Listen as these nodes; yields the bootstrap servers."""
        self.logs = [Log() for _ in self.leaders]
        async with AsyncExitStack() as stack:
            for node_id in node_ids or (1,):
                self.nodes[node_id] = await stack.enter_async_context(listener(partial(self._serve, node_id)))
            yield ",".join(map(str, self.nodes.values()))

    def cut(self) -> None:
        """Close every connection."""
        for writer in self.writers:
            writer.close()

    def lead(self, node_id: int, partition: int = 0) -> None:
        """Make this node the leader of the partition."""
        while len(self.logs) < max(partition + 1, len(self.leaders)):
            self.logs.append(Log())
        self.leaders[partition : partition + 1] = [node_id]
        self.leader_epoch += 1

    async def _serve(self, node_id: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        await shake_hands(reader, writer, self.versions)
        while True:
            head, request = await read_request(reader)
            self.requests[head.api_key] += 1
            if head.api_key in self.foreign:
                self.foreign.remove(head.api_key)
                writer.write(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
                continue
            reply: Message | None
            if isinstance(request, MetadataRequest):
                reply = self._metadata(request)
            elif isinstance(request, InitProducerIdRequest):
                reply = self._identify()
            else:
                assert isinstance(request, ProduceRequest)
                reply = self._produce(node_id, request)
                if node_id == 1:
                    await self.answering.wait()
                if reply is None and not self._hung:
                    return
                if reply is None or request.acks == 0:
                    continue
            answer(writer, head, reply)

    def _identify(self) -> InitProducerIdResponse:
        code = self.identity_errors.popleft() if self.identity_errors else 0
        return InitProducerIdResponse(error_code=code, producer_id=100 + self.requests[22], producer_epoch=0)

    def _metadata(self, request: MetadataRequest) -> MetadataResponse:
        topics = []
        for each in request.topics or []:
            partitions = [
                MetadataResponse.Topic.Partition(
                    partition_index=number,
                    leader_id=leader,
                    leader_epoch=self.leader_epoch,
                    replica_nodes=list(self.nodes),
                    isr_nodes=list(self.nodes),
                )
                for number, leader in enumerate(self.leaders)
            ]
            topics.append(
                MetadataResponse.Topic(
                    name=each.name,
                    error_code=self.topic_error,
                    partitions=[] if self.topic_error else partitions,
                )
            )
        nodes = [
            MetadataResponse.Broker(node_id=number, host=host, port=port)
            for number, (host, port) in self.nodes.items()
        ]
        return MetadataResponse(brokers=nodes, topics=topics, controller_id=min(self.nodes))

    def _produce(self, node_id: int, request: ProduceRequest) -> ProduceResponse | None:
        """None: no answer; `_hung` says whether the connection stays open."""
        self.produced_at.append(asyncio.get_running_loop().time())
        self._hung = False
        topics, throttle_ms, silent = [], 0, False
        endpoints = []
        for topic in request.topic_data:
            parts = []
            for each in topic.partition_data:
                say = self.script.popleft() if each.index == 0 and self.script else Say(write=True)
                parts += [] if say.leave_out else [self._write(node_id, each, say)]
                if say.leave_out and say.write:
                    self._write(node_id, each, say)
                throttle_ms = max(throttle_ms, say.throttle_ms)
                silent = silent or say.hang or say.cut
                self._hung = self._hung or say.hang
                if say.leader >= 0:
                    host, port = self.nodes[say.leader]
                    endpoints.append(
                        ProduceResponse.NodeEndpoint(node_id=say.leader, host=host, port=port, rack=None)
                    )
            topics.append(ProduceResponse.TopicProduceResponse(name=topic.name, partition_responses=parts))
        if silent:
            return None
        return ProduceResponse(responses=topics, throttle_time_ms=throttle_ms, node_endpoints=endpoints)

    def _write(
        self, node_id: int, sent: ProduceRequest.TopicProduceData.PartitionProduceData, say: Say
    ) -> PartitionAnswer:
        assert sent.records is not None
        ((position, header),) = batches(sent.records)
        values = [each.value for each in records(sent.records, position, header)]
        log = self.logs[sent.index]
        self.seen.append(
            (node_id, sent.index, header.producer_id, header.producer_epoch, header.base_sequence, values)
        )
        code, offset = say.code, -1
        if say.write and not code and self.leaders[sent.index] != node_id:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif say.write:
            offset = len(log.records)
            written = log.write(
                ProducerIdentity(header.producer_id, header.producer_epoch), header.base_sequence, values
            )
            if header.base_sequence >= 0 and not written:
                repeated = log.offset_of(header.base_sequence, len(values))
                offset = offset if repeated is None else repeated
            code = code or written
        told = PartitionAnswer(index=sent.index, error_code=code, base_offset=-1 if code else offset)
        told.current_leader.leader_id, told.current_leader.leader_epoch = say.leader, say.leader_epoch
        return told
