"""Encodes assignments, replica lists and configs as human-readable text."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from muster.coordinator.storage.store import Assignment, Lease, LeaseKind, Replicas, StoreConflict

_KEPT: Final = 4_096


def assignments_text(assignments: Mapping[int, Assignment]) -> str:
    """A list with an entry for each partition up to the last one that has a replica list: null if it has
    none, the list alone if there is no more to say, otherwise an object. Empty if there are no assignments.

    Equal assignments give equal texts.
    """
    if not assignments:
        return ""
    entries = [_entry(assignments.get(partition)) for partition in range(max(assignments) + 1)]
    return json.dumps(entries, separators=(",", ":"))


def _entry(assignment: Assignment | None) -> object:
    if assignment is None:
        return None
    if assignment == Assignment(assignment.replicas):
        return assignment.replicas
    entry: dict[str, object] = {"replicas": assignment.replicas, "epochBase": assignment.epoch_base}
    if assignment.moved_from is not None:
        entry["movedFrom"] = [*assignment.moved_from, assignment.moved_epoch]
    return entry


@lru_cache(maxsize=_KEPT)
def assignments_of(text: str) -> Mapping[int, Assignment]:
    """The inverse of `assignments_text`. Cached, since topics are read often and seldom change."""
    entries = json.loads(text) if text else []
    return MappingProxyType(
        {partition: _assignment(entry) for partition, entry in enumerate(entries) if entry is not None}
    )


def _assignment(entry: Any) -> Assignment:
    if isinstance(entry, list):
        return Assignment(tuple(entry))
    moved = entry.get("movedFrom")
    if moved is None:
        return Assignment(tuple(entry["replicas"]), entry["epochBase"])
    kind, number, epoch = moved
    return Assignment(tuple(entry["replicas"]), entry["epochBase"], Lease(LeaseKind(kind), number), epoch)


def replicas_text(replicas: Replicas) -> str:
    """Comma-separated node ids."""
    return ",".join(map(str, replicas))


def replicas_of(text: str) -> Replicas:
    """The inverse of `replicas_text`."""
    return tuple(map(int, text.split(",")))


def configs_text(configs: Mapping[str, str]) -> str:
    """Equal configs give equal texts."""
    return json.dumps(dict(configs), sort_keys=True)


def numbered(known: Mapping[Replicas, int], lists: Collection[Replicas], leases: int) -> dict[Replicas, int]:
    """Numbers for those of `lists` that have none yet; `leases` is how many there can be. Raises
    StoreConflict if those do not suffice."""
    new = sorted(set(lists) - known.keys())
    first = max(known.values(), default=-1) + 1
    if first + len(new) > leases:
        raise StoreConflict(
            f"a cluster can use {leases} different replica lists; {len(known)} have been used, and this "
            f"needs {len(new)} more"
        )
    return {replicas: first + place for place, replicas in enumerate(new)}
