"""An asyncio event loop in virtual time: when nothing is ready, time jumps to the next timer.

There are no sockets, signals or threads, so a program that takes no randomness from elsewhere runs the same
way every time. (Sets of strings need PYTHONHASHSEED fixed for that.)
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

_TURNS_WITHOUT_TIME_MAX = 100_000


class Stuck(RuntimeError):
    """Nothing will ever happen again, or something happens for ever without time passing."""


class _Jump:
    """Stands where an event loop has its selector: instead of waiting for sockets it moves the time on."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout_s: float | None) -> list[object]:
        self._loop.pass_time(timeout_s)
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    """`time()` starts at 0 and moves only when every callback that was ready has run."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = _Jump(self)
        self._now_s = 0.0
        self._turns_without_time = 0
        self._thread = threading.get_ident()

    def time(self) -> float:
        return self._now_s

    def pass_time(self, timeout_s: float | None) -> None:
        """Called once a turn with the time until the next timer; 0: something is ready; None: there is no
        timer.
        """
        if timeout_s is None:
            waiting = "\n".join(f"  {task!r}" for task in asyncio.all_tasks(self))
            raise Stuck(f"at {self._now_s:.3f} s nothing is left to happen, yet these tasks wait:\n{waiting}")
        if timeout_s > 0:
            self._now_s += timeout_s
            self._turns_without_time = 0
            return
        self._turns_without_time += 1
        if self._turns_without_time > _TURNS_WITHOUT_TIME_MAX:
            self._turns_without_time = 0
            raise Stuck(f"{_TURNS_WITHOUT_TIME_MAX} turns and it still is {self._now_s:.3f} s")

    # --- what the base class leaves to loops with sockets -----------------------------------------

    def _process_events(self, event_list: list[object]) -> None:
        pass

    def _write_to_self(self) -> None:
        if threading.get_ident() != self._thread:
            raise RuntimeError(
                "a thread called into the simulation, which would make its order depend on luck"
            )

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> Any:
        if executor is None:
            raise RuntimeError("the simulation has no threads: give the code under test an executor")
        return super().run_in_executor(executor, func, *args)
