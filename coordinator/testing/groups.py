"""A group in a test: its facts, waits, admin actions, and failures of its members."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from muster.coordinator.base.step import Step
from muster.coordinator.group.classic.states import GroupState as ClassicState
from muster.coordinator.group.consumer.group import GroupState as ConsumerState
from muster.coordinator.group.group import MemberView
from muster.coordinator.group.shard import Shard
from muster.coordinator.journal.entries import Entry
from muster.coordinator.journal.entries import Member as KnownMember
from muster.coordinator.server.test_mode.faults import CLOSE_BEFORE, FaultError, Rule
from muster.coordinator.testing.arguments import check_count, check_text, check_whole_number
from muster.coordinator.testing.faces import Async, Blocking, Calls, both, waits
from muster.coordinator.testing.faults import AsyncFaultRule, FaultRule
from muster.coordinator.testing.timeline import Timeline
from muster.coordinator.testing.topics import has_records
from muster.coordinator.testing.waiting import TIMEOUT_S, Duration, Seen, WaitFailed, wait_until
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.classic_group import LeaveGroupRequest, LeaveGroupResponse

if TYPE_CHECKING:
    from muster.coordinator.journal.explain import Explanation
    from muster.coordinator.testing.core import Core

TopicPartition = tuple[str, int]
_STATES: Final = tuple(dict.fromkeys(map(str, (*ClassicState, *ConsumerState))))
"""Of groups of either protocol."""
_SHARED_CLIENT_IDS: Final = (
    ("rdkafka", "librdkafka client", "producers"),
    ("muster", "muster client", "producers"),
    (r"aiokafka-\d+\.\d+\.\w[\w.]*", "aiokafka consumer", "admin clients"),
    (r"kafka-python-\d+\.\d+\.\w[\w.]*", "kafka-python consumer", "admin clients"),
    (r"faststream-\d+\.\d+\.\w[\w.]*", "FastStream broker", "publishers"),
)
"""Defaults as patterns, whose they are, and who else has them."""
M = TypeVar("M", bound="MemberCalls")


class GroupFacts(NamedTuple):
    """A group in brief. `state` is Kafka's name: Empty, Stable, Dead (also if it does not exist), and, of a
    classic group, PreparingRebalance, CompletingRebalance, of a consumer group, Assigning, Reconciling."""

    state: str
    members: int


class MemberFacts(NamedTuple):
    """A member as its coordinator sees it."""

    id: str
    client_id: str
    host: str
    instance: str | None
    """group.instance.id of a static member."""
    topics: tuple[str, ...]
    """Topics it subscribes to."""
    assignment: tuple[TopicPartition, ...]
    """Its partitions in the last completed generation, sorted."""
    connected: bool
    """Whether the connection it was last heard on is open."""
    name: str
    """Its short name in every view: instance id or client id, plus the end of its member id if several
    members share the client id."""

    def __str__(self) -> str:
        gone = "" if self.connected else ", disconnected"
        return f"{self.name} ({self.id}{gone})"


class View(NamedTuple):
    """A consistent snapshot of a group."""

    state: str
    generation: int
    members: tuple[MemberFacts, ...]
    pending: tuple[str, ...]
    """Member ids issued but not yet used to join."""
    committed: dict[TopicPartition, int]
    uncommitted: dict[TopicPartition, int]
    """Offsets in open transactions."""
    connections: dict[str, int | None]
    """Member id -> the connection it was last heard on."""

    @property
    def short(self) -> str:
        members = ", ".join(map(str, self.members)) or "no members"
        pending = f", waiting for {', '.join(self.pending)} to join" if self.pending else ""
        return f"{self.state}, generation {self.generation}: {members}{pending}"

    def meant(self, name: str) -> list[MemberFacts]:
        """The members that a name may mean; see `Names.meant`."""
        from muster.coordinator.journal.names import Names

        known = (KnownMember(each.id, each.client_id, each.host, each.instance) for each in self.members)
        ids = {each.id for each in Names(known).meant(name)}
        return [each for each in self.members if each.id in ids]


class GroupCalls(Calls):
    """One group. It need not exist: until it does, its state is Dead."""

    __slots__ = ("group_id",)

    def __init__(self, core: Core, group_id: str) -> None:
        __tracebackhide__ = True
        check_text("group_id", group_id)
        super().__init__(core)
        self.group_id = group_id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.group_id}>"

    # --- facts, the same on both faces ----------------------------------------------------------------------
    # Each raises KafkaError if the group has no coordinator right now.

    @property
    def facts(self) -> GroupFacts:
        """(state, number of members), read together."""
        view = self._look(self._view)
        return GroupFacts(view.state, len(view.members))

    @property
    def state(self) -> str:
        """Kafka's name of its state; Dead if it does not exist."""
        return self._look(self._view).state

    @property
    def generation(self) -> int:
        """Its generation; 0 if it never had one."""
        return self._look(self._view).generation

    @property
    def members(self) -> list[MemberFacts]:
        """Its members, in the order they joined."""
        return list(self._look(self._view).members)

    @property
    def assignment(self) -> dict[TopicPartition, str]:
        """Partition -> member id of its owner, as of the last completed generation."""
        return {part: each.id for each in self.members for part in each.assignment}

    def offsets(self) -> dict[TopicPartition, int]:
        """Committed offsets by partition."""
        return self._look(self._view).committed

    def pending_offsets(self) -> dict[TopicPartition, int]:
        """Offsets that open transactions would commit, by partition; the newest if there are several."""
        return self._look(self._view).uncommitted

    def lag(self) -> dict[TopicPartition, int]:
        """Records between each committed offset (without a commit, the start of the log) and the end of the
        log, for every partition of the topics that it subscribes to or has commits in. Counted by offsets, as
        Kafka's tools do: the marker that ends a transaction counts too."""
        return self._look(self._lag)

    def timeline(self) -> Timeline:
        """The group's journal, oldest first: a list of entries that prints as lines."""

        async def entries() -> list[Entry]:
            return self._core.entries(self.group_id)

        return Timeline(self._look(entries))

    def why(self, *, generation: int | None = None) -> Explanation:
        """Why it last rebalanced, or how it reached `generation`. Raises LookupError if it did not."""
        from muster.coordinator.journal.explain import explain

        async def look() -> tuple[list[Entry], int]:
            return self._core.entries(self.group_id), self._core.brokers.now_ms()

        entries, now_ms = self._look(look)
        found = explain(entries, group=self.group_id, generation=generation, now_ms=now_ms)
        if found is None:
            which = (
                "has not rebalanced"
                if generation is None
                else f"has no rebalance into generation {generation}"
            )
            raise LookupError(f"group {self.group_id} {which}, as far as its journal goes back")
        return found

    # --- waits ----------------------------------------------------------------------------------------------

    @waits
    async def stable(
        self, *, members: int | None = None, generation: int | None = None, timeout: Duration = TIMEOUT_S
    ) -> GroupFacts:
        """Wait until the group is Stable: with exactly that many members, and in that generation or a later
        one, if given. Raises WaitFailed."""
        wanted = "to be Stable" if members is None else f"to be Stable with {_count(members)}"
        if generation is not None:
            check_count("generation", generation, "a generation")
            wanted += f", in generation {generation} or later"
        return await self._until_view(
            wanted,
            lambda view: (
                view.state == "Stable"
                and members in (None, len(view.members))
                and view.generation >= (generation or 0)
            ),
            timeout,
        )

    @waits
    async def empty(self, *, timeout: Duration = TIMEOUT_S) -> GroupFacts:
        """Wait until the group has no members, or is gone. Raises WaitFailed."""
        return await self._until_view("to be empty", lambda view: view.state in ("Empty", "Dead"), timeout)

    @waits
    async def in_state(
        self, state: str, *, members: int | None = None, timeout: Duration = TIMEOUT_S
    ) -> GroupFacts:
        """Wait until the group is in `state`, Kafka's name such as PreparingRebalance. Raises WaitFailed, and
        ValueError for an unknown state."""
        return await reached(self, state, members, timeout)

    @waits
    async def committed(
        self, topic: str, partition: int = 0, *, at_least: int = 0, timeout: Duration = TIMEOUT_S
    ) -> int:
        """Wait until the group has committed an offset of at least `at_least` for a partition; returns the
        offset. Raises WaitFailed."""
        check_text("topic", topic)
        check_whole_number("partition", partition)
        check_count("partition", partition, "a partition")
        check_count("at_least", at_least, "an offset")

        async def look() -> tuple[Seen, int]:
            view = await self._view()
            offset = view.committed.get((topic, partition), -1)
            how = self._uncommitted(topic, partition) if offset < 0 else f"committed offset {offset}"
            return Seen(offset >= at_least, f"{how}; {view.short}"), offset

        wanted = f"group {self.group_id} to commit {topic}-{partition} at {at_least} or more"
        return await wait_until(self._core.news, wanted, look, timeout, story=self._story)

    @waits
    async def caught_up(self, *, timeout: Duration = TIMEOUT_S) -> None:
        """Wait until it has committed every record in every partition of the topics that it subscribes to or
        has commits in: `lag` is 0, or counts only the markers that end transactions. Records of aborted
        transactions count, though a member that reads committed ones alone is never given them. Raises
        WaitFailed."""

        async def look() -> tuple[Seen, None]:
            rest = await self._rest()
            behind = [
                f"{name}-{part}: {end - at}"
                for (name, part), (at, end) in sorted(rest.items())
                if at < end and await has_records(self._core, self._core.topic(name), part, at, end)
            ]
            how = f"lag {', '.join(behind)}" if rest else "it reads no topic"
            return Seen(bool(rest) and not behind, how), None

        await wait_until(
            self._core.news, f"group {self.group_id} to catch up", look, timeout, story=self._story
        )

    @waits
    async def rebalanced(
        self, *, cause: str | None = None, after: int = 0, timeout: Duration = TIMEOUT_S
    ) -> Explanation:
        """Wait until the group has completed a rebalance into a generation later than `after`, with `cause`
        if given ("session expired", "member joined", as in `why().cause`); returns the explanation of the
        latest match. Raises WaitFailed, and ValueError for an unknown cause."""
        from muster.coordinator.journal.explain import Outcome, explain_all
        from muster.coordinator.journal.explain.vocabulary import UNKNOWN_CAUSE, Trigger

        if cause is not None:
            _check_known("cause", cause, [*Trigger, UNKNOWN_CAUSE])
        check_count("after", after, "a generation")

        async def look() -> tuple[Seen, Explanation | None]:
            found = [
                each
                for each in explain_all(self._core.entries(self.group_id))
                if each.outcome is Outcome.COMPLETED and (each.generation or 0) > after
            ]
            meant = [each for each in found if cause in (None, each.cause)]
            causes = ", ".join(each.cause for each in found)
            how = f"rebalanced because of: {causes}" if found else "no such rebalance"
            short = (await self._view()).short
            return Seen(bool(meant), f"{how}; {short}"), meant[-1] if meant else None

        wanted = f"group {self.group_id} to rebalance" + (f" with cause {cause!r}" if cause else "")
        if after:
            wanted += f" after generation {after}"
        explanation = await wait_until(self._core.news, wanted, look, timeout, story=self._story)
        assert explanation is not None
        return explanation

    # --- actions --------------------------------------------------------------------------------------------

    @both
    async def evict(self, member: str, *, reason: str = "evicted by a test") -> None:
        """Remove a member, named as for `member`, as an admin would. Raises KafkaError, and LookupError if
        there is no such member."""
        await self._evict((await self._found(member)).id, reason)

    async def _evict(self, member_id: str, reason: str) -> None:
        leaving = LeaveGroupRequest.MemberIdentity(member_id=member_id, reason=reason)
        request = LeaveGroupRequest(group_id=self.group_id, members=[leaving])
        response: LeaveGroupResponse = await self._core.ask(self.group_id, Shard.leave, request)
        if code := response.members[0].error_code:
            refusal = ErrorCode(code)
            raise KafkaError(refusal, f"evicting {member_id} from group {self.group_id}")

    # --- internals ------------------------------------------------------------------------------------------

    async def _view(self) -> View:
        view: View = await self._core.ask(self.group_id, _look_at, self.group_id)
        return view

    async def _found(self, who: str) -> MemberFacts:
        """The one member with that id, name, instance id or client id. Raises LookupError."""
        view = await self._view()
        named = view.meant(who)
        if len(named) == 1:
            return named[0]
        if named:
            found = ", ".join(map(str, named))
            raise LookupError(f"{who!r} may be any of these members of group {self.group_id}: {found}")
        there = ", ".join(map(str, view.members))
        rest = f"its members: {there}" if there else "it has no members"
        raise LookupError(f"group {self.group_id} has no member {who!r}; {rest}")

    def _uncommitted(self, topic: str, partition: int) -> str:
        found, said = self._core.find_topic(topic), "no commit for the partition"
        if found is None or partition < found.partitions:
            return said
        return f"{said}; {topic} has {found.partitions} partition{'' if found.partitions == 1 else 's'}"

    async def _lag(self) -> dict[TopicPartition, int]:
        return {part: max(end - at, 0) for part, (at, end) in (await self._rest()).items()}

    async def _rest(self) -> dict[TopicPartition, tuple[int, int]]:
        """From where to where each partition is not committed."""
        view = await self._view()
        names = {topic for topic, _ in view.committed} | {
            topic for member in view.members for topic in member.topics
        }
        rest = {}
        for topic in filter(None, map(self._core.find_topic, sorted(names))):
            for partition in range(topic.partitions):
                start, end = await self._core.offsets(topic, partition)
                rest[topic.name, partition] = view.committed.get((topic.name, partition), start), end
        return rest

    async def _until_view(self, wanted: str, met: Callable[[View], bool], timeout: Duration) -> GroupFacts:
        async def look() -> tuple[Seen, GroupFacts]:
            view = await self._view()
            return Seen(met(view), view.short), GroupFacts(view.state, len(view.members))

        return await wait_until(
            self._core.news, f"group {self.group_id} {wanted}", look, timeout, story=self._story
        )

    def _story(self) -> str:
        return Timeline(self._core.entries(self.group_id)).as_story()


