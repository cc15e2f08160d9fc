"""Topics and coordinators over the wire, on muster and on Kafka; the helpers wait until they are usable."""

from __future__ import annotations

import itertools
import re
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar
from uuid import UUID

from muster.coordinator.cluster.placement import shard_of
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.consumer_group import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from muster.protocol.messages.data import ListOffsetsRequest, ListOffsetsResponse
from muster.protocol.messages.group_admin import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from muster.protocol.messages.metadata import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from muster.protocol.messages.offsets import OffsetFetchRequest, OffsetFetchResponse
from muster.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from muster.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from tests.support.wire_blocking import WireConnection

T = TypeVar("T")

_SECONDS_MAX: Final = 30.0
_PAUSE_SECONDS: Final = 0.02  # between two checks of a fact

_EXACTLY: Final = 0
"""How DescribeClientQuotas is to match a name."""

_COORDINATOR_STARTING: Final = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}


def create_topics(connection: WireConnection, partitions: Mapping[str, int]) -> dict[str, UUID]:
    """Create topics with that many `partitions`; returns their ids once every partition has a leader."""
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

    until(lambda: _have_leaders(connection, partitions), f"leaders of {list(partitions)}")
    return {topic.name: topic.topic_id for topic in created.topics}


def await_logs(connection: WireConnection, partitions: Mapping[str, int]) -> None:
    """Wait until the leaders of these topics' partitions answer for them: Kafka reports a leader before it
    has begun to lead."""
    asked = ListOffsetsRequest(
        replica_id=-1,
        topics=[
            ListOffsetsRequest.ListOffsetsTopic(
                name=name,
                partitions=[
                    ListOffsetsRequest.ListOffsetsPartition(partition_index=index, timestamp=-1)
                    for index in range(count)
                ],
            )
            for name, count in partitions.items()
        ],
    )

    def all_lead() -> bool:
        topics = connection.call(asked, 6, ListOffsetsResponse).topics
        return not any(each.error_code for topic in topics for each in topic.partitions)

    until(all_lead, f"logs of {list(partitions)}")


def ensure_topics(connection: WireConnection, partitions: Mapping[str, int]) -> dict[str, UUID]:
    """Create the topics that do not exist; returns the ids of all."""
    there = {
        topic.name: topic.topic_id
        for topic in _metadata(connection, list(partitions)).topics
        if topic.error_code == ErrorCode.NONE and topic.name is not None
    }
    missing = {name: count for name, count in partitions.items() if name not in there}
    return {**there, **(create_topics(connection, missing) if missing else {})}


def grow_topic(connection: WireConnection, name: str, partitions: int) -> None:
    """Raise a topic's partition count to `partitions` and wait until every partition has a leader."""
    wanted = CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=partitions, assignments=None)
    request = CreatePartitionsRequest(topics=[wanted], timeout_ms=30_000, validate_only=False)
    (grown,) = connection.call(request, 3, CreatePartitionsResponse).results
    if grown.error_code != ErrorCode.NONE:
        raise RuntimeError(f"topic {name}: error {grown.error_code} {grown.error_message}")
    until(lambda: _have_leaders(connection, {name: partitions}), f"leaders of {name}")


def _have_leaders(connection: WireConnection, partitions: Mapping[str, int]) -> bool:
    topics = _metadata(connection, list(partitions)).topics
    return all(
        topic.error_code == ErrorCode.NONE
        and len(topic.partitions) == partitions[topic.name or ""]
        and all(partition.error_code == ErrorCode.NONE for partition in topic.partitions)
        for topic in topics
    )


def await_in_coordinator(connection: WireConnection, group: str, partitions: Mapping[str, int]) -> None:
    """Wait until the coordinator of `group` knows that these topics have that many `partitions`; 0: that
    there is no such topic. A probe group on the same shard is assigned everything that exists."""
    beside = _beside(group)
    until(lambda: _assigned(connection, beside, partitions) == dict(partitions), f"topics of {group}")


def await_look_ups(connection: WireConnection, group: str, topic: str) -> None:
    """Wait until the coordinator of `group` has looked up all regular expressions it has received so far. It
    resolves them one after the other; the last is that of a probe group on the same shard, for `topic`."""
    beat = _first_beat(_beside(group))
    beat.subscribed_topic_regex = re.escape(topic)

    def looked_up() -> bool:
        answer = connection.call(beat, 1, ConsumerGroupHeartbeatResponse)
        beat.member_epoch = answer.member_epoch
        return answer.assignment is not None and bool(answer.assignment.topic_partitions)

    until(looked_up, f"topics of regular expressions of {group}")
    _leave(connection, beat)


def _first_beat(group: str) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        group_id=group, member_id="probe", member_epoch=0, rebalance_timeout_ms=60_000, topic_partitions=[]
    )


def _leave(connection: WireConnection, beat: ConsumerGroupHeartbeatRequest) -> None:
    """Leave and delete the group, so that nothing of it remains."""
    beat.member_epoch = -1
    connection.call(beat, 1, ConsumerGroupHeartbeatResponse)
    connection.call(DeleteGroupsRequest(groups_names=[beat.group_id]), 2, DeleteGroupsResponse)


