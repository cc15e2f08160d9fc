"""What the store says to PostgreSQL, each change as one statement.

A statement is a transaction of its own, so no lock is ever held by a broker that stands still between two of
them. (`append` with deletes and more is the one exception.) Where a statement locks rows and then changes
others, the locking comes first by data: what is changed is joined with what was locked. Under READ COMMITTED
a row that was waited for is looked at anew, in its last version, and only that row: so whatever a change is
decided by must be locked, not merely read.

A change that moves the revision answers the new one, or None.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from muster.coordinator.storage.assignments import (
    assignments_of,
    assignments_text,
    numbered,
    replicas_of,
    replicas_text,
)
from muster.coordinator.storage.store import (
    FIRST_SEQ,
    BrokerConfigsRow,
    Grant,
    JournalBounds,
    NodeIdTaken,
    NodeRow,
    RecordBounds,
    Replicas,
    StoreConflict,
    StoredJournalRow,
    TopicRow,
)

if TYPE_CHECKING:
    from asyncpg import Connection

_NOW: Final = (
    "SELECT COALESCE($1::bigint, CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)) AS now_ms"
)
"""The time by the server's clock, unless the caller has given another as the first argument."""


def _moving(changed: str) -> str:
    """The tail of a WITH that moves the revision when `changed` has rows. It is counted, so that all of it is
    done before the one row everybody wants is locked."""
    return (
        "moved AS (UPDATE muster.revision SET revision = revision + 1 "
        f"WHERE (SELECT count(*) FROM {changed}) > 0 RETURNING revision)"
    )


# --- records --------------------------------------------------------------------------------------

# Rows of `leases` are locked, in order, against claims; `good` are the writers whose epoch is the lease's.
# Without the lock, an append that is still open could become visible after a claim whose holder has loaded.
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
# Nobody but the lease's holder changes its row of `journals`, and the holder one change after the other.
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
    """What several writers append, a list per column. A writer is a lease under an epoch; `of_...` name them
    by their places in `lease_ids`, from 1. No writer has a key twice."""

    lease_ids: list[int]
    epochs: list[int]
    first_seqs: list[int]
    """Each upsert takes its writer's first number and its own place among all upserts."""
    of_upserts: list[int]
    upserts: list[bytes]
    values: list[bytes]
    rows_told: list[int]
    """Of each writer, as `bytes_told` are."""
    bytes_told: list[int]
    of_told: list[int]
    numbers_told: list[int]
    """Counted from 0 for each writer."""
    times_told: list[int]
    keys_told: list[bytes | None]
    values_told: list[bytes]
    of_deletes: list[int]
    deletes: list[bytes]
    """As the keys of rows are, see `keys`."""
    deleted_keys: list[bytes]
    """The same keys as they are."""
    deleted_ms: list[int]
    """Each delete takes its writer's first number, behind all upserts, and its own place among all deletes.
    """


async def append(connection: Connection, columns: Columns) -> set[int]:
    """Write for each writer whose epoch is the lease's present one; which those are."""
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
    # Two statements, since not every database changes a table twice in one.
    async with connection.transaction():
        return [await _write(connection, writers, *change) for change in changes][-1]


async def _write(
    connection: Connection, writers: Sequence[Any], change: str, arguments: Sequence[Any]
) -> set[int]:
    return {row[0] for row in await connection.fetch(change + _WHO, *writers, *arguments)}


async def reserve_seqs(connection: Connection, lease_id: int, epoch: int, count: int) -> int | None:
    """The first of `count` numbers that only this epoch's holder uses; None when the epoch is an old one."""
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
    """The rows with the next keys after `after`, in order of the keys."""
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


async def read_records(
    connection: Connection, lease_id: int, seq: int, rows_max: int, bytes_max: int
) -> list[tuple[int, bytes, bytes | None, int]]:
    """Keys and values as they stand in rows, see `keys`."""
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


async def record_bounds(connection: Connection, lease_id: int) -> RecordBounds:
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


# --- the journal ----------------------------------------------------------------------------------

_SIZE: Final = "octet_length(value) + COALESCE(octet_length(key), 0)"
"""Bytes of a row."""


async def journal_bounds(connection: Connection, lease_id: int) -> JournalBounds:
    row = await connection.fetchrow(
        "SELECT start_offset, next_offset, size_bytes FROM muster.journals WHERE lease_id = $1", lease_id
    )
    return JournalBounds(*row)


