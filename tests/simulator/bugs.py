"""Bugs to plant in a run. Checkers that miss one are worth nothing; tests ensure that each bug is caught."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import Any
from unittest import mock

from muster.coordinator.base.step import Reply, Step
from muster.coordinator.cluster.lease import HeldLeases
from muster.coordinator.group import migration, records
from muster.coordinator.group.classic import rebalance, sessions
from muster.coordinator.group.classic.group import ClassicGroup
from muster.coordinator.group.classic.member import ClassicMember
from muster.coordinator.group.consumer import progress, reconcile
from muster.coordinator.group.consumer.assignors.assignor import Assignment
from muster.coordinator.group.consumer.group import ConsumerGroup
from muster.coordinator.group.consumer.member import ConsumerMember
from muster.coordinator.group.consumer.state import INITIAL_EPOCH, Held
from muster.coordinator.group.events import Cause
from muster.coordinator.group.group import Group
from muster.coordinator.group.shard import Shard
from muster.coordinator.runtime import loader
from muster.coordinator.runtime import runtime as runtime_module
from muster.coordinator.runtime.shard_host import ShardHost
from muster.coordinator.storage.memory import MemoryStore
from muster.coordinator.storage.store import Append, Lease, Outcome
from muster.protocol.messages.classic_group import SyncGroupResponse
from muster.protocol.messages.offsets import OffsetCommitRequest
from tests.simulator.transaction_bugs import TRANSACTION_BUGS

Bug = Callable[[], contextlib.AbstractContextManager[object]]
"""Plants a bug for the duration of a `with` block."""


class _EarlyReplies(ShardHost[Any]):
    """Releases the replies of a step before its records are appended."""

    def _finish(self, step: Step) -> None:
        early, step.replies = step.replies, []
        self._deliver(early)
        super()._finish(step)


class _LostReplies(ShardHost[Any]):
    """Forgets one reply in fifty."""

    _delivered = 0

    def _deliver(self, replies: Sequence[Reply]) -> None:
        kept = []
        for reply in replies:
            self._delivered += 1
            if self._delivered % 50:
                kept.append(reply)
        super()._deliver(kept)


class _LostRecords(ShardHost[Any]):
    """Now and then appends a step's records without the last one."""

    def _finish(self, step: Step) -> None:
        if len(step.rows) > 1 and self.steps % 10 == 0:
            step.rows.pop()
        super()._finish(step)


class _Secretive(ShardHost[Any]):
    """Leaves what some steps did out of the journal."""

    def _finish(self, step: Step) -> None:
        if step.rows and self.steps % 3 == 0:
            step.events.clear()
        super()._finish(step)


def _append_unfenced(store: MemoryStore, append: Append) -> Outcome:
    present = store._leases[append.lease].epoch
    return _append(store, Append(append.lease, present, append.records, append.journal))


_append = MemoryStore._append


class _ForgetfulStore:
    """The store as the loader sees it, with the newest row missing."""

    def __init__(self, store: Any) -> None:
        self._store = store

    async def load(self, lease: Lease) -> list[tuple[int, bytes, bytes]]:
        rows: list[tuple[int, bytes, bytes]] = await self._store.load(lease)
        return rows[:-1]


async def _load_forgetfully(store: Any, lease: Lease, shard: Any) -> None:
    await _load(_ForgetfulStore(store), lease, shard)  # type: ignore[arg-type]


_load = loader.load


def _for_ever(held: HeldLeases, margin_ms: int) -> None:
    """A granted lease counts as valid for thirty years."""
    _make_held_leases(held, margin_ms=-(10**12))


_make_held_leases = HeldLeases.__init__


# --- in the core ----------------------------------------------------------------------------------


def _same_generation(group: ClassicGroup, now_ms: int) -> None:
    """The generation is not incremented after the first one."""
    if group.generation_id == 0:
        _next_generation(group, now_ms)


_next_generation = ClassicGroup.next_generation


def _loaded_without_timers(shard: Shard, step: Step) -> None:
    """Loaded members have no session that could expire."""
    _loaded(shard, step)
    for group in shard.groups.values():
        for member in group.members.values():
            assert isinstance(member, ClassicMember | ConsumerMember)
            shard.deadlines.cancel(member.session_timer)


_loaded = Shard.loaded


def _never_expires(group: ClassicGroup, member_id: str, step: Step) -> None:
    """A member whose session expired stays; a pending member id is still removed."""
    if member_id in group.pending_members:
        _session_timer_fired(group, member_id, step)


_session_timer_fired = sessions.session_timer_fired


def _any_generation(group: ClassicGroup, request: OffsetCommitRequest, step: Step) -> None:
    """A commit may name any generation."""
    _validate_commit(group, replace_generation(request, group.generation_id), step)


