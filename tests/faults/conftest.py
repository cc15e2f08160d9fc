"""The number of kills and rounds, and the seed (`make faults` passes them on); and a data directory to be
harmed."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.faults.lived import Lived


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", type=int, default=50, help="how often the broker is killed under load")
    parser.addoption("--rounds", type=int, default=2, help="how often each fault strikes a cluster")
    parser.addoption("--seed", type=int, default=None, help="replays the plan of a run that printed it")


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    given = request.config.getoption("--seed")
    return random.randrange(2**32) if given is None else int(given)


@pytest.fixture(scope="session")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Lived:
    """A data directory to be copied, since growing one takes a while."""
    return asyncio.run(Lived.grown(tmp_path_factory.mktemp("grown")))
