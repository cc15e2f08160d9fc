"""Group commit: what waits shares a transaction, and one change at fault fails alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from muster.coordinator.storage.group_commit import GroupCommit
from muster.coordinator.storage.sqlite import SqliteStore
from muster.coordinator.storage.store import (
    Append,
    Grant,
    Lease,
    LeaseKind,
    Outcome,
    StoreBusy,
    StoreClosed,
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
    store = SqliteStore(
        tmp_path, now_ms=clock, writer=writer, reader=StepExecutor(), pending_bytes_max=10_000
    )
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


async def test_what_arrives_during_a_commit_shares_the_next(store: SqliteStore, writer: StepExecutor) -> None:
    grant = await claim(store)
    writer.stepped = True
    waves: list[list[asyncio.Future[list[Outcome]]]] = []
    for wave in range(3):
        waves.append(
            [
                asyncio.ensure_future(
                    store.append([Append(LEASE, grant.epoch, [(b"%d/%d" % (wave, n), b"v")])])
                )
                for n in range(20)
            ]
        )
        await settle()
    assert len(writer.calls) == 1, "one transaction at a time"
    writer.calls.pop()()
    await settle()
    assert [all(call.done() for call in wave) for wave in waves] == [True, False, False]
    assert len(writer.calls) == 1
    writer.calls.pop()()
    await settle()
    assert all(call.result() == [Outcome.WRITTEN] for wave in waves for call in wave)
    assert not writer.calls, "sixty appends took two transactions"
    assert len(await store.load(LEASE)) == 60


async def test_nothing_is_acknowledged_before_its_commit(store: SqliteStore, writer: StepExecutor) -> None:
    grant = await claim(store)
    writer.stepped = True
    call = asyncio.ensure_future(store.append([Append(LEASE, grant.epoch, [(b"a", b"1")])]))
    await settle()
    assert not call.done()
    assert await store.load(LEASE) == []
    writer.calls.pop()()
    assert await call == [Outcome.WRITTEN]


async def test_changes_of_all_kinds_share_a_transaction_in_order(
    store: SqliteStore, writer: StepExecutor
) -> None:
    grant = await claim(store)
    writer.stepped = True
    first = asyncio.ensure_future(store.append([Append(LEASE, grant.epoch, [(b"a", b"1")])]))
    taken = asyncio.ensure_future(store.claim([LEASE], 1, 60_000))
    fenced = asyncio.ensure_future(store.append([Append(LEASE, grant.epoch, [(b"a", b"2")])]))
    written = asyncio.ensure_future(store.append([Append(LEASE, grant.epoch + 1, [(b"b", b"3")])]))
    await settle()
    writer.calls.pop()()
    assert await first == [Outcome.WRITTEN]
    assert await taken == [Grant(LEASE, 1, grant.epoch + 1, 60_000)]
    assert await fenced == [Outcome.FENCED]
    assert await written == [Outcome.WRITTEN]
    assert not writer.calls
    assert [(key, value) for _, key, value in await store.load(LEASE)] == [(b"a", b"1"), (b"b", b"3")]


async def test_a_refused_change_leaves_its_transaction_to_the_others(
    store: SqliteStore, writer: StepExecutor
) -> None:
    grant = await claim(store)
    topic = TopicRow(UUID(int=1), "orders", 1)
    writer.stepped = True
    created = asyncio.ensure_future(store.create_topic(topic))
    refused = asyncio.ensure_future(store.create_topic(topic))
    written = asyncio.ensure_future(store.append([Append(LEASE, grant.epoch, [(b"a", b"1")])]))
    await settle()
    writer.calls.pop()()
    await created
    with pytest.raises(StoreConflict):
        await refused
    assert await written == [Outcome.WRITTEN]
    assert not writer.calls


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
    async with asyncio.timeout(5):  # a claim that is written waits for the writer
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


async def test_at_the_bound_appends_are_refused_and_leases_are_still_renewed(
    store: SqliteStore, writer: StepExecutor
) -> None:
    grant = await claim(store)
    writer.stepped = True

    def append(key: bytes, size: int) -> asyncio.Future[list[Outcome]]:
        return asyncio.ensure_future(store.append([Append(LEASE, grant.epoch, [(key, b"x" * size)])]))

    under_way = append(b"under way", 50_000)  # larger than the bound, but nothing waits
    await settle()
    waiting = append(b"waiting", 9_000)
    refused = append(b"refused", 2_000)
    small = append(b"small", 10)
    renewed = asyncio.ensure_future(store.renew([grant], 60_000))
    with pytest.raises(StoreBusy, match="of 10000"):
        await refused
    for _ in range(2):
        writer.calls.pop()()
        await settle()
    assert await asyncio.gather(under_way, waiting, small) == [[Outcome.WRITTEN]] * 3
    assert await renewed == [60_000]
    assert [key for _, key, _ in await store.load(LEASE)] == [b"under way", b"waiting", b"small"]


async def test_the_loop_is_free_while_the_disk_is_busy(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    await store.open()
    grant = await claim(store)
    blocked, unblock = threading.Event(), threading.Event()
    transact = store._transact

    def slow(*args: Any) -> Any:
        blocked.set()
        assert unblock.wait(10)
        return transact(*args)

    store._transact = slow  # type: ignore[method-assign]
    call = asyncio.ensure_future(store.append([Append(LEASE, grant.epoch, [(b"a", b"1")])]))
    assert await asyncio.to_thread(blocked.wait, 10)
    assert await store.load(LEASE) == [], "reads do not wait for the writer either"
    assert not call.done()
    unblock.set()
    assert await call == [Outcome.WRITTEN]
    await store.close()


async def test_a_commit_that_raises_fails_its_batch_and_not_the_next() -> None:
    batches: list[Sequence[str]] = []

    async def commit(batch: Sequence[str]) -> Sequence[object]:
        batches.append(batch)
        await asyncio.sleep(0)
        if len(batches) == 1:
            raise OSError("gone")
        return [change.upper() for change in batch]

    queue = GroupCommit(commit, bytes_max=100)
    first = [queue.submit("a"), queue.submit("b")]
    await asyncio.sleep(0)
    second = queue.submit("c")
    await queue.close()
    assert [str(future.exception()) for future in first] == ["gone", "gone"]
    assert second.result() == "C"
    assert batches == [["a", "b"], ["c"]]
    with pytest.raises(StoreClosed):
        queue.submit("d")
