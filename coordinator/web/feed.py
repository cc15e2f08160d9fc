"""Journal entries on their way to subscribers, with a bounded queue for each."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from muster.coordinator.journal.entries import Entry

KEPT_MAX: Final = 1_000
"""Entries kept for readers that reconnect."""
WAITING_MAX: Final = 1_000
"""Maximum entries queued for a subscriber; beyond that it is cut off."""
SUBSCRIBERS_MAX: Final = 100


class TooManySubscribers(Exception):
    """No more subscribers are accepted at the moment."""


@dataclass(slots=True, eq=False)
class Numbered:
    """An entry and its place in the stream."""

    number: int
    entry: Entry
    event: bytes | None = None
    """What readers are sent, the same to all; written when the first one is due."""


class Watched(NamedTuple):
    """One group, and the shard it is in."""

    group: str
    shard: int

    def concerned(self, entry: Entry) -> bool:
        return entry.group == self.group or (entry.group is None and entry.shard == self.shard)


class Subscription:
    """The queue of one subscriber."""

    def __init__(
        self, watched: Watched | None, missed: bool, waiting: Sequence[Numbered], waiting_max: int
    ) -> None:
        self.watched = watched
        """None: everything."""
        self.missed = missed
        """Whether it asked to resume from a place that is no longer kept."""
        self.fell_behind = False
        self.ended = False
        """No more entries will come."""
        self._waiting = deque(each for each in waiting if self._wants(each))
        self._waiting_max = waiting_max
        self._wake = asyncio.Event()
        if self._waiting:
            self._wake.set()

    def _wants(self, each: Numbered) -> bool:
        return self.watched is None or self.watched.concerned(each.entry)

    def offer(self, each: Numbered) -> bool:
        """Queue an entry. False if that exceeds the limit, which cuts the subscription off."""
        if self.ended or not self._wants(each):
            return True
        if len(self._waiting) >= self._waiting_max:
            self.fell_behind = True
            self._waiting.clear()
            self.end()
            return False
        self._waiting.append(each)
        self._wake.set()
        return True

    def end(self) -> None:
        """End it after the queued entries."""
        self.ended = True
        self._wake.set()

    async def next(self, timeout_s: float) -> list[Numbered]:
        """The queued entries, as soon as there are any; an empty list after `timeout_s` or at the end."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            return []
        found = list(self._waiting)
        self._waiting.clear()
        if not self.ended:
            self._wake.clear()
        return found


class Feed:
    """Numbers entries as they arrive, keeps the newest, and passes them to subscriptions. Numbers are valid
    only in this process, so places carry its mark."""

    def __init__(self, *, kept_max: int = KEPT_MAX, waiting_max: int = WAITING_MAX) -> None:
        self._mark = os.urandom(4).hex()
        self._next = 0
        self._kept: deque[Numbered] = deque(maxlen=kept_max)
        self._waiting_max = waiting_max
        self._subscriptions: set[Subscription] = set()
        self._closed = False
        self.cut = 0
        """Number of subscriptions cut off."""

    @property
    def subscribers(self) -> int:
        return len(self._subscriptions)

    def observe(self, entries: Sequence[Entry]) -> None:
        """Call this with entries added to a journal."""
        for entry in entries:
            each = Numbered(self._next, entry)
            self._next += 1
            self._kept.append(each)
            for subscription in self._subscriptions:
                self.cut += not subscription.offer(each)

    def place(self, each: Numbered) -> str:
        """The value for Last-Event-ID."""
        return f"{self._mark}-{each.number}"

    def subscribe(self, watched: Watched | None = None, after: str | None = None) -> Subscription:
        """Subscribe from now on, or from after a place. End it with `give_back`. Raises
        TooManySubscribers."""
        if len(self._subscriptions) >= SUBSCRIBERS_MAX:
            raise TooManySubscribers(f"{SUBSCRIBERS_MAX} are open already")
        missed, waiting = self._since(after)
        subscription = Subscription(watched, missed, waiting, self._waiting_max)
        if self._closed:
            subscription.end()
        self._subscriptions.add(subscription)
        return subscription

    def cut_off(self, subscription: Subscription) -> None:
        """End a subscription whose reader takes nothing."""
        self.cut += not subscription.fell_behind
        subscription.fell_behind = True
        subscription.end()

    def give_back(self, subscription: Subscription) -> None:
        """End a subscription."""
        self._subscriptions.discard(subscription)

    def close(self) -> None:
        """End all subscriptions, including future ones."""
        self._closed = True
        for subscription in self._subscriptions:
            subscription.end()

    def _since(self, after: str | None) -> tuple[bool, list[Numbered]]:
        """Whether entries since a place were missed, and the kept entries after it."""
        if after is None:
            return False, []
        mark, _, number = after.rpartition("-")
        first = self._kept[0].number if self._kept else self._next
        if mark != self._mark or not number.isascii() or not number.isdecimal():
            return True, []
        if len(number) > len(str(self._next)):
            return True, []  # int() refuses thousands of digits
        wanted = int(number) + 1
        if wanted > self._next:
            return True, []
        return wanted < first, list(islice(self._kept, max(wanted - first, 0), None))
