"""The types of a membership: its settings, states, requests and results. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final, NamedTuple

from muster.client.assignors import Assignor
from muster.client.partitions import TopicPartition
from muster.protocol.message import Message

NO_NODE: Final = -1
_NO_GENERATION_ID: Final = -1


class State(Enum):
    """The state of a member, in Kafka's terms (`MemberState`)."""

    UNJOINED = auto()
    """Not in the group, or about to rejoin after a failure."""
    PREPARING_REBALANCE = auto()
    """A JoinGroup is in flight."""
    COMPLETING_REBALANCE = auto()
    """In the new generation, waiting for the assignment."""
    JOINING = auto()
    """In the consumer protocol (KIP-848): the first heartbeat is in flight."""
    RECONCILING = auto()
    """In the consumer protocol: the coordinator has assigned something other than what the consumer owns."""
    ACKNOWLEDGING = auto()
    """In the consumer protocol: the consumer owns its assignment, but the coordinator does not know yet."""
    STABLE = auto()


class Generation(NamedTuple):
    """Identifies the member to the coordinator; id -1 and name None outside a generation. In the consumer
    protocol the id is the member epoch, and there is no name."""

    generation_id: int = _NO_GENERATION_ID
    member_id: str = ""
    protocol_name: str | None = None

    @property
    def is_valid(self) -> bool:
        return self.generation_id > _NO_GENERATION_ID


NO_GENERATION: Final = Generation()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """The settings of a member, with Kafka's names and defaults. Raises ValueError naming the invalid
    setting."""

    group_id: str
    assignors: tuple[Assignor, ...]
    """In order of preference; this member's own instances."""
    group_instance_id: str | None = None
    group_protocol: str = "classic"
    """Or "consumer" (KIP-848), or "auto": consumer, and classic if the broker does not offer it."""
    group_remote_assignor: str | None = None
    """The coordinator's assignor in the consumer protocol; None leaves the choice to the coordinator."""
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    request_timeout_ms: int = 30_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    metadata_max_age_ms: int = 300_000
    rack: str = ""
    client_id: str = "muster"
    allow_auto_create_topics: bool = True

    def __post_init__(self) -> None:
        if not self.group_id:
            raise ValueError("group_id: a group needs a name that is not empty")
        if self.group_instance_id is not None and not self.group_instance_id.strip():
            raise ValueError(
                "group_instance_id: a static member needs one that is not blank; None is dynamic"
            )
        for name in (
            "session_timeout_ms",
            "heartbeat_interval_ms",
            "max_poll_interval_ms",
            "request_timeout_ms",
            "retry_backoff_ms",
            "retry_backoff_max_ms",
            "metadata_max_age_ms",
        ):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: {getattr(self, name)} is not above 0")
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ValueError(
                f"heartbeat_interval_ms: {self.heartbeat_interval_ms} is not below session_timeout_ms, "
                f"{self.session_timeout_ms}; a third of it is usual"
            )


class Kind(Enum):
    """The kinds of requests a membership makes, and the response `Membership.answered` takes for each."""

    FIND_COORDINATOR = auto()
    """Ask any broker for the coordinator. Answer: its node id."""
    JOIN = auto()
    SYNC = auto()
    HEARTBEAT = auto()
    LEAVE = auto()
    """Sent to the coordinator. Answer: the response."""
    TOPICS = auto()
    """Ask any broker for `topics`. Answer: the TopicPartitions of those that exist, by name."""
    WATCH = auto()
    """The same, to see whether they have changed."""
    NAMES = auto()
    """Ask any broker for the names of `topic_ids`. Answer: the names of those that exist, by id."""
    ASSIGNED = auto()
    """Ask the coordinator which partitions the members have. Answer: the response."""
    ASSIGN = auto()
    """Call `work`, which may take a while, and raise AssignorFailed. Answer: what it returns."""
    PROBE = auto()
    """Check that the coordinator still responds while it holds a JoinGroup or SyncGroup. Answer: anything."""


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """One request to make now. At most one per kind is outstanding; JOIN, TOPICS, ASSIGN and SYNC together
    count as one kind."""

    kind: Kind
    timeout_ms: int
    node: int = NO_NODE
    request: Message | None = None
    topics: frozenset[str] = frozenset()
    topic_ids: frozenset[uuid.UUID] = frozenset()
    work: Callable[[], Any] = field(default=lambda: None)


class Preparation(NamedTuple):
    """What to give up before (re)joining; None if that callback must not be called."""

    revoked: frozenset[TopicPartition] | None
    """Still the member's until it has joined: commit these."""
    lost: frozenset[TopicPartition] | None
    """May already belong to another member."""
    kept: frozenset[TopicPartition]
    """What to join with."""


class Joined(NamedTuple):
    """The result of a join: the member's partitions in the new generation."""

    assigned: frozenset[TopicPartition]
    revoked: frozenset[TopicPartition] | None
    """The partitions it joined with that it must give up now, before rejoining; None if there are none."""
    added: frozenset[TopicPartition]
    """Newly assigned partitions; reported even if there are none."""
    generation_id: int
    member_id: str
    assignor: str
