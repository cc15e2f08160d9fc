"""Simulated consumers of the ledger: some read committed records during the run, and one reads everything at
the end.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.data import FetchRequest
from tests.simulator.checkers import Violation
from tests.simulator.ledger import LEDGER, LEDGER_PARTITIONS, Aborted, Entry, committed, entries, leaders
from tests.simulator.member import Client
from tests.simulator.network import Address, Disconnected, Link

_VERSIONS: Final = (4, 11, 12)
_BYTES: Final = (700, 2_000, 5_000, 100_000)
"""The byte limits of a Fetch. A batch has some hundred bytes."""
_AGAIN_S: Final = 0.1


class Fetched(NamedTuple):
    """What a Fetch returned."""

    entries: list[Entry]
    committed: list[tuple[int, str]]
    """What a read_committed Fetch passes on."""
    next_offset: int
    stable_offset: int
    end_offset: int


class Seen(Protocol):
    """Called with every record that is passed on."""

    def seen(self, partition: int, offset: int, value: str) -> None: ...


class Fetcher:
    """Fetches from a partition's leader."""

    def __init__(self, client: Client, rng: random.Random, brokers: Sequence[Address]) -> None:
        self._client = client
        self._rng = rng
        self._brokers = brokers
        self._links: dict[int, Link] = {}

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        self._links.clear()

    async def fetch(self, partition: int, offset: int, *, reads_committed: bool) -> Fetched | None:
        """None if nobody answers. Raises Violation if the log has lost what is below `offset`."""
        Topic = FetchRequest.FetchTopic
        bytes_max = self._rng.choice(_BYTES)
        asked = Topic.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=bytes_max)
        request = FetchRequest(
            max_wait_ms=self._rng.choice([0, 100, 500]),
            min_bytes=1,
            isolation_level=int(reads_committed),
            topics=[Topic(topic=LEDGER, partitions=[asked])],
        )
        link = await self._link(partition)
        if link is None:
            return None
        try:
            response: Any = await self._client.ask(link, ApiKey.FETCH, self._rng.choice(_VERSIONS), request)
        except Disconnected:
            return None
        ((answer,),) = (topic.partitions for topic in response.responses)
        if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise Violation(f"{LEDGER}-{partition} ended behind {offset} before, and now it does not")
        if answer.error_code:
            link.close()
            return None
        found, next_offset = entries(bytes(answer.records or b""), offset)
        aborted = [Aborted(each.producer_id, each.first_offset) for each in answer.aborted_transactions or ()]
        passed_on = committed(found, aborted, offset) if reads_committed else []
        found = [entry for entry in found if entry.offset >= offset]
        return Fetched(found, passed_on, next_offset, answer.last_stable_offset, answer.high_watermark)

    async def _link(self, partition: int) -> Link | None:
        link = self._links.get(partition)
        if link is not None and link.open:
            return link
        found = await leaders(self._client, self._rng.sample(self._brokers, len(self._brokers)))
        if partition not in found:
            return None
        try:
            self._links[partition] = await self._client.connect(found[partition])
        except Disconnected:
            return None
        return self._links[partition]


class Reader:
    """Reads committed records from the beginning, and now and then starts over; sometimes it is far behind,
    so that it gets much at once."""

    def __init__(self, fetcher: Fetcher, rng: random.Random, seen: Seen) -> None:
        self.positions = dict.fromkeys(range(LEDGER_PARTITIONS), 0)
        """How far each partition has been read at least once."""
        self._fetcher = fetcher
        self._rng = rng
        self._seen = seen
        self._task: asyncio.Task[None] | None = None

    def start(self, failed: Callable[[BaseException], None]) -> None:
        def done(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                failed(error)

        self._task = asyncio.get_running_loop().create_task(self._run(), name="reader")
        self._task.add_done_callback(done)

    async def _run(self) -> None:
        while True:
            partition = self._rng.randrange(LEDGER_PARTITIONS)
            position = self.positions[partition] if self._rng.random() < 0.9 else 0
            fetched = await self._fetcher.fetch(partition, position, reads_committed=True)
            if fetched is not None:
                for offset, value in fetched.committed:
                    self._seen.seen(partition, offset, value)
                self.positions[partition] = max(self.positions[partition], fetched.next_offset)
            await asyncio.sleep(self._rng.choice([0.1, 0.5, 6.0]) * self._rng.random())


class Whole(NamedTuple):
    """A partition of the ledger, read from end to end."""

    entries: list[Entry]
    committed: list[tuple[int, str]]
    stable_offset: int
    end_offset: int


async def read_whole(fetcher: Fetcher, partition: int) -> Whole:
    """Read the whole partition, once without and once with read_committed."""
    found: list[Entry] = []
    fetched = await _all(fetcher, partition, reads_committed=False)
    end_offset, stable_offset = fetched[-1].end_offset, fetched[-1].stable_offset
    for each in fetched:
        found += each.entries
    passed_on = [
        pair for each in await _all(fetcher, partition, reads_committed=True) for pair in each.committed
    ]
    return Whole(found, passed_on, stable_offset, end_offset)


async def _all(fetcher: Fetcher, partition: int, *, reads_committed: bool) -> list[Fetched]:
    offset, found = 0, []
    while True:
        fetched = await fetcher.fetch(partition, offset, reads_committed=reads_committed)
        if fetched is None:
            await asyncio.sleep(_AGAIN_S)
            continue
        found.append(fetched)
        offset = fetched.next_offset
        if offset >= (fetched.stable_offset if reads_committed else fetched.end_offset):
            return found
