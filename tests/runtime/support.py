"""A core small enough to understand, a store that answers when the test lets it, and leases controlled by the
test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any

from muster.coordinator.base.answers import LATER
from muster.coordinator.base.clock import ManualClock
from muster.coordinator.base.step import RequestContext, Step, Ticket
from muster.coordinator.cluster.coordinators import GROUPS
from muster.coordinator.group.effects import Record, TopicsImage
from muster.coordinator.group.shard import Shard
from muster.coordinator.runtime.groups import OPERATIONS, GroupRuntime
from muster.coordinator.runtime.machine import MachineKind, Traits
from muster.coordinator.runtime.recorder import Recorder
from muster.coordinator.runtime.runtime import RuntimeOptions
from muster.coordinator.runtime.shard_host import Limits
from muster.coordinator.storage.memory import MemoryStore
from muster.coordinator.storage.store import Append, Lease, LeaseKind, Outcome
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.coordinator_records import OffsetCommitKey, OffsetCommitValue
from tests.support.facts import until

CONTEXT = RequestContext(api_version=0, client_id="test", client_host="/127.0.0.1", connection_id=1)
SHARD = 31
GROUP = "orders"  # shard 31
LEASE = Lease(LeaseKind.GROUP, SHARD)


def record(number: int) -> Record:
    key = OffsetCommitKey(group=GROUP, topic="t", partition=number)
    return Record(key, OffsetCommitValue(offset=number, metadata="", commit_timestamp=0), 3)


class CounterShard:
    """Keeps a list of numbers as hard state. Its operations are named after what the host must do with
    them."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.numbers: list[int] = []
        self.versions: list[int] = []
        self.parked: list[Ticket] = []
        self.due_ms: int | None = None
        self.told: list[object] = []
        self.advanced_ms: list[int] = []
        self.on_advance: Callable[[], object] = lambda: None

    def apply(self, key: bytes, value: bytes | None) -> None:
        record = Record.from_row(key, value)
        if record is None:
            return
        assert isinstance(record.value, OffsetCommitValue)
        self.numbers.append(record.value.offset)
        self.versions.append(record.value_version)

    def contents(self) -> dict[str, int]:
        return {}

    def loaded(self, step: Step) -> None:
        self.told.append("loaded")

    def unload(self, step: Step) -> None:
        self.told.append("unload")
        for ticket in self.parked:
            step.answer(ticket, KafkaError(ErrorCode.NOT_COORDINATOR, "unloaded"))

    def advance(self, step: Step) -> None:
        self.due_ms = None
        self.advanced_ms.append(step.now_ms)
        self.on_advance()

    def next_deadline(self) -> int | None:
        return self.due_ms

    def deadline_bound(self) -> int | None:
        return self.due_ms

    def unheard(self, responses: Iterable[object], step: Step) -> None:
        self.told.append(("unheard", *responses))

    def job_done(self, job: object, outcome: Any, step: Step) -> None:
        self.told.append(("done", outcome))

    def knows_connection(self, connection_id: int) -> bool:
        return True

    def connection_closed(self, connection_id: int, step: Step) -> None:
        self.told.append(("closed", connection_id))

    def topics_changed(self, image: TopicsImage, step: Step) -> None:
        self.told.append(("topics", image))

    # Operations

    def write(self, request: int, step: Step) -> None:
        """Add a number."""
        step.rows.append(record(request).row())
        self.apply(*step.rows[0])
        step.events.append(f"wrote {request}")
        step.reply(request)

    def read(self, request: object, step: Step) -> None:
        """Reply with all numbers, which are hard state."""
        step.reads_hard_state = True
        step.reply(list(self.numbers))

    def beat(self, request: object, step: Step) -> None:
        """Neither reads nor writes hard state."""
        step.events.append("beat")
        step.reply("alive")

    def dig(self, request: object, step: Step) -> object:
        """Returns its answer, and leaves the work to a job."""
        step.jobs.append(lambda: request)
        return "begun"

    def hear(self, request: int | None, step: Step) -> object:
        """Returns all numbers; a new one is added first, unless the store is full."""
        step.reads_hard_state = True
        if request is not None:
            if step.full is not None:
                raise step.full
            step.rows.append(record(request).row())
            self.apply(*step.rows[0])
        return list(self.numbers)

    def park(self, request: object, step: Step) -> None:
        self.parked.append(step.ticket)

    def wake(self, request: object, step: Step) -> None:
        """Answer all parked requests, along with a record."""
        step.rows.append(record(99).row())
        self.apply(*step.rows[0])
        for parked in self.parked:
            step.answer(parked, "awake")
        self.parked.clear()
        step.reply("woke")

    def due_in(self, request: int, step: Step) -> None:
        """Set the deadline."""
        self.due_ms = step.now_ms + request
        step.reply(None)

    def refuse(self, request: object, step: Step) -> None:
        """Refuse the request; if `request` is true, after reading hard state."""
        step.reads_hard_state = bool(request)
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, "refused")

    def refuse_late(self, request: object, step: Step) -> None:
        """Breaks the rule that refusals come before changes."""
        step.rows.append(record(1).row())
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, "too late")

    def explode(self, request: object, step: Step) -> None:
        self.numbers.append(-1)
        raise ZeroDivisionError("a bug")


