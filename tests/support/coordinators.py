"""Transaction coordinators that answer as a test tells them to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from muster.coordinator.peers.coordinators import TransactionCoordinators
from muster.protocol.errors import ErrorCode, KafkaError


class Joined(NamedTuple):
    """A broker's request."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[tuple[str, int]]
    adds: bool


async def _at_once() -> None:
    pass


class Coordinators(TransactionCoordinators):
    """Replaces `Broker.transactions`. Every partition is in every transaction unless the test says
    otherwise."""

    def __init__(self) -> None:
        self.asked: list[Joined] = []
        self.lacking: set[tuple[str, int]] = set()
        """Partitions that are in no transaction."""
        self.refusals: list[ErrorCode] = []
        """The errors with which the next requests are refused."""
        self.meanwhile: Callable[[], Awaitable[None]] = _at_once
        """Runs before each answer."""

    async def join(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: frozenset[tuple[str, int]],
        *,
        adds: bool,
    ) -> Mapping[tuple[str, int], ErrorCode]:
        """See the base class."""
        self.asked.append(Joined(transactional_id, producer_id, producer_epoch, partitions, adds))
        await self.meanwhile()
        if self.refusals:
            raise KafkaError(self.refusals.pop(0), "as the test says")
        return {
            each: ErrorCode.TRANSACTION_ABORTABLE if each in self.lacking else ErrorCode.NONE
            for each in partitions
        }

    def is_ending(self, transactional_id: str) -> bool:
        """See the base class."""
        return False

    async def pause(self, transactional_id: str, seconds: float) -> None:
        """See the base class."""
        await asyncio.sleep(seconds)
