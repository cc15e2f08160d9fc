"""`muster-pipeline report`: the page shows what the tables hold, whatever that is."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from muster.coordinator.journal.explain.vocabulary import Diagnosis
from muster.pipeline.cli import main
from muster.pipeline.journal import tables
from muster.pipeline.report import drawing, moments, words
from muster.pipeline.report.command import PAGE
from muster.pipeline.report.facts import Asked, facts
from muster.pipeline.report.lake import Lake
from muster.pipeline.report.members import MemberNames
from tests.pipeline.lakes import NOON_MS, Page, health, rebalance, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[2] / "examples" / "spark"
HOUR_MS = 3_600_000
UGLY = (
    "<script>alert(1)</script>",
    "a\"><img src=x onerror='alert(1)'>&amp;",
    r"$\frac{1}{$",
    "\u202egnissecorp\u2066 \n\x1b[31m",
    "支払い-🚀",
    "l" * 249,
)


def report(lake: Path, *more: str) -> Page:
    """The page, written beside the lake and parsed."""
    to = lake.parent / "report"
    assert main(["report", "--from", str(lake), "--to", str(to), *more]) == 0
    return Page((to / PAGE).read_text(encoding="utf-8"))


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 1) -> str:
    """The one-line error of a refused command."""
    ended: object
    try:
        ended = main(["report", *arguments])
    except SystemExit as exited:
        ended = exited.code
    assert ended == code
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1, err
    return str(err)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Pictures take most of the time: none is drawn here, and the themes that they would have are
    recorded."""
    drawn: list[str] = []

    def png(_: object, theme: drawing.Theme) -> bytes:
        drawn.append(theme.name)
        return theme.name.encode()

    monkeypatch.setattr(drawing, "_png", png)
    return drawn


