"""The statements behind partition logs in rows. Each is complete in itself: what belongs together is written
by one statement, never by several in a transaction that a stopped process could hold open.

Tables (`schema`): `logs` has a row per partition with its bounds and a `version` that every change compares
and then raises by one; `segments` a row per segment, with what was derived from the batches below its
`next_offset` while it is the log's last one; `batches` the batches, keyed by segment and base offset. A
segment is a draft (being written by a compaction), live, or dead (its batches are being deleted).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from muster.coordinator.storage.store import Lease
from muster.protocol.control_batch import CONTROL_BATCH_BYTES_MAX

if TYPE_CHECKING:
    import asyncpg

DRAFT: Final = 0
LIVE: Final = 1
DEAD: Final = 2

_SLICE_ROWS_MAX: Final = 1_000
_SLICE_BYTES_MAX: Final = 16 << 20
"""Maximum that one statement deletes."""


class BatchRow(NamedTuple):
    """A row of `batches`. `newest_timestamp` is the segment's up to and including this batch, so it never
    decreases from one batch to the next."""

    segment_id: UUID
    base_offset: int
    next_offset: int
    newest_timestamp: int
    contents: bytes


class SegmentRow(NamedTuple):
    """A row of `segments`, without partition and state. For the log's last segment, the counts and `derived`
    cover the batches below `next_offset`; later ones are counted by whoever opens the log."""

    segment_id: UUID
    generation: int
    base_offset: int
    next_offset: int
    size_bytes: int
    batch_count: int
    first_timestamp: int
    newest_timestamp: int
    written_ms: int
    derived: bytes | None


class LogRow(NamedTuple):
    """A row of `logs`, without its partition. Version 0: there is none yet."""

    version: int
    start_offset: int
    next_offset: int
    cleaned_offset: int
    size_bytes: int


NO_LOG: Final = LogRow(0, 0, 0, 0, 0)


class Change(NamedTuple):
    """What one log wants written, all or nothing: by the holder of `lease` in `epoch`, to a log whose version
    is still `version`."""

    lease: Lease
    epoch: int
    topic_id: UUID
    partition: int
    version: int
    start_offset: int
    next_offset: int
    cleaned_offset: int
    size_bytes: int
    segments: Sequence[SegmentRow] = ()
    """To become live, with these values."""
    dead: Sequence[UUID] = ()
    batches: Sequence[BatchRow] = ()

    def states(self) -> Iterator[tuple[SegmentRow, int]]:
        """The segments' rows with their new states. The rest of a dead one's row no longer matters."""
        for row in self.segments:
            yield row, LIVE
        for segment_id in self.dead:
            yield SegmentRow(segment_id, 0, 0, 0, 0, 0, 0, 0, 0, None), DEAD


class Changed(NamedTuple):
    """The outcome of a change. `epoch` is the lease's, None if there is no such lease."""

    written: bool
    epoch: int | None


class Stored(NamedTuple):
    """What is stored of a log."""

    log: LogRow
    live: list[SegmentRow]
    """By base offset."""
    drafts: list[UUID]
    dead: list[UUID]


