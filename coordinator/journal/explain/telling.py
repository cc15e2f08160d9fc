"""Any entry as one line of text: the cause first, then the evidence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from muster.coordinator.journal.entries import Entry
from muster.coordinator.journal.explain.consumer import telling as of_consumers
from muster.coordinator.journal.explain.facts import (
    everybody,
    flag,
    growths,
    lag,
    member,
    members,
    text,
    texts,
    whole,
)
from muster.coordinator.journal.explain.names import count, duration, listed, names_in
from muster.coordinator.journal.explain.vocabulary import (
    ASSIGNING,
    COMPLETING,
    PREPARING,
    RECONCILING,
    STABLE,
    Trigger,
)
from muster.coordinator.journal.names import Names


def describe(entry: Entry, names: Names | None = None) -> str:
    """The entry in words. Without `names`, only members in the entry are known."""
    names = Names(everybody([entry]).values()) if names is None else names
    say = _SAYS.get(entry.type) or of_consumers.SAYS.get(entry.type)
    if say is not None:
        return say(entry, names)
    who = "" if entry.member is None else f": {names.short(entry.member)}"
    return f"{entry.type.replace('_', ' ')}{who}"


def about(entries: list[Entry]) -> list[tuple[Entry, str]]:
    """Each entry of a group with its line."""
    names = names_in(entries)
    return [(each, describe(each, names)) for each in entries]


# --- helpers ------------------------------------------------------------------------------------------------


def _who(entry: Entry, names: Names) -> str:
    """The member with its host: web-2 at 10.0.0.7."""
    if entry.member is None:
        return "a member"
    host = f" at {entry.member.host}" if entry.member.host else ""
    return f"{names.short(entry.member)}{host}"


def _ms(entry: Entry, name: str) -> str:
    ms = whole(entry, name)
    return "an unknown time" if ms is None else duration(ms)


def _quoted(entry: Entry) -> str:
    return f', saying "{entry.reason}"' if entry.reason else ""


def _and(*parts: str) -> str:
    return "; ".join(each for each in parts if each)


# --- the group ----------------------------------------------------------------------------------------------


def _state_changed(entry: Entry, names: Names) -> str:
    to_state, took = text(entry, "to_state") or "?", _ms(entry, "phase_ms")
    came_from = text(entry, "from_state") or "?"
    by = "" if entry.member is None or entry.trigger == Trigger.INITIAL_DELAY_OVER else _who(entry, names)
    cause = (entry.trigger or "no trigger known") + (f" ({by})" if by else "")
    waiting = [names.short(each) for each in members(entry, "waiting_for")]
    pending = [names.short(each) for each in texts(entry, "pending_member_ids")]
    leader = member(entry, "leader")
    computes = "" if leader is None else f"{names.short(leader)} computes the assignment"
    waits = ""
    if to_state == PREPARING and (waiting or pending):
        waits = f"waiting for {listed([*waiting, *(f'{each} (pending)' for each in pending)])}"
    elif to_state == COMPLETING and waiting:
        waits = f"without {listed(waiting)}"
    elif to_state == STABLE and waiting:
        waits = f"have not sent SyncGroup: {listed(waiting)}"
    # Consumer groups have epochs instead, and other entries record when these change.
    of_epoch = RECONCILING in (to_state, came_from) or ASSIGNING in (to_state, came_from)
    generation = "" if entry.generation is None or of_epoch else f", generation {entry.generation}"
    return _and(f"{cause}: {to_state}{generation}, after {took} of {came_from}", waits, computes)


def _completed(entry: Entry, names: Names) -> str:
    took_ms = (whole(entry, "join_ms") or 0) + (whole(entry, "assignment_ms") or 0)
    of_consumers_ms = whole(entry, "target_ms")
    if of_consumers_ms is not None:
        took_ms = of_consumers_ms + (whole(entry, "reconcile_ms") or 0)
    took, to = duration(took_ms), "generation" if of_consumers_ms is None else "epoch"
    by = "" if entry.member is None else f" ({_who(entry, names)})"
    size = whole(entry, "members")
    dropped = [names.short(each) for each in members(entry, "dropped")]
    restarts, lagging = whole(entry, "restarts"), lag(entry)
    return _and(
        f"{entry.trigger or 'unknown cause'}{by}: rebalanced to {to} {entry.generation} in {took}"
        + ("" if size is None else f", {count(size, 'member')}"),
        f"restarted {count(restarts, 'time')}" if restarts else "",
        f"dropped {listed(dropped)}" if dropped else "",
        f"lag {count(lagging, 'record')}" if lagging is not None else "",
    )


def _assigned(entry: Entry, names: Names) -> str:
    total, kept = whole(entry, "partitions"), whole(entry, "kept")
    if total is None:
        return "assignment received; not in the consumer protocol's format"
    moved, lost = whole(entry, "moved") or 0, whole(entry, "lost") or 0
    return _and(
        f"assignment received: {count(total, 'partition')}, {moved} moved, {kept or 0} kept",
        f"{lost} without an owner" if lost else "",
    )


def _leader(entry: Entry, names: Names) -> str:
    old = text(entry, "old_member_id")
    return f"{_who(entry, names)} is the leader" + (f", instead of {names.short(old)}" if old else "")


def _protocol(entry: Entry, names: Names) -> str:
    before = text(entry, "before")
    return f"assignor {text(entry, 'protocol') or '?'} chosen" + (f", before: {before}" if before else "")


def _grown(entry: Entry, names: Names) -> str:
    changed = [f"{each.topic} {each.before} → {each.now}" for each in growths(entry)]
    return f"partitions changed: {listed(changed) or '?'}"


# --- members ------------------------------------------------------------------------------------------------


def _id_issued(entry: Entry, names: Names) -> str:
    expires_ms = whole(entry, "expires_ms")
    until = "" if expires_ms is None else f", which expires in {duration(expires_ms - entry.at_ms)}"
    former = text(entry, "former_member_id")
    return _and(
        f"{_who(entry, names)} got a member id{until}", f"formerly {names.short(former)}" if former else ""
    )


def _added(entry: Entry, names: Names) -> str:
    topics, protocols = texts(entry, "topics"), texts(entry, "protocols")
    former = text(entry, "former_member_id")
    return _and(
        f"{_who(entry, names)} joined{_quoted(entry)}",
        f"topics {listed(topics)}" if topics else "",
        f"assignors {listed(protocols)}" if protocols else "",
        f"formerly {names.short(former)}" if former else "",
    )


def _removed(entry: Entry, names: Names) -> str:
    by = member(entry, "requested_by")
    connected, closed_ms = flag(entry, "connected"), whole(entry, "disconnected_ms")
    link = ""
    if connected is True:
        link = "its connection is open"
    elif closed_ms is not None:
        link = f"its connection closed {duration(closed_ms)} before"
    late = whole(entry, "late")
    return _and(
        f"{entry.trigger or 'removed'}: {_who(entry, names)} was removed{_quoted(entry)}",
        f"requested by {by.client_id or 'a client'} at {by.host}" if by is not None else "",
        f"last heard from {_ms(entry, 'silent_ms')} before",
        link,
        f"late {count(late, 'time')} in the 10 minutes before" if late else "",
    )


def _disconnected(entry: Entry, names: Names) -> str:
    after_ms = whole(entry, "after_removal_ms")
    when = "" if after_ms is None else f", {duration(after_ms)} after its removal"
    return f"the connection of {_who(entry, names)} closed{when}"


def _replaced(entry: Entry, names: Names) -> str:
    old = (text(entry, "old_client_host") or "").lstrip("/")
    alive = ", which is still connected" if flag(entry, "old_connected") is True else ""
    return f"{_who(entry, names)} replaced its former process" + (f" at {old}" if old else "") + alive


def _fenced(entry: Entry, names: Names) -> str:
    old = text(entry, "old_client_host") or text(entry, "old_member_id") or "an older process"
    api = text(entry, "api") or "a request"
    sent, has = whole(entry, "sent_epoch"), whole(entry, "member_epoch")
    if sent is not None:
        return f"{api} of {_who(entry, names)} fenced: it sent epoch {sent}, and its epoch is {has}"
    return f"{api} of {old.lstrip('/')} fenced: the instance id belongs to {_who(entry, names)}"


def _late(entry: Entry, names: Names) -> str:
    interval_ms = whole(entry, "heartbeat_interval_ms")
    pace = "" if interval_ms is None else f", usually one every {duration(interval_ms)}"
    return (
        f"near miss: no heartbeat from {_who(entry, names)} for {_ms(entry, 'late_ms')}{pace}; session "
        f"timeout {_ms(entry, 'session_timeout_ms')}"
    )


def _metadata(entry: Entry, names: Names) -> str:
    added, removed = texts(entry, "topics_added"), texts(entry, "topics_removed")
    before, after = texts(entry, "protocols_before"), texts(entry, "protocols_after")
    changes = [f"topics {' '.join([*(f'+{e}' for e in added), *(f'-{e}' for e in removed)])}"] * bool(
        added or removed
    )
    if before and before != after:
        changes.append(f"assignors {listed(before)} → {listed(after)}")
    if flag(entry, "owned_changed"):
        changes.append("the partitions it owns")
    if (regex := text(entry, "regex")) is not None:
        changes.append(f"regular expression {regex or 'gone'}")
    if not changes:
        known = before or flag(entry, "user_data_changed")
        has = f"; its assignors are {listed(after)}" if after else ""
        changes.append("its assignor's data" if known else f"how is not known{has}")
    return f"metadata of {_who(entry, names)} changed: {', '.join(changes)}"


def _refused(entry: Entry, names: Names) -> str:
    size = whole(entry, "size_max")
    limit = "" if size is None else f"; the limit is {count(size, 'member')}"
    other = mismatch(entry)
    unlike = "" if other is None else f": {other}"
    return f"{text(entry, 'error') or 'refused'}: {_who(entry, names)} may not join{limit}{unlike}"


def mismatch(entry: Entry) -> str | None:
    """How a refused client differs from the group's members."""
    types = texts(entry, "protocol_types")
    if len(types) == 2:
        theirs, ours = types
        return f"its protocol type is {theirs or 'empty'}" + f", the group's is {ours}" * bool(ours)
    if entry.data.get("offered") is None:
        return None
    offered, shared = texts(entry, "offered"), texts(entry, "shared")
    if not offered:
        return "it offers no assignor"
    return f"it offers {listed(offered)}; all members support {listed(shared) or 'none in common'}"


