"""How each client reads a topic: a function each, run in a process of its own (`processes.load`).

All are members of a group alone, from the earliest offset, with the client's own defaults otherwise (commits
every 5 s among them). A loop looks at every value, since some clients decode a record only then.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final

from muster.protocol.api import ApiKey
from muster.protocol.header import encode_request
from muster.protocol.messages.data import FetchRequest
from tests.bench import client_topics
from tests.bench.bulk import Bulk

MEASURED_S: Final = 3.0
FIRST_S: Final = 30.0
"""The first record must come within this."""
MANY: Final = 500
"""Records that are asked for at once: max.poll.records of Java's and of kafka-python's consumer."""
_LOOK_EVERY: Final = 1_024
_POLL_MS: Final = 200
_FETCH_VERSION: Final = 12


class Meter:
    """Counts from the first record on, which itself is not counted, until `MEASURED_S` or the topic's end."""

    def __init__(self, records: int, value_bytes: int) -> None:
        self._records = records
        self._value_bytes = value_bytes
        self._constructed_s = time.perf_counter()
        self._began_s = 0.0

    def first(self, count: int = 1) -> None:
        """The first records are here; the clock starts."""
        # Loops over single records look at multiples of this alone: the last one must be there.
        self._left = (self._records - count) // _LOOK_EVERY * _LOOK_EVERY
        self.first_s = time.perf_counter() - self._constructed_s
        self._began_cpu_s = time.process_time()
        self._began_s = time.perf_counter()

    def over(self, count: int) -> bool:
        return count >= self._left or time.perf_counter() - self._began_s > MEASURED_S

    def result(self, count: int, size_bytes: int) -> dict[str, float]:
        took_s, cpu_s = time.perf_counter() - self._began_s, time.process_time() - self._began_cpu_s
        if size_bytes != count * self._value_bytes:
            raise RuntimeError(f"{count} values have {size_bytes} bytes, not {self._value_bytes} each")
        return {"rate": count / took_s, "cpu_us": cpu_s / count * 1e6, "first_s": self.first_s}


def _group() -> str:
    return f"bench-{uuid.uuid4()}"


def _one_by_one(records: Iterator[Any], meter: Meter) -> dict[str, float]:
    count = size_bytes = 0
    next(records)
    meter.first()
    for record in records:
        size_bytes += len(record.value)
        count += 1
        if not count % _LOOK_EVERY and meter.over(count):
            break
    return meter.result(count, size_bytes)


async def _one_by_one_async(records: AsyncIterator[Any], meter: Meter) -> dict[str, float]:
    count = size_bytes = 0
    async with asyncio.timeout(FIRST_S):
        await anext(records)
    meter.first()
    async for record in records:
        size_bytes += len(record.value)
        count += 1
        if not count % _LOOK_EVERY and meter.over(count):
            break
    return meter.result(count, size_bytes)


# --- muster ---------------------------------------------------------------------------------------------


def _muster(port: int, topic: str) -> Any:
    from muster.client import Consumer

    return Consumer(f"127.0.0.1:{port}", group_id=_group(), topics=[topic], auto_offset_reset="earliest")


def muster_async_for(port: int, topic: str, records: int, value_bytes: int) -> dict[str, float]:
    async def read() -> dict[str, float]:
        meter = Meter(records, value_bytes)
        async with _muster(port, topic) as consumer:
            return await _one_by_one_async(aiter(consumer), meter)

    return asyncio.run(read())


def muster_get_many(port: int, topic: str, records: int, value_bytes: int) -> dict[str, float]:
    async def read() -> dict[str, float]:
        meter = Meter(records, value_bytes)
        count = size_bytes = 0
        async with _muster(port, topic) as consumer:
            meter.first(len(await consumer.get_many(MANY, timeout=FIRST_S)))
            while not meter.over(count):
                for record in await consumer.get_many(MANY, timeout=FIRST_S):
                    size_bytes += len(record.value)
                    count += 1
        return meter.result(count, size_bytes)

    return asyncio.run(read())


def muster_batches(port: int, topic: str, records: int, value_bytes: int) -> dict[str, float]:
    """A batch's values, its records not being asked for."""
    return asyncio.run(_muster_batches(port, topic, records, value_bytes, lambda batch: batch.values))


def muster_batches_records(port: int, topic: str, records: int, value_bytes: int) -> dict[str, float]:
    """A batch's records."""

    def values(batch: Any) -> list[bytes]:
        return [record.value for record in batch.records]

    return asyncio.run(_muster_batches(port, topic, records, value_bytes, values))


async def _muster_batches(
    port: int, topic: str, records: int, value_bytes: int, values: Callable[[Any], list[bytes]]
) -> dict[str, float]:
    meter = Meter(records, value_bytes)
    count = size_bytes = 0
    async with _muster(port, topic) as consumer:
        batches = aiter(consumer.batches())
        async with asyncio.timeout(FIRST_S):
            meter.first(len(values(await anext(batches))))
        async for batch in batches:
            found = values(batch)
            count += len(found)
            size_bytes += sum(map(len, found))
            if meter.over(count):
                break
        return meter.result(count, size_bytes)


# --- the floor --------------------------------------------------------------------------------------------


