"""Groups given to Apache Kafka's server-side assignors, and their results (recorded by `python -m
tests.kafka.server_assignors.record`)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from muster.coordinator.group.consumer.assignors import ASSIGNORS
from tests.support.server_assignor_lines import read

RECORDED: Final = Path(__file__).with_name("assignors-kafka-4.4.0.txt")


def test_targets_are_as_recorded() -> None:
    with RECORDED.open(encoding="utf-8") as lines:
        recorded = list(read(lines))
    assert {each.assignor for each in recorded} == ASSIGNORS.keys()
    for number, each in enumerate(recorded):
        assert ASSIGNORS[each.assignor](each.spec) == each.targets, f"group {number}"
