"""Which members and partitions share a rack (KIP-881): reading from a nearby replica saves traffic between
data centres."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from muster.client.assignors.layout import Layout


def racks_matter(member_racks: Iterable[str], partition_racks: Iterable[frozenset[str]]) -> bool:
    """Whether it makes a difference who gets what: some replica is in some member's rack, and not every
    partition has replicas in all of the racks."""
    wanted = frozenset(member_racks)
    if not wanted:
        return False
    distinct = frozenset(partition_racks)
    everywhere = frozenset[str]().union(*distinct)
    return not wanted.isdisjoint(everywhere) and distinct != {everywhere}


class Racks:
    """The racks of members and partitions, both by number."""

    def __init__(self, of_members: Sequence[str | None], of_partitions: Sequence[frozenset[str]]) -> None:
        self.of_members = of_members
        self.of_partitions = of_partitions
        self._members_in = Counter(of_members)

    @classmethod
    def that_matter(cls, of_members: Sequence[str | None], layout: Layout) -> Racks | None:
        """None if racks make no difference."""
        if not any(of_members):
            return None
        of_partitions = layout.racks()
        return (
            cls(of_members, of_partitions) if racks_matter(filter(None, of_members), of_partitions) else None
        )

    def apart(self, member: int, number: int) -> bool:
        """Whether the member has a rack, and the partition no replica in it."""
        rack = self.of_members[member]
        return rack is not None and rack not in self.of_partitions[number]

    def members_near(self, number: int) -> int:
        """How many members are in a rack of the partition's replicas."""
        return sum(self._members_in[rack] for rack in self.of_partitions[number])
