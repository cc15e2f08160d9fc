"""Waiting for a lease's holder to come to rest."""

from __future__ import annotations

import asyncio
import gc

from muster.coordinator.base.clock import ManualClock
from muster.coordinator.base.log import Logger
from muster.coordinator.cluster.handover import Deferred, Handovers
from muster.coordinator.storage.memory import MemoryStore
from muster.coordinator.storage.store import Lease, LeaseKind


async def test_a_rest_is_awaited_as_a_coroutine_is() -> None:
    rested = []

    async def come_to_rest() -> None:
        await asyncio.sleep(0)
        rested.append(True)

    await Deferred(come_to_rest)
    assert rested == [True]


async def test_a_broker_that_dies_in_the_turn_of_a_handover_leaves_nothing_unawaited() -> None:
    """Python warns about a coroutine that is never awaited, and warnings are errors here."""

    async def come_to_rest() -> None:
        raise AssertionError("nobody waits any more")

    handovers = Handovers(MemoryStore(), ManualClock(), 1_000, Logger(), lambda: None)
    handovers.start()
    handovers.begin(Lease(LeaseKind.DATA, 3), Deferred(come_to_rest), None)
    handovers.kill()
    assert handovers.leases == {Lease(LeaseKind.DATA, 3)}
    del handovers
    gc.collect()
