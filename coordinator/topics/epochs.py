"""Leader epochs of one partition and where each began (KIP-101, KIP-320)."""

from __future__ import annotations

from bisect import bisect_right
from struct import Struct
from struct import error as StructError
from typing import Final

from muster.protocol.record_batch import Header

UNKNOWN: Final = (-1, -1)

_COUNT = Struct(">I")
_ENTRY = Struct(">iq")


class Epochs:
    """(epoch, offset of its first batch), both ascending. An epoch that wrote nothing leaves no entry."""

    __slots__ = ("_epochs", "_starts")

    def __init__(self) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []

    def observe(self, header: Header) -> None:
        if not self._epochs or header.leader_epoch > self._epochs[-1]:
            self._epochs.append(header.leader_epoch)
            self._starts.append(header.base_offset)

    def of(self, offset: int) -> int:
        """The epoch that wrote `offset`; -1 before the first."""
        entry = bisect_right(self._starts, offset) - 1
        return self._epochs[entry] if entry >= 0 else -1

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
        entry = bisect_right(self._epochs, epoch)
        end = self._starts[entry] if entry < len(self._starts) else end_offset
        return (self._epochs[entry - 1] if entry else epoch), end

    def forget_before(self, start_offset: int) -> None:
        """The log begins at `start_offset` now: drop the epochs wholly below it."""
        gone = bisect_right(self._starts, start_offset) - 1
        if gone > 0:
            del self._epochs[:gone], self._starts[:gone]
        if self._starts and self._starts[0] < start_offset:
            self._starts[0] = start_offset

    def reset(self) -> None:
        self._epochs.clear()
        self._starts.clear()

    def snapshot(self) -> bytes:
        entries = zip(self._epochs, self._starts, strict=True)
        return _COUNT.pack(len(self._epochs)) + b"".join(_ENTRY.pack(*entry) for entry in entries)

    def restore(self, snapshot: bytes) -> int:
        """Restore a snapshot; return how many bytes of `snapshot` it took. ValueError if it is truncated."""
        try:
            count: int = _COUNT.unpack_from(snapshot)[0]
            for number in range(count):
                epoch, start = _ENTRY.unpack_from(snapshot, _COUNT.size + number * _ENTRY.size)
                self._epochs.append(epoch)
                self._starts.append(start)
        except StructError:
            raise ValueError("the snapshot of leader epochs is truncated") from None
        return _COUNT.size + count * _ENTRY.size
