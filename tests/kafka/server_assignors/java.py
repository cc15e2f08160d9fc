"""Kafka's server-side assignors in a separate JVM (ServerAssignors.java)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from muster.coordinator.group.consumer.assignors import Assignment, Spec
from tests.support.java_program import JavaProgram
from tests.support.kafka_artifacts import broker_classpath
from tests.support.server_assignor_lines import read_target, spec_lines

_PROGRAM: Final = Path(__file__).with_name("ServerAssignors.java")


class Answer(NamedTuple):
    """The result of an assignor."""

    targets: dict[str, Assignment]
    """The targets of all members."""
    cpu_seconds: float
    """The CPU time it took."""


class JavaServerAssignors(JavaProgram):
    """A running program."""

    def __init__(self) -> None:
        super().__init__(_PROGRAM, broker_classpath())

    def assign(self, assignor: str, spec: Spec) -> Answer:
        """Members enter a HashMap in the order of `spec.members`."""
        self.say(*spec_lines(assignor, spec))
        targets: dict[str, Assignment] = {member_id: {} for member_id in spec.members}
        while True:
            member_id, value = self.hear().split("\t")
            if member_id == "took":
                return Answer(targets, int(value) / 1e9)
            targets[member_id] = read_target(value)

    def members(self, changes: Iterable[str]) -> list[str]:
        """The members in the order in which an assignor gets them: "+id" joins, "-id" leaves, and "=id" joins
        with the heartbeat that computes targets."""
        self.say("\t".join(("members", *changes)))
        return self.hear().split("\t")
