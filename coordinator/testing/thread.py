"""An event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, TypeVar

from muster.coordinator.testing.traces import told
from muster.realtime import keep_real

T = TypeVar("T")

CALL_S: Final = 60.0
"""Time limit for a call that is not itself a wait."""
_END_S: Final = 60.0


class LoopThread:
    """`start`, then `submit` and `run` from any other thread, then `end`; may be restarted."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._calls: set[asyncio.Task[Any]] = set()
        self._cut_off: set[asyncio.Task[Any]] = set()
        """The calls that `end` has cancelled, and not their callers."""
        self._process = 0
        self._changing = threading.Lock()
        self.ended = False
        """Whether it has run and ended."""

    @property
    def running(self) -> bool:
        """Whether it runs, in this process."""
        return self._thread is not None and not self._elsewhere

    @property
    def _elsewhere(self) -> bool:
        """Whether another process has the thread: this one was forked, which copies no threads."""
        return self._process != os.getpid()

    def not_running(self) -> RuntimeError:
        """The error for calls while the brokers are not running."""
        if self.ended:
            return closed()
        return RuntimeError("not started: use `with` or `async with`, or call start()")

    def start(self) -> None:
        """Idempotent; waits for an `end` that is under way. Raises OSError if there can be no event loop, as
        without file descriptors."""
        with self._changing:
            if self._thread is None:
                self.ended = False
                self._process = os.getpid()
                started: Future[asyncio.AbstractEventLoop] = Future()
                thread = threading.Thread(target=_run, args=(started,), name=self._name, daemon=True)
                thread.start()
                self._loop = started.result()
                self._thread = thread

    def submit(self, call: Callable[[], Coroutine[Any, Any, T]], limit_s: float | None) -> Future[T]:
        """Run a coroutine on the loop; after `limit_s` seconds it fails with TimeoutError. Raises
        RuntimeError if the thread is not running."""
        __tracebackhide__ = True
        if self._loop is None or self._thread is None:
            raise self.not_running()
        if self._elsewhere:
            raise RuntimeError(
                f"this broker belongs to process {self._process}, which forked this one: give it "
                "broker.bootstrap instead"
            )
        if threading.current_thread() is self._thread:
            raise RuntimeError("this is the brokers' own thread: waiting here would deadlock")
        return asyncio.run_coroutine_threadsafe(self._limited(call, limit_s), self._loop)

    def run(self, call: Callable[[], Coroutine[Any, Any, T]], limit_s: float | None) -> T:
        """`submit`, and wait for the result. Ctrl-C cancels the call."""
        __tracebackhide__ = True
        return result_of(self.submit(call, limit_s))

    async def _limited(self, call: Callable[[], Coroutine[Any, Any, T]], limit_s: float | None) -> T:
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        late = asyncio.timeout(limit_s)
        try:
            async with late:
                return await call()
        except TimeoutError as error:
            if late.expired():
                raise TimeoutError(f"timed out after {limit_s} s waiting for the brokers") from error
            raise
        except asyncio.CancelledError:
            if task in self._cut_off:
                raise closed() from None
            raise
        finally:
            self._calls.discard(task)
            self._cut_off.discard(task)

    def end(self, last: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """Cancel submitted calls and let them finish, call `last`, and end the thread. Idempotent; waits for
        an `end` that is under way. Without effect in another process."""
        if self._elsewhere:
            return
        with self._changing:
            thread, self._thread = self._thread, None
            if thread is not None:
                self.ended = True
                assert self._loop is not None
                with suppress(TimeoutError):  # ending the loop cancels it again
                    asyncio.run_coroutine_threadsafe(self._calls_ended(last), self._loop).result(_END_S)
                self._loop.call_soon_threadsafe(self._loop.stop)
                thread.join(_END_S)
                self._loop = None

    async def _calls_ended(self, last: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
        calls = list(self._calls)
        for task in calls:
            if not task.cancelling():  # otherwise their cleanup would be cut short
                self._cut_off.add(task)
                task.cancel()
        if calls:
            await asyncio.wait(calls)
        if last is not None:
            await last()


def closed() -> RuntimeError:
    """The error for calls while the brokers stop, and after that."""
    return RuntimeError("closed: its `with` block has ended, or close() was called; call it before that")


def result_of(future: Future[T], *, take_back: bool = True) -> T:
    """Wait for the result of a call. With `take_back`, Ctrl-C cancels the call."""
    __tracebackhide__ = True
    try:
        return future.result()
    except BaseException as error:
        if take_back:
            future.cancel()
        raise told(error)  # noqa: B904 - the same error


def _run(started: Future[asyncio.AbstractEventLoop]) -> None:
    try:
        runner = asyncio.Runner()
        loop = runner.get_loop()
        keep_real(loop)
    except BaseException as error:
        started.set_exception(error)
        return
    with runner:
        loop.call_soon(started.set_result, loop)
        loop.run_forever()
