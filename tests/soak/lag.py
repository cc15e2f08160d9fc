"""How late an event loop runs its timers."""

from __future__ import annotations

import asyncio
from typing import Final

_EVERY_S: Final = 0.05


class LoopLag:
    """A repeating timer that records how late each call is, in milliseconds."""

    def __init__(self) -> None:
        self._late_ms: list[float] = []
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._due = loop.time() + _EVERY_S
        self._timer = loop.call_at(self._due, self._called, loop)

    def pause(self) -> None:
        """Stop measuring until the next `start`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def take(self) -> dict[str, float]:
        """The median, 99th percentile and maximum since the last call, in ms; zeros without measurements."""
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
