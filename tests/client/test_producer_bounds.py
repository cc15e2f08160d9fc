"""The bounds of a producer, and how it ends: room, time, close, cancellation, a sender that dies."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from muster.client.errors import BufferFull, ClientError, Closed, DeliveryTimedOut, TimedOut
from muster.client.producer import Producer
from muster.coordinator import testing
from muster.coordinator.testing import Broker
from muster.protocol.errors import ErrorCode, KafkaError
from tests.client.logs import LONG_S, values
from tests.client.posting import give, numbered, post_all
from tests.support.facts import turns, until
from tests.support.leases import TERM_MS

MANY_MS = 100_000_000


# --- bounds -------------------------------------------------------------------------------------------------


async def test_posting_waits_for_room_and_goes_on_in_turn(broker: Broker) -> None:
    broker.create_topic("t")
    async with Producer(broker.bootstrap, buffer_memory=10_000) as producer:
        await producer.send("t", b"")
        broker.pause(0)
        futures = await post_all(producer, "t", numbered(10, 1_000))
        waiting = []
        for number in (10, 11, 12):
            waiting.append(asyncio.create_task(producer.post("t", b"%06d" % number)))
            await until(lambda: len(producer._lines.get("t", ())) == len(waiting))
        cancelled = waiting.pop(1)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        broker.resume(0)
        futures += await asyncio.gather(*waiting)
        assert [each.offset for each in await asyncio.gather(*futures)] == list(range(1, 13))
    assert [(each or b"")[:6] for each in await values(broker.bootstrap, "t")] == [
        b"",
        *numbered(11),
        b"000012",
    ]


async def test_those_behind_hear_what_kept_those_before_them(broker: Broker) -> None:
    broker.create_topic("t")
    async with Producer(broker.bootstrap, buffer_memory=100, request_timeout_ms=MANY_MS) as producer:
        await producer.send("t", b"")
        producer._settings = replace(producer._settings, max_block_ms=500)
        broker.pause(0)
        try:
            await producer.post("t", b"x" * 100)
            waiting = [asyncio.create_task(producer.post("t", b"v")) for _ in range(3)]
            await asyncio.wait(waiting)
            assert [type(each.exception()) for each in waiting] == [BufferFull] * 3
        finally:
            broker.resume(0)


async def test_those_behind_do_not_hear_what_was_wrong_with_a_record_before_them(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("t")
    settings: dict[str, Any] = {"linger_ms": 0, "request_timeout_ms": 300, "delivery_timeout_ms": 300}
    async with asyncio.timeout(LONG_S), Producer(broker.bootstrap, **settings) as producer:
        await producer.partitions_for("t")
        refused = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "topic t has no partition 8")

        async def partition(name: str, number: int, patience: object) -> Any:
            await turns()
            if number == 8:
                raise refused
            await asyncio.Event().wait()

        monkeypatch.setattr(producer._sender.leaders, "partition", partition)
        first, second = (asyncio.create_task(producer.post("t", b"v", partition=each)) for each in (8, 9))
        last = asyncio.create_task(producer.send("t", b"v", partition=0))
        await asyncio.wait([first, last])
        assert first.exception() is refused
        assert isinstance(last.exception(), TimedOut)
        second.cancel()
        await asyncio.wait([second])


async def test_a_turn_is_passed_on_by_who_does_not_take_it(broker: Broker) -> None:
    for topic in "tuv":
        broker.create_topic(topic)
    async with Producer(broker.bootstrap, buffer_memory=100, request_timeout_ms=MANY_MS) as producer:
        for topic in "tuv":
            await producer.send(topic, b"")
        broker.pause(0)
        try:
            await producer.post("t", b"x" * 100)
            first, second = (asyncio.create_task(producer.post(topic, b"v")) for topic in "uv")
            await until(lambda: len(producer._turns) == 2, "two wait for room")
            producer._buffer_memory = 10_000
            producer._next_turn()
            first.cancel()
            async with asyncio.timeout(LONG_S):
                await second
            assert first.cancelled()
        finally:
            broker.resume(0)


async def test_close_lets_those_go_who_wait_for_room_that_never_comes(broker: Broker) -> None:
    broker.create_topic("t")
    producer = await Producer(broker.bootstrap, buffer_memory=100, linger_ms=0).start()
    await producer.send("t", b"")
    broker.pause(0)
    try:
        await producer.post("t", b"x" * 100)
        waiting = asyncio.create_task(producer.post("t", b"v"))
        await until(lambda: producer._turns, "it waits for room")
        await until(lambda: producer._sender._requests, "what fills the buffer is on its way")
        await producer.close(0.1)
        with pytest.raises(Closed):
            async with asyncio.timeout(LONG_S):
                await waiting
    finally:
        broker.resume(0)


async def test_no_room_is_an_error_in_the_end(broker: Broker) -> None:
    broker.create_topic("t")
    async with Producer(broker.bootstrap, buffer_memory=10_000) as producer:
        await producer.send("t", b"")
        producer._settings = replace(producer._settings, max_block_ms=200)
        broker.pause(0)
        futures = await post_all(producer, "t", numbered(10, 1_000))
        with pytest.raises(
            BufferFull, match=r"max_block_ms \(200\): 10\d\d\d bytes .* buffer_memory is 10000"
        ):
            await producer.post("t", b"v")
        broker.resume(0)
        await asyncio.gather(*futures)
        await producer.send("t", b"v")
    assert len(await values(broker.bootstrap, "t")) == 12


@pytest.mark.parametrize("hanging", [0, 1])
async def test_a_broker_that_hangs_is_asked_for_a_topic_no_longer_than_for_anything_else(
    hanging: int,
) -> None:
    """However long the producer may block: the other broker knows the topic as well."""
    with testing.Cluster(2, lease_term_ms=TERM_MS) as brokers:
        brokers.create_topic("t")
        brokers.create_topic("u")
        async with Producer(
            brokers.bootstrap, request_timeout_ms=1_000, max_block_ms=MANY_MS, delivery_timeout_ms=MANY_MS
        ) as producer:
            await producer.send("t", b"")
            brokers.pause(hanging)
            brokers.clock.advance(TERM_MS / 1_000)
            try:
                async with asyncio.timeout(LONG_S):
                    await producer.send("u", b"")
            finally:
                brokers.resume(hanging)


async def test_what_expires_makes_room(broker: Broker) -> None:
    broker.create_topic("t")
    async with Producer(
        broker.bootstrap, batch_size=1_500, max_in_flight=1, buffer_memory=10_000
    ) as producer:
        await producer.send("t", b"")
        broker.pause(0)
        give(producer, 0.5)
        futures = await post_all(producer, "t", numbered(10, 1_000))
        late = await producer.post("t", b"v")
        assert futures[1].done(), "one that was not on its way had to go first"
        broker.resume(0)
        await asyncio.gather(*futures, late, return_exceptions=True)


async def test_a_record_has_its_time_and_says_whether_it_may_be_there(broker: Broker) -> None:
    """The broker is paused; when it resumes, the rest is written in order, once."""
    broker.create_topic("t")
    async with Producer(broker.bootstrap, batch_size=500, max_in_flight=2) as producer:
        await producer.send("t", b"first")
        broker.pause(0)
        futures = await post_all(producer, "t", numbered(5, 450))
        await until(lambda: len(producer._sender._requests) == 2, "two are on their way")
        give(producer, 1.0)
        told = await asyncio.gather(*futures, return_exceptions=True)
        assert all(isinstance(each, DeliveryTimedOut) for each in told), told
        for number, each in enumerate(told):
            assert "not acknowledged within delivery_timeout_ms (1000): no response came; " in str(each)
            fate = "it may have been written all the same" if number < 2 else "it was not written"
            assert str(each).endswith(fate), each
        give(producer, LONG_S)
        broker.resume(0)
        await asyncio.gather(*await post_all(producer, "t", [b"a", b"b"]))
    logged = await values(broker.bootstrap, "t")
    assert logged in ([b"first", *numbered(count, 450), b"a", b"b"] for count in (0, 1, 2)), (
        "what was on its way may be there"
    )


async def test_flush_waits_for_what_is_there(broker: Broker) -> None:
    broker.create_topic("t", 3)
    async with Producer(broker.bootstrap, linger_ms=MANY_MS, delivery_timeout_ms=MANY_MS + 1) as producer:
        await producer.send("t", b"first")
        futures = [await producer.post("t", b"v", partition=number % 3) for number in range(30)]
        await turns()
        assert not any(future.done() for future in futures), "they linger"
        await producer.flush(LONG_S)
        assert all(future.done() for future in futures)
        await producer.flush(0)  # there is nothing to wait for
        broker.pause(0)
        late = await producer.post("t", b"v")
        with pytest.raises(TimedOut, match="1 records are not acknowledged yet; they stay on their way"):
            await producer.flush(0.2)
        broker.resume(0)
        assert (await late).offset >= 0


async def test_a_lingering_batch_goes_when_its_time_has_come(broker: Broker) -> None:
    broker.create_topic("t")
    async with Producer(broker.bootstrap, linger_ms=50) as producer:
        began = time.monotonic()
        future = await producer.post("t", b"v")
        await future
        assert time.monotonic() - began >= 0.05
        producer._accumulator._linger_s = 1_000.0
        await producer.send("t", b"v")  # somebody awaits it


# --- ends ---------------------------------------------------------------------------------------------------


async def test_close_sends_what_is_there(broker: Broker) -> None:
    broker.create_topic("t")
    producer = await Producer(broker.bootstrap, linger_ms=MANY_MS, delivery_timeout_ms=MANY_MS + 1).start()
    future = await producer.post("t", b"v")
    await producer.close()
    assert future.result().offset == 0
    await producer.close()
    for call in (producer.send("t", b"v"), producer.flush(), producer.partitions_for("t"), producer.start()):
        with pytest.raises(Closed, match="the producer is closed; make another one"):
            await call


async def test_a_producer_that_was_not_started_says_so() -> None:
    producer: Producer[bytes, bytes] = Producer()
    assert repr(producer).startswith(
        "<Producer 127.0.0.1:9092, 0 bytes not acknowledged, the producer was not"
    )
    with pytest.raises(Closed, match="was not started: use `async with`"):
        await producer.send("t", b"v")
    await producer.close()
    with pytest.raises(Closed, match="make another one"):
        await producer.start()


async def test_another_loop_is_refused(broker: Broker) -> None:
    """Before anything changes: the producer goes on where it was started."""
    broker.create_topic("t")
    async with Producer(broker.bootstrap, linger_ms=MANY_MS, delivery_timeout_ms=2 * MANY_MS) as producer:
        await producer.send("t", b"1")
        waiting = await producer.post("t", b"2")
        held = producer._accumulator.size_bytes
        calls: list[Callable[[], Coroutine[Any, Any, Any]]] = [
            lambda: producer.post("t", b"v"),
            lambda: producer.send("t", b"v"),
            lambda: producer.send("t", b"v", partition=0),
            lambda: producer.send("unknown", b"v"),
            lambda: producer.partitions_for("t"),
            producer.flush,
            producer.start,
            producer.close,
        ]

        def elsewhere() -> None:
            for call in calls:
                with pytest.raises(ClientError, match="the producer was started on another event loop"):
                    asyncio.run(call())
            with pytest.raises(ClientError, match="the producer was started on another event loop"):
                producer.transaction()

        await asyncio.to_thread(elsewhere)
        assert (producer._accumulator.size_bytes, producer._closing, producer._lines) == (held, None, {})
        await producer.flush()
        assert (await waiting).offset == 1
    assert await values(broker.bootstrap, "t") == [b"1", b"2"]
    await asyncio.to_thread(lambda: asyncio.run(producer.close()))  # it is over: there is nothing to do


@pytest.mark.parametrize(("timeout", "kind"), [("5", TypeError), ([], TypeError), (float("nan"), ValueError)])
async def test_a_timeout_that_is_none_is_refused_at_once(broker: Broker, timeout: Any, kind: Any) -> None:
    broker.create_topic("t")
    async with Producer(broker.bootstrap) as producer:
        for call in (producer.close, producer.flush):
            with pytest.raises(kind, match=f"timeout={re.escape(repr(timeout))}: it takes seconds"):
                await call(timeout)
        await producer.send("t", b"1")
        await producer.close(Decimal("5"))  # type: ignore[arg-type]
    assert await values(broker.bootstrap, "t") == [b"1"]


@pytest.mark.parametrize("how", ["timeout", "cancelled", "twice"])
async def test_close_is_bounded_and_what_is_not_delivered_fails(broker: Broker, how: str) -> None:
    broker.create_topic("t")
    producer = await Producer(
        broker.bootstrap, batch_size=500, max_in_flight=1, buffer_memory=2_500, linger_ms=0
    ).start()
    await producer.send("t", b"first")
    broker.pause(0)
    try:
        futures = await post_all(producer, "t", numbered(5, 450))
        sending = [asyncio.create_task(producer.send("t", b"v")) for _ in range(3)]
        await until(lambda: len(producer._lines.get("t", ())) == 3, "three wait for room")
        if how == "timeout":
            await producer.close(0.2)
        else:
            closing = asyncio.create_task(producer.close())
            await until(lambda: producer._closing is not None)
            if how == "twice":
                second = asyncio.create_task(producer.close())
                await asyncio.sleep(0)
                closing.cancel()
                await second
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            assert producer._closing is not None
            assert producer._closing.done(), "nothing goes on behind the caller's back"
        told = await asyncio.gather(*futures, return_exceptions=True)
        assert all(isinstance(each, Closed) for each in told), told
        assert str(told[0]).endswith("it may have been written all the same")
        assert str(told[-1]).endswith("it was not written")
        for task in sending:
            with pytest.raises(Closed):
                await task
    finally:
        broker.resume(0)


async def left_by_an_exception(broker: Broker, pause: bool) -> Any:
    """Leave the block by an exception that carries the future of a record posted just before."""
    async with Producer(broker.bootstrap, delivery_timeout_ms=MANY_MS) as producer:
        await producer.send("t", b"first")
        if pause:
            broker.pause(0)
        posted = await producer.post("t", b"second")
        raise ZeroDivisionError(posted)


@pytest.mark.parametrize(("limit_s", "pause"), [(LONG_S, False), (0.2, True)])
async def test_a_block_that_is_left_by_an_exception_does_not_wait_for_long(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, limit_s: float, pause: bool
) -> None:
    monkeypatch.setattr("muster.client.producer._HURRIED_CLOSE_S", limit_s)
    broker.create_topic("t")
    try:
        with pytest.raises(ZeroDivisionError) as left:
            await left_by_an_exception(broker, pause)
        (posted,) = left.value.args
        if pause:
            with pytest.raises(Closed, match="closed before the record was acknowledged"):
                posted.result()
        else:
            assert posted.result().offset == 1
    finally:
        broker.resume(0)


async def test_a_cancelled_send_leaves_its_record_on_its_way(broker: Broker) -> None:
    broker.create_topic("t")
    async with Producer(broker.bootstrap) as producer:
        await producer.send("t", b"first")
        broker.pause(0)
        sending = asyncio.create_task(producer.send("t", b"cancelled"))
        await until(lambda: producer._accumulator.size_bytes, "it has its place")
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        broker.resume(0)
        assert (await producer.send("t", b"last")).offset == 2
    assert await values(broker.bootstrap, "t") == [b"first", b"cancelled", b"last"]


def _fails(*_: object) -> None:
    raise ZeroDivisionError("a defect")


@pytest.mark.interpreted
@pytest.mark.parametrize("where", ["due", "acknowledged", "expired", "identified"])
async def test_a_sender_that_dies_leaves_nobody_waiting(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("t")
    async with Producer(broker.bootstrap) as producer:
        monkeypatch.setattr(producer._accumulator, where, _fails)
        with pytest.raises(ClientError, match="sender failed with ZeroDivisionError: a defect"):
            await producer.send("t", b"v")
        for call in (producer.send("t", b"v"), producer.post("t", b"v"), producer.flush()):
            with pytest.raises(ClientError, match="sender failed with ZeroDivisionError: a defect"):
                await call
    assert "a producer's sender failed" in caplog.text
