"""Work that a node repeats in the background: when woken, when it is time, and soon after a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from muster.coordinator.base.clock import Clock
from muster.coordinator.base.log import Logger
from muster.coordinator.storage.store import StoreError


class Alarm:
    """An event that also fires at a given time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._event = asyncio.Event()
        self.ring = self._event.set
        self.rung = self._event.is_set

    async def wait(self, until_ms: int | None) -> None:
        """Return when `ring` has been called since the last wait, or at `until_ms`."""
        timer = None if until_ms is None else self._clock.at(until_ms, self._event.set)
        try:
            await self._event.wait()
        finally:
            self._event.clear()
            if timer is not None:
                timer.cancel()


class Worker:
    """Takes one step after another in a task of its own.

    `step` returns the time of the next one, or None to wait for `wake`. After an exception the next one comes
    `retry_ms` later; a failure that repeats unchanged is logged once.
    """

    def __init__(
        self, name: str, clock: Clock, step: Callable[[], Awaitable[int | None]], retry_ms: int, log: Logger
    ) -> None:
        self._name = name
        self._clock = clock
        self._step = step
        self._retry_ms = retry_ms
        self._log = log
        self._alarm = Alarm(clock)
        self._task: asyncio.Task[None] | None = None
        self._ending = False
        self._stepping = False
        self._failure: str | None = None
        self.wake = self._alarm.ring
        """Begin a step, after the one under way if there is one."""

    def start(self, next_ms: int | None) -> None:
        """Take the first step at `next_ms`, or when woken, perhaps before this call."""
        self._task = asyncio.get_running_loop().create_task(self._run(next_ms), name=self._name)

    async def end(self) -> None:
        """Take no further step, and wait for the one under way."""
        self._ending = True
        self.wake()
        if self._task is not None:
            await asyncio.wait([self._task])

    def kill(self) -> None:
        """End at once, in the middle of a step."""
        if self._task is not None:
            self._task.cancel()

    @property
    def at_rest(self) -> bool:
        """Whether it waits for its time, or to be woken."""
        return self._task is None or self._task.done() or not (self._stepping or self._alarm.rung())

    async def _run(self, next_ms: int | None) -> None:
        while True:
            self._stepping = False
            await self._alarm.wait(next_ms)
            self._stepping = True
            if self._ending:
                return
            try:
                next_ms = await self._step()
            except Exception as error:
                self._failed(error)
                next_ms = self._clock.now_ms() + self._retry_ms
            else:
                if self._failure is not None:
                    self._failure = None
                    self._log.info(f"{self._name}: recovered")

    def _failed(self, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        if text == self._failure:
            return
        self._failure = text
        if isinstance(error, StoreError):
            self._log.error(f"{self._name}: failed, retrying", why=str(error))
        else:
            self._log.error(f"{self._name}: failed, retrying", exc_info=error)
