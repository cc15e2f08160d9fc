"""How a consumer is doing, for readiness probes and for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from muster.client.partitions import TopicPartition


@dataclass(frozen=True, slots=True)
class Health:
    """A consumer at one moment. Ages are in seconds, None where there was nothing yet."""

    state: str
    """"new", "running", "stopping" or "closed"."""
    membership: str
    """Of the group: UNJOINED, PREPARING_REBALANCE, COMPLETING_REBALANCE or STABLE; in the consumer protocol
    UNJOINED, JOINING, RECONCILING, ACKNOWLEDGING or STABLE; "" without a group."""
    generation_id: int
    """In the consumer protocol the member epoch; -1 outside of the group."""
    member_id: str
    assignment: frozenset[TopicPartition]
    rebalances: int
    """How many it has lived through."""
    heartbeat_age_s: float | None
    """Since the coordinator last answered a heartbeat."""
    records_age_s: float | None
    """Since records last came from a broker."""
    commit_age_s: float | None
    """Since a commit last succeeded."""
    reader_away_s: float
    """Since the reader last asked for records; 0 while it waits for some."""
    loop_lag_s: float
    """How late the loop was lately to what was due."""
    troubles: Mapping[TopicPartition, str]
    """The partitions that cannot be read at the moment, and why; they are tried again and again."""
    last_error: str
    """What went wrong last, "" for nothing; it may have passed."""
