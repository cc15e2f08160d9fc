"""Load from raw connections: frames that were built before, a bare asyncio.Protocol on uvloop, nothing more.

A load runs in a process of its own (`processes.load`), so that the server's CPU time is the server's alone.
"""

from __future__ import annotations

import asyncio
import resource
import ssl
import struct
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import uvloop

from muster.protocol.api import ApiKey, response_class
from muster.protocol.codec import decode
from muster.protocol.errors import ErrorCode
from muster.protocol.header import decode_response_header, encode_request
from muster.protocol.message import Message
from muster.protocol.messages.classic_group import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from muster.protocol.messages.connection import ApiVersionsRequest
from muster.protocol.messages.offsets import OffsetCommitRequest, OffsetFetchRequest

T = TypeVar("T")

JOIN_VERSION: Final = 9
SYNC_VERSION: Final = 5
HEARTBEAT_VERSION: Final = 4
LEAVE_VERSION: Final = 5


class Versions(NamedTuple):
    """Of the requests that members send."""

    join: int = JOIN_VERSION
    sync: int = SYNC_VERSION
    heartbeat: int = HEARTBEAT_VERSION
    leave: int = LEAVE_VERSION


PROTOCOL_TYPE, PROTOCOL = "consumer", "range"
METADATA: Final = b"\x00\x01\x00\x00\x00\x01\x00\x06orders\xff\xff\xff\xff\x00\x00\x00\x00"
"""A ConsumerProtocolSubscription v1 to one topic."""
ASSIGNMENT: Final = b"\x00\x01\x00\x00\x00\x01\x00\x06orders\x00\x00\x00\x01\x00\x00\x00\x00\xff\xff\xff\xff"
"""A ConsumerProtocolAssignment v1 of one partition."""

_SIZE: Final = struct.Struct(">i")
_CORRELATION: Final = struct.Struct(">i")
_CONNECTS_AT_ONCE: Final = 50
_CONNECT_SECONDS_MAX: Final = 60.0
_RETRY_S: Final = 0.02
_AGAIN: Final = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
"""What a member joins again after, as clients do; a store that is too slow makes a coordinator
unavailable."""
_BATCHED_LEAVE: Final = 3
"""The first LeaveGroup that names several members."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a load on uvloop, with as many open files as are allowed."""
    _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


class Link(asyncio.Protocol):
    """One connection. `on_frame(frame)` gets each response, without its size; set it before sending."""

    __slots__ = ("_pending", "_waiter", "lost", "on_frame", "transport", "write")

    def __init__(self) -> None:
        self._pending = b""
        self._waiter: asyncio.Future[bytes] | None = None
        self.lost = False
        self.on_frame: Callable[[bytes], None] = self._waited

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.write: Callable[[bytes], None] = transport.write  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        if self._pending:
            data = self._pending + data
            self._pending = b""
        at, end = 0, len(data)
        while end - at >= 4:
            stop = at + 4 + _SIZE.unpack_from(data, at)[0]
            if stop > end:
                break
            self.on_frame(data[at + 4 : stop])
            at = stop
        if at < end:
            self._pending = data[at:]

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(ConnectionError("the server hung up"))

    def _waited(self, frame: bytes) -> None:
        assert self._waiter is not None, "a response nobody asked for"
        self._waiter.set_result(frame)

    async def call(self, request: Message, version: int, *, client_id: str = "bench") -> Any:
        """Send one request and return its response, decoded; only while nothing else is in flight."""
        api_key = request.__schema__.api_key
        assert api_key is not None
        frame = await self.exchange(encode_request(api_key, version, 0, client_id, request))
        _, offset = decode_response_header(api_key, version, frame)
        return decode(response_class(api_key), version, frame, offset)

    async def exchange(self, frame: bytes) -> bytes:
        """Send a request's frame and return what comes back; only while nothing else is in flight."""
        self._waiter = asyncio.get_running_loop().create_future()
        self.on_frame = self._waited
        self.write(frame)
        return await asyncio.wait_for(self._waiter, _CONNECT_SECONDS_MAX)

    def close(self) -> None:
        self.transport.abort()  # type: ignore[attr-defined]


