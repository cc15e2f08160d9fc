"""The entries that only consumer groups have, as lines of text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from muster.coordinator.journal.entries import Entry
from muster.coordinator.journal.explain.facts import partitions, text, whole
from muster.coordinator.journal.explain.names import count, duration
from muster.coordinator.journal.explain.names import partitions as numbered
from muster.coordinator.journal.explain.vocabulary import Kind
from muster.coordinator.journal.names import Names


def _who(entry: Entry, names: Names) -> str:
    return "a member" if entry.member is None else names.short(entry.member)


def _epoch_bumped(entry: Entry, names: Names) -> str:
    by = "" if entry.member is None else f" ({_who(entry, names)})"
    size = whole(entry, "members")
    members = "" if size is None else f", {count(size, 'member')}"
    return f"{entry.trigger or 'no trigger known'}{by}: epoch {entry.generation}{members}"


def _target_assigned(entry: Entry, names: Names) -> str:
    total, kept, moved = (whole(entry, name) or 0 for name in ("partitions", "kept", "moved"))
    lost = whole(entry, "lost")
    return (
        f"target of epoch {entry.generation} by {text(entry, 'assignor') or '?'}: "
        f"{count(total, 'partition')}, {moved} to move, {kept} kept"
        + (f"; {lost} without an owner" if lost else "")
    )


def _revocation_requested(entry: Entry, names: Names) -> str:
    until_ms = whole(entry, "until_ms")
    until = "" if until_ms is None else f" within {duration(until_ms - entry.at_ms)}"
    return f"{_who(entry, names)} has to revoke {numbered(partitions(entry)) or 'partitions'}{until}"


def _partitions_revoked(entry: Entry, names: Names) -> str:
    after_ms = whole(entry, "after_ms")
    after = "" if after_ms is None else f" after {duration(after_ms)}"
    return f"{_who(entry, names)} has revoked {numbered(partitions(entry)) or 'partitions'}{after}"


def _partitions_assigned(entry: Entry, names: Names) -> str:
    held = numbered(partitions(entry, "still_held"))
    return (
        f"{_who(entry, names)} has {numbered(partitions(entry)) or 'partitions'} in epoch "
        f"{whole(entry, 'member_epoch')}" + (f"; others still hold {held}" if held else "")
    )


def _protocol_migrated(entry: Entry, names: Names) -> str:
    size = whole(entry, "members")
    of = "" if size is None else f" of {size}"
    if text(entry, "to_type") == Kind.CONSUMER:
        who = _who(entry, names)
        return f"{who} speaks the consumer protocol: the classic group{of} became a consumer group"
    return (
        f"{entry.trigger or 'migrated'} ({_who(entry, names)}): the consumer group became a classic group{of}"
    )


SAYS: Final[Mapping[str, Callable[[Entry, Names], str]]] = {
    "epoch_bumped": _epoch_bumped,
    "target_assigned": _target_assigned,
    "revocation_requested": _revocation_requested,
    "partitions_revoked": _partitions_revoked,
    "partitions_assigned": _partitions_assigned,
    "protocol_migrated": _protocol_migrated,
}
