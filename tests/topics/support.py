"""Shared by the tests of the data plane: batches as clients send them, and a log or a broker's partitions,
over files in memory or rows of PostgreSQL."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from itertools import count
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID, uuid4

import google_crc32c

from muster.coordinator.base.clock import ManualClock
from muster.coordinator.cluster.placement import data_shard
from muster.coordinator.storage.files import Folder, MemoryFolder
from muster.coordinator.storage.folders import FolderPlace
from muster.coordinator.storage.memory import MemoryStore
from muster.coordinator.storage.postgres.record_storage import Rows
from muster.coordinator.storage.records import Place
from muster.coordinator.storage.store import Lease, LeaseKind, TopicRow
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
    """A batch that was tampered with, with its checksum recomputed."""
    data[17:21] = google_crc32c.value(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)


def read_records(data: bytes | memoryview) -> list[Record]:
    """All records of a record set, after checking every batch's checksum."""
    data, found = bytes(data), list[Record]()
    for position, header in record_batch.batches(data):
        assert record_batch.crc_matches(data, position, header)
        found += record_batch.records(data, position, header)
    return found


def killed_after(lines: int, program: str, folder: Path) -> int:
    """Run a program on a folder, `kill -9` it once it has printed `lines` lines, and return how many it
    printed in all."""
    with subprocess.Popen(
        [sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    ) as process:
        assert process.stdout is not None
        for _ in range(lines):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        return lines + len(process.stdout.read().splitlines())


class TestRows:
    """Partition logs in a database whose leases any test may claim."""

    __test__ = False
    in_use: ClassVar[TestRows | None] = None
    """Where the current test's logs are; None: in files."""

    def __init__(self, url: str, *, first_lease: int = 10_000) -> None:
        """`first_lease`: the number of the first new lease."""
        self.url = url
        self.storage = Rows.at(url, "test")
        self._numbers = count(first_lease)

    def execute(self, statement: str, *values: object) -> list[Any]:
        found: list[Any] = self.storage.database.run(
            lambda connection: connection.fetch(statement, *values), repeatable=False
        )
        return found

    def new_leases(self, many: int) -> int:
        """Create `many` leases that nobody else uses and return the first number."""
        numbers = [next(self._numbers) for _ in range(many)]
        self.execute(
            "INSERT INTO muster.leases (lease_id, kind, number, epoch, next_seq) "
            "SELECT n, 'data', n, 0, 1 FROM unnest($1::integer[]) AS n",
            numbers,
        )
        return numbers[0]

    def claim(self, lease: Lease, epoch: int) -> None:
        self.execute(
            "UPDATE muster.leases SET epoch = greatest(epoch, $3) WHERE kind = $1 AND number = $2",
            lease.kind.value,
            lease.number,
            epoch,
        )

    def check_nothing_is_left_over(self, topic_ids: Sequence[UUID]) -> None:
        """Check that no batch lacks a segment and that all segments of these topics are live. What a dead
        leader left must have been sealed by the next."""
        widowed = (
            "SELECT count(*) FROM muster.batches AS b WHERE NOT EXISTS "
            "(SELECT 1 FROM muster.segments AS s WHERE s.segment_id = b.segment_id)"
        )
        assert self.execute(widowed)[0][0] == 0
        dead = "SELECT segment_id FROM muster.segments WHERE state <> 1 AND topic_id = ANY ($1::uuid[])"
        assert self.execute(dead, topic_ids) == []


class KindredFolder(MemoryFolder):
    """Folders in it are of its own class, which a test derives from this one."""

    def folder(self, name: str) -> MemoryFolder:
        if name not in self._entries:
            self._entries[name] = type(self)(name)
        return super().folder(name)


class OneLog:
    """A partition's log, in a folder or wherever the test's logs are, that can be reopened, with a movable
    clock."""

    def __init__(self, folder: Folder | None = None, **configs: str) -> None:
        self.folder = folder or MemoryFolder()
        self.rows = TestRows.in_use if folder is None else None
        if self.rows is not None:
            self.topic_id = uuid4()
            self.lease = Lease(LeaseKind.DATA, self.rows.new_leases(1))
        self.configs = {name.replace("_", "."): value for name, value in configs.items()}
        self.now_ms = NOW_MS
        self.epoch = 0
        self.log = self.reopen()

    def reopen(self, *, epoch: int | None = None) -> PartitionLog:
        self.epoch = self.epoch + 1 if epoch is None else epoch
        place = self.place(self.epoch)
        self.log = PartitionLog(place, "orders-0", parse(self.configs), self.epoch, lambda: self.now_ms)
        return self.log

    def place(self, epoch: int) -> Place:
        if self.rows is None:
            return FolderPlace(self.folder)
        self.rows.claim(self.lease, epoch)
        return self.rows.storage.place(self.topic_id, 0, self.lease, epoch)

    def append(self, *values: bytes | None, **kinds: Any) -> Appended:
        """Append a batch and make it visible."""
        return self.send(batch(*values, **kinds))

    def send(self, data: bytes) -> Appended:
        appended = self.log.append(data)
        self.log.commit()
        return appended

    def records(self) -> list[Record]:
        """All records from the log start on."""
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
    """Runs each call at once, so that a test decides when anything happens."""

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
        """Run what was submitted first."""
        self.waiting.pop(0)()


class TopicsBesideRows(MemoryStore):
    """Keeps its topics in the database too, where upkeep looks for deleted ones."""

    def __init__(self, rows: TestRows) -> None:
        super().__init__()
        self._rows = rows

    async def create_topic(self, topic: TopicRow) -> None:
        await super().create_topic(topic)
        self._rows.execute(
            "INSERT INTO muster.topics (topic_id, name, partitions, configs, created_ms) "
            "VALUES ($1, $2, 1, '', 0)",
            topic.topic_id,
            str(topic.topic_id),
        )

    async def delete_topic(self, topic_id: UUID) -> bool:
        self._rows.execute("DELETE FROM muster.topics WHERE topic_id = $1", topic_id)
        return await super().delete_topic(topic_id)


class Node(Partitions):
    """Owns data shards by number; over a database it also claims their leases."""

    def __init__(self, *, rows: TestRows | None, lease_of: Callable[[int], Lease], **options: Any) -> None:
        super().__init__(
            shards=SHARDS,
            lease_of=lambda topic_id, partition: lease_of(data_shard(topic_id, partition, SHARDS)),
            **options,
        )
        self._rows, self._numbered = rows, lease_of

    def own(self, shard: int, epoch: int) -> None:  # type: ignore[override]
        lease = self._numbered(shard)
        if self._rows is not None:
            self._rows.claim(lease, epoch)
        super().own(lease, epoch)

    def disown(self, shard: int) -> Awaitable[None]:  # type: ignore[override]
        return super().disown(self._numbered(shard))


class Brokers:
    """Catalogues and partitions of one or more brokers that share a store, a set of logs and a clock."""

    def __init__(
        self, *, logs: Logs | None = None, defaults: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        self.clock = ManualClock(NOW_MS)
        self.rows = TestRows.in_use if logs is None else None
        self.store = MemoryStore()
        self.lease_of = lambda shard: Lease(LeaseKind.DATA, shard)
        if self.rows is not None:
            self.store = TopicsBesideRows(self.rows)
            logs, first = Logs(self.rows.storage), self.rows.new_leases(SHARDS)
            self.lease_of = lambda shard: Lease(LeaseKind.DATA, first + shard)
        self.logs = logs or Logs.in_memory()
        self.defaults = defaults
        self.options = options
        self.nodes: list[Node] = []
        self.catalogues: list[Catalogue] = []

    async def add(self, *, own: Iterable[int] = range(SHARDS), epoch: int = 1) -> Node:
        if not self.nodes:
            await self.store.open()
        catalogue = Catalogue(self.store, self.clock, defaults=self.defaults)
        await catalogue.refresh()
        partitions = Node(
            rows=self.rows,
            lease_of=self.lease_of,
            node_id=len(self.nodes) + 1,
            catalogue=catalogue,
            logs=self.logs,
            clock=self.clock,
            executor=InlineExecutor(),
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
