"""The consumer in a group: what listeners are told and when, what moves, and what is committed."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from muster.client import (
    Admin,
    ClientError,
    Closed,
    ConcurrentUse,
    Consumer,
    GroupMetadata,
    KafkaError,
    OffsetAndMetadata,
    Producer,
    RebalanceListener,
    StaleOwner,
    SubscriptionPattern,
    TopicPartition,
    TransactionAborted,
)
from muster.client.assignors.cooperative_sticky import CooperativeStickyAssignor
from muster.client.assignors.range import RangeAssignor
from muster.client.group.assignor_calls import AssignorFailed
from muster.client.group.group import Group, State
from muster.coordinator.testing import Broker
from muster.protocol.errors import ErrorCode
from muster.realtime import keep_real
from tests.client.failing import failure
from tests.client.reading import LONG_S, Reading, Told, numbers, on, reading, send, until
from tests.support.facts import turns
from tests.support.frozen import frozen

EAGER = {"assignors": ["range"]}
COOPERATIVE = {"assignors": ["cooperative-sticky"]}
BEATS_OFTEN = {
    "group_consumer_min_heartbeat_interval_ms": 100,
    "group_consumer_heartbeat_interval_ms": 100,
    "group_consumer_assignment_interval_ms": 0,
}


async def committed(broker: Broker, topic: str = "t", partitions: int = 1, group_id: str = "g") -> int:
    """Sum over all partitions."""
    async with Consumer(broker.bootstrap, group_id=group_id) as asking:
        found = await asking.committed(on(topic, *range(partitions)))
        return sum(each.offset for each in found.values() if each is not None)


async def test_eager_members_give_up_everything_before_they_join_again(broker: Broker) -> None:
    broker.create_topic("t", 2)
    one, two = Told(), Told()
    settings: dict[str, Any] = {"group_id": "g", "topics": "t"} | EAGER
    async with reading(broker.bootstrap, **settings, listener=one) as first:
        await first.until_assigned(*on("t", 0, 1))
        async with reading(broker.bootstrap, **settings, listener=two) as second:
            await second.until(lambda: len(second.consumer.assignment) == 1)
            await first.until(lambda: first.consumer.assignment == on("t", 0, 1) - second.consumer.assignment)
            moved = set(second.consumer.assignment)
        await first.until_assigned(*on("t", 0, 1))
    kept = on("t", 0, 1) - moved
    assert one.calls == [
        ("assigned", on("t", 0, 1)),
        ("revoked", on("t", 0, 1)),
        ("assigned", kept),
        ("revoked", kept),
        ("assigned", on("t", 0, 1)),
        ("revoked", on("t", 0, 1)),
    ]
    assert two.calls == [("assigned", moved), ("revoked", moved)]


async def test_cooperative_members_give_up_only_what_moves(broker: Broker) -> None:
    broker.create_topic("t", 2)
    one, two = Told(), Told()
    settings: dict[str, Any] = {"group_id": "g", "topics": "t"} | COOPERATIVE
    async with reading(broker.bootstrap, **settings, listener=one) as first:
        await first.until_assigned(*on("t", 0, 1))
        async with reading(broker.bootstrap, **settings, listener=two) as second:
            await second.until(lambda: len(second.consumer.assignment) == 1)
            moved = set(second.consumer.assignment)
            await first.until_assigned(*(on("t", 0, 1) - moved))
        await first.until_assigned(*on("t", 0, 1))
    told = [call for call in one.calls if call != ("assigned", set())]
    assert told == [
        ("assigned", on("t", 0, 1)),
        ("revoked", moved),
        ("assigned", moved),
        ("revoked", on("t", 0, 1)),
    ]
    # The first generation has nothing for the newcomer yet, and its listener is told so.
    assert two.calls[-2:] == [("assigned", moved), ("revoked", moved)]
    assert two.calls[:-2] == [("assigned", set())]


@pytest.mark.parametrize("assignor", [EAGER, COOPERATIVE], ids=["eager", "cooperative"])
async def test_no_record_is_read_twice_when_a_member_comes_and_goes(
    broker: Broker, assignor: dict[str, Any]
) -> None:
    broker.create_topic("t", 4)
    settings: dict[str, Any] = {"group_id": "g", "topics": "t", "max_poll_records": 7} | assignor
    sent = 0

    async def send_more() -> None:
        nonlocal sent
        await send(broker.bootstrap, "t", 400, partitions=4, first=sent)
        sent += 400

    async with reading(broker.bootstrap, **settings) as first:
        await send_more()
        await first.until(lambda: first.seen)
        async with reading(broker.bootstrap, **settings) as second:
            await second.until(lambda: len(second.consumer.assignment) == 2)
            await send_more()
            await second.until(lambda: second.seen)
        await send_more()
        await first.until(lambda: len(first.seen) + len(second.seen) >= sent)
    assert sorted(numbers([*first.seen, *second.seen])) == list(range(sent))
    assert await committed(broker, partitions=4) == sent


async def test_cooperative_members_read_on_while_the_group_is_joined(broker: Broker) -> None:
    """Until it knows what it has to give up, a member goes on reading its partitions."""
    broker.create_topic("t", 2)
    settings: dict[str, Any] = {"group_id": "g", "topics": "t"} | COOPERATIVE
    async with reading(broker.bootstrap, **settings) as first:
        await first.until_assigned(*on("t", 0, 1))
        async with (
            broker.aio.faults.add(api="SyncGroup", delay="1 day", times=None) as held,
            Consumer(broker.bootstrap, **settings, auto_offset_reset="earliest") as slow,
        ):
            await slow.get(0)  # joins
            await held.hit(2)
            await send(broker.bootstrap, "t", 10, partitions=2)
            await first.until(lambda: len(first.seen) == 10)
            await held.remove()
            slow_task = asyncio.create_task(slow.get())
            await until(lambda: slow.assignment, first.task)
            slow_task.cancel()
            await asyncio.wait([slow_task])


async def test_what_callbacks_may_call(broker: Broker) -> None:
    broker.create_topic("t", 2)
    await send(broker.bootstrap, "t", 20, partitions=2)
    seen: list[str] = []

    class Busy(RebalanceListener):
        async def on_partitions_assigned(
            self, consumer: Consumer[Any, Any], partitions: Iterable[TopicPartition]
        ) -> None:
            for where in sorted(partitions):
                assert await consumer.position(where) == 0
                consumer.seek(where, 4)
                assert await consumer.position(where) == 4
            assert (await consumer.commit()).ok
            consumer.pause(TopicPartition("t", 1))
            assert await consumer.end_offsets(partitions) == dict.fromkeys(partitions, 10)
            for call in (consumer.get(), consumer.unsubscribe()):
                with pytest.raises(ConcurrentUse, match=r"callbacks can neither read nor unsubscribe"):
                    await call
            for call in (consumer.close(), consumer.drain()):
                with pytest.raises(ClientError, match=r"they call stop\(\)"):
                    await call
            seen.append("assigned")

        async def on_partitions_revoked(
            self, consumer: Consumer[Any, Any], partitions: Iterable[TopicPartition]
        ) -> None:
            assert consumer.assignment == set(partitions)
            consumer.resume(TopicPartition("t", 1))
            assert (await consumer.commit()).ok
            with pytest.raises(ConcurrentUse):
                await consumer.get()
            seen.append("revoked")

    async with Consumer(
        broker.bootstrap,
        group_id="g",
        topics="t",
        listener=Busy(),
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    ) as consumer:
        records = [await consumer.get() for _ in range(6)]
        assert {(r.partition, r.offset) for r in records if r} == {(0, offset) for offset in range(4, 10)}
    assert seen == ["assigned", "revoked"]
    assert await committed(broker, partitions=2) == 10 + 4


@pytest.mark.parametrize("way", ["in the callback", "in a task it returns", "in a task", "gathered"])
@pytest.mark.parametrize("during", ["the reading call", "close", "drain", "unsubscribe"])
async def test_callbacks_cannot_end_what_waits_for_them(broker: Broker, during: str, way: str) -> None:
    await send(broker.bootstrap, "t", 1)
    refused: list[str] = []

    async def end(consumer: Consumer[Any, Any], _: Iterable[TopicPartition]) -> None:
        for name in ("close", "drain", "unsubscribe", "get"):
            call = getattr(consumer, name)()
            if way == "in a task":
                call = asyncio.create_task(call)
            elif way == "gathered":
                call = asyncio.gather(asyncio.sleep(0), call)
            with pytest.raises(ClientError, match="callbacks"):
                await call
            refused.append(name)

    class Ending(RebalanceListener):
        def on_partitions_assigned(self, *about: Any) -> Any:
            return self.end(*about) if during == "the reading call" else None

        def on_partitions_revoked(self, *about: Any) -> Any:
            return None if during == "the reading call" else self.end(*about)

        def end(self, *about: Any) -> Any:
            return asyncio.create_task(end(*about)) if way == "in a task it returns" else end(*about)

    async with Consumer(
        broker.bootstrap, group_id="g", topics="t", listener=Ending(), auto_offset_reset="earliest"
    ) as consumer:
        assert await consumer.get(LONG_S)
        if during != "the reading call":
            await getattr(consumer, during)(LONG_S)
        assert refused == ["close", "drain", "unsubscribe", "get"]


async def test_a_callback_may_have_the_consumer_closed_by_a_task_that_it_does_not_wait_for(
    broker: Broker,
) -> None:
    broker.create_topic("t")
    closing: list[asyncio.Task[None]] = []

    class Closing(RebalanceListener):
        async def on_partitions_assigned(
            self, consumer: Consumer[Any, Any], partitions: Iterable[TopicPartition]
        ) -> None:
            closing.append(asyncio.create_task(consumer.close(LONG_S)))
            assert (await consumer.committed(partitions)).keys() == set(partitions)

    consumer = Consumer(broker.bootstrap, group_id="g", topics="t", listener=Closing())
    await consumer.start()
    assert await consumer.get(LONG_S) is None
    await asyncio.gather(*closing)
    assert consumer.health().state == "closed"


async def test_what_a_listener_raises_comes_out_of_the_reading_call_and_the_rebalance_goes_on(
    broker: Broker,
) -> None:
    broker.create_topic("t", 2)
    await send(broker.bootstrap, "t", 4, partitions=2)

    class Raising(Told):
        def on_partitions_assigned(self, consumer: Any, partitions: Iterable[TopicPartition]) -> None:
            super().on_partitions_assigned(consumer, partitions)
            raise RuntimeError("assigned")

        def on_partitions_revoked(self, consumer: Any, partitions: Iterable[TopicPartition]) -> None:
            super().on_partitions_revoked(consumer, partitions)
            raise RuntimeError("revoked")

    told = Raising()
    consumer = Consumer(
        broker.bootstrap, group_id="g", topics="t", listener=told, auto_offset_reset="earliest"
    )
    await consumer.start()
    with pytest.raises(RuntimeError, match="assigned"):
        await consumer.get()
    assert consumer.assignment == on("t", 0, 1)
    seen = await consumer.get_many()
    while len(seen) < 4:
        seen += await consumer.get_many()
    consumer.subscribe("other")
    with pytest.raises(RuntimeError, match="revoked"):
        await consumer.get()
    assert consumer.assignment == frozenset()
    with pytest.raises(RuntimeError, match="assigned"):
        await consumer.get()
    with pytest.raises(RuntimeError, match="revoked"):
        await consumer.close()
    assert [what for what, _ in told.calls] == ["assigned", "revoked", "assigned", "revoked"]
    assert broker.group("g").facts == ("Empty", 0)
    assert await committed(broker, partitions=2) == 4


@pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration])
async def test_a_listener_does_not_end_the_loop_without_a_word(broker: Broker, kind: type[Exception]) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 1)

    class Stopping(Told):
        def on_partitions_assigned(self, consumer: Any, partitions: Iterable[TopicPartition]) -> None:
            raise kind

    async with Consumer(
        broker.bootstrap, group_id="g", topics="t", listener=Stopping(), auto_offset_reset="earliest"
    ) as consumer:
        with pytest.raises(RuntimeError, match=f"the listener raised {kind.__name__}") as raised:
            await anext(aiter(consumer), None)
        assert isinstance(raised.value.__cause__, kind)
        assert (await anext(consumer)).offset == 0


async def test_a_listener_that_is_cancelled_was_called_once(broker: Broker) -> None:
    broker.create_topic("t")
    calls: list[str] = []
    begun = asyncio.Event()

    class Slow(RebalanceListener):
        async def on_partitions_assigned(self, consumer: Any, partitions: Any) -> None:
            calls.append("assigned")
            begun.set()
            await asyncio.Event().wait()

    async with Consumer(
        broker.bootstrap, group_id="g", topics="t", listener=Slow(), auto_offset_reset="earliest"
    ) as consumer:
        task = asyncio.create_task(consumer.get())
        async with asyncio.timeout(LONG_S):
            await begun.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        await send(broker.bootstrap, "t", 1)
        assert await consumer.get() is not None
    assert calls == ["assigned"]


async def test_who_was_away_too_long_is_told_that_its_partitions_are_lost(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 10)
    told = Told()
    ended: list[bool] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(consumer.scope(TopicPartition("t", 0)).ended)

    async with Consumer(
        broker.bootstrap,
        group_id="g",
        topics="t",
        listener=told,
        auto_offset_reset="earliest",
        max_poll_interval_ms=3_000,
        revocation_grace_ms=1_000,
        heartbeat_interval_ms=200,
        enable_auto_commit=False,
    ) as consumer:
        assert await consumer.get() is not None
        task = consumer.scope(TopicPartition("t", 0)).create_task(work())
        # The group removes the member; work on lost partitions is cancelled at once, although nobody reads.
        await until(lambda: task.done())
        assert ended == [True]
        result = await consumer.commit({TopicPartition("t", 0): 1})
        assert isinstance(result[TopicPartition("t", 0)], StaleOwner)
        assert not result.ok
        assert told.calls == [("assigned", on("t", 0))]
        again = await consumer.get()
        assert again is not None
        assert again.offset == 0
        assert told.calls == [("assigned", on("t", 0)), ("lost", on("t", 0)), ("assigned", on("t", 0))]
        await consumer.scope(TopicPartition("t", 0)).create_task(asyncio.sleep(0))
    warnings = [each for each in caplog.messages if "nobody has asked for records" in each]
    assert "four fifths of max_poll_interval_ms" in warnings[-1]
    assert "test_who_was_away_too_long" in warnings[-1]


async def test_work_on_a_lost_partition_is_cancelled_at_once_if_a_rebalance_was_announced_before(
    broker: Broker,
) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 1)
    settings: dict[str, Any] = {"group_id": "g", "topics": "t", "heartbeat_interval_ms": 200}
    async with (
        Admin(broker.bootstrap) as admin,
        Consumer(broker.bootstrap, **settings, auto_offset_reset="earliest") as consumer,
    ):
        assert await consumer.get() is not None
        task = consumer.scope(TopicPartition("t", 0)).create_task(asyncio.Event().wait())
        group = consumer._core.group
        assert group is not None
        async with reading(broker.bootstrap, **settings) as other:
            await other.until(lambda: group.rejoin_needed)  # nobody reads, so the group waits
            assert not task.done()
            await admin.remove_members("g", member_ids=[consumer.health().member_id])
            await other.until_assigned(TopicPartition("t", 0))
            await other.until(lambda: group.lost)
            await until(lambda: task.done())
            assert task.cancelled()


async def test_a_task_of_a_lost_partition_may_clean_up(broker: Broker) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 1)
    steps: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            steps.append("cancelled")
            await turns()
            steps.append("cleaned up")

    async with Consumer(
        broker.bootstrap,
        group_id="g",
        topics="t",
        auto_offset_reset="earliest",
        heartbeat_interval_ms=100,
    ) as consumer:
        assert await consumer.get() is not None
        task = consumer.scope(TopicPartition("t", 0)).create_task(work())
        await turns()
        broker.faults.add(api="Heartbeat", error="UNKNOWN_MEMBER_ID")
        async with asyncio.timeout(LONG_S):
            while not task.done():
                await consumer.get(0.01)
    assert steps == ["cancelled", "cleaned up"]


async def test_a_lost_partition_takes_no_work_even_if_nobody_asked_for_its_scope_before(
    broker: Broker,
) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 1)
    async with (
        Admin(broker.bootstrap) as admin,
        Consumer(
            broker.bootstrap,
            group_id="g",
            topics="t",
            auto_offset_reset="earliest",
            heartbeat_interval_ms=200,
        ) as consumer,
    ):
        assert await consumer.get() is not None
        group = consumer._core.group
        assert group is not None
        await admin.remove_members("g", member_ids=[consumer.health().member_id])
        await until(lambda: group.lost)
        await turns()  # until the consumer was woken
        work = asyncio.sleep(0)
        with pytest.raises(Closed, match="t-0 is no longer assigned to this consumer"):
            consumer.scope(TopicPartition("t", 0)).create_task(work)
        assert await consumer.get() is not None
        await consumer.scope(TopicPartition("t", 0)).create_task(asyncio.sleep(0))


async def test_work_in_a_scope_ends_before_the_partition_goes(broker: Broker) -> None:
    broker.create_topic("t", 2)
    await send(broker.bootstrap, "t", 2, partitions=2)
    log: list[str] = []
    go = asyncio.Event()

    class Told(RebalanceListener):
        def on_partitions_revoked(self, consumer: Any, partitions: Any) -> None:
            log.append("revoked")

    async def quick() -> None:
        await go.wait()
        log.append("quick ended")

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            log.append("endless cancelled")

    async with Consumer(
        broker.bootstrap,
        group_id="g",
        topics="t",
        listener=Told(),
        auto_offset_reset="earliest",
        revocation_grace_ms=1_000,
    ) as consumer:
        record = await consumer.get()
        assert record is not None
        scope = consumer.scope(record.topic_partition)
        tasks = [scope.create_task(quick()), scope.create_task(endless(), name="endless")]
        assert scope.tasks == set(tasks)
        await asyncio.sleep(0)
        go.set()
    assert log == ["quick ended", "endless cancelled", "revoked"]
    assert scope.ended
    with pytest.raises(Closed, match="no longer assigned to this consumer"):
        scope.create_task(quick())


async def test_a_task_that_fails_is_raised_from_the_next_reading_call(broker: Broker) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 2)

    async def fail() -> None:
        raise RuntimeError("the work failed")

    async with Consumer(broker.bootstrap, group_id="g", topics="t", auto_offset_reset="earliest") as consumer:
        record = await consumer.get()
        assert record is not None
        await asyncio.wait([consumer.scope(record.topic_partition).create_task(fail())])
        with pytest.raises(RuntimeError, match="the work failed"):
            await consumer.get()
        assert await consumer.get() is not None


@pytest.mark.parametrize("ends", ["close", "drain", "block"])
async def test_a_task_that_fails_too_late_for_a_reading_call_is_raised_at_the_end(
    broker: Broker, ends: str
) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 1)
    go = asyncio.Event()

    async def fail() -> None:
        await go.wait()
        raise RuntimeError("the work failed")

    async def read() -> None:
        async with Consumer(
            broker.bootstrap,
            group_id="g",
            topics="t",
            auto_offset_reset="earliest",
            revocation_grace_ms=90_000,
        ) as consumer:
            await consumer.get()
            consumer.scope(TopicPartition("t", 0)).create_task(fail())
            asyncio.get_running_loop().call_soon(go.set)
            if ends != "block":
                await (consumer.close(LONG_S) if ends == "close" else consumer.drain(LONG_S))

    with pytest.raises(RuntimeError, match="the work failed"):
        await read()
    assert broker.group("g").facts == ("Empty", 0)
    assert await committed(broker) == 1


async def test_what_a_task_raises_is_logged_if_something_else_is_raised(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 1)

    async def fail(number: int) -> None:
        raise RuntimeError(f"failure {number}")

    async def read() -> None:
        async with Consumer(
            broker.bootstrap, group_id="g", topics="t", auto_offset_reset="earliest"
        ) as consumer:
            await consumer.get()
            scope = consumer.scope(TopicPartition("t", 0))
            await asyncio.wait([scope.create_task(fail(number)) for number in (1, 2)])
            with pytest.raises(RuntimeError, match="failure 1"):
                await consumer.get()
            await asyncio.wait([scope.create_task(fail(3))])
            await scope.create_task(fail(4))

    with pytest.raises(RuntimeError, match="failure 4"):
        await read()
    logged = [each for each in caplog.records if each.name == "muster.client.consumer" and each.exc_info]
    assert [each.levelname for each in logged] == ["ERROR"] * 3
    assert [str(each.exc_info[1]) for each in logged if each.exc_info] == [
        "failure 2",
        "failure 4",
        "failure 3",
    ]


async def test_a_task_does_not_end_the_loop_without_a_word(broker: Broker) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 1)

    async def fail() -> None:
        raise StopAsyncIteration

    async with Consumer(broker.bootstrap, group_id="g", topics="t", auto_offset_reset="earliest") as consumer:
        await consumer.get()
        await asyncio.wait([consumer.scope(TopicPartition("t", 0)).create_task(fail())])
        with pytest.raises(RuntimeError, match="a scope's task raised StopAsyncIteration"):
            await anext(aiter(consumer), None)


async def test_a_task_of_a_scope_cannot_close_the_consumer_which_waits_for_it(broker: Broker) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 1)
    async with Consumer(broker.bootstrap, group_id="g", topics="t", auto_offset_reset="earliest") as consumer:
        record = await consumer.get()
        assert record is not None
        task = consumer.scope(record.topic_partition).create_task(consumer.drain())
        await asyncio.wait([task])
        assert isinstance(task.exception(), ClientError)
        with pytest.raises(ClientError, match=r"they call stop\(\)"):
            await consumer.get()


@pytest.mark.parametrize("assignor", [EAGER, COOPERATIVE], ids=["eager", "cooperative"])
async def test_a_pause_lasts_through_a_rebalance(broker: Broker, assignor: dict[str, Any]) -> None:
    broker.create_topic("t", 4)
    settings: dict[str, Any] = {"group_id": "g", "topics": "t"} | assignor
    async with reading(broker.bootstrap, **settings) as first:
        await first.until_assigned(*on("t", 0, 1, 2, 3))
        first.consumer.pause(*on("t", 0, 1, 2, 3))
        async with reading(broker.bootstrap, **settings) as second:
            await second.until(lambda: len(second.consumer.assignment) == 2)
            await first.until(lambda: len(first.consumer.assignment) == 2)
            kept, moved = first.consumer.assignment, second.consumer.assignment
            assert first.consumer.paused == kept
            assert second.consumer.paused == set()
        await first.until_assigned(*on("t", 0, 1, 2, 3))
        await send(broker.bootstrap, "t", 4, partitions=4)
        await first.until(lambda: len(first.seen) == 2)
        assert {record.topic_partition for record in first.seen} == moved
        assert first.consumer.paused == kept


async def test_draining_from_elsewhere_lets_the_reader_finish(broker: Broker) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 10)
    handled: list[int] = []
    at_work, go = asyncio.Event(), asyncio.Event()

    async def read(consumer: Consumer[Any, Any]) -> None:
        async for record in consumer:
            at_work.set()
            await go.wait()
            handled.append(record.offset)

    async with Consumer(broker.bootstrap, group_id="g", topics="t", auto_offset_reset="earliest") as consumer:
        reader = asyncio.create_task(read(consumer))
        async with asyncio.timeout(LONG_S):
            await at_work.wait()
        draining = asyncio.create_task(consumer.drain(LONG_S))
        await until(lambda: consumer.health().state == "stopping")
        go.set()
        await draining
        await reader
        assert consumer.health().state == "closed"
    assert handled == [0]
    assert broker.group("g").facts == ("Empty", 0)
    assert await committed(broker) == 1


async def test_who_asks_from_a_task_of_its_own_still_handles_the_record(broker: Broker) -> None:
    """As asyncio.wait_for does before Python 3.12: the task that waits ends long before the reader."""
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 3)
    at_work = asyncio.Event()

    async def read(consumer: Consumer[Any, Any]) -> None:
        assert await asyncio.create_task(consumer.get()) is not None
        assert await asyncio.create_task(consumer.get()) is not None
        at_work.set()
        await asyncio.Event().wait()

    async with Consumer(broker.bootstrap, group_id="g", topics="t", auto_offset_reset="earliest") as consumer:
        reader = asyncio.create_task(read(consumer))
        async with asyncio.timeout(LONG_S):
            await at_work.wait()
            await consumer.close()
        reader.cancel()
        await asyncio.wait([reader])
    assert await committed(broker) == 1


@pytest.fixture
def _one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """All records of a batch are returned in one run, however slow the reader is."""
    monkeypatch.setattr("muster.client.consumer._STRETCH_S", math.inf)


async def _first(consumer: Consumer[Any, Any]) -> None:
    assert await consumer.get() is not None


@pytest.mark.usefixtures("_one_run")
@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("how", ["get", "loop"])
async def test_a_record_is_handled_by_who_got_it_not_by_who_got_those_before(
    broker: Broker, how: str, ended: bool
) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 3)
    at_work = asyncio.Event()

    async def read(consumer: Consumer[Any, Any]) -> None:
        if how == "get":
            await _first(consumer)
        else:
            await anext(aiter(consumer))
        at_work.set()
        await asyncio.Event().wait()

    async with Consumer(broker.bootstrap, group_id="g", topics="t", auto_offset_reset="earliest") as consumer:
        async with asyncio.timeout(LONG_S):
            await (asyncio.create_task(_first(consumer)) if ended else _first(consumer))
            reader = asyncio.create_task(read(consumer))
            await at_work.wait()
            await consumer.close()
        reader.cancel()
        await asyncio.wait([reader])
    assert await committed(broker) == 1


@pytest.mark.usefixtures("_one_run")
@pytest.mark.parametrize("ends", ["close", "drain"])
async def test_what_another_task_has_in_hand_is_not_handled_if_one_before_it_returned(
    broker: Broker, ends: str
) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 3)
    at_work = asyncio.Event()

    async def read(consumer: Consumer[Any, Any]) -> None:
        await anext(consumer)
        at_work.set()
        await asyncio.Event().wait()

    async with Consumer(broker.bootstrap, group_id="g", topics="t", auto_offset_reset="earliest") as consumer:
        async with asyncio.timeout(LONG_S):
            await asyncio.create_task(_first(consumer))
            reader = asyncio.create_task(read(consumer))
            await at_work.wait()
            await (consumer.close() if ends == "close" else consumer.drain(4.0))  # which it waits for
        reader.cancel()
        await asyncio.wait([reader])
    assert await committed(broker) == 1


@asynccontextmanager
async def _with_a_record_in_hand(
    broker: Broker,
) -> AsyncIterator[tuple[Consumer[Any, Any], asyncio.Task[None]]]:
    """A consumer, and the task that reads with it and keeps the record at offset 3 in hand. Afterwards, the
    group has no member, and the records before that one are committed."""
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 10)
    async with Consumer(broker.bootstrap, group_id="g", topics="t", auto_offset_reset="earliest") as consumer:
        at_work = asyncio.Event()

        async def read() -> None:
            async for record in consumer:
                if record.offset == 3:
                    at_work.set()
                    await asyncio.Event().wait()

        reader = asyncio.create_task(read())
        async with asyncio.timeout(LONG_S):
            await at_work.wait()
            yield consumer, reader
        reader.cancel()
        await asyncio.wait([reader])
    assert broker.group("g").facts == ("Empty", 0)
    assert await committed(broker) == 3


async def test_draining_takes_no_longer_than_its_timeout(broker: Broker) -> None:
    async with _with_a_record_in_hand(broker) as (consumer, _):
        await consumer.drain(8.0)


async def test_draining_does_not_wait_for_a_reader_that_has_ended(broker: Broker) -> None:
    async with _with_a_record_in_hand(broker) as (consumer, reader):
        draining = asyncio.create_task(consumer.drain(1_000 * LONG_S))
        await until(lambda: consumer.health().state == "stopping")
        reader.cancel()
        await draining


@pytest.mark.parametrize("ends", ["returns", "fails"])
async def test_what_another_task_had_in_hand_at_the_end_is_handled_if_it_returned(
    broker: Broker, ends: str
) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 10)

    async def read(consumer: Consumer[Any, Any]) -> None:
        async for record in consumer:
            if record.offset == 3:
                if ends == "fails":
                    raise RuntimeError("cannot handle")
                return

    async with Consumer(broker.bootstrap, group_id="g", topics="t", auto_offset_reset="earliest") as consumer:
        await asyncio.wait([asyncio.create_task(read(consumer))])
    assert await committed(broker) == (4 if ends == "returns" else 3)


async def test_scopes_may_finish_while_the_consumer_drains(broker: Broker) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 1)
    go, done = asyncio.Event(), []

    async def work() -> None:
        await go.wait()
        done.append("work")

    async with Consumer(
        broker.bootstrap,
        group_id="g",
        topics="t",
        auto_offset_reset="earliest",
        revocation_grace_ms=0,
    ) as consumer:
        record = await consumer.get()
        assert record is not None
        consumer.scope(record.topic_partition).create_task(work())
        draining = asyncio.create_task(consumer.drain(LONG_S))
        await until(lambda: consumer.health().state == "stopping")
        with pytest.raises(Closed, match="stopped"):
            await consumer.get()
        go.set()
        await draining
    assert done == ["work"]


async def test_a_static_member_stays_in_the_group_and_comes_back(broker: Broker) -> None:
    broker.create_topic("t")
    settings: dict[str, Any] = {"group_id": "g", "topics": "t", "group_instance_id": "one"}
    told = Told()
    async with reading(broker.bootstrap, **settings) as first:
        await first.until_assigned(*on("t", 0))
    assert broker.group("g").facts == ("Stable", 1)
    async with reading(broker.bootstrap, **settings, listener=told) as second:
        await second.until_assigned(*on("t", 0))
        assert second.consumer.group_metadata().generation_id == 1
        assert second.consumer.group_metadata().group_instance_id == "one"
    assert told.calls == [("assigned", on("t", 0)), ("revoked", on("t", 0))]


async def test_a_static_leader_that_is_back_sees_partitions_that_came_while_it_was_away(
    broker: Broker,
) -> None:
    broker.create_topic("t")
    settings: dict[str, Any] = {"group_id": "g", "topics": "t", "group_instance_id": "one"}
    async with reading(broker.bootstrap, **settings) as first:
        await first.until_assigned(*on("t", 0))
    async with Admin(broker.bootstrap) as admin:
        await admin.create_partitions({"t": 2})
    async with reading(broker.bootstrap, **settings) as second:
        await second.until_assigned(*on("t", 0, 1))


async def test_a_static_group_that_is_back_on_the_classic_protocol_sees_partitions_that_come() -> None:
    def member(broker: Broker, instance_id: str, protocol: str) -> AbstractAsyncContextManager[Reading]:
        return reading(
            broker.bootstrap,
            group_id="g",
            topics="t",
            group_instance_id=instance_id,
            group_protocol=protocol,
            metadata_max_age_ms=500,
        )

    def read(*members: Reading) -> list[int]:
        return sorted(each.partition for member in members for each in member.consumer.assignment)

    async with Broker(**BEATS_OFTEN) as broker, AsyncExitStack() as later:
        await broker.create_topic("t", partitions=2)
        async with member(broker, "one", "consumer") as alice:
            async with member(broker, "two", "consumer") as bob:
                await until(lambda: len(alice.consumer.assignment) == len(bob.consumer.assignment) == 1)
            bob = await later.enter_async_context(member(broker, "two", "classic"))
            await until(lambda: bob.consumer.assignment)
        alice = await later.enter_async_context(member(broker, "one", "classic"))
        await until(lambda: read(alice, bob) == [0, 1])
        async with Admin(broker.bootstrap) as admin:
            await admin.create_partitions({"t": 6})
        await until(lambda: read(alice, bob) == [*range(6)])


async def test_several_consumers_in_one_process(broker: Broker) -> None:
    broker.create_topic("t", 3)
    await send(broker.bootstrap, "t", 30, partitions=3)
    async with (
        reading(broker.bootstrap, group_id="g", topics="t") as one,
        reading(broker.bootstrap, group_id="g", topics="t", heartbeat="thread") as two,
        reading(broker.bootstrap, group_id="other", topics="t") as three,
    ):
        await three.until(lambda: len(three.seen) == 30)
        await until(lambda: len(one.seen) + len(two.seen) >= 30, one.task, two.task)
        assert set(numbers([*one.seen, *two.seen])) == set(range(30))


async def test_a_reader_that_waits_for_records_is_not_away(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("t")
    told = Told()
    settings: dict[str, Any] = {"max_poll_interval_ms": 5_000, "revocation_grace_ms": 0}
    async with reading(broker.bootstrap, group_id="g", topics="t", listener=told, **settings) as reader:
        await reader.until_assigned(*on("t", 0))
        began = asyncio.get_running_loop().time()
        await reader.until(lambda: asyncio.get_running_loop().time() > began + 6)
        await send(broker.bootstrap, "t", 1)
        await reader.until(lambda: reader.seen)
        assert told.calls == [("assigned", on("t", 0))]
        assert "nobody has asked" not in caplog.text


async def test_a_consumer_that_is_stopped_while_it_joins(broker: Broker) -> None:
    """Another member that does not rejoin delays the rebalance, but not the end of this one."""
    broker.create_topic("t", 2)
    async with Consumer(broker.bootstrap, group_id="g", topics="t") as slow:
        await slow.get(1)
        await until(lambda: slow.assignment or broker.group("g").state == "Stable")
        async with Consumer(broker.bootstrap, group_id="g", topics="t") as joining:
            reader = asyncio.create_task(joining.get())
            await until(lambda: broker.group("g").facts.members == 2)
            joining.stop()
            assert await asyncio.wait_for(reader, LONG_S) is None
            with pytest.raises(Closed, match="stopped"):
                await joining.get()
            assert [record async for record in joining] == []


async def test_unsubscribing_beside_a_reading_call_is_refused(broker: Broker) -> None:
    broker.create_topic("t")
    async with reading(broker.bootstrap, group_id="g", topics="t") as reader:
        await reader.until_assigned(*on("t", 0))
        with pytest.raises(ConcurrentUse):
            await reader.consumer.unsubscribe()
        assert reader.consumer.assignment == on("t", 0)


async def test_what_was_read_of_a_deleted_topic_is_not_committed_for_the_next_of_its_name(
    broker: Broker,
) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 3)
    settings: dict[str, Any] = {
        "group_id": "g",
        "topics": "t",
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "allow_auto_create_topics": False,  # else it may create the new one before the admin does
    }
    async with Admin(broker.bootstrap) as admin, Consumer(broker.bootstrap, **settings) as consumer:
        assert len([await consumer.get(LONG_S) for _ in range(3)]) == 3
        consumer.pause(*on("t", 0))  # else its next Fetch finds out, and it begins with the new one
        await admin.delete_topic("t")
        await admin.create_topic("t")

        async def commit() -> None:
            result = await consumer.commit({TopicPartition("t", 0): 3}, timeout=1)
            raise result.retry[TopicPartition("t", 0)].why

        why = await failure(commit, "UNKNOWN_TOPIC_ID")
        assert isinstance(why, KafkaError)
        assert why.code is ErrorCode.UNKNOWN_TOPIC_ID
    assert await committed(broker) == 0


async def test_the_last_commit_of_a_topic_that_the_coordinator_does_not_know_yet(broker: Broker) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 3)
    settings: dict[str, Any] = {"group_id": "g", "topics": "t", "auto_offset_reset": "earliest"}
    with broker.faults.add(api="OffsetCommit", times=3, error="UNKNOWN_TOPIC_ID") as rule:
        async with Consumer(broker.bootstrap, **settings) as consumer:
            assert len([await consumer.get(LONG_S) for _ in range(3)]) == 3
        assert rule.fired == 3
    assert await committed(broker) == 3


async def test_a_commit_that_is_refused_for_good_is_raised_and_the_consumer_closes(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 2)
    refused = KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "not for you")
    told = Told()
    consumer = Consumer(
        broker.bootstrap,
        group_id="g",
        topics="t",
        listener=told,
        auto_offset_reset="earliest",
        auto_commit_interval_ms=50,
    )
    await consumer.start()
    assert await consumer.get() is not None

    async def refuse(*_: Any, **__: Any) -> Any:
        raise refused

    monkeypatch.setattr(Group, "commit", refuse)

    async def read_on() -> None:
        async with asyncio.timeout(LONG_S):
            while True:
                await consumer.get(0.05)

    with pytest.raises(KafkaError, match="not for you"):
        await read_on()
    with pytest.raises(KafkaError, match="not for you"):
        await consumer.close()
    assert told.calls == [("assigned", on("t", 0)), ("revoked", on("t", 0))]
    assert broker.group("g").facts == ("Empty", 0)


async def test_a_last_commit_that_is_refused_for_good_is_logged_if_the_listener_raises(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 1)

    class Raising(RebalanceListener):
        def on_partitions_revoked(self, consumer: Any, partitions: Any) -> None:
            raise RuntimeError("the listener failed")

    consumer = Consumer(
        broker.bootstrap, group_id="g", topics="t", listener=Raising(), auto_offset_reset="earliest"
    )
    await consumer.start()
    assert await consumer.get() is not None
    with (
        broker.faults.add(api="OffsetCommit", error="GROUP_AUTHORIZATION_FAILED"),
        pytest.raises(RuntimeError, match="the listener failed"),
    ):
        await consumer.close()
    (logged,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert "the last automatic commit failed" in logged.getMessage()
    assert "not authorized for the group" in logged.getMessage()


async def test_a_last_commit_that_is_refused_for_good_is_raised_if_the_listener_takes_too_long(
    broker: Broker,
) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 1)

    class Slow(RebalanceListener):
        async def on_partitions_revoked(self, consumer: Any, partitions: Any) -> None:
            await asyncio.Event().wait()

    consumer = Consumer(
        broker.bootstrap, group_id="g", topics="t", listener=Slow(), auto_offset_reset="earliest"
    )
    await consumer.start()
    assert await consumer.get() is not None
    with (
        broker.faults.add(api="OffsetCommit", error="GROUP_AUTHORIZATION_FAILED"),
        pytest.raises(KafkaError, match="not authorized for the group"),
    ):
        await consumer.close(8.0)


@pytest.mark.parametrize("how", ["get", "get_many"])
@pytest.mark.parametrize("begun", ["before", "after"])
async def test_a_transaction_of_records_whose_partition_was_given_up_is_aborted(
    broker: Broker, how: str, begun: str
) -> None:
    """Its results would be stored without the offset, and come from the next owner once more."""
    broker.create_topic("t", 2)
    await send(broker.bootstrap, "t", 12, partitions=2)
    settings: dict[str, Any] = {"group_id": "g", "topics": "t", "auto_offset_reset": "earliest"} | EAGER
    async with (
        Producer(broker.bootstrap, transactional_id="x") as producer,
        Consumer(broker.bootstrap, **settings) as first,
        Consumer(broker.bootstrap, **settings) as second,
    ):

        async def read() -> None:
            if how == "get":
                await first.get()
            else:
                await first.get_many(1)

        async with producer.transaction() as transaction:
            await read()
            await transaction.commit_offsets(first)
        joining = asyncio.create_task(second.get())
        transaction = producer.transaction()
        if begun == "before":
            await transaction.begin()
        await read()
        async with asyncio.timeout(LONG_S):
            while len(first.assignment) == 2 or not first.assignment:
                await first.get(0.05)
        if begun == "after":
            await transaction.begin()
        with pytest.raises(TransactionAborted, match=r"t-[01] was given up in a rebalance"):
            await transaction.commit_offsets(first)
        await transaction.abort()
        await joining
        # Once told, it is over, even for a producer that knows nothing of that abort.
        other = Producer(broker.bootstrap, transactional_id="y")
        async with other, other.transaction() as transaction:
            await first.get(0.05)
            await transaction.commit_offsets(first)
        async with producer.transaction() as transaction:
            await first.get(0.05)
            await transaction.commit_offsets(first)


@pytest.mark.parametrize("when", ["before its commit", "during its commit", "during its abort"])
async def test_what_is_returned_after_a_transaction_has_its_offsets_is_for_the_next(
    broker: Broker, when: str
) -> None:
    """So the next one is aborted if the partition is given up, even before the earlier one has ended."""
    broker.create_topic("t", 2)
    await send(broker.bootstrap, "t", 12, partitions=2)
    settings: dict[str, Any] = {"group_id": "g", "topics": "t", "auto_offset_reset": "earliest"} | EAGER
    async with (
        Producer(broker.bootstrap, transactional_id="x") as producer,
        Consumer(broker.bootstrap, **settings) as first,
        Consumer(broker.bootstrap, **settings) as second,
        broker.aio.faults.add(api="EndTxn", delay="1 day") as held,
        asyncio.timeout(LONG_S),
    ):
        earlier = await producer.transaction().begin()
        await first.get_many(1)
        await earlier.commit_offsets(first)
        end = earlier.abort if when == "during its abort" else earlier.commit
        if when != "before its commit":
            ending = asyncio.create_task(end())
            await held.hit()
        await first.get_many(1)
        joining = asyncio.create_task(second.get())
        while len(first.assignment) == 2 or not first.assignment:
            await first.get(0.05)
        if when == "before its commit":
            ending = asyncio.create_task(end())
        await held.remove()
        await ending
        transaction = await producer.transaction().begin()
        with pytest.raises(TransactionAborted, match=r"t-[01] was given up in a rebalance"):
            await transaction.commit_offsets(first)
        await transaction.abort()
        await joining
        async with producer.transaction() as transaction:
            await first.get(0.05)
            await transaction.commit_offsets(first)


@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("group_protocol", ["classic", "consumer"])
async def test_offsets_that_a_transaction_is_committing_are_waited_for(
    broker: Broker, group_protocol: Any, isolation_level: Any
) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 3)
    (where,) = on("t", 0)
    async with (
        Producer(broker.bootstrap, transactional_id="x") as producer,
        Consumer(
            broker.bootstrap,
            group_id="g",
            topics="t",
            group_protocol=group_protocol,
            isolation_level=isolation_level,
            auto_offset_reset="earliest",
        ) as consumer,
    ):
        async with producer.transaction() as transaction:
            await transaction.commit_offsets(GroupMetadata("g", -1, "", None), {where: 2})
            reading = asyncio.create_task(consumer.get())
            await until(lambda: consumer.assignment == {where}, reading)
            why = await failure(lambda: consumer.committed(timeout=0.2), "UNSTABLE_OFFSET_COMMIT")
            assert isinstance(why, KafkaError)
            assert not reading.done()
        async with asyncio.timeout(LONG_S):
            record = await reading
        assert record is not None
        assert record.offset == 2
        assert await consumer.committed() == {where: OffsetAndMetadata(2)}


async def test_a_pattern_for_the_broker_does_not_fall_back_and_one_for_the_client_does() -> None:
    with Broker(group_coordinator_rebalance_protocols=("classic",)) as broker:
        broker.create_topic("t")
        broker.produce("t", [b"0"])
        settings: dict[str, Any] = {"group_protocol": "auto", "auto_offset_reset": "earliest"}
        refused = r"requires the consumer protocol: give re\.compile"
        async with Consumer(
            broker.bootstrap, group_id="g", topics=SubscriptionPattern("t"), **settings
        ) as consumer:
            with pytest.raises(KafkaError, match=refused):
                await consumer.get_many(1, LONG_S)
        async with Consumer(broker.bootstrap, group_id="g", topics=re.compile("t"), **settings) as consumer:
            assert numbers(await consumer.get_many(1, LONG_S)) == [0]
            await consumer.unsubscribe()
            with pytest.raises(KafkaError, match=refused):
                consumer.subscribe(SubscriptionPattern("t"))


async def test_a_static_member_that_comes_back_with_other_topics_keeps_nothing_of_its_pattern(
    broker: Broker,
) -> None:
    for topic in ("orders", "clicks"):
        broker.create_topic(topic)
        broker.produce(topic, [b"0"])
    settings: dict[str, Any] = {
        "group_id": "g",
        "group_instance_id": "i",
        "group_protocol": "consumer",
        "auto_offset_reset": "earliest",
    }
    async with Consumer(broker.bootstrap, topics=SubscriptionPattern("ord.*"), **settings) as before:
        (record,) = await before.get_many(1, LONG_S)
        assert record.topic == "orders"
    told = Told()
    async with Consumer(broker.bootstrap, topics="clicks", listener=told, **settings) as after:
        (record,) = await after.get_many(1, LONG_S)
        assert record.topic == "clicks"
        assert after.assignment == on("clicks", 0)
    assert set[TopicPartition]().union(*(where for _, where in told.calls)) == on("clicks", 0)


@pytest.mark.parametrize("heartbeat", ["loop", "thread"])
async def test_a_test_in_which_time_stands_still_does_not_stop_heartbeats(
    broker: Broker, heartbeat: str
) -> None:
    """As with freezegun and real_asyncio=True, where only the loop goes on."""
    keep_real(asyncio.get_running_loop())
    broker.create_topic("t")
    settings: dict[str, Any] = {"group_id": "g", "heartbeat": heartbeat, "heartbeat_interval_ms": 20}
    async with reading(broker.bootstrap, topics="t", **settings) as one:
        await one.until_assigned(*on("t", 0))
        with frozen():
            async with broker.aio.faults.add(api="Heartbeat", delay="0ms", times=5) as heard:
                await heard.hit(5)


@pytest.mark.parametrize("where", ["user_data", "on_assignment"])
async def test_an_assignor_that_raises_is_told_by_a_reading_call_and_the_next_one_reads(
    broker: Broker, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 1)

    class Fails(RangeAssignor):
        name = "fails"
        left = 1

        def user_data(self, topics: Any, owned: Any, generation_id: int) -> bytes | None:
            self.fail("user_data")
            return None

        def on_assignment(self, assigned: Any, generation_id: int) -> None:
            self.fail("on_assignment")

        def fail(self, here: str) -> None:
            if here == where and self.left:
                self.left -= 1
                raise KeyError("the bug")

    async with Consumer(
        broker.bootstrap, group_id="g", topics="t", auto_offset_reset="earliest", assignors=[Fails()]
    ) as consumer:
        with pytest.raises(ClientError, match="the assignor 'fails' failed: KeyError: 'the bug'") as raised:
            await consumer.get()
        assert isinstance(raised.value.__cause__, KeyError)
        assert await consumer.get() is not None
        assert consumer.health().membership == "STABLE"
    assert consumer.health().rebalances == 1
    assert await committed(broker) == 1
    assert "internal error" not in caplog.text


async def rejoined_in_vain(consumer: Consumer) -> Group:
    """The consumer's group, once its assignor has raised in a rebalance; the reader has another record."""
    group = consumer._core.group
    assert group is not None
    group.request_rejoin("test")
    assert await consumer.get() is not None  # and joins meanwhile
    await until(lambda: isinstance(group._membership.error, AssignorFailed))
    return group


