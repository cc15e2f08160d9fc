"""Bounds on what one client can make a broker hold and do."""

from __future__ import annotations

import asyncio

import pytest

from muster.coordinator.base.step import RequestContext
from muster.coordinator.security.acls import Access, Acl, Filter, Pattern, acl_filter
from muster.coordinator.security.decisions import Acls
from muster.coordinator.server.apis.metadata import metadata
from muster.coordinator.server.config_rows import ConfigRows
from muster.coordinator.server.kept_acls import REMOVED_MAX, KeptAcls
from muster.coordinator.server.memory import ResponseReservation
from muster.coordinator.storage.memory import MemoryStore
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.acls import Operation, PatternType, Permission, ResourceType
from muster.protocol.messages.classic_group import SyncGroupRequest
from muster.protocol.messages.connection import ApiVersionsRequest
from muster.protocol.messages.consumer_group import ConsumerGroupDescribeRequest
from muster.protocol.messages.group_admin import DescribeGroupsRequest
from muster.protocol.messages.metadata import MetadataRequest
from muster.protocol.messages.offsets import OffsetCommitRequest, OffsetFetchRequest
from muster.protocol.messages.topics import CreateTopicsRequest
from muster.protocol.messages.transactions import DescribeTransactionsRequest
from tests.server.conftest import StartBrokers
from tests.server.test_classic_group import join
from tests.server.test_data import Topic, batch, values_in
from tests.server.test_metadata import asking
from tests.support.wire import Wire

_UNGIVEN = RequestContext(api_version=12, client_id="c", client_host="/127.0.0.1", connection_id=1)


async def test_a_request_may_list_so_much_and_no_more(start_brokers: StartBrokers) -> None:
    broker = (await start_brokers(request_elements_max=1_000)).brokers[0]
    names = [f"t{number}" for number in range(1_001)]
    async with await Wire.connect(broker.port) as wire:
        assert len((await wire.call(asking(*names[:1_000]), 12)).topics) == 1_000
        await wire.send(asking(*names), 12)
        assert await wire.closed()
        assert broker.connections.counts.too_large == 1


async def test_groups_of_thousands_of_large_members_are_within_the_bounds(port: int) -> None:
    """What is refused is refused by the group, so the request was read."""
    async with await Wire.connect(port) as wire:
        await wire.call(ApiVersionsRequest(), 0)
        joined = await wire.call(join(metadata=bytes(10 << 20)), 5)
        assert joined.error_code == ErrorCode.MEMBER_ID_REQUIRED
        assignments = [
            SyncGroupRequest.Assignment(member_id=f"consumer-{number}-{'x' * 36}", assignment=bytes(1_000))
            for number in range(12_000)
        ]
        synced = await wire.call(
            SyncGroupRequest(group_id="orders", generation_id=1, member_id="m", assignments=assignments), 3
        )
        assert synced.error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_long_list_leaves_the_loop_to_others(start_brokers: StartBrokers) -> None:
    broker = (await start_brokers()).brokers[0]
    names = [MetadataRequest.Topic(name=f"t{number}") for number in range(20_000)]
    request = MetadataRequest(topics=names, allow_auto_topic_creation=False)
    listing = asyncio.ensure_future(metadata(broker, request, _UNGIVEN))
    async with await Wire.connect(broker.port) as wire:
        await wire.call(ApiVersionsRequest(), 0)
        assert not listing.done()
    assert len((await listing).topics) == 20_000


async def with_acls(count: int) -> KeptAcls:
    """That many ACLs of a topic."""
    store = MemoryStore()
    await store.open()
    kept = KeptAcls(ConfigRows(store), default=False)
    pattern = Pattern(ResourceType.TOPIC, PatternType.LITERAL, "t")
    await kept.create(
        [
            Acl(pattern, Access(f"User:{number}", "*", Operation.READ, Permission.ALLOW))
            for number in range(count)
        ]
    )
    return kept


async def test_filters_that_look_at_all_acls_leave_the_loop_to_others() -> None:
    kept = await with_acls(1_000)
    of_nobody = acl_filter(ResourceType.ANY, PatternType.ANY, None, "User:none", None, 1, 1)
    removing = asyncio.ensure_future(kept.remove([of_nobody] * 200))
    turns = 0
    while not removing.done():
        await asyncio.sleep(0)
        turns += 1
    assert await removing == [[]] * 200
    assert turns >= 199


async def test_too_many_acls_to_remove_are_refused_before_they_are_collected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = await with_acls(1_000)
    looked: list[Filter] = []
    selected = Acls.selected

    def looking(acls: Acls, by: Filter) -> dict[Pattern, list[Access]]:
        looked.append(by)
        return selected(acls, by)

    monkeypatch.setattr(Acls, "selected", looking)
    of_all = acl_filter(ResourceType.ANY, PatternType.ANY, None, None, None, 1, 1)
    with pytest.raises(KafkaError, match="at most 10000 ACLs"):
        await kept.remove([of_all] * 1_000)
    assert len(looked) == REMOVED_MAX // 1_000 + 1
    assert kept.in_force is not None
    assert len(kept.in_force) == 1_000


