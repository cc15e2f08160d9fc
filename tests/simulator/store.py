"""The simulated store: a memory store behind latency, failures, and crashes of its users.

`Durable` is what survives every broker: the memory store itself, and the history of every record it ever
took, which the checkers read. A `SimulatedStore` is one broker's connection to it.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar
from uuid import UUID

from muster.coordinator.runtime.appender import FULL_PAUSE_MS
from muster.coordinator.storage.memory import MemoryStore
from muster.coordinator.storage.store import (
    Append,
    BrokerConfigsRow,
    Deliver,
    Grant,
    JournalBounds,
    Lease,
    LeaseKind,
    Letter,
    NodeRow,
    Outcome,
    Posted,
    RecordBounds,
    Replicas,
    StoreBusy,
    StoreClosed,
    StoreCounts,
    StoredJournalRow,
    StoredRecord,
    StoreError,
    StoreFull,
    TopicRow,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Written:
    """One record that became durable."""

    at_s: float
    lease: Lease
    epoch: int
    key: bytes
    value: bytes | None


class Fault(Enum):
    """How a change failed to go as requested."""

    NOTHING_WRITTEN = "nothing was written"
    TORN = "a part was written"
    """A transaction of several leases. None of our backends does that, but none has to rule it out either."""
    ANSWER_LOST = "it was written, but the answer was lost"
    FULL = "the disk is full"


class Durable:
    """The contents of the disk."""

    def __init__(self, loop: asyncio.AbstractEventLoop, memory: MemoryStore) -> None:
        self.memory = memory
        self.listeners: list[Callable[[Written], None]] = []
        self.append_listeners: list[Callable[[Append, Outcome, bool], None]] = []
        """Called with each lease's part of a transaction, its outcome, and whether the broker that made it
        has had room for its journal throughout."""
        self.done_listeners: list[Callable[[], None]] = []
        """Called after all records of a lease's part."""
        self.fault_listeners: list[Callable[[Sequence[Append], Fault], None]] = []
        """Called with failed appends, before their broker learns of it."""
        self._loop = loop

    def append(self, appends: Sequence[Append], *, room: bool) -> list[Outcome]:
        outcomes = run(self.memory.append(appends))
        for append, outcome in zip(appends, outcomes, strict=True):
            for told in self.append_listeners:
                told(append, outcome, room)
            if outcome is Outcome.WRITTEN:
                for key, value in append.records:
                    written = Written(self._loop.time(), append.lease, append.epoch, key, value)
                    for listener in self.listeners:
                        listener(written)
                for done in self.done_listeners:
                    done()
        return outcomes


def run(call: Awaitable[T]) -> T:
    """Run a memory store's method, which never waits, and return its result."""
    steps = call.__await__()
    try:
        next(steps)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("the memory store waited")


@dataclass(slots=True)
class Weather:
    """How the store currently behaves towards everybody; times in seconds."""

    latency_s: tuple[float, float] = (0.0005, 0.004)
    failure: float = 0.0
    """Chance that a change fails; half of the failed ones have taken effect all the same."""
    stalled_until_s: float = 0.0
    full_until_s: float = 0.0
    """Until then there is no room for records, epochs or topics; terms and reads go on."""
    busy: float = 0.0
    """Chance that an append is refused because too many are waiting."""
    letters_lost: float = 0.0
    """Chance that a message to a broker's mailbox is lost."""


def _arrive(effect: Callable[[], object]) -> None:
    """Apply a change of a broker that has died since; nobody learns of a refusal."""
    with suppress(StoreError):
        effect()


@dataclass(slots=True)
class _Change:
    effect: Callable[[], Any]
    done: asyncio.Future[Any]
    needs_room: bool
    appends: Sequence[Append]
    torn: Callable[[], Any]
    """Does half of the change."""


