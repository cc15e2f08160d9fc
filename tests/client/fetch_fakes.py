"""An in-memory cluster for fetchers: logs of real batches, brokers that answer Fetch, ListOffsets and
OffsetForLeaderEpoch, and whatever may go wrong with them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from muster.client.errors import ClientError
from muster.client.fetch.fetcher import Fetcher, FetchSettings, RawBatch, Reset
from muster.client.fetch.positions import EARLIEST, Position
from muster.client.fetch.records import ConsumerRecord
from muster.client.network.cluster import Cluster
from muster.client.network.connection import Versioned, deadline
from muster.client.network.metadata import MetadataImage, Node, PartitionImage, TopicImage
from muster.client.partitions import TopicPartition
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.message import Message
from muster.protocol.messages.data import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from muster.protocol.messages.metadata import MetadataResponse
from muster.protocol.record_batch import Record, build, peek
from muster.protocol.types import ZERO_UUID

LONG_S = 60.0
T0, T1, T2 = (TopicPartition("t", index) for index in range(3))
NEWEST_FETCH = 18

Part = FetchResponse.FetchableTopicResponse.PartitionData


def batch(offset: int, *values: bytes, epoch: int = 0, **how: Any) -> bytes:
    """A batch of records with these values, from this offset on."""
    records = [
        Record(offset + index, 1000 + offset + index, b"k", value) for index, value in enumerate(values)
    ]
    return build(records, leader_epoch=epoch, **how)


@dataclass
class Log:
    """A partition: its batches, and what its leader reports about it."""

    batches: list[bytes] = field(default_factory=list)
    start: int = 0
    local_start: int | None = None
    """Where what is not only in remote storage begins, if not at the start"""
    leader: int = 1
    leader_epoch: int = 0
    last_stable_offset: int | None = None
    aborted: list[tuple[int, int]] = field(default_factory=list)
    """(producer id, first offset)"""
    refuses: list[ErrorCode] = field(default_factory=list)
    """Error codes that the next fetches get."""
    diverging: tuple[int, int] | None = None
    """(epoch, end offset), reported once"""
    preferred: int = -1
    replicas: set[int] = field(default_factory=set)
    """Other nodes that answer for it"""
    hint: tuple[int, int] | None = None
    """(leader, epoch), reported with a refusal"""
    raw: bytes | None = None
    """Returned once instead of the log's contents"""

    @property
    def end(self) -> int:
        return peek(self.batches[-1]).next_offset if self.batches else self.start


