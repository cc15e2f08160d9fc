"""Manual commits: handle records in batches, and commit once a batch is safe.

    python examples/commit_in_batches.py 127.0.0.1:9092 clicks clicks.txt

Each batch is synced to the disk before it is committed, so a crash loses nothing; records that were written
and not yet committed are written again. A commit does not raise if a rebalance intervenes: it returns a
result for each partition.
"""

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path

from muster.client import CommitResult, Consumer, ConsumerRecord

BATCH = 100


async def main(bootstrap: str, topic: str, path: str) -> None:
    async with Consumer(
        bootstrap, group_id="archive", topics=topic, auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        while True:
            records = await consumer.get_many(BATCH, timeout=1.0)
            if not records:
                continue
            await asyncio.to_thread(append, Path(path), records)
            report(await consumer.commit())


def append(path: Path, records: list[ConsumerRecord]) -> None:
    with path.open("ab") as file:
        for record in records:
            file.write((record.value or b"") + b"\n")
        file.flush()
        os.fsync(file.fileno())  # or a power failure could lose what is committed


def report(result: CommitResult) -> None:
    for partition, outcome in result.committed.items():
        print(f"{partition} committed {outcome.offset}", flush=True)
    for partition, stale in result.stale.items():
        # Its new owner resumes from the previous commit.
        print(f"{partition} is not ours any more: {stale.why}", flush=True)
    for partition, later in result.retry.items():
        # The next commit includes it, with the same offset or a later one.
        print(f"{partition} not committed yet: {later.why}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    with suppress(KeyboardInterrupt):
        asyncio.run(main(*sys.argv[1:]))
