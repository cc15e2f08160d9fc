"""The topics that both sources read, the same on every broker."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from muster.client import Admin, Producer, TopicPartition
from muster.pipeline.fetching import read_rows
from muster.pipeline.offsets import Range
from muster.pipeline.options import source_options

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
"""Codec of each partition of the topic `orders`."""
BEGIN_MS: Final = 1_700_000_000_000
RECORDS: Final = 60
"""Per partition of `orders`."""
KEPT: Final = [8, 9, 10, 11]
"""The offsets of `prices` that compaction leaves."""
_PRICES: Final = 12
_COMPACTED_S: Final = 90.0

Headers = tuple[tuple[str, bytes | None], ...]


class Sent(NamedTuple):
    """A record as given to a producer."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int


def orders(partition: int) -> list[Sent]:
    """The records of a partition: every shape a record can have, a second apart, some of them large."""
    dice = random.Random(partition)
    shapes: Sequence[tuple[bytes | None, bytes | None, Headers]] = [
        (b"key", b"value", ()),
        (None, b"no key", ()),
        (b"no value", None, ()),
        (None, None, ()),
        (b"", b"", ()),
        (b"one", b"header", (("a", b"1"),)),
        (b"many", b"headers", (("a", b"1"), ("b", b""), ("a", None), ("\u00fcber", b"\x00\xff"), ("", b"x"))),
        (None, None, (("a", None),)),
        (dice.randbytes(300), dice.randbytes(3_000), ()),
    ]
    return [Sent(*shapes[n % len(shapes)], BEGIN_MS + n * 1_000) for n in range(RECORDS)]


async def write(servers: str) -> None:
    """Create and fill `orders` (a partition for each codec), `stamped` (by the broker's clock), `prices`
    (compacted), `small` (a few records in one of two partitions), and `empty`."""
    forever = {"retention.ms": "-1"}
    compacted = {
        "cleanup.policy": "compact",
        "segment.ms": "100",  # by the records' timestamps: each gets its own segment
        "min.cleanable.dirty.ratio": "0",
    }
    async with Admin(servers) as admin:
        await admin.create_topic("orders", len(CODECS), configs=forever)
        await admin.create_topic("stamped", 1, configs=forever | {"message.timestamp.type": "LogAppendTime"})
        await admin.create_topic("prices", 1, configs=compacted)
        await admin.create_topic("small", 2, configs=forever)
        await admin.create_topic("empty", 1)
    for partition, codec in enumerate(CODECS):
        async with Producer(servers, compression_type=codec, batch_size=2_000) as producer:
            posted = [
                await producer.post(
                    "orders", value, key=key, headers=headers, timestamp_ms=at_ms, partition=partition
                )
                for key, value, headers, at_ms in orders(partition)
            ]
            await producer.flush()
            for each in posted:
                await each
    async with Producer(servers) as producer:
        for number in range(3):
            await producer.send("stamped", b"%d" % number, timestamp_ms=BEGIN_MS)
            await producer.send("small", b"%d" % number, partition=1, timestamp_ms=BEGIN_MS + number)
        for number in range(_PRICES):
            value = None if number == KEPT[1] else b"%d" % number
            at_ms = BEGIN_MS + number * 1_000
            await producer.send("prices", value, key=b"k%d" % (number % 3), timestamp_ms=at_ms)


def wait_for_compaction(servers: str) -> None:
    """Wait until `prices` has nothing left to compact."""
    asked = {"kafka.bootstrap.servers": servers, "subscribe": "prices"}
    wanted = Range(TopicPartition("prices", 0), 0, _PRICES)
    deadline = time.monotonic() + _COMPACTED_S
    while True:
        batches = read_rows(source_options(asked, streaming=False), wanted)
        offsets = [offset for batch in batches for offset in batch.column("offset").to_pylist()]
        if offsets == KEPT:
            return
        assert time.monotonic() < deadline, f"compaction leaves {offsets}"
        time.sleep(0.1)  # poll interval
