"""Finding the leaders of a producer's partitions: what is requested when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from muster.client.network.connection import deadline
from muster.client.network.metadata import MetadataImage
from muster.client.network.pool import ConnectionSettings, Pool, Tries
from muster.client.produce.accumulator import TopicQueues
from muster.client.produce.leaders import Leaders, Patience
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.metadata import MetadataResponse
from tests.support.facts import turns, until


class Cluster:
    """Answers as the test wants, and records the requests. Backoff lasts forever."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.leader = -1
        self.errors: dict[str, ErrorCode] = {}
        self.image = MetadataImage()

    async def refresh(self, names: list[str], _: float) -> MetadataResponse:
        self.asked.append(sorted(names))
        partition = MetadataResponse.Topic.Partition(
            partition_index=0, leader_id=self.leader, replica_nodes=[1], isr_nodes=[1]
        )
        topics = [
            MetadataResponse.Topic(name=name, error_code=self.errors.get(name, 0), partitions=[partition])
            for name in names
        ]
        broker = MetadataResponse.Broker(node_id=1, host="127.0.0.1", port=1)
        response = MetadataResponse(brokers=[broker], topics=topics)
        self.image = self.image.updated(response)
        return response

    def is_final(self, error: Exception) -> bool:
        return True

    def tries(self) -> Tries:
        return Tries(Pool([], "test", ConnectionSettings()), lambda _: 1e6)


@pytest.fixture
async def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
async def leaders(cluster: Cluster) -> AsyncIterator[Leaders]:
    made = Leaders(
        cluster,  # type: ignore[arg-type]
        {name: with_records(name) for name in ("a", "b")},
        request_timeout_s=1e6,
        metadata_max_age_s=1e6,
        on_news=lambda: None,
        on_refused=lambda name, error: refused.append((name, error)),
        on_end=lambda task: None,
    )
    refused: list[Any] = []
    made.refused = refused  # type: ignore[attr-defined]
    yield made
    if made.task is not None:
        made.task.cancel()
        await asyncio.wait([made.task])


def with_records(name: str) -> TopicQueues:
    topic = TopicQueues(name, 1)
    topic.queues[0].batches.append(None)  # type: ignore[arg-type]  # something
    return topic


async def test_what_is_sought_later_does_not_wait_for_the_backoff_of_others(
    cluster: Cluster, leaders: Leaders
) -> None:
    leaders.seek(["a"])
    await until(lambda: cluster.asked == [["a"]])
    leaders.seek(["a"])
    await turns()
    assert cluster.asked == [["a"]], "nothing new"
    leaders.seek(["a", "b"])
    await until(lambda: cluster.asked == [["a"], ["a", "b"]])


async def test_asking_ends_when_all_are_led(cluster: Cluster, leaders: Leaders) -> None:
    cluster.leader = 1
    leaders.seek(["a", "b"])
    await until(lambda: leaders.task is not None and leaders.task.done())
    assert cluster.asked == [["a", "b"]]
    leaders.seek(["a"])
    await until(lambda: cluster.asked == [["a", "b"], ["a"]], "and begins again")


async def test_topics_that_are_not_used_are_not_asked_for(cluster: Cluster, leaders: Leaders) -> None:
    cluster.leader = 1
    patience = Patience(deadline(1e6), "forever")
    first = {name: await leaders.topic(name, patience) for name in ("a", "b")}
    cluster.asked.clear()
    renewal = deadline(1e6)
    for topic in first.values():
        topic.used_at = renewal - 299
    leaders.renew(renewal)
    await until(lambda: cluster.asked == [["a", "b"]])
    renewal += 1e6
    first["a"].used_at = renewal - 299
    leaders.renew(renewal)
    await until(lambda: cluster.asked == [["a", "b"], ["a"]])
    assert leaders.current == {"a": first["a"]}
    assert await leaders.topic("b", patience) is first["b"], "its sequence numbers go on"
    assert cluster.asked[2:] == [["b"]], "it may have changed meanwhile"
    first["b"].used_at = renewal = renewal + 1e6
    leaders.renew(renewal)
    await until(lambda: cluster.asked[3:] == [["b"]])


async def test_one_of_several_that_is_refused_does_not_stop_the_others(
    cluster: Cluster, leaders: Any
) -> None:
    cluster.leader = 1
    cluster.errors["a"] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    leaders.seek(["a", "b"])
    await until(lambda: leaders.task.done())
    ((name, error),) = leaders.refused
    assert (name, error.code) == ("a", ErrorCode.TOPIC_AUTHORIZATION_FAILED)


async def test_a_topic_that_is_not_there_is_not_refused(cluster: Cluster, leaders: Any) -> None:
    cluster.leader = 1
    cluster.errors["a"] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    leaders._topics["a"].queues[0].leader = None
    leaders.seek(["a", "b"])
    await until(lambda: cluster.asked)
    await turns()
    assert leaders.refused == []
    assert not leaders.task.done(), "it may come"
