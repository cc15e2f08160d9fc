"""What users are told about rebalances, and how they are told.

The order is Kafka's. With eager assignors everything is revoked before the group is joined again, and
everything that came out is assigned; with cooperative ones (KIP-429) only what moves is revoked, after the
group was joined, and only what is new is assigned. `assigned` is called after every rebalance, with an empty
set too. A member that the group went on without is told that it has lost its partitions: they may have other
owners by now, so there is nothing to commit any more.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from muster.client.partitions import TopicPartition

if TYPE_CHECKING:
    from muster.client.consumer import Consumer


class RebalanceListener:
    """Override what you need; each may be a plain method or a coroutine.

    They are called inside the reading calls, on the reading task, while no record is being handled that the
    reader waits for. Any of the consumer's methods may be called but the reading ones. What they raise is
    raised from the reading call, after the rebalance has gone its way.
    """

    def on_partitions_revoked(
        self, consumer: Consumer[Any, Any], partitions: Iterable[TopicPartition]
    ) -> Any:
        """These are about to go to other members, or the consumer closes. They are still ours: this is the
        time to finish and to commit."""

    def on_partitions_assigned(
        self, consumer: Consumer[Any, Any], partitions: Iterable[TopicPartition]
    ) -> Any:
        """These are ours from now on; nothing of them is read yet, so this is the time to seek."""

    def on_partitions_lost(self, consumer: Consumer[Any, Any], partitions: Iterable[TopicPartition]) -> Any:
        """These were ours, and may have other owners by now. Does what `on_partitions_revoked` does unless it
        is overridden."""
        return self.on_partitions_revoked(consumer, partitions)


class Calls:
    """Calls a listener, and keeps the first failure until it is time to raise it."""

    def __init__(self, consumer: Consumer[Any, Any]) -> None:
        self._consumer = consumer
        self.listener = RebalanceListener()
        self.running = False
        self._failure: BaseException | None = None

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        await self._call(self.listener.on_partitions_revoked, partitions)

    async def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        await self._call(self.listener.on_partitions_assigned, partitions)

    async def lost(self, partitions: frozenset[TopicPartition]) -> None:
        await self._call(self.listener.on_partitions_lost, partitions)

    def raise_failure(self) -> None:
        """What the first of the calls to fail raised, a cancellation as well."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    async def _call(
        self,
        method: Callable[[Consumer[Any, Any], Iterable[TopicPartition]], Any],
        partitions: frozenset[TopicPartition],
    ) -> None:
        self.running = True
        try:
            result = method(self._consumer, partitions)
            if inspect.isawaitable(result):
                await result
        except BaseException as failure:
            # The rest of the rebalance has to happen all the same.
            if self._failure is None:
                self._failure = failure
        finally:
            self.running = False
