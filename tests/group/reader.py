"""A reader that has only the events: after each step, what it knows of a group must match the group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from muster.coordinator.group.classic.group import ClassicGroup
from muster.coordinator.group.classic.member import LISTED_MAX, ClassicMember
from muster.coordinator.group.classic.states import GroupState
from muster.coordinator.group.consumer.group import ConsumerGroup
from muster.coordinator.group.events import (
    Assigned,
    Event,
    GroupCreated,
    GroupRemoved,
    LeaderChanged,
    MemberAdded,
    MemberIdIssued,
    MemberRemoved,
    MemberReplaced,
    PendingMemberRemoved,
    ProtocolChosen,
    ProtocolMigrated,
    RebalanceCompleted,
    StateChanged,
    Trigger,
)
from muster.coordinator.group.group import Group
from muster.coordinator.group.shard import Shard
from muster.protocol.embedded import decode_assignment
from muster.protocol.errors import DecodeError

Owners = dict[tuple[str, int], str]


@dataclass
class Known:
    """A group as known from its events alone."""

    state: str = "Empty"
    generation_id: int = 0
    protocol: str | None = None
    leader: str | None = None
    members: set[str] = field(default_factory=set)
    pending: set[str] = field(default_factory=set)
    owners: Owners | None = field(default_factory=dict)
    """None: the last assignment could not be decoded."""
    compared: bool = True
    """Whether the last assignment could be compared with an earlier one."""
    migrating: bool = False
    """Whether it has just changed its kind, of which the event gives no details."""


class Reader:
    """Reads a shard's events in order."""

    def __init__(self) -> None:
        self.groups: dict[str, Known] = {}

    def adopt(self, shard: Shard) -> None:
        """Begin with a loaded shard, whose groups appeared without events."""
        self.groups = {group_id: _known(group) for group_id, group in shard.groups.items()}

    def read(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, GroupCreated):
                assert event.group_id not in self.groups
                self.groups[event.group_id] = Known()
            elif event.group_id in self.groups:
                self._read(self.groups[event.group_id], event)
            if isinstance(event, GroupRemoved):
                assert not self.groups.pop(event.group_id).members

    def _read(self, group: Known, event: Event) -> None:
        if isinstance(event, ProtocolMigrated):
            group.migrating = True
        elif not group.migrating:
            self._read_one(group, event)

    def _read_one(self, group: Known, event: Event) -> None:
        assert event.generation_id >= group.generation_id
        group.generation_id = event.generation_id
        who = "" if event.member is None else event.member.member_id
        match event:
            case MemberIdIssued():
                group.pending.add(who)
            case PendingMemberRemoved():
                group.pending.remove(who)
            case MemberAdded():
                assert who not in group.members
                group.members.add(who)
                group.pending.discard(who)
            case MemberRemoved():
                group.members.remove(who)
            case MemberReplaced():
                self._replaced(group, event.old_member_id, who)
            case ProtocolChosen():
                assert event.before == group.protocol != event.protocol
                assert sum(event.votes.values()) == len(group.members)
                group.protocol = event.protocol
            case LeaderChanged():
                assert event.old_member_id == group.leader != who
                group.leader = who
            case Assigned():
                _assigned(group, event)
            case StateChanged():
                assert event.from_state == group.state
                group.state = event.to_state
                assert (event.until_ms is not None) == (
                    event.to_state in ("PreparingRebalance", "CompletingRebalance")
                )
                if event.to_state == "Empty":
                    group.protocol, group.leader, group.owners = None, None, {}
            case RebalanceCompleted():
                assert event.members == len(group.members)
                assert {member.member_id for member, _ in event.joins} <= group.members
                assert [after_ms for _, after_ms in event.joins] == sorted(
                    (after_ms for _, after_ms in event.joins), reverse=True
                )

    def _replaced(self, group: Known, old: str, new: str) -> None:
        group.members.remove(old)
        group.members.add(new)
        if group.leader == old:
            group.leader = new
        if group.owners is not None:
            group.owners = {
                partition: new if owner == old else owner for partition, owner in group.owners.items()
            }

    def check(self, shard: Shard) -> None:
        """Check that what was read matches the shard."""
        assert self.groups.keys() == shard.groups.keys()
        for group_id, known in self.groups.items():
            group = shard.groups[group_id]
            if known.migrating:
                known = self.groups[group_id] = _known(group)
            if isinstance(group, ConsumerGroup):
                assert known.members == group.members.keys()
                assert known.state == group.kafka_state()
                continue
            assert isinstance(group, ClassicGroup)
            if known.leader is None and group.former_leader is not None:
                known.leader = group.former_leader  # the first leader is not reported
            told = (known.state, known.generation_id, known.protocol, known.leader)
            assert told == (group.state, group.generation_id, group.protocol_name, group.former_leader)
            assert known.members == group.members.keys()
            assert known.pending == group.pending_members.keys()
            if group.state is GroupState.STABLE:
                assigned = {member: member.assignment for member in group.members.values()}
                owners = _owners(group, assigned)
                if not known.compared:
                    known.owners, known.compared = owners, True
                assert known.owners == owners


def _known(group: Group) -> Known:
    if isinstance(group, ConsumerGroup):
        return Known(group.kafka_state(), group.generation_id, members=set(group.members))
    assert isinstance(group, ClassicGroup)
    return Known(
        group.state,
        group.generation_id,
        group.protocol_name,
        group.former_leader,
        set(group.members),
        set(group.pending_members),
        _owners(group, group.ownership),
    )


def _assigned(group: Known, event: Assigned) -> None:
    assert event.trigger is Trigger.LEADER_SYNCED
    if event.moves is None or event.owned is None:
        group.owners, group.compared = None, group.owners is not None
        return
    assert group.owners is not None
    kept = dict(group.owners)
    for topic, partition, from_id, to_id in event.moves:
        assert from_id != to_id
        assert kept.pop((topic, partition), None) == from_id
    moved_to = {(move.topic, move.partition): move.to_member_id for move in event.moves if move.to_member_id}
    group.owners = {**kept, **moved_to}
    assert (len(kept), len(group.owners)) == (event.kept, event.partitions)
    assert event.moved == sum(
        move.from_member_id is not None and move.to_member_id is not None for move in event.moves
    )
    assert event.lost == sum(move.to_member_id is None for move in event.moves)
    assert event.owned.keys() == group.members
    assert not event.truncated


def _owners(group: ClassicGroup, assigned: Mapping[ClassicMember, bytes]) -> Owners | None:
    if assigned and group.protocol_type != "consumer":
        return None
    owners: Owners = {}
    for member, blob in assigned.items():
        try:
            assignment = decode_assignment(blob, LISTED_MAX)
        except DecodeError:
            return None
        for topic in assignment.assigned_partitions:
            owners.update(((topic.topic, partition), member.member_id) for partition in topic.partitions)
    return owners
