"""One group on real brokers, and events of its processes: each call does one thing, carries the resulting
rebalance to its end, and notes what the journal must show.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from muster.coordinator.testing import AsyncCluster, AsyncGroup
from muster.coordinator.testing.faces import both, waits
from muster.coordinator.testing.topics import Record
from muster.coordinator.testing.waiting import Seen, wait_until
from muster.protocol.errors import ErrorCode
from tests.support.members import SESSION_MS, Member, Part

TOPIC: Final = "orders"
OTHER_TOPIC: Final = "refunds"
PARTITIONS: Final = 12
DEADLINE_S: Final = 60.0
HOSTS: Final = tuple(f"127.0.1.{number}" for number in range(1, 7))
"""Addresses of this machine that stand for six machines."""
APART_MS: Final = 20 * 60_000
"""An event this long after another is never taken as part of it."""

COMPLETED: Final = "completed"
INTERRUPTED: Final = "interrupted"
UNDER_WAY: Final = "under way"

BEGINS: Final = frozenset({"new-member", "rejoined-after-eviction", "static-member-replaced"})
"""Diagnoses that begin a member's session."""
EVICTS: Final = frozenset({"crashed", "stalled", "evicted-by-admin"})
ENDS: Final = EVICTS | {"clean-shutdown", "poll-deadline-missed", "static-member-replaced"}


class Did(NamedTuple):
    """An action on a group, and the rebalance that it must have triggered."""

    group: str
    what: str
    """The diagnosis that the rebalance must have, a word of docs/why.md; or heartbeat-late or
    commit-refused."""
    client_id: str
    """Client id of the member concerned."""
    host: str
    instance: str | None
    at_ms: int
    """When it was over, by the brokers' clock."""
    outcome: str | None = None
    """Outcome of the rebalance; None: it triggered none."""
    generation: int | None = None
    """The generation that the rebalance led to, or would have led to."""
    members: int = 0
    """Number of members at its end."""
    slow_ms: int = 0
    """Minimum time that the group waited for the last JoinGroup."""
    assignment_ms: int = 0
    """Minimum time that it then waited for the leader's assignment."""
    moved: int | None = None
    """Partitions that changed owner, whether the old owner is gone or not; None without an assignment."""
    silent_ms: int = 0
    """Minimum time that partitions had no owner before the rebalance began."""

    @property
    def is_end(self) -> bool:
        """Whether it ended a member's session; a LeaveGroup that was lost with its broker did not."""
        return self.what in ENDS and self.outcome != INTERRUPTED

    @property
    def evicts(self) -> bool:
        """Whether a member was evicted: also one whose session expired because its LeaveGroup was lost."""
        return self.what in EVICTS or self.silent_ms > 0


class Deploy(NamedTuple):
    """Every process of a group was restarted, one after the other."""

    group: str
    began_ms: int
    ended_ms: int
    names: frozenset[str]
    is_static: bool


class Backlog(NamedTuple):
    """Records arrived during a rebalance, and were processed later."""

    group: str
    generation: int
    growth: int
    """Number of records that were waiting."""
    recovered_ms: int
    """Latest time by which all were committed."""


class Failover(NamedTuple):
    """A broker died, and others took over its groups."""

    from_broker: int
    """Node id."""
    shards: dict[int, int]
    """Shard -> number of groups; only shards that have groups."""
    interrupted: int
    """The shard of the group that was rebalancing."""
    lost: dict[int, int]
    """Shard -> number of members that died with the broker."""


@dataclass
class Journal:
    """The journal's records, and everything that was done to the groups."""

    seed: int
    records: list[Record] = field(default_factory=list)
    did: list[Did] = field(default_factory=list)
    owners: dict[str, dict[Part, str]] = field(default_factory=dict)
    """By group: client id of each partition's owner at the end."""
    members: dict[str, int] = field(default_factory=dict)
    """By group: number of members at the end of its last rebalance."""
    deploys: list[Deploy] = field(default_factory=list)
    failovers: list[Failover] = field(default_factory=list)
    backlogs: list[Backlog] = field(default_factory=list)
    flapped: set[tuple[str, str]] = field(default_factory=set)
    """Group and client id of members that came and went at least three times within an hour."""
    partitions: dict[str, int] = field(default_factory=dict)
    """Current number of partitions of each topic."""
    whys: dict[tuple[str, int], str] = field(default_factory=dict)
    """By group and generation: the brokers' own diagnosis at the end."""

    def rows(self) -> list[tuple[bytes | None, bytes, int, int]]:
        """Rows of the bronze table: key, value, partition, offset."""
        return [(each.key, each.value or b"", each.partition, each.offset) for each in self.records]