def size(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


# --- figures --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("undrawn")
def test_figures_are_those_of_the_tables(spark: SparkSession, journal_lake: Path, tmp_path: Path) -> None:
    """A lake that the pipeline built from real groups: the page shows what gold holds."""
    (tmp_path / "lake").symlink_to(journal_lake)
    page = report(tmp_path / "lake", "--top", "1000")
    gold = {
        each.name: spark.read.parquet(f"{journal_lake}/{each.layer}/{each.name}").collect()
        for each in (tables.REBALANCES, tables.LAG_SAMPLES, *tables.GOLD)
    }

    def same(told: dict[str, Any], row: Any, columns: dict[str, str]) -> None:
        """Compare headings on the page with the columns of gold that they show; NULL appears as a dash."""
        for heading, column in columns.items():
            value = row[column]
            expected = pytest.approx(value) if isinstance(value, int | float) else value
            assert told[heading] == ("–" if value is None else expected), (row, heading)

    costs = {"Rebalances": "rebalances", "Median": "p50_ms", "p95": "p95_ms", "Longest": "max_ms"}
    moves = {"Moved": "moved", "Bounced": "bounced"}
    groups = {row["Group"]: row for row in page.rows("groups")}
    for row in gold["group_health"]:
        if row["rebalances"]:
            told = groups.pop(row["group"])
            same(told, row, {**costs, **moves, "An hour": "generations_per_hour", "Evictions": "evictions"})
            same(told, row, {"Mostly because": "top_diagnosis", "Share": "top_diagnosis_share"})
            same(told, row, {"Stable": "stable_share"})
    assert not groups
    deploys = ("duration_ms", "restarted", "rebalances", "moved", "bounced", "unowned_partition_ms")
    heads = ("Took", "Restarted", "Rebalances", "Moved", "Bounced", "Partition-time")
    costs_first = sorted(
        gold["deploys"],
        key=lambda row: (-row["unowned_partition_ms"], -row["rebalances"], -row["started_ms"]),
    )
    assert [[row[each] for each in heads] for row in page.rows("deploys")] == [
        [row[each] for each in deploys] for row in costs_first
    ]
    causes = {(row["Behind it"], row["Recorded"]): row for row in page.rows("costs")}
    more = {
        "Groups": "groups", "Partition-time": "unowned_partition_ms", "Lag": "lag_growth",
        "Lag known": "lag_known", "Recovered": "recovered", "Recovery": "recovery_p50_ms",
        "Refused": "commits_refused",
    }  # fmt: skip
    for row in gold["cost_per_cause"]:
        same(causes.pop((row["diagnosis"], row["cause"])), row, {**costs, **moves, **more})
    assert not causes
    gaps = sorted((row["gap_ms"] for row in gold["unavailability"]), reverse=True)
    assert [row["Without owner"] for row in page.rows("gaps")] == gaps[:1000]
    failovers = page.rows("failovers")
    assert sum(row["Shards"] for row in failovers) == len(gold["failover_impact"])
    assert sum(row["Groups"] for row in failovers) == sum(r["groups"] or 0 for r in gold["failover_impact"])
    flapping = [row for row in gold["flapping"] if row["flapping"] and row["kind"] == "member"]
    assert len(page.tables.get("table-flapping-members", [0])) - 1 == len(flapping)
    most = {}
    for row in gold["lag_samples"]:
        most[row["group"]] = max(row["lag"], most.get(row["group"], 0))
    assert {row["Group"]: row["Highest"] for row in page.rows("lag")} == most
    total = len(gold["rebalances"])
    assert f"{total} rebalances of {len(page.rows('groups'))} groups" in page.text
    assert sum(row["Rebalances"] for row in page.rows("groups")) == total


@pytest.mark.usefixtures("undrawn")
def test_a_single_rebalance(tmp_path: Path) -> None:
    page = report(write(tmp_path / "lake", {"rebalances": [rebalance(1)], "group_health": [health()]}))
    assert (
        "billing lost most: 501 ms of partition-time, 100 % of it because a new member joined (new-member). "
        "It rebalanced once."
    ) in page.text
    assert "In all there was 1 rebalance of 1 group." in page.text
    (row,) = page.rows("groups")
    assert (row["Group"], row["Rebalances"], row["Median"], row["Stable"]) == ("billing", 1, 1_010, 0.5)
    assert sorted(each.name for each in (tmp_path / "report").glob("*.png")) == [
        "before-and-after.png", "causes-over-time.png", "costs.png", "durations.png", "groups.png",
    ]  # fmt: skip


def test_an_empty_journal_is_told_to_be_empty(tmp_path: Path) -> None:
    page = report(write(tmp_path / "lake"))
    assert "The journal is empty" in page.text
    assert page.tables == {}


@pytest.mark.usefixtures("undrawn")
def test_tables_without_a_file_are_empty(tmp_path: Path) -> None:
    lake = write(tmp_path / "lake")
    for part in lake.rglob("*.parquet"):
        part.unlink()
    assert "The journal is empty" in report(lake).text


@pytest.mark.usefixtures("undrawn")
def test_a_journal_without_rebalances_says_so(tmp_path: Path) -> None:
    page = report(write(tmp_path / "lake", {"group_health": [health()]}))
    assert "no rebalance" in page.text


@pytest.mark.usefixtures("undrawn")
def test_pictures_of_an_earlier_report_go(tmp_path: Path) -> None:
    lake = write(tmp_path / "lake", {"rebalances": [rebalance(1)], "group_health": [health()]})
    report(lake)
    assert (tmp_path / "report" / "groups.png").read_bytes() == b"light"
    report(write(tmp_path / "other"))
    assert [each.name for each in (tmp_path / "report").iterdir()] == [PAGE]


@pytest.mark.usefixtures("undrawn")
def test_only_some_groups_and_only_some_time(tmp_path: Path) -> None:
    rows = [rebalance(number, "ab"[number % 2]) for number in range(60)]
    lake = write(tmp_path / "lake", {"rebalances": rows, "group_health": [health("a"), health("b")]})
    assert {row["Group"]: row["Rebalances"] for row in report(lake).rows("groups")} == {"a": 30, "b": 30}
    (row,) = report(lake, "--group", "a").rows("groups")
    assert (row["Group"], row["Rebalances"]) == ("a", 30)
    # The journal ends two hours after the first rebalance, and they are a minute apart.
    (row,) = report(lake, "--group", "a", "--since", "1h30m").rows("groups")
    mine = [each for each in rows if each["group"] == "a" and each["started_ms"] >= NOON_MS + HOUR_MS // 2]
    assert row["Rebalances"] == len(mine) == 15
    assert row["Longest"] == max(each["duration_ms"] for each in mine)
    (cost,) = report(lake, "--group", "a", "--since", "1h30m").rows("costs")
    assert cost["Partition-time"] == sum(each["unowned_partition_ms"] for each in mine)
    page = report(lake, "--since", "2026-01-01T12:10Z", "--until", "2026-01-01T14:20:00+02:00")
    assert sum(row["Rebalances"] for row in page.rows("groups")) == 10


def test_what_lies_outside_of_the_first_and_the_last_entry(tmp_path: Path) -> None:
    """A rebalance that began before the journal, and a failover after the last entry about a group."""
    began = rebalance(-600, began_in_sight=False)
    failover = {"shard": 7, "at_ms": NOON_MS + 5 * HOUR_MS, "broker": 2, "planned": False, "groups": 1}
    rows = {"rebalances": [began, rebalance(1)], "group_health": [health()], "failover_impact": [failover]}
    page = report(write(tmp_path / "lake", rows))
    assert page.rows("groups")[0]["Rebalances"] == 2
    assert "2026-01-01 02:00:00 UTC to 2026-01-01 17:00:00 UTC" in page.text
    assert size((tmp_path / "report" / "causes-over-time.png").read_bytes())[0] > 1_000


@pytest.mark.usefixtures("undrawn")
def test_rebalances_under_way_are_told_with_how_long(tmp_path: Path) -> None:
    since_then = {"ended_ms": None, "duration_ms": None, "outcome": "under way"}
    hangs = rebalance(30, **since_then, state="PreparingRebalance", diagnosis="slow-join")
    rows = {"rebalances": [rebalance(1), hangs], "group_health": [health()]}
    page = report(write(tmp_path / "lake", rows))
    (row,) = page.rows("open")
    assert row["So far"] == 90 * 60_000
    assert (row["State"], row["Behind it"], row["Member"]) == (
        "PreparingRebalance",
        "slow-join",
        "worker-1 on 10.0.0.7",
    )
    assert (
        "1 rebalance is under way at the end of the journal, that of billing the longest: 1 h 30 min."
    ) in page.text


@pytest.mark.usefixtures("undrawn")
def test_the_command_for_more_can_be_pasted(tmp_path: Path) -> None:
    """Whatever the group's name, and even if another rebalance has no generation: pandas then has no whole
    numbers."""
    name = "a b; $(reboot)"
    rows = [rebalance(7, name, unowned_partition_ms=90_000), rebalance(8, name, generation=None)]
    page = report(write(tmp_path / "lake", {"rebalances": rows, "group_health": [health(name)]}))
    assert "muster groups why 'a b; $(reboot)' --generation 7." in page.text


@pytest.mark.usefixtures("undrawn")
def test_shards_that_moved_together_are_one_failover(tmp_path: Path) -> None:
    def loaded(shard: int, at_ms: int, broker: int) -> dict[str, Any]:
        zeros = dict.fromkeys(("rebalances_interrupted", "rebalances_after", "members_lost"), 1)
        row = {"shard": shard, "at_ms": NOON_MS + at_ms, "broker": broker, "from_broker": 3 - broker}
        return {**row, "planned": False, "took_ms": 5 + shard, "groups": 10, **zeros}

    given = [loaded(1, 0, 2), loaded(2, 900, 2), loaded(3, 400, 1), loaded(1, HOUR_MS, 2)]
    page = report(write(tmp_path / "lake", {"failover_impact": given, "group_health": [health()]}))
    told = [(row["Brokers"], row["Shards"], row["Groups"], row["Loading"]) for row in page.rows("failovers")]
    assert told == [
        ("from broker 1 to broker 2", 1, 10, 6),
        ("from broker 2 to broker 1", 1, 10, 8),
        ("from broker 1 to broker 2", 2, 20, 7),
    ]
    assert "3 failovers; the costliest, 2026-01-01 13:00:00 UTC" in page.text
    assert "For how long they had no coordinator is not known." in page.text


@pytest.mark.usefixtures("undrawn")
def test_for_how_long_a_failover_left_groups_without_a_coordinator(tmp_path: Path) -> None:
    def loaded(at_ms: int, stood_ms: int, *, planned: bool) -> dict[str, Any]:
        brokers = {"broker": 2, "from_broker": 1, "shard": 7, "groups": 3, "took_ms": 5}
        return {**brokers, "at_ms": NOON_MS + at_ms, "planned": planned, "unavailable_ms": stood_ms}

    given = [loaded(0, 3_200, planned=False), loaded(HOUR_MS, 40, planned=True)]
    rows = {"failover_impact": given, "group_health": [health()], "rebalances": [rebalance(1)]}
    page = report(write(tmp_path / "lake", rows))
    assert [row["Stood still"] for row in page.rows("failovers")] == [3_200, 40]
    assert "2 failovers; the costliest, 2026-01-01 12:00:00 UTC" in page.text
    assert "They had no coordinator for at most 3.2 s" in page.text
    assert [row["Time"] for row in page.rows("around")][1] == "during the failover"


@pytest.mark.usefixtures("undrawn")
def test_how_often_an_hour_is_told_of_an_hour_and_more(tmp_path: Path) -> None:
    """Everywhere: a journal of a minute gives nothing but the number of rebalances."""
    rows = [rebalance(0, started_ms=NOON_MS + each * 10_000, rebalance_id=f"7-{each}") for each in range(7)]
    short = health(first_ms=NOON_MS, last_ms=NOON_MS + 73_000)
    page = report(write(tmp_path / "lake", {"rebalances": rows, "group_health": [short]}))
    assert "It rebalanced 7 times in 73 s." in page.text
    assert not re.search(r"\d an hour", page.text)
    assert "An hour" not in page.rows("groups")[0] | page.rows("around")[0]
    long = health(first_ms=NOON_MS, last_ms=NOON_MS + 3_500_000 - 1)
    page = report(write(tmp_path / "long", {"rebalances": rows, "group_health": [long]}))
    assert "It rebalanced 7 times, 7.2 an hour." in page.text
    assert page.rows("groups")[0]["An hour"] == pytest.approx(7.2)


@pytest.mark.usefixtures("undrawn")
def test_what_cost_most_comes_first(tmp_path: Path) -> None:
    often = [rebalance(each, "often", unowned_partition_ms=0, diagnosis="new-member") for each in range(5)]
    rare = rebalance(9, "rare", unowned_partition_ms=90_000, diagnosis="crashed")

    def deploy(group: str, started_ms: int, lost_ms: int) -> dict[str, Any]:
        times = {"started_ms": started_ms, "ended_ms": started_ms + 60_000, "duration_ms": 60_000}
        sizes = {"restarted": 2, "members": 2, "is_static": lost_ms == 0, "names": ["a", "b"], "moved": 3}
        sizes |= {"bounced": 0, "rebalances": int(lost_ms > 0), "unowned_partition_ms": lost_ms}
        return {"group": group, **times, **sizes}

    rows = {
        "rebalances": [*often, rare],
        "deploys": [deploy("rare", NOON_MS, 800), deploy("often", NOON_MS + HOUR_MS, 0)],
        "group_health": [health("often"), health("rare")],
    }
    page = report(write(tmp_path / "lake", rows))
    assert [row["Group"] for row in page.rows("groups")] == ["rare", "often"]
    assert [row["Behind it"] for row in page.rows("costs")] == ["crashed", "new-member"]
    assert [row["Group"] for row in page.rows("deploys")] == ["rare", "often"]
    assert "2 rolling restarts; the costliest, of rare, took 60 s for 2 members" in page.text
    assert "Before and after a deploy of rare" in page.text
    assert "rare lost most: 90 s of partition-time, 100 % of it because a member crashed" in page.text
    assert "often rebalanced most: 5 times, 2.5 an hour" in page.text


@pytest.mark.usefixtures("undrawn")
def test_a_deploy_that_cost_nothing_is_not_the_one_that_is_shown(tmp_path: Path) -> None:
    deploy = {
        "group": "a", "started_ms": NOON_MS, "ended_ms": NOON_MS + 1_000, "duration_ms": 1_000,
        "restarted": 2, "members": 2, "is_static": True, "names": ["a"], "rebalances": 0, "moved": 0,
        "bounced": 0, "unowned_partition_ms": 0,
    }  # fmt: skip
    rows = {
        "rebalances": [rebalance(3, "b")],
        "deploys": [deploy],
        "group_health": [health("a"), health("b")],
    }
    page = report(write(tmp_path / "lake", rows))
    assert [row["Time"] for row in page.rows("around")][1] == "during the rebalance"


@pytest.mark.usefixtures("undrawn")
def test_every_section_is_in_the_contents(tmp_path: Path) -> None:
    page = report(write(tmp_path / "lake", {"rebalances": [rebalance(1)], "group_health": [health()]}))
    ids = [given["id"] for tag, given in page.tags if tag == "h2"]
    at = [tag for tag, _ in page.tags].index("nav")
    links = [given["href"] for tag, given in page.tags[at:] if tag == "a"]
    assert links[: len(ids) - 2] == [f"#{each}" for each in ids if each not in ("short", "contents")]


def test_members_are_called_as_everywhere_else() -> None:
    """Members that are present are named apart from those that are gone, and each group has its own names."""
    members = [("worker-111111", "worker", None), ("worker-222222", "worker", None), ("web-1", "web", "w")]
    sessions = pd.DataFrame(
        [("g", *each, ended_ms) for each, ended_ms in zip(members, (1.0, None, 1.0), strict=True)],
        columns=["group", "member_id", "client_id", "instance", "ended_ms"],
    )
    owned = pd.DataFrame([("h", *members[0], 1.0)], columns=[*sessions.columns[:4], "until_ms"])
    names = MemberNames(sessions, owned)
    gone, there, static = (names.short("g", each) for each, *_ in members)
    assert (gone, there, static) == ("worker/111111", "worker", "w")
    assert names.short("h", "worker-111111") == "worker"
    assert names.short("nobody's", "app-2f4c1f9a-6f39-4b7e-9b0e-1c2d3e005299") == "app"
    assert names.short("g", None) is None


@pytest.mark.usefixtures("undrawn")
def test_before_and_after_a_deploy(tmp_path: Path) -> None:
    deploy = {
        "group": "billing", "started_ms": NOON_MS + HOUR_MS, "ended_ms": NOON_MS + HOUR_MS + 60_000,
        "duration_ms": 60_000, "restarted": 2, "members": 2, "is_static": False, "names": ["a", "b"],
        "rebalances": 1, "moved": 3, "bounced": 1, "unowned_partition_ms": 560,
    }  # fmt: skip
    rows = [rebalance(number) for number in (1, 55, 56, 60, 62)]
    lag = [
        {
            "group": "billing",
            "at_ms": NOON_MS + minute * 60_000,
            "offset": minute,
            "source": "commit",
            "lag": lag,
        }
        for minute, lag in ((20, 999), (52, 4), (54, 8), (60, 50), (65, 6))
    ]
    page = report(
        write(
            tmp_path / "lake",
            {"rebalances": rows, "deploys": [deploy], "lag_samples": lag, "group_health": [health()]},
        )
    )
    told = {row["Time"]: row for row in page.rows("around")}
    assert [row["Rebalances"] for row in told.values()] == [2, 1, 1]
    assert [row["Highest lag"] for row in told.values()] == [8, 50, 6]
    assert told["before"]["Length"] == told["after"]["Length"] == 10 * 60_000
    assert told["before"]["Median lag"] == 6


@pytest.mark.usefixtures("undrawn")
def test_who_owned_what_round_the_worst_rebalance(tmp_path: Path) -> None:
    """For the costliest rebalance, in order; two members with one client id are told apart."""
    rows = [
        rebalance(1, unowned_partition_ms=10),
        rebalance(2, unowned_partition_ms=90_000),
        rebalance(3, "other", unowned_partition_ms=5),
    ]
    at = rows[1]["started_ms"]

    def owned(partition: int, member: str, from_ms: int, until_ms: int | None) -> dict[str, Any]:
        who = {"member_id": f"worker-{member}", "client_id": "worker", "host": "10.0.0.7"}
        times = {"from_ms": at + from_ms, "until_ms": None if until_ms is None else at + until_ms}
        return {"group": "billing", "topic": "orders", "partition": partition, **who, **times}

    gap = {
        "group": "billing", "topic": "orders", "partition": 1, "from_ms": at - 45_000, "gap_ms": 46_020,
        "until_ms": at + 1_020, "rebalance_id": "7-2", "diagnosis": "crashed",
    }  # fmt: skip
    # The next one leaves a gap as well, which is visible at the end.
    after = {**gap, "from_ms": at + 3_000, "until_ms": at + 4_000, "gap_ms": 1_000, "rebalance_id": "7-9"}
    much_later = {**after, "from_ms": at + 300_000, "until_ms": None, "gap_ms": 99_000}
    lake = write(
        tmp_path / "lake",
        {
            "rebalances": rows,
            "unavailability": [gap, after, much_later],
            "ownership": [
                owned(0, "1111", -90_000, None),
                owned(1, "2222", -90_000, -45_000),
                owned(1, "1111", 1_020, None),
            ],
            "group_health": [health(), health("other")],
        },
    )
    found = facts(Lake(str(lake)), Asked())
    assert found.worst is not None
    assert found.worst.rebalance_id == "7-2"
    frame, there, gaps = moments.gantt(found)
    assert frame.from_ms < at - 45_000 < at + 1_020 < frame.until_ms
    assert list(there.partition) == [0, 1, 1]
    assert sorted(set(there.owner)) == ["worker", "worker/r-2222"], "the one that is there now, and another"
    assert sorted(gaps.gap_ms) == [1_000, 46_020]
    page = report(lake)
    assert "The longest that a partition had no owner was 46 s: orders-1 of billing (crashed)." in page.text
    assert "1 partition has no owner at the end of the journal, the longest for 99 s" in page.text


# --- names and sizes ------------------------------------------------------------------------------------


def ugly_lake(path: Path) -> Path:
    """Every name that a user chooses is ugly, in every table."""
    number = 0
    rows: dict[str, list[dict[str, Any]]] = {}
    for each in UGLY:
        for diagnosis in ("crashed", "<b>new</b>"):
            number += 1
            who = {"member_id": f"{each}-id{number}", "client_id": each, "host": each}
            lasting = {"ended_ms": None, "duration_ms": None, "outcome": "under way"}
            at = NOON_MS + number * 60_000
            made = rebalance(number, each, **who, diagnosis=diagnosis, **(lasting if number % 2 else {}))
            del made["member_id"]
            rows.setdefault("rebalances", []).append({**made, "member_id": who["member_id"]})
            where = {"group": each, "topic": each, "partition": number}
            rows.setdefault("unavailability", []).append(
                {**where, "from_ms": at - 1_000, "until_ms": at + 500, "gap_ms": 1_500, "from_member": each,
                 "to_member": each, "rebalance_id": made["rebalance_id"], "diagnosis": diagnosis}
            )  # fmt: skip
            rows.setdefault("ownership", []).append({**where, **who, "from_ms": at - 9_000})
            rows.setdefault("lag_samples", []).append({"group": each, "at_ms": at, "lag": number})
            session = {"group": each, **who, "joined_ms": at - 9_000, "ended_ms": at, "evicted": True}
            rows.setdefault("member_sessions", []).append(session)
        flaps = {"ends": 3, "evictions": 3, "sessions": 3, "ends_in_hour_max": 3, "flapping": True, "late": 0}
        for kind, name in (("member", f"{each}@{each}"), ("host", each)):
            of = {"group": each if kind == "member" else None, "groups": 1}
            row = {"kind": kind, "name": name, **of, **flaps, "first_ms": NOON_MS, "last_ms": NOON_MS + 1}
            rows.setdefault("flapping", []).append(row)
        rows.setdefault("deploys", []).append(
            {"group": each, "started_ms": NOON_MS, "ended_ms": NOON_MS + 1_000, "duration_ms": 1_000,
             "restarted": 2, "members": 2, "is_static": True, "names": [each], "rebalances": 0, "moved": 0,
             "bounced": 0, "unowned_partition_ms": 0}
        )  # fmt: skip
        rows.setdefault("group_health", []).append(health(each))
    failover = {"shard": 7, "at_ms": NOON_MS + 60_000, "broker": 1, "planned": True, "groups": 6}
    return write(path, {**rows, "failover_impact": [failover]})


def test_names_are_text_whatever_is_in_them(tmp_path: Path) -> None:
    """No part of a name becomes a tag, and matplotlib, which warns of characters it cannot draw, has no
    reason to."""
    page = report(ugly_lake(tmp_path / "lake"), "--top", "100")
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "b"})
    assert len([tag for tag, _ in page.tags if tag == "img"]) == 10
    assert not any(name.startswith("on") for _, given in page.tags for name in given)
    groups = {row["Group"] for row in page.rows("groups")}
    assert {UGLY[0], UGLY[1], UGLY[2], UGLY[4]} < groups
    assert "\\u202egnissecorp\\u2066 \\u000a\\u001b[31m" in groups
    for table in ("gaps", "flapping-members", "flapping-hosts", "deploys", "lag", "open", "costs"):
        assert page.rows(table), table
    assert "<b>new</b>" in page.text
    for png in (tmp_path / "report").glob("*.png"):
        width, height = size(png.read_bytes())
        assert 1_000 < width < 1_300, png.name
        assert height < 1_600, png.name


