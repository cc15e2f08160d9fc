"""The settings for transactions. Names and defaults are Kafka's."""

from __future__ import annotations

from typing import Final, NamedTuple

NEVER_MS: Final = 2**31 - 1
"""A transaction timeout that never expires."""


class TransactionConfig(NamedTuple):
    """All values are in milliseconds."""

    max_timeout_ms: int = 900_000
    """transaction.max.timeout.ms: no producer may ask for a longer transaction.timeout.ms."""
    id_expiration_ms: int = 604_800_000
    """transactional.id.expiration.ms: an id without a transaction is forgotten this long after its last
    change."""
