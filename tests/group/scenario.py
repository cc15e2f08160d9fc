"""Scenarios: the transcripts in `scenarios/`, parsed, played against a driver, and written back.

The format is described in `scenarios/README.md`. Three things are kept apart, so that the same files can be
played over the wire against Apache Kafka: `parse` (here), turning a step into a message and a reply into text
(`steps`, `prints`), and the driver that carries messages to a coordinator (`core_driver` for the core
itself).
"""

from __future__ import annotations

import re
import shlex
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from muster.coordinator.group.effects import Record
from muster.coordinator.group.events import Event
from muster.protocol.api import ApiKey
from muster.protocol.message import Message

DEFAULT_GROUP = "orders"
_INDENT = "    "
_WORLD = {
    *("advance", "reload", "unload", "config", "disconnect", "events", "records"),
    *("create-topic", "grow-topic", "delete-topic"),
}
_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class ScenarioError(Exception):
    """The file violates the format."""


class Step(NamedTuple):
    """One unindented line that is an action."""

    line: int
    text: str
    actor: str | None
    """None: a step without an actor."""
    verb: str
    version: int | None
    """None: the highest."""
    arguments: list[str]
    """Words without `=`, and assignments such as `$alice=orders-0` or `orders-0=42`, in order."""
    options: Mapping[str, str]
    """Words like `session=10s`."""
    expected: list[str]
    """The reply lines below the step, without indentation."""

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}"


@dataclass
class Scenario:
    """A file. `lines` are its unchanged lines; steps refer to them by number."""

    path: Path
    lines: list[str]
    story: str = ""
    config: dict[str, str] = field(default_factory=dict)
    topics: dict[str, int] = field(default_factory=dict)
    group: str = DEFAULT_GROUP
    not_on_kafka: str | None = None
    """Why Apache Kafka answers differently."""
    steps: list[Step] = field(default_factory=list)
    actors: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.path.stem


class Answer(NamedTuple):
    """A response that has arrived."""

    actor: str
    api: ApiKey
    version: int
    response: Message


class NotOffered(Exception):
    """The driver cannot do this to its coordinator."""


class Driver(ABC):
    """Carries requests of actors to a coordinator. An actor is a client with its own connection; while one of
    its requests is unanswered, the next uses another connection."""

    since_ms: int = 0
    """When the story begins, in epoch milliseconds; event times are relative to it."""

    @abstractmethod
    def send(self, actor: str, api: ApiKey, version: int, message: Message) -> None:
        """Send a request without waiting."""

    @abstractmethod
    def replies(self, expected: int) -> list[Answer]:
        """The answers since the last call, oldest first. `expected` is how many replies the transcript has
        here: a driver that cannot know waits for that many, and a little longer for more."""

    @abstractmethod
    def disconnect(self, actor: str) -> None:
        """Close the actor's connections; requests unanswered on them never will be answered."""

    @abstractmethod
    def delete_topic(self, topic: str) -> None:
        """Delete a topic; returns once the coordinator knows of it."""

    @abstractmethod
    def create_topic(self, topic: str, partitions: int) -> uuid.UUID:
        """Create a topic and return its id once the coordinator knows of it."""

    @abstractmethod
    def grow_topic(self, topic: str, partitions: int) -> None:
        """Add partitions to a topic; returns once the coordinator knows of it."""

    def advance(self, by_ms: int) -> None:
        raise NotOffered

    def reload(self) -> None:
        raise NotOffered

    def unload(self) -> None:
        raise NotOffered

    def configure(self, name: str, value: str) -> None:
        raise NotOffered

    def take_events(self) -> list[Event]:
        raise NotOffered

    def take_records(self) -> list[Record]:
        raise NotOffered


def milliseconds(text: str) -> int:
    """Parse `250ms`, `45s`, `5m`, `2h`, `7d`."""
    match = re.fullmatch(r"(-?\d+)(ms|s|m|h|d)", text)
    if match is None:
        raise ScenarioError(f"{text!r} is not a duration")
    return int(match[1]) * _UNITS[match[2]]


def span(duration_ms: int) -> str:
    """The inverse: in the largest unit without a remainder."""
    for unit in ("d", "h", "m", "s"):
        if duration_ms and duration_ms % _UNITS[unit] == 0:
            return f"{duration_ms // _UNITS[unit]}{unit}"
    return f"{duration_ms}ms"


def parse(path: Path) -> Scenario:
    """Read a file. Raises ScenarioError."""
    return parse_lines(path, path.read_text(encoding="utf-8").splitlines())


def parse_lines(path: Path, lines: list[str]) -> Scenario:
    """Parse these lines as a file of that name. Raises ScenarioError."""
    scenario = Scenario(path, lines)
    story: list[str] = []
    for number, line in enumerate(scenario.lines, 1):
        if not line.strip():
            continue
        if line.startswith("#"):
            if not scenario.steps:
                story.append(line.lstrip("# "))
        elif line.startswith(_INDENT):
            if not scenario.steps:
                raise ScenarioError(f"{path.name}:{number}: a reply before any step")
            scenario.steps[-1].expected.append(line[len(_INDENT) :])
        elif line.startswith(" "):
            raise ScenarioError(f"{path.name}:{number}: replies are indented by four blanks")
        else:
            _parse_line(scenario, number, line)
    scenario.story = " ".join(story)
    return scenario


def _parse_line(scenario: Scenario, number: int, line: str) -> None:
    words = shlex.split(line)
    match words:
        case ["topic", name, partitions]:
            scenario.topics[name] = int(partitions)
        case ["group", name]:
            scenario.group = name
        case ["not-on-kafka", *_]:
            scenario.not_on_kafka = line.split(maxsplit=1)[1]
        case ["config", name, value] if not scenario.steps:
            scenario.config[name] = value
        case [verb, *arguments] if verb in _WORLD:
            scenario.steps.append(Step(number, line, None, verb, None, arguments, {}, []))
        case [actor, verb, *rest]:
            version = None
            if rest and re.fullmatch(r"v\d+", rest[0]):
                version = int(rest.pop(0)[1:])
            options: dict[str, str] = {}
            arguments = []
            for word in rest:
                option = re.fullmatch(r"([a-z][a-z-]*)=(.*)", word, re.DOTALL)
                if option is not None and not re.search(r"-\d+$", option[1]):
                    options[option[1]] = option[2]
                else:
                    arguments.append(word)
            if actor not in scenario.actors:
                scenario.actors.append(actor)
            scenario.steps.append(Step(number, line, actor, verb, version, arguments, options, []))
        case _:
            raise ScenarioError(f"{scenario.path.name}:{number}: {line!r} is no step")


def rewritten(scenario: Scenario, printed: Sequence[Sequence[str]]) -> str:
    """The file with the replies of each step replaced by `printed`."""
    by_line = {step.line: replies for step, replies in zip(scenario.steps, printed, strict=True)}
    lines: list[str] = []
    for number, line in enumerate(scenario.lines, 1):
        if line.startswith(_INDENT):
            continue
        lines.append(line)
        lines += [_INDENT + reply for reply in by_line.get(number, ())]
    return "\n".join(lines) + "\n"
