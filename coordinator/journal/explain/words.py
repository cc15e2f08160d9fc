"""The sentences of explanations and their layout."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any, Final, NamedTuple

from muster.coordinator.journal.entries import Entry, Member
from muster.coordinator.journal.explain.consumer import words as of_consumers
from muster.coordinator.journal.explain.cost import Cost, Lag, Moved
from muster.coordinator.journal.explain.facts import flag, text
from muster.coordinator.journal.explain.findings import GAVE, Case, Finding
from muster.coordinator.journal.explain.names import (
    NAMED_MAX,
    count,
    duration,
    listed,
    moment,
    partitions,
    per_second,
)
from muster.coordinator.journal.explain.pace import WINDOW_MS, FallingBehind, Pace
from muster.coordinator.journal.explain.rebalances import Outcome
from muster.coordinator.journal.explain.timing import Awaited, Phases
from muster.coordinator.journal.explain.vocabulary import EMPTY, Certainty, Diagnosis, Kind, Trigger
from muster.coordinator.journal.names import Names

_WIDTH: Final = 110
_LABEL: Final = 12
"""Columns before the text of a line."""
_PAIRS_MAX: Final = 6
_WAITING_MAX: Final = 5
_ALSO_MAX: Final = 8
_SINCE_MAX: Final = 3
_EXPIRED: Final = ("its session expired", "their sessions expired")
_LEFT: Final = ("it left", "they left")


class Alternative(NamedTuple):
    """Another possible diagnosis."""

    diagnosis: Diagnosis
    certainty: Certainty
    why: str

    def to_json(self) -> dict[str, str]:
        return {"diagnosis": self.diagnosis, "certainty": self.certainty, "why": self.why}


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a group rebalanced, how it went and what it cost; or an incident that was not a rebalance."""

    group: str
    kind: Kind
    """The group's type: classic or consumer."""
    generation: int | None
    """The generation, or epoch of a consumer group, that it led to or will lead to."""
    started_ms: int
    ended_ms: int | None
    """None: in progress."""
    outcome: Outcome
    state: str
    """Kafka's name of the group's state at the end, or now."""
    cause: str
    """The recorded trigger: a value of `group.events.Trigger`, or "unknown"."""
    diagnosis: Diagnosis
    certainty: Certainty
    member: Member | None
    """The member that triggered it, or that is waited for."""
    what: str
    """What was observed, as a sentence."""
    meaning: str
    """What that means, as a sentence."""
    evidence: tuple[str, ...]
    alternatives: tuple[Alternative, ...]
    also: tuple[str, ...]
    """What restarted it before it was over, and other members that came or went meanwhile."""
    waiting: tuple[Awaited, ...]
    phases: Phases | None
    moved: Moved | None
    cost: Cost | None
    before: str | None
    """The previous rebalance in one line, if this was not a rebalance."""
    since: tuple[str, ...]
    """Near misses afterwards: members that may be evicted next."""
    now_ms: int
    names: Names
    ids: tuple[str, ...]
    """Ids of the members mentioned."""
    interrupted: str | None = None
    """What interrupted it, as a sentence without its full stop."""

    @property
    def rebalanced(self) -> bool:
        """Whether it was a rebalance."""
        return self.outcome is not Outcome.NONE

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "group": self.group,
            "type": self.kind.value,
            "generation": self.generation,
            "started_ms": self.started_ms,
            "ended_ms": self.ended_ms,
            "outcome": self.outcome.value,
            "state": self.state,
            "rebalanced": self.rebalanced,
            "cause": self.cause,
            "diagnosis": self.diagnosis.value,
            "certainty": self.certainty.value,
            "member": None if self.member is None else self.member.to_json(),
            "what": self.what,
            "meaning": self.meaning,
            "evidence": list(self.evidence),
            "alternatives": [each.to_json() for each in self.alternatives],
            "also": list(self.also),
            "waiting": [each.to_json() for each in self.waiting],
            "phases": None if self.phases is None else self.phases.to_json(),
            "moved": None if self.moved is None else self.moved.to_json(),
            "cost": None if self.cost is None else self.cost.to_json(),
            "before": self.before,
            "since": list(self.since),
            "names": self.names.by_id(self.ids),
            "interrupted": self.interrupted,
        }

    def lines(self, zone: tzinfo | None = None) -> list[str]:
        """Text in lines of at most 110 columns, with times in local time or in `zone`."""
        return lines(self, zone)

    def member_lines(self) -> list[str]:
        """Lines that say which members the names refer to."""
        return members(self)


