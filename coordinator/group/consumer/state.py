"""A consumer group as its records describe it, and what follows from them.

Every change is a record (`records`), and nothing else changes anything here: `group.hard_state` applies them,
while the group lives and when it is loaded. Replaying a compacted log shows records in an order in which they
were never written, so most are accepted as they come.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from muster.coordinator.group.consumer.assignors.assignor import Assignment

Held = Mapping[uuid.UUID, Mapping[int, int]]
"""Topic id -> partition -> the member epoch at which it was assigned (KIP-1251)."""

NOTHING_HELD: Final[Held] = {}
NOTHING: Final[Assignment] = {}

JOINING: Final = 0
LEFT: Final = -1
LEFT_FOR_A_WHILE: Final = -2
"""Special values in place of member epochs: in requests and, except for the first two, in records."""
INITIAL_EPOCH: Final = 1
"""The epoch of a group and its target before anything has changed; the first change makes it 2."""
NOBODY: Final = -1
"""The epoch of a partition that no member holds."""


class MemberState(IntEnum):
    """How far a member has got with its assignment; the numbers are the record's."""

    STABLE = 0
    """It has all of its target."""
    UNREVOKED_PARTITIONS = 1
    """It has to revoke partitions before it reaches the epoch of its target."""
    UNRELEASED_PARTITIONS = 2
    """It waits for partitions that others still hold."""
    UNKNOWN = 127
    """A state of a later version."""