@pytest.mark.usefixtures("undrawn")
def test_the_page_asks_for_nothing(tmp_path: Path) -> None:
    page = report(ugly_lake(tmp_path / "lake"))
    asked = [given.get(name) or "" for _, given in page.tags for name in ("src", "srcset", "href")]
    assert all(each.startswith(("data:image/png;base64,", "#", "")) for each in asked if each)
    assert not any(":" in each and not each.startswith("data:") for each in asked)
    (policy,) = [given["content"] for tag, given in page.tags if given.get("http-equiv")]
    assert policy is not None
    assert "default-src 'none'" in policy
    ids = {given["id"] for _, given in page.tags if given.get("id")}
    assert {each[1:] for each in asked if each.startswith("#")} <= ids


def test_thousands_of_groups(tmp_path: Path) -> None:
    names = [f"{number:04d}-{'long-' * 40}" for number in range(3_000)]
    rows = [rebalance(number % 100, name, rebalance_id=f"r{number}") for number, name in enumerate(names)]
    lake = write(tmp_path / "lake", {"rebalances": rows, "group_health": [health(each) for each in names]})
    page = report(lake, "--top", "40")
    assert len(page.rows("groups")) == 40
    assert "2,960 rows more: --top shows more." in page.text
    assert "The first 40 groups made 1.3 % of all rebalances." in page.text
    assert (tmp_path / "report" / PAGE).stat().st_size < 3_000_000
    for png in (tmp_path / "report").glob("*.png"):
        assert size(png.read_bytes())[1] < 1_800, png.name


