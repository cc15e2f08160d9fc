"""Offsets of logs and of groups."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

import pytest

from muster.client.admin.client import Admin
from muster.client.admin.offsets import (
    EARLIEST,
    HIGH_WATERMARK,
    LATEST,
    MAX_TIMESTAMP,
    READ_COMMITTED,
    list_group_offsets,
)
from muster.client.network.cluster import Cluster
from muster.client.network.connection import deadline
from muster.client.partitions import OffsetAndMetadata, TopicPartition
from muster.client.producer import Producer
from muster.coordinator import testing
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from tests.client.fake_cluster import FakeCluster
from tests.support.leases import TERM_MS, die


async def test_where_logs_begin_and_end(admin: Admin, orders: list[TopicPartition]) -> None:
    full, empty = orders
    for what, offset, timestamp in ((EARLIEST, 3, -1), (LATEST, 10, -1), (MAX_TIMESTAMP, 9, 10_000)):
        found = (await admin.list_offsets(dict.fromkeys(orders, what))).raise_for_failures()
        at = found[full]
        assert at is not None
        assert at[:2] == (offset, timestamp)
        at = found[empty]
        assert at is None if what == MAX_TIMESTAMP else at is not None and at[:2] == (0, -1)


async def test_records_are_found_by_their_time(admin: Admin, orders: list[TopicPartition]) -> None:
    full, empty = orders

    async def at(moment: int | datetime) -> tuple[int, int] | None:
        found = (await admin.list_offsets({full: moment}, isolation_level=READ_COMMITTED))[full]
        assert not isinstance(found, KafkaError)
        return None if found is None else (found.offset, found.timestamp)

    assert await at(0) == (3, 4000)
    assert await at(4001) == (4, 5000)
    assert await at(datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)) == (4, 5000)
    assert await at(10_001) is None
    assert await admin.list_offsets({empty: 0}) == {empty: None}
    with pytest.raises(ValueError, match=r"orders-0: 1970-01-01T00:00:00 has no time zone; it takes one"):
        await at(datetime(1970, 1, 1))
    with pytest.raises(TypeError, match=r"orders-0: it takes whole epoch milliseconds, .* not 1\.5"):
        await at(1.5)  # type: ignore[arg-type]


async def test_what_is_not_there_keeps_nothing_else_from_being_found(
    admin: Admin, orders: list[TopicPartition]
) -> None:
    beyond, nowhere = TopicPartition("orders", 2), TopicPartition("nope", 0)
    found = await admin.list_offsets(dict.fromkeys([beyond, *orders, nowhere], LATEST))
    assert list(found.succeeded) == orders
    assert {where: each.code for where, each in found.failed.items()} == {
        beyond: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        nowhere: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert found.failed[beyond].why == "topic orders has no partition 2; it has 2"


async def test_records_are_deleted(admin: Admin, orders: list[TopicPartition]) -> None:
    full, empty = orders
    assert await admin.delete_records({full: 5}) == {full: 5}
    assert await admin.delete_records({full: 5}) == {full: 5}
    outcomes = await admin.delete_records({full: 99, empty: HIGH_WATERMARK})
    assert outcomes[empty] == 0
    assert outcomes.failed[full].code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert await admin.delete_records({full: HIGH_WATERMARK}) == {full: 10}


async def test_offsets_of_groups(admin: Admin, orders: list[TopicPartition]) -> None:
    full, empty = orders
    assert await admin.list_group_offsets("billing") == {}
    committed = {empty: OffsetAndMetadata(0, "nothing yet"), full: OffsetAndMetadata(7, "", 1)}
    altered = await admin.alter_group_offsets("billing", committed)
    assert altered == {empty: None, full: None}
    assert list((await admin.list_group_offsets("billing")).items()) == [
        (full, committed[full]),
        (empty, committed[empty]),
    ]
    nowhere = TopicPartition("nope", 0)
    altered = await admin.alter_group_offsets("audit", {full: 4, nowhere: 4})
    assert altered[full] is None
    assert altered.failed[nowhere].code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await admin.list_groups_offsets(["audit", "nobody", "billing"]) == {
        "audit": {full: OffsetAndMetadata(4)},
        "nobody": {},
        "billing": committed,
    }
    with pytest.raises(ValueError, match="orders-0: offset -1 is below 0"):
        await admin.alter_group_offsets("audit", {full: -1})


async def test_more_groups_than_python_nests_calls_at_a_broker_that_takes_one_a_request() -> None:
    fake = FakeCluster()
    fake.versions[ApiKey.OFFSET_FETCH] = (1, 7)
    groups = [f"g{number}" for number in range(sys.getrecursionlimit() + 1)]
    async with fake.listening(1) as addresses, Cluster(addresses) as cluster:
        found = await list_group_offsets(cluster, groups, deadline(60))
    assert found == {group_id: {} for group_id in groups}
    assert fake.requests[ApiKey.OFFSET_FETCH] == len(groups)


async def test_offsets_are_deleted(admin: Admin, orders: list[TopicPartition]) -> None:
    full, empty = orders
    await admin.alter_group_offsets("billing", {full: 4, empty: 0})
    assert await admin.delete_group_offsets("billing", [empty]) == {empty: None}
    assert list(await admin.list_group_offsets("billing")) == [full]
    with pytest.raises(KafkaError) as failed:
        await admin.delete_group_offsets("nobody", [full])
    assert failed.value.code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_each_group_and_each_partition_is_asked_about_where_it_is() -> None:
    with testing.Cluster(3, lease_term_ms=TERM_MS) as brokers:
        partitions = [TopicPartition("t", each) for each in range(12)]
        groups = [f"g{each}" for each in range(8)]
        async with Admin(brokers.bootstrap) as admin, Producer[bytes, bytes](brokers.bootstrap) as producer:
            await admin.create_topic("t", 12)
            assert len({each.leader for each in (await admin.describe_topic("t")).partitions}) == 3
            for where in partitions:
                await producer.send("t", b"x", partition=where.partition)
            ends = (await admin.list_offsets(dict.fromkeys(partitions, LATEST))).raise_for_failures()
            assert [each and each.offset for each in ends.values()] == [1] * 12
            assert (await admin.delete_records(dict.fromkeys(partitions, 1))) == dict.fromkeys(partitions, 1)
            assert len({brokers.coordinator_of(each) for each in groups}) > 1
            for each in groups:
                assert not (await admin.alter_group_offsets(each, dict.fromkeys(partitions, 1))).failed
            found = await admin.list_groups_offsets(groups)
            assert list(found) == groups
            assert [len(each) for each in found.raise_for_failures().values()] == [12] * 8
            # Moved leaders and coordinators are found again.
            index = brokers.coordinator_of(groups[0])
            assert index is not None
            die(brokers, index)
            found = await admin.list_groups_offsets(groups)
            assert [len(each) for each in found.raise_for_failures().values()] == [12] * 8
            ends = (await admin.list_offsets(dict.fromkeys(partitions, LATEST))).raise_for_failures()
            assert [each and each.offset for each in ends.values()] == [1] * 12


async def test_a_broker_that_hangs_does_not_use_up_the_time_of_a_call() -> None:
    """By then, other brokers lead the partitions that it led, and are asked."""
    with testing.Cluster(3, lease_term_ms=TERM_MS) as brokers:
        brokers.create_topic("t", 12)
        async with Admin(brokers.bootstrap, request_timeout_ms=1_000) as admin:
            wanted = {TopicPartition("t", each): LATEST for each in range(12)}
            assert len((await admin.list_offsets(wanted)).succeeded) == 12
            brokers.pause(0)
            brokers.clock.advance(TERM_MS / 1_000)
            try:
                found = await admin.list_offsets(wanted, timeout=60)
            finally:
                brokers.resume(0)
            assert list(found.succeeded) == list(wanted)
