"""Kafka's RoundRobinAssignor: all partitions dealt like cards."""

from __future__ import annotations

from collections.abc import Mapping

from muster.client.assignors.interface import Assignor, MemberSubscription, TopicPartitions, partitions_of
from muster.client.assignors.members import in_order, text_order
from muster.client.partitions import TopicPartition


class RoundRobinAssignor(Assignor):
    """Deals topic by topic, partition by partition, to the next member in a circle that subscribes to the
    topic."""

    name = "roundrobin"

    def assign(
        self, members: Mapping[str, MemberSubscription], topics: Mapping[str, TopicPartitions]
    ) -> dict[str, list[TopicPartition]]:
        assigned: dict[str, list[TopicPartition]] = {member_id: [] for member_id in members}
        circle = in_order(members)
        wanted = [frozenset(members[member_id].topics) for member_id in circle]
        subscribed = frozenset[str]().union(*wanted)
        next_up = 0
        for topic in sorted(subscribed & topics.keys(), key=text_order):
            for each in partitions_of(topic, range(topics[topic].count)):
                while topic not in wanted[next_up]:
                    next_up = (next_up + 1) % len(circle)
                assigned[circle[next_up]].append(each)
                next_up = (next_up + 1) % len(circle)
        return assigned
