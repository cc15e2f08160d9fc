"""Incidents that are not rebalances: the coordinator moved, a static member was replaced in a Stable group or
fenced, a client was refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from muster.coordinator.journal.entries import Entry
from muster.coordinator.journal.explain.facts import everybody, present, text, texts, whole
from muster.coordinator.journal.explain.findings import Case, Finding
from muster.coordinator.journal.explain.leaving import size_limit
from muster.coordinator.journal.explain.names import count, duration
from muster.coordinator.journal.explain.rebalances import Outcome, Rebalance, Start, kind_before
from muster.coordinator.journal.explain.telling import mismatch
from muster.coordinator.journal.explain.vocabulary import (
    COMPLETING,
    PREPARING,
    RECONCILING,
    STABLE,
    Certainty,
    Diagnosis,
    Kind,
    Trigger,
)

_FULL = "GROUP_MAX_SIZE_REACHED"
_REJOINING_MS: Final = 60_000
"""How soon after the coordinator is back the members of a lost rebalance have found it."""
_CHANGES: Final = ("state_changed", "protocol_migrated", "group_removed")
"""These end one state of a group and begin another."""
LOST: Final = "the rebalance under way is lost, and the group is back where it was before"


def newest(stream: Sequence[Entry], after: int) -> Rebalance | None:
    """The newest incident of any kind in stream[after:], in the form of a rebalance that did not happen."""
    for index in range(len(stream) - 1, after - 1, -1):
        trigger = _trigger(stream, index)
        if trigger is None or is_loaded_again(stream, index):
            continue
        known = [each for each in stream[:index] if each.group is not None]
        if not known and (stream[index].group is None or trigger == Trigger.SHARD_UNLOADED):
            return None  # the journal begins here: the group may not have been elsewhere before
        entry = stream[index]
        group = known[-1].group if entry.group is None else entry.group
        generations = (each.generation for each in (entry, *reversed(known)))
        generation = next((each for each in generations if each is not None), None)
        if trigger == Trigger.SHARD_UNLOADED and is_rebalancing(reversed(known)):
            generation = None  # the last one known may be that of the lost rebalance
        return Rebalance(
            group or "",
            stream,
            everybody(stream),
            frozenset(present(stream)),
            index,
            index + 1,
            entry.at_ms,
            generation=generation,
            starts=[Start(index, entry, trigger)],
            outcome=Outcome.NONE,
            ended_ms=entry.at_ms,
            state=STABLE,
            until=len(stream),
            kind=kind_before(stream, index),
        )
    return None


def _trigger(stream: Sequence[Entry], index: int) -> str | None:
    entry = stream[index]
    match entry.type:
        case "shard_loaded":
            return Trigger.SHARD_UNLOADED
        case "member_fenced" if text(entry, "error") == "FENCED_MEMBER_EPOCH":
            return Trigger.MEMBER_FENCED
        case "member_replaced" | "member_fenced":
            return Trigger.STATIC_MEMBER_REPLACED
        case "protocol_migrated":
            to_consumer = text(entry, "to_type") == Kind.CONSUMER
            return Trigger.UPGRADED if to_consumer else Trigger.DOWNGRADED
        case "state_changed" if _is_away(entry) and _is_last_change(stream, index):
            return Trigger.STATIC_MEMBER_AWAY
        case "join_refused":
            return Trigger.JOIN_REFUSED if text(entry, "error") != _FULL else Trigger.GROUP_FULL
    return None


def _is_away(entry: Entry) -> bool:
    """Whether a static member of a consumer group left temporarily."""
    return (
        entry.trigger == Trigger.MEMBER_LEFT
        and (text(entry, "from_state"), text(entry, "to_state")) == (STABLE, RECONCILING)
        and entry.member is not None
        and entry.member.instance is not None
    )


def _is_last_change(stream: Sequence[Entry], index: int) -> bool:
    return not any(stream[later].type == "state_changed" for later in range(index + 1, len(stream)))


def moved(case: Case) -> Finding:
    """Members and generation are kept: clients find the new coordinator and continue. A classic group's
    rebalance is lost."""
    entry = case.start.entry
    took_ms, before = whole(entry, "took_ms"), _broker_before(case.rebalance.stream, case.start.index)
    how = "" if took_ms is None else f", loaded in {duration(took_ms)}"
    kept = LOST if is_rebalancing(case.before()) else "members and generation are unchanged"
    if before is None:
        says = f"broker {entry.broker} took over the group{how}: {kept}"
    else:
        says = f"from broker {before} to broker {entry.broker}{how}: {kept}"
    evidence = [f"broker {entry.broker} loaded the group's shard {entry.shard}"]
    silent_ms = whole(entry, "from_silent_ms")
    if silent_ms is not None and before is not None and not _handed_over(case):
        heard = f"broker {before} was last seen {duration(silent_ms)} before"
        evidence.append(f"{heard}: the group had no coordinator for at most that long")
    return Finding(Diagnosis.COORDINATOR_MOVED, Certainty.CERTAIN, says, tuple(evidence))


def begun_anew(case: Case) -> Finding | None:
    """The coordinator moved during a rebalance; those that had joined find it and join again."""
    loaded = next(case.before("shard_loaded", *_CHANGES), None)
    if loaded is None or loaded.type != "shard_loaded" or not is_rebalancing(case.before(*_CHANGES)):
        return None
    ago_ms = case.start.entry.at_ms - loaded.at_ms
    if ago_ms > _REJOINING_MS:
        return None
    says = "the coordinator moved during a rebalance, which is lost: members join again"
    evidence = f"broker {loaded.broker} loaded the group {duration(ago_ms)} before"
    return Finding(Diagnosis.COORDINATOR_MOVED, Certainty.LIKELY, says, (evidence, *case.said))


def is_rebalancing(newest_first: Iterable[Entry]) -> bool:
    """Whether a classic group is rebalancing after these entries."""
    ends = (*_CHANGES, "shard_loaded")  # a load ends a rebalance
    change = next((each for each in newest_first if each.type in ends), None)
    return change is not None and text(change, "to_state") in (PREPARING, COMPLETING)


def _handed_over(case: Case) -> bool:
    """Whether the previous broker gave the group up."""
    for index in range(case.start.index - 1, -1, -1):
        if case.rebalance.stream[index].type in ("shard_loaded", "shard_unloaded"):
            return case.rebalance.stream[index].type == "shard_unloaded"
    return False


def is_loaded_again(stream: Sequence[Entry], index: int) -> bool:
    """Whether stream[index] is a reload by the broker that had the group before, usually because it
    restarted. That explains nothing and must not hide the last incident."""
    entry = stream[index]
    return entry.type == "shard_loaded" and _broker_before(stream, index) == entry.broker


def _broker_before(stream: Sequence[Entry], at: int) -> int | None:
    """The broker that had the group before it was loaded at stream[at]; None if unknown."""
    noted = whole(stream[at], "from_broker")
    if noted is not None:
        return noted
    for index in range(at - 1, -1, -1):
        if stream[index].type != "clock_moved":
            return stream[index].broker
    return None


def refused(case: Case) -> Finding | None:
    """It supports no assignor that all members support, or is of another protocol type."""
    entry = case.start.entry
    if text(entry, "error") == "UNRELEASED_INSTANCE_ID":
        return None
    differs = mismatch(entry)
    evidence = (f"refused with {text(entry, 'error') or 'an error'}", *([] if differs is None else [differs]))
    if differs is None and "offered" in entry.data:
        says = (
            "group.consumer.migration.policy keeps clients of the classic protocol out of this group, or its "
            "subscription is malformed"
        )
        return Finding(Diagnosis.UNKNOWN, Certainty.LIKELY, says, evidence)
    if texts(entry, "protocol_types"):
        says = "it is another kind of client with the same group id; the others are unaffected"
    else:
        says = "it supports no assignor common to all members; the others are unaffected"
    return Finding(Diagnosis.ASSIGNOR_CHANGED, Certainty.LIKELY, says, evidence)


def full(case: Case) -> Finding | None:
    """A client that is not a member yet was refused."""
    if case.start.entry.type != "join_refused":
        return None
    size = whole(case.start.entry, "size_max")
    limit = "reached" if size is None else count(size, "member")
    says = f"{size_limit(case)} is {limit}; the others are unaffected"
    return Finding(Diagnosis.GROUP_FULL, Certainty.CERTAIN, says)