# --- what was seen ------------------------------------------------------------------------------------------


def what(case: Case) -> str:
    """What began the rebalance, as a sentence without its full stop."""
    who = "" if case.member is None else f" {case.names.long(case.member)}"
    own = of_consumers.what(case, who)
    if own is not None:
        return own
    says = _WHAT.get(case.trigger or "")
    if says is not None:
        return says(case, who)
    if case.trigger is None:
        return "the journal lacks its beginning"
    return f"{case.trigger}{':' if who else ''}{who}"


def _expired(case: Case, who: str) -> str:
    silent = "" if case.silent_ms is None else f": heartbeats stopped {duration(case.silent_ms)} before"
    if case.connected is True:
        silent += ", its connection stayed open"
    elif case.disconnected_before_ms is not None:
        silent += f", its connection closed {duration(case.disconnected_before_ms)} before"
    return f"member{who} was evicted{silent}"


def _left(case: Case, who: str) -> str:
    by = None if case.removed is None else case.removed.data.get("requested_by")
    if by is not None:
        return f"member{who} was removed at the request of another client{_quoted(case)}"
    heard = "" if case.silent_ms is None else f", last heard from {duration(case.silent_ms)} before"
    return f"member{who} left{heard}{_quoted(case)}"


def _quoted(case: Case) -> str:
    return f': "{case.reason}"' if case.reason else ""


def _joined(case: Case, who: str) -> str:
    first = case.rebalance.from_state == EMPTY and case.start is case.rebalance.starts[0]
    return f"member{who} joined{' the empty group' if first else ''}"


def _metadata(case: Case, who: str) -> str:
    return f"member{who} rejoined with changed metadata{_quoted(case)}"


def _leader(case: Case, who: str) -> str:
    return f"the leader{who} rejoined{_quoted(case)}"


def _static(case: Case, who: str) -> str:
    if case.start.entry.type == "member_fenced":
        api = text(case.start.entry, "api") or "request"
        article = "an" if api[0] in "AEIO" else "a"
        here = (text(case.start.entry, "old_client_host") or "").lstrip("/") or "an unknown host"
        return (
            f"{article} {api} of another process, at {here}, was fenced: the instance id belongs to "
            f"member{who}"
        )
    entry = case.in_step("member_replaced")
    old = None if entry is None else text(entry, "old_client_host")
    here = "" if case.member is None else case.member.host
    hosts = f", from host {old.lstrip('/')}" if old is not None and old.lstrip("/") != here else ""
    alive = entry is not None and flag(entry, "old_connected") is True
    return f"static member{who} returned{hosts}{' while its former process was still connected' * alive}"


def _sync(case: Case, who: str) -> str:
    missing = [each for each in case.step if each.type == "member_removed"]
    others = f" and {count(len(missing) - 1, 'other')}" if len(missing) > 1 else ""
    return f"member{who}{others} did not send SyncGroup in time and was evicted"


def _full(case: Case, who: str) -> str:
    if case.start.entry.type == "join_refused":
        return f"a client{who} was refused: the group is full"
    return f"member{who} was refused: the group is full"


def _moved(case: Case, who: str) -> str:
    return f"the coordinator moved to broker {case.start.entry.broker}"


