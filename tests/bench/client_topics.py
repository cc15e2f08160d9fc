"""Topics for the benchmarks of clients, filled without any of them."""

from __future__ import annotations

import time
from typing import Final

from muster.protocol.errors import ErrorCode
from muster.protocol.messages.data import ProduceRequest
from muster.protocol.messages.topics import CreateTopicsRequest
from muster.protocol.record_batch import Record, build
from tests.bench import load

PARTITIONS: Final = 6
BATCH_BYTES: Final = 16_384
"""batch.size of Java's producer, and the default of kafka-python and aiokafka: what a topic is made of that
was written under load."""
_BATCHES_A_REQUEST: Final = 20
_CREATE_VERSION: Final = 5
_PRODUCE_VERSION: Final = 12


def value(value_bytes: int) -> bytes:
    return b"x" * value_bytes


def batch(value_bytes: int) -> tuple[bytes, int]:
    """A record batch of about `BATCH_BYTES`, of now, and how many records it has."""
    now_ms = time.time_ns() // 1_000_000
    count = max(BATCH_BYTES // (value_bytes + 20), 1)
    content = value(value_bytes)
    return build([Record(n, now_ms + n, b"k%d" % n, content) for n in range(count)]), count


def create(port: int, topic: str) -> None:
    """In the load's process: a topic of `PARTITIONS` partitions."""
    load.run(_create(port, topic))


async def _create(port: int, topic: str) -> None:
    (link,) = await load.connect(port, 1)
    await created(link, topic, PARTITIONS)
    link.close()


async def created(link: load.Link, topic: str, partitions: int) -> None:
    """Create a topic over this connection. Raises RuntimeError where the broker does not."""
    wanted = CreateTopicsRequest.CreatableTopic(
        name=topic, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
    )
    answer = await link.call(CreateTopicsRequest(topics=[wanted], timeout_ms=30_000), _CREATE_VERSION)
    if answer.topics[0].error_code != ErrorCode.NONE:
        raise RuntimeError(f"CreateTopics: {answer}")


def fill(port: int, topic: str, value_bytes: int, records_min: int) -> int:
    """In the load's process: create the topic with at least so many records, evenly over its partitions; how
    many there are."""
    return load.run(_fill(port, topic, value_bytes, records_min))


async def _fill(port: int, topic: str, value_bytes: int, records_min: int) -> int:
    await _create(port, topic)
    (link,) = await load.connect(port, 1)
    contents, count = batch(value_bytes)
    written = 0
    while written < records_min:
        for partition in range(PARTITIONS):
            for _ in range(_BATCHES_A_REQUEST):
                part = ProduceRequest.PartitionProduceData(index=partition, records=contents)
                data = ProduceRequest.TopicProduceData(name=topic, partition_data=[part])
                request = ProduceRequest(acks=1, timeout_ms=30_000, topic_data=[data])
                produced = await link.call(request, _PRODUCE_VERSION)
                if produced.responses[0].partition_responses[0].error_code != ErrorCode.NONE:
                    raise RuntimeError(f"Produce: {produced}")
                written += count
    link.close()
    return written