# --- work ---------------------------------------------------------------------------------------------------


def _commit_refused(entry: Entry, names: Names) -> str:
    owner, ago_ms = member(entry, "owner"), whole(entry, "superseded_ms")
    topic, partition = text(entry, "topic"), whole(entry, "partition")
    return _and(
        f"{text(entry, 'error') or 'refused'}: commit of {_who(entry, names)} in generation "
        f"{whole(entry, 'committed_generation_id')}",
        "" if ago_ms is None else f"which ended {duration(ago_ms)} before",
        f"{topic}-{partition} is {names.short(owner)}'s" if owner is not None and topic else "",
    )


def _lag(entry: Entry, names: Names) -> str:
    total = whole(entry, "total")
    return f"lag {'unknown' if total is None else count(total, 'record')}" + (
        ", recovered" if flag(entry, "recovered") else ""
    )


def _offsets_removed(entry: Entry, names: Names) -> str:
    gone = entry.data.get("partitions")
    return f"{entry.trigger or 'removed'}: committed offsets of {count(len(gone), 'partition')} removed" if (
        isinstance(gone, list | tuple)
    ) else "committed offsets removed"  # fmt: skip


# --- the broker ---------------------------------------------------------------------------------------------


def _loaded(entry: Entry, names: Names) -> str:
    came_from = whole(entry, "from_broker")
    where = "" if came_from is None else f", from broker {came_from}"
    took = _ms(entry, "took_ms")
    if came_from == entry.broker:
        return f"broker {entry.broker} reloaded the group in {took}, after a restart or a lapse of its lease"
    return f"coordinator moved: broker {entry.broker} has the group{where}, loaded in {took}"


