"""Flow control: one topic is paused while another, urgent one has records.

    python examples/flow_control.py 127.0.0.1:9092 urgent bulk

A paused partition stays assigned, is not fetched, and uses no memory, and the consumer stays in its group. A
partition stays paused through rebalances as long as this member keeps it.
"""

import asyncio
import sys
from contextlib import suppress

from muster.client import Consumer


async def main(bootstrap: str, urgent: str, bulk: str) -> None:
    async with Consumer(
        bootstrap,
        group_id="mailer",
        topics=[urgent, bulk],
        auto_offset_reset="earliest",
        value_deserializer=bytes.decode,
    ) as consumer:
        while True:
            # A timeout, so that bulk resumes even when the last urgent partition moves to another member.
            record = await consumer.get(timeout=1.0)
            if record is not None:
                print(f"{record.topic}: {record.value}", flush=True)
            # The lag of each partition as of the last fetch.
            waiting = sum(lag or 0 for where, lag in consumer.lag().items() if where.topic == urgent)
            of_bulk = {where for where in consumer.assignment if where.topic == bulk}
            if waiting:
                consumer.pause(*of_bulk)
            else:
                consumer.resume(*of_bulk)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    with suppress(KeyboardInterrupt):
        asyncio.run(main(*sys.argv[1:]))
