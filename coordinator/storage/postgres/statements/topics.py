"""Statements about topics and replica lists."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from muster.coordinator.storage.postgres.statements.clauses import ATTEMPTS_MAX, moving
from muster.coordinator.storage.store import Replicas, StoreConflict, TopicRow
from muster.coordinator.storage.texts import (
    assignments_of,
    assignments_text,
    configs_text,
    numbered,
    replicas_of,
    replicas_text,
)

if TYPE_CHECKING:
    from asyncpg import Connection


async def create(connection: Connection, topic: TopicRow) -> int | None:
    revision: int | None = await connection.fetchval(
        "WITH made AS ("
        "INSERT INTO muster.topics (topic_id, name, partitions, configs, created_ms, assignments) "
        "VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING RETURNING topic_id), "
        f"{moving('made')} SELECT revision FROM moved",
        *_topic_columns(topic),
    )
    if revision is None:
        await _check_name_free(connection, topic)
        raise StoreConflict(f"creating topic {topic.name!r}: the id {topic.topic_id} is taken")
    return revision


# Rows of `leases` are locked, in order, against claims: whoever claims one after this sees the change.
_UPDATE_TOPIC: Final = f"""
WITH fence AS MATERIALIZED (
    SELECT lease_id FROM muster.leases JOIN unnest($13::integer[], $14::bigint[]) AS seen (lease_id, epoch)
        USING (lease_id, epoch)
    ORDER BY lease_id FOR SHARE OF leases
), changed AS (
    UPDATE muster.topics
    SET name = $2, partitions = $3, configs = $4, created_ms = $5, assignments = $6
    WHERE topic_id = $1
        AND (NOT $7::boolean OR (name = $8 AND partitions = $9 AND configs = $10 AND created_ms = $11
            AND assignments = $12))
        AND (SELECT count(*) FROM fence) = cardinality($13::integer[])
    RETURNING topic_id
), {moving("changed")}
SELECT revision FROM moved
"""


async def update(
    connection: Connection, topic: TopicRow, expected: TopicRow | None, epochs: Mapping[int, int]
) -> int | None:
    """`epochs` by lease id."""
    try:
        revision: int | None = await connection.fetchval(
            _UPDATE_TOPIC,
            *_topic_columns(topic),
            expected is not None,
            *_topic_columns(expected or topic)[1:],
            list(epochs.keys()),
            list(epochs.values()),
        )
    except Exception as error:
        if getattr(error, "sqlstate", None) == "23505":
            await _check_name_free(connection, topic)
            raise StoreConflict(f"updating topic {topic.name!r}: the name was taken for a moment") from error
        raise
    if revision is None:
        if not await connection.fetchval(
            "SELECT count(*) FROM muster.topics WHERE topic_id = $1", topic.topic_id
        ):
            raise StoreConflict(f"updating topic {topic.name!r}: there is no topic with id {topic.topic_id}")
        raise StoreConflict(f"updating topic {topic.name!r}: it or a lease was changed in the meantime")
    return revision


async def delete(connection: Connection, topic_id: UUID) -> int | None:
    """None if there was no such topic."""
    return await connection.fetchval(  # type: ignore[no-any-return]
        "WITH gone AS (DELETE FROM muster.topics WHERE topic_id = $1 RETURNING topic_id), "
        f"{moving('gone')} SELECT revision FROM moved",
        topic_id,
    )


async def read(connection: Connection) -> list[TopicRow]:
    # By name as Python orders strings, whatever the database's collation.
    rows = await connection.fetch(
        "SELECT topic_id, name, partitions, configs, created_ms, assignments FROM muster.topics"
    )
    found = [
        TopicRow(
            UUID(int=topic_id.int),
            name,
            partitions,
            json.loads(configs),
            created_ms,
            assignments_of(assignments),
        )
        for topic_id, name, partitions, configs, created_ms, assignments in rows
    ]
    return sorted(found, key=lambda topic: topic.name)


async def _check_name_free(connection: Connection, topic: TopicRow) -> None:
    taken = await connection.fetchval(
        "SELECT topic_id FROM muster.topics WHERE name = $1 AND topic_id <> $2", topic.name, topic.topic_id
    )
    if taken is not None:
        raise StoreConflict(f"the topic name {topic.name!r} is taken by {taken}")


def _topic_columns(topic: TopicRow) -> tuple[Any, ...]:
    assignments = assignments_text(topic.assignments)
    return (
        topic.topic_id,
        topic.name,
        topic.partitions,
        configs_text(topic.configs),
        topic.created_ms,
        assignments,
    )


# --- replica lists --------------------------------------------------------------------------------


async def replica_lists(connection: Connection) -> dict[Replicas, int]:
    rows = await connection.fetch("SELECT replicas, number FROM muster.replica_lists")
    return {replicas_of(replicas): number for replicas, number in rows}


async def add_replica_lists(connection: Connection, lists: Collection[Replicas], leases: int) -> int | None:
    """Returns the new revision; None if all of them had numbers. Raises StoreConflict."""
    for _ in range(ATTEMPTS_MAX):
        new = numbered(await replica_lists(connection), lists, leases)
        if not new:
            return None
        revision: int | None = await connection.fetchval(
            "WITH made AS (INSERT INTO muster.replica_lists (number, replicas) "
            "SELECT number, replicas FROM unnest($1::integer[], $2::text[]) AS new (number, replicas) "
            "WHERE NOT EXISTS (SELECT 1 FROM muster.replica_lists WHERE number >= $3) "
            "ON CONFLICT DO NOTHING RETURNING number), "
            f"{moving('made')} SELECT revision FROM moved",
            list(new.values()),
            list(map(replicas_text, new)),
            min(new.values()),
        )
        if revision is not None and new.keys() <= (await replica_lists(connection)).keys():
            return revision
        # Another broker was quicker with one of the numbers.
    raise StoreConflict("numbering replica lists: other brokers keep doing so at the same time")