def test_pictures_are_there_on_light_and_on_dark(undrawn: list[str], tmp_path: Path) -> None:
    page = report(write(tmp_path / "lake", {"rebalances": [rebalance(1)], "group_health": [health()]}))
    assert undrawn == ["light", "dark"] * 5
    sources = [given for tag, given in page.tags if tag == "source"]
    assert len(sources) == 5
    assert all(given["media"] == "screen and (prefers-color-scheme: dark)" for given in sources)


def test_the_causes_that_cost_most_have_colours_of_their_own() -> None:
    rare = [f"cause-{number}" for number in range(20)]
    found = drawing.colours([*rare, "crashed", "stalled"])
    own = [found[each] for each in ("crashed", "stalled", *rare[:5])]
    assert len(set(own)) == 7
    assert drawing.OTHER not in own
    assert {found[each] for each in rare[5:]} == {drawing.OTHER}


@pytest.mark.parametrize(
    ("ms", "said"),
    [
        (None, "–"), (float("nan"), "–"), (0, "0 ms"), (999.4, "999 ms"), (999.6, "1 s"), (1_234, "1.23 s"),
        (47_276, "47.3 s"), (99_949, "99.9 s"), (99_951, "1.7 min"), (3_599_999, "1 h"),
        (4_800_000, "1 h 20 min"), (172_799_000, "2 d"), (1e9, "11 d 14 h"), (-1_500, "−1.5 s"),
    ],
)  # fmt: skip
def test_durations_have_units(ms: float | None, said: str) -> None:
    assert words.duration(ms) == said


