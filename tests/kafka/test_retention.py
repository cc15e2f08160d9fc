"""What retention does to transactions, compared with Apache Kafka: segments with open ones go, too."""

from __future__ import annotations

from typing import Any

import pytest

from muster.protocol.messages.configs import IncrementalAlterConfigsRequest
from tests.kafka.conftest import KafkaOfConfigs
from tests.kafka.partition_writes import DAY_MS, PartitionWrites
from tests.kafka.stories import CHOSEN_BY_STORIES, Side, assert_told_alike
from tests.kafka.test_transaction_log import UNVERIFIED, unverified
from tests.support.wire_topics import until

pytestmark = pytest.mark.kafka

OFTEN = {**UNVERIFIED, "log.retention.check.interval.ms": "20", "log.initial.task.delay.ms": "20"}
P, Q, R = CHOSEN_BY_STORIES[300:303]


def keep_newer_than(side: Side, topic: str, days: int) -> None:
    """Alter retention.ms."""
    config = IncrementalAlterConfigsRequest.AlterConfigsResource.AlterableConfig(
        name="retention.ms", config_operation=0, value=str(days * DAY_MS)
    )
    of_topic = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=2, resource_name=side.name(topic), configs=[config]
    )
    answer = side.quietly(IncrementalAlterConfigsRequest(resources=[of_topic], validate_only=False), 1)
    assert answer.responses[0].error_code == 0, answer


def open_transactions(side: Side) -> None:
    log = PartitionWrites(side, "t", retention_ms="-1")
    log.now_ms -= 30 * DAY_MS
    log.begin(P, (b"k", b"old"))
    log.begin(Q, (b"k", b"old"))
    log.put((b"k", b"old"))
    log.now_ms += 30 * DAY_MS
    begun = log.put((b"k", b"new"))
    log.begin(P, (b"k", b"new"))
    log.begin(R, (b"k", b"new"))
    log.end(R, False)
    log.look("whole")
    keep_newer_than(side, "t", 10)
    until(lambda: log.first_offset() == begun, "retention")
    log.look("cut")
    log.end(Q, False)
    log.look("one is aborted, nothing of which is left")
    log.end(P, False)
    log.look("both are aborted")
    log.begin(P, (b"k", b"newer"))
    log.look("one of them goes on")


def all_there_is(side: Side) -> None:
    log = PartitionWrites(side, "t", retention_ms="-1")
    log.now_ms -= 30 * DAY_MS
    log.begin(P, (b"k", b"old"))
    log.put((b"k", b"old"))
    keep_newer_than(side, "t", 10)
    until(lambda: log.first_offset() == 2, "retention")
    log.look("nothing left")
    log.now_ms += 30 * DAY_MS
    log.put((b"k", b"new"))
    log.look("open")
    log.end(P, False)
    log.look("aborted")


@pytest.mark.parametrize("story", [open_transactions, all_there_is])
def test_apache_kafka_retains_transactions_as_muster_does(
    story: Any, kafka_of_configs: KafkaOfConfigs
) -> None:
    with unverified(log_retention_check_interval_ms=20) as broker:
        assert_told_alike(story, kafka_of_configs(OFTEN), broker)
