"""Partition logs: append, recovery and fetch of one partition, as ratios to plain file access in the same
run.

`python -m tests.bench.bench_log [--megabytes N] [--directory D]`

The peers are a loop that writes the same batches to one file, and one that reads that file in pieces of a
fetch's size. An append includes everything that a Produce costs below the handler: the trip to the executor,
checksum, a walk over all records, offsets, index, high watermark. No compression, no explicit sync, as by
default.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from muster.coordinator.base.clock import LoopClock
from muster.coordinator.storage.memory import MemoryStore
from muster.coordinator.storage.store import Lease, LeaseKind
from muster.coordinator.topics.catalogue import Catalogue
from muster.coordinator.topics.logs import Logs
from muster.coordinator.topics.partitions import FetchPartition, Partitions
from muster.protocol import record_batch
from muster.protocol.record_batch import Record

SHAPES = ((1, 100), (100, 1_000), (1_000, 100))
"""(records in a batch, bytes in a record's value)."""
FETCH_BYTES = 1 << 20
IN_FLIGHT = 32


def plain_file(path: Path, batch: bytes, count: int) -> tuple[float, float]:
    """Seconds to write `count` batches to a file, and to read it in pieces."""
    began = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(count):
            file.write(batch)
    written = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.read(FETCH_BYTES):
            pass
    return written - began, time.perf_counter() - written


class OneBroker:
    """One broker's partitions over a directory; each use is another leader epoch."""

    def __init__(
        self, directory: Path, executor: ThreadPoolExecutor, catalogue: Catalogue, clock: LoopClock
    ) -> None:
        self._parts = directory, executor, catalogue, clock
        self._epoch = 0

    def lead(self) -> Partitions:
        directory, executor, catalogue, clock = self._parts
        self._epoch += 1
        logs = Logs.on_disk(directory)
        node = Partitions(node_id=1, catalogue=catalogue, logs=logs, clock=clock, executor=executor, shards=1)
        node.own(Lease(LeaseKind.DATA, 0), self._epoch)
        return node


async def partition_log(
    directory: Path, batch: bytes, records: int, count: int
) -> tuple[float, float, float]:
    """Seconds to append `count` batches, to open the log again after a crash, and to fetch it all."""
    store, clock = MemoryStore(), LoopClock(asyncio.get_running_loop())
    await store.open()
    catalogue = Catalogue(store, clock)
    topic = await catalogue.create("bench")
    with ThreadPoolExecutor(2) as executor:
        broker = OneBroker(directory, executor, catalogue, clock)
        node = broker.lead()
        began = time.perf_counter()
        for first in range(0, count, IN_FLIGHT):
            appends = [node.append(topic, 0, batch) for _ in range(first, min(first + IN_FLIGHT, count))]
            await asyncio.gather(*appends)
        appended = time.perf_counter()
        node.abandon()
        node = broker.lead()
        assert await node.offsets(topic, 0) == (0, records * count)
        recovered = time.perf_counter()
        offset = 0
        while offset < records * count:
            asked = FetchPartition(topic, 0, offset, FETCH_BYTES)
            (answer,) = await node.fetch([asked], min_bytes=1, max_bytes=FETCH_BYTES, max_wait_ms=0)
            offset += len(answer.records) // len(batch) * records
        fetched = time.perf_counter()
        await node.close()
    await store.close()
    return appended - began, recovered - appended, fetched - recovered


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(description="partition logs against plain files")
    parser.add_argument("--megabytes", type=int, default=64, help="how much to write for each shape of batch")
    parser.add_argument("--directory", type=Path, help="where to write (default: a temporary directory)")
    options = parser.parse_args(arguments)
    now_ms = time.time_ns() // 1_000_000
    print(f"{'records x bytes':>16}{'':12}{'MB/s':>10}{'records/s':>14}{'ratio to a plain file':>24}")
    for records, value_bytes in SHAPES:
        batch = record_batch.build([Record(n, now_ms, None, bytes(value_bytes)) for n in range(records)])
        count = min((options.megabytes << 20) // len(batch), 50_000)
        with tempfile.TemporaryDirectory(dir=options.directory) as temporary:
            write_s, read_s = plain_file(Path(temporary) / "plain", batch, count)
            measured = partition_log(Path(temporary) / "log", batch, records, count)
            append_s, recover_s, fetch_s = asyncio.run(measured)
        rows = (("append", append_s, write_s), ("recover", recover_s, read_s), ("fetch", fetch_s, read_s))
        for name, seconds, plain_s in rows:
            megabytes_s, records_s = count * len(batch) / seconds / 1e6, count * records / seconds
            shape = f"{records} x {value_bytes}"
            print(f"{shape:>16}  {name:10}{megabytes_s:10,.0f}{records_s:14,.0f}{plain_s / seconds:24.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