def _refused(case: Case, who: str) -> str:
    return f"a client{who} was refused: {text(case.start.entry, 'error') or 'no reason known'}"


_WHAT: Final[Mapping[str, Callable[[Case, str], str]]] = {
    Trigger.SESSION_EXPIRED: _expired,
    Trigger.MEMBER_LEFT: _left,
    Trigger.MEMBER_JOINED: _joined,
    Trigger.METADATA_CHANGED: _metadata,
    Trigger.LEADER_REJOINED: _leader,
    Trigger.STATIC_MEMBER_REPLACED: _static,
    Trigger.SYNC_TIMED_OUT: _sync,
    Trigger.GROUP_FULL: _full,
    Trigger.NEW_MEMBER_EXPIRED: lambda case, who: f"member{who} was evicted while waiting in JoinGroup",
    Trigger.LOADED_OVERSIZE: lambda case, who: (
        "the coordinator loaded the group with more members than allowed"
    ),
    Trigger.SHARD_UNLOADED: _moved,
    Trigger.JOIN_REFUSED: _refused,
}


def interrupted(entry: Entry) -> str:
    """What interrupted a rebalance, as a sentence without its full stop."""
    match entry.type:
        case "protocol_migrated":
            return f"the group became a {text(entry, 'to_type') or 'different'} group"
        case "epoch_bumped":
            return "the end is missing from the journal"
        case "group_removed":
            return "the group was deleted"
        case "shard_loaded":
            return f"broker {entry.broker} restarted or took over the group"
        case _:
            return f"broker {entry.broker} stopped or handed over the group"


def again(finding: Finding, *cases: Case) -> str:
    """What restarted it, or held it up, in a phrase; `cases` have the same trigger and finding."""
    who = [each.names.short(each.member) if each.member is not None else "the group" for each in cases]
    return f"{cases[0].trigger or 'unknown'} ({listed(who, NAMED_MAX)}: {finding.diagnosis})"


def brief(explanation: Explanation) -> str:
    """A rebalance in one line."""
    generation = "" if explanation.generation is None else f"{_epoch(explanation)}: "
    return f"{generation}{explanation.what} ({explanation.diagnosis}, {explanation.certainty})"


# --- lines --------------------------------------------------------------------------------------------------


def lines(explanation: Explanation, zone: tzinfo | None) -> list[str]:
    """The whole explanation as text."""
    shown = [*_wrapped("", _header(explanation, zone), 2)]
    shown += _line("cause", explanation.what)
    shown += _line("", _arrow(explanation))
    for other in explanation.alternatives:
        shown += _line("", f"or {other.certainty}: {other.why} ({other.diagnosis})")
    said_already = f"{explanation.what}. {explanation.meaning}"
    more = [each for each in explanation.evidence if each.removeprefix(GAVE) not in said_already]
    if more:
        shown += _line("evidence", " · ".join(more))
    if explanation.also:
        shown += _line("also", listed(explanation.also, _ALSO_MAX, between=" · "))
    for each in explanation.waiting[:_WAITING_MAX]:
        shown += _line("waiting", _awaited(each, explanation, zone))
    if len(explanation.waiting) > _WAITING_MAX:
        shown += _line("", f"and {len(explanation.waiting) - _WAITING_MAX} more")
    tell = of_consumers.phases if explanation.kind is Kind.CONSUMER else _phases
    if explanation.phases is not None and (said := tell(explanation.phases, explanation.names)):
        shown += _line("phases", said)
    if explanation.moved is not None:
        shown += _line("moved", _moves(explanation.moved, explanation.names))
    if explanation.cost is not None and (said := _cost(explanation.cost, explanation, zone)):
        shown += _line("cost", said)
    if explanation.cost is not None and explanation.cost.falling_behind is not None:
        shown += _line("lag", _falling_behind(explanation.cost.falling_behind, explanation.names))
    if explanation.since:
        shown += _line("since", "; ".join(explanation.since[:_SINCE_MAX]))
    if explanation.before is not None:
        shown += _line("before", explanation.before)
    return shown


