"""Entries of the journal as they are shown: as they are stored, with the member's name and a line of text for
people."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from muster.coordinator.journal.entries import Entry
from muster.coordinator.journal.explain import describe
from muster.coordinator.journal.names import Names

NamesOf = Callable[[str | None], Names]
"""The names of a group's members, by group id."""


def entry_json(entry: Entry, names: Names) -> bytes:
    """The entry's object with two fields more: `name`, what its member is called (null: it has none), and
    `text`."""
    who = None if entry.member is None else names.short(entry.member)
    more = json.dumps({"name": who, "text": describe(entry, names)})
    return entry.to_json()[:-1] + b"," + more[1:].encode()


def entries_json(entries: Iterable[Entry], names_of: NamesOf) -> bytes:
    """A list of them."""
    return b"[" + b",".join(entry_json(each, names_of(each.group)) for each in entries) + b"]"
