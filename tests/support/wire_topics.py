"""Topics and coordinators over the wire, on muster and on Kafka, waited for until they can be used."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from uuid import UUID

from muster.protocol.errors import ErrorCode
from muster.protocol.messages.group_admin import DescribeGroupsRequest, DescribeGroupsResponse
from muster.protocol.messages.metadata import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from muster.protocol.messages.topics import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from tests.support.wire_blocking import WireConnection

_SECONDS_MAX: Final = 30.0
_PAUSE_SECONDS: Final = 0.02  # between two questions about a fact

_COORDINATOR_STARTING: Final = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}


def create_topics(connection: WireConnection, partitions: Mapping[str, int]) -> dict[str, UUID]:
    """Create topics with so many `partitions`; their ids, once every partition has a leader."""
    wanted = [
        CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=count, replication_factor=1, assignments=[], configs=[]
        )
        for name, count in partitions.items()
    ]
    created = connection.call(CreateTopicsRequest(topics=wanted), 7, CreateTopicsResponse)
    for topic in created.topics:
        if topic.error_code != ErrorCode.NONE:
            raise RuntimeError(f"topic {topic.name}: error {topic.error_code} {topic.error_message}")

    def have_leaders() -> bool:
        topics = _metadata(connection, list(partitions)).topics
        return all(
            topic.error_code == ErrorCode.NONE
            and len(topic.partitions) == partitions[topic.name or ""]
            and all(partition.error_code == ErrorCode.NONE for partition in topic.partitions)
            for topic in topics
        )

    until(have_leaders, f"leaders of {list(partitions)}")
    return {topic.name: topic.topic_id for topic in created.topics}


def ensure_topics(connection: WireConnection, partitions: Mapping[str, int]) -> dict[str, UUID]:
    """Create those of the topics that are not there; the ids of all."""
    there = {
        topic.name: topic.topic_id
        for topic in _metadata(connection, list(partitions)).topics
        if topic.error_code == ErrorCode.NONE and topic.name is not None
    }
    missing = {name: count for name, count in partitions.items() if name not in there}
    return {**there, **(create_topics(connection, missing) if missing else {})}


def delete_topic(connection: WireConnection, name: str) -> None:
    """Delete a topic and wait until the broker no longer knows it."""
    request = DeleteTopicsRequest(topic_names=[name], timeout_ms=30_000)
    (deleted,) = connection.call(request, 5, DeleteTopicsResponse).responses
    if deleted.error_code != ErrorCode.NONE:
        raise RuntimeError(f"topic {name}: error {deleted.error_code}")

    def is_gone() -> bool:
        (topic,) = _metadata(connection, [name]).topics
        return topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    until(is_gone, f"end of topic {name}")


def await_coordinators(connection: WireConnection, groups: Sequence[str]) -> None:
    """Wait until the coordinator of every one of `groups` has loaded and answers."""
    until(lambda: coordinators_answer(connection, groups), f"coordinators of {groups}")


def coordinators_answer(connection: WireConnection, groups: Sequence[str]) -> bool:
    """Whether all coordinators of `groups` answer. To be asked makes Kafka create `__consumer_offsets`."""
    find = FindCoordinatorRequest(key_type=0, coordinator_keys=[groups[0]])
    (found,) = connection.call(find, 4, FindCoordinatorResponse).coordinators
    if found.error_code != ErrorCode.NONE:
        return False
    described = connection.call(DescribeGroupsRequest(groups=list(groups)), 5, DescribeGroupsResponse)
    return all(group.error_code not in _COORDINATOR_STARTING for group in described.groups)


def brokers_alive(connection: WireConnection) -> int:
    """How many brokers of its cluster a broker knows as alive."""
    return len(_metadata(connection, []).brokers)


def _metadata(connection: WireConnection, names: Sequence[str]) -> MetadataResponse:
    topics = [MetadataRequest.Topic(name=name) for name in names]
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
    return connection.call(request, 12, MetadataResponse)


def until(fact: Callable[[], bool], what: str) -> None:
    """Ask again until `fact()` is true. TimeoutError when that takes too long."""
    deadline = time.monotonic() + _SECONDS_MAX
    while not fact():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {_SECONDS_MAX:g} s")
        time.sleep(_PAUSE_SECONDS)
