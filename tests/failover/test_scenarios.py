"""Stories in which the coordinator goes away, played on three brokers: whichever broker takes over answers as
if it had been there all along, and so does the first one when it is back.

The same stories are played against the core (`tests/group`), whose transcripts are the reference, and against
Apache Kafka, killed and restarted (`tests/kafka/test_failover.py`).
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.failover.brokers import Fault
from tests.failover.moving import running_driver, suffix_for
from tests.group.play import play
from tests.group.scenario import Scenario, parse
from tests.kafka.recording import OF_THE_CORE, replayable_part

# Settings are fixed at process start; a shard that is unloaded and not reloaded has no owner.
_ONLY_THE_CORE_CAN: Final = frozenset({"unload", "config"})


def _stories() -> list[Scenario]:
    scenarios = (replayable_part(parse(path), without=_ONLY_THE_CORE_CAN) for path in OF_THE_CORE)
    return [scenario for scenario in scenarios if any(step.verb == "reload" for step in scenario.steps)]


_FAULTS: Final = (
    (Fault.KILL, False),
    (Fault.KILL, True),
    (Fault.STOP, False),
    (Fault.PAUSE, True),
    (Fault.DRAIN, True),
)
_APART: Final = 2
"""Distance between the two faults of a story in the list."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Over PostgreSQL, every story meets every fault; elsewhere two, in rotation."""
    stories = _stories()
    cases = [
        pytest.param(story, *_FAULTS[number], id=f"{story.name}-{'-'.join(map(str, _FAULTS[number]))}")
        for index, story in enumerate(stories)
        for number in (
            range(len(_FAULTS))
            if metafunc.config.getoption("--postgres")
            else sorted({index % len(_FAULTS), (index + _APART) % len(_FAULTS)})
        )
    ]
    metafunc.parametrize(("scenario", "fault", "comes_back"), cases)


@pytest.mark.stores_in_turn
def test_a_group_outlives_its_coordinator(
    scenario: Scenario, kept_in: dict[str, Any], fault: Fault, comes_back: bool
) -> None:
    suffix = suffix_for(scenario)
    with running_driver(scenario, suffix, kept_in, fault, comes_back=comes_back) as driver:
        printed = play(scenario, driver, topic_id=driver.topic_id, suffix=suffix)
    assert printed == [step.expected for step in scenario.steps]
