"""Statements about the store as a whole: its revision, values that never change, producer ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

if TYPE_CHECKING:
    from asyncpg import Connection


async def revision(connection: Connection) -> int:
    return await connection.fetchval("SELECT revision FROM muster.revision")  # type: ignore[no-any-return]


async def allocate_producer_ids(connection: Connection, count: int, known_end: int, gap: int) -> int:
    """The first of `count` new ids. The server may have lost allocations, but none from before `known_end`;
    `gap` ids are left out for further ones."""
    return await connection.fetchval(  # type: ignore[no-any-return]
        "UPDATE muster.store "
        "SET next_producer_id = greatest(next_producer_id, $2::bigint) + $3::bigint + $1::bigint "
        "RETURNING next_producer_id - $1::bigint",
        count,
        known_end,
        gap,
    )


class Fixed(NamedTuple):
    """Values that never change."""

    cluster_id: UUID
    leases: list[tuple[int, str, int]]
    """Id, kind and number of each."""


async def fixed(connection: Connection) -> Fixed:
    cluster_id = await connection.fetchval("SELECT cluster_id FROM muster.store")
    leases = await connection.fetch("SELECT lease_id, kind, number FROM muster.leases ORDER BY lease_id")
    return Fixed(UUID(int=cluster_id.int), [tuple(row) for row in leases])
