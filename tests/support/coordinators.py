"""Transaction coordinators that answer as a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from muster.coordinator.peers.coordinators import TransactionCoordinators
from muster.protocol.errors import ErrorCode, KafkaError


class Joined(NamedTuple):
    """What a broker asked."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[tuple[str, int]]
    adds: bool


async def _at_once() -> None:
    pass


class Coordinators(TransactionCoordinators):
    """In place of `Broker.transactions`. They have every partition in every transaction, unless told
    otherwise."""

    def __init__(self) -> None:
        self.asked: list[Joined] = []
        self.lacking: set[tuple[str, int]] = set()
        """Partitions that no transaction has."""
        self.refusals: list[ErrorCode] = []
        """What the next requests are refused with."""
        self.meanwhile: Callable[[], Awaitable[None]] = _at_once
        """What happens before each answer."""

    async def join(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: frozenset[tuple[str, int]],
        *,
        adds: bool,
    ) -> Mapping[tuple[str, int], ErrorCode]:
        """See there."""
        self.asked.append(Joined(transactional_id, producer_id, producer_epoch, partitions, adds))
        await self.meanwhile()
        if self.refusals:
            raise KafkaError(self.refusals.pop(0), "as the test says")
        return {
            each: ErrorCode.TRANSACTION_ABORTABLE if each in self.lacking else ErrorCode.NONE
            for each in partitions
        }

    def is_ending(self, transactional_id: str) -> bool:
        """See there."""
        return False

    async def pause(self, transactional_id: str, seconds: float) -> None:
        """See there."""
        await asyncio.sleep(seconds)
