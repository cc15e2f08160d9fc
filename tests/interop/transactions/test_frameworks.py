"""Kafka Connect, Flink and Spring work exactly once, while their processes are killed (`connect.py`,
`flink.py`, `play.py`). Here only on a single `muster serve`; `make exactly-once` has the other targets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.interop.story.story import Outcome
from tests.interop.story.targets import Target
from tests.interop.transactions.frameworks import FRAMEWORKS
from tests.support.kafka_artifacts import (
    FLINK_CONNECTOR_VERSION,
    FLINK_VERSION,
    KAFKA_TOOLS_VERSION,
    KAFKA_VERSION,
    SPRING_KAFKA,
)

pytestmark = pytest.mark.interop

DOCS: Final = Path(__file__).parents[3] / "docs" / "compatibility.md"


@pytest.mark.parametrize("target", ["serve"], indirect=True)
@pytest.mark.parametrize(
    ("name", "records", "kills"), [("kafka-connect", 600, 1), ("flink", 600, 1), ("spring-kafka", 600, 1)]
)
def test_frameworks_work_exactly_once(
    target: Target, name: str, records: int, kills: int, seed: int, judge: Callable[[Outcome], None]
) -> None:
    judge(FRAMEWORKS[name](target, seed, records, kills))


def test_the_docs_name_the_versions() -> None:
    docs = DOCS.read_text()
    for row in (
        f"Kafka Streams | {KAFKA_VERSION}",
        f"Kafka Connect | {KAFKA_TOOLS_VERSION}",
        f"Flink | {FLINK_VERSION}, connector {FLINK_CONNECTOR_VERSION}",
        f"Spring for Apache Kafka | {SPRING_KAFKA.version}",
    ):
        assert f"| {row} |" in docs
