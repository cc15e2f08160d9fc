"""Test exactly once, at every point where something can go wrong: asyncio, and the client of muster.

    pip install . pytest pytest-asyncio  # in a checkout; muster-kafka instead of ., once it is on PyPI
    pytest examples/test_transactions.py

`add_up` stands for the code that you would test: it adds up orders, and writes the total and its offsets in
one transaction. Each test holds back one of its requests, lets something happen, and checks what readers see
in the end. The fixture `muster` comes with muster's pytest plugin.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from muster.client import ClientError, Consumer, Producer
from muster.coordinator.testing import AsyncBroker
from muster.protocol.errors import KafkaError

pytestmark = pytest.mark.asyncio


async def add_up(bootstrap: str) -> None:
    """Write the total of each batch of `orders` to `totals`."""
    async with (
        Producer(bootstrap, transactional_id="etl-1") as producer,
        Consumer(
            bootstrap,
            group_id="etl",
            topics=["orders"],
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer,
    ):
        async for batch in consumer.batches():
            total = sum(int(record.value or b"0") for record in batch.records)
            async with producer.transaction() as transaction:
                await transaction.post("totals", b"%d" % total)
                await transaction.commit_offsets(consumer)


@asynccontextmanager
async def worker(muster: AsyncBroker) -> AsyncIterator[None]:
    """Run `add_up`, and start it again when it fails."""

    async def run() -> None:
        while True:
            try:
                await add_up(muster.bootstrap)
            except (ClientError, KafkaError) as error:
                print(f"started again: {error}")

    running = asyncio.create_task(run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.wait([running])


async def a_broker_dies(muster: AsyncBroker) -> None:
    await muster.kill(0)
    await muster.restart(0)


async def another_producer_starts(muster: AsyncBroker) -> None:
    await muster.transaction("etl-1").fence()


async def time_passes(muster: AsyncBroker) -> None:
    await muster.clock.advance("61s")  # transaction_timeout_ms is a minute


async def totals(muster: AsyncBroker) -> list[bytes | None]:
    """The totals, as a reader of committed records sees them."""
    return [record.value for record in await muster.records("totals", isolation_level="read_committed")]


@pytest.mark.parametrize("happens", [a_broker_dies, another_producer_starts, time_passes])
@pytest.mark.parametrize("api", ["Produce", "TxnOffsetCommit", "EndTxn"])
async def test_every_order_counts_once(
    muster: AsyncBroker, api: str, happens: Callable[[AsyncBroker], Awaitable[None]]
) -> None:
    await muster.create_topic("orders")
    await muster.create_topic("totals")
    await muster.produce("orders", [b"1", b"2", b"3"])
    async with worker(muster):
        async with muster.faults.add(api=api, transactional_id="etl-1", delay="1 day") as arrived:
            await arrived.hit()  # the request has arrived, and is held back
            assert await totals(muster) == []
            await happens(muster)
        await muster.group("etl").committed("orders", at_least=3)
        await muster.no_open_transaction()
    assert await totals(muster) == [b"6"]


async def test_what_is_decided_is_seen_later(muster: AsyncBroker) -> None:
    await muster.create_topic("orders")
    await muster.create_topic("totals")
    await muster.produce("orders", [b"1", b"2", b"3"])
    async with worker(muster):
        async with muster.faults.hold_markers("etl-1") as held:
            await held.hit()  # the commit is durable, but readers cannot see it yet
            assert await totals(muster) == []
            assert muster.group("etl").offsets() == {}
            assert muster.group("etl").pending_offsets() == {("orders", 0): 3}
        await muster.transaction("etl-1").ended()
        assert await totals(muster) == [b"6"]
        assert muster.group("etl").offsets() == {("orders", 0): 3}
