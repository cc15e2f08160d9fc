"""Bytes a second through Produce and Fetch, in batches of 100 KB and of 1 KB.

`python -m tests.bench records`

Six partitions of one topic, a connection to each, from a process of its own; records of 1 KB without
compression, as many requests in flight on a connection as Java's producer allows itself. The floor is a bare
uvloop server that writes the same bytes to one file and reads them from it (tests.bench.sink): what sockets
and files cost.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from muster.protocol.errors import ErrorCode
from muster.protocol.header import encode_request
from muster.protocol.message import Message
from muster.protocol.messages.data import FetchRequest, ProduceRequest
from muster.protocol.messages.topics import CreateTopicsRequest
from muster.protocol.record_batch import Record, build
from tests.bench import load, processes, sink
from tests.bench.figures import Figure

TOPIC: Final = "records"
PARTITIONS: Final = 6
IN_FLIGHT: Final = 5
"""max.in.flight.requests.per.connection of Java's producer."""
RECORD_BYTES: Final = 1_000
WARM_UP_S: Final = 0.5
MEASURED_S: Final = 2.0
ROUNDS: Final = 3
KEPT_BYTES: Final = 256 << 20
"""retention.bytes of a partition: a disk is not filled by a benchmark."""
CREATE_VERSION: Final = 5
PRODUCE_VERSION: Final = 12
FETCH_VERSION: Final = 12
TARGET: Final = 300.0
_READ_BYTES: Final = 1 << 18


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


def batch(batch_bytes: int) -> bytes:
    count = max(batch_bytes // RECORD_BYTES, 1)
    value = b"x" * (RECORD_BYTES - 20)
    return build([Record(number, 1_700_000_000_000, b"k%d" % number, value) for number in range(count)])


def produce(partition: int, contents: bytes) -> Message:
    part = ProduceRequest.PartitionProduceData(index=partition, records=contents)
    return ProduceRequest(
        acks=1,
        timeout_ms=30_000,
        topic_data=[ProduceRequest.TopicProduceData(name=TOPIC, partition_data=[part])],
    )


def fetch(partition: int) -> Message:
    part = FetchRequest.FetchPartition(
        partition=partition, fetch_offset=0, partition_max_bytes=sink.FETCHED_BYTES
    )
    return FetchRequest(
        max_wait_ms=1_000,
        min_bytes=1,
        max_bytes=50 << 20,
        topics=[FetchRequest.FetchTopic(topic=TOPIC, partitions=[part])],
    )


async def _move(port: int, pid: int, batch_bytes: int, fetching: bool, *, prepare: bool) -> dict[str, float]:
    contents = batch(batch_bytes)
    if prepare:
        await _prepare(port, contents, fill=fetching)
    loop = asyncio.get_running_loop()
    links: list[Bulk] = []
    for partition in range(PARTITIONS):
        if fetching:
            frame = encode_request(1, FETCH_VERSION, 1, "bench", fetch(partition))
        else:
            frame = encode_request(0, PRODUCE_VERSION, 1, "bench", produce(partition, contents))
        _, link = await loop.create_connection(
            lambda frame=frame: Bulk(frame, 1 if fetching else IN_FLIGHT), "127.0.0.1", port
        )
        links.append(link)

    def moved() -> int:
        if fetching:
            return sum(link.received_bytes for link in links)
        return sum(link.answered for link in links) * len(contents)

    await asyncio.sleep(WARM_UP_S)
    rounds = []
    for _ in range(ROUNDS):
        moved_before, cpu_before, began = moved(), processes.cpu_seconds(pid), loop.time()
        await asyncio.sleep(MEASURED_S / ROUNDS)
        megabytes = (moved() - moved_before) / 1e6
        cpu_s, took_s = processes.cpu_seconds(pid) - cpu_before, loop.time() - began
        rounds.append((megabytes / took_s, cpu_s / megabytes * 1e6))
    await asyncio.gather(*(link.stop() for link in links))
    rate, cpu_us = max(rounds)
    return {"rate": rate, "cpu_us": cpu_us}


async def _prepare(port: int, contents: bytes, *, fill: bool) -> None:
    """The topic, with something to fetch in each partition if wanted; a request that is refused stops the
    benchmark."""
    links = await load.connect(port, PARTITIONS)
    config = CreateTopicsRequest.CreatableTopic.CreatableTopicConfig(
        name="retention.bytes", value=str(KEPT_BYTES)
    )
    topic = CreateTopicsRequest.CreatableTopic(
        name=TOPIC, num_partitions=PARTITIONS, replication_factor=1, assignments=[], configs=[config]
    )
    created = await links[0].call(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), CREATE_VERSION)
    if created.topics[0].error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
        raise RuntimeError(f"CreateTopics: {created}")
    batches = 2 * sink.FETCHED_BYTES // len(contents) if fill else 1
    await asyncio.gather(*(_fill(link, partition, contents, batches) for partition, link in enumerate(links)))
    wanted_bytes = min(batches * len(contents), sink.FETCHED_BYTES) // 2
    for partition, link in enumerate(links):
        fetched = await link.call(fetch(partition), FETCH_VERSION)
        if len(fetched.responses[0].partitions[0].records) < wanted_bytes:
            raise RuntimeError(f"Fetch: {fetched.responses[0].partitions[0].error_code}")
        link.close()