class MemberCalls(Calls):
    """One member of a group, named by its member id, instance id, or unique client id. The name is resolved
    at each call."""

    __slots__ = ("_group", "name")

    def __init__(self, group: GroupCalls, name: str) -> None:
        __tracebackhide__ = True
        check_text("name", name)
        super().__init__(group._core)
        self._group = group
        self.name = name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} of {self._group.group_id}>"

    @property
    def facts(self) -> MemberFacts:
        """The member's current facts. Raises LookupError if there is no such member, or several with that
        client id."""
        return self._look(lambda: self._group._found(self.name))

    @both
    async def evict(self, *, reason: str = "evicted by a test") -> None:
        """Remove it, as an admin would. Raises KafkaError or LookupError."""
        await self._group._evict((await self._group._found(self.name)).id, reason)

    @both
    async def stall(self) -> None:
        """From now on, do not keep it alive when the clock is advanced, as if its process were frozen with
        its connections open. Raises LookupError."""
        self._core.brokers.stall(self._group.group_id, (await self._group._found(self.name)).id)

    @both
    async def unstall(self) -> None:
        """Undo `stall`. Raises LookupError."""
        self._core.brokers.unstall(self._group.group_id, (await self._group._found(self.name)).id)

    @both
    async def disconnect(self) -> None:
        """Cut the connection it was last heard on, from the broker's side; returns when the group has
        noticed. A live client reconnects. Raises LookupError."""
        member = await self._group._found(self.name)
        core, group_id = self._core, self._group.group_id
        connection_id = (await self._group._view()).connections.get(member.id)
        node = core.coordinator(group_id)
        if connection_id is None or node is None:
            return  # already cut
        if (connection := node.connections.open.get(connection_id)) is not None:
            connection.abort()

        async def look() -> tuple[Seen, None]:
            now = (await self._group._view()).connections.get(member.id)
            return Seen(now != connection_id, "the connection is still open"), None

        await wait_until(core.news, f"{member} of group {group_id} to disconnect", look, TIMEOUT_S)

    @both
    async def _cut_off(self) -> tuple[int, Rule]:
        """See `Member.crash`; returns the fault that keeps the client away."""
        member, core = await self._group._found(self.name), self._core
        _check_own(core, self._group.group_id, member)
        rule = Rule(client_id=member.client_id, action=CLOSE_BEFORE, times=None)
        faults = core.brokers.faults
        kept_away = faults.add(rule)

        async def look() -> tuple[Seen, None]:
            there = [each for each in (await self._group._view()).members if each.id == member.id]
            return Seen(not any(each.connected for each in there), "the connection is still open"), None

        try:
            for node in core.brokers.running:
                for connection in list(node.connections.open.values()):
                    if connection.client_id == member.client_id:
                        connection.abort()
            await wait_until(
                core.news, f"{member} of group {self._group.group_id} to be cut off", look, TIMEOUT_S
            )
        except BaseException:
            with suppress(FaultError):  # it may have been removed meanwhile
                faults.remove(kept_away)
            raise
        return kept_away, rule

    @waits
    async def disconnected(self, *, timeout: Duration = TIMEOUT_S) -> None:
        """Wait until the broker has seen its connection close, which is all the broker sees when a client
        dies. The member stays until its session expires. Also returns if it was a member and no longer is.
        Raises WaitFailed."""

        async def look() -> tuple[Seen, None]:
            view = await self._group._view()
            named = view.meant(self.name)
            gone = not any(each.connected for each in named) if named else self._was_there()
            return Seen(gone, view.short), None

        wanted = f"member {self.name} of group {self._group.group_id} to disconnect"
        await wait_until(self._core.news, wanted, look, timeout, story=self._group._story)

    def _was_there(self) -> bool:
        from muster.coordinator.journal.names import Names

        entries = self._core.entries(self._group.group_id)
        known = (each.member for each in entries if each.member is not None)
        return bool(Names(known, present=()).meant(self.name))


