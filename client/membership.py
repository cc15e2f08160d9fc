"""One member of a classic group, as a pure state machine: requests out, responses in, time as an argument.

    UNJOINED --join--> JOINING --joined--> SYNCING --synced--> STABLE
       ^                  |                   |                  |
       +------------------+-------------------+------------------+   the group rebalances, or lost the member

What an error code means depends on the request that it answers; `ACTIONS` says so in one place (after Kafka's
AbstractCoordinator). A code that is not there is fatal: it is raised.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import Final

from muster.client.assignors import RANGE, Subscription, assign_ranges
from muster.client.errors import ClientError, refusal
from muster.client.partitions import TopicPartition
from muster.protocol.api import ApiKey
from muster.protocol.embedded import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from muster.protocol.errors import DecodeError, ErrorCode
from muster.protocol.messages.classic_group import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)

PROTOCOL_TYPE: Final = "consumer"
_NO_GENERATION: Final = -1
_REASON_CHARACTERS_MAX: Final = 255  # as Kafka's clients cut it


class State(Enum):
    """Where the member stands."""

    UNJOINED = auto()
    JOINING = auto()
    SYNCING = auto()
    STABLE = auto()


class Action(Enum):
    """What an answer leaves to do."""

    GO_ON = auto()
    AGAIN = auto()
    """The same once more, after a pause."""
    FIND_COORDINATOR = auto()
    """Look for the coordinator, then the same once more."""
    REJOIN = auto()
    """Join again as the member it is."""
    REJOIN_ANEW = auto()
    """Join again: the group does not know the member any more."""


_ELSEWHERE: Final = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE: Action.FIND_COORDINATOR,
    ErrorCode.NOT_COORDINATOR: Action.FIND_COORDINATOR,
}
_LEFT_BEHIND: Final = {
    ErrorCode.REBALANCE_IN_PROGRESS: Action.REJOIN,
    ErrorCode.ILLEGAL_GENERATION: Action.REJOIN,
    ErrorCode.UNKNOWN_MEMBER_ID: Action.REJOIN_ANEW,
}

ACTIONS: Final[dict[ApiKey, dict[ErrorCode, Action]]] = {
    ApiKey.JOIN_GROUP: _ELSEWHERE
    | {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: Action.AGAIN,
        ErrorCode.REBALANCE_IN_PROGRESS: Action.AGAIN,
        ErrorCode.MEMBER_ID_REQUIRED: Action.REJOIN,  # with the id that came with it (KIP-394)
        ErrorCode.ILLEGAL_GENERATION: Action.REJOIN,
        ErrorCode.UNKNOWN_MEMBER_ID: Action.REJOIN_ANEW,
    },
    ApiKey.SYNC_GROUP: _ELSEWHERE | _LEFT_BEHIND | {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: Action.REJOIN},
    ApiKey.HEARTBEAT: _ELSEWHERE | _LEFT_BEHIND | {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: Action.AGAIN},
    ApiKey.OFFSET_COMMIT: _ELSEWHERE
    | _LEFT_BEHIND
    | {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: Action.AGAIN,
        ErrorCode.REQUEST_TIMED_OUT: Action.FIND_COORDINATOR,
    },
}


class Membership:
    """A dynamic member that subscribes to topics and offers the range assignor.

    Times are milliseconds of one monotonic clock. The defaults are those of Kafka's Java consumer.
    """

    def __init__(
        self,
        group_id: str,
        topics: Iterable[str],
        *,
        session_timeout_ms: int = 45_000,
        heartbeat_interval_ms: int = 3_000,
        max_poll_interval_ms: int = 300_000,
    ) -> None:
        self.group_id = group_id
        self.topics = sorted(topics)
        self.session_timeout_ms = session_timeout_ms
        self.heartbeat_interval_ms = heartbeat_interval_ms
        self.max_poll_interval_ms = max_poll_interval_ms
        self.state = State.UNJOINED
        self.member_id = ""
        self.generation_id = _NO_GENERATION
        self.assignment: frozenset[TopicPartition] = frozenset()
        self._leads: dict[str, Subscription] | None = None  # the members, if this one is to assign
        self._beat_due_ms = 0
        self._poll_due_ms = 0

    def __repr__(self) -> str:
        return (
            f"<Membership {self.group_id} {self.member_id!r} {self.state.name} "
            f"generation={self.generation_id} assigned={len(self.assignment)}>"
        )

    @property
    def is_leader(self) -> bool:
        return self._leads is not None

    @property
    def topics_to_assign(self) -> set[str]:
        """What the leader has to know the partitions of: all topics that any member subscribes to."""
        return {topic for member in (self._leads or {}).values() for topic in member.topics}

    # --- joining --------------------------------------------------------------------------------------------

    def join(self, reason: str = "") -> JoinGroupRequest:
        """Ask to be in the next generation."""
        self.state = State.JOINING
        # Equal subscriptions must be equal bytes, hence sorted topics: the coordinator compares them.
        metadata = encode_subscription(ConsumerProtocolSubscription(topics=self.topics))
        return JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.max_poll_interval_ms,
            member_id=self.member_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[JoinGroupRequest.Protocol(name=RANGE, metadata=metadata)],
            reason=reason[:_REASON_CHARACTERS_MAX],
        )

    def joined(self, response: JoinGroupResponse) -> Action:
        """The group has its next generation, or not. Raises KafkaError for what cannot be helped."""
        if response.error_code:
            if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = response.member_id
            return self._failed(ApiKey.JOIN_GROUP, response.error_code)
        self.member_id = response.member_id
        self.generation_id = response.generation_id
        self._leads = None
        if response.leader == response.member_id:
            self._leads = {
                each.member_id: Subscription(_topics(each.metadata), each.group_instance_id)
                for each in response.members
            }
        self.state = State.SYNCING
        return Action.GO_ON

    def sync(self, partitions: Mapping[str, int]) -> SyncGroupRequest:
        """Ask for the assignment; the leader brings everybody's. `partitions`: how many each topic of
        `topics_to_assign` has."""
        assigned = assign_ranges(self._leads or {}, partitions)
        return SyncGroupRequest(
            group_id=self.group_id,
            generation_id=self.generation_id,
            member_id=self.member_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=RANGE,
            assignments=[
                SyncGroupRequest.Assignment(member_id=member_id, assignment=_assignment(topics))
                for member_id, topics in assigned.items()
            ],
        )

    def synced(self, response: SyncGroupResponse, now_ms: int) -> Action:
        """The assignment is here, or the group has gone on without it."""
        if response.error_code:
            return self._failed(ApiKey.SYNC_GROUP, response.error_code)
        assigned = []
        if response.assignment:  # Zero bytes: the leader forgot this member.
            try:
                assigned = decode_assignment(response.assignment).assigned_partitions
            except DecodeError as error:
                raise ClientError(
                    f"group {self.group_id}: its leader sent no assignment of the range assignor: {error}"
                ) from error
        self.assignment = frozenset(
            TopicPartition(each.topic, partition) for each in assigned for partition in each.partitions
        )
        self.state = State.STABLE
        self._beat_due_ms = now_ms + self.heartbeat_interval_ms
        self.polled(now_ms)
        return Action.GO_ON

    def rejoin(self) -> None:
        """Leave the generation: the group is to be joined again."""
        self.state = State.UNJOINED

    # --- staying --------------------------------------------------------------------------------------------

    def next_deadline(self) -> int:
        """When there is something to do again: `overdue`, or else `beat`."""
        return min(self._beat_due_ms, self._poll_due_ms)

    def polled(self, now_ms: int) -> None:
        """Whoever handles the records asked for more."""
        self._poll_due_ms = now_ms + self.max_poll_interval_ms

    def overdue(self, now_ms: int) -> bool:
        """Whether nobody has asked for records for max.poll.interval.ms: the member has to leave, so that
        others get its partitions."""
        return now_ms >= self._poll_due_ms

    def beat(self, now_ms: int) -> HeartbeatRequest:
        """Say that the member is alive."""
        self._beat_due_ms = now_ms + self.heartbeat_interval_ms
        return HeartbeatRequest(
            group_id=self.group_id, generation_id=self.generation_id, member_id=self.member_id
        )

    def answered(self, api_key: ApiKey, error_code: int) -> Action:
        """What the answer to a heartbeat or commit of the present generation means."""
        return Action.GO_ON if not error_code else self._failed(api_key, error_code)

    def leave(self, reason: str) -> LeaveGroupRequest | None:
        """Leave the group, if it knows this member; it may join again as another."""
        member_id = self.member_id
        self._reset()
        if not member_id:
            return None
        member = LeaveGroupRequest.MemberIdentity(member_id=member_id, reason=reason[:_REASON_CHARACTERS_MAX])
        return LeaveGroupRequest(group_id=self.group_id, members=[member])

    # --- going wrong ----------------------------------------------------------------------------------------

    def _failed(self, api_key: ApiKey, error_code: int) -> Action:
        error = refusal(error_code, about=f"group {self.group_id}")
        action = ACTIONS[api_key].get(error.code)
        if action is None:
            raise error
        if action is Action.REJOIN_ANEW:
            self._reset()
        elif action is Action.REJOIN or self.state in (State.JOINING, State.SYNCING):
            self.state = State.UNJOINED
        return action

    def _reset(self) -> None:
        self.state = State.UNJOINED
        self.member_id = ""
        self.generation_id = _NO_GENERATION
        self.assignment = frozenset()
        self._leads = None


def _topics(metadata: bytes) -> frozenset[str]:
    try:
        return frozenset(decode_subscription(metadata).topics)
    except DecodeError:
        return frozenset()  # A member that nobody understands gets nothing.


def _assignment(topics: Mapping[str, list[int]]) -> bytes:
    """Even of nothing it is a real blob: Java's consumer raises on zero bytes."""
    return encode_assignment(
        ConsumerProtocolAssignment(
            assigned_partitions=[
                ConsumerProtocolAssignment.TopicPartition(topic=topic, partitions=partitions)
                for topic, partitions in topics.items()
            ]
        )
    )
