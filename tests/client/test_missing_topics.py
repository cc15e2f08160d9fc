"""Topics and partitions that do not exist: whoever waits for them is told so."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest

from muster.client import Admin, Consumer, TopicPartition
from muster.client.network.cluster import Cluster
from muster.coordinator.testing import Broker
from tests.client.reading import LONG_S, reading, until

LOGGER = "muster.client.consumer"
OFTEN = {"retry_backoff_max_ms": 100, "metadata_max_age_ms": 200, "allow_auto_create_topics": False}
PROTOCOLS = ["classic", "consumer"]


@pytest.fixture
def often() -> Iterator[Broker]:
    """A broker whose members of consumer groups beat often."""
    settings = {
        "group_consumer_min_heartbeat_interval_ms": 100,
        "group_consumer_heartbeat_interval_ms": 100,
        "group_consumer_assignment_interval_ms": 0,
    }
    with Broker(auto_create_topics_enable=False, **settings) as broker:
        yield broker


def told(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == LOGGER and each.levelno == level]


async def more_answers(reader: Consumer[Any, Any], count: int) -> None:
    """Wait until brokers have answered so many more of the consumer's questions about the cluster."""
    cluster = reader._core.cluster
    enough = cluster.answers + count
    await until(lambda: cluster.answers >= enough)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_topic_that_does_not_exist_is_told_once_and_is_in_the_health_until_it_does(
    often: Broker, caplog: pytest.LogCaptureFixture, protocol: str
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    often.create_topic("t")
    settings: dict[str, Any] = {"group_id": "g", "group_protocol": protocol, "topics": ["t", "typo"]} | OFTEN
    missing = "topic typo is subscribed to and does not exist: waiting for it"
    async with reading(often.bootstrap, **settings) as it:
        await until(lambda: it.consumer.health().missing_topics == {"typo"})
        await more_answers(it.consumer, 3)
        assert told(caplog) == [missing]

        often.create_topic("typo")
        await it.until_assigned(TopicPartition("t", 0), TopicPartition("typo", 0))
        await until(lambda: not it.consumer.health().missing_topics)
        assert "topic typo exists now" in told(caplog, logging.INFO)

        async with Admin(often.bootstrap) as admin:
            await admin.delete_topic("typo")
        await until(lambda: it.consumer.health().missing_topics == {"typo"})
        await more_answers(it.consumer, 3)
        assert told(caplog).count(missing) == 2
    assert it.consumer.health().missing_topics == frozenset()


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_topic_that_is_subscribed_to_later_is_told_too(
    often: Broker, caplog: pytest.LogCaptureFixture, protocol: str
) -> None:
    often.create_topic("t")
    settings: dict[str, Any] = {"group_id": "g", "group_protocol": protocol, "topics": "t"} | OFTEN
    async with reading(often.bootstrap, **settings) as it:
        await it.until_assigned(TopicPartition("t", 0))
        assert it.consumer.health().missing_topics == frozenset()
        it.consumer.subscribe(["t", "typo"])
        await until(lambda: it.consumer.health().missing_topics == {"typo"})
        it.consumer.subscribe(["t"])
        assert it.consumer.health().missing_topics == frozenset()


async def test_topics_of_other_members_and_of_a_pattern_are_not_missing(
    often: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    often.create_topic("t")
    settings: dict[str, Any] = {"group_id": "g", "topics": "t"} | OFTEN
    async with (
        reading(often.bootstrap, **settings) as one,
        reading(often.bootstrap, **settings) as two,
        reading(often.bootstrap, **settings | {"group_id": "h", "topics": re.compile("typo.*")}) as matching,
    ):
        await until(lambda: often.group("g").facts == ("Stable", 2))
        await until(lambda: len(one.consumer.assignment | two.consumer.assignment) == 1)
        idle = two if one.consumer.assignment else one
        await more_answers(idle.consumer, 3)
        await more_answers(matching.consumer, 3)
        assert {each.consumer.health().missing_topics for each in (one, two, matching)} == {frozenset()}
    assert told(caplog) == []


@pytest.mark.parametrize("max_age_ms", [300_000, 200])
async def test_topics_that_exist_are_asked_for_no_more_often_because_another_is_missing(
    often: Broker, monkeypatch: pytest.MonkeyPatch, max_age_ms: int
) -> None:
    metadata, asked = Cluster.metadata, list[list[str]]()

    async def recorded(cluster: Cluster, topics: list[str], until: float, *, create: bool = False) -> Any:
        task = asyncio.current_task()
        if cluster is idle.consumer._core.cluster and task and "topics that may not exist" in task.get_name():
            asked.append(topics)
        return await metadata(cluster, topics, until, create=create)

    often.create_topic("t")
    settings = {"group_id": "g", "topics": ["t", "typo"]} | OFTEN | {"metadata_max_age_ms": max_age_ms}
    async with reading(often.bootstrap, **settings) as one, reading(often.bootstrap, **settings) as two:
        await until(lambda: often.group("g").facts == ("Stable", 2))
        await until(lambda: len(one.consumer.assignment | two.consumer.assignment) == 1)
        idle = two if one.consumer.assignment else one
        await until(lambda: idle.consumer.health().missing_topics == {"typo"})
        monkeypatch.setattr(Cluster, "metadata", recorded)
        if max_age_ms == 200:
            await until(lambda: asked.count(["t", "typo"]) > 1 and ["typo"] in asked)
        else:
            await until(lambda: len(asked) > 4)
            assert ["t", "typo"] not in asked


async def test_an_assigned_partition_that_does_not_exist_is_told_once_and_is_read_once_it_does(
    often: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    often.create_topic("t")
    beyond, typo = TopicPartition("t", 7), TopicPartition("typo", 0)
    async with Consumer(often.bootstrap, auto_offset_reset="earliest", **OFTEN) as consumer:
        consumer.assign([beyond, typo])
        await until(lambda: len(told(caplog)) == 2)
        await more_answers(consumer, 3)
        troubles = consumer.health().troubles
        assert troubles[beyond] == "UNKNOWN_TOPIC_OR_PARTITION: topic t has no partition 7; it has 1"
        assert sorted(told(caplog)) == [
            f"{where} is assigned and does not exist: waiting for it ({troubles[where]})"
            for where in (beyond, typo)
        ]
        often.create_topic("typo")
        often.produce("typo", [b"1"])
        record = await consumer.get(timeout=LONG_S)
        assert record is not None
        assert record.value == b"1"
