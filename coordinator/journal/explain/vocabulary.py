"""The closed lists of words in which explanations speak; tests and dashboards rely on them."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Diagnosis(StrEnum):
    """What a person needs to know: what was really behind a trigger."""

    CRASHED = "crashed"
    """Its connection closed without a LeaveGroup, then its session expired: it died or was killed."""
    STALLED = "stalled"
    """Its heartbeats stopped while its connection stayed open: a blocked event loop, GC, no CPU."""
    POLL_DEADLINE_MISSED = "poll-deadline-missed"
    """The client left by itself because its user did not poll within max.poll.interval.ms."""
    CLEAN_SHUTDOWN = "clean-shutdown"
    """It left, and its connection closed: somebody closed the consumer."""
    EVICTED_BY_ADMIN = "evicted-by-admin"
    NEW_MEMBER = "new-member"
    REJOINED_AFTER_EVICTION = "rejoined-after-eviction"
    """A client that had been put out came back: the second rebalance that the first one brings."""
    SUBSCRIPTION_CHANGED = "subscription-changed"
    ASSIGNOR_CHANGED = "assignor-changed"
    COOPERATIVE_FOLLOW_UP = "cooperative-follow-up"
    """The second half of a cooperative rebalance (KIP-429): what was withheld is handed out."""
    TOPICS_GROWN = "topics-grown"
    """Topics that the group reads have other partitions than before."""
    LEADER_REJOINED = "leader-rejoined"
    STATIC_MEMBER_REPLACED = "static-member-replaced"
    """A static member came back as a new process."""
    DUPLICATE_INSTANCE_ID = "duplicate-instance-id"
    """Two processes that are alive use one group.instance.id."""
    PENDING_MEMBER = "pending-member"
    """A client took a member id, did not come back with it, and everybody waits for it."""
    SLOW_JOIN = "slow-join"
    """A member has not rejoined, and everybody waits for it."""
    SYNC_TIMEOUT = "sync-timeout"
    """A member joined and then did not send SyncGroup in time."""
    GROUP_FULL = "group-full"
    ROLLING_RESTART = "rolling-restart"
    COORDINATOR_MOVED = "coordinator-moved"
    UNKNOWN = "unknown"


class Certainty(StrEnum):
    """How far the evidence carries."""

    CERTAIN = "certain"
    """Recorded facts, or the client's own words, leave nothing else."""
    LIKELY = "likely"
    """The facts fit this best; something rarer would look the same."""
    POSSIBLE = "possible"
    """The facts allow it, and do not speak for it."""


CERTAINTIES: Final = list(Certainty)
"""The surest first."""


class Trigger(StrEnum):
    """What the coordinator recorded at the moment: the values of `group.events.Trigger` that are told apart
    here, and one more. A test compares them."""

    MEMBER_JOINED = "member joined"
    METADATA_CHANGED = "subscription or protocols changed"
    LEADER_REJOINED = "leader rejoined"
    STATIC_MEMBER_REPLACED = "static member returned"
    MEMBER_LEFT = "member left"
    SESSION_EXPIRED = "session expired"
    NEW_MEMBER_EXPIRED = "new member expired"
    PENDING_MEMBER_EXPIRED = "pending member expired"
    SYNC_TIMED_OUT = "sync timed out"
    GROUP_FULL = "group full"
    INITIAL_DELAY_OVER = "initial rebalance delay over"
    REBALANCE_TIMED_OUT = "rebalance timed out"
    LOADED_OVERSIZE = "loaded with more members than allowed"
    SHARD_UNLOADED = "coordinator moved"
    JOIN_REFUSED = "join refused"
    """Not recorded as a trigger: a client was turned away with another error than that the group is full."""


UNKNOWN_CAUSE: Final = "unknown"
"""In place of a trigger, where the journal does not have it."""

PREPARING: Final = "PreparingRebalance"
COMPLETING: Final = "CompletingRebalance"
STABLE: Final = "Stable"
EMPTY: Final = "Empty"
DEAD: Final = "Dead"
