"""The journal's records as the rules of `muster.coordinator.journal.explain` expect them, group by group."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from muster.coordinator.journal.entries import Entry, Member

SHARD_TYPES: Final = ("shard_loaded", "shard_unloaded")
"""Entries about a whole shard, and so about each of its groups."""


class Told(NamedTuple):
    """An entry, its offset in its partition, and the record's unchanged value."""

    offset: int
    times: int
    """How many similar entries it stands for."""
    value: str
    entry: Entry


def read(offset: int, value: str | bytes, times: int = 1) -> Told | None:
    """Read a record of the journal; None if it is not an entry, as in `transitions`. Common fields that are
    not as published count as absent; `explain.facts` treats the others likewise."""
    if not isinstance(value, str):
        value = value.decode("utf-8", "replace")
    try:
        told = json.loads(value)
    except (ValueError, RecursionError):
        return None
    if not isinstance(told, dict):
        return None
    kind, at_ms = _text(told, "type"), _whole(told, "at_ms")
    if kind is None or at_ms is None:
        return None
    broker, shard = _whole(told, "broker"), _whole(told, "shard")
    # JSON can escape half of a character; Spark, and a stream's state, accept only whole ones.
    group = _text(told, "group")
    entry = Entry(
        kind,
        at_ms,
        -1 if broker is None else broker,
        -1 if shard is None else shard,
        None if group is None else group.encode("utf-8", "replace").decode(),
        _whole(told, "generation"),
        _text(told, "trigger"),
        _member(told.get("member")),
        _text(told, "reason"),
        told,
    )
    return Told(offset, times, value, entry)


def told_to(group: str, told: Told) -> Told:
    """An entry about a whole shard, as an entry of one of its groups."""
    return told._replace(entry=told.entry._replace(group=group))


def with_shard(group: str, own: Iterator[Told], shard: Sequence[Told]) -> Iterator[Told]:
    """Merge a group's entries with those of its shard, from the last one before the group's first to the
    first one after its last; with all of them, the cost would grow quadratically over time. Both are in
    order."""
    first = next(own, None)
    if first is None:
        return
    at = max(bisect_left(shard, first.offset, key=lambda each: each.offset) - 1, 0)
    for each in chain((first,), own):
        while at < len(shard) and shard[at].offset < each.offset:
            yield told_to(group, shard[at])
            at += 1
        yield each
    if at < len(shard):
        yield told_to(group, shard[at])


def _text(told: dict[str, Any], name: str) -> str | None:
    found = told.get(name)
    return found if isinstance(found, str) else None


def _whole(told: dict[str, Any], name: str) -> int | None:
    found = told.get(name)
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def _member(value: object) -> Member | None:
    """The member, as far as it is known."""
    if not isinstance(value, dict) or (member_id := _text(value, "id")) is None:
        return None
    client_id, host = _text(value, "client_id"), _text(value, "host")
    return Member(member_id, client_id or "", host or "", _text(value, "instance"))
