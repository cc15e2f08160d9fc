"""How late an event loop is to what is due."""

from __future__ import annotations

import asyncio
from typing import Final

_EVERY_S: Final = 0.05


class LoopLag:
    """A timer again and again; how much later than asked it was called, in milliseconds."""

    def __init__(self) -> None:
        self._late_ms: list[float] = []
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._due = loop.time() + _EVERY_S
        self._timer = loop.call_at(self._due, self._called, loop)

    def pause(self) -> None:
        """Count nothing until the next `start`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def take(self) -> dict[str, float]:
        """The median, the 99th percentile and the worst since this was called last, in ms; 0 for nothing."""
        late, self._late_ms = sorted(self._late_ms), []
        if not late:
            return {"median_ms": 0.0, "p99_ms": 0.0, "worst_ms": 0.0}
        return {
            "median_ms": round(late[len(late) // 2], 2),
            "p99_ms": round(late[min(len(late) * 99 // 100, len(late) - 1)], 2),
            "worst_ms": round(late[-1], 2),
        }

    def _called(self, loop: asyncio.AbstractEventLoop) -> None:
        self._late_ms.append(max(loop.time() - self._due, 0.0) * 1000)
        self.start()
