"""Limits on what clients could otherwise trigger without bound."""

from __future__ import annotations

from collections.abc import Hashable


class RateLimiter:
    """Allows `count_max` uses in `within_ms` per key, for at most `keys_max` keys.

    With that many keys in use, a new key is refused until an old one expires. Only hashes of keys are kept,
    since clients choose their length.
    """

    __slots__ = ("_count_max", "_keys_max", "_told", "_within_ms")

    def __init__(self, count_max: int, within_ms: int, *, keys_max: int = 1) -> None:
        self._count_max = count_max
        self._within_ms = within_ms
        self._keys_max = keys_max
        self._told: dict[int, tuple[int, int]] = {}  # start of the period, and uses since then

    def __repr__(self) -> str:
        return f"<RateLimiter {self._count_max} in {self._within_ms} ms of {len(self._told)} keys>"

    def allows(self, whose: Hashable, now_ms: int) -> bool:
        """Whether `whose` is within its limit; if so, this use counts."""
        return self.take(whose, now_ms) is not None

    def take(self, whose: Hashable, now_ms: int) -> int | None:
        """Count a use of `whose`. Returns None if it is over its limit, else the number of uses refused since
        the last one allowed, as far as remembered."""
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
