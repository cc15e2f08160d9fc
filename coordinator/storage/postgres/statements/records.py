"""Statements about keyed records and their tombstones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from muster.coordinator.storage.postgres.connect import transaction
from muster.coordinator.storage.store import FIRST_SEQ, RecordBounds

if TYPE_CHECKING:
    from asyncpg import Connection


# Rows of `leases` are locked, in order, against claims; `good` are the writers whose epoch is the lease's.
# Without the lock, an append still in flight could become visible after a claim whose holder has already
# loaded.
_FENCE: Final = """
WITH fence AS MATERIALIZED (
    SELECT lease_id, epoch FROM muster.leases WHERE lease_id = ANY($1::integer[]) ORDER BY lease_id FOR SHARE
), good AS MATERIALIZED (
    SELECT writer, lease_id, first_seq
    FROM unnest($1::integer[], $2::bigint[], $3::bigint[])
        WITH ORDINALITY AS asked (lease_id, epoch, first_seq, writer)
    JOIN fence USING (lease_id, epoch)
)
"""
_UPSERT: Final = (
    _FENCE
    + """, written AS (
    INSERT INTO muster.records (lease_id, key, seq, value)
    SELECT good.lease_id, row.key, good.first_seq + row.place - 1, row.value
    FROM unnest($4::bigint[], $5::bytea[], $6::bytea[]) WITH ORDINALITY AS row (writer, key, value, place)
    JOIN good USING (writer)
    ON CONFLICT (lease_id, key) DO UPDATE SET seq = excluded.seq, value = excluded.value
)
"""
)
# Only the lease's holder changes its row of `journals`, one change at a time.
_UPSERT_AND_TELL: Final = (
    _UPSERT
    + """, allotted AS (
    UPDATE muster.journals
    SET next_offset = journals.next_offset + rows_told, size_bytes = journals.size_bytes + bytes_told
    FROM unnest($7::bigint[], $8::bigint[]) WITH ORDINALITY AS added (rows_told, bytes_told, writer)
    JOIN good USING (writer)
    WHERE journals.lease_id = good.lease_id
    RETURNING journals.lease_id, journals.next_offset - rows_told AS first_offset
), told AS (
    INSERT INTO muster.journal_rows (lease_id, row_offset, at_ms, key, value)
    SELECT good.lease_id, allotted.first_offset + row.number, row.at_ms, row.key, row.value
    FROM unnest($9::bigint[], $10::bigint[], $11::bigint[], $12::bytea[], $13::bytea[])
        AS row (writer, number, at_ms, key, value)
    JOIN good USING (writer)
    JOIN allotted USING (lease_id)
)
"""
)
_DELETE: Final = (
    _FENCE
    + """, deleted AS (
    DELETE FROM muster.records
    USING good, unnest($4::bigint[], $5::bytea[]) AS row (writer, key)
    WHERE good.writer = row.writer AND records.lease_id = good.lease_id AND records.key = row.key
), remembered AS (
    INSERT INTO muster.tombstones (lease_id, seq, key, deleted_ms)
    SELECT good.lease_id, good.first_seq + $8::bigint + row.place - 1, row.key, row.deleted_ms
    FROM unnest($4::bigint[], $6::bytea[], $7::bigint[]) WITH ORDINALITY
        AS row (writer, key, deleted_ms, place)
    JOIN good USING (writer)
)
"""
)
_WHO: Final = "SELECT writer FROM good"


class Columns(NamedTuple):
    """What several writers append, one list per column. A writer is a lease under an epoch; `of_...` refer to
    writers by their places in `lease_ids`, from 1. No writer has a key twice."""

    lease_ids: list[int]
    epochs: list[int]
    first_seqs: list[int]
    """Each upsert's `seq` is its writer's first number plus its own place among all upserts."""
    of_upserts: list[int]
    upserts: list[bytes]
    values: list[bytes]
    rows_told: list[int]
    """For each writer, like `bytes_told`."""
    bytes_told: list[int]
    of_told: list[int]
    numbers_told: list[int]
    """Counted from 0 for each writer."""
    times_told: list[int]
    keys_told: list[bytes | None]
    values_told: list[bytes]
    of_deletes: list[int]
    deletes: list[bytes]
    """As stored in rows, see `keys`."""
    deleted_keys: list[bytes]
    """The same keys in full."""
    deleted_ms: list[int]
    """Each delete's `seq` is its writer's first number, plus the number of all upserts, plus its own place
    among all deletes.
    """


async def append(connection: Connection, columns: Columns) -> set[int]:
    """Write for each writer whose epoch is the lease's current one. Returns those writers."""
    writers, upserts, told, deletes = columns[:3], columns[3:6], columns[6:13], columns[13:]
    changes: list[tuple[str, Sequence[Any]]] = []
    if columns.of_told:
        changes.append((_UPSERT_AND_TELL, upserts + told))
    elif columns.upserts:
        changes.append((_UPSERT, upserts))
    elif not columns.deletes:
        changes.append((_FENCE, ()))
    if columns.deletes:
        changes.append((_DELETE, (*deletes, len(columns.upserts))))
    if len(changes) == 1:
        return await _write(connection, writers, *changes[0])
    # Two statements, since not every database can change a table twice in one.
    async with transaction(connection):
        return [await _write(connection, writers, *change) for change in changes][-1]


