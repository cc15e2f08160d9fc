"""`rebalances` as a stream: put together across batches, and the same as from the whole journal at once.

    topic -> pieces of groups (transformWithState) -> bronze, and new rows of `rebalances`, batch by batch
                                                   -> all other tables, made of those when `publish` is called

The stream cuts and remembers; what a rebalance was is said by the same SQL that makes the table from a
whole journal. There is no second version of some hundred rules to keep in step, and what the state has to
hold can be told in a few sentences (pieces.py). State is by shard, which is how the journal is ordered: what
concerns a whole shard ends the rebalances of all its groups. Within a shard a map has a value for each group,
so a batch loads the groups that it has entries of. There are neither timers nor a watermark: groups are not
in a common order of time, in a journal that is replayed least of all, and a watermark would drop those that
are behind. A rebalance that never ends is found in gold, by its age.

Each batch writes its records to bronze, and the rows of the rebalances that it touched, as folders named
after it. A row replaces the one of the same `rebalance_id` from an earlier batch. Killed between that and
Spark's note of the batch, the job does the batch again, from the same state and offsets: the folders that are
there are what it would write.

Sessions, ownership and samples of lag are functions of silver transitions and rebalances, all of which are
kept; so they, and gold, are made of these anew (`publish`). To be kept up by the stream they would need what
a session of months has seen, for tables that are a sort and a join away.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pandas as pd
from pyspark.sql.streaming import StatefulProcessor

from muster.pipeline.journal.bronze import transitions
from muster.pipeline.journal.build import Draft, finished
from muster.pipeline.journal.cutting import numbered
from muster.pipeline.journal.diagnoses import diagnosed
from muster.pipeline.journal.folders import Folders
from muster.pipeline.journal.pieces import Entry, Group, Piece, Shard
from muster.pipeline.journal.plans import suited
from muster.pipeline.journal.rebalances import assembled
from muster.pipeline.journal.tables import BRONZE, REBALANCES, TRANSITIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter

EVENTS: Final = "bronze/events"
VERSIONS: Final = "silver/_rebalances"
CHECKPOINT: Final = "_checkpoints/journal"
_VERSIONS: Final = f"{REBALANCES.ddl}, batch bigint"

_READ: Final = """
WITH read AS (
    SELECT *, from_json(CAST(value AS string), '
        type string, at_ms bigint, `group` string, from_state string, to_state string, protocol string,
        member struct<id:string>, members int, lag bigint, total bigint, recovered boolean,
        committed_generation_id int') AS e
    FROM {events}
)
SELECT partition AS shard, offset, key, value, e.`group`,
    -- NULL for a record that is no entry, as in `transitions`
    IF(e.at_ms IS NULL, NULL, e.type) AS type,
    coalesce(e.at_ms, 0) AS at_ms, coalesce(e.from_state, '') AS from_state,
    coalesce(e.to_state, '') AS to_state, coalesce(e.member.id, '') AS member_id,
    e.protocol IS NOT NULL AS has_protocol, e.members IS NOT NULL AS has_members,
    coalesce(e.lag, e.total, -1) AS lag, coalesce(e.recovered, false) AS recovered,
    coalesce(e.committed_generation_id, -2) AS generation
FROM read
"""
_COLUMNS: Final = Entry._fields[:-2]
"""As `Entry` has them, but for how often and the value."""

_PIECES: Final = """
    shard int, offset bigint, key binary, value binary, is_new boolean, `group` string, live_offset bigint,
    times int
"""
"""`is_new`: the record as it came; else `group` and what follows are given, it is a part of a piece."""

_CERTAINTY: Final = """
    -- The one thing that is said for want of time, and not of facts (diagnoses.py).
    IF(diagnosis = 'poll-deadline-missed' AND certainty = 'possible' AND now_ms - started_ms > 2000,
        'likely', certainty) AS certainty"""
_AGED: Final = f"""
SELECT {", ".join(_CERTAINTY if each == "certainty" else f"`{each}`" for each in REBALANCES.names)}
FROM {{rebalances}} CROSS JOIN (
    SELECT max(at_ms) AS now_ms FROM {{transitions}} WHERE `group` IS NOT NULL)
"""


class Cutter(StatefulProcessor):
    """Records of a shard in, the same and pieces of groups out."""

    def init(self, handle: Any) -> None:
        self._shard = handle.getValueState("shard", "told string")
        self._groups = handle.getMapState("groups", "name string", "told string")

    def handleInputRows(
        self, key: tuple[int], rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        known = self._shard.get()
        shard = Shard() if known is None else Shard.from_json(known[0])
        told: list[tuple[str | None, Entry]] = []
        for frame in rows:
            yield _as_they_came(frame)
            told += _entries(frame)
        for piece in shard.take(told, self._recall, self._remember):
            yield _frame(key[0], piece)
        self._shard.update((shard.to_json(),))

    def _recall(self, group: str) -> Group:
        known = self._groups.getValue((group,))
        return Group() if known is None else Group.from_json(known[0])

    def _remember(self, group: str, known: Group) -> None:
        self._groups.updateValue((group,), (known.to_json(),))

    def close(self) -> None:
        pass


def _as_they_came(frame: pd.DataFrame) -> pd.DataFrame:
    came = frame[["shard", "offset", "key", "value"]]
    return came.assign(is_new=True, group=None, live_offset=0, times=1)


def _entries(frame: pd.DataFrame) -> Iterator[tuple[str | None, Entry]]:
    found = frame[frame["type"].notna()]
    columns = [found[name].tolist() for name in _COLUMNS]
    for group, value, *rest in zip(found["group"].tolist(), found["value"].tolist(), *columns, strict=True):
        yield group, Entry._make((*rest, 1, bytes(value).decode("utf-8", "surrogateescape")))


def _frame(shard: int, piece: Piece) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "shard": shard,
            "offset": [each.offset for each in piece.entries],
            "key": None,
            "value": [each.value.encode("utf-8", "surrogateescape") for each in piece.entries],
            "is_new": False,
            "group": piece.group,
            "live_offset": piece.live_offset,
            "times": [each.times for each in piece.entries],
        }
    )


def pieces(events: DataFrame) -> DataFrame:
    """A stream of the journal's records, cut: each as it came, and the pieces of the groups it concerns."""
    session: Any = events.sparkSession
    read = session.sql(_READ, events=events)
    found: DataFrame = read.groupBy("shard").transformWithStateInPandas(
        statefulProcessor=Cutter(), outputStructType=_PIECES, outputMode="Append", timeMode="None"
    )
    return found


def rows(cut: DataFrame) -> DataFrame:
    """The table `rebalances` as far as these pieces tell of it."""
    parts = cut.where("NOT is_new")
    events = parts.selectExpr("shard AS partition", "offset", "value", "explode(sequence(1, times))")
    # Each is used several times by what follows: as a plan of its own that would take seconds to analyse.
    told = numbered(transitions(events).where("`group` IS NOT NULL")).localCheckpoint()
    made = assembled(told).localCheckpoint()
    session: Any = cut.sparkSession
    found: DataFrame = session.sql(
        "SELECT r.* FROM {found} AS r"
        " JOIN (SELECT DISTINCT shard, `group`, live_offset FROM {parts}) AS p"
        " ON p.shard = r.shard AND p.`group` = r.`group` AND r.start_offset >= p.live_offset",
        found=diagnosed(made, told),
        parts=parts,
    )
    return found


def stream(events: DataFrame, to: str) -> DataStreamWriter:
    """The query that keeps bronze and the rows of `rebalances` below `to` up, to be given a trigger and
    started. `events` is a stream with key, value, partition and offset of `__group_events`; in a partition
    offsets must only grow from batch to batch."""
    spark = events.sparkSession
    bronze, versions = _folders(spark, to)

    def write(cut: DataFrame, batch: int) -> None:
        # Evaluated also where there is nothing to write: the state moves on with it.
        size = cut.persist().count()
        try:
            if not bronze.has(batch):
                came = cut.where("is_new")
                bronze.add(batch, came.selectExpr("key", "value", "shard AS partition", "offset"))
            if not versions.has(batch):
                with suited(cut.sparkSession, size):
                    versions.add(batch, rows(cut).selectExpr("*", f"{batch}L AS batch"))
        finally:
            cut.unpersist()

    query = pieces(events).writeStream.queryName(f"rebalances to {to}").outputMode("append")
    writer: DataStreamWriter = query.option("checkpointLocation", f"{to}/{CHECKPOINT}").foreachBatch(write)
    return writer


def publish(spark: SparkSession, to: str) -> dict[str, DataFrame]:
    """Make all tables of silver and gold anew, up to the last batch that is written; by name."""
    bronze, versions = _folders(spark, to)
    # The stream may be about to write another batch, to one of them before the other.
    last = min(each.last() for each in (bronze, versions))
    bronze.tidy(last, lambda rows: rows)
    versions.tidy(last, newest)
    draft = Draft(spark, to)
    entries = draft.keep(transitions(bronze.read(last)), TRANSITIONS.name)
    found: Any = spark
    with suited(spark, entries.count()):
        rebalances = found.sql(_AGED, rebalances=newest(versions.read(last)), transitions=entries)
        return finished(draft, entries, draft.keep(rebalances, REBALANCES.name))


def newest(versions: DataFrame) -> DataFrame:
    """The last row of each rebalance."""
    session: Any = versions.sparkSession
    found: DataFrame = session.sql(
        "SELECT r.* FROM (SELECT max_by(struct(*), batch) AS r FROM {versions} GROUP BY rebalance_id)",
        versions=versions,
    )
    return found


def _folders(spark: SparkSession, to: str) -> tuple[Folders, Folders]:
    return Folders(spark, f"{to}/{EVENTS}", BRONZE.ddl), Folders(spark, f"{to}/{VERSIONS}", _VERSIONS)
