"""Limits on how often a shard reports what clients can cause at will."""

from __future__ import annotations

from muster.coordinator.base.rate_limiter import RateLimiter


class RateLimiters:
    """A shard's rate limiters; keys are groups or something smaller."""

    __slots__ = ("commits_refused", "fenced", "joins_refused")

    def __init__(self) -> None:
        self.commits_refused = RateLimiter(20, 10_000, keys_max=1_000)
        self.fenced = RateLimiter(1, 60_000, keys_max=1_000)
        self.joins_refused = RateLimiter(1, 60_000, keys_max=1_000)
