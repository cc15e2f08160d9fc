"""The journal's tables, compared with what the generator did and with what `explain` says of the same
entries."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any, Final

import pytest

from muster.coordinator.journal.entries import Entry
from muster.coordinator.journal.explain import Explanation, explain_all
from muster.coordinator.journal.explain.leaving import CLOSING_MS
from muster.coordinator.testing.topics import Record
from muster.pipeline.journal import rebalances, tables
from muster.pipeline.journal.build import build
from muster.pipeline.journal.entries import Told, read
from muster.pipeline.journal.rebalances import explained as explained_rows
from tests.journal.explain.consumer import stories
from tests.pipeline.driven import BEGINS, COMPLETED, INTERRUPTED, UNDER_WAY, Did
from tests.pipeline.generator import SHARDS, Journal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

Tables = dict[str, list["Row"]]

HOUR_MS: Final = 3_600_000


@pytest.fixture(scope="module")
def built(spark: SparkSession, journal_lake: Path) -> Tables:
    """The rows of every table; each must have the columns that its description names."""
    found = {}
    for table in (*tables.SILVER, *tables.GOLD):
        frame = spark.read.parquet(f"{journal_lake}/{table.layer}/{table.name}")
        said = [(each.name, each.type) for each in table.columns]
        assert [(each.name, each.dataType.simpleString()) for each in frame.schema] == said
        if table is tables.CAUSES_PER_HOUR:
            frame = frame.selectExpr("*", "unix_seconds(hour) AS hour_s")
        found[table.name] = frame.collect()
    return found


def bronze(spark: SparkSession, records: Iterable[Record]) -> DataFrame:
    rows = [(each.key, each.value, each.partition, each.offset) for each in records]
    return spark.createDataFrame(rows, tables.BRONZE.ddl)


def counted(rows: Iterable[Any], *names: str) -> Counter[Any]:
    return Counter(tuple(row[name] for name in names) for row in rows)


# --- rebalances, against explain ----------------------------------------------------------------------------


def told(row: Any) -> dict[str, Any]:
    """A row of `rebalances`, as far as `explain` reports the same."""
    names = (
        "group type generation outcome state started_ms ended_ms cause diagnosis certainty member_id "
        "restarts join_ms assignment_ms sync_ms target_ms reconcile_ms partitions kept moved lost "
        "commits_refused lag_before lag_peak recovered_ms"
    )
    said = {name: row[name] for name in names.split()}
    return said | {"unowned_partition_ms": row["unowned_partition_ms"] or 0}


def explained(each: Explanation) -> dict[str, Any]:
    cost, moved, phases = each.cost, each.moved, each.phases
    assert phases is not None
    return {
        "group": each.group,
        "type": each.kind.value,
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
        "target_ms": phases.target_ms,
        "reconcile_ms": phases.reconcile_ms,
        "partitions": moved and moved.partitions,
        "kept": moved and moved.kept,
        "moved": moved and moved.moved,
        "lost": moved and moved.lost,
        "commits_refused": 0 if cost is None else cost.commits_refused,
        "lag_before": cost and cost.lag_before,
        "lag_peak": cost and cost.lag.peak,
        "recovered_ms": cost and cost.recovered_ms,
        "unowned_partition_ms": 0 if cost is None else sum(len(e.partitions) * e.ms for e in cost.unowned),
    }


def agree(rows: Sequence[Any], records: Iterable[Record]) -> None:
    ours = sorted(
        map(told, rows), key=lambda each: (each["group"], each["started_ms"], each["generation"] or 0)
    )
    theirs = sorted(
        map(explained, explain_all([Entry.from_json(each.value or b"") for each in records])),
        key=lambda each: (each["group"], each["started_ms"], each["generation"] or 0),
    )
    for our, their in zip(ours, theirs, strict=True):
        if their["lag_peak"] is None:  # explain leaves out the cost if there is none
            their["lag_before"] = our["lag_before"]
        if their["outcome"] == UNDER_WAY:  # explained by what it waits for, once it hangs
            for name in ("diagnosis", "certainty", "member_id"):
                their[name] = our[name]
        assert our == their


def test_rebalances_are_as_explain_has_them(built: Tables, journal: Journal) -> None:
    agree(built["rebalances"], journal.records)


def in_order(records: Iterable[Record]) -> Iterator[tuple[int, str | None, Told]]:
    """In the order in which Spark hands them to Python."""
    found = ((each.partition, read(each.offset, each.value or b"")) for each in records)
    told = [(shard, each.entry.group, each) for shard, each in found if each is not None]
    return iter(sorted(told, key=lambda each: (each[0], each[1] is not None, each[1], each[2].offset)))


def test_journals_that_begin_and_end_in_the_middle(journal: Journal) -> None:
    """Retention removed the beginning; a rebalance still under way at the end is reported by how it began."""
    counts = Counter(each.partition for each in journal.records)
    kept: list[Record] = []
    for number, part in enumerate((0.2, 0.45, 0.55), 1):
        for each in journal.records:
            if part * counts[each.partition] <= each.offset < (part + 0.4) * counts[each.partition]:
                kept.append(_renamed(each, number))
    now_ms = max(Entry.from_json(each.value or b"").at_ms for each in kept)
    rows = [_aged(row, now_ms) for row in explained_rows(in_order(kept))]
    agree(rows, kept)
    assert any(row["outcome"] == COMPLETED for row in rows)
    assert any(row["outcome"] == UNDER_WAY for row in rows)


def _aged(row: dict[str, Any], now_ms: int) -> dict[str, Any]:
    """The same as `aged` does."""
    is_young = (row["diagnosis"], row["certainty"]) == ("poll-deadline-missed", "possible")
    is_old = is_young and now_ms - row["started_ms"] > CLOSING_MS
    return {**dict.fromkeys(tables.REBALANCES.names), **row} | ({"certainty": "likely"} if is_old else {})


@pytest.mark.parametrize("chunk", [1, 7, 60])
def test_a_group_too_long_for_memory_is_told_the_same(
    journal: Journal, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = list(explained_rows(in_order(journal.records)))
    monkeypatch.setattr(rebalances, "CHUNK", chunk)
    assert sorted(map(repr, explained_rows(in_order(journal.records)))) == sorted(map(repr, whole))


@pytest.fixture(scope="module")
def small(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """The tables of small, hand-made journals."""
    records = [*_brief(), *_strange(), *_two_failovers(), *_returned()]
    numbered = [each._replace(offset=offset) for offset, each in enumerate(records)]
    made = build(bronze(spark, numbered), str(tmp_path_factory.mktemp("small")))
    names = (
        "rebalances member_sessions ownership unavailability group_health flapping deploys failover_impact"
    )
    return {name: made[name].collect() for name in names.split()}


def _strange() -> list[Record]:
    """Values that are no entries, numbers too large for any column, halves of characters, lists with wrong
    items, and more partitions and rows than Spark gets at once."""
    strange: dict[str, Any] = {
        "lag": 1 << 70, "members": 1 << 40, "dropped": {}, "joins": [[None, 1], "x"], "generation": True,
        "reason": "\ud800", "member": {"id": "\udfff", "client_id": 7},
    }  # fmt: skip
    moves = [["orders", 0, None], 7, *(["t" * 249, number, "a" * 99, "b" * 99] for number in range(1_000))]
    records = [
        each for at in range(250) for each in _rebalance("many", 1_000 * at, 1_000 * at + 9, "x", "a", [])
    ]
    records += _rebalance("\ud800", 10, 20, "member left", "a", [None, "a"], **strange)
    records += _rebalance("large", 10, 20, "member left", "a", [None, "a"], moves=moves)
    records += [_record("large", {"type": "state_changed", "at_ms": at_ms}) for at_ms in ("1", None, 1 << 80)]
    return records + [
        _record("large", {})._replace(value=value) for value in (b"?", b"[]", b"\xff", b'"x"', None)
    ]


def test_whatever_a_journal_holds_comes_out_as_rows(small: Tables) -> None:
    """A value that does not fit its column becomes NULL."""
    rows = [row for row in small["rebalances"] if row["group"] not in ("brief", "back", "failed", *RETURNED)]
    assert Counter(row["group"] for row in rows) == {"many": 250, "?": 1, "large": 1}
    (odd,) = (row for row in rows if row["group"] == "?")
    assert (odd["member_id"], odd["reason"], odd["client_id"], odd["lag"]) == ("?", "?", "", None)
    assert (odd["members"], odd["dropped"], odd["generation"], odd["slowest_ms"]) == (None, None, None, None)
    (large,) = (row for row in rows if row["group"] == "large")
    assert (len(large["moves"]), large["bounced"], large["unowned_partitions"]) == (1_000, 1_000, 1_000)


def _renamed(record: Record, number: int) -> Record:
    """The same record for another group, in another shard."""
    value = record.value or b""
    shard = record.partition + number * SHARDS
    value = value.replace(b'"shard":%d,' % record.partition, b'"shard":%d,' % shard, 1)
    if record.key is not None:
        value = value.replace(b'"group":"', b'"group":"%d-' % number, 1)
    return record._replace(partition=shard, value=value, key=record.key and b"%d-" % number + record.key)


# --- rebalances, against what was done ----------------------------------------------------------------------


def test_every_rebalance_that_was_made_is_told_with_its_diagnosis(built: Tables, journal: Journal) -> None:
    rows = {(row["group"], row["generation"], row["outcome"]): row for row in built["rebalances"]}
    meant = [each for each in journal.did if each.outcome is not None]
    for each in meant:
        row = rows.pop((each.group, each.generation, each.outcome))
        assert (row["diagnosis"], row["client_id"], row["host"]) == (each.what, each.client_id, each.host)
        if each.outcome == COMPLETED:
            assert (row["members"], row["moved"]) == (each.members, each.moved)
            assert row["join_ms"] >= each.slow_ms
            assert (row["assignment_ms"] or 0) >= each.assignment_ms
            if each.silent_ms and each.moved:
                assert row["unowned_max_ms"] >= each.silent_ms + each.slow_ms + each.assignment_ms
    assert not rows


def test_diagnoses_are_what_the_brokers_themselves_say(built: Tables, journal: Journal) -> None:
    """Asked through the handles of the test's brokers, the way `muster groups why` asks."""
    rows = [row for row in built["rebalances"] if row["outcome"] == COMPLETED]
    assert {(row["group"], row["generation"]): row["diagnosis"] for row in rows} == journal.whys