async def connect(port: int, count: int, context: ssl.SSLContext | None = None) -> list[Link]:
    """Open connections, some at a time, so that no listen backlog overflows (Kafka's holds 50); over TLS with
    a `context`."""
    loop = asyncio.get_running_loop()
    links: list[Link] = []
    while len(links) < count:
        batch = min(_CONNECTS_AT_ONCE, count - len(links))
        opening = [loop.create_connection(Link, "127.0.0.1", port, ssl=context) for _ in range(batch)]
        async with asyncio.timeout(_CONNECT_SECONDS_MAX):
            opened = [link for _, link in await asyncio.gather(*opening)]
            # Answered, it has been accepted, and so have those before it: a connection that found the queue
            # full looks open here, and is lost later. What comes back may be an echo.
            await opened[-1].exchange(
                encode_request(ApiKey.API_VERSIONS, 0, 0, "bench", ApiVersionsRequest())
            )
        links += opened
    return links


async def coordinated(link: Link, group_id: str) -> None:
    """Return when the coordinator of the group has loaded its shard: a broker that has just started is not
    what is measured."""
    request = OffsetFetchRequest(group_id=group_id, topics=[])
    async with asyncio.timeout(_CONNECT_SECONDS_MAX):
        while (await link.call(request, 7)).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:  # noqa: ASYNC110
            await asyncio.sleep(_RETRY_S)


def commit_of_all(member: Member, topic: str, partitions: int, offset: int) -> OffsetCommitRequest:
    """The commit of one offset for each partition of a topic."""
    parts = [
        OffsetCommitRequest.Partition(partition_index=number, committed_offset=offset, committed_metadata="")
        for number in range(partitions)
    ]
    return OffsetCommitRequest(
        group_id=member.group_id,
        generation_id_or_member_epoch=member.generation_id,
        member_id=member.member_id,
        topics=[OffsetCommitRequest.Topic(name=topic, partitions=parts)],
    )


class Prebuilt:
    """One request again and again, under a correlation id that counts up as a client's does."""

    __slots__ = ("_after", "_before", "_correlation_id")

    def __init__(self, request: Message, version: int, *, client_id: str = "bench") -> None:
        api_key = request.__schema__.api_key
        assert api_key is not None
        frame = encode_request(api_key, version, 0, client_id, request)
        self._before, self._after = frame[:8], frame[12:]
        self._correlation_id = 0

    def next(self) -> bytes:
        self._correlation_id += 1
        return self._before + _CORRELATION.pack(self._correlation_id) + self._after