def replace_generation(request: OffsetCommitRequest, generation_id: int) -> OffsetCommitRequest:
    changed = copy(request)
    changed.generation_id_or_member_epoch = generation_id
    return changed


_validate_commit = ClassicGroup.validate_commit


def _validate_unfenced(group: ClassicGroup, member_id: str, group_instance_id: str | None) -> ClassicMember:
    """A static member is identified by its instance, whatever its member id."""
    owner = group.static_members.get(group_instance_id or "")
    return _validate(group, owner or member_id, None)


_validate = ClassicGroup.validate


def _hand_out_by_order(group: ClassicGroup, member: ClassicMember) -> SyncGroupResponse:
    """A late SyncGroup is answered with the first member's assignment."""
    return _synced_response(group, next(iter(group.members.values())))


_synced_response = ClassicGroup.synced_response


def _forget_syncs(group: ClassicGroup, step: Step) -> None:
    """Members waiting for an assignment that will not come are not notified."""
    for member in group.members.values():
        member.assignment = b""
        if member.parked_sync is not None:
            member.parked_sync = None
            group.syncs_parked -= 1


# --- in consumer groups ---------------------------------------------------------------------------


def _owns_none(owned: Assignment | None, held: Held) -> bool:
    """A partition to be revoked counts as revoked at once."""
    return False


def _same_epoch(group: ConsumerGroup, cause: Cause, metadata_hash: int, step: Step) -> None:
    """A group whose members change stays in its epoch, once past the initial one."""
    if group.state.epoch == INITIAL_EPOCH:
        _bump(group, cause, metadata_hash, step)


_bump = ConsumerGroup.bump


def _any_epoch(group: ConsumerGroup, request: OffsetCommitRequest, step: Step) -> None:
    """A member may commit under any earlier epoch of its own."""
    epoch = group.current(request.member_id).epoch
    if 0 <= request.generation_id_or_member_epoch < epoch:
        request = replace_generation(request, epoch)
    _validate_epoch(group, request, step)


_validate_epoch = ConsumerGroup.validate_commit


def _half_an_upgrade(upgrade: migration.Upgrade, groups: dict[str, Group], cause: Cause, step: Step) -> Any:
    """A classic group that becomes a consumer group stays in the store beside it."""
    group = _upgrade(upgrade, groups, cause, step)
    step.rows.remove(records.group_tombstone(group.group_id).row())
    return group


_upgrade = migration.Upgrade.apply


def _look_up_once(group: ConsumerGroup, wanted: bool, last_ms: int | None, step: Step) -> None:
    """A regular expression stands for the topics that existed when its first member joined."""
    if wanted or len(group.state.regexes) < len(group.state.regex_users):
        _look_up(group, wanted, last_ms, step)


_look_up = progress._look_up


def _host(host: type[ShardHost[Any]]) -> Bug:
    return partial(mock.patch.object, runtime_module, "ShardHost", host)


BUGS: dict[str, Bug] = {
    "reply-before-append": _host(_EarlyReplies),
    "lost-replies": _host(_LostReplies),
    "lost-records": _host(_LostRecords),
    "secretive": _host(_Secretive),
    "unfenced-store": partial(mock.patch.object, MemoryStore, "_append", _append_unfenced),
    "leases-never-lapse": partial(mock.patch.object, HeldLeases, "__init__", _for_ever),
    "forgetful-load": partial(mock.patch.object, runtime_module, "load", _load_forgetfully),
    "generation-not-bumped": partial(mock.patch.object, ClassicGroup, "next_generation", _same_generation),
    "timers-lost-on-reload": partial(mock.patch.object, Shard, "loaded", _loaded_without_timers),
    "stale-members-kept": partial(mock.patch.object, sessions, "session_timer_fired", _never_expires),
    "commits-of-any-generation": partial(mock.patch.object, ClassicGroup, "validate_commit", _any_generation),
    "instances-not-fenced": partial(mock.patch.object, ClassicGroup, "validate", _validate_unfenced),
    "someone-elses-assignment": partial(
        mock.patch.object, ClassicGroup, "synced_response", _hand_out_by_order
    ),
    "parked-syncs-forgotten": partial(mock.patch.object, rebalance, "_recall_assignments", _forget_syncs),
    "assigned-before-revoked": partial(mock.patch.object, reconcile, "may_own_any", _owns_none),
    "epoch-not-bumped": partial(mock.patch.object, ConsumerGroup, "bump", _same_epoch),
    "commits-of-any-epoch": partial(mock.patch.object, ConsumerGroup, "validate_commit", _any_epoch),
    "migration-half-written": partial(mock.patch.object, migration.Upgrade, "apply", _half_an_upgrade),
    "regex-not-refreshed": partial(mock.patch.object, progress, "_look_up", _look_up_once),
    **TRANSACTION_BUGS,
}
"""The bugs, by the name that `python -m tests.simulator --bug` takes."""
