"""Leader epochs of one partition and where each began (KIP-101, KIP-320)."""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter
from struct import Struct
from struct import error as StructError
from typing import Final

from muster.protocol.record_batch import Header

UNKNOWN: Final = (-1, -1)

_COUNT = Struct(">I")
_ENTRY = Struct(">iq")
_EPOCH, _START = itemgetter(0), itemgetter(1)


class Epochs:
    """(epoch, offset of its first batch), both ascending. An epoch that wrote nothing leaves no entry.

    The list grows only at its end, or is replaced, so readers need no lock.
    """

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: list[tuple[int, int]] = []

    def observe(self, header: Header) -> None:
        if not self._entries or header.leader_epoch > self._entries[-1][0]:
            self._entries.append((header.leader_epoch, header.base_offset))

    def of(self, offset: int) -> int:
        """The epoch that wrote `offset`; -1 before the first."""
        entries = self._entries
        number = bisect_right(entries, offset, key=_START) - 1
        return entries[number][0] if number >= 0 else -1

    def end_of(self, epoch: int, leader_epoch: int, end_offset: int) -> tuple[int, int]:
        """OffsetForLeaderEpoch: (the largest known epoch <= `epoch`, where the next one began).

        The leader's own epoch counts as known from its start, before it has written anything: it ends at
        `end_offset`. (-1, -1) for epochs yet to come. An epoch before all known ones ends where the first
        known one began.
        """
        if epoch > leader_epoch or epoch < 0:
            return UNKNOWN
        if epoch == leader_epoch:
            return leader_epoch, end_offset
        entries = self._entries
        number = bisect_right(entries, epoch, key=_EPOCH)
        end = entries[number][1] if number < len(entries) else end_offset
        return (entries[number - 1][0] if number else epoch), end

    def forget_before(self, start_offset: int) -> None:
        """The log begins at `start_offset` now: drop the epochs wholly below it."""
        entries = self._entries
        if entries and entries[0][1] < start_offset:
            first = max(bisect_right(entries, start_offset, key=_START) - 1, 0)
            self._entries = [(entries[first][0], start_offset), *entries[first + 1 :]]

    def reset(self) -> None:
        self._entries = []

    def snapshot(self) -> bytes:
        return _COUNT.pack(len(self._entries)) + b"".join(_ENTRY.pack(*entry) for entry in self._entries)

    def restore(self, snapshot: bytes) -> int:
        """Restore a snapshot; return how many bytes of `snapshot` it took. ValueError if it is truncated."""
        try:
            count: int = _COUNT.unpack_from(snapshot)[0]
            for number in range(count):
                self._entries.append(_ENTRY.unpack_from(snapshot, _COUNT.size + number * _ENTRY.size))
        except StructError:
            raise ValueError("the snapshot of leader epochs is truncated") from None
        return _COUNT.size + count * _ENTRY.size
