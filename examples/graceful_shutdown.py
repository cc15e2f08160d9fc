"""Graceful shutdown: on SIGTERM finish the current record, commit, leave the group, exit.

    python examples/graceful_shutdown.py 127.0.0.1:9092 orders

`stop` ends the loop when it asks for the next record. The end of the block commits what was handled and
leaves the group, so that the others take over at once. If the handler hangs until the orchestrator kills
the process, the group waits for the session timeout, and the record is read again. From outside the loop,
`await consumer.drain(timeout)` waits for all of this.
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
    await asyncio.sleep(0.2)  # stands for the real work
    print(f"{record.value} finished", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    asyncio.run(main(*sys.argv[1:]))
