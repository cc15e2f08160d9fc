"""Records in bulk: batches of a size, the requests that produce and fetch them, and connections that do so
all the time."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Iterable
from typing import Final, Self

from muster.protocol.messages.data import FetchRequest, ProduceRequest
from muster.protocol.record_batch import Record, build

RECORD_BYTES: Final = 1_000
FETCHED_BYTES: Final = 1 << 20
"""max.partition.fetch.bytes of Java's consumer."""
IN_FLIGHT: Final = 5
"""max.in.flight.requests.per.connection of Java's producer."""
_READ_BYTES: Final = 1 << 18


def batch(batch_bytes: int) -> bytes:
    """Records of `RECORD_BYTES` and of now: what is old is removed by retention."""
    now_ms = time.time_ns() // 1_000_000
    value = b"x" * (RECORD_BYTES - 20)
    count = max(batch_bytes // RECORD_BYTES, 1)
    return build([Record(number, now_ms, b"k%d" % number, value) for number in range(count)])


def produce(topic: str, partition: int, contents: bytes, *, acks: int = -1) -> ProduceRequest:
    part = ProduceRequest.PartitionProduceData(index=partition, records=contents)
    parts = ProduceRequest.TopicProduceData(name=topic, partition_data=[part])
    return ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=[parts])


def fetch(
    topic: str, partition: int, offset: int = 0, *, max_wait_ms: int = 1_000, committed: bool = False
) -> FetchRequest:
    """`committed`: with isolation level read_committed."""
    part = FetchRequest.FetchPartition(
        partition=partition, fetch_offset=offset, partition_max_bytes=FETCHED_BYTES
    )
    parts = FetchRequest.FetchTopic(topic=topic, partitions=[part])
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=50 << 20,
        isolation_level=int(committed),
        topics=[parts],
    )


class Bulk(asyncio.BufferedProtocol):
    """A connection that sends one frame again and again, some in flight at all times, and counts what comes
    back without keeping it."""

    def __init__(self, frame: bytes, in_flight: int) -> None:
        self.answered = 0
        self.received_bytes = 0
        self._frame = frame
        self._in_flight = in_flight
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._size = b""
        self._left = 0
        self._stopped = False
        self._quiet = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        for _ in range(self._in_flight):
            self._send()

    def connection_lost(self, error: Exception | None) -> None:
        self._quiet.set()

    def _send(self) -> None:
        self.transport.write(self._frame)  # type: ignore[attr-defined]  # a Transport's

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, count: int) -> None:
        at = 0
        while at < count:
            if not self._left:
                missing = self._buffer[at : min(at + 4 - len(self._size), count)]
                self._size += missing
                at += len(missing)
                if len(self._size) == 4:
                    self._left, self._size = int.from_bytes(self._size), b""
                continue
            taken = min(self._left, count - at)
            self._left -= taken
            self.received_bytes += taken
            at += taken
            if not self._left:
                self.answered += 1
                if not self._stopped:
                    self._send()
                    continue
                self._in_flight -= 1
                if not self._in_flight:
                    self._quiet.set()

    async def stop(self) -> None:
        """Return when everything sent is answered."""
        self._stopped = True
        async with asyncio.timeout(60):
            await self._quiet.wait()
        self.transport.close()


class Bulks:
    """Several connections that send one frame each, and what they move."""

    def __init__(self, links: list[Bulk], batch_bytes: int | None) -> None:
        self._links = links
        self._batch_bytes = batch_bytes

    @classmethod
    async def fetching(
        cls, frames: Iterable[tuple[int, bytes]], context: ssl.SSLContext | None = None
    ) -> Self:
        """A connection to each of these ports, with a frame that fetches; over TLS with a `context`."""
        return cls(await _connected(frames, 1, context), None)

    @classmethod
    async def producing(
        cls,
        frames: Iterable[tuple[int, bytes]],
        batch_bytes: int,
        context: ssl.SSLContext | None = None,
    ) -> Self:
        """A connection to each of these ports, with a frame that produces one batch of that size; over TLS
        with a `context`."""
        return cls(await _connected(frames, IN_FLIGHT, context), batch_bytes)

    @property
    def moved_bytes(self) -> int:
        """So far: received, or acknowledged."""
        if self._batch_bytes is None:
            return sum(link.received_bytes for link in self._links)
        return sum(link.answered for link in self._links) * self._batch_bytes

    @property
    def answered(self) -> list[int]:
        """So far, by connection."""
        return [link.answered for link in self._links]

    async def stop(self) -> None:
        """Return when everything sent is answered."""
        await asyncio.gather(*(link.stop() for link in self._links))


async def _connected(
    frames: Iterable[tuple[int, bytes]], in_flight: int, context: ssl.SSLContext | None
) -> list[Bulk]:
    loop = asyncio.get_running_loop()
    links: list[Bulk] = []
    for port, frame in frames:
        _, link = await loop.create_connection(
            lambda frame=frame: Bulk(frame, in_flight), "127.0.0.1", port, ssl=context
        )
        links.append(link)
    return links
