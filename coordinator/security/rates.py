"""Measures usage against quotas as Kafka does. Pure: times are milliseconds that never go back."""

from __future__ import annotations

from collections import deque
from typing import Final

SAMPLES: Final = 11
"""quota.window.num, and controller.quota.window.num."""
SAMPLE_MS: Final = 1_000
"""quota.window.size.seconds, and controller.quota.window.size.seconds."""

_WAIT_MAX_MS: Final = 2**53
"""A tiny limit would ask for more, or for infinity."""


class _Sample:
    __slots__ = ("amount", "began_ms", "last_ms")

    def __init__(self, now_ms: int) -> None:
        self.began_ms = self.last_ms = now_ms
        self.amount = 0.0


class Rate:
    """An amount per second, over the samples in which anything was recorded within the last eleven seconds
    (SampledStat, Rate). A new rate is measured as if ten seconds had passed with nothing recorded."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque()

    def record(self, amount: float, now_ms: int) -> None:
        """Record an amount; a negative one takes back what was recorded."""
        samples = self._samples
        if not samples or now_ms - samples[-1].began_ms >= SAMPLE_MS:
            samples.append(_Sample(now_ms))
            # One more than the full samples and the newest: it may reach into the time that counts.
            if len(samples) > SAMPLES + 1:
                samples.popleft()
        samples[-1].amount += amount
        samples[-1].last_ms = now_ms

    def is_over(self, now_ms: int) -> bool:
        """Whether nothing that was recorded counts any more."""
        return not self._samples or now_ms - self._samples[-1].last_ms >= SAMPLES * SAMPLE_MS

    def a_second(self, now_ms: int) -> float:
        """The rate per second."""
        self._drop(now_ms)
        return sum(sample.amount for sample in self._samples) / (self._elapsed_ms(now_ms) / 1000)

    def throttle_ms(self, limit: float, now_ms: int) -> int:
        """How long to wait until the rate is down to the limit; 0 if it is not above."""
        rate = self.a_second(now_ms)
        if rate <= limit:
            return 0
        return round(min((rate - limit) / limit * self._elapsed_ms(now_ms), _WAIT_MAX_MS))

    def _drop(self, now_ms: int) -> None:
        while self._samples and now_ms - self._samples[0].last_ms >= SAMPLES * SAMPLE_MS:
            self._samples.popleft()

    def _elapsed_ms(self, now_ms: int) -> int:
        elapsed_ms = now_ms - self._samples[0].began_ms if self._samples else 0
        whole = elapsed_ms // SAMPLE_MS
        return elapsed_ms + max(SAMPLES - 1 - whole, 0) * SAMPLE_MS


class TokenBucket:
    """Fills at a rate, up to eleven seconds' worth of tokens, and may be overdrawn once (KIP-599)."""

    __slots__ = ("_at_ms", "_tokens")

    def __init__(self, now_ms: int) -> None:
        self._at_ms = now_ms
        self._tokens: float | None = None
        """None if it is full, whatever the rate."""

    def spend(self, tokens: int, limit: float, now_ms: int) -> None:
        """Take this many tokens, whether or not there are enough."""
        self._tokens = self._there(limit, now_ms) - tokens
        self._at_ms = now_ms

    def is_over(self, now_ms: int) -> bool:
        """Whether it is full again, or at least is not overdrawn and has had time to fill."""
        return self._tokens is None or (self._tokens >= 0 and now_ms - self._at_ms >= SAMPLES * SAMPLE_MS)

    def throttle_ms(self, limit: float, now_ms: int) -> int:
        """How long until it is no longer overdrawn; 0 if it is not."""
        there = self._there(limit, now_ms)
        return round(min(-there / limit * 1000, _WAIT_MAX_MS)) if there < 0 else 0

    def _there(self, limit: float, now_ms: int) -> float:
        burst = limit * SAMPLES * SAMPLE_MS / 1000
        if self._tokens is None:
            return burst
        return min(burst, self._tokens + limit * (now_ms - self._at_ms) / 1000)