def members(explanation: Explanation) -> list[str]:
    """Short names with everything known about the members."""
    shown: list[str] = []
    for each, name in explanation.names.by_id(explanation.ids).items():
        known = explanation.names.of_id(each)
        client = "" if known is None else f" (client id {known.client_id or '-'}, host {known.host or '-'})"
        shown += _line("" if shown else "members", f"{name}: {each}{client}")
    return shown


def _header(explanation: Explanation, zone: tzinfo | None) -> str:
    began = moment(explanation.started_ms, zone, near_ms=explanation.now_ms, exact=True)
    parts = [explanation.group]
    if explanation.generation is not None:
        parts.append(_epoch(explanation))
    match explanation.outcome:
        case Outcome.NONE:
            parts += [began, "no rebalance"]
        case Outcome.UNDER_WAY:
            so_far = duration(explanation.now_ms - explanation.started_ms)
            parts += [f"since {began} ({so_far})", f"in progress: {explanation.state}"]
        case outcome:
            ended_ms = explanation.ended_ms or explanation.started_ms
            ended = moment(ended_ms, zone, near_ms=explanation.started_ms, exact=True)
            parts.append(f"{began} → {ended} ({duration(ended_ms - explanation.started_ms)})")
            if outcome is Outcome.INTERRUPTED:
                parts.append(f"interrupted: {explanation.interrupted}")
            elif explanation.state == EMPTY:
                parts.append("no members left: Empty")
    return " · ".join(parts)


def _epochs(explanation: Explanation) -> str:
    return "epoch" if explanation.kind is Kind.CONSUMER else "generation"


def _epoch(explanation: Explanation) -> str:
    return f"{_epochs(explanation)} {explanation.generation}"


def _arrow(explanation: Explanation) -> str:
    sure = "" if explanation.certainty is Certainty.CERTAIN else f"{explanation.certainty}: "
    return f"→ {sure}{explanation.meaning} ({explanation.diagnosis})"


def _awaited(each: Awaited, explanation: Explanation, zone: tzinfo | None) -> str:
    if explanation.kind is Kind.CONSUMER:
        return of_consumers.awaited(each, explanation.names, explanation.now_ms, zone)
    waited = duration(explanation.now_ms - each.since_ms)
    long = explanation.names.long(each.member)
    if each.pending:
        said = f"for {long}: got a member id {waited} ago and has not joined with it"
    elif explanation.phases is not None and explanation.state == "CompletingRebalance":
        said = f"for the leader {long} to send the assignment (SyncGroup), {waited} so far"
    else:
        said = f"for {long} to rejoin, {waited} so far"
    if each.disconnected_ms is not None:
        said += f", its connection closed {duration(explanation.now_ms - each.disconnected_ms)} ago"
    if each.until_ms is None:
        return said
    left_ms = each.until_ms - explanation.now_ms
    when = moment(each.until_ms, zone, near_ms=explanation.now_ms)
    return f"{said}; the group waits until {when}" + (f" (in {duration(left_ms)})" if left_ms > 0 else "")


