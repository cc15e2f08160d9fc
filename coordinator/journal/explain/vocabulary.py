"""The closed vocabularies of explanations; tests and dashboards rely on them."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Diagnosis(StrEnum):
    """What was really behind a trigger."""

    CRASHED = "crashed"
    """It crashed or was killed: its connection closed without a LeaveGroup, and its session expired or it was
    started again before that."""
    STALLED = "stalled"
    """Its heartbeats stopped while its connection was open: a blocked event loop, GC, CPU starvation."""
    POLL_DEADLINE_MISSED = "poll-deadline-missed"
    """The client left because its application did not poll within max.poll.interval.ms."""
    CLEAN_SHUTDOWN = "clean-shutdown"
    """It left and its connection closed: the consumer was closed."""
    EVICTED_BY_ADMIN = "evicted-by-admin"
    NEW_MEMBER = "new-member"
    REJOINED_AFTER_EVICTION = "rejoined-after-eviction"
    """An evicted client came back: the second rebalance that the first one causes."""
    SUBSCRIPTION_CHANGED = "subscription-changed"
    ASSIGNOR_CHANGED = "assignor-changed"
    COOPERATIVE_FOLLOW_UP = "cooperative-follow-up"
    """The second half of a cooperative rebalance (KIP-429): withheld partitions are handed out."""
    TOPICS_GROWN = "topics-grown"
    """The partitions of the group's topics changed."""
    LEADER_REJOINED = "leader-rejoined"
    STATIC_MEMBER_REPLACED = "static-member-replaced"
    """A static member came back as a new process."""
    DUPLICATE_INSTANCE_ID = "duplicate-instance-id"
    """Two live processes use one group.instance.id."""
    PENDING_MEMBER = "pending-member"
    """A client was given a member id and did not join with it; everyone waits for it."""
    SLOW_JOIN = "slow-join"
    """A member has not rejoined, and everyone waits for it."""
    SYNC_TIMEOUT = "sync-timeout"
    """A member joined but did not send SyncGroup in time."""
    GROUP_FULL = "group-full"
    ROLLING_RESTART = "rolling-restart"
    SLOW_REVOKE = "slow-revoke"
    """A member of a consumer group has not revoked partitions that others wait for (KIP-848)."""
    REGEX_RESOLVED = "regex-resolved"
    """A regular expression that members subscribe to now matches other topics."""
    STATIC_MEMBER_AWAY = "static-member-away"
    """A static member left temporarily, and keeps its partitions meanwhile."""
    FENCED = "fenced"
    """A member used an epoch that it does not have: it gives up all partitions and rejoins."""
    UPGRADED = "upgraded"
    """The first member of the consumer protocol made the classic group a consumer group."""
    DOWNGRADED = "downgraded"
    """The last member of the consumer protocol is gone: the group is a classic one."""
    COORDINATOR_MOVED = "coordinator-moved"
    UNKNOWN = "unknown"


class Certainty(StrEnum):
    """How conclusive the evidence is."""

    CERTAIN = "certain"
    """Recorded facts or the client's own reason leave no other possibility."""
    LIKELY = "likely"
    """The best fit; something rarer would look the same."""
    POSSIBLE = "possible"
    """Consistent with the facts, without support from them."""


CERTAINTIES: Final = list(Certainty)
"""The most certain first."""


class Kind(StrEnum):
    """Kafka's types of groups."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    """KIP-848: the coordinator assigns, and members reach their targets one by one."""


class Trigger(StrEnum):
    """What the coordinator recorded: the values of `group.events.Trigger` that are distinguished here, and
    a few more. A test compares them."""

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
    REVOCATION_TIMED_OUT = "revocation timed out"
    REGEX_RESOLVED = "regular expression resolved"
    TOPICS_CHANGED = "topics changed"
    ASSIGNOR_CHANGED = "assignor changed"
    UPGRADED = "first member of the consumer protocol"
    JOIN_REFUSED = "join refused"
    """Not a recorded trigger: a client was refused for a reason other than a full group."""
    MEMBER_FENCED = "member fenced"
    """Not a recorded trigger: a member used an epoch that it does not have."""
    STATIC_MEMBER_AWAY = "static member away"
    """Not a recorded trigger: a static member left temporarily."""
    DOWNGRADED = "group downgraded"
    """Not a recorded trigger: a consumer group became a classic one without a rebalance."""


TRIGGERS_OF_INCIDENTS: Final = (
    Trigger.JOIN_REFUSED,
    Trigger.MEMBER_FENCED,
    Trigger.STATIC_MEMBER_AWAY,
    Trigger.DOWNGRADED,
)
"""Triggers that no coordinator records."""


UNKNOWN_CAUSE: Final = "unknown"
"""Used when the journal lacks the trigger."""

PREPARING: Final = "PreparingRebalance"
COMPLETING: Final = "CompletingRebalance"
ASSIGNING: Final = "Assigning"
RECONCILING: Final = "Reconciling"
STABLE: Final = "Stable"
EMPTY: Final = "Empty"
DEAD: Final = "Dead"
