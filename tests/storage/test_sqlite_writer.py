"""The writer thread: writes in order, durable before a call returns, and a faulty call fails alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from muster.coordinator.storage.sqlite import SqliteStore
from muster.coordinator.storage.sqlite import store as sqlite
from muster.coordinator.storage.store import (
    Append,
    Grant,
    Lease,
    LeaseKind,
    Outcome,
    StoreConflict,
    StoreError,
    TopicRow,
)
from tests.storage.conftest import StoreClock

LEASE = Lease(LeaseKind.GROUP, 0)


class StepExecutor(Executor):
    """Runs calls on the caller's thread, when the test says so."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self.stepped = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except Exception as error:
                future.set_exception(error)

        if self.stepped:
            self.calls.append(run)
        else:
            run()
        return future


@pytest.fixture
def writer() -> StepExecutor:
    return StepExecutor()


@pytest.fixture
async def store(tmp_path: Path, writer: StepExecutor, clock: StoreClock) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path, now_ms=clock, writer=writer, reader=StepExecutor())
    await store.open()
    yield store
    writer.stepped = False
    while writer.calls:
        writer.calls.pop(0)()
        await settle()
    await store.close()


async def settle() -> None:
    """Let everything that can run without a thread run."""
    for _ in range(10):
        await asyncio.sleep(0)


async def claim(store: SqliteStore) -> Grant:
    (grant,) = await store.claim([LEASE], 1, 60_000)
    assert grant is not None
    return grant


async def test_nothing_is_acknowledged_before_its_commit(store: SqliteStore, writer: StepExecutor) -> None:
    grant = await claim(store)
    writer.stepped = True
    call = asyncio.ensure_future(store.append([Append(LEASE, grant.epoch, [(b"a", b"1")])]))
    await settle()
    assert not call.done()
    assert await store.load(LEASE) == []
    writer.calls.pop()()
    assert await call == [Outcome.WRITTEN]


async def test_changes_are_made_in_the_order_of_their_calls(store: SqliteStore, writer: StepExecutor) -> None:
    grant = await claim(store)
    topic = TopicRow(UUID(int=1), "orders", 1)
    writer.stepped = True
    first = asyncio.ensure_future(store.append([Append(LEASE, grant.epoch, [(b"a", b"1")])]))
    taken = asyncio.ensure_future(store.claim([LEASE], 1, 60_000))
    fenced = asyncio.ensure_future(store.append([Append(LEASE, grant.epoch, [(b"a", b"2")])]))
    created = asyncio.ensure_future(store.create_topic(topic))
    refused = asyncio.ensure_future(store.create_topic(topic))
    written = asyncio.ensure_future(store.append([Append(LEASE, grant.epoch + 1, [(b"b", b"3")])]))
    await settle()
    for call in writer.calls:
        call()
    writer.calls.clear()
    assert await first == [Outcome.WRITTEN]
    assert await taken == [Grant(LEASE, 1, grant.epoch + 1, 60_000)]
    assert await fenced == [Outcome.FENCED]
    await created
    with pytest.raises(StoreConflict):
        await refused
    assert await written == [Outcome.WRITTEN]
    assert [(key, value) for _, key, value in await store.load(LEASE)] == [(b"a", b"1"), (b"b", b"3")]


async def test_a_lease_whose_claim_is_being_written_is_nobody_elses(
    store: SqliteStore, writer: StepExecutor, clock: StoreClock
) -> None:
    run_out = await claim(store)
    clock.advance(60_000)
    writer.stepped = True
    claiming = asyncio.ensure_future(store.claim([LEASE], 2, 60_000))
    again = asyncio.ensure_future(store.claim([LEASE], 2, 60_000))
    await settle()
    assert await store.renew([run_out], 60_000) == [None]
    async with asyncio.timeout(30):  # a claim that is to be written would wait for the writer
        assert await store.claim([LEASE], 1, 60_000) == await store.claim([LEASE], 3, 60_000) == [None]
    assert await store.holders(LeaseKind.GROUP) == {}, "an epoch is not seen before it is durable"
    while not (claiming.done() and again.done()):
        writer.calls.pop(0)()
        await settle()
    assert await claiming == [Grant(LEASE, 2, 2, 60_000)]
    assert await again == [Grant(LEASE, 2, 3, 60_000)]
    assert await store.holders(LeaseKind.GROUP) == {0: Grant(LEASE, 2, 3, 60_000)}


async def test_a_claim_nobody_waits_for_any_more_leaves_the_lease_free(
    store: SqliteStore, writer: StepExecutor
) -> None:
    writer.stepped = True
    claiming = asyncio.ensure_future(store.claim([LEASE], 1, 60_000))
    await settle()
    claiming.cancel()
    await settle()
    claimed = asyncio.ensure_future(store.claim([LEASE], 2, 60_000))
    await settle()
    while not claimed.done():
        writer.calls.pop(0)()
        await settle()
    assert await claimed == [Grant(LEASE, 2, 2, 60_000)], "the first epoch was given to nobody"


async def test_an_append_that_cannot_be_written_fails_alone(store: SqliteStore) -> None:
    grant = await claim(store)
    odd: Any = "not bytes", {"nor": "this"}
    results = await asyncio.gather(
        store.append([Append(LEASE, grant.epoch, [(b"a", b"1")])]),
        store.append([Append(LEASE, grant.epoch, [(b"b", b"2"), odd])]),
        store.append([Append(LEASE, grant.epoch, [(b"c", b"3")])]),
        return_exceptions=True,
    )
    assert results[0] == results[2] == [Outcome.WRITTEN]
    assert isinstance(results[1], StoreError)
    assert [key for _, key, _ in await store.load(LEASE)] == [b"a", b"c"]


async def test_the_loop_is_free_while_the_disk_is_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(tmp_path)
    await store.open()
    grant = await claim(store)
    blocked, unblock = threading.Event(), threading.Event()
    transact = sqlite._transact

    def slow(*args: Any) -> Any:
        blocked.set()
        assert unblock.wait(10)
        return transact(*args)

    monkeypatch.setattr(sqlite, "_transact", slow)
    call = asyncio.ensure_future(store.append([Append(LEASE, grant.epoch, [(b"a", b"1")])]))
    assert await asyncio.to_thread(blocked.wait, 10)
    assert await store.load(LEASE) == [], "reads do not wait for the writer either"
    assert not call.done()
    unblock.set()
    assert await call == [Outcome.WRITTEN]
    await store.close()