def _phases(phases: Phases, names: Names) -> str:
    said: list[str] = []
    if phases.join_ms is not None:
        notes: list[str] = []
        if phases.ended_by == Trigger.INITIAL_DELAY_OVER:
            notes.append("the initial rebalance delay")
        if phases.slowest and phases.join_ms > 0:
            who, ms = phases.slowest[0]
            order, since = ("last", " after the rebalance began") if phases.restarts else ("slowest", "")
            took = "" if ms is None else f", {duration(ms)}{since}"
            notes.append(f"{order}: {names.short(who)}{took}")
        for who, ms in phases.held_up:
            notes.append(f"{names.short(who)} got a member id and did not join with it for {duration(ms)}")
        notes += _waited("", phases.expired, _EXPIRED, names) + _waited("", phases.left, _LEFT, names)
        if phases.dropped:
            gone = listed([names.short(each) for each in phases.dropped])
            notes.append(f"dropped for not rejoining in time: {gone}")
        if phases.kept:
            away = listed([names.short(each) for each in phases.kept])
            notes.append(f"did not rejoin in time, but are static and keep their place: {away}")
        said.append(
            f"waiting for joins {duration(phases.join_ms)}" + (f" ({'; '.join(notes)})" if notes else "")
        )
    if phases.assignment_ms is not None:
        notes = _waited("the leader", phases.leaders_expired, _EXPIRED, names)
        notes += _waited("the leader", phases.leaders_left, _LEFT, names)
        said.append(
            f"assignment {duration(phases.assignment_ms)}" + (f" ({'; '.join(notes)})" if notes else "")
        )
    if phases.sync_ms is not None:
        said.append(f"sync {duration(phases.sync_ms)}")
    if phases.restarts:
        said.append(f"restarted {count(phases.restarts, 'time')}")
    return " · ".join(said)


def _waited(role: str, gone: Sequence[tuple[Member, int]], until: tuple[str, str], names: Names) -> list[str]:
    """For whom the group waited, and until what happened to one or to several; nothing if for nobody."""
    if not gone:
        return []
    who = listed([names.short(each) for each, _ in gone], NAMED_MAX)
    longest = duration(max(ms for _, ms in gone))
    several = len(gone) > 1
    roles = f"{role}{'s' * several} " if role else ""
    return [f"waited {'up to ' * several}{longest} for {roles}{who}, until {until[several]}"]


def _moves(moved: Moved, names: Names) -> str:
    pairs: dict[tuple[str | None, str | None], list[tuple[str, int]]] = {}
    for each in moved.moves:
        pairs.setdefault((each.from_member, each.to_member), []).append((each.topic, each.partition))
    fresh = bool(pairs) and all(old is None for old, _ in pairs) and not moved.kept
    if fresh or not pairs:
        total = "" if moved.partitions is None else f"{count(moved.partitions, 'partition')}"
        if not pairs and not moved.moved:
            return f"nothing{f' ({total} kept)' if total else ''}"
        owned = [f"{names.short(who)} {number}" for who, number in sorted(moved.owned.items()) if number]
        return f"{total or 'partitions'} newly assigned" + (f": {listed(owned, _PAIRS_MAX)}" if owned else "")
    said = [
        f"{partitions(where, singly=3)}: {names.short(old)} → {names.short(new)}"
        for (old, new), where in list(pairs.items())[:_PAIRS_MAX]
    ]
    if len(pairs) > _PAIRS_MAX:
        said.append(f"and {len(pairs) - _PAIRS_MAX} more pairs of members")
    notes: list[str] = []
    changed = sum(1 for each in moved.moves if each.from_member is not None)
    if moved.partitions is not None:
        more = "more than " * moved.truncated
        notes.append(f"{more}{changed} of {count(moved.partitions + (moved.lost or 0), 'partition')}")
    new = sum(1 for each in moved.moves if each.from_member is None)
    if new:
        notes.append(f"{new} new")
    if moved.kept is not None:
        notes.append(f"{moved.kept} kept")
    if moved.lost:
        notes.append(f"{moved.lost} without an owner")
    return "; ".join(said) + (f"   ({'; '.join(notes)})" if notes else "")


