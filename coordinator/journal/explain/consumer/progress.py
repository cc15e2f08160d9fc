"""How members reach their targets: who revoked what and how long that took, who gets what and when, and whom
a rebalance in progress waits for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from muster.coordinator.journal.entries import Entry, Member
from muster.coordinator.journal.explain.facts import (
    Move,
    counts,
    joins,
    member,
    members,
    moves,
    partitions,
    text,
    whole,
)
from muster.coordinator.journal.explain.rebalances import Outcome, Rebalance
from muster.coordinator.journal.explain.timing import Awaited, Phases, Revocation
from muster.coordinator.journal.explain.vocabulary import EMPTY

Partition = tuple[str, int]


class Held(NamedTuple):
    """Partitions that a member must revoke, or has revoked."""

    member: Member
    partitions: tuple[Partition, ...]
    since_ms: int
    """When it was told to."""
    until_ms: int | None
    """When it is removed unless it has revoked them; None: it speaks the classic protocol, or the time is
    unknown."""
    revoked_ms: int | None
    """When it had revoked them; None: not yet."""


def phases(rebalance: Rebalance) -> Phases:
    """How long the target took, and how long it took every member to reach it."""
    done = rebalance.completed
    target_ms = reconcile_ms = None
    if done is not None:
        target_ms, reconcile_ms = whole(done, "target_ms"), whole(done, "reconcile_ms")
    if rebalance.assigned is not None:
        # If the group was loaded meanwhile, its coordinator does not know when the rebalance began.
        assigning_ms, reconciling_ms = _waits(rebalance)
        if rebalance.began_in_sight:
            target_ms = assigning_ms
        if rebalance.ended_ms is not None and rebalance.outcome is Outcome.COMPLETED:
            reconcile_ms = reconciling_ms
    if rebalance.state == EMPTY:
        target_ms = reconcile_ms = None  # nobody is left to have one
    restarts = max(len(rebalance.starts) - 1, 0 if done is None else whole(done, "restarts") or 0)
    last = None if done is None else member(done, "last_joined")
    slowest: list[tuple[Member, int | None]] = [] if done is None else list(joins(done))
    return Phases(
        join_ms=None,
        assignment_ms=None,
        sync_ms=None,
        slowest=tuple(slowest or ([] if last is None else [(last, None)])),
        dropped=() if done is None else tuple(members(done, "dropped")),
        held_up=(),
        ended_by=None,
        restarts=restarts,
        target_ms=target_ms,
        reconcile_ms=reconcile_ms,
        revocations=tuple(
            Revocation(each.member, each.partitions, each.since_ms, each.revoked_ms - each.since_ms)
            for each in revocations(rebalance)
            if each.revoked_ms is not None
        ),
    )


def _waits(rebalance: Rebalance) -> tuple[int, int]:
    """How long its epochs waited for a target, and for members to reach it; of the last epoch of a rebalance
    in progress only the former."""
    begun_ms = [rebalance.started_ms, *(start.entry.at_ms for start in rebalance.starts[1:])]
    assigning_ms = reconciling_ms = 0
    for at, start in enumerate(rebalance.starts):
        is_last = at == len(rebalance.starts) - 1
        over_ms = rebalance.ended_ms if is_last else begun_ms[at + 1]
        targets = (each for each in rebalance.targets if each.generation == start.entry.generation)
        target = rebalance.assigned if is_last else next(targets, None)
        target_ms = over_ms if target is None else target.at_ms
        if target_ms is not None:
            assigning_ms += max(target_ms - begun_ms[at], 0)
            reconciling_ms += max((target_ms if over_ms is None else over_ms) - target_ms, 0)
    return assigning_ms, reconciling_ms


def revocations(rebalance: Rebalance) -> list[Held]:
    """What members had to revoke during a rebalance, in the order in which they were told to."""
    found: dict[str, list[Held]] = {}
    order: list[tuple[str, int]] = []
    for entry in rebalance.entries:
        who = entry.member
        if who is None:
            continue
        mine = found.setdefault(who.id, [])
        if entry.type == "revocation_requested":
            order.append((who.id, len(mine)))
            named = tuple(partitions(entry))
            mine.append(Held(who, named, entry.at_ms, whole(entry, "until_ms"), None))
        elif entry.type == "partitions_revoked":
            _revoked(mine, entry, order)
    return [found[member_id][at] for member_id, at in order]


def _revoked(mine: list[Held], entry: Entry, order: list[tuple[str, int]]) -> None:
    named = tuple(partitions(entry))
    for at, each in enumerate(mine):
        if each.revoked_ms is None and (not named or set(named) & set(each.partitions)):
            mine[at] = each._replace(revoked_ms=entry.at_ms)
            return
    after_ms = whole(entry, "after_ms")
    if entry.member is not None and after_ms is not None:
        order.append((entry.member.id, len(mine)))  # it was told before the journal begins
        mine.append(Held(entry.member, named, entry.at_ms - max(after_ms, 0), None, entry.at_ms))


# --- under way ----------------------------------------------------------------------------------------------


def awaited(rebalance: Rebalance) -> list[Awaited]:
    """Whom a rebalance in progress waits for: first those that hold partitions others are to get, in the
    order in which they were told to revoke; then those whose partitions are free but that have not sent a
    heartbeat yet."""
    target = rebalance.assigned
    if target is None:
        return []
    here = [each for each in rebalance.entries if each.at_ms >= target.at_ms]
    now = _ids_now(rebalance)
    wanted = _wanted(rebalance, now)
    owed = _owed(rebalance, target, wanted, now)
    holders = {part: held for held in owed for part in held.partitions}
    found: list[Awaited] = []
    for held in owed:
        next_owners = (wanted[part].to_member for part in held.partitions if part in wanted)
        others = (each for each in dict.fromkeys(next_owners) if each not in (None, held.member.id))
        waiters = tuple(_known(rebalance, each) for each in others if each is not None)
        found.append(Awaited(held.member, False, held.since_ms, held.until_ms, held.partitions, waiters))
    got = _by_member(here, "partitions_assigned", now)
    free: dict[str, int] = {}
    freed_ms = {
        part: entry.at_ms
        for entry in here
        if entry.type == "partitions_revoked"
        for part in partitions(entry)
    }
    gone = {each.member.id for each in here if each.type == "member_removed" and each.member is not None}
    for part, move in wanted.items():
        who = move.to_member
        if who is None or who in gone or part in holders or (who, part) in got:
            continue
        since_ms = freed_ms.get(part, target.at_ms)
        free[who] = min(free.get(who, since_ms), since_ms)
    for member_id, since_ms in free.items():
        found.append(Awaited(_known(rebalance, member_id), False, since_ms, None))
    return found


def _ids_now(rebalance: Rebalance) -> dict[str, str]:
    """The member id that each static member has now, by the ids it had earlier in the rebalance."""
    now: dict[str, str] = {}
    for entry in rebalance.entries:
        if entry.type != "member_replaced" or entry.member is None:
            continue
        old_id, new_id = text(entry, "old_member_id"), entry.member.id
        if old_id is not None and old_id != new_id:
            formerly = [each for each, newest in now.items() if newest == old_id]
            now.update(dict.fromkeys((*formerly, old_id), new_id))
    return now


def _wanted(rebalance: Rebalance, now: Mapping[str, str]) -> dict[Partition, Move]:
    """The moves of partitions between members by the ids they have now: from the one that had it to the one
    that is to get it by the last target that moved it. Targets move it from the one that was to get it."""
    found: dict[Partition, Move] = {}
    got: set[tuple[str, Partition]] = set()
    for entry in rebalance.entries:
        if entry.type == "partitions_assigned":
            got |= _by_member([entry], entry.type, now)
        elif entry.type == "target_assigned":
            for topic, partition, old, new in moves(entry):
                part = topic, partition
                holder, to_get = now.get(old or "", old), now.get(new or "", new)
                before = found.get(part)
                if before is not None and (before.to_member or "", part) not in got:
                    holder = before.from_member
                found[part] = Move(topic, partition, holder, to_get)
                got.discard((to_get or "", part))
    let_go = _by_member(rebalance.entries, "partitions_revoked", now)
    return {
        part: move
        for part, move in found.items()
        if move.from_member != move.to_member or (move.from_member or "", part) in let_go
    }


def _by_member(entries: Iterable[Entry], type: str, now: Mapping[str, str]) -> set[tuple[str, Partition]]:
    """The partitions in entries of this type, each with the member they are about."""
    return {
        (now.get(entry.member.id, entry.member.id), part)
        for entry in entries
        if entry.type == type and entry.member is not None
        for part in partitions(entry)
    }


def _owed(
    rebalance: Rebalance, target: Entry, wanted: Mapping[Partition, Move], now: Mapping[str, str]
) -> list[Held]:
    """What members have yet to revoke, whether told to or not."""
    here = rebalance.entries
    gone = {
        entry.member.id: entry.at_ms
        for entry in here
        if entry.type == "member_removed" and entry.member is not None
    }
    owed = [
        each
        for each in revocations(rebalance)
        if each.revoked_ms is None
        and each.member.id not in now
        and gone.get(each.member.id, -1) < each.since_ms
    ]
    told = {part for each in owed for part in each.partitions}
    let_go = _by_member(here, "partitions_revoked", now)
    given = _by_member(here, "partitions_assigned", now)
    present = {now.get(each, each) for each in counts(target, "owned")}
    untold: dict[str, list[Partition]] = {}
    for part, move in wanted.items():
        holder = move.from_member
        if (
            holder is not None
            and holder in present
            and move.to_member is not None
            and part not in told
            and (holder, part) not in let_go
            and (move.to_member, part) not in given
        ):
            untold.setdefault(holder, []).append(part)
    for holder, some in untold.items():
        owed.append(Held(_known(rebalance, holder), tuple(sorted(some)), target.at_ms, None, None))
    return owed


def _known(rebalance: Rebalance, member_id: str) -> Member:
    return rebalance.members.get(member_id) or Member(member_id, "", "")
