"""Rules for members that were evicted, left, or were removed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from muster.coordinator.journal.entries import CUT, Entry, Member
from muster.coordinator.journal.explain.facts import member, members, same_client, text, whole
from muster.coordinator.journal.explain.findings import Case, Finding
from muster.coordinator.journal.explain.names import count, duration
from muster.coordinator.journal.explain.rebalances import LOOK_ENTRIES_MAX, Rebalance, Start
from muster.coordinator.journal.explain.vocabulary import (
    COMPLETING,
    PREPARING,
    Certainty,
    Diagnosis,
    Kind,
    Trigger,
)

_AT_ONCE_MS: Final = 10_000
"""A connection that closes this soon after a LeaveGroup was closed with it."""
CLOSING_MS: Final = 2_000
"""By this time after its LeaveGroup, a consumer being closed has closed its connection."""
_LOADING_MS: Final = 1_000
_POLLED_BEFORE_MS: Final = 1_000
"""How long before its JoinGroup arrives a client may have begun to measure its poll interval."""
_BY_ADMIN: Final = re.compile(r"removed by an? admin|administrator", re.IGNORECASE)
_BY_POLL_DEADLINE: Final = re.compile(
    r"poll (timeout|interval|deadline)|max[._]poll[._]interval", re.IGNORECASE
)
_BY_CLOSING: Final = re.compile(r"\bclos(e|ed|ing)\b|unsubscribed|shut(s|ting)? ?down", re.IGNORECASE)
_CRASH: Final = "the process crashed, was killed, or lost its network"
_STALL: Final = "the process stalled (a blocked event loop, GC or CPU)"
POLL: Final = (
    "the client missed its poll deadline: processing records took longer than max.poll.interval.ms allows"
)
_STAYED_AWAY: Final = (
    "it did not rejoin within the rebalance timeout, kept its place as a static member, and did not come back"
)
_CLOSED: Final = "the consumer was closed"
_UNSUBSCRIBED: Final = "the application unsubscribed"
_CLOSED_OR_UNSUBSCRIBED: Final = "the consumer was closed, or the application unsubscribed"


# --- session expired ----------------------------------------------------------------------------------------


def crashed(case: Case) -> Finding | None:
    """FIN or RST without LeaveGroup, then session expiry."""
    if case.connected is not False or _unheard_since_move(case):
        return None
    closed_ms = case.disconnected_before_ms
    evidence = [] if closed_ms is None else [f"its connection closed {duration(closed_ms)} before"]
    certainty, unsaid = Certainty.LIKELY, "it sent no LeaveGroup"
    if case.kind is Kind.CONSUMER:
        unsaid = "it did not leave"
    elif case.member is not None and case.member.instance is not None:
        certainty = Certainty.POSSIBLE
    return Finding(Diagnosis.CRASHED, certainty, _CRASH, (unsaid, *evidence, *_heartbeats(case)))


def static_and_closed(case: Case) -> Finding | None:
    """A static member sends no LeaveGroup when closed: only its absence shows."""
    if case.connected is not False or case.member is None or case.member.instance is None:
        return None
    says = "the process was stopped and did not return within its session timeout"
    evidence = "static members send no LeaveGroup when they are closed"
    return Finding(Diagnosis.CLEAN_SHUTDOWN, Certainty.POSSIBLE, says, (evidence,))


def stalled(case: Case) -> Finding | None:
    """Heartbeats stop while the connection stays open. If it comes back on that connection, it did not die;
    but connections also outlive short outages of the network, and heartbeats set too far apart."""
    if case.connected is not True:
        return None
    late = case.near_misses
    says, evidence = _STALL, ["its connection stayed open", *_heartbeats(case)]
    returned = _returned(case)
    if returned is not None:
        says += ", or its network did"
        away_ms = returned.at_ms - case.start.entry.at_ms
        evidence.append(f"it came back on the same connection {duration(away_ms)} later")
    if _sent_hardly_any_heartbeat(case):
        says += ", or its heartbeat.interval.ms is not below its session.timeout.ms"
        evidence.append(
            "fewer than five heartbeats were seen from it since it last joined or its broker took over"
        )
    if late:
        says += f". It had been late {count(late, 'time')} in the 10 minutes before"
    return Finding(Diagnosis.STALLED, Certainty.LIKELY, says, tuple(evidence))


def _returned(case: Case) -> Entry | None:
    """The entry of its return on the connection that it had."""
    joins = case.later("member_id_issued", "member_added")
    return next((each for each in joins if case.came_back_as(each)), None)


def _sent_hardly_any_heartbeat(case: Case) -> bool:
    """Whether too few came to know their interval, and no former broker may have seen more. In the consumer
    protocol the broker sets that."""
    noted = {} if case.removed is None else case.removed.data
    if case.kind is not Kind.CLASSIC or noted.get("heartbeat_interval_ms", 0) is not None:
        return False
    for each in case.before("shard_loaded", "member_added", "member_replaced"):
        if each.type == "shard_loaded" or case.is_about(each):
            return each.type != "shard_loaded"
    return True


def static_past_poll_deadline(case: Case) -> Finding | None:
    """A static member whose application does not poll stops its heartbeats instead of leaving."""
    if case.connected is not True or case.member is None or case.member.instance is None:
        return None
    evidence = "static members stop their heartbeats at the poll deadline instead of leaving"
    return Finding(Diagnosis.POLL_DEADLINE_MISSED, Certainty.POSSIBLE, POLL, (evidence,))


def vanished(case: Case) -> Finding | None:
    """A host without power or network closes no connection."""
    if case.connected is not True or case.near_misses or _returned(case) is not None:
        return None
    says = "its host lost power or network, so the connection was never closed"
    return Finding(Diagnosis.CRASHED, Certainty.POSSIBLE, says)


def never_came_along(case: Case) -> Finding | None:
    """Never heard from since the coordinator took over the group: it was already gone."""
    moved = _unheard_since_move(case)
    if moved is None:
        return None
    ago = duration(case.start.entry.at_ms - moved.at_ms)
    says = f"{_CRASH} before or while the coordinator moved"
    evidence = f"it was not heard of after broker {moved.broker} took over the group {ago} before"
    return Finding(Diagnosis.CRASHED, Certainty.LIKELY, says, (evidence,))


def lost_leave(rebalance: Rebalance, until: int, who: Member) -> Start | None:
    """The removal, in a classic group's rebalance that was lost when the coordinator moved, of a member that
    got its place back by that; None also if an entry up to stream[until] tells that it was there since."""
    is_back = False
    for index in range(until - 1, max(-1, until - LOOK_ENTRIES_MAX), -1):
        each = rebalance.stream[index]
        if each.type == "shard_loaded":
            is_back = True
        elif each.type == "state_changed":
            if text(each, "to_state") not in (PREPARING, COMPLETING):
                return None  # what was before is stored
        elif each.member is None or each.member.id != who.id:
            continue
        elif each.type == "member_removed":
            return Start(index, each, each.trigger) if is_back else None
        elif each.type != "member_disconnected":
            return None
    return None


def left_before(case: Case) -> Case | None:
    """The case of that removal, if the member's session expired because it was not heard from after it."""
    if case.trigger != Trigger.SESSION_EXPIRED or case.member is None or case.kind is not Kind.CLASSIC:
        return None
    if _unheard_since_move(case) is None:
        return None
    at = case.start.index
    while at > 0 and case.rebalance.stream[at] is not case.removed:
        at -= 1
    start = lost_leave(case.rebalance, at, case.member)
    return None if start is None else replace(case, start=start)


