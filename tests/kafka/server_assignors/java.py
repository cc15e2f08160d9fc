"""Kafka's server-side assignors in a JVM of their own (ServerAssignors.java)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from muster.coordinator.group.consumer.assignors import Assignment, Spec
from tests.support.java_program import JavaProgram
from tests.support.kafka_artifacts import broker_classpath

_PROGRAM: Final = Path(__file__).with_name("ServerAssignors.java")


class Answer(NamedTuple):
    """What an assignor did."""

    targets: dict[str, Assignment]
    """Of every member."""
    seconds: float
    """How long it took."""


class JavaServerAssignors(JavaProgram):
    """A running program."""

    def __init__(self) -> None:
        super().__init__(_PROGRAM, broker_classpath())

    def assign(self, assignor: str, spec: Spec) -> Answer:
        """Members get into a HashMap in the order of `spec.members`."""
        kind = "HOMOGENEOUS" if spec.homogeneous else "HETEROGENEOUS"
        self.say(*_lines(spec), f"assign\t{assignor}\t{kind}")
        targets: dict[str, Assignment] = {member_id: {} for member_id in spec.members}
        while True:
            member_id, value = self.hear().split("\t")
            if member_id == "took":
                return Answer(targets, int(value) / 1e9)
            targets[member_id] = _read(value)


def _lines(spec: Spec) -> Iterator[str]:
    for topic, count in spec.partitions.items():
        yield f"topic\t{topic.hex}\t{count}"
    for member_id, each in spec.members.items():
        topics = ",".join(topic.hex for topic in spec.partitions if topic in each.topics)
        target = ";".join(
            f"{topic.hex}:{','.join(map(str, sorted(numbers)))}" for topic, numbers in each.assigned.items()
        )
        yield "\t".join(
            ("member", member_id, each.instance_id or "-", each.rack_id or "-", topics or "-", target or "-")
        )


def _read(text: str) -> Assignment:
    if text == "-":
        return {}
    topics = (each.split(":") for each in text.split(";"))
    return {UUID(hex=topic): frozenset(map(int, numbers.split(","))) for topic, numbers in topics}
