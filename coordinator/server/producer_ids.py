"""Ids for idempotent producers, taken from the store a block at a time so that few of them cost a write."""

from __future__ import annotations

import asyncio
from typing import Final

from muster.coordinator.storage.store import Store

_BLOCK: Final = 1_000
"""Kafka's block size. What is left of a block when the broker ends is never handed out."""


class ProducerIds:
    """Hands out ids that no producer of the cluster has had before."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._next = 0
        self._end = 0
        self._refill = asyncio.Lock()

    async def allocate(self) -> int:
        """A fresh producer id. Raises StoreError."""
        while self._next >= self._end:
            async with self._refill:
                if self._next >= self._end:
                    self._next = await self._store.allocate_producer_ids(_BLOCK)
                    self._end = self._next + _BLOCK
        allocated = self._next
        self._next += 1
        return allocated