async def read_journal(
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


async def journal_offset_at(connection: Connection, lease_id: int, at_ms: int) -> int | None:
    return await connection.fetchval(  # type: ignore[no-any-return]
        "SELECT row_offset FROM muster.journal_rows WHERE lease_id = $1 AND at_ms >= $2 "
        "ORDER BY row_offset LIMIT 1",
        lease_id,
        at_ms,
    )


async def journal_newest(connection: Connection, lease_id: int) -> int | None:
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


async def trim_journal(connection: Connection, lease_id: int, epoch: int, before_offset: int) -> bool:
    return bool(await connection.fetchval(_TRIM, lease_id, epoch, before_offset))


# --- leases ---------------------------------------------------------------------------------------

# Holding `tenancies` decides among those who claim; locking `leases` waits for nobody who writes: what is
# being written to under an earlier epoch is passed over, or a broker that stands still would stop all others.
_CLAIM: Final = f"""
WITH clock AS MATERIALIZED ({_NOW}),
free AS MATERIALIZED (
    SELECT lease_id FROM muster.tenancies
    WHERE lease_id = ANY($2::integer[])
        AND (node_id IS NULL OR node_id = $3 OR expires_ms <= (SELECT now_ms FROM clock))
    ORDER BY lease_id FOR UPDATE SKIP LOCKED
), taken AS MATERIALIZED (
    SELECT lease_id FROM muster.leases WHERE lease_id IN (SELECT lease_id FROM free)
    ORDER BY lease_id FOR UPDATE SKIP LOCKED
), raised AS (
    UPDATE muster.leases SET epoch = leases.epoch + 1, next_seq = leases.next_seq + $5::bigint
    FROM taken WHERE leases.lease_id = taken.lease_id
    RETURNING leases.lease_id, leases.epoch, leases.next_seq - $5::bigint AS first_seq
), held AS (
    UPDATE muster.tenancies
    SET node_id = $3, epoch = raised.epoch, expires_ms = clock.now_ms + $4::bigint, announced = false
    FROM raised, clock WHERE tenancies.lease_id = raised.lease_id
    RETURNING tenancies.lease_id
), {_moving("held")}
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
) -> tuple[list[Claimed], int | None]:
    """The leases got, each with the first of `seqs` numbers for its records."""
    rows = await connection.fetch(_CLAIM, now_ms, lease_ids, node_id, term_ms, seqs)
    return [Claimed(*row[:3]) for row in rows], rows[0][3] if rows else None


_GIVEN: Final = """given AS MATERIALIZED (
    SELECT lease_id FROM muster.tenancies
    JOIN unnest({0}::integer[], {1}::integer[], {2}::bigint[]) AS mine (lease_id, node_id, epoch)
        USING (lease_id, node_id, epoch)
    ORDER BY lease_id FOR UPDATE OF tenancies
)"""
"""Those of the grants (arrays of lease, node, epoch) that were not lost, locked in order."""

_RENEW: Final = f"""
WITH clock AS MATERIALIZED ({_NOW}), {_GIVEN.format("$2", "$3", "$4")}
UPDATE muster.tenancies SET expires_ms = clock.now_ms + $5::bigint
FROM given, clock WHERE tenancies.lease_id = given.lease_id
RETURNING tenancies.lease_id, tenancies.epoch
"""
_ANNOUNCE: Final = f"""
WITH {_GIVEN.format("$1", "$2", "$3")}, changed AS (
    UPDATE muster.tenancies SET announced = true
    FROM given WHERE tenancies.lease_id = given.lease_id AND NOT tenancies.announced
    RETURNING tenancies.lease_id
), {_moving("changed")}
SELECT revision FROM moved
"""
_RELEASE: Final = f"""
WITH {_GIVEN.format("$1", "$2", "$3")}, changed AS (
    UPDATE muster.tenancies SET node_id = NULL, announced = false
    FROM given WHERE tenancies.lease_id = given.lease_id
    RETURNING tenancies.lease_id
), {_moving("changed")}
SELECT revision FROM moved
"""


def _columns(lease_ids: list[int], grants: Sequence[Grant]) -> tuple[list[int], list[int], list[int]]:
    return lease_ids, [grant.node_id for grant in grants], [grant.epoch for grant in grants]


async def renew(
    connection: Connection, now_ms: int | None, lease_ids: list[int], grants: Sequence[Grant], term_ms: int
) -> set[tuple[int, int]]:
    """Which were renewed, as lease and epoch."""
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
        f"WITH clock AS ({_NOW}) SELECT lease_id, node_id, epoch, expires_ms - now_ms, announced "
        "FROM muster.tenancies, clock "
        "WHERE lease_id = ANY($2::integer[]) AND node_id IS NOT NULL AND expires_ms > now_ms "
        "ORDER BY lease_id",
        now_ms,
        lease_ids,
    )
    return [Held(*row) for row in rows]


# --- nodes ----------------------------------------------------------------------------------------

_NODE_COLUMNS: Final = tuple(field.name for field in fields(NodeRow) if field.name != "age_ms")
_SELECT_NODE: Final = f"SELECT {', '.join(_NODE_COLUMNS)}"
_NODE_ARGUMENTS: Final = ", ".join(f"${number}" for number in range(2, len(_NODE_COLUMNS) + 2))
_REGISTER: Final = f"""
WITH clock AS MATERIALIZED ({_NOW}),
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
), {_moving("news")}
SELECT (SELECT count(*) FROM put), (SELECT revision FROM moved)
"""
_ATTEMPTS_MAX: Final = 5


async def register_node(connection: Connection, now_ms: int | None, node: NodeRow) -> int | None:
    """Raises NodeIdTaken."""
    for _ in range(_ATTEMPTS_MAX):
        row = await connection.fetchrow(_REGISTER, now_ms, *(getattr(node, name) for name in _NODE_COLUMNS))
        if row[0]:
            return row[1]  # type: ignore[no-any-return]
        for holder, remaining_ms in await _registered(connection, now_ms, node.node_id):
            raise NodeIdTaken(holder, remaining_ms)
        # It has run out or left between the two statements.
    raise StoreConflict(f"registering node {node.node_id}: others come and go with this id all the time")


async def remove_node(connection: Connection, node_id: int, incarnation: UUID) -> int | None:
    return await connection.fetchval(  # type: ignore[no-any-return]
        "WITH gone AS (DELETE FROM muster.nodes WHERE node_id = $1 AND incarnation = $2 RETURNING node_id), "
        f"{_moving('gone')} SELECT revision FROM moved",
        node_id,
        incarnation,
    )


async def nodes(connection: Connection, now_ms: int | None) -> list[NodeRow]:
    return [node for node, _ in await _registered(connection, now_ms, None)]


async def _registered(
    connection: Connection, now_ms: int | None, node_id: int | None
) -> list[tuple[NodeRow, int]]:
    """With how long each registration lasts."""
    rows = await connection.fetch(
        f"WITH clock AS ({_NOW}) {_SELECT_NODE}, now_ms - registered_ms AS age_ms "
        "FROM muster.nodes, clock WHERE registered_ms + term_ms > now_ms "
        "AND ($2::integer IS NULL OR node_id = $2) ORDER BY node_id",
        now_ms,
        node_id,
    )
    found = [NodeRow(**{**row, "incarnation": UUID(int=row["incarnation"].int)}) for row in map(dict, rows)]
    return [(node, node.term_ms - node.age_ms) for node in found]


# --- topics ---------------------------------------------------------------------------------------


async def create_topic(connection: Connection, topic: TopicRow) -> int | None:
    revision: int | None = await connection.fetchval(
        "WITH made AS ("
        "INSERT INTO muster.topics (topic_id, name, partitions, configs, created_ms, assignments) "
        "VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING RETURNING topic_id), "
        f"{_moving('made')} SELECT revision FROM moved",
        *_topic_columns(topic),
    )
    if revision is None:
        await _check_name_free(connection, topic)
        raise StoreConflict(f"creating topic {topic.name!r}: the id {topic.topic_id} is taken")
    return revision


# Rows of `leases` are locked, in order, against claims: who claims one after this finds the change.
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
), {_moving("changed")}
SELECT revision FROM moved
"""


