"""How long a consumer takes from its start to its first record, beside aiokafka, kafka-python and
confluent-kafka.

`python -m tests.bench client_start`

From the import of the client to the first record, in a process that runs already: import, connections, a
group of one, its first rebalance without an initial delay, and a fetch. The median of the rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Final

from tests.bench import client_readers, client_topics, processes
from tests.bench.figures import Figure

ROUNDS: Final = 5
_VALUE_BYTES: Final = 100
_RECORDS: Final = 20_000
_PEERS: Final = (
    (client_readers.aiokafka_async_for, "aiokafka"),
    (client_readers.kafka_python_for, "kafka-python"),
    (client_readers.confluent_poll, "confluent"),
)


def measure() -> list[Figure]:
    with processes.muster("--group-initial-rebalance-delay-ms", "0") as server:
        given = {"port": server.port, "topic": "start", "value_bytes": _VALUE_BYTES}
        written = processes.load(client_topics.fill, **given, records_min=_RECORDS)

        def first_ms(reader: Callable[..., dict[str, float]]) -> float:
            rounds = [processes.load(reader, **given, records=written)["first_s"] for _ in range(ROUNDS)]
            return median(rounds) * 1_000

        peers = [(first_ms(peer), name) for peer, name in _PEERS]
        ours = first_ms(client_readers.muster_async_for)
    return [Figure("start to the first record", "ms", ours, peer, name) for peer, name in peers]