# The epochs' rows are locked against claims until the write is committed; a claim that came first is waited
# for, and its epoch is the one that is compared.
_WRITE: Final = """
WITH fence AS MATERIALIZED (
    SELECT kind, number, epoch FROM muster.leases
    WHERE (kind, number) IN (SELECT * FROM unnest($1::text[], $2::integer[]))
    ORDER BY kind, number FOR SHARE OF leases
), asked AS MATERIALIZED (
    SELECT * FROM unnest(
        $3::integer[], $4::text[], $5::integer[], $6::bigint[], $7::uuid[], $8::integer[], $9::bigint[],
        $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[]
    ) AS a (log, kind, number, epoch, topic_id, partition, version, start_offset, next_offset,
            cleaned_offset, size_bytes)
), moved AS (
    UPDATE muster.logs AS l SET
        version = a.version + 1, start_offset = a.start_offset, next_offset = a.next_offset,
        cleaned_offset = a.cleaned_offset, size_bytes = a.size_bytes
    FROM asked AS a JOIN fence AS f ON f.kind = a.kind AND f.number = a.number AND f.epoch = a.epoch
    WHERE l.topic_id = a.topic_id AND l.partition = a.partition AND l.version = a.version
    RETURNING a.log, a.topic_id, a.partition
), kept AS (
    INSERT INTO muster.segments (
        segment_id, topic_id, partition, state, generation, base_offset, next_offset, size_bytes,
        batch_count, first_timestamp, newest_timestamp, written_ms, derived
    )
    SELECT s.segment_id, m.topic_id, m.partition, s.state, s.generation, s.base_offset, s.next_offset,
        s.size_bytes, s.batch_count, s.first_timestamp, s.newest_timestamp, s.written_ms, s.derived
    FROM unnest(
        $14::integer[], $15::smallint[], $16::uuid[], $17::integer[], $18::bigint[], $19::bigint[],
        $20::bigint[], $21::integer[], $22::bigint[], $23::bigint[], $24::bigint[], $25::bytea[]
    ) AS s (log, state, segment_id, generation, base_offset, next_offset, size_bytes, batch_count,
            first_timestamp, newest_timestamp, written_ms, derived)
    JOIN moved AS m ON m.log = s.log
    ON CONFLICT (segment_id) DO UPDATE SET
        state = excluded.state, next_offset = excluded.next_offset, size_bytes = excluded.size_bytes,
        batch_count = excluded.batch_count, first_timestamp = excluded.first_timestamp,
        newest_timestamp = excluded.newest_timestamp, written_ms = excluded.written_ms,
        derived = excluded.derived
), written AS (
    INSERT INTO muster.batches (
        segment_id, base_offset, next_offset, newest_timestamp, size_bytes, contents
    )
    SELECT b.segment_id, b.base_offset, b.next_offset, b.newest_timestamp, length(b.contents), b.contents
    FROM unnest(
        $26::integer[], $27::uuid[], $28::bigint[], $29::bigint[], $30::bigint[], $31::bytea[]
    ) AS b (log, segment_id, base_offset, next_offset, newest_timestamp, contents)
    JOIN moved AS m ON m.log = b.log
)
SELECT a.log, f.epoch, m.log IS NOT NULL AS written
FROM asked AS a
LEFT JOIN fence AS f ON f.kind = a.kind AND f.number = a.number
LEFT JOIN moved AS m ON m.log = a.log
ORDER BY a.log
"""

_BEGIN_LOGS: Final = """
INSERT INTO muster.logs (topic_id, partition, version, start_offset, next_offset, cleaned_offset, size_bytes)
SELECT topic_id, partition, 0, 0, 0, 0, 0 FROM unnest($1::uuid[], $2::integer[]) AS a (topic_id, partition)
ON CONFLICT (topic_id, partition) DO NOTHING
"""

_BEGIN_DRAFT: Final = """
INSERT INTO muster.segments (
    segment_id, topic_id, partition, state, generation, base_offset, next_offset, size_bytes, batch_count,
    first_timestamp, newest_timestamp, written_ms
) VALUES ($1, $2, $3, 0, $4, $5, $5, 0, 0, -1, -1, 0)
"""

# Locked, so that nobody can have started deleting its batches.
_FILL_DRAFT: Final = """
WITH draft AS MATERIALIZED (
    SELECT segment_id FROM muster.segments WHERE segment_id = $1 AND state = 0 FOR SHARE
), written AS (
    INSERT INTO muster.batches (
        segment_id, base_offset, next_offset, newest_timestamp, size_bytes, contents
    )
    SELECT d.segment_id, b.base_offset, b.next_offset, b.newest_timestamp, length(b.contents), b.contents
    FROM draft AS d, unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::bytea[])
        AS b (base_offset, next_offset, newest_timestamp, contents)
)
SELECT segment_id FROM draft
"""

