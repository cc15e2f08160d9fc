"""Transactions that are open on a partition, and what they hold back: readers of committed records stop at
the last stable offset, where the oldest of them begins (KIP-98)."""

from __future__ import annotations

from typing import NamedTuple


class OpenTransaction(NamedTuple):
    """A transaction that has written to a partition and has no marker there yet."""

    producer_id: int
    producer_epoch: int
    first_offset: int
    began_ms: int | None
    """The time of its first record in epoch milliseconds, as set by the producer or the topic; None if it
    cannot be read."""
    open_since_ms: int
    """When it began by this broker's clock, in epoch milliseconds; when the log was opened, if it began
    before."""


class HeldBack(NamedTuple):
    """What is held back on a partition whose last stable offset is below its high watermark."""

    last_stable_offset: int
    high_watermark: int
    oldest: OpenTransaction
    """It begins at the last stable offset, unless the log start has passed it."""
    others: int
    """How many more are open."""

    @property
    def records(self) -> int:
        """How many offsets are held back."""
        return self.high_watermark - self.last_stable_offset
