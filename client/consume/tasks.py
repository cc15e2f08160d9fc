"""A consumer's background tasks, and the events that its calls wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from muster.client.errors import TimedOut


class Tasks:
    """Tasks whose failures are passed to `fail`: none is silent."""

    def __init__(self, fail: Callable[[BaseException], None]) -> None:
        self._fail = fail
        self._running: set[asyncio.Task[None]] = set()
        self._news: asyncio.Event | None = None

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._fail(failure)
        self.tell()

    async def end(self) -> None:
        """Cancel the running tasks."""
        tasks = set(self._running)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def tell(self) -> None:
        """Something changed: wake the waiters."""
        if self._news is not None:
            self._news.set()
            self._news = None

    async def hear(self, until: float, what: str, why: Callable[[], object] = lambda: None) -> None:
        """Wait for something to change. Raises TimedOut at `until`; it says `what` was waited for and, if
        known, `why` it did not happen."""
        if self._news is None:
            self._news = asyncio.Event()
        try:
            async with asyncio.timeout_at(until):
                await self._news.wait()
        except TimeoutError:
            failure = why()
            raise TimedOut(f"timed out waiting for {what}{f': {failure}' if failure else ''}") from None
