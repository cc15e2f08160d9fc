"""Entries of the journal as they are shown: as they are stored, and a line of text for people."""

from __future__ import annotations

import json
from collections.abc import Iterable

from muster.coordinator.observe.explain import describe
from muster.coordinator.observe.journal.entries import Entry


def entry_json(entry: Entry) -> bytes:
    """The entry's object with one field more, `text`."""
    return entry.to_json()[:-1] + b',"text":' + json.dumps(describe(entry)).encode() + b"}"


def entries_json(entries: Iterable[Entry]) -> bytes:
    """A list of them."""
    return b"[" + b",".join(map(entry_json, entries)) + b"]"
