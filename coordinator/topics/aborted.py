"""The aborted transactions of one partition, for consumers that read only committed records (KIP-98).

Kafka keeps an index file for each segment. Here an entry takes 32 bytes of memory, and of each snapshot of
the state derived from a log; a transaction with an entry has a batch and a marker in the log, of at least
some 150 bytes. Entries are removed with the records below the log start, and when compaction has left nothing
of theirs.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Set
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from muster.protocol.record_batch import Header

_COUNT = Struct(">I")
_ENTRY = Struct(">qqqq")
_FIELDS: Final = 4


class AbortedTransaction(NamedTuple):
    """Its producer, its first offset in the partition and the offset of its marker."""

    producer_id: int
    first_offset: int
    last_offset: int


class Aborted:
    """The aborted transactions of one partition, by the offsets of their markers. Grows only at its end, so
    readers need no lock; `without_before` and `without` make a new one."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries = array("q")  # producer id, first and last offset, last stable offset

    def __len__(self) -> int:
        return len(self._entries) // _FIELDS

    def __iter__(self) -> Iterator[AbortedTransaction]:
        return map(self._at, range(len(self)))

    def _at(self, number: int) -> AbortedTransaction:
        at = _FIELDS * number
        return AbortedTransaction(*self._entries[at : at + 3])

    def _first_reaching(self, offset: int) -> int:
        """The number of the first whose marker is at or after `offset`."""
        return bisect_left(range(len(self)), offset, key=lambda number: self._entries[_FIELDS * number + 2])

    def add(self, transaction: AbortedTransaction, stable_offset: int) -> None:
        """A transaction's marker is in the log; nothing below `stable_offset` is undecided any more."""
        self._entries.extend((*transaction, stable_offset))

    def reaches(self, offset: int) -> bool:
        """Whether any may have records at or after `offset`."""
        return self._first_reaching(offset) < len(self)

    def between(self, offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Those that may have records in [offset, end_offset)."""
        found = []
        for number in range(self._first_reaching(offset), len(self)):
            transaction = self._at(number)
            if transaction.first_offset < end_offset:
                found.append(transaction)
            if self._entries[_FIELDS * number + 3] >= end_offset:
                break  # what was undecided then begins after that
        return found

    def without_before(self, start_offset: int) -> Aborted:
        """The ones that remain when the log begins at `start_offset`."""
        gone = self._first_reaching(start_offset)
        if not gone:
            return self
        left = Aborted()
        left._entries = self._entries[_FIELDS * gone :]
        return left

    def without(self, markers: Set[int]) -> Aborted:
        """All but the ones whose markers are at these offsets."""
        gone = [number for number in range(len(self)) if self._entries[_FIELDS * number + 2] in markers]
        if not gone:
            return self
        left = Aborted()
        begin = 0
        for number in (*gone, len(self)):
            left._entries += self._entries[begin : _FIELDS * number]
            begin = _FIELDS * (number + 1)
        return left

    def snapshot(self) -> bytes:
        entries = self._entries[: _FIELDS * len(self)]
        return _COUNT.pack(len(self)) + Struct(f">{len(entries)}q").pack(*entries)

    def restore(self, snapshot: bytes) -> int:
        """Restore a snapshot; return how many bytes of `snapshot` it took. ValueError if it is truncated."""
        try:
            count: int = _COUNT.unpack_from(snapshot)[0]
            for number in range(count):
                self._entries.extend(_ENTRY.unpack_from(snapshot, _COUNT.size + number * _ENTRY.size))
        except StructError:
            raise ValueError("the snapshot of aborted transactions is truncated") from None
        return _COUNT.size + count * _ENTRY.size


class AbortedRanges:
    """Tells which batches belong to the transactions aborted so far."""

    __slots__ = ("_by_producer",)

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        """`aborted` is in the order of the markers."""
        self._by_producer: dict[int, list[AbortedTransaction]] = {}
        for transaction in aborted:
            self._by_producer.setdefault(transaction.producer_id, []).append(transaction)

    def cover(self, header: Header) -> bool:
        """Whether this batch of records belongs to one of them."""
        if not header.is_transactional:
            return False
        of_producer = self._by_producer.get(header.producer_id, ())
        offset = header.base_offset
        number = bisect_left(of_producer, offset, key=lambda each: each.last_offset)
        return number < len(of_producer) and of_producer[number].first_offset <= offset