async def update_topic(
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


async def delete_topic(connection: Connection, topic_id: UUID) -> int | None:
    """None when there was no such topic."""
    return await connection.fetchval(  # type: ignore[no-any-return]
        "WITH gone AS (DELETE FROM muster.topics WHERE topic_id = $1 RETURNING topic_id), "
        f"{_moving('gone')} SELECT revision FROM moved",
        topic_id,
    )


async def topics(connection: Connection) -> list[TopicRow]:
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
    return topic.topic_id, topic.name, topic.partitions, _dump(topic.configs), topic.created_ms, assignments


def _dump(configs: Mapping[str, str]) -> str:
    """Equal configs are equal texts."""
    return json.dumps(dict(configs), sort_keys=True)


# --- replica lists --------------------------------------------------------------------------------


async def replica_lists(connection: Connection) -> dict[Replicas, int]:
    rows = await connection.fetch("SELECT replicas, number FROM muster.replica_lists")
    return {replicas_of(replicas): number for replicas, number in rows}


async def add_replica_lists(connection: Connection, lists: Collection[Replicas], leases: int) -> int | None:
    """The new revision; None when all of them had numbers. Raises StoreConflict."""
    for _ in range(_ATTEMPTS_MAX):
        new = numbered(await replica_lists(connection), lists, leases)
        if not new:
            return None
        revision: int | None = await connection.fetchval(
            "WITH made AS (INSERT INTO muster.replica_lists (number, replicas) "
            "SELECT number, replicas FROM unnest($1::integer[], $2::text[]) AS new (number, replicas) "
            "WHERE NOT EXISTS (SELECT 1 FROM muster.replica_lists WHERE number >= $3) "
            "ON CONFLICT DO NOTHING RETURNING number), "
            f"{_moving('made')} SELECT revision FROM moved",
            list(new.values()),
            list(map(replicas_text, new)),
            min(new.values()),
        )
        if revision is not None and new.keys() <= (await replica_lists(connection)).keys():
            return revision
        # Another broker was quicker with one of the numbers.
    raise StoreConflict("numbering replica lists: others do so all the time")


# --- broker configs -------------------------------------------------------------------------------


async def broker_configs(connection: Connection) -> list[BrokerConfigsRow]:
    rows = await connection.fetch("SELECT broker, configs FROM muster.broker_configs WHERE configs <> '{}'")
    return [BrokerConfigsRow(broker, json.loads(configs)) for broker, configs in sorted(map(tuple, rows))]


async def update_broker_configs(
    connection: Connection, row: BrokerConfigsRow, expected: Mapping[str, str]
) -> int | None:
    arguments = [row.broker, _dump(row.configs), _dump(expected)]
    if not expected:
        change = "INSERT INTO muster.broker_configs (broker, configs) SELECT $1, $2 WHERE $3::text = '{}' "
        change += "ON CONFLICT DO NOTHING"
    elif row.configs:
        change = "UPDATE muster.broker_configs SET configs = $2 WHERE broker = $1 AND configs = $3"
    else:
        change = "DELETE FROM muster.broker_configs WHERE broker = $1 AND configs = $3 AND $2::text = '{}'"
    revision: int | None = await connection.fetchval(
        f"WITH changed AS ({change} RETURNING broker), {_moving('changed')} SELECT revision FROM moved",
        *arguments,
    )
    if revision is None:
        raise StoreConflict(f"updating configs of broker {row.broker!r}: changed in the meantime")
    return revision


# --- the rest -------------------------------------------------------------------------------------


async def revision(connection: Connection) -> int:
    return await connection.fetchval("SELECT revision FROM muster.revision")  # type: ignore[no-any-return]


async def allocate_producer_ids(connection: Connection, count: int) -> int:
    return await connection.fetchval(  # type: ignore[no-any-return]
        "UPDATE muster.store SET next_producer_id = next_producer_id + $1::bigint "
        "RETURNING next_producer_id - $1::bigint",
        count,
    )


class Fixed(NamedTuple):
    """What never changes."""

    cluster_id: UUID
    leases: list[tuple[int, str, int]]
    """Id, kind and number of each."""


async def fixed(connection: Connection) -> Fixed:
    cluster_id = await connection.fetchval("SELECT cluster_id FROM muster.store")
    leases = await connection.fetch("SELECT lease_id, kind, number FROM muster.leases ORDER BY lease_id")
    return Fixed(UUID(int=cluster_id.int), [tuple(row) for row in leases])
