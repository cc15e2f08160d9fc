"""Builds all tables from the journal: bronze to silver to gold, each step stored as Parquet for the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from muster.pipeline.files import Files, literal
from muster.pipeline.journal import lives, tables
from muster.pipeline.journal.bronze import transitions
from muster.pipeline.journal.gold import gold
from muster.pipeline.journal.plans import suited
from muster.pipeline.journal.rebalances import rebalances

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PUBLISHED: Final = (*tables.SILVER, *tables.GOLD)


class Draft:
    """Tables under construction, below `to`/_new. Existing tables stay unchanged until all are done."""

    def __init__(self, spark: SparkSession, to: str) -> None:
        self._spark, self._to = spark, to

    def keep(self, frame: DataFrame, name: str) -> DataFrame:
        """Write a table. Returns it as written."""
        path = f"{self._to}/_new/{name}"
        frame.write.mode("overwrite").parquet(path)
        found: DataFrame = self._spark.read.parquet(literal(path))
        return found

    def publish(self) -> dict[str, DataFrame]:
        """Replace all silver and gold tables, which takes milliseconds for each, and remove intermediate
        ones. Returns the tables by name."""
        files = Files(self._spark, self._to)
        found = {}
        for table in _PUBLISHED:
            path = f"{self._to}/{table.layer}/{table.name}"
            files.remove(path)
            files.move(f"{self._to}/_new/{table.name}", path)
            found[table.name] = self._spark.read.parquet(literal(path))
        files.remove(f"{self._to}/_new")
        return found


def build(events: DataFrame, to: str) -> dict[str, DataFrame]:
    """Write every silver and gold table below `to`, as `silver/NAME` and `gold/NAME`, replacing existing
    ones. Returns the tables as written, by name. `events` has key, value, partition and offset of
    `__group_events`."""
    draft = Draft(events.sparkSession, to)
    entries = draft.keep(transitions(events), tables.TRANSITIONS.name)
    with suited(events.sparkSession, entries.count()):
        made = draft.keep(rebalances(events, entries), tables.REBALANCES.name)
        return finished(draft, entries, made)


def finished(draft: Draft, entries: DataFrame, made: DataFrame) -> dict[str, DataFrame]:
    """Make the other tables from `transitions` and `rebalances`, which `draft` has stored, and publish all.
    Returns the tables by name."""
    silver: dict[str, Any] = {tables.TRANSITIONS.name: entries, tables.REBALANCES.name: made}

    def keep(frame: DataFrame, table: tables.Table) -> None:
        silver[table.name] = draft.keep(frame, table.name)

    sessions = draft.keep(lives.sessions(entries, made), "sessions")
    keep(lives.member_sessions(sessions), tables.MEMBER_SESSIONS)
    owned = draft.keep(lives.ownership(made, sessions), "owned")
    keep(owned.select(*tables.OWNERSHIP.names), tables.OWNERSHIP)
    keep(lives.lag_samples(entries), tables.LAG_SAMPLES)
    for name, frame in gold(silver, sessions, owned).items():
        draft.keep(frame, name)
    return draft.publish()