_STORED: Final = """
SELECT l.version, l.start_offset, l.next_offset, l.cleaned_offset, l.size_bytes,
    s.segment_id, s.state, s.generation, s.base_offset, s.next_offset AS segment_next, s.size_bytes AS bytes,
    s.batch_count, s.first_timestamp, s.newest_timestamp, s.written_ms, s.derived
FROM muster.logs AS l LEFT JOIN muster.segments AS s
    ON s.topic_id = l.topic_id AND s.partition = l.partition
WHERE l.topic_id = $1 AND l.partition = $2
ORDER BY s.base_offset
"""

_FIRST_BYTES: Final = f"""
SELECT substring(contents FROM 1 FOR {CONTROL_BATCH_BYTES_MAX}) AS start FROM muster.batches
WHERE segment_id = $1 AND base_offset >= $2 AND base_offset < $3
ORDER BY base_offset LIMIT $4
"""

# The batch that holds an offset is the last one that begins at or before it. Bytes are summed over as many
# rows as may be wanted; the contents of unwanted rows are not read.
_READ: Final = """
SELECT w.contents FROM (
    SELECT b.base_offset, b.size_bytes, b.contents, sum(b.size_bytes) OVER (ORDER BY b.base_offset) AS up_to
    FROM (
        SELECT base_offset, size_bytes, contents FROM muster.batches
        WHERE segment_id = $1 AND next_offset > $2 AND base_offset < $3
            AND base_offset >= coalesce((
                SELECT base_offset FROM muster.batches
                WHERE segment_id = $1 AND base_offset <= $2 ORDER BY base_offset DESC LIMIT 1
            ), $2)
        ORDER BY base_offset LIMIT $4
    ) AS b
) AS w
WHERE (w.up_to <= $5 OR (w.up_to = w.size_bytes AND $6))
    AND EXISTS (SELECT 1 FROM muster.segments WHERE segment_id = $1 AND state = 1)
ORDER BY w.base_offset
"""

_SIZE_FROM: Final = """
SELECT coalesce(sum(b.size_bytes), 0)::bigint, max(b.next_offset)
FROM (
    SELECT size_bytes, next_offset FROM muster.batches
    WHERE segment_id = $1 AND next_offset > $2 AND base_offset < $3
        AND base_offset >= coalesce((
            SELECT base_offset FROM muster.batches
            WHERE segment_id = $1 AND base_offset <= $2 ORDER BY base_offset DESC LIMIT 1
        ), $2)
    ORDER BY base_offset LIMIT $4
) AS b
"""

_AT_ALL: Final = """
SELECT EXISTS (SELECT 1 FROM muster.segments WHERE segment_id = $1 AND state = 1) AS live,
    EXISTS (
        SELECT 1 FROM muster.batches WHERE segment_id = $1 AND base_offset < $3
            AND base_offset >= coalesce((
                SELECT base_offset FROM muster.batches
                WHERE segment_id = $1 AND base_offset <= $2 ORDER BY base_offset DESC LIMIT 1
            ), $2)
            AND next_offset > $2
    ) AS more
"""

_NEWEST_UP_TO: Final = """
SELECT base_offset, newest_timestamp FROM muster.batches
WHERE segment_id = $1 AND base_offset <= $2 ORDER BY base_offset DESC LIMIT 1
"""

_SLICE: Final = """
SELECT max(w.base_offset) AS last FROM (
    SELECT b.base_offset, b.size_bytes, sum(b.size_bytes) OVER (ORDER BY b.base_offset) AS up_to
    FROM (
        SELECT base_offset, size_bytes FROM muster.batches WHERE segment_id = $1
            AND NOT EXISTS (SELECT 1 FROM muster.segments WHERE segment_id = $1 AND state = 1)
        ORDER BY base_offset LIMIT $2
    ) AS b
) AS w WHERE w.up_to - w.size_bytes < $3
"""

# Whatever the caller thinks, never delete from a segment that is part of its log.
_DELETE_SLICE: Final = """
DELETE FROM muster.batches WHERE segment_id = $1 AND base_offset <= $2
    AND NOT EXISTS (SELECT 1 FROM muster.segments WHERE segment_id = $1 AND state = 1)
"""

