"""A store written before there were consumer groups (KIP-848) is taken over unchanged.

`data/store-before-consumer-groups.tgz` is the data directory of a `muster serve` of that time, killed with
SIGKILL: topics `orders` (4 partitions, three records in the first) and `payments`; group `billing`, Stable in
generation 2, with the dynamic member alice and the static member bob; group `nightly`, which has only
offsets.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from muster.client import Consumer, TopicPartition
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.consumer_group import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from muster.protocol.messages.group_admin import DescribeGroupsRequest, DescribeGroupsResponse
from muster.protocol.messages.offsets import OffsetFetchRequest, OffsetFetchResponse
from tests.support.members import Member
from tests.support.served import Served
from tests.support.wire_blocking import WireConnection

ARCHIVE: Final = Path(__file__).parent / "data" / "store-before-consumer-groups.tgz"
ALICE: Final = "alice-c1e4b44c-c599-4479-92be-715f6da932f0"
BOB: Final = "b-1-9e39e62e-0540-4e72-ab43-a594fd25befe"
KEEP: Final = ("--offsets-retention-minutes", "2147483647", "--log-retention-ms", "-1")
"""What was written is older than the default retention."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with tarfile.open(ARCHIVE) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda each, _: each)  # since 3.11.4
        archive.extractall(tmp_path / "data")
    with Served(tmp_path / "data", *KEEP) as broker:
        yield broker


def committed(connection: WireConnection, group_id: str) -> dict[int, tuple[int, str]]:
    """Offset and metadata by partition of `orders`, where there is an offset."""
    answer = connection.call(
        OffsetFetchRequest(groups=[OffsetFetchRequest.Group(group_id=group_id, topics=None)]),
        8,
        OffsetFetchResponse,
    )
    (group,) = answer.groups
    (topic,) = group.topics
    assert topic.name == "orders"
    return {each.partition_index: (each.committed_offset, each.metadata or "") for each in topic.partitions}


async def test_groups_offsets_and_records_are_as_they_were(served: Served) -> None:
    with WireConnection("127.0.0.1", served.port, "test") as connection:
        described = connection.call(DescribeGroupsRequest(groups=["billing"]), 5, DescribeGroupsResponse)
        (group,) = described.groups
        assert (group.group_state, group.protocol_data) == ("Stable", "range")
        assert {each.member_id: each.group_instance_id for each in group.members} == {ALICE: None, BOB: "b-1"}
        assert committed(connection, "billing") == {0: (1, "first"), 1: (0, ""), 2: (5, "")}
        assert committed(connection, "nightly") == {3: (2, "at night")}
    async with Consumer(served.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("orders", 0)])
        records = [await consumer.get(30.0) for _ in range(3)]
    assert [None if each is None else each.value for each in records] == [b"order 0", b"order 1", b"order 2"]


async def test_its_group_is_upgraded_while_its_members_are_there(served: Served) -> None:
    alice = Member("billing", "alice", ["orders"])
    alice.id, alice.generation = ALICE, 2
    await alice.connect(served.port)
    assert await alice.heartbeat() is ErrorCode.NONE
    with WireConnection("127.0.0.1", served.port, "carol") as connection:
        joined = connection.call(
            ConsumerGroupHeartbeatRequest(
                group_id="billing",
                member_id="carol",
                member_epoch=0,
                rebalance_timeout_ms=60_000,
                subscribed_topic_names=["orders"],
                topic_partitions=[],
            ),
            1,
            ConsumerGroupHeartbeatResponse,
        )
        assert joined.error_code == ErrorCode.NONE, joined.error_message
        assert joined.member_epoch > 2
        assert await alice.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    await alice.close()
    served.kill()
    served.start()  # what the upgrade wrote is read
    with WireConnection("127.0.0.1", served.port, "test") as connection:
        described = connection.call(
            ConsumerGroupDescribeRequest(group_ids=["billing"], include_authorized_operations=False),
            1,
            ConsumerGroupDescribeResponse,
        )
        (group,) = described.groups
        assert {each.member_id: each.member_type for each in group.members} == {ALICE: 0, BOB: 0, "carol": 1}
        owners = {
            partition: each.member_id
            for each in group.members
            for topic in each.assignment.topic_partitions
            for partition in topic.partitions
        }
        assert owners == {0: ALICE, 1: ALICE, 2: BOB, 3: BOB}  # nobody gave up anything yet
        assert committed(connection, "billing") == {0: (1, "first"), 1: (0, ""), 2: (5, "")}