def test_members_before_and_after_add_up(built: Tables) -> None:
    """If a LeaveGroup was lost with a dying broker, its group has one member more than that broker
    reported."""
    broken = {row["group"] for row in built["rebalances"] if row["outcome"] == INTERRUPTED}
    for row in built["rebalances"]:
        if row["outcome"] == COMPLETED and row["group"] not in broken:
            assert row["members_before"] + row["added"] - row["removed"] == row["members"], row


# --- silver -------------------------------------------------------------------------------------------------


def test_who_owns_what_at_the_end_is_who_was_assigned_it(built: Tables, journal: Journal) -> None:
    owners: dict[str, dict[tuple[str, int], str]] = defaultdict(dict)
    for row in built["ownership"]:
        if row["until_ms"] is None:
            assert (row["topic"], row["partition"]) not in owners[row["group"]]
            owners[row["group"]][row["topic"], row["partition"]] = row["client_id"]
    assert owners == journal.owners


def test_sessions_are_those_that_there_were(built: Tables, journal: Journal) -> None:
    began = Counter((each.group, each.client_id, each.host) for each in journal.did if each.what in BEGINS)
    rows = built["member_sessions"]
    assert counted(rows, "group", "client_id", "host") == began
    ended = Counter((each.group, each.client_id) for each in journal.did if each.is_end)
    over = [row for row in rows if row["ended_ms"] is not None]
    assert counted(over, "group", "client_id") == ended
    out = Counter((each.group, each.client_id) for each in journal.did if each.evicts)
    assert counted([row for row in rows if row["evicted"]], "group", "client_id") == out


