"""What the shard asks of a group of any kind, and what is told of one to everybody outside.

Kinds stand side by side: `classic/`, and `consumer/` (KIP-848). A kind brings a class that is a `Group`, and
the requests that only its members make; offsets, retention and what admins ask are the shard's and the same
for all.
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
    """A group, as its shard knows it. Methods that raise KafkaError have changed nothing then."""

    group_id: str

    @property
    def generation_id(self) -> int:
        """The generation; of a consumer group its epoch."""

    @property
    def members(self) -> Mapping[str, Heard]:
        """By member id, in the order in which they joined."""

    @property
    def is_empty(self) -> bool:
        """Whether it has no members, and is not being given up."""

    def stamp(self, step: Step, cause: Cause) -> Stamp:
        """What an event of this step begins with."""

    def validate_commit(self, request: OffsetCommitRequest, step: Step) -> None:
        """Raise unless the sender may commit; if it is a member, it was heard of."""

    def validate_transactional_commit(self, request: TxnOffsetCommitRequest, step: Step) -> None:
        """Raise unless the sender may commit in a transaction. It may say nothing of itself; a member that
        sends it was not heard of."""

    def validate_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Raise unless a member that says who it is may fetch offsets (OffsetFetch v9): UNKNOWN_MEMBER_ID,
        STALE_MEMBER_EPOCH, ILLEGAL_GENERATION."""

    def validate_delete(self) -> None:
        """Raise unless an admin may delete the group: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""

    def validate_offset_delete(self) -> None:
        """Raise unless an admin may delete offsets: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""

    def is_subscribed(self, topic: str) -> bool:
        """Whether members use the topic's offsets."""

    def retention_base(self) -> RetentionBase | None:
        """When the retention of its offsets begins; None: not while the group is as it is."""

    def topics_changed(self, names: frozenset[str]) -> None:
        """The shard knows other topics now: these."""

    def restart_session(self, member: Heard, now_ms: int) -> None:
        """The member was heard of."""

    def keep_session(self, member: Heard, until_ms: int) -> None:
        """The member counts as alive until then, and has a full session afterwards."""

    def delete(self, step: Step) -> None:
        """The group, which is empty, goes: with its timers, and its record in the store."""

    def unload(self, step: Step) -> None:
        """Another coordinator takes over: parked requests are to ask there."""

    def described(self) -> DescribeGroupsResponse.DescribedGroup:
        """Its answer to DescribeGroups; GROUP_ID_NOT_FOUND, and Dead, if it is not of the kind that this API
        is for."""

    def listed(self) -> ListGroupsResponse.ListedGroup:
        """Its line in ListGroups."""

    def identities(self) -> list[MemberIdentity]:
        """Its members, in the order in which they joined."""

    def view(self) -> GroupView:
        """What is told of it outside: on the page, to tests."""

    def member_views(self) -> Iterator[MemberView]:
        """What is told of its members, in the order in which they joined. Read as it goes on."""


class RebalanceView(NamedTuple):
    """A rebalance under way."""

    started_ms: int
    trigger: Trigger
    waiting_for: int
    """How many members and clients have yet to send the request that is their turn."""


class PendingMember(NamedTuple):
    """A client that was told its member id and is waited for (KIP-394)."""

    identity: MemberIdentity
    issued_ms: int


class GroupView(NamedTuple):
    """A group at one moment, perhaps before that is durable. Times are epoch milliseconds."""

    group_id: str
    state: str
    """Kafka's name of it."""
    state_since_ms: int
    """UNKNOWN_TIME (-1) where old records do not say."""
    is_rebalancing: bool
    is_stable: bool
    """Whether its members have the assignment of the present generation."""
    generation_id: int
    protocol_type: str
    protocol_name: str | None
    leader: str | None
    """The leader's member id."""
    subscribed_topics: frozenset[str]
    """Those of the present generation, as far as they are known."""
    rebalance: RebalanceView | None
    members: int
    pending: tuple[PendingMember, ...]
    type: str = "classic"
    """Kafka's name of the group's kind: classic, consumer."""


class MemberView(NamedTuple):
    """A member at one moment. Times are epoch milliseconds."""

    member_id: str
    identity: MemberIdentity
    """As it joined last."""
    client_id: str
    client_host: str
    """Of its first join, as is the client id."""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    heard_ms: int
    """When it was last heard of."""
    connection_id: int | None
    """The connection it was last heard on, while that is open."""
    owes: str | None
    """The request of it that the group waits for: JoinGroup, SyncGroup or none."""
    topics: Callable[[], Sequence[str] | None]
    """What it subscribes to; None where that cannot be read."""
    assignment: Callable[[], Sequence[TopicPartition] | None]
    """What it was assigned last; None where that cannot be read."""


def names_its_sender(request: TxnOffsetCommitRequest) -> bool:
    """Whether a commit says who in the group sends it (KIP-447). Older producers do not, and others need
    not."""
    return (
        request.generation_id_or_member_epoch >= 0
        or request.member_id != ""
        or request.group_instance_id is not None
    )


def committed_at(committed: CommittedOffset) -> int:
    """Retention counts from the commit."""
    return committed.commit_timestamp


def remove(group: Group, groups: dict[str, Group], cause: Cause, step: Step) -> None:
    """Forget an empty group, and who was told an id of it. Its offsets stay."""
    removed = GroupRemoved(*group.stamp(step, cause))  # in its last generation
    group.delete(step)
    del groups[group.group_id]
    step.events.append(removed)


def group_not_found(group_id: str) -> KafkaError:
    """In the words that Kafka has for it."""
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
