"""Apache Kafka as the reference: every scenario is played against it, as far as clients can produce it."""

from __future__ import annotations

import itertools

import pytest

from tests.group.scenario import Scenario, parse
from tests.kafka.conftest import KafkaOfConfigs
from tests.kafka.differences import Difference, assert_as_listed, differences, listed
from tests.kafka.our_server import running_driver
from tests.kafka.recording import (
    SCENARIOS,
    record,
    replayable_part,
)
from tests.kafka.stories import is_told
from tests.kafka.test_failover import is_restarted
from tests.kafka.wire_driver import WireDriver
from tests.support.apache_kafka import ApacheKafka

pytestmark = pytest.mark.kafka

_INITIAL_DELAY = "group.initial.rebalance.delay.ms"
_LONGER_THAN_ANY_REPLAY_MS = "600000"
_LATER = {
    "offsets.retention.minutes",
    "offsets.retention.check.interval.ms",
    "group.consumer.regex.refresh.interval.ms",
}
"""They say when something happens by itself, which is when the clock is moved: behind the replayed part. With
Kafka's defaults it happens after minutes, and no set of configs needs a Kafka of its own."""
# When a leader leaves, Kafka picks the first of the others in the order of their ids' hashes, and ids are
# random: one replay in so many picks the member that we pick.
_RETRIES_FOR_THE_SAME_LEADER = 20
_numbers = itertools.count(1)


def _configs(scenario: Scenario) -> dict[str, str]:
    """The configs to start Kafka with. Any nonzero delay must not end within the replayed part."""
    delay = "0" if scenario.config.get(_INITIAL_DELAY) == "0" else _LONGER_THAN_ANY_REPLAY_MS
    needed = {name: value for name, value in scenario.config.items() if name not in _LATER}
    return {**needed, _INITIAL_DELAY: delay}


def _replayable() -> list[Scenario]:
    """Scenarios with steps to replay, ordered by config: each set of configs needs another Kafka.

    Scenarios marked `not-on-kafka` as a race have no outcome to compare.
    """
    scenarios = [replayable_part(parse(path)) for path in SCENARIOS]
    return sorted(
        (
            scenario
            for scenario in scenarios
            if scenario.steps and "race" not in (scenario.not_on_kafka or "").split()
        ),
        key=lambda scenario: sorted(_configs(scenario).items()),
    )


def _replay(scenario: Scenario, kafka: ApacheKafka) -> list[Difference]:
    suffix = f"-replayed-{next(_numbers)}"  # removed from answers again, so unlike anything in a scenario
    partitions = {name + suffix: count for name, count in scenario.topics.items()}
    with WireDriver(kafka.host, kafka.port, partitions, scenario.group + suffix) as driver:
        theirs = record(scenario, driver, topic_id=driver.topic_id, suffix=suffix)
    with running_driver(scenario) as ours_driver:
        ours = record(scenario, ours_driver, topic_id=ours_driver.topic_id)
    assert [replies.lines for replies in ours] == [step.expected for step in scenario.steps]
    return differences(scenario.name, theirs, ours)


@pytest.mark.parametrize("scenario", _replayable(), ids=lambda scenario: scenario.name)
def test_apache_kafka_answers_as_muster_does(scenario: Scenario, kafka_of_configs: KafkaOfConfigs) -> None:
    kafka = kafka_of_configs(_configs(scenario))
    found = _replay(scenario, kafka)
    for _ in range(_RETRIES_FOR_THE_SAME_LEADER):
        if not any(difference.is_other_leader for difference in found):
            break
        found = _replay(scenario, kafka)

    if scenario.not_on_kafka is not None:
        assert found, f"says not-on-kafka ({scenario.not_on_kafka}), and Apache Kafka answers just the same"
        return
    assert_as_listed(scenario.name, found)


def test_every_listed_difference_is_of_a_scenario_or_a_story() -> None:
    names = {scenario.name for scenario in _replayable() if scenario.not_on_kafka is None}
    others = {difference.scenario for difference in listed()} - names
    assert [name for name in others if not (is_told(name) or is_restarted(name))] == []
    assert all(reason != "?" for reason in listed().values()), "a difference without a reason"
