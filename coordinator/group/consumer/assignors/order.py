"""The order in which Kafka's coordinator has the members of a group: who is served first by `uniform` where
numbers do not decide."""

from __future__ import annotations

from collections.abc import Iterable

from muster.protocol.java import hash_map_order, timeline_map_order


def member_order(
    present: Iterable[str], newcomer: str | None = None, most: int = 0, *, replaces: bool = False
) -> list[str]:
    """For `Spec.members`. Kafka fills a HashMap with the group's members, and then with the one that joins
    with this very heartbeat. `present` are in the order in which they joined; `most` is how many the group
    had at once since it was loaded, if that is more. `replaces`: the newcomer takes the place of a static
    member, which goes only after it has come."""
    before = timeline_map_order((each for each in present if each != newcomer), most)
    if newcomer is None:
        return hash_map_order(before)
    return hash_map_order([*before, newcomer], len(before) + 1 + replaces)
