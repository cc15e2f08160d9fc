"""A missing topic that is created because a Metadata request names it."""

from __future__ import annotations

from typing import Final

import pytest

from muster.coordinator.testing import Broker
from muster.protocol.messages.metadata import MetadataRequest
from tests.kafka.conftest import KafkaOfConfigs
from tests.kafka.stories import KAFKA_CONFIGS, Side, assert_told_alike
from tests.support.wire_topics import until

pytestmark = pytest.mark.kafka

_ASKED_ALWAYS: Final = 4
"""Before this version a topic is created whether the client allows it or not."""


def created_when_asked_for(side: Side) -> None:
    for version in (1, 4, 8, 12):
        name = side.name(f"asked-for-in-v{version}")
        request = MetadataRequest(
            topics=[MetadataRequest.Topic(name=name)],
            **({"allow_auto_topic_creation": True} if version >= _ASKED_ALWAYS else {}),
        )
        (first,) = side.quietly(request, version).topics
        side.note(f"at first, v{version}", (int(first.error_code), len(first.partitions)))

        def is_there(request: MetadataRequest = request, version: int = version) -> bool:
            (topic,) = side.quietly(request, version).topics
            return bool(topic.error_code == 0)

        until(is_there, f"the topic {name}")
        (then,) = side.quietly(request, version).topics
        side.note(f"in the end, v{version}", (int(then.error_code), len(then.partitions)))
    refused = MetadataRequest(
        topics=[MetadataRequest.Topic(name=side.name("not-allowed"))], allow_auto_topic_creation=False
    )
    side.ask("where the client does not allow it", refused, 12)
    invalid = MetadataRequest(topics=[MetadataRequest.Topic(name="a b")], allow_auto_topic_creation=True)
    side.ask("a name that no topic can have", invalid, 12)
    metadata = MetadataRequest(
        topics=[MetadataRequest.Topic(name="__cluster_metadata")], allow_auto_topic_creation=True
    )
    side.ask("the topic of metadata", metadata, 12)


def test_apache_kafka_answers_as_muster_does(kafka_of_configs: KafkaOfConfigs) -> None:
    kafka = kafka_of_configs({**KAFKA_CONFIGS, "auto.create.topics.enable": "true"})
    with Broker(auto_create_topics_enable=True) as broker:
        assert_told_alike(created_when_asked_for, kafka, broker)
