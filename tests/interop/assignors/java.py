"""Kafka's own assignors in a JVM of their own (Assignors.java), asked over a pipe."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from threading import Timer
from types import TracebackType
from typing import Final, NamedTuple, Self

from muster.client.assignors import MemberSubscription, TopicPartitions
from muster.client.partitions import TopicPartition
from tests.support.assignor_lines import (
    group_lines,
    names_text,
    owned_text,
    read_owned,
    subscription_values,
)
from tests.support.kafka_artifacts import clients_classpath

_PROGRAM: Final = Path(__file__).with_name("Assignors.java")
_OPTIONS: Final = ("-Xmx1g", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off")
_LIFE_SECONDS_MAX: Final = 900


class Answer(NamedTuple):
    """What an assignor did."""

    assigned: dict[str, list[TopicPartition]]
    seconds: float
    """How long it took."""


class JavaAssignors:
    """A running program; leaving the block ends it, and so does a life of a quarter of an hour."""

    def __enter__(self) -> Self:
        command = ["java", *_OPTIONS, "-cp", clients_classpath(), str(_PROGRAM)]
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, encoding="utf-8"
        )
        self._end = Timer(_LIFE_SECONDS_MAX, self._process.kill)
        self._end.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.cancel()
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def assign(
        self, assignor: str, members: Mapping[str, MemberSubscription], topics: Mapping[str, TopicPartitions]
    ) -> Answer:
        self._say(*group_lines(members, topics), f"assign\t{assignor}")
        assigned: dict[str, list[TopicPartition]] = {}
        while True:
            member_id, value = self._hear().split("\t")
            if member_id == "took":
                return Answer(assigned, int(value) / 1e9)
            assigned[member_id] = read_owned(value)

    def user_data(
        self, assignor: str, generation_id: int, topics: Iterable[str], owned: Iterable[TopicPartition]
    ) -> bytes | None:
        """What the assignor sends along after that assignment."""
        self._say(f"userdata\t{assignor}\t{generation_id}\t{names_text(topics)}\t{owned_text(owned)}")
        answer = self._hear()
        return None if answer == "-" else bytes.fromhex(answer)

    def subscription_bytes(self, subscription: MemberSubscription) -> bytes:
        self._say("subscription\t" + "\t".join(subscription_values(subscription)))
        return bytes.fromhex(self._hear())

    def assignment_bytes(self, owned: Iterable[TopicPartition]) -> bytes:
        self._say(f"assignment\t{owned_text(owned)}")
        return bytes.fromhex(self._hear())

    def _say(self, *lines: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("".join(f"{line}\n" for line in lines))
        self._process.stdin.flush()

    def _hear(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise AssertionError(f"the Java program ended:\n{self._errors.read().decode()}")
        return line.removesuffix("\n")
