"""The work of a group's leader: assign partitions to all members, and watch the topics. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from muster.client.assignors import (
    Assignor,
    MemberSubscription,
    TopicPartitions,
    assign_checked,
    assignment_bytes,
    read_assignment,
    read_subscription,
)
from muster.client.errors import may_pass, refusal
from muster.client.group.assignor_calls import calling
from muster.client.group.membership_types import Ask, GroupSettings, Kind
from muster.client.partitions import TopicPartition
from muster.protocol.errors import DecodeError
from muster.protocol.messages.classic_group import JoinGroupResponse, SyncGroupRequest
from muster.protocol.messages.group_admin import DescribeGroupsRequest, DescribeGroupsResponse

_STABLE: Final = "Stable"


class Leadership:
    """Leadership of one generation. `skips`: the group keeps its assignment, and the leader, a static member
    that returned, only watches the topics (KIP-814). It does not know which partitions the topics had at the
    time of the assignment. Partitions added while it was away would have no owner until the next rebalance,
    so it asks the coordinator once which partitions the members have."""

    def __init__(
        self,
        settings: GroupSettings,
        assignor: Assignor,
        members: Iterable[JoinGroupResponse.Member],
        *,
        skips: bool,
    ) -> None:
        self._settings = settings
        self._assignor = assignor
        self._skips = skips
        self.members = {
            each.member_id: _subscription(each.metadata, each.group_instance_id) for each in members
        }
        self.topics = frozenset[str]().union(*(each.topics for each in self.members.values()))
        """All topics that any member subscribes to."""
        self._known: Mapping[str, TopicPartitions] | None = None
        self._assigned: Mapping[str, list[TopicPartition]] | None = None
        self._asks_who_has_what = skips
        self._counts: Counter[str] | None = None
        """Each topic's partition count when assigned, as far as the assignments show it."""

    def next_ask(self) -> Ask | None:
        """The next request needed before the assignments can be sent."""
        settings = self._settings
        if self._skips or self._assigned is not None:
            return None
        if self._known is None:
            return Ask(Kind.TOPICS, settings.request_timeout_ms, topics=self.topics)
        return Ask(Kind.ASSIGN, settings.max_poll_interval_ms, work=partial(self._assign, topics=self._known))

    def _assign(self, topics: Mapping[str, TopicPartitions]) -> dict[str, list[TopicPartition]]:
        with calling(self._assignor, self._settings.group_id):
            return assign_checked(self._assignor, self.members, topics)

    def told_topics(self, topics: Mapping[str, TopicPartitions]) -> None:
        """Take the current partitions of the topics that exist."""
        self._known = topics

    def has_assigned(self, assigned: Mapping[str, list[TopicPartition]]) -> None:
        """Take the assignor's result."""
        self._assigned = assigned

    def assignments(self) -> list[SyncGroupRequest.Assignment]:
        """A valid blob for every member, even without partitions: Java's consumer raises on zero bytes."""
        assigned = self._assigned
        if assigned is None:
            return []
        return [
            SyncGroupRequest.Assignment(
                member_id=member_id, assignment=assignment_bytes(assigned.get(member_id, ()))
            )
            for member_id in self.members
        ]

    # --- watching -------------------------------------------------------------------------------------------

    def watch(self, coordinator: int | None) -> Ask | None:
        """The request that shows whether something changed; None while there is no coordinator to ask."""
        timeout_ms = self._settings.request_timeout_ms
        if not self._asks_who_has_what:
            return Ask(Kind.WATCH, timeout_ms, topics=self.topics)
        if coordinator is None:
            return None
        request = DescribeGroupsRequest(groups=[self._settings.group_id])
        return Ask(Kind.ASSIGNED, timeout_ms, coordinator, request)

    def told_who_has_what(self, response: DescribeGroupsResponse) -> bool:
        """Returns False to ask again; permanent refusals and unreadable answers are ignored."""
        again = False
        for group in response.groups[:1]:
            if group.error_code:
                again = may_pass(refusal(group.error_code).code)
            elif group.group_state != _STABLE:
                again = True
            else:
                with suppress(DecodeError):
                    self._counts = _counted(group)
        self._asks_who_has_what = again
        return not again

    def watch_interval_ms(self) -> int:
        """How long to wait before checking the topics again. Missing topics are checked often."""
        if self._known is None:
            return 0
        settings = self._settings
        if self.topics - self._known.keys():
            return min(settings.retry_backoff_max_ms, settings.metadata_max_age_ms)
        return settings.metadata_max_age_ms

    def changed(self, topics: Mapping[str, TopicPartitions]) -> list[str]:
        """The topics that changed since they were assigned, sorted. Racks matter to a member that has one."""
        before, self._known = self._known, topics
        if before is None:
            counts = self._counts
            if counts is None:
                return []
            return sorted(each for each in self.topics if counts[each] != _count(topics.get(each)))
        return sorted(
            topic
            for topic in before.keys() | topics.keys()
            if self._comparable(before.get(topic)) != self._comparable(topics.get(topic))
        )

    def _comparable(self, topic: TopicPartitions | None) -> TopicPartitions | int | None:
        return topic if topic is None or self._settings.rack else topic.count


def _count(topic: TopicPartitions | None) -> int:
    return 0 if topic is None else topic.count


def _counted(group: DescribeGroupsResponse.DescribedGroup) -> Counter[str]:
    counts = Counter[str]()
    for member in group.members:
        for each in read_assignment(member.member_assignment):
            counts[each.topic] = max(counts[each.topic], each.partition + 1)
    return counts


def _subscription(metadata: bytes, group_instance_id: str | None) -> MemberSubscription:
    try:
        return read_subscription(metadata, group_instance_id)
    except DecodeError:
        # A member with an unreadable subscription gets nothing.
        return MemberSubscription(frozenset(), group_instance_id=group_instance_id)
