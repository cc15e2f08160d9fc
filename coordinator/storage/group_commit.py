"""Group commit: what arrives while one transaction is being written goes into the next one, together.

The cost of a durable transaction is a disk flush, whatever it carries. One caller at a time pays it for every
change; a hundred callers at once share it, and nobody waits for a timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from muster.coordinator.storage.store import StoreBusy, StoreClosed

Change = TypeVar("Change")


class GroupCommit(Generic[Change]):
    """A queue of changes in front of `commit`, which is run once at a time with all that waited.

    `commit` answers a result or an exception for each change, in order; if it raises, every change of that
    call fails with what it raised. At `bytes_max` waiting bytes a further change that has a size is refused
    with StoreBusy, except when nothing waits: then it is taken however large it is.
    """

    def __init__(
        self, commit: Callable[[Sequence[Change]], Awaitable[Sequence[object]]], *, bytes_max: int
    ) -> None:
        self._commit = commit
        self._bytes_max = bytes_max
        self._waiting: list[tuple[Change, asyncio.Future[object]]] = []
        self._waiting_bytes = 0
        self._running: asyncio.Task[None] | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<GroupCommit waiting={len(self._waiting)} bytes={self._waiting_bytes}/{self._bytes_max}>"

    def submit(self, change: Change, size_bytes: int = 0) -> asyncio.Future[object]:
        """Queue a change; the future ends when it is committed. Cancelling it takes nothing back."""
        if self._closed:
            raise StoreClosed("the store is closed")
        if size_bytes and self._waiting and self._waiting_bytes + size_bytes > self._bytes_max:
            raise StoreBusy(
                f"{self._waiting_bytes} bytes wait to be written, of {self._bytes_max}: the disk is too slow"
            )
        loop = asyncio.get_running_loop()
        committed: asyncio.Future[object] = loop.create_future()
        self._waiting.append((change, committed))
        self._waiting_bytes += size_bytes
        if self._running is None:
            self._running = loop.create_task(self._run(), name="group commit")
        return committed

    async def close(self) -> None:
        """Refuse further changes and wait until those queued are committed."""
        self._closed = True
        if self._running is not None:
            await asyncio.shield(self._running)

    async def _run(self) -> None:
        # The task's first turn comes after those callers that were ready in the same turn of the loop: they
        # share its first transaction too.
        try:
            while self._waiting:
                batch, self._waiting, self._waiting_bytes = self._waiting, [], 0
                try:
                    results = await self._commit([change for change, _ in batch])
                except Exception as error:
                    results = [error] * len(batch)
                for (_, committed), result in zip(batch, results, strict=True):
                    if committed.done():  # its caller was cancelled
                        continue
                    if isinstance(result, Exception):
                        committed.set_exception(result)
                    else:
                        committed.set_result(result)
        finally:
            self._running = None