# Whatever the caller thinks, take nothing away from a topic that exists.
_KILL_LOGS: Final = """
DELETE FROM muster.logs WHERE topic_id = $1
    AND NOT EXISTS (SELECT 1 FROM muster.topics WHERE topic_id = $1)
"""

# Not those that are dead: a large topic is killed again in every turn of upkeep.
_KILL_SEGMENTS: Final = """
UPDATE muster.segments SET state = 2, derived = NULL WHERE topic_id = $1 AND state <> 2
    AND NOT EXISTS (SELECT 1 FROM muster.topics WHERE topic_id = $1)
"""

# What was not removed with its topic: a process died, or wrote before it had heard of the deletion.
_LEFT_OVER: Final = """
SELECT topic_id FROM muster.logs AS l
WHERE NOT EXISTS (SELECT 1 FROM muster.topics AS t WHERE t.topic_id = l.topic_id)
UNION
SELECT topic_id FROM muster.segments AS s
WHERE NOT EXISTS (SELECT 1 FROM muster.topics AS t WHERE t.topic_id = s.topic_id)
"""


def _columns(rows: Iterable[tuple[Any, ...]], count: int) -> Sequence[Sequence[Any]]:
    return list(zip(*rows, strict=True)) or [()] * count


async def write(connection: asyncpg.Connection[Any], changes: Sequence[Change]) -> list[Changed]:
    """Write all changes in one statement, skipping those that must not be written. Returns each one's
    outcome."""
    new = [(change.topic_id, change.partition) for change in changes if not change.version]
    if new:
        await connection.execute(_BEGIN_LOGS, *_columns(new, 2))
    leases = {change.lease for change in changes}
    rows = await connection.fetch(
        _WRITE,
        *_columns(((lease.kind.value, lease.number) for lease in leases), 2),
        *_columns(
            (
                (log, change.lease.kind.value, change.lease.number, *change[1:9])
                for log, change in enumerate(changes)
            ),
            11,
        ),
        *_columns(
            ((log, state, *each) for log, change in enumerate(changes) for each, state in change.states()), 12
        ),
        *_columns(((log, *each) for log, change in enumerate(changes) for each in change.batches), 6),
    )
    return [Changed(row["written"], row["epoch"]) for row in rows]


async def begin_draft(
    connection: asyncpg.Connection[Any], topic_id: UUID, partition: int, row: SegmentRow
) -> None:
    await connection.execute(
        _BEGIN_DRAFT, row.segment_id, topic_id, partition, row.generation, row.base_offset
    )


async def fill_draft(
    connection: asyncpg.Connection[Any], segment_id: UUID, batches: Sequence[BatchRow]
) -> bool:
    """Returns False, without writing anything, if it is no longer a draft."""
    columns = _columns((batch[1:] for batch in batches), 4)
    return await connection.fetchval(_FILL_DRAFT, segment_id, *columns) is not None


async def stored(connection: asyncpg.Connection[Any], topic_id: UUID, partition: int) -> Stored:
    log, live = NO_LOG, []
    others: dict[int, list[UUID]] = {DRAFT: [], DEAD: []}
    for row in await connection.fetch(_STORED, topic_id, partition):
        log = LogRow(*row[:5])
        if row["segment_id"] is None:
            continue
        if row["state"] == LIVE:
            live.append(SegmentRow(row["segment_id"], *row[7:]))
        else:
            others[row["state"]].append(row["segment_id"])
    return Stored(log, live, others[DRAFT], others[DEAD])


async def first_bytes(
    connection: asyncpg.Connection[Any], segment_id: UUID, start: int, end: int, rows_max: int
) -> list[bytes]:
    """The first bytes of at most `rows_max` batches that begin in [start, end): all of a control batch."""
    return [row[0] for row in await connection.fetch(_FIRST_BYTES, segment_id, start, end, rows_max)]


