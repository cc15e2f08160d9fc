"""Checks that the records of topics in a database are what was written.

Everything is read in one transaction that sees the database as of its start, so brokers may keep running.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from uuid import UUID

from muster.coordinator.storage.postgres.connect import connect, failure, parse, transaction
from muster.coordinator.storage.postgres.record_statements import LIVE
from muster.coordinator.storage.postgres.schema import check
from muster.coordinator.storage.soundness import Checked, Fault
from muster.coordinator.storage.store import StoreError
from muster.protocol.errors import DecodeError
from muster.protocol.record_batch import crc_matches, peek

if TYPE_CHECKING:
    from asyncpg import Connection, Record

_TIMEOUT_MS: Final = 600_000
_BATCHES_AT_ONCE: Final = 16
"""Each may hold megabytes."""
_ADVICE: Final = (
    "restore the database from a backup, or have consumers seek past these offsets: their records are lost"
)
_ADVICE_UNUSABLE: Final = (
    "restore the database from a backup, or delete the topic and create it anew: brokers cannot use this "
    "partition as it is"
)

# Segments become live no earlier than their log has a row. Those of deleted topics are being removed.
_WITHOUT_LOG: Final = """
SELECT s.topic_id, s.partition, min(s.base_offset) AS base_offset
FROM muster.segments AS s JOIN muster.topics AS t ON t.topic_id = s.topic_id
WHERE s.state = $1 AND NOT EXISTS (
    SELECT 1 FROM muster.logs AS l WHERE l.topic_id = s.topic_id AND l.partition = s.partition
)
GROUP BY s.topic_id, s.partition ORDER BY s.topic_id, s.partition
"""


async def check_database(url: str, checked: Checked) -> AsyncIterator[Fault]:
    """Yield what is wrong with topics' records. Raises StoreError if the database or its tables cannot be
    read."""
    server = parse(url)
    # Of several hosts, the brokers' own; one that is named alone may be a standby.
    connection = await connect(
        server, name="muster-check", statement_timeout_ms=_TIMEOUT_MS, writes=len(server.hosts) > 1
    )
    try:
        await check(connection, server)
        # It locks no rows, and waits for whoever reads the faults. A snapshot held for good would keep vacuum
        # from removing rows.
        await connection.execute(f"SET idle_in_transaction_session_timeout = {_TIMEOUT_MS}")
        async with transaction(connection, isolation="repeatable_read", readonly=True):
            names = {
                row["topic_id"]: row["name"]
                for row in await connection.fetch("SELECT topic_id, name FROM muster.topics")
            }
            logs = await connection.fetch(
                "SELECT topic_id, partition, start_offset, next_offset FROM muster.logs ORDER BY 1, 2"
            )
            for log in logs:
                checked.partitions += 1
                name = f"{names.get(log['topic_id'], log['topic_id'])}-{log['partition']}"
                async for fault in _check_log(connection, log, name, checked):
                    yield fault
            for row in await connection.fetch(_WITHOUT_LOG, LIVE):
                name = f"{names[row['topic_id']]}-{row['partition']}"
                what = "the partition's row is missing, though it has segments"
                yield Fault("muster.logs", what, _ADVICE_UNUSABLE, None, name, row["base_offset"], None)
    except (StoreError, GeneratorExit):
        raise
    except Exception as error:
        raise failure(f"checking {server.name}", error) from error
    finally:
        with suppress(Exception):
            await connection.close(timeout=2)


async def _check_log(
    connection: Connection, log: Record, name: str, checked: Checked
) -> AsyncIterator[Fault]:
    segments = await connection.fetch(
        "SELECT segment_id, generation, base_offset, next_offset, size_bytes, batch_count "
        "FROM muster.segments WHERE topic_id = $1 AND partition = $2 AND state = $3 ORDER BY base_offset",
        log["topic_id"],
        log["partition"],
        LIVE,
    )
    expected, behind = log["start_offset"], log["next_offset"]
    if behind and not segments:
        # Trimming leaves the last one, even if nothing in it is left to be read.
        lost = (expected, behind - 1) if expected < behind else (None, None)
        yield Fault("muster.segments", "all segments are missing", _ADVICE_UNUSABLE, None, name, *lost)
        return
    for number, segment in enumerate(segments):
        checked.segments += 1
        base_offset = segment["base_offset"]
        # The first one begins at the log's start or before it. Compaction leaves no gaps between segments.
        if base_offset > expected:
            yield _fault("muster.segments", "a segment is missing", name, expected, base_offset - 1)
        compacted, expected = segment["generation"] > 0, base_offset
        size_bytes = count = 0
        async for place, row in _batches(connection, segment["segment_id"]):
            wrong = _wrong(row, expected, compacted)
            if wrong is not None:
                yield _fault(place, wrong, name, expected, row["next_offset"] - 1)
            size_bytes += len(row["contents"])
            count += 1
            expected = row["next_offset"]
            checked.batches += 1
        checked.bytes += size_bytes
        last = number == len(segments) - 1
        # The counts of the last one lag behind while it grows.
        if not last and (size_bytes, count) != (segment["size_bytes"], segment["batch_count"]):
            what = f"{segment['batch_count']} batches were written, but {count} are present"
            yield _fault(f"muster.segments, segment_id {segment['segment_id']}", what, name, None, None)
        expected = max(expected, segment["next_offset"] if not last else expected)
    if expected < behind:
        yield _fault("muster.batches", "the end of the log is missing", name, expected, behind - 1)


async def _batches(connection: Connection, segment_id: UUID) -> AsyncIterator[tuple[str, Record]]:
    after = -1
    while True:
        rows = await connection.fetch(
            "SELECT base_offset, next_offset, size_bytes, contents FROM muster.batches "
            "WHERE segment_id = $1 AND base_offset > $2 ORDER BY base_offset LIMIT $3",
            segment_id,
            after,
            _BATCHES_AT_ONCE,
        )
        for row in rows:
            yield f"muster.batches, segment_id {segment_id}, base_offset {row['base_offset']}", row
        if len(rows) < _BATCHES_AT_ONCE:
            return
        after = rows[-1]["base_offset"]


def _wrong(row: Record, expected: int, compacted: bool) -> str | None:
    contents: bytes = row["contents"]
    try:
        header = peek(contents)
    except DecodeError as error:
        return f"the row holds no batch: {error}"
    if header.size != len(contents) or row["size_bytes"] != len(contents):
        return f"the row has {len(contents)} bytes, but its batch should have {header.size}"
    if not crc_matches(contents, 0, header):
        return "the batch's checksum does not match"
    if (header.base_offset, header.next_offset) != (row["base_offset"], row["next_offset"]):
        return (
            f"the batch has offsets {header.base_offset} to {header.last_offset}, but its row says otherwise"
        )
    if row["base_offset"] < expected or (row["base_offset"] > expected and not compacted):
        return f"the batch's offset {header.base_offset} should be {expected}"
    return None


def _fault(place: str, what: str, name: str, first: int | None, last: int | None) -> Fault:
    return Fault(place, what, _ADVICE, None, name, first, last)
