"""The default store: one sqlite file in the data directory of one process.

One thread writes, with a transaction for each call; another reads, which in WAL mode never waits for the
writer. Both run behind executors that the caller may supply. Epochs are compared in the writing transaction
even though only this process has the file: a broker of this process that was paused is fenced like one on
another machine. Lease holders and registrations are not in the file but kept with the lock on the directory,
so that a full disk costs nobody a lease.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar
from uuid import UUID

from muster.coordinator.base.clock import monotonic_ms
from muster.coordinator.storage.directory import DataDirectory
from muster.coordinator.storage.lease_table import LeaseTable
from muster.coordinator.storage.sqlite import statements
from muster.coordinator.storage.sqlite.reserve import Reserve
from muster.coordinator.storage.sqlite.schema import connect, prepare
from muster.coordinator.storage.store import (
    LEASE_COUNTS_DEFAULT,
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
    StoreClosed,
    StoreConflict,
    StoreCounts,
    StoreDamaged,
    StoredJournalRow,
    StoredRecord,
    StoreError,
    StoreFull,
    StoreRefused,
    TopicRow,
)

T = TypeVar("T")

_LEASE_TABLE_REVISIONS = 2**32  # room for moves of the revision in memory between two in the file


@dataclass(frozen=True, slots=True)
class _Files:
    directory: DataDirectory
    writing: sqlite3.Connection
    reading: sqlite3.Connection
    counts: StoreCounts
    known: statements.leases.KnownLeases
    """The leases known on `writing`."""
    reserve: Reserve

    def close_reading(self) -> None:
        with self.directory.turn:
            self.reading.close()

    def close_writing(self) -> None:
        with self.directory.turn:
            self.writing.close()
        self.directory.release()


class SqliteStore:
    """A `Store` in `<directory>/store.sqlite`, which is created with `lease_counts` if it does not exist.

    `writer` and `reader` each run one call at a time (threads of the store's own, if not given); closing the
    store shuts them down only if it created them.
    """

    def __init__(
        self,
        directory: Path,
        *,
        now_ms: Callable[[], int] = monotonic_ms,
        lease_counts: Mapping[LeaseKind, int] | None = None,
        writer: Executor | None = None,
        reader: Executor | None = None,
    ) -> None:
        self.changed: list[Callable[[], None]] = []
        self.era = 0
        self._path = directory
        self._now_ms = now_ms
        self._lease_counts = {**LEASE_COUNTS_DEFAULT, **(lease_counts or {})}
        self._given_executors = (writer, reader)
        self._own_executors: list[Executor] = []
        self._files: _Files | None = None
        self._revision = 0
        self._mailboxes_here: set[tuple[int, UUID]] = set()

    def __repr__(self) -> str:
        return f"<SqliteStore {self._path} {'closed' if self._files is None else 'open'}>"

    def _new_executor(self, name: str) -> Executor:
        executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._own_executors.append(executor)
        return executor

    # --- life -------------------------------------------------------------------------------------

    async def open(self) -> None:
        writer, reader = self._given_executors
        self._writer = writer or self._new_executor("store writer")
        self._reader = reader or self._new_executor("store reader")
        loop = asyncio.get_running_loop()
        try:
            self._files = await loop.run_in_executor(self._writer, self._open_files)
        except BaseException:
            self._end_executors(wait=False)  # cancelled, it may not have opened its files yet
            raise

    def _open_files(self) -> _Files:
        directory = DataDirectory.acquire(self._path)
        reserve = Reserve(directory.reserve_path, self._now_ms)
        with ExitStack() as undo:
            undo.callback(directory.release)
            while True:
                try:
                    writing, reading, counts = self._connected(directory)
                    break
                except StoreFull:  # without a broker, nobody can make room
                    if not reserve.give():
                        raise
            undo.pop_all()
        reserve.fill()
        return _Files(directory, writing, reading, counts, statements.leases.KnownLeases(), reserve)

    def _connected(
        self, directory: DataDirectory
    ) -> tuple[sqlite3.Connection, sqlite3.Connection, StoreCounts]:
        path = directory.store_path
        with ExitStack() as undo:
            try:
                with directory.turn:
                    writing = undo.enter_context(closing(connect(path)))
                    counts = prepare(writing, path, directory.topics_path, self._lease_counts)
                    reading = undo.enter_context(closing(connect(path)))
            except sqlite3.Error as error:
                raise _failure("opening", path, error) from error
            self._revision = statements.meta.revision(reading)
            undo.pop_all()
        return writing, reading, counts

    async def close(self) -> None:
        if self._files is None:
            return
        files, self._files = self._files, None
        for mailbox in self._mailboxes_here:
            files.directory.mailboxes.close(*mailbox)
        self._mailboxes_here.clear()
        loop = asyncio.get_running_loop()
        # Calls in flight come first: an executor runs its calls in order.
        await loop.run_in_executor(self._reader, files.close_reading)
        await loop.run_in_executor(self._writer, files.close_writing)
        self._end_executors(wait=True)  # their threads have nothing left to do

    def _end_executors(self, *, wait: bool) -> None:
        for executor in self._own_executors:
            executor.shutdown(wait=wait)
        self._own_executors.clear()

    # --- how changes and reads are run ------------------------------------------------------------

    def give_to_retention(self) -> bool:
        """See `Reserve`. Blocks; from any thread."""
        files = self._files
        return files is not None and files.reserve.give_to_retention()

    def _opened_files(self) -> _Files:
        if self._files is None:
            raise StoreClosed(f"the store in {self._path} is not open")
        return self._files

    @property
    def _lease_table(self) -> LeaseTable:
        return self._opened_files().directory.lease_table

    def _write(
        self, apply: Callable[[sqlite3.Connection], T], *, reserved: bool = False
    ) -> asyncio.Future[T]:
        """Run `apply` in a transaction, in the order of the calls; on a full disk in the room of the reserve,
        if it is `reserved` for this. Must be shielded from its caller's cancellation."""
        files, transact = self._opened_files(), _transact_reserved if reserved else _transact
        return asyncio.get_running_loop().run_in_executor(self._writer, transact, files, apply)

    async def _change(self, apply: Callable[[sqlite3.Connection], T], *, reserved: bool = False) -> T:
        """As `_write`, for changes that may move the revision."""
        writing = self._write(
            lambda connection: (apply(connection), statements.meta.revision(connection)), reserved=reserved
        )
        writing.add_done_callback(self._note_revision)
        return (await asyncio.shield(writing))[0]

    def _note_revision(self, written: asyncio.Future[tuple[Any, int]]) -> None:
        if written.cancelled() or written.exception() is not None:
            return
        _, revision = written.result()
        if revision != self._revision:
            self._revision = revision
            self._tell()

    async def _read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        files = self._opened_files()
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._reader, query, files.reading)
        except sqlite3.Error as error:
            raise _failure("reading", files.directory.store_path, error) from error

    def _tell(self) -> None:
        for callback in tuple(self.changed):
            callback()

    # --- the contract -----------------------------------------------------------------------------

    async def append(self, appends: Sequence[Append]) -> list[Outcome]:
        known = self._opened_files().known
        return await asyncio.shield(self._write(lambda c: statements.records.append(c, known, appends)))

    async def load(self, lease: Lease) -> list[tuple[int, bytes, bytes]]:
        return await self._read(partial(statements.records.load, lease=lease))

    async def read_records(
        self, lease: Lease, seq: int, *, rows_max: int, bytes_max: int
    ) -> list[StoredRecord]:
        return await self._read(lambda c: statements.records.read(c, lease, seq, rows_max, bytes_max))

    async def next_seq(self, lease: Lease) -> int:
        return await self._read(partial(statements.records.next_seq, lease=lease))

    async def record_bounds(self, lease: Lease) -> RecordBounds:
        return await self._read(partial(statements.records.bounds, lease=lease))

    async def remove_tombstones(self, lease: Lease, epoch: int, *, before_ms: int, count_max: int) -> int:
        return await self._change(
            lambda c: statements.records.remove_tombstones(c, lease, epoch, before_ms, count_max)
        )

    async def read_journal(
        self, lease: Lease, offset: int, *, rows_max: int, bytes_max: int
    ) -> list[StoredJournalRow]:
        return await self._read(
            lambda c: statements.journal.read(c, lease, offset, rows_max=rows_max, bytes_max=bytes_max)
        )

    async def journal_bounds(self, lease: Lease) -> JournalBounds:
        return await self._read(partial(statements.journal.bounds, lease=lease))

    async def journal_offset_at(self, lease: Lease, at_ms: int) -> int | None:
        return await self._read(lambda c: statements.journal.offset_at(c, lease, at_ms))

    async def journal_newest(self, lease: Lease) -> int | None:
        return await self._read(partial(statements.journal.newest, lease=lease))

    async def trim_journal(self, lease: Lease, epoch: int, before_offset: int) -> bool:
        return await self._change(lambda c: statements.journal.trim(c, lease, epoch, before_offset))

    async def claim(
        self, leases: Sequence[Lease], node_id: int, term_ms: int, *, incarnation: UUID | None = None
    ) -> list[Grant | None]:
        self._check_known(leases)
        lease_table = self._lease_table
        taken = lease_table.begin_claim(leases, node_id, self._now_ms(), incarnation)
        epochs: dict[Lease, int] = {}
        try:
            if taken:
                known = self._opened_files().known
                epochs = await self._change(
                    lambda c: statements.leases.raise_epochs(c, known, taken), reserved=True
                )
        finally:
            grants = lease_table.end_claim(taken, node_id, epochs, term_ms, self._now_ms())
        if grants:
            self._tell()
        return [grants.get(lease) for lease in leases]

    async def announce(self, grants: Sequence[Grant]) -> None:
        self._check_known([grant.lease for grant in grants])
        if self._lease_table.announce(grants):
            self._tell()

    async def renew(self, grants: Sequence[Grant], term_ms: int) -> list[int | None]:
        self._check_known([grant.lease for grant in grants])
        return self._lease_table.renew(grants, term_ms, self._now_ms())

    async def release(self, grants: Sequence[Grant]) -> None:
        self._check_known([grant.lease for grant in grants])
        if self._lease_table.release(grants):
            self._tell()

    async def holders(self, kind: LeaseKind) -> dict[int, Grant]:
        return self._lease_table.holders(kind, self._now_ms())

    def runs_out_in(self, sparing: Container[int]) -> int | None:
        return self._lease_table.runs_out_in(sparing, self._now_ms())

    def let_pass(self, ms: int, sparing: Container[int]) -> None:
        if self._lease_table.let_pass(ms, sparing, self._now_ms()):
            self._tell()

    def _check_known(self, leases: Sequence[Lease]) -> None:
        counts = self._opened_files().counts.leases
        for lease in leases:
            if not 0 <= lease.number < counts[lease.kind]:
                raise StoreConflict(f"there is no lease {lease.kind} {lease.number}")

    async def create_topic(self, topic: TopicRow) -> None:
        await self._change(lambda c: statements.topics.create(c, topic))

    async def update_topic(
        self,
        topic: TopicRow,
        *,
        expected: TopicRow | None = None,
        epochs: Mapping[Lease, int] = MappingProxyType({}),
    ) -> None:
        await self._change(lambda c: statements.topics.update(c, topic, expected, epochs), reserved=True)

    async def delete_topic(self, topic_id: UUID) -> bool:
        return await self._change(lambda c: statements.topics.delete(c, topic_id), reserved=True)

    async def topics(self) -> list[TopicRow]:
        return await self._read(statements.topics.read)

    async def replica_lists(self) -> dict[Replicas, int]:
        return await self._read(statements.topics.replica_lists)

    async def add_replica_lists(self, lists: Collection[Replicas]) -> None:
        leases = self._opened_files().counts.leases[LeaseKind.REPLICAS]
        await self._change(lambda c: statements.topics.add_replica_lists(c, lists, leases))

    async def broker_configs(self) -> list[BrokerConfigsRow]:
        return await self._read(statements.broker_configs.read)

    async def update_broker_configs(self, row: BrokerConfigsRow, *, expected: Mapping[str, str]) -> None:
        await self._change(lambda c: statements.broker_configs.update(c, row, expected), reserved=True)

    async def register_node(self, node: NodeRow) -> None:
        if self._lease_table.register(node, self._now_ms()):
            self._tell()

    async def remove_node(self, node_id: int, incarnation: UUID) -> None:
        if self._lease_table.remove(node_id, incarnation):
            self._tell()

    async def nodes(self) -> list[NodeRow]:
        return self._lease_table.nodes(self._now_ms())

    async def post(self, letters: Sequence[Letter]) -> list[Posted]:
        directory = self._opened_files().directory
        under = {letter.under for letter in letters if letter.under is not None}
        unsure = {each for each in under if not directory.lease_table.holds(*each)}
        if unsure:
            rows = await self._read(partial(statements.leases.rows_of, wanted={lease for lease, _ in unsure}))
            under -= {
                (lease, epoch)
                for lease, epoch in unsure
                if epoch < 1 or rows.get(lease, statements.leases.NO_LEASE)[1] != epoch
            }
        now_ms = self._now_ms()
        return directory.mailboxes.post(
            letters,
            in_force=lambda lease, epoch: (lease, epoch) in under,
            registered=lambda node_id: directory.lease_table.incarnation(node_id, now_ms),
        )

    def open_mailbox(self, node_id: int, incarnation: UUID, deliver: Deliver) -> None:
        self._opened_files().directory.mailboxes.open(node_id, incarnation, deliver)
        self._mailboxes_here.add((node_id, incarnation))

    def close_mailbox(self, node_id: int, incarnation: UUID) -> None:
        if self._files is not None:
            self._files.directory.mailboxes.close(node_id, incarnation)
        self._mailboxes_here.discard((node_id, incarnation))

    async def counts(self) -> StoreCounts:
        return self._opened_files().counts

    async def revision(self) -> int:
        lease_table = self._lease_table
        written = await self._read(statements.meta.revision)
        return written * _LEASE_TABLE_REVISIONS + lease_table.revision

    async def allocate_producer_ids(self, count: int) -> int:
        return await self._change(lambda c: statements.meta.allocate_producer_ids(c, count))


