"""A classic group as shown to admins, on the page, to tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from muster.coordinator.group.classic.member import ClassicMember
from muster.coordinator.group.classic.states import GroupState
from muster.coordinator.group.group import GroupView, MemberView, RebalanceView
from muster.protocol.elements import EncodedElements
from muster.protocol.messages.group_admin import DESCRIBED_MEMBER, DescribeGroupsResponse

if TYPE_CHECKING:
    from muster.coordinator.group.classic.group import ClassicGroup


def described(group: ClassicGroup) -> DescribeGroupsResponse.DescribedGroup:
    """The answer to DescribeGroups. Members' metadata is given for a Stable group only: before, it may be for
    a protocol that will not be chosen."""
    protocol_name = group.protocol_name if group.state is GroupState.STABLE else None
    members = [member.encoded(protocol_name) for member in group.members.values()]
    return DescribeGroupsResponse.DescribedGroup(
        group_id=group.group_id,
        group_state=group.state,
        protocol_type=group.protocol_type,
        protocol_data=protocol_name or "",
        members=EncodedElements(DESCRIBED_MEMBER, len(members), b"".join(members)),
    )


def view(group: ClassicGroup) -> GroupView:
    """The group as shown on the page, and to tests."""
    waiting = group.state in (GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE)
    rebalance = None
    if group.rebalance is not None and waiting:
        owing = sum(_owes(group, member) is not None for member in group.members.values())
        if group.state is GroupState.PREPARING_REBALANCE:
            owing += len(group.pending_members)
        rebalance = RebalanceView(group.rebalance.started_ms, group.rebalance.cause.trigger, owing)
    return GroupView(
        group.group_id,
        group.state,
        group.state_timestamp,
        waiting,
        group.state is GroupState.STABLE,
        group.generation_id,
        group.protocol_type,
        group.protocol_name,
        group.leader,
        group.subscribed_topics or frozenset(),
        rebalance,
        len(group.members),
        tuple(group.pending_members.values()),
    )


def member_views(group: ClassicGroup) -> Iterator[MemberView]:
    """Its members as shown outside, in the order in which they joined. Read lazily."""
    for member in list(group.members.values()):
        yield member.view(group.protocol_name, _owes(group, member))


def _owes(group: ClassicGroup, member: ClassicMember) -> str | None:
    """The request that a member owes its group."""
    if group.state is GroupState.PREPARING_REBALANCE and member.parked_join is None:
        return "JoinGroup"
    if group.state is GroupState.COMPLETING_REBALANCE and member.member_id in group.pending_syncs:
        return "SyncGroup"
    return None
