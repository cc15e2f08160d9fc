"""The order in which Kafka's coordinator keeps the members of a group: `uniform` serves them in it where
numbers do not decide."""

from __future__ import annotations

from collections.abc import Iterable

from muster.protocol.java import hash_map_order, timeline_map_order


def member_order(
    present: Iterable[str], newcomer: str | None = None, most: int = 0, *, replaces: bool = False
) -> list[str]:
    """For `Spec.members`. Kafka fills a HashMap with the group's members, then adds the one that joins with
    this very heartbeat. `present` are in the order in which they joined; `most` is the largest number of
    members at once since the group was loaded, if greater. `replaces`: the newcomer replaces a static member,
    which is removed only after it was added."""
    before = timeline_map_order((each for each in present if each != newcomer), most)
    if newcomer is None:
        return hash_map_order(before)
    return hash_map_order([*before, newcomer], len(before) + 1 + replaces)