def _beside(group: str) -> str:
    names = (f"beside-{uuid.uuid4()}" for _ in itertools.count())
    return next(name for name in names if shard_of(name) == shard_of(group))


def _assigned(connection: WireConnection, group: str, names: Iterable[str]) -> dict[str, int]:
    """How many partitions of each topic the first member of a group is assigned."""
    found = {}
    for name in names:
        beat = _first_beat(group)
        beat.subscribed_topic_names = [name]
        answer = connection.call(beat, 1, ConsumerGroupHeartbeatResponse)
        if answer.error_code != ErrorCode.NONE or answer.assignment is None:
            raise RuntimeError(f"group {group}: error {answer.error_code} {answer.error_message}")
        found[name] = sum(len(topic.partitions) for topic in answer.assignment.topic_partitions)
        _leave(connection, beat)
    return found


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


def await_published(connection: WireConnection) -> None:
    """Wait until all parts of Kafka's broker follow whatever was changed before.

    It describes a change a moment before its logs, quotas, group coordinators and so on follow, but it takes
    one change after the other: once it describes one that was made after it had described an earlier one, all
    its parts follow the earlier one. The two are a quota of a client that does not exist, set and removed.
    """
    client_id = f"nobody-{uuid.uuid4()}"
    for is_there in (True, False):
        _alter_quota(connection, client_id, remove=not is_there)
        until(
            lambda is_there=is_there: _has_quota(connection, client_id) is is_there,
            "everything that was changed",
        )


def _alter_quota(connection: WireConnection, client_id: str, *, remove: bool) -> None:
    Entry = AlterClientQuotasRequest.EntryData
    entry = Entry(
        entity=[Entry.EntityData(entity_type="client-id", entity_name=client_id)],
        ops=[Entry.OpData(key="request_percentage", value=0.0 if remove else 1e6, remove=remove)],
    )
    request = AlterClientQuotasRequest(entries=[entry], validate_only=False)
    (altered,) = connection.call(request, 1, AlterClientQuotasResponse).entries
    if altered.error_code != ErrorCode.NONE:
        raise RuntimeError(f"a quota: error {altered.error_code} {altered.error_message}")


def _has_quota(connection: WireConnection, client_id: str) -> bool:
    component = DescribeClientQuotasRequest.ComponentData(
        entity_type="client-id", match_type=_EXACTLY, match=client_id
    )
    request = DescribeClientQuotasRequest(components=[component], strict=False)
    return bool(connection.call(request, 1, DescribeClientQuotasResponse).entries)


def await_no_offsets(connection: WireConnection, group: str, topic: str) -> None:
    """Wait until `group` has no committed offsets for a deleted topic."""
    request = OffsetFetchRequest(groups=[OffsetFetchRequest.Group(group_id=group, topics=None)])

    def is_gone() -> bool:
        (found,) = connection.call(request, 8, OffsetFetchResponse).groups
        return all(each.name != topic for each in found.topics)

    until(is_gone, f"end of the offsets of {topic}")


def await_coordinators(connection: WireConnection, groups: Sequence[str]) -> None:
    """Wait until the coordinator of every one of `groups` has loaded and answers."""
    until(lambda: coordinators_answer(connection, groups), f"coordinators of {groups}")


def coordinators_answer(connection: WireConnection, groups: Sequence[str]) -> bool:
    """Whether all coordinators of `groups` answer. The query makes Kafka create `__consumer_offsets`."""
    find = FindCoordinatorRequest(key_type=0, coordinator_keys=[groups[0]])
    (found,) = connection.call(find, 4, FindCoordinatorResponse).coordinators
    if found.error_code != ErrorCode.NONE:
        return False
    described = connection.call(DescribeGroupsRequest(groups=list(groups)), 5, DescribeGroupsResponse)
    return all(group.error_code not in _COORDINATOR_STARTING for group in described.groups)


def brokers_alive(connection: WireConnection) -> int:
    """Number of brokers in the cluster that the broker considers alive."""
    return len(_metadata(connection, []).brokers)


def _metadata(connection: WireConnection, names: Sequence[str]) -> MetadataResponse:
    topics = [MetadataRequest.Topic(name=name) for name in names]
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
    return connection.call(request, 12, MetadataResponse)


def until(fact: Callable[[], bool], what: str) -> None:
    """Poll until `fact()` is true. Raises TimeoutError if that takes too long."""
    settled(fact, bool, what)


def settled(ask: Callable[[], T], holds: Callable[[T], object], what: str) -> T:
    """Poll `ask` until an answer `holds`, and return it. Raises TimeoutError if that takes too long."""
    deadline = time.monotonic() + _SECONDS_MAX
    while not holds(answer := ask()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {_SECONDS_MAX:g} s, still {answer!r:.300}")
        time.sleep(_PAUSE_SECONDS)
    return answer
