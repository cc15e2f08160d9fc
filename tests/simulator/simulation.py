"""One run: three nodes, two groups, a driver that does harm, and the checkers. One seed decides everything.

A run has rounds. In each, the driver takes its steps (members join, stall, crash and leave; brokers are
killed, stopped and paused; the store fails and stalls; connections break). Then faults stop: everything must
become Stable within CALM_MAX_S of virtual time, and what the brokers hold must equal what would be loaded
from the store. Every second run has transactions, which must be over by then (`transactions`).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import Any
from unittest import mock

from muster.coordinator.base.log import Logger
from muster.coordinator.config import Settings
from muster.coordinator.group.config import MigrationPolicy
from muster.coordinator.storage.memory import MemoryStore
from muster.coordinator.storage.store import Append, LeaseKind, TopicRow
from muster.coordinator.storage.store import Outcome as Appended
from muster.coordinator.topics.catalogue import Catalogue
from muster.coordinator.topics.logs import Logs
from muster.protocol.api import ApiKey, decode_api_versions, response_class
from muster.protocol.codec import decode
from muster.protocol.embedded import decode_assignment
from muster.protocol.errors import ErrorCode
from muster.protocol.header import decode_response_header
from muster.protocol.messages.coordinator_records import decode_record
from muster.protocol.messages.offsets import OffsetFetchRequest
from muster.realtime import RealTime
from tests.simulator import checkers
from tests.simulator.bugs import BUGS
from tests.simulator.checkers import Disk, Exchange, Violation
from tests.simulator.consumer_checkers import CommitsInEpoch, FencedLate, HeldOnce, ToldAsWritten, WholeGroups
from tests.simulator.consumer_disk import TopicNames
from tests.simulator.coverage import Coverage
from tests.simulator.crowd import GROUPS, Crowd
from tests.simulator.expected import ExpectedCodes, codes
from tests.simulator.harm import Harm
from tests.simulator.member import TOPICS, Asked
from tests.simulator.network import Disconnected, Latency, Link, Network
from tests.simulator.node import EPOCH_MS, Node
from tests.simulator.settling import Settling
from tests.simulator.store import Durable, Fault, Weather, Written, run
from tests.simulator.stream import dial, own_luck
from tests.simulator.transactions import TRANSACTIONS_TOPICS, Transactions
from tests.simulator.virtual_loop import Stuck, VirtualLoop

STEPS_DEFAULT = 60
CALM_MAX_S = 120.0
"""Everything is Stable again within this time: sessions (10 s) and a rebalance (20 s) may have to expire one
after the other, a reload may have backed off for 10 s, a member may be in a stall of 15 s.
"""

_CONSUMER_SESSION_MS = 8_000
_NODES = (1, 2, 3)
_ROUNDS = 2
_WITHOUT_TRANSACTIONS = {LeaseKind.TRANSACTION: 1, LeaseKind.DATA: 1}
_WITH_TRANSACTIONS = {LeaseKind.TRANSACTION: 2, LeaseKind.DATA: 2}
_PACES_S = (0.4, 0.7, 0.7, 1.5)
"""Seconds between two acts of harm. Slow acts each have their consequences; fast ones overlap."""
_LOGGED = "(log) "


@dataclass(slots=True)
class Outcome:
    """The outcome of a run."""

    seed: int
    steps: int
    bug: str | None = None
    violation: str | None = None
    trace: list[str] = field(default_factory=list)
    exchanges: int = 0
    records: int = 0
    commits: int = 0
    """Acknowledged commits."""
    entries: int = 0
    """Stored journal entries."""
    seen: Counter[str] = field(default_factory=Counter)
    """How often each of `coverage.SITUATIONS` was seen."""
    compared: int = 0
    """Shards whose live state was compared with the store."""
    virtual_s: float = 0.0

    @property
    def digest(self) -> str:
        """Equal for two runs exactly when the same happened in both."""
        told = [line for line in self.trace if _LOGGED not in line]
        return sha256("\n".join(told).encode()).hexdigest()[:16]

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


def simulate(
    seed: int, steps: int = STEPS_DEFAULT, *, bug: str | None = None, logged: bool = False
) -> Outcome:
    """Run one seed, with one of `bugs.BUGS` planted in the code under test if named. `logged`: the trace
    includes what the brokers log; otherwise that is discarded."""
    outcome = Outcome(seed, steps, bug)
    # A run's garbage can wait until it is over: collecting during the run takes a tenth of its time.
    collecting = gc.isenabled()
    gc.disable()
    loop = VirtualLoop()
    world = _World(loop, outcome)
    try:
        log = world.log if logged else _log_nothing
        with (
            BUGS[bug]() if bug else contextlib.nullcontext(),
            _ids_from(world.rng),
            own_luck(),
            _time_of(loop),
            _logs_to(log),
        ):
            loop.run_until_complete(world.run())
    except Exception as broken:
        outcome.violation = f"{loop.time():.3f} s: {type(broken).__name__}: {broken}"
        if not isinstance(broken, Violation | Stuck):
            # An exception from a consumer, or an unforeseen one: the next seeds have to run all the same.
            outcome.violation += "\n" + "".join(traceback.format_exception(broken))
    finally:
        outcome.virtual_s = loop.time()
        _cancel_all(loop)
        loop.close()
        if collecting:
            gc.enable()
    return outcome


@contextlib.contextmanager
def _ids_from(rng: random.Random) -> Iterator[None]:
    """Make random ids, such as member ids and topic ids, come from the seed too."""

    def seeded() -> uuid.UUID:
        return uuid.UUID(int=rng.getrandbits(128), version=4)

    with (
        mock.patch.object(uuid, "uuid4", seeded),
        mock.patch.dict(Catalogue.__init__.__kwdefaults__, new_id=seeded),
    ):
        yield


@contextlib.contextmanager
def _time_of(loop: VirtualLoop) -> Iterator[None]:
    """Replace all ways in which the client reads the time."""

    def monotonic_ns() -> int:
        return int(loop.time() * 1e9)

    def epoch_s() -> float:
        return EPOCH_MS / 1000 + loop.time()

    def epoch_ns() -> int:
        return int(epoch_s() * 1e9)

    virtual: dict[str, Any] = {
        "monotonic": loop.time,
        "perf_counter": loop.time,
        "monotonic_ns": monotonic_ns,
        "time": epoch_s,
        "time_ns": epoch_ns,
    }
    with mock.patch.multiple(time, **virtual), mock.patch.multiple(RealTime, **virtual):
        yield


def _logs_to(log: Callable[[Logger, str, str, dict[str, object]], None]) -> Any:
    return mock.patch.object(Logger, "_write", log)


def _log_nothing(logger: Logger, level: str, event: str, fields: dict[str, object]) -> None:
    """Discard the log: brokers complain about every fault."""


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
        transacts = bool(outcome.seed % 2)
        memory = MemoryStore(
            now_ms=lambda: EPOCH_MS + int(loop.time() * 1000),
            lease_counts={LeaseKind.GROUP: 4, **(_WITH_TRANSACTIONS if transacts else _WITHOUT_TRANSACTIONS)},
            cluster_id=uuid.UUID(int=1),
        )
        run(memory.open())
        topics = TOPICS | (TRANSACTIONS_TOPICS if transacts else {})
        for number, (name, partitions) in enumerate(topics.items(), 1):
            run(memory.create_topic(TopicRow(uuid.UUID(int=number), name, partitions)))
        self._durable = Durable(loop, memory)
        self._durable.listeners.append(self._written)
        self._durable.append_listeners.append(self._appended)
        weather = Weather()
        self._network = Network(loop, Latency(self._fork()), self)
        loop.takes_s = partial(self._fork().choice, [0.0, 0.001, 0.2])
        settings = Settings(
            group_initial_rebalance_delay_ms=self.rng.choice([0, 0, 500, 3_000]),
            group_consumer_session_timeout_ms=_CONSUMER_SESSION_MS,
            group_consumer_min_session_timeout_ms=6_000,
            group_consumer_heartbeat_interval_ms=1_000,
            group_consumer_min_heartbeat_interval_ms=500,
            group_consumer_assignment_interval_ms=self.rng.choice([0, 0, 1_000]),
            group_consumer_migration_policy=self.rng.choice(["bidirectional"] * 5 + ["upgrade"]),
            group_consumer_regex_refresh_interval_ms=self.rng.choice([10_000, 600_000]),
            port=0,
            ephemeral=True,
        )
        logs = Logs.in_memory() if transacts else None
        self._nodes = [
            Node(
                node_id,
                loop=loop,
                rng=self._fork(),
                durable=self._durable,
                weather=weather,
                network=self._network,
                settings=settings,
                logs=logs,
            )
            for node_id in _NODES
        ]
        addresses = [node.address for node in self._nodes]
        self._crowd = Crowd(self._fork(), self._network, addresses, memory, self._asking, self._break)
        loop.dial = dial
        by_address = {node.address: node for node in self._nodes}
        self._names = TopicNames(lambda: run(memory.topics()))
        self._names.look()
        memory.changed.append(self._names.look)
        self._disk = Disk(self._names)
        self._held_once = HeldOnce(self._disk, self._names)
        self._commits_in_epoch = CommitsInEpoch(self._disk, self._names)
        self._whole_groups = WholeGroups(self._disk)
        self._fenced_late = FencedLate(self._disk, _CONSUMER_SESSION_MS / 1000)
        self._told_as_written = ToldAsWritten(self._disk, self._names)
        self._durable.done_listeners.append(self._append_done)
        self._one_owner = checkers.OneOwner(self._disk)
        self._commits_kept = checkers.CommitsKept(self._disk)
        self._replay = checkers.ReplayEqualsLive(self._durable)
        self._journalled = checkers.Journalled()
        self._only_grows = checkers.OnlyGrows(self._disk)
        self._durable_first = checkers.DurableFirst(self._disk)
        self._answered = checkers.Answered(self._call_later, by_address)
        self._expected_codes = ExpectedCodes()
        self._coverage = Coverage(by_address, self._disk)
        self._outcome.seen = self._coverage.seen
        self._transactions = None
        if transacts:
            self._transactions = Transactions(
                self._fork(),
                self._crowd,
                addresses,
                weather,
                read=self._coverage.transactions.read,
                say=self._say,
                failed=self._break,
            )
        self._settling = Settling(
            self._crowd,
            self._nodes,
            self._disk,
            downgrades=MigrationPolicy(settings.group_consumer_migration_policy).downgrades,
        )
        self._durable.fault_listeners.append(self._failed)
        self._harm = Harm(
            self._fork(),
            loop,
            self._nodes,
            self._crowd,
            self._network,
            weather,
            self._coverage,
            None if self._transactions is None else self._transactions.fleet,
            say=self._say,
            failed=self._break,
        )
        self._durable.append_listeners.append(self._harm.appended)

    def _fork(self) -> random.Random:
        """A separate generator, so that one part's draws do not shift another's."""
        return random.Random(self.rng.getrandbits(64))

    def _say(self, what: str) -> None:
        self._outcome.trace.append(f"{self._loop.time():9.3f} {what}")

    @property
    def log(self) -> Callable[[Logger, str, str, dict[str, object]], None]:
        def log(logger: Logger, level: str, event: str, fields: dict[str, object]) -> None:
            self._say(f"{_LOGGED}{level}: {event} {logger._fields | fields}")

        return log

    # --- what the checkers see --------------------------------------------------------------------

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
        self._coverage.transactions.written(written)
        if written.lease.kind is LeaseKind.TRANSACTION:
            with self._checking():
                self._only_grows.written(written)
            return
        self._coverage.written(written)
        decoded: Any = decode_record(written.key, written.value)
        with self._checking():
            self._only_grows.written(written)
            key, value = decoded
            committed = self._disk.take(key, value)
            if committed is not None:
                self._commits_kept.written(committed)
                self._only_grows.committed(committed)
                self._commits_in_epoch.committed(committed)
                if self._transactions is not None:
                    self._transactions.offsets.written(*committed, value)
            else:
                self._held_once.written(key, value)
                self._whole_groups.written(key, value)
                self._fenced_late.written(key, value)
                self._coverage.epochs.written(key, value, written.at_s)

    def _append_done(self) -> None:
        self._coverage.epochs.appended(self._disk.consumers.touched)
        with self._checking():
            self._whole_groups.appended()
            self._fenced_late.appended(self._loop.time())

    def _failed(self, appends: Sequence[Append], fault: Fault) -> None:
        self._coverage.transactions.failed(appends, fault)
        of_groups = [append for append in appends if append.lease.kind is LeaseKind.GROUP]
        if of_groups:
            self._coverage.failed(of_groups, fault)

    def _appended(self, append: Append, appended: Appended, room: bool) -> None:
        if append.lease.kind is not LeaseKind.GROUP:
            return
        self._coverage.appended(append, appended)
        if appended is Appended.WRITTEN:
            with self._checking():
                self._journalled.appended(append, room=room)
            self._outcome.entries = self._journalled.entries

    def _asking(self, link: Link, asked: Asked) -> None:
        exchange = Exchange(asked, link, self._loop.time())
        self._names.fill(asked.request)
        if self._transactions is not None:
            self._transactions.asked(exchange)
        self._commits_kept.asked(exchange)
        self._held_once.asked(exchange)
        self._fenced_late.asked(exchange)
        self._coverage.asked(exchange)
        if not link.loses_requests:
            self._answered.asked(exchange, link.held_s)

    def replied(self, link: Link, frame: bytes) -> None:
        """Called when a broker puts a reply on the wire."""
        exchange = self._answered.exchange(link, int.from_bytes(frame[:4], "big"))
        with self._checking():
            if exchange is None:
                raise Violation(f"a reply to nothing that was asked, from {link.address}: {frame[:40]!r}")
            asked = exchange.asked
            if asked.api_key is ApiKey.API_VERSIONS:
                response: Any = decode_api_versions(asked.version, frame[4:])
            else:
                _, offset = decode_response_header(asked.api_key, asked.version, frame)
                response = decode(response_class(asked.api_key), asked.version, frame, offset)
            self._names.fill(response)
            self._outcome.exchanges += 1
            self._say(f"{link.address[0]} {_brief(asked)} -> {_brief_response(response)}")
            self._coverage.replied(exchange, response)
            if self._transactions is not None:
                self._transactions.replied(exchange, response)
            if exchange.api is ApiKey.HEARTBEAT:
                node = next(node for node in self._nodes if node.address == link.address)
                exchange.while_loading = node.loads(exchange.request.group_id)
            for checker in (
                self._durable_first,
                self._only_grows,
                self._one_owner,
                self._held_once,
                self._told_as_written,
                self._fenced_late,
                self._commits_kept,
                self._commits_in_epoch,
                self._answered,
                self._expected_codes,
            ):
                checker.replied(exchange, response)
        self._outcome.commits = self._commits_kept.count

    def closed(self, link: Link) -> None:
        """Called when a connection has ended on the broker's side."""
        self._answered.closed(link)
        self._coverage.closed(link)

    # --- the run ----------------------------------------------------------------------------------

    async def run(self) -> None:
        plot = asyncio.create_task(self._plot(), name="plot")
        await asyncio.wait([plot, self._broken], return_when=asyncio.FIRST_COMPLETED)
        if self._broken.done():
            self._broken.result()
        await plot

    async def _plot(self) -> None:
        pace_s = self.rng.choice(_PACES_S)
        await asyncio.gather(*(node.start() for node in self._nodes))
        for group_id in GROUPS:
            for _ in range(2):
                self._crowd.add(group_id)
        if self._transactions is not None:
            self._transactions.start()
        for _ in range(_ROUNDS):
            for _ in range(self._outcome.steps // _ROUNDS):
                await asyncio.sleep(self.rng.expovariate(1 / pace_s))
                self._harm.act()
                self._harm.errand(self._observe())
                self._compare()
            await self._calm()
        self._commits_kept.finished()

    def _compare(self) -> None:
        """Compare shards that have nothing in flight; such moments occur again and again, even in the middle
        of a run.
        """
        for node in self._nodes:
            if node.store is not None and not node.store.appending and node.at_rest():
                with self._checking():
                    self._replay.look(node)
        self._outcome.compared = self._replay.compared

    async def _observe(self) -> None:
        """Ask some node, whether it is the coordinator or not, for a group's offsets. A node that lost its
        lease must not answer.
        """
        observer = self._crowd.client("observer")
        group = OffsetFetchRequest.Group(group_id=self.rng.choice(GROUPS), topics=None)
        try:
            link = await observer.connect(self.rng.choice(self._nodes).address)
            await observer.ask(link, ApiKey.OFFSET_FETCH, 8, OffsetFetchRequest(groups=[group]))
            link.close()
        except Disconnected:
            pass

    # --- calm -------------------------------------------------------------------------------------

    async def _calm(self) -> None:
        """Stop doing harm; then everything must become Stable, and what brokers report of the groups must be
        what is on the disk.
        """
        self._say("faults stop")
        deadline_s = self._loop.time() + CALM_MAX_S
        try:
            await self._harm.end(CALM_MAX_S)
        except Violation as violation:
            self._break(violation)
            return
        admin = self._crowd.client("admin")
        for group_id in GROUPS:
            for member in self._crowd.living(group_id):
                member.commits = 0
            while (why := await self._settling.unsettled(admin, group_id)) is not None:
                if self._loop.time() > deadline_s:
                    self._break(
                        Violation(f"{group_id} has not settled in {CALM_MAX_S:.0f} s without faults: {why}")
                    )
                    return
                await asyncio.sleep(0.25)
            self._say(f"{group_id} has settled")
        if self._transactions is not None:
            with self._checking():
                await self._transactions.settle(deadline_s)
        # Wait for a moment at which nothing is in flight; polling costs nothing in virtual time.
        while not all(node.store and not node.store.appending for node in self._nodes):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        self._compare()


_SHOWN = (
    "group_instance_id",
    "instance_id",
    "generation_id",
    "generation_id_or_member_epoch",
    "member_epoch",
    "subscribed_topic_names",
    "subscribed_topic_regex",
)


def _brief_places(topics: Any) -> str:
    return str({str(topic.topic_id)[:8]: topic.partitions for topic in topics})


def _brief(asked: Asked) -> str:
    """One request as a line of the trace."""
    request = asked.request
    words = [asked.api_key.name, request.member_id if getattr(request, "member_id", "") else ""]
    if asked.api_key is ApiKey.OFFSET_COMMIT:
        words.append(f"{checkers.committed_partitions(request)}")
    for name in _SHOWN:
        if getattr(request, name, None) is not None:
            words.append(f"{name}={getattr(request, name)}")
    if getattr(request, "topic_partitions", None) is not None:
        words.append(f"has {_brief_places(request.topic_partitions)}")
    return " ".join(filter(None, words))


def _brief_response(response: Any) -> str:
    words = [ErrorCode(code).name for code in sorted(codes(response))]
    for name in ("generation_id", "member_epoch", "leader", "member_id", "host"):
        if getattr(response, name, None):
            words.append(f"{name}={getattr(response, name)}")
    if hasattr(response, "member_epoch"):
        if response.assignment is not None:
            words.append(_brief_places(response.assignment.topic_partitions))
    elif getattr(response, "assignment", b""):
        assigned = decode_assignment(response.assignment).assigned_partitions
        words.append(str({topic.topic: topic.partitions for topic in assigned}))
    return " ".join(words)
