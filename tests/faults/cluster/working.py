"""Clients of muster's own, each a task that works until it is told to stop."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod


class Working(ABC):
    """Its work begins with `start` and ends after `stop`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._stopped = False
        self._working: asyncio.Task[None] | None = None

    @abstractmethod
    async def _work(self) -> None:
        """Go on until `_stopped`."""

    def start(self) -> None:
        self._working = asyncio.create_task(self._work(), name=self.name)

    def look(self) -> None:
        """Raise what has ended it."""
        if self._working is not None and self._working.done():
            self._working.result()

    async def stop(self) -> None:
        """When nothing of its work is open any more."""
        self._stopped = True
        if self._working is not None:
            await self._working
