"""Assignments of Kafka's own assignors for some groups, recorded by tests/interop/assignors/record.py, which
documents them; the comparison with Java itself, on many more groups, runs there."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from muster.client.assignors import assignor
from tests.support.assignor_lines import read

RECORDED = Path(__file__).with_name("kafka-4.4.0.txt")


def test_the_same_results_as_recorded() -> None:
    recorded = list(read(RECORDED.read_text(encoding="utf-8").splitlines()))
    for number, each in enumerate(recorded):
        assigned = assignor(each.assignor).assign(each.members, each.topics)
        assert assigned == each.assigned, f"group {number}: {each}"
    assert min(Counter(each.assignor for each in recorded).values()) >= 50
