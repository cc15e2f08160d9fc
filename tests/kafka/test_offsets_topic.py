"""`__consumer_offsets` as group monitoring programs read it: muster's and Apache Kafka's after the same
story, read by our own client and by Kafka's console consumer with Kafka's formatters for the topic."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator
from itertools import count
from typing import Any, Final

import pytest

from muster.client import Admin, Consumer, OffsetAndMetadata, Producer, TopicPartition
from muster.coordinator.cluster.placement import OFFSETS_TOPIC, shard_of
from muster.coordinator.testing import Broker
from muster.protocol.messages.coordinator_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_record,
)
from muster.protocol.messages.data import DeleteRecordsRequest
from tests.kafka.conftest import KafkaOfConfigs
from tests.kafka.console_consumer import DEADLINE_S, printed
from tests.kafka.stories import KAFKA_CONFIGS, Side, assert_told_alike
from tests.kafka.test_data_plane import batch, fetching, listing, producing

pytestmark = pytest.mark.kafka

SHARD: Final = 7


GROUPS: Final = ("worker", "static", "tool", "deleted", "forgotten", "last")


def names() -> dict[str, str]:
    """New names for the story's groups. All are on one shard, so that the last of them is read last."""
    of_shard = (name for name in (f"g-{uuid.uuid4()}" for _ in count()) if shard_of(name) == SHARD)
    return dict(zip(GROUPS, of_shard, strict=False))


async def story(bootstrap: str) -> dict[str, str]:
    """Groups of all kinds, on a topic of their own."""
    groups = names()
    async with Admin(bootstrap) as admin:
        await admin.create_topic("offsets-topic", 3)

        async def alter(group: str, *offsets: tuple[int, int, str]) -> None:
            await admin.alter_group_offsets(
                groups[group],
                {
                    TopicPartition("offsets-topic", partition): OffsetAndMetadata(offset, metadata=text)
                    for partition, offset, text in offsets
                },
            )

        async with Producer(bootstrap) as producer:
            for partition in range(3):
                await producer.send("offsets-topic", b"record", partition=partition)
        for group, instance in (("worker", None), ("static", "one")):
            for generation in range(2):
                async with Consumer(
                    bootstrap,
                    topics="offsets-topic",
                    group_id=groups[group],
                    group_instance_id=instance,
                    client_id=f"member-of-{group}",
                    auto_offset_reset="earliest",
                    enable_auto_commit=False,
                ) as consumer:
                    taken = 0
                    while len(consumer.assignment) < 3 or (taken < 3 and not generation):
                        taken += len(await consumer.get_many(timeout=0.1))
                    if not generation:
                        await consumer.commit()
        await alter("tool", (0, 1, ""), (1, 5, "with a note"))
        await alter("tool", (0, 2, "again"))
        await alter("deleted", (0, 1, ""), (2, 1, ""))
        await admin.delete_group(groups["deleted"])
        await alter("forgotten", (0, 1, ""), (2, 1, ""))
        await admin.delete_group_offsets(groups["forgotten"], [TopicPartition("offsets-topic", 2)])
        await alter("last", (0, 3, "the end"))
    return groups


async def read(bootstrap: str, groups: dict[str, str], since_ms: float) -> dict[str, Any]:
    """The last value of each of the story's keys, as text. The story began at `since_ms`."""
    known = {name: group for group, name in groups.items()}
    where = TopicPartition(OFFSETS_TOPIC, SHARD)
    last: dict[str, Any] = {}
    async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([where])
        while "last" not in {json.loads(key)[1] for key in last}:
            record = await asyncio.wait_for(consumer.get(), DEADLINE_S)
            decoded = decode_record(record.key or b"", record.value)
            if decoded is None:
                continue
            key, value = decoded
            if isinstance(key, (OffsetCommitKey, GroupMetadataKey)) and key.group in known:
                parts = [type(key).__name__, known[key.group]]
                if isinstance(key, OffsetCommitKey):
                    parts += [key.topic, str(key.partition)]
                last[json.dumps(parts)] = None if value is None else in_words(value, since_ms)
    return last


def in_words(value: object, since_ms: float) -> dict[str, Any]:
    """The parts that are the same on every run."""

    def of_its_time(timestamp: int) -> bool:
        return int(since_ms) <= timestamp <= time.time() * 1_000

    if isinstance(value, OffsetCommitValue):
        return {
            "offset": value.offset,
            "leader_epoch": value.leader_epoch >= 0,
            "metadata": value.metadata,
            "expires": value.expire_timestamp,
            "of its time": of_its_time(value.commit_timestamp),
        }
    assert isinstance(value, GroupMetadataValue)
    return {
        "protocol_type": value.protocol_type,
        "generation": value.generation,
        "protocol": value.protocol,
        "leader": value.leader is not None and value.leader.rpartition("-")[0] != "",
        "of its time": of_its_time(value.current_state_timestamp),
        "members": [
            {
                "client": each.client_id,
                "instance": each.group_instance_id,
                "host": each.client_host,
                "timeouts": (each.rebalance_timeout, each.session_timeout),
                "subscription": each.subscription,
                "assignment": each.assignment,
            }
            for each in value.members
        ],
    }