@pytest.mark.parametrize("by", ["a commit", "the close", "the close of a busy reader"])
async def test_an_assignor_that_raises_holds_back_no_commit(broker: Broker, by: str) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 2)

    class Fails(CooperativeStickyAssignor):
        fails = False

        def on_assignment(self, assigned: Any, generation_id: int) -> None:
            super().on_assignment(assigned, generation_id)
            if self.fails:
                self.fails = False
                raise KeyError("the bug")

    assignor = Fails()
    async with Consumer(
        broker.bootstrap, group_id="g", topics="t", auto_offset_reset="earliest", assignors=[assignor]
    ) as consumer:
        assert await consumer.get() is not None
        assignor.fails = True
        await rejoined_in_vain(consumer)
        if by == "a commit":
            assert (await consumer.commit()).ok
        if by == "the close of a busy reader":
            consumer._core._asked()  # by the watch, which looks every second
        told = consumer.get() if by == "a commit" else consumer.close()
        with pytest.raises(
            ClientError, match="the assignor 'cooperative-sticky' failed: KeyError: 'the bug'"
        ):
            await told
        assert await committed(broker) == 2


@pytest.mark.parametrize("by", ["a commit", "the close"])
async def test_a_commit_does_not_wait_for_a_rebalance_whose_leaders_assignor_has_raised(
    broker: Broker, by: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 2)

    class Fails(CooperativeStickyAssignor):
        fails = False

        def assign(self, *args: Any, **others: Any) -> Any:
            if self.fails:
                self.fails = False
                raise KeyError("the bug")
            return super().assign(*args, **others)

    assignor, told = Fails(), "the assignor 'cooperative-sticky' failed: KeyError: 'the bug'"
    async with Consumer(
        broker.bootstrap, group_id="g", topics="t", auto_offset_reset="earliest", assignors=[assignor]
    ) as consumer:
        assert await consumer.get() is not None
        assignor.fails = True
        group = await rejoined_in_vain(consumer)
        if by == "a commit":
            for call in (consumer.commit, consumer.get):
                with pytest.raises(ClientError, match=told):
                    await call()
            assert await consumer.get(0.01) is None
            await until(lambda: group.state is State.STABLE)
            assert (await consumer.commit()).ok
        else:
            with pytest.raises(ClientError, match=told):
                await consumer.close()
            assert f"could not be committed and may be read again: group g: {told}" in caplog.text
