"""Plays every story in `scenarios/` against the core. `--rewrite` records its answers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.group.core_driver import CoreDriver
from tests.group.play import play
from tests.group.scenario import parse, rewritten

SCENARIOS = sorted((Path(__file__).parent / "scenarios").rglob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path, request: pytest.FixtureRequest) -> None:
    scenario = parse(path)
    driver = CoreDriver(scenario)
    printed = play(scenario, driver, topic_id=driver.topic_id)
    driver.harness.check_replay()
    text = rewritten(scenario, printed)
    if request.config.getoption("--rewrite", default=False):
        path.write_text(text, encoding="utf-8")
    else:
        assert text.splitlines() == scenario.lines


def test_every_story_says_what_it_is_about() -> None:
    assert [path.name for path in SCENARIOS if not parse(path).story] == []


def test_every_topic_that_is_named_exists() -> None:
    """A server checks more than the core: unknown topics and partitions never reach the core."""
    missing = [
        f"{scenario.name}: {step}"
        for scenario in map(parse, SCENARIOS)
        for step in scenario.steps
        if step.verb in ("commit", "fetch", "delete-offsets")
        for word in step.arguments
        if (match := re.match(r"(\w+)-(\d+)(=|$)", word)) is not None
        and int(match[2]) >= scenario.topics.get(match[1], 0)
    ]
    assert missing == []
