"""Explore the tables of `muster-pipeline rebalances`: cells (`# %%`) for an editor or notebook, or to run all
at once:

    python examples/spark/rebalance_report.py ./lake

It needs pandas and matplotlib, but no Spark: the tables are Parquet. `muster-pipeline report --from ./lake
--to ./report` makes a page with more than this; start here for questions of your own.
"""

# %% The lake: what `muster-pipeline rebalances --to ./lake` wrote.
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

LAKE = sys.argv[1] if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else "lake"
if not Path(LAKE, "gold").is_dir():
    sys.exit(f"there are no tables in {LAKE}: muster-pipeline rebalances --to {LAKE} makes them")


def table(layer: str, name: str) -> pd.DataFrame:
    """A table. Points in time (`..._ms` since 1970) also get a column without `_ms`, in UTC."""
    found = pd.read_parquet(f"{LAKE}/{layer}/{name}")
    for column in ("at", "started", "ended", "from", "until"):
        if f"{column}_ms" in found:
            found[column] = pd.to_datetime(found[f"{column}_ms"], unit="ms", utc=True)
    return found


def show(what: pd.DataFrame) -> None:
    """Print it, as a notebook would."""
    print(what.to_string(), end="\n\n")


# %% Which groups rebalance most, and why?
health = table("gold", "group_health").sort_values("rebalances", ascending=False)
show(health[["group", "rebalances", "top_diagnosis", "top_diagnosis_share", "stable_share"]].head(10))

# %% What did each cause cost? Partition-seconds: seconds without an owner, summed over partitions.
costs = table("gold", "cost_per_cause")
costs["partition_s"] = costs.unowned_partition_ms / 1_000
show(costs.groupby("diagnosis")[["rebalances", "partition_s", "moved", "bounced", "lag_growth"]].sum())

# %% How long does a rebalance take, by diagnosis? In milliseconds.
rebalances = table("silver", "rebalances")
took = rebalances.groupby("diagnosis")["duration_ms"]
show(took.describe(percentiles=[0.5, 0.95])[["count", "50%", "95%", "max"]])

# %% When do they happen? One column per ten minutes.
by_time = (
    rebalances.groupby([pd.Grouper(key="started", freq="10min"), "diagnosis"]).size().unstack(fill_value=0)
)
if len(by_time):
    axes = by_time.plot.bar(stacked=True, figsize=(9, 4), xlabel="time (UTC)", ylabel="rebalances")
    axes.set_xticklabels([each.strftime("%H:%M") for each in by_time.index])
    plt.tight_layout()

# %% Who waits for whom? The members that joined last, and how long they kept the others waiting.
waits = rebalances.dropna(subset=["slowest_member_id"]).groupby("slowest_member_id")["slowest_ms"]
show(waits.agg(["count", "max"]).sort_values("max", ascending=False).head(10))

# %% A question of your own: do rebalances that bounce partitions refuse more commits?
rebalances["bounces"] = rebalances.bounced.fillna(0) > 0
show(rebalances.groupby("bounces")["commits_refused"].agg(["count", "sum", "mean"]))

# %% The whole page, as `muster-pipeline report` makes it.
from muster.pipeline.report.facts import Asked, facts  # noqa: E402
from muster.pipeline.report.lake import Lake  # noqa: E402

found = facts(Lake(LAKE), Asked(top=5))
show(found.groups[["group", "rebalances", "per_hour", "p50_ms", "p95_ms"]].head())

# %% Show the charts, if there is a screen.
if "agg" not in plt.get_backend().lower():
    plt.show()
