"""How parts become figures: medians and spread, what counts as measured, and what is not written."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from tests.bench.peers import __main__ as command
from tests.bench.peers import charts, table
from tests.bench.peers.measure import Goal, Measure, Point, Quantity, Scale
from tests.bench.peers.measures import MEASURES
from tests.bench.peers.results import Part, Results
from tests.bench.peers.servers import KINDS
from tests.support.each import each

_RATE = Quantity("rate", "things", "/s", "more", axis="members", goals=(Goal(2.0, at=(10,)),))
_TIME = Quantity("seconds", "time", "s", "less", goals=(Goal(2.0),))
_MEASURE = Measure("start", "Start", "How.", (_RATE, _TIME), lambda kind, scale: [], cannot={"mock": "no."})


def _part(kind: str, number: int, *points: Point, failed: str = "", others: float = 0.0) -> Part:
    return Part(
        "start", kind, number, [point.as_json() for point in points], failed, others, 1.0, "2 cores", ""
    )


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """Of muster and Apache Kafka, read again from their file."""
    path = tmp_path / "run" / "parts.jsonl"
    first = Results(path)
    for number, rate in enumerate((100.0, 300.0, 200.0)):
        first.add(_part("muster", number, Point("rate", rate, 10), Point("seconds", rate / 1_000)))
    first.add(_part("kafka", 0, Point("rate", 90.0, 10, driver=0.95), Point("seconds", 0.3)))
    first.add(_part("kfake", 0, failed="OSError: gone"))
    return Results(path)


def test_a_value_is_the_median_of_its_rounds_with_their_spread(results: Results) -> None:
    value = results.values("start")["rate", 10, "muster"]
    assert (value.median, value.least, value.most, value.rounds) == (200, 100, 300, 3)
    assert table.cell(value) == "200 (100–300)"


def test_a_driver_without_cpu_left_is_marked(results: Results) -> None:
    assert table.cell(results.values("start")["rate", 10, "kafka"]) == "90†"


def test_what_failed_is_measured_again_and_what_was_measured_is_not(results: Results) -> None:
    assert results.has(("start", "muster", 2))
    assert not results.has(("start", "muster", 3))
    assert not results.has(("start", "kfake", 0))
    results.add(_part("kfake", 0, Point("seconds", 1.0)))
    assert Results(results.path).has(("start", "kfake", 0))


def test_a_goal_compares_in_the_direction_that_is_better(results: Results) -> None:
    rate, seconds = table.wanted([_MEASURE], results)
    assert (rate.ratio, rate.reached) == (pytest.approx(200 / 90), True)
    assert (seconds.ratio, seconds.reached) == (pytest.approx(0.3 / 0.2), False)


def test_muster_is_first_or_behind_the_best_of_the_others(results: Results) -> None:
    results.add(_part("kafka-flush", 0, Point("rate", 250.0, 10), Point("seconds", 0.1)))
    results.add(_part("kfake", 1, Point("rate", 900.0, 10), Point("seconds", 0.01)))
    _, _, rate, seconds = table.places([_MEASURE], results).splitlines()
    assert "250, Apache Kafka" in rate
    assert rate.endswith("| 0.8 times | BEHIND |")
    assert seconds.endswith("| 0.5 times | BEHIND |")
    results.add(_part("kafka-flush", 0, Point("rate", 150.0, 10), Point("seconds", 0.4)))
    _, _, rate, seconds = table.places([_MEASURE], results).splitlines()
    assert rate.endswith("| 1.33 times | first |")
    assert seconds.endswith("| 1.5 times | first |")


def test_what_is_not_for_cold_servers_is_left_out_of_their_run() -> None:
    options = argparse.Namespace(only=["start", "memory"], servers=["muster"], rounds=1)
    plan = command._plan(options, Scale(quick=False, cold=True))
    assert [measure.name for measure, _, _ in plan] == ["start"]


def test_a_section_has_a_column_for_each_kind_and_the_reasons_of_the_others(results: Results) -> None:
    lines = table.section(_MEASURE, results).splitlines()
    assert "| | muster, 1 broker | Apache Kafka" in lines[4]
    assert "| things, 10 members (/s) | 200 (100–300) | 90† |" in lines
    assert "- librdkafka's mock cluster: no." in lines
    assert "- franz-go's kfake: OSError: gone" in lines


def test_a_slope_is_that_of_the_line_through_the_medians(tmp_path: Path) -> None:
    cost = Quantity("cost", "cost", "us", "less", axis="groups", slope=True)
    measure = Measure("start", "Start", "How.", (cost,), lambda kind, scale: [])
    results = Results(tmp_path / "parts.jsonl")
    for size in (10, 100, 1_000):
        results.add(_part("muster", size, Point("cost", 7.0 * size**0.5, size)))
    results.add(_part("kafka", 0, Point("cost", 7.0, 10)))
    assert "| slope of the cost, by groups | 0.50 |  |" in table.section(measure, results).splitlines()


def test_servers_take_turns_and_what_is_for_comparison_has_one_round() -> None:
    names = ["muster", "kafka", "kafka-flush", "mock"]
    options = argparse.Namespace(only=["start"], servers=names, rounds=None)
    plan = [(kind.name, number) for _, kind, number in command._plan(options, Scale(quick=False))]
    assert plan[:5] == [("muster", 0), ("kafka", 0), ("mock", 0), ("muster", 1), ("kafka", 1)]
    assert [kind for kind, _ in plan] == ["muster", "kafka", "mock"] + 4 * ["muster", "kafka"]
    assert len(list(command._plan(options, Scale(quick=True)))) == 3


def test_every_kind_has_its_looks_and_every_measure_its_words() -> None:
    assert set(charts._LOOKS) == set(KINDS)
    for measure in MEASURES.values():
        assert set(measure.cannot) < set(KINDS)
        assert measure.words.endswith(".")
        assert {goal.beside for each in measure.quantities for goal in each.goals} <= set(KINDS)


def test_only_what_is_between_the_markers_is_written(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    table.write(page, f"{table.BEGIN}\nnew\n{table.END}")
    assert page.read_text() == f"before\n{table.BEGIN}\nnew\n{table.END}\nafter\n"
    page.write_text("no place")
    with pytest.raises(RuntimeError, match="no place for figures"):
        table.write(page, "new")


@each("page", [command.PAGE, command.PROOF, command.COLD])
def test_the_page_has_a_place_for_figures(page: Path) -> None:
    text = page.read_text()
    assert text.count(table.BEGIN) == text.count(table.END) == 1
    assert text.index(table.BEGIN) < text.index(table.END)


def test_figures_of_a_busy_machine_are_not_written(
    results: Results, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    written: list[Results] = []
    monkeypatch.setattr(command, "_write", written.append)
    monkeypatch.setattr(command, "_plan", lambda options, scale: [])
    arguments = ["--results", str(results.path), "--servers", "muster-pure", "--write"]
    assert command.main(arguments) == 0
    assert len(written) == 1
    results.add(_part("muster", 0, Point("seconds", 1.0), others=0.5))
    assert command.main(arguments) == 1
    assert len(written) == 1
