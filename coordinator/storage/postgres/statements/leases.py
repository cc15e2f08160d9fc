"""Statements about leases: their epochs, and who holds them until when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from muster.coordinator.storage.postgres.statements.clauses import NOW, moving
from muster.coordinator.storage.store import Grant

if TYPE_CHECKING:
    from asyncpg import Connection


# The lock on `tenancies` decides among claimers. The lock on `leases` does not wait for writers: leases being
# written to under an earlier epoch are skipped, or a stalled broker would stop all others.
_CLAIM: Final = f"""
WITH clock AS MATERIALIZED ({NOW}),
free AS MATERIALIZED (
    SELECT lease_id FROM muster.tenancies
    WHERE lease_id = ANY($2::integer[])
        AND (node_id IS NULL OR node_id = $3 OR expires_ms <= (SELECT now_ms FROM clock))
        AND ($7::uuid IS NULL OR EXISTS (
            SELECT 1 FROM muster.nodes WHERE nodes.node_id = $3 AND nodes.incarnation = $7
        ))
    ORDER BY lease_id FOR UPDATE SKIP LOCKED
), taken AS MATERIALIZED (
    SELECT lease_id FROM muster.leases WHERE lease_id IN (SELECT lease_id FROM free)
    ORDER BY lease_id FOR UPDATE SKIP LOCKED
), raised AS (
    UPDATE muster.leases
    SET epoch = greatest(leases.epoch, asked.epoch) + 1, next_seq = leases.next_seq + $5::bigint
    FROM taken JOIN unnest($2::integer[], $6::bigint[]) AS asked (lease_id, epoch) USING (lease_id)
    WHERE leases.lease_id = taken.lease_id
    RETURNING leases.lease_id, leases.epoch, leases.next_seq - $5::bigint AS first_seq
), held AS (
    UPDATE muster.tenancies
    SET node_id = $3, epoch = raised.epoch, expires_ms = clock.now_ms + $4::bigint, announced = false
    FROM raised, clock WHERE tenancies.lease_id = raised.lease_id
    RETURNING tenancies.lease_id
), {moving("held")}
SELECT lease_id, epoch, first_seq, (SELECT revision FROM moved) FROM raised
"""


class Claimed(NamedTuple):
    lease_id: int
    epoch: int
    first_seq: int


async def claim(
    connection: Connection,
    now_ms: int | None,
    lease_ids: list[int],
    node_id: int,
    term_ms: int,
    seqs: int,
    epochs: Mapping[int, int] = MappingProxyType({}),
    incarnation: UUID | None = None,
) -> tuple[list[Claimed], int | None]:
    """The leases claimed, each with the first of `seqs` numbers for its records. New epochs are higher than
    those in `epochs`, by lease id: the server may have lost the last ones. Nothing is claimed if
    `incarnation` is given and is not the registered one."""
    lease_ids = list(dict.fromkeys(lease_ids))
    known = [epochs.get(lease_id, 0) for lease_id in lease_ids]
    rows = await connection.fetch(_CLAIM, now_ms, lease_ids, node_id, term_ms, seqs, known, incarnation)
    return [Claimed(*row[:3]) for row in rows], rows[0][3] if rows else None


_GIVEN: Final = """given AS MATERIALIZED (
    SELECT lease_id FROM muster.tenancies
    JOIN unnest({0}::integer[], {1}::integer[], {2}::bigint[]) AS mine (lease_id, node_id, epoch)
        USING (lease_id, node_id, epoch)
    ORDER BY lease_id FOR UPDATE OF tenancies
)"""
"""The grants (arrays of lease, node, epoch) that are not lost, locked in order."""

_RENEW: Final = f"""
WITH clock AS MATERIALIZED ({NOW}), {_GIVEN.format("$2", "$3", "$4")}
UPDATE muster.tenancies SET expires_ms = clock.now_ms + $5::bigint
FROM given, clock WHERE tenancies.lease_id = given.lease_id
RETURNING tenancies.lease_id, tenancies.epoch
"""
_ANNOUNCE: Final = f"""
WITH {_GIVEN.format("$1", "$2", "$3")}, changed AS (
    UPDATE muster.tenancies SET announced = true
    FROM given WHERE tenancies.lease_id = given.lease_id AND NOT tenancies.announced
    RETURNING tenancies.lease_id
), {moving("changed")}
SELECT revision FROM moved
"""
_RELEASE: Final = f"""
WITH {_GIVEN.format("$1", "$2", "$3")}, changed AS (
    UPDATE muster.tenancies SET node_id = NULL, announced = false
    FROM given WHERE tenancies.lease_id = given.lease_id
    RETURNING tenancies.lease_id
), {moving("changed")}
SELECT revision FROM moved
"""


def _columns(lease_ids: list[int], grants: Sequence[Grant]) -> tuple[list[int], list[int], list[int]]:
    return lease_ids, [grant.node_id for grant in grants], [grant.epoch for grant in grants]


async def renew(
    connection: Connection, now_ms: int | None, lease_ids: list[int], grants: Sequence[Grant], term_ms: int
) -> set[tuple[int, int]]:
    """The renewed leases, as lease id and epoch."""
    rows = await connection.fetch(_RENEW, now_ms, *_columns(lease_ids, grants), term_ms)
    return {(row[0], row[1]) for row in rows}


async def announce(connection: Connection, lease_ids: list[int], grants: Sequence[Grant]) -> int | None:
    return await connection.fetchval(_ANNOUNCE, *_columns(lease_ids, grants))  # type: ignore[no-any-return]


async def release(connection: Connection, lease_ids: list[int], grants: Sequence[Grant]) -> int | None:
    return await connection.fetchval(_RELEASE, *_columns(lease_ids, grants))  # type: ignore[no-any-return]


class Held(NamedTuple):
    lease_id: int
    node_id: int
    epoch: int
    remaining_ms: int
    announced: bool


async def holders(connection: Connection, now_ms: int | None, lease_ids: list[int]) -> list[Held]:
    rows = await connection.fetch(
        f"WITH clock AS ({NOW}) SELECT lease_id, node_id, epoch, expires_ms - now_ms, announced "
        "FROM muster.tenancies, clock "
        "WHERE lease_id = ANY($2::integer[]) AND node_id IS NOT NULL AND expires_ms > now_ms "
        "ORDER BY lease_id",
        now_ms,
        lease_ids,
    )
    return [Held(*row) for row in rows]
