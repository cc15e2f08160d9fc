"""Every version of the APIs of which other stories use only one or two: a success and an error in each."""

from __future__ import annotations

import uuid
from typing import Final

import pytest

from muster.coordinator.testing import Broker
from muster.protocol.api import ApiKey, versions
from muster.protocol.messages.configs import ListConfigResourcesRequest
from muster.protocol.messages.connection import ApiVersionsRequest
from muster.protocol.messages.data import DeleteRecordsRequest, OffsetForLeaderEpochRequest
from muster.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)
from muster.protocol.messages.transactions import InitProducerIdRequest
from muster.protocol.record_batch import Record, build
from muster.protocol.types import ZERO_UUID
from tests.kafka.conftest import KafkaOfConfigs
from tests.kafka.stories import KAFKA_CONFIGS, Side, Story, assert_told_alike
from tests.kafka.test_data_plane import by_id, fetching, listing, producing
from tests.support.wire_configs import CLIENT_METRICS, SET, TOPIC, altering, describing, replacing
from tests.support.wire_topics import until

pytestmark = pytest.mark.kafka

_BY_ID_FROM: Final = 13
"""Produce and Fetch identify topics by id from this version on."""
_DELETED_BY_ID_FROM: Final = 6


def _versions(api: ApiKey) -> range:
    first, last = versions(api)
    return range(first, last + 1)


# --- stories ------------------------------------------------------------------------------------------------


def connection(side: Side) -> None:
    for version in _versions(ApiKey.API_VERSIONS):
        request = ApiVersionsRequest(
            **({"client_software_name": "story", "client_software_version": "1"} if version >= 3 else {})
        )
        answer = side.quietly(request, version)
        side.note(f"v{version}", (answer.error_code, len(answer.api_keys) > 0), of=(answer, version))
    for version in (3, 4, 5):
        refused = ApiVersionsRequest(client_software_name="a b", client_software_version="1")
        answer = side.quietly(refused, version)
        side.note(f"a bad name, v{version}", answer.error_code, of=(answer, version))


def producer_ids(side: Side) -> None:
    def asking(transactional_id: str | None) -> InitProducerIdRequest:
        return InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)

    def are_given_out() -> bool:
        """Kafka's broker gets a thousand ids from its controller when first asked for one."""
        return bool(side.quietly(asking(None), 5).error_code == 0)

    until(are_given_out, "producer ids")
    for version in _versions(ApiKey.INIT_PRODUCER_ID):
        side.ask(f"v{version}", asking(None), version)
        side.ask(f"an empty transactional id, v{version}", asking(""), version)


def records(side: Side) -> None:
    ids = side.create(t=1)
    data = build([Record(0, 1_000, b"k", b"v")])
    for version in _versions(ApiKey.PRODUCE):
        if version < _BY_ID_FROM:
            side.ask(f"nowhere, v{version}", producing(side, ("none", 0, data), ("t", 9, data)), version)
        else:
            side.ask(f"nowhere, v{version}", by_id(uuid.UUID(int=7), data), version)
    side.quietly(producing(side, ("t", 0, build([Record(i, 1_000, b"k", b"v") for i in range(6)]))), 12)
    for version in _versions(ApiKey.FETCH):
        topic_id = ids["t"] if version >= _BY_ID_FROM else None
        side.ask(f"out of range, v{version}", fetching(side, "t", 99, topic_id=topic_id), version)
        side.ask(f"no partition, v{version}", fetching(side, "t", partition=9, topic_id=topic_id), version)
        nowhere = None if topic_id is None else uuid.UUID(int=7)
        side.ask(f"no topic, v{version}", fetching(side, "none", topic_id=nowhere), version)
    for version in _versions(ApiKey.LIST_OFFSETS):
        side.ask(f"no partition, v{version}", listing(side, "t", (9, -1)), version)
        side.ask(f"no topic, v{version}", listing(side, "none", (0, -1)), version)
    for number, version in enumerate(_versions(ApiKey.DELETE_RECORDS), 1):
        side.ask(f"v{version}", _deleting(side.name("t"), number), version)
        side.ask(f"beyond the end, v{version}", _deleting(side.name("t"), 99), version)
        side.ask(f"of no topic, v{version}", _deleting("none", 0), version)
    epoch = side.leader_epoch("t")
    for version in _versions(ApiKey.OFFSET_FOR_LEADER_EPOCH):
        side.ask(f"v{version}", _end_of(side.name("t"), epoch), version)
        side.ask(f"an epoch to come, v{version}", _end_of(side.name("t"), epoch + 1), version)
        side.ask(f"asked in an epoch to come, v{version}", _end_of(side.name("t"), epoch, epoch + 1), version)
        side.ask(f"of no topic, v{version}", _end_of("none", epoch), version)


