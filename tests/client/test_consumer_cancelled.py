"""Cancelling a consumer call at any of its waits: the consumer continues as if nothing had happened, or is
closed.

Each test lets the call run for a number of turns of the loop, from none until it ends by itself. A fixture
fails the test if it leaves a task or a transport behind.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import pytest

from muster.client import ClientError, Closed, ConcurrentUse, Consumer, RebalanceListener, TopicPartition
from muster.coordinator.testing import Broker
from tests.client.reading import LONG_S, numbers, send, until

T0 = TopicPartition("t", 0)
RECORDS: Final = 12


def turns() -> Iterator[int]:
    """Every number of turns at first, then coarser: there are long waits for the broker."""
    number = 0.0
    while True:
        yield int(number)
        number = max(number + 1, number * 1.3)


async def cancelled_after(count: int, call: Awaitable[Any]) -> asyncio.Task[Any]:
    """A task that was cancelled after `count` turns, unless it was done before."""
    task = asyncio.ensure_future(call)
    for _ in range(count):
        if task.done():
            break
        await asyncio.sleep(0)
    task.cancel()
    async with asyncio.timeout(LONG_S):
        await asyncio.wait([task])
    return task


class Careful(RebalanceListener):
    async def on_partitions_assigned(self, consumer: Consumer[Any, Any], partitions: Any) -> None:
        await asyncio.sleep(0)
        await consumer.committed(partitions)

    async def on_partitions_revoked(self, consumer: Consumer[Any, Any], partitions: Any) -> None:
        await asyncio.sleep(0)


@asynccontextmanager
async def member(broker: Broker, group_id: str, **settings: Any) -> AsyncIterator[Consumer[Any, Any]]:
    async with Consumer(
        broker.bootstrap,
        group_id=group_id,
        topics="t",
        listener=Careful(),
        auto_offset_reset="earliest",
        **settings,
    ) as consumer:
        yield consumer


READING: Final[dict[str, Callable[[Consumer[Any, Any]], Awaitable[Any]]]] = {
    "get": lambda consumer: consumer.get(),
    "loop": lambda consumer: anext(consumer),
    "get_many": lambda consumer: consumer.get_many(3),
    "batches": lambda consumer: anext(consumer.batches(3)),
}


def records_of(result: Any) -> list[int]:
    if result is None:
        return []
    if hasattr(result, "records"):
        return numbers(result.records)
    return numbers(result) if isinstance(result, list) else numbers([result])


@pytest.mark.parametrize("heartbeat", ["loop", "thread"])
@pytest.mark.parametrize("how", READING)
async def test_a_reading_call_from_its_first_join_on(broker: Broker, how: str, heartbeat: str) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", RECORDS)
    for count in turns():
        seen: list[int] = []
        async with member(broker, f"g{count}", heartbeat=heartbeat) as consumer:
            task = await cancelled_after(count, READING[how](consumer))
            if not task.cancelled():
                seen += records_of(task.result())
            while len(seen) < RECORDS:
                seen += records_of(await asyncio.wait_for(READING[how](consumer), LONG_S))
            assert seen == list(range(RECORDS))
        if not task.cancelled():
            return


@pytest.mark.parametrize("how", READING)
async def test_every_reading_call(broker: Broker, how: str) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", RECORDS * 10)
    seen: list[int] = []
    async with member(broker, "g", max_poll_records=2, fetch_max_bytes=300) as consumer:
        for count in turns():
            task = await cancelled_after(count % 40, READING[how](consumer))
            if not task.cancelled():
                seen += records_of(task.result())
            if len(seen) >= RECORDS * 10:
                break
    assert seen == list(range(RECORDS * 10))


@pytest.mark.parametrize("what", ["commit", "committed", "position", "end_offsets", "unsubscribe"])
async def test_other_calls(broker: Broker, what: str) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", RECORDS)
    for count in turns():
        async with member(broker, f"g{count}") as consumer:
            assert records_of(await consumer.get()) == [0]
            if what == "position":
                consumer.seek_to_end(T0)
            call = {
                "commit": consumer.commit,
                "committed": consumer.committed,
                "position": lambda: consumer.position(T0),
                "end_offsets": lambda: consumer.end_offsets([T0]),
                "unsubscribe": consumer.unsubscribe,
            }[what]
            task = await cancelled_after(count, call())
            if what == "unsubscribe":
                consumer.subscribe("t")
                assert records_of(await asyncio.wait_for(consumer.get(), LONG_S)) in ([0], [1])
            else:
                if what == "position":
                    consumer.seek(T0, 1)
                assert records_of(await asyncio.wait_for(consumer.get(), LONG_S)) == [1]
        if not task.cancelled():
            return


@pytest.mark.parametrize("then", ["stays", "closes"])
@pytest.mark.parametrize("heartbeat", ["loop", "thread"])
async def test_unsubscribing_while_a_join_is_parked(heartbeat: str, then: str) -> None:
    with Broker(group_initial_rebalance_delay_ms=3_600_000) as slow:
        slow.create_topic("t")
        for count in turns():
            name = f"g{count}"
            async with member(slow, name, heartbeat=heartbeat) as consumer:
                joining = asyncio.create_task(consumer.get())
                await asyncio.to_thread(slow.wait_for_group, name, "PreparingRebalance", members=1)
                await cancelled_after(0, joining)
                task = await cancelled_after(count, consumer.unsubscribe())
                if count and then == "stays":  # else it had not started
                    await asyncio.to_thread(slow.wait_for_group, name, "PreparingRebalance", members=0)
            assert slow.group(name).facts.members == 0
            if not task.cancelled():
                return


async def test_unsubscribing_while_no_broker_answers() -> None:
    with Broker() as broker:
        broker.create_topic("t")
        await send(broker.bootstrap, "t", RECORDS)
        async with member(broker, "g") as consumer:
            assert records_of(await consumer.get_many(2)) == [0, 1]
            broker.pause(0)
            task = await cancelled_after(20, consumer.unsubscribe(timeout=3_600))
            assert task.cancelled()
            broker.resume(0)
            await asyncio.to_thread(broker.wait_for_group, "g", "Empty", members=0)


@pytest.mark.parametrize("group_protocol", ["classic", "consumer"])
async def test_subscribing_again_after_an_unsubscribe_that_was_cut_short(group_protocol: str) -> None:
    """What it had is lost, and what it gets is assigned anew."""
    calls: list[str] = []

    class Listener(RebalanceListener):
        def on_partitions_assigned(self, consumer: Consumer[Any, Any], partitions: Any) -> None:
            calls.append("assigned")

        def on_partitions_lost(self, consumer: Consumer[Any, Any], partitions: Any) -> None:
            calls.append("lost")

    with Broker() as broker:
        broker.create_topic("t")
        await send(broker.bootstrap, "t", RECORDS)
        async with Consumer(
            broker.bootstrap, group_id="g", topics="t", group_protocol=group_protocol, listener=Listener(),
            auto_offset_reset="earliest",
        ) as consumer:  # fmt: skip
            assert records_of(await consumer.get_many(2)) == [0, 1]
            broker.pause(0)
            task = await cancelled_after(20, consumer.unsubscribe(timeout=3_600))
            assert task.cancelled()
            broker.resume(0)
            consumer.subscribe("t")
            async with asyncio.timeout(LONG_S):
                assert await consumer.get() is not None
            assert calls == ["assigned", "lost", "assigned"]


@pytest.mark.parametrize("instance_id", [None, "static"])
@pytest.mark.parametrize("heartbeat", ["loop", "thread"])
async def test_the_join_after_an_unsubscribe_that_was_cut_short_is_not_ended_with_it(
    broker: Broker, heartbeat: str, instance_id: str | None
) -> None:
    """Although the same task subscribes again before the loop turns."""

    class Listener(RebalanceListener):
        async def on_partitions_revoked(self, consumer: Consumer[Any, Any], partitions: Any) -> None:
            if not cut.expired():  # otherwise it is the end
                cut.reschedule(0)
                await asyncio.Event().wait()

    broker.create_topic("t")
    await send(broker.bootstrap, "t", RECORDS)
    async with Consumer(
        broker.bootstrap, group_id="g", topics="t", listener=Listener(), heartbeat=heartbeat,
        group_instance_id=instance_id, auto_offset_reset="earliest", enable_auto_commit=False,
    ) as consumer:  # fmt: skip
        assert records_of(await consumer.get()) == [0]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(LONG_S) as cut:
                await consumer.unsubscribe()
        consumer.subscribe("t")
        async with asyncio.timeout(LONG_S):
            assert await consumer.get() is not None


@pytest.mark.parametrize("heartbeat", ["loop", "thread"])
@pytest.mark.parametrize("what", ["close", "drain"])
async def test_closing(broker: Broker, what: str, heartbeat: str) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", RECORDS)
    for count in turns():
        async with member(broker, f"g{count}", heartbeat=heartbeat) as consumer:
            assert records_of(await consumer.get()) == [0]
            if what == "drain":  # drain waits for a reader that has something in hand
                consumer.pause(T0)
                assert await consumer.get(0) is None
            call = consumer.close if what == "close" else consumer.drain
            task = await cancelled_after(count, call())
            if count == 0:
                continue  # It had not started.
            assert consumer.health().state == "closed"
            with pytest.raises(Closed):
                await consumer.get()
        if not task.cancelled():
            assert broker.group(f"g{count}").facts == ("Empty", 0)
            return


async def test_closing_does_not_wait_for_a_callback_that_ignores_its_cancellation(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    go, ended = asyncio.Event(), asyncio.Event()

    class Deaf(RebalanceListener):
        async def on_partitions_revoked(self, consumer: Consumer[Any, Any], partitions: Any) -> None:
            while not go.is_set():
                with suppress(asyncio.CancelledError):
                    await go.wait()
            ended.set()

    broker.create_topic("t")
    await send(broker.bootstrap, "t", RECORDS)
    consumer = Consumer(
        broker.bootstrap, group_id="g", topics="t", listener=Deaf(), auto_offset_reset="earliest"
    )
    await consumer.start()
    assert records_of(await consumer.get()) == [0]
    closing = asyncio.create_task(consumer.close(2.0))
    await asyncio.wait([closing], timeout=LONG_S)
    try:
        assert closing.done()
        await asyncio.to_thread(broker.wait_for_group, "g", "Empty", members=0)
    finally:
        go.set()
        async with asyncio.timeout(LONG_S):
            await ended.wait()
            await closing
    assert "Deaf.on_partitions_revoked goes on although it was cancelled" in caplog.text


async def test_starting(broker: Broker) -> None:
    for count in turns():
        consumer = Consumer(broker.bootstrap, group_id="g", heartbeat="thread")
        task = await cancelled_after(count, consumer.start())
        await consumer.close()
        assert consumer.health().state == "closed"
        if not task.cancelled():
            return


async def test_closing_twice_at_the_same_time(broker: Broker) -> None:
    broker.create_topic("t")
    async with member(broker, "g") as consumer:
        reader = asyncio.create_task(consumer.get())
        await until(lambda: consumer.assignment)
        await asyncio.gather(consumer.close(), consumer.close(), consumer.drain())
        assert await reader is None
    assert broker.group("g").facts == ("Empty", 0)


@pytest.mark.parametrize("heartbeat", ["loop", "thread"])
async def test_a_close_while_the_consumer_starts(broker: Broker, heartbeat: Any) -> None:
    """However far the start has come, nothing runs afterwards, and a second start gets nowhere."""
    threads = set(threading.enumerate())
    for count in turns():
        consumer = Consumer(broker.bootstrap, group_id="g", topics="t", heartbeat=heartbeat)
        starting = asyncio.create_task(consumer.start())
        for _ in range(count + 1):
            await asyncio.sleep(0)
        started = starting.done()
        with pytest.raises(ClientError) as refused:
            await consumer.start()
        assert started or isinstance(refused.value, ConcurrentUse)
        await consumer.close()
        async with asyncio.timeout(LONG_S):
            await asyncio.wait([starting])
        if not started:
            with pytest.raises(Closed):
                await starting
        assert consumer.health().state == "closed"
        await until(lambda: threads >= set(threading.enumerate()))
        if started:
            break
