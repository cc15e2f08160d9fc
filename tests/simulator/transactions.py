"""Transactions in a run: their producers and readers, and the checks on both. Every second run has them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import Any, Final

from muster.protocol.api import ApiKey
from muster.protocol.messages.offsets import OffsetFetchRequest
from tests.simulator.checkers import Exchange, Violation
from tests.simulator.crowd import Crowd
from tests.simulator.fleet import SOURCES, Fleet
from tests.simulator.ledger import INPUT, INPUT_PARTITIONS, LEDGER, LEDGER_PARTITIONS, Book, Entry, Source
from tests.simulator.network import Address, Disconnected
from tests.simulator.reader import Fetcher, Reader, read_whole
from tests.simulator.store import Weather
from tests.simulator.transaction_checkers import Audit, OffsetsWithTransactions, OneProducer, ReadCommitted

TRANSACTIONS_TOPICS: Final = {LEDGER: LEDGER_PARTITIONS, INPUT: INPUT_PARTITIONS}
"""Partition count of each topic."""
_READERS: Final = 2
_MOVED: Final = [source for source in SOURCES.values() if source is not None]


class Transactions:
    """A run's transactions. `read` is called with each partition at the end, `failed` with exceptions."""

    def __init__(
        self,
        rng: random.Random,
        crowd: Crowd,
        addresses: list[Address],
        weather: Weather,
        *,
        read: Callable[[Iterable[Entry]], None],
        say: Callable[[str], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self.book = Book()
        self.fleet = Fleet(_fork(rng), crowd, addresses, weather, self.book, failed=failed)
        self.offsets = OffsetsWithTransactions(self.book)
        self._read = read
        self._say = say
        self._failed = failed
        self._rng = _fork(rng)
        self._crowd = crowd
        self._addresses = addresses
        self._read_committed = ReadCommitted(self.book)
        self._one_producer = OneProducer(self.book)
        self._audit = Audit(self.book, self._read_committed)
        self._fetcher = Fetcher(crowd.client("auditor"), _fork(rng), addresses)
        self._readers = [
            Reader(
                Fetcher(crowd.client(f"reader-{number}"), _fork(rng), addresses),
                _fork(rng),
                self._read_committed,
            )
            for number in range(_READERS)
        ]

    def start(self) -> None:
        self.fleet.start()
        for reader in self._readers:
            reader.start(self._failed)
        watching = asyncio.get_running_loop().create_task(self._watch(), name="watcher")
        watching.add_done_callback(self._watched)

    async def _watch(self) -> None:
        """Fetch the moved offsets again and again; the checkers see these answers like all others."""
        while True:
            await asyncio.sleep(3.0 * self._rng.random())
            await self._committed(self._rng.choice(_MOVED), stable=self._rng.random() < 0.7)

    def _watched(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    def asked(self, exchange: Exchange) -> None:
        self.offsets.asked(exchange)

    def replied(self, exchange: Exchange, response: Any) -> None:
        self.offsets.replied(exchange, response)

    async def settle(self, deadline_s: float) -> None:
        """Begin no more transactions, wait until the existing ones have ended, and check what they leave.
        Raises Violation."""
        self.fleet.rests = True
        now_s = asyncio.get_running_loop().time
        committed: dict[Source, int] = {}
        while (why := await self._unsettled(committed)) is not None:
            if now_s() > deadline_s:
                raise Violation(f"transactions are not over, long after the last fault: {why}")
            await asyncio.sleep(0.25)
        wholes = {number: await read_whole(self._fetcher, number) for number in range(LEDGER_PARTITIONS)}
        self._fetcher.close()
        for whole in wholes.values():
            self._read(whole.entries)
        self._one_producer.look()
        self._audit.look(wholes, self._readers, committed)
        records = sum(len(whole.committed) for whole in wholes.values())
        self._say(f"transactions are over: {records} records and {committed} are committed")
        self.fleet.rests = False

    async def _unsettled(self, committed: dict[Source, int]) -> str | None:
        """Why not all transactions are over; None when they are: `committed` then holds the offsets."""
        if self.fleet.busy():
            return f"producers are busy: {self.fleet.busy()}"
        for number in range(LEDGER_PARTITIONS):
            fetched = await self._fetcher.fetch(number, 0, reads_committed=False)
            if fetched is None:
                return f"{LEDGER}-{number} cannot be read"
            if fetched.stable_offset != fetched.end_offset:
                return (
                    f"the last stable offset of {LEDGER}-{number} is {fetched.stable_offset}, its end "
                    f"{fetched.end_offset}"
                )
        for source in _MOVED:
            offset = await self._committed(source)
            if offset is None:
                return f"the offset of {source} is not stable, or its coordinator does not answer"
            committed[source] = offset
        return None

    async def _committed(self, source: Source, *, stable: bool = True) -> int | None:
        client = self._crowd.client("auditor")
        address = await client.find_coordinator(source.group_id, self._addresses)
        if address is None:
            return None
        topic, number = source.partition
        group = OffsetFetchRequest.Group(
            group_id=source.group_id,
            topics=[OffsetFetchRequest.Topics(name=topic, partition_indexes=[number])],
        )
        request = OffsetFetchRequest(groups=[group], require_stable=stable)
        try:
            link = await client.connect(address)
            response: Any = await client.ask(link, ApiKey.OFFSET_FETCH, 8, request)
            link.close()
        except Disconnected:
            return None
        (fetched,) = response.groups
        if fetched.error_code:
            return None
        ((answer,),) = (each.partitions for each in fetched.topics)
        return None if answer.error_code else max(answer.committed_offset, 0)


def _fork(rng: random.Random) -> random.Random:
    return random.Random(rng.getrandbits(64))
