"""What holds for a consumer group between steps."""

from __future__ import annotations

import uuid
from collections import Counter

from muster.coordinator.group.consumer.group import ConsumerGroup
from muster.coordinator.group.consumer.state import LEFT_FOR_A_WHILE, ConsumerState, MemberState
from muster.coordinator.group.timers import TimerKind


def check_consumer_group(group: ConsumerGroup) -> None:
    state, members = group.state, group.members
    assert members.keys() == state.subscriptions.keys()
    assert all(
        member_id == member.member_id == member.identity.member_id for member_id, member in members.items()
    )
    check_counted(state)
    if group.dead:
        return
    assert state.assignment_epoch <= state.epoch
    assert state.current.keys() <= members.keys()
    assert state.targets.keys() <= members.keys()
    assert state.regexes.keys() <= state.regex_users.keys(), "a regular expression that nobody uses"
    if not members:
        assert state.assignment_epoch == state.epoch
        assert not state.owners
    for member_id in members:
        has, said = group.current(member_id), group.subscription(member_id)
        assert has.epoch == LEFT_FOR_A_WHILE or 0 <= has.epoch <= state.assignment_epoch
        assert group.timer(TimerKind.SESSION, member_id) in group.deadlines, (
            f"{member_id} would stay for ever"
        )
        revokes = has.state is MemberState.UNREVOKED_PARTITIONS and said.classic is None
        assert (group.timer(TimerKind.REVOCATION, member_id) in group.deadlines) == revokes
        if said.classic is None:
            assert group.timer(TimerKind.JOIN, member_id) not in group.deadlines
            assert group.timer(TimerKind.SYNC, member_id) not in group.deadlines
        assert bool(has.revoking) <= (has.state is MemberState.UNREVOKED_PARTITIONS)


def check_counted(state: ConsumerState) -> None:
    """Check that the counts equal a recount of the records, and that no partition has two owners."""
    owners: dict[uuid.UUID, dict[int, int]] = {}
    for has in state.current.values():
        for held in (has.assigned, has.revoking):
            for topic_id, partitions in held.items():
                for partition in partitions:
                    assert partition not in owners.setdefault(topic_id, {}), f"two owners of {partition}"
                    owners[topic_id][partition] = has.epoch
    assert state.owners == owners
    said = state.subscriptions.values()
    assert state.subscribers == Counter(topic for each in said for topic in each.topics)
    assert state.regex_users == Counter(each.regex for each in said if each.regex)
    assert state.assignor_votes == Counter(each.server_assignor for each in said if each.server_assignor)
    assert state.classic_members == {
        member_id for member_id, each in state.subscriptions.items() if each.classic is not None
    }
    assert state.classic_protocols == Counter(
        name for each in said if each.classic is not None for name in dict(each.classic.protocols)
    )
    assert state.instances == {
        each.instance_id: member_id
        for member_id, each in state.subscriptions.items()
        if each.instance_id is not None
    }
    assert state.settled == Counter(
        has.epoch for has in state.current.values() if has.state is MemberState.STABLE
    )