def expired_for_unknown_reasons(case: Case) -> Finding | None:
    """It is unknown whether its connection was open."""
    if case.connected is not None:
        return None
    return Finding(Diagnosis.CRASHED, Certainty.POSSIBLE, _CRASH)


def stalled_or_not(case: Case) -> Finding | None:
    """The other half of `expired_for_unknown_reasons`."""
    return None if case.connected is not None else Finding(Diagnosis.STALLED, Certainty.POSSIBLE, _STALL)


def _unheard_since_move(case: Case) -> Entry | None:
    silent_ms = case.silent_ms
    if case.disconnected_before_ms is not None or case.connected is True or silent_ms is None:
        return None
    for each in case.earlier("shard_loaded"):
        # Loading a member counts as hearing from it.
        return each if case.start.entry.at_ms - silent_ms <= each.at_ms + _LOADING_MS else None
    return None


def _heartbeats(case: Case) -> list[str]:
    """What is known about its last heartbeats."""
    said: list[str] = []
    if case.silent_ms is not None:
        interval_ms = None if case.removed is None else whole(case.removed, "heartbeat_interval_ms")
        said.append(f"heartbeats stopped {duration(case.silent_ms)} before")
        if interval_ms is not None:
            said.append(f"until then one came every {duration(interval_ms)}")
    if case.near_misses:
        said.append(f"late {count(case.near_misses, 'time')} in the 10 minutes before")
    return said


