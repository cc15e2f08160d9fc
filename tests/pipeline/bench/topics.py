"""Topics for Spark to read: records with 8-byte keys, in batches as producers make them under load."""

from __future__ import annotations

import random
import time
from typing import Final

from muster.protocol.errors import ErrorCode
from muster.protocol.messages.data import ProduceRequest
from muster.protocol.record_batch import Record, build
from tests.bench import load
from tests.bench.client_topics import created

PARTITIONS: Final = 4
BATCH_BYTES: Final = 131_072
"""batch.size of our producer. Java's is 16,384, librdkafka's a million."""
_TIMESTAMP_MS: Final = time.time_ns() // 1_000_000
"""Current: records older than retention.ms would be deleted within minutes, while they are read."""
_DIFFERENT: Final = 16
"""Number of distinct batches; a topic repeats them."""
_PRODUCE_VERSION: Final = 12


def fill(
    port: int,
    topic: str,
    value_bytes: int,
    records_min: int,
    batch_bytes: int = BATCH_BYTES,
    *,
    mixed: bool = False,
) -> int:
    """Runs in the load's process: create the topic with at least `records_min` records, evenly over its
    partitions, and return their number. With `mixed`, values have half to one and a half times the size."""
    return load.run(_fill(port, topic, value_bytes, records_min, batch_bytes, mixed))


async def _fill(
    port: int, topic: str, value_bytes: int, records_min: int, batch_bytes: int, mixed: bool
) -> int:
    (link,) = await load.connect(port, 1)
    await created(link, topic, PARTITIONS)
    batches, count = made(value_bytes, batch_bytes, mixed=mixed)
    written = turn = 0
    while written < records_min:
        for partition in range(PARTITIONS):
            part = ProduceRequest.PartitionProduceData(index=partition, records=batches[turn % _DIFFERENT])
            data = ProduceRequest.TopicProduceData(name=topic, partition_data=[part])
            request = ProduceRequest(acks=1, timeout_ms=30_000, topic_data=[data])
            produced = await link.call(request, _PRODUCE_VERSION)
            error = produced.responses[0].partition_responses[0].error_code
            if error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:  # its leader does not know it yet
                continue
            if error != ErrorCode.NONE:
                raise RuntimeError(f"Produce: {produced}")
            written += count
            turn += 1
    link.close()
    return written


def made(value_bytes: int, batch_bytes: int, *, mixed: bool = False) -> tuple[list[bytes], int]:
    """Batches whose values differ, so that caches do not help, and the number of records in each."""
    dice = random.Random(7)
    count = max(batch_bytes // (value_bytes + 20), 1)
    return [_batch(dice, count, value_bytes, mixed) for _ in range(_DIFFERENT)], count


def _batch(dice: random.Random, count: int, value_bytes: int, mixed: bool) -> bytes:
    records = []
    for number in range(count):
        size = dice.randint(value_bytes // 2, value_bytes * 3 // 2) if mixed else value_bytes
        key, value = b"%08d" % dice.randrange(10**8), dice.randbytes(size)
        records.append(Record(number, _TIMESTAMP_MS + number // 50, key, value))
    return build(records)
