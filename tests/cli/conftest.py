"""A broker for each test, and the command pointed at it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from muster.coordinator.testing import Broker
from tests.cli.running import Muster


@pytest.fixture
def broker() -> Iterator[Broker]:
    # What a broker that is kept from renewing its leases says is in the way of what a command says.
    with Broker(lease_term_ms=30_000) as running:
        yield running


@pytest.fixture
def muster(broker: Broker, capfd: pytest.CaptureFixture[str]) -> Muster:
    return Muster(broker.bootstrap, capfd)
