"""One append at a time per broker: what arrives while a commit runs goes into the next one, across shards.

Journal rows are written with the records of their own step. Those of steps without records wait a moment for
others to be written with. They never hold up a group: what the store has no room or time for is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from muster.coordinator.base.clock import Clock, Timer
from muster.coordinator.base.log import Logger
from muster.coordinator.storage.store import (
    Append,
    JournalRow,
    Lease,
    Outcome,
    Store,
    StoreBusy,
    StoreFull,
    StoreRefused,
)

_BUSY_PAUSE_MS: Final = 50
FULL_PAUSE_MS: Final = 1_000
"""How long nothing is tried after the store was full: each attempt costs its shards a reload."""
LINGER_MS: Final = 200
"""How long journal rows of steps without records wait for others."""
JOURNAL_BYTES_MAX: Final = 4_194_304
"""Bytes of journal rows that one writer may have waiting."""


RecordsWritten = Callable[[int, Sequence[tuple[bytes, bytes | None]]], None]
"""Called with the number of a shard and its records that have become durable. Must be quick and not raise."""


class Writer(Protocol):
    """Who appends: the holder of one lease at one epoch."""

    lease: Lease
    epoch: int

    def appended(self, sequence: int, outcome: Outcome) -> None:
        """What was handed over up to `sequence` was written, or the transaction's part of it was fenced."""

    def fail(self, why: Exception) -> None:
        """The store failed. After StoreBusy, StoreFull and StoreRefused nothing was written; after others
        that is unknown."""


class _Waiting:
    __slots__ = ("journal", "journal_bytes", "rows", "sequence", "since_ms")

    def __init__(self, since_ms: int) -> None:
        self.rows: list[tuple[bytes, bytes | None]] = []
        self.journal: list[JournalRow] = []
        self.journal_bytes = 0
        self.sequence: int | None = None  # None: only journal rows, for which nobody waits
        self.since_ms = since_ms