class SimulatedStore:
    """One broker's store object: changes in order, one at a time; reads run alongside."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, rng: random.Random, durable: Durable, weather: Weather
    ) -> None:
        self.changed: list[Callable[[], None]] = []
        self.era = 0
        self.appending = 0
        """Unanswered appends."""
        self._loop = loop
        self._rng = rng
        self._durable = durable
        self._weather = weather
        self._queue: deque[_Change] = deque()
        self._waited_for: set[asyncio.Future[Any]] = set()
        self._busy = False
        self._dead = False
        self._cut_off_until_s = 0.0
        self._made_s = loop.time()
        """When the last append was made."""
        self._full_told_s = -math.inf
        """When the broker last learned that there is no room."""
        durable.memory.changed.append(self._on_change)

    # --- faults -----------------------------------------------------------------------------------

    def cut_off(self, seconds: float) -> None:
        """Cut off only this broker from the store: what it sends arrives that much later."""
        self._cut_off_until_s = self._loop.time() + seconds

    def resumed(self, paused_since_s: float) -> None:
        """The broker was paused since then, and only now learns what it was told in the meantime."""
        if self._full_told_s >= paused_since_s:
            self._full_told_s = self._loop.time()

    def crash(self) -> None:
        """The broker died. What it had sent may be lost, or may still arrive: at once, or after another
        broker has taken over, which is what epochs are for.
        """
        self._dead = True
        self._durable.memory.changed.remove(self._on_change)
        changes, self._queue = list(self._queue), deque()
        for change in changes:
            if self._rng.random() < 0.5:
                delay_s = self._rng.choice([0, 0.5, 5]) * self._rng.random()
                self._loop.call_later(delay_s, partial(_arrive, change.effect))
        for waited_for in list(self._waited_for):
            waited_for.cancel()

    # --- how calls are made -----------------------------------------------------------------------

    def _delay_s(self) -> float:
        reached_s = max(self._weather.stalled_until_s, self._cut_off_until_s)
        stalled_s = max(reached_s - self._loop.time(), 0)
        return stalled_s + self._rng.uniform(*self._weather.latency_s)

    def _expect(self) -> asyncio.Future[Any]:
        done: asyncio.Future[Any] = self._loop.create_future()
        self._waited_for.add(done)
        done.add_done_callback(self._waited_for.discard)
        return done

    async def _change(
        self,
        effect: Callable[[], T],
        *,
        needs_room: bool = True,
        appends: Sequence[Append] = (),
        torn: Callable[[], T] | None = None,
    ) -> T:
        if self._dead:
            raise StoreClosed("the broker is dead")
        change = _Change(effect, self._expect(), needs_room, appends, torn or effect)
        self._queue.append(change)
        self._next()
        result: T = await asyncio.shield(change.done)
        return result

    def _next(self) -> None:
        if self._queue and not self._busy and not self._dead:
            self._busy = True
            self._loop.call_later(self._delay_s(), self._apply)

    def _apply(self) -> None:
        self._busy = False
        if self._dead:
            return
        change = self._queue.popleft()
        fails = self._rng.random() < self._weather.failure
        if change.needs_room and self._loop.time() < self._weather.full_until_s:
            self._finish(change.done, None, StoreFull(self._tell_fault(change, Fault.FULL)))
        elif fails and self._rng.random() < 0.5:
            self._finish(change.done, None, StoreError(self._tell_fault(change, Fault.NOTHING_WRITTEN)))
        else:
            torn = fails and len(change.appends) > 1 and self._rng.random() < 0.5
            try:
                result, error = (change.torn if torn else change.effect)(), None
            except StoreError as refused:
                result, error = None, refused
            if fails and error is None:
                fault = Fault.TORN if torn else Fault.ANSWER_LOST
                error = StoreError(self._tell_fault(change, fault))
            self._loop.call_later(
                self._rng.uniform(*self._weather.latency_s), self._finish, change.done, result, error
            )
        self._next()

    def _tell_fault(self, change: _Change, fault: Fault) -> str:
        if change.appends:
            for listener in self._durable.fault_listeners:
                listener(change.appends, fault)
        return f"simulated: {fault.value}"

    async def _read(self, effect: Callable[[], T]) -> T:
        if self._dead:
            raise StoreClosed("the broker is dead")
        done = self._expect()
        self._loop.call_later(
            self._delay_s(), lambda: self._finish(done, None if done.done() else effect(), None)
        )
        result: T = await done
        return result

    def _finish(self, done: asyncio.Future[Any], result: Any, error: StoreError | None) -> None:
        if self._dead or done.done():  # cancelled, in the latter case
            return
        if error is not None:
            if isinstance(error, StoreFull):
                self._full_told_s = self._loop.time()
            done.set_exception(error)
            done.exception()  # the waiter may be gone
        else:
            done.set_result(result)

    def _on_change(self) -> None:
        self._loop.call_later(self._rng.uniform(*self._weather.latency_s), self._tell_changed)

    def _tell_changed(self) -> None:
        if not self._dead:
            for callback in tuple(self.changed):
                callback()

    # --- the contract -----------------------------------------------------------------------------

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def append(self, appends: Sequence[Append]) -> list[Outcome]:
        # A copy of the records: the lists are the caller's, and bytes in flight do not change.
        sent = [
            append._replace(records=tuple(append.records), journal=tuple(append.journal))
            for append in appends
        ]
        if self._rng.random() < self._weather.busy:
            raise StoreBusy("simulated: too much waits")
        # What this carries was stepped after the previous append. A broker that learned just then that there
        # was no room had dropped entries.
        room = self._made_s > self._full_told_s + 2 * FULL_PAUSE_MS / 1000
        self._made_s = self._loop.time()
        self.appending += 1
        try:
            return await self._change(
                lambda: self._durable.append(sent, room=room),
                appends=sent,
                torn=lambda: self._durable.append(sent[: len(sent) // 2], room=room),
            )
        finally:
            self.appending -= 1

    async def load(self, lease: Lease) -> list[tuple[int, bytes, bytes]]:
        return await self._read(lambda: run(self._durable.memory.load(lease)))

    async def read_records(
        self, lease: Lease, seq: int, *, rows_max: int, bytes_max: int
    ) -> list[StoredRecord]:
        memory = self._durable.memory
        return await self._read(
            lambda: run(memory.read_records(lease, seq, rows_max=rows_max, bytes_max=bytes_max))
        )

    async def next_seq(self, lease: Lease) -> int:
        return await self._read(lambda: run(self._durable.memory.next_seq(lease)))

    async def record_bounds(self, lease: Lease) -> RecordBounds:
        return await self._read(lambda: run(self._durable.memory.record_bounds(lease)))

    async def remove_tombstones(self, lease: Lease, epoch: int, *, before_ms: int, count_max: int) -> int:
        memory = self._durable.memory
        return await self._change(
            lambda: run(memory.remove_tombstones(lease, epoch, before_ms=before_ms, count_max=count_max))
        )

    async def read_journal(
        self, lease: Lease, offset: int, *, rows_max: int, bytes_max: int
    ) -> list[StoredJournalRow]:
        memory = self._durable.memory
        return await self._read(
            lambda: run(memory.read_journal(lease, offset, rows_max=rows_max, bytes_max=bytes_max))
        )

    async def journal_bounds(self, lease: Lease) -> JournalBounds:
        return await self._read(lambda: run(self._durable.memory.journal_bounds(lease)))

    async def journal_offset_at(self, lease: Lease, at_ms: int) -> int | None:
        return await self._read(lambda: run(self._durable.memory.journal_offset_at(lease, at_ms)))

    async def journal_newest(self, lease: Lease) -> int | None:
        return await self._read(lambda: run(self._durable.memory.journal_newest(lease)))

    async def trim_journal(self, lease: Lease, epoch: int, before_offset: int) -> bool:
        return await self._change(lambda: run(self._durable.memory.trim_journal(lease, epoch, before_offset)))

    async def claim(
        self, leases: Sequence[Lease], node_id: int, term_ms: int, *, incarnation: UUID | None = None
    ) -> list[Grant | None]:
        memory = self._durable.memory
        return await self._change(
            lambda: run(memory.claim(leases, node_id, term_ms, incarnation=incarnation))
        )

    async def announce(self, grants: Sequence[Grant]) -> None:
        await self._change(lambda: run(self._durable.memory.announce(grants)), needs_room=False)

    async def renew(self, grants: Sequence[Grant], term_ms: int) -> list[int | None]:
        return await self._change(lambda: run(self._durable.memory.renew(grants, term_ms)), needs_room=False)

    async def release(self, grants: Sequence[Grant]) -> None:
        await self._change(lambda: run(self._durable.memory.release(grants)), needs_room=False)

    async def holders(self, kind: LeaseKind) -> dict[int, Grant]:
        return await self._read(lambda: run(self._durable.memory.holders(kind)))

    async def create_topic(self, topic: TopicRow) -> None:
        await self._change(lambda: run(self._durable.memory.create_topic(topic)))

    async def update_topic(
        self,
        topic: TopicRow,
        *,
        expected: TopicRow | None = None,
        epochs: Mapping[Lease, int] = MappingProxyType({}),
    ) -> None:
        memory = self._durable.memory
        await self._change(lambda: run(memory.update_topic(topic, expected=expected, epochs=epochs)))

    async def delete_topic(self, topic_id: UUID) -> bool:
        return await self._change(lambda: run(self._durable.memory.delete_topic(topic_id)))

    async def topics(self) -> list[TopicRow]:
        return await self._read(lambda: run(self._durable.memory.topics()))

    async def replica_lists(self) -> dict[Replicas, int]:
        return await self._read(lambda: run(self._durable.memory.replica_lists()))

    async def add_replica_lists(self, lists: Collection[Replicas]) -> None:
        await self._change(lambda: run(self._durable.memory.add_replica_lists(lists)))

    async def broker_configs(self) -> list[BrokerConfigsRow]:
        return await self._read(lambda: run(self._durable.memory.broker_configs()))

    async def update_broker_configs(self, row: BrokerConfigsRow, *, expected: Mapping[str, str]) -> None:
        await self._change(lambda: run(self._durable.memory.update_broker_configs(row, expected=expected)))

    async def register_node(self, node: NodeRow) -> None:
        await self._change(lambda: run(self._durable.memory.register_node(node)), needs_room=False)

    async def remove_node(self, node_id: int, incarnation: UUID) -> None:
        await self._change(
            lambda: run(self._durable.memory.remove_node(node_id, incarnation)), needs_room=False
        )

    async def nodes(self) -> list[NodeRow]:
        return await self._read(lambda: run(self._durable.memory.nodes()))

    async def post(self, letters: Sequence[Letter]) -> list[Posted]:
        sent = list(letters)
        return await self._change(lambda: run(self._durable.memory.post(sent)), needs_room=False)

    def open_mailbox(self, node_id: int, incarnation: UUID, deliver: Deliver) -> None:
        arriving: deque[Sequence[bytes]] = deque()

        def arrive(payloads: Sequence[bytes]) -> None:
            arriving.append(payloads)
            self._loop.call_later(self._delay_s(), hear)

        def hear() -> None:
            payloads = arriving.popleft()  # in order, whichever latency has passed
            if self._weather.letters_lost and self._rng.random() < self._weather.letters_lost:
                return
            if not self._dead:
                deliver(payloads)

        self._durable.memory.open_mailbox(node_id, incarnation, arrive)

    def close_mailbox(self, node_id: int, incarnation: UUID) -> None:
        self._durable.memory.close_mailbox(node_id, incarnation)

    async def counts(self) -> StoreCounts:
        return await self._read(lambda: run(self._durable.memory.counts()))

    async def revision(self) -> int:
        return await self._read(lambda: run(self._durable.memory.revision()))

    async def allocate_producer_ids(self, count: int) -> int:
        return await self._change(lambda: run(self._durable.memory.allocate_producer_ids(count)))