class ClassicProtocols(NamedTuple):
    """What a member that speaks the classic protocol said in its JoinGroup."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """Name and metadata, most preferred first."""


class Subscription(NamedTuple):
    """What a member says about itself (record 5)."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    """Topics subscribed to by name; sorted."""
    regex: str = ""
    """"": it subscribes by name alone."""
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic: ClassicProtocols | None = None
    """None: it speaks the consumer protocol."""


class Current(NamedTuple):
    """What a member has (record 8)."""

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Held = NOTHING_HELD
    revoking: Held = NOTHING_HELD
    """What it has yet to revoke."""

    @property
    def is_empty(self) -> bool:
        return not self.assigned and not self.revoking


class ResolvedRegex(NamedTuple):
    """The topics a regular expression matches (record 16)."""

    topics: frozenset[str]
    version: int
    """Version of the metadata they were looked up in."""
    at_ms: int
    """When the look-up began, epoch milliseconds."""


FRESH: Final = Current()


class ConsumerState:
    """The records of a group, and counts derived from them."""

    __slots__ = (
        "assigned_at_ms",
        "assignment_epoch",
        "assignor_votes",
        "classic_members",
        "classic_protocols",
        "current",
        "epoch",
        "instances",
        "metadata_hash",
        "most",
        "owners",
        "regex_users",
        "regexes",
        "settled",
        "subscribers",
        "subscriptions",
        "targets",
    )

    def __init__(self) -> None:
        self.epoch = INITIAL_EPOCH
        self.metadata_hash = 0
        self.assignment_epoch = INITIAL_EPOCH
        self.assigned_at_ms = 0
        """When the target was made; 0: while the group was empty, or by an upgrade."""
        self.subscriptions: dict[str, Subscription] = {}
        """Every member's, in the order in which they joined."""
        self.current: dict[str, Current] = {}
        self.targets: dict[str, Assignment] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        # Derived from these.
        self.most = 0
        """The largest number of members at once since the group was loaded."""
        self.owners: dict[uuid.UUID, dict[int, int]] = {}
        """The member epoch of each partition's holder, including partitions to be revoked."""
        self.instances: dict[str, str] = {}
        """Instance id -> member id."""
        self.subscribers: Counter[str] = Counter()
        """Number of members that subscribe to each topic by name."""
        self.regex_users: Counter[str] = Counter()
        self.assignor_votes: Counter[str] = Counter()
        self.classic_members: set[str] = set()
        self.classic_protocols: Counter[str] = Counter()
        """Number of classic members that offer each protocol."""
        self.settled: Counter[int] = Counter()
        """Number of members that are STABLE at each epoch."""

    def __repr__(self) -> str:
        return (
            f"<ConsumerState epoch={self.epoch} target={self.assignment_epoch} members="
            f"{len(self.subscriptions)} classic={len(self.classic_members)}>"
        )

    @property
    def is_gone(self) -> bool:
        """Whether no record of it is left."""
        return not (
            self.epoch > INITIAL_EPOCH
            or self.metadata_hash
            or self.assignment_epoch > INITIAL_EPOCH
            or self.subscriptions
            or self.current
            or self.targets
            or self.regexes
        )

    def durable(self) -> tuple[object, ...]:
        """The records, in a comparable form."""
        return (
            self.epoch,
            self.metadata_hash,
            self.assignment_epoch,
            self.assigned_at_ms,
            dict(self.subscriptions),
            dict(self.current),
            dict(self.targets),
            dict(self.regexes),
        )

    # --- records --------------------------------------------------------------------------------------------

    def put_subscription(self, member_id: str, subscription: Subscription) -> None:
        before = self.subscriptions.get(member_id)
        if before is not None:
            self._count_subscription(member_id, before, -1)
        self.subscriptions[member_id] = subscription
        self.most = max(self.most, len(self.subscriptions))
        self._count_subscription(member_id, subscription, 1)

    def delete_subscription(self, member_id: str) -> None:
        before = self.subscriptions.pop(member_id, None)
        if before is not None:
            self._count_subscription(member_id, before, -1)

    def _count_subscription(self, member_id: str, subscription: Subscription, by: int) -> None:
        for topic in subscription.topics:
            _count(self.subscribers, topic, by)
        if subscription.regex:
            _count(self.regex_users, subscription.regex, by)
        if subscription.server_assignor is not None:
            _count(self.assignor_votes, subscription.server_assignor, by)
        if subscription.classic is not None:
            for name in dict(subscription.classic.protocols):
                _count(self.classic_protocols, name, by)
        if by > 0:
            if subscription.classic is not None:
                self.classic_members.add(member_id)
            if subscription.instance_id is not None:
                self.instances[subscription.instance_id] = member_id
        else:
            self.classic_members.discard(member_id)
            instance_id = subscription.instance_id
            # By then, the instance may belong to a static member that returned under another id.
            if instance_id is not None and self.instances.get(instance_id) == member_id:
                del self.instances[instance_id]

    def put_current(self, member_id: str, current: Current) -> None:
        before = self.current.get(member_id)
        if before is not None:
            self._release(before)
        self.current[member_id] = current
        for held in (current.assigned, current.revoking):
            for topic_id, partitions in held.items():
                owners = self.owners.setdefault(topic_id, {})
                for partition in partitions:
                    before_epoch = owners.get(partition)
                    # A compacted log may show the next owner before the last one has given the partition up.
                    if before_epoch is None or current.epoch >= before_epoch:
                        owners[partition] = current.epoch
        if current.state is MemberState.STABLE:
            _count(self.settled, current.epoch, 1)

    def delete_current(self, member_id: str) -> None:
        before = self.current.pop(member_id, None)
        if before is not None:
            self._release(before)

    def _release(self, current: Current) -> None:
        for held in (current.assigned, current.revoking):
            for topic_id, partitions in held.items():
                owners = self.owners.get(topic_id)
                if owners is None:
                    continue
                for partition in partitions:
                    if owners.get(partition) == current.epoch:
                        del owners[partition]
                if not owners:
                    del self.owners[topic_id]
        if current.state is MemberState.STABLE:
            _count(self.settled, current.epoch, -1)

    # --- what follows ---------------------------------------------------------------------------------------

    def owner_epoch(self, topic_id: uuid.UUID, partition: int) -> int:
        """The epoch of the member that holds a partition; NOBODY (-1) if none does."""
        owners = self.owners.get(topic_id)
        return NOBODY if owners is None else owners.get(partition, NOBODY)

    def target(self, member_id: str) -> Assignment:
        return self.targets.get(member_id, NOTHING)

    def topics_of(self, subscription: Subscription) -> frozenset[str] | tuple[str, ...]:
        """The topics a member subscribes to by name and by regular expression; an unresolved expression
        matches nothing."""
        if not subscription.regex:
            return subscription.topics
        resolved = self.regexes.get(subscription.regex)
        if resolved is None:
            return subscription.topics
        return resolved.topics.union(subscription.topics) if subscription.topics else resolved.topics

    def subscribed_topics(self) -> set[str]:
        """Every topic that a member subscribes to."""
        topics = set(self.subscribers)
        for regex in self.regex_users:
            resolved = self.regexes.get(regex)
            if resolved is not None:
                topics |= resolved.topics
        return topics

    def is_homogeneous(self) -> bool:
        """Whether all members subscribe alike, as far as counts show (as in Kafka): all by the same names, or
        all by one regular expression and no name."""
        members = len(self.subscriptions)
        if not self.regex_users:
            return all(count == members for count in self.subscribers.values())
        return (
            not self.subscribers
            and len(self.regex_users) == 1
            and next(iter(self.regex_users.values())) == members
        )


def _count(counter: Counter[str] | Counter[int], key: str | int, by: int) -> None:
    """Change a count, and drop it at zero."""
    left = counter[key] + by  # type: ignore[index]
    if left > 0:
        counter[key] = left  # type: ignore[index]
    else:
        counter.pop(key, None)  # type: ignore[arg-type]


def partitions(held: Held) -> Assignment:
    """What is held, without the epochs."""
    return {topic_id: frozenset(epochs) for topic_id, epochs in held.items()}


def held_at(assignment: Assignment, epoch: int) -> Held:
    """A whole assignment, held since one epoch."""
    return {topic_id: dict.fromkeys(sorted(numbers), epoch) for topic_id, numbers in assignment.items()}
