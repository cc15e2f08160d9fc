"""The reference itself: Apache Kafka starts with the given configs, and leaves nothing behind."""

from __future__ import annotations

import os

import pytest

from muster.protocol.messages.connection import ApiVersionsRequest, ApiVersionsResponse
from tests.support.apache_kafka import ApacheKafka
from tests.support.wire_blocking import WireConnection

pytestmark = pytest.mark.kafka


def test_apache_kafka_starts_and_leaves_nothing_behind() -> None:
    with ApacheKafka() as kafka:
        pid, folder = kafka.pid, kafka.folder
        with WireConnection(kafka.host, kafka.port, "client") as connection:
            answer = connection.call(ApiVersionsRequest(), 0, ApiVersionsResponse)
        assert answer.api_keys
        assert folder.is_dir()
    assert not folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_config_that_kafka_refuses_says_so() -> None:
    with pytest.raises(RuntimeError, match=r"group\.max\.size"):
        ApacheKafka({"group.max.size": "many"}).__enter__()
