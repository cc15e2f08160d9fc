"""`__transaction_state` as transaction monitoring programs read it: muster's and Apache Kafka's after the
same story, read by our own client and by Kafka's console consumer with Kafka's formatter for it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any, Final

import pytest

from muster.client import Consumer, TopicPartition
from muster.coordinator.cluster.placement import TRANSACTIONS_TOPIC, shard_of
from muster.coordinator.testing import Broker
from muster.coordinator.transactions.states import BY_NUMBER
from muster.protocol.message import Message
from muster.protocol.messages.configs import DescribeConfigsRequest, IncrementalAlterConfigsRequest
from muster.protocol.messages.metadata import FindCoordinatorRequest, FindCoordinatorResponse, MetadataRequest
from muster.protocol.messages.topics import CreatePartitionsRequest, CreateTopicsRequest
from muster.protocol.messages.transaction_records import TransactionLogValue, decode_record
from muster.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from tests.kafka.conftest import KafkaOfConfigs
from tests.kafka.console_consumer import DEADLINE_S, printed
from tests.kafka.stories import KAFKA_CONFIGS, Side, assert_told_alike
from tests.kafka.test_data_plane import listing
from tests.kafka.test_offsets_topic import ask_from_outside
from tests.support.wire_blocking import WireConnection
from tests.support.wire_topics import delete_topic, ensure_topics, until

pytestmark = pytest.mark.kafka

CONFIGS: Final = {**KAFKA_CONFIGS, "transaction.state.log.num.partitions": "50"}
"""Kafka's default partition count, which the tests' Kafka does not use."""
SHARD: Final = 7
TOPIC: Final = "state-topic"
PARTITIONS: Final = 3
TIMEOUT_MS: Final = 600_000
STORY: Final = ("started", "ongoing", "committed", "aborted", "again", "last")
_NOT_YET: Final = (14, 15, 16, 51)
"""The coordinator is loading, unavailable, or still ending the previous transaction."""

Producer = tuple[int, int]
"""Producer id and epoch."""


class Coordinator:
    """The coordinator of one broker, against which the story is played."""

    def __init__(self, bootstrap: str, connection: WireConnection) -> None:
        self.bootstrap = bootstrap
        self._connection = connection

    def _ask(self, request: Message, version: int, reply: type[Message], code: Callable[[Any], int]) -> Any:
        answers: list[Any] = []

        def is_answered() -> bool:
            answers[:] = [self._connection.call(request, version, reply)]
            return code(answers[0]) not in _NOT_YET

        until(is_answered, f"an answer to {request}")
        assert code(answers[0]) == 0, answers[0]
        return answers[0]

    def start(self, transactional_id: str) -> Producer:
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=TIMEOUT_MS)
        told = self._ask(request, 5, InitProducerIdResponse, lambda answer: answer.error_code)
        return told.producer_id, told.producer_epoch

    def add(self, transactional_id: str, producer: Producer, *partitions: int) -> None:
        Topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=producer[0],
            v3_and_below_producer_epoch=producer[1],
            v3_and_below_topics=[Topic(name=TOPIC, partitions=list(partitions))],
        )
        self._ask(
            request,
            3,
            AddPartitionsToTxnResponse,
            lambda answer: max(
                each.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for each in topic.results_by_partition
            ),
        )

    def end(self, transactional_id: str, producer: Producer, *, commits: bool, version: int) -> None:
        request = EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=producer[0],
            producer_epoch=producer[1],
            committed=commits,
        )
        self._ask(request, version, EndTxnResponse, lambda answer: answer.error_code)

    def is_complete(self, transactional_id: str) -> bool:
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        (found,) = self._connection.call(request, 0, DescribeTransactionsResponse).transaction_states
        return found.transaction_state.startswith("Complete")


def tell(coordinator: Coordinator) -> Mapping[str, str]:
    """Put transactional ids into several states; returns the story's names with the real ids. All are on one
    shard, so that the last of them is read last."""
    of_shard = (name for name in (f"id-{uuid.uuid4()}" for _ in count()) if shard_of(name) == SHARD)
    ids = dict(zip(STORY, of_shard, strict=False))
    coordinator.start(ids["started"])
    producer = coordinator.start(ids["ongoing"])
    coordinator.add(ids["ongoing"], producer, 1)
    coordinator.add(ids["ongoing"], producer, 0)
    for name, commits, version in (("committed", True, 4), ("aborted", False, 5)):
        producer = coordinator.start(ids[name])
        coordinator.add(ids[name], producer, 0, 2)
        coordinator.end(ids[name], producer, commits=commits, version=version)
        until(lambda name=name: coordinator.is_complete(ids[name]), f"markers of {name}")
    for _ in range(3):
        coordinator.start(ids["again"])
    coordinator.start(ids["last"])
    return ids


async def read(bootstrap: str, ids: Mapping[str, str]) -> dict[str, Any]:
    """The last value of each of the story's ids, as text."""
    known = {each: name for name, each in ids.items()}
    last: dict[str, Any] = {}
    async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(TRANSACTIONS_TOPIC, SHARD)])
        while "last" not in last:
            record = await asyncio.wait_for(consumer.get(), DEADLINE_S)
            decoded = decode_record(record.key or b"", record.value)
            assert decoded is not None
            key, value = decoded
            if key.transactional_id in known:
                assert value is not None
                last[known[key.transactional_id]] = in_words(value, record.timestamp)
    return last


