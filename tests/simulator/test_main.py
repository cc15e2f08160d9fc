"""`python -m tests.simulator`: which runs it makes, and what it reports of them."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.simulator import __main__ as program
from tests.simulator import runs as series
from tests.simulator.bugs import BUGS
from tests.simulator.simulation import Outcome


@pytest.fixture(autouse=True)
def _logs_again() -> Iterator[None]:
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seeds that were run. Seed 13 breaks something; every third run is one with a bug."""
    seeds: list[int] = []

    def simulate(seed: int, steps: int = 60, *, bug: str | None = None, logged: bool = False) -> Outcome:
        seeds.append(seed)
        outcome = Outcome(seed, steps, bug)
        outcome.seen["leader leaves"] = 2
        if seed == 13 or (bug == "secretive" and seed % 3 == 0):
            outcome.violation = "Violation: a promise"
        return outcome

    monkeypatch.setattr(series, "simulate", simulate)
    return seeds


def test_one_run(runs: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--seed", "7"]) == 0
    assert runs == [7]
    assert capsys.readouterr().out.startswith("seed 7: ")


def test_several_of_which_one_breaks(runs: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--seed", "12", "--seeds", "3", "--quiet"]) == 1
    assert runs == [12, 13, 14]
    said = capsys.readouterr().out
    assert "seed 13: Violation: a promise" in said
    assert "seed 12:" not in said
    assert "       6  leader leaves" in said
    assert "3 runs from seed 12, 1 of them broken" in said


@pytest.mark.parametrize("series", [("--seeds", "2"), ("--bugs-within", "1")])
def test_a_series_says_first_which_seed_it_has_chosen(
    series: tuple[str, str], runs: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    program.main(list(series))
    assert capsys.readouterr().out.splitlines()[0] == f"from seed {runs[0]}"


def test_runs_that_were_to_see_everything(runs: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--seed", "1", "--seeds", "2", "--covered"]) == 1
    never = capsys.readouterr().out.splitlines()[-1]
    assert never.startswith("never seen: ")
    assert "leader leaves" not in never


def test_as_many_as_there_is_time_for(
    runs: list[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([100.0, 101.0, 104.0, 105.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    assert program.main(["--seed", "1", "--for-seconds", "5", "--quiet"]) == 0
    assert runs == [1, 2]


def test_a_bug_that_is_not_caught(
    runs: list[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bugs = {name: BUGS[name] for name in ("secretive", "lost-replies")}
    monkeypatch.setattr(program, "BUGS", bugs)
    assert program.main(["--seed", "1", "--bugs-within", "4"]) == 1
    said = capsys.readouterr().out
    assert "secretive: caught in run 3: python -m tests.simulator --seed 3 --steps 60 --bug secretive" in said
    assert "lost-replies: not caught in 4 runs from seed 1" in said


def test_side_by_side() -> None:
    """Two short real runs in separate processes, started from the command line."""
    called = [sys.executable, "-m", "tests.simulator", "--seed", "1", "--seeds", "2", "--steps", "2"]
    done = subprocess.run([*called, "--processes", "2"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    said = sorted(done.stdout.splitlines()[:2])
    assert [line.split(":")[0] for line in said] == ["seed 1", "seed 2"]


def test_a_series_that_is_ended_tells_what_it_saw() -> None:
    called = [
        sys.executable,
        "-m",
        "tests.simulator",
        "--for-seconds",
        "600",
        "--steps",
        "2",
        "--processes",
        "2",
    ]
    with subprocess.Popen(called, stdout=subprocess.PIPE, text=True) as series:
        assert series.stdout is not None
        first = series.stdout.readline().strip()
        assert first.startswith("from seed ")
        assert series.stdout.readline().startswith("seed ")
        series.terminate()
        said, _ = series.communicate(timeout=60)
    assert series.returncode == 0
    assert f" runs {first}, " in said.splitlines()[-1]
