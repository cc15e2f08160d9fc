"""Journals of real groups on real brokers: what was done is known, and every entry is what muster wrote.

    journal = asyncio.run(generate(groups=8, steps=60, seed=7))
    journal.records   # of __group_events
    journal.did       # what was done, in order

Groups are thin members over the wire; time is the brokers' own, moved instead of waited for.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from muster.coordinator.testing import AsyncCluster, Cluster
from muster.coordinator.testing.topics import Record
from muster.protocol.errors import ErrorCode
from tests.pipeline.members import SESSION_MS, Member, Part

JOURNAL: Final = "__group_events"
TOPIC: Final = "orders"
OTHER_TOPIC: Final = "refunds"
PARTITIONS: Final = 12
DEADLINE_S: Final = 60.0


class Did(NamedTuple):
    """Something that was done to a group, and the rebalance that it must have begun."""

    group: str
    what: str
    """A word of docs/why.md for what it was; "failover" for one of brokers."""
    client_id: str | None
    """Whom it was done to."""
    generation: int | None
    """The generation that the rebalance led to; None: it began none."""
    members: int
    """How many there were at its end."""
    slow_ms: int
    """How long the group had to wait for the last JoinGroup, at least."""


@dataclass
class Journal:
    """What came of it."""

    seed: int
    records: list[Record] = field(default_factory=list)
    did: list[Did] = field(default_factory=list)
    owners: dict[str, dict[Part, str]] = field(default_factory=dict)
    """By group: who has each partition at the end, by client id."""
    committed_lag: dict[str, int] = field(default_factory=dict)
    """By group: how far behind it was by its last commit."""
    deployed: set[str] = field(default_factory=set)
    """The groups of which every process was restarted, one after the other."""
    broker_moves: int = 0

    def rows(self) -> list[tuple[bytes | None, bytes, int, int]]:
        """As the bronze table has them: key, value, partition, offset."""
        return [(each.key, each.value or b"", each.partition, each.offset) for each in self.records]

    def write(self, path: Path) -> None:
        """One JSON object a line: key, value (both text), partition, offset."""
        with path.open("w", encoding="utf-8") as out:
            for key, value, partition, offset in self.rows():
                line = {"key": key and key.decode(), "value": value.decode(), "partition": partition}
                out.write(json.dumps({**line, "offset": offset}) + "\n")


async def until(fact: Callable[[], bool], what: str) -> None:
    """Wait until `fact()`, which asks the brokers: now and then, so that they get on with it."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not fact():  # noqa: ASYNC110 - brokers in another thread tell no event
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"{what} did not come about within {DEADLINE_S} s") from None


