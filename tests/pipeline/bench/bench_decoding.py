"""Records a second from fetched bytes to Arrow batches, in one process, without Spark or a broker.

`python -m tests.pipeline.bench decoding`

The peer is the slow twin, which makes a Python object of each key and value (`muster.pipeline.decoding`).
Times are CPU seconds of this process; the best round counts.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from muster.client import TopicPartition
from muster.client.fetch.fetched import Part
from muster.pipeline.columns import RecordBatch, as_arrow
from muster.pipeline.decoding import RECORDS_MAX, rows
from tests.bench.figures import Figure
from tests.pipeline.bench import topics

ROUNDS: Final = 5
PASSES: Final = 20
_WHERE: Final = TopicPartition("orders", 0)
_BATCHES: Final[dict[str, tuple[int, int, bool]]] = {
    "100 B": (100, topics.BATCH_BYTES, False),
    "1 KB": (1_000, topics.BATCH_BYTES, False),
    "50 to 150 B": (100, topics.BATCH_BYTES, True),
    "50 to 150 B, batches of 16 KB": (100, 16_384, True),
}
"""Bytes per value, bytes per batch, and whether value sizes vary."""


def measure() -> list[Figure]:
    return [_compared(name, *shape) for name, shape in _BATCHES.items()]


def _compared(name: str, value_bytes: int, batch_bytes: int, mixed: bool) -> Figure:
    batches, _ = topics.made(value_bytes, batch_bytes, mixed=mixed)
    data = b"".join(batches)
    ours = peer = 0.0
    for _ in range(ROUNDS):
        peer = max(peer, _rate(data, fast=False))
        ours = max(ours, _rate(data, fast=True))
    return Figure(f"to Arrow, {name}", "rows/s", ours, peer, "one by one")


def _rate(data: bytes, *, fast: bool) -> float:
    began_s, count = time.process_time(), 0
    for _ in range(PASSES):
        part = Part(_WHERE, data, 0, -1)
        found = rows(part, _WHERE, 0, 1 << 62, headers=False) if fast else _slow_rows(part)
        count += sum(batch.num_rows for batch in found)
    return count / (time.process_time() - began_s)


def _slow_rows(part: Part) -> Iterator[RecordBatch]:
    while (batch := part.take(RECORDS_MAX)) is not None:
        yield as_arrow(batch, headers=False)
