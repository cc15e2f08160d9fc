"""Rules for what only consumer groups have: targets, revocations, regular expressions, epochs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from muster.coordinator.journal.entries import Entry
from muster.coordinator.journal.explain import leaving
from muster.coordinator.journal.explain.consumer.cost import moved
from muster.coordinator.journal.explain.facts import Growth, flag, growths, partitions, text, texts, whole
from muster.coordinator.journal.explain.findings import Case, Finding
from muster.coordinator.journal.explain.names import count, duration, listed
from muster.coordinator.journal.explain.names import partitions as numbered
from muster.coordinator.journal.explain.timing import Awaited
from muster.coordinator.journal.explain.vocabulary import Certainty, Diagnosis, Trigger

_RECENTLY_MS: Final = 60_000
"""A member that joined this recently may have brought a regular expression."""
_HEARTBEAT_MS: Final = 5_000
"""The default of group.consumer.heartbeat.interval.ms."""


# --- subscriptions and assignors ----------------------------------------------------------------------------


def regex_changed(case: Case) -> Finding | None:
    """A heartbeat brought another regular expression, whose topics were known."""
    changed = case.in_step("metadata_changed")
    regex = None if changed is None else text(changed, "regex")
    if regex is None:
        return None
    says = f"its regular expression is now {regex}" if regex else "it no longer has a regular expression"
    return Finding(Diagnosis.SUBSCRIPTION_CHANGED, Certainty.CERTAIN, f"its subscription changed: {says}")


def subscription_changed(case: Case) -> Finding | None:
    """The journal does not show what changed."""
    if case.kind is not case.rebalance.kind:
        return None  # the protocol that the member speaks
    changed = case.in_step("metadata_changed")
    if changed is not None and (
        text(changed, "regex") is not None
        or texts(changed, "topics_added")
        or texts(changed, "topics_removed")
    ):
        return None
    return Finding(Diagnosis.SUBSCRIPTION_CHANGED, Certainty.CERTAIN, "its subscription changed")


def assignor_changed(case: Case) -> Finding:
    """The members' votes chose another server-side assignor."""
    before, after = _assignors(case)
    asked = case.in_step("metadata_changed")
    if after is None and asked is not None:
        after = next(iter(texts(asked, "protocols_after")), None)
    change = (
        f"from {before} to {after}" if before and after and before != after else f"to {after or 'another'}"
    )
    says = f"the server-side assignor changed {change}: most members that ask for one ask for it now"
    return Finding(Diagnosis.ASSIGNOR_CHANGED, Certainty.CERTAIN, says)


def assignor_brought(case: Case) -> Finding | None:
    """A static member returned and brought another server-side assignor."""
    before, after = _assignors(case)
    return assignor_changed(case) if before and after and before != after else None


def _assignors(case: Case) -> tuple[str | None, str | None]:
    """The assignor of the previous target, and that of the last one."""
    before = next((text(each, "assignor") for each in case.earlier("target_assigned")), None)
    targets = case.rebalance.targets
    return before, text(targets[-1], "assignor") if targets else None


def topics_changed(case: Case) -> Finding:
    """The coordinator watches topics itself."""
    grown = case.in_step("topics_grown")
    changed = [] if grown is None else growths(grown)
    says = listed([_said(each) for each in changed]) or _from_moves(case)
    return Finding(Diagnosis.TOPICS_GROWN, Certainty.CERTAIN, says or "the topics it reads changed")


def _said(change: Growth) -> str:
    if not change.before:
        return f"topic {change.topic} was created with {count(change.now, 'partition')}"
    if not change.now:
        return f"topic {change.topic} was deleted"
    return f"the partitions of {change.topic} changed: {change.before} → {change.now}"


def _from_moves(case: Case) -> str:
    """What the target shows about topics, if the coordinator was reloaded since it knew their sizes."""
    changed = moved(case.rebalance)
    new = _topics((each.topic, each.partition) for each in changed if each.from_member is None)
    lost = _topics((each.topic, each.partition) for each in changed if each.to_member is None)
    parts = [f"{numbered(new)} are new"] * bool(new) + [f"{numbered(lost)} are gone"] * bool(lost)
    return ", ".join(parts)


def _topics(some: Iterable[tuple[str, int]]) -> Sequence[tuple[str, int]]:
    return sorted(set(some))


