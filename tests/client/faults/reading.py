"""A consumer that reads all the time, and records for it."""

from __future__ import annotations

import asyncio
from typing import Any, Final, Self

from muster.client.consumer import Consumer
from muster.client.producer import Producer
from tests.client.faults.network import LONG_S, REQUEST_TIMEOUT_MS, Network, once_and_in_order

PARTITIONS: Final = 2

# The session outlives an unanswered request, and a machine that stalls.
SETTINGS: Final[dict[str, Any]] = {
    "group_id": "g",
    "topics": ["t"],
    "auto_offset_reset": "earliest",
    "session_timeout_ms": 30_000,
    "heartbeat_interval_ms": 200,
    "auto_commit_interval_ms": 100,
    "request_timeout_ms": REQUEST_TIMEOUT_MS,
}


class Reader:
    """`values` holds those of each partition, in order of arrival."""

    def __init__(self, net: Network, **settings: Any) -> None:
        self.consumer = Consumer(net.bootstrap, **{**SETTINGS, **settings})
        self.values: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self._came = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.consumer.start()
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._reading is not None
        self.consumer.stop()
        try:
            await self._reading
        finally:
            await self.consumer.close()

    async def _read(self) -> None:
        try:
            async for record in self.consumer:
                self.values[record.partition].append(record.value or b"")
                self._came.set()
        finally:
            self._came.set()

    @property
    def count(self) -> int:
        return sum(map(len, self.values))

    async def has(self, count: int) -> None:
        """Wait until that many records were read."""
        assert self._reading is not None
        try:
            async with asyncio.timeout(LONG_S):
                while self.count < count and not self._reading.done():
                    self._came.clear()
                    await self._came.wait()
        except TimeoutError:
            raise AssertionError(f"{self.count} of {count} read; {self.consumer.health()}") from None
        if self._reading.done():
            self._reading.result()

    def check(self, count: int) -> None:
        """Exactly this many records were read, each once and in order."""
        for values in self.values:
            once_and_in_order(values)
        assert self.count == count

    @property
    def identity(self) -> tuple[str, int]:
        """Member id and generation."""
        health = self.consumer.health()
        return health.member_id, health.generation_id


async def produce(net: Network, first: int, count: int) -> int:
    """Send records whose values are numbers, from `first` on; return the next number."""
    async with Producer(net.bootstrap, linger_ms=0, request_timeout_ms=REQUEST_TIMEOUT_MS) as producer:
        for number in range(first, first + count):
            await producer.post("t", b"%d" % number, partition=number % PARTITIONS)
    return first + count
