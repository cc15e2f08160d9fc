"""Producer ids, taken from the store a block at a time so that few of them cost a write."""

from __future__ import annotations

import asyncio
from typing import Final

from muster.coordinator.base.log import Logger
from muster.coordinator.storage.store import Store, StoreError
from muster.protocol.errors import ErrorCode, KafkaError

_BLOCK: Final = 1_000
"""Kafka's block size. What is left of a block when the broker ends is never handed out."""
_LOW: Final = _BLOCK // 10
"""With so few left, the next block is fetched, as in Kafka."""

_PATIENCE_S: Final = 5.0
"""How long a request waits for the store; Kafka refuses it at once."""

_log: Final = Logger(part="broker")


class ProducerIds:
    """Hands out ids that no producer of the cluster has had before."""

    def __init__(self, store: Store, *, patience_s: float = _PATIENCE_S) -> None:
        self._store = store
        self._patience_s = patience_s
        self._here: list[range] = []
        self._era = 0
        """The store's era in which those here were allocated; in a later one, others may get them too."""
        self._refilling: asyncio.Task[None] | None = None

    async def allocate(self) -> int:
        """A fresh producer id. Raises what `fetch` does."""
        await self.fetch()
        return self._take()

    async def fetch(self) -> None:
        """Return when an id is available. Raises StoreError, and KafkaError(COORDINATOR_LOAD_IN_PROGRESS)
        if that takes too long."""
        try:
            async with asyncio.timeout(self._patience_s):
                while not self._left:
                    await asyncio.shield(self._refill())
        except TimeoutError:
            raise _none_at_hand() from None

    def at_once(self) -> int:
        """A fresh producer id. Raises KafkaError(COORDINATOR_LOAD_IN_PROGRESS), which is retriable, if none
        is available."""
        if not self._left:
            self._refill()
            raise _none_at_hand()
        return self._take()

    async def close(self) -> None:
        """Cancel a fetch in flight."""
        if self._refilling is not None:
            self._refilling.cancel()
            await asyncio.wait([self._refilling])

    @property
    def _left(self) -> int:
        return sum(map(len, self._here)) if self._era == self._store.era else 0

    def _take(self) -> int:
        first, *others = self._here
        self._here = [first[1:], *others] if len(first) > 1 else others
        if self._left <= _LOW:
            self._refill()
        return first[0]

    def _refill(self) -> asyncio.Task[None]:
        if self._refilling is None or self._refilling.done():
            self._refilling = asyncio.get_running_loop().create_task(
                self._fetch_block(), name="fetch producer ids"
            )
            self._refilling.add_done_callback(_note_failure)
        return self._refilling

    async def _fetch_block(self) -> None:
        era = self._store.era
        start = await self._store.allocate_producer_ids(_BLOCK)
        if era != self._era:
            self._here, self._era = [], era
        self._here.append(range(start, start + _BLOCK))


def _none_at_hand() -> KafkaError:
    return KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the next producer ids are still being fetched")


def _note_failure(refilling: asyncio.Task[None]) -> None:
    if not refilling.cancelled() and isinstance(error := refilling.exception(), StoreError):
        _log.warning("failed to fetch producer ids", why=str(error))
