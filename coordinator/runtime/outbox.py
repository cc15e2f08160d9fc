"""Requests from shards to other shards: delivered again and again until someone has taken them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from muster.coordinator.base.clock import Clock, Timer
from muster.coordinator.base.log import Logger

_log: Final = Logger(part="groups")

Deliver = Callable[[object], Awaitable[object]]
"""Brings one request to its shard, here or elsewhere; returns when it is durable there, else raises."""

_RETRY_MS: Final = 100
_RETRY_MAX_MS: Final = 10_000


class Outbox:
    """What the shards of one broker have sent and nobody has acknowledged.

    Requests are idempotent, may overtake each other, and die with the process: they follow from hard state,
    so whoever loads the shard next finds the reason to send them again. `pending_max` bounds them; at the
    bound `send` raises OverflowError, which stops the shard that sends.
    """

    def __init__(self, clock: Clock, deliver: Deliver, *, pending_max: int = 10_000) -> None:
        self._clock = clock
        self._deliver = deliver
        self._pending_max = pending_max
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: dict[int, Timer] = {}  # of requests that wait to be sent again
        self._last_number = 0

    def __len__(self) -> int:
        return len(self._tasks) + len(self._timers)

    @property
    def sending(self) -> bool:
        """Whether any of them is on its way right now."""
        return bool(self._tasks)

    def send(self, requests: Sequence[object]) -> None:
        if len(self) + len(requests) > self._pending_max:
            raise OverflowError(f"{len(self)} requests to other shards are not acknowledged")
        for request in requests:
            self._last_number += 1
            self._start(self._last_number, request, _RETRY_MS)

    def close(self) -> None:
        """Send nothing any more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for task in self._tasks:
            task.cancel()

    def _start(self, number: int, request: object, retry_ms: int) -> None:
        self._timers.pop(number, None)
        task = asyncio.get_running_loop().create_task(self._try(number, request, retry_ms))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _try(self, number: int, request: object, retry_ms: int) -> None:
        try:
            await self._deliver(request)
        except Exception as error:
            _log.info("a request was not taken", request=repr(request), why=str(error), again_in_ms=retry_ms)
            self._timers[number] = self._clock.at(
                self._clock.now_ms() + retry_ms,
                lambda: self._start(number, request, min(2 * retry_ms, _RETRY_MAX_MS)),
            )