class Group:
    """The processes of one group, and what is done to them. Every call leaves the group Stable, or Empty."""

    def __init__(self, cluster: AsyncCluster, name: str, journal: Journal, chance: random.Random) -> None:
        self.name, self.sticky = name, chance.random() < 0.5
        self.members: list[Member] = []
        self._hanging: list[Member] = []
        self.owners: dict[Part, Member] = {}
        self._cluster, self._journal, self._chance = cluster, journal, chance
        self._facts = cluster.group(name)
        self._started = 0

    # --- what is done ---------------------------------------------------------------------------------------

    async def start(self, count: int, *, static: bool = False) -> None:
        """The first process of an empty group, then the others, each with a rebalance of its own."""
        for _ in range(count):
            self._started += 1
            name = f"{self.name}-{self._started}"
            await self._add(self._new(name, name if static else None), "new-member")

    async def close(self, member: Member) -> None:
        """The process is stopped as users do: LeaveGroup, and its connection closes."""
        await self._remove(member, "clean-shutdown", self._closing)

    async def crash(self, member: Member) -> None:
        """SIGKILL: its connection closes, and its session expires."""

        async def dies() -> None:
            member.wire.abort()
            await member.close()
            await self._facts.member(member.id).disconnected(timeout=DEADLINE_S)
            await self._pass(SESSION_MS + 1_000)

        await self._remove(member, "crashed", dies)

    async def stall(self, member: Member) -> None:
        """SIGSTOP for longer than its session; then it goes on, over the connection it has."""

        async def stands_still() -> None:
            await self._cluster.clock.stall(self.name, member.id)
            await self._pass(SESSION_MS + 1_000)
            member.id = ""

        await self._remove(member, "stalled", stands_still)
        await self._add(member, "rejoined-after-eviction")

    async def miss_poll(self, member: Member) -> None:
        """max.poll.interval.ms is over: it leaves, stays connected, and comes back."""
        await self._remove(member, "poll-deadline-missed", member.leave)
        await self._add(member, "rejoined-after-eviction")

    async def hang(self, member: Member) -> None:
        """The same, and it never comes back."""
        assert await member.heartbeat() == ErrorCode.NONE
        self._hanging.append(member)
        await self._remove(member, "poll-deadline-missed", member.leave)

    async def evict(self, member: Member) -> None:
        """An admin removes it; it comes back."""

        async def is_removed() -> None:
            await self._facts.evict(member.id)
            member.id = ""

        await self._remove(member, "evicted-by-admin", is_removed)
        await self._add(member, "rejoined-after-eviction")

    async def subscribe(self, member: Member) -> None:
        """It wants another topic as well, or does not any more."""
        others = OTHER_TOPIC not in member.topics
        member.topics = [TOPIC, OTHER_TOPIC] if others else [TOPIC]
        await self._rebalance("subscription-changed", member, first=[member])

    async def deploy(self) -> None:
        """Every process is stopped and started again under its name, one after the other."""
        self._journal.deployed.add(self.name)
        for member in list(self.members):
            if member.instance is None:
                await self._remove(member, "clean-shutdown", self._closing)
                await self._pass(2_000)
                await self._add(self._new(member.client_id, None), "new-member")
            else:
                await self._restart_static(member)
            await self._pass(5_000)

    async def _restart_static(self, member: Member) -> None:
        """It is back within its session: nobody else notices."""
        old_id = member.id
        member.wire.abort()
        await member.close()
        await self._facts.member(old_id).disconnected(timeout=DEADLINE_S)
        await self._pass(2_000)
        member.id = ""
        await self._connect(member)
        await member.ask_to_join()
        await member.joined()
        assert member.id != old_id
        assert member.leads is None, "a rebalance that was not meant to be"
        await member.ask_to_sync()
        await member.synced()
        self._note("static-member-replaced", member, None, 0)

    async def work(self) -> None:
        """Records come, members commit some of them, then all; with one commit of the past."""
        for number in range(PARTITIONS):
            await self._cluster.produce(TOPIC, [b"v"] * self._chance.randint(1, 20), partition=number)
        await self._commit(behind=self._chance.randint(1, 3))
        await self._pass(11_000)
        await self._commit(behind=0)

    async def commit_late(self, member: Member) -> None:
        """What it has processed under the generation before is refused."""
        if member.generation < 2:
            return
        error = await member.commit({(TOPIC, 0): 0}, generation=member.generation - 1)
        assert error == ErrorCode.ILLEGAL_GENERATION, error

    async def reconnect(self) -> None:
        """After their broker has gone: to the one that has the group now."""
        for member in self.members:
            await self._connect(member)
            error = await member.heartbeat()
            assert error == ErrorCode.NONE, (member.client_id, error)

    def last_told(self) -> bytes:
        """The newest entry about it that is stored, as it is or will be written."""
        told = [each for each in self._facts.timeline() if each.group == self.name]
        return told[-1].to_json()

    async def end(self) -> None:
        """Cut all connections; what the journal has of that is not read any more."""
        for member in (*self.members, *self._hanging):
            await member.close()

    # --- how ------------------------------------------------------------------------------------------------

    def _new(self, client_id: str, instance: str | None) -> Member:
        return Member(self.name, client_id, [TOPIC], instance)

    async def _connect(self, member: Member) -> None:
        index = self._cluster.coordinator_of(self.name)
        assert index is not None, f"nobody coordinates {self.name}"
        await member.connect(self._cluster.ports[index])

    async def _add(self, member: Member, what: str) -> None:
        if member._wire is None:
            await self._connect(member)
        self.members.append(member)
        await self._rebalance(what, member, first=[member])

    async def _remove(self, member: Member, what: str, going: Callable[..., object]) -> None:
        self.members.remove(member)
        outcome = going(member) if going == self._closing else going()
        assert asyncio.iscoroutine(outcome)
        await outcome
        await self._rebalance(what, member, first=[])

    async def _closing(self, member: Member) -> None:
        gone = member.id
        await member.leave()
        await member.close()
        await self._told(lambda type, who: type == "member_disconnected" and who == gone)

    async def _told(self, wanted: Callable[[str, str | None], bool]) -> None:
        """Wait until the journal has an entry of that type about that member id."""
        await until(
            lambda: any(wanted(each.type, each.member and each.member.id) for each in self._facts.timeline()),
            f"what {self.name} is to be told",
        )

    async def _rebalance(self, what: str, member: Member, *, first: Sequence[Member]) -> None:
        """All join, `first` first and one of the others late; then all sync and the leader late."""
        if not self.members:
            self.owners = {}
            self._note(what, member, None, 0)
            return
        for each in first:
            await each.ask_to_join()
        others = [each for each in self.members if each not in first]
        self._chance.shuffle(others)
        if others:  # who joins a group that is Stable is answered at once
            await self._facts.in_state("PreparingRebalance", timeout=DEADLINE_S)
        slow_ms = 0
        for number, each in enumerate(others):
            if number == len(others) - 1:
                slow_ms = self._chance.randint(200, 3_000)
                await self._pass(slow_ms)
            await each.ask_to_join()
        for each in self.members:
            await each.joined()
        leader = next(each for each in self.members if each.leads is not None)
        for each in self.members:
            if each is not leader:
                await each.ask_to_sync()
        await self._pass(self._chance.randint(10, 300))
        self.owners = self._assigned()
        by_id: dict[str, list[Part]] = {each.id: [] for each in self.members}
        for part, owner in self.owners.items():
            by_id[owner.id].append(part)
        await leader.ask_to_sync(by_id)
        for each in self.members:
            await each.synced()
        self._note(what, member, leader.generation, slow_ms)

    def _assigned(self) -> dict[Part, Member]:
        """Evenly; with `sticky` who has a partition keeps it where that is even too."""
        topics = sorted({topic for member in self.members for topic in member.topics})
        found: dict[Part, Member] = {}
        for topic in topics:
            able = [each for each in self.members if topic in each.topics]
            parts = [(topic, number) for number in range(PARTITIONS)]
            room = {
                each: len(parts) // len(able) + (i < len(parts) % len(able)) for i, each in enumerate(able)
            }
            left = []
            for part in parts:
                owner = self.owners.get(part)
                if self.sticky and owner is not None and room.get(owner, 0) > 0:
                    found[part] = owner
                    room[owner] -= 1
                else:
                    left.append(part)
            for part in left:
                owner = next(each for each in able if room[each] > 0)
                found[part] = owner
                room[owner] -= 1
        return found

    async def _commit(self, *, behind: int) -> None:
        ends = self._cluster.topic(TOPIC).end_offsets()
        lag = 0
        for member in self.members:
            offsets = {
                part: max(ends[part[1]] - behind, 0)
                for part, owner in self.owners.items()
                if owner is member and part[0] == TOPIC
            }
            lag += sum(ends[number] - offset for (_, number), offset in offsets.items())
            if offsets:
                assert await member.commit(offsets) == ErrorCode.NONE
        self._journal.committed_lag[self.name] = lag

    async def _pass(self, by_ms: int) -> None:
        await self._cluster.clock.advance(by_ms / 1_000)

    def _note(self, what: str, member: Member, generation: int | None, slow_ms: int) -> None:
        did = Did(self.name, what, member.client_id, generation, len(self.members), slow_ms)
        self._journal.did.append(did)


