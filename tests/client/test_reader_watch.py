"""Whether the reader is away for too long, and what it is busy with."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from muster.client import Consumer
from muster.client.consume.reader_watch import ReaderWatch, whereabouts
from muster.coordinator.testing import Broker
from tests.client.reading import LONG_S, send, until

INTERVAL_S = 10.0


class Watched:
    """A watch, with a reader and a clock that the test controls."""

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self.now = 0.0
        self.progress = 0
        self.asked = 0
        self.missed = True
        self.warnings: list[str] = []
        self.warned = threading.Event()
        self.watch = ReaderWatch(
            interval_s,
            missed=lambda: self.missed,
            progress=lambda: self.progress,
            asked=self._asked,
            warn=self._warn,
            clock=lambda: self.now,
        )

    def _asked(self) -> None:
        self.asked += 1

    def _warn(self, text: str) -> None:
        self.warnings.append(text)
        self.warned.set()

    def later(self, seconds: float) -> list[str]:
        """The warnings after this much time has passed."""
        self.now += seconds
        self.watch.look()
        warned, self.warnings[:] = list(self.warnings), []
        return warned


async def handler(blocked: threading.Event | None = None) -> None:
    if blocked is None:
        await asyncio.Event().wait()
    else:
        blocked.wait(LONG_S)


async def reader(watched: Watched, blocked: threading.Event | None = None) -> None:
    watched.watch.came(asyncio.current_task())
    watched.watch.went()
    if blocked is not None:
        watched.now += 0.6 * INTERVAL_S
    await handler(blocked)


async def ended(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait([task])


async def test_it_warns_at_half_and_at_four_fifths_once_each_and_names_the_handler() -> None:
    watched = Watched()
    task = asyncio.create_task(reader(watched), name="the reader")
    await asyncio.sleep(0)
    assert watched.later(4.9) == []
    (half,) = watched.later(0.1)
    assert watched.watch.away_s == 5
    assert watched.later(2.9) == []
    (more,) = watched.later(0.1)
    assert watched.later(1000) == []
    assert "for 5.0 s, half of max_poll_interval_ms (10000)" in half
    assert "for 8.0 s, four fifths of max_poll_interval_ms (10000)" in more
    for warning in (half, more):
        assert "task 'the reader': reader (" in warning
        assert f"> handler ({__file__}:" in warning
    # While it waits, it is not missed; another absence causes another warning.
    watched.watch.came(task)
    watched.watch.waits()
    assert watched.later(1000) == []
    assert watched.watch.away_s == 0
    watched.watch.went()
    assert len(watched.later(9)) == 1
    await ended(task)


async def test_a_reader_that_is_given_records_is_not_away() -> None:
    watched = Watched()
    watched.watch.came(None)
    watched.watch.went()
    for _ in range(20):
        watched.progress += 1
        assert watched.later(4.9) == []
    assert len(watched.later(5)) == 1


async def test_who_waits_or_is_given_records_counts_as_asking() -> None:
    watched = Watched(0.1)
    watched.watch.start(thread=False)
    watched.watch.came(None)
    watched.watch.went()
    watched.progress += 1
    await until(lambda: watched.asked)
    watched.watch.waits()
    asked = watched.asked
    await until(lambda: watched.asked > asked + 2)
    await watched.watch.close()


async def test_nobody_misses_a_reader_without_a_group() -> None:
    watched = Watched()
    watched.missed = False
    watched.watch.came(None)
    watched.watch.went()
    assert watched.later(1000) == []


async def test_from_a_thread_it_warns_while_the_reader_blocks_the_loop() -> None:
    watched = Watched()
    watched.watch.start(thread=True)
    await asyncio.create_task(reader(watched, watched.warned), name="the reader")
    (half,) = watched.warnings
    assert "task 'the reader': reader (" in half
    assert f"> handler ({__file__}:" in half
    assert "Event.wait (" in half
    await watched.watch.close()


async def test_from_a_thread_it_names_who_else_blocks_the_loop() -> None:
    watched = Watched()

    def intruder() -> None:
        watched.now += 0.6 * INTERVAL_S
        watched.warned.wait(LONG_S)

    watched.watch.start(thread=True)
    task = asyncio.create_task(reader(watched), name="the reader")
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(intruder)
    await until(lambda: watched.warnings)
    assert "task 'the reader': reader (" in watched.warnings[0]
    assert "; the loop is kept by " in watched.warnings[0]
    assert "intruder (" in watched.warnings[0].partition("; the loop")[2]
    await ended(task)
    await watched.watch.close()


async def test_the_lag_of_the_loop_is_measured_and_what_keeps_heartbeats_back_is_warned_of() -> None:
    warnings: list[str] = []
    watch = ReaderWatch(
        2.0,
        silence_s=0.4,
        missed=lambda: True,
        progress=lambda: 0,
        asked=lambda: None,
        warn=warnings.append,
    )
    watch.start(thread=False)
    await asyncio.sleep(0)
    time.sleep(0.5)  # noqa: ASYNC251 - this is what is measured
    await until(lambda: warnings)
    assert watch.loop_lag_max_s >= 0.3
    assert "and so were heartbeats: after session_timeout_ms (400)" in warnings[0]
    await watch.close()


async def test_whereabouts_of_those_that_are_not_anywhere() -> None:
    here = threading.get_ident()
    assert whereabouts(None, here) == "a callback"
    task = asyncio.create_task(asyncio.sleep(0), name="short")
    await task
    assert whereabouts(task, here) == "task 'short': nothing any more"

    async def deep(level: int) -> None:
        await (deep(level - 1) if level else asyncio.Event().wait())

    task = asyncio.create_task(deep(20), name="deep")
    await asyncio.sleep(0)
    told = whereabouts(task, here)
    assert told.count(" > ") == 6
    assert " > … > " in told
    await ended(task)


async def test_a_handler_that_blocks_the_loop_hears_of_it_and_stays_a_member(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 3)

    def block() -> None:
        until_s = time.monotonic() + LONG_S
        while "nobody has asked for records" not in caplog.text:
            assert time.monotonic() < until_s
            time.sleep(0.05)

    async with Consumer(
        broker.bootstrap,
        group_id="g",
        topics="t",
        auto_offset_reset="earliest",
        heartbeat="thread",
        heartbeat_interval_ms=100,
        max_poll_interval_ms=12_000,
    ) as consumer:
        async for record in consumer:
            if record.offset == 0:
                block()
                health = consumer.health()
                assert health.heartbeat_age_s is not None
                assert health.heartbeat_age_s < health.reader_away_s
            if record.offset == 2:
                break
        assert consumer.group_metadata().generation_id == 1
    assert "test_a_handler_that_blocks_the_loop" in caplog.text
    assert "block (" in caplog.text
