"""The rows of leases: their epochs, and the next `seq` of their records."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from muster.coordinator.storage.sqlite.batches import Changes, Lookups
from muster.coordinator.storage.store import Lease, StoreConflict

NO_LEASE: Final = (0, 0, 0)
_LEASES: Final = Lookups("leases", ("kind", "number"), ("number", "lease_id", "epoch", "next_seq"))
_NEXT_SEQS: Final = Changes("leases", "lease_id", "next_seq")

LeaseRow = tuple[int, int, int]
"""A lease's row id, its epoch and the next `seq`."""


class KnownLeases:
    """What a writing connection knows of leases, so that it need not read them in every transaction: what it
    has read or written itself, until another connection writes (sqlite reports that) or a transaction of its
    own fails.

    Use it only in writing transactions, during which nobody else writes.
    """

    def __init__(self) -> None:
        self._rows: dict[Lease, LeaseRow] = {}
        self._version = -1

    def rows_of(self, connection: sqlite3.Connection, wanted: Collection[Lease]) -> Mapping[Lease, LeaseRow]:
        """The rows of all wanted leases that exist, and perhaps of others."""
        (version,) = connection.execute("PRAGMA data_version").fetchone()
        if version != self._version:
            self._rows.clear()
            self._version = version
        missing = [lease for lease in wanted if lease not in self._rows]
        if missing:
            self._rows |= rows_of(connection, missing)
        return self._rows

    def move(self, connection: sqlite3.Connection, next_seqs: Mapping[Lease, int]) -> None:
        """Set the next `seq` of leases that `rows_of` has found."""
        changed: dict[int, int] = {}
        for lease, next_seq in next_seqs.items():
            lease_id, epoch, _ = self._rows[lease]
            self._rows[lease] = lease_id, epoch, next_seq
            changed[lease_id] = next_seq
        _NEXT_SEQS.run(connection, changed)

    def forget(self) -> None:
        """Forget everything: epochs were changed, or a transaction has failed."""
        self._rows.clear()


def rows_of(connection: sqlite3.Connection, wanted: Collection[Lease]) -> dict[Lease, LeaseRow]:
    """The rows of those that exist."""
    found: dict[Lease, LeaseRow] = {}
    for kind in {lease.kind for lease in wanted}:
        keys = [(kind.value, lease.number) for lease in wanted if lease.kind is kind]
        for number, *of_lease in _LEASES.run(connection, keys):
            lease_id, epoch, next_seq = of_lease
            found[Lease(kind, number)] = lease_id, epoch, next_seq
    return found


def raise_epochs(
    connection: sqlite3.Connection, known: KnownLeases, leases: Sequence[Lease]
) -> dict[Lease, int]:
    """Raise the epochs. Returns the new ones."""
    known.forget()
    lease_ids = {lease: lease_id_of(connection, lease) for lease in leases}
    connection.executemany(
        "UPDATE leases SET epoch = epoch + 1 WHERE lease_id = ?", [(row,) for row in lease_ids.values()]
    )
    return {
        lease: connection.execute("SELECT epoch FROM leases WHERE lease_id = ?", (lease_id,)).fetchone()[0]
        for lease, lease_id in lease_ids.items()
    }


def lease_id_of(connection: sqlite3.Connection, lease: Lease) -> int:
    row = connection.execute(
        "SELECT lease_id FROM leases WHERE kind = ? AND number = ?", (lease.kind.value, lease.number)
    ).fetchone()
    if row is None:
        raise StoreConflict(f"there is no lease {lease.kind} {lease.number}")
    lease_id: int = row[0]
    return lease_id


def owned_in(connection: sqlite3.Connection, lease_id: int, epoch: int) -> bool:
    (present,) = connection.execute("SELECT epoch FROM leases WHERE lease_id = ?", (lease_id,)).fetchone()
    return bool(present == epoch >= 1)  # below 1: never claimed