@asynccontextmanager
async def driven(
    groups: int, seed: int, brokers: int = 2
) -> AsyncIterator[tuple[AsyncCluster, list[Group], Journal]]:
    """Brokers, and groups without members; a third of them is for static ones."""
    chance = random.Random(seed)
    journal = Journal(seed)
    # Members are quiet for hours of the brokers' time.
    async with Cluster(brokers, connections_max_idle_ms=7 * 24 * 3_600_000) as cluster:
        await cluster.create_topic(TOPIC, PARTITIONS)
        await cluster.create_topic(OTHER_TOPIC, PARTITIONS)
        there = [Group(cluster, f"group-{number}", journal, chance) for number in range(groups)]
        try:
            yield cluster, there, journal
        finally:
            for group in there:
                await group.end()


async def generate(groups: int = 6, steps: int = 40, seed: int | None = None) -> Journal:
    """Drive groups through `steps` things that happen to one or another, a deploy of each third, and a
    failover; prints its seed."""
    seed = random.SystemRandom().randrange(2**31) if seed is None else seed
    print(f"journal generator: seed {seed}", file=sys.stderr)
    chance = random.Random(seed + 1)
    async with driven(groups, seed) as (cluster, there, journal):
        for number, group in enumerate(there):
            await group.start(chance.randint(2, 4), static=number % 3 == 2)
        for step in range(steps):
            if step == steps // 2:
                await fail_over(cluster, there, journal)
            await _something(chance.choice(there), chance)
        for group in there[::3] + there[2::3]:
            await group.deploy()
        journal.records = await finished(cluster, there)
        for group in there:
            journal.owners[group.name] = {part: owner.client_id for part, owner in group.owners.items()}
    return journal


