"""The explanation of one rebalance."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from muster.coordinator.journal.entries import REJOINS_TOLD_MAX, Entry
from muster.coordinator.journal.explain import cost as costs
from muster.coordinator.journal.explain import incidents, leaving, words
from muster.coordinator.journal.explain.causes import diagnose
from muster.coordinator.journal.explain.consumer import migration, reasons, refusals
from muster.coordinator.journal.explain.facts import members, text, whole
from muster.coordinator.journal.explain.findings import LOOK_BACK_MS, Case, Finding
from muster.coordinator.journal.explain.names import NAMED_MAX, count, duration, ids_in, listed
from muster.coordinator.journal.explain.phases import awaited, phases, rejoins_told
from muster.coordinator.journal.explain.rebalances import (
    LOOK_ENTRIES_MAX,
    Outcome,
    Rebalance,
    Start,
    cut,
    rebalances,
    streams,
)
from muster.coordinator.journal.explain.timing import Awaited, Phases
from muster.coordinator.journal.explain.vocabulary import (
    DEAD,
    EMPTY,
    PREPARING,
    STABLE,
    UNKNOWN_CAUSE,
    Certainty,
    Diagnosis,
    Kind,
    Trigger,
)
from muster.coordinator.journal.explain.words import Alternative, Explanation
from muster.coordinator.journal.names import Names

_SYNCING_MS: Final = 1_000
"""Members ask for their assignment at once."""
_SYNCED: Final = ("all_synced", "shard_loaded", "shard_unloaded", "group_removed")
"""After these, nobody is known to have an assignment to fetch."""
_OFTEN_MIN: Final = 5
"""More than a deploy of a few processes causes."""
_HANGS_MS: Final = 3_000
"""Once a rebalance takes longer than this, the question is what it waits for, not how it began."""


def explain(
    entries: Iterable[Entry],
    *,
    group: str | None = None,
    generation: int | None = None,
    now_ms: int | None = None,
    names: Names | None = None,
) -> Explanation | None:
    """Why the group last rebalanced, or how it reached `generation`; None if the entries do not show it.

    `group` defaults to that of the last entry. Without `generation` the last incident is explained even if it
    was not a rebalance (a coordinator that moved, say). `now_ms`, by default the time of the last entry,
    decides how long things have been hanging. `names` are those of the group's members, by default taken from
    the entries.
    """
    found = streams(entries)
    if group is None:
        latest = max(found.values(), key=lambda stream: stream[-1].at_ms, default=None)
        group = None if latest is None else next(each.group for each in latest if each.group is not None)
    stream = found.get(group or "")
    if group is None or not stream:
        return None
    moment_ms = max(stream[-1].at_ms, stream[-1].at_ms if now_ms is None else now_ms)
    known = cut(stream)
    if generation is not None:
        for each in reversed(known):
            if each.generation == generation and not _began_anew(each):
                return explained(each, moment_ms, lately=_lately(known, each), names=names)
            if generation in each.reached:
                return explained(each, moment_ms, reached=generation, names=names)
        return None
    last = known[-1] if known else None
    if last is None or last.outcome is not Outcome.UNDER_WAY:
        incident = incidents.newest(stream, 0 if last is None else last.last)
        if incident is not None:
            before = None if last is None else words.brief(explained(last, moment_ms, names=names))
            return explained(incident, moment_ms, before=before, names=names)
    return None if last is None else explained(last, moment_ms, lately=_lately(known, last), names=names)


def explain_all(
    entries: Iterable[Entry], *, now_ms: int | None = None, names: Names | None = None
) -> list[Explanation]:
    """Every rebalance in the entries, oldest first, one in progress last. `names` is for entries of a single
    group; see `explain`."""
    entries = list(entries)
    latest_ms = max((each.at_ms for each in entries), default=0)
    moment_ms = latest_ms if now_ms is None else max(latest_ms, now_ms)
    return [explained(each, moment_ms, names=names) for each in rebalances(entries)]


def diagnosed(rebalance: Rebalance, now_ms: int, names: Names) -> Finding:
    """Why a rebalance that is over began: what `explained` says of it first, without what takes most of the
    time, its cost and circumstances."""
    return diagnose(Case(rebalance, rebalance.starts[0], names, now_ms))[0]


def explained(
    rebalance: Rebalance,
    now_ms: int,
    *,
    before: str | None = None,
    reached: int | None = None,
    lately: int = 0,
    names: Names | None = None,
) -> Explanation:
    """The explanation of a rebalance found by `rebalances`, as of `now_ms`; with `reached`, that of a
    generation within it: an abandoned one, or an epoch of a consumer group. `lately`: how many rebalances
    began in the LOOK_BACK_MS up to it."""
    if names is None:
        names = Names(rebalance.members.values(), rebalance.present)
    cases = [Case(rebalance, start, names, now_ms) for start in rebalance.starts]
    also: list[str] = []
    if reached is not None:
        first = rebalance.reached[reached]
        also = [_began(cases[0])] if first and rebalance.kind is Kind.CONSUMER else []
        cases = cases[first:]
        if reached != rebalance.generation:
            also.append(_abandoned(rebalance, reached))
    case = cases[0]
    if rebalance.begins_with_restart and case.start is rebalance.starts[0]:
        also.append("the journal lacks its beginning: this cause restarted it")
    findings = diagnose(case)
    waiting = awaited(rebalance, now_ms)
    member, what = case.member, words.what(case)
    taken = phases(rebalance)
    held_up = _held_up(rebalance, taken, names, now_ms)
    hanging = _hanging(rebalance, waiting, names, now_ms)
    if hanging is not None:
        # How it began does not explain why it is not over.
        began = f"it began with: {findings[0].says} ({findings[0].diagnosis})"
        findings = [hanging._replace(evidence=(*hanging.evidence, began))]
        member = _longest(waiting).member if waiting else None
    best, *others = findings
    return Explanation(
        group=rebalance.group,
        kind=rebalance.kind,
        generation=rebalance.generation if reached is None else reached,
        started_ms=rebalance.started_ms,
        ended_ms=rebalance.ended_ms,
        outcome=rebalance.outcome,
        state=rebalance.state,
        cause=case.trigger or UNKNOWN_CAUSE,
        diagnosis=best.diagnosis,
        certainty=best.certainty,
        member=member,
        what=what,
        meaning=best.says,
        evidence=(*best.evidence, *_staged(case)),
        alternatives=tuple(Alternative(each.diagnosis, each.certainty, each.says) for each in others),
        also=(
            *also,
            *(words.again(diagnose(each)[0], each) for each in cases[1:]),
            *_told_alike(held_up),
            *_meanwhile(rebalance, names, held_up),
            *_moved_meanwhile(rebalance),
            *migration.standing(rebalance, names),
            *_again_and_again(lately),
        ),
        waiting=tuple(waiting),
        phases=taken,
        moved=costs.moved(rebalance),
        cost=costs.cost(rebalance),
        before=before,
        since=(
            *_not_synced(rebalance, names, now_ms),
            *_loaded_again(rebalance),
            *refusals.since(rebalance, names),
            *_near_misses(rebalance, names),
        ),
        now_ms=now_ms,
        names=names,
        ids=tuple(dict.fromkeys([*ids_in(rebalance.entries), *(each.member.id for each in waiting)])),
        interrupted=None if rebalance.interrupted_by is None else words.interrupted(rebalance.interrupted_by),
    )


def _began_anew(rebalance: Rebalance) -> bool:
    """Whether its last epoch came from a restart: each epoch of a consumer group has its own cause."""
    return rebalance.kind is Kind.CONSUMER and rebalance.reached.get(rebalance.generation or 0, 0) > 0


def _began(case: Case) -> str:
    return f"the rebalance had begun with: {words.again(diagnose(case)[0], case)}"


def _abandoned(rebalance: Rebalance, generation: int) -> str:
    if rebalance.kind is Kind.CONSUMER:
        return (
            f"epoch {generation} was not reached by every member: the group went on to {rebalance.generation}"
        )
    return f"generation {generation} was abandoned: the group went on to {rebalance.generation}"


def _moved_meanwhile(rebalance: Rebalance) -> list[str]:
    """A consumer group's rebalance continues under another coordinator."""
    if rebalance.kind is not Kind.CONSUMER:
        return []
    loaded = [each for each in rebalance.entries if each.type == "shard_loaded"]
    return [f"the coordinator moved to broker {loaded[-1].broker} meanwhile"] if loaded else []


