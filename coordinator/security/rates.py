"""How Kafka measures what quotas are about. Pure: times are milliseconds that never go back."""

from __future__ import annotations

from collections import deque
from typing import Final

SAMPLES: Final = 11
"""quota.window.num, and controller.quota.window.num."""
SAMPLE_MS: Final = 1_000
"""quota.window.size.seconds, and controller.quota.window.size.seconds."""


class _Sample:
    __slots__ = ("amount", "began_ms", "last_ms")

    def __init__(self, now_ms: int) -> None:
        self.began_ms = self.last_ms = now_ms
        self.amount = 0.0


class Rate:
    """So much a second, over the samples in which anything came within the last eleven seconds (SampledStat,
    Rate). A rate that has just begun is measured as if ten seconds had passed without anything."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque()

    def record(self, amount: float, now_ms: int) -> None:
        """So much came now; a negative amount takes back what came."""
        samples = self._samples
        if not samples or now_ms - samples[-1].began_ms >= SAMPLE_MS:
            samples.append(_Sample(now_ms))
            # One more than the whole ones and the newest: it may reach into the time that counts.
            if len(samples) > SAMPLES + 1:
                samples.popleft()
        samples[-1].amount += amount
        samples[-1].last_ms = now_ms

    def is_over(self, now_ms: int) -> bool:
        """Nothing of what was recorded counts any more."""
        return not self._samples or now_ms - self._samples[-1].last_ms >= SAMPLES * SAMPLE_MS

    def a_second(self, now_ms: int) -> float:
        """The rate."""
        self._drop(now_ms)
        return sum(sample.amount for sample in self._samples) / (self._elapsed_ms(now_ms) / 1000)

    def throttle_ms(self, limit: float, now_ms: int) -> int:
        """How long to wait until the rate is down to the limit; 0: it is not above."""
        rate = self.a_second(now_ms)
        if rate <= limit:
            return 0
        return round((rate - limit) / limit * self._elapsed_ms(now_ms))

    def _drop(self, now_ms: int) -> None:
        while self._samples and now_ms - self._samples[0].last_ms >= SAMPLES * SAMPLE_MS:
            self._samples.popleft()

    def _elapsed_ms(self, now_ms: int) -> int:
        elapsed_ms = now_ms - self._samples[0].began_ms if self._samples else 0
        whole = elapsed_ms // SAMPLE_MS
        return elapsed_ms + max(SAMPLES - 1 - whole, 0) * SAMPLE_MS


class TokenBucket:
    """Tokens that come at a rate, up to those of eleven seconds, and may be overdrawn once (KIP-599)."""

    __slots__ = ("_at_ms", "_tokens")

    def __init__(self, now_ms: int) -> None:
        self._at_ms = now_ms
        self._tokens: float | None = None
        """None: it is full, whatever the rate is."""

    def spend(self, tokens: int, limit: float, now_ms: int) -> None:
        """Take so many, whether they are there or not."""
        self._tokens = self._there(limit, now_ms) - tokens
        self._at_ms = now_ms

    def is_over(self, now_ms: int) -> bool:
        """It is full again, or at least is not overdrawn and has had the time to be."""
        return self._tokens is None or (self._tokens >= 0 and now_ms - self._at_ms >= SAMPLES * SAMPLE_MS)

    def throttle_ms(self, limit: float, now_ms: int) -> int:
        """How long until it is not overdrawn any more; 0: it is not."""
        there = self._there(limit, now_ms)
        return round(-there / limit * 1000) if there < 0 else 0

    def _there(self, limit: float, now_ms: int) -> float:
        burst = limit * SAMPLES * SAMPLE_MS / 1000
        if self._tokens is None:
            return burst
        return min(burst, self._tokens + limit * (now_ms - self._at_ms) / 1000)
