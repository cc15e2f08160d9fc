"""What drives a server of any kind, in a process of its own: it asks for the versions and coordinators first.

The frames and the members are those of `tests.bench.load`, in the newest version that the server has too.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Self

from muster.coordinator.cluster.coordinators import GROUPS
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode
from muster.protocol.message import Message
from muster.protocol.messages.connection import ApiVersionsRequest
from muster.protocol.messages.metadata import FindCoordinatorRequest, MetadataRequest
from tests.bench import load, transactional
from tests.bench.followers import Connection
from tests.bench.peers import usage

# The newest before topics are named by id, or several groups asked about at once.
_AT_MOST: Final = {
    ApiKey.PRODUCE: 12,
    ApiKey.FETCH: 12,
    ApiKey.LIST_OFFSETS: 11,
    ApiKey.DESCRIBE_GROUPS: 6,
    ApiKey.METADATA: 8,
    ApiKey.OFFSET_COMMIT: 9,
    ApiKey.OFFSET_FETCH: 7,
    ApiKey.FIND_COORDINATOR: 3,
    ApiKey.JOIN_GROUP: load.JOIN_VERSION,
    ApiKey.SYNC_GROUP: load.SYNC_VERSION,
    ApiKey.HEARTBEAT: load.HEARTBEAT_VERSION,
    ApiKey.LEAVE_GROUP: load.LEAVE_VERSION,
    ApiKey.INIT_PRODUCER_ID: transactional.INIT_VERSION,
    ApiKey.END_TXN: transactional.END_VERSION,
}
_RETRY_S: Final = 0.005
_COORDINATORS_S: Final = 90.0
_FORMED_S: Final = 300.0
_FORMING_RATE: Final = 10_000
"""Heartbeats a second of all members together, by which those that are Stable hear that others came."""
_FORMING_INTERVAL_S: Final = (0.05, 2.0)


@dataclass(frozen=True, slots=True)
class Target:
    """A server as its driver sees it."""

    ports: list[int]
    pids: list[int]
    families: list[int]
    versions: dict[int, int]
    group_max: int | None
    context: ssl.SSLContext | None
    """Of TLS."""

    @classmethod
    async def ask(
        cls,
        ports: list[int],
        pids: list[int],
        families: list[int],
        at_most: Iterable[tuple[int, int]],
        group_max: int | None,
        tls: bool,
    ) -> Self:
        """Of what `Running.as_json` says."""
        context = _trusting() if tls else None
        (link,) = await load.connect(ports[0], 1, context)
        answer = await link.call(ApiVersionsRequest(), 0)
        link.close()
        theirs = {each.api_key: each.max_version for each in answer.api_keys}
        for key, most in at_most:
            theirs[key] = min(most, theirs[key])
        versions = {int(key): min(most, theirs.get(key, most)) for key, most in _AT_MOST.items()}
        return cls(ports, pids, families, versions, group_max, context)

    def version(self, request: type[Message]) -> int:
        api_key = request.__schema__.api_key
        assert api_key is not None
        return self.versions[api_key]

    @property
    def of_members(self) -> load.Versions:
        return load.Versions(
            join=self.versions[ApiKey.JOIN_GROUP],
            sync=self.versions[ApiKey.SYNC_GROUP],
            heartbeat=self.versions[ApiKey.HEARTBEAT],
            leave=self.versions[ApiKey.LEAVE_GROUP],
        )

    def meter(self) -> usage.Meter:
        return usage.Meter(self.pids, self.families)

    def resident_bytes(self) -> int:
        return usage.resident_bytes(self.pids, self.families)

    async def coordinators(self, keys: Sequence[str], key_type: int = GROUPS.key_type) -> list[int]:
        """The port of each group's coordinator, or of what else `key_type` says, once there is one."""
        loop = asyncio.get_running_loop()
        _, link = await loop.create_connection(Connection, "127.0.0.1", self.ports[0], ssl=self.context)
        try:
            async with asyncio.timeout(_COORDINATORS_S):
                # One first: it may make the server create what coordinators need.
                first = await self._coordinator(link, keys[0], key_type)
                rest = await asyncio.gather(*(self._coordinator(link, key, key_type) for key in keys[1:]))
                return [first, *rest]
        finally:
            link.close()

    async def _coordinator(self, link: Connection, key: str, key_type: int) -> int:
        request = FindCoordinatorRequest(key=key, key_type=key_type)
        while True:
            found = await link.call(request, self.version(FindCoordinatorRequest), seconds_max=60)
            if found.error_code == ErrorCode.NONE:
                return int(found.port)
            await asyncio.sleep(_RETRY_S)

    async def leaders(self, topic: str, partitions: int) -> dict[int, int]:
        """The port of each partition's leader."""
        (link,) = await load.connect(self.ports[0], 1, self.context)
        request = MetadataRequest(topics=[MetadataRequest.Topic(name=topic)])
        answer = await link.call(request, self.version(MetadataRequest))
        link.close()
        ports = {broker.node_id: broker.port for broker in answer.brokers}
        found = {each.partition_index: ports[each.leader_id] for each in answer.topics[0].partitions}
        if set(found) != set(range(partitions)):
            raise RuntimeError(f"{topic} has the partitions {sorted(found)}, {partitions} were wanted")
        return dict(sorted(found.items()))

    async def connect(self, groups: Sequence[str], size: int) -> list[list[load.Link]]:
        """Connections for `size` members of each group, to its coordinator."""
        ports = await self.coordinators(groups)
        at: dict[int, list[int]] = defaultdict(list)
        for index, port in enumerate(ports):
            at[port].append(index)
        found: list[list[load.Link]] = [[] for _ in groups]
        for port, indexes in at.items():
            links = await load.connect(port, len(indexes) * size, self.context)
            for place, index in enumerate(indexes):
                found[index] = links[place * size : (place + 1) * size]
        return found

    def group(self, group_id: str, links: Sequence[load.Link], **options: Any) -> load.Group:
        return load.Group(group_id, links, versions=self.of_members, **options)

    async def formed(self, groups: int, size: int, prefix: str = "peers", **options: Any) -> list[load.Group]:
        """Groups of so many members each, all Stable and quiet; how they got there is not what is measured.

        A server that cannot do groups of that size gets as many members in smaller ones.
        """
        if self.group_max is not None and size > self.group_max:
            groups, size = groups * size // self.group_max, self.group_max
        names = [f"{prefix}-{number}" for number in range(groups)]
        links = await self.connect(names, size)
        found = [self.group(name, each, **options) for name, each in zip(names, links, strict=True)]
        await form(found)
        return found


