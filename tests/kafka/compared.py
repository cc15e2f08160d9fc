"""Counts the answers that are compared with Apache Kafka's, by API, version and error code.

Requests outside a story, to prepare it or to wait for something, are not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Self

from muster.protocol.api import ApiKey
from muster.protocol.message import Message, Struct


@dataclass
class Answers:
    """The answers of one broker."""

    versions: Counter[tuple[str, int]] = field(default_factory=Counter)
    """(API, version) -> answers."""
    errors: Counter[tuple[str, int]] = field(default_factory=Counter)
    """(API, error code) -> answers that contain it."""

    def note(self, api: ApiKey, version: int, answer: Message) -> None:
        self.versions[api.name, version] += 1
        self.errors.update({(api.name, code) for code in error_codes(answer)})

    def add(self, other: Answers) -> None:
        self.versions.update(other.versions)
        self.errors.update(other.errors)

    def as_json(self) -> dict[str, Any]:
        return {
            "versions": [[*key, count] for key, count in sorted(self.versions.items())],
            "errors": [[*key, count] for key, count in sorted(self.errors.items())],
        }

    @classmethod
    def from_json(cls, parts: dict[str, Any]) -> Self:
        return cls(
            *(
                Counter({(name, number): count for name, number, count in parts[each]})
                for each in ("versions", "errors")
            )
        )


@dataclass
class Compared:
    """The answers of both brokers."""

    kafka: Answers = field(default_factory=Answers)
    muster: Answers = field(default_factory=Answers)

    def side(self, *, kafka: bool) -> Answers:
        return self.kafka if kafka else self.muster

    def add(self, other: Compared) -> None:
        self.kafka.add(other.kafka)
        self.muster.add(other.muster)

    def versions(self, api: ApiKey) -> dict[int, int]:
        """By version, how many answers both gave for an API."""
        both = self.kafka.versions & self.muster.versions
        return {version: count for (name, version), count in sorted(both.items()) if name == api.name}

    def errors(self, api: ApiKey) -> list[int]:
        """The nonzero error codes that both gave for an API."""
        both = self.kafka.errors & self.muster.errors
        return sorted(code for name, code in both if name == api.name and code != 0)

    def as_json(self) -> dict[str, Any]:
        return {"kafka": self.kafka.as_json(), "muster": self.muster.as_json()}

    @classmethod
    def from_json(cls, parts: dict[str, Any]) -> Self:
        return cls(Answers.from_json(parts["kafka"]), Answers.from_json(parts["muster"]))


STORIES: Final = Compared()
"""The answers in the stories and scenarios of this process."""


def error_codes(struct: Struct) -> Iterator[int]:
    """All error codes anywhere in an answer."""
    for declared in type(struct).__fields__:
        value = getattr(struct, declared.name)
        if declared.name in ("error_code", "partition_error_code"):
            yield value
        elif isinstance(value, Struct):
            yield from error_codes(value)
        elif isinstance(value, list) and value and isinstance(value[0], Struct):
            for element in value:
                yield from error_codes(element)
