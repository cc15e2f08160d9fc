"""Attacks a live broker, which must keep nothing of it afterwards."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final, NamedTuple

from tests.fuzz.attack import Sent, attack
from tests.fuzz.attacked import broker, from_processes, settled, tidy
from tests.fuzz.bystanders import Bystanders, create_topic
from tests.fuzz.inputs import FAMILIAR
from tests.fuzz.run import Failed
from tests.support.asked import Asked
from tests.support.held import LEFT

GROWTH_BYTES_MAX: Final = 96 << 20
"""Resident memory that may be lost for good, to the allocator and to caches, after a warm-up."""

_WARM_UP: Final = 1_000
_ATTACKERS: Final = 2


class Outcome(NamedTuple):
    sent: Sent
    seconds: float
    before: dict[str, Any]
    after: dict[str, Any]
    worst_ms: dict[str, float]
    counts: dict[str, int]

    def __str__(self) -> str:
        return (
            f"live: {self.sent.connections:,} connections, {self.sent.frames:,} inputs in "
            f"{self.seconds:.0f} s; {self.sent.answered_to_the_end:,} served to the end, "
            f"{self.sent.closed:,} closed by the broker\n"
            f"{told_of_others(self.counts, self.worst_ms)}\n{told_of_growth(self.before, self.after)}"
        )


def told_of_others(counts: dict[str, int], worst_ms: dict[str, float]) -> str:
    """Describe what the bystanders did meanwhile."""
    worst = ", ".join(f"{what} {ms:.0f} ms" for what, ms in worst_ms.items())
    return f"others meanwhile: {sum(counts.values()):,} requests, no error; the slowest: {worst}"


def told_of_growth(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Describe what the broker held before and holds now."""
    return (
        f"resident {before['resident_bytes'] >> 20} MiB before, {after['resident_bytes'] >> 20} MiB after; "
        + ", ".join(f"{what} {before[what]} -> {after[what]}" for what in LEFT)
    )


def run(seed: int, connections: int, first: int = 0) -> Outcome:
    """Attack a broker with `connections` connections of a seed, from number `first` on. Raises Failed."""
    return asyncio.run(_run(seed, connections, first))


async def _run(seed: int, connections: int, first: int) -> Outcome:
    async with broker(f"seed {seed}, connections {first} to {first + connections}") as served:
        return await _attacked(served, seed, connections, first)


async def _attacked(served: Asked, seed: int, connections: int, first: int) -> Outcome:
    port = int(served.ready_line)
    # Warmed up with another part of the seed, so that a single connection can be repeated alone.
    await create_topic(port, FAMILIAR, 4)
    await garbage(port, seed, first + (1 << 20), min(_WARM_UP, connections))
    await tidy(port)
    before = await settled(served, lambda now: now["connections"] == now["connection_tasks"] == 0)
    await create_topic(port, FAMILIAR, 4)
    bystanders = Bystanders()
    try:
        await bystanders.start(port)
        began = time.monotonic()
        sent = await garbage(port, seed, first, connections)
        seconds = time.monotonic() - began
        await bystanders.finish()
    finally:
        await bystanders.close()
    await tidy(port)
    after = await settled(served, lambda now: all(now[what] <= before[what] for what in LEFT), before)
    check_growth(before, after)
    return Outcome(sent, seconds, before, after, bystanders.worst_ms, bystanders.counts)


async def garbage(port: int, seed: int, first: int, connections: int) -> Sent:
    """What `attack` does, from separate processes."""
    processes = min(_ATTACKERS, connections)
    shares = [
        (port, seed, range(first + index, first + connections, processes)) for index in range(processes)
    ]
    return Sent(*map(sum, zip(*await from_processes(attack, shares), strict=True)))


def check_growth(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Raises Failed if memory is lost for good."""
    grown = after["resident_bytes"] - before["resident_bytes"]
    if grown > GROWTH_BYTES_MAX:
        raise Failed(f"the broker has grown by {grown >> 20} MiB for good")
