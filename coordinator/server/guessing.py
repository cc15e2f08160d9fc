"""Slows down clients that guess passwords and tokens. Nobody is locked out."""

from __future__ import annotations

from typing import Final

from muster.coordinator.base.clock import Clock
from muster.coordinator.base.rate_limiter import RateLimiter

_FAILURES_MAX: Final = 10
_WITHIN_MS: Final = 60_000
_ADDRESSES_MAX: Final = 10_000
SLOW_MS: Final = 5_000
"""How long failures are held back for an address that had `_FAILURES_MAX` of them in a minute."""


class Guessing:
    """The failed logins of each address."""

    def __init__(self, clock: Clock, failed_delay_ms: int) -> None:
        """`clock` is real time; `failed_delay_ms` is how long the answer to any failure is held back."""
        self._clock = clock
        self._failed_delay_ms = failed_delay_ms
        self._failures = RateLimiter(_FAILURES_MAX, _WITHIN_MS, keys_max=_ADDRESSES_MAX)

    def __repr__(self) -> str:
        return f"<Guessing {self._failures!r}>"

    def delay_ms(self, host: str) -> int:
        """How long to hold back the failure of a client at `host`; the call counts the failure."""
        patient = self._failures.allows(host, self._clock.now_ms())
        return self._failed_delay_ms if patient else max(SLOW_MS, self._failed_delay_ms)
