"""Records a second of our consumer beside aiokafka, kafka-python and confluent-kafka.

`python -m tests.bench client_consume`

One broker, one topic of six partitions that is made of batches of 16 KB, one client process at a time, the
peers first (`client_readers` says how each reads). Best of the rounds. aiokafka decodes records in C,
confluent-kafka is C but for its surface.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tests.bench import client_readers, client_topics, processes
from tests.bench.figures import Figure

ROUNDS: Final = 2
SIZES: Final = {100: 1_000_000, 1_000: 300_000}
"""Bytes of a value, and how many records the topic has at least."""

Reader = Callable[..., dict[str, float]]

_GETMANY: Final = client_readers.aiokafka_getmany

# What of ours, beside which loop of a peer, and the ratio that is wanted.
_PAIRS: Final[tuple[tuple[Reader, str, Reader, str, float | None], ...]] = (
    (client_readers.muster_async_for, "async for", client_readers.aiokafka_async_for, "aiokafka", 2),
    (client_readers.muster_async_for, "async for", client_readers.kafka_python_for, "kafka-python", 2),
    (client_readers.muster_async_for, "async for", client_readers.confluent_poll, "confluent poll", None),
    (client_readers.muster_get_many, "get_many", _GETMANY, "aiokafka", 2),
    (client_readers.muster_get_many, "get_many", client_readers.kafka_python_poll, "kafka-python", 2),
    (
        client_readers.muster_batches_records,
        "batches, records",
        _GETMANY,
        "aiokafka",
        None,
    ),
    (client_readers.muster_batches, "batches, values", _GETMANY, "aiokafka", 2),
    (client_readers.muster_batches, "batches, values", client_readers.confluent_consume, "confluent", 0.5),
    (client_readers.muster_batches, "batches, values", client_readers.sockets_alone, "sockets alone", None),
)


def measure() -> list[Figure]:
    figures = []
    with processes.muster("--group-initial-rebalance-delay-ms", "0") as server:
        for value_bytes, records_min in SIZES.items():
            topic = f"consume-{value_bytes}"
            written = processes.load(
                client_topics.fill,
                port=server.port,
                topic=topic,
                value_bytes=value_bytes,
                records_min=records_min,
            )
            given = {"port": server.port, "topic": topic, "records": written, "value_bytes": value_bytes}
            found = best_of_all({each for ours, _, peer, *_ in _PAIRS for each in (ours, peer)}, given)
            figures += [
                compared(f"{loop}, {value_bytes} B", found[ours], found[peer], name, wanted)
                for ours, loop, peer, name, wanted in _PAIRS
            ]
    return figures


def best_of_all(loads: set[Reader], given: dict[str, Any]) -> dict[Reader, dict[str, float]]:
    """The fastest round of each, the rounds taking turns, so that a busy moment meets all of them."""
    best: dict[Reader, dict[str, float]] = {}
    for _ in range(ROUNDS):
        for load in sorted(loads, key=lambda load: load.__name__):
            found = processes.load(load, **given)
            if load not in best or found["rate"] > best[load]["rate"]:
                best[load] = found
    return best


def compared(
    name: str, ours: dict[str, float], peer: dict[str, float], peer_name: str, wanted: float | None
) -> Figure:
    """`wanted` is a ratio to the peer, if there is one to reach."""
    return Figure(
        name,
        "/s",
        ours["rate"],
        peer["rate"],
        peer_name,
        target="" if wanted is None else f"at least {wanted:g} times",
        reached=None if wanted is None else ours["rate"] >= wanted * peer["rate"],
        note=f"CPU of a record: {ours['cpu_us']:.2f} us, {peer_name} {peer['cpu_us']:.2f} us",
    )