class HeldStore(MemoryStore):
    """Holds back appends between `hold` and `let_go`, and records each transaction."""

    def __init__(self, *, now_ms: Callable[[], int]) -> None:
        super().__init__(now_ms=now_ms)
        self.transactions: list[Sequence[Append]] = []
        self.error: Exception | None = None
        self.load_error: Exception | None = None
        self.loading = asyncio.Event()
        self.loading.set()
        self._open_gate = asyncio.Event()
        self._open_gate.set()

    def hold(self) -> None:
        self._open_gate.clear()

    def let_go(self) -> None:
        self._open_gate.set()

    async def append(self, appends: Sequence[Append]) -> list[Outcome]:
        self.transactions.append(appends)
        await self._open_gate.wait()
        if self.error is not None:
            raise self.error
        return await super().append(appends)

    async def load(self, lease: Lease) -> list[tuple[int, bytes, bytes]]:
        await self.loading.wait()
        if self.load_error is not None:
            raise self.load_error
        return await super().load(lease)


class HandLeases:
    """Answers as the test wants, and records what it is asked to reclaim."""

    def __init__(self) -> None:
        self.lapsed = False
        self.reclaimed: list[tuple[Lease, int]] = []
        self.reclaiming: set[Lease] = set()
        self.silent: dict[int, int] = {}

    def serving(self, lease: Lease) -> bool:
        return not self.lapsed and lease not in self.reclaiming

    def reclaim(self, lease: Lease, epoch: int) -> None:
        self.reclaimed.append((lease, epoch))
        if not self.lapsed:
            self.reclaiming.add(lease)

    def silent_ms(self, node_id: int) -> int | None:
        return self.silent.get(node_id)


class Bench:
    """One runtime over a held store, with the shard of `GROUP` owned and loaded."""

    def __init__(
        self,
        limits: Limits | None = None,
        store: HeldStore | None = None,
        *,
        at_once: bool = False,
        recorder: Recorder | None = None,
    ) -> None:
        """`at_once`: requests use `call_at_once`, the fast twin of `call`."""
        self.at_once = at_once
        # As Heartbeat and OffsetFetch in the real core.
        small = {CounterShard.beat: Traits(reads=True), CounterShard.read: Traits(reads=True)}
        self.operations = {**OPERATIONS, **small}
        self.clock = ManualClock()
        self.store = store or HeldStore(now_ms=self.clock.now_ms)
        self.leases = HandLeases()
        self.events: list[object] = []
        self.journal_written: list[tuple[int, int]] = []
        self.shards: list[CounterShard] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.runtime = GroupRuntime(
            self.store,
            self.clock,
            self.leases,
            kind=self.kind(),
            options=RuntimeOptions(
                limits=limits or Limits(),
                observer=lambda number, events: self.events.extend(events),
                recorder=recorder,
                journal_written=lambda shard, size_bytes: self.journal_written.append((shard, size_bytes)),
            ),
        )

    def kind(self) -> MachineKind:
        return MachineKind(GROUPS, lambda number: self.make_shard(number), self.operations)

    def make_shard(self, number: int) -> Shard:
        self.shards.append(CounterShard(number))
        return self.shards[-1]

    @property
    def shard(self) -> CounterShard:
        """The shard made last."""
        return self.shards[-1]

    async def claim(self, *leases: Lease) -> int:
        """Claim, own, and return the epoch."""
        epoch = 0
        for grant in await self.store.claim(leases, 1, 3_000):
            assert grant is not None
            self.leases.reclaiming.discard(grant.lease)
            self.runtime.own(grant.lease.number, grant.epoch)
            epoch = grant.epoch
        return epoch

    async def start(self) -> Bench:
        await self.store.open()
        await self.claim(LEASE)
        await self.runtime.loaded()
        return self

    def call(self, operation: Any, request: object = None, group_id: str = GROUP) -> asyncio.Task[Any]:
        """Send a request; the task is done when it is answered."""
        way = self._call_at_once if self.at_once else self.runtime.call
        task = asyncio.get_running_loop().create_task(way(group_id, operation, request, CONTEXT))
        self.tasks.append(task)
        return task

    async def _call_at_once(
        self, group_id: str, operation: Any, request: object, context: RequestContext
    ) -> Any:
        later: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        times = count()

        def answered(answer: object) -> None:
            assert next(times) == 0, "answered twice"
            if not later.done():  # the caller was cancelled
                later.set_result(answer)

        answer = self.runtime.call_at_once(group_id, operation, request, context, answered)
        if answer is LATER:
            answer = await later
        else:
            assert not later.done(), "answered twice"
        if isinstance(answer, KafkaError):
            raise answer
        return answer

    async def ask(self, operation: Any, request: object = None) -> Any:
        task = self.call(operation, request)
        await until(task.done, f"the answer to {operation.__name__}")
        return task.result()

    async def ask_all(self, operation: Any) -> list[Any]:
        return await self.runtime.call_shards(operation, None, CONTEXT)

    async def close(self) -> None:
        self.store.let_go()
        self.runtime.kill()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


def code(task: asyncio.Task[Any]) -> ErrorCode:
    """The error code a finished call was refused with."""
    error = task.exception()
    assert isinstance(error, KafkaError), error
    return error.code
