"""The writer's side of `append`: turns many appends into the columns of one statement, and reports the
outcome of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from muster.coordinator.storage.postgres import keys, statements
from muster.coordinator.storage.postgres.connect import Link, is_refusal
from muster.coordinator.storage.postgres.eras import Eras
from muster.coordinator.storage.postgres.statements.records import Columns
from muster.coordinator.storage.store import (
    Append,
    JournalRow,
    Lease,
    Outcome,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreRefused,
)

if TYPE_CHECKING:
    from asyncpg import Connection

_SEQS_RESERVED: Final = 2**32
"""Numbers are reserved in the database in blocks of this size, which last for hours, and are given out here.
A departing holder leaves the rest unused: `seq` must only grow, nobody counts by it."""


@dataclass(slots=True, eq=False)
class _Writer:
    """A lease under an epoch, written to from here."""

    lease_id: int
    epoch: int
    next_seq: int = 0
    seqs_end: int = 0
    newest_seq: int | None = None
    """The last number that is durable; None until something is written from here."""
    era: int = 0
    """In which the lease was claimed."""
    in_doubt: bool = False
    """The outcome of an earlier write is unknown, and it may yet be applied: a later one must not overtake
    it. The holder claims the lease again, which decides."""


class Writers:
    """Who has written from here, by lease and epoch: an epoch's holder is one store object."""

    seqs_reserved: Final = _SEQS_RESERVED

    def __init__(self, lease_ids: Mapping[Lease, int], eras: Eras) -> None:
        self._lease_ids = lease_ids
        self._eras = eras
        self._writers: dict[Lease, dict[int, _Writer]] = {lease: {} for lease in lease_ids}

    def __repr__(self) -> str:
        return f"<Writers {sum(map(len, self._writers.values()))}>"

    def claimed(self, lease: Lease, epoch: int, first_seq: int, era: int) -> None:
        """A claim from here, on a connection of this era, has reserved the numbers from `first_seq` on."""
        seqs_end = first_seq + _SEQS_RESERVED
        writer = _Writer(self._lease_ids[lease], epoch, first_seq, seqs_end, era=era)
        self._writers[lease] = {epoch: writer}

    def outlived(self, lease: Lease, epoch: int, era: int) -> bool:
        """Whether the lease was claimed in this epoch in another era than `era`: then the server may not know
        of the claim, and may have given the epoch to another."""
        writer = self._writers.get(lease, {}).get(epoch)
        return writer is not None and writer.era != era

    def next_seq(self, lease: Lease, epoch: int) -> int | None:
        """See `Store.next_seq`; None if it was not written to from here in this epoch or a later one."""
        writers = self._writers.get(lease, {}).items()
        newest_seqs = [each.newest_seq for of, each in writers if of >= epoch and each.newest_seq is not None]
        return max(newest_seqs) + 1 if newest_seqs else None

    async def append(self, link: Link, appends: Sequence[Append]) -> list[Outcome]:
        """Write in one transaction. Call it again only once it has returned. Raises StoreError."""
        era = self._eras.current
        batch = _Batch()
        numbers = [batch.add(self._writer(one, era), one) for one in appends]
        try:
            await self._reserve(link, batch)
        except StoreBusy:
            raise
        except StoreError as error:  # nothing has been written
            raise StoreBusy(str(error)) from error
        written: set[int] = set()
        if batch.writers:
            columns = batch.columns()

            async def write(connection: Connection) -> set[int]:
                if link.era != era:
                    return set()
                return await statements.records.append(connection, columns)

            try:
                written = await link.run("writing", write)
            except (StoreBusy, StoreFull):
                raise
            except StoreError as error:
                if error.__cause__ is not None and is_refusal(error.__cause__):
                    raise StoreRefused(str(error)) from error.__cause__
                for writer in batch.writers:
                    writer.in_doubt = True
                raise
            batch.note_written(written)
        return [Outcome.WRITTEN if number in written else Outcome.FENCED for number in numbers]

    def _writer(self, append: Append, era: int) -> _Writer | None:
        """None if nothing more may be written in this epoch: it can be nobody's in this era, or an earlier
        write went unanswered and may still be applied."""
        lease_id = self._lease_ids.get(append.lease)
        if lease_id is None or append.epoch < 1:  # below 1: never claimed
            return None
        of_lease = self._writers[append.lease]
        writer = of_lease.get(append.epoch)
        if writer is None:
            writer = of_lease[append.epoch] = _Writer(lease_id, append.epoch, era=era)
        return writer if writer.era == era and not writer.in_doubt else None

    async def _reserve(self, link: Link, batch: _Batch) -> None:
        """Reserve numbers for all that is to be written, where those reserved before are used up."""
        for writer in batch.writers:
            if writer.next_seq + batch.size > writer.seqs_end:
                first = await link.run(
                    "reserving numbers",
                    partial(
                        statements.records.reserve_seqs,
                        lease_id=writer.lease_id,
                        epoch=writer.epoch,
                        count=_SEQS_RESERVED,
                    ),
                )
                # None for an old epoch: what gets these numbers will not be written.
                writer.next_seq = first or 0
                writer.seqs_end = writer.next_seq + _SEQS_RESERVED


