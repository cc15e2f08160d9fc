"""A broker for each test, and the command pointed at it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from muster.coordinator.testing import Broker
from tests.cli.running import Muster


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def muster(broker: Broker, capfd: pytest.CaptureFixture[str]) -> Muster:
    return Muster(broker.bootstrap, capfd)
