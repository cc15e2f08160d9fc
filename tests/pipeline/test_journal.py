"""The journal's tables against what the generator did, and what `explain` says of the same entries."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from muster.coordinator.observe.explain import Explanation, explain_all
from muster.coordinator.observe.journal.entries import Entry
from muster.coordinator.testing.topics import Record
from muster.pipeline.journal import tables
from muster.pipeline.journal.build import build
from tests.pipeline.generator import Journal, generate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Tables = dict[str, "DataFrame"]


@pytest.fixture(scope="module")
def journal() -> Journal:
    return asyncio.run(generate())


@pytest.fixture(scope="module")
def built(spark: SparkSession, journal: Journal, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    return build(bronze(spark, journal.records), str(tmp_path_factory.mktemp("lake")))


def bronze(spark: SparkSession, records: Iterable[Record]) -> DataFrame:
    rows = [(each.key, each.value, each.partition, each.offset) for each in records]
    return spark.createDataFrame(rows, tables.BRONZE.ddl)


def oracle(records: Iterable[Record]) -> list[Explanation]:
    found = explain_all([Entry.from_json(each.value or b"") for each in records])
    return sorted(found, key=lambda each: (each.group, each.started_ms, each.generation or 0))


def told(row: Any) -> dict[str, Any]:
    """A row of `rebalances`, as far as `explain` says the same."""
    names = (
        "group generation outcome state started_ms ended_ms cause diagnosis certainty member_id restarts "
        "join_ms assignment_ms sync_ms partitions kept moved lost commits_refused lag_before "
        "lag_peak recovered_ms"
    )
    said = {name: row[name] for name in names.split()}
    return said | {"unowned_partition_ms": row["unowned_partition_ms"] or 0}


def explained(each: Explanation) -> dict[str, Any]:
    cost, moved, phases = each.cost, each.moved, each.phases
    assert phases is not None
    return {
        "group": each.group,
        "generation": each.generation,
        "outcome": each.outcome.value,
        "state": each.state,
        "started_ms": each.started_ms,
        "ended_ms": each.ended_ms,
        "cause": each.cause,
        "diagnosis": each.diagnosis.value,
        "certainty": each.certainty.value,
        "member_id": each.member and each.member.id,
        "restarts": phases.restarts,
        "join_ms": phases.join_ms,
        "assignment_ms": phases.assignment_ms,
        "sync_ms": phases.sync_ms,
        "partitions": moved and moved.partitions,
        "kept": moved and moved.kept,
        "moved": moved and moved.moved,
        "lost": moved and moved.lost,
        "commits_refused": 0 if cost is None else cost.commits_refused,
        "lag_before": cost and cost.lag_before,
        "lag_peak": cost and cost.lag_peak,
        "recovered_ms": cost and cost.recovered_ms,
        "unowned_partition_ms": 0 if cost is None else sum(len(e.partitions) * e.ms for e in cost.unowned),
    }


def agree(rows: Sequence[Any], records: Iterable[Record]) -> None:
    ours = [
        told(row) for row in sorted(rows, key=lambda r: (r["group"], r["started_ms"], r["generation"] or 0))
    ]
    theirs = [explained(each) for each in oracle(records)]
    for our, their in zip(ours, theirs, strict=True):
        if their["lag_peak"] is None:  # explain leaves the cost out where there is none
            their["lag_before"] = our["lag_before"]
        if their["outcome"] == "under way":  # which is explained by what it waits for, once it hangs
            for name in ("diagnosis", "certainty", "member_id"):
                their[name] = our[name]
        assert our == their


def test_every_table_has_the_columns_it_is_said_to_have(built: Tables) -> None:
    for table in (*tables.SILVER, *tables.GOLD):
        said = [(each.name, each.type) for each in table.columns]
        assert [(each.name, each.dataType.simpleString()) for each in built[table.name].schema] == said, (
            table.name
        )


def test_rebalances_are_as_explain_has_them(built: Tables, journal: Journal) -> None:
    agree(built["rebalances"].collect(), journal.records)


@pytest.mark.parametrize("part", [0.2, 0.55])
def test_a_journal_that_begins_and_ends_in_the_middle(
    part: float, spark: SparkSession, journal: Journal, tmp_path: Path
) -> None:
    """Retention took its beginning; what is under way at its end is told as it began."""
    counts = Counter(each.partition for each in journal.records)
    kept = [
        each
        for each in journal.records
        if part * counts[each.partition] <= each.offset < (part + 0.4) * counts[each.partition]
    ]
    made = build(bronze(spark, kept), str(tmp_path))["rebalances"].collect()
    agree(made, kept)
    assert any(row["outcome"] == "completed" for row in made)


def test_every_rebalance_that_was_made_is_told_with_its_diagnosis(built: Tables, journal: Journal) -> None:
    rows = {(row["group"], row["generation"]): row for row in built["rebalances"].collect()}
    meant = [each for each in journal.did if each.generation is not None]
    for each in meant:
        row = rows[each.group, each.generation]
        assert (row["diagnosis"], row["client_id"], row["members"]) == (
            each.what,
            each.client_id,
            each.members,
        )
        assert row["join_ms"] >= each.slow_ms
        assert row["outcome"] == "completed"
    assert len(rows) == len(meant)


def test_members_before_and_after_add_up(built: Tables) -> None:
    for row in built["rebalances"].collect():
        assert row["members_before"] + row["added"] - row["removed"] == row["members"], row


def test_who_owns_what_at_the_end_is_who_was_assigned_it(built: Tables, journal: Journal) -> None:
    owners: dict[str, dict[tuple[str, int], str]] = {}
    for row in built["ownership"].where("until_ms IS NULL").collect():
        of_group = owners.setdefault(row["group"], {})
        assert (row["topic"], row["partition"]) not in of_group
        of_group[row["topic"], row["partition"]] = row["client_id"]
    assert owners == journal.owners


def test_gaps_in_ownership_are_what_rebalances_cost(built: Tables) -> None:
    """Put together in two ways: from what moved, and from who had what when."""
    gaps: Counter[str] = Counter()
    for row in built["unavailability"].where("rebalance_id IS NOT NULL").collect():
        gaps[row["rebalance_id"]] += row["gap_ms"]
    costs = {
        row["rebalance_id"]: row["unowned_partition_ms"]
        for row in built["rebalances"].where("unowned_partition_ms > 0").collect()
    }
    assert {key: gaps[key] for key in costs} == costs


def test_sessions_are_as_many_as_there_were_beginnings(built: Tables, journal: Journal) -> None:
    began = Counter(
        (each.group, each.client_id)
        for each in journal.did
        if each.what in ("new-member", "rejoined-after-eviction", "static-member-replaced")
    )
    rows = built["member_sessions"].collect()
    assert Counter((row["group"], row["client_id"]) for row in rows) == began
    out = ("crashed", "stalled", "evicted-by-admin")
    assert sum(bool(row["evicted"]) for row in rows) == sum(each.what in out for each in journal.did)


def test_deploys_are_recognised_and_nothing_else_is(built: Tables, journal: Journal) -> None:
    rows = built["deploys"].collect()
    assert {row["group"] for row in rows} == journal.deployed
    for row in rows:
        assert set(row["names"]) >= set(journal.owners[row["group"]].values())


def test_a_failover_is_told(built: Tables, journal: Journal) -> None:
    rows = built["failover_impact"].collect()
    assert len(rows) >= journal.broker_moves
    assert not any(row["planned"] for row in rows)
    assert all(row["broker"] != row["from_broker"] for row in rows)


def test_gold_adds_up_to_silver(built: Tables) -> None:
    rows = built["rebalances"].collect()
    of_cause = Counter((row["cause"], row["diagnosis"]) for row in rows)
    for name in ("causes_per_hour", "cost_per_cause"):
        found: Counter[tuple[str, str]] = Counter()
        unowned = 0
        for row in built[name].collect():
            found[row["cause"], row["diagnosis"]] += row["rebalances"]
            unowned += row["unowned_partition_ms"]
        assert found == of_cause
        assert unowned == sum(row["unowned_partition_ms"] or 0 for row in rows)
    for row in built["group_health"].collect():
        mine = [each for each in rows if each["group"] == row["group"]]
        assert row["rebalances"] == len(mine)
        assert row["max_ms"] == max(each["duration_ms"] for each in mine)
        assert 0 < row["stable_share"] <= 1
