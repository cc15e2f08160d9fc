"""Readers of committed records and offsets, on the wire."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from itertools import cycle
from typing import Final

from muster.protocol.messages.offsets import OffsetFetchRequest
from tests.faults import batches
from tests.faults.batches import Violation
from tests.faults.checker import Committed
from tests.faults.clients import end_offset, fetch
from tests.faults.load import Pipe
from tests.faults.transactions import checker
from tests.faults.transactions.checker import Aborted, Log
from tests.faults.transactions.history import Place, Slot, Transactional

_PAUSE_S: Final = 0.01


class Reader:
    """Reads continuously, through every kill, and judges what it is shown."""

    def __init__(self, places: Iterable[Place], slots: Mapping[Slot, Transactional]) -> None:
        self._positions = dict.fromkeys(places, 0)
        self._slots = slots

    async def run(self, wire: Pipe, known: Mapping[str, Transactional]) -> None:
        """Read a place and a group at a time, so as not to be a load itself."""
        groups = sorted({slot.group for slot in self._slots})
        for place, group in zip(cycle(self._positions), cycle(groups), strict=False):
            await self._look_at_records(wire, place, known)
            await self._look_at_offsets(wire, [slot for slot in self._slots if slot.group == group])
            await asyncio.sleep(_PAUSE_S)

    async def look(self, wire: Pipe, known: Mapping[str, Transactional]) -> None:
        """Check everything once."""
        for place in self._positions:
            await self._look_at_records(wire, place, known)
        await self._look_at_offsets(wire, self._slots)

    async def _look_at_records(self, wire: Pipe, place: Place, known: Mapping[str, Transactional]) -> None:
        log = await read_committed(wire, place, self._positions[place])
        checker.check_shown(place, log.shown, known)
        if log.batches:
            self._positions[place] = log.batches[-1].next_offset

    async def _look_at_offsets(self, wire: Pipe, slots: Collection[Slot]) -> None:
        for slot, (code, found) in (await offsets(wire, slots, stable=True)).items():
            checker.check_stable_offset_shown(slot, code, found, self._slots[slot])
        for slot, (code, found) in (await offsets(wire, slots, stable=False)).items():
            if code:
                raise Violation(f"{slot}: its offset cannot be fetched: {code}")
            checker.check_offset_shown(slot, found, self._slots[slot])


async def read_committed(wire: Pipe, place: Place, offset: int) -> Log:
    """Read from this offset to the last stable offset."""
    name = f"{place[0]}-{place[1]}"
    found: list[batches.Batch] = []
    shown: list[bytes] = []
    while True:
        part = await fetch(wire, *place, offset, committed=True)
        if part.error_code:
            raise Violation(f"{name}: offset {offset} cannot be fetched: {part.error_code}")
        if not part.records:
            end = await end_offset(wire, *place)
            return Log(found, shown, part.last_stable_offset, end)
        more = batches.read(part.records, name)
        aborted = [Aborted(each.producer_id, each.first_offset) for each in part.aborted_transactions]
        shown += checker.committed(more, aborted)
        found += more
        offset = found[-1].next_offset


async def offsets(wire: Pipe, slots: Collection[Slot], *, stable: bool) -> dict[Slot, tuple[int, Committed]]:
    """Codes and committed offsets; `stable`: with require_stable, for clients that must not see an old offset
    while a new one is pending."""
    wanted: dict[str, dict[str, list[int]]] = {}
    for slot in slots:
        wanted.setdefault(slot.group, {}).setdefault(slot.topic, []).append(slot.partition)
    found: dict[Slot, tuple[int, Committed]] = {}
    for group, topics in wanted.items():
        asked = [OffsetFetchRequest.Topic(name=name, partition_indexes=each) for name, each in topics.items()]
        reply = await wire.call(OffsetFetchRequest(group_id=group, topics=asked, require_stable=stable), 7)
        if reply.error_code:
            raise Violation(f"group {group}: its offsets cannot be fetched: {reply.error_code}")
        for topic in reply.topics:
            for each in topic.partitions:
                committed = Committed(each.committed_offset, each.metadata or "")
                found[Slot(group, topic.name, each.partition_index)] = each.error_code, committed
    return found