def _trusting() -> ssl.SSLContext:
    """Whoever the server is: to check that would cost its driver alone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def forming_interval_s(members: int) -> float:
    """Of the heartbeats of members that are Stable while others still join."""
    least, most = _FORMING_INTERVAL_S
    return min(max(members / _FORMING_RATE, least), most)


async def form(groups: Sequence[load.Group]) -> None:
    """Have all members join, and return when every group is Stable and nothing is in flight."""
    members = [member for group in groups for member in group.members]
    heartbeats = load.Heartbeats(forming_interval_s(len(members)))
    for group in groups:
        group.join()
    if any(len(group.members) > 1 for group in groups):  # otherwise there is nobody to hear of
        heartbeats.start(members)
    for group in groups:
        await group.stable(_FORMED_S)
    heartbeats.end()
    await quiet(members)


async def quiet(members: Sequence[load.Member]) -> None:
    """Return when none of them has a request in flight."""
    async with asyncio.timeout(_FORMED_S):
        while any(member.busy for member in members):  # noqa: ASYNC110  # a look now and then is enough
            await asyncio.sleep(_RETRY_S)


async def heartbeat_once(members: Sequence[load.Member]) -> None:
    """One heartbeat of each; return when all are answered."""
    left = len(members)
    done = asyncio.Event()

    def answered() -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    for member in members:
        member.heartbeat(answered)
    async with asyncio.timeout(_FORMED_S):
        await done.wait()


async def first_stable(server: dict[str, Any], group_id: str, seconds_max: float) -> float:
    """Join a group of one at a server that may not listen yet; when it is Stable, by `time.monotonic`."""
    async with asyncio.timeout(seconds_max):
        while True:
            with suppress(OSError):
                target = await Target.ask(**server)
                break
            await asyncio.sleep(_RETRY_S)
        while True:
            try:
                ((link,),) = await target.connect([group_id], 1)
            except OSError:
                await asyncio.sleep(_RETRY_S)
                continue
            group = target.group(group_id, [link])
            group.join()
            await group.stable(seconds_max)
            stable_s = time.monotonic()
            link.close()
            return stable_s