class _Batch:
    """What goes into one transaction. Several writes of one key are folded into the last."""

    def __init__(self) -> None:
        self.writers: dict[_Writer, int] = {}
        """Numbered from 1, as the statement does."""
        self._last: dict[tuple[int, bytes], bytes | None] = {}
        self._at_ms: dict[int, int] = {}
        self._newest_seqs: dict[int, int] = {}
        self._journal: list[tuple[int, JournalRow]] = []

    @property
    def size(self) -> int:
        """Number of keys that it writes."""
        return len(self._last)

    def add(self, writer: _Writer | None, append: Append) -> int:
        """Add an append. Returns the writer's number; 0 if it is fenced already."""
        if writer is None:
            return 0
        number = self.writers.setdefault(writer, len(self.writers) + 1)
        last = self._last
        for key, value in append.records:
            last.pop((number, key), None)  # reinserted at the end: its last write decides its place
            last[number, key] = value
        self._at_ms[number] = append.at_ms
        self._journal += [(number, row) for row in append.journal]
        return number

    def columns(self) -> Columns:
        """Uses up the numbers: call it only once."""
        columns = Columns(*([] for _ in Columns._fields))
        # The statement numbers upserts by their places in the whole batch, and deletes after them.
        last_upserts: dict[int, int] = {}
        last_deletes: dict[int, int] = {}
        for (number, key), value in self._last.items():
            whole_key = key
            if len(key) > keys.PLAIN_BYTES_MAX or key[:1] == keys.MARK:
                key, value = keys.stored(key, value)
            if value is None:
                last_deletes[number] = len(columns.deletes)
                columns.of_deletes.append(number)
                columns.deletes.append(key)
                columns.deleted_keys.append(whole_key)
                columns.deleted_ms.append(self._at_ms[number])
            else:
                last_upserts[number] = len(columns.upserts)
                columns.of_upserts.append(number)
                columns.upserts.append(key)
                columns.values.append(value)
        columns.rows_told.extend([0] * len(self.writers))
        columns.bytes_told.extend([0] * len(self.writers))
        for number, row in self._journal:
            columns.of_told.append(number)
            columns.numbers_told.append(columns.rows_told[number - 1])
            columns.times_told.append(row.at_ms)
            columns.keys_told.append(row.key)
            columns.values_told.append(row.value)
            columns.rows_told[number - 1] += 1
            columns.bytes_told[number - 1] += row.size_bytes
        for writer, number in self.writers.items():
            if number in last_deletes:
                self._newest_seqs[number] = writer.next_seq + len(columns.upserts) + last_deletes[number]
            elif number in last_upserts:
                self._newest_seqs[number] = writer.next_seq + last_upserts[number]
            columns.lease_ids.append(writer.lease_id)
            columns.epochs.append(writer.epoch)
            columns.first_seqs.append(writer.next_seq)
            writer.next_seq += len(columns.upserts) + len(columns.deletes)
        return columns

    def note_written(self, written: set[int]) -> None:
        """Note that these writers' rows are durable."""
        for writer, number in self.writers.items():
            if number in written and number in self._newest_seqs:
                writer.newest_seq = self._newest_seqs[number]
