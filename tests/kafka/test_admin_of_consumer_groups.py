"""Our Admin with Apache Kafka's groups of the consumer protocol (KIP-848)."""

from __future__ import annotations

import uuid

import pytest

from muster.client import Admin, Earliest, ErrorCode, KafkaError, TopicPartition
from muster.client.network.cluster import Cluster, parse_bootstrap
from muster.client.network.connection import deadline
from muster.protocol.messages.consumer_group import ConsumerGroupHeartbeatRequest
from tests.kafka.conftest import KafkaOfConfigs
from tests.kafka.stories import KAFKA_CONFIGS

pytestmark = pytest.mark.kafka

LONG_S = 60.0
LEAVING = -1


async def test_a_group_of_the_consumer_protocol(kafka_of_configs: KafkaOfConfigs) -> None:
    bootstrap = kafka_of_configs(KAFKA_CONFIGS).bootstrap
    topic, group, member_id = f"t-{uuid.uuid4()}", f"g-{uuid.uuid4()}", str(uuid.uuid4())
    where = TopicPartition(topic, 0)
    async with Admin(bootstrap) as admin, Cluster(parse_bootstrap(bootstrap)) as cluster:
        await admin.create_topic(topic, 1)

        async def heartbeat(epoch: int) -> int:
            beat = ConsumerGroupHeartbeatRequest(
                group_id=group,
                member_id=member_id,
                member_epoch=epoch,
                rebalance_timeout_ms=300_000,
                subscribed_topic_names=[topic],
                topic_partitions=[],
            )
            node = await cluster.coordinator(group, deadline(LONG_S))
            response = await cluster.call(beat, deadline(LONG_S), node=node)
            assert response.error_code == ErrorCode.NONE, response
            return response.member_epoch  # type: ignore[no-any-return]

        await heartbeat(0)
        described = await admin.describe_group(group)
        assert (described.group_type, described.protocol_type) == ("consumer", "consumer")
        assert described.epoch == described.target_epoch
        (member,) = described.members
        assert (member.member_id, member.client_id) == (member_id, "muster")
        assert (member.protocol, member.epoch) == ("consumer", described.epoch)
        assert member.assignment == member.target
        assert (group, "consumer") in [(each[0], each[1]) for each in await admin.list_groups()]
        with pytest.raises(KafkaError) as refused:
            await admin.reset_group_offsets(group, Earliest(), topics=[topic])
        assert refused.value.code == ErrorCode.NON_EMPTY_GROUP
        await heartbeat(LEAVING)
        assert (await admin.describe_group(group)).state == "Empty"
        assert list(await admin.reset_group_offsets(group, Earliest(), topics=[topic])) == [where]
        assert list(await admin.list_group_offsets(group)) == [where]
        await admin.delete_group(group)
        with pytest.raises(KafkaError) as refused:
            await admin.describe_group(group)
        assert refused.value.code == ErrorCode.GROUP_ID_NOT_FOUND
        await admin.delete_topic(topic)  # other tests list this Apache Kafka's topics
