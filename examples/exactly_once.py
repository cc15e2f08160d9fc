"""Exactly once: the results and the offsets they came from, in one SQLite transaction.

    echo alice:5 | muster produce payments --key-separator :
    python examples/exactly_once.py 127.0.0.1:9092 payments totals.sqlite

A payment's key is an account, its value whole cents. The database records how far each partition has been
counted, so reading starts there and the group needs no committed offsets. The transaction also checks that no
other member has counted these records meanwhile: a member that stalled until its partitions moved changes
nothing.
"""

import asyncio
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress

from muster.client import Batch, Consumer, RebalanceListener, TopicPartition


class Totals:
    """Payments per account, and the next offset of each partition."""

    def __init__(self, path: str) -> None:
        self._database = sqlite3.connect(path, isolation_level=None)
        self._database.executescript(
            """
            CREATE TABLE IF NOT EXISTS totals (account TEXT PRIMARY KEY, cents INTEGER NOT NULL);
            CREATE TABLE IF NOT EXISTS offsets (topic TEXT, part INTEGER, next INTEGER NOT NULL,
                                                PRIMARY KEY (topic, part));
            """
        )

    def next_offset(self, where: TopicPartition) -> int:
        found = self._database.execute(
            "SELECT next FROM offsets WHERE topic = ? AND part = ?", where
        ).fetchone()
        return found[0] if found else 0

    def count(self, batch: Batch) -> bool:
        """Count the batch. Return False if another member already has."""
        where = TopicPartition(batch.topic, batch.partition)
        added: Counter[str] = Counter()
        for record in batch.records:
            added[(record.key or b"").decode()] += int(record.value or b"0")
        self._database.execute("BEGIN IMMEDIATE")
        with self._database:
            if self.next_offset(where) > batch.first_offset:
                return False
            self._database.executemany(
                "INSERT INTO totals VALUES (?, ?)"
                " ON CONFLICT (account) DO UPDATE SET cents = cents + excluded.cents",
                added.items(),
            )
            self._database.execute(
                "INSERT OR REPLACE INTO offsets VALUES (?, ?, ?)", (*where, batch.next_offset)
            )
        return True


class FromTheDatabase(RebalanceListener):
    def __init__(self, totals: Totals) -> None:
        self._totals = totals

    def on_partitions_assigned(self, consumer: Consumer, partitions: Iterable[TopicPartition]) -> None:
        for where in partitions:
            consumer.seek(where, self._totals.next_offset(where))


async def main(bootstrap: str, topic: str, path: str) -> None:
    totals = Totals(path)
    async with Consumer(
        bootstrap,
        group_id="totals",
        topics=topic,
        listener=FromTheDatabase(totals),
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    ) as consumer:
        async for batch in consumer.batches():
            where = TopicPartition(batch.topic, batch.partition)
            if totals.count(batch):
                print(f"{where} counted up to {batch.next_offset}", flush=True)
            else:
                consumer.seek(where, totals.next_offset(where))


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    with suppress(KeyboardInterrupt):
        asyncio.run(main(*sys.argv[1:]))
