"""A runtime names the kind of its shards in what it logs: groups and transactions use the same shard
numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from muster.coordinator.base.clock import ManualClock
from muster.coordinator.base.log import Logger
from muster.coordinator.cluster.coordinators import COORDINATORS
from muster.coordinator.runtime.groups import GroupRuntime
from muster.coordinator.runtime.runtime import Runtime
from muster.coordinator.runtime.transactions import TransactionRuntime
from muster.coordinator.storage.store import Lease, LeaseKind, StoreError, StoreFull
from muster.coordinator.transactions.config import TransactionConfig
from muster.coordinator.transactions.shard import TransactionShard
from muster.protocol.messages.transactions import InitProducerIdRequest
from tests.runtime.support import CONTEXT, SHARD, HandLeases, HeldStore
from tests.support.facts import until

MAKE: dict[LeaseKind, Callable[..., Runtime[Any]]] = {
    LeaseKind.GROUP: GroupRuntime,
    LeaseKind.TRANSACTION: partial(
        TransactionRuntime, config=TransactionConfig(), new_id=lambda: 1, version=lambda: 2
    ),
}


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, str]]:
    """What is logged: the part and the event."""
    told: list[tuple[object, str]] = []

    def write(log: Logger, level: str, event: str, fields: object) -> None:
        told.append((log._fields["part"], event))

    monkeypatch.setattr(Logger, "_write", write)
    return told


def test_every_kind_of_coordinator_has_a_runtime_here() -> None:
    assert MAKE.keys() == {kind.lease for kind in COORDINATORS.values()}


@pytest.mark.parametrize("kind", MAKE)
async def test_a_shard_that_cannot_be_loaded(kind: LeaseKind, lines: list[tuple[object, str]]) -> None:
    clock = ManualClock()
    store = HeldStore(now_ms=clock.now_ms)
    await store.open()
    runtime = MAKE[kind](store, clock, HandLeases())
    (grant,) = await store.claim([Lease(kind, SHARD)], 1, 3_000)
    assert grant is not None
    store.load_error = StoreError("load: cannot read")
    runtime.own(SHARD, grant.epoch)
    assert list(runtime.under_way()) == [f"{kind} shard {SHARD} is still loading"]
    await runtime.loaded()
    assert runtime.last_stop == f"{kind} shard {SHARD} stopped: StoreError: load: cannot read"
    assert lines == [(f"{kind}s", "shard stopped")]
    await runtime.close()


async def test_a_store_that_is_full_is_told_by_whoever_wrote(lines: list[tuple[object, str]]) -> None:
    clock = ManualClock()
    store = HeldStore(now_ms=clock.now_ms)
    await store.open()
    runtime = MAKE[LeaseKind.TRANSACTION](store, clock, HandLeases())
    (grant,) = await store.claim([Lease(LeaseKind.TRANSACTION, SHARD)], 1, 3_000)
    assert grant is not None
    runtime.own(SHARD, grant.epoch)
    await runtime.loaded()
    store.error = StoreFull("append: no room")
    request = InitProducerIdRequest(transactional_id="orders", transaction_timeout_ms=60_000)  # shard 31
    runtime.call_at_once("orders", TransactionShard.start, request, CONTEXT, lambda answer: None)
    await until(lambda: ("transactions", "the store is full") in lines)
    await runtime.close()
