"""A broker for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from muster.coordinator.testing import Broker


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running