async def _something(group: Group, chance: random.Random) -> None:
    await group._pass(chance.randint(1_000, 240_000))
    member = chance.choice(group.members)
    static = member.instance is not None
    choices: list[Callable[[], object]] = [
        lambda: group.crash(member),
        lambda: group.evict(member),
        lambda: group.subscribe(member),
        group.work,
        lambda: group.commit_late(member),
    ]
    if not static:
        choices += [
            lambda: group.stall(member),
            lambda: group.miss_poll(member),
            lambda: group.hang(member),
            lambda: group.close(member),
        ]
    what = chance.choice(choices)()
    assert asyncio.iscoroutine(what)
    await what
    if len(group.members) < 2 or (len(group.members) < 4 and chance.random() < 0.3):
        await group.start(1, static=static)


async def fail_over(cluster: AsyncCluster, groups: Sequence[Group], journal: Journal) -> None:
    """The first group's broker dies; the other takes all over."""
    dead = cluster.coordinator_of(groups[0].name)
    assert dead is not None
    await cluster.kill(dead)
    await until(
        lambda: all(cluster.coordinator_of(each.name) not in (None, dead) for each in groups),
        "another coordinator",
    )
    for group in groups:
        await group.reconnect()
    journal.broker_moves += 1


async def finished(cluster: AsyncCluster, groups: Sequence[Group]) -> list[Record]:
    """The journal, once what goes with no change of a group is in it as well."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            records = await cluster.records(JOURNAL)
            written = {each.key: each.value for each in records}
            if all(group.last_told() == written.get(group.name.encode()) for group in groups):
                return records


if __name__ == "__main__":
    asyncio.run(generate(seed=int(sys.argv[2]) if len(sys.argv) > 2 else None)).write(Path(sys.argv[1]))
