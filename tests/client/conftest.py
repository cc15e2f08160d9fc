"""A broker, and a cluster client for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from muster.client.network.cluster import Cluster, parse_bootstrap
from muster.coordinator.testing import Broker


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
async def cluster(broker: Broker) -> AsyncIterator[Cluster]:
    async with Cluster(parse_bootstrap(broker.bootstrap)) as connected:
        yield connected