async def read(
    connection: asyncpg.Connection[Any],
    segment_id: UUID,
    offset: int,
    end: int,
    rows_max: int,
    bytes_max: int,
    first_may_exceed: bool,
) -> list[bytes]:
    """Batches of a live segment, from the one that holds `offset` (or the next one there is) on, that begin
    before `end`."""
    rows = await connection.fetch(_READ, segment_id, offset, end, rows_max, bytes_max, first_may_exceed)
    return [row[0] for row in rows]


async def at_all(
    connection: asyncpg.Connection[Any], segment_id: UUID, offset: int, end: int
) -> tuple[bool, bool]:
    """Whether the segment is live, and whether it has anything at or after `offset`."""
    row = await connection.fetchrow(_AT_ALL, segment_id, offset, end)
    return row["live"], row["more"]


async def size_from(
    connection: asyncpg.Connection[Any], segment_id: UUID, offset: int, end: int, rows_max: int
) -> tuple[int, int | None]:
    """Bytes of the batches that `read` would look at, and the offset after them; None if there are none."""
    row = await connection.fetchrow(_SIZE_FROM, segment_id, offset, end, rows_max)
    return row[0], row[1]


async def newest_up_to(
    connection: asyncpg.Connection[Any], segment_id: UUID, offset: int
) -> tuple[int, int] | None:
    """Base offset of the last batch that begins at or before `offset`, and its newest timestamp."""
    row = await connection.fetchrow(_NEWEST_UP_TO, segment_id, offset)
    return None if row is None else (row[0], row[1])


async def delete_slice(connection: asyncpg.Connection[Any], segment_id: UUID) -> bool:
    """Delete the first batches of a dead segment, and in the end its row. Returns False if nothing is left of
    it."""
    last = await connection.fetchval(_SLICE, segment_id, _SLICE_ROWS_MAX, _SLICE_BYTES_MAX)
    if last is None:
        await connection.execute(
            "DELETE FROM muster.segments WHERE segment_id = $1 AND state <> 1", segment_id
        )
        return False
    await connection.execute(_DELETE_SLICE, segment_id, last)
    return True


async def kill_topic(connection: asyncpg.Connection[Any], topic_id: UUID) -> list[UUID]:
    """Take a deleted topic's logs away from whoever may still write to them. Returns the segments to be
    deleted."""
    await connection.execute(_KILL_LOGS, topic_id)
    await connection.execute(_KILL_SEGMENTS, topic_id)
    rows = await connection.fetch(
        "SELECT segment_id FROM muster.segments WHERE topic_id = $1 AND state = 2", topic_id
    )
    return [row[0] for row in rows]


async def left_over(connection: asyncpg.Connection[Any]) -> list[UUID]:
    """The topics that have rows here but do not exist."""
    return [row[0] for row in await connection.fetch(_LEFT_OVER)]


async def partitions(connection: asyncpg.Connection[Any]) -> list[tuple[UUID, int]]:
    return [(row[0], row[1]) for row in await connection.fetch("SELECT topic_id, partition FROM muster.logs")]


async def size(connection: asyncpg.Connection[Any], topic_id: UUID, partition: int) -> int:
    found = await connection.fetchval(
        "SELECT size_bytes FROM muster.logs WHERE topic_id = $1 AND partition = $2", topic_id, partition
    )
    return found or 0


async def bounds(
    connection: asyncpg.Connection[Any], partitions: Sequence[tuple[UUID, int]]
) -> dict[tuple[UUID, int], tuple[int, int]]:
    """Start and next offset of those partitions that have a row."""
    found = await connection.fetch(
        "SELECT logs.topic_id, logs.partition, logs.start_offset, logs.next_offset "
        "FROM muster.logs JOIN unnest($1::uuid[], $2::integer[]) AS asked (topic_id, partition) "
        "ON logs.topic_id = asked.topic_id AND logs.partition = asked.partition",
        [topic_id for topic_id, _ in partitions],
        [partition for _, partition in partitions],
    )
    return {(row[0], row[1]): (row[2], row[3]) for row in found}
