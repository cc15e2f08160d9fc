"""Scenarios over sockets: the server answers as the core does, and what it adds is written down.

Replays those of the core's scenarios that together have every request, version and kind of answer: the server
carries these; `tests/group` tests what they mean, with all scenarios.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.group.scenario import Scenario, parse
from tests.kafka.covering import covering
from tests.kafka.differences import differences
from tests.kafka.our_server import running_driver
from tests.kafka.recording import (
    AROUND_THE_CORE,
    OF_THE_CORE,
    record,
    record_core,
    replayable_part,
)

# Without its lease the server answers before the core is asked; settings apply when a process starts.
_ONLY_THE_CORE_CAN = frozenset({"unload", "config"})


def _replayable() -> list[Scenario]:
    scenarios = (replayable_part(parse(path), without=_ONLY_THE_CORE_CAN) for path in OF_THE_CORE)
    return covering(scenario for scenario in scenarios if scenario.steps)


@pytest.mark.parametrize("scenario", _replayable(), ids=lambda scenario: scenario.name)
def test_the_server_answers_as_the_core_does(scenario: Scenario) -> None:
    with running_driver(scenario) as driver:
        served = record(scenario, driver, topic_id=driver.topic_id)
    core = record_core(scenario)
    found = differences(scenario.name, served, core)
    assert not found, "the server, then the core:\n" + "\n".join(map(str, found))


@pytest.mark.parametrize("path", AROUND_THE_CORE, ids=lambda path: path.stem)
def test_around_the_core(path: Path) -> None:
    scenario = parse(path)
    with running_driver(scenario) as driver:
        served = record(scenario, driver, topic_id=driver.topic_id)
    assert [replies.lines for replies in served] == [step.expected for step in scenario.steps]
