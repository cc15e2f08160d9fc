"""Groups for the tests of assignors, in few words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from muster.client.assignors import MemberSubscription, TopicPartitions, assignor
from muster.client.partitions import TopicPartition


def partitions(text: str) -> tuple[TopicPartition, ...]:
    """Parse "t0 t1 u0": topics of one letter, with partition numbers."""
    return tuple(TopicPartition(each[0], int(each[1:])) for each in text.split())


def member(topics: str, owned: str = "", generation_id: int = -1, **others: str | None) -> MemberSubscription:
    """A member with topics of one letter, such as "tu"."""
    return MemberSubscription(frozenset(topics), partitions(owned), generation_id, **others)  # type: ignore[arg-type]


def topics(**counts: int) -> dict[str, TopicPartitions]:
    return {topic: TopicPartitions(count) for topic, count in counts.items()}


def racks(*names: str) -> TopicPartitions:
    """A topic with one partition per name, whose replicas are in these racks: "ab", "c"."""
    return TopicPartitions(len(names), tuple(map(frozenset, names)))


def text(assigned: Mapping[str, Iterable[TopicPartition]]) -> dict[str, str]:
    return {
        member_id: " ".join(f"{topic}{number}" for topic, number in sorted(each))
        for member_id, each in assigned.items()
    }


def assign(
    name: str, members: Mapping[str, MemberSubscription], topics: Mapping[str, TopicPartitions]
) -> dict[str, str]:
    return text(assignor(name).assign(members, topics))


def with_user_data(name: str, each: MemberSubscription) -> MemberSubscription:
    """With the user data that the member's own assignor would have sent."""
    own = assignor(name)
    own.on_assignment(each.owned, each.generation_id)
    return each._replace(user_data=own.user_data(each.topics, each.owned, each.generation_id))
