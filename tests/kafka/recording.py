"""Plays a scenario and keeps every field of every reply, so that two coordinators can be compared."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from muster.protocol.api import ApiKey
from muster.protocol.message import Message, Struct
from muster.protocol.messages.group_admin import ListGroupsResponse
from tests.group import blobs, prints
from tests.group.cast import Cast
from tests.group.core_driver import CoreDriver
from tests.group.play import play
from tests.group.scenario import Answer, Driver, Scenario, Step
from tests.kafka.compared import STORIES

Fields = dict[str, str]
"""Path of a field, such as `members[$alice].metadata`, to its value as text."""

AROUND_THE_CORE = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))
"""Stories about what the server does before it calls the core."""
OF_THE_CORE = sorted((Path(__file__).parent.parent / "group" / "scenarios").rglob("*.txt"))
"""Stories of classic groups, of consumer groups, and of the migration between the two."""
SCENARIOS = AROUND_THE_CORE + OF_THE_CORE

OUT_OF_CLIENTS_HANDS = frozenset({"advance", "reload", "unload", "config"})
_ONLY_OURS = {"events", "records"}
# The fields that identify the elements of a list; their order differs and means nothing to clients.
_IDENTIFYING = ("member_id", "group_id", "name", "partition_index", "topic_id")
_SUBSCRIPTIONS = ("metadata", "member_metadata")
_ASSIGNMENTS = ("assignment", "member_assignment")


class Replies(NamedTuple):
    """What one step released."""

    step: Step
    fields: dict[str, Fields]
    """Keyed by `alice join`, and `alice join (2)` for a second one of the kind."""
    lines: list[str]
    """The same as transcript lines."""


def replayable_part(scenario: Scenario, *, without: Collection[str] = OUT_OF_CLIENTS_HANDS) -> Scenario:
    """The scenario up to the first of the steps `without`, by default those that clients cannot take."""
    steps: list[Step] = []
    for step in scenario.steps:
        if step.actor is None and step.verb in without:
            break
        steps.append(step)
    return replace(scenario, steps=steps)


def record(
    scenario: Scenario, driver: Driver, *, topic_id: Callable[[str], uuid.UUID], suffix: str = ""
) -> list[Replies]:
    """Play `scenario`, which must be a `replayable_part`; returns what each of its steps released."""
    recorder = _Recorder(driver, Cast(scenario.actors, suffix), topic_id)
    printed = play(scenario, recorder, topic_id=recorder.topic_id, suffix=suffix)
    fields = iter(recorder.fields)
    return [
        Replies(step, {} if step.verb in _ONLY_OURS else next(fields), lines)
        for step, lines in zip(scenario.steps, printed, strict=True)
    ]


def record_core(scenario: Scenario) -> list[Replies]:
    """Record the core itself."""
    driver = CoreDriver(scenario)
    return record(scenario, driver, topic_id=driver.topic_id)


class _Recorder(Driver):
    """Passes everything on to `driver`, and keeps the fields of the answers."""

    def __init__(self, driver: Driver, cast: Cast, topic_id: Callable[[str], uuid.UUID]) -> None:
        self.fields: list[dict[str, Fields]] = []
        self._driver = driver
        self._cast = cast
        self._topic_id = topic_id

    def topic_id(self, name: str) -> uuid.UUID:
        topic_id = self._topic_id(name)
        self._cast.know_topic(name, topic_id)
        return topic_id

    def send(self, actor: str, api: ApiKey, version: int, message: Message) -> None:
        self._driver.send(actor, api, version, message)

    def disconnect(self, actor: str) -> None:
        self._driver.disconnect(actor)

    def create_topic(self, topic: str, partitions: int) -> uuid.UUID:
        topic_id = self._driver.create_topic(topic, partitions)
        self._cast.know_topic(topic, topic_id)
        return topic_id

    def grow_topic(self, topic: str, partitions: int) -> None:
        self._driver.grow_topic(topic, partitions)

    def delete_topic(self, topic: str) -> None:
        self._driver.delete_topic(topic)

    def advance(self, by_ms: int) -> None:
        self._driver.advance(by_ms)

    def reload(self) -> None:
        self._driver.reload()

    def replies(self, expected: int) -> list[Answer]:
        answers = self._driver.replies(expected)
        for answer in answers:
            STORIES.side(kafka=bool(self._cast.suffix)).note(answer.api, answer.version, answer.response)
        self.fields.append(remembered(answers, self._cast))
        return answers


def remembered(answers: Sequence[Answer], cast: Cast) -> dict[str, Fields]:
    """Remember what the actors take from `answers`; returns every field of each, as in `Replies.fields`."""
    in_order = sorted(answers, key=lambda answer: cast.rank(answer.actor))
    for answer in in_order:
        prints.remember(answer, cast)
    fields: dict[str, Fields] = {}
    for answer in in_order:
        name = base = f"{answer.actor} {answer.api.name}"
        number = 1
        while name in fields:
            number += 1
            name = f"{base} ({number})"
        fields[name] = _Words(cast).of(answer.response)
    return fields


class _Words:
    """Values as text: symbols for member ids, scenario names for real ones, lists in a fixed order."""

    def __init__(self, cast: Cast) -> None:
        self._cast = cast

    def of(self, response: Message) -> Fields:
        found: Fields = {}
        self._struct(found, "", response)
        return found

    def _struct(self, found: Fields, path: str, struct: Struct) -> None:
        for declared in type(struct).__fields__:
            if declared.name == "throttle_time_ms":
                continue
            value = getattr(struct, declared.name)
            name = f"{path}.{declared.name}" if path else declared.name
            if isinstance(value, list):
                self._list(found, name, self._ours(struct, value))
            elif isinstance(value, Struct):
                self._struct(found, name, value)
            else:
                found[name] = self._scalar(declared.name, value)

    def _ours(self, struct: Struct, values: list[Any]) -> list[Any]:
        """The list without groups of other scenarios, which ListGroups shows on a shared broker."""
        if isinstance(struct, ListGroupsResponse):
            return [group for group in values if self._cast.ours(group.group_id)]
        return values

    def _list(self, found: Fields, path: str, values: list[Any]) -> None:
        found[f"{path}.count"] = str(len(values))
        elements = sorted((self._identity(value), index) for index, value in enumerate(values))
        for identity, index in elements:
            name = f"{path}[{identity}]"
            while f"{name}.there" in found:  # the same element twice
                name += "'"
            found[f"{name}.there"] = "yes"
            if isinstance(values[index], Struct):
                self._struct(found, name, values[index])

    def _identity(self, value: Any) -> str:
        for name in _IDENTIFYING:
            identity = getattr(value, name, None)
            if identity is not None and identity != "":
                return self._scalar(name, identity)
        return "none" if isinstance(value, Struct) else self._cast.text(str(value))

    def _scalar(self, name: str, value: Any) -> str:
        cast = self._cast
        if isinstance(value, uuid.UUID):
            return f"id of {cast.told(cast.topic_names[value])}" if value in cast.topic_names else str(value)
        if isinstance(value, bytes):
            if name in _SUBSCRIPTIONS:
                return blobs.subscription_text(value, cast)
            return blobs.assignment_text(value, cast) if name in _ASSIGNMENTS else repr(value)
        if isinstance(value, str):
            if name in ("member_id", "leader"):
                return cast.symbol(value)
            if name == "error_message":
                return repr(cast.text(value))
            return repr(value.replace(cast.suffix, "") if cast.suffix else value)
        return repr(value)