class _Facts(AsyncGroup):
    """Calls that no other test has needed so far."""

    __slots__ = ()

    @both
    async def grow(self, topic: str, partitions: int) -> None:
        """Grow the topic to `partitions` partitions; every broker knows of them on return."""
        nodes = self._core.running
        await nodes[0].catalogue.add_partitions(topic, partitions)
        for node in nodes:
            await node.catalogue.refresh()

    @waits
    async def told(self, type: str, member_id: str) -> None:
        """Wait until the group's journal has an entry of that type about that member."""

        async def look() -> tuple[Seen, None]:
            entries = reversed(self._core.entries(self.group_id))
            met = any(e.type == type and e.member is not None and e.member.id == member_id for e in entries)
            return Seen(met, "not told"), None

        await wait_until(self._core.news, f"{type} of {member_id}", look, DEADLINE_S, story=self._story)

    @waits
    async def coordinated(self) -> None:
        """Wait until a running broker coordinates the group."""

        async def look() -> tuple[Seen, None]:
            await self._view()
            return Seen(True, ""), None

        await wait_until(self._core.news, f"a coordinator of {self.group_id}", look, DEADLINE_S)


class Group:
    """The processes of one group. Every call leaves the group Stable, or Empty, unless it says otherwise."""

    def __init__(
        self,
        cluster: AsyncCluster,
        name: str,
        journal: Journal,
        chance: random.Random,
        kind: str,
        session_ms: int = SESSION_MS,
    ) -> None:
        """`kind`: dynamic, static or cooperative."""
        self.name = name
        self.static, self.cooperative = kind == "static", kind == "cooperative"
        self.sticky = self.cooperative or chance.random() < 0.5
        self.members: list[Member] = []
        self.owners: dict[Part, Member] = {}
        self.session_ms = session_ms
        self.facts = _Facts(cluster._core, name)
        self._hanging: list[Member] = []
        self._cluster, self._journal, self._chance = cluster, journal, chance
        self._started = 0
        self._generation = 0
        self._leader: Member | None = None

    # --- processes come and go ------------------------------------------------------------------------------

    async def start(self, count: int) -> None:
        """Start processes one after the other, each with its own rebalance."""
        for _ in range(count):
            self._started += 1
            await self._add(self._new(f"{self.name}-{self._started}"), "new-member")

    async def close(self, member: Member) -> None:
        """Stop the process as users do: LeaveGroup, then its connection closes."""
        await self._remove(member, "clean-shutdown", self._closing)

    async def stop_all(self) -> None:
        """Close all members and start as many again much later: meanwhile the group is Empty, kept alive by
        its offsets."""
        await self.work()
        count = len(self.members)
        for member in list(self.members):
            await self.close(member)
        await self.passes(APART_MS)
        await self.start(count)

    async def crash(self, member: Member) -> None:
        """SIGKILL: its connection closes, and its session expires."""
        await self._remove(member, "crashed", self._dying, silent_ms=self.session_ms)

    async def stall(self, member: Member) -> None:
        """SIGSTOP for longer than its session timeout; then it continues on its open connection."""
        await self._remove(member, "stalled", self._standing_still, silent_ms=self.session_ms)
        await self._add(member, "rejoined-after-eviction")

    async def miss_poll(self, member: Member) -> None:
        """max.poll.interval.ms expires: it leaves, stays connected, and rejoins."""
        await self._remove(member, "poll-deadline-missed", self._leaving_late)
        await self._add(member, "rejoined-after-eviction")

    async def hang(self, member: Member) -> None:
        """The same, but it never rejoins."""
        self._hanging.append(member)
        await self._remove(member, "poll-deadline-missed", self._leaving_late)

    async def evict(self, member: Member) -> None:
        """An admin removes it; it rejoins."""

        async def is_removed(member: Member) -> None:
            await self.facts.evict(member.id)
            member.id = ""

        await self._remove(member, "evicted-by-admin", is_removed)
        await self._add(member, "rejoined-after-eviction")

    async def flap(self, member: Member, times: int = 3) -> None:
        """It crashes and is restarted, again and again, as by a supervisor."""
        self._journal.flapped.add((self.name, member.client_id))
        for _ in range(times):
            await self.crash(member)
            member = self._again(member)
            await self.passes(5_000)
            await self._add(member, "rejoined-after-eviction")

    async def deploy(self) -> None:
        """Stop and restart every process under its name, one after the other; nothing happens for some time
        before and after."""
        await self.passes(APART_MS)
        began_ms, names = self._now_ms, frozenset(each.client_id for each in self.members)
        for member in list(self.members):
            if self.static:
                await self._replace(member, self._again(member))
            else:
                await self._remove(member, "clean-shutdown", self._closing)
                await self.passes(2_000)
                await self._add(self._again(member), "new-member")
            await self.passes(5_000)
        deploy = Deploy(self.name, began_ms, self._now_ms, names, self.static)
        self._journal.deploys.append(deploy)
        await self.passes(APART_MS)

    async def duplicate(self, member: Member, turns: int = 3) -> None:
        """Start another process with its instance id: they fence each other in turn, and one is closed in the
        end."""
        self._journal.flapped.add((self.name, member.client_id))
        other = self._new(member.client_id)
        for _ in range(turns):
            old_id = member.id
            await self._replace(member, other, both_live=True)
            assert await member.heartbeat(as_id=old_id) == ErrorCode.FENCED_INSTANCE_ID
            member, other = other, member
            await self.passes(3_000)
        await other.close()

    # --- other things that happen ---------------------------------------------------------------------------

    async def subscribe(self, member: Member) -> None:
        """It subscribes to another topic as well, or drops that topic."""
        member.topics = [TOPIC] if OTHER_TOPIC in member.topics else [TOPIC, OTHER_TOPIC]
        await self._rebalance("subscription-changed", member, first=member)

    async def grow(self) -> None:
        """Add a partition to a topic; the leader, which watches the topic, asks for a rebalance."""
        self._journal.partitions[TOPIC] += 1
        await self.facts.grow(TOPIC, self._journal.partitions[TOPIC])
        assert self._leader is not None
        await self._rebalance("topics-grown", self._leader, first=self._leader)

    async def be_late(self, member: Member) -> None:
        """It is silent for most of its session: a near miss."""
        await self._cluster.clock.stall(self.name, member.id)
        await self.passes(self.session_ms - 10_000)
        await self._cluster.clock.unstall(self.name, member.id)
        assert await member.heartbeat() == ErrorCode.NONE
        self._note("heartbeat-late", member)

    async def work(self) -> None:
        """Records arrive; members commit some of them, then all."""
        await self._produce()
        await self._commit(behind=self._chance.randint(1, 3))
        await self.passes(11_000)
        await self._commit(behind=0)

    async def fall_behind(self, member: Member) -> None:
        """Everything is committed, and recorded as such; the member crashes, records arrive, and are
        processed once the others own its partitions."""
        await self.start(1)  # lag is recorded soonest after a rebalance
        for _ in range(2):
            await self._commit(behind=0)
            await self.passes(5 * 60_000)
        growth = await self._produce()
        await self.crash(member)
        generation = self._generation
        for pause_ms in (11_000, 5 * 60_000):  # the next commit is recorded, later ones now and then
            await self.passes(pause_ms)
            await self._commit(behind=0)
        self._journal.backlogs.append(Backlog(self.name, generation, growth, self._now_ms))

    async def commit_late(self, member: Member) -> None:
        """It commits its work under the previous generation, and is refused."""
        if member.generation < 2:
            return
        error = await member.commit({(TOPIC, 0): 0}, generation=member.generation - 1)
        assert error == ErrorCode.ILLEGAL_GENERATION, error
        self._note("commit-refused", member)

    async def leave_midway(self, member: Member, outcome: str) -> None:
        """It is closed, and the others have not noticed yet: the group stays in PreparingRebalance."""
        self.members.remove(member)
        await self._closing(member)
        await self.facts.in_state("PreparingRebalance", timeout=DEADLINE_S)
        self._note("clean-shutdown", member, outcome=outcome, generation=self._generation + 1)

    async def reconnect(self) -> None:
        """After a broker failure, connect to the new coordinator."""
        for member in self.members:
            await self._connect(member)
            error = await member.heartbeat()
            assert error == ErrorCode.NONE, (member.client_id, error)

    async def lose(self, members: Sequence[Member], what: str) -> None:
        """These members were gone when their broker died, and their sessions, which restarted on the new one,
        have just expired: the others rebalance."""
        await self._rebalance(what, members[0], silent_ms=self.session_ms)
        for member in members[1:]:  # in the same step
            self._note(what, member)

    async def end(self) -> None:
        """Cut all connections; the journal entries about that are not read any more."""
        for member in (*self.members, *self._hanging):
            await member.close()

    async def passes(self, by_ms: int) -> None:
        """Let time pass."""
        await self._cluster.clock.advance(by_ms / 1_000)

    def last_told(self) -> bytes:
        """The newest entry about the group, as it is or will be stored."""
        return next(each for each in reversed(self.facts.timeline()) if each.group == self.name).to_json()

    def whys(self) -> dict[int, str]:
        """By generation: the brokers' diagnosis."""
        generations = {
            each.generation
            for each in self._journal.did
            if each.group == self.name and each.outcome == COMPLETED and each.generation is not None
        }
        return {each: self.facts.why(generation=each).diagnosis.value for each in generations}

    # --- implementation -------------------------------------------------------------------------------------

    @property
    def _now_ms(self) -> int:
        return self._cluster.clock.now_ms()

    @property
    def _port(self) -> int:
        index = self._cluster.coordinator_of(self.name)
        assert index is not None, f"nobody coordinates {self.name}"
        return self._cluster.ports[index]

    def _new(self, client_id: str) -> Member:
        return Member(
            self.name,
            client_id,
            [TOPIC],
            client_id if self.static else None,
            host=self._chance.choice(HOSTS),
            assignor="cooperative-sticky" if self.cooperative else "range",
            session_ms=self.session_ms,
        )

    def _again(self, member: Member) -> Member:
        """The process that replaces one that is gone: same name, same host."""
        again = self._new(member.client_id)
        again.host = member.host
        return again

    async def _connect(self, member: Member) -> None:
        await member.connect(self._port)

    async def _add(self, member: Member, what: str) -> None:
        if not member.connected:
            await self._connect(member)
        self.members.append(member)
        await self._rebalance(what, member, first=member)

    async def _remove(
        self, member: Member, what: str, going: Callable[[Member], Awaitable[object]], silent_ms: int = 0
    ) -> None:
        self.members.remove(member)
        await going(member)
        member.owned = []
        await self._rebalance(what, member, silent_ms=silent_ms)

    async def _closing(self, member: Member) -> None:
        gone = member.id
        await member.leave()
        await member.close()
        await self.facts.told("member_disconnected", gone)

    async def _leaving_late(self, member: Member) -> None:
        """It polled last when it joined, sends heartbeats, and leaves at its poll deadline."""
        await self.passes(member.rebalance_ms)
        assert await member.heartbeat() == ErrorCode.NONE
        await member.leave()

    async def _dying(self, member: Member) -> None:
        await self._shows_life(member)
        member.wire.abort()
        await member.close()
        await self.facts.member(member.id).disconnected(timeout=DEADLINE_S)
        await self.passes(self.session_ms + 1_000)

    async def _shows_life(self, member: Member) -> None:
        """It starts working on its assignment, and sends its last heartbeat."""
        await self.passes(1_000)
        assert await member.heartbeat() == ErrorCode.NONE

    async def _standing_still(self, member: Member) -> None:
        await self._shows_life(member)
        await self._cluster.clock.stall(self.name, member.id)
        await self.passes(self.session_ms + 1_000)
        member.id = ""

    async def _replace(self, member: Member, by: Member, *, both_live: bool = False) -> None:
        """A static member comes back as `by`, within its session: nobody else notices."""
        old_id = member.id
        await self._shows_life(member)
        if not both_live:
            member.wire.abort()
            await member.close()
            await self.facts.member(old_id).disconnected(timeout=DEADLINE_S)
            await self.passes(2_000)
        by.id, by.topics = "", member.topics
        if not by.connected:
            await self._connect(by)
        await by.ask_to_join()
        await by.joined()
        assert by.id != old_id
        assert by.leads is None, "a rebalance that was not meant to be"
        await by.ask_to_sync()
        await by.synced()
        self.members[self.members.index(member)] = by
        self.owners = {part: by if each is member else each for part, each in self.owners.items()}
        if self._leader is member:
            self._leader = by
        self._note("static-member-replaced", by)

    async def _rebalance(
        self, what: str, member: Member, *, first: Member | None = None, silent_ms: int = 0
    ) -> None:
        """Carry the rebalance through; with a cooperative assignor, members that had to give up partitions
        trigger another."""
        if not self.members:
            self.owners, self._generation = {}, self._generation + 1
            self._note(what, member, outcome=COMPLETED, generation=self._generation)
            return
        again = await self._generate(what, member, first, silent_ms)
        while again:
            again = await self._generate("cooperative-follow-up", again[0], again[0], 0)

    async def _generate(
        self, what: str, member: Member, first: Member | None, silent_ms: int
    ) -> list[Member]:
        """All join, `first` first and one of the others late; then all sync, the leader late. Partitions that
        a member must give up first are assigned to nobody yet."""
        if first is not None:
            await first.ask_to_join()
        others = [each for each in self.members if each is not first]
        self._chance.shuffle(others)
        if others:  # a member that joins a Stable group is answered at once
            await self.facts.in_state("PreparingRebalance", timeout=DEADLINE_S)
        slow_ms = 0
        for number, each in enumerate(others):
            if number == len(others) - 1:
                slow_ms = self._chance.randint(200, 3_000)
                await self.passes(slow_ms)
            await each.ask_to_join()
        for each in self.members:
            await each.joined()
        leader = next(each for each in self.members if each.leads is not None)
        for each in self.members:
            if each is not leader:
                await each.ask_to_sync()
        assignment_ms = self._chance.randint(10, 300)
        await self.passes(assignment_ms)
        before, target = self.owners, self._assigned()
        taken = {
            part: before[part]
            for part, owner in target.items()
            if self.cooperative and before.get(part, owner) is not owner and before[part] in self.members
        }
        self.owners = {part: owner for part, owner in target.items() if part not in taken}
        by_id: dict[str, list[Part]] = {each.id: [] for each in self.members}
        for part, owner in self.owners.items():
            by_id[owner.id].append(part)
        await leader.ask_to_sync(by_id)
        for each in self.members:
            await each.synced()
            each.owned = sorted(by_id[each.id]) if self.cooperative else []
        self._leader, self._generation = leader, leader.generation
        self._note(
            what,
            member,
            outcome=COMPLETED,
            generation=leader.generation,
            slow_ms=slow_ms,
            assignment_ms=assignment_ms,
            moved=sum(before.get(part, owner) is not owner for part, owner in self.owners.items()),
            silent_ms=silent_ms,
        )
        return [each for each in self.members if each in taken.values()]

    def _assigned(self) -> dict[Part, Member]:
        """Assign evenly; with `sticky`, owners keep their partitions if the result stays even."""
        topics = sorted({topic for member in self.members for topic in member.topics})
        found: dict[Part, Member] = {}
        for topic in topics:
            able = [each for each in self.members if topic in each.topics]
            parts = [(topic, number) for number in range(self._journal.partitions[topic])]
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

    async def _produce(self) -> int:
        """Produce to every partition of TOPIC that the group owns; return the number of records."""
        made = 0
        for topic, number in sorted(self.owners):
            if topic == TOPIC:
                count = self._chance.randint(1, 20)
                await self._cluster.produce(TOPIC, [b"v"] * count, partition=number)
                made += count
        return made

    async def _commit(self, *, behind: int) -> None:
        ends = self._cluster.topic(TOPIC).end_offsets()
        for member in self.members:
            offsets = {
                part: max(ends[part[1]] - behind, 0)
                for part, owner in self.owners.items()
                if owner is member and part[0] == TOPIC
            }
            if offsets:
                assert await member.commit(offsets) == ErrorCode.NONE

    def _note(
        self,
        what: str,
        member: Member,
        *,
        outcome: str | None = None,
        generation: int | None = None,
        slow_ms: int = 0,
        assignment_ms: int = 0,
        moved: int | None = None,
        silent_ms: int = 0,
    ) -> None:
        assert member.host is not None
        self._journal.did.append(
            Did(
                self.name,
                what,
                member.client_id,
                member.host,
                member.instance,
                self._now_ms,
                outcome,
                generation,
                len(self.members),
                slow_ms,
                assignment_ms,
                moved,
                silent_ms,
            )
        )