def _cost(cost: Cost, explanation: Explanation, zone: tzinfo | None) -> str:
    said: list[str] = []
    if cost.unowned:
        as_long: dict[str, list[tuple[str, int]]] = {}
        for each in cost.unowned:
            as_long.setdefault(duration(each.ms), []).extend(each.partitions)
        for_long = "stood still" if explanation.kind is Kind.CONSUMER else "unowned"
        parts = [f"{partitions(where)} {for_long} for {ms}" for ms, where in list(as_long.items())[:3]]
        more = sum(len(where) for where in list(as_long.values())[3:])
        shorter = f", {count(more, 'partition')} for less" if more else ""
        said.append(", ".join(parts) + shorter + _kept_going(cost, explanation))
    if cost.kept_stopped is not None:
        kept, ms, protocol = cost.kept_stopped
        said.append(
            f"{count(kept, 'kept partition')} stood still for up to {duration(ms)}: with {protocol}, members "
            "give up everything in each rebalance"
        )
    waited = cost.waited
    if waited:
        records = count(waited, "record")
        grew = (
            f"lag grew by {records} meanwhile"
            if cost.arrived is None
            else f"about {records} arrived meanwhile"
        )
        said.append(grew + _recovery(cost.lag, explanation, zone))
    elif waited is None and cost.lag.peak:
        said.append(f"lag {count(cost.lag.peak, 'record')}")
    if cost.commits_refused:
        said.append(
            f"{count(cost.commits_refused, 'commit')} of an earlier {_epochs(explanation)} refused: records "
            "are delivered again"
        )
    return "; ".join(said)


def _kept_going(cost: Cost, explanation: Explanation) -> str:
    """A consumer group does not stop as a whole. Partitions that members revoked and got back did."""
    moved = explanation.moved
    if explanation.kind is not Kind.CONSUMER or moved is None or not moved.kept:
        return ""
    stood_still = {part for each in cost.unowned for part in each.partitions}
    going = moved.kept - len(stood_still - {(each.topic, each.partition) for each in moved.moves})
    if going <= 0:
        return ""
    return f"; the other {going} never stopped" if going > 1 else "; the other one never stopped"


def _recovery(lag: Lag, explanation: Explanation, zone: tzinfo | None) -> str:
    """Whether and when the lag recovered, within the time that counts."""
    if lag.before is None or not lag.growth or explanation.ended_ms is None:
        return ""

    def at(ms: int) -> str:
        return moment(ms, zone, near_ms=explanation.started_ms)

    if lag.recovered_ms is not None:
        generation = "" if lag.recovered_in is None else f", during generation {lag.recovered_in}"
        return f", recovered at {at(lag.recovered_ms)}{generation}"
    if lag.next_ms is not None:
        return f", not recovered when the next rebalance began at {at(lag.next_ms)}"
    if explanation.now_ms > explanation.ended_ms + WINDOW_MS:
        return f", not recovered within {duration(WINDOW_MS)}"
    return ", not recovered yet"


def _falling_behind(found: FallingBehind, names: Names) -> str:
    """Why lag grows for reasons other than the rebalance."""
    who = [
        f"{'the group' if each.member is None else names.short(each.member)} {_rates(each)}"
        for each in found.members
    ]
    began = "was growing before the rebalance, and still is" if found.already else "also grew after it"
    return f"{began}: {listed(who)}"


def _rates(pace: Pace) -> str:
    """For example: reads 5 records/s where 40 arrive."""
    reads, arrive = per_second(pace.reads), per_second(pace.arrive)
    if not pace.reads:
        return f"commits nothing where {arrive} arrive"
    same_unit = reads.rpartition("/")[2] == arrive.rpartition("/")[2]
    return f"reads {reads} where {arrive.split()[0] if same_unit else arrive} arrive"


def _line(label: str, said: str) -> list[str]:
    return _wrapped(f"  {label}".ljust(_LABEL), said, _LABEL)


def _wrapped(label: str, said: str, indent: int) -> list[str]:
    """Lines of at most 110 columns, with control characters escaped."""
    plain = "".join(each if each.isprintable() else repr(each)[1:-1] for each in label + said)
    return textwrap.wrap(
        plain,
        _WIDTH,
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
        drop_whitespace=True,
        replace_whitespace=False,
    ) or [""]
