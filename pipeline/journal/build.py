"""All tables from the journal: bronze to silver to gold, each step kept as Parquet for the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from muster.pipeline.journal import lives
from muster.pipeline.journal.bronze import transitions
from muster.pipeline.journal.cutting import cut
from muster.pipeline.journal.diagnoses import diagnosed
from muster.pipeline.journal.gold import gold
from muster.pipeline.journal.rebalances import assembled
from muster.pipeline.journal.tables import OWNERSHIP

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def build(events: DataFrame, to: str) -> dict[str, DataFrame]:
    """Write every silver and gold table below `to`, as `silver/NAME` and `gold/NAME`; the tables as written,
    by name. `events` has key, value, partition and offset of `__group_events`. What was there is replaced."""
    spark: Any = events.sparkSession

    def kept(frame: DataFrame, layer: str, name: str) -> DataFrame:
        path = f"{to}/{layer}/{name}"
        frame.write.mode("overwrite").parquet(path)
        found: DataFrame = spark.read.parquet(path)
        return found

    silver = {"transitions": kept(transitions(events), "silver", "transitions")}
    # `_` before a name: readers of the lake pass it over.
    told = kept(cut(silver["transitions"]), "silver", "_told")
    made = kept(assembled(told), "silver", "_made")
    silver["rebalances"] = kept(diagnosed(made, told), "silver", "rebalances")
    sessions = kept(lives.sessions(silver["transitions"], silver["rebalances"]), "silver", "_sessions")
    silver["member_sessions"] = kept(lives.member_sessions(sessions), "silver", "member_sessions")
    owned = kept(lives.ownership(silver["rebalances"], sessions), "silver", "_ownership")
    silver["ownership"] = kept(owned.select(*OWNERSHIP.names), "silver", "ownership")
    silver["lag_samples"] = kept(lives.lag_samples(silver["transitions"]), "silver", "lag_samples")
    answers = {name: kept(frame, "gold", name) for name, frame in gold(silver, sessions, owned).items()}
    return {**silver, **answers}