def _transact(files: _Files, apply: Callable[[sqlite3.Connection], T]) -> T:
    """Runs on the writer's thread."""
    connection = files.writing
    try:
        connection.execute("BEGIN IMMEDIATE")
        try:
            result = apply(connection)
            connection.execute("COMMIT")
        except BaseException:
            files.known.forget()
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    except StoreError:
        raise
    except Exception as error:
        raise _failure("writing to", files.directory.store_path, error) from error
    files.reserve.refill()
    return result


def _transact_reserved(files: _Files, apply: Callable[[sqlite3.Connection], T]) -> T:
    """As `_transact`, for what may make room: a deleted topic, a shorter retention."""
    while True:
        try:
            return _transact(files, apply)
        except StoreFull:
            if not files.reserve.give():
                raise


def _failure(doing: str, path: Path, error: Exception) -> StoreError:
    """What happened, where, and what can be done. The code is sqlite's own; what Python's module itself
    raises has none, nor does the error for a record that was found to have changed."""
    detailed = getattr(error, "sqlite_errorcode", 0)
    code = detailed & 0xFF
    why = f"{doing} {path}: {error}"
    # Its shared memory is a file, too, which it makes as it opens.
    if code == sqlite3.SQLITE_FULL or detailed == sqlite3.SQLITE_IOERR_SHMSIZE:
        return StoreFull(f"{why}; free some space there")
    if isinstance(error, (sqlite3.DataError, OverflowError)):  # too much for sqlite, or for Python's module
        return StoreRefused(why)
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or type(error) is sqlite3.DatabaseError:
        return StoreDamaged(
            f"{why}; the file is damaged: restore the data directory from a backup, or start with a new one"
        )
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
        return StoreError(f"{why}; this process needs write permission there")
    return StoreError(why)
