"""A producer: send lines from standard input, keyed by their first word.

    printf 'alice buys tea\nbob buys milk\n' | python examples/producer.py 127.0.0.1:9092 orders

`send` waits for the acknowledgement and returns where the record went. Concurrent sends share batches: here
all lines are in flight together, and those with the same key keep their order. The input is read to its end
before anything is sent: reading it in the event loop would block the loop.
"""

import asyncio
import sys
from contextlib import suppress

from muster.client import Producer


async def main(bootstrap: str, topic: str, lines: list[str]) -> None:
    async with Producer(bootstrap) as producer, asyncio.TaskGroup() as sending:
        for line in lines:
            sending.create_task(send(producer, topic, line.rstrip("\n")))


async def send(producer: Producer, topic: str, text: str) -> None:
    key, _, _ = text.partition(" ")
    sent = await producer.send(topic, text.encode(), key=key.encode())
    print(f"{sent.topic}-{sent.partition} {sent.offset}: {text}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with suppress(KeyboardInterrupt):
        asyncio.run(main(*sys.argv[1:], sys.stdin.readlines()))
