"""What the store does to its sqlite tables, each as a plain function inside the caller's transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final
from uuid import UUID

from muster.coordinator.storage.assignments import (
    assignments_of,
    assignments_text,
    numbered,
    replicas_of,
    replicas_text,
)
from muster.coordinator.storage.sqlite_batches import Deletes, Inserts, Lookups
from muster.coordinator.storage.sqlite_schema import checksum
from muster.coordinator.storage.store import (
    Append,
    BrokerConfigsRow,
    JournalBounds,
    JournalRow,
    Lease,
    Outcome,
    RecordBounds,
    Replicas,
    StoreConflict,
    StoredJournalRow,
    StoredRecord,
    TopicRow,
    whole_rows,
)

# --- records --------------------------------------------------------------------------------------


def append(connection: sqlite3.Connection, appends: Sequence[Append]) -> list[Outcome]:
    """Several writes of one key are folded into the last, which takes the last `seq`."""
    leases = _leases(connection, {one.lease for one in appends})
    next_seqs: dict[Lease, int] = {}  # of the leases written to
    last: dict[tuple[int, bytes], tuple[int, bytes | None, int]] = {}
    journals: dict[int, list[JournalRow]] = {}
    outcomes = []
    for one in appends:
        lease_id, epoch, seq = leases.get(one.lease, _NO_LEASE)
        if epoch != one.epoch or one.epoch < 1:  # below 1: never claimed
            outcomes.append(Outcome.FENCED)
            continue
        seq = next_seqs.get(one.lease, seq)
        for key, value in one.records:
            last[lease_id, key] = (seq, value, one.at_ms)
            seq += 1
        next_seqs[one.lease] = seq
        if one.journal:
            journals.setdefault(lease_id, []).extend(one.journal)
        outcomes.append(Outcome.WRITTEN)
    if last:
        _UPSERTS.run(
            connection,
            [
                (lease_id, key, seq, value, checksum(key, value))
                for (lease_id, key), (seq, value, _) in last.items()
                if value is not None
            ],
        )
        tombstones = [
            (lease_id, seq, key, at_ms)
            for (lease_id, key), (seq, value, at_ms) in last.items()
            if value is None
        ]
        _DELETES.run(connection, [(lease_id, key) for lease_id, _, key, _ in tombstones])
        _TOMBSTONES.run(connection, tombstones)
        _NEXT_SEQS.run(
            connection,
            [(lease.kind.value, lease.number, next_seq) for lease, next_seq in next_seqs.items()],
        )
    if journals:
        _append_journals(connection, journals)
    return outcomes


_NO_LEASE: Final = (0, 0, 0)
_LEASES: Final = Lookups("leases", ("kind", "number"), ("number", "lease_id", "epoch", "next_seq"))
_UPSERTS: Final = Inserts(
    "records",
    ("lease_id", "key", "seq", "value", "checksum"),
    "ON CONFLICT (lease_id, key) DO UPDATE "
    "SET seq = excluded.seq, value = excluded.value, checksum = excluded.checksum",
)
_DELETES: Final = Deletes("records", ("lease_id", "key"))
_TOMBSTONES: Final = Inserts("tombstones", ("lease_id", "seq", "key", "deleted_ms"))
_NEXT_SEQS: Final = Inserts(  # of rows that are there: otherwise a statement updates many of them alike
    "leases",
    ("kind", "number", "next_seq"),
    "ON CONFLICT (kind, number) DO UPDATE SET next_seq = excluded.next_seq",
)


def _leases(connection: sqlite3.Connection, wanted: Collection[Lease]) -> dict[Lease, tuple[int, int, int]]:
    """The row, the epoch and the next `seq` of each."""
    found = {}
    for kind in {lease.kind for lease in wanted}:
        keys = [(kind.value, lease.number) for lease in wanted if lease.kind is kind]
        for number, *of_lease in _LEASES.run(connection, keys):
            lease_id, epoch, next_seq = of_lease
            found[Lease(kind, number)] = lease_id, epoch, next_seq
    return found


def load(connection: sqlite3.Connection, lease: Lease) -> list[tuple[int, bytes, bytes]]:
    """sqlite3.DatabaseError, as for a page that sqlite cannot read, when a record is not what was written."""
    rows = connection.execute(
        "SELECT seq, key, value, checksum FROM records WHERE lease_id = ? ORDER BY seq",
        (_lease_id(connection, lease),),
    )
    found = []
    for seq, key, value, written in rows:
        if checksum(key, value) != written:
            raise sqlite3.DatabaseError(f"record {key!r} of {lease.kind} lease {lease.number} has changed")
        found.append((seq, key, value))
    return found


def read_records(
    connection: sqlite3.Connection, lease: Lease, seq: int, rows_max: int, bytes_max: int
) -> list[StoredRecord]:
    """sqlite3.DatabaseError, as for a page that sqlite cannot read, when a record is not what was written."""
    lease_id = _lease_id(connection, lease)
    found = connection.execute(
        "SELECT seq, key, value, -1, checksum FROM records WHERE lease_id = ?1 AND seq >= ?2 "
        "UNION ALL SELECT seq, key, NULL, deleted_ms, 0 FROM tombstones WHERE lease_id = ?1 AND seq >= ?2 "
        "ORDER BY seq LIMIT ?3",
        (lease_id, seq, rows_max),
    )

    def checked() -> Iterator[StoredRecord]:
        for *columns, written in found:
            record = StoredRecord(*columns)
            if record.value is not None and checksum(record.key, record.value) != written:
                raise sqlite3.DatabaseError(
                    f"record {record.key!r} of {lease.kind} lease {lease.number} has changed"
                )
            yield record

    return whole_rows(checked(), bytes_max)


def next_seq(connection: sqlite3.Connection, lease: Lease) -> int:
    (found,) = connection.execute(
        "SELECT next_seq FROM leases WHERE lease_id = ?", (_lease_id(connection, lease),)
    ).fetchone()
    return int(found)


def record_bounds(connection: sqlite3.Connection, lease: Lease) -> RecordBounds:
    (size_bytes,) = connection.execute(
        "SELECT (SELECT COALESCE(SUM(LENGTH(key) + LENGTH(value)), 0) FROM records WHERE lease_id = ?1) + "
        "(SELECT COALESCE(SUM(LENGTH(key)), 0) FROM tombstones WHERE lease_id = ?1)",
        (_lease_id(connection, lease),),
    ).fetchone()
    return RecordBounds(next_seq(connection, lease), size_bytes)


def remove_tombstones(
    connection: sqlite3.Connection, lease: Lease, epoch: int, before_ms: int, count_max: int
) -> int:
    lease_id = _lease_id(connection, lease)
    if not _owned_in(connection, lease_id, epoch):
        return 0
    return connection.execute(
        "DELETE FROM tombstones WHERE lease_id = ?1 "
        "AND seq < (SELECT next_seq - 1 FROM leases WHERE lease_id = ?1) AND (deleted_ms < ?2 OR "
        "seq <= (SELECT seq FROM tombstones WHERE lease_id = ?1 ORDER BY seq DESC LIMIT 1 OFFSET ?3))",
        (lease_id, before_ms, count_max),
    ).rowcount


# --- the journal ----------------------------------------------------------------------------------


_JOURNAL_ROWS: Final = Inserts(
    "journal_rows", ("lease_id", "row_offset", "at_ms", "key", "value", "checksum")
)
_JOURNALS: Final = Inserts(
    "journals",
    ("lease_id", "start_offset", "next_offset", "size_bytes"),
    "ON CONFLICT (lease_id) DO UPDATE "
    "SET next_offset = excluded.next_offset, size_bytes = excluded.size_bytes",
)
_BOUNDS: Final = Lookups("journals", ("lease_id",), ("lease_id", "start_offset", "next_offset", "size_bytes"))


def _append_journals(connection: sqlite3.Connection, journals: Mapping[int, Sequence[JournalRow]]) -> None:
    bounds = dict.fromkeys(journals, (0, 0, 0))
    for lease_id, *found in _BOUNDS.run(connection, [(lease_id,) for lease_id in journals]):
        start, end, size_bytes = found
        bounds[lease_id] = start, end, size_bytes
    _JOURNAL_ROWS.run(
        connection,
        [
            (lease_id, offset, row.at_ms, row.key, row.value, checksum(row.key, row.value))
            for lease_id, told in journals.items()
            for offset, row in enumerate(told, bounds[lease_id][1])
        ],
    )
    grown = []
    for lease_id, told in journals.items():
        start, end, size_bytes = bounds[lease_id]
        added = sum(row.size_bytes for row in told)
        grown.append((lease_id, start, end + len(told), size_bytes + added))
    _JOURNALS.run(connection, grown)


def _bounds(connection: sqlite3.Connection, lease_id: int) -> JournalBounds:
    row = connection.execute(
        "SELECT start_offset, next_offset, size_bytes FROM journals WHERE lease_id = ?", (lease_id,)
    ).fetchone()
    return JournalBounds(0, 0, 0) if row is None else JournalBounds(*row)


def journal_bounds(connection: sqlite3.Connection, lease: Lease) -> JournalBounds:
    return _bounds(connection, _lease_id(connection, lease))


def read_journal(
    connection: sqlite3.Connection, lease: Lease, offset: int, rows_max: int, bytes_max: int
) -> list[StoredJournalRow]:
    """sqlite3.DatabaseError, as for a page that sqlite cannot read, when a row is not what was written."""
    found = connection.execute(
        "SELECT row_offset, at_ms, key, value, checksum FROM journal_rows "
        "WHERE lease_id = ? AND row_offset >= ? ORDER BY row_offset LIMIT ?",
        (_lease_id(connection, lease), offset, rows_max),
    )

    def checked() -> Iterator[StoredJournalRow]:
        for *columns, written in found:
            row = StoredJournalRow(*columns)
            if checksum(row.key, row.value) != written:
                raise sqlite3.DatabaseError(
                    f"journal row {row.offset} of {lease.kind} lease {lease.number} has changed"
                )
            yield row

    return whole_rows(checked(), bytes_max)


def journal_offset_at(connection: sqlite3.Connection, lease: Lease, at_ms: int) -> int | None:
    row = connection.execute(
        "SELECT row_offset FROM journal_rows WHERE lease_id = ? AND at_ms >= ? ORDER BY row_offset LIMIT 1",
        (_lease_id(connection, lease), at_ms),
    ).fetchone()
    return None if row is None else row[0]


def journal_newest(connection: sqlite3.Connection, lease: Lease) -> int | None:
    row = connection.execute(
        "SELECT row_offset FROM journal_rows WHERE lease_id = ? ORDER BY at_ms DESC, row_offset LIMIT 1",
        (_lease_id(connection, lease),),
    ).fetchone()
    return None if row is None else row[0]


def trim_journal(connection: sqlite3.Connection, lease: Lease, epoch: int, before_offset: int) -> bool:
    lease_id = _lease_id(connection, lease)
    if not _owned_in(connection, lease_id, epoch):
        return False
    bounds = _bounds(connection, lease_id)
    start = min(before_offset, bounds.end)
    if start > bounds.start:
        below = "FROM journal_rows WHERE lease_id = ? AND row_offset < ?"
        (removed_bytes,) = connection.execute(
            f"SELECT SUM(LENGTH(value) + COALESCE(LENGTH(key), 0)) {below}", (lease_id, start)
        ).fetchone()
        connection.execute(f"DELETE {below}", (lease_id, start))
        connection.execute(
            "UPDATE journals SET start_offset = ?, size_bytes = size_bytes - ? WHERE lease_id = ?",
            (start, removed_bytes, lease_id),
        )
    return True


# --- leases ---------------------------------------------------------------------------------------


def raise_epochs(connection: sqlite3.Connection, leases: Sequence[Lease]) -> dict[Lease, int]:
    """The new epochs."""
    lease_ids = {lease: _lease_id(connection, lease) for lease in leases}
    connection.executemany(
        "UPDATE leases SET epoch = epoch + 1 WHERE lease_id = ?", [(row,) for row in lease_ids.values()]
    )
    return {
        lease: connection.execute("SELECT epoch FROM leases WHERE lease_id = ?", (lease_id,)).fetchone()[0]
        for lease, lease_id in lease_ids.items()
    }


def _lease_id(connection: sqlite3.Connection, lease: Lease) -> int:
    row = connection.execute(
        "SELECT lease_id FROM leases WHERE kind = ? AND number = ?", (lease.kind.value, lease.number)
    ).fetchone()
    if row is None:
        raise StoreConflict(f"there is no lease {lease.kind} {lease.number}")
    lease_id: int = row[0]
    return lease_id


def _owned_in(connection: sqlite3.Connection, lease_id: int, epoch: int) -> bool:
    (present,) = connection.execute("SELECT epoch FROM leases WHERE lease_id = ?", (lease_id,)).fetchone()
    return bool(present == epoch >= 1)  # below 1: never claimed


# --- topics ---------------------------------------------------------------------------------------


def create_topic(connection: sqlite3.Connection, topic: TopicRow) -> None:
    if _topic(connection, topic.topic_id) is not None:
        raise StoreConflict(f"creating topic {topic.name!r}: the id {topic.topic_id} is taken")
    _check_name_free(connection, topic)
    connection.execute(
        "INSERT INTO topics (name, partitions, configs, created_ms, assignments, topic_id) "
        "VALUES (?, ?, ?, ?, ?, ?)",
        _topic_columns(topic),
    )
    _move_revision(connection)


def update_topic(
    connection: sqlite3.Connection, topic: TopicRow, expected: TopicRow | None, epochs: Mapping[Lease, int]
) -> None:
    stored = _topic(connection, topic.topic_id)
    if stored is None:
        raise StoreConflict(f"updating topic {topic.name!r}: there is no topic with id {topic.topic_id}")
    if expected is not None and stored != expected:
        raise StoreConflict(f"updating topic {topic.name!r}: it was changed in the meantime")
    found = _leases(connection, epochs.keys())
    if any(found.get(lease, _NO_LEASE)[1] != epoch for lease, epoch in epochs.items()):
        raise StoreConflict(f"updating topic {topic.name!r}: a lease has moved in the meantime")
    _check_name_free(connection, topic)
    connection.execute(
        "UPDATE topics SET name = ?, partitions = ?, configs = ?, created_ms = ?, assignments = ? "
        "WHERE topic_id = ?",
        _topic_columns(topic),
    )
    _move_revision(connection)


def delete_topic(connection: sqlite3.Connection, topic_id: UUID) -> bool:
    if not connection.execute("DELETE FROM topics WHERE topic_id = ?", (topic_id.bytes,)).rowcount:
        return False
    _move_revision(connection)
    return True


def topics(connection: sqlite3.Connection) -> list[TopicRow]:
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
    configs = _dump(topic.configs)
    return topic.name, topic.partitions, configs, topic.created_ms, assignments, topic.topic_id.bytes


def _dump(configs: Mapping[str, str]) -> str:
    return json.dumps(dict(configs), sort_keys=True)


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
        _move_revision(connection)


# --- broker configs -------------------------------------------------------------------------------


def broker_configs(connection: sqlite3.Connection) -> list[BrokerConfigsRow]:
    rows = connection.execute("SELECT broker, configs FROM broker_configs ORDER BY broker")
    return [BrokerConfigsRow(broker, json.loads(configs)) for broker, configs in rows]


def update_broker_configs(
    connection: sqlite3.Connection, row: BrokerConfigsRow, expected: Mapping[str, str]
) -> None:
    found = connection.execute(
        "SELECT configs FROM broker_configs WHERE broker = ?", (row.broker,)
    ).fetchone()
    if (json.loads(found[0]) if found else {}) != expected:
        raise StoreConflict(f"updating configs of broker {row.broker!r}: changed in the meantime")
    connection.execute("DELETE FROM broker_configs WHERE broker = ?", (row.broker,))
    if row.configs:
        connection.execute(
            "INSERT INTO broker_configs (broker, configs) VALUES (?, ?)", (row.broker, _dump(row.configs))
        )
    _move_revision(connection)


# --- the rest -------------------------------------------------------------------------------------


def revision(connection: sqlite3.Connection) -> int:
    (number,) = connection.execute("SELECT revision FROM store").fetchone()
    return int(number)


def _move_revision(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE store SET revision = revision + 1")


def allocate_producer_ids(connection: sqlite3.Connection, count: int) -> int:
    (first,) = connection.execute("SELECT next_producer_id FROM store").fetchone()
    connection.execute("UPDATE store SET next_producer_id = ?", (first + count,))
    return int(first)
