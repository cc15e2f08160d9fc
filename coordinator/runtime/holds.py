"""Shards whose loading is held open, so that a test can see what clients do while their coordinator loads."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from muster.coordinator.base.clock import Clock

HOLD_DEFAULT_MS: Final = 60_000


@dataclass(slots=True)
class Hold:
    """What one `LoadHolds.hold` made."""

    limit_ms: int
    loading: int = 0
    """Number of loads waiting for it."""
    over: asyncio.Event = field(default_factory=asyncio.Event)


class LoadHolds:
    """The holds of all brokers of one process, since any of them may load a shard. Belongs to their loop.

    A hold lasts until it is released, and applies to every load of its shard that begins meanwhile, but ends
    at the latest when its limit has passed since a load began.
    """

    def __init__(self) -> None:
        self._holds: dict[int, Hold] = {}

    def hold(self, number: int, limit_ms: int = HOLD_DEFAULT_MS) -> Hold:
        """Hold the shard's next load open; replaces an earlier hold on it."""
        self.release(number)
        hold = self._holds[number] = Hold(limit_ms)
        return hold

    def release(self, number: int, made: Hold | None = None) -> bool:
        """Let it load; given a hold, only if that is still in force. Returns whether there was one."""
        hold = self._holds.get(number)
        if hold is None or (made is not None and hold is not made):
            return False
        del self._holds[number]
        hold.over.set()
        return True

    def has(self, number: int) -> bool:
        """Whether a load that begins now is held open."""
        return number in self._holds

    def holding(self, number: int) -> bool:
        """Whether a load of the shard is being held open."""
        hold = self._holds.get(number)
        return hold is not None and hold.loading > 0

    def shards(self) -> list[int]:
        """The shards with a hold, by number."""
        return sorted(self._holds)

    async def released(self, number: int, clock: Clock) -> None:
        """Return when the hold is over, at the end of its limit by `clock` at the latest."""
        hold = self._holds.get(number)
        if hold is None:
            return

        def end() -> None:
            self.release(number, hold)

        timer = clock.at(clock.now_ms() + hold.limit_ms, end)
        hold.loading += 1
        try:
            await hold.over.wait()
        finally:
            hold.loading -= 1
            timer.cancel()
