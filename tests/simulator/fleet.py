"""The transactional producers of a run, and what happens to them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from itertools import count
from typing import Final

from muster.protocol.api import ApiKey
from muster.protocol.messages.transactions import WriteTxnMarkersRequest
from tests.simulator.crowd import GROUPS, Crowd
from tests.simulator.ledger import INPUT, LEDGER, Book, Source, leaders
from tests.simulator.member import Client
from tests.simulator.network import Address, Disconnected
from tests.simulator.producer import Membership, Producer
from tests.simulator.store import Weather

SOURCES: Final[dict[str, Source | None]] = {
    "pay-0": None,
    "pay-1": None,
    "move-0": Source(GROUPS[0], (INPUT, 0)),
    "move-1": Source(GROUPS[1], (INPUT, 1)),
}
"""By transactional id, the source whose offsets it moves."""

_TIMEOUTS_MS: Final = (1_500, 3_000, 6_000, 20_000)
_MARKER_VERSION: Final = 1


class Fleet:
    """Tracks who produces under which transactional id. `acts` are what a run may do to them, each with its
    weight; `failed` is called with exceptions that no producer may raise."""

    def __init__(
        self,
        rng: random.Random,
        crowd: Crowd,
        addresses: list[Address],
        weather: Weather,
        book: Book,
        *,
        failed: Callable[[BaseException], None],
    ) -> None:
        self.rests = False
        """Whether no new transaction may begin."""
        self.acts: list[tuple[int, Callable[[], str | None]]] = [
            (4, self._crashes),
            (3, self._is_doubled),
            (3, self._stalls),
            (2, self._is_cut),
            (3, self._comes_back),
            (2, self._old_marker_comes),
            (1, self._letters_are_lost),
        ]
        self._rng = rng
        self._crowd = crowd
        self._addresses = addresses
        self._weather = weather
        self._failed = failed
        self._producers: list[Producer] = []
        self._book = book
        self._numbers = count(1)
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        for transactional_id in SOURCES:
            self._add(transactional_id)

    def busy(self) -> list[Producer]:
        """Producers that have a transaction, or do not know yet whether they may begin one."""
        return [producer for producer in self.living() if not producer.idle]

    def living(self, transactional_id: str | None = None) -> list[Producer]:
        self._producers = [producer for producer in self._producers if not producer.over]
        return [each for each in self._producers if transactional_id in (None, each.transactional_id)]

    def _add(self, transactional_id: str) -> Producer:
        rng = random.Random(self._rng.getrandbits(64))
        producer = Producer(
            self._crowd.client(f"{transactional_id}/{next(self._numbers)}", rng.choice([3.0, 6.0, 30.0])),
            transactional_id,
            rng,
            self._addresses,
            self._book,
            timeout_ms=rng.choice(_TIMEOUTS_MS),
            source=SOURCES[transactional_id],
            membership=lambda group_id: self._membership(rng, group_id),
            rests=lambda: self.rests,
        )
        self._producers.append(producer)
        producer.start(self._failed)
        return producer

    def _membership(self, rng: random.Random, group_id: str) -> Membership:
        """Usually nobody's; else that of a member, which may have left the group when the request arrives."""
        members = self._crowd.living(group_id)
        if not members or rng.random() < 0.6:
            return Membership()
        member = rng.choice(members)
        return Membership(member.member_id, member.generation_id, member.instance_id)

    def _some(self) -> Producer | None:
        producers = self.living()
        return self._rng.choice(producers) if producers else None

    # --- acts -----------------------------------------------------------------------------------------------

    def _crashes(self) -> str | None:
        """Half of the time it restarts at once; else it stays away, and its transaction times out."""
        producer = self._some()
        if producer is None:
            return None
        producer.crash(silently=self._rng.random() < 0.5)
        if self._rng.random() < 0.5:
            return f"crashes: {producer.name}"
        return f"crashes: {producer.name}, and is back as {self._add(producer.transactional_id).name}"

    def _is_doubled(self) -> str | None:
        """Start another process under its id while it goes on."""
        producer = self._some()
        if producer is None or len(self.living(producer.transactional_id)) > 1:
            return None
        stalled_s = self._rng.choice([0.0, 0.0, 1.0, 5.0]) * self._rng.random()
        producer.stall(stalled_s)
        successor = self._add(producer.transactional_id)
        return f"stands still for {stalled_s:.1f} s and has a double, {successor.name}: {producer.name}"

    def _stalls(self) -> str | None:
        producer = self._some()
        if producer is None:
            return None
        seconds = self._rng.choice([1, 5, 12]) * self._rng.uniform(0.5, 1.5)
        producer.stall(seconds)
        return f"stalls for {seconds:.1f} s: {producer.name}"

    def _is_cut(self) -> str | None:
        producer = self._some()
        if producer is None:
            return None
        producer.cut(silently=self._rng.random() < 0.5)
        return f"connections break: {producer.name}"

    def _comes_back(self) -> str | None:
        away = [each for each in SOURCES if not self.living(each)]
        if not away:
            return None
        return f"comes back: {self._add(self._rng.choice(away)).name}"

    def _old_marker_comes(self) -> str | None:
        """A tool aborts a supposedly hanging transaction too late: the partition knows a newer epoch."""
        passed = self._book.passed()
        if not passed:
            return None
        (producer_id, producer_epoch), partition = self._rng.choice(passed)
        client = self._crowd.client("tool")
        task = asyncio.create_task(self._mark(client, producer_id, producer_epoch, partition))
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return f"an abort comes for {producer_id} in epoch {producer_epoch} in {LEDGER}-{partition}"

    async def _mark(self, client: Client, producer_id: int, producer_epoch: int, partition: int) -> None:
        Marker = WriteTxnMarkersRequest.WritableTxnMarker
        topic = Marker.WritableTxnMarkerTopic(name=LEDGER, partition_indexes=[partition])
        marker = Marker(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transaction_result=False,
            topics=[topic],
            coordinator_epoch=0,
        )
        found = await leaders(client, self._addresses)
        if partition not in found:
            return
        try:
            link = await client.connect(found[partition])
            request = WriteTxnMarkersRequest(markers=[marker])
            await client.ask(link, ApiKey.WRITE_TXN_MARKERS, _MARKER_VERSION, request)
            link.close()
        except Disconnected:
            pass

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    def _letters_are_lost(self) -> str:
        seconds = self._rng.uniform(0.5, 4)
        share = self._weather.letters_lost = self._rng.choice([0.3, 1.0])
        asyncio.get_running_loop().call_later(seconds, setattr, self._weather, "letters_lost", 0.0)
        return f"{share:.0%} of the letters between brokers are lost for {seconds:.1f} s"
