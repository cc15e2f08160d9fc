"""A missing topic that is created because a Metadata request names it."""

from __future__ import annotations

from typing import Any, Final

import pytest

from muster.coordinator.testing import Broker
from muster.protocol.messages.metadata import MetadataRequest
from muster.protocol.messages.topics import CreateTopicsRequest
from tests.kafka.conftest import KafkaOfConfigs
from tests.kafka.stories import KAFKA_CONFIGS, Side, Story, assert_told_alike
from tests.kafka.test_quotas import call, limited
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


def held_back_by_a_quota(side: Side) -> None:
    def asking(name: str, *, create: bool = True) -> MetadataRequest:
        topic = MetadataRequest.Topic(name=side.name(name))
        return MetadataRequest(topics=[topic], allow_auto_topic_creation=create)

    def note(title: str, answer: Any) -> None:
        (topic,) = answer.topics
        side.note(title, (int(topic.error_code), len(topic.partitions), answer.throttle_time_ms))

    def is_there(name: str) -> bool:
        (topic,) = side.quietly(asking(name), 12).topics
        return bool(topic.error_code == 0)

    with limited(side, "creative", "controller_mutation_rate", 1.0) as connection:
        a_minute_too_many = CreateTopicsRequest.CreatableTopic(
            name=side.name("large"), num_partitions=71, replication_factor=1, assignments=[], configs=[]
        )
        creating = CreateTopicsRequest(topics=[a_minute_too_many], timeout_ms=10_000, validate_only=False)
        assert call(connection, creating, 7).topics[0].error_code == 0
        note("used up", call(connection, asking("held-back"), 12))
        until(lambda: is_there("other"), "a topic that another client asked for later")
        note("not created", side.quietly(asking("held-back", create=False), 12))
        note("used up, and there", call(connection, asking("other"), 12))
    until(lambda: is_there("held-back"), "the topic")


@pytest.mark.parametrize("story", [created_when_asked_for, held_back_by_a_quota])
def test_apache_kafka_answers_as_muster_does(story: Story, kafka_of_configs: KafkaOfConfigs) -> None:
    kafka = kafka_of_configs({**KAFKA_CONFIGS, "auto.create.topics.enable": "true"})
    with Broker(auto_create_topics_enable=True) as broker:
        assert_told_alike(story, kafka, broker)
