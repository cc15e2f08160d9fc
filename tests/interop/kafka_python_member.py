"""A group member in a process of its own, so that a test can kill it: `kafka_python_member.py BOOTSTRAP GROUP
TOPIC`.

Prints the number of partitions whenever it is assigned some.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaConsumer


class Told(ConsumerRebalanceListener):  # type: ignore[misc]
    def on_partitions_revoked(self, revoked: Sequence[Any]) -> None:
        pass

    def on_partitions_assigned(self, assigned: Sequence[Any]) -> None:
        print(len(assigned), flush=True)


def main(bootstrap: str, group_id: str, topic: str) -> None:
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group_id,
        session_timeout_ms=1_000,
        heartbeat_interval_ms=100,
        auto_offset_reset="earliest",
    )
    consumer.subscribe([topic], listener=Told())
    while True:
        consumer.poll(100)


if __name__ == "__main__":
    main(*sys.argv[1:])
