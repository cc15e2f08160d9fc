"""The timeline of a group, drawn in terminals of any width."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from muster.coordinator.commands.group_picture import can_be_drawn, draw
from muster.coordinator.journal.entries import Entry, Member
from muster.coordinator.journal.explain.names import names_in
from tests.journal.explain.test_anything import any_entry
from tests.journal.explain.test_words import stall
from tests.journal.explain.writing import T0, WEB_1, Life, member


def drawn(entries: list[Entry], width: int = 110, since: int = -(10**12), now: int = 100_000) -> str:
    paper = io.StringIO()
    console = Console(file=paper, width=width, force_terminal=True, color_system=None, highlight=False)
    draw("billing", entries, names_in(entries), since_ms=T0 + since, now_ms=T0 + now, console=console)
    return paper.getvalue()


@pytest.mark.parametrize("width", [20, 60, 110, 400])
def test_bars_fit_the_terminal(width: int) -> None:
    lines = drawn(stall().entries, width).splitlines()
    bars = lines[:4]
    assert [line.split()[0] for line in bars[:3]] == ["billing", "web-2", "web-1"]
    assert "╵" in bars[3]
    assert all(len(line) <= width for line in bars)


def grown(*members: Member) -> Life:
    """They join one after the other, a minute apart."""
    life = Life(generation=0)
    for number, who in enumerate(members):
        life.at(number * 60_000).add("member_added", who, trigger="member joined")
        life.rebalanced(who, "member joined")
    return life


def labels(life: Life, width: int) -> list[str]:
    """The members' rows up to their bars."""
    rows = drawn(life.entries, width, now=300_000).splitlines()[1:]
    count = len({each.member for each in life.entries if each.type == "member_added"})
    return [re.split("  |[▒▓█]", row)[0] for row in rows[:count]]


