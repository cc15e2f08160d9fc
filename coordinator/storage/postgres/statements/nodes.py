"""Statements about brokers' registrations."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Final
from uuid import UUID

from muster.coordinator.storage.postgres.statements.clauses import ATTEMPTS_MAX, NOW, moving
from muster.coordinator.storage.store import NodeIdTaken, NodeRow, StoreConflict

if TYPE_CHECKING:
    from asyncpg import Connection


_NODE_COLUMNS: Final = tuple(field.name for field in fields(NodeRow) if field.name != "age_ms")
_SELECT_NODE: Final = f"SELECT {', '.join(_NODE_COLUMNS)}"
_NODE_ARGUMENTS: Final = ", ".join(f"${number}" for number in range(2, len(_NODE_COLUMNS) + 2))
_REGISTER: Final = f"""
WITH clock AS MATERIALIZED ({NOW}),
before AS MATERIALIZED (
    SELECT {", ".join(_NODE_COLUMNS)}, registered_ms FROM muster.nodes WHERE node_id = $2
), put AS (
    INSERT INTO muster.nodes ({", ".join(_NODE_COLUMNS)}, registered_ms)
    VALUES ({_NODE_ARGUMENTS}, (SELECT now_ms FROM clock))
    ON CONFLICT (node_id) DO UPDATE
    SET {", ".join(f"{name} = excluded.{name}" for name in (*_NODE_COLUMNS[1:], "registered_ms"))}
    WHERE nodes.incarnation = excluded.incarnation
        OR nodes.registered_ms + nodes.term_ms <= excluded.registered_ms
    RETURNING {", ".join(_NODE_COLUMNS)}
), news AS (
    SELECT node_id FROM put WHERE NOT EXISTS (
        SELECT 1 FROM before, clock WHERE registered_ms + before.term_ms > now_ms
        AND ({" AND ".join(f"before.{name} IS NOT DISTINCT FROM put.{name}" for name in _NODE_COLUMNS)})
    )
), {moving("news")}
SELECT (SELECT count(*) FROM put), (SELECT revision FROM moved)
"""


async def register(connection: Connection, now_ms: int | None, node: NodeRow) -> int | None:
    """Raises NodeIdTaken."""
    for _ in range(ATTEMPTS_MAX):
        row = await connection.fetchrow(_REGISTER, now_ms, *(getattr(node, name) for name in _NODE_COLUMNS))
        if row[0]:
            return row[1]  # type: ignore[no-any-return]
        for holder, remaining_ms in await _registered(connection, now_ms, node.node_id):
            raise NodeIdTaken(holder, remaining_ms)
        # It has expired or left between the two statements.
    raise StoreConflict(f"registering node {node.node_id}: other brokers keep registering with this id")


async def remove(connection: Connection, node_id: int, incarnation: UUID) -> int | None:
    return await connection.fetchval(  # type: ignore[no-any-return]
        "WITH gone AS (DELETE FROM muster.nodes WHERE node_id = $1 AND incarnation = $2 RETURNING node_id), "
        f"{moving('gone')} SELECT revision FROM moved",
        node_id,
        incarnation,
    )


async def read(connection: Connection, now_ms: int | None) -> list[NodeRow]:
    return [node for node, _ in await _registered(connection, now_ms, None)]


async def _registered(
    connection: Connection, now_ms: int | None, node_id: int | None
) -> list[tuple[NodeRow, int]]:
    """The nodes, each with how long its registration still lasts."""
    rows = await connection.fetch(
        f"WITH clock AS ({NOW}) {_SELECT_NODE}, now_ms - registered_ms AS age_ms "
        "FROM muster.nodes, clock WHERE registered_ms + term_ms > now_ms "
        "AND ($2::integer IS NULL OR node_id = $2) ORDER BY node_id",
        now_ms,
        node_id,
    )
    found = [NodeRow(**{**row, "incarnation": UUID(int=row["incarnation"].int)}) for row in map(dict, rows)]
    return [(node, node.term_ms - node.age_ms) for node in found]
