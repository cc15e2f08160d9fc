"""The order in which Kafka's coordinator has the members of a group: who is served first by `uniform` where
numbers do not decide."""

from __future__ import annotations

from collections.abc import Iterable

from muster.protocol.java import hash_map_order, timeline_map_order


def member_order(present: Iterable[str], newcomer: str | None = None, most: int = 0) -> list[str]:
    """For `Spec.members`. Kafka fills a HashMap with the group's members, and then with the one that joins
    with this very heartbeat. `present` are in the order in which they joined; `most` is how many the group
    had at once since it was loaded, if that is more."""
    before = timeline_map_order((each for each in present if each != newcomer), most)
    return hash_map_order(before if newcomer is None else [*before, newcomer])