def _lately(known: list[Rebalance], this: Rebalance) -> int:
    """How many rebalances began shortly before this one, itself included."""
    since_ms = this.started_ms - LOOK_BACK_MS
    return sum(1 for each in known if since_ms < each.started_ms <= this.started_ms)


def _again_and_again(lately: int) -> list[str]:
    if lately < _OFTEN_MIN:
        return []
    return [f"{lately} rebalances within {duration(LOOK_BACK_MS)}: see groups timeline"]


def _hanging(rebalance: Rebalance, waiting: list[Awaited], names: Names, now_ms: int) -> Finding | None:
    """What a long rebalance in progress waits for."""
    if rebalance.outcome is not Outcome.UNDER_WAY:
        return None
    if not waiting:
        return _hanging_unnamed(rebalance, now_ms)
    first = _longest(waiting)
    waited_ms = now_ms - first.since_ms
    if waited_ms < _HANGS_MS or (rebalance.from_state == EMPTY and _in_initial_delay(rebalance, now_ms)):
        return None
    who = names.short(first.member)
    if first.pending:
        says = f"{who} was given a member id and has not joined with it: everyone waits for it"
        return Finding(
            Diagnosis.PENDING_MEMBER, Certainty.CERTAIN, says, (f"it got the id {duration(waited_ms)} ago",)
        )
    owes = f"{who} has not rejoined"
    if rebalance.kind is Kind.CONSUMER:
        owes = reasons.owes(first, who)
    elif rebalance.joined is not None:
        owes = f"the leader {who} has not sent the assignment"
    left = _left_before(rebalance, first, names, now_ms)
    if left is not None:
        return left._replace(says=f"{owes}: {left.says}")
    if first.disconnected_ms is not None:
        closed = duration(now_ms - first.disconnected_ms)
        says = f"{owes}, and its connection closed {closed} ago: the process is probably gone"
        times_out = None not in (first.until_ms, first.expires_ms) and first.until_ms != first.expires_ms
        until = "the rebalance timeout" if times_out else "its session expires"
        evidence = f"the group waits for it until {until}, for {duration(waited_ms)} so far"
        return Finding(Diagnosis.CRASHED, Certainty.LIKELY, says, (evidence,))
    if rebalance.kind is Kind.CONSUMER:
        return reasons.hanging(first, owes, who, waited_ms)
    if rebalance.joined is not None:
        says = f"{owes}: its assignor hangs, or its process has stalled"
        evidence = f"the group has waited for it for {duration(waited_ms)}"
        return Finding(Diagnosis.SYNC_TIMEOUT, Certainty.LIKELY, says, (evidence,))
    says = f"{owes}: its application does not poll, or the process is gone"
    return Finding(
        Diagnosis.SLOW_JOIN,
        Certainty.CERTAIN,
        says,
        (f"the group has waited for it for {duration(waited_ms)}",),
    )


