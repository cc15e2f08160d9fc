"""One append at a time per broker: what arrives while a commit runs goes into the next one, across shards."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from muster.coordinator.observe.log import Logger
from muster.coordinator.runtime.clock import Clock
from muster.coordinator.storage.store import Append, Lease, Outcome, Store, StoreBusy, StoreFull

_log: Final = Logger(part="groups")

_BUSY_PAUSE_MS: Final = 50
FULL_PAUSE_MS: Final = 1_000
"""How long nothing is tried after the store had no room: each attempt costs its shards a reload."""


class Writer(Protocol):
    """Who appends: the holder of one lease at one epoch."""

    lease: Lease
    epoch: int

    def appended(self, sequence: int, outcome: Outcome) -> None:
        """What was handed over up to `sequence` was written, or what the transaction had of it was fenced."""

    def fail(self, why: Exception) -> None:
        """The store failed. After StoreBusy and StoreFull nothing was written, otherwise that is unknown."""


class _Waiting:
    __slots__ = ("rows", "sequence", "since_ms")

    def __init__(self, since_ms: int) -> None:
        self.rows: list[tuple[bytes, bytes | None]] = []
        self.sequence = 0
        self.since_ms = since_ms


class Appender:
    """Group commit of one broker.

    Rows of a writer are written in the order they came, since the next transaction starts when the last has
    returned. There is no bound here: a writer stops taking work when too much of its own waits. A store that
    is busy is asked again until rows have waited for `write_timeout_ms`; one that is full is not, and `full`
    says so for a while.
    """

    def __init__(self, store: Store, clock: Clock, *, write_timeout_ms: int) -> None:
        self._store = store
        self._clock = clock
        self._write_timeout_ms = write_timeout_ms
        self._full: StoreFull | None = None
        self._full_until_ms = 0
        self._waiting: dict[Writer, _Waiting] = {}
        self._under_way: dict[Writer, _Waiting] = {}
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def append(self, writer: Writer, rows: Sequence[tuple[bytes, bytes | None]], sequence: int) -> None:
        """Write `rows` in the next transaction; `writer` is told with `sequence`, which only grows."""
        waiting = self._waiting.get(writer)
        if waiting is None:
            waiting = self._waiting[writer] = _Waiting(self._clock.now_ms())
        waiting.rows.extend(rows)
        waiting.sequence = sequence
        # The task starts in the next turn of the loop, so all that this turn brings goes into one
        # transaction.
        if self._task is None and not self._closed:
            self._task = asyncio.get_running_loop().create_task(self._write(), name="appender")

    def discard(self, writer: Writer) -> None:
        """Forget what the store has not been given yet, or was too busy for; `writer` still hears of a
        transaction under way.
        """
        self._waiting.pop(writer, None)
        self._under_way.pop(writer, None)

    @property
    def full(self) -> StoreFull | None:
        """Why rows would not be written at the moment; None when it is worth trying."""
        if self._full is None or self._clock.now_ms() >= self._full_until_ms:
            return None
        return self._full

    async def settled(self) -> None:
        """Return when nothing waits and nothing is under way."""
        while self._task is not None:
            await asyncio.wait([self._task])

    def kill(self) -> None:
        """Write nothing from now on, as a process that died; what is under way may still take effect."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()

    async def _write(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, {}
                await self._transaction(batch)
                self._under_way = {}
        finally:
            self._task = None

    async def _transaction(self, batch: dict[Writer, _Waiting]) -> None:
        self._under_way = dict(batch)
        appends = [Append(writer.lease, writer.epoch, waiting.rows) for writer, waiting in batch.items()]
        try:
            outcomes = await self._store.append(appends)
        except StoreBusy as busy:
            await self._try_later(busy)
            return
        except Exception as error:
            if isinstance(error, StoreFull):
                self._full, self._full_until_ms = error, self._clock.now_ms() + FULL_PAUSE_MS
                _log.error("the store is full", shards=len(batch), why=str(error))
            # Whatever the backend raised, every writer of the transaction has gone on from rows that are not
            # known to be in the store: it must stop.
            for writer in batch:
                writer.fail(error)
            return
        self._full = None
        for (writer, waiting), outcome in zip(batch.items(), outcomes, strict=True):
            writer.appended(waiting.sequence, outcome)

    async def _try_later(self, busy: StoreBusy) -> None:
        """Put what is under way in front of what came meanwhile, and return after a pause."""
        now_ms = self._clock.now_ms()
        came, self._waiting = self._waiting, {}
        for writer, waiting in list(self._under_way.items()):
            if now_ms - waiting.since_ms >= self._write_timeout_ms:
                came.pop(writer, None)
                writer.fail(busy)
                continue
            waiting.rows = list(waiting.rows)  # the store was given the other
            later = came.pop(writer, None)
            if later is not None:
                waiting.rows += later.rows
                waiting.sequence = later.sequence
            self._waiting[writer] = waiting
        self._waiting |= came
        if self._waiting:
            pause = asyncio.Event()
            timer = self._clock.at(now_ms + _BUSY_PAUSE_MS, pause.set)
            try:
                await pause.wait()
            finally:
                timer.cancel()
