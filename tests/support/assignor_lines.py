"""Groups and assignments as text lines: what Assignors.java reads and writes, and recordings of its answers.

    topic   NAME  COUNT  RACKS...              racks of the replicas, a value for each partition: "a,b"
    member  ID  INSTANCE  RACK  GENERATION  TOPICS  OWNED  USER_DATA    "t,u", "t:0,1;u:2", bytes in hex
    assign  ASSIGNOR
    ID  OWNED                                  the answer, a line for each member

with tabs between the values; "-" is nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from muster.client.assignors import MemberSubscription, TopicPartitions
from muster.client.assignors.subscription_bytes import by_topic
from muster.client.partitions import TopicPartition


class Assignment(NamedTuple):
    """A group and what an assignor assigned."""

    assignor: str
    members: dict[str, MemberSubscription]
    topics: dict[str, TopicPartitions]
    assigned: dict[str, list[TopicPartition]]


def group_lines(
    members: Mapping[str, MemberSubscription], topics: Mapping[str, TopicPartitions]
) -> list[str]:
    lines = [
        "\t".join(("topic", topic, str(each.count), *map(names_text, each.racks)))
        for topic, each in topics.items()
    ]
    for member_id, member in members.items():
        lines.append(
            "\t".join(("member", member_id, member.group_instance_id or "-", *subscription_values(member)))
        )
    return lines


def subscription_values(member: MemberSubscription) -> tuple[str, ...]:
    """The values from RACK on."""
    return (
        member.rack or "-",
        str(member.generation_id),
        names_text(member.topics),
        owned_text(member.owned),
        "-" if member.user_data is None else member.user_data.hex(),
    )


def names_text(each: Iterable[str]) -> str:
    return ",".join(sorted(each)) or "-"


def owned_text(partitions: Iterable[TopicPartition]) -> str:
    topics = by_topic(partitions).items()
    return ";".join(f"{topic}:{','.join(map(str, numbers))}" for topic, numbers in topics) or "-"


def read_names(text: str) -> frozenset[str]:
    return frozenset() if text == "-" else frozenset(text.split(","))


def read_owned(text: str) -> list[TopicPartition]:
    """The partitions, sorted."""
    if text == "-":
        return []
    topics = (topic.split(":") for topic in text.split(";"))
    return sorted(
        TopicPartition(topic, int(number)) for topic, numbers in topics for number in numbers.split(",")
    )


def read(lines: Iterable[str]) -> Iterator[Assignment]:
    """Read recorded groups, each with its assignor and its answer."""
    found: Assignment | None = None
    for line in lines:
        kind, *values = line.rstrip("\n").split("\t")
        if found is None or (found.assignor and kind in ("topic", "member")):
            if found is not None:
                yield found
            found = Assignment("", {}, {}, {})
        if kind == "topic":
            name, count, *racks = values
            found.topics[name] = TopicPartitions(int(count), tuple(map(read_names, racks)))
        elif kind == "member":
            member_id, instance_id, rack, generation_id, topics, had, user_data = values
            found.members[member_id] = MemberSubscription(
                read_names(topics),
                tuple(read_owned(had)),
                int(generation_id),
                None if rack == "-" else rack,
                None if instance_id == "-" else instance_id,
                None if user_data == "-" else bytes.fromhex(user_data),
            )
        elif kind == "assign":
            found = found._replace(assignor=values[0])
        else:
            found.assigned[kind] = read_owned(values[0])
    if found is not None:
        yield found
