"""Sentences that only explanations of consumer groups need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import tzinfo
from typing import Final

from muster.coordinator.journal.explain.consumer.migration import migrated
from muster.coordinator.journal.explain.facts import text
from muster.coordinator.journal.explain.findings import Case
from muster.coordinator.journal.explain.names import duration, listed, moment, partitions
from muster.coordinator.journal.explain.timing import Awaited, Phases
from muster.coordinator.journal.explain.vocabulary import Kind, Trigger
from muster.coordinator.journal.names import Names

_SLOW_MAX: Final = 3
"""Maximum number of revocations mentioned per rebalance."""


def what(case: Case, who: str) -> str | None:
    """What began the rebalance in a consumer group; None if it is told as in classic groups."""
    entry = migrated(case)
    if entry is not None and text(entry, "to_type") == Kind.CONSUMER:
        return f"member{who} joined with the consumer protocol, the first in a classic group"
    if case.kind is not Kind.CONSUMER and case.trigger not in _INCIDENTS:
        return None
    if entry is not None and case.trigger == Trigger.METADATA_CHANGED:
        return f"member{who} rejoined with the classic protocol"
    says = _WHAT.get(case.trigger or "")
    return None if says is None else says(who)


_INCIDENTS: Final = (Trigger.MEMBER_FENCED, Trigger.STATIC_MEMBER_AWAY, Trigger.UPGRADED, Trigger.DOWNGRADED)
_WHAT: Final[Mapping[str, Callable[[str], str]]] = {
    Trigger.METADATA_CHANGED: lambda who: f"member{who} subscribed to something else",
    Trigger.ASSIGNOR_CHANGED: lambda who: f"member{who} asked for another server-side assignor",
    Trigger.TOPICS_CHANGED: lambda _: "topics that the group reads came, went or have other partitions",
    Trigger.REGEX_RESOLVED: lambda _: "the topics of a regular expression were looked up",
    Trigger.REVOCATION_TIMED_OUT: lambda who: (
        f"member{who} was evicted: it did not revoke partitions that others waited for"
    ),
    Trigger.REBALANCE_TIMED_OUT: lambda who: f"member{who} was evicted: it did not rejoin in time",
    Trigger.MEMBER_FENCED: lambda who: f"member{who} was fenced: it used an epoch that it does not have",
    Trigger.STATIC_MEMBER_AWAY: lambda who: f"static member{who} left temporarily",
    Trigger.UPGRADED: lambda who: (
        f"member{who} joined with the consumer protocol, the first in a classic group"
    ),
    Trigger.DOWNGRADED: lambda who: f"member{who} took the place of the last one of the consumer protocol",
}


def phases(taken: Phases, names: Names) -> str:
    """For example: target after 0.9 s · reached by all members 2.3 s later (last: web-1)."""
    said: list[str] = []
    if taken.target_ms is not None:
        said.append(f"target after {duration(taken.target_ms)}")
    if taken.reconcile_ms is not None:
        slowest = ""
        if taken.slowest and taken.reconcile_ms > 0:
            slowest = f" (last: {names.short(taken.slowest[0][0])})"
        said.append(f"reached by all members {duration(taken.reconcile_ms)} later{slowest}")
    slow = sorted(taken.revocations, key=lambda each: -each.ms)
    for each in slow[:_SLOW_MAX]:
        said.append(
            f"{names.short(each.member)} revoked {partitions(each.partitions)} in {duration(each.ms)}"
        )
    if len(slow) > _SLOW_MAX:
        said.append(f"{len(slow) - _SLOW_MAX} more revoked theirs sooner")
    if taken.dropped:
        gone = listed([names.short(each) for each in taken.dropped])
        said.append(f"removed for not revoking or rejoining in time: {gone}")
    if taken.restarts:
        said.append(f"{taken.restarts} more {'epoch' if taken.restarts == 1 else 'epochs'} meanwhile")
    return " · ".join(said)


def awaited(each: Awaited, names: Names, now_ms: int, zone: tzinfo | None) -> str:
    """Who holds what, since when and until when, and who waits for it."""
    waited, long = duration(now_ms - each.since_ms), names.long(each.member)
    said = f"for {long} to send a heartbeat and learn of its partitions, {waited} so far"
    if each.partitions:
        waiters = listed([names.short(one) for one in each.waiters])
        to = f" for {waiters}" if waiters else ""
        said = f"for {long} to revoke {partitions(each.partitions)}{to}, {waited} so far"
    if each.disconnected_ms is not None:
        said += f", its connection closed {duration(now_ms - each.disconnected_ms)} ago"
    if each.until_ms is None:
        return said
    left_ms = each.until_ms - now_ms
    when = moment(each.until_ms, zone, near_ms=now_ms)
    return f"{said}; it is removed at {when}" + (f" (in {duration(left_ms)})" if left_ms > 0 else "")
