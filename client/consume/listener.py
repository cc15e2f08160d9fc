"""Notifies a consumer's listener of rebalances."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, Protocol

from muster.client.network.connection import deadline
from muster.client.partitions import TopicPartition

_LOG: Final = logging.getLogger("muster.client.consumer")

_UNWIND_S: Final = 1.0
"""How long a callback that is cancelled while the consumer closes may clean up."""


class Listener(Protocol):
    """The callbacks of `muster.client.consumer.RebalanceListener`."""

    def on_partitions_revoked(self, consumer: Any, partitions: Iterable[TopicPartition]) -> Any: ...

    def on_partitions_assigned(self, consumer: Any, partitions: Iterable[TopicPartition]) -> Any: ...

    def on_partitions_lost(self, consumer: Any, partitions: Iterable[TopicPartition]) -> Any: ...


class Calls:
    """Calls a listener, and keeps the first failure until it can be raised; a cancellation replaces it."""

    def __init__(self, consumer: object, listener: Listener) -> None:
        self._consumer = consumer
        self.listener = listener
        self._running: asyncio.Future[Any] | None = None  # what the callback runs in, or returned
        self.closes_by: float | None = None
        """Set when the consumer closes: a callback that ignores its cancellation is abandoned then, by this
        time at the latest."""
        self._failure: BaseException | None = None

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        await self._call(self.listener.on_partitions_revoked, partitions)

    async def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        await self._call(self.listener.on_partitions_assigned, partitions)

    async def lost(self, partitions: frozenset[TopicPartition]) -> None:
        await self._call(self.listener.on_partitions_lost, partitions)

    def raise_failure(self) -> None:
        """Raise the failure, if any."""
        failure, self._failure = self._failure, None
        if isinstance(failure, (StopIteration, StopAsyncIteration)):
            # As such it would end the reader's loop without a word.
            raise RuntimeError(f"the listener raised {type(failure).__name__}") from failure
        if failure is not None:
            raise failure

    def waits_for(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether the running callback runs in this task, or waits for it: by `await`, or `asyncio.gather`.
        Other ways to wait (a TaskGroup, `asyncio.wait`, `wait_for` before Python 3.12) cannot be told."""
        waiting: list[object] = [self._running]
        known: set[object] = set()
        while waiting and task is not None:
            each = waiting.pop()
            if each is task:
                return True
            if each is not None and each not in known:
                known.add(each)
                waiting.append(getattr(each, "_fut_waiter", None))  # what a task awaits
                waiting += getattr(each, "_children", ())  # what is gathered
        return False

    async def _call(
        self,
        method: Callable[[Any, Iterable[TopicPartition]], Any],
        partitions: frozenset[TopicPartition],
    ) -> None:
        self._running = asyncio.current_task()
        try:
            result = method(self._consumer, partitions)
            if inspect.isawaitable(result):
                await (result if self.closes_by is None else self._abandonable(result, method))
        except BaseException as failure:
            # The rest of the rebalance must still happen.
            if self._failure is None or not isinstance(failure, Exception):
                self._failure = failure
        finally:
            self._running = None

    async def _abandonable(self, result: Awaitable[Any], method: Callable[..., Any]) -> None:
        """Wait for a callback in a task of its own: the wait can end before the callback does."""
        assert self.closes_by is not None
        callback = self._running = asyncio.ensure_future(result)
        try:
            await asyncio.wait([callback])
        except asyncio.CancelledError:
            callback.cancel()
            left_s = max(0.0, self.closes_by - deadline(0))
            await asyncio.wait([callback], timeout=min(_UNWIND_S, left_s))
            if callback.done():
                callback.result()
            else:
                _LOG.warning(
                    "%s goes on although it was cancelled: the consumer closes without waiting for it",
                    getattr(method, "__qualname__", method),
                )
            raise
        callback.result()
