"""Fifty seeds hold every promise, planted bugs are caught, and a seed replays."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulator.bugs import BUGS
from tests.simulator.simulation import simulate

SEEDS = range(50)
ROOT = Path(__file__).parents[2]

CAUGHT_BY = {
    "reply-before-append": "before it was durable",
    "lost-records": "before it was durable",
    "lost-replies": "neither answered nor closed in time",
    "forgetful-load": "the store would be loaded as|was acknowledged before|two owners|two assignments",
    "secretive": "has no entry",
    "unfenced-store": "the store would be loaded as|was acknowledged before|went back|two owners",
}
"""What the first violation says, as a pattern: several checkers may be the first to see a bug."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """The brokers complain about every fault; a failed run says how to see that in its order."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_promise_holds(seed: int) -> None:
    outcome = simulate(seed)
    assert outcome.violation is None, str(outcome)
    assert outcome.compared > 0, "no shard was compared with the store"
    assert outcome.entries > 0, "nothing was put down in the journal"


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug: str) -> None:
    for seed in SEEDS:
        outcome = simulate(seed, bug=bug)
        if outcome.violation is not None:
            assert re.search(CAUGHT_BY[bug], outcome.violation), outcome.violation
            assert f"--seed {seed} --steps {outcome.steps} --bug {bug}" in str(outcome)
            return
    pytest.fail(f"{bug} was not caught in {len(SEEDS)} runs")


def test_a_seed_replays_exactly() -> None:
    first, again = simulate(3), simulate(3)
    assert first.trace == again.trace
    assert simulate(4).digest != first.digest


def test_a_seed_replays_in_another_process_whatever_its_hash_seed() -> None:
    here = simulate(5)
    for hash_seed in ("1", "2"):
        there = subprocess.run(
            [sys.executable, "-m", "tests.simulator", "--seed", "5"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        assert there.stdout.strip() == str(here)