def test_every_diagnosis_has_its_words() -> None:
    assert {str(each) for each in Diagnosis if words.event(str(each)) == str(each)} == set()


def test_what_is_not_all_is_not_called_all() -> None:
    assert [words.share(part) for part in (0, 0.0001, 0.255, 0.9999, 1)] == [
        "0 %", "<0.1 %", "25.5 %", ">99.9 %", "100 %",
    ]  # fmt: skip


# --- what is refused ------------------------------------------------------------------------------------


def test_where_there_is_no_lake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = ("--to", str(tmp_path / "report"))
    nothing = tmp_path / "nothing"
    assert f"--from: there is no {nothing}" in refused(capsys, "--from", str(nothing), *to)
    (tmp_path / "file").touch()
    assert "is a file" in refused(capsys, "--from", str(tmp_path / "file"), *to)
    (tmp_path / "empty").mkdir()
    assert "muster-pipeline rebalances --to" in refused(capsys, "--from", str(tmp_path / "empty"), *to)
    (tmp_path / "ingested" / "topics" / "topic=orders").mkdir(parents=True)
    said = refused(capsys, "--from", str(tmp_path / "ingested"), *to)
    assert "muster-pipeline ingest writes them" in said
    assert "rebalances --events" in said
    assert "--from: nowhere://here cannot be read" in refused(capsys, "--from", "nowhere://here", *to)
    assert not (tmp_path / "report").exists()


