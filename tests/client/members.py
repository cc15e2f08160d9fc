"""A consumer's part in a group, without records: it gives up partitions, joins, and notes its events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

from muster.client.assignors import assignor
from muster.client.group.group import Group, GroupSettings
from muster.client.network.cluster import parse_bootstrap
from muster.client.network.connection import Address, deadline
from muster.client.partitions import OffsetAndMetadata, TopicPartition

LONG_S: Final = 60.0
_LOOK_AGAIN_S: Final = 0.02


class Event(NamedTuple):
    """`what` is revoked, lost or assigned."""

    what: str
    partitions: frozenset[TopicPartition]


class Member:
    """`read` does what a reading call does for the group."""

    def __init__(
        self,
        bootstrap: str | list[Address],
        group_id: str = "g",
        topics: tuple[str, ...] = ("t",),
        *,
        assignors: tuple[Any, ...] = ("range",),
        apart: bool = False,
        **options: Any,
    ) -> None:
        self.events: list[Event] = []
        self.wakes = 0
        self.owned: frozenset[TopicPartition] = frozenset()
        self.group = Group(
            parse_bootstrap(bootstrap) if isinstance(bootstrap, str) else bootstrap,
            GroupSettings(
                group_id=group_id,
                assignors=tuple(map(assignor, assignors)),
                **{"heartbeat_interval_ms": 200} | options,
            ),
            on_wake=self._wake,
            apart=apart,
        )
        self._topics = frozenset(topics)

    def _wake(self) -> None:
        self.wakes += 1

    async def start(self) -> None:
        await self.group.start()
        if self._topics:
            self.group.subscribe(self._topics)

    async def read(self, seconds: float = _LOOK_AGAIN_S) -> None:
        group = self.group
        group.polled()
        if not group.rejoin_needed:
            await asyncio.sleep(_LOOK_AGAIN_S)
            return
        preparation = group.prepare(self.owned)
        for what, given_up in (("revoked", preparation.revoked), ("lost", preparation.lost)):
            if given_up is not None:
                self.events.append(Event(what, given_up))
        self.owned = preparation.kept
        joined = await group.join(self.owned, deadline(seconds))
        if joined is not None:
            if joined.revoked is not None:
                self.events.append(Event("revoked", joined.revoked))
            self.events.append(Event("assigned", joined.added))
            self.owned = joined.assigned
            group.reconciled(joined)

    @property
    def is_settled(self) -> bool:
        return not self.group.rejoin_needed

    async def commit(self, offset: int, *where: TopicPartition, seconds: float = LONG_S) -> Any:
        offsets = {each: OffsetAndMetadata(offset) for each in where or sorted(self.owned)}
        return await self.group.commit(offsets, deadline(seconds))


@asynccontextmanager
async def member(*args: Any, **options: Any) -> AsyncIterator[Member]:
    """A member that has not joined yet."""
    made = Member(*args, **options)
    await made.start()
    try:
        yield made
    finally:
        await made.group.close(LONG_S)


async def reading(*members: Member, until: Callable[[], object]) -> None:
    """Let all of them read until the fact holds."""

    async def read(each: Member) -> None:
        while True:
            await each.read()

    async with asyncio.timeout(LONG_S):
        tasks = [asyncio.create_task(read(each)) for each in members]
        try:
            while not until():
                for task in tasks:
                    if task.done():
                        task.result()
                await asyncio.sleep(_LOOK_AGAIN_S)
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)


async def settled(*members: Member, owning: int | None = None) -> None:
    """Let all of them read until none has anything to do; with `owning`, until they own that many partitions
    together."""

    def fact() -> bool:
        owned = [where for each in members for where in each.owned]
        whole = owning is None or len(owned) == len(set(owned)) == owning
        return whole and all(each.is_settled and each.group.generation_id > 0 for each in members)

    await reading(*members, until=fact)


def partitions(topic: str, count: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, each) for each in range(count))
