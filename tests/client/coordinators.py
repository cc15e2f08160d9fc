"""A broker that answers group requests as a test specifies, by api key, in `answers`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

from muster.client.network.connection import Address
from muster.protocol import api
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode
from muster.protocol.message import Message
from muster.protocol.messages.classic_group import (
    HeartbeatResponse,
    JoinGroupRequest,
    LeaveGroupResponse,
    SyncGroupResponse,
)
from muster.protocol.messages.connection import ApiVersionsResponse
from muster.protocol.messages.metadata import FindCoordinatorResponse, MetadataResponse
from muster.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from tests.client.listeners import answer, listener, read_request, shake_hands
from tests.client.memberships import joined, partitions, synced

NODE: Final = 1


class Silent:
    """No answer, and the connection is not read any further."""


class Hangs:
    """No answer to this request; later ones on the connection are answered."""


class Cuts:
    """The connection is closed instead of answered."""


SILENT, HANGS, CUTS = Silent(), Hangs(), Cuts()


class Asked(NamedTuple):
    """A request, and the connection it arrived on."""

    api_key: ApiKey
    version: int
    request: Any
    connection: int


class Coordinator:
    """`answers` maps an api key to the reaction to its requests: a message, SILENT, HANGS, CUTS, or a
    function of the request that returns one of these, or an awaitable of one."""

    def __init__(self) -> None:
        self.address = Address("", 0)
        self.asked: list[Asked] = []
        self.versions = {int(key): (api.versions(key).first, api.versions(key).last) for key in _SPOKEN}
        # If there are several layouts, the one for a single group.
        self.versions |= {int(ApiKey.FIND_COORDINATOR): (0, 3), int(ApiKey.OFFSET_FETCH): (1, 7)}
        self.answers: dict[ApiKey, Any] = {
            ApiKey.METADATA: self.metadata,
            ApiKey.FIND_COORDINATOR: self.found,
            ApiKey.JOIN_GROUP: lets_in,
            ApiKey.SYNC_GROUP: synced(partitions(0, 1)),
            ApiKey.HEARTBEAT: HeartbeatResponse(),
            ApiKey.LEAVE_GROUP: LeaveGroupResponse(),
            ApiKey.OFFSET_COMMIT: lambda request: committed(request, 0),
            ApiKey.OFFSET_FETCH: lambda request: fetched(request),
        }
        self._connections = 0

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Coordinator]:
        async with listener(self._handle) as address:
            self.address = address
            yield self

    @property
    def bootstrap(self) -> list[Address]:
        return [self.address]

    def requests(self, api_key: ApiKey) -> list[Any]:
        return [each.request for each in self.asked if each.api_key is api_key]

    def connections(self, api_key: ApiKey) -> set[int]:
        """The connections on which requests of this kind arrived."""
        return {each.connection for each in self.asked if each.api_key is api_key}

    def metadata(self, _: Message) -> MetadataResponse:
        broker = MetadataResponse.Broker(node_id=NODE, host=self.address.host, port=self.address.port)
        partition = MetadataResponse.Topic.Partition
        topic = MetadataResponse.Topic(
            name="t",
            partitions=[
                partition(partition_index=each, leader_id=NODE, replica_nodes=[NODE], isr_nodes=[NODE])
                for each in range(2)
            ],
        )
        return MetadataResponse(brokers=[broker], topics=[topic])

    def found(self, _: Message) -> FindCoordinatorResponse:
        return FindCoordinatorResponse(node_id=NODE, host=self.address.host, port=self.address.port)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        connection = self._connections
        await shake_hands(reader, writer, self.versions)
        while True:
            head, request = await read_request(reader)
            api_key = ApiKey(head.api_key)
            self.asked.append(Asked(api_key, head.api_version, request, connection))
            if api_key is ApiKey.API_VERSIONS:
                wanted: Any = self.answers.get(api_key, ApiVersionsResponse(api_keys=[]))
            else:
                wanted = self.answers[api_key]
            if callable(wanted):
                wanted = wanted(request)
            if asyncio.iscoroutine(wanted) or isinstance(wanted, asyncio.Future):
                wanted = await wanted
            match wanted:
                case Silent():
                    await asyncio.get_running_loop().create_future()
                case Hangs():
                    continue
                case Cuts():
                    return
                case _:
                    answer(writer, head, wanted)
                    await writer.drain()


_SPOKEN: Final = (
    ApiKey.API_VERSIONS,
    ApiKey.METADATA,
    ApiKey.FIND_COORDINATOR,
    ApiKey.JOIN_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.LEAVE_GROUP,
    ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_FETCH,
)


def lets_in(request: JoinGroupRequest) -> Message:
    """Let it join generation 1, as a follower."""
    return joined(1, request.member_id or "m", leader="other", protocol=request.protocols[0].name)


def committed(request: OffsetCommitRequest, *codes: int) -> OffsetCommitResponse:
    """An error code for each partition, in order; the last one repeats."""
    left = list(codes)
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponse.Topic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponse.Partition(
                        partition_index=each.partition_index,
                        error_code=left.pop(0) if len(left) > 1 else left[0],
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def fetched(
    request: OffsetFetchRequest, offset: int = 5, code: int = 0, of_partition: int = 0
) -> OffsetFetchResponse:
    return OffsetFetchResponse(
        error_code=code,
        topics=[
            OffsetFetchResponse.Topic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponse.Partition(
                        partition_index=each,
                        committed_offset=offset,
                        committed_leader_epoch=2,
                        metadata="note",
                        error_code=of_partition,
                    )
                    for each in topic.partition_indexes
                ],
            )
            for topic in request.topics or []
        ],
    )


def one_after_the_other(*wanted: Any) -> Callable[[Any], Any]:
    """Answer the first request with the first of these, and so on; the last one repeats."""
    left = list(wanted)

    def next_one(request: Any) -> Any:
        each = left.pop(0) if len(left) > 1 else left[0]
        return each(request) if callable(each) else each

    return next_one


REBALANCING: Final = HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
LEFT_OUT: Final = SyncGroupResponse(assignment=b"")