def test_a_lake_that_is_not_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    lake = write(tmp_path / "lake", {"rebalances": [rebalance(1)], "group_health": [health()]})
    arguments = ("--from", str(lake), "--to", str(tmp_path / "report"))
    part = lake / "gold" / "deploys" / "part-0.parquet"
    pq.write_table(pa.table({"group": ["a"]}), part)
    assert "gold/deploys has no column" in refused(capsys, *arguments)
    part.write_bytes(b"PAR1 cut off")
    assert "gold/deploys cannot be read" in refused(capsys, *arguments)
    part.unlink()
    (part.parent / "_SUCCESS").unlink()
    part.parent.rmdir()
    assert "has no gold/deploys" in refused(capsys, *arguments)


def test_options_that_ask_for_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = write(tmp_path / "lake", {"rebalances": [rebalance(1)], "group_health": [health()]})
    arguments = ("--from", str(lake), "--to", str(tmp_path / "report"))
    assert "nothing of a group 'bilings'" in refused(capsys, *arguments, "--group", "bilings")
    said = refused(capsys, *arguments, "--until", "2020-01-01")
    assert "--since, --until: the journal has nothing in that time" in said
    assert "2026-01-01 11:59:59 UTC" in said
    said = refused(capsys, *arguments, "--since", "1h", "--until", "2h", code=2)
    assert "--since is not before --until" in said
    wrong = {"--since": ("yesterday", "1"), "--until": ("2026-13-01",), "--top": ("0", "1001")}
    for option, value in ((option, value) for option, values in wrong.items() for value in values):
        said = refused(capsys, *arguments, option, value, code=2)
        assert option in said
        assert value in said
    (tmp_path / "file").touch()
    assert "--to" in refused(capsys, "--from", str(lake), "--to", str(tmp_path / "file"))
    assert "--to" in refused(capsys, "--from", str(lake), "--to", str(tmp_path / "file" / "below"))


