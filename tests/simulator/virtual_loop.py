"""An asyncio event loop in virtual time: when nothing is ready, time jumps to the next timer.

There are no sockets, signals or threads, so a program that takes no randomness from elsewhere runs the same
way every time. (Sets of strings need PYTHONHASHSEED fixed for that.)
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any

_TURNS_WITHOUT_TIME_MAX = 100_000


class Stuck(RuntimeError):
    """Nothing will ever happen again, or something goes on for ever without time passing."""


class _Future(asyncio.Future[Any]):
    """A future whose place in a set does not depend on its memory address."""

    def __init__(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._number = number

    def __hash__(self) -> int:
        return self._number


class _Task(asyncio.Task[Any]):
    """Like `_Future`, for tasks."""

    def __init__(self, number: int, coroutine: Any, **given: Any) -> None:
        self._number = number
        super().__init__(coroutine, **given)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.BaseEventLoop):
    """`time()` starts at 0 and moves only after every ready callback has run.

    It implements its own turns: asyncio's compare timers in Python code, query a selector each time, and
    leave it to chance which of two simultaneous timers comes first. Here it is the one that was set first.
    """

    _ready: deque[asyncio.Handle]

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._turns_without_time = 0
        self._thread = threading.get_ident()
        self.dial: (
            Callable[
                [Callable[[], asyncio.BaseProtocol], str, int],
                Awaitable[tuple[asyncio.BaseTransport, asyncio.BaseProtocol]],
            ]
            | None
        ) = None
        """Makes connections."""
        self.takes_s: Callable[[], float] | None = None
        """How long the next call takes that is left to the loop's own threads; None: there are none."""
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = count()
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        return self._now_s

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(next(self._numbers), self)

    def _make_task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **given: Any) -> asyncio.Task[Any]:
        return _Task(next(self._numbers), coroutine, loop=loop, **given)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass  # skipped when its time comes

    def _run_once(self) -> None:
        ready, timers = self._ready, self._timers
        self._turns_without_time += 1
        if self._turns_without_time > _TURNS_WITHOUT_TIME_MAX:
            self._turns_without_time = 0
            raise Stuck(f"{_TURNS_WITHOUT_TIME_MAX} turns and it still is {self._now_s:.3f} s")
        if not ready:
            self._jump()
        now_s = self._now_s
        while timers and timers[0][0] <= now_s:
            timer = heappop(timers)[2]
            if not timer._cancelled:
                ready.append(timer)
        # Callbacks added meanwhile run in the next turn, as on any loop.
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _jump(self) -> None:
        """Nothing is ready: advance the time to the next timer."""
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heappop(timers)
        if self._stopping:  # type: ignore[attr-defined]
            return
        if not timers:
            waiting = "\n".join(f"  {task!r}" for task in asyncio.all_tasks(self))
            raise Stuck(f"at {self._now_s:.3f} s nothing is left to happen, yet these tasks wait:\n{waiting}")
        if timers[0][0] > self._now_s:
            self._now_s = timers[0][0]
            self._turns_without_time = 0

    # --- what the base class leaves to loops with sockets -----------------------------------------

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **_: Any
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        if self.dial is None:
            raise RuntimeError("the simulation has no sockets: give the loop what dials")
        return await self.dial(protocol_factory, host, port)

    def _write_to_self(self) -> None:
        if threading.get_ident() != self._thread:
            raise RuntimeError(
                "a thread called into the simulation, which would make its order depend on luck"
            )

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> Any:
        if executor is None:
            if self.takes_s is None:
                raise RuntimeError("the simulation has no threads: give the code under test an executor")
            done = self.create_future()
            self.call_later(self.takes_s(), _do, done, func, args)
            return done
        return super().run_in_executor(executor, func, *args)


def _do(done: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]) -> None:
    if done.done():  # cancelled
        return
    try:
        done.set_result(func(*args))
    except Exception as error:
        done.set_exception(error)
