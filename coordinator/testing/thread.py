"""An event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
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
        self._ending: Future[None] | None = None
        """The last end, from its beginning until the next start; done when only the loop is left to end."""
        self._changing = threading.Lock()
        self.ended = False
        """Whether it has run, and has ended or begun to."""

    @property
    def running(self) -> bool:
        """Whether it runs, in this process, and has not begun to end."""
        return self._thread is not None and self._ending is None and not self._elsewhere

    @property
    def ending(self) -> Future[None] | None:
        """The last end, perhaps still under way; None while it runs."""
        return None if self._elsewhere else self._ending

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
            self.left()
            if self._thread is None or self._ending is not None:
                self.ended, self._ending, self._thread = False, None, None
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
        if self._loop is None or self._thread is None or self._ending is not None:
            raise self.not_running()
        if self._elsewhere:
            raise RuntimeError(
                f"this broker belongs to process {self._process}, which forked this one: give it "
                "broker.bootstrap instead"
            )
        self._check_thread()
        return asyncio.run_coroutine_threadsafe(self._limited(call, limit_s), self._loop)

    def run(self, call: Callable[[], Coroutine[Any, Any, T]], limit_s: float | None) -> T:
        """`submit`, and wait for the result. Ctrl-C cancels the call."""
        __tracebackhide__ = True
        return result_of(self.submit(call, limit_s))

    def _check_thread(self) -> None:
        __tracebackhide__ = True
        if threading.current_thread() is self._thread:
            raise RuntimeError("this is the brokers' own thread: waiting here would deadlock")

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
        """`begin_end`, and wait for it, even if interrupted by Ctrl-C. Raises what `last` raises."""
        __tracebackhide__ = True
        ending = self.begin_end(last)
        try:
            result_of(ending, take_back=False)
        finally:
            self.left()

    def begin_end(self, last: Callable[[], Coroutine[Any, Any, None]] | None = None) -> Future[None]:
        """Begin to cancel submitted calls and let them finish, call `last`, and end the thread; or join the
        end that is under way. After the result, `left` waits for the rest. Without effect if it has ended,
        and in another process."""
        __tracebackhide__ = True
        done: Future[None] = Future()
        done.set_result(None)
        if self._elsewhere:
            return done
        self._check_thread()
        with self._changing:
            if self._thread is None:
                return done
            if self._ending is None:
                loop = self._loop
                assert loop is not None
                self.ended = True
                self._ending = asyncio.run_coroutine_threadsafe(self._calls_ended(last), loop)
                self._ending.add_done_callback(lambda _: loop.call_soon_threadsafe(loop.stop))
                return self._ending
            return done if self._ending.done() else self._ending

    def left(self) -> None:
        """Wait until the thread has left, if it has begun to end."""
        thread, ending = self._thread, self.ending
        if thread is not None and ending is not None:
            wait([ending])
            thread.join(_END_S)

    async def _calls_ended(self, last: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
        await self._cut_calls()
        if last is not None:
            try:
                await self._limited(last, CALL_S)
            finally:
                await self._cut_calls()  # those submitted just before the end began

    async def _cut_calls(self) -> None:
        calls = list(self._calls)
        for task in calls:
            if not task.cancelling():  # otherwise their cleanup would be cut short
                self._cut_off.add(task)
                task.cancel()
        if calls:
            await asyncio.wait(calls, timeout=_END_S)  # ending the loop cancels them again


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