class Group(GroupCalls, Blocking):
    """One group, blocking API."""

    __slots__ = ()

    def member(self, name: str) -> Member:
        """By member id, instance id, or client id."""
        __tracebackhide__ = True
        return Member(self, name)


class AsyncGroup(GroupCalls, Async):
    """One group, async API. Facts are plain attributes here too."""

    __slots__ = ()

    def member(self, name: str) -> AsyncMember:
        """By member id, instance id, or client id."""
        __tracebackhide__ = True
        return AsyncMember(self, name)


class Member(MemberCalls, Blocking):
    """One member, blocking API."""

    __slots__ = ()

    def crash(self) -> FaultRule:
        """Simulate the death of a client: its connections are cut and nothing more is heard of it, though it
        may live on in the test's process. Returns when the group has noticed.

        The client is identified by its client id, which no other client may have. Returns the rule that
        keeps it away; `remove` lets it back in. aiokafka's `stop` waits for ever unless it is back by then.
        Raises LookupError if there is no such member, and ValueError if other members, of any group, have the
        same client id, or if it is a default: of librdkafka, muster, aiokafka, kafka-python or FastStream.
        """
        __tracebackhide__ = True
        return FaultRule(self._core, *self._cut_off())


class AsyncMember(MemberCalls, Async):
    """One member, async API."""

    __slots__ = ()

    async def crash(self) -> AsyncFaultRule:
        """See `Member.crash`."""
        __tracebackhide__ = True
        return AsyncFaultRule(self._core, *await self._cut_off())


