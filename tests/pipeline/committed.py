"""Apache Kafka, with a topic to write to, and the records that readers see there."""

from __future__ import annotations

import asyncio
import itertools
from typing import Final

from muster.client import Admin, TopicPartition
from muster.pipeline.fetching import read_rows
from muster.pipeline.offsets import Range
from muster.pipeline.options import source_options

PARTITIONS: Final = 3
_DEADLINE_S: Final = 60
_LOOK_S: Final = 0.01
_ENDING: Final = ("PrepareCommit", "PrepareAbort")
"""States of transactions whose markers are on their way: their ends have been answered, but readers do not
see them yet."""
_NUMBERS: Final = itertools.count()


def created(servers: str) -> str:
    """Create a new topic; return its name."""

    async def create() -> str:
        name = f"out-{next(_NUMBERS)}"
        async with Admin(servers) as admin:
            await admin.create_topic(name, PARTITIONS)
        return name

    return asyncio.run(create())


def values(servers: str, topic: str, isolation: str = "read_committed") -> list[bytes]:
    """Values of all records, sorted. What is being committed or aborted is waited for."""
    wanted = {
        "kafka.bootstrap.servers": servers,
        "subscribe": topic,
        "kafka.isolation.level": isolation,
    }
    options = source_options(wanted, streaming=False)
    return sorted(
        value
        for where, end in asyncio.run(_ends(servers, topic, committed=isolation == "read_committed")).items()
        for batch in read_rows(options, Range(where, 0, end))
        for value in batch.column("value").to_pylist()
        if value is not None
    )


async def _ends(servers: str, topic: str, *, committed: bool) -> dict[TopicPartition, int]:
    async with Admin(servers) as admin:
        if committed:
            async with asyncio.timeout(_DEADLINE_S):
                ending = await admin.list_transactions(states=_ENDING)
                while ending:
                    await asyncio.sleep(_LOOK_S)
                    ending = await admin.list_transactions(states=_ENDING)
        wanted = {TopicPartition(topic, number): -1 for number in range(PARTITIONS)}
        found = await admin.list_offsets(wanted, isolation_level=int(committed))
        return {where: end.offset for where, end in found.raise_for_failures().items() if end is not None}
