"""The table `rebalances`: the results of the rules of `muster.coordinator.journal.explain` for each group.

Spark sorts the journal by shard, group and offset, and Python goes through it once (Arrow batches in, rows
out as JSON), with at most `CHUNK` entries of a group in memory, plus what `pieces` keeps of those before.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from muster.coordinator.journal.entries import Entry
from muster.coordinator.journal.explain.causes import diagnose
from muster.coordinator.journal.explain.cost import is_refused, lag_of, moved, moves_since, stopped, unowned
from muster.coordinator.journal.explain.facts import flag, joins, text, whole
from muster.coordinator.journal.explain.findings import Case
from muster.coordinator.journal.explain.leaving import CLOSING_MS
from muster.coordinator.journal.explain.phases import phases
from muster.coordinator.journal.explain.rebalances import Rebalance, cut
from muster.coordinator.journal.explain.vocabulary import EMPTY, UNKNOWN_CAUSE
from muster.coordinator.journal.names import Names
from muster.pipeline.journal.entries import SHARD_TYPES, Told, read, with_shard
from muster.pipeline.journal.pieces import Group, Piece, remembered
from muster.pipeline.journal.tables import REBALANCES

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

CHUNK: Final = 20_000
"""How many entries of a group are processed together, besides those kept from before."""
_BATCH: Final = 100
"""Rows sent to Spark together. One may describe a thousand partitions: some hundred kilobytes."""

_ORDERED: Final = """
SELECT partition AS shard, e.`group`, offset, value
FROM (SELECT *, from_json(CAST(value AS string), 'type string, at_ms bigint, `group` string') AS e
    FROM {events})
WHERE e.type IS NOT NULL AND e.at_ms IS NOT NULL
"""
_ROWS: Final = f"""
SELECT r.* FROM (SELECT from_json(rebalance, '{REBALANCES.ddl}') AS r FROM {{told}})
"""
_CERTAINTY: Final = f"""
    -- The one thing that is said for want of time, and not of facts (`explain.leaving`).
    IF(diagnosis = 'poll-deadline-missed' AND certainty = 'possible' AND now_ms - started_ms > {CLOSING_MS},
        'likely', certainty) AS certainty"""
_AGED: Final = f"""
SELECT {", ".join(_CERTAINTY if each == "certainty" else f"`{each}`" for each in REBALANCES.names)}
FROM {{rebalances}} CROSS JOIN (
    SELECT max(at_ms) AS now_ms FROM {{transitions}} WHERE `group` IS NOT NULL)
"""


def rebalances(events: DataFrame, transitions: DataFrame) -> DataFrame:
    """The table, from the journal's records and the entries among them."""
    session: Any = events.sparkSession
    ordered = session.sql(_ORDERED, events=events)
    ordered = ordered.repartition("shard").sortWithinPartitions("shard", "group", "offset")
    return aged(rows(ordered.mapInArrow(_explained, "rebalance string")), transitions)


def rows(told: DataFrame) -> DataFrame:
    """Rows of the table, from a column `rebalance` that contains them as JSON."""
    session: Any = told.sparkSession
    found: DataFrame = session.sql(_ROWS, told=told)
    return found


def aged(rebalances: DataFrame, transitions: DataFrame) -> DataFrame:
    """Rows of the table as of the journal's end: each was made as of the end of its own group's entries."""
    session: Any = rebalances.sparkSession
    found: DataFrame = session.sql(_AGED, rebalances=rebalances, transitions=transitions)
    return found


def _explained(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    texts = map(json.dumps, explained(_records(batches)))
    while some := list(islice(texts, _BATCH)):
        yield pa.RecordBatch.from_arrays([pa.array(some, pa.string())], ["rebalance"])


def _records(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, str | None, Told]]:
    for batch in batches:
        columns = (column.to_pylist() for column in batch.columns)
        for shard, group, offset, value in zip(*columns, strict=True):
            told = read(offset, value)
            if told is not None:
                yield shard, group, told


def explained(records: Iterable[tuple[int, str | None, Told]]) -> Iterator[dict[str, Any]]:
    """Rows of the table from entries, each with its shard and group, sorted by shard, group and offset;
    entries about a whole shard come before those of its groups."""
    for shard, told in groupby(records, lambda each: each[0]):
        of_shard: list[Told] = []
        for group, own in groupby(told, lambda each: each[1]):
            entries = (each for _, _, each in own)
            if group is None:
                of_shard = list(entries)
            else:
                yield from _of_group(shard, group, with_shard(group, entries, of_shard))


def _of_group(shard: int, group: str, told: Iterator[Told]) -> Iterator[dict[str, Any]]:
    known = Group()
    while True:
        new = list(islice(told, CHUNK))
        piece = Piece(group, known.live_offset, (*known.entries, *new))
        if len(new) < CHUNK:
            yield from rows_of(shard, piece)
            return
        own_ms = (each.entry.at_ms for each in new if each.entry.type not in SHARD_TYPES)
        known, _ = remembered(piece, max((known.newest_ms, *own_ms)), -1)
        # Live ones come with the next chunk.
        yield from (row for row in rows_of(shard, piece) if row["start_offset"] < known.live_offset)


