"""Checks what an assignor returns before members act on it: a user's own may be wrong."""

from __future__ import annotations

from collections.abc import Mapping

from muster.client.assignors.interface import (
    Assignor,
    MemberSubscription,
    RebalanceProtocol,
    TopicPartitions,
)
from muster.client.partitions import TopicPartition


def assign_checked(
    assignor: Assignor, members: Mapping[str, MemberSubscription], topics: Mapping[str, TopicPartitions]
) -> dict[str, list[TopicPartition]]:
    """The assignment that `assignor` makes. Raises a ValueError that says what is wrong with it: a member
    that is not in the group; a partition that does not exist, or whose topic its member does not subscribe
    to; a partition given to two members; from an assignor that offers the cooperative protocol, a partition
    that another member still owns. Members left out get nothing."""
    assigned = assignor.assign(members, topics)
    if unknown := assigned.keys() - members.keys():
        raise ValueError(f"it names {min(unknown)!r}, which is not a member of the group")
    given: dict[TopicPartition, str] = {}
    for member_id, partitions in assigned.items():
        subscribed = frozenset(members[member_id].topics)
        for where in partitions:
            topic, number = where
            if topic not in topics or not 0 <= number < topics[topic].count:
                raise ValueError(f"it gives {where} to {member_id}: there is no such partition")
            if topic not in subscribed:
                raise ValueError(f"it gives {where} to {member_id}, which does not subscribe to {topic}")
            if where in given:
                raise ValueError(f"it gives {where} to {given[where]} and to {member_id}")
            given[where] = member_id
    if RebalanceProtocol.COOPERATIVE in assignor.protocols:
        for member_id, member in members.items():
            for where in member.owned:
                to = given.get(where, member_id)
                if to != member_id and where not in members[to].owned:
                    raise ValueError(
                        f"it gives {where} to {to} while {member_id} still has it: a cooperative assignor "
                        "leaves such a partition out, and hands it over in the next rebalance"
                    )
    return {member_id: assigned.get(member_id, []) for member_id in members}