# --- left ---------------------------------------------------------------------------------------------------


def removed_by_admin(case: Case) -> Finding | None:
    """Another client requested its removal."""
    by = None if case.removed is None else member(case.removed, "requested_by")
    says = "an administrator removed it; a member that still runs rejoins"
    if by is not None:
        who = f"{by.client_id or 'a client'} at {by.host or 'an unknown host'}"
        evidence = f"the LeaveGroup came from {who}, not over the member's own connection"
        return Finding(Diagnosis.EVICTED_BY_ADMIN, Certainty.CERTAIN, says, (evidence, *case.said))
    if case.reason is not None and _BY_ADMIN.search(case.reason):
        return Finding(Diagnosis.EVICTED_BY_ADMIN, Certainty.CERTAIN, says, case.said)
    return None


def says_poll_deadline(reason: str | None) -> bool:
    """Whether a client that leaves says that it missed its poll deadline."""
    return reason is not None and bool(_BY_POLL_DEADLINE.search(reason))


def says_closing(reason: str | None) -> bool:
    """Whether a client that leaves says that it was closed or unsubscribed."""
    return reason is not None and bool(_BY_CLOSING.search(reason)) and not says_poll_deadline(reason)


def says_unsubscribed(reason: str | None) -> bool:
    """Whether a client that leaves says that it unsubscribed."""
    return reason is not None and "unsubscribed" in reason.lower()


def said_poll_deadline(case: Case) -> Finding | None:
    """The client's own reason."""
    if not says_poll_deadline(case.reason):
        return None
    return Finding(Diagnosis.POLL_DEADLINE_MISSED, Certainty.CERTAIN, POLL, case.said)


def said_closing(case: Case) -> Finding | None:
    """The client's own reason."""
    if not says_closing(case.reason):
        return None
    says = _UNSUBSCRIBED if says_unsubscribed(case.reason) else _CLOSED
    return Finding(Diagnosis.CLEAN_SHUTDOWN, Certainty.CERTAIN, says, case.said)


def left_and_closed(case: Case) -> Finding | None:
    """LeaveGroup, then FIN."""
    closed_ms = case.disconnected_after_ms
    if closed_ms is None or _is_told(case):
        return None
    at_once = closed_ms <= _AT_ONCE_MS
    evidence = f"its connection closed {duration(closed_ms)} after it left"
    certainty = Certainty.CERTAIN if at_once else Certainty.LIKELY
    return Finding(Diagnosis.CLEAN_SHUTDOWN, certainty, _CLOSED, (evidence, *case.said))