async def reached(group: GroupCalls, state: str, members: int | None, timeout: Duration) -> GroupFacts:
    """`GroupCalls.in_state` on the brokers' loop."""
    _check_known("state", state, _STATES)
    wanted = f"to be {state}" if members is None else f"to be {state} with {_count(members)}"
    return await group._until_view(
        wanted, lambda view: view.state == state and members in (None, len(view.members)), timeout
    )


# --- in the shard -------------------------------------------------------------------------------------------


def _look_at(shard: Shard, group_id: str, step: Step) -> None:
    """A shard operation, like `Shard.describe`: replies with a View once everything in it is durable."""
    step.reads_hard_state = True
    group = shard.groups.get(group_id)
    uncommitted = {
        part: each.committed.offset
        for part, of_producers in shard.hard.pending.of_group(group_id).items()
        for each in of_producers.values()
        if not each.is_overtaken
    }
    committed = {part: each.offset for part, each in shard.hard.offsets.get(group_id, {}).items()}
    if group is None:
        step.reply(View("Dead", 0, (), (), committed, uncommitted, {}))
        return
    from muster.coordinator.journal.names import Names

    view, members = group.view(), list(group.member_views())
    names = Names(
        KnownMember(each.member_id, each.client_id, each.client_host, each.identity.group_instance_id)
        for each in members
    )
    step.reply(
        View(
            str(view.state),
            view.generation_id,
            tuple(_member(member, names.short(member.member_id)) for member in members),
            tuple(each.identity.member_id for each in view.pending),
            committed,
            uncommitted,
            {member.member_id: member.connection_id for member in members},
        ),
    )