def regex_resolved(case: Case) -> Finding:
    """Topics were looked up off the loop, for a member that joined or because topics changed."""
    grown = case.in_step("topics_grown")
    changed = [] if grown is None else growths(grown)
    came = [f"{each.topic} ({count(each.now, 'partition')})" for each in changed if not each.before]
    went = [each.topic for each in changed if not each.now]
    parts = [f"now with {listed(came)}"] * bool(came) + [f"without {listed(went)}"] * bool(went)
    topics = f": {', '.join(parts)}" if parts else ""
    got: set[str] = set()  # members whose expressions had been looked up
    for each in case.earlier(
        "member_added", "metadata_changed", "partitions_assigned", window_ms=_RECENTLY_MS
    ):
        if each.member is None:
            continue
        if each.type == "partitions_assigned":
            got |= {each.member.id} if partitions(each) else set()
            continue
        if each.member.id in got or not _may_bring_regex(each):
            continue
        ago = duration(case.start.entry.at_ms - each.at_ms)
        how = "joined" if each.type == "member_added" else "changed its subscription"
        who = case.names.short(each.member)
        says = f"the topics of a regular expression were looked up{topics}"
        return Finding(Diagnosis.REGEX_RESOLVED, Certainty.CERTAIN, says, (f"{who} {how} {ago} before",))
    says = f"a regular expression stands for other topics{topics}"
    return Finding(Diagnosis.REGEX_RESOLVED, Certainty.CERTAIN, says)


def _may_bring_regex(entry: Entry) -> bool:
    if entry.type == "metadata_changed":
        return bool(text(entry, "regex"))
    return not texts(entry, "protocols") and not texts(entry, "topics")


# --- static members -----------------------------------------------------------------------------------------


def never_came_back(case: Case) -> Finding | None:
    """A static member left temporarily (epoch −2), and its session expired."""
    if not _was_away(case):
        return None
    if case.connected:
        evidence = "it left temporarily (epoch −2)", "its connection stayed open"
        return Finding(Diagnosis.POLL_DEADLINE_MISSED, Certainty.LIKELY, leaving.POLL, evidence)
    left = _left_for_a_while(case)
    ago = "(epoch −2)" if left is None else f"{duration(case.start.entry.at_ms - left.at_ms)} before"
    says = "the process was stopped and did not return within its session timeout"
    return Finding(Diagnosis.CLEAN_SHUTDOWN, Certainty.CERTAIN, says, (f"it left temporarily {ago}",))


def stalled(case: Case) -> Finding | None:
    """Heartbeats of a member that has left temporarily do not stop, they are over."""
    return None if _was_away(case) else leaving.stalled(case)


def _was_away(case: Case) -> bool:
    """Whether a removed member had left temporarily."""
    away = None if case.removed is None else flag(case.removed, "away")
    return _left_for_a_while(case) is not None if away is None else away


def _left_for_a_while(case: Case) -> Entry | None:
    """The entry of a static member's leave: only one that changes the group's state has one."""
    if case.member is None or case.member.instance is None:
        return None
    for each in case.earlier("state_changed", "member_replaced", "partitions_assigned", "heartbeat_late"):
        if each.member is not None and each.member.instance == case.member.instance:
            left = each.type == "state_changed" and each.trigger == Trigger.MEMBER_LEFT
            return each if left else None  # if not, it has come back since
    return None


# --- members that are too slow ------------------------------------------------------------------------------


def slow_to_revoke(case: Case) -> Finding:
    """Evicted: others waited for its partitions for as long as its rebalance timeout."""
    asked = next((each for each in case.earlier("revocation_requested") if case.is_about(each)), None)
    evidence: list[str] = []
    what = "its partitions"
    if asked is not None:
        what = numbered(partitions(asked)) or what
        evidence.append(f"it was told to {duration(case.start.entry.at_ms - asked.at_ms)} before")
    if case.silent_ms is not None:
        evidence.append(f"its last heartbeat came {duration(case.silent_ms)} before")
    says = f"it did not revoke {what} within its rebalance timeout: "
    if asked is not None and _died_when_asked(case, asked):
        closed_ms = case.disconnected_before_ms
        if closed_ms is not None:
            evidence.append(f"its connection closed {duration(closed_ms)} before")
        says += "the process is probably gone"
        return Finding(Diagnosis.CRASHED, Certainty.LIKELY, says, tuple(evidence))
    says += "its application does not poll, or its rebalance callback takes too long"
    return Finding(Diagnosis.SLOW_REVOKE, Certainty.CERTAIN, says, tuple(evidence))


