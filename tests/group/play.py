"""Plays a scenario: runs each step through a driver and prints each answer as a line."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from tests.group import prints, steps
from tests.group.cast import Cast
from tests.group.scenario import Driver, NotOffered, Scenario, ScenarioError, Step, milliseconds


def play(
    scenario: Scenario, driver: Driver, *, topic_id: Callable[[str], uuid.UUID], suffix: str = ""
) -> list[list[str]]:
    """The reply lines of each step, in the order of `scenario.steps`.

    `topic_id` returns the id of a topic by its real name; `suffix` is what real names of groups and topics
    have in addition. A step that only our own coordinator can answer (`events`, `records`) prints what the
    file expects if the driver does not offer it.
    """
    cast = Cast(scenario.actors, suffix)
    for name in map(cast.real, scenario.topics):
        cast.know_topic(name, topic_id(name))
    printed: list[list[str]] = []
    for step in scenario.steps:
        lines: list[str] = []
        if step.actor is None:
            try:
                lines = _world(step, driver, cast)
            except NotOffered:
                if step.verb not in ("events", "records"):
                    raise
                printed.append(list(step.expected))
                continue
        elif step.verb == "forget":
            cast.actors[step.actor].forget()
        else:
            driver.send(step.actor, *steps.request(scenario, step, cast, topic_id))
        answers = driver.replies(_expected_replies(step))
        answers.sort(key=lambda answer: cast.rank(answer.actor))
        for answer in answers:
            prints.remember(answer, cast)
        for answer in answers:
            lines += prints.lines(answer, cast)
        printed.append(lines)
    return printed


def _expected_replies(step: Step) -> int:
    """Number of responses in the transcript below a step. A describe or list prints several lines for one."""
    own = [line for line in step.expected if line.startswith(f"{step.actor}:")]
    if step.verb in ("describe", "describe-consumer", "list"):
        return len(step.expected) - len(own) + 1
    return len(step.expected)


def _world(step: Step, driver: Driver, cast: Cast) -> list[str]:
    match step.verb, step.arguments:
        case "advance", [duration]:
            driver.advance(milliseconds(duration))
        case "reload", []:
            driver.reload()
        case "unload", []:
            driver.unload()
        case "config", [name, value]:
            driver.configure(name, value)
        case "disconnect", [actor]:
            driver.disconnect(actor)
        case "create-topic", [topic, partitions]:
            name = cast.real(topic)
            cast.know_topic(name, driver.create_topic(name, int(partitions)))
        case "grow-topic", [topic, partitions]:
            driver.grow_topic(cast.real(topic), int(partitions))
        case "delete-topic", [topic]:
            driver.delete_topic(cast.real(topic))
        case "events", []:
            return [prints.event_line(event, driver.since_ms, cast) for event in driver.take_events()]
        case "records", []:
            return [prints.record_line(record, cast) for record in driver.take_records()]
        case _:
            raise ScenarioError(f"{step}: no such step")
    return []
