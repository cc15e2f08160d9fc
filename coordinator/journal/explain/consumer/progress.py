"""How members reach their targets: how long that took, who revoked what, and whom a rebalance in progress
waits for."""

from __future__ import annotations

from muster.coordinator.journal.entries import Member
from muster.coordinator.journal.explain.consumer.holders import Held, Holders
from muster.coordinator.journal.explain.facts import joins, member, members, whole
from muster.coordinator.journal.explain.rebalances import Outcome, Rebalance
from muster.coordinator.journal.explain.timing import Awaited, Phases, Revocation
from muster.coordinator.journal.explain.vocabulary import EMPTY


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
            for each in Holders(rebalance.entries).requests
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


# --- under way ----------------------------------------------------------------------------------------------


def awaited(rebalance: Rebalance) -> list[Awaited]:
    """Whom a rebalance in progress waits for: first those that hold partitions others are to get, in the
    order in which they were told to revoke; then those whose partitions are free but that have not sent a
    heartbeat yet."""
    if rebalance.assigned is None:
        return []
    holders = Holders(rebalance.entries)
    owed = holders.told()
    for who, (some, since_ms) in holders.untold().items():
        owed.append(Held(_known(rebalance, who), tuple(sorted(some)), since_ms, None, None))
    found: list[Awaited] = []
    for held in owed:
        waiters = tuple(_known(rebalance, each) for each in holders.waiters(held.partitions))
        found.append(Awaited(held.member, False, held.since_ms, held.until_ms, held.partitions, waiters))
    for who, since_ms in holders.free().items():
        found.append(Awaited(_known(rebalance, who), False, since_ms, None))
    return found


def _known(rebalance: Rebalance, member_id: str) -> Member:
    return rebalance.members.get(member_id) or Member(member_id, "", "")