def _deleting(topic: str, offset: int) -> DeleteRecordsRequest:
    cut = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=offset)
    of_topic = DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[cut])
    return DeleteRecordsRequest(topics=[of_topic], timeout_ms=10_000)


def _end_of(topic: str, epoch: int, current: int = -1) -> OffsetForLeaderEpochRequest:
    part = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
        partition=0, leader_epoch=epoch, current_leader_epoch=current
    )
    of_topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=topic, partitions=[part])
    return OffsetForLeaderEpochRequest(topics=[of_topic], replica_id=-1)


def topics(side: Side) -> None:
    doomed = {f"d{version}": 1 for version in _versions(ApiKey.DELETE_TOPICS)}
    side.create(there=2, **doomed)
    for version in _versions(ApiKey.CREATE_TOPICS):
        made = CreateTopicsRequest.CreatableTopic(
            name=side.name("there"), num_partitions=1, replication_factor=1, assignments=[], configs=[]
        )
        side.ask(f"exists, v{version}", CreateTopicsRequest(topics=[made]), version)
    for version in _versions(ApiKey.CREATE_PARTITIONS):
        fewer = CreatePartitionsRequest.CreatePartitionsTopic(
            name=side.name("there"), count=1, assignments=None
        )
        asked = CreatePartitionsRequest(topics=[fewer], timeout_ms=10_000, validate_only=False)
        side.ask(f"fewer, v{version}", asked, version)
    for version in _versions(ApiKey.DELETE_TOPICS):
        names = [side.name(f"d{version}"), "none"]
        states = [DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=ZERO_UUID) for name in names]
        asked_for = (
            DeleteTopicsRequest(topics=states, timeout_ms=10_000)
            if version >= _DELETED_BY_ID_FROM
            else DeleteTopicsRequest(topic_names=names, timeout_ms=10_000)
        )
        side.ask(f"v{version}", asked_for, version)


def configs(side: Side) -> None:
    side.create(t=1)
    keys = ["cleanup.policy", "retention.bytes", "no.such.config"]
    here, nowhere = (TOPIC, side.name("t")), (TOPIC, "none")
    for version in _versions(ApiKey.DESCRIBE_CONFIGS):
        side.ask(f"v{version}", describing(here, nowhere, keys=keys), version)
    for version in _versions(ApiKey.ALTER_CONFIGS):
        good = replacing(
            (*here, {"retention.ms": "5"}), (*nowhere, {"retention.ms": "5"}), validate_only=True
        )
        side.ask(f"v{version}", good, version)
        side.ask(f"invalid, v{version}", replacing((*here, {"retention.ms": "x"})), version)
    for version in _versions(ApiKey.INCREMENTAL_ALTER_CONFIGS):
        change = [("retention.ms", SET, "5")]
        good_change = altering((*here, change), (*nowhere, change), validate_only=True)
        side.ask(f"v{version}", good_change, version)
        side.ask(f"invalid, v{version}", altering((*here, [("retention.ms", SET, "x")])), version)
    # v0 lists only client metrics, and there are none.
    side.ask("v0", ListConfigResourcesRequest(), 0)
    side.ask("v1", ListConfigResourcesRequest(resource_types=[CLIENT_METRICS]), 1)
    side.ask("an unknown type", ListConfigResourcesRequest(resource_types=[99]), 1)


# --- told ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("story", [connection, producer_ids, records, topics, configs])
def test_apache_kafka_answers_as_muster_does(story: Story, kafka_of_configs: KafkaOfConfigs) -> None:
    # A lease that expires on a busy machine starts another leader epoch.
    with Broker(auto_create_topics_enable=False, lease_term_ms=600_000) as broker:
        assert_told_alike(story, kafka_of_configs(KAFKA_CONFIGS), broker)