def in_words(value: TransactionLogValue, timestamp: int) -> dict[str, Any]:
    """The parts that are the same on every run."""
    topics = value.transaction_partitions
    begun_ms = value.transaction_start_timestamp_ms
    return {
        "state": BY_NUMBER[value.transaction_status].name,
        "epoch": value.producer_epoch,
        "timeout": value.transaction_timeout_ms,
        "had the producer id before": value.previous_producer_id == value.producer_id,
        "next producer id": value.next_producer_id,
        "partitions": topics and [(each.topic, sorted(each.partition_ids)) for each in topics],
        "begun": -1 if begun_ms == -1 else begun_ms <= value.transaction_last_update_timestamp_ms,
        "of its time": abs(value.transaction_last_update_timestamp_ms - timestamp) < 60_000,
        "client": value.client_transaction_version,
    }


@contextmanager
def connected(bootstrap: str) -> Iterator[Coordinator]:
    host, _, port = bootstrap.rpartition(":")
    with WireConnection(host, int(port), "told") as connection:
        ensure_topics(connection, {TOPIC: PARTITIONS})
        until(lambda: has_coordinator(connection), "a coordinator of transactions")
        yield Coordinator(bootstrap, connection)
        delete_topic(connection, TOPIC)  # other tests list this Apache Kafka's topics


@pytest.fixture
def kafka(kafka_of_configs: KafkaOfConfigs) -> Iterator[Coordinator]:
    with connected(kafka_of_configs(CONFIGS).bootstrap) as coordinator:
        yield coordinator


@pytest.fixture
def muster() -> Iterator[Coordinator]:
    with Broker() as broker, connected(broker.bootstrap) as coordinator:
        yield coordinator


def has_coordinator(connection: WireConnection) -> bool:
    """Kafka creates the topic when first asked for a coordinator."""
    request = FindCoordinatorRequest(key_type=1, coordinator_keys=["first"])
    (found,) = connection.call(request, 4, FindCoordinatorResponse).coordinators
    return found.error_code == 0


async def test_the_last_of_each_id_is_kafkas(kafka: Coordinator, muster: Coordinator) -> None:
    told = []
    for coordinator in (kafka, muster):
        told.append(await read(coordinator.bootstrap, tell(coordinator)))
    assert told[0] == told[1]
    assert set(told[1]) == set(STORY)


def last_printed(lines: list[Any], ids: Mapping[str, str]) -> dict[str, Any]:
    """The last value of each id of the story, without what changes on every run."""
    known = {each: name for name, each in ids.items()}
    last = {}
    for line in lines:
        name = known.get(line["key"]["data"]["transactionalId"])
        if name is not None:
            data = line["value"]["data"]
            data["previousProducerId"] = data["previousProducerId"] == data.pop("producerId")
            for changing in ("transactionLastUpdateTimestampMs", "transactionStartTimestampMs"):
                data[changing] = data[changing] > 0
            for topic in data["transactionPartitions"] or ():
                topic["partitionIds"].sort()
            last[name] = line["key"]["type"], line["value"]
    return last


async def test_the_console_consumer_prints_what_it_prints_of_kafkas(
    kafka: Coordinator, muster: Coordinator
) -> None:
    told = []
    for coordinator in (kafka, muster):
        ids = tell(coordinator)

        def is_last(record: Any, last: str = ids["last"]) -> bool:
            return bool(record["key"]["data"]["transactionalId"] == last)

        lines = await printed(
            coordinator.bootstrap, TRANSACTIONS_TOPIC, "TransactionLogMessageFormatter", is_last
        )
        told.append(last_printed(lines, ids))
    assert told[0] == told[1]
    assert set(told[1]) == set(STORY)


# --- other requests about the topic -----------------------------------------------------------------


def asked_from_outside(side: Side) -> None:
    metadata = MetadataRequest(topics=[MetadataRequest.Topic(name=TRANSACTIONS_TOPIC)])

    led = listing(side, TRANSACTIONS_TOPIC, *((number, -1) for number in range(50)))

    def is_led() -> bool:
        side.quietly(FindCoordinatorRequest(key_type=1, coordinator_keys=["first"]), 4)
        (found,) = side.quietly(led, 9).topics
        return not any(each.error_code for each in found.partitions)

    until(is_led, "a coordinator of transactions")
    (topic,) = side.quietly(metadata, 12).topics
    side.note("the topic", (topic.is_internal, sorted(each.partition_index for each in topic.partitions)))
    asked = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=2, resource_name=TRANSACTIONS_TOPIC, configuration_keys=None
    )
    (described,) = side.quietly(DescribeConfigsRequest(resources=[asked]), 4).results
    own = sorted((each.name, each.value) for each in described.configs if each.config_source == 1)
    side.note("its configs", own)
    ask_from_outside(side, TRANSACTIONS_TOPIC)
    made = CreateTopicsRequest.CreatableTopic(
        name=TRANSACTIONS_TOPIC, num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    side.ask("create", CreateTopicsRequest(topics=[made], validate_only=True), 7)
    # Only validated: an Apache Kafka with a grown topic is of no further use.
    grown = CreatePartitionsRequest.CreatePartitionsTopic(name=TRANSACTIONS_TOPIC, count=60, assignments=None)
    side.ask("grow", CreatePartitionsRequest(topics=[grown], timeout_ms=10_000, validate_only=True), 3)
    edited = IncrementalAlterConfigsRequest.AlterableConfig(
        name="retention.ms", config_operation=0, value="1"
    )
    of_topic = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=2, resource_name=TRANSACTIONS_TOPIC, configs=[edited]
    )
    side.ask("alter", IncrementalAlterConfigsRequest(resources=[of_topic], validate_only=True), 1)


def test_apache_kafka_answers_as_muster_does(kafka_of_configs: KafkaOfConfigs) -> None:
    with Broker(lease_term_ms=600_000) as broker:
        assert_told_alike(asked_from_outside, kafka_of_configs(CONFIGS), broker)
