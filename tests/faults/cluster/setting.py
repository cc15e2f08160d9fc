"""Settings shared by all clients of a drill."""

from __future__ import annotations

from typing import Final, NamedTuple

TOPIC: Final = "drilled"
PARTITIONS: Final = 9
IN_TRANSACTIONS: Final = "drilled-in-transactions"
IN_TRANSACTIONS_PARTITIONS: Final = 3
SESSION_TIMEOUT_MS: Final = 60_000
"""Longer than any fault: no fault makes a session expire, so none here requires a rebalance."""
HEARTBEAT_INTERVAL_MS: Final = 1_000
REQUEST_TIMEOUT_MS: Final = 4_000
"""After this a client gives up on a silent broker; long enough for a machine that stalls."""
GIVEN_UP_S: Final = REQUEST_TIMEOUT_MS / 1000
REPEATED_AFTER_S: Final = 0.5
"""A commit that took longer may have been sent twice: its connection or its coordinator was given up."""
COMMIT_EVERY_S: Final = 0.4
PRODUCE_EVERY_S: Final = 0.2
"""Interval at which each producer sends a record to each partition."""
TRANSACT_EVERY_S: Final = 0.1
"""Pause from the end of a transaction to the beginning of the next."""


class Kind(NamedTuple):
    """The kind of a group's members."""

    cooperative: bool
    static: bool

    def __str__(self) -> str:
        return f"{'cooperative' if self.cooperative else 'eager'}-{'static' if self.static else 'dynamic'}"
