"""Consumer groups as their records show them (KIP-848), and what must hold for a group's records after every
append: a group is of one kind, has everything that belongs to it, and no partition has two owners.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from muster.coordinator.group.shard import Shard
from muster.protocol.messages.coordinator_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)

Place = tuple[UUID, int]
"""A partition of a topic, by the topic's id."""
_INITIAL_EPOCH: Final = 1
"""The epoch that needs no record."""


class TopicNames:
    """Current and former topic names. An id is never reused; a name may be."""

    def __init__(self, topics: Callable[[], Sequence[Any]]) -> None:
        """`topics` lists the rows of the existing topics."""
        self.of: dict[UUID, str] = {}
        self.ids: dict[str, set[UUID]] = defaultdict(set)
        self.deleted: set[str] = set()
        """Names of deleted topics."""
        self._topics = topics
        self._live: set[UUID] = set()

    def look(self) -> None:
        """Called when the store has changed."""
        rows = self._topics()
        live = {row.topic_id for row in rows}
        if live == self._live:
            return
        for row in rows:
            self.of[row.topic_id] = row.name
            self.ids[row.name].add(row.topic_id)
        self.deleted |= {self.of[topic_id] for topic_id in self._live - live}
        self._live = live

    def is_gone(self, topic_id: UUID) -> bool:
        return topic_id not in self._live

    def id_of(self, name: str) -> UUID | None:
        """The topic's id; None if several topics had the name."""
        ids = self.ids.get(name, set())
        return next(iter(ids)) if len(ids) == 1 else None

    def fill(self, message: Any) -> None:
        """Fill in the name of each topic that a request or response names by id only."""
        for topic in getattr(message, "topics", None) or ():
            if getattr(topic, "name", None) == "" and topic.topic_id in self.of:
                topic.name = self.of[topic.topic_id]
        for group in getattr(message, "groups", ()):
            self.fill(group)


@dataclass(slots=True)
class GroupRecords:
    """The store's records of one consumer group."""

    epoch: int | None = None
    assignment_epoch: int | None = None
    subscriptions: dict[str, ConsumerGroupMemberMetadataValue] = field(default_factory=dict)
    targets: dict[str, Any] = field(default_factory=dict)
    current: dict[str, ConsumerGroupCurrentMemberAssignmentValue] = field(default_factory=dict)
    regexes: dict[str, Any] = field(default_factory=dict)
    joined_in_no_epoch: set[str] = field(default_factory=set)
    """Members that joined a group which migrated before its first generation, so in epoch 0: nothing is
    written for them before their first epoch."""

    @property
    def exists(self) -> bool:
        return bool(
            self.epoch is not None
            or self.assignment_epoch is not None
            or self.subscriptions
            or self.targets
            or self.current
            or self.regexes
        )

    @property
    def epochs(self) -> tuple[int, int]:
        """The epochs of the group and of its target."""
        return self.epoch or _INITIAL_EPOCH, self.assignment_epoch or _INITIAL_EPOCH

    def faults(self) -> Iterator[str]:
        """What is wrong with the records, between two appends."""
        if not self.exists:
            return
        epoch, assignment_epoch = self.epochs
        if assignment_epoch > epoch:
            yield f"its target is of epoch {assignment_epoch}, it is in {epoch}"
        if self.current.keys() | self.joined_in_no_epoch != self.subscriptions.keys():
            yield f"it has members {set(self.subscriptions)}, and assignments of {set(self.current)}"
        if not self.targets.keys() <= self.subscriptions.keys():
            yield f"it has members {set(self.subscriptions)}, and targets of {set(self.targets)}"
        owners: dict[Place, str] = {}
        for member_id, has in self.current.items():
            if has.member_epoch > assignment_epoch:
                yield f"{member_id} is in epoch {has.member_epoch}, the target in {assignment_epoch}"
            for place in held(has):
                other = owners.setdefault(place, member_id)
                if other != member_id:
                    yield f"{place} has two owners: {other} and {member_id}"
        wanted = {each.subscribed_topic_regex for each in self.subscriptions.values()}
        if not self.regexes.keys() <= wanted:
            yield f"regular expressions that nobody uses: {set(self.regexes) - wanted}"


def assigned(has: ConsumerGroupCurrentMemberAssignmentValue) -> set[Place]:
    return {(topic.topic_id, number) for topic in has.assigned_partitions for number in topic.partitions}


def held(has: ConsumerGroupCurrentMemberAssignmentValue) -> dict[Place, int]:
    """A member's partitions, including those to be revoked, each with the epoch of its assignment."""
    return {
        (topic.topic_id, number): epoch
        for topics in (has.assigned_partitions, has.partitions_pending_revocation)
        for topic in topics
        for number, epoch in zip(topic.partitions, topic.assignment_epochs or (), strict=True)
    }


_COUNTED: Final = (
    "owners",
    "instances",
    "subscribers",
    "regex_users",
    "assignor_votes",
    "classic_members",
    "classic_protocols",
    "settled",
)


def counted(shard: Shard) -> dict[str, dict[str, object]]:
    """The counts that follow from each consumer group's records, as the shard keeps them."""
    return {
        group_id: {name: getattr(state, name) for name in _COUNTED}
        for group_id, state in shard.hard.consumers.items()
    }


class ConsumerDisk:
    """All consumer groups, as written so far."""

    def __init__(self) -> None:
        self.groups: dict[str, GroupRecords] = defaultdict(GroupRecords)
        self.history: dict[tuple[str, str], list[ConsumerGroupCurrentMemberAssignmentValue]] = defaultdict(
            list
        )
        """Everything that a member of a group was ever written to own."""
        self.touched: set[str] = set()
        """The groups with records since this was last emptied."""

    def is_consumer(self, group_id: str) -> bool:
        return group_id in self.groups and self.groups[group_id].exists

    def written(self, key: Any, value: Any) -> bool:
        """Take in a record; returns whether it is a consumer group's."""
        group_id = getattr(key, "group_id", None)
        if group_id is None:
            return False
        group = self.groups[group_id]
        self.touched.add(group_id)
        match key, value:
            case ConsumerGroupMetadataKey(), ConsumerGroupMetadataValue() | None:
                group.epoch = None if value is None else value.epoch
            case (
                ConsumerGroupTargetAssignmentMetadataKey(),
                ConsumerGroupTargetAssignmentMetadataValue() | None,
            ):
                group.assignment_epoch = None if value is None else value.assignment_epoch
            case ConsumerGroupMemberMetadataKey(), _:
                _put(group.subscriptions, key.member_id, value)
                if value is not None and group.epoch == 0 and key.member_id not in group.current:
                    group.joined_in_no_epoch.add(key.member_id)
                else:
                    group.joined_in_no_epoch.discard(key.member_id)
            case ConsumerGroupTargetAssignmentMemberKey(), _:
                _put(group.targets, key.member_id, value)
            case ConsumerGroupCurrentMemberAssignmentKey(), _:
                _put(group.current, key.member_id, value)
                group.joined_in_no_epoch.discard(key.member_id)
                if value is not None:
                    self.history[group_id, key.member_id].append(value)
            case ConsumerGroupRegularExpressionKey(), _:
                _put(group.regexes, key.regular_expression, value)
            case _:
                raise AssertionError(f"a record that no broker writes any more: {key!r}")
        return True


def _put(table: dict[str, Any], name: str, value: Any) -> None:
    if value is None:
        table.pop(name, None)
    else:
        table[name] = value