def _died_when_asked(case: Case, asked: Entry) -> bool:
    """Whether the connection of a member is closed, and it was not heard of for as long as it had to revoke,
    but for a heartbeat."""
    if case.connected is not False or case.silent_ms is None or case.removed is None:
        return False
    beat_ms = whole(case.removed, "heartbeat_interval_ms") or _HEARTBEAT_MS
    return case.silent_ms + beat_ms >= case.start.entry.at_ms - asked.at_ms


def did_not_rejoin(case: Case) -> Finding:
    """A member of the classic protocol was told to rejoin."""
    says = (
        "it speaks the classic protocol and did not rejoin within its rebalance timeout: its application "
        "does not poll, or the process is gone"
    )
    evidence = (
        () if case.silent_ms is None else (f"it was last heard from {duration(case.silent_ms)} before",)
    )
    return Finding(Diagnosis.SLOW_JOIN, Certainty.CERTAIN, says, evidence)


def owes(first: Awaited, who: str) -> str:
    """What a rebalance in progress waits for, as a sentence without its full stop."""
    if not first.partitions:
        return f"{who} has sent no heartbeat to learn of its partitions"
    return f"{who} has not revoked {numbered(first.partitions)}"


def hanging(first: Awaited, owes: str, who: str, waited_ms: int) -> Finding:
    """What a rebalance in progress has waited for too long, from a member that is connected."""
    waited = duration(waited_ms)
    # Those that waited may have left; it has to revoke all the same.
    since = (f"others have waited for it for {waited}" if first.waiters else f"it was told to {waited} ago",)
    if not first.partitions:
        says = f"{owes}: the process stalls, or is gone"
        return Finding(Diagnosis.SLOW_REVOKE, Certainty.LIKELY, says)
    if first.until_ms is None:
        what = numbered(first.partitions)
        says = f"{who} has {what} and has not revoked them: it may not know yet that it has to"
        return Finding(Diagnosis.SLOW_REVOKE, Certainty.LIKELY, says, since)
    says = f"{owes}: its application does not poll, or its rebalance callback takes long"
    return Finding(Diagnosis.SLOW_REVOKE, Certainty.CERTAIN, says, since)


# --- incidents ----------------------------------------------------------------------------------------------


def fenced(case: Case) -> Finding:
    """FENCED_MEMBER_EPOCH."""
    entry = case.start.entry
    sent, has = whole(entry, "sent_epoch"), whole(entry, "member_epoch")
    epochs = "" if sent is None or has is None else f"it sent epoch {sent}, and its epoch is {has}"
    says = "it gives up all its partitions and rejoins; the others keep theirs"
    return Finding(Diagnosis.FENCED, Certainty.CERTAIN, says, (epochs,) if epochs else ())


def away(case: Case) -> Finding:
    """A static member's heartbeat with the epoch −2."""
    says = "it keeps its partitions, which stand still, until it comes back or its session expires"
    return Finding(Diagnosis.STATIC_MEMBER_AWAY, Certainty.CERTAIN, says, ("it left temporarily (epoch −2)",))


def instance_in_use(case: Case) -> Finding | None:
    """UNRELEASED_INSTANCE_ID: the former process has not left."""
    if text(case.start.entry, "error") != "UNRELEASED_INSTANCE_ID" or case.member is None:
        return None
    instance = case.member.instance or "its instance id"
    for each in case.earlier("member_disconnected", "member_added", "member_replaced"):
        if each.member is None or each.member.instance != case.member.instance:
            continue
        if each.type != "member_disconnected":
            break
        ago = duration(case.start.entry.at_ms - each.at_ms)
        says = f"its former process died without leaving: {instance} is free when that one's session expires"
        return Finding(Diagnosis.CRASHED, Certainty.LIKELY, says, (f"its connection closed {ago} before",))
    says = f"another process uses the instance id {instance} and has not left"
    return Finding(
        Diagnosis.DUPLICATE_INSTANCE_ID, Certainty.LIKELY, says, ("the other one's connection is open",)
    )
