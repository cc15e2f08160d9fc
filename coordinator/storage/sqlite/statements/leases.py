"""The rows of leases: their epochs, and the next numbers of their records."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence
from typing import Final

from muster.coordinator.storage.sqlite.batches import Lookups
from muster.coordinator.storage.store import Lease, StoreConflict

NO_LEASE: Final = (0, 0, 0)
_LEASES: Final = Lookups("leases", ("kind", "number"), ("number", "lease_id", "epoch", "next_seq"))


def rows_of(connection: sqlite3.Connection, wanted: Collection[Lease]) -> dict[Lease, tuple[int, int, int]]:
    """The row, the epoch and the next `seq` of each."""
    found = {}
    for kind in {lease.kind for lease in wanted}:
        keys = [(kind.value, lease.number) for lease in wanted if lease.kind is kind]
        for number, *of_lease in _LEASES.run(connection, keys):
            lease_id, epoch, next_seq = of_lease
            found[Lease(kind, number)] = lease_id, epoch, next_seq
    return found


def raise_epochs(connection: sqlite3.Connection, leases: Sequence[Lease]) -> dict[Lease, int]:
    """The new epochs."""
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
