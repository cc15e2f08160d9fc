"""The classic groups of a shard: their members' requests, and their timers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from muster.coordinator.base.step import Step
from muster.coordinator.group import records
from muster.coordinator.group.classic import joins, rebalance, refusals, sessions, syncs
from muster.coordinator.group.classic.group import ClassicGroup
from muster.coordinator.group.events import Cause, GroupCreated, Trigger
from muster.coordinator.group.group import Group
from muster.coordinator.group.hard_state import StoredGroup
from muster.coordinator.group.shared import Shared
from muster.coordinator.group.timers import TimerKey, TimerKind
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.classic_group import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from muster.protocol.types import STRING_BYTES_MAX

_UNHEARD: Final = "the store did not confirm the group in time, so the client was not told its member id"


class ClassicGroups:
    """The classic groups among `groups`, which holds all groups of the shard."""

    def __init__(self, groups: dict[str, Group], shared: Shared, ids: Callable[[], str]) -> None:
        """`ids` generates the random part of member ids."""
        self._groups = groups
        self._shared = shared
        self._ids = ids

    def __iter__(self) -> Iterator[ClassicGroup]:
        return (group for group in self._groups.values() if isinstance(group, ClassicGroup))

    # --- creation and loading -------------------------------------------------------------------------------

    def create(self, group_id: str, step: Step) -> ClassicGroup:
        """Create a group without members."""
        group = self._groups[group_id] = ClassicGroup(group_id, self._shared, step.now_ms)
        step.events.append(GroupCreated(*group.stamp(step, Cause(Trigger.REQUESTED))))
        return group

    def loaded(self, step: Step) -> None:
        """The store's records have been applied. Members get a full session, so a failover costs no
        rebalance."""
        hard, size_max = self._shared.hard, self._shared.config.group_max_size
        for group_id, stored in hard.groups.items():
            if group_id in self._groups:
                continue  # it is of another kind
            group = ClassicGroup.loaded(group_id, stored, self._shared, step.now_ms)
            self._groups[group_id] = group
            for member in group.members.values():
                group.restart_session(member, step.now_ms)
            if len(group.members) > size_max:
                # The limit was lowered. Whoever rejoins last will be refused; until then, members can commit.
                rebalance.prepare(group, Cause(Trigger.LOADED_OVERSIZE), step)
            elif group.members and stored.leader is None:
                # It was just downgraded: the last member of the consumer protocol left it to the others.
                rebalance.prepare(group, Cause(Trigger.SHARD_UNLOADED), step)
        for group_id in (*hard.offsets, *hard.pending.groups()):
            if group_id not in self._groups:
                self._groups[group_id] = ClassicGroup(group_id, self._shared, step.now_ms)

    # --- requests -------------------------------------------------------------------------------------------

    def join(self, request: JoinGroupRequest, step: Step) -> None:
        """JoinGroup. Raises what `joins.join` raises, INVALID_GROUP_ID and INVALID_SESSION_TIMEOUT."""
        self.require_valid_join(request)
        group = self._find(request.group_id)
        new_member_id = ""
        if not request.member_id:
            new_member_id = _member_id(request.group_instance_id or step.context.client_id, self._ids())
        if group is not None:
            try:
                joins.join(group, request, new_member_id, step)
            except KafkaError as refusal:
                refusals.tell_fenced(group, "JoinGroup", request, refusal, step)
                raise
            return
        if request.member_id != "":
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"there is no group {request.group_id!r}")
        group = self.create(request.group_id, step)
        # Store the group before the client hears of it: the write shows whether we are still its coordinator.
        empty = StoredGroup("", 0, None, None, step.now_ms, ())
        self._shared.hard.emit(records.group_metadata(group.group_id, empty), step)
        try:
            joins.join(group, request, new_member_id, step)
        except KafkaError as refusal:
            # The group stays, as in Kafka, until a retention sweep finds it empty.
            step.reply(refusal)

    def require_valid_join(self, request: JoinGroupRequest) -> None:
        """Check a JoinGroup, whatever its group. Raises INVALID_GROUP_ID, INVALID_SESSION_TIMEOUT."""
        require_group_id(request.group_id)
        config = self._shared.config
        shortest_ms, longest_ms = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
        if not shortest_ms <= request.session_timeout_ms <= longest_ms:
            raise KafkaError(
                ErrorCode.INVALID_SESSION_TIMEOUT,
                f"session timeout {request.session_timeout_ms} ms is not in {shortest_ms} to {longest_ms} ms",
            )

    def sync(self, request: SyncGroupRequest, step: Step) -> None:
        """SyncGroup. Raises what `syncs.sync` raises, and INVALID_GROUP_ID."""
        syncs.require_protocol(request, step.context)
        group = self._of_member(request.group_id)
        try:
            syncs.sync(group, request, step)
        except KafkaError as refusal:
            refusals.tell_fenced(group, "SyncGroup", request, refusal, step)
            raise

    def heartbeat(self, request: HeartbeatRequest, step: Step) -> HeartbeatResponse:
        """Heartbeat; returns its answer. Raises what `sessions.heartbeat` raises, and INVALID_GROUP_ID."""
        group = self._of_member(request.group_id)
        try:
            return sessions.heartbeat(group, request, step)
        except KafkaError as refusal:
            refusals.tell_fenced(group, "Heartbeat", request, refusal, step)
            raise

    def leave(self, request: LeaveGroupRequest, step: Step) -> None:
        """LeaveGroup. Raises what `sessions.leave` raises, and INVALID_GROUP_ID."""
        require_group_id(request.group_id)
        group = self._find(request.group_id)
        if group is not None:
            sessions.leave(group, request, step)
        else:
            identities = sessions.leaving(request, step.context)
            outcomes = [ErrorCode.UNKNOWN_MEMBER_ID] * len(identities)
            step.reply(sessions.left_response(identities, outcomes, step.context))

    def _find(self, group_id: str) -> ClassicGroup | None:
        group = self._groups.get(group_id)
        assert group is None or isinstance(group, ClassicGroup), (
            "the shard asks the kind that the group is of"
        )
        return group

    def _of_member(self, group_id: str) -> ClassicGroup:
        """The group that a member's request names. Raises INVALID_GROUP_ID, UNKNOWN_MEMBER_ID."""
        require_group_id(group_id)
        group = self._find(group_id)
        if group is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"there is no group {group_id!r}")
        return group

    def unheard(self, responses: Iterable[object], step: Step) -> None:
        """Clients did not get these responses in time. If one contained a new member id, the group would wait
        for somebody who never comes."""
        untold = {
            response.member_id
            for response in responses
            if isinstance(response, JoinGroupResponse) and response.error_code == ErrorCode.MEMBER_ID_REQUIRED
        }
        if not untold:
            return
        for group in self:
            for member_id in sorted(untold.intersection(group.pending_members)):
                sessions.forget_pending(group, member_id, _UNHEARD, step)

    # --- timers ---------------------------------------------------------------------------------------------

    def timer_fired(self, timer: TimerKey, step: Step) -> None:
        """A deadline of a group has passed."""
        kind, group_id, member_id = timer
        group = self._find(group_id)
        assert group is not None, f"{timer} outlived its group"
        match kind:
            case TimerKind.SESSION:
                sessions.session_timer_fired(group, member_id, step)
            case TimerKind.JOIN:
                rebalance.join_timer_fired(group, step)
            case TimerKind.SYNC:
                rebalance.sync_timer_fired(group, step)


def require_group_id(group_id: str) -> None:
    """Members need a group id; offsets may be stored under the empty one. Raises INVALID_GROUP_ID."""
    if group_id == "":
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")


def _member_id(prefix: str, unique: str) -> str:
    """A member id in Kafka's form. An overlong prefix is cut: the id must fit into a Kafka string."""
    room = STRING_BYTES_MAX - len(unique) - 1
    return f"{prefix.encode()[:room].decode(errors='ignore')}-{unique}"
