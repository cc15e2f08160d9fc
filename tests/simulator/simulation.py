"""One run: three nodes, two groups, a driver that does harm, and the checkers. One seed decides everything.

A run has rounds. In each, the driver takes its steps (members come, stall, crash and leave; brokers are
killed, stopped and paused; the store fails and stalls; connections break). Then faults stop: everything must
become Stable within CALM_MAX_S of virtual time, and what the brokers hold must be what the store would be
loaded as.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from itertools import count
from typing import Any
from unittest import mock

from muster.coordinator.config import Settings
from muster.coordinator.runtime.appender import FULL_PAUSE_MS
from muster.coordinator.storage.memory import MemoryStore
from muster.coordinator.storage.store import Append, LeaseKind, StoreError, TopicRow
from muster.protocol.api import ApiKey, response_class
from muster.protocol.codec import decode
from muster.protocol.embedded import decode_assignment
from muster.protocol.errors import ErrorCode
from muster.protocol.header import decode_response_header
from muster.protocol.messages.group_admin import DescribeGroupsRequest
from muster.protocol.messages.offsets import OffsetFetchRequest
from tests.simulator import checkers
from tests.simulator.bugs import BUGS
from tests.simulator.checkers import REBALANCE_TIMEOUT_MAX_S, Disk, Exchange, Violation
from tests.simulator.member import TOPICS, Asked, Client, Member
from tests.simulator.network import Disconnected, Latency, Link, Network
from tests.simulator.node import EPOCH_MS, Node
from tests.simulator.store import Durable, Weather, Written, run
from tests.simulator.virtual_loop import Stuck, VirtualLoop

STEPS_DEFAULT = 60
CALM_MAX_S = 120.0
"""Within this everything is Stable again: sessions (10 s) and a rebalance (20 s) may have to run out one
after the other, a reload may have backed off for 10 s, a member may be in a stall of 15 s.
"""

_NODES = (1, 2, 3)
_GROUPS = ("orders-group", "audit-group")
_MEMBERS_MAX = 4  # of a group
_ROUNDS = 2
_FRAME_SIZE_BYTES = 4


@dataclass(slots=True)
class Outcome:
    """What came of a run."""

    seed: int
    steps: int
    bug: str | None = None
    violation: str | None = None
    trace: list[str] = field(default_factory=list)
    exchanges: int = 0
    records: int = 0
    commits: int = 0
    """Acknowledged ones."""
    entries: int = 0
    """Of the journal, stored."""
    compared: int = 0
    """Shards whose live state was compared with the store."""
    virtual_s: float = 0.0

    @property
    def digest(self) -> str:
        """The same for two runs exactly when the same happened in both."""
        return sha256("\n".join(self.trace).encode()).hexdigest()[:16]

    @property
    def replay(self) -> str:
        planted = f" --bug {self.bug}" if self.bug else ""
        return f"python -m tests.simulator --seed {self.seed} --steps {self.steps}{planted}"

    def __str__(self) -> str:
        if self.violation is None:
            return (
                f"seed {self.seed}: {self.exchanges} requests, {self.records} records, "
                f"{self.commits} commits kept, {self.compared} shards compared "
                f"in {self.virtual_s:.0f} virtual seconds ({self.digest})"
            )
        return f"seed {self.seed}: {self.violation}\nreplay with: {self.replay}"


def simulate(seed: int, steps: int = STEPS_DEFAULT, *, bug: str | None = None) -> Outcome:
    """Run one seed, with one of `bugs.BUGS` in the code under test if named."""
    outcome = Outcome(seed, steps, bug)
    loop = VirtualLoop()
    world = _World(loop, outcome)
    try:
        with BUGS[bug]() if bug else contextlib.nullcontext(), _ids_from(world.rng):
            loop.run_until_complete(world.run())
    except (Violation, Stuck) as broken:
        outcome.violation = f"{loop.time():.3f} s: {type(broken).__name__}: {broken}"
    finally:
        outcome.virtual_s = loop.time()
        _cancel_all(loop)
        loop.close()
    return outcome


def _ids_from(rng: random.Random) -> contextlib.AbstractContextManager[object]:
    """Random ids, as member ids are, come from the seed too."""

    def seeded() -> uuid.UUID:
        return uuid.UUID(int=rng.getrandbits(128), version=4)

    return mock.patch.object(uuid, "uuid4", seeded)


def _cancel_all(loop: VirtualLoop) -> None:
    loop.set_exception_handler(lambda loop, context: None)
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=1))


class _World:
    def __init__(self, loop: VirtualLoop, outcome: Outcome) -> None:
        self.rng = random.Random(outcome.seed)
        self._loop = loop
        self._outcome = outcome
        self._broken: asyncio.Future[None] = loop.create_future()
        loop.set_exception_handler(self._on_unhandled)
        memory = MemoryStore(
            now_ms=lambda: EPOCH_MS + int(loop.time() * 1000),
            lease_counts={LeaseKind.GROUP: 4, LeaseKind.DATA: 1},
            cluster_id=uuid.UUID(int=1),
        )
        run(memory.open())
        for number, (name, partitions) in enumerate(TOPICS.items(), 1):
            run(memory.create_topic(TopicRow(uuid.UUID(int=number), name, partitions)))
        self._durable = Durable(loop, memory)
        self._durable.listeners.append(self._written)
        self._durable.append_listeners.append(self._appended)
        self._weather = Weather()
        self._room_from_s = 0.0
        self._latency = Latency(self._fork())
        self._network = Network(loop, self._latency, self)
        settings = Settings(
            group_initial_rebalance_delay_ms=self.rng.choice([0, 0, 500, 3_000]), port=0, ephemeral=True
        )
        self._nodes = [
            Node(
                node_id,
                loop=loop,
                rng=self._fork(),
                durable=self._durable,
                weather=self._weather,
                network=self._network,
                settings=settings,
            )
            for node_id in _NODES
        ]
        self._addresses = [node.address for node in self._nodes]
        self._members: list[Member] = []
        self._names = count(1)
        self._faults = 0
        self._healing = False
        self._errands: set[asyncio.Task[None]] = set()

        by_address = {node.address: node for node in self._nodes}
        self._disk = Disk()
        self._one_owner = checkers.OneOwner(self._disk)
        self._commits_kept = checkers.CommitsKept(self._disk)
        self._replay = checkers.ReplayEqualsLive(self._durable)
        self._journalled = checkers.Journalled()
        self._durable_first = checkers.DurableFirst(self._disk)
        self._answered = checkers.Answered(self._call_later, by_address)
        self._expected_codes = checkers.ExpectedCodes()

    def _fork(self) -> random.Random:
        """A generator of its own, so that one part's draws do not shift another's."""
        return random.Random(self.rng.getrandbits(64))

    def _say(self, what: str) -> None:
        self._outcome.trace.append(f"{self._loop.time():9.3f} {what}")

    # --- what the checkers hear -------------------------------------------------------------------

    def _break(self, violation: BaseException) -> None:
        # Not raised where it is found: that may be in the middle of the code under test.
        if not self._broken.done():
            self._say(f"VIOLATION {violation}")
            self._broken.set_exception(violation)

    @contextlib.contextmanager
    def _checking(self) -> Iterator[None]:
        try:
            yield
        except Violation as violation:
            self._break(violation)

    def _on_unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._break(Violation(f"{context['message']}: {context.get('exception')!r}"))

    def _call_later(self, delay_s: float, check: Callable[[], None]) -> None:
        def checked() -> None:
            with self._checking():
                check()

        self._loop.call_later(delay_s, checked)

    def _written(self, written: Written) -> None:
        self._outcome.records += 1
        with self._checking():
            committed = self._disk.written(written)
            if committed is not None:
                self._commits_kept.written(committed)

    def _appended(self, append: Append) -> None:
        with self._checking():
            self._journalled.appended(append, room=self._loop.time() > self._room_from_s)
        self._outcome.entries = self._journalled.entries

    def _asking(self, link: Link, asked: Asked) -> None:
        exchange = Exchange(asked, link, self._loop.time())
        self._commits_kept.asked(exchange)
        self._answered.asked(exchange)

    def replied(self, link: Link, frame: bytes) -> None:
        """A broker put a reply on the wire."""
        frame = frame[_FRAME_SIZE_BYTES:]
        exchange = self._answered.exchange(link, int.from_bytes(frame[:4], "big"))
        with self._checking():
            if exchange is None:
                raise Violation(f"a reply to nothing that was asked, from {link.address}: {frame[:40]!r}")
            asked = exchange.asked
            _, offset = decode_response_header(asked.api_key, asked.version, frame)
            response = decode(response_class(asked.api_key), asked.version, frame, offset)
            self._outcome.exchanges += 1
            self._say(f"{link.address[0]} {_brief(asked)} -> {_brief_response(response)}")
            for checker in (
                self._durable_first,
                self._one_owner,
                self._commits_kept,
                self._answered,
                self._expected_codes,
            ):
                checker.replied(exchange, response)
        self._outcome.commits = self._commits_kept.count

    def closed(self, link: Link) -> None:
        """A connection ended, at the broker's side."""
        self._answered.closed(link)

    # --- the run ----------------------------------------------------------------------------------

    async def run(self) -> None:
        plot = asyncio.create_task(self._plot(), name="plot")
        await asyncio.wait([plot, self._broken], return_when=asyncio.FIRST_COMPLETED)
        if self._broken.done():
            self._broken.result()
        await plot

    async def _plot(self) -> None:
        await asyncio.gather(*(node.start() for node in self._nodes))
        for group_id in _GROUPS:
            for _ in range(2):
                self._add_member(group_id)
        for _ in range(_ROUNDS):
            for _ in range(self._outcome.steps // _ROUNDS):
                await asyncio.sleep(self.rng.expovariate(1 / 0.7))
                self._step()
                self._errand(self._observe())
                self._compare()
            await self._calm()
        self._commits_kept.finished()

    def _compare(self) -> None:
        """Look at shards of which nothing is under way; that is so again and again, also in the middle of
        things.
        """
        for node in self._nodes:
            if node.store is not None and not node.store.appending and node.at_rest():
                with self._checking():
                    self._replay.look(node)
        self._outcome.compared = self._replay.compared

    # --- harm -------------------------------------------------------------------------------------

    def _step(self) -> None:
        harms: list[tuple[int, Callable[[], str | None]]] = [
            (4, self._member_joins),
            (2, self._member_leaves),
            (3, self._member_crashes),
            (3, self._member_stalls),
            (2, self._member_subscribes),
            (2, self._static_member_restarts),
            (2, self._connection_breaks),
            (3, self._node_dies),
            (1, self._node_leaves),
            (2, self._node_pauses),
            (3, self._node_is_cut_off),
            (3, self._store_fails),
            (2, self._store_stalls),
            (2, self._store_fills),
            (1, self._store_is_busy),
            (1, self._network_slows),
        ]
        (harm,) = self.rng.choices([harm for _, harm in harms], [weight for weight, _ in harms])
        what = harm()
        if what is not None:
            self._say(what)

    def _living(self, group_id: str | None = None) -> list[Member]:
        self._members = [member for member in self._members if not member.over]
        return [member for member in self._members if group_id in (None, member.group_id)]

    def _add_member(
        self, group_id: str, instance_id: str | None = None, topics: frozenset[str] | None = None
    ) -> Member:
        rng = self._fork()
        name = f"{group_id}-{next(self._names)}"
        member = Member(
            Client(name, self._network, self._asking),
            group_id,
            rng,
            self._addresses,
            instance_id=instance_id,
            topics=topics or rng.choice([frozenset(TOPICS), frozenset({"orders"})]),
            session_timeout_ms=rng.choice([6_000, 10_000]),
            rebalance_timeout_ms=rng.choice([6_000, int(REBALANCE_TIMEOUT_MAX_S * 1000)]),
        )
        self._members.append(member)
        member.start()
        return member

    def _member_joins(self) -> str | None:
        group_id = self.rng.choice(_GROUPS)
        if len(self._living(group_id)) >= _MEMBERS_MAX:
            return None
        instance_id = f"{group_id}-static-{next(self._names)}" if self.rng.random() < 0.3 else None
        return f"joins: {self._add_member(group_id, instance_id).name}"

    def _some_member(self) -> Member | None:
        members = self._living()
        return self.rng.choice(members) if members else None

    def _member_leaves(self) -> str | None:
        member = self._some_member()
        if member is None:
            return None
        member.leave()
        return f"leaves: {member.name}"

    def _member_crashes(self) -> str | None:
        member = self._some_member()
        if member is None:
            return None
        silently = self.rng.random() < 0.5
        member.crash(silently=silently)
        return f"crashes{' silently' if silently else ''}: {member.name}"

    def _member_stalls(self) -> str | None:
        member = self._some_member()
        if member is None:
            return None
        seconds = self.rng.uniform(0.5, 15)
        member.stall(seconds)
        return f"stalls for {seconds:.1f} s: {member.name}"

    def _member_subscribes(self) -> str | None:
        # Static members do not: one that comes back is given what it had, whatever it subscribes to now.
        dynamic = [member for member in self._living() if member.instance_id is None]
        if not dynamic:
            return None
        member = self.rng.choice(dynamic)
        member.subscribe(frozenset({"orders"}) if "audit" in member.topics else frozenset(TOPICS))
        return f"subscribes to {sorted(member.topics)}: {member.name}"

    def _static_member_restarts(self) -> str | None:
        """Sometimes before its predecessor has gone: then one of the two is fenced."""
        static = [member for member in self._living() if member.instance_id is not None]
        if not static:
            return None
        member = self.rng.choice(static)
        if self.rng.random() < 0.7:
            member.crash(silently=self.rng.random() < 0.5)
        successor = self._add_member(member.group_id, member.instance_id, member.topics)
        return f"restarts {member.name} as {successor.name}"

    def _connection_breaks(self) -> str | None:
        member = self._some_member()
        if member is None:
            return None
        member.cut()
        return f"connection breaks: {member.name}"

    def _some_node(self) -> Node | None:
        up = [node for node in self._nodes if node.up]
        return self.rng.choice(up) if up else None

    def _errand(self, errand: Any) -> None:
        task = asyncio.create_task(errand)
        self._errands.add(task)
        task.add_done_callback(self._errand_done)

    def _errand_done(self, task: asyncio.Task[None]) -> None:
        self._errands.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._break(error)

    def _node_dies(self) -> str | None:
        alive = [
            node for node in self._nodes if node.broker is not None
        ]  # also one that starts, or is paused
        if not alive:
            return None
        node = self.rng.choice(alive)
        before = f"dies: {node}"
        self._errand(self._kill_and_start(node, self.rng.uniform(0.05, 8)))
        return before

    async def _kill_and_start(self, node: Node, down_s: float) -> None:
        await node.kill()
        await asyncio.sleep(down_s)
        await self._start(node)

    def _node_leaves(self) -> str | None:
        node = self._some_node()
        if node is None:
            return None
        self._errand(self._stop_and_start(node, self.rng.uniform(0.05, 5)))
        return f"leaves: {node}"

    async def _stop_and_start(self, node: Node, down_s: float) -> None:
        await node.stop()
        await asyncio.sleep(down_s)
        await self._start(node)

    async def _start(self, node: Node) -> None:
        while True:
            kills = node.kills
            try:
                await node.start()
            except StoreError as error:
                if node.kills != kills:
                    return  # whoever has killed it starts it again
                self._say(f"cannot start {node}: {error}")
                await node.kill()
                await asyncio.sleep(1)
            else:
                self._say(f"started: {node}")
                return

    def _node_pauses(self) -> str | None:
        node = self._some_node()
        if node is None:
            return None
        seconds = self.rng.choice([0.3, 2, 8]) * self.rng.uniform(0.5, 1.5)
        node.pause()
        self._loop.call_later(seconds, node.resume)
        return f"pauses for {seconds:.1f} s: {node}"

    def _node_is_cut_off(self) -> str | None:
        node = self._some_node()
        if node is None or node.store is None:
            return None
        seconds = self.rng.choice([0.5, 3, 8]) * self.rng.uniform(0.5, 1.5)
        node.store.cut_off(seconds)
        return f"does not reach the store for {seconds:.1f} s: {node}"

    def _store_fails(self) -> str:
        seconds = self.rng.uniform(0.2, 3)
        self._weather.failure = self.rng.choice([0.1, 0.5])
        self._loop.call_later(seconds, partial(setattr, self._weather, "failure", 0.0))
        return f"store fails for {seconds:.1f} s, {self._weather.failure:.0%} of changes"

    def _store_stalls(self) -> str:
        seconds = self.rng.choice([0.2, 1, 6]) * self.rng.uniform(0.5, 1.5)
        self._weather.stalled_until_s = self._loop.time() + seconds
        return f"store stalls for {seconds:.1f} s"

    def _store_fills(self) -> str:
        seconds = self.rng.uniform(0.2, 5)
        self._weather.full_until_s = self._loop.time() + seconds
        # For a while after that no entries are tried.
        self._room_from_s = max(self._room_from_s, self._weather.full_until_s + 2 * FULL_PAUSE_MS / 1000)
        return f"store is full for {seconds:.1f} s"

    def _store_is_busy(self) -> str:
        seconds = self.rng.uniform(0.2, 3)
        self._weather.busy = self.rng.choice([0.3, 1.0])
        self._loop.call_later(seconds, partial(setattr, self._weather, "busy", 0.0))
        return f"store is busy for {seconds:.1f} s, {self._weather.busy:.0%} of appends"

    def _network_slows(self) -> str:
        seconds = self.rng.uniform(0.5, 5)
        self._latency.slow = 0.3
        self._loop.call_later(seconds, partial(setattr, self._latency, "slow", 0.0))
        return f"network slows for {seconds:.1f} s"

    async def _observe(self) -> None:
        """Ask some node, whether it coordinates or not, for a group's offsets. One that lost its lease must
        not tell.
        """
        observer = Client("observer", self._network, self._asking)
        group = OffsetFetchRequest.Group(group_id=self.rng.choice(_GROUPS), topics=None)
        try:
            link = await observer.connect(self.rng.choice(self._addresses))
            await observer.ask(link, ApiKey.OFFSET_FETCH, 8, OffsetFetchRequest(groups=[group]))
            link.close()
        except Disconnected:
            pass

    # --- calm -------------------------------------------------------------------------------------

    async def _calm(self) -> None:
        """Stop doing harm; then everything becomes Stable, and what is told of the groups is what is on the
        disk.
        """
        self._say("faults stop")
        self._weather.failure = self._weather.busy = self._latency.slow = 0.0
        self._weather.stalled_until_s = self._weather.full_until_s = 0.0
        for node in self._nodes:
            node.resume()
            if node.store is not None:
                node.store.cut_off(0)
        deadline_s = self._loop.time() + CALM_MAX_S
        if self._errands:
            _, late = await asyncio.wait(list(self._errands), timeout=CALM_MAX_S)
            if late:
                self._break(Violation(f"brokers neither start nor stop: {late}"))
                return
        admin = Client("admin", self._network, self._asking)
        for group_id in _GROUPS:
            for member in self._living(group_id):
                member.commits = 0
            while (why := await self._unsettled(admin, group_id)) is not None:
                if self._loop.time() > deadline_s:
                    self._break(
                        Violation(f"{group_id} has not settled in {CALM_MAX_S:.0f} s without faults: {why}")
                    )
                    return
                await asyncio.sleep(0.25)
            self._say(f"{group_id} has settled")
        # A moment at which nothing is under way; looking costs nothing in virtual time.
        while not all(node.store and not node.store.appending for node in self._nodes):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        self._compare()

    async def _unsettled(self, admin: Client, group_id: str) -> str | None:
        """Why the group is not yet as it must be in the end; None when it is."""
        members = self._living(group_id)
        if any(member.owned is None for member in members):
            return f"some have no assignment: {members}"
        if len({member.generation_id for member in members}) > 1:
            return f"members are in different generations: {members}"
        if any(not member.commits for member in members if member.owned):
            return f"some could not commit yet: {members}"
        for topic in TOPICS:
            owned = sorted(p for member in members for name, p in member.owned or () if name == topic)
            wanted = any(topic in member.topics for member in members)
            if owned != (list(range(TOPICS[topic])) if wanted else []):
                return f"{topic} is not divided up: {members}"
        try:
            return await self._unsettled_at_coordinator(admin, group_id, members)
        except Disconnected:
            return "its coordinator closed the connection"

    async def _unsettled_at_coordinator(
        self, admin: Client, group_id: str, members: list[Member]
    ) -> str | None:
        address = await admin.find_coordinator(group_id, self._addresses)
        if address is None:
            return "it has no coordinator"
        link = await admin.connect(address)
        describe = DescribeGroupsRequest(groups=[group_id])
        (described,) = (await admin.ask(link, ApiKey.DESCRIBE_GROUPS, 5, describe)).groups
        fetch = OffsetFetchRequest(groups=[OffsetFetchRequest.Group(group_id=group_id, topics=None)])
        (fetched,) = (await admin.ask(link, ApiKey.OFFSET_FETCH, 8, fetch)).groups
        link.close()
        if described.error_code or fetched.error_code:
            return f"its coordinator answers {ErrorCode(described.error_code or fetched.error_code).name}"
        # One that nobody ever got as far as creating is described as Dead.
        on_disk = any(group is not None for group in self._disk.groups[group_id][-1:])
        state = "Stable" if members else "Empty" if on_disk else "Dead"
        if described.group_state != state:
            return f"its coordinator calls it {described.group_state}"
        if {member.member_id for member in described.members} != {member.member_id for member in members}:
            return f"its coordinator has other members: {[member.member_id for member in described.members]}"
        told = {
            (topic.name, each.partition_index): (each.committed_offset, each.metadata)
            for topic in fetched.topics
            for each in topic.partitions
        }
        if told != self._disk.committed(group_id) and not any(
            node.store is not None and node.store.appending for node in self._nodes
        ):
            return f"its coordinator tells offsets {told}, on the disk are {self._disk.committed(group_id)}"
        return None


def _brief(asked: Asked) -> str:
    """One request in a line of the trace."""
    request = asked.request
    words = [asked.api_key.name, request.member_id if getattr(request, "member_id", "") else ""]
    if asked.api_key is ApiKey.OFFSET_COMMIT:
        words.append(f"{checkers.committed_partitions(request)}")
    for name in ("group_instance_id", "generation_id", "generation_id_or_member_epoch"):
        if getattr(request, name, None) is not None:
            words.append(f"{name}={getattr(request, name)}")
    return " ".join(filter(None, words))


def _brief_response(response: Any) -> str:
    words = [ErrorCode(code).name for code in sorted(checkers.codes(response))]
    for name in ("generation_id", "leader", "member_id", "host"):
        if getattr(response, name, None):
            words.append(f"{name}={getattr(response, name)}")
    if getattr(response, "assignment", b""):
        assigned = decode_assignment(response.assignment).assigned_partitions
        words.append(str({topic.topic: topic.partitions for topic in assigned}))
    return " ".join(words)
