"""A lane of traffic: a topic, its writers, a group that reads it, a group on the bare wire, an admin.

They begin and end together, so nothing in a lane has an excuse: any exception is a failure. The seed decides
what a lane does; the machine decides when.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from typing import Final

from muster.client import (
    EARLIEST,
    LATEST,
    Admin,
    ConfigResource,
    Consumer,
    ConsumerRecord,
    Producer,
    TopicPartition,
)
from muster.client.admin.offsets import HIGH_WATERMARK
from muster.protocol.errors import ErrorCode
from tests.soak.wire_member import WireMember

_LIFE_S: Final = (20.0, 90.0)
_READER_LIFE_S: Final = (3.0, 30.0)
_SESSION_MS: Final = 30_000
_PATIENT_MS: Final = 600_000
_REQUEST_MS: Final = 300_000
"""Generous, for a busy machine: only what never arrives is a failure."""
_CAUGHT_UP_S: Final = 600.0

_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_ASSIGNORS: Final = (("range",), ("roundrobin",), ("sticky",), ("cooperative-sticky",))
_KINDS: Final = (
    {},
    {"retention.bytes": "1048576", "segment.bytes": "1048576"},
    {"retention.ms": "5000", "segment.ms": "2000"},
    {"cleanup.policy": "compact", "segment.ms": "2000", "min.cleanable.dirty.ratio": "0.01"},
)
"""Topic configs. Only the first keeps every record until it is read; on the last, clients may not delete
records."""


class Lane:
    """`live` runs from the creation of its topic to its deletion. `stopping` ends it early."""

    def __init__(
        self, bootstrap: str, seed: int, number: int, counts: Counter[str], stopping: asyncio.Event
    ) -> None:
        self._rng = random.Random(f"{seed} lane {number}")
        self._bootstrap = bootstrap
        self._port = int(bootstrap.split(",")[0].rpartition(":")[2])
        self._name = f"soak-{number}"
        self._counts = counts
        self._stopping = stopping
        self._configs = self._rng.choice(_KINDS)
        self._partitions = self._rng.randint(1, 6)
        self._assignors = self._rng.choice(_ASSIGNORS)
        self._static = self._rng.random() < 0.3
        self._writing_over = asyncio.Event()
        self._reading_over = asyncio.Event()
        self._written: Counter[int] = Counter()
        self._read: Counter[int] = Counter()
        """By partition: the offset after the last record."""

    async def live(self) -> None:
        async with Admin(
            self._bootstrap, default_api_timeout_ms=_PATIENT_MS, request_timeout_ms=_REQUEST_MS
        ) as admin:
            await admin.create_topic(self._name, self._partitions, 1, configs=self._configs)
            self._counts["topics"] += 1
            try:
                async with asyncio.TaskGroup() as tasks:
                    wire = [tasks.create_task(self._wire_members(i)) for i in range(self._rng.randint(2, 6))]
                    readers = [tasks.create_task(self._readers(i)) for i in range(self._rng.randint(1, 3))]
                    writers = [tasks.create_task(self._writer(i)) for i in range(self._rng.randint(1, 2))]
                    asking = tasks.create_task(self._administer(admin))
                    await self._wait(self._rng.uniform(*_LIFE_S), self._stopping)
                    self._writing_over.set()
                    await asyncio.wait(writers)
                    await self._caught_up(admin)
                    self._reading_over.set()
                    await asyncio.wait(readers)
                    for task in (*wire, asking):
                        task.cancel()
            finally:
                await self._forget_groups(admin)
                await admin.delete_topic(self._name)

    async def _wait(self, seconds: float, over: asyncio.Event) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), seconds)

    # --- records --------------------------------------------------------------------------------------------

    async def _writer(self, index: int) -> None:
        rng = random.Random(self._rng.random())
        number = 0
        while not self._writing_over.is_set():
            async with Producer(
                self._bootstrap,
                compression_type=rng.choice(_CODECS),  # type: ignore[arg-type]
                acks=rng.choice(("all", 1)),  # type: ignore[arg-type]
                delivery_timeout_ms=_PATIENT_MS,
                request_timeout_ms=_REQUEST_MS,
                max_block_ms=_PATIENT_MS,
            ) as producer:
                for _ in range(rng.randint(20, 200)):
                    if self._writing_over.is_set():
                        break
                    futures = []
                    for _ in range(rng.choice((1, 1, 5, 30))):
                        number += 1
                        value = b"%s %d " % (self._name.encode(), number) + bytes(rng.randrange(1500))
                        futures.append(await producer.post(self._name, value, key=b"%d" % rng.randrange(50)))
                    for future in futures:
                        at = await future
                        self._written[at.partition] = max(self._written[at.partition], at.offset + 1)
                    self._counts["records written"] += len(futures)
                    await self._wait(rng.uniform(0, 0.6), self._writing_over)

    async def _readers(self, index: int) -> None:
        """Run one reader after another."""
        rng = random.Random(self._rng.random())
        while not self._reading_over.is_set():
            with suppress(_BrokenOff):
                await self._read_for_a_while(index, rng)
            self._counts["readers"] += 1

    async def _read_for_a_while(self, index: int, rng: random.Random) -> None:
        now = asyncio.get_running_loop().time
        until = now() + rng.uniform(*_READER_LIFE_S)
        async with Consumer(
            self._bootstrap,
            group_id=f"{self._name}-readers",
            topics=[self._name],
            assignors=self._assignors,
            group_instance_id=f"reader-{index}" if self._static else None,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=1_000,
            session_timeout_ms=_SESSION_MS,
            heartbeat_interval_ms=1_000,
            heartbeat="thread" if rng.random() < 0.2 else "loop",
            metadata_max_age_ms=10_000,
            default_api_timeout_ms=_PATIENT_MS,
            request_timeout_ms=_REQUEST_MS,
            allow_auto_create_topics=False,
        ) as consumer:
            # A reader that is there at the end stays, or on a slow machine nobody would read the rest.
            while not self._reading_over.is_set() and (now() < until or self._writing_over.is_set()):
                self._check(await consumer.get_many(timeout=0.3))
                if rng.random() < 0.05:
                    await consumer.commit()
            if rng.random() < 0.2:
                self._counts["readers broken off"] += 1
                raise _BrokenOff

    def _check(self, records: list[ConsumerRecord[bytes | None, bytes | None]]) -> None:
        for record in records:
            value = record.value or b""
            assert value.startswith(self._name.encode() + b" "), f"{self._name} got {value[:40]!r}"
            if not self._configs:
                # Another reader may have read it before; a record that all of them skipped is lost.
                assert record.offset <= self._read[record.partition], (
                    f"{self._name}-{record.partition}: {record.offset} after {self._read[record.partition]}"
                )
            self._read[record.partition] = max(self._read[record.partition], record.offset + 1)
        self._counts["records read"] += len(records)

    async def _caught_up(self, admin: Admin) -> None:
        """Wait until every acknowledged record has been read, if the topic keeps records that long."""
        if self._configs:
            return
        try:
            async with asyncio.timeout(_CAUGHT_UP_S):
                while self._unread():
                    await self._wait(0.2, self._reading_over)
        except TimeoutError:
            group = await admin.describe_group(f"{self._name}-readers")
            raise AssertionError(f"{self._name}: not read {self._unread()}; {group}") from None

    def _unread(self) -> dict[int, tuple[int, int]]:
        """By partition: the offset after the last record read and after the last record acknowledged."""
        return {
            index: (self._read[index], end) for index, end in self._written.items() if self._read[index] < end
        }

    # --- groups and admin -----------------------------------------------------------------------------------

    async def _wire_members(self, index: int) -> None:
        """Run one after another, until cancelled."""
        rng = random.Random(self._rng.random())
        while True:
            await WireMember(self._port, f"{self._name}-wire", self._name, rng, self._counts).live()
            self._counts["wire members"] += 1
            await asyncio.sleep(rng.uniform(0, 2))

    async def _administer(self, admin: Admin) -> None:
        """Query everything now and then and change it, until cancelled."""
        rng = random.Random(self._rng.random())
        groups = [f"{self._name}-readers", f"{self._name}-wire", f"{self._name}-never"]
        while True:
            await asyncio.sleep(rng.uniform(0.5, 3))
            self._counts["looks of an admin"] += 1
            places = [TopicPartition(self._name, index) for index in range(self._partitions)]
            match rng.randrange(9):
                case 0:
                    await admin.list_groups()
                case 1:
                    await admin.describe_groups(groups)
                case 2:
                    await admin.describe_configs([ConfigResource.of_topic(self._name)])
                case 3:
                    kind = rng.choice((EARLIEST, LATEST, 1_700_000_000_000))
                    await admin.list_offsets(dict.fromkeys(places, kind))
                case 4:
                    await admin.list_groups_offsets(groups)
                case 5:
                    await admin.describe_topics([self._name, f"{self._name}-never"])
                case 6:
                    await admin.describe_producers(places)
                case 7 if self._configs and "cleanup.policy" not in self._configs:
                    (await admin.delete_records({rng.choice(places): HIGH_WATERMARK})).raise_for_failures()
                case 8 if self._partitions < 8:
                    self._partitions += 1
                    (await admin.create_partitions({self._name: self._partitions})).raise_for_failures()
                    self._counts["partitions added"] += 1

    async def _forget_groups(self, admin: Admin) -> None:
        """Delete the groups of half the lanes; the others' offsets expire, or are removed with the topic."""
        if self._rng.random() < 0.5:
            names = [f"{self._name}-readers", f"{self._name}-wire"]
            for name, failure in (await admin.delete_groups(names)).failed.items():
                # Members that vanished have not expired yet, nor have static ones.
                fine = (ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND)
                assert failure.code in fine, (name, failure)


class _BrokenOff(Exception):
    """Leaves a reader's block as a failure would: uncommitted records are read again."""
