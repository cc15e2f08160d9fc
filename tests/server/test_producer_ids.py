"""Producer ids that the store does not allocate at once."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from muster.coordinator.server.producer_ids import ProducerIds
from muster.coordinator.storage.store import Store
from muster.protocol.errors import ErrorCode, KafkaError
from tests.support.facts import turns


class SlowStore:
    """Allocates ids once it is `reached`."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.era = 0
        self.first = 7_000

    async def allocate_producer_ids(self, count: int) -> int:
        first = self.first
        await self.reached.wait()
        return first


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


async def test_nothing_allocated_before_a_failover_is_handed_out_after_it() -> None:
    store = SlowStore()
    store.reached.set()
    ids = ProducerIds(cast(Store, store))
    assert await ids.allocate() == 7_000
    store.era, store.first = 1, 90_000
    with pytest.raises(KafkaError):
        ids.at_once()
    assert await ids.allocate() == 90_000
    assert ids.at_once() == 90_001


async def test_a_block_that_may_have_been_allocated_before_a_failover_is_fetched_anew() -> None:
    store = SlowStore()
    ids = ProducerIds(cast(Store, store))
    waiting = asyncio.ensure_future(ids.allocate())
    await turns()
    store.era, store.first = 1, 90_000
    store.reached.set()
    assert await waiting == 90_000
