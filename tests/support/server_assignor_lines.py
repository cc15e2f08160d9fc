"""Groups for server-side assignors as text lines: what ServerAssignors.java reads and writes, and recordings
of its answers.

    topic   TOPIC  COUNT                               topics are their ids in hex
    member  ID  INSTANCE  RACK  TOPICS  TARGET         "t,u", "t:0,1;u:2"
    assign  ASSIGNOR  TYPE                             HOMOGENEOUS or HETEROGENEOUS
    ID  TARGET                                         the answer, a line for each member

with tabs between the values; "-" is nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple
from uuid import UUID

from muster.coordinator.group.consumer.assignors import Assignment, Spec, Subscriber

_HOMOGENEOUS = "HOMOGENEOUS"


class Assigned(NamedTuple):
    """A group and what an assignor assigned."""

    assignor: str
    spec: Spec
    targets: dict[str, Assignment]


def spec_lines(assignor: str, spec: Spec) -> Iterator[str]:
    for topic, count in spec.partitions.items():
        yield f"topic\t{topic.hex}\t{count}"
    for member_id, each in spec.members.items():
        topics = ",".join(topic.hex for topic in spec.partitions if topic in each.topics)
        values = each.instance_id or "-", each.rack_id or "-", topics or "-", target_text(each.assigned)
        yield "\t".join(("member", member_id, *values))
    yield f"assign\t{assignor}\t{_HOMOGENEOUS if spec.homogeneous else 'HETEROGENEOUS'}"


def target_text(target: Assignment) -> str:
    topics = (f"{topic.hex}:{','.join(map(str, sorted(numbers)))}" for topic, numbers in target.items())
    return ";".join(topics) or "-"


def read_target(text: str) -> Assignment:
    if text == "-":
        return {}
    topics = (each.split(":") for each in text.split(";"))
    return {UUID(hex=topic): frozenset(map(int, numbers.split(","))) for topic, numbers in topics}


def read(lines: Iterable[str]) -> Iterator[Assigned]:
    """Read recorded groups, each with its assignor and its answer."""
    members: dict[str, Subscriber] = {}
    partitions: dict[UUID, int] = {}
    found: Assigned | None = None
    for line in lines:
        kind, *values = line.rstrip("\n").split("\t")
        if kind in ("topic", "member") and found is not None:
            yield found
            members, partitions, found = {}, {}, None
        if kind == "topic":
            partitions[UUID(hex=values[0])] = int(values[1])
        elif kind == "member":
            member_id, instance_id, rack_id, topics, target = values
            members[member_id] = Subscriber(
                None if instance_id == "-" else instance_id,
                None if rack_id == "-" else rack_id,
                frozenset() if topics == "-" else frozenset(map(UUID, topics.split(","))),
                read_target(target),
            )
        elif kind == "assign":
            found = Assigned(values[0], Spec(members, partitions, values[1] == _HOMOGENEOUS), {})
        else:
            assert found is not None
            found.targets[kind] = read_target(values[0])
    if found is not None:
        yield found
