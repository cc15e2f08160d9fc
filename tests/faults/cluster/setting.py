"""What all clients of a drill have in common."""

from __future__ import annotations

from typing import Final, NamedTuple

TOPIC: Final = "drilled"
PARTITIONS: Final = 9
IN_TRANSACTIONS: Final = "drilled-in-transactions"
IN_TRANSACTIONS_PARTITIONS: Final = 3
SESSION_TIMEOUT_MS: Final = 60_000
"""Longer than any fault: nobody's session ends by one, so no fault here requires a rebalance."""
HEARTBEAT_INTERVAL_MS: Final = 1_000
REQUEST_TIMEOUT_MS: Final = 4_000
"""After this a client gives a silent broker up; long enough for a machine that stalls."""
GIVEN_UP_S: Final = REQUEST_TIMEOUT_MS / 1000
REPEATED_AFTER_S: Final = 0.5
"""A commit that took longer may have been sent twice: its connection was given up, or its coordinator."""
COMMIT_EVERY_S: Final = 0.4
PRODUCE_EVERY_S: Final = 0.2
"""A record to each partition, from each producer."""
TRANSACT_EVERY_S: Final = 0.1
"""From the end of a transaction to the beginning of the next."""


class Kind(NamedTuple):
    """What a group's members are."""

    cooperative: bool
    static: bool

    def __str__(self) -> str:
        return f"{'cooperative' if self.cooperative else 'eager'}-{'static' if self.static else 'dynamic'}"
