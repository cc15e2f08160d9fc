"""Rewind a whole group: whoever is assigned a partition reads it again from the beginning, once.

    python examples/rewind.py 127.0.0.1:9092 orders

Each member rewinds the partitions that it is assigned, before it reads them. `rewound` keeps it from
rewinding a partition that comes back in a later rebalance. To rewind a group without members, use
`Admin.reset_group_offsets`.
"""

import asyncio
import sys
from collections.abc import Iterable
from contextlib import suppress

from muster.client import Consumer, RebalanceListener, TopicPartition


class Rewind(RebalanceListener):
    def __init__(self) -> None:
        self.rewound: set[TopicPartition] = set()

    async def on_partitions_assigned(self, consumer: Consumer, partitions: Iterable[TopicPartition]) -> None:
        again = set(partitions) - self.rewound
        for where in sorted(again):
            print(f"{where} from {await consumer.position(where)} back to the beginning", flush=True)
        consumer.seek_to_beginning(*again)
        self.rewound |= again


async def main(bootstrap: str, topic: str) -> None:
    async with Consumer(
        bootstrap,
        group_id="printer",
        topics=topic,
        listener=Rewind(),
        auto_offset_reset="earliest",
        value_deserializer=bytes.decode,
    ) as consumer:
        async for record in consumer:
            print(f"{record.topic}-{record.partition} {record.offset}: {record.value}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with suppress(KeyboardInterrupt):
        asyncio.run(main(*sys.argv[1:]))
