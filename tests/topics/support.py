"""What the tests of the data plane share: batches as clients send them, and a log or a broker's partitions
over memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Any

import google_crc32c

from muster.coordinator.runtime.clock import ManualClock
from muster.coordinator.storage.files import Folder, MemoryFolder
from muster.coordinator.storage.memory import MemoryStore
from muster.coordinator.topics.catalogue import Catalogue
from muster.coordinator.topics.config import parse
from muster.coordinator.topics.log import Appended, PartitionLog
from muster.coordinator.topics.logs import Logs
from muster.coordinator.topics.partitions import Partitions
from muster.protocol import record_batch
from muster.protocol.compression import Codec
from muster.protocol.record_batch import Record

SHARDS = 8
NOW_MS = 1_700_000_000_000


def batch(
    *values: bytes | None,
    keys: Sequence[bytes | None] | None = None,
    timestamps: Sequence[int] | None = None,
    codec: Codec = Codec.NONE,
    producer: tuple[int, int, int] | None = None,
    **kinds: Any,
) -> bytes:
    """A batch as a producer sends it: offsets from 0. `producer` is (id, epoch, first sequence)."""
    contents = [
        Record(
            index,
            timestamps[index] if timestamps else NOW_MS,
            keys[index] if keys else None,
            value,
        )
        for index, value in enumerate(values)
    ]
    if producer is not None:
        kinds |= dict(zip(("producer_id", "producer_epoch", "base_sequence"), producer, strict=True))
    return record_batch.build(contents, codec=codec, **kinds)


def resealed(data: bytearray) -> bytes:
    """A batch that was tampered with, with the checksum that it has now."""
    data[17:21] = google_crc32c.value(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)


def read_records(data: bytes) -> list[Record]:
    """All records of a record set, every batch's checksum checked."""
    found: list[Record] = []
    for position, header in record_batch.batches(data):
        assert record_batch.crc_matches(data, position, header)
        found += record_batch.records(data, position, header)
    return found


class OneLog:
    """A partition's log in a folder, opened again and again, with a clock to move."""

    def __init__(self, folder: Folder | None = None, **configs: str) -> None:
        self.folder = folder or MemoryFolder()
        self.configs = {name.replace("_", "."): value for name, value in configs.items()}
        self.now_ms = NOW_MS
        self.epoch = 0
        self.log = self.reopen()

    def reopen(self, *, epoch: int | None = None) -> PartitionLog:
        self.epoch = self.epoch + 1 if epoch is None else epoch
        self.log = PartitionLog(self.folder, "orders-0", parse(self.configs), self.epoch, lambda: self.now_ms)
        return self.log

    def append(self, *values: bytes | None, **kinds: Any) -> Appended:
        """Append a batch and make it visible."""
        return self.send(batch(*values, **kinds))

    def send(self, data: bytes) -> Appended:
        appended = self.log.append(data)
        self.log.commit()
        return appended

    def records(self) -> list[Record]:
        """Everything from the log start on."""
        found: list[Record] = []
        offset = self.log.start_offset
        while data := self.log.read(offset, 1 << 20, first_may_exceed=True):
            offset = list(record_batch.batches(data))[-1][1].next_offset
            found += read_records(data)
        return [record for record in found if record.offset >= self.log.start_offset]

    def live(self) -> dict[bytes | None, bytes | None]:
        """The last value of each key."""
        return {record.key: record.value for record in self.records()}


class InlineExecutor(Executor):
    """Runs what it is given at once, so that a test decides when anything happens."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


class HeldExecutor(Executor):
    """Runs nothing until the test says so."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        self.waiting.append(run)
        return future

    def run_one(self) -> None:
        """What was submitted first."""
        self.waiting.pop(0)()


class Brokers:
    """Catalogues and partitions of one or more brokers over one store, one set of logs and one clock."""

    def __init__(
        self, *, logs: Logs | None = None, defaults: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        self.clock = ManualClock(NOW_MS)
        self.store = MemoryStore()
        self.logs = logs or Logs.in_memory()
        self.defaults = defaults
        self.options = options
        self.nodes: list[Partitions] = []
        self.catalogues: list[Catalogue] = []

    async def add(self, *, own: Iterable[int] = range(SHARDS), epoch: int = 1) -> Partitions:
        if not self.nodes:
            await self.store.open()
        catalogue = Catalogue(self.store, self.clock, defaults=self.defaults)
        await catalogue.refresh()
        partitions = Partitions(
            node_id=len(self.nodes) + 1,
            catalogue=catalogue,
            logs=self.logs,
            clock=self.clock,
            executor=InlineExecutor(),
            shards=SHARDS,
            **self.options,
        )
        partitions.start()
        for shard in own:
            partitions.own(shard, epoch)
        self.catalogues.append(catalogue)
        self.nodes.append(partitions)
        return partitions

    async def close(self) -> None:
        for node in self.nodes:
            await node.close()
        await self.store.close()
