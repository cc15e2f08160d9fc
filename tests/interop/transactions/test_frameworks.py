"""Kafka Connect, Flink and Spring do their work exactly once, while their processes are killed (`connect.py`,
`flink.py`, `play.py`). On a single `muster serve` here; `make exactly-once` has the other targets."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.interop.story.story import Outcome
from tests.interop.story.targets import Target
from tests.interop.transactions.frameworks import FRAMEWORKS

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("target", ["serve"], indirect=True)
@pytest.mark.parametrize(
    ("name", "records", "kills"), [("kafka-connect", 600, 1), ("flink", 600, 1), ("spring-kafka", 600, 1)]
)
def test_frameworks_work_exactly_once(
    target: Target, name: str, records: int, kills: int, seed: int, judge: Callable[[Outcome], None]
) -> None:
    judge(FRAMEWORKS[name](target, seed, records, kills))
