"""A group member in a process of its own, so that a test can kill it: `confluent_member.py BOOTSTRAP GROUP
TOPIC`.

Prints the number of partitions whenever it is assigned some.
"""

from __future__ import annotations

import sys

from confluent_kafka import Consumer


def main(bootstrap: str, group_id: str, topic: str) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group_id,
            "session.timeout.ms": 1_000,
            "heartbeat.interval.ms": 100,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic], on_assign=lambda _, partitions: print(len(partitions), flush=True))
    while True:
        consumer.poll(0.1)


if __name__ == "__main__":
    main(*sys.argv[1:])
