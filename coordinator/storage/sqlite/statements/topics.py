"""Topics and replica lists."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Mapping
from uuid import UUID

from muster.coordinator.storage.sqlite.statements.leases import NO_LEASE, rows_of
from muster.coordinator.storage.sqlite.statements.meta import move_revision
from muster.coordinator.storage.store import Lease, Replicas, StoreConflict, TopicRow
from muster.coordinator.storage.texts import (
    assignments_of,
    assignments_text,
    configs_text,
    numbered,
    replicas_of,
    replicas_text,
)


def create(connection: sqlite3.Connection, topic: TopicRow) -> None:
    if _topic(connection, topic.topic_id) is not None:
        raise StoreConflict(f"creating topic {topic.name!r}: the id {topic.topic_id} is taken")
    _check_name_free(connection, topic)
    connection.execute(
        "INSERT INTO topics (name, partitions, configs, created_ms, assignments, topic_id) "
        "VALUES (?, ?, ?, ?, ?, ?)",
        _topic_columns(topic),
    )
    move_revision(connection)


def update(
    connection: sqlite3.Connection, topic: TopicRow, expected: TopicRow | None, epochs: Mapping[Lease, int]
) -> None:
    stored = _topic(connection, topic.topic_id)
    if stored is None:
        raise StoreConflict(f"updating topic {topic.name!r}: there is no topic with id {topic.topic_id}")
    if expected is not None and stored != expected:
        raise StoreConflict(f"updating topic {topic.name!r}: it was changed in the meantime")
    found = rows_of(connection, epochs.keys())
    if any(found.get(lease, NO_LEASE)[1] != epoch for lease, epoch in epochs.items()):
        raise StoreConflict(f"updating topic {topic.name!r}: a lease has moved in the meantime")
    _check_name_free(connection, topic)
    connection.execute(
        "UPDATE topics SET name = ?, partitions = ?, configs = ?, created_ms = ?, assignments = ? "
        "WHERE topic_id = ?",
        _topic_columns(topic),
    )
    move_revision(connection)


def delete(connection: sqlite3.Connection, topic_id: UUID) -> bool:
    if not connection.execute("DELETE FROM topics WHERE topic_id = ?", (topic_id.bytes,)).rowcount:
        return False
    move_revision(connection)
    return True


def read(connection: sqlite3.Connection) -> list[TopicRow]:
    return [_topic_row(row) for row in connection.execute(f"{_SELECT_TOPIC} ORDER BY name")]


_SELECT_TOPIC = "SELECT topic_id, name, partitions, configs, created_ms, assignments FROM topics"


def _topic(connection: sqlite3.Connection, topic_id: UUID) -> TopicRow | None:
    row = connection.execute(f"{_SELECT_TOPIC} WHERE topic_id = ?", (topic_id.bytes,)).fetchone()
    return None if row is None else _topic_row(row)


def _topic_row(row: tuple[bytes, str, int, str, int, str]) -> TopicRow:
    topic_id, name, partitions, configs, created_ms, assignments = row
    return TopicRow(
        UUID(bytes=topic_id), name, partitions, json.loads(configs), created_ms, assignments_of(assignments)
    )


def _topic_columns(topic: TopicRow) -> tuple[object, ...]:
    """The id comes last."""
    assignments = assignments_text(topic.assignments)
    configs = configs_text(topic.configs)
    return topic.name, topic.partitions, configs, topic.created_ms, assignments, topic.topic_id.bytes


def _check_name_free(connection: sqlite3.Connection, topic: TopicRow) -> None:
    row = connection.execute("SELECT topic_id FROM topics WHERE name = ?", (topic.name,)).fetchone()
    if row is not None and row[0] != topic.topic_id.bytes:
        raise StoreConflict(f"the topic name {topic.name!r} is taken by {UUID(bytes=row[0])}")


# --- replica lists --------------------------------------------------------------------------------


def replica_lists(connection: sqlite3.Connection) -> dict[Replicas, int]:
    rows = connection.execute("SELECT replicas, number FROM replica_lists")
    return {replicas_of(replicas): number for replicas, number in rows}


def add_replica_lists(connection: sqlite3.Connection, lists: Collection[Replicas], leases: int) -> None:
    new = numbered(replica_lists(connection), lists, leases)
    connection.executemany(
        "INSERT INTO replica_lists (number, replicas) VALUES (?, ?)",
        [(number, replicas_text(replicas)) for replicas, number in new.items()],
    )
    if new:
        move_revision(connection)
