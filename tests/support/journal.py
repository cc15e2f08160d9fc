"""Checks journal entries against their published schema."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from muster.coordinator.journal.entries import COMMON, CUT, Entry
from muster.coordinator.journal.schema import TYPES

SCHEMA = Path(__file__).parents[2] / "docs" / "journal.schema.json"


@cache
def schema() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(SCHEMA.read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(found)
    return found


@cache
def validator(type: str | None = None) -> Draft202012Validator:
    """For every type, or for a single one, which is ten times as fast."""
    if type is None:
        return Draft202012Validator(schema())
    return Draft202012Validator({**schema(), "allOf": [{"$ref": f"#/$defs/{type}"}]})


def check_value(value: bytes) -> None:
    """Check a record value: it must match the schema and hold nothing that the schema does not name."""
    entry: dict[str, Any] = json.loads(value)
    (entry_type,) = [each for each in TYPES if each.name == entry["type"]]
    faults = [f"{each.json_path}: {each.message}" for each in validator(entry["type"]).iter_errors(entry)]
    assert faults == [], f"{entry}: {faults}"
    named = {*COMMON, CUT, *(field.name for field in entry_type.fields)}
    assert not entry.keys() - named, (
        f"{entry['type']} has what the schema does not name: {entry.keys() - named}"
    )


def check_entry(entry: Entry) -> None:
    """Check an entry as written; it must read back unchanged."""
    check_value(entry.to_json())
    assert Entry.from_json(entry.to_json()) == entry
