"""Graceful shutdown: at SIGTERM finish the record in hand, commit, leave the group, end.

    python examples/graceful_shutdown.py 127.0.0.1:9092 orders

`stop` lets the loop end when it asks for the next record; leaving the block then commits what was handled and
leaves the group, so that the others take over at once. If the handler hangs, the orchestrator kills the
process in the end; the group then waits for the session timeout, and the record in hand is read again.
(From elsewhere than the loop: `await consumer.drain(timeout)` waits for all of that, up to its timeout.)
"""

import asyncio
import signal
import sys

from muster.client import Consumer, ConsumerRecord


async def main(bootstrap: str, topic: str) -> None:
    loop = asyncio.get_running_loop()
    async with Consumer(
        bootstrap,
        group_id="steady",
        topics=topic,
        auto_offset_reset="earliest",
        value_deserializer=bytes.decode,
    ) as consumer:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, consumer.stop)
        async for record in consumer:
            await handle(record)
    print("stopped", flush=True)


async def handle(record: ConsumerRecord) -> None:
    print(f"{record.value} begun", flush=True)
    await asyncio.sleep(0.2)  # what takes time
    print(f"{record.value} finished", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    asyncio.run(main(*sys.argv[1:]))
