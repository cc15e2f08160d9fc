"""The meaning of error codes in responses to group requests; it depends on the request (as in Kafka's
AbstractCoordinator and ConsumerCoordinator). Pure."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode


class Action(Enum):
    """What to do about an error."""

    AGAIN = auto()
    """Retry after a pause."""
    FIND_COORDINATOR = auto()
    """Look up the coordinator, then retry."""
    REJOIN = auto()
    """Rejoin as the same member."""
    FORGET_GENERATION = auto()
    """The generation has ended: rejoin with the same member id; partitions are lost."""
    FORGET_MEMBER = auto()
    """The group does not know the member: rejoin as a new one; partitions are lost."""
    NEXT_EPOCH = auto()
    """The coordinator has a newer member epoch (KIP-848): retry after the next heartbeat, which gets it."""
    RAISED = auto()
    """Raise, and retry: somebody may fix the cause."""
    FENCED = auto()
    """Another member uses the group instance id (KIP-345): stop."""
    FATAL = auto()
    """Raise: it is permanent."""


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
        ErrorCode.MEMBER_ID_REQUIRED: Action.REJOIN,  # with the id in the response (KIP-394)
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
        # For a member that had joined: the group is gone. Kafka's client treats this as fatal.
        ErrorCode.GROUP_ID_NOT_FOUND: Action.FORGET_MEMBER,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: Action.RAISED,
    },
    ApiKey.OFFSET_COMMIT: _ELSEWHERE
    | _REMOVED
    | {
        ErrorCode.REQUEST_TIMED_OUT: Action.FIND_COORDINATOR,
        ErrorCode.REBALANCE_IN_PROGRESS: Action.REJOIN,
        ErrorCode.ILLEGAL_GENERATION: Action.FORGET_GENERATION,
        # The group was deleted (v9 and later), or changed to the consumer group protocol (KIP-848).
        ErrorCode.GROUP_ID_NOT_FOUND: Action.FORGET_MEMBER,
        ErrorCode.FENCED_MEMBER_EPOCH: Action.FORGET_MEMBER,
        ErrorCode.STALE_MEMBER_EPOCH: Action.FORGET_GENERATION,
    },
    ApiKey.OFFSET_FETCH: _ELSEWHERE
    | {
        ErrorCode.REQUEST_TIMED_OUT: Action.FIND_COORDINATOR,
        # The member's identity changed while the request was in flight (KIP-848).
        ErrorCode.STALE_MEMBER_EPOCH: Action.AGAIN,
        ErrorCode.UNKNOWN_MEMBER_ID: Action.AGAIN,
    },
}
"""Other codes: retriable ones are AGAIN, the rest FATAL; for Heartbeat all are AGAIN, since the next
one will show."""


def action_of(api_key: ApiKey, code: ErrorCode) -> Action:
    """The action for `code` in a response to this request."""
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
    """The reason that a member gives when it rejoins because of `code`."""
    return _REASONS.get(code, code.text)