class Appender:
    """Group commit of one broker.

    A writer's rows are written in the order they came, since the next transaction starts when the last has
    returned. Only journal rows are bounded here: a writer stops taking work when too much of its own waits.
    A busy store is retried until rows have waited for `write_timeout_ms`; a full one is not, and `full` says
    so for a while. If the store refuses a transaction, each writer's part is tried alone: only the one that
    it does not accept fails.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        log: Logger,
        write_timeout_ms: int,
        records_written: RecordsWritten = lambda shard, records: None,
        journal_written: Callable[[int, int], None] = lambda shard, size_bytes: None,
        journal_dropped: Callable[[int], None] = lambda count: None,
    ) -> None:
        """`records_written(shard, records)` is called when records are durable, `journal_written(shard,
        bytes)` when journal rows are, `journal_dropped(count)` when journal rows will not be, or may not be
        (the store failed)."""
        self._store = store
        self._clock = clock
        self._log = log
        self._write_timeout_ms = write_timeout_ms
        self._records_written = records_written
        self._journal_written = journal_written
        self._journal_dropped = journal_dropped
        self._journal_full_until_ms = 0
        self._full: StoreFull | None = None
        self._full_until_ms = 0
        self._waiting: dict[Writer, _Waiting] = {}
        self._under_way: dict[Writer, _Waiting] = {}
        self._task: asyncio.Task[None] | None = None
        self._urgent = False  # rows are waiting that somebody waits for
        self._linger: Timer | None = None
        self._closed = False

    def append(
        self,
        writer: Writer,
        rows: Sequence[tuple[bytes, bytes | None]],
        sequence: int,
        journal: Sequence[JournalRow] = (),
    ) -> None:
        """Write `rows` in the next transaction, along with `journal` and what `note` was given before;
        `writer` is notified with `sequence`, which only grows."""
        waiting = self._waiting.get(writer)
        if waiting is None:
            waiting = self._waiting[writer] = _Waiting(self._clock.now_ms())
        elif waiting.sequence is None:
            waiting.since_ms = self._clock.now_ms()
        waiting.rows.extend(rows)
        waiting.sequence = sequence
        if journal:
            self._add(waiting, journal)
        self._start()

    def note(self, writer: Writer, journal: Sequence[JournalRow]) -> None:
        """Write `journal` with what is written next, or within LINGER_MS. `writer` is notified only if it is
        fenced."""
        waiting = self._waiting.get(writer) or _Waiting(self._clock.now_ms())
        self._add(waiting, journal)
        if waiting.journal:
            self._waiting[writer] = waiting
        if self._task is None:
            self._wait_for_others()

    def holds(self, writer: Writer) -> bool:
        """Whether rows of `writer` are waiting."""
        return writer in self._waiting

    def _add(self, waiting: _Waiting, journal: Sequence[JournalRow]) -> None:
        if self._journal_full_until_ms > self._clock.now_ms():
            self._journal_dropped(len(journal))
            return
        for count, row in enumerate(journal):
            if waiting.journal_bytes + row.size_bytes > JOURNAL_BYTES_MAX:
                self._journal_dropped(len(journal) - count)
                return
            waiting.journal.append(row)
            waiting.journal_bytes += row.size_bytes

    def _start(self) -> None:
        """Begin a transaction unless one is under way. The task starts in the next turn of the loop, so
        everything that arrives in this turn goes into it."""
        self._urgent = True
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if self._task is None and not self._closed:
            self._task = asyncio.get_running_loop().create_task(self._write(), name="appender")

    def _wait_for_others(self) -> None:
        if self._waiting and self._linger is None and not self._closed:
            self._linger = self._clock.at(self._clock.now_ms() + LINGER_MS, self._start)

    def discard(self, writer: Writer) -> None:
        """Forget what the store has not been given yet, or was too busy for; `writer` is still notified of a
        transaction under way.
        """
        self._waiting.pop(writer, None)
        self._under_way.pop(writer, None)

    @property
    def full(self) -> StoreFull | None:
        """Why rows cannot be written at the moment; None when it is worth trying."""
        if self._full is None or self._clock.now_ms() >= self._full_until_ms:
            return None
        return self._full

    @property
    def at_rest(self) -> bool:
        """Whether nothing is under way, and nothing waits but lingering journal rows."""
        return self._task is None

    def flush(self) -> None:
        """Write now what is waiting."""
        if self._waiting:
            self._start()

    async def settled(self) -> None:
        """Return when nothing waits and nothing is under way."""
        self.flush()
        while self._task is not None:
            await asyncio.wait([self._task])

    def kill(self) -> None:
        """Write nothing from now on, like a process that died; what is under way may still take effect."""
        self._closed = True
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if self._task is not None:
            self._task.cancel()

    async def _write(self) -> None:
        try:
            while self._waiting and self._urgent:
                self._urgent = False
                batch, self._waiting = self._waiting, {}
                self._under_way = dict(batch)
                await self._transaction(batch)
                self._under_way = {}
        finally:
            self._task = None
            self._wait_for_others()

    async def _transaction(self, batch: dict[Writer, _Waiting]) -> None:
        now_ms = self._clock.now_ms()
        appends = [
            Append(writer.lease, writer.epoch, waiting.rows, waiting.journal, now_ms)
            for writer, waiting in batch.items()
        ]
        try:
            outcomes = await self._store.append(appends)
        except StoreBusy as busy:
            await self._try_later(busy)
            return
        except Exception as error:
            if isinstance(error, StoreRefused) and len(batch) > 1:
                await self._each_alone(batch)
                return
            dropped = sum(len(waiting.journal) for waiting in batch.values())
            if dropped:
                self._journal_dropped(dropped)
            asked_for = self._asked_for(batch)
            if isinstance(error, StoreFull):
                self._journal_full_until_ms = self._clock.now_ms() + FULL_PAUSE_MS
            if dropped and isinstance(error, (StoreFull, StoreRefused)):
                # Nothing was written. The records alone may be accepted.
                if asked_for:
                    await self._transaction(asked_for)
                return
            if isinstance(error, StoreFull):
                self._full, self._full_until_ms = error, self._journal_full_until_ms
                self._log.error("the store is full", shards=len(batch), why=str(error))
            # Whatever the backend raised, every writer with records in the transaction has gone on from
            # state that may not be in the store: it must stop.
            for writer in asked_for:
                writer.fail(error)
            return
        self._full = None
        for (writer, waiting), outcome in zip(batch.items(), outcomes, strict=True):
            if outcome is Outcome.WRITTEN and waiting.rows:
                self._records_written(writer.lease.number, waiting.rows)
            if outcome is Outcome.WRITTEN and waiting.journal:
                self._journal_written(writer.lease.number, waiting.journal_bytes)
            if waiting.sequence is not None or outcome is Outcome.FENCED:
                writer.appended(waiting.sequence or 0, outcome)

    async def _each_alone(self, batch: dict[Writer, _Waiting]) -> None:
        """Write each writer's part in a transaction of its own."""
        for writer, waiting in batch.items():
            # Some may have been discarded meanwhile, or be waiting again, since the store has become busy.
            if writer in self._under_way:
                await self._transaction({writer: waiting})
                self._under_way.pop(writer, None)

    def _asked_for(self, batch: dict[Writer, _Waiting]) -> dict[Writer, _Waiting]:
        """The part of a batch that somebody waits for: records, without journal rows."""
        asked_for = {}
        for writer, waiting in batch.items():
            # A writer discarded meanwhile is no longer in what is under way, and is not notified.
            if waiting.sequence is not None and writer in self._under_way:
                waiting.journal, waiting.journal_bytes = [], 0
                asked_for[writer] = waiting
            else:
                self._under_way.pop(writer, None)
        return asked_for

    async def _try_later(self, busy: StoreBusy) -> None:
        """Put what is under way in front of what came meanwhile, and return after a pause."""
        now_ms = self._clock.now_ms()
        came, self._waiting = self._waiting, {}
        under_way, self._under_way = self._under_way, {}
        for writer, waiting in under_way.items():
            if now_ms - waiting.since_ms >= self._write_timeout_ms:
                if waiting.sequence is None:
                    self._journal_dropped(len(waiting.journal))
                    continue
                came.pop(writer, None)
                writer.fail(busy)
                continue
            # Copies: the store was given the originals.
            waiting.rows, waiting.journal = list(waiting.rows), list(waiting.journal)
            later = came.pop(writer, None)
            if later is not None:
                self._put_behind(waiting, later)
            self._waiting[writer] = waiting
        self._waiting |= came
        if self._waiting:
            self._urgent = True
            pause = asyncio.Event()
            timer = self._clock.at(now_ms + _BUSY_PAUSE_MS, pause.set)
            try:
                await pause.wait()
            finally:
                timer.cancel()

    def _put_behind(self, waiting: _Waiting, later: _Waiting) -> None:
        if later.sequence is not None:
            if waiting.sequence is None:
                waiting.since_ms = later.since_ms
            waiting.rows += later.rows
            waiting.sequence = later.sequence
        self._add(waiting, later.journal)