@pytest.mark.parametrize(
    "group", ["billing", "payments-service-prod", "payments-service-production-europe-west"]
)
@pytest.mark.parametrize("width", [40, 60, 80, 300])
def test_long_names_are_told_apart_at_every_width(group: str, width: int) -> None:
    """By default, all of Java's consumers in a group have one client id."""
    life = grown(*(member(f"consumer-{group}-1", f"10.0.0.{n}", tail=f"aaaaa{n}") for n in range(3)))
    shown = labels(life, width)
    assert re.findall(r"/aaaaa(\d)\b", "\n".join(shown)) == ["0", "1", "2"]
    assert all(each.startswith("consum") for each in shown)
    assert all(cell_len(each) <= max(width // 3, 32) for each in shown)
    if width == 300:
        assert shown == [f"consumer-{group}-1/aaaaa{n} 10.0.0.{n}" for n in range(3)]
    bars = drawn(life.entries, width, now=300_000).splitlines()[:4]
    assert all(line[-1] == "█" for line in bars)


def test_what_is_left_out_of_a_name() -> None:
    long = "consumer-payments-service-prod-1"
    ipv6 = "2001:db8:85a3:8d3:1319:8a2e:370:7348"
    life = grown(member(long, "192.168.100.200"), member(long + "0", ipv6), member("web-1", ipv6))
    assert labels(life, 80) == [
        "consumer…-prod-1 192.168.100.200",
        "consumer-payments-ser…ce-prod-10",
        "web-1",
    ]
    assert labels(life, 300)[2] == f"web-1 {ipv6}"


@pytest.mark.parametrize("width", [60, 80])
def test_wide_names_leave_the_bars_in_their_columns(width: int) -> None:
    life = grown(member("支払い処理"), WEB_1, member("注文" * 20))
    bars = drawn(life.entries, width, now=300_000).splitlines()[:4]
    assert {cell_len(line) for line in bars} == {cell_len(bars[0])}
    assert cell_len(bars[0]) <= width
    assert [line[-1] for line in bars] == ["█"] * 4
    assert bars[2].startswith("web-1 10.0.0.6 ")


@pytest.mark.parametrize(("encoding", "can"), [("utf-8", True), ("iso-8859-1", False), ("cp437", False)])
def test_terminals_that_can_show_it(encoding: str, can: bool) -> None:
    assert can_be_drawn(encoding) is can


def test_a_rebalance_of_seconds_shows_beside_quiet_hours() -> None:
    group = drawn(stall().entries, now=86_400_000).splitlines()[0]
    for bar in "█▒▓":
        assert group.count(bar) >= 3, group


def test_a_connection_that_was_replaced_is_not_closed_for_ever() -> None:
    life = Life(generation=0).add("member_added", WEB_1, trigger="member joined", session_timeout_ms=45_000)
    life.rebalanced(WEB_1, "member joined").at(60_000).add("member_disconnected", WEB_1, silent_ms=0)
    assert drawn(life.entries, now=100_000).splitlines()[1].endswith("┄")
    row = drawn(life.entries, now=600_000).splitlines()[1]
    assert row.endswith("█")
    assert "┄" in row


def test_only_what_was_asked_for() -> None:
    life = stall().at(3_600_000).add("member_removed", WEB_1, trigger="member left")
    life.rebalanced(WEB_1, "member left")
    assert drawn(life.entries, now=3_700_000).count("generation ") == 2
    assert drawn(life.entries, since=3_000_000, now=3_700_000).count("generation ") == 1


def test_many_rebalances_and_many_members_are_cut() -> None:
    life = grown(*(member(f"app-{number}") for number in range(60)))
    shown = drawn(life.entries, now=3_700_000)
    assert "the last 20 of 60 rebalances:" in shown
    assert "\n20 members not shown\n" in shown
    assert "app-59 10.0.0.7" in shown
    assert "1 member not shown" in drawn(life.entries[: life.entries.index(_added(life, 41))], now=3_700_000)


def _added(life: Life, number: int) -> Entry:
    return [each for each in life.entries if each.type == "member_added"][number]


def rows(shown: str) -> list[str]:
    """The names of the members that have a row."""
    return re.findall(r"^(app-\d+) 10", shown, re.MULTILINE)


def full(members: list[Member]) -> Life:
    """A group that they are all in at once."""
    life = Life(generation=1)
    for who in members:
        life.add("member_added", who, trigger="member joined")
    return life.rebalanced(members[0], "member joined")


@pytest.mark.parametrize("count", [60, 100])
def test_of_many_members_those_that_matter_are_drawn(count: int) -> None:
    members = [member(f"app-{number}") for number in range(count)]
    life = full(members).at(60_000).add("member_removed", members[3], trigger="session expired", silent_ms=9)
    life.rebalanced(members[3], "session expired", joins=[[members[5], 90]])
    there = [each for each in members if each is not members[3]]
    life.at(600_000).preparing(members[-1], "leader rejoined", waiting_for=tuple(there[:-1]))
    for who in there[1:-1]:
        life.at(601_000).add("member_rejoined", who, trigger="member rejoined")
    shown = rows(drawn(life.entries, now=630_000))
    assert shown == [f"app-{number}" for number in (0, 3, 5, *range(count - 37, count))]


def test_of_many_members_one_that_is_silent_is_drawn() -> None:
    members = [member(f"app-{number}") for number in range(60)]
    life = full(members).at(600_000).add("member_disconnected", members[0], silent_ms=0)
    assert rows(drawn(life.entries, now=605_000)) == ["app-0", *(f"app-{number}" for number in range(21, 60))]


def test_of_many_members_a_leader_that_owes_the_assignment_is_drawn() -> None:
    members = [member(f"app-{number}") for number in range(60)]
    life = full(members).at(600_000).preparing(members[9], "leader rejoined").at(601_000)
    life.joined(leader=members[0])
    assert rows(drawn(life.entries, now=630_000))[:2] == ["app-0", "app-21"]


def test_those_that_have_gone_do_not_keep_those_out_that_are_there() -> None:
    members = [member(f"app-{number}") for number in range(120)]
    life = full(members)
    for number in range(60):
        life.at(1_000 + number).add("member_removed", members[number], trigger="member left", silent_ms=0)
    life.rebalanced(members[59], "member left")
    assert rows(drawn(life.entries)) == [f"app-{number}" for number in (*range(40, 60), *range(100, 120))]


@settings(max_examples=100)
@given(st.lists(any_entry(), max_size=18), st.integers(1, 200), st.integers(-(10**6), 10**6))
def test_any_entries(entries: list[Entry], width: int, since: int) -> None:
    drawn(entries, width, since)
