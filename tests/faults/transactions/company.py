"""All producers and readers of transactions in one data directory, over the lives of its broker."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

from tests.faults.clients import coordinators_loaded
from tests.faults.load import PARTITIONS, REPLY_S, Pipe, raise_unless_gone
from tests.faults.transactions import checker
from tests.faults.transactions.history import Place, Slot, Transactional
from tests.faults.transactions.producer import PROTOCOLS, Counted, Transactor
from tests.faults.transactions.reader import Reader, offsets, read_committed
from tests.support.wire_transactions import describing

TOPICS: Final = {
    "in-transactions": {"internal.segment.bytes": "4000"},
    "in-transactions-flushed": {"flush.messages": "1", "internal.segment.bytes": "1000"},
}
_PRODUCERS_A_PROTOCOL: Final = 3
_SHARED_GROUP: Final = "transactions"
_LOOK_AGAIN_S: Final = 0.005


class Company:
    """Create it for an empty directory, `begin` once `TOPICS` exist, and after each kill `settle` before the
    next `load`. Producer ids that coordinators allocate go into `producer_ids`."""

    def __init__(self, dice: random.Random, producer_ids: list[int]) -> None:
        self._places: list[Place] = [(topic, number) for topic in TOPICS for number in range(PARTITIONS)]
        self._known: dict[str, Transactional] = {}
        self._slots: dict[Slot, Transactional] = {}
        self._transactors: list[Transactor] = []
        topic, flushed = TOPICS
        for number in range(_PRODUCERS_A_PROTOCOL * len(PROTOCOLS)):
            history = Transactional(f"transactional-{number}")
            own = [Slot(history.name, topic, 0), Slot(history.name, flushed, 1)]
            shared = [Slot(_SHARED_GROUP, *self._places[number])]
            self._known[history.name] = history
            self._slots |= dict.fromkeys((*own, *shared), history)
            protocol = PROTOCOLS[number % len(PROTOCOLS)]
            self._transactors.append(
                Transactor(history, protocol, self._places, (own, shared), producer_ids, dice)
            )
        self._reader = Reader(self._places, self._slots)

    @property
    def begun(self) -> int:
        """The number of transactions of all lives."""
        return sum(len(each.transactions) for each in self._known.values())

    @property
    def open(self) -> int:
        """How many of them are not known to have ended."""
        return sum(each.open is not None for each in self._known.values())

    async def begin(self, port: int) -> None:
        async with await Pipe.connect(port) as wire:
            for each in self._transactors:
                await each.start(wire)

    async def load(self, port: int, answered: Callable[[], None]) -> None:
        """Run until the broker is gone, calling `answered` for each answer."""
        ran = await asyncio.gather(
            self._read(port, answered),
            *(each.run(port, answered) for each in self._transactors),
            return_exceptions=True,
        )
        raise_unless_gone(ran)

    async def settle(self, port: int) -> int:
        """Judge what is shown at once, let all producers come back, and judge everything when nothing is open
        any more; returns how many transactions that were open when the broker died turned out to be
        committed."""
        unanswered = [each.open for each in self._known.values()]
        async with await Pipe.connect(port) as wire:
            await coordinators_loaded(wire, sorted({slot.group for slot in self._slots}))
            await self._reader.look(wire, self._known)
            for each in self._transactors:
                await each.come_back(wire)
            await self._at_rest(wire)
            await self._reader.look(wire, self._known)
            await self._judge(wire)
        return sum(each is not None and each.settled is True for each in unanswered)

    async def _read(self, port: int, answered: Callable[[], None]) -> None:
        async with await Counted.to(port, answered) as wire:
            await self._reader.run(wire, self._known)

    async def _at_rest(self, wire: Pipe) -> None:
        """Wait until no transaction is open; raises Violation if that does not happen."""
        states: dict[str, str] = {}
        try:
            async with asyncio.timeout(REPLY_S):
                while True:
                    described = (await wire.call(describing(*self._known), 0)).transaction_states
                    states = {each.transactional_id: each.transaction_state for each in described}
                    if set(states.values()) <= set(checker.AT_REST):
                        break
                    await asyncio.sleep(_LOOK_AGAIN_S)
        except TimeoutError:
            for transactional_id, state in states.items():
                checker.check_at_rest(transactional_id, state)
            raise

    async def _judge(self, wire: Pipe) -> None:
        shown = {}
        for place in self._places:
            log = await read_committed(wire, place, 0)
            checker.check_log(place, log, self._known)
            shown[place] = log.shown
        there = checker.check_whole(self._known, shown)
        for slot, (code, found) in (await offsets(wire, self._slots, stable=True)).items():
            history = self._slots[slot]
            numbers = {each.number for each in there if each.transactional_id == history.name}
            checker.check_offset(slot, code, found, history, numbers)
        committed = {(each.transactional_id, each.number) for each in there}
        for history in self._known.values():
            for each in history.transactions:
                each.settled = (each.transactional_id, each.number) in committed
