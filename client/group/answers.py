"""What an error code in a group's answers means, which depends on the request (after Kafka's
AbstractCoordinator and ConsumerCoordinator). Pure."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode


class Action(Enum):
    """What an error leaves to do."""

    AGAIN = auto()
    """The same once more, after a pause."""
    FIND_COORDINATOR = auto()
    """Look for the coordinator, then the same once more."""
    REJOIN = auto()
    """Join again, as the member it is."""
    FORGET_GENERATION = auto()
    """The generation is over: join again under the same member id; partitions are lost."""
    FORGET_MEMBER = auto()
    """The group does not know the member: join as a new one; partitions are lost."""
    NEXT_EPOCH = auto()
    """The coordinator has a newer member epoch (KIP-848), which the next heartbeat tells: then once more."""
    RAISED = auto()
    """Raised, and tried again: somebody may change that."""
    FENCED = auto()
    """Another member has the group instance id (KIP-345): stop."""
    FATAL = auto()
    """Raised: it will not pass."""


_ELSEWHERE: Final = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE: Action.FIND_COORDINATOR,
    ErrorCode.NOT_COORDINATOR: Action.FIND_COORDINATOR,
}
_REMOVED: Final = {
    ErrorCode.UNKNOWN_MEMBER_ID: Action.FORGET_MEMBER,
    ErrorCode.FENCED_INSTANCE_ID: Action.FENCED,
}

ACTIONS: Final[dict[ApiKey, dict[ErrorCode, Action]]] = {
    ApiKey.JOIN_GROUP: _ELSEWHERE
    | _REMOVED
    | {
        ErrorCode.REBALANCE_IN_PROGRESS: Action.AGAIN,
        ErrorCode.MEMBER_ID_REQUIRED: Action.REJOIN,  # with the id that came with it (KIP-394)
    },
    ApiKey.SYNC_GROUP: _ELSEWHERE
    | _REMOVED
    | {
        ErrorCode.REBALANCE_IN_PROGRESS: Action.REJOIN,
        ErrorCode.ILLEGAL_GENERATION: Action.FORGET_GENERATION,
    },
    ApiKey.HEARTBEAT: _ELSEWHERE
    | _REMOVED
    | {
        ErrorCode.REBALANCE_IN_PROGRESS: Action.REJOIN,
        ErrorCode.ILLEGAL_GENERATION: Action.FORGET_GENERATION,
        ErrorCode.GROUP_AUTHORIZATION_FAILED: Action.FATAL,
    },
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _ELSEWHERE
    | _REMOVED
    | {
        ErrorCode.FENCED_MEMBER_EPOCH: Action.FORGET_GENERATION,
        # Of a member that was in: the group is gone. Kafka's client takes that for final.
        ErrorCode.GROUP_ID_NOT_FOUND: Action.FORGET_MEMBER,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: Action.RAISED,
    },
    ApiKey.OFFSET_COMMIT: _ELSEWHERE
    | _REMOVED
    | {
        ErrorCode.REQUEST_TIMED_OUT: Action.FIND_COORDINATOR,
        ErrorCode.REBALANCE_IN_PROGRESS: Action.REJOIN,
        ErrorCode.ILLEGAL_GENERATION: Action.FORGET_GENERATION,
        # A group that was deleted (from v9 on), or that changed to the consumer group protocol (KIP-848).
        ErrorCode.GROUP_ID_NOT_FOUND: Action.FORGET_MEMBER,
        ErrorCode.FENCED_MEMBER_EPOCH: Action.FORGET_MEMBER,
        ErrorCode.STALE_MEMBER_EPOCH: Action.FORGET_GENERATION,
    },
    ApiKey.OFFSET_FETCH: _ELSEWHERE
    | {
        ErrorCode.REQUEST_TIMED_OUT: Action.FIND_COORDINATOR,
        # What the member is called changes while it asks (KIP-848).
        ErrorCode.STALE_MEMBER_EPOCH: Action.AGAIN,
        ErrorCode.UNKNOWN_MEMBER_ID: Action.AGAIN,
    },
}
"""Beside these: codes that may pass by themselves are AGAIN, and the rest FATAL; but for heartbeats, where
the next one tells (AGAIN)."""


def action_of(api_key: ApiKey, code: ErrorCode) -> Action:
    """What `code` in an answer to that request means."""
    known = ACTIONS[api_key].get(code)
    if known is not None:
        return known
    return Action.AGAIN if code.retriable or api_key is ApiKey.HEARTBEAT else Action.FATAL


_REASONS: Final = {
    ErrorCode.REBALANCE_IN_PROGRESS: "the group is rebalancing",
    ErrorCode.ILLEGAL_GENERATION: "the group has moved on to another generation",
    ErrorCode.UNKNOWN_MEMBER_ID: "the group no longer knows the member",
    ErrorCode.MEMBER_ID_REQUIRED: "joining with the member id just given",
    ErrorCode.FENCED_MEMBER_EPOCH: "the group has moved on to another member epoch",
    ErrorCode.GROUP_ID_NOT_FOUND: "the group is gone",
}


def reason_of(code: ErrorCode) -> str:
    """What a member that joins again because of `code` tells the group as its reason."""
    return _REASONS.get(code, code.text)
