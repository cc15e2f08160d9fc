"""The order of members and strings, as in Kafka."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from muster.client.assignors.interface import MemberSubscription


def text_order(text: str) -> bytes:
    """A sort key: strings by their UTF-16 code units, as in Java; beyond the Basic Multilingual Plane that is
    not Python's order."""
    return text.encode("utf-16-be", "surrogatepass")


def in_order(members: Mapping[str, MemberSubscription]) -> list[str]:
    """Member ids in order; static members first, by instance id, so that a restart under a new id changes
    nothing."""

    def place(member_id: str) -> tuple[bool, bytes, bytes]:
        instance_id = members[member_id].group_instance_id
        return instance_id is None, text_order(instance_id or ""), text_order(member_id)

    return sorted(members, key=place)


def subscribers(member_ids: Iterable[str], members: Mapping[str, MemberSubscription]) -> dict[str, list[str]]:
    """The subscribers of each topic, in the order of `member_ids`."""
    found: dict[str, list[str]] = {}
    for member_id in member_ids:
        for topic in set(members[member_id].topics):
            found.setdefault(topic, []).append(member_id)
    return found
