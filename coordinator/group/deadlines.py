"""Named deadlines, earliest first."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_STALE_MAX = 64
"""Heap entries beyond twice the number of deadlines that are put up with before the heap is built anew."""


class Deadlines(Generic[K]):
    """At most one deadline per key, in epoch milliseconds.

    The heap is lazy: a deadline that moves later (as every heartbeat moves one) or goes away leaves its entry
    in the heap, which is corrected when it comes up. Deadlines that fall on the same millisecond are due in
    the order they were set.
    """

    __slots__ = ("_at", "_heap", "_queued", "_sequence")

    def __init__(self) -> None:
        self._at: dict[K, tuple[int, int]] = {}  # when, and the number of the setting
        self._queued: dict[K, tuple[int, int]] = {}  # the earliest heap entry of each key
        self._heap: list[tuple[int, int, K]] = []
        self._sequence = 0

    def __repr__(self) -> str:
        return f"<Deadlines {len(self._at)} next={self.next()}>"

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, key: K) -> bool:
        return key in self._at

    def set(self, key: K, at_ms: int) -> None:
        """Set the key's deadline, in place of any it had."""
        self._sequence += 1
        due = (at_ms, self._sequence)
        self._at[key] = due
        queued = self._queued.get(key)
        if queued is None or due < queued:
            self._push(key, due)

    def cancel(self, key: K) -> None:
        """Forget the key's deadline, if it has one."""
        self._at.pop(key, None)

    def get(self, key: K) -> int | None:
        """The key's deadline."""
        due = self._at.get(key)
        return None if due is None else due[0]

    def next(self) -> int | None:
        """The earliest deadline."""
        self._settle()
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: int) -> Iterator[K]:
        """Take the deadlines that have come, earliest first. Deadlines set meanwhile take part if they have
        come too, so what sets a deadline at `now_ms` again and again would never end: setters add at least a
        millisecond."""
        while True:
            self._settle()
            if not self._heap or self._heap[0][0] > now_ms:
                return
            key = heapq.heappop(self._heap)[2]
            del self._queued[key], self._at[key]
            yield key

    def _settle(self) -> None:
        """Correct the heap until its first entry is a deadline as it stands."""
        if len(self._heap) > 2 * len(self._at) + _STALE_MAX:
            self._heap = [(at_ms, number, key) for key, (at_ms, number) in self._at.items()]
            heapq.heapify(self._heap)
            self._queued = dict(self._at)
        while self._heap:
            at_ms, number, key = self._heap[0]
            stands = self._at.get(key)
            if stands == (at_ms, number):
                return
            heapq.heappop(self._heap)
            if self._queued.get(key) == (at_ms, number):
                del self._queued[key]
                if stands is not None:
                    self._push(key, stands)

    def _push(self, key: K, due: tuple[int, int]) -> None:
        self._queued[key] = due
        heapq.heappush(self._heap, (*due, key))
