"""Members that follow their coordinator from broker to broker, many of them in one process.

What a stock client does when its coordinator goes away: it looks the coordinator up again, waits a little
longer after each attempt that found none (retry.backoff.ms up to retry.backoff.max.ms), and goes on with the
member id and generation it has. Connections may be shared: a member needs one of its own only where a request
of its waits at the broker (a JoinGroup of a group of several).

Times are of `time.monotonic`, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from muster.protocol.api import response_class
from muster.protocol.codec import decode
from muster.protocol.errors import ErrorCode
from muster.protocol.header import decode_response_header, encode_request
from muster.protocol.message import Message
from muster.protocol.messages.classic_group import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest
from muster.protocol.messages.metadata import FindCoordinatorRequest
from muster.protocol.messages.offsets import OffsetCommitRequest, OffsetFetchRequest
from tests.bench import load

BACKOFF_S: Final = 0.1
"""retry.backoff.ms of the Java client."""
BACKOFF_MAX_S: Final = 1.0
"""retry.backoff.max.ms."""
SESSION_TIMEOUT_MS: Final = 45_000
TOPIC: Final = "orders"
FIND_VERSION: Final = 3
COMMIT_VERSION: Final = 9
FETCH_VERSION: Final = 7
ANSWER_S: Final = 10.0
"""How long an answer is waited for before the connection counts as lost."""

_LOOK_AGAIN: Final = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
)
_REJOIN: Final = frozenset(
    {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID}
)


class Connection(load.Link):
    """A connection with many requests in flight, each of which is answered by its correlation id."""

    __slots__ = ("_correlation_id", "_in_flight", "gone")

    def __init__(self) -> None:
        super().__init__()
        self.on_frame = self._answered
        self.gone = asyncio.Event()
        self._correlation_id = 0
        self._in_flight: dict[int, asyncio.Future[bytes]] = {}

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        self.gone.set()
        for waiting in self._in_flight.values():
            if not waiting.done():
                waiting.set_exception(ConnectionError("the server hung up"))
        self._in_flight.clear()

    def _answered(self, frame: bytes) -> None:
        waiting = self._in_flight.pop(int.from_bytes(frame[:4]), None)
        if waiting is not None and not waiting.done():
            waiting.set_result(frame)

    async def call(
        self, request: Message, version: int, *, client_id: str = "bench", seconds_max: float = ANSWER_S
    ) -> Any:
        """Raises ConnectionError, also when there is no answer in time."""
        if self.lost:
            raise ConnectionError("the server hung up")
        api_key = request.__schema__.api_key
        assert api_key is not None
        self._correlation_id += 1
        correlation_id = self._correlation_id
        waiting = self._in_flight[correlation_id] = asyncio.get_running_loop().create_future()
        self.write(encode_request(api_key, version, correlation_id, client_id, request))
        try:
            async with asyncio.timeout(seconds_max):
                frame = await waiting
        except TimeoutError:
            self.close()
            raise ConnectionError(f"no answer within {seconds_max:g} s") from None
        finally:
            self._in_flight.pop(correlation_id, None)
        _, offset = decode_response_header(api_key, version, frame)
        return decode(response_class(api_key), version, frame, offset)


class Brokers:
    """Connections to the brokers of a cluster, opened when they are needed; `ports` by node id."""

    def __init__(self, ports: Mapping[int, int]) -> None:
        self.node_ids = sorted(ports)
        self._ports = ports
        self._open: dict[tuple[int, int], Connection] = {}
        self._opening: dict[tuple[int, int], asyncio.Future[Connection]] = {}

    async def connection(self, node_id: int, slot: int = 0) -> Connection:
        """The one in this slot: who gives the same slot shares it. Raises OSError."""
        key = node_id, slot
        found = self._open.get(key)
        if found is not None and not found.lost:
            return found
        opening = self._opening.get(key)
        if opening is None:
            opening = self._opening[key] = asyncio.ensure_future(self._connect(key))
            opening.add_done_callback(lambda _: self._opening.pop(key, None))
        return await asyncio.shield(opening)

    async def _connect(self, key: tuple[int, int]) -> Connection:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(ANSWER_S):  # TimeoutError is an OSError
            _, link = await loop.create_connection(Connection, "127.0.0.1", self._ports[key[0]])
        self._open[key] = link
        return link

    async def coordinator(self, group_id: str) -> int | None:
        """Ask one broker after the other until one can be reached; None while there is no coordinator.

        Over connections that all share: stock clients have one open for this.
        """
        request = FindCoordinatorRequest(key=group_id)
        for node_id in random.sample(self.node_ids, len(self.node_ids)):
            with suppress(OSError):
                link = await self.connection(node_id)
                found = await link.call(request, FIND_VERSION)
                return None if found.error_code else found.node_id
        return None

    async def holders(self, shard_names: Sequence[str]) -> dict[str, int | None]:
        """The coordinator of each of these groups."""
        found = await asyncio.gather(*(self.coordinator(name) for name in shard_names))
        return dict(zip(shard_names, found, strict=True))

    def close(self) -> None:
        for link in self._open.values():
            link.close()


class Follower:
    """A group's member, its generation and what it was promised. `slot` says which connections it uses."""

    def __init__(self, brokers: Brokers, group_id: str, slot: int, *, partition: int = 0) -> None:
        self.brokers = brokers
        self.group_id = group_id
        self.slot = slot
        self.partition = partition
        """Which one it commits."""
        self.member_id = ""
        self.generation_id = -1
        self.group_size = 0
        """Of the generation it synced last; known to its leader alone."""
        self.node_id: int | None = None
        self.beats: list[tuple[float, int]] = []
        """When heartbeats were answered without an error, and by which node; see `forget`."""
        self.commits: list[tuple[float, int]] = []
        """The same of commits."""
        self.offset = 0
        """The last one whose commit was acknowledged."""
        self.refusals: Counter[str] = Counter()
        """Errors that sent it to another coordinator or into a rebalance, by name."""

    def forget(self) -> None:
        """What happened so far was the beginning."""
        self.beats = self.beats[-1:]
        self.commits = self.commits[-1:]
        self.refusals.clear()

    async def ask(self, request: Message, version: int, *, seconds_max: float = ANSWER_S) -> tuple[Any, int]:
        """The coordinator's answer, whoever that is by then, and its node id. Never gives up by itself."""
        backoff_s = BACKOFF_S
        while True:
            try:
                if self.node_id is None:
                    self.node_id = await self.brokers.coordinator(self.group_id)
                if self.node_id is not None:
                    node_id = self.node_id
                    link = await self.brokers.connection(node_id, self.slot)
                    answer = await link.call(request, version, seconds_max=seconds_max)
                    code = ErrorCode(_code(answer))
                    if code not in _LOOK_AGAIN:
                        return answer, node_id
                    self.refusals[code.name] += 1
            except OSError:
                self.refusals["connection lost"] += 1
            self.node_id = None
            await asyncio.sleep(backoff_s * random.uniform(0.8, 1.2))
            backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)

    async def join(self) -> None:
        """Join and sync until this member has its assignment in a generation."""
        while True:
            request = JoinGroupRequest(
                group_id=self.group_id,
                session_timeout_ms=SESSION_TIMEOUT_MS,
                rebalance_timeout_ms=60_000,
                member_id=self.member_id,
                protocol_type=load.PROTOCOL_TYPE,
                protocols=[JoinGroupRequest.Protocol(name=load.PROTOCOL, metadata=load.METADATA)],
            )
            joined, _ = await self.ask(request, load.JOIN_VERSION, seconds_max=90)
            match ErrorCode(joined.error_code):
                case ErrorCode.MEMBER_ID_REQUIRED:
                    self.member_id = joined.member_id
                case ErrorCode.UNKNOWN_MEMBER_ID:
                    self.member_id = ""
                case ErrorCode.NONE:
                    self.member_id = joined.member_id
                    if await self._sync(joined):
                        return
                case code if code not in _REJOIN:
                    raise RuntimeError(f"JoinGroup: {code.name}")

    async def _sync(self, joined: Any) -> bool:
        request = SyncGroupRequest(
            group_id=self.group_id,
            generation_id=joined.generation_id,
            member_id=self.member_id,
            protocol_type=load.PROTOCOL_TYPE,
            protocol_name=load.PROTOCOL,
            assignments=[
                SyncGroupRequest.Assignment(member_id=member.member_id, assignment=load.ASSIGNMENT)
                for member in joined.members
            ],
        )
        synced, _ = await self.ask(request, load.SYNC_VERSION, seconds_max=90)
        code = ErrorCode(synced.error_code)
        if code in _REJOIN:
            return False
        if code:
            raise RuntimeError(f"SyncGroup: {code.name}")
        self.generation_id = joined.generation_id
        self.group_size = len(joined.members)
        return True

    async def heartbeat(self) -> None:
        """Return when it is answered without an error; joins again when the group rebalances."""
        while True:
            request = HeartbeatRequest(
                group_id=self.group_id, generation_id=self.generation_id, member_id=self.member_id
            )
            answer, node_id = await self.ask(request, load.HEARTBEAT_VERSION)
            if await self._accepted(answer.error_code, "Heartbeat"):
                self.beats.append((time.monotonic(), node_id))
                return

    async def commit(self) -> None:
        """The next offset; the same for it."""
        while True:
            part = OffsetCommitRequest.Partition(
                partition_index=self.partition, committed_offset=self.offset + 1, committed_metadata=""
            )
            request = OffsetCommitRequest(
                group_id=self.group_id,
                generation_id_or_member_epoch=self.generation_id,
                member_id=self.member_id,
                topics=[OffsetCommitRequest.Topic(name=TOPIC, partitions=[part])],
            )
            answer, node_id = await self.ask(request, COMMIT_VERSION)
            if await self._accepted(_code(answer), "OffsetCommit"):
                self.offset += 1
                self.commits.append((time.monotonic(), node_id))
                return

    async def committed(self) -> int:
        """The offset as the coordinator has it."""
        topic = OffsetFetchRequest.Topic(name=TOPIC, partition_indexes=[self.partition])
        request = OffsetFetchRequest(group_id=self.group_id, topics=[topic])
        answer, _ = await self.ask(request, FETCH_VERSION)
        offset: int = answer.topics[0].partitions[0].committed_offset
        return offset

    async def _accepted(self, code: int, what: str) -> bool:
        if not code:
            return True
        name = ErrorCode(code).name
        if code not in _REJOIN:
            raise RuntimeError(f"{what}: {name}")
        self.refusals[name] += 1
        await self.join()
        return False

    async def keep(self, interval_s: float, *, commits: bool) -> None:
        """Heartbeat at intervals, and at once when the connection is lost; a commit after each if wanted."""
        await asyncio.sleep(interval_s * random.random())
        while True:
            began = time.monotonic()
            await self.heartbeat()
            if commits:
                await self.commit()
            with suppress(TimeoutError, OSError):
                async with asyncio.timeout(interval_s - (time.monotonic() - began)):
                    if self.node_id is not None:
                        link = await self.brokers.connection(self.node_id, self.slot)
                        await link.gone.wait()


def _code(answer: Any) -> int:
    """The error of an answer that asks about one thing."""
    code = getattr(answer, "error_code", None)
    return answer.topics[0].partitions[0].error_code if code is None else code


async def gather_all(tasks: Sequence[asyncio.Task[Any]], work: asyncio.Future[Any]) -> Any:
    """The result of `work`, or the first error of the tasks that run beside it."""
    waiting: set[asyncio.Future[Any]] = {work, *tasks}
    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for each in done - {work}:
        each.result()
    return await work