def _unloaded(entry: Entry, names: Names) -> str:
    why = text(entry, "why")
    return f"broker {entry.broker} gave the group up" + (f" ({why})" if why else "")


# --- transactions -------------------------------------------------------------------------------------------


def _transaction_aborted(entry: Entry, names: Names) -> str:
    partitions = whole(entry, "partitions")
    return f"{entry.trigger or 'aborted'}: the " + _and(
        f"transaction of {text(entry, 'transactional_id') or 'a producer'} was aborted",
        f"open for {_ms(entry, 'open_ms')}",
        "" if partitions is None else f"on {count(partitions, 'partition')}",
    )


def _transaction_ended(entry: Entry, names: Names) -> str:
    partitions = entry.data.get("partitions")
    where = count(len(partitions), "partition") if isinstance(partitions, list | tuple) else "partitions"
    done = "committed" if flag(entry, "committed") else "aborted"
    return f"{_who(entry, names)} {done} the transaction of producer {whole(entry, 'producer_id')} on {where}"


_SAYS: Final[Mapping[str, Callable[[Entry, Names], str]]] = {
    "state_changed": _state_changed,
    "rebalance_completed": _completed,
    "assigned": _assigned,
    "all_synced": lambda entry, names: (
        "all members have their assignment"
        + (f", {_ms(entry, 'after_ms')} after the leader sent it" if whole(entry, "after_ms") else "")
    ),
    "leader_changed": _leader,
    "protocol_chosen": _protocol,
    "topics_grown": _grown,
    "member_id_issued": _id_issued,
    "pending_member_removed": lambda entry, names: (
        f"{entry.trigger or 'removed'}: no longer waiting for {_who(entry, names)}, after "
        f"{_ms(entry, 'waited_ms')}"
    ),
    "member_added": _added,
    "member_rejoined": lambda entry, names: f"{_who(entry, names)} rejoined after {_ms(entry, 'after_ms')}",
    "member_removed": _removed,
    "member_disconnected": _disconnected,
    "member_replaced": _replaced,
    "member_fenced": _fenced,
    "heartbeat_late": _late,
    "metadata_changed": _metadata,
    "join_refused": _refused,
    "commit_refused": _commit_refused,
    "lag_at_commit": _lag,
    "offsets_removed": _offsets_removed,
    "shard_loaded": _loaded,
    "shard_unloaded": _unloaded,
    "fault_fired": lambda entry, names: f"injected fault: {text(entry, 'action')} on {text(entry, 'api')}",
    "transaction_aborted": _transaction_aborted,
    "transaction_ended_by_client": _transaction_ended,
    "clock_moved": lambda entry, names: f"the test clock was advanced by {_ms(entry, 'by_ms')}",
    "group_created": lambda entry, names: "group created",
    "group_removed": lambda entry, names: f"group removed: {entry.trigger or 'unknown cause'}",
}
