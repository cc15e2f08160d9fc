from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from muster.coordinator.base.clock import ManualClock
from tests.peers.support import LetterStore, Peer


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(clock: ManualClock) -> AsyncIterator[LetterStore]:
    store = LetterStore(clock)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def peers(store: LetterStore, clock: ManualClock) -> AsyncIterator[list[Peer]]:
    """Nodes 1 to 3."""
    peers = [await Peer(node_id, store, clock).start() for node_id in (1, 2, 3)]
    yield peers
    for peer in peers:
        peer.resume()
        await peer.post.close()