def _left_before(rebalance: Rebalance, first: Awaited, names: Names, now_ms: int) -> Finding | None:
    """Why a member had left that got its place back when the coordinator moved."""
    if rebalance.kind is not Kind.CLASSIC:
        return None
    start = leaving.lost_leave(rebalance, rebalance.last, first.member)
    if start is None or start.trigger != Trigger.MEMBER_LEFT:
        return None
    found = diagnose(Case(rebalance, start, names, now_ms))[0]
    if found.diagnosis is Diagnosis.EVICTED_BY_ADMIN:
        return None  # it may still be there
    ago, waited = duration(now_ms - start.entry.at_ms), duration(now_ms - first.since_ms)
    lost = f"it left {ago} ago, in a rebalance that was lost when the coordinator moved"
    waits = f"the group waits for it until its session expires, for {waited} so far"
    return found._replace(evidence=(lost, *found.evidence, waits))


def _longest(waiting: list[Awaited]) -> Awaited:
    """The one that has been waited for the longest."""
    return min(waiting, key=lambda each: each.since_ms)


def _hanging_unnamed(rebalance: Rebalance, now_ms: int) -> Finding | None:
    """The same where the journal does not tell who has rejoined."""
    waited_ms = now_ms - rebalance.starts[-1].entry.at_ms
    if (
        rebalance.kind is not Kind.CLASSIC
        or rebalance.state != PREPARING
        or waited_ms < _HANGS_MS
        or rejoins_told(rebalance)
        or text(rebalance.starts[-1].entry, "from_state") == EMPTY  # nobody was there to rejoin
        or (rebalance.from_state == EMPTY and _in_initial_delay(rebalance, now_ms))
    ):
        return None
    says = "some members have not rejoined: their applications do not poll, or the processes are gone"
    return Finding(
        Diagnosis.SLOW_JOIN,
        Certainty.CERTAIN,
        says,
        (
            f"the group has waited for them for {duration(waited_ms)}",
            f"in a group of more than {REJOINS_TOLD_MAX} members, the journal does not tell who has rejoined",
        ),
    )


