"""What a muster in this process does where Apache Kafka is known to behave differently, though no answer
shows it at once: from then on the two have different epochs or targets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto
from typing import Final
from unittest.mock import patch

from muster.coordinator.base.step import Step
from muster.coordinator.group import migration
from muster.coordinator.group.consumer import progress
from muster.coordinator.group.consumer.assignors.assignor import Assignment
from muster.coordinator.group.consumer.classic_members import Joining
from muster.coordinator.group.consumer.group import ConsumerGroup
from muster.coordinator.group.consumer.groups import ConsumerGroups
from muster.coordinator.group.consumer.member import ConsumerMember
from muster.coordinator.group.consumer.state import Subscription
from muster.coordinator.group.events import Cause, EpochBumped
from muster.coordinator.group.group import Group
from muster.coordinator.group.shared import Shared
from muster.protocol.messages.classic_group import HeartbeatRequest, HeartbeatResponse, JoinGroupRequest


class Quirk(Enum):
    """A quirk of Kafka's."""

    TIE = auto()
    """Equally many members prefer each of two assignors."""
    OLD_KIND = auto()
    """A target is computed on a heartbeat after which members no longer subscribe alike, or do so again,
    which the group's epoch does not reflect."""
    OTHER_INSTANCE = auto()
    """A member rejoins under another instance id."""
    STRANDED = auto()
    """A regular expression turns out to match nothing, while its members' target is still what they
    subscribed to before."""
    CUT_SHORT = auto()
    """A static member's upgrade cuts a rebalance short, or precedes one that a topic change calls for."""
    CLASSIC_ALONE = auto()
    """In a consumer group whose members all speak the classic protocol, one is told to rejoin."""
    FORGOTTEN = auto()
    """A classic member with a member id joins an empty consumer group."""
    UNLED = auto()
    """A static member's downgrade leaves a classic group that Kafka does not have rebalance."""


_advance: Final = progress.advance
_is_to_have_others: Final = progress._is_to_have_others
_join: Final = ConsumerGroups.join
_heartbeat_of_classic: Final = ConsumerGroups.heartbeat_of_classic
_downgrade_by: Final = migration.downgrade_by


class Watched:
    """The quirks met, by group id."""

    def __init__(self) -> None:
        self._found: dict[str, set[Quirk]] = defaultdict(set)

    def of(self, suffix: str) -> frozenset[Quirk]:
        """The quirks met in the groups of one play."""
        return frozenset().union(*(found for name, found in self._found.items() if name.endswith(suffix)))

    @contextmanager
    def brokers(self) -> Iterator[None]:
        """Brokers inside the block are watched."""
        with (
            patch.object(progress, "advance", self._seen_advance),
            patch.object(progress, "_is_to_have_others", self._seen_stranded),
            patch.object(ConsumerGroups, "join", self._joined()),
            patch.object(ConsumerGroups, "heartbeat_of_classic", self._heartbeat_of_classic()),
            patch.object(migration, "downgrade_by", self._seen_downgrade_by),
        ):
            yield

    def _seen_advance(
        self,
        group: ConsumerGroup,
        member: ConsumerMember,
        said: Subscription,
        owned: Assignment | None,
        cause: Cause,
        step: Step,
    ) -> None:
        state = group.state
        before = state.subscriptions.get(member.member_id)
        owed = group.owed
        due, alike = state.epoch > state.assignment_epoch, state.is_homogeneous()
        _advance(group, member, said, owned, cause, step)
        state = group.state
        bumped = [event.trigger for event in step.events if isinstance(event, EpochBumped)]
        if owed is not None and owed.trigger in bumped:
            self._found[group.group_id].add(Quirk.CUT_SHORT)
        if due and not bumped and alike != state.is_homogeneous():
            self._found[group.group_id].add(Quirk.OLD_KIND)
        if before is not None and before.instance_id != said.instance_id:
            self._found[group.group_id].add(Quirk.OTHER_INSTANCE)
        votes = sorted(state.assignor_votes.values())
        if len(votes) > 1 and votes[-1] == votes[-2]:
            self._found[group.group_id].add(Quirk.TIE)

    def _seen_stranded(self, group: ConsumerGroup, regex: str) -> bool:
        stranded = _is_to_have_others(group, regex)
        if stranded:
            self._found[group.group_id].add(Quirk.STRANDED)
        return stranded

    def _seen_downgrade_by(
        self, group: ConsumerGroup, joining: Joining, groups: dict[str, Group], shared: Shared, step: Step
    ) -> None:
        due = group.state.epoch > group.state.assignment_epoch
        _downgrade_by(group, joining, groups, shared, step)
        if not due and not any(isinstance(event, EpochBumped) for event in step.events):
            self._found[group.group_id].add(Quirk.UNLED)

    def _joined(self) -> object:
        def join(groups: ConsumerGroups, group: ConsumerGroup, request: JoinGroupRequest, step: Step) -> None:
            if not group.members and request.member_id:
                self._found[group.group_id].add(Quirk.FORGOTTEN)
            _join(groups, group, request, step)

        return join

    def _heartbeat_of_classic(self) -> object:
        def heartbeat(
            groups: ConsumerGroups, group: ConsumerGroup, request: HeartbeatRequest, step: Step
        ) -> HeartbeatResponse:
            state = group.state
            alone = len(state.classic_members) == len(group.members)
            if alone and (state.epoch > state.assignment_epoch or progress.has_other_topics(group)):
                self._found[group.group_id].add(Quirk.CLASSIC_ALONE)
            return _heartbeat_of_classic(groups, group, request, step)

        return heartbeat
