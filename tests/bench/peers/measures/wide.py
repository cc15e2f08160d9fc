"""Requests about many partitions or members at once.

A consumer's Fetch names its partitions once where the server keeps fetch sessions (KIP-227); where it does
not, each time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode
from muster.protocol.header import encode_request
from muster.protocol.message import Message, Struct
from muster.protocol.messages.data import FetchRequest, ListOffsetsRequest
from muster.protocol.messages.group_admin import DescribeGroupsRequest
from tests.bench import load
from tests.bench.peers.closed_loop import driven_alike
from tests.bench.peers.driver import Target
from tests.bench.peers.measure import (
    IN_PROCESS,
    NO_GROUPS,
    NOTHING_SYNCED,
    Goal,
    Measure,
    Point,
    Quantity,
    Scale,
    drive,
    over_sizes,
)
from tests.bench.peers.servers import Kind, Options, Running

TOPIC: Final = "orders"
_CONNECTIONS: Final = 4
_OFFSET: Final = 4_711
_LATEST: Final = -1
_DELAY_MS: Final = 500
_READY_S: Final = 30.0
_RETRY_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is sent again and again to the broker at `port`."""

    port: int
    request: Message
    in_session: bool = False
    """Whether it opens a fetch session, if the server takes it up."""


async def _commit(target: Target, partitions: int) -> _Asked:
    (group,) = await target.formed(1, 1, f"commits-{partitions}")
    (member,) = group.members
    request = load.commit_of_all(member, TOPIC, partitions, _OFFSET)
    return _Asked((await target.coordinators([member.group_id]))[0], request)


async def _list(target: Target, partitions: int) -> _Asked:
    parts = [
        ListOffsetsRequest.ListOffsetsPartition(partition_index=number, timestamp=_LATEST)
        for number in range(partitions)
    ]
    topics = [ListOffsetsRequest.ListOffsetsTopic(name=TOPIC, partitions=parts)]
    leaders = await target.leaders(TOPIC, max(_SIZES))
    return _Asked(leaders[0], ListOffsetsRequest(replica_id=-1, topics=topics))


async def _describe(target: Target, members: int) -> _Asked:
    groups = await target.formed(1, members, f"members-{members}")
    (port,) = await target.coordinators([groups[0].members[0].group_id])
    return _Asked(port, DescribeGroupsRequest(groups=[groups[0].members[0].group_id]))


async def _fetch(target: Target, partitions: int) -> _Asked:
    """Of partitions without records; what is there is sent at once."""
    parts = [
        FetchRequest.FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1 << 20)
        for number in range(partitions)
    ]
    topics = [FetchRequest.FetchTopic(topic=TOPIC, partitions=parts)]
    leaders = await target.leaders(TOPIC, max(_SIZES))
    request = FetchRequest(max_wait_ms=0, min_bytes=0, session_epoch=0, topics=topics)
    return _Asked(leaders[0], request, in_session=True)


class _InSession:
    """Fetches of a session, none of which names a partition: nothing has changed."""

    def __init__(self, session_id: int, version: int) -> None:
        self._session_id, self._version = session_id, version
        self._epoch = 0

    def next(self) -> bytes:
        self._epoch += 1
        request = FetchRequest(
            max_wait_ms=0, min_bytes=0, session_id=self._session_id, session_epoch=self._epoch, topics=[]
        )
        return encode_request(ApiKey.FETCH, self._version, self._epoch, "bench", request)


def _codes(answer: Any) -> set[int]:
    """All error codes in it."""
    if isinstance(answer, Sequence) and not isinstance(answer, (str, bytes)):
        return set().union(*map(_codes, answer))
    if not isinstance(answer, Struct):
        return set()
    own = {answer.error_code} if hasattr(answer, "error_code") else set()
    return own.union(*(_codes(getattr(answer, field.name)) for field in answer.__fields__))


async def _answered(link: load.Link, request: Message, version: int) -> Any:
    """The first answer without an error: leaders of new topics may not know it yet."""
    async with asyncio.timeout(_READY_S):
        while True:
            answer = await link.call(request, version)
            if _codes(answer) == {ErrorCode.NONE}:
                return answer
            await asyncio.sleep(_RETRY_S)


_ASKED: Final[Mapping[str, Callable[[Target, int], Awaitable[_Asked]]]] = {
    "commit": _commit,
    "list": _list,
    "describe": _describe,
    "fetch": _fetch,
}
_SIZES: Final = (30, 1_000)


async def _ask(
    server: dict[str, Any], what: str, size: int, warm_up_s: float, seconds: float
) -> list[dict[str, Any]]:
    target = await Target.ask(**server)
    asked = await _ASKED[what](target, size)
    version = target.version(type(asked.request))
    links = await load.connect(asked.port, _CONNECTIONS)
    frames = []
    for link in links:
        answer = await _answered(link, asked.request, version)
        session_id = answer.session_id if asked.in_session else 0
        again = _InSession(session_id, version) if session_id else load.Prebuilt(asked.request, version)
        frames.append(again.next)
    found = await driven_alike(target, links, frames, warm_up_s=warm_up_s, seconds=seconds)
    points = {point.key: point for point in found.points(size, ())}
    named = (Point(f"{what}_{key}", points[key].value, size, points[key].driver) for key in _FIGURES)
    return [point.as_json() for point in named]


def ask(
    server: dict[str, Any], what: str, size: int, warm_up_s: float, seconds: float
) -> list[dict[str, Any]]:
    """In the driver's process."""
    return load.run(_ask(server, what, size, warm_up_s, seconds))


def _run(kind: Kind, scale: Scale) -> list[Point]:
    def measured(running: Running, size: int, times: Mapping[str, float]) -> list[Point]:
        return [point for what in _ASKED for point in drive(ask, running, what=what, size=size, **times)]

    sizes = scale.sizes((30,), _SIZES)
    options = Options(initial_delay_ms=_DELAY_MS, topics={TOPIC: max(_SIZES)})
    return over_sizes(kind, options, scale, sizes, measured)


_FIGURES: Final = ("rate", "cpu_us")
_GOALS: Final = (Goal(1.0),)


def _quantities(what: str, one: str, many: str, axis: str) -> tuple[Quantity, ...]:
    return (
        Quantity(f"{what}_rate", f"{many} a second", "/s", "more", axis=axis, goals=_GOALS),
        Quantity(f"{what}_cpu_us", f"CPU of {one}", "us", "less", axis=axis, chart=False),
    )


MEASURE: Final = Measure(
    "wide",
    "Many partitions or members in a request",
    f"Sent over {_CONNECTIONS} connections, one request in flight on each: a commit of the given number of "
    "partitions, the latest offsets of that many partitions, the description of a group with that many "
    "members, and a Fetch of that many partitions without records, which names none of them where the server "
    "keeps fetch sessions.",
    (
        *_quantities("commit", "an OffsetCommit", "OffsetCommits", "partitions"),
        *_quantities("list", "a ListOffsets", "ListOffsets", "partitions"),
        *_quantities("describe", "a DescribeGroups", "DescribeGroups", "members"),
        *_quantities("fetch", "a Fetch", "Fetches", "partitions"),
    ),
    _run,
    cannot={
        "kafka-flush": NOTHING_SYNCED,
        "muster-3": IN_PROCESS,
        "muster-postgres": "not measured: its two brokers share the partitions, so no request can name all.",
        "mock": NO_GROUPS,
    },
)
