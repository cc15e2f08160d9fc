"""Named deadlines, earliest first."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_STALE_MAX = 64
"""The heap is rebuilt when its entries exceed twice the number of deadlines by more than this."""
_NEVER_MS = 2**63


class _Deadline:
    """A key's deadline, and its earliest entry in the heap."""

    __slots__ = ("at_ms", "number", "queued_ms", "queued_number")

    def __init__(self) -> None:
        self.at_ms: int | None = None  # None: cancelled, and only the heap still knows of it
        self.number = 0  # grows with every `set`: the order within a millisecond
        self.queued_ms = _NEVER_MS
        self.queued_number = 0


class Deadlines(Generic[K]):
    """At most one deadline per key, in epoch milliseconds.

    The heap is lazy: a deadline that moves later (as with every heartbeat) or is cancelled leaves its entry
    in the heap, to be corrected when it comes up. Deadlines in the same millisecond fall due in the order
    they were set.
    """

    __slots__ = ("_by_key", "_count", "_heap", "_sequence")

    def __init__(self) -> None:
        self._by_key: dict[K, _Deadline] = {}
        self._count = 0
        self._heap: list[tuple[int, int, K]] = []
        self._sequence = 0

    def __repr__(self) -> str:
        return f"<Deadlines {self._count} next={self.next()}>"

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: K) -> bool:
        return self.get(key) is not None

    def set(self, key: K, at_ms: int) -> None:
        """Set the key's deadline, replacing any it had."""
        self._sequence = number = self._sequence + 1
        deadline = self._by_key.get(key)
        if deadline is None:
            deadline = self._by_key[key] = _Deadline()
        if deadline.at_ms is None:
            self._count += 1
        deadline.at_ms = at_ms
        deadline.number = number
        if at_ms < deadline.queued_ms:
            self._push(key, deadline, at_ms)
            self._tidy()  # here too, since a caller that only uses `bound` never settles

    def cancel(self, key: K) -> None:
        """Forget the key's deadline, if it has one."""
        deadline = self._by_key.get(key)
        if deadline is not None and deadline.at_ms is not None:
            deadline.at_ms = None
            self._count -= 1

    def get(self, key: K) -> int | None:
        """The key's deadline."""
        deadline = self._by_key.get(key)
        return None if deadline is None else deadline.at_ms

    def next(self) -> int | None:
        """The earliest deadline."""
        self._settle()
        return self._heap[0][0] if self._heap else None

    def bound(self) -> int | None:
        """No deadline is earlier than this; None if there are none. May be that of a cancelled one. Cheaper
        than `next`, which corrects the heap: a heartbeat moves the first deadline more often than not."""
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: int) -> Iterator[K]:
        """Remove and yield the deadlines that are due, earliest first. Deadlines set meanwhile are included
        if due, so a caller that keeps setting one at `now_ms` would never finish: setters add at least a
        millisecond."""
        while True:
            self._settle()
            if not self._heap or self._heap[0][0] > now_ms:
                return
            key = heapq.heappop(self._heap)[2]
            del self._by_key[key]
            self._count -= 1
            yield key

    def _settle(self) -> None:
        """Correct the heap until its first entry is a current deadline."""
        self._tidy()
        while self._heap:
            _, number, key = self._heap[0]
            deadline = self._by_key.get(key)
            if deadline is not None and deadline.at_ms is not None and deadline.number == number:
                return
            heapq.heappop(self._heap)
            if deadline is not None and deadline.queued_number == number:
                if deadline.at_ms is None:
                    del self._by_key[key]
                else:
                    self._push(key, deadline, deadline.at_ms)

    def _tidy(self) -> None:
        """Rebuild the heap when most of it is stale."""
        if len(self._heap) <= 2 * self._count + _STALE_MAX:
            return
        kept, self._by_key, self._heap = self._by_key, {}, []
        for key, deadline in kept.items():
            if deadline.at_ms is not None:
                self._by_key[key] = deadline
                deadline.queued_ms, deadline.queued_number = deadline.at_ms, deadline.number
                self._heap.append((deadline.at_ms, deadline.number, key))
        heapq.heapify(self._heap)

    def _push(self, key: K, deadline: _Deadline, at_ms: int) -> None:
        deadline.queued_ms, deadline.queued_number = at_ms, deadline.number
        heapq.heappush(self._heap, (at_ms, deadline.number, key))
