"""Producer ids that the store does not allocate at once."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from muster.coordinator.server.producer_ids import ProducerIds
from muster.coordinator.storage.store import Store
from muster.protocol.errors import ErrorCode, KafkaError


class SlowStore:
    """Allocates ids once it is `reached`."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()

    async def allocate_producer_ids(self, count: int) -> int:
        await self.reached.wait()
        return 7_000


async def test_nobody_waits_for_ids_for_ever() -> None:
    store = SlowStore()
    ids = ProducerIds(cast(Store, store), patience_s=0.0)
    for ask in (ids.fetch, ids.allocate):
        with pytest.raises(KafkaError) as refused:
            await ask()
        assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    store.reached.set()
    await ids.close()


async def test_what_comes_late_is_handed_out() -> None:
    store = SlowStore()
    ids = ProducerIds(cast(Store, store), patience_s=5.0)
    waiting = asyncio.ensure_future(ids.allocate())
    store.reached.set()
    assert await waiting == 7_000
    assert ids.at_once() == 7_001
