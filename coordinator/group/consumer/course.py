"""The course of a consumer group's rebalance: from a new epoch until every member has its target."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from muster.coordinator.group.events import DROPPED_MAX, MemberIdentity, RebalanceCompleted, Stamp

_SLOWEST_MAX: Final = 5


class Reached(NamedTuple):
    """A member that has its target."""

    member: MemberIdentity
    at_ms: int


class Course:
    """The rebalance under way. Soft state, for the journal: a group loaded midway knows only what comes
    after. Times are epoch milliseconds."""

    __slots__ = (
        "assigning_ms",
        "dropped",
        "epoch_ms",
        "reached",
        "reconciling_ms",
        "restarts",
        "started_ms",
        "target_ms",
    )

    def __init__(self, now_ms: int) -> None:
        self.started_ms = now_ms
        """When it began; for a group loaded midway, when it was loaded."""
        self.epoch_ms = now_ms
        """When its last epoch began."""
        self.assigning_ms = 0
        """How long the epochs before that one waited for their targets."""
        self.reconciling_ms = 0
        """How long those epochs then waited for members to reach them."""
        self.restarts = 0
        """How many more epochs there were before every member had its target."""
        self.target_ms: int | None = None
        """When the target of the last epoch was made."""
        self.reached: dict[str, Reached] = {}
        """The members that have that target, in the order in which they reached it."""
        self.dropped: list[MemberIdentity] = []
        """Members that were removed for not revoking partitions, or not rejoining, in time."""

    def restart(self, now_ms: int) -> None:
        """Another epoch has begun."""
        self._add_up(now_ms)
        self.restarts += 1
        del self.dropped[DROPPED_MAX:]
        self.epoch_ms, self.target_ms = now_ms, None
        self.reached.clear()

    def completed(self, stamp: Stamp, present: Collection[str]) -> RebalanceCompleted:
        """The rebalance is over; `present` holds the ids of the group's members."""
        now_ms, started_ms = stamp[0], self.started_ms
        self._add_up(now_ms)
        slowest = [each for each in reversed(self.reached.values()) if each.member.member_id in present]
        del slowest[_SLOWEST_MAX:]
        return RebalanceCompleted(
            *stamp,
            started_ms=started_ms,
            join_ms=0,
            assignment_ms=0,
            restarts=self.restarts,
            members=len(present),
            dropped=tuple(self.dropped),
            last_joined=slowest[0].member if slowest else None,
            joins=tuple((each.member, each.at_ms - started_ms) for each in slowest),
            target_ms=self.assigning_ms,
            reconcile_ms=self.reconciling_ms,
        )

    def _add_up(self, now_ms: int) -> None:
        """The last epoch is over. If no member is left, its target is reached at once."""
        target_ms = now_ms if self.target_ms is None else self.target_ms
        self.assigning_ms += target_ms - self.epoch_ms
        self.reconciling_ms += now_ms - target_ms
