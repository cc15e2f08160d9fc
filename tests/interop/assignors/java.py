"""Kafka's own assignors in a separate JVM (Assignors.java), queried over a pipe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from muster.client.assignors import MemberSubscription, TopicPartitions
from muster.client.partitions import TopicPartition
from tests.support.assignor_lines import (
    group_lines,
    names_text,
    owned_text,
    read_owned,
    subscription_values,
)
from tests.support.java_program import JavaProgram
from tests.support.kafka_artifacts import clients_classpath

_PROGRAM: Final = Path(__file__).with_name("Assignors.java")


class Answer(NamedTuple):
    """The result of an assignor."""

    assigned: dict[str, list[TopicPartition]]
    seconds: float
    """How long it took."""


class JavaAssignors(JavaProgram):
    """A running program."""

    def __init__(self) -> None:
        super().__init__(_PROGRAM, clients_classpath())

    def assign(
        self, assignor: str, members: Mapping[str, MemberSubscription], topics: Mapping[str, TopicPartitions]
    ) -> Answer:
        self.say(*group_lines(members, topics), f"assign\t{assignor}")
        assigned: dict[str, list[TopicPartition]] = {}
        while True:
            member_id, value = self.hear().split("\t")
            if member_id == "took":
                return Answer(assigned, int(value) / 1e9)
            assigned[member_id] = read_owned(value)

    def user_data(
        self, assignor: str, generation_id: int, topics: Iterable[str], owned: Iterable[TopicPartition]
    ) -> bytes | None:
        """The user data that the assignor sends after that assignment."""
        self.say(f"userdata\t{assignor}\t{generation_id}\t{names_text(topics)}\t{owned_text(owned)}")
        answer = self.hear()
        return None if answer == "-" else bytes.fromhex(answer)

    def subscription_bytes(self, subscription: MemberSubscription) -> bytes:
        self.say("subscription\t" + "\t".join(subscription_values(subscription)))
        return bytes.fromhex(self.hear())

    def assignment_bytes(self, owned: Iterable[TopicPartition]) -> bytes:
        self.say(f"assignment\t{owned_text(owned)}")
        return bytes.fromhex(self.hear())