async def _write(
    connection: Connection, writers: Sequence[Any], change: str, arguments: Sequence[Any]
) -> set[int]:
    return {row[0] for row in await connection.fetch(change + _WHO, *writers, *arguments)}


async def reserve_seqs(connection: Connection, lease_id: int, epoch: int, count: int) -> int | None:
    """Reserve `count` numbers that only this epoch's holder uses. Returns the first; None if the epoch is
    old."""
    return await connection.fetchval(  # type: ignore[no-any-return]
        "UPDATE muster.leases SET next_seq = next_seq + $3::bigint WHERE lease_id = $1 AND epoch = $2 "
        "RETURNING next_seq - $3::bigint",
        lease_id,
        epoch,
        count,
    )


async def load(
    connection: Connection, lease_id: int, after: bytes | None, rows_max: int
) -> list[tuple[int, bytes, bytes]]:
    """The rows with the next keys after `after`, in key order."""
    rows = await connection.fetch(
        "SELECT seq, key, value FROM muster.records WHERE lease_id = $1 AND ($2::bytea IS NULL OR key > $2) "
        "ORDER BY key LIMIT $3",
        lease_id,
        after,
        rows_max,
    )
    return [tuple(row) for row in rows]


_RECORDS: Final = """(
    SELECT seq, key, value, -1::bigint AS deleted_ms FROM muster.records WHERE lease_id = $1
    UNION ALL
    SELECT seq, key, NULL, deleted_ms FROM muster.tombstones WHERE lease_id = $1
) AS stored"""
_RECORD_SIZE: Final = "octet_length(key) + COALESCE(octet_length(value), 0)"


async def read(
    connection: Connection, lease_id: int, seq: int, rows_max: int, bytes_max: int
) -> list[tuple[int, bytes, bytes | None, int]]:
    """Keys and values as stored in rows, see `keys`."""
    rows = await connection.fetch(
        "SELECT seq, key, value, deleted_ms FROM ("
        "    SELECT *, row_number() OVER (ORDER BY seq) AS place,"
        f"        sum({_RECORD_SIZE}) OVER (ORDER BY seq) AS size_bytes"
        f"    FROM (SELECT * FROM {_RECORDS} WHERE seq >= $2 ORDER BY seq LIMIT $3) AS first"
        ") AS counted WHERE place = 1 OR size_bytes <= $4 ORDER BY seq",
        lease_id,
        seq,
        rows_max,
        bytes_max,
    )
    return [tuple(row) for row in rows]


async def bounds(connection: Connection, lease_id: int) -> RecordBounds:
    row = await connection.fetchrow(
        f"SELECT COALESCE(max(seq) + 1, $2), CAST(COALESCE(sum({_RECORD_SIZE}), 0) AS bigint) "
        f"FROM {_RECORDS}",
        lease_id,
        FIRST_SEQ,
    )
    return RecordBounds(*row)


_REMOVE_TOMBSTONES: Final = f"""
WITH fence AS MATERIALIZED (
    SELECT lease_id FROM muster.leases WHERE lease_id = $1 AND epoch = $2 AND epoch > 0 FOR SHARE
), gone AS (
    DELETE FROM muster.tombstones USING fence
    WHERE tombstones.lease_id = fence.lease_id AND seq < (SELECT max(seq) FROM {_RECORDS})
        AND (deleted_ms < $3 OR seq <= (
            SELECT seq FROM muster.tombstones WHERE lease_id = $1 ORDER BY seq DESC LIMIT 1 OFFSET $4
        ))
    RETURNING 1
)
SELECT count(*) FROM gone
"""


async def remove_tombstones(
    connection: Connection, lease_id: int, epoch: int, before_ms: int, count_max: int
) -> int:
    return int(await connection.fetchval(_REMOVE_TOMBSTONES, lease_id, epoch, before_ms, count_max))
