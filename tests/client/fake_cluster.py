"""Brokers that report about a cluster whatever a test wants, and count the requests."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from muster.client.network.connection import Address
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.metadata import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from muster.protocol.messages.offsets import OffsetFetchResponse
from tests.client.listeners import answer, listener, read_request, shake_hands

VERSIONS = {18: (0, 4), 3: (0, 13), 10: (0, 6)}


class FakeCluster:
    """`nodes` is what Metadata returns: node id to address. `leaders` has leader and leader epoch of each
    topic's only partition; every requested topic exists, except those in `missing`."""

    def __init__(self) -> None:
        self.nodes: dict[int, Address] = {}
        self.leaders: dict[str, tuple[int, int]] = {}
        self.missing: set[str] = set()
        self.coordinator = 1
        self.metadata_error = ErrorCode.NONE
        self.asked: list[list[str] | None] = []
        """The topics of each Metadata request."""
        self.requests: Counter[int] = Counter()
        """Number of requests by API, except ApiVersions."""
        self.accepted = 0
        self.writers: list[asyncio.StreamWriter] = []
        self.answering = asyncio.Event()
        """Metadata is answered only while this is set."""
        self.answering.set()
        self.versions = dict(VERSIONS)

    @asynccontextmanager
    async def listening(self, *node_ids: int) -> AsyncIterator[list[Address]]:
        """Listen, as the cluster's nodes with these ids."""
        async with AsyncExitStack() as stack:
            addresses = [await stack.enter_async_context(listener(self.serve)) for _ in node_ids]
            self.nodes |= dict(zip(node_ids, addresses, strict=True))
            yield addresses

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self.writers.append(writer)
        await shake_hands(reader, writer, self.versions)
        while True:
            head, request = await read_request(reader)
            self.requests[head.api_key] += 1
            if head.api_key == ApiKey.METADATA:
                assert isinstance(request, MetadataRequest)
                await self.answering.wait()
                answer(writer, head, self.metadata(request))
            elif head.api_key == ApiKey.OFFSET_FETCH:  # of one group, which has committed nothing
                answer(writer, head, OffsetFetchResponse())
            else:
                assert isinstance(request, FindCoordinatorRequest)
                answer(writer, head, self.found(request))

    def metadata(self, request: MetadataRequest) -> MetadataResponse:
        names = None if request.topics is None else [str(topic.name) for topic in request.topics]
        self.asked.append(names)
        if self.metadata_error:
            return MetadataResponse(brokers=[], topics=[], error_code=self.metadata_error)
        brokers = [
            MetadataResponse.Broker(node_id=node, host=address.host, port=address.port)
            for node, address in self.nodes.items()
        ]
        topics = [self.topic(name) for name in (sorted(self.leaders) if names is None else names)]
        return MetadataResponse(brokers=brokers, cluster_id="fake", controller_id=1, topics=topics)

    def topic(self, name: str) -> MetadataResponse.Topic:
        if name in self.missing:
            return MetadataResponse.Topic(
                error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name, partitions=[]
            )
        leader, leader_epoch = self.leaders.get(name, (min(self.nodes, default=1), 1))
        partition = MetadataResponse.Topic.Partition(
            partition_index=0,
            leader_id=leader,
            leader_epoch=leader_epoch,
            replica_nodes=[leader],
            isr_nodes=[leader],
        )
        return MetadataResponse.Topic(
            name=name, topic_id=uuid.uuid5(uuid.NAMESPACE_DNS, name), partitions=[partition]
        )

    def found(self, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
        where: dict[str, Any] = {"node_id": self.coordinator, "host": "", "port": -1}
        if self.coordinator in self.nodes:
            where |= self.nodes[self.coordinator]._asdict()
        if not request.coordinator_keys:
            return FindCoordinatorResponse(**where)
        return FindCoordinatorResponse(
            coordinators=[
                FindCoordinatorResponse.Coordinator(key=key, **where) for key in request.coordinator_keys
            ]
        )