@pytest.fixture
async def kafka(kafka_of_configs: KafkaOfConfigs) -> AsyncIterator[str]:
    bootstrap = kafka_of_configs(KAFKA_CONFIGS).bootstrap
    yield bootstrap
    async with Admin(bootstrap) as admin:
        await admin.delete_topic("offsets-topic")  # other tests list this Apache Kafka's topics


async def test_the_last_of_each_key_is_kafkas(kafka: str) -> None:
    with Broker() as broker:
        told = []
        for bootstrap in (kafka, broker.bootstrap):
            began_ms = time.time() * 1_000
            told.append(await read(bootstrap, await story(bootstrap), began_ms))
    assert told[0] == told[1]
    assert {json.loads(key)[1] for key in told[1]} == set(GROUPS)


def last_printed(lines: list[Any], groups: dict[str, str]) -> dict[str, Any]:
    """The last value of each key of the story's groups, without what changes on every run."""
    known = {name: group for group, name in groups.items()}
    last: dict[str, Any] = {}
    for line in lines:
        key, value = line["key"], line["value"]
        group = key["data"].get("group")
        if group not in known:
            continue
        for changing in ("commitTimestamp", "leaderEpoch", "topicId", "currentStateTimestamp", "leader"):
            if value is not None:
                value["data"].pop(changing, None)
        for member in (value or {}).get("data", {}).get("members", ()):
            del member["memberId"]
        last[json.dumps({**key, "data": {**key["data"], "group": known[group]}})] = value
    return last


@pytest.mark.parametrize(
    ("formatter", "ends_with"),
    [("OffsetsMessageFormatter", "last"), ("GroupMetadataMessageFormatter", "deleted")],
)
async def test_the_console_consumer_prints_what_it_prints_of_kafkas(
    kafka: str, formatter: str, ends_with: str
) -> None:
    with Broker() as broker:
        told = []
        for bootstrap in (kafka, broker.bootstrap):
            groups = await story(bootstrap)
            ending = groups[ends_with]

            def ends(record: Any, ending: str = ending) -> bool:
                return bool(record["key"]["data"].get("group") == ending)

            told.append(last_printed(await printed(bootstrap, OFFSETS_TOPIC, formatter, ends), groups))
    print(json.dumps(told, indent=1))
    assert told[0] == told[1]
    assert told[1]


# --- other requests about the topic -----------------------------------------------------------------


def asked_from_outside(side: Side) -> None:
    ask_from_outside(side, OFFSETS_TOPIC)


def ask_from_outside(side: Side, topic: str) -> None:
    """Requests about an internal topic with 50 partitions other than reading its records."""

    def cutting(partition: int, offset: int) -> DeleteRecordsRequest:
        cut = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=partition, offset=offset)
        of_topic = DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[cut])
        return DeleteRecordsRequest(topics=[of_topic], timeout_ms=10_000)

    side.ask("cut", cutting(0, 0), 2)
    side.ask("cut at the end", cutting(0, -1), 2)
    side.ask("cut a partition that is not there", cutting(50, 0), 2)
    record = batch(b"a")
    side.ask("produce", producing(side, (topic, 0, record)), 12)
    side.ask("produce to a partition that is not there", producing(side, (topic, 50, record)), 12)
    for partition, timestamp in ((0, -2), (0, -4), (50, -2), (0, 2**60)):
        side.ask(
            f"offsets of {partition} for {timestamp}",
            listing(side, topic, (partition, timestamp)),
            9,
            but="leader_epoch",
        )
    for partition, offset in ((0, 10**15), (0, -1), (50, 0)):
        fetch = fetching(side, topic, offset, partition=partition)
        side.ask(f"fetch {partition} at {offset}", fetch, 12)
    side.ask("fetch in another epoch", fetching(side, topic, 0, epoch=99), 12)


def test_apache_kafka_answers_as_muster_does(kafka_of_configs: KafkaOfConfigs) -> None:
    with Broker(lease_term_ms=600_000) as broker:
        assert_told_alike(asked_from_outside, kafka_of_configs(KAFKA_CONFIGS), broker)
