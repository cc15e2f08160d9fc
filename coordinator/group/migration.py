"""Moves a running group to the other protocol, member by member (KIP-848, "Online migration").

Upgrade: the first member of the consumer protocol turns a classic group into a consumer group. Its members go
on speaking the classic protocol, and keep what they had. Downgrade: when the last member of the consumer
protocol leaves, the group becomes a classic one again. Each is one step, so one write: nobody finds a group
that is half of each kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Final

from muster.coordinator.base.step import Step
from muster.coordinator.group import records
from muster.coordinator.group.classic import rebalance
from muster.coordinator.group.classic.group import ClassicGroup
from muster.coordinator.group.classic.joins import SKIP_ASSIGNMENT_FROM
from muster.coordinator.group.classic.member import LISTED_MAX, ClassicMember, Protocols
from muster.coordinator.group.classic.states import GroupState
from muster.coordinator.group.consumer import classic_members, membership, progress, targets
from muster.coordinator.group.consumer import records as consumer_records
from muster.coordinator.group.consumer.assignors.assignor import Assignment
from muster.coordinator.group.consumer.classic_members import Joining
from muster.coordinator.group.consumer.embedded import assigned_partitions, encoded_assignment
from muster.coordinator.group.consumer.group import CONSUMER, ConsumerGroup, identity
from muster.coordinator.group.consumer.member import ConsumerMember
from muster.coordinator.group.consumer.state import (
    ClassicProtocols,
    Current,
    MemberState,
    Subscription,
    held_at,
)
from muster.coordinator.group.events import Cause, ProtocolMigrated, Trigger
from muster.coordinator.group.group import Group
from muster.coordinator.group.shared import Shared
from muster.protocol.embedded import decode_assignment, decode_subscription
from muster.protocol.errors import DecodeError, ErrorCode, KafkaError

CLASSIC: Final = "classic"
_FIRST_VERSION: Final = b"\0\0"
"""The beginning of a subscription of version 0."""
_CUSTOM_ASSIGNOR: Final = (
    "an unsupported custom assignor is in use. Please refer to the documentation or switch to a default "
    "assignor before re-attempting the upgrade."
)
"""It assigns user data, or a partition to several members."""


# --- to a consumer group ------------------------------------------------------------------------------------


class Upgrade:
    """The upgrade of a classic group with members. Whatever may refuse it is checked before it is applied."""

    def __init__(self, group: ClassicGroup, shared: Shared) -> None:
        """Raises GROUP_ID_NOT_FOUND, as Kafka does, whatever is in the way."""
        self._group = group
        self._shared = shared
        config, group_id = shared.config, group.group_id
        if not config.group_consumer_migration_policy.upgrades:
            raise _cannot_upgrade(group_id, "online upgrade is disabled.")
        if group.protocol_type != CONSUMER:
            raise _cannot_upgrade(group_id, "the group does not use the consumer embedded protocol.")
        if len(group.members) > config.group_consumer_max_size:
            raise _cannot_upgrade(group_id, "the group size exceeds the consumer group maximum size.")
        self._members = {member_id: self._converted(member) for member_id, member in group.members.items()}
        counts = Counter(
            (topic_id, number)
            for _, has in self._members.values()
            for topic_id, numbers in has.items()
            for number in numbers
        )
        if any(count > 1 for count in counts.values()):
            raise _cannot_upgrade(group_id, _CUSTOM_ASSIGNOR)

    def _converted(self, member: ClassicMember) -> tuple[Subscription, Assignment]:
        group_id = self._group.group_id
        # While members join, some may not offer the protocol of the last generation.
        metadata = dict(member.protocols).get(self._group.protocol_name or "", member.protocols[0][1])
        try:
            said = decode_subscription(metadata, LISTED_MAX)
            assignment = decode_assignment(member.assignment, LISTED_MAX) if member.assignment else None
        except DecodeError as error:
            raise _cannot_upgrade(group_id, "the embedded consumer protocol is malformed.") from error
        if assignment is not None and assignment.user_data:
            raise _cannot_upgrade(group_id, _CUSTOM_ASSIGNOR)
        topics = self._shared.topics
        return (
            Subscription(
                instance_id=member.group_instance_id,
                rack_id=said.rack_id,
                client_id=member.client_id,
                client_host=member.client_host,
                topics=tuple(sorted(set(said.topics))),
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                classic=ClassicProtocols(member.session_timeout_ms, member.protocols),
            ),
            {} if assignment is None else assigned_partitions(assignment, topics),
        )

    def require_room(self, member_id: str, instance_id: str | None) -> None:
        """Raises GROUP_MAX_SIZE_REACHED if there is no room for the member."""
        size_max = self._shared.config.group_consumer_max_size
        known = member_id in self._members or instance_id in self._group.static_members
        if len(self._members) >= size_max and not known:
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {size_max} members.",
            )

    def apply(self, groups: dict[str, Group], cause: Cause, step: Step) -> ConsumerGroup:
        """Put the consumer group in place of the classic one. Members keep their ids, and their generation
        becomes their epoch; members waiting in JoinGroup or SyncGroup have to rejoin."""
        old, shared = self._group, self._shared
        hard, group_id, epoch = shared.hard, old.group_id, old.generation_id
        rejoin = KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, f"{old!r} becomes a consumer group")
        for waiting in old.members.values():
            old.refuse_join(waiting, ErrorCode.REBALANCE_IN_PROGRESS, step)
            old.answer_sync(waiting, rejoin, step)
        old.cancel_timers()
        hard.emit(records.group_tombstone(group_id), step)
        group = ConsumerGroup(group_id, shared, step.now_ms)
        members = self._members
        for member_id, (said, _) in members.items():
            hard.emit(consumer_records.subscription(group_id, member_id, said), step)
        metadata_hash = targets.metadata_hash(group.state.subscribed_topics(), shared.topics)
        hard.emit(consumer_records.group_epoch(group_id, epoch, metadata_hash), step)
        for member_id, (_, assignment) in members.items():
            hard.emit(consumer_records.target(group_id, member_id, assignment), step)
        hard.emit(consumer_records.target_epoch(group_id, epoch, 0), step)
        for member_id, (_, assignment) in members.items():
            has = Current(epoch, epoch, MemberState.STABLE, held_at(assignment, epoch))
            hard.emit(consumer_records.current(group_id, member_id, has), step)
        for member_id, former in old.members.items():
            who = identity(member_id, members[member_id][0])
            member = ConsumerMember(group_id, who, former.session_timeout_ms, former.heard_ms)
            group.members[member_id] = member
            _keep_connection(group_id, former, member, shared)
            group.restart_session(member, step.now_ms)
        groups[group_id] = group
        # Otherwise partitions of members that have left, or that were added before the leader saw them, would
        # belong to nobody until something else bumps the epoch.
        if old.rebalance is not None:
            group.owed = old.rebalance.cause
        elif any(
            len(group.state.owners.get(topic_id, ())) < shared.topics.count(topic_id)
            for topic_id in shared.topics.ids_of(group.state.subscribed_topics())
        ):
            group.owed = Cause(Trigger.TOPICS_CHANGED)
        group.sizes = None
        group.shown_state = group.kafka_state()
        step.events.append(
            ProtocolMigrated(
                *group.stamp(step, cause), from_type=CLASSIC, to_type=CONSUMER, members=len(members)
            )
        )
        return group


def upgrade_of(group: Group, shared: Shared) -> Upgrade | None:
    """How a group becomes a consumer group when the first member of that protocol joins. None: it has no
    members, and is just removed. Raises GROUP_ID_NOT_FOUND, COORDINATOR_NOT_AVAILABLE."""
    assert isinstance(group, ClassicGroup)
    return None if group.alive().is_empty else Upgrade(group, shared)


def _cannot_upgrade(group_id: str, why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Cannot upgrade classic group {group_id} to consumer group because {why}",
    )


# --- to a classic group -------------------------------------------------------------------------------------


def downgrades_without(group: ConsumerGroup, leaving: Collection[ConsumerMember]) -> bool:
    """Whether the group becomes a classic one when these members leave: some are left, and none of them
    speaks the consumer protocol."""
    classic = group.state.classic_members
    left = len(group.members) - len(leaving)
    classic_left = len(classic) - sum(member.member_id in classic for member in leaving)
    return 0 < left == classic_left and _may_downgrade(group, left)


def downgrades_by(group: ConsumerGroup, replaced: ConsumerMember) -> bool:
    """Whether the group becomes a classic one when a member of the classic protocol replaces this one."""
    classic, size = group.state.classic_members, len(group.members)
    return replaced.member_id not in classic and len(classic) == size - 1 and _may_downgrade(group, size)


def _may_downgrade(group: ConsumerGroup, size: int) -> bool:
    config = group.config
    return config.group_consumer_migration_policy.downgrades and size <= config.group_max_size


def downgrade(
    group: ConsumerGroup,
    leaving: Collection[ConsumerMember],
    groups: dict[str, Group],
    shared: Shared,
    cause: Cause,
    step: Step,
) -> None:
    """Remove members, and leave a classic group, which rebalances at once."""
    for member in leaving:
        step.events.append(membership.removed(group, member, cause, step))
        group.connections.removed(group.group_id, member, step.now_ms)
    gone = {member.member_id for member in leaving}
    classic = _classic_of(group, [each for each in group.members if each not in gone], shared, step)
    had = {_departed(group, each): _had(group, each, shared) for each in leaving}
    classic.ownership = {**classic.ownership, **had}
    _put_in_place(group, classic, groups, cause, step, rebalances=True)
    rebalance.prepare(classic, cause, step)


def downgrade_by(
    group: ConsumerGroup, joining: Joining, groups: dict[str, Group], shared: Shared, step: Step
) -> None:
    """A static member of the classic protocol replaces the last member that speaks the consumer protocol, or
    was that member. If nothing else changes, and every member has its target, it leads the classic group,
    which does not rebalance: no member of a consumer group is told that it leads, and somebody has to watch
    the topics."""
    # Members know this generation, and are told to rejoin while in it if the epoch changes below.
    generation_id = group.state.epoch
    member = classic_members.admit(group, joining, step)
    progress.say(group, member, joining.said, joining.cause, step)
    state = group.state
    stale = state.assignment_epoch < state.epoch
    if not stale:
        progress.reconcile(group, member, joining.owned, step)
    epoch = group.current(member.member_id).epoch
    group.heard(member, step)
    classic = _classic_of(group, list(group.members), shared, step)
    classic.generation_id = generation_id
    # A member without its target would not hear of it, or take what another has not given up.
    settled = state.settled[state.epoch] == len(group.members)
    # Below this version it cannot be told to lead and not to assign.
    leads = settled and step.context.api_version >= SKIP_ASSIGNMENT_FROM
    if leads:
        classic.leader = classic.former_leader = joining.member_id
    _put_in_place(group, classic, groups, joining.cause, step, rebalances=not leads)
    if leads:
        leader = classic.members[joining.member_id]
        step.reply(classic.joined_response(leader, with_members=True, skip_assignment=True))
        return
    step.reply(classic_members.joined_response(epoch, joining))
    cause = joining.cause
    if joining.old is None:
        cause = cause._replace(trigger=Trigger.METADATA_CHANGED)
    rebalance.prepare(classic, cause, step)


def _departed(group: ConsumerGroup, leaving: ConsumerMember) -> ClassicMember:
    """A member that leaves, as the owner of what it had."""
    return _member_of(group, leaving.member_id, leaving.session_timeout_ms, ())


def _member_of(
    group: ConsumerGroup, member_id: str, session_timeout_ms: int, protocols: Protocols
) -> ClassicMember:
    said = group.state.subscriptions[member_id]
    return ClassicMember(
        member_id=member_id,
        group_instance_id=said.instance_id,
        client_id=said.client_id,
        client_host=said.client_host,
        rebalance_timeout_ms=said.rebalance_timeout_ms,
        session_timeout_ms=session_timeout_ms,
        protocols=protocols,
        heard_ms=group.members[member_id].heard_ms,
    )


def _had(group: ConsumerGroup, leaving: ConsumerMember, shared: Shared) -> bytes:
    return encoded_assignment(group.state.target(leaving.member_id), _FIRST_VERSION, shared.topics)


def _classic_of(group: ConsumerGroup, member_ids: list[str], shared: Shared, step: Step) -> ClassicGroup:
    """The classic group of these members, Stable with their targets; nothing is written yet."""
    state = group.state
    classic = ClassicGroup(group.group_id, shared, step.now_ms)
    classic.state = GroupState.STABLE
    classic.generation_id = state.epoch
    classic.protocol_type = CONSUMER
    for member_id in member_ids:
        spoken = state.subscriptions[member_id].classic
        assert spoken is not None
        member = _member_of(group, member_id, spoken.session_timeout_ms, spoken.protocols)
        classic.add(member)
        _keep_connection(group.group_id, group.members[member_id], member, shared)
    classic.protocol_name = classic.select_protocol(classic.votes())
    for member_id, member in classic.members.items():
        metadata = member.metadata(classic.protocol_name)
        member.assignment = encoded_assignment(state.target(member_id), metadata, shared.topics)
    classic.subscribed_topics = classic.subscriptions()
    classic.former_leader = classic.leader
    classic.ownership = {member: member.assignment for member in classic.members.values()}
    return classic


def _put_in_place(
    group: ConsumerGroup,
    classic: ClassicGroup,
    groups: dict[str, Group],
    cause: Cause,
    step: Step,
    *,
    rebalances: bool,
) -> None:
    group.erase(step)
    # A broker that loads a group with members but no leader rebalances it: the rebalance outlives this one.
    stored = classic.stored()._replace(leader=None) if rebalances else classic.stored()
    group.emit(records.group_metadata(group.group_id, stored), step)
    groups[group.group_id] = classic
    for member in classic.members.values():
        classic.restart_session(member, step.now_ms)
    step.events.append(
        ProtocolMigrated(
            *classic.stamp(step, cause), from_type=CONSUMER, to_type=CLASSIC, members=len(classic.members)
        )
    )


def _keep_connection(
    group_id: str,
    former: ClassicMember | ConsumerMember,
    member: ClassicMember | ConsumerMember,
    shared: Shared,
) -> None:
    """Hand the connection over to the member's new object."""
    connection_id = former.connection_id
    if connection_id is not None:
        shared.connections.forget(former)
        shared.connections.heard(group_id, member, connection_id)
    member.disconnected_at_ms = former.disconnected_at_ms
