"""The consumer groups of a shard: their members' requests, in either protocol, and their timers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from muster.coordinator.base.step import Step
from muster.coordinator.group import migration
from muster.coordinator.group.classic.groups import ClassicGroups
from muster.coordinator.group.consumer import classic_members, heartbeats, membership, progress, refusals
from muster.coordinator.group.consumer.group import ConsumerGroup
from muster.coordinator.group.consumer.member import ConsumerMember
from muster.coordinator.group.consumer.regexes import Look, require_valid
from muster.coordinator.group.consumer.state import JOINING, LEFT_FOR_A_WHILE, MemberState
from muster.coordinator.group.events import Cause, GroupCreated, MemberIdentity, Trigger
from muster.coordinator.group.group import Group, remove
from muster.coordinator.group.shared import Shared
from muster.coordinator.group.timers import TimerKey, TimerKind
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.classic_group import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from muster.protocol.messages.consumer_group import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

_MADE_WAY: Final = Cause(Trigger.MADE_WAY)


class ConsumerGroups:
    """The consumer groups among `groups`, which holds all groups of the shard."""

    def __init__(
        self, groups: dict[str, Group], shared: Shared, classic: ClassicGroups, ids: Callable[[], str]
    ) -> None:
        """`ids` generates ids for members that do not bring one."""
        self._groups = groups
        self._shared = shared
        self._classic = classic
        self._ids = ids

    # --- creation and loading -------------------------------------------------------------------------------

    def create(self, group_id: str, step: Step) -> ConsumerGroup:
        """Create a group without members."""
        group = self._groups[group_id] = ConsumerGroup(group_id, self._shared, step.now_ms)
        step.events.append(GroupCreated(*group.stamp(step, Cause(Trigger.REQUESTED))))
        return group

    def loaded(self, step: Step) -> None:
        """The store's records have been applied. Members get a full session, so a failover costs nobody their
        partitions. Like Kafka, this gives members of the classic protocol the group's session timeout."""
        for group_id in self._shared.hard.consumers:
            group = self._groups[group_id] = ConsumerGroup.loaded(group_id, self._shared, step.now_ms)
            for member in group.members.values():
                member.session_timeout_ms = group.configs.of(group_id).consumer_session_timeout_ms
                group.restart_session(member, step.now_ms)
                group.bound_revocation(member, step.now_ms)

    # --- the consumer protocol ------------------------------------------------------------------------------

    def heartbeat(self, request: ConsumerGroupHeartbeatRequest, step: Step) -> ConsumerGroupHeartbeatResponse:
        """ConsumerGroupHeartbeat. Raises INVALID_REQUEST, UNSUPPORTED_ASSIGNOR, GROUP_ID_NOT_FOUND,
        GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH, FENCED_INSTANCE_ID,
        UNRELEASED_INSTANCE_ID, INVALID_REGULAR_EXPRESSION; while the store is full, `step.full` for what
        would be written."""
        try:
            return self._heartbeat(request, step)
        except KafkaError as refusal:
            group = self._groups.get(request.group_id)
            if isinstance(group, ConsumerGroup):
                refusals.tell(
                    group,
                    refusals.HEARTBEAT,
                    request,
                    request.instance_id,
                    refusal,
                    step,
                    sent_epoch=request.member_epoch,
                )
            raise

    def _heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, step: Step
    ) -> ConsumerGroupHeartbeatResponse:
        config = self._shared.config
        heartbeats.require_valid(request, step.context.api_version, config)
        if step.full is not None and request.member_epoch <= JOINING:
            raise step.full
        group = self._groups.get(request.group_id)
        if request.member_epoch < JOINING:
            if group is None:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {request.group_id} not found.")
            return self._leave(self._require(group, request.group_id), request, step)
        owned = heartbeats.owned(request.topic_partitions)
        if request.member_epoch != JOINING:
            group = self._require(group, request.group_id)
            membership.require_room(group, request.member_id, request.instance_id)
            member = self._known(group, request)
            has, before = group.current(member.member_id), group.subscription(member.member_id)
            membership.require_epoch(has, request.member_epoch, owned)
            if group.has_no_news_for(has) and heartbeats.says_nothing(request, has, before, step.context):
                return heartbeats.sign_of_life(group, member, has.epoch, step)
            if step.full is not None:
                return heartbeats.beat_while_full(group, member, request, owned, step.full, step)
            cause = Cause(Trigger.HEARTBEAT, member.identity)
        else:
            return self._join(group, request, step)
        context = step.context
        said = heartbeats.said_now(before, request, context.client_id, context.client_host)
        _require_regex(group, before.regex, said.regex)
        return heartbeats.beat(group, member, request, said, owned, cause, step)

    def _require(self, group: Group | None, group_id: str) -> ConsumerGroup:
        """Raises GROUP_ID_NOT_FOUND, COORDINATOR_NOT_AVAILABLE."""
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found.")
        if not isinstance(group, ConsumerGroup):
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        return group.alive()

    def _known(self, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest) -> ConsumerMember:
        if request.instance_id is None:
            return group.require(request.member_id)
        return membership.require_instance(group, request.instance_id, request.member_id)

    def _join(
        self, found: Group | None, request: ConsumerGroupHeartbeatRequest, step: Step
    ) -> ConsumerGroupHeartbeatResponse:
        """A member joins, or starts anew. Whatever can refuse it is checked before anything changes."""
        context, instance_id = step.context, request.instance_id
        member_id = request.member_id or self._ids()
        cause_member = MemberIdentity(member_id, context.client_id, context.client_host, instance_id)
        upgrade = None
        group = found.alive() if isinstance(found, ConsumerGroup) else None
        if found is not None and group is None:
            upgrade = migration.upgrade_of(found, self._shared)
        old: ConsumerMember | None = None
        if group is not None:
            membership.require_room(group, member_id, instance_id)
            old = None if instance_id is None else group.member_of_instance(instance_id)
            if old is not None and not group.speaks_classic(old.member_id):
                _require_released(group, old, member_id, instance_id)
            if member_id in group.members and instance_id is None:
                owned = heartbeats.owned(request.topic_partitions)
                membership.require_epoch(group.current(member_id), JOINING, owned)
        elif upgrade is not None:
            upgrade.require_room(member_id, instance_id)
        users = () if group is None else group.state.regex_users
        if request.subscribed_topic_regex and request.subscribed_topic_regex not in users:
            require_valid(request.subscribed_topic_regex)

        if group is None:
            if upgrade is not None:
                group = upgrade.apply(self._groups, Cause(Trigger.UPGRADED, cause_member), step)
                old = None if instance_id is None else group.member_of_instance(instance_id)
            else:
                if found is not None:
                    remove(found, self._groups, _MADE_WAY, step)
                group = self.create(request.group_id, step)
        member = group.members.get(member_id)
        trigger = Trigger.MEMBER_JOINED if member is None else Trigger.MEMBER_REJOINED
        cause = Cause(trigger, cause_member)
        if old is not None:
            cause = Cause(Trigger.STATIC_MEMBER_REPLACED, cause_member)
            member = membership.replace(group, old, member_id, cause, step)
        before = group.state.subscriptions.get(member_id, progress.NOBODY_SAID)
        said = heartbeats.said_now(before, request, context.client_id, context.client_host)
        if member is None:
            member = membership.add(group, member_id, said, cause, step)
        for kind in (TimerKind.JOIN, TimerKind.SYNC):  # of the classic protocol, which it may have spoken
            group.deadlines.cancel(group.timer(kind, member_id))
        member.begin_heartbeats(step.now_ms)
        return heartbeats.beat(group, member, request, said, {}, cause, step)

    def _leave(
        self, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, step: Step
    ) -> ConsumerGroupHeartbeatResponse:
        member = self._known(group, request)
        cause = Cause(Trigger.MEMBER_LEFT, member.identity)
        if request.instance_id is not None and request.member_epoch == LEFT_FOR_A_WHILE:
            membership.leave_for_a_while(group, member, step)
            group.settle(cause, step)
        else:
            self.remove(group, [member], cause, step)
        return heartbeats.left(member.member_id, request.member_epoch)

    def remove(
        self,
        group: ConsumerGroup,
        members: Collection[ConsumerMember],
        cause: Cause,
        step: Step,
    ) -> None:
        """Remove members; if no remaining member speaks the consumer protocol, a classic group is left."""
        if members and migration.downgrades_without(group, members):
            migration.downgrade(group, members, self._groups, self._shared, cause, step)
        else:
            membership.remove(group, members, cause, step)
            group.settle(cause, step)

    def looked_up(self, look: Look, found: Mapping[str, frozenset[str]] | None, step: Step) -> None:
        """Take over what a look-up has found; None: it failed, and a later heartbeat tries again."""
        group = self._groups.get(look.group_id)
        if not isinstance(group, ConsumerGroup):
            return
        group.looking_up = False
        if found is not None:
            progress.resolved(group, look, found, Cause(Trigger.REGEX_RESOLVED), step)

    # --- members that speak the classic protocol ------------------------------------------------------------

    def join(self, group: ConsumerGroup, request: JoinGroupRequest, step: Step) -> None:
        """JoinGroup. Raises what `ClassicGroups.join` raises, and INCONSISTENT_GROUP_PROTOCOL."""
        self._classic.require_valid_join(request)
        if not group.members:
            if request.member_id != "":
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{group!r} has no members")
            # An empty group takes the kind of its next member.
            remove(group.alive(), self._groups, _MADE_WAY, step)
            self._classic.join(request, step)
            return
        try:
            joining = classic_members.joining(group.alive(), request, self._ids, step)
        except KafkaError as refusal:
            refusals.tell(group, "JoinGroup", request, request.group_instance_id, refusal, step)
            raise
        if joining is None:
            return  # answered: the client is to come back with its id
        static = joining.old or (joining.member if request.group_instance_id is not None else None)
        if static is not None and migration.downgrades_by(group, static):
            migration.downgrade_by(group, joining, self._groups, self._shared, step)
        else:
            classic_members.join(group, joining, step)

    def sync(self, group: ConsumerGroup, request: SyncGroupRequest, step: Step) -> None:
        """SyncGroup. Raises UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION,
        INCONSISTENT_GROUP_PROTOCOL, REBALANCE_IN_PROGRESS."""
        try:
            classic_members.sync(group.alive(), request, step)
        except KafkaError as refusal:
            refusals.tell(group, "SyncGroup", request, request.group_instance_id, refusal, step)
            raise

    def heartbeat_of_classic(
        self, group: ConsumerGroup, request: HeartbeatRequest, step: Step
    ) -> HeartbeatResponse:
        """Heartbeat. Raises UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION."""
        try:
            return classic_members.heartbeat(group.alive(), request, step)
        except KafkaError as refusal:
            refusals.tell(group, "Heartbeat", request, request.group_instance_id, refusal, step)
            raise

    def leave_classic(self, group: ConsumerGroup, request: LeaveGroupRequest, step: Step) -> None:
        """LeaveGroup; errors are reported per member."""
        leaving = classic_members.leaving(group.alive(), request, step)
        members = leaving.members
        cause = Cause(Trigger.MEMBER_LEFT)
        if members:
            first = members[0]
            if migration.downgrades_without(group, members):
                # Rather because of one of the consumer protocol.
                first = min(members, key=lambda each: group.speaks_classic(each.member_id))
            cause = Cause(Trigger.MEMBER_LEFT, first.identity, leaving.reason)
        self.remove(group, members, cause, step)
        step.reply(leaving.response)

    # --- timers ---------------------------------------------------------------------------------------------

    def timer_fired(self, timer: TimerKey, step: Step) -> None:
        """A member missed a deadline."""
        kind, group_id, member_id = timer
        group = self._groups[group_id]
        assert isinstance(group, ConsumerGroup)
        member = group.members[member_id]
        match kind:
            case TimerKind.REVOCATION:
                has = group.current(member_id)
                if has.state is not MemberState.UNREVOKED_PARTITIONS or has.epoch != member.rebalance_epoch:
                    return
                trigger = Trigger.REVOCATION_TIMED_OUT
            case TimerKind.JOIN:
                trigger = Trigger.REBALANCE_TIMED_OUT
            case TimerKind.SYNC:
                trigger = Trigger.SYNC_TIMED_OUT
            case _:
                trigger = Trigger.SESSION_EXPIRED
        self.remove(group, [member], Cause(trigger, member.identity), step)


def _require_regex(group: ConsumerGroup, before: str, after: str) -> None:
    """Raises INVALID_REGULAR_EXPRESSION if the regular expression is new to the group and invalid."""
    if after and after != before and after not in group.state.regex_users:
        require_valid(after)


def _require_released(
    group: ConsumerGroup, old: ConsumerMember, member_id: str, instance_id: str | None
) -> None:
    """Raises UNRELEASED_INSTANCE_ID unless the static member has left its instance id to the next one."""
    if group.current(old.member_id).epoch != LEFT_FOR_A_WHILE:
        raise KafkaError(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} cannot join the group because the "
            f"instance id is owned by {old.member_id} member.",
        )
