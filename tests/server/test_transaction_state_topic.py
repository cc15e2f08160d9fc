"""`__transaction_state` as clients see it: led by the transaction coordinators, read like any topic, and not
theirs to change.

What it has in common with `__consumer_offsets` is tested there.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

import pytest

from muster.coordinator.base.step import RequestContext
from muster.coordinator.cluster.placement import TRANSACTIONS_TOPIC, shard_of
from muster.coordinator.server.broker import Broker
from muster.coordinator.storage.store import Lease, LeaseKind
from muster.coordinator.transactions.shard import TransactionShard
from muster.protocol.errors import ErrorCode
from muster.protocol.message import Message
from muster.protocol.messages.configs import DescribeConfigsRequest
from muster.protocol.messages.metadata import FindCoordinatorRequest
from muster.protocol.messages.topics import CreateTopicsRequest
from muster.protocol.messages.transaction_records import (
    TransactionLogKey,
    TransactionLogValue,
    decode_record,
)
from muster.protocol.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from tests.server.conftest import StartBrokers
from tests.server.internal_topics import InternalTopic
from tests.server.test_offsets_topic import codes_in, refusals
from tests.support.wire import Wire
from tests.topics.support import read_records

DEADLINE_S = 30
ID = "payments"
SHARD = shard_of(ID)


_TOPIC: Final = InternalTopic(TRANSACTIONS_TOPIC)
told, fetching, fetched = _TOPIC.told, _TOPIC.fetching, _TOPIC.fetched


async def started(broker: Broker, transactional_id: str = ID) -> InitProducerIdResponse:
    """Start a transactional producer at its coordinator."""
    await broker.producer_ids.fetch()
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
    context = RequestContext(5, "producer", "/127.0.0.1", 0)
    answer: InitProducerIdResponse = await broker.transaction_runtime.call(
        transactional_id, TransactionShard.start, request, context
    )
    return answer


def states(answer: Any) -> list[tuple[str, int]]:
    """Transactional ids and their epochs."""
    assert answer.error_code == 0
    found = []
    for record in read_records(answer.records):
        match decode_record(record.key or b"", record.value):
            case (TransactionLogKey() as key, TransactionLogValue() as value):
                assert record.timestamp == value.transaction_last_update_timestamp_ms
                found.append((key.transactional_id, value.producer_epoch))
    return found


async def test_its_partitions_are_the_coordinators(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers(brokers=3)
    ids = set()
    for broker in brokers.brokers:
        async with await Wire.connect(broker.port) as wire:
            topic = await told(wire)
            async with asyncio.timeout(DEADLINE_S):
                while {each.leader_id for each in topic.partitions} != {1, 2, 3}:
                    topic = await told(wire)
            ids.add(topic.topic_id)
            assert (topic.error_code, topic.is_internal, len(topic.partitions)) == (0, True, 50)
            leaders = {each.partition_index: each.leader_id for each in topic.partitions}
            of_groups = {
                number: grant.node_id
                for (kind, number), grant in broker.topology.holders.items()
                if kind is LeaseKind.GROUP
            }
            assert leaders != of_groups, "placed on their own"
            for number in range(100):
                find = FindCoordinatorRequest(key_type=1, coordinator_keys=[f"id-{number}"])
                (found,) = (await wire.call(find, 4)).coordinators
                assert found.node_id == leaders[shard_of(f"id-{number}")]
            for index, leader in leaders.items():
                answer = await fetched(wire, index)
                assert answer.error_code == (
                    0 if leader == broker.node_id else ErrorCode.NOT_LEADER_OR_FOLLOWER
                )
    assert len(ids) == 1


async def test_the_last_state_of_each_id_with_its_time(start_brokers: StartBrokers) -> None:
    (broker,) = (await start_brokers()).brokers
    async with await Wire.connect(broker.port) as wire:
        await wire.send(fetching(SHARD, max_wait_ms=600_000), 12)
        await started(broker)
        assert states((await wire.receive()).responses[0].partitions[0]) == [(ID, 0)]
        await started(broker)
        answer = await fetched(wire, SHARD)
        assert (states(answer), answer.high_watermark) == ([(ID, 1)], 2)
        assert (await fetched(wire, 50)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_reader_goes_on_where_it_was_after_a_restart(
    tmp_path: Path, start_brokers: StartBrokers
) -> None:
    settings = {"ephemeral": False, "data": str(tmp_path)}
    for epoch in range(2):
        brokers = await start_brokers(**settings)
        (broker,) = brokers.brokers
        await broker.transaction_runtime.loaded()
        await started(broker)
        async with await Wire.connect(broker.port) as wire:
            assert states(await fetched(wire, SHARD, epoch)) == [(ID, epoch)]
        await brokers.stop()


async def test_a_reader_goes_on_where_it_was_at_the_next_coordinator(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers(brokers=2)
    lease = Lease(LeaseKind.TRANSACTION, SHARD)
    holder = next(broker for broker in brokers.brokers if broker.membership.serving(lease))
    (other,) = [broker for broker in brokers.brokers if broker is not holder]
    await started(holder)
    async with await Wire.connect(other.port) as there:
        assert (await fetched(there, SHARD)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await brokers.stop_one(brokers.brokers.index(holder))
        async with asyncio.timeout(DEADLINE_S):
            while (answer := await fetched(there, SHARD)).error_code:
                assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert states(answer) == [(ID, 0)]
        await other.transaction_runtime.loaded()
        await started(other)
        assert states(await fetched(there, SHARD, answer.high_watermark)) == [(ID, 1)]


@pytest.mark.parametrize(
    ("name", "request_", "version"), refusals(TRANSACTIONS_TOPIC), ids=lambda each: str(each)[:14]
)
async def test_it_cannot_be_changed(port: int, name: str, request_: Message, version: int) -> None:
    async with await Wire.connect(port) as wire:
        assert codes_in(await wire.call(request_, version)) == {ErrorCode.INVALID_TOPIC_EXCEPTION}, name
        assert (len((await told(wire)).partitions), (await fetched(wire, SHARD)).high_watermark) == (50, 0)


async def test_it_exists_so_it_cannot_be_created(port: int) -> None:
    topic = CreateTopicsRequest.CreatableTopic(
        name=TRANSACTIONS_TOPIC, num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    async with await Wire.connect(port) as wire:
        (answer,) = (await wire.call(CreateTopicsRequest(topics=[topic]), 7)).topics
        assert answer.error_code == ErrorCode.TOPIC_ALREADY_EXISTS


async def test_its_configs_can_be_read(port: int) -> None:
    keys = ["cleanup.policy", "compression.type", "segment.bytes", "unclean.leader.election.enable"]
    asked = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=2, resource_name=TRANSACTIONS_TOPIC, configuration_keys=keys
    )
    async with await Wire.connect(port) as wire:
        (answer,) = (await wire.call(DescribeConfigsRequest(resources=[asked]), 4)).results
    assert {each.name: each.value for each in answer.configs} == dict(
        zip(keys, ("compact", "uncompressed", "104857600", "false"), strict=True)
    )