class Latencies:
    """How long responses took, in seconds."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def ms(self, percent: float) -> float:
        """A percentile in milliseconds; infinite when nothing was answered."""
        if not self.seconds:
            return float("inf")
        ordered = sorted(self.seconds)
        return ordered[min(int(len(ordered) * percent / 100), len(ordered) - 1)] * 1000


class ClosedLoop:
    """Connections that each have one request in flight at all times: as soon as it is answered, the next one
    goes. `frames[i].next()` gives what connection i sends."""

    def __init__(self, links: Sequence[Link], next_frames: Sequence[Callable[[], bytes]]) -> None:
        self.answered = 0
        self.latencies = Latencies()
        self._links = links
        self._next_frames = next_frames
        self._stopping = False
        self._busy = 0
        self._quiet = asyncio.Event()

    def start(self, check: Callable[[bytes], None] | None = None) -> None:
        """`check` sees each response; it raises for one that is not as it should be."""
        for link, next_frame in zip(self._links, self._next_frames, strict=True):
            self._drive(link, next_frame, check)

    def _drive(
        self, link: Link, next_frame: Callable[[], bytes], check: Callable[[bytes], None] | None
    ) -> None:
        clock = time.perf_counter
        seconds = self.latencies.seconds
        write = link.write
        sent = 0.0

        def on_frame(frame: bytes) -> None:
            nonlocal sent
            now = clock()
            seconds.append(now - sent)
            self.answered += 1
            if check is not None:
                check(frame)
            if self._stopping:
                self._busy -= 1
                if not self._busy:
                    self._quiet.set()
                return
            sent = now
            write(next_frame())

        link.on_frame = on_frame
        self._busy += 1
        sent = clock()
        write(next_frame())

    def reset(self) -> None:
        """Forget what was measured so far: it was the warm-up."""
        self.answered = 0
        self.latencies.seconds.clear()

    async def stop(self) -> None:
        """Return when everything sent is answered."""
        self._stopping = True
        async with asyncio.timeout(_CONNECT_SECONDS_MAX):
            await self._quiet.wait()


class Member:
    """A classic group member: joins, comes back with its id, assigns when it leads, syncs, and begins again
    when it is told that the group rebalances. `on_stable(member)` is called when it has its assignment."""

    __slots__ = (
        "_correlation_id",
        "_on_heartbeat",
        "busy",
        "client_id",
        "generation_id",
        "group_id",
        "link",
        "member_id",
        "on_stable",
        "session_timeout_ms",
        "stable",
        "versions",
    )

    def __init__(
        self,
        link: Link,
        group_id: str,
        *,
        on_stable: Callable[[Member], None],
        client_id: str = "bench",
        session_timeout_ms: int = 300_000,
        versions: Versions = Versions(),  # noqa: B008  # it cannot be changed
    ) -> None:
        self.link = link
        self.group_id = group_id
        self.member_id = ""
        self.generation_id = -1
        self.stable = False
        self.busy = False
        """A request of it is in flight."""
        self.on_stable = on_stable
        self.client_id = client_id
        self.session_timeout_ms = session_timeout_ms
        self.versions = versions
        self._correlation_id = 0
        self._on_heartbeat: Callable[[], None] | None = None

    def join(self) -> None:
        self.stable = False
        request = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=300_000,
            member_id=self.member_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[JoinGroupRequest.Protocol(name=PROTOCOL, metadata=METADATA)],
        )
        self._send(request, self.versions.join, self._joined)

    def heartbeat(self, done: Callable[[], None] | None = None) -> None:
        """One heartbeat; it joins again if the answer asks for that. `done` is called with every answer."""
        self._on_heartbeat = done
        self._send(self.heartbeat_request(), self.versions.heartbeat, self._beat)

    async def leave(self) -> None:
        """Return when the coordinator has answered; only while nothing else is in flight."""
        one = LeaveGroupRequest.MemberIdentity(member_id=self.member_id)
        batched = self.versions.leave >= _BATCHED_LEAVE
        request = (
            LeaveGroupRequest(group_id=self.group_id, members=[one])
            if batched
            else LeaveGroupRequest(group_id=self.group_id, member_id=self.member_id)
        )
        answer = await self.link.call(request, self.versions.leave, client_id=self.client_id)
        code = answer.error_code or (answer.members[0].error_code if batched else ErrorCode.NONE)
        if code:
            raise RuntimeError(f"LeaveGroup: {ErrorCode(code).name}")

    def heartbeat_request(self) -> HeartbeatRequest:
        return HeartbeatRequest(
            group_id=self.group_id, generation_id=self.generation_id, member_id=self.member_id
        )

    def _send(self, request: Message, version: int, on_frame: Callable[[bytes], None]) -> None:
        api_key = request.__schema__.api_key
        assert api_key is not None
        self.busy = True
        self.link.on_frame = on_frame
        self._correlation_id += 1
        self.link.write(encode_request(api_key, version, self._correlation_id, self.client_id, request))

    def _read(self, request: type[Message], version: int, frame: bytes) -> Any:
        self.busy = False
        api_key = request.__schema__.api_key
        assert api_key is not None
        _, offset = decode_response_header(api_key, version, frame)
        return decode(response_class(api_key), version, frame, offset)

    def _joined(self, frame: bytes) -> None:
        response = self._read(JoinGroupRequest, self.versions.join, frame)
        match response.error_code:
            case ErrorCode.NONE:
                self.member_id = response.member_id
                self.generation_id = response.generation_id
                self._sync(response)
            case ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = response.member_id
                self.join()
            case ErrorCode.REBALANCE_IN_PROGRESS:
                self.join()
            case code if code in _AGAIN:
                asyncio.get_running_loop().call_later(_RETRY_S, self.join)
            case code:
                raise RuntimeError(f"JoinGroup: {ErrorCode(code).name}")

    def _sync(self, joined: Any) -> None:
        request = SyncGroupRequest(
            group_id=self.group_id,
            generation_id=self.generation_id,
            member_id=self.member_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=PROTOCOL,
            assignments=[
                SyncGroupRequest.Assignment(member_id=member.member_id, assignment=ASSIGNMENT)
                for member in joined.members
            ],
        )
        self._send(request, self.versions.sync, self._synced)

    def _synced(self, frame: bytes) -> None:
        response = self._read(SyncGroupRequest, self.versions.sync, frame)
        match response.error_code:
            case ErrorCode.NONE:
                self.stable = True
                self.on_stable(self)
            case ErrorCode.REBALANCE_IN_PROGRESS | ErrorCode.ILLEGAL_GENERATION:
                self.join()
            case code if code in _AGAIN:
                asyncio.get_running_loop().call_later(_RETRY_S, self.join)
            case code:
                raise RuntimeError(f"SyncGroup: {ErrorCode(code).name}")

    def _beat(self, frame: bytes) -> None:
        response = self._read(HeartbeatRequest, self.versions.heartbeat, frame)
        match response.error_code:
            case ErrorCode.NONE | ErrorCode.NOT_COORDINATOR:
                pass
            case ErrorCode.REBALANCE_IN_PROGRESS | ErrorCode.ILLEGAL_GENERATION:
                self.join()
            case code:
                raise RuntimeError(f"Heartbeat: {ErrorCode(code).name}")
        if self._on_heartbeat is not None:
            self._on_heartbeat()


class Group:
    """Members that join together. They are Stable when all have their assignment of one generation."""

    def __init__(self, group_id: str, links: Sequence[Link], **options: Any) -> None:
        self.members = [Member(link, group_id, on_stable=self._on_stable, **options) for link in links]
        self._all_stable = asyncio.Event()
        self._stable = 0
        self.generation_id = -1

    def join(self) -> None:
        for member in self.members:
            member.join()

    def expect(self, member: Member) -> None:
        """One more to wait for; it begins by itself."""
        member.on_stable = self._on_stable
        self.members.append(member)
        self._all_stable.clear()

    def remove(self, member: Member) -> None:
        """One less to wait for: it has left, or is about to be found gone."""
        self.members.remove(member)
        self._all_stable.clear()

    async def stable(self, seconds_max: float) -> None:
        async with asyncio.timeout(seconds_max):
            await self._all_stable.wait()

    def _on_stable(self, member: Member) -> None:
        if member.generation_id > self.generation_id:
            self.generation_id, self._stable = member.generation_id, 0
        if member.generation_id == self.generation_id:
            self._stable += 1
        if self._stable == len(self.members):
            self._all_stable.set()


class Heartbeats:
    """Members that heartbeat at intervals, evenly spread, as long as they have nothing else in flight; so
    they hear of rebalances and join again."""

    def __init__(self, interval_s: float) -> None:
        self.latencies = Latencies()
        self._interval_s = interval_s
        self._ended = False

    def start(self, members: Sequence[Member]) -> None:
        loop = asyncio.get_running_loop()
        for index, member in enumerate(members):
            loop.call_later(self._interval_s * index / len(members), self._beat, loop, member)

    def end(self) -> None:
        self._ended = True

    def _beat(self, loop: asyncio.AbstractEventLoop, member: Member) -> None:
        if self._ended:
            return
        if member.stable and not member.busy:
            sent = time.perf_counter()
            member.heartbeat(lambda: self.latencies.seconds.append(time.perf_counter() - sent))
        loop.call_later(self._interval_s, self._beat, loop, member)


async def join_groups(
    links: Sequence[Link], members: int, seconds_max: float = 120, **options: Any
) -> list[Member]:
    """Groups of `members` each, all Stable: what heartbeats and commits need before they can begin."""
    groups = [
        Group(f"bench-{first // members}", links[first : first + members], **options)
        for first in range(0, len(links), members)
    ]
    for group in groups:
        group.join()
    for group in groups:
        await group.stable(seconds_max)
    return [member for group in groups for member in group.members]