def test_a_moment_without_a_zone_is_utc() -> None:
    from muster.pipeline.report.command import moment

    noon = datetime.fromisoformat("2026-01-01T12:00:00+00:00").timestamp() * 1_000
    assert [moment(text).in_journal(0) for text in ("2026-01-01T12:00", "2026-01-01T14:00+02:00")] == [
        noon
    ] * 2
    assert moment("1d 1h30m").in_journal(noon) == noon - 91_800_000
    assert noon == NOON_MS


# --- examples ---------------------------------------------------------------------------------------------


def example(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"MPLBACKEND": "agg"},
    )


def test_the_script_of_cells_runs_and_shows_what_the_tables_have(tmp_path: Path) -> None:
    cost = {"cause": "member left", "diagnosis": "crashed", "rebalances": 31, "unowned_partition_ms": 4_500}
    cost |= {"moved": 3, "bounced": 1, "lag_growth": 77}
    rows = {"rebalances": [rebalance(1), rebalance(2)], "group_health": [health()], "cost_per_cause": [cost]}
    done = example("rebalance_report", str(write(tmp_path / "lake", rows)))
    assert (done.returncode, done.stderr) == (0, "")
    assert ["crashed", "31", "4.5", "3", "1", "77"] in [line.split() for line in done.stdout.splitlines()]
    done = example("rebalance_report", str(tmp_path / "nothing"))
    assert done.returncode == 1
    assert "there are no tables in" in done.stderr


def test_the_demo_does_not_write_over_anything(tmp_path: Path) -> None:
    done = example("demo", "--to", str(tmp_path))
    assert done.returncode == 1
    assert f"--to: {tmp_path} is there already" in done.stderr
