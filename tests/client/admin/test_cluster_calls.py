"""The cluster, log directories, elections, producers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from muster.client.admin import cluster as cluster_calls
from muster.client.admin.client import Admin
from muster.client.admin.replicas import ElectionType
from muster.client.network.cluster import Cluster, parse_bootstrap
from muster.client.network.connection import deadline
from muster.client.partitions import TopicPartition
from muster.client.producer import Producer
from muster.coordinator import testing
from muster.protocol.errors import ErrorCode, KafkaError
from tests.support.leases import TERM_MS


async def test_three_brokers(tmp_path: Path) -> None:
    with testing.Cluster(3, data=tmp_path, rack="r1", lease_term_ms=TERM_MS) as brokers:
        async with Admin(brokers.bootstrap) as admin, Producer[bytes, bytes](brokers.bootstrap) as producer:
            described = await admin.describe_cluster()
            assert described.cluster_id
            assert described.controller in (1, 2, 3)
            assert [(each.node_id, each.host, each.port, each.rack) for each in described.brokers] == [
                (index + 1, "127.0.0.1", port, "r1") for index, port in enumerate(brokers.ports)
            ]
            await admin.create_topic("t", 6)
            partitions = [TopicPartition("t", each) for each in range(6)]
            for where in partitions:
                await producer.send("t", b"x" * 100, partition=where.partition)
            found = (await admin.describe_log_dirs()).raise_for_failures()
            assert list(found) == [1, 2, 3]
            leaders = {each.partition: each.leader for each in (await admin.describe_topic("t")).partitions}
            for node, (directory,) in found.items():
                assert directory.error is None
                assert str(tmp_path) in directory.path
                assert directory.total_bytes is not None
                assert directory.usable_bytes is not None
                mine = {where for where in directory.replicas if where.topic == "t"}
                assert mine == {where for where in partitions if leaders[where.partition] == node}
                for where in mine:
                    assert directory.replicas[where].size_bytes > 100
                    assert directory.replicas[where][1:] == (0, False)
            some = await admin.describe_log_dirs([2, 9])
            assert list(some.succeeded) == [2]
            assert some.failed[9].code == ErrorCode.BROKER_ID_NOT_REGISTERED
            assert some.failed[9].why == "broker 9 is not in the cluster"
            producers = (await admin.describe_producers(partitions)).raise_for_failures()
            ids = {state.producer_id for states in producers.values() for state in states}
            assert [len(states) for states in producers.values()] == [1] * 6
            assert len(ids) == 1
            (state,) = producers[partitions[0]]
            assert (state.last_sequence, state.coordinator_epoch, state.transaction_start_offset) == (
                0,
                None,
                None,
            )
            assert state.last_timestamp > 0


async def test_elections(admin: Admin, orders: list[TopicPartition]) -> None:
    beyond = TopicPartition("orders", 2)
    for election_type in ElectionType:
        outcomes = await admin.elect_leaders([*orders, beyond], election_type=election_type)
        assert [each.code for each in outcomes.failed.values()] == [
            ErrorCode.ELECTION_NOT_NEEDED,
            ErrorCode.ELECTION_NOT_NEEDED,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
    assert await admin.elect_leaders() == {}


async def test_reassignments(admin: Admin, orders: list[TopicPartition]) -> None:
    first, second = orders
    beyond = TopicPartition("orders", 2)
    outcomes = await admin.alter_partition_reassignments({first: [1], second: None, beyond: [1]})
    assert outcomes.succeeded == {first: None}
    assert outcomes.failed[second].code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert outcomes.failed[beyond].code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    outcomes = await admin.alter_partition_reassignments(
        {first: [1, 9], second: []}, allow_replication_factor_change=False
    )
    assert {each.code for each in outcomes.failed.values()} == {ErrorCode.INVALID_REPLICA_ASSIGNMENT}
    assert await admin.list_partition_reassignments() == {}
    assert await admin.list_partition_reassignments([first]) == {}


async def test_partitions_nobody_numbered(admin: Admin, orders: list[TopicPartition]) -> None:
    full, empty = orders
    beyond = TopicPartition("orders", 2)
    outcomes = await admin.describe_producers([empty, beyond])
    assert outcomes.succeeded == {empty: []}
    assert outcomes.failed[beyond].code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert len((await admin.describe_producers([full])).raise_for_failures()[full]) == 1


async def test_leases_of_brokers_of_muster() -> None:
    with testing.Cluster(2, lease_term_ms=TERM_MS) as brokers:
        async with Cluster(parse_bootstrap(brokers.bootstrap)) as cluster:
            plain = await cluster_calls.describe_cluster(cluster, deadline(30))
            assert plain.leases is None
            described = await cluster_calls.describe_cluster(cluster, deadline(30), leases=True)
            assert described[:3] == plain[:3]
            leases = described.leases
            assert leases is not None
            assert leases.answering in (1, 2)
            assert list(leases.registrations) == [1, 2]
            assert {each.kind for each in leases.of(1)} == {"group", "transaction", "data"}
            assert len(leases.of(1)) + len(leases.of(2)) == len(leases.leases) == 150
            assert len(leases.of(1, "group")) == sum(
                each.holder == 1 for each in leases.leases if each.kind == "group"
            )
            await cluster_calls.set_drained(cluster, 2, True, deadline(30))
            async with asyncio.timeout(30):
                while True:
                    leases = (await cluster_calls.describe_cluster(cluster, deadline(30), leases=True)).leases
                    assert leases is not None
                    if leases.registrations[2].drained and not leases.of(2):
                        break
            assert not leases.registrations[1].drained
            with pytest.raises(KafkaError, match="broker 9 is not in the cluster"):
                await cluster_calls.set_drained(cluster, 9, True, deadline(30))
