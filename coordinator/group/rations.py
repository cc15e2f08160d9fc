"""How often something is told that a client can bring about as often as it likes."""

from __future__ import annotations

from collections.abc import Hashable


class Ration:
    """So many times in a span of time, for each of a bounded number of keys; a key too many is told of no
    more until others have become old. What is kept of a key is its hash, since clients choose how long they
    are."""

    __slots__ = ("_count_max", "_keys_max", "_told", "_within_ms")

    def __init__(self, count_max: int, within_ms: int, *, keys_max: int = 1) -> None:
        self._count_max = count_max
        self._within_ms = within_ms
        self._keys_max = keys_max
        self._told: dict[int, tuple[int, int]] = {}  # since when, and how often it was asked for since

    def __repr__(self) -> str:
        return f"<Ration {self._count_max} in {self._within_ms} ms of {len(self._told)} keys>"

    def allows(self, whose: Hashable, now_ms: int) -> bool:
        """Whether there is one left for the key, which is then taken."""
        return self.take(whose, now_ms) is not None

    def take(self, whose: Hashable, now_ms: int) -> int | None:
        """Take one for the key: None if there is none left, else how often that was so since the last one, as
        far as that is remembered."""
        key = hash(whose)
        since_ms, count = self._told.get(key, (now_ms, 0))
        withheld = 0
        if now_ms - since_ms >= self._within_ms:
            withheld = max(0, count - self._count_max)
            since_ms, count = now_ms, 0
        if key not in self._told and len(self._told) >= self._keys_max:
            self._forget(now_ms)
            if len(self._told) >= self._keys_max:
                return None
        self._told[key] = since_ms, count + 1
        return withheld if count < self._count_max else None

    def _forget(self, now_ms: int) -> None:
        self._told = {key: told for key, told in self._told.items() if now_ms - told[0] < self._within_ms}


class Rations:
    """Those of a shard; keys are of one group or smaller."""

    __slots__ = ("commits_refused", "fenced", "joins_refused")

    def __init__(self) -> None:
        self.commits_refused = Ration(20, 10_000, keys_max=1_000)
        self.fenced = Ration(1, 60_000, keys_max=1_000)
        self.joins_refused = Ration(1, 60_000, keys_max=1_000)
