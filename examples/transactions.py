"""Exactly once from topic to topic: results and offsets in one transaction.

    echo alice:5 | muster produce payments --key-separator :
    python examples/transactions.py 127.0.0.1:9092 payments totals etl-1

A payment's key is an account, its value whole cents. Each batch of payments becomes one transaction: the
totals it leads to, and the offsets it ends at. Killed at any point, the program leaves nothing half done.
Started again under the same id (etl-1), it ends the transaction that was open, and goes on after the last one
that was committed. Start several, each with an id of its own, and they share the partitions. Readers of the
totals set isolation_level="read_committed".
"""

import asyncio
import sys
from collections import Counter
from contextlib import suppress

from muster.client import Consumer, Producer


async def main(bootstrap: str, source: str, target: str, name: str) -> None:
    async with (
        Producer(bootstrap, transactional_id=name) as producer,
        Consumer(
            bootstrap,
            group_id="etl",
            topics=source,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer,
    ):
        async for batch in consumer.batches():
            totals: Counter[bytes] = Counter()
            for record in batch.records:
                totals[record.key or b""] += int(record.value or b"0")
            async with producer.transaction() as transaction:
                for account, cents in totals.items():
                    await transaction.post(target, b"%d" % cents, key=account)
                await transaction.commit_offsets(consumer)
            print(f"{batch.topic_partition} up to {batch.next_offset}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    with suppress(KeyboardInterrupt):
        asyncio.run(main(*sys.argv[1:]))