def _held_up(rebalance: Rebalance, taken: Phases | None, names: Names, now_ms: int) -> list[Case]:
    """Members that left, or whose session expired, only after the group had waited for them."""
    ids = set() if taken is None else {who.id for who, _ in (*taken.left, *taken.expired)}
    restarts = {each.member.id for each in rebalance.starts if each.member is not None}
    return [
        Case(rebalance, Start(index, entry, entry.trigger), names, now_ms)
        for index, entry in enumerate(rebalance.entries, rebalance.first)
        if entry.type == "member_removed"
        and entry.trigger in (Trigger.MEMBER_LEFT, Trigger.SESSION_EXPIRED)
        and entry.member is not None
        and entry.member.id in ids - restarts
    ]


def _told_alike(cases: Iterable[Case]) -> list[str]:
    """The members by what happened to them."""
    alike: dict[tuple[str | None, Diagnosis], tuple[Finding, list[Case]]] = {}
    for each in cases:
        finding = diagnose(each)[0]
        alike.setdefault((each.trigger, finding.diagnosis), (finding, []))[1].append(each)
    return [words.again(finding, *some) for finding, some in alike.values()]


def _meanwhile(rebalance: Rebalance, names: Names, told: Iterable[Case]) -> list[str]:
    """Other members that came or went, and clients that were refused, before it was over."""
    starts = (*rebalance.starts, *(each.start for each in told))
    named = {(each.member.id, each.trigger) for each in starts if each.member is not None}
    who: dict[str, list[str]] = {}
    for each in rebalance.entries:
        if (
            each.type in ("member_added", "member_removed", "member_replaced")
            and each.member is not None
            and (each.member.id, each.trigger) not in named
            and each.trigger != Trigger.REBALANCE_TIMED_OUT
        ):
            who.setdefault(each.trigger or UNKNOWN_CAUSE, []).append(names.short(each.member))
        elif each.type == "join_refused" and each.member is not None:
            error = text(each, "error") or "an error"
            who.setdefault(f"refused with {error}", []).append(names.short(each.member))
    return [f"{trigger} ({listed(some, NAMED_MAX)})" for trigger, some in who.items()]


