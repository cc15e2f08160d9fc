"""Requests to other shards are delivered until they are acknowledged."""

from __future__ import annotations

import pytest

from muster.coordinator.base.clock import ManualClock
from muster.coordinator.runtime.outbox import Outbox
from tests.support.facts import turns, until


class Destination:
    """Refuses the first `refusals` deliveries."""

    def __init__(self, refusals: int = 0) -> None:
        self.refusals = refusals
        self.tried: list[object] = []
        self.taken: list[object] = []

    async def deliver(self, request: object) -> None:
        self.tried.append(request)
        if self.refusals:
            self.refusals -= 1
            raise ConnectionError("not there")
        self.taken.append(request)


async def test_a_request_is_delivered_once_when_it_is_taken() -> None:
    destination = Destination()
    outbox = Outbox(ManualClock(), destination.deliver)
    outbox.send(["a", "b"])
    await until(lambda: not len(outbox))
    assert destination.tried == ["a", "b"]


async def test_a_request_is_delivered_again_until_it_is_taken_with_growing_waits() -> None:
    clock = ManualClock()
    destination = Destination(refusals=9)
    outbox = Outbox(clock, destination.deliver)
    outbox.send(["a"])
    await turns()
    waits_ms = []
    while not destination.taken:
        waits_ms.append((clock.next_ms() or 0) - clock.now_ms())
        clock.advance(waits_ms[-1])
        await turns()
    assert waits_ms == [100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000]
    assert len(outbox) == 0


async def test_a_full_outbox_takes_nothing_more() -> None:
    outbox = Outbox(ManualClock(), Destination(refusals=5).deliver, pending_max=2)
    outbox.send(["a", "b"])
    await turns()
    with pytest.raises(OverflowError, match="2 requests"):
        outbox.send(["c"])
    assert len(outbox) == 2


async def test_a_closed_outbox_sends_nothing_more() -> None:
    clock = ManualClock()
    destination = Destination(refusals=5)
    outbox = Outbox(clock, destination.deliver)
    outbox.send(["a"])
    await turns()
    outbox.close()
    clock.advance(60_000)
    await turns()
    assert destination.tried == ["a"]