class FakeCluster(Cluster):
    """What a fetcher needs of a Cluster. `requests` holds all requests sent, with node and lane."""

    def __init__(
        self, counts: dict[str, int], *, version: int = NEWEST_FETCH, nodes: Iterable[int] = (1,)
    ) -> None:
        super().__init__([], patient=True)  # as a consumer has it
        self.version = version
        self.logs = {TopicPartition(t, i): Log() for t, count in counts.items() for i in range(count)}
        self.ids = {topic: uuid.uuid4() for topic in counts}
        self.nodes = {node: Node(node, "127.0.0.1", 1000 + node) for node in nodes}
        self.requests: list[tuple[Message, int, str]] = []
        self.refreshed: list[set[str]] = []
        self.hangs: set[int] = set()
        """Nodes that do not answer a Fetch until `released`."""
        self.released = asyncio.Event()
        self.fails: dict[int, ClientError] = {}
        """Nodes that cannot be reached."""
        self.missing: dict[str, ErrorCode] = {}
        """Topics for which Metadata returns an error."""
        self.response_errors: list[ErrorCode] = []
        """Top-level error codes of the next Fetch responses."""
        self.has_sessions = False
        """Whether brokers open fetch sessions, and list only what has news in them."""
        self._kept: dict[int, dict[TopicPartition, FetchRequest.FetchPartition]] = {}
        self.throttle_ms = 0
        self.withholds = False
        """Whether a quota holds back what brokers answer in a session."""
        self.withheld: set[TopicPartition] = set()
        """Partitions that such answers were about."""
        self.changed = asyncio.Event()

    def tell(self) -> None:
        """Make brokers check their logs again."""
        self.changed.set()
        self.changed = asyncio.Event()

    def append(self, where: TopicPartition, *batches: bytes) -> None:
        self.logs[where].batches += batches
        self.tell()

    @property
    def fetches(self) -> list[FetchRequest]:
        return [request for request, _, _ in self.requests if isinstance(request, FetchRequest)]

    def learn(self) -> None:
        """Update the image to the cluster's state."""
        topics = {}
        for topic, topic_id in self.ids.items():
            if topic not in self.missing:
                parts = {
                    where.partition: PartitionImage(log.leader, log.leader_epoch, (), (), ())
                    for where, log in self.logs.items()
                    if where.topic == topic
                }
                topics[topic] = TopicImage(topic, topic_id, False, parts)
        self.image = MetadataImage(self.nodes, topics)

    # --- what a fetcher calls -------------------------------------------------------------------------------

    async def refresh(self, topics: Iterable[str] | None, until: float) -> MetadataResponse:
        await asyncio.sleep(0)
        asked = set(topics or ())
        self.refreshed.append(asked)
        self.learn()
        told = [
            MetadataResponse.Topic(name=topic, error_code=code, partitions=[])
            for topic, code in self.missing.items()
            if topic in asked
        ]
        return MetadataResponse(brokers=[], topics=told)

    async def metadata(
        self, topics: Iterable[str] | None, until: float, *, create: bool = False
    ) -> MetadataResponse:
        await asyncio.sleep(0)
        partitions: dict[str, list[MetadataResponse.Partition]] = {}
        for where, log in self.logs.items():
            partition = MetadataResponse.Partition(
                partition_index=where.partition, leader_id=log.leader, replica_nodes=[], isr_nodes=[]
            )
            partitions.setdefault(where.topic, []).append(partition)
        told = [
            MetadataResponse.Topic(name=topic, error_code=self.missing[topic], partitions=[])
            if topic in self.missing
            else MetadataResponse.Topic(name=topic, topic_id=topic_id, partitions=partitions[topic])
            for topic, topic_id in self.ids.items()
            if topics is None or topic in topics
        ]
        brokers = [
            MetadataResponse.Broker(node_id=each.node_id, host=each.host, port=each.port)
            for each in self.nodes.values()
        ]
        return MetadataResponse(brokers=brokers, topics=told)

    async def connection(self, node: int, until: float, lane: str = "") -> Any:
        cluster = self

        class Connected:
            def version_of(self, api_key: ApiKey, last_version: int | None = None) -> int:
                return min(cluster.version, last_version or NEWEST_FETCH)

        return Connected()

    async def call(
        self, request: Any, until: float, *, node: int = -1, lane: str = "", last_version: int | None = None
    ) -> Any:
        version = 0
        if isinstance(request, Versioned):
            version = min(self.version, request.last_version)
            request = request.build(version)
        self.requests.append((request, node, lane))
        await asyncio.sleep(0)
        if node in self.fails:
            raise self.fails[node]
        match request:
            case FetchRequest():
                return await self._fetch(request, node, version)
            case ListOffsetsRequest():
                return self._list_offsets(request, node)
            case OffsetForLeaderEpochRequest():
                return self._end_of_epochs(request)
        raise AssertionError(f"a fetcher does not send {request}")

    # --- answers --------------------------------------------------------------------------------------------

    async def _fetch(self, request: FetchRequest, node: int, version: int) -> FetchResponse:
        if node in self.hangs:
            await self.released.wait()
            if node in self.fails:
                raise self.fails[node]
        if self.response_errors:
            return FetchResponse(error_code=self.response_errors.pop(0), responses=[])
        names = {topic_id: name for name, topic_id in self.ids.items()}
        if self.has_sessions:
            self._continue(request, node, names)
            if self.withholds and request.session_epoch > 0:
                self.withheld |= self._kept[node].keys()
                return FetchResponse(responses=[], session_id=1, throttle_time_ms=1)
        until = deadline(request.max_wait_ms / 1000)
        while True:
            changed, topics, news = self.changed, [], False
            for asked in request.topics:
                assert (asked.topic_id != ZERO_UUID) or version < 13
                name = asked.topic if version < 13 else names.get(asked.topic_id, "")
                parts = [
                    self._part(TopicPartition(name, each.partition), each, node, request)
                    for each in asked.partitions
                ]
                news |= any(map(_has_news, parts))
                if self.has_sessions and request.session_epoch > 0:
                    parts = list(filter(_has_news, parts))
                topics.append(
                    FetchResponse.FetchableTopicResponse(
                        topic=name if version < 13 else "",
                        topic_id=asked.topic_id if version >= 13 else ZERO_UUID,
                        partitions=parts,
                    )
                )
            if news or deadline(0) >= until:
                endpoints = [
                    FetchResponse.NodeEndpoint(node_id=each.node_id, host=each.host, port=each.port)
                    for each in self.nodes.values()
                ]
                return FetchResponse(
                    responses=topics,
                    session_id=1 if self.has_sessions else 0,
                    node_endpoints=endpoints,
                    throttle_time_ms=self.throttle_ms,
                )
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await changed.wait()

    def _continue(self, request: FetchRequest, node: int, names: dict[uuid.UUID, str]) -> None:
        """Complete an incremental Fetch by what the node's session knows."""
        kept = self._kept.setdefault(node, {})
        if request.session_epoch == 0:
            kept.clear()
        for topic in request.topics:
            for each in topic.partitions:
                kept[TopicPartition(names[topic.topic_id], each.partition)] = each
        for gone in request.forgotten_topics_data:
            for partition in gone.partitions:
                kept.pop(TopicPartition(names[gone.topic_id], partition), None)
        request.topics = [
            FetchRequest.FetchTopic(topic_id=self.ids[where.topic], partitions=[each])
            for where, each in kept.items()
        ]

    def _part(
        self, where: TopicPartition, asked: FetchRequest.FetchPartition, node: int, request: FetchRequest
    ) -> Part:
        log = self.logs.get(where)
        if log is None:
            return self._refusal(asked, ErrorCode.UNKNOWN_TOPIC_ID)
        if log.refuses:
            part = self._refusal(asked, log.refuses.pop(0))
            if log.hint:
                part.current_leader.leader_id, part.current_leader.leader_epoch = log.hint
            return part
        if node not in (log.leader, log.preferred, *log.replicas):
            return self._refusal(asked, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if log.diverging is not None:
            part = self._part_of(asked, log, b"")
            (part.diverging_epoch.epoch, part.diverging_epoch.end_offset), log.diverging = log.diverging, None
            return part
        if not log.start <= asked.fetch_offset <= log.end:
            return self._refusal(asked, ErrorCode.OFFSET_OUT_OF_RANGE, log.start)
        if log.preferred not in (-1, node):
            part = self._part_of(asked, log, b"")
            part.preferred_read_replica = log.preferred
            return part
        data = bytearray()
        for each in log.batches:
            if peek(each).next_offset > asked.fetch_offset:
                if data and len(data) + len(each) > asked.partition_max_bytes:
                    break
                data += each
        if log.raw is not None and asked.fetch_offset < log.end:
            data, log.raw = bytearray(log.raw), None
        part = self._part_of(asked, log, bytes(data))
        if request.isolation_level:
            part.aborted_transactions = [
                FetchResponse.AbortedTransaction(producer_id=producer, first_offset=first)
                for producer, first in log.aborted
            ]
        return part

    def _part_of(self, asked: FetchRequest.FetchPartition, log: Log, data: bytes) -> Part:
        return Part(
            partition_index=asked.partition,
            high_watermark=log.end,
            last_stable_offset=log.end if log.last_stable_offset is None else log.last_stable_offset,
            log_start_offset=log.start,
            aborted_transactions=None,
            records=data,
        )

    def _refusal(self, asked: FetchRequest.FetchPartition, code: ErrorCode, log_start: int = -1) -> Part:
        return Part(
            partition_index=asked.partition,
            error_code=code,
            high_watermark=-1,
            log_start_offset=log_start,
            aborted_transactions=None,
            records=None,
        )

    def _list_offsets(self, request: ListOffsetsRequest, node: int) -> ListOffsetsResponse:
        answer = ListOffsetsResponse.ListOffsetsPartitionResponse
        topics = []
        for topic in request.topics:
            parts = []
            for each in topic.partitions:
                log = self.logs[TopicPartition(topic.name, each.partition_index)]
                local_start = log.start if log.local_start is None else log.local_start
                offset, error = {-1: log.end, -2: log.start, -4: local_start}.get(each.timestamp, -1), 0
                if each.timestamp >= 0:
                    offset = next(
                        (
                            peek(data).base_offset
                            for data in log.batches
                            if peek(data).max_timestamp >= each.timestamp
                        ),
                        -1,
                    )
                if node != log.leader:
                    offset, error = -1, ErrorCode.NOT_LEADER_OR_FOLLOWER
                parts.append(
                    answer(
                        partition_index=each.partition_index,
                        error_code=error,
                        offset=offset,
                        leader_epoch=log.leader_epoch,
                    )
                )
            topics.append(ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name, partitions=parts))
        return ListOffsetsResponse(topics=topics)

    def _end_of_epochs(self, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
        """The largest epoch in the log that is not above the requested one, and its end."""
        result = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
        topics = []
        for topic in request.topics:
            parts = []
            for each in topic.partitions:
                log = self.logs[TopicPartition(topic.topic, each.partition)]
                told = [peek(data) for data in log.batches if peek(data).leader_epoch <= each.leader_epoch]
                parts.append(
                    result.EpochEndOffset(
                        partition=each.partition,
                        leader_epoch=told[-1].leader_epoch if told else -1,
                        end_offset=told[-1].next_offset if told else -1,
                    )
                )
            topics.append(result(topic=topic.topic, partitions=parts))
        return OffsetForLeaderEpochResponse(topics=topics)


def _has_news(part: Part) -> bool:
    return bool(
        part.error_code or part.records or part.diverging_epoch.epoch >= 0 or part.preferred_read_replica >= 0
    )


def one_topic(count: int = 1, **how: Any) -> FakeCluster:
    """A cluster with a topic t of `count` partitions."""
    return FakeCluster({"t": count}, **how)


class Reader:
    """A fetcher on a fake cluster, and its resets."""

    def __init__(self, cluster: FakeCluster, **settings: Any) -> None:
        self.cluster = cluster
        self.resets: list[Reset] = []
        settings = {"reset": EARLIEST, "max_wait_ms": 200, **settings}
        self.fetcher = Fetcher(cluster, FetchSettings(**settings), on_reset=self.resets.append)

    async def __aenter__(self) -> Reader:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.fetcher.close()

    def begin(self, *partitions: TopicPartition) -> None:
        """Assign these partitions, each at offset 0."""
        self.fetcher.set_assigned(partitions)
        for each in partitions:
            self.fetcher.seek(each, Position(0))

    async def read(
        self, count: int, max_records: int = 500
    ) -> list[ConsumerRecord[bytes | None, bytes | None]]:
        """Read at least `count` records."""
        records: list[ConsumerRecord[bytes | None, bytes | None]] = []
        async with asyncio.timeout(LONG_S):
            while len(records) < count:
                for each in await self.fetcher.poll(max_records, LONG_S):
                    records += each.records
        return records

    async def values(self, count: int) -> list[bytes | None]:
        return [record.value for record in await self.read(count)]

    async def raised(self, kind: type[Exception]) -> Any:
        """The error that polling raises before there are records."""
        async with asyncio.timeout(LONG_S):
            try:
                got: list[RawBatch] = await self.fetcher.poll(500, LONG_S)
            except kind as error:
                return error
        raise AssertionError(f"{got} in place of {kind.__name__}")


__all__ = ["LONG_S", "T0", "T1", "T2", "FakeCluster", "KafkaError", "Log", "Reader", "batch", "one_topic"]
