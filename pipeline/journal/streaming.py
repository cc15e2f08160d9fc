"""`rebalances` as a stream: assembled across batches, and the same as from the whole journal at once.

    topic -> records and rows (transformWithState) -> bronze, and new rows of `rebalances`, batch by batch
                                                   -> all other tables, made of those when `publish` is called

The stream only remembers; the rules that make the table from a whole journal say what a rebalance was. What
the state must contain takes a few sentences to say (pieces.py). State is kept by shard, which is how the
journal is ordered: an entry about a whole shard ends the rebalances of all its groups. Within a shard, a map
has a value for each group, so a batch loads only the groups that it has entries of. There are no timers and
no watermark: groups have no common order in time, least of all in a replayed journal, and a watermark would
drop those that are behind. A rebalance that never ends is found in gold, by its age.

Each batch writes its records to bronze, and the rows of the rebalances that it touched, as folders named
after it. A row replaces the one with the same `rebalance_id` from an earlier batch. If the job is killed
before Spark records the batch, it repeats the batch from the same state and offsets: the existing folders are
what it would write.

Sessions, ownership and lag samples are functions of silver transitions and rebalances, all of which are kept;
so they, and gold, are remade from these (`publish`). To maintain them, the stream would need what a session
of months has seen, for tables that are a sort and a join away.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pandas as pd
from pyspark.sql.streaming import StatefulProcessor

from muster.pipeline.journal.bronze import transitions
from muster.pipeline.journal.build import Draft, finished
from muster.pipeline.journal.entries import Told, read
from muster.pipeline.journal.folders import Folders
from muster.pipeline.journal.pieces import Group, Shard
from muster.pipeline.journal.plans import suited
from muster.pipeline.journal.rebalances import aged, rows, rows_of
from muster.pipeline.journal.tables import BRONZE, REBALANCES, TRANSITIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter

EVENTS: Final = "bronze/events"
VERSIONS: Final = "silver/_rebalances"
CHECKPOINT: Final = "_checkpoints/journal"
_VERSIONS: Final = f"{REBALANCES.ddl}, batch bigint"

_CUT: Final = "shard int, offset bigint, key binary, value binary, rebalance string"
"""An unchanged record, or a row of `rebalances` as JSON."""


class Cutter(StatefulProcessor):
    """Turns records of a shard into the same records and rows of `rebalances`."""

    def init(self, handle: Any) -> None:
        self._shard = handle.getValueState("shard", "told string")
        self._groups = handle.getMapState("groups", "name string", "told string")

    def handleInputRows(
        self, key: tuple[int], rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        known = self._shard.get()
        shard = Shard() if known is None else Shard.from_json(known[0])
        told: list[Told] = []
        for frame in rows:
            yield frame.assign(rebalance=None)
            told += _entries(frame)
        for piece in shard.take(told, self._recall, self._remember):
            found = [json.dumps(row) for row in rows_of(key[0], piece)]
            if found:
                yield _frame(key[0], found)
        self._shard.update((shard.to_json(),))

    def _recall(self, group: str) -> Group:
        known = self._groups.getValue((group,))
        return Group() if known is None else Group.from_json(known[0], group)

    def _remember(self, group: str, known: Group) -> None:
        self._groups.updateValue((group,), (known.to_json(),))

    def close(self) -> None:
        pass


def _entries(frame: pd.DataFrame) -> Iterator[Told]:
    for offset, value in zip(frame["offset"].tolist(), frame["value"].tolist(), strict=True):
        told = None if value is None else read(offset, bytes(value))
        if told is not None:
            yield told


def _frame(shard: int, rows: list[str]) -> pd.DataFrame:
    return pd.DataFrame({"shard": shard, "offset": 0, "key": None, "value": None, "rebalance": rows})


def cut(events: DataFrame) -> DataFrame:
    """A stream of the journal's records, unchanged, and of rows of the rebalances that they concern."""
    told = events.selectExpr("partition AS shard", "offset", "key", "value")
    found: DataFrame = told.groupBy("shard").transformWithStateInPandas(
        statefulProcessor=Cutter(), outputStructType=_CUT, outputMode="Append", timeMode="None"
    )
    return found


def stream(events: DataFrame, to: str) -> DataStreamWriter:
    """The query that keeps bronze and the rows of `rebalances` below `to` up to date; the caller sets a
    trigger and starts it. `events` is a stream with key, value, partition and offset of `__group_events`; in
    a partition, offsets must only increase from batch to batch."""
    spark = events.sparkSession
    bronze, versions = _folders(spark, to)

    def write(cut: DataFrame, batch: int) -> None:
        # Evaluate even if there is nothing to write: this advances the state.
        cut.persist().count()
        try:
            if not bronze.has(batch):
                came = cut.where("rebalance IS NULL")
                bronze.add(batch, came.selectExpr("key", "value", "shard AS partition", "offset"))
            if not versions.has(batch):
                found = rows(cut.where("rebalance IS NOT NULL"))
                versions.add(batch, found.selectExpr("*", f"{batch}L AS batch"))
        finally:
            cut.unpersist()

    query = cut(events).writeStream.queryName(f"rebalances to {to}").outputMode("append")
    writer: DataStreamWriter = query.option("checkpointLocation", f"{to}/{CHECKPOINT}").foreachBatch(write)
    return writer


def publish(spark: SparkSession, to: str) -> dict[str, DataFrame]:
    """Remake all silver and gold tables, up to the last batch written. Returns them by name."""
    bronze, versions = _folders(spark, to)
    # The stream may be writing another batch, to one of them before the other.
    last = min(each.last() for each in (bronze, versions))
    bronze.tidy(last, lambda rows: rows)
    versions.tidy(last, newest)
    draft = Draft(spark, to)
    entries = draft.keep(transitions(bronze.read(last)), TRANSITIONS.name)
    with suited(spark, entries.count()):
        rebalances = aged(newest(versions.read(last)), entries)
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
