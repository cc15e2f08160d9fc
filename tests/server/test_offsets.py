"""OffsetCommit, OffsetFetch and OffsetDelete over the wire: topics, topic ids, layouts and many groups."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from muster.coordinator.server.brokers import Brokers
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.classic_group import JoinGroupRequest
from muster.protocol.messages.offsets import OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest
from muster.protocol.types import ZERO_UUID
from tests.server.conftest import StartBrokers
from tests.support.each import each
from tests.support.wire import Wire


@pytest.fixture
async def brokers(start_brokers: StartBrokers) -> Brokers:
    brokers = await start_brokers()
    await brokers.brokers[0].catalogue.create("t", partitions=2)
    return brokers


@pytest.fixture
async def wire(brokers: Brokers) -> Any:
    async with await Wire.connect(brokers.brokers[0].port) as wire:
        yield wire


def commit(*offsets: tuple[str | Any, int, int], group_id: str = "g", **fields: Any) -> OffsetCommitRequest:
    """A commit of (topic name or id, partition, offset)."""
    return OffsetCommitRequest(
        group_id=group_id,
        member_id=fields.pop("member_id", ""),
        topics=[
            OffsetCommitRequest.Topic(
                **({"name": topic} if isinstance(topic, str) else {"topic_id": topic}),
                partitions=[
                    OffsetCommitRequest.Partition(
                        partition_index=partition, committed_offset=offset, committed_metadata="m"
                    )
                ],
            )
            for topic, partition, offset in offsets
        ],
        **fields,
    )


def codes(response: Any) -> list[int]:
    return [part.error_code for topic in response.topics for part in topic.partitions]


@each("version", range(2, 10))
async def test_a_commit_in_any_version_is_fetched(wire: Wire, version: int) -> None:
    assert codes(await wire.call(commit(("t", 0, 7), ("t", 1, 8)), version)) == [0, 0]
    fetched = await wire.call(
        OffsetFetchRequest(
            group_id="g", topics=[OffsetFetchRequest.Topic(name="t", partition_indexes=[0, 1])]
        ),
        5,
    )
    parts = fetched.topics[0].partitions
    assert [(each.committed_offset, each.metadata, each.error_code) for each in parts] == [
        (7, "m", 0),
        (8, "m", 0),
    ]


async def test_partitions_that_do_not_exist_are_refused_one_by_one(wire: Wire) -> None:
    response = await wire.call(commit(("t", 0, 7), ("t", 2, 7), ("none", 0, 7), ("t", -1, 7), ("t", 1, 7)), 9)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes(response) == [0, unknown, unknown, unknown, 0]
    assert [topic.name for topic in response.topics] == ["t", "t", "none", "t", "t"]


async def test_a_refusal_of_the_whole_commit_stands_at_every_partition(wire: Wire) -> None:
    request = commit(("t", 0, 7), ("t", 1, 7), generation_id_or_member_epoch=3, member_id="nobody")
    assert codes(await wire.call(request, 8)) == [ErrorCode.ILLEGAL_GENERATION] * 2
    assert codes(await wire.call(request, 9)) == [ErrorCode.GROUP_ID_NOT_FOUND] * 2
    mixed = commit(("t", 0, 7), ("none", 1, 7), generation_id_or_member_epoch=3, member_id="nobody")
    assert codes(await wire.call(mixed, 9)) == [
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # the group is not asked about what does not exist
    ]


async def test_commits_and_fetches_by_topic_id(brokers: Brokers, wire: Wire) -> None:
    topic = brokers.brokers[0].catalogue.named("t")
    other = uuid4()
    response = await wire.call(commit((topic.topic_id, 0, 7), (topic.topic_id, 5, 7), (other, 0, 7)), 10)
    assert codes(response) == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID]
    assert [each.topic_id for each in response.topics] == [topic.topic_id, topic.topic_id, other]

    def asking(topics: list[Any] | None) -> OffsetFetchRequest:
        return OffsetFetchRequest(groups=[OffsetFetchRequest.Group(group_id="g", topics=topics)])

    asked = [
        OffsetFetchRequest.Topics(topic_id=each, partition_indexes=[0]) for each in (topic.topic_id, other)
    ]
    (group,) = (await wire.call(asking(asked), 10)).groups
    found = {each.topic_id: each.partitions[0] for each in group.topics}
    assert (found[topic.topic_id].committed_offset, found[topic.topic_id].error_code) == (7, 0)
    assert (found[other].committed_offset, found[other].error_code) == (-1, ErrorCode.UNKNOWN_TOPIC_ID)
    (group,) = (await wire.call(asking(None), 10)).groups
    assert [(each.topic_id, each.partitions[0].committed_offset) for each in group.topics] == [
        (topic.topic_id, 7)
    ]


async def test_no_topics_named_means_all_from_version_2_on(wire: Wire) -> None:
    await wire.call(commit(("t", 0, 7), ("t", 1, 8)), 9)
    for version in range(2, 8):
        response = await wire.call(OffsetFetchRequest(group_id="g", topics=None), version)
        (topic,) = response.topics
        assert sorted(each.committed_offset for each in topic.partitions) == [7, 8]
    nothing = await wire.call(OffsetFetchRequest(group_id="g", topics=[]), 7)
    assert (nothing.error_code, nothing.topics) == (0, [])


@pytest.mark.parametrize("version", range(1, 8))
async def test_a_group_that_does_not_exist_has_no_offsets(wire: Wire, version: int) -> None:
    request = OffsetFetchRequest(
        group_id="none", topics=[OffsetFetchRequest.Topic(name="t", partition_indexes=[0])]
    )
    (part,) = (await wire.call(request, version)).topics[0].partitions
    assert (part.committed_offset, part.metadata, part.error_code) == (-1, "", 0)


@pytest.mark.parametrize("version", [8, 9])
async def test_many_groups_in_one_fetch(wire: Wire, version: int) -> None:
    for number in range(5):
        await wire.call(commit(("t", 0, number), group_id=f"g{number}"), 9)
    asked = [
        OffsetFetchRequest.Group(
            group_id=f"g{number}", topics=[OffsetFetchRequest.Topics(name="t", partition_indexes=[0])]
        )
        for number in [4, 0, 7, 2]
    ]
    groups = (await wire.call(OffsetFetchRequest(groups=asked), version)).groups
    assert [(each.group_id, each.topics[0].partitions[0].committed_offset) for each in groups] == [
        ("g4", 4),
        ("g0", 0),
        ("g7", -1),
        ("g2", 2),
    ]


@each("version", [8, 9])
async def test_a_group_that_is_named_twice_is_answered_once_with_all_that_is_named(
    wire: Wire, version: int
) -> None:
    await wire.call(commit(("t", 0, 7), ("t", 1, 8)), 9)

    def asking(partitions: list[int] | None) -> OffsetFetchRequest.Group:
        if partitions is None:
            return OffsetFetchRequest.Group(group_id="g", topics=None)
        named = OffsetFetchRequest.Topics(name="t", partition_indexes=partitions)
        return OffsetFetchRequest.Group(group_id="g", topics=[named])

    async def fetched(*partitions: list[int] | None) -> list[tuple[str, list[tuple[int, int]]]]:
        asked = [asking(these) for these in partitions]
        (group,) = (await wire.call(OffsetFetchRequest(groups=asked), version)).groups
        return [
            (topic.name, [(part.partition_index, part.committed_offset) for part in topic.partitions])
            for topic in group.topics
        ]

    assert await fetched([1], [1]) == [("t", [(1, 8)])]
    assert await fetched([1, 5], [0, 1]) == [("t", [(1, 8), (5, -1), (0, 7)])]
    for everything in ([[5], None], [None, [5]], [None, None]):
        ((topic, parts),) = await fetched(*everything)
        assert (topic, sorted(parts)) == ("t", [(0, 7), (1, 8)])


async def test_retention_of_old_requests_is_kept(wire: Wire) -> None:
    # Versions before 5 carry a retention of their own (KIP-211).
    assert codes(await wire.call(commit(("t", 0, 7), retention_time_ms=60_000), 2)) == [0]


async def test_deleting_a_topic_forgets_its_offsets(brokers: Brokers, wire: Wire) -> None:
    catalogue = brokers.brokers[0].catalogue
    await wire.call(commit(("t", 0, 7)), 9)
    await catalogue.delete(catalogue.named("t"))
    fetched = await wire.call(OffsetFetchRequest(group_id="g", topics=None), 5)
    assert fetched.topics == []
    await catalogue.create("t", partitions=1)
    assert (await wire.call(OffsetFetchRequest(group_id="g", topics=None), 5)).topics == []


async def test_offsets_are_deleted_but_not_of_unknown_topics(wire: Wire) -> None:
    await wire.call(commit(("t", 0, 7), ("t", 1, 8)), 9)

    def deleting(*topics: str, group_id: str = "g") -> OffsetDeleteRequest:
        part = OffsetDeleteRequest.Partition(partition_index=0)
        named = [OffsetDeleteRequest.Topic(name=each, partitions=[part]) for each in topics]
        return OffsetDeleteRequest(group_id=group_id, topics=named)

    response = await wire.call(deleting("t", "none"), 0)
    assert response.error_code == 0
    assert codes(response) == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    fetched = await wire.call(OffsetFetchRequest(group_id="g", topics=None), 5)
    assert [each.partition_index for each in fetched.topics[0].partitions] == [1]
    assert (await wire.call(deleting("t", group_id="none"), 0)).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert (await wire.call(deleting("t", group_id=""), 0)).error_code == ErrorCode.INVALID_GROUP_ID


async def test_a_member_of_a_rebalancing_group_cannot_commit(wire: Wire) -> None:
    join = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupRequest.Protocol(name="range", metadata=b"")],
    )
    joined = await wire.call(join, 0)  # v0 has no MEMBER_ID_REQUIRED
    request = commit(
        ("t", 0, 7), generation_id_or_member_epoch=joined.generation_id, member_id=joined.member_id
    )
    assert codes(await wire.call(request, 9)) == [ErrorCode.REBALANCE_IN_PROGRESS]


async def test_the_zero_id_is_no_topic(wire: Wire) -> None:
    assert codes(await wire.call(commit((ZERO_UUID, 0, 7)), 10)) == [ErrorCode.UNKNOWN_TOPIC_ID]
