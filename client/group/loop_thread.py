"""An event loop in its own thread, for work that must go on while the user's loop is blocked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

from muster.realtime import keep_real

T = TypeVar("T")

_START_S: Final = 30.0
_STOP_S: Final = 10.0


class LoopThread:
    """A daemon thread that runs a loop between `start` and `stop`, both called on the user's loop."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._users = asyncio.get_running_loop()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._abandoned = False
        self._started: asyncio.Future[None] = self._users.create_future()
        self._ended: asyncio.Future[None] = self._users.create_future()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    async def start(self) -> None:
        """Return once the loop is running. If cancelled, the thread ends by itself."""
        self._thread.start()
        try:
            await asyncio.wait([self._started], timeout=_START_S)
        finally:
            if not self._started.done():
                self._abandoned = True
                self._ask_to_end()
        if not self._started.done():
            raise RuntimeError(f"the thread {self._name!r} does not come up")

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Schedule a call on the thread's loop; dropped if the loop has ended."""
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(callback)

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the thread's loop. Cancelling this cancels it there."""
        if self._loop is None or self._abandoned:
            coroutine.close()
            raise RuntimeError(f"the thread {self._name!r} does not run")
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))

    async def stop(self) -> None:
        """End the loop, its tasks, and the thread. Safe to call again."""
        if self._thread.ident is not None:
            self._abandoned = True  # if it has not started yet
            self._ask_to_end()
            await asyncio.wait([self._ended], timeout=_STOP_S)
            if self._ended.done():
                self._thread.join()  # It has nothing left to do.

    def _ask_to_end(self) -> None:
        if self._stopping is not None:
            self.call_soon(self._stopping.set)

    def _work(self) -> None:
        asyncio.run(self._main())  # which cancels remaining tasks, and closes the loop
        self._tell(self._ended)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        keep_real(self._loop)
        self._stopping = asyncio.Event()
        self._tell(self._started)
        if not self._abandoned:
            await self._stopping.wait()

    def _tell(self, future: asyncio.Future[None]) -> None:
        with suppress(RuntimeError):  # the user's loop is closed: nobody is waiting
            self._users.call_soon_threadsafe(_done, future)


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
