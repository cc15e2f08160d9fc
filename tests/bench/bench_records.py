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
from muster.protocol.messages.topics import CreateTopicsRequest
from tests.bench import load, processes, sink
from tests.bench.bulk import Bulks, batch, fetch, produce
from tests.bench.figures import Figure

TOPIC: Final = "records"
PARTITIONS: Final = 6
WARM_UP_S: Final = 0.5
MEASURED_S: Final = 2.0
ROUNDS: Final = 3
KEPT_BYTES: Final = 256 << 20
"""retention.bytes of a partition: a disk is not filled by a benchmark."""
CREATE_VERSION: Final = 5
PRODUCE_VERSION: Final = 12
FETCH_VERSION: Final = 12
TARGET: Final = 300.0


async def _move(port: int, pid: int, batch_bytes: int, fetching: bool, *, prepare: bool) -> dict[str, float]:
    contents = batch(batch_bytes)
    if prepare:
        await _prepare(port, contents, fill=fetching)
    loop = asyncio.get_running_loop()
    if fetching:
        fetches = [fetch(TOPIC, partition) for partition in range(PARTITIONS)]
        frames = [(port, encode_request(1, FETCH_VERSION, 1, "bench", each)) for each in fetches]
        bulks = await Bulks.fetching(frames)
    else:
        produces = [produce(TOPIC, partition, contents, acks=1) for partition in range(PARTITIONS)]
        frames = [(port, encode_request(0, PRODUCE_VERSION, 1, "bench", each)) for each in produces]
        bulks = await Bulks.producing(frames, len(contents))
    await asyncio.sleep(WARM_UP_S)
    rounds = []
    for _ in range(ROUNDS):
        moved_before, cpu_before, began = bulks.moved_bytes, processes.cpu_seconds(pid), loop.time()
        await asyncio.sleep(MEASURED_S / ROUNDS)
        megabytes = (bulks.moved_bytes - moved_before) / 1e6
        cpu_s, took_s = processes.cpu_seconds(pid) - cpu_before, loop.time() - began
        rounds.append((megabytes / took_s, cpu_s / megabytes * 1e6))
    await bulks.stop()
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
        fetched = await link.call(fetch(TOPIC, partition), FETCH_VERSION)
        if len(fetched.responses[0].partitions[0].records) < wanted_bytes:
            raise RuntimeError(f"Fetch: {fetched.responses[0].partitions[0].error_code}")
        link.close()


async def _fill(link: load.Link, partition: int, contents: bytes, batches: int) -> None:
    for _ in range(batches):
        produced = await link.call(produce(TOPIC, partition, contents, acks=1), PRODUCE_VERSION)
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
