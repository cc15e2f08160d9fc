"""The interface of a group of any kind to its shard, and the views of a group for the outside.

Kinds stand side by side: `classic/`, and `consumer/` (KIP-848). A kind brings a class that is a `Group`, and
the requests that only its members make; the shard itself handles offsets, retention and admin requests, alike
for all kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from muster.coordinator.base.step import Step
from muster.coordinator.group.committed_offset import CommittedOffset
from muster.coordinator.group.events import Cause, GroupRemoved, MemberIdentity, Stamp, Trigger
from muster.coordinator.group.group_offsets import TopicPartition
from muster.coordinator.group.heard import Heard
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.group_admin import DescribeGroupsResponse, ListGroupsResponse
from muster.protocol.messages.offsets import OffsetCommitRequest
from muster.protocol.messages.transactions import TxnOffsetCommitRequest

Commit = OffsetCommitRequest | TxnOffsetCommitRequest

RetentionBase = Callable[[CommittedOffset], int]
"""When the retention of an offset begins, in epoch milliseconds."""


class Group(Protocol):
    """A group as its shard sees it. A method that raises KafkaError has changed nothing."""

    group_id: str

    @property
    def generation_id(self) -> int:
        """The generation; for a consumer group, its epoch."""

    @property
    def members(self) -> Mapping[str, Heard]:
        """Members by id, in the order in which they joined."""

    @property
    def is_empty(self) -> bool:
        """Whether it has no members and is not being unloaded."""

    def stamp(self, step: Step, cause: Cause) -> Stamp:
        """The fields that every event of this step begins with."""

    def validate_commit(self, request: OffsetCommitRequest, step: Step) -> None:
        """Raise unless the sender may commit. To a classic group it is a sign of life of its member."""

    def validate_transactional_commit(self, request: TxnOffsetCommitRequest, step: Step) -> None:
        """Raise unless the sender may commit in a transaction. The sender need not identify itself; the
        commit is not a sign of life."""

    def validate_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Raise unless a member that identifies itself may fetch offsets (OffsetFetch v9): UNKNOWN_MEMBER_ID,
        STALE_MEMBER_EPOCH, ILLEGAL_GENERATION."""

    def validate_delete(self) -> None:
        """Raise unless an admin may delete the group: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""

    def validate_offset_delete(self) -> None:
        """Raise unless an admin may delete offsets: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""

    def is_subscribed(self, topic: str) -> bool:
        """Whether members use the topic's offsets."""

    def retention_base(self) -> RetentionBase | None:
        """When the retention of its offsets begins; None: not in its present state."""

    def topics_changed(self, names: frozenset[str]) -> None:
        """The topics of these names have changed."""

    def restart_session(self, member: Heard, now_ms: int) -> None:
        """The member was heard from: start its session anew."""

    def keep_session(self, member: Heard, until_ms: int) -> None:
        """Count the member as alive until `until_ms`, with a full session afterwards."""

    def delete(self, step: Step) -> None:
        """Delete the group, which is empty, with its timers and its record in the store."""

    def unload(self, step: Step) -> None:
        """Another coordinator takes over: refuse parked requests, so that clients turn to it."""

    def described(self) -> DescribeGroupsResponse.DescribedGroup:
        """Its answer to DescribeGroups; GROUP_ID_NOT_FOUND and Dead if it is not of the kind that this API is
        for."""

    def listed(self) -> ListGroupsResponse.ListedGroup:
        """Its entry in ListGroups."""

    def identities(self) -> list[MemberIdentity]:
        """Its members, in the order in which they joined."""

    def view(self) -> GroupView:
        """The group as shown outside: on the page, to tests."""

    def member_views(self) -> Iterator[MemberView]:
        """Its members as shown outside, in the order in which they joined. Read lazily."""


class RebalanceView(NamedTuple):
    """A rebalance under way."""

    started_ms: int
    trigger: Trigger
    waiting_for: int
    """How many members and clients have yet to send the request that is due."""


class PendingMember(NamedTuple):
    """A client that was issued a member id and has yet to come back with it (KIP-394)."""

    identity: MemberIdentity
    issued_ms: int


class GroupView(NamedTuple):
    """A group at one moment, perhaps before that state is durable. Times are epoch milliseconds."""

    group_id: str
    state: str
    """Kafka's name for the state."""
    state_since_ms: int
    """UNKNOWN_TIME (-1) if old records do not say."""
    is_rebalancing: bool
    is_stable: bool
    """Whether its members have the assignment of the current generation."""
    generation_id: int
    protocol_type: str
    protocol_name: str | None
    leader: str | None
    """The leader's member id."""
    subscribed_topics: frozenset[str]
    """The topics of the current generation, as far as known."""
    rebalance: RebalanceView | None
    members: int
    pending: tuple[PendingMember, ...]
    type: str = "classic"
    """Kafka's name for the group's kind: classic, consumer."""


class MemberView(NamedTuple):
    """A member at one moment. Times are epoch milliseconds."""

    member_id: str
    identity: MemberIdentity
    """As of its last join."""
    client_id: str
    client_host: str
    """As of its first join, like the client id; in a consumer group, as of its latest."""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    heard_ms: int
    """When it was last heard from."""
    connection_id: int | None
    """The connection it was last heard on, while that is open."""
    owes: str | None
    """What it owes the group: JoinGroup, SyncGroup, in a consumer group a revocation; None: nothing."""
    topics: Callable[[], Sequence[str] | None]
    """The topics it subscribes to; None if they cannot be read."""
    assignment: Callable[[], Sequence[TopicPartition] | None]
    """Its latest assignment; None if it cannot be read."""


def names_its_sender(request: TxnOffsetCommitRequest) -> bool:
    """Whether a commit identifies its sender in the group (KIP-447). Older producers do not, and newer ones
    need not."""
    return (
        request.generation_id_or_member_epoch >= 0
        or request.member_id != ""
        or request.group_instance_id is not None
    )


def committed_at(committed: CommittedOffset) -> int:
    """Retention counts from the commit."""
    return committed.commit_timestamp


def remove(group: Group, groups: dict[str, Group], cause: Cause, step: Step) -> None:
    """Remove an empty group, and forget the clients it issued ids to. Its offsets stay."""
    removed = GroupRemoved(*group.stamp(step, cause))  # in its last generation
    group.delete(step)
    del groups[group.group_id]
    step.events.append(removed)


def group_not_found(group_id: str) -> KafkaError:
    """The error, in Kafka's words."""
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
