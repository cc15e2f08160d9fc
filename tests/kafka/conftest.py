from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from tests.support.apache_kafka import ApacheKafka


class KafkaOfConfigs:
    """Apache Kafka with the configs asked for. Starts another one only when they change."""

    def __init__(self) -> None:
        self._configs: dict[str, str] | None = None
        self._running: ApacheKafka | None = None

    def __call__(self, configs: Mapping[str, str]) -> ApacheKafka:
        if self._running is None or self._configs != configs:
            self.stop()
            self._configs = dict(configs)
            self._running = ApacheKafka(configs).__enter__()
        return self._running

    def stop(self) -> None:
        if self._running is not None:
            self._running.stop()
            self._running = None


@pytest.fixture(scope="session")
def kafka_of_configs() -> Iterator[KafkaOfConfigs]:
    kafka = KafkaOfConfigs()
    yield kafka
    kafka.stop()
