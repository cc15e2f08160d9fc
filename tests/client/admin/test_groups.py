"""Groups: listed, described, deleted, and their members removed."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from muster.client.admin.client import Admin
from muster.client.admin.reset import Earliest
from muster.client.network.cluster import Cluster
from muster.client.partitions import TopicPartition
from muster.coordinator import testing
from muster.coordinator.base.step import Step
from muster.coordinator.group.shard import Shard
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.consumer_group import ConsumerGroupDescribeResponse
from muster.protocol.messages.group_admin import DescribeGroupsResponse
from muster.protocol.messages.metadata import FindCoordinatorRequest, MetadataRequest
from tests.client.admin import members
from tests.client.fake_cluster import FakeCluster
from tests.client.listeners import answer, read_request, shake_hands
from tests.client.logs import LONG_S
from tests.support.leases import TERM_MS

Described = ConsumerGroupDescribeResponse.DescribedGroup


async def test_an_active_group(admin: Admin, cluster: Cluster, orders: list[TopicPartition]) -> None:
    member_id = await members.stable(cluster, "billing", "orders", "i1")
    await admin.alter_group_offsets("idle", {orders[0]: 4})
    described = await admin.describe_group("billing")
    assert (described.state, described.protocol_type, described.assignor) == ("Stable", "consumer", "range")
    assert described.coordinator == (await admin.describe_cluster()).brokers[0]
    (member,) = described.members
    assert member == (
        *(member_id, "i1", "muster", "/127.0.0.1", [orders[0]]),
        *("classic", None, None),
    )
    assert (described.group_type, described.epoch, described.target_epoch) == ("classic", None, None)
    assert [each.group_id for each in await admin.list_groups()] == ["billing", "idle"]
    (listed,) = await admin.list_groups(states=["Stable"])
    assert listed == ("billing", "classic", "consumer", "Stable")
    assert [each.group_id for each in await admin.list_groups(states=["empty"], types=["classic"])] == [
        "idle"
    ]
    assert await admin.list_groups(types=["consumer"]) == []


async def test_a_consumer_group(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one member of each protocol: the classic one has yet to give up partition 0 to the other."""
    topic_id = UUID(int=1)

    def assignment(*partitions: int) -> Described.Member.Assignment:
        topic = Described.Member.Assignment.TopicPartitions(
            topic_id=topic_id, topic_name="orders", partitions=list(partitions)
        )
        return Described.Member.Assignment(topic_partitions=[topic] if partitions else [])

    def member(name: str, type: int, epoch: int, assigned: Any, target: Any) -> Described.Member:
        return Described.Member(
            member_id=name,
            member_epoch=epoch,
            client_id="app",
            client_host="/10.0.0.1",
            subscribed_topic_names=["orders"],
            assignment=assigned,
            target_assignment=target,
            member_type=type,
        )

    def describe(shard: Shard, group_id: str, step: Step) -> None:
        step.reply(
            DescribeGroupsResponse.DescribedGroup(
                error_code=ErrorCode.GROUP_ID_NOT_FOUND,
                error_message=f"Group {group_id} is not a classic group.",
                group_id=group_id,
                group_state="Dead",
                protocol_type="",
                protocol_data="",
                members=[],
            )
        )

    def describe_consumer(shard: Shard, group_id: str, step: Step) -> None:
        step.reply(
            Described(
                group_id=group_id,
                group_state="Reconciling",
                group_epoch=7,
                assignment_epoch=6,
                assignor_name="uniform",
                members=[
                    member("new", 1, 6, assignment(1), assignment(0, 1)),
                    member("old", 0, 5, assignment(0), assignment()),
                ],
            )
        )

    monkeypatch.setattr(Shard, "describe", describe)
    monkeypatch.setattr(Shard, "describe_consumer", describe_consumer)
    described = await admin.describe_group("billing")
    assert (described.group_type, described.state, described.assignor) == ("consumer", "Reconciling", "")
    assert (described.epoch, described.target_epoch) == (7, 6)
    first, second = TopicPartition("orders", 0), TopicPartition("orders", 1)
    assert [(each.member_id, *each[4:]) for each in described.members] == [
        ("new", [second], "consumer", 6, [first, second]),
        ("old", [first], "classic", 5, []),
    ]


async def test_a_group_that_is_not_there_where_the_consumer_protocol_is_switched_off() -> None:
    async with (
        testing.Broker(group_coordinator_rebalance_protocols=("classic",)) as broker,
        Admin(broker.bootstrap) as admin,
    ):
        with pytest.raises(KafkaError) as refused:
            await admin.describe_group("billing")
    assert refused.value.code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_an_active_group_is_left_alone(
    admin: Admin, cluster: Cluster, orders: list[TopicPartition]
) -> None:
    await members.stable(cluster, "billing", "orders")
    for dry_run in (True, False):
        with pytest.raises(KafkaError) as refused:
            await admin.reset_group_offsets("billing", Earliest(), topics=["orders"], dry_run=dry_run)
        assert refused.value.code == ErrorCode.NON_EMPTY_GROUP
        assert "group billing is Stable with 1 member (" in refused.value.why
        assert "only be reset while a group has no members" in refused.value.why
    altered = await admin.alter_group_offsets("billing", {orders[0]: 4})
    assert altered.failed[orders[0]].code == ErrorCode.UNKNOWN_MEMBER_ID
    assert "stop its members first" in altered.failed[orders[0]].why
    deleted = await admin.delete_group_offsets("billing", orders)
    assert {each.code for each in deleted.failed.values()} == {ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}
    with pytest.raises(KafkaError) as refused:
        await admin.delete_group("billing")
    assert refused.value.code == ErrorCode.NON_EMPTY_GROUP
    (member,) = (await admin.describe_group("billing")).members
    assert refused.value.why == f"the group has 1 member ({member.client_id} at 127.0.0.1)"
    assert await admin.list_group_offsets("billing") == {}


