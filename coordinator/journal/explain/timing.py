"""How long a rebalance took, and whom it waits for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from muster.coordinator.journal.entries import Member


class Revocation(NamedTuple):
    """Partitions that a member of a consumer group revoked, and how long it took."""

    member: Member
    partitions: tuple[tuple[str, int], ...]
    since_ms: int
    """When it was told to, epoch ms."""
    ms: int

    def to_json(self) -> dict[str, Any]:
        return {
            "member": self.member.to_json(),
            "partitions": [list(each) for each in self.partitions],
            "since_ms": self.since_ms,
            "ms": self.ms,
        }


class Led(NamedTuple):
    """How long a leader's assignment, its SyncGroup, was waited for, whether it came or not."""

    member: Member
    since_ms: int
    """Since when, epoch ms."""
    ms: int

    def to_json(self) -> dict[str, Any]:
        return {"member": self.member.to_json(), "since_ms": self.since_ms, "ms": self.ms}


@dataclass(frozen=True, slots=True)
class Phases:
    """Durations in ms; None is unknown or not begun, or a phase of the other type of group."""

    join_ms: int | None
    """Waiting for JoinGroups, restarts included; a wait in progress is not."""
    assignment_ms: int | None
    """The same for the leader's SyncGroup."""
    sync_ms: int | None
    """Waiting for the other members' SyncGroups."""
    slowest: tuple[tuple[Member, int | None], ...]
    """The last members to join, or to reach their target, and their times, slowest first."""
    dropped: tuple[Member, ...]
    """Members that did not rejoin, or revoke partitions, in time."""
    held_up: tuple[tuple[Member, int], ...]
    """Clients that got a member id but did not join with it, and how long the group waited for them."""
    ended_by: str | None
    """The trigger that ended the wait for joins."""
    restarts: int
    kept: tuple[Member, ...] = ()
    """Static members that did not rejoin in time and keep their place."""
    expired: tuple[tuple[Member, int], ...] = ()
    """Members whose session expired after the group had waited a second or more for them to rejoin, and how
    long it waited."""
    leaders_expired: tuple[tuple[Member, int], ...] = ()
    """The same for leaders whose assignment the group waited for."""
    left: tuple[tuple[Member, int], ...] = ()
    """Members that left after the group had waited a second or more for them to rejoin, and how long it
    waited."""
    leaders_left: tuple[tuple[Member, int], ...] = ()
    """The same for leaders whose assignment the group waited for."""
    target_ms: int | None = None
    """Waiting for a consumer group's target assignment, in all its epochs."""
    reconcile_ms: int | None = None
    """Waiting for members to reach their targets, in all its epochs."""
    revocations: tuple[Revocation, ...] = ()
    """What members of a consumer group revoked, in the order in which they were told to."""
    leaders: tuple[Led, ...] = ()
    """The waits for assignments, restarts included, in order; a wait in progress is not. Leaders that the
    journal does not name are left out."""

    def to_json(self) -> dict[str, Any]:
        return {
            "join_ms": self.join_ms,
            "assignment_ms": self.assignment_ms,
            "sync_ms": self.sync_ms,
            "slowest": [[who.to_json(), ms] for who, ms in self.slowest],
            "dropped": [who.to_json() for who in self.dropped],
            "kept": [who.to_json() for who in self.kept],
            "held_up": [[who.to_json(), ms] for who, ms in self.held_up],
            "ended_by": self.ended_by,
            "expired": [[who.to_json(), ms] for who, ms in self.expired],
            "leaders_expired": [[who.to_json(), ms] for who, ms in self.leaders_expired],
            "left": [[who.to_json(), ms] for who, ms in self.left],
            "leaders_left": [[who.to_json(), ms] for who, ms in self.leaders_left],
            "restarts": self.restarts,
            "target_ms": self.target_ms,
            "reconcile_ms": self.reconcile_ms,
            "revocations": [each.to_json() for each in self.revocations],
            "leaders": [each.to_json() for each in self.leaders],
        }


@dataclass(frozen=True, slots=True)
class Awaited:
    """A member that a rebalance in progress waits for."""

    member: Member
    pending: bool
    """It was given a member id and has not joined with it; otherwise it must rejoin or sync, or in a consumer
    group revoke partitions or send a heartbeat."""
    since_ms: int
    until_ms: int | None
    """When the group stops waiting for it, epoch ms; None is unknown."""
    partitions: tuple[tuple[str, int], ...] = ()
    """Partitions that it holds and others are to get, in a consumer group."""
    waiters: tuple[Member, ...] = ()
    """The members that are to get them."""
    disconnected_ms: int | None = None
    """When its connection closed, epoch ms; None: it did not, it came back since, or it is unknown."""
    expires_ms: int | None = None
    """When its session expires if its connection closed, epoch ms; None is unknown."""

    def to_json(self) -> dict[str, Any]:
        return {
            "member": self.member.to_json(),
            "pending": self.pending,
            "since_ms": self.since_ms,
            "until_ms": self.until_ms,
            "partitions": [list(each) for each in self.partitions],
            "waiters": [each.to_json() for each in self.waiters],
            "disconnected_ms": self.disconnected_ms,
        }
