"""How long the phases of a rebalance took, and whom one in progress waits for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Final, NamedTuple

from muster.coordinator.journal.entries import REJOINS_TOLD_MAX, Entry, Member
from muster.coordinator.journal.explain.consumer import progress
from muster.coordinator.journal.explain.facts import joins, member, members, text, texts, whole
from muster.coordinator.journal.explain.rebalances import LOOK_ENTRIES_MAX, Outcome, Rebalance
from muster.coordinator.journal.explain.timing import Awaited, Led, Phases
from muster.coordinator.journal.explain.vocabulary import COMPLETING, PREPARING, STABLE, Kind, Trigger

_HELD_UP_MS: Final = 1_000
"""A shorter wait for a member that then left, or expired, is not worth mentioning."""
EXPIRES_LATE_MS: Final = 5_000
"""A session that should have ended this long ago has not: its member was heard from since."""


def phases(rebalance: Rebalance) -> Phases | None:
    """The phases so far; None if it was not a rebalance."""
    if rebalance.outcome is Outcome.NONE:
        return None
    if rebalance.kind is Kind.CONSUMER:
        return progress.phases(rebalance)
    done, joined = rebalance.completed, rebalance.joined
    waited_ms = _waits(rebalance)
    join_ms, assignment_ms = waited_ms.get(PREPARING), waited_ms.get(COMPLETING)
    if done is not None:
        noted_ms = whole(done, "join_ms"), whole(done, "assignment_ms")
        join_ms = join_ms if noted_ms[0] is None else noted_ms[0]
        assignment_ms = assignment_ms if noted_ms[1] is None else noted_ms[1]
    if joined is None and assignment_ms == 0:
        assignment_ms = None  # the group became Empty: there was no such phase
    gone = list(_gone(rebalance))
    synced = next((each for each in rebalance.after if each.type == "all_synced"), None)
    return Phases(
        join_ms,
        assignment_ms,
        None if synced is None else whole(synced, "after_ms"),
        _slowest(rebalance),
        () if done is None else tuple(members(done, "dropped")),
        tuple(_held_up(rebalance)),
        None if joined is None else joined.trigger,
        max(len(rebalance.starts) - 1, 0 if done is None else whole(done, "restarts") or 0),
        kept=() if joined is None else _kept(joined),
        expired=tuple((each.member, each.ms) for each in gone if each.expired and not each.led),
        leaders_expired=tuple((each.member, each.ms) for each in gone if each.expired and each.led),
        left=tuple((each.member, each.ms) for each in gone if not each.expired and not each.led),
        leaders_left=tuple((each.member, each.ms) for each in gone if not each.expired and each.led),
        leaders=tuple(_leaders(rebalance)),
    )


def _kept(joined: Entry) -> tuple[Member, ...]:
    """Only static members outlast a generation that begins without them."""
    return tuple(each for each in members(joined, "waiting_for") if each.instance is not None)


def _waits(rebalance: Rebalance) -> dict[str, int]:
    """How long the group was in each state that it has left, or in which the rebalance was interrupted."""
    found: dict[str, int] = {}
    change: Entry | None = None
    for each in rebalance.entries:
        if each.type == "state_changed":
            left, ms = text(each, "from_state"), whole(each, "phase_ms")
            if left in (PREPARING, COMPLETING) and ms is not None:
                found[left] = found.get(left, 0) + ms
            change = each
    state = None if change is None else text(change, "to_state")
    if change is not None and state in (PREPARING, COMPLETING) and rebalance.ended_ms is not None:
        found[state] = found.get(state, 0) + max(rebalance.ended_ms - change.at_ms, 0)
    return found


def awaited(rebalance: Rebalance, now_ms: int) -> list[Awaited]:
    """Whom a rebalance in progress waits for, pending clients first."""
    if rebalance.outcome is not Outcome.UNDER_WAY:
        return []
    if rebalance.kind is Kind.CONSUMER:
        return _connected_or_not(rebalance, progress.awaited(rebalance), now_ms)
    if rebalance.state == COMPLETING:
        leader = None if rebalance.joined is None else member(rebalance.joined, "leader")
        if rebalance.joined is None or leader is None:
            return []
        return _not_yet(rebalance, rebalance.joined, [leader], now_ms)
    if rebalance.state != PREPARING:
        return []
    change = rebalance.starts[-1].entry
    missing = _not_yet(rebalance, change, members(change, "waiting_for"), now_ms)
    if not rejoins_told(rebalance):
        # Any of the others may have rejoined.
        missing = [each for each in missing if _disconnected_by(each, change.at_ms)]
    return _pending(rebalance) + missing


def _disconnected_by(who: Awaited, at_ms: int) -> bool:
    return who.disconnected_ms is not None and who.disconnected_ms <= at_ms


def rejoins_told(rebalance: Rebalance) -> bool:
    """Whether the journal tells who has rejoined since the rebalance last began."""
    change = rebalance.starts[-1].entry
    came = sum(each.type == "member_added" for each in _since(rebalance, change))
    # The one that began it counts too; the list is cut at a hundred.
    return len(members(change, "waiting_for")) + 1 + came <= REJOINS_TOLD_MAX


def _not_yet(rebalance: Rebalance, change: Entry, awaited: Iterable[Member], now_ms: int) -> list[Awaited]:
    """The members that the group waits for since a state change, minus those that have responded since."""
    waiting = {each.id: each for each in awaited}
    for each in _since(rebalance, change):
        if each.member is not None:
            if each.type in ("member_rejoined", "member_removed"):
                waiting.pop(each.member.id, None)
            elif each.type == "member_replaced":
                waiting.pop(str(each.data.get("old_member_id")), None)
    until_ms = whole(change, "until_ms")
    found = [Awaited(who, False, change.at_ms, until_ms) for who in waiting.values()]
    return _connected_or_not(rebalance, found, now_ms)


def _since(rebalance: Rebalance, change: Entry) -> Iterator[Entry]:
    """The entries of the rebalance after a state change."""
    entries = iter(rebalance.entries)
    for each in entries:
        if each is change:
            break
    return entries


def _connected_or_not(rebalance: Rebalance, waiting: list[Awaited], now_ms: int) -> list[Awaited]:
    """The same members, with when their connections closed, by the newest entry about each. Then its session
    may end sooner than the wait, and most likely will. One that has outlived it came back."""
    ids = {each.member.id for each in waiting}
    newest: dict[str, Entry] = {}
    sessions_ms: dict[str, int] = {}
    ends: list[_End] = []
    loaded_ms = 0
    for index in range(rebalance.last - 1, max(-1, rebalance.last - LOOK_ENTRIES_MAX), -1):
        entry = rebalance.stream[index]
        if entry.type == "shard_loaded":
            loaded_ms = max(loaded_ms, entry.at_ms)  # sessions began anew
        elif text(entry, "from_state") in (PREPARING, COMPLETING):
            ends.append(_End(entry))
        if entry.member is None or entry.member.id not in ids:
            continue
        newest.setdefault(entry.member.id, entry)
        session_ms = whole(entry, "session_timeout_ms")
        if session_ms is not None:
            sessions_ms.setdefault(entry.member.id, session_ms)
    found: list[Awaited] = []
    for each in waiting:
        closed, until_ms = newest.get(each.member.id), each.until_ms
        if closed is None or closed.type != "member_disconnected":
            found.append(each)
            continue
        session_ms, expires_ms = sessions_ms.get(each.member.id), None
        if session_ms is not None:
            heard_ms = closed.at_ms - (whole(closed, "silent_ms") or 0)
            answered_ms = max((end.at_ms for end in ends if end.answers(each.member, heard_ms)), default=0)
            expires_ms = max(heard_ms, loaded_ms, answered_ms) + session_ms
            if now_ms > expires_ms + EXPIRES_LATE_MS:
                found.append(each)
                continue
            until_ms = expires_ms if until_ms is None else min(until_ms, expires_ms)
        found.append(replace(each, until_ms=until_ms, disconnected_ms=closed.at_ms, expires_ms=expires_ms))
    return found


class _End:
    """A classic group ends a phase."""

    def __init__(self, change: Entry) -> None:
        self.at_ms = change.at_ms
        self._began_ms = change.at_ms - (whole(change, "phase_ms") or 0)
        self._to_state = text(change, "to_state")
        self._change = change

    def answers(self, who: Member, heard_ms: int) -> bool:
        """Whether the session of a member, last heard at `heard_ms`, begins anew: the JoinGroup or SyncGroup
        that it sent then is answered, or it is a static member that did not rejoin."""
        if self.at_ms <= heard_ms:
            return False
        if heard_ms >= self._began_ms:
            return self._to_state != STABLE or who.id not in self._missing
        return self._to_state == COMPLETING and who.id in self._missing

    @cached_property
    def _missing(self) -> frozenset[str]:
        """Read once: up to a hundred members, and whoever is awaited asks."""
        return frozenset(each.id for each in members(self._change, "waiting_for"))


def _pending(rebalance: Rebalance) -> list[Awaited]:
    """Clients that got a member id and have not joined with it. A coordinator that loads the shard knows
    none: ids are kept in memory only until they are used, and no longer than their group."""
    starts = {each.index: each.entry for each in rebalance.starts}
    found: dict[str, Awaited] = {}
    for index, each in enumerate(rebalance.stream[: rebalance.last]):
        if (start := starts.get(index)) is not None:
            for member_id in texts(start, "pending_member_ids"):
                found.setdefault(member_id, Awaited(Member(member_id, "", ""), True, start.at_ms, None))
        if each.type in ("shard_loaded", "shard_unloaded", "group_removed"):
            found.clear()
        elif each.member is None:
            continue
        elif each.type == "member_id_issued":
            found[each.member.id] = Awaited(each.member, True, each.at_ms, whole(each, "expires_ms"))
        elif each.type in ("pending_member_removed", "member_added"):
            found.pop(each.member.id, None)
    return list(found.values())


class _Gone(NamedTuple):
    """A member that the group waited for until it was removed."""

    member: Member
    ms: int
    """How long."""
    expired: bool
    """Whether its session expired; otherwise it left."""
    led: bool
    """Whether it was to send the assignment; otherwise it was to rejoin."""


def _gone(rebalance: Rebalance) -> Iterator[_Gone]:
    """Members that held up the group in vain; who did not rejoin in time is told elsewhere."""
    since_ms: dict[str, int] = {}
    size, led = 0, False
    for each in rebalance.entries:
        if each.type == "state_changed":
            to_state, leader = text(each, "to_state"), member(each, "leader")
            if to_state == PREPARING:
                led, since_ms = False, {who.id: each.at_ms for who in members(each, "waiting_for")}
                size = len(since_ms) + 1  # with the one that began it; the list is cut at a hundred
            elif to_state == COMPLETING:
                led, since_ms = True, {} if leader is None else {leader.id: each.at_ms}
        elif each.member is None:
            continue
        elif each.type == "member_added":
            size += 1
        elif each.type == "member_rejoined":
            since_ms.pop(each.member.id, None)
        elif each.type == "member_removed":
            began_ms = since_ms.pop(each.member.id, None)
            if began_ms is None or each.at_ms - began_ms < _HELD_UP_MS:
                continue
            expired = each.trigger == Trigger.SESSION_EXPIRED
            # In a larger group, one that left may have rejoined before.
            if expired or (each.trigger == Trigger.MEMBER_LEFT and (led or size <= REJOINS_TOLD_MAX)):
                yield _Gone(each.member, each.at_ms - began_ms, expired, led)


def _leaders(rebalance: Rebalance) -> Iterator[Led]:
    """The waits for assignments that are over."""
    leader: Member | None = None
    since_ms = 0
    for each in rebalance.entries:
        removed = each.type == "member_removed" and each.member is not None and each.member.id
        if leader is not None and (each.type == "state_changed" or removed == leader.id):
            yield Led(leader, since_ms, max(each.at_ms - since_ms, 0))
            leader = None
        if each.type == "state_changed" and text(each, "to_state") == COMPLETING:
            leader, since_ms = member(each, "leader"), each.at_ms
    if leader is not None and rebalance.ended_ms is not None:
        yield Led(leader, since_ms, max(rebalance.ended_ms - since_ms, 0))


def _slowest(rebalance: Rebalance) -> tuple[tuple[Member, int | None], ...]:
    done = rebalance.completed
    if done is None:
        return ()
    found: list[tuple[Member, int | None]] = list(joins(done))
    last = member(done, "last_joined")
    if not found and last is not None:
        found = [(last, None)]
    return tuple(found)


def _held_up(rebalance: Rebalance) -> list[tuple[Member, int]]:
    """Pending clients that were waited for in vain until the joins were over."""
    found: list[tuple[Member, int]] = []
    for each in rebalance.entries:
        if each.type == "pending_member_removed" and each.trigger == Trigger.PENDING_MEMBER_EXPIRED:
            waited_ms = whole(each, "waited_ms")
            if each.member is not None and waited_ms is not None:
                found.append((each.member, waited_ms))
    return found