def rows_of(shard: int, piece: Piece) -> Iterator[dict[str, Any]]:
    """The live rebalances of a piece as rows of the table."""
    found = cut([each.entry for each in piece.entries])
    if not found:
        return
    names = Names(found[0].members.values(), found[0].present)
    members: int | None = None
    for each in found:
        row = _row(shard, each, piece.entries, names, members)
        if row["members"] is not None:
            members = row["members"]
        if row["start_offset"] >= piece.live_offset:
            yield row


def _row(
    shard: int, rebalance: Rebalance, told: tuple[Told, ...], names: Names, members_before: int | None
) -> dict[str, Any]:
    # If the journal lacks the beginning, a start that is not a change of state stands for it.
    starts = [each for each in rebalance.starts if rebalance.stream[each.index] is each.entry]
    starts = [each for each in starts if each.entry.type in ("state_changed", "epoch_bumped")]
    case = Case(rebalance, rebalance.starts[0], names, rebalance.stream[-1].at_ms)
    start_offset = told[starts[0].index if starts else rebalance.first].offset
    from_state = text(starts[0].entry, "from_state") if starts else None
    if starts and starts[0].entry.type == "epoch_bumped":
        from_state = rebalance.from_state
    finding, member, took, done = diagnose(case)[0], case.member, phases(rebalance), rebalance.completed
    assert took is not None
    slowest = joins(done)[:1] if done is not None else []
    lag = lag_of(rebalance)
    ended_ms = rebalance.ended_ms
    return {
        "rebalance_id": f"{shard}-{start_offset}",
        "group": rebalance.group,
        "type": rebalance.kind,
        "shard": shard,
        "start_offset": start_offset,
        "end_offset": told[rebalance.last - 1].offset,
        "generation": rebalance.generation,
        "outcome": rebalance.outcome,
        "state": rebalance.state,
        "began_in_sight": rebalance.began_in_sight,
        "from_state": from_state,
        "started_ms": rebalance.started_ms,
        "ended_ms": ended_ms,
        "duration_ms": None if ended_ms is None else ended_ms - rebalance.started_ms,
        "cause": case.trigger or UNKNOWN_CAUSE,
        "diagnosis": finding.diagnosis,
        "certainty": finding.certainty,
        "member_id": member and member.id,
        "client_id": member and member.client_id,
        "host": member and member.host,
        "instance": member and member.instance,
        "reason": case.reason,
        "starts": [
            {"at_ms": e.at_ms, "cause": e.trigger or UNKNOWN_CAUSE, "member_id": e.member and e.member.id}
            for e in map(attrgetter("entry"), starts)
        ],
        "restarts": took.restarts,
        "join_ms": took.join_ms,
        "assignment_ms": took.assignment_ms,
        "sync_ms": took.sync_ms,
        "target_ms": took.target_ms,
        "reconcile_ms": took.reconcile_ms,
        "slowest_member_id": slowest[0][0].id if slowest else None,
        "slowest_ms": slowest[0][1] if slowest else None,
        "members_before": 0 if from_state == EMPTY else members_before,
        "members": None if done is None else whole(done, "members"),
        "added": sum(each.type == "member_added" for each in rebalance.entries),
        "removed": sum(each.type == "member_removed" for each in rebalance.entries),
        "dropped": None if done is None else _size(done.data.get("dropped")),
        **_assigned(rebalance),
        "lag_before": lag.before,
        "lag": lag.after,
        "lag_peak": lag.peak,
        "recovered_ms": lag.recovered_ms,
        "recovery_ms": None if lag.recovered_ms is None or ended_ms is None else lag.recovered_ms - ended_ms,
        "commits_refused": sum(
            each.times
            for each in told[rebalance.first : rebalance.until]
            if is_refused(rebalance, each.entry)
        ),
        "near_misses": case.near_misses,
    }


def _assigned(rebalance: Rebalance) -> dict[str, Any]:
    """What the assignment changed, and which partitions had no owner meanwhile."""
    entry: Entry | None = rebalance.assigned
    if entry is None:
        return {}
    change = moved(rebalance)
    found: dict[str, Any] = {
        name: whole(entry, name) if change is None else getattr(change, name)
        for name in ("partitions", "kept", "moved", "lost")
    }
    found["truncated"] = (change is not None and change.truncated) or flag(entry, "truncated")
    if _size(entry.data.get("moves")) is None:
        return found
    gone, since = stopped(rebalance), moves_since(rebalance)
    found["moves"] = [{**each._asdict(), "since_ms": since_ms} for each, since_ms in since]
    found["bounced"] = sum(
        each.from_member is not None and each.to_member is not None and each.from_member not in gone
        for each, _ in since
    )
    if rebalance.ended_ms is not None and rebalance.state != EMPTY:
        ownerless = unowned(rebalance, since)
        found["unowned_partitions"] = sum(len(each.partitions) for each in ownerless)
        found["unowned_partition_ms"] = sum(each.ms * len(each.partitions) for each in ownerless)
        found["unowned_max_ms"] = ownerless[0].ms if ownerless else None
    return found


def _size(value: object) -> int | None:
    return len(value) if isinstance(value, list) else None
