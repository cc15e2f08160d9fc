"""The health of a consumer, for readiness probes and for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from muster.client.partitions import TopicPartition


@dataclass(frozen=True, slots=True)
class Health:
    """The state of a consumer at one moment. Ages are in seconds, None if it has not happened yet."""

    state: str
    """"new", "running", "stopping" or "closed"."""
    membership: str
    """In the group: UNJOINED, PREPARING_REBALANCE, COMPLETING_REBALANCE or STABLE; in the consumer protocol
    UNJOINED, JOINING, RECONCILING, ACKNOWLEDGING or STABLE; "" without a group."""
    generation_id: int
    """In the consumer protocol the member epoch; -1 outside the group."""
    member_id: str
    assignment: frozenset[TopicPartition]
    rebalances: int
    """Rebalances so far."""
    heartbeat_age_s: float | None
    """Since the coordinator last answered a heartbeat."""
    heartbeat_overdue_s: float
    """How long the answer to a heartbeat is overdue, 0 if none is."""
    records_age_s: float | None
    """Since records last came from a broker."""
    commit_age_s: float | None
    """Since a commit last succeeded."""
    reader_away_s: float
    """Since the reader last requested records; 0 while it waits for some."""
    loop_lag_s: float
    """How late the event loop recently ran its timers."""
    troubles: Mapping[TopicPartition, str]
    """Partitions that cannot be read at the moment, and why; they are retried."""
    missing_topics: frozenset[str]
    """Topics subscribed to by name that do not exist; they are read once they do."""
    last_error: str
    """The last error, "" for none; it may have passed."""
