"""How each client writes to a topic: a function each, run in a process of its own (`processes.load`).

The same settings for all, by each client's name for them: acks=all, idempotence, linger.ms 5, batch.size
16,384, no compression. Every record has a key (ten thousand different ones), its partition is each client's
own choice by that key, and the clock stops when the last record is acknowledged.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

MEASURED_S: Final = 3.0
LINGER_MS: Final = 5
BATCH_BYTES: Final = 16_384
KEYS: Final = 10_000
_LOOK_EVERY: Final = 1_024
_WARM_UP: Final = 1_000
_FLUSH_S: Final = 60.0
_QUEUE_FULL_S: Final = 0.01


class Meter:
    """Of the time from the first send to the last acknowledgement. The connections are there before."""

    def __init__(self) -> None:
        self._began_cpu_s = time.process_time()
        self._began_s = time.perf_counter()

    def over(self) -> bool:
        return time.perf_counter() - self._began_s > MEASURED_S

    def result(self, count: int, acknowledged: int) -> dict[str, float]:
        took_s, cpu_s = time.perf_counter() - self._began_s, time.process_time() - self._began_cpu_s
        if acknowledged != count:
            raise RuntimeError(f"{acknowledged} of {count} records were acknowledged")
        return {"rate": count / took_s, "cpu_us": cpu_s / count * 1e6}


def _keys(keyed: bool) -> list[bytes | None]:
    return [b"k%d" % number if keyed else None for number in range(KEYS)]


def muster(port: int, topic: str, value_bytes: int, keyed: bool) -> dict[str, float]:
    """`post`, which returns when the record has its place in a batch."""

    async def write() -> dict[str, float]:
        from muster.client import Producer

        keys, value = _keys(keyed), b"x" * value_bytes
        async with Producer(
            f"127.0.0.1:{port}", acks="all", linger_ms=LINGER_MS, batch_size=BATCH_BYTES
        ) as producer:
            await asyncio.gather(*[await producer.post(topic, value, key=key) for key in keys[:_WARM_UP]])
            meter, sent = Meter(), []
            while not meter.over():
                for key in keys[:_LOOK_EVERY]:
                    sent.append(await producer.post(topic, value, key=key))
            await producer.flush(_FLUSH_S)
            return meter.result(len(sent), sum(_succeeded(each) for each in sent))

    return asyncio.run(write())


def aiokafka(port: int, topic: str, value_bytes: int, keyed: bool) -> dict[str, float]:
    """`send`, which returns when the record has its place in a batch."""

    async def write() -> dict[str, float]:
        from aiokafka import AIOKafkaProducer

        keys, value = _keys(keyed), b"x" * value_bytes
        async with AIOKafkaProducer(
            bootstrap_servers=f"127.0.0.1:{port}",
            acks="all",
            enable_idempotence=True,
            linger_ms=LINGER_MS,
            max_batch_size=BATCH_BYTES,
        ) as producer:
            await asyncio.gather(*[await producer.send(topic, value, key) for key in keys[:_WARM_UP]])
            meter, sent = Meter(), []
            while not meter.over():
                for key in keys[:_LOOK_EVERY]:
                    sent.append(await producer.send(topic, value, key))
            await producer.flush()
            return meter.result(len(sent), sum(_succeeded(each) for each in sent))

    return asyncio.run(write())


def _succeeded(future: asyncio.Future[Any]) -> bool:
    return future.done() and future.exception() is None


def kafka_python(port: int, topic: str, value_bytes: int, keyed: bool) -> dict[str, float]:
    from kafka import KafkaProducer

    keys, value = _keys(keyed), b"x" * value_bytes
    producer = KafkaProducer(
        bootstrap_servers=f"127.0.0.1:{port}", acks="all", linger_ms=LINGER_MS, batch_size=BATCH_BYTES
    )
    for future in [producer.send(topic, value, key) for key in keys[:_WARM_UP]]:
        future.get(_FLUSH_S)
    meter, sent = Meter(), []
    while not meter.over():
        for key in keys[:_LOOK_EVERY]:
            sent.append(producer.send(topic, value, key))
    producer.flush(_FLUSH_S)
    found = meter.result(len(sent), sum(each.succeeded() for each in sent))
    producer.close()
    return found


def confluent(port: int, topic: str, value_bytes: int, keyed: bool) -> dict[str, float]:
    from confluent_kafka import Producer

    keys, value = _keys(keyed), b"x" * value_bytes
    acknowledged = 0

    def on_delivery(error: Any, _: Any) -> None:
        nonlocal acknowledged
        acknowledged += error is None

    producer = Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": LINGER_MS,
            "batch.size": BATCH_BYTES,
        }
    )

    def send(key: bytes | None) -> None:
        while True:
            try:
                producer.produce(topic, value, key, on_delivery=on_delivery)
            except BufferError:  # its queue is full: what was acknowledged makes room
                producer.poll(_QUEUE_FULL_S)
            else:
                producer.poll(0)
                return

    for key in keys[:_WARM_UP]:
        send(key)
    producer.flush(_FLUSH_S)
    acknowledged = count = 0
    meter = Meter()
    while not meter.over():
        for key in keys[:_LOOK_EVERY]:
            send(key)
            count += 1
    producer.flush(_FLUSH_S)
    return meter.result(count, acknowledged)
