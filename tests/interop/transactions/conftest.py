"""Every test in this folder that uses `target` runs once per target. The environment variable SEED replays
the random decisions of the run that printed it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from tests.interop.story.story import Outcome
from tests.interop.story.targets import KAFKA, Target, running
from tests.interop.transactions.play import CONFIGS

TARGETS: Final = (KAFKA, "serve", "cluster")


@pytest.fixture(scope="module", params=TARGETS)
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    """One of each target, shared by all tests in a file."""
    with running(request.param, CONFIGS) as target:
        yield target


@pytest.fixture(scope="session")
def new_seed() -> Callable[[], int]:
    return lambda: int(os.environ.get("SEED") or secrets.randbelow(1_000_000))


@pytest.fixture
def seed(new_seed: Callable[[], int]) -> int:
    return new_seed()


@pytest.fixture
def judge(capsys: pytest.CaptureFixture[str]) -> Callable[[Outcome], None]:
    """Shows the outcome of a play, with its seed, and fails if it did not pass."""

    def judge(outcome: Outcome) -> None:
        with capsys.disabled():
            print(f"\n{outcome.headline()},{outcome.steps[0]}", end=" ")
        if outcome.problems:
            pytest.fail(outcome.report(), pytrace=False)

    return judge