def sockets_alone(port: int, topic: str, records: int, value_bytes: int) -> dict[str, float]:
    """Fetches of the same batches on asyncio's own loop, of which nothing is looked at: what is left for a
    client to spend beside this."""

    async def read() -> dict[str, float]:
        contents, count = client_topics.batch(value_bytes)
        frame = encode_request(ApiKey.FETCH, _FETCH_VERSION, 1, "bench", _fetch_all(topic))
        loop = asyncio.get_running_loop()
        _, link = await loop.create_connection(lambda: Bulk(frame, 1), "127.0.0.1", port)
        began_cpu_s, began_s = time.process_time(), time.perf_counter()
        await asyncio.sleep(MEASURED_S)
        seen = link.received_bytes / len(contents) * count
        took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
        await link.stop()
        return {"rate": seen / took_s, "cpu_us": cpu_s / seen * 1e6, "first_s": 0.0}

    return asyncio.run(read())


def _fetch_all(topic: str) -> FetchRequest:
    """As much of each partition as our consumer asks for."""
    parts = [
        FetchRequest.FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20)
        for index in range(client_topics.PARTITIONS)
    ]
    return FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=50 << 20,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=parts)],
    )


# --- aiokafka -------------------------------------------------------------------------------------------


def _aiokafka(port: int, topic: str) -> Any:
    from aiokafka import AIOKafkaConsumer

    return AIOKafkaConsumer(
        topic, bootstrap_servers=f"127.0.0.1:{port}", group_id=_group(), auto_offset_reset="earliest"
    )


def aiokafka_async_for(port: int, topic: str, records: int, value_bytes: int) -> dict[str, float]:
    """`async for`, which is getone()."""

    async def read() -> dict[str, float]:
        meter = Meter(records, value_bytes)
        async with _aiokafka(port, topic) as consumer:
            return await _one_by_one_async(aiter(consumer), meter)

    return asyncio.run(read())


def aiokafka_getmany(port: int, topic: str, records: int, value_bytes: int) -> dict[str, float]:
    async def read() -> dict[str, float]:
        meter = Meter(records, value_bytes)
        count = size_bytes = 0
        async with _aiokafka(port, topic) as consumer:
            first = await consumer.getmany(timeout_ms=FIRST_S * 1_000, max_records=MANY)
            meter.first(sum(map(len, first.values())))
            while not meter.over(count):
                for found in (await consumer.getmany(timeout_ms=_POLL_MS, max_records=MANY)).values():
                    for record in found:
                        size_bytes += len(record.value)
                        count += 1
        return meter.result(count, size_bytes)

    return asyncio.run(read())


# --- kafka-python ---------------------------------------------------------------------------------------


def _kafka_python(port: int, topic: str) -> Any:
    from kafka import KafkaConsumer

    return KafkaConsumer(
        topic, bootstrap_servers=f"127.0.0.1:{port}", group_id=_group(), auto_offset_reset="earliest"
    )


def kafka_python_for(port: int, topic: str, records: int, value_bytes: int) -> dict[str, float]:
    meter = Meter(records, value_bytes)
    consumer = _kafka_python(port, topic)
    try:
        return _one_by_one(consumer, meter)
    finally:
        consumer.close()


def kafka_python_poll(port: int, topic: str, records: int, value_bytes: int) -> dict[str, float]:
    meter = Meter(records, value_bytes)
    consumer = _kafka_python(port, topic)
    try:
        meter.first(sum(map(len, _first(lambda: consumer.poll(_POLL_MS)).values())))
        count = size_bytes = 0
        while not meter.over(count):
            for found in consumer.poll(_POLL_MS).values():
                for record in found:
                    size_bytes += len(record.value)
                    count += 1
        return meter.result(count, size_bytes)
    finally:
        consumer.close()


# --- confluent-kafka ------------------------------------------------------------------------------------


def _confluent(port: int, topic: str) -> Any:
    from confluent_kafka import Consumer

    consumer = Consumer(
        {"bootstrap.servers": f"127.0.0.1:{port}", "group.id": _group(), "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    return consumer


def confluent_poll(port: int, topic: str, records: int, value_bytes: int) -> dict[str, float]:
    meter = Meter(records, value_bytes)
    consumer = _confluent(port, topic)
    try:
        _first(lambda: consumer.poll(_POLL_MS / 1_000))
        meter.first()
        count = size_bytes = 0
        while count % _LOOK_EVERY or not meter.over(count):
            message = consumer.poll(_POLL_MS / 1_000)
            if message is None:  # the topic's end
                break
            size_bytes += len(message.value())
            count += 1
        return meter.result(count, size_bytes)
    finally:
        consumer.close()


def confluent_consume(port: int, topic: str, records: int, value_bytes: int) -> dict[str, float]:
    meter = Meter(records, value_bytes)
    consumer = _confluent(port, topic)
    try:
        meter.first(len(_first(lambda: consumer.consume(MANY, _POLL_MS / 1_000))))
        count = size_bytes = 0
        while not meter.over(count):
            for message in consumer.consume(MANY, _POLL_MS / 1_000):
                size_bytes += len(message.value())
                count += 1
        return meter.result(count, size_bytes)
    finally:
        consumer.close()


def _first(poll: Callable[[], Any]) -> Any:
    """Poll until something comes."""
    deadline = time.monotonic() + FIRST_S
    while not (found := poll()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing came within {FIRST_S} s")
    return found