async def test_members_are_removed_by_their_ids(
    admin: Admin, cluster: Cluster, orders: list[TopicPartition]
) -> None:
    static, dynamic = await members.two(cluster, "billing", "orders", "i1")
    assert {each.member_id for each in (await admin.describe_group("billing")).members} == {static, dynamic}
    assert await admin.remove_members("billing", member_ids=[], instance_ids=[]) == {}
    removed = await admin.remove_members("billing", member_ids=["m9"], instance_ids=["i1", "i9"])
    assert {name: error.code for name, error in removed.failed.items()} == {
        "m9": ErrorCode.UNKNOWN_MEMBER_ID,
        "i9": ErrorCode.UNKNOWN_MEMBER_ID,
    }
    assert removed.failed["m9"].why == "group billing, member m9: the group has no member of that id"
    assert removed.failed["i9"].why.startswith("group billing, group instance id i9: the group has no member")
    assert removed.succeeded == {"i1": None}
    assert await admin.remove_members("billing", member_ids=[dynamic]) == {dynamic: None}
    assert (await admin.describe_group("billing")).state == "Empty"


async def test_all_members_are_removed(admin: Admin, cluster: Cluster, orders: list[TopicPartition]) -> None:
    ids = await members.two(cluster, "billing", "orders", "i1")
    removed = await admin.remove_members("billing", reason="maintenance")
    assert removed == dict.fromkeys(ids)
    assert (await admin.describe_group("billing")).state == "Empty"
    with pytest.raises(KafkaError) as failed:
        await admin.remove_members("nobody")
    assert failed.value.code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_groups_are_deleted(admin: Admin, cluster: Cluster, orders: list[TopicPartition]) -> None:
    await members.stable(cluster, "active", "orders")
    await admin.alter_group_offsets("idle", {orders[0]: 4})
    deleted = await admin.delete_groups(["idle", "nobody", "active"])
    assert deleted["idle"] is None
    assert {name: error.code for name, error in deleted.failed.items()} == {
        "nobody": ErrorCode.GROUP_ID_NOT_FOUND,
        "active": ErrorCode.NON_EMPTY_GROUP,
    }
    assert await admin.list_group_offsets("idle") == {}
    described = await admin.describe_groups(["idle", "active"])
    assert described.failed["idle"].code == ErrorCode.GROUP_ID_NOT_FOUND
    assert list(described.succeeded) == ["active"]


async def test_groups_of_all_brokers() -> None:
    with testing.Cluster(3, lease_term_ms=TERM_MS) as brokers:
        async with Admin(brokers.bootstrap) as admin:
            await admin.create_topic("t")
            groups = ["a", "b", "c", "d", "e", "f"]
            assert len({brokers.coordinator_of(each) for each in groups}) > 1
            for each in groups:
                await admin.alter_group_offsets(each, {TopicPartition("t", 0): 0})
            assert [each.group_id for each in await admin.list_groups()] == groups
            described = (await admin.describe_groups(groups)).raise_for_failures()
            assert [each.coordinator.node_id - 1 for each in described.values()] == [
                brokers.coordinator_of(each) for each in groups
            ]
            assert await admin.delete_groups(groups) == dict.fromkeys(groups)
            assert await admin.list_groups() == []


async def test_a_coordinator_that_leaves_the_cluster_while_it_answers() -> None:
    asked, go = asyncio.Event(), asyncio.Event()
    group = DescribeGroupsResponse.DescribedGroup(
        group_id="g", group_state="Empty", protocol_type="consumer", protocol_data="", members=[]
    )

    class Leaving(FakeCluster):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await shake_hands(reader, writer, self.versions)
            while True:
                head, request = await read_request(reader)
                if head.api_key == ApiKey.METADATA:
                    assert isinstance(request, MetadataRequest)
                    answer(writer, head, self.metadata(request))
                elif head.api_key == ApiKey.DESCRIBE_GROUPS:
                    asked.set()
                    await go.wait()
                    answer(writer, head, DescribeGroupsResponse(groups=[group]))
                else:
                    assert isinstance(request, FindCoordinatorRequest)
                    answer(writer, head, self.found(request))

    fake = Leaving()
    fake.versions[ApiKey.DESCRIBE_GROUPS] = (0, 5)
    fake.coordinator = 2
    async with asyncio.timeout(LONG_S), fake.listening(1, 2) as (one, two), Admin(str(one)) as admin:
        await admin.list_topics()
        describing = asyncio.create_task(admin.describe_group("g"))
        await asked.wait()
        del fake.nodes[2]
        await admin.list_topics()
        go.set()
        assert (await describing).coordinator == (2, *two, None)
