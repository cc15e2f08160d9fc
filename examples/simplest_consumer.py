"""The simplest consumer: read a topic as a member of a group, until Ctrl-C.

    python examples/simplest_consumer.py 127.0.0.1:9092 orders

Start it twice, and the two share the topic's partitions. A record counts as handled when the loop asks for
the next one; handled records are committed every five seconds, before a rebalance, and at the end.
"""

import asyncio
import sys
from contextlib import suppress

from muster.client import Consumer


async def main(bootstrap: str, topic: str) -> None:
    async with Consumer(
        bootstrap,
        group_id="printer",
        topics=topic,
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
