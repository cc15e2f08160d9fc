"""Clients of muster's own, each a task that works until it is stopped."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Any


class Working(ABC):
    """Its work begins with `start` and ends after `stop`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._stopped = False
        self._working: asyncio.Task[None] | None = None

    @abstractmethod
    async def _work(self) -> None:
        """Work until `_stopped`."""

    def start(self) -> None:
        self._working = asyncio.create_task(self._work(), name=self.name)

    def look(self) -> None:
        """Raise what has ended it, if anything."""
        if self._working is not None and self._working.done():
            self._working.result()

    def waits(self) -> str:
        """The places where its task is suspended, innermost first."""
        places = []
        step: Any = None if self._working is None else self._working.get_coro()
        while hasattr(step, "cr_frame") and step.cr_frame is not None:
            places.append(f"{step.cr_code.co_qualname}:{step.cr_frame.f_lineno}")
            step = step.cr_await
        return " < ".join(reversed(places))

    async def stop(self) -> None:
        """Return when none of its work is open any more."""
        self._stopped = True
        if self._working is not None:
            await self._working