def _member(member: MemberView, name: str) -> MemberFacts:
    return MemberFacts(
        member.member_id,
        member.client_id,
        member.client_host.removeprefix("/"),
        member.identity.group_instance_id,
        tuple(member.topics() or ()),
        tuple(sorted(member.assignment() or ())),
        member.connection_id is not None,
        name,
    )


def _check_own(core: Core, group_id: str, member: MemberFacts) -> None:
    """Raises ValueError if other clients have, or may have, the member's client id."""
    client_id = member.client_id
    for shard in core.shards():
        for other_id, group in shard.groups.items():
            for each in group.member_views():
                if each.client_id == client_id and (other_id, each.member_id) != (group_id, member.id):
                    raise ValueError(
                        f"several members have the client id {client_id!r}: give each client its own"
                        if other_id == group_id
                        else f"a member of group {other_id} has the client id {client_id!r} too: give each "
                        "client its own"
                    )
    for pattern, whose, beside in _SHARED_CLIENT_IDS:
        if re.fullmatch(pattern, client_id):
            raise ValueError(
                f"{client_id!r} is the client id of every {whose} that was given none, {beside} too: give "
                "this client its own"
            )


def _check_known(name: str, given: str, known: Iterable[str]) -> None:
    """Raises ValueError for a value that can never occur."""
    there = [str(each) for each in known]
    if given not in there:
        raise ValueError(f"{name}: {given!r} is not one of {', '.join(there)}")


def _count(members: int) -> str:
    check_count("members", members, "a number of members")
    return f"{members} member" if members == 1 else f"{members} members"


__all__ = ["AsyncGroup", "AsyncMember", "Group", "GroupFacts", "Member", "MemberFacts", "WaitFailed"]