def _in_initial_delay(rebalance: Rebalance, now_ms: int) -> bool:
    until_ms = whole(rebalance.starts[-1].entry, "until_ms")
    return until_ms is None or now_ms <= until_ms


def _loaded_again(rebalance: Rebalance) -> list[str]:
    """The last restart of the group's broker after the rebalance."""
    for index in range(min(rebalance.until, rebalance.last + LOOK_ENTRIES_MAX) - 1, rebalance.last - 1, -1):
        if incidents.is_loaded_again(rebalance.stream, index):
            entry = rebalance.stream[index]
            later = duration(entry.at_ms - (rebalance.ended_ms or rebalance.started_ms))
            kept = "members and generation are unchanged"
            if incidents.is_rebalancing(reversed(rebalance.stream[:index])):
                kept = incidents.LOST
            return [f"broker {entry.broker} restarted or reloaded the group {later} later; {kept}"]
    return []


def _not_synced(rebalance: Rebalance, names: Names, now_ms: int) -> list[str]:
    """Members of the generation now that have not fetched their assignment for some time."""
    if rebalance.ended_ms is None or now_ms - rebalance.ended_ms < _SYNCING_MS:
        return []
    if rebalance.until < len(rebalance.stream):
        return []  # another one has begun
    stable = [each for each in rebalance.entries if text(each, "to_state") == STABLE]
    missing = {each.id: each for each in members(stable[-1], "waiting_for")} if stable else {}
    sure = len(missing) == 1  # of several, some may have fetched it
    for each in rebalance.after[:LOOK_ENTRIES_MAX]:
        if each.type in _SYNCED or text(each, "to_state") == DEAD:
            return []
        if each.type == "member_removed" and each.member is not None:
            missing.pop(each.member.id, None)
        elif each.type == "member_replaced":
            missing.pop(text(each, "old_member_id") or "", None)
    who = listed([names.short(each) for each in missing.values()], NAMED_MAX)
    waited = duration(now_ms - rebalance.ended_ms)
    if len(missing) > 1:
        return [
            f"one or more of {who} have not fetched their assignment (SyncGroup) for {waited}: nobody reads "
            "their partitions"
        ]
    if missing and sure:
        return [f"{who} has not fetched its assignment (SyncGroup) for {waited}: nobody reads its partitions"]
    return []


def _near_misses(rebalance: Rebalance, names: Names) -> list[str]:
    """Members whose heartbeats were late between this rebalance and the next."""
    late: dict[str, list[int]] = {}
    limits: dict[str, int | None] = {}
    for each in rebalance.after[:LOOK_ENTRIES_MAX]:
        if each.type == "heartbeat_late" and each.member is not None:
            who = names.short(each.member)
            late.setdefault(who, []).append(whole(each, "late_ms") or 0)
            limits[who] = whole(each, "session_timeout_ms")
    found: list[str] = []
    for who, gaps in late.items():
        limit_ms = limits[who]
        of = "" if limit_ms is None else f" of its {duration(limit_ms)} session timeout"
        found.append(
            f"heartbeats of {who} were late {count(len(gaps), 'time')}, silent for up to "
            f"{duration(max(gaps))}{of}"
        )
    return found


def _staged(case: Case) -> tuple[str, ...]:
    """What a test did to cause it."""
    since_ms = case.rebalance.started_ms - max(case.silent_ms or 0, 1_000)
    staged: list[str] = []
    before = case.rebalance.stream[case.rebalance.first : case.start.index][::-1]
    for each in (*before, *case.rebalance.earlier(case.rebalance.started_ms - since_ms)):
        if each.type == "fault_fired":
            staged.append(f"injected fault: {text(each, 'action')} on {text(each, 'api')}")
        elif each.type == "clock_moved" and (by_ms := whole(each, "by_ms")) is not None:
            staged.append(f"the test clock was advanced by {duration(by_ms)}")
    return tuple(dict.fromkeys(staged[::-1]))
