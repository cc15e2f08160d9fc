"""Records a second of our producer beside aiokafka, kafka-python and confluent-kafka.

`python -m tests.bench client_produce`

One broker, one client process at a time, the same settings for all (`client_writers` says which). Best of the
rounds. confluent-kafka is C but for its surface.
"""

from __future__ import annotations

from typing import Final

from tests.bench import client_topics, client_writers, processes
from tests.bench.bench_client_consume import best_of_all, compared
from tests.bench.figures import Figure

_PEERS: Final = (
    (client_writers.aiokafka, "aiokafka", 2.0),
    (client_writers.kafka_python, "kafka-python", 2.0),
    (client_writers.confluent, "confluent", None),
)
_WORKLOADS: Final = ((100, True), (1_000, True), (100, False))
"""Bytes of a value, and whether records have keys."""


def measure() -> list[Figure]:
    figures = []
    with processes.muster() as server:
        for value_bytes, keyed in _WORKLOADS:
            topic = f"produce-{value_bytes}-{keyed}"
            processes.load(client_topics.create, port=server.port, topic=topic)
            given = {"port": server.port, "topic": topic, "value_bytes": value_bytes, "keyed": keyed}
            found = best_of_all({client_writers.muster, *(peer for peer, *_ in _PEERS)}, given)
            name = f"produce, {value_bytes} B, {'with' if keyed else 'without'} keys"
            figures += [
                compared(name, found[client_writers.muster], found[peer], peer_name, wanted)
                for peer, peer_name, wanted in _PEERS
            ]
    return figures
