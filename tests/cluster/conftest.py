from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.cluster.support import Cluster
from tests.support.facts import turns


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    cluster = Cluster()
    await cluster.store.open()
    yield cluster
    for node in cluster.nodes.values():
        node.membership.kill()
    await turns()
