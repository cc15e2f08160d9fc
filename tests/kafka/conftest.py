from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.kafka.compared import STORIES
from tests.support.apache_kafka import ApacheKafka

_COUNTED_TO = "--counted-to"
_LONGEST: Final = (
    "test_replay.py",
    "test_failover.py",
    "test_sequences.py",
    "test_tool.py",
    "test_acls.py",
    "test_transaction_commands.py",
    "test_when_fetches_answer.py",
)
"""They start first, so that no process is idle while another has just begun one of them."""

Lives = Callable[[int, int], Iterator[str]]
"""Takes a seed and a count; yields the names of random lives, which decide what happens in them."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(_COUNTED_TO, metavar="FILE", help="write down which answers were compared, as JSON")
    parser.addoption(
        "--lives", type=int, default=1, metavar="TIMES", help="so many times as many random lives"
    )
    parser.addoption("--lives-seed", type=int, help="others than those of make kafka")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


@pytest.fixture
def lives(request: pytest.FixtureRequest) -> Lives:
    times, seed = request.config.getoption("--lives"), request.config.getoption("--lives-seed")

    def names(usual_seed: int, count: int) -> Iterator[str]:
        from_seed = usual_seed if seed is None else seed
        return (f"{from_seed}/{number}" for number in range(count * times))

    return names


def pytest_sessionfinish(session: pytest.Session) -> None:
    path = session.config.getoption(_COUNTED_TO, None)
    if path is not None:
        Path(path).write_text(json.dumps(STORIES.as_json()), encoding="utf-8")


class KafkaOfConfigs:
    """Apache Kafka with the requested configs. Starts a new one only when they change."""

    def __init__(self) -> None:
        self._configs: dict[str, str] | None = None
        self._running: ApacheKafka | None = None

    def __call__(self, configs: Mapping[str, str]) -> ApacheKafka:
        if self._running is None or self._configs != configs:
            self.stop()
            self._configs = dict(configs)
            self._running = ApacheKafka(configs).__enter__()
        return self._running

    def unused(self, configs: Mapping[str, str]) -> ApacheKafka:
        """One in which no test has left anything."""
        self.stop()
        return self(configs)

    def stop(self) -> None:
        if self._running is not None:
            self._running.stop()
            self._running = None


@pytest.fixture(scope="session")
def kafka_of_configs() -> Iterator[KafkaOfConfigs]:
    kafka = KafkaOfConfigs()
    yield kafka
    kafka.stop()
