"""Notifies a consumer's listener of rebalances."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from muster.client.partitions import TopicPartition


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
        self.running = False
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

    async def _call(
        self,
        method: Callable[[Any, Iterable[TopicPartition]], Any],
        partitions: frozenset[TopicPartition],
    ) -> None:
        self.running = True
        try:
            result = method(self._consumer, partitions)
            if inspect.isawaitable(result):
                await result
        except BaseException as failure:
            # The rest of the rebalance must still happen.
            if self._failure is None or not isinstance(failure, Exception):
                self._failure = failure
        finally:
            self.running = False