async def test_what_is_named_again_and_again_is_described_once(port: int) -> None:
    """Each answer would be large, and there is no end to what a short request can name."""
    names = ["named", "other", *["named"] * 10_000]
    async with await Wire.connect(port) as wire:
        described = (await wire.call(DescribeGroupsRequest(groups=names), 5)).groups
        assert [each.group_id for each in described] == ["named", "other"]
        asked = ConsumerGroupDescribeRequest(group_ids=names, include_authorized_operations=False)
        assert [each.group_id for each in (await wire.call(asked, 1)).groups] == ["named", "other"]
        told = (await wire.call(DescribeTransactionsRequest(transactional_ids=names), 0)).transaction_states
        assert [each.transactional_id for each in told] == ["named", "other"]


async def test_offsets_that_are_named_again_and_again_are_fetched_once(start_brokers: StartBrokers) -> None:
    broker = (await start_brokers()).brokers[0]
    await broker.catalogue.create("t", partitions=1)
    Group = OffsetFetchRequest.Group
    part = OffsetCommitRequest.Partition(
        partition_index=0, committed_offset=7, committed_metadata="m" * 4_000
    )
    committed = [OffsetCommitRequest.Topic(name="t", partitions=[part])]
    named = OffsetFetchRequest.Topics(name="t", partition_indexes=[0])
    often = OffsetFetchRequest.Topics(name="t", partition_indexes=[0] * 1_000)
    async with await Wire.connect(broker.port) as wire:
        await wire.call(OffsetCommitRequest(group_id="g", member_id="", topics=committed), 8)
        for groups in (
            [Group(group_id="g", topics=None)] * 1_000,
            [Group(group_id="g", topics=[named])] * 1_000,
            [Group(group_id="g", topics=[named] * 1_000)],
            [Group(group_id="g", topics=[often])],
        ):
            (group,) = (await wire.call(OffsetFetchRequest(groups=groups), 9)).groups
            ((fetched,),) = (topic.partitions for topic in group.topics)
            assert (fetched.committed_offset, fetched.metadata) == (7, "m" * 4_000)
        of_one = [OffsetFetchRequest.Topic(name="t", partition_indexes=[0] * 1_000)] * 2
        ((fetched,),) = (
            topic.partitions
            for topic in (await wire.call(OffsetFetchRequest(group_id="g", topics=of_one), 7)).topics
        )
        assert fetched.committed_offset == 7


async def test_while_responses_wait_for_their_takers_a_fetch_returns_one_batch(
    start_brokers: StartBrokers,
) -> None:
    brokers = await start_brokers(queued_max_response_bytes=1_000_000)
    broker = brokers.brokers[0]
    created = await broker.catalogue.create("t")
    async with await Wire.connect(broker.port) as wire:
        topic = Topic(wire, created.topic_id, brokers)
        for number in range(5):
            await topic.produce(batch(b"%d" % number * 1_000))
        with ResponseReservation(broker.connections.responses) as others:
            others.hold(1_000_000)
            assert len(values_in((await topic.fetch()).records)) == 1
        assert len(values_in((await topic.fetch()).records)) == 5
        assert broker.connections.responses.held_bytes == 0


async def test_a_fetch_that_waits_holds_no_memory(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers()
    broker = brokers.brokers[0]
    created = await broker.catalogue.create("t")
    async with await Wire.connect(broker.port) as wire, await Wire.connect(broker.port) as producing:
        topic, producer = (Topic(each, created.topic_id, brokers) for each in (wire, producing))
        await producer.produce(batch(b"1"))
        await wire.send(topic.fetching(max_wait_ms=60_000, min_bytes=100), 12)
        async with asyncio.timeout(30):
            while not broker.partitions._fetches:  # noqa: ASYNC110 - any turn of the loop may bring it
                await asyncio.sleep(0)
            while broker.connections.responses.held_bytes:  # noqa: ASYNC110
                await asyncio.sleep(0)
        await producer.produce(batch(b"2" * 100))
        (fetched,) = (await wire.receive()).responses[0].partitions
        assert len(values_in(fetched.records)) == 2


async def test_what_a_client_sent_comes_back_shortened(port: int) -> None:
    config = CreateTopicsRequest.CreatableTopicConfig(name="c" * 32_760, value="1")
    topic = CreateTopicsRequest.CreatableTopic(
        name="t", num_partitions=1, replication_factor=1, assignments=[], configs=[config]
    )
    async with await Wire.connect(port) as wire:
        request = CreateTopicsRequest(topics=[topic], timeout_ms=1_000, validate_only=False)
        (created,) = (await wire.call(request, 7)).topics
    assert created.error_code == ErrorCode.INVALID_CONFIG
    assert len(created.error_message) < 2_000
    assert "ccc" in created.error_message