def left_and_came_back(case: Case) -> Finding | None:
    """LeaveGroup with heartbeats on time and the connection still open; the same client rejoins."""
    closed_ms = case.disconnected_after_ms
    if _is_told(case):
        return None
    for each in case.later("member_id_issued", "member_added"):
        if not _back(case, each) or (closed_ms is not None and closed_ms <= _AT_ONCE_MS):
            continue
        away = duration(each.at_ms - case.start.entry.at_ms)
        if case.came_back_as(each):
            certainty, how = Certainty.LIKELY, f"the same connection rejoined {away} later"
        else:
            certainty = Certainty.POSSIBLE if case.shares_its_name else Certainty.LIKELY
            how = f"a client with the same id and host rejoined {away} later"
        if _too_early(case):
            certainty = Certainty.POSSIBLE
        return Finding(Diagnosis.POLL_DEADLINE_MISSED, certainty, POLL, (how, *_on_time(case)))
    return None


def left_and_stays(case: Case) -> Finding | None:
    """LeaveGroup with heartbeats on time; the connection stayed open."""
    if case.disconnected_after_ms is not None or not _on_time(case) or _is_told(case):
        return None
    open_ms = _open_ms(case)
    if open_ms is None:
        return None
    certainty = Certainty.LIKELY if open_ms > CLOSING_MS and not _too_early(case) else Certainty.POSSIBLE
    evidence = f"its connection was still open {duration(open_ms)} after it left"
    return Finding(Diagnosis.POLL_DEADLINE_MISSED, certainty, POLL, (evidence, *_on_time(case)))


def _open_ms(case: Case) -> int | None:
    """How long its connection was open after it left, as far as the journal shows. None: the coordinator
    moved so soon that the connection may have closed with the LeaveGroup; the next one does not know it."""
    left_ms = known_ms = case.start.entry.at_ms
    for each in case.rebalance.later(case.start, None):
        if each.type == "shard_loaded":
            # The former coordinator died, some time after its last entry and after it was last heard from.
            silent_ms = whole(each, "from_silent_ms")
            known_ms = known_ms if silent_ms is None else max(known_ms, each.at_ms - silent_ms)
        else:
            known_ms = each.at_ms
        if each.type in ("shard_loaded", "shard_unloaded"):
            return known_ms - left_ms if known_ms - left_ms > CLOSING_MS else None
        if (each.type == "member_disconnected" and case.is_about(each)) or case.came_back_as(each):
            return known_ms - left_ms
    return case.now_ms - left_ms


def just_left(case: Case) -> Finding | None:
    """LeaveGroup, and nothing else known."""
    if _is_told(case):
        return None
    early = _too_early(case)
    certainty = Certainty.LIKELY if early else Certainty.POSSIBLE
    evidence = ("it sent a LeaveGroup", *early, *case.said)
    return Finding(Diagnosis.CLEAN_SHUTDOWN, certainty, _CLOSED_OR_UNSUBSCRIBED, evidence)


def _too_early(case: Case) -> tuple[str, ...]:
    """Evidence that it left before a poll deadline could have passed since it joined; none if it did not.
    Only a client that joined without polling, as librdkafka may after an eviction, can miss one sooner."""
    if case.member is None:
        return ()
    return too_early(case.start.entry, case.member, case.before("member_added", "member_replaced"))


def too_early(left: Entry, who: Member, before: Iterable[Entry]) -> tuple[str, ...]:
    """The same for the entry of a leave; `before` are the earlier joins, newest first."""
    for each in before:
        if each.member is not None and each.member.id == who.id:
            limit_ms, age_ms = whole(each, "rebalance_timeout_ms"), left.at_ms - each.at_ms
            if limit_ms is None or age_ms >= limit_ms - _POLLED_BEFORE_MS:
                return ()
            limit = f"its rebalance timeout (usually max.poll.interval.ms) of {duration(limit_ms)}"
            return (f"it left {duration(age_ms)} after it had joined, sooner than {limit}",)
    return ()


def _is_told(case: Case) -> bool:
    """Whether the requester or the reason is conclusive, whatever happened next."""
    return any(rule(case) is not None for rule in (removed_by_admin, said_poll_deadline, said_closing))


def _back(case: Case, entry: Entry) -> bool:
    if "former_member_id" in entry.data:
        return case.came_back_as(entry)  # its connection is known
    gone = case.member
    return (
        gone is not None
        and entry.member is not None
        and entry.member.id != gone.id
        and same_client(entry.member, gone)
    )


