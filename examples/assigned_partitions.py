"""Assigned partitions: no group, no commits; read a topic from a timestamp to its current end.

    python examples/assigned_partitions.py 127.0.0.1:9092 orders 2026-11-21T00:00:00+00:00

It prints the records written since then, and exits.
"""

import asyncio
import sys
from datetime import datetime

from muster.client import Consumer


async def main(bootstrap: str, topic: str, since: str) -> None:
    since_ms = round(datetime.fromisoformat(since).timestamp() * 1000)
    async with Consumer(bootstrap, value_deserializer=bytes.decode) as consumer:
        partitions = await consumer.partitions_for(topic)
        ends = await consumer.end_offsets(partitions)
        found = await consumer.offsets_for_times(dict.fromkeys(partitions, since_ms))
        consumer.assign(partitions)
        for where in partitions:
            first = found[where]
            consumer.seek(where, ends[where] if first is None else first.offset)

        to_read = {where for where in partitions if await consumer.position(where) < ends[where]}
        while to_read:
            for record in await consumer.get_many(timeout=1.0):
                where = record.topic_partition
                if record.offset < ends[where]:
                    print(f"{where} {record.offset}: {record.value}", flush=True)
            to_read = {where for where in to_read if await consumer.position(where) < ends[where]}


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    asyncio.run(main(*sys.argv[1:]))
