"""The states of a classic group, and all transitions between them.

Kafka documents its own in `ClassicGroupState.java`; the names are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from muster.coordinator.group.events import Trigger


class GroupState(StrEnum):
    """The five states, in Kafka's spelling."""

    EMPTY = "Empty"
    """No members, perhaps offsets. Anybody may commit; a retention sweep removes the group once it has no
    offsets."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Waits for the members' JoinGroups, which are parked, until the rebalance timeout has passed."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """The generation is fixed, JoinGroups are answered; SyncGroups are parked until the leader's arrives."""
    STABLE = "Stable"
    """The assignment is stored and handed out."""
    DEAD = "Dead"
    """The shard is being unloaded."""


_EMPTY, _PREPARING, _COMPLETING = (
    GroupState.EMPTY,
    GroupState.PREPARING_REBALANCE,
    GroupState.COMPLETING_REBALANCE,
)
_STABLE, _DEAD = GroupState.STABLE, GroupState.DEAD

_JOINS_OVER: Final = frozenset({Trigger.ALL_JOINED, Trigger.INITIAL_DELAY_OVER, Trigger.REBALANCE_TIMED_OUT})
_MEMBERS_CHANGED: Final = frozenset(
    {
        Trigger.MEMBER_JOINED,
        Trigger.METADATA_CHANGED,
        Trigger.STATIC_MEMBER_REPLACED,
        Trigger.MEMBER_LEFT,
        Trigger.SESSION_EXPIRED,
        Trigger.SYNC_TIMED_OUT,
    }
)
_UNLOADED: Final = frozenset({Trigger.SHARD_UNLOADED})

TRANSITIONS: Final[Mapping[tuple[GroupState, GroupState], frozenset[Trigger]]] = {
    (_EMPTY, _PREPARING): frozenset({Trigger.MEMBER_JOINED}),
    (_PREPARING, _COMPLETING): _JOINS_OVER,
    (_PREPARING, _EMPTY): _JOINS_OVER,  # nobody is left
    (_COMPLETING, _STABLE): frozenset({Trigger.LEADER_SYNCED}),
    (_COMPLETING, _PREPARING): _MEMBERS_CHANGED,
    (_STABLE, _PREPARING): _MEMBERS_CHANGED
    | {
        Trigger.LEADER_REJOINED,
        Trigger.LOADED_OVERSIZE,
        # A downgraded group was loaded before it had rebalanced.
        Trigger.SHARD_UNLOADED,
        # A consumer group removed a member and left a classic group: the last of the consumer protocol, or a
        # classic one, if it was not allowed to be downgraded before.
        Trigger.REVOCATION_TIMED_OUT,
        Trigger.REBALANCE_TIMED_OUT,
    },
    (_EMPTY, _DEAD): _UNLOADED,
    (_PREPARING, _DEAD): _UNLOADED,
    (_COMPLETING, _DEAD): _UNLOADED,
    (_STABLE, _DEAD): _UNLOADED,
    (_DEAD, _DEAD): _UNLOADED,
}
"""(from, to) -> the triggers that may lead there."""