def _on_time(case: Case) -> tuple[str, ...]:
    """Evidence that its heartbeats were on time; none if they were not, or it is unknown."""
    if case.silent_ms is None or case.removed is None:
        return ()
    interval_ms = whole(case.removed, "heartbeat_interval_ms")
    session_ms = whole(case.removed, "session_timeout_ms")
    limit_ms = 2 * interval_ms if interval_ms is not None else (session_ms or 30_000) // 2
    if case.silent_ms > limit_ms:
        return ()
    return ("its heartbeats were on time until then",)


# --- other ways out -----------------------------------------------------------------------------------------


def sync_timed_out(case: Case) -> Finding | None:
    """JoinGroup, then no SyncGroup within the rebalance timeout."""
    if _stayed_away(case):
        return None
    missing = _removed_together(case)
    hung = _hung(case)
    who = "it" if hung is None or hung == case.member else case.names.short(hung)
    says = f"{who} joined but never sent SyncGroup: it died, or its assignor or rebalance callback hangs"
    evidence = f"{count(len(missing), 'member')} did not send SyncGroup within the rebalance timeout"
    return Finding(Diagnosis.SYNC_TIMEOUT, Certainty.CERTAIN, says, (evidence,) if missing else ())


def stayed_away(case: Case) -> Finding | None:
    """A static member that does not rejoin keeps its place in the next generation, and is then to sync."""
    if not _stayed_away(case) or case.connected is True:
        return None
    return Finding(Diagnosis.CRASHED, Certainty.POSSIBLE, _CRASH, (_STAYED_AWAY, *_heartbeats(case)))


def stayed_away_and_closed(case: Case) -> Finding | None:
    """The other half of `stayed_away`: static members send no LeaveGroup when closed."""
    if not _stayed_away(case) or case.connected is True:
        return None
    says = "the process was stopped and did not return in time"
    return Finding(Diagnosis.CLEAN_SHUTDOWN, Certainty.POSSIBLE, says, (_STAYED_AWAY,))


def stayed_away_past_poll_deadline(case: Case) -> Finding | None:
    """The same with its connection open."""
    if not _stayed_away(case) or case.connected is not True:
        return None
    return Finding(Diagnosis.POLL_DEADLINE_MISSED, Certainty.POSSIBLE, POLL, (_STAYED_AWAY,))


def _stayed_away(case: Case) -> bool:
    """Whether it is a static member that had not rejoined when the generation began, and so are those that
    were removed with it."""
    return case.member is not None and case.member.instance is not None and _hung(case) is None


def _hung(case: Case) -> Member | None:
    """The first of the removed members that had joined; None if they had all stayed away."""
    changes = (each for each in case.before("state_changed") if text(each, "to_state") == COMPLETING)
    joined = next(changes, None)
    if case.member is None or joined is None or case.kind is not Kind.CLASSIC:
        return case.member
    away = {each.id for each in members(joined, "waiting_for")}
    if CUT in joined.data and case.member.id in away:
        return None  # the others may have been away as well
    return next((each for each in (case.member, *_removed_together(case)) if each.id not in away), None)


def _removed_together(case: Case) -> list[Member]:
    removals = (each for each in case.step if each.type == "member_removed")
    return [each.member for each in removals if each.member is not None and each.trigger == case.trigger]


def group_is_full(case: Case) -> Finding | None:
    """KIP-389."""
    says = f"{size_limit(case)} allows no more members"
    return Finding(Diagnosis.GROUP_FULL, Certainty.CERTAIN, says, case.said)


def size_limit(case: Case) -> str:
    """The setting that limits the group's size."""
    return "group.consumer.max.size" if case.rebalance.kind is Kind.CONSUMER else "group.max.size"


def waited_in_vain(case: Case) -> Finding | None:
    """A new member may wait five minutes in JoinGroup."""
    says = "it waited in JoinGroup as long as a new member may, and the rebalance was not over"
    return Finding(Diagnosis.SLOW_JOIN, Certainty.CERTAIN, says)
