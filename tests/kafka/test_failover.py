"""What a dead coordinator leaves behind, compared with Apache Kafka: where a story says `reload`, Kafka is
killed and restarted on its data."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Final

import pytest

from tests.group.scenario import Scenario, parse
from tests.kafka.conftest import KafkaOfConfigs
from tests.kafka.differences import assert_as_listed, differences
from tests.kafka.recording import OF_THE_CORE, OUT_OF_CLIENTS_HANDS, record, record_core, replayable_part
from tests.kafka.wire_driver import WireDriver
from tests.support.apache_kafka import ApacheKafka

pytestmark = pytest.mark.kafka

_PREFIX: Final = f"{Path(__file__).stem}/"
"""Prefix in the first column of DIFFERENCES.md: the same scenario has separate rows without a restart."""
_numbers: Final = itertools.count(1)


class RestartedDriver(WireDriver):
    """`reload` kills the broker and all its connections."""

    def __init__(self, kafka: ApacheKafka, scenario: Scenario, suffix: str) -> None:
        self._kafka = kafka
        partitions = {name + suffix: count for name, count in scenario.topics.items()}
        super().__init__(kafka.host, kafka.port, partitions, scenario.group + suffix)

    def reload(self) -> None:
        self.disconnect_all()
        self._kafka.restart()
        self.reconnect()


def _replayable() -> list[Scenario]:
    """Scenarios that reach a `reload` before anything that only our own coordinator can be made to do."""
    scenarios = (
        replayable_part(parse(path), without=OUT_OF_CLIENTS_HANDS - {"reload"}) for path in OF_THE_CORE
    )
    return [scenario for scenario in scenarios if any(step.verb == "reload" for step in scenario.steps)]


def is_restarted(name: str) -> bool:
    """Whether `name`, from the first column of DIFFERENCES.md, is a scenario played here."""
    return name in {_PREFIX + scenario.name for scenario in _replayable()}


@pytest.mark.parametrize("scenario", _replayable(), ids=lambda scenario: scenario.name)
def test_apache_kafka_comes_back_with_the_same_group(
    scenario: Scenario, kafka_of_configs: KafkaOfConfigs
) -> None:
    kafka = kafka_of_configs({"group.initial.rebalance.delay.ms": "0", **scenario.config})
    suffix = f"-restarted-{next(_numbers)}"
    with RestartedDriver(kafka, scenario, suffix) as driver:
        theirs = record(scenario, driver, topic_id=driver.topic_id, suffix=suffix)
    ours = record_core(scenario)
    assert [replies.lines for replies in ours] == [step.expected for step in scenario.steps]
    name = _PREFIX + scenario.name
    assert_as_listed(name, differences(name, theirs, ours))
