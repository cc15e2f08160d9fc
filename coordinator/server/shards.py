"""What a broker does with the leases of each kind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

from muster.coordinator.base.log import Logger
from muster.coordinator.cluster.coordinators import CoordinatorKind
from muster.coordinator.cluster.handover import Deferred
from muster.coordinator.runtime.runtime import Runtime
from muster.coordinator.storage.store import Lease, LeaseKind, StoreClosed, StoreError
from muster.coordinator.topics.partitions import Partitions
from muster.coordinator.topics.rows import RowPartitions

_READ_AGAIN_S: Final = 1.0

_log = Logger(part="topics")


class CoordinatorShards:
    """The holder of a coordinator shard also leads the partitions of the internal topics that stand for it:
    for a group shard, those of `__consumer_offsets` and `__group_events`; for a transaction shard, that of
    `__transaction_state`."""

    def __init__(
        self,
        kind: CoordinatorKind,
        runtime: Runtime[Any],
        partitions: Partitions,
        topics: Sequence[RowPartitions],
        disowned: Callable[[int], None] = lambda number: None,
    ) -> None:
        """`disowned` is called with the number of each shard that is no longer served here."""
        self._kind = kind.lease
        self._runtime = runtime
        self._partitions = partitions
        self._topics = topics
        self._disowned = disowned

    def own(self, number: int, epoch: int) -> Awaitable[object]:
        self._disowned(number)  # under the previous epoch
        self._partitions.own(Lease(self._kind, number), epoch)
        for topic in self._topics:
            topic.own(number, epoch)
        return self._runtime.own(number, epoch)

    def disown(self, number: int, why: str) -> Awaitable[object]:
        self._disowned(number)
        for topic in self._topics:
            topic.disown(number)
        logs = self._partitions.disown(Lease(self._kind, number))
        return Deferred(partial(self._at_rest, self._runtime.disown(number, why), logs))

    async def _at_rest(self, shard: Awaitable[object], logs: Awaitable[object]) -> None:
        try:
            await shard
        finally:
            await logs


class DataShards:
    """The leases of one kind that are for partitions of topics.

    Reassignments change which partitions are led under a lease, so the topics are read before it is served: a
    broker that sees a lease claimed anew after a reassignment can rely on its holder knowing about that.
    """

    def __init__(
        self,
        kind: LeaseKind,
        partitions: Partitions,
        read_topics: Callable[[], Awaitable[object]],
        topics_read: Callable[[], None],
    ) -> None:
        """`topics_read` is called when a lease is served, since its holder may have heard of a reassignment
        before it heard that it had the lease."""
        self._kind = kind
        self._partitions = partitions
        self._read_topics = read_topics
        self._topics_read = topics_read
        self._loading: dict[int, asyncio.Task[None]] = {}

    def own(self, number: int, epoch: int) -> Awaitable[object]:
        at_rest = self.disown(number, "it is claimed again")
        loading = asyncio.get_running_loop().create_task(
            self._load(number, epoch, at_rest), name=f"{self._kind} shard {number}"
        )
        self._loading[number] = loading
        return loading

    def disown(self, number: int, why: str) -> Awaitable[object]:
        loading = self._loading.pop(number, None)
        if loading is not None:
            loading.cancel()
        return self._partitions.disown(Lease(self._kind, number))

    def abandon(self) -> None:
        """As if the process died."""
        for loading in self._loading.values():
            loading.cancel()
        self._loading.clear()

    async def _load(self, number: int, epoch: int, at_rest: Awaitable[object]) -> None:
        await at_rest
        failure: str | None = None
        while True:
            try:
                await self._read_topics()
                break
            except StoreClosed:
                raise
            except StoreError:  # whoever keeps the catalogue logs it
                await asyncio.sleep(_READ_AGAIN_S)
            except Exception as error:
                if str(error) != failure:
                    failure = str(error)
                    _log.error("failed to read topics for a shard, retrying", shard=number, exc_info=error)
                await asyncio.sleep(_READ_AGAIN_S)
        del self._loading[number]
        self._partitions.own(Lease(self._kind, number), epoch)
        asyncio.get_running_loop().call_soon(self._topics_read)
