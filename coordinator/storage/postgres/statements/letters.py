"""Statements about letters from broker to broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from muster.coordinator.storage.postgres.statements.clauses import NOW
from muster.coordinator.storage.store import LETTERS_KEPT_BYTES_MAX, LETTERS_KEPT_MAX, Posted

if TYPE_CHECKING:
    from asyncpg import Connection

CHANNEL: Final = "muster_letters"
"""The channel that announces letters, with the id of their node."""
AGE_MAX_MS: Final = 60_000
"""Whoever has not taken a letter by then no longer wants it."""

_NOT_SYNCED: Final = "SELECT set_config('synchronous_commit', 'off', true)"
"""The transaction's commit does not wait until it is synced. The session's others do: a pooler that mixes
sessions could hand it to anyone."""
_AS_USUAL: Final = "SELECT ''"

# `post`, `take` and `sweep` put a WITH before these, whose `sync` is one of the two above. They have to refer
# to it: what nothing refers to is not run.

_PUT: Final = f"""
, clock AS MATERIALIZED ({NOW}),
fence AS MATERIALIZED (
    SELECT lease_id, epoch FROM muster.leases WHERE lease_id = ANY($6::integer[]) ORDER BY lease_id FOR SHARE
), letter AS MATERIALIZED (
    SELECT number, node_id, incarnation, payload, lease_id IS NULL OR EXISTS (
        SELECT 1 FROM fence WHERE fence.lease_id = asked.lease_id AND fence.epoch = asked.epoch
    ) AS in_force
    FROM unnest($3::bigint[], $4::integer[], $5::uuid[], $6::integer[], $7::bigint[], $8::bytea[])
        AS asked (number, node_id, incarnation, lease_id, epoch, payload)
), kept AS (
    SELECT node_id, count(*) AS letters, sum(octet_length(payload)) AS size_bytes
    FROM muster.letters WHERE node_id = ANY($4::integer[]) GROUP BY node_id
), receiver AS MATERIALIZED (
    SELECT nodes.node_id, nodes.incarnation
    FROM clock, muster.nodes LEFT JOIN kept ON kept.node_id = nodes.node_id
    WHERE nodes.node_id = ANY($4::integer[]) AND registered_ms + term_ms > now_ms
        AND COALESCE(letters, 0) < {LETTERS_KEPT_MAX} AND COALESCE(size_bytes, 0) < {LETTERS_KEPT_BYTES_MAX}
), put AS (
    INSERT INTO muster.letters (node_id, sender, number, incarnation, posted_ms, payload)
    SELECT letter.node_id, $2, letter.number, receiver.incarnation, now_ms, letter.payload
    FROM clock, letter JOIN receiver ON receiver.node_id = letter.node_id
        AND (letter.incarnation IS NULL OR letter.incarnation = receiver.incarnation)
    WHERE in_force
    RETURNING node_id, number
)"""
_OUTCOMES: Final = """
SELECT letter.number, in_force, put.number IS NOT NULL
FROM sync, letter LEFT JOIN put ON put.number = letter.number
"""
_PUT_QUIETLY: Final = _PUT + _OUTCOMES
_PUT_AND_NOTIFY: Final = (
    _PUT
    + f""", told AS MATERIALIZED (
    SELECT pg_notify('{CHANNEL}', CAST(node_id AS text)) FROM (SELECT DISTINCT node_id FROM put) AS nodes
)"""
    + _OUTCOMES
    + "WHERE (SELECT count(*) FROM told) >= 0"
)
_TAKE: Final = """
DELETE FROM muster.letters USING sync, unnest($1::integer[], $2::uuid[]) AS mine (node_id, incarnation)
WHERE letters.node_id = mine.node_id AND letters.incarnation = mine.incarnation
RETURNING letters.sender, letters.number, letters.node_id, letters.payload
"""
_SWEEP: Final = f"""
, clock AS MATERIALIZED ({NOW})
DELETE FROM muster.letters USING sync, clock
WHERE posted_ms + {AGE_MAX_MS} <= now_ms OR NOT EXISTS (
    SELECT 1 FROM muster.nodes WHERE nodes.node_id = letters.node_id
        AND nodes.incarnation = letters.incarnation AND registered_ms + term_ms > now_ms
)
"""


class Columns(NamedTuple):
    """Letters, one list per column. The numbers are one sender's, and grow."""

    numbers: list[int]
    node_ids: list[int]
    incarnations: list[UUID | None]
    lease_ids: list[int | None]
    """None: it may be sent in any case; otherwise only if the lease's epoch is the one in `epochs`."""
    epochs: list[int]
    payloads: list[bytes]


def _with_sync(statement: str, quick: bool) -> str:
    return f"WITH sync AS MATERIALIZED ({_NOT_SYNCED if quick else _AS_USUAL}) {statement}"


async def commits_quickly(connection: Connection) -> bool:
    """Whether the database lets a transaction do without waiting until it is synced."""
    import asyncpg

    try:
        await connection.execute(_NOT_SYNCED)
    except asyncpg.PostgresError:  # unknown there: its commits take as long as they take
        if connection.is_closed():
            raise
        return False
    return True


async def post(
    connection: Connection, now_ms: int | None, sender: UUID, columns: Columns, *, notify: bool, quick: bool
) -> dict[int, Posted]:
    """The outcome of each, by number. `quick`: see `commits_quickly`."""
    statement = _with_sync(_PUT_AND_NOTIFY if notify else _PUT_QUIETLY, quick)
    return {
        number: Posted.SENT if put else Posted.UNDELIVERABLE if in_force else Posted.FENCED
        for number, in_force, put in await connection.fetch(statement, now_ms, sender, *columns)
    }


async def take(
    connection: Connection, node_ids: list[int], incarnations: list[UUID], *, quick: bool
) -> list[tuple[int, bytes]]:
    """Remove the letters to these nodes. Returns node ids and payloads, those of one sender in the order
    sent."""
    rows = await connection.fetch(_with_sync(_TAKE, quick), node_ids, incarnations)
    return [(node_id, payload) for _, _, node_id, payload in sorted(rows, key=lambda row: (row[0], row[1]))]


async def sweep(connection: Connection, now_ms: int | None, *, quick: bool) -> None:
    """Delete letters that nobody will take: old ones, and those for an incarnation that is no longer
    registered."""
    await connection.execute(_with_sync(_SWEEP, quick), now_ms)
