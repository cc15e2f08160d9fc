"""A consumer group as its records say, and what follows from them.

Every change is a record (`records`), and nothing else changes anything here: `group.hard_state` applies them,
while the group lives and when it is loaded. Replaying a log that was compacted shows records in an order in
which they were never written, so most are taken as they come.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
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
"""Member epochs that are none: in requests and, but for the first two, in records."""
INITIAL_EPOCH: Final = 1
"""Of a group and its target before anything has changed; the first change makes it 2."""
NOBODY: Final = -1
"""The epoch of a partition that no member holds."""


class MemberState(IntEnum):
    """How far a member is with its assignment; the numbers are those of the record."""

    STABLE = 0
    """It has all of its target."""
    UNREVOKED_PARTITIONS = 1
    """It has to give up partitions before it reaches the epoch of its target."""
    UNRELEASED_PARTITIONS = 2
    """It waits for partitions that others still hold."""
    UNKNOWN = 127
    """Of a later version."""


class ClassicProtocols(NamedTuple):
    """What a member that speaks the classic protocol said in its JoinGroup."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """Name and metadata, most wanted first."""


class Subscription(NamedTuple):
    """What a member says of itself (record 5)."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    """By name; sorted."""
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
    """What it has yet to give up."""

    @property
    def is_empty(self) -> bool:
        return not self.assigned and not self.revoking


class ResolvedRegex(NamedTuple):
    """The topics a regular expression stands for (record 16)."""

    topics: frozenset[str]
    version: int
    """Of the metadata they were looked up in."""
    at_ms: int
    """When the look-up began, epoch milliseconds."""


FRESH: Final = Current()


class ConsumerState:
    """The records of a group, and what is counted of them."""

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
        """When the target was made; 0: since then the group was empty."""
        self.subscriptions: dict[str, Subscription] = {}
        """Of every member, in the order in which they joined."""
        self.current: dict[str, Current] = {}
        self.targets: dict[str, Assignment] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        # What follows from these.
        self.most = 0
        """How many members there were at once since the group was loaded."""
        self.owners: dict[uuid.UUID, dict[int, int]] = {}
        """The member epoch of who holds each partition, those to be revoked included."""
        self.instances: dict[str, str] = {}
        """Instance id -> member id."""
        self.subscribers: Counter[str] = Counter()
        """How many members subscribe to a topic by name."""
        self.regex_users: Counter[str] = Counter()
        self.assignor_votes: Counter[str] = Counter()
        self.classic_members: set[str] = set()
        self.classic_protocols: Counter[str] = Counter()
        """How many classic members offer a protocol."""
        self.settled: Counter[int] = Counter()
        """How many members are STABLE at an epoch."""

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
        """The records, in a form that compares."""
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
            for name, _ in subscription.classic.protocols:
                _count(self.classic_protocols, name, by)
        if by > 0:
            if subscription.classic is not None:
                self.classic_members.add(member_id)
            if subscription.instance_id is not None:
                self.instances[subscription.instance_id] = member_id
        else:
            self.classic_members.discard(member_id)
            instance_id = subscription.instance_id
            # A static member that returned under another id has the instance by then.
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
                    # A log that was compacted may show the next owner before the last has given it up.
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
        """The epoch of the member that holds a partition; NOBODY (-1)."""
        owners = self.owners.get(topic_id)
        return NOBODY if owners is None else owners.get(partition, NOBODY)

    def target(self, member_id: str) -> Assignment:
        return self.targets.get(member_id, NOTHING)

    def topics_of(self, subscription: Subscription) -> frozenset[str] | tuple[str, ...]:
        """What a member subscribes to by name and by regular expression; one that is not resolved yet stands
        for nothing."""
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
        """Whether all members subscribe alike, as far as counting tells (as Kafka finds it): all by the same
        names, or all by one regular expression and no name."""
        members = len(self.subscriptions)
        if not self.regex_users:
            return all(count == members for count in self.subscribers.values())
        return (
            not self.subscribers
            and len(self.regex_users) == 1
            and next(iter(self.regex_users.values())) == members
        )


def _count(counter: Counter[str] | Counter[int], key: str | int, by: int) -> None:
    """Count, and forget what there is none of."""
    left = counter[key] + by  # type: ignore[index]
    if left > 0:
        counter[key] = left  # type: ignore[index]
    else:
        counter.pop(key, None)  # type: ignore[arg-type]


def partitions(held: Held) -> Assignment:
    """What is held, without the epochs."""
    return {topic_id: frozenset(epochs) for topic_id, epochs in held.items()}


def held_at(assignment: Assignment, epoch: int) -> Held:
    """All of an assignment, held since an epoch."""
    return {topic_id: dict.fromkeys(sorted(numbers), epoch) for topic_id, numbers in assignment.items()}


def count_held(held: Mapping[uuid.UUID, Iterable[int]]) -> int:
    return sum(len(list(numbers)) for numbers in held.values())