async def _fill(link: load.Link, partition: int, contents: bytes, batches: int) -> None:
    for _ in range(batches):
        produced = await link.call(produce(partition, contents), PRODUCE_VERSION)
        if produced.responses[0].partition_responses[0].error_code != ErrorCode.NONE:
            raise RuntimeError(f"Produce: {produced}")


def move(port: int, pid: int, batch_bytes: int, fetching: bool, prepare: bool) -> dict[str, float]:
    """In the load's process: megabytes a second, and the server's CPU time for one in microseconds."""
    return load.run(_move(port, pid, batch_bytes, fetching, prepare=prepare))


def _split(cpu_us: float, floor_us: float, trip: float) -> str:
    """Where the time of small batches goes; a MB is a thousand of them."""
    each, socket = cpu_us / 1e3, floor_us / 1e3
    # The shares of the rest are those of samples that held the interpreter's lock (py-spy record --gil).
    return (
        f"{each:.0f} us a batch: {socket:.0f} for sockets and file, up to {trip:.0f} for the trip to the "
        f"writing thread and back, and {max(each - socket - trip, 0):.0f} of Python, four fifths of it on "
        "the loop (task, router, answer), one fifth in the thread (check, write). It is a cost of requests, "
        "not of bytes: clients that wait some milliseconds for more records (linger.ms) do not pay it"
    )


async def _trips(count: int) -> None:
    loop = asyncio.get_running_loop()
    for _ in range(count):
        await loop.run_in_executor(None, int)


def trip_us() -> float:
    """In the load's process: CPU time of handing a call that does nothing to a thread and hearing back."""
    count = 3_000
    before = time.process_time()
    load.run(_trips(count))
    return (time.process_time() - before) / count * 1e6


def measure() -> list[Figure]:
    trip = processes.load(trip_us)
    figures = []
    for batch_bytes in (100_000, 1_000):
        for fetching in (False, True):
            load_of: dict[str, Any] = {"batch_bytes": batch_bytes, "fetching": fetching}
            with tempfile.TemporaryDirectory(prefix="muster-bench-") as directory:
                path = Path(directory) / "sink"
                if fetching:
                    path.write_bytes(bytes(2 * sink.FETCHED_BYTES))
                with processes.sink(path) as server:
                    floor = processes.load(move, port=server.port, pid=server.pid, prepare=False, **load_of)
            with processes.muster() as server:
                found = processes.load(move, port=server.port, pid=server.pid, prepare=True, **load_of)
            what = f"{'Fetch' if fetching else 'Produce'}, batches of {batch_bytes // 1_000} KB"
            wanted = batch_bytes == 100_000
            figures += [
                Figure(
                    what,
                    "MB/s",
                    found["rate"],
                    floor["rate"],
                    "sockets and a file",
                    target=f"at least {TARGET:g} MB/s" if wanted else "",
                    reached=found["rate"] >= TARGET if wanted else None,
                ),
                Figure(
                    f"CPU of a MB, {what}",
                    "us",
                    found["cpu_us"],
                    floor["cpu_us"],
                    "sockets and a file",
                    note=_split(found["cpu_us"], floor["cpu_us"], trip)
                    if batch_bytes < 10_000 and not fetching
                    else "",
                ),
            ]
    return figures