def test_ends_of_sessions_are_explained_by_the_rebalances_they_began(built: Tables, journal: Journal) -> None:
    meant = Counter(
        (each.group, each.client_id, each.what)
        for each in journal.did
        if each.is_end and each.outcome is not None
    )
    found = [row for row in built["member_sessions"] if row["end_diagnosis"] is not None]
    assert counted(found, "group", "client_id", "end_diagnosis") == meant
    by_id = {row["rebalance_id"]: row for row in built["rebalances"]}
    assert all(by_id[row["end_rebalance_id"]]["member_id"] == row["member_id"] for row in found)


# --- gold ---------------------------------------------------------------------------------------------------


def percentile(values: Iterable[int], part: float) -> float | None:
    """Interpolated; None without values."""
    ordered = sorted(values)
    if not ordered:
        return None
    at = part * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def check_costs(row: Any, of: Sequence[Any]) -> None:
    """`of`: the rebalances that the row sums up."""
    took = [each["duration_ms"] for each in of if each["duration_ms"] is not None]
    assert row["rebalances"] == len(of)
    assert row["p50_ms"] == pytest.approx(percentile(took, 0.5))
    assert row["p95_ms"] == pytest.approx(percentile(took, 0.95))
    assert row["max_ms"] == max(took, default=None)
    for name in ("moved", "bounced", "unowned_partition_ms"):
        assert row[name] == sum(each[name] or 0 for each in of)


