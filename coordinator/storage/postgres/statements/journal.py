"""Statements about leases' journals. Rows are appended with records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from muster.coordinator.storage.store import JournalBounds, StoredJournalRow

if TYPE_CHECKING:
    from asyncpg import Connection


_SIZE: Final = "octet_length(value) + COALESCE(octet_length(key), 0)"
"""Bytes of a row."""


async def bounds(connection: Connection, lease_id: int) -> JournalBounds:
    row = await connection.fetchrow(
        "SELECT start_offset, next_offset, size_bytes FROM muster.journals WHERE lease_id = $1", lease_id
    )
    return JournalBounds(*row)


async def read(
    connection: Connection, lease_id: int, offset: int, rows_max: int, bytes_max: int
) -> list[StoredJournalRow]:
    rows = await connection.fetch(
        "SELECT row_offset, at_ms, key, value FROM ("
        "    SELECT row_offset, at_ms, key, value, row_number() OVER (ORDER BY row_offset) AS place,"
        f"        sum({_SIZE}) OVER (ORDER BY row_offset) AS size_bytes"
        "    FROM muster.journal_rows WHERE lease_id = $1 AND row_offset >= $2 ORDER BY row_offset LIMIT $3"
        ") AS counted WHERE place = 1 OR size_bytes <= $4 ORDER BY row_offset",
        lease_id,
        offset,
        rows_max,
        bytes_max,
    )
    return [StoredJournalRow(*row) for row in rows]


async def offset_at(connection: Connection, lease_id: int, at_ms: int) -> int | None:
    return await connection.fetchval(  # type: ignore[no-any-return]
        "SELECT row_offset FROM muster.journal_rows WHERE lease_id = $1 AND at_ms >= $2 "
        "ORDER BY row_offset LIMIT 1",
        lease_id,
        at_ms,
    )


async def newest(connection: Connection, lease_id: int) -> int | None:
    return await connection.fetchval(  # type: ignore[no-any-return]
        "SELECT row_offset FROM muster.journal_rows WHERE lease_id = $1 "
        "ORDER BY at_ms DESC, row_offset LIMIT 1",
        lease_id,
    )


_TRIM: Final = f"""
WITH fence AS MATERIALIZED (
    SELECT lease_id FROM muster.leases WHERE lease_id = $1 AND epoch = $2 AND epoch > 0 FOR SHARE
), gone AS (
    DELETE FROM muster.journal_rows USING fence
    WHERE journal_rows.lease_id = fence.lease_id AND row_offset < $3
    RETURNING {_SIZE} AS size_bytes
), moved AS (
    UPDATE muster.journals
    SET start_offset = GREATEST(start_offset, LEAST($3, next_offset)),
        size_bytes = journals.size_bytes - (SELECT COALESCE(sum(size_bytes), 0) FROM gone)
    FROM fence WHERE journals.lease_id = fence.lease_id
)
SELECT count(*) FROM fence
"""


async def trim(connection: Connection, lease_id: int, epoch: int, before_offset: int) -> bool:
    return bool(await connection.fetchval(_TRIM, lease_id, epoch, before_offset))
