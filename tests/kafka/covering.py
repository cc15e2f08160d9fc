"""Selects transcripts for a layer that only carries requests and replies."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tests.group.scenario import Scenario

_OF_THE_CORE_ALONE = frozenset({"events", "records"})


def shapes(scenario: Scenario) -> set[str]:
    """The shapes of its requests and replies, regardless of actors and numbers, and its configs."""
    found = {f"config {name}" for name in scenario.config}
    for step in scenario.steps:
        if step.verb in _OF_THE_CORE_ALONE:
            continue
        asked = f"{step.verb} v{step.version} {' '.join(sorted(step.options))}"
        replies = sorted({_shape(line) for line in step.expected}) or ["nothing yet"]
        found.update(f"{asked}: {reply}" for reply in replies)
        if len(step.expected) > 1:
            found.add(f"{step.verb} releases others")
    return found


def covering(scenarios: Iterable[Scenario]) -> list[Scenario]:
    """A selection that has every shape between them, each chosen for what the earlier ones lack."""
    left = {scenario.name: (scenario, shapes(scenario)) for scenario in scenarios}
    missing = set().union(*(each for _, each in left.values()))
    chosen = []
    while missing:
        # Of those that add most, the shortest, so that the choice does not depend on their order.
        name = max(left, key=lambda name: (len(left[name][1] & missing), -len(left[name][0].steps), name))
        scenario, found = left.pop(name)
        missing -= found
        chosen.append(scenario)
    return sorted(chosen, key=lambda scenario: scenario.name)


def _shape(reply: str) -> str:
    """A reply without names and numbers: `alice: generation=2 leader=$bob members=[]` becomes `generation=#
    leader=# members=[]`. Any number of partitions counts the same."""
    _, _, said = reply.partition(": ")
    said = re.sub(r"\[.*\]", "[]", said)
    said = re.sub(r"\d+|\$\w+", "#", said)
    return re.sub(r"\w+-#(,\w+-#)+", "partitions", said)
