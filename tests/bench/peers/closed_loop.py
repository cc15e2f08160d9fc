"""Requests as fast as they are answered, one in flight on each connection, and what that costs the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.bench import load
from tests.bench.peers.driver import Target
from tests.bench.peers.measure import Point

PERCENTILES: Final = {"p50_ms": 50.0, "p99_ms": 99.0, "p999_ms": 99.9}


@dataclass(frozen=True, slots=True)
class Driven:
    """What came of it, without the warm-up."""

    answered: int
    took_s: float
    server_s: float
    """CPU of all processes of the server."""
    driver: float
    """The share of one core that the driver had."""
    latencies_ms: Mapping[str, float]
    """By the keys of `PERCENTILES`."""

    def points(self, at: int, latencies: Sequence[str]) -> list[Point]:
        """Answers a second, a CPU second of the server, its CPU for each in microseconds, and these
        percentiles, of a load of size `at`."""
        return [
            Point("rate", self.answered / self.took_s, at, self.driver),
            Point("a_cpu_second", self.answered / self.server_s, at, self.driver),
            Point("cpu_us", self.server_s / self.answered * 1e6, at),
            *(Point(key, self.latencies_ms[key], at, self.driver) for key in latencies),
        ]


async def driven(
    target: Target,
    links: Sequence[load.Link],
    next_frames: Sequence[Callable[[], bytes]],
    check: Callable[[bytes], None],
    *,
    warm_up_s: float,
    seconds: float,
) -> Driven:
    """`check` sees each response, and raises for one that is not as it should be. Raises RuntimeError when
    nothing was answered."""
    loop = load.ClosedLoop(links, next_frames)
    loop.start(check)
    await asyncio.sleep(warm_up_s)
    loop.reset()
    meter = target.meter()
    await asyncio.sleep(seconds)
    used, answered = meter.read(), loop.answered
    latencies_ms = {key: loop.latencies.ms(percent) for key, percent in PERCENTILES.items()}
    await loop.stop()
    if not answered:
        raise RuntimeError(f"nothing was answered within {seconds:g} s")
    return Driven(answered, used["took_s"], used["server_s"], used["driver"], latencies_ms)


async def driven_alike(
    target: Target,
    links: Sequence[load.Link],
    next_frames: Sequence[Callable[[], bytes]],
    *,
    warm_up_s: float,
    seconds: float,
) -> Driven:
    """As `driven`, with answers that all have the same size. Raises RuntimeError when one has another."""
    sizes: set[int] = set()

    def seen(frame: bytes) -> None:
        sizes.add(len(frame))

    found = await driven(target, links, next_frames, seen, warm_up_s=warm_up_s, seconds=seconds)
    if len(sizes) != 1:
        raise RuntimeError(f"{found.answered} answers of {sizes} bytes: one size was expected")
    return found
