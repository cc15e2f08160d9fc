"""Journal entries for display: as stored, with the member's name and a line of text for people."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from muster.coordinator.journal.entries import Entry
from muster.coordinator.journal.explain import describe
from muster.coordinator.journal.names import Names

NamesOf = Callable[[str | None], Names]
"""The names of a group's members, by group id."""


def entry_json(entry: Entry, names: Names) -> bytes:
    """The entry's object with two more fields: `name`, its member's name (null without a member), and
    `text`."""
    who = None if entry.member is None else names.short(entry.member)
    more = json.dumps({"name": who, "text": describe(entry, names)})
    return entry.to_json()[:-1] + b"," + more[1:].encode()


def entries_json(entries: Iterable[Entry], names_of: NamesOf) -> bytes:
    """A JSON list of entries."""
    return b"[" + b",".join(entry_json(each, names_of(each.group)) for each in entries) + b"]"