def test_causes_per_hour(built: Tables) -> None:
    def key(row: Any) -> tuple[int, str, str]:
        return row["started_ms"] // HOUR_MS, row["cause"], row["diagnosis"]

    meant = {which: list(rows) for which, rows in groupby(sorted(built["rebalances"], key=key), key=key)}
    assert len(meant) > 10
    assert len(built["causes_per_hour"]) == len(meant)
    for row in built["causes_per_hour"]:
        of = meant[row["hour_s"] * 1_000 // HOUR_MS, row["cause"], row["diagnosis"]]
        check_costs(row, of)
        assert row["groups"] == len({each["group"] for each in of})


def test_cost_per_cause(built: Tables, journal: Journal) -> None:
    by_cause = defaultdict(list)
    for row in built["rebalances"]:
        by_cause[row["cause"], row["diagnosis"]].append(row)
    assert len(built["cost_per_cause"]) == len(by_cause)
    for row in built["cost_per_cause"]:
        of = by_cause[row["cause"], row["diagnosis"]]
        check_costs(row, of)
        recovered = [each["recovery_ms"] for each in of if each["recovery_ms"] is not None]
        assert row["recovered"] == len(recovered)
        assert row["recovery_p50_ms"] == pytest.approx(percentile(recovered, 0.5))
        assert row["recovery_max_ms"] == max(recovered, default=None)
        assert row["duration_ms"] == sum(each["duration_ms"] or 0 for each in of)
    by_diagnosis: Counter[str] = Counter()
    for row in built["cost_per_cause"]:
        by_diagnosis[row["diagnosis"]] += row["rebalances"]
    assert by_diagnosis == Counter(each.what for each in journal.did if each.outcome is not None)
    refused = sum(each.what == "commit-refused" for each in journal.did)
    assert sum(row["commits_refused"] for row in built["cost_per_cause"]) == refused


def test_lag_that_a_crash_made_and_when_it_was_worked_off(built: Tables, journal: Journal) -> None:
    rows = {(row["group"], row["generation"]): row for row in built["rebalances"]}
    for each in journal.backlogs:
        row = rows[each.group, each.generation]
        assert (row["diagnosis"], row["lag_before"], row["lag_peak"]) == ("crashed", 0, each.growth)
        assert row["ended_ms"] + 11_000 <= row["recovered_ms"] <= each.recovered_ms
        assert row["recovery_ms"] == row["recovered_ms"] - row["ended_ms"]
    growth = sum(row["lag_growth"] for row in built["cost_per_cause"] if row["diagnosis"] == "crashed")
    crashes = [row for row in built["rebalances"] if row["diagnosis"] == "crashed"]
    grown = [
        max(row["lag_peak"] - row["lag_before"], 0)
        for row in crashes
        if row["lag_peak"] is not None and row["lag_before"] is not None
    ]
    # Records for other groups add to the lag of a group that has another crash meanwhile.
    assert growth == sum(grown) >= sum(each.growth for each in journal.backlogs)
    samples = [row for row in built["lag_samples"] if row["source"] == "commit"]
    assert all(row["lag"] >= sum(each["lag"] for each in row["lags"]) for row in samples)


def test_group_health(built: Tables, journal: Journal) -> None:
    assert {row["group"] for row in built["group_health"]} == set(journal.members)
    for row in built["group_health"]:
        group = row["group"]
        mine = [each for each in journal.did if each.group == group]
        made = [each for each in mine if each.outcome is not None]
        check_costs(row, [each for each in built["rebalances"] if each["group"] == group])
        assert row["rebalances"] == len(made)
        assert row["evictions"] == sum(each.evicts for each in mine)
        assert row["near_misses"] == sum(each.what == "heartbeat-late" for each in mine)
        assert row["commits_refused"] == sum(each.what == "commit-refused" for each in mine)
        times = Counter(each.what for each in made)
        assert times[row["top_diagnosis"]] == max(times.values())
        assert row["top_diagnosis_share"] == pytest.approx(max(times.values()) / len(made))
        hours = (row["last_ms"] - row["first_ms"]) / HOUR_MS
        over = sum(each.outcome != UNDER_WAY for each in made)
        assert row["generations_per_hour"] == pytest.approx(over / max(hours, 1.0))
        assert 0.5 < row["stable_share"] < 1


def test_the_rebalance_that_is_under_way_is_found(built: Tables, journal: Journal) -> None:
    (left,) = [each for each in journal.did if each.outcome == UNDER_WAY]
    for row in built["group_health"]:
        is_open = row["group"] == left.group
        assert row["under_way"] is is_open
        assert row["state"] == ("PreparingRebalance" if is_open else "Stable")
        assert (row["under_way_ms"] is not None) is is_open
        assert row["hanging"] is False  # not long enough
    last = {each.group: each.members for each in journal.did if each.outcome == COMPLETED}
    assert {row["group"]: row["members"] for row in built["group_health"]} == last


def test_gaps_in_ownership_are_what_rebalances_cost(built: Tables) -> None:
    """Computed in two ways: from what moved, and from who owned what when."""
    gaps: Counter[str] = Counter()
    for row in built["unavailability"]:
        assert row["gap_ms"] > 0
        if row["rebalance_id"] is not None:
            gaps[row["rebalance_id"]] += row["gap_ms"]
    costs = {
        row["rebalance_id"]: row["unowned_partition_ms"]
        for row in built["rebalances"]
        if row["unowned_partition_ms"]
    }
    assert {key: gaps[key] for key in costs} == costs


def _brief() -> list[Record]:
    return [
        *_rebalance("brief", 10_000, 10_100, "member joined", "a", [None, "a"]),
        *_rebalance("brief", 20_000, 20_300, "member left", "a", ["a", "b"]),
        *_rebalance("brief", 20_300, 20_700, "member left", "b", ["b", "c"]),
        *_rebalance("back", 10_000, 10_100, "member joined", "a", [None, "a"]),
        *_rebalance("back", 20_000, 20_300, "member left", "a", ["a", None]),
        *_rebalance("back", 20_302, 20_700, "member joined", "d", [None, "d"]),
    ]


def test_each_gap_is_the_cost_of_the_rebalance_that_ends_it(small: Tables) -> None:
    """A member that leaves in the millisecond in which it gets a partition was its owner all the same. A
    partition of a member that left, which the assignment gave to nobody, counts from that assignment on, if
    the next one assigns it."""
    brief = {
        name: [row for row in small[name] if row["group"] in ("brief", "back")]
        for name in ("rebalances", "unavailability")
    }
    gaps = [
        (row["group"], row["from_ms"], row["until_ms"], row["from_member"], row["to_member"])
        for row in brief["unavailability"]
    ]
    assert sorted(gaps) == [
        ("back", 20_300, 20_700, "a", "d"),
        ("brief", 20_000, 20_300, "a", "b"),
        ("brief", 20_300, 20_700, "b", "c"),
    ]
    costs = sorted(row["unowned_partition_ms"] for row in brief["rebalances"] if row["unowned_partition_ms"])
    assert costs == [300, 400, 400]
    test_gaps_in_ownership_are_what_rebalances_cost(brief)


def _rebalance(
    group: str, began_ms: int, ended_ms: int, trigger: str, by: str, move: list[str | None], **more: Any
) -> list[Record]:
    """A rebalance that member `by` triggers, and that moves orders-0 from one member to another."""
    came = trigger == "member joined"
    who = {"id": by, "client_id": by, "host": "127.0.1.1", "instance": None}
    preparing, completing = "PreparingRebalance", "CompletingRebalance"
    entries: list[dict[str, Any]] = [
        {"type": "member_added" if came else "member_removed", "at_ms": began_ms, "member": who},
        {"type": "state_changed", "at_ms": began_ms, "from_state": "Stable", "to_state": preparing},
        {"type": "state_changed", "at_ms": ended_ms, "from_state": preparing, "to_state": completing},
        {"type": "assigned", "at_ms": ended_ms, "moves": [["orders", 0, *move]]},
        {"type": "state_changed", "at_ms": ended_ms, "from_state": completing, "to_state": "Stable"},
        {"type": "rebalance_completed", "at_ms": ended_ms, "started_ms": began_ms, "members": 2},
    ]
    return [_record(group, {"trigger": trigger, **each, **more}) for each in entries]


def _record(group: str, told: dict[str, Any]) -> Record:
    value = json.dumps({"v": 1, "group": group, "shard": 0, **told}).encode()
    return Record("__group_events", 0, 0, 0, group.encode(errors="replace"), value, ())


def test_partitions_that_nobody_has_now(built: Tables, journal: Journal) -> None:
    """The partitions of the member that left last, while the others have not noticed."""
    (left,) = [each for each in journal.did if each.outcome == UNDER_WAY]
    there = {
        (row["group"], row["topic"], row["partition"])
        for row in built["ownership"]
        if row["group"] == left.group
    }
    held = {(left.group, *part) for part in journal.owners[left.group]}
    open_now = {
        (row["group"], row["topic"], row["partition"])
        for row in built["unavailability"]
        if row["until_ms"] is None
    }
    assert left.client_id not in journal.owners[left.group].values()
    assert open_now
    assert open_now <= there - held


def _two_failovers() -> list[Record]:
    """The first interrupts a rebalance, which then runs to its end; the second interrupts nothing."""
    rebalance = _rebalance("failed", 10_000, 10_100, "member joined", "a", [None, "a"], shard=1)
    again = _rebalance("failed", 11_000, 11_100, "member joined", "b", ["a", "b"], shard=1)
    records = [*rebalance[:2], _loaded(10_050, 2, 1), *again, _loaded(20_000, 3, 2)]
    return [each._replace(partition=1) for each in records]


def _loaded(at_ms: int, broker: int, from_broker: int) -> Record:
    told = {"type": "shard_loaded", "at_ms": at_ms, "broker": broker, "from_broker": from_broker}
    return _record("", {**told, "group": None, "shard": 1})._replace(key=None)


def test_a_failover_has_interrupted_only_what_it_interrupted(small: Tables) -> None:
    rows = [(row["from_broker"], row["rebalances_interrupted"]) for row in small["failover_impact"]]
    assert sorted(rows) == [(1, 1), (2, 0)]


def _returned() -> list[Record]:
    return [
        _record(group, json.loads(each._replace(group=group, shard=0).to_json()))
        for group, story in RETURNED.items()
        for each in stories.told("topic orders 2\n" + dedent(story))
    ]


RETURNED: Final = {
    "left": """
        alice beat topics=orders
        advance 5s
        alice beat epoch=-1
        advance 1s
        alice beat epoch=0 topics=orders
        advance 9s
        alice beat epoch=-1
        advance 2s
        alice beat epoch=0 topics=orders
    """,
    "expired": """
        alice beat topics=orders
        bob beat topics=orders
        alice beat
        alice beat owned=orders-0
        bob beat
        advance 40s
        alice beat
        advance 7s
        bob beat epoch=0 topics=orders
        alice beat
    """,
    "given": """
        alice beat topics=orders
        bob beat topics=orders
        alice beat
        alice beat owned=orders-0
        bob beat
        advance 40s
        alice beat
        advance 6s
        alice beat
        advance 1s
        bob beat epoch=0 topics=orders
        advance 1s
        alice beat owned=orders-0
        bob beat
    """,
    "static": """
        alice beat topics=orders instance=one
        advance 5s
        alice beat epoch=-2
        advance 3s
        alice beat epoch=0 topics=orders instance=one
    """,
    "subscribed": """
        alice beat topics=orders
        bob beat topics=orders
        alice beat
        alice beat owned=orders-0
        bob beat
        advance 1s
        alice beat epoch=-1
        disconnect alice
        advance 1s
        bob beat
        alice beat epoch=0 topics=orders
        bob beat owned=orders-1
        alice beat
        advance 1s
        bob beat epoch=-1
        disconnect bob
        advance 1s
        alice beat
        bob beat epoch=0 topics=orders
        alice beat owned=orders-0
        bob beat
    """,
}
"""Stories of members of consumer groups that come back under the ids that they had: to an empty group, before
their partitions were given to others, after that, as static members, and over another connection."""


def _seconds(rows: Iterable[Any], *names: str) -> dict[str, list[tuple[Any, ...]]]:
    """Columns of the rows by group, with points in time as seconds since the story began."""
    found: dict[str, list[tuple[Any, ...]]] = {group: [] for group in RETURNED}
    for row in rows:
        if row["group"] in found:
            values = [
                (row[name] - 1_700_000_000_000) / 1_000
                if name.endswith("_ms") and row[name] is not None
                else row[name]
                for name in names
            ]
            found[row["group"]].append(tuple(values))
    return {group: sorted(rows, key=repr) for group, rows in found.items()}


def test_a_member_that_comes_back_under_its_id_has_another_session(small: Tables) -> None:
    sessions = _seconds(small["member_sessions"], "member_id", "joined_ms", "ended_ms", "end_cause")
    expired = [
        ("alice-1", 0, None, None),
        ("bob-1", 0, 45, "session expired"),
        ("bob-1", 47, None, None),
    ]
    assert sessions == {
        "left": [
            ("alice-1", 0, 5, "member left"),
            ("alice-1", 17, None, None),
            ("alice-1", 6, 15, "member left"),
        ],
        "expired": expired,
        "given": expired,
        "static": [("alice-1", 0, 8, "static member returned"), ("alice-1", 8, None, None)],
        "subscribed": [
            ("alice-1", 0, 1, "member left"),
            ("alice-1", 2, None, None),
            ("bob-1", 0, 3, "member left"),
            ("bob-1", 4, None, None),
        ],
    }
    health = {row["group"]: row["evictions"] for row in small["group_health"] if row["group"] in RETURNED}
    assert health == {"left": 0, "expired": 1, "given": 1, "static": 0, "subscribed": 0}
    flapping = _seconds(small["flapping"], "name", "sessions", "ends", "evictions")
    assert flapping["left"] == [("alice@127.0.0.1", 3, 2, 0)]
    assert flapping["expired"] == [("alice@127.0.0.1", 1, 0, 0), ("bob@127.0.0.1", 2, 1, 1)]


def test_a_session_has_an_end_diagnosis_if_its_own_end_began_a_rebalance(small: Tables) -> None:
    ends = _seconds(small["member_sessions"], "joined_ms", "end_diagnosis")
    assert ends["left"] == [(0, "clean-shutdown"), (17, None), (6, "clean-shutdown")]
    assert ends["given"] == [(0, "stalled"), (0, None), (47, None)]


def test_a_member_that_comes_back_under_its_id_owns_what_it_has_now(small: Tables) -> None:
    owned = _seconds(small["ownership"], "partition", "member_id", "from_ms", "until_ms")
    assert owned == {
        "left": [(part, "alice-1", *span) for part in (0, 1) for span in ((0, 5), (17, None), (6, 15))],
        "expired": [
            (0, "alice-1", 0, None),
            (1, "alice-1", 0, 0),
            (1, "bob-1", 0, 0),
            (1, "bob-1", 47, None),
        ],
        "given": [
            (0, "alice-1", 0, None),
            (1, "alice-1", 0, 0),
            (1, "alice-1", 46, 48),
            (1, "bob-1", 0, 0),
            (1, "bob-1", 48, None),
        ],
        "static": [(part, "alice-1", *span) for part in (0, 1) for span in ((0, 0), (8, None))],
        "subscribed": [
            (0, "alice-1", 0, 1),
            (0, "alice-1", 4, None),
            (0, "bob-1", 2, 3),
            (1, "alice-1", 0, 0),
            (1, "alice-1", 4, 4),
            (1, "bob-1", 0, 3),
            (1, "bob-1", 4, None),
        ],
    }
    gaps = _seconds(small["unavailability"], "partition", "from_ms", "until_ms", "from_member", "to_member")
    assert gaps == {
        "left": [(part, *span, "alice-1", "alice-1") for part in (0, 1) for span in ((15, 17), (5, 6))],
        "expired": [(1, 0, 47, "bob-1", "bob-1")],
        "given": [(1, 0, 46, "bob-1", "alice-1")],
        "static": [(part, 0, 8, "alice-1", "alice-1") for part in (0, 1)],
        "subscribed": [
            (0, 1, 2, "alice-1", "bob-1"),
            (0, 3, 4, "bob-1", "alice-1"),
            (1, 3, 4, "bob-1", "alice-1"),
        ],
    }


def test_members_that_come_back_under_their_ids_are_no_deploy(small: Tables) -> None:
    """A process that starts has another id."""
    assert not [row for row in small["deploys"] if row["group"] in RETURNED]


def test_flapping_members_and_hosts(built: Tables, journal: Journal) -> None:
    def members(each: Did) -> tuple[str, str, str | None]:
        return "member", each.instance or f"{each.client_id}@{each.host}", each.group

    def hosts(each: Did) -> tuple[str, str, str | None]:
        return "host", each.host, None

    sessions: Counter[Any] = Counter()
    ends: Counter[Any] = Counter()
    evictions: Counter[Any] = Counter()
    late: Counter[Any] = Counter()
    groups: dict[Any, set[str]] = defaultdict(set)
    for each in journal.did:
        for key in (members(each), hosts(each)):
            sessions[key] += each.what in BEGINS
            ends[key] += each.is_end
            evictions[key] += each.evicts
            late[key] += each.what == "heartbeat-late"
            if each.what in BEGINS:
                groups[key].add(each.group)
    rows = {(row["kind"], row["name"], row["group"]): row for row in built["flapping"]}
    assert rows.keys() == groups.keys()
    for key, row in rows.items():
        # A duplicate that took over counts on its own host, and so does its end.
        assert row["sessions"] == sessions[key], key
        assert row["evictions"] == evictions[key], key
        assert row["late"] == late[key], key
        assert row["groups"] == len(groups[key]), key
    assert sum(row["ends"] for key, row in rows.items() if key[0] == "host") == sum(ends.values()) // 2
    for key, row in rows.items():
        over = sorted(
            each["ended_ms"]
            for each in built["member_sessions"]
            if each["ended_ms"] is not None
            and (
                each["host"] == row["name"]
                if key[0] == "host"
                else (each["group"], each["instance"] or f"{each['client_id']}@{each['host']}")
                == (row["group"], row["name"])
            )
        )
        busiest = max((n + 1 - bisect_left(over, at - HOUR_MS) for n, at in enumerate(over)), default=0)
        assert (row["ends"], row["ends_in_hour_max"], row["flapping"]) == (len(over), busiest, busiest >= 3)
        assert (row["first_ms"], row["last_ms"]) == ((over[0], over[-1]) if over else (None, None))
    found = {(key[2], key[1].split("@")[0]) for key, row in rows.items() if row["flapping"] and key[2]}
    assert journal.flapped <= found


def test_deploys_are_recognised_and_nothing_else_is(built: Tables, journal: Journal) -> None:
    assert len(journal.deploys) == len(built["deploys"])
    rows = {row["group"]: row for row in built["deploys"]}
    for each in journal.deploys:
        row = rows[each.group]
        during = [
            made
            for made in built["rebalances"]
            if made["group"] == each.group and each.began_ms <= made["started_ms"] <= each.ended_ms
        ]
        assert frozenset(row["names"]) == each.names
        assert row["is_static"] is each.is_static
        assert row["restarted"] == row["members"] == len(each.names)
        assert each.began_ms - (HOUR_MS if each.is_static else 0) <= row["started_ms"]
        assert row["started_ms"] < row["ended_ms"] <= each.ended_ms
        assert row["duration_ms"] == row["ended_ms"] - row["started_ms"]
        assert row["rebalances"] == len(during) == (0 if each.is_static else 2 * len(each.names))
        for name in ("moved", "bounced", "unowned_partition_ms"):
            assert row[name] == sum(made[name] or 0 for made in during)


def test_a_failover_is_told_with_what_it_did(built: Tables, journal: Journal) -> None:
    (failover,) = journal.failovers
    rows = {row["shard"]: row for row in built["failover_impact"]}
    assert rows.keys() == failover.shards.keys()
    for shard, row in rows.items():
        assert (row["from_broker"], row["planned"]) == (failover.from_broker, False)
        assert row["unavailable_ms"] > 0, "since the broker that died was heard of last"
        assert row["broker"] != failover.from_broker
        assert row["groups"] == failover.shards[shard]
        assert row["rebalances_interrupted"] == (shard == failover.interrupted)
        assert row["members_lost"] == failover.lost[shard]
        after = [
            each
            for each in built["rebalances"]
            if each["shard"] == shard and row["at_ms"] <= each["started_ms"] <= row["at_ms"] + 5 * 60_000
        ]
        assert row["rebalances_after"] == len(after)
        assert len(after) >= failover.lost[shard]
