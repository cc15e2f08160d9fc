"""Who had which partition before: the members' own claims, settled where two claim the same one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from muster.client.assignors.layout import Layout


class Claim(NamedTuple):
    """The partitions that a member says it had, and since which generation."""

    owned: Iterable[tuple[str, int]]
    """(topic, partition) pairs."""
    generation_id: int


class Settled(NamedTuple):
    """The settled claims of members 0 to n - 1, as partition numbers of a layout."""

    owned: list[list[int]]
    """For each member, what it had, in the order it claims it."""
    disputed: set[int]
    """Partitions that two members claim in the same generation: neither is believed."""


def settle(claims: Sequence[Claim], layout: Layout) -> Settled:
    """A partition belongs to the member that had it in the highest generation: a member that was away for a
    while does not know that others got its partitions."""
    owner = [-1] * layout.total
    owned: list[list[int]] = []
    disputed: set[int] = set()
    wrong: set[int] = set()
    for member, claim in enumerate(claims):
        mine = layout.numbers(claim.owned)
        owned.append(mine)
        for number in mine:
            other = owner[number]
            if other < 0:
                owner[number] = member
                continue
            wrong.update((member, other))
            if other == member:
                continue
            generation_id = claims[other].generation_id
            if claim.generation_id > generation_id:
                owner[number] = member
                disputed.discard(number)
            elif claim.generation_id == generation_id:
                disputed.add(number)
    for member in wrong:
        owned[member] = [
            number
            for number in dict.fromkeys(owned[member])
            if owner[number] == member and number not in disputed
        ]
    return Settled(owned, disputed)


def earlier_owners(claims: Sequence[Claim], layout: Layout) -> dict[int, int]:
    """For each partition, the member with the latest claim of those older than the latest generation."""
    latest = max(claim.generation_id for claim in claims)
    found: dict[int, int] = {}
    for member, claim in enumerate(claims):
        if claim.generation_id >= latest:
            continue
        for number in layout.numbers(claim.owned):
            other = found.get(number)
            if other is None or claim.generation_id > claims[other].generation_id:
                found[number] = member
    return found
