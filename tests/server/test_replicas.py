"""Replica lists: what was asked for is kept, the first live broker of a list leads, and lists change."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from muster.coordinator.server.apis import reassignments
from muster.coordinator.server.broker import Broker
from muster.coordinator.server.broker_configs import DRAINED
from muster.coordinator.server.brokers import Brokers
from muster.coordinator.storage.store import Grant
from muster.coordinator.topics.catalogue import Topic
from muster.coordinator.topics.config import ConfigChange, Operation
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.cluster import ElectLeadersRequest
from muster.protocol.messages.data import FetchRequest, ProduceRequest
from muster.protocol.messages.metadata import DescribeTopicPartitionsRequest, MetadataRequest
from muster.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
)
from muster.protocol.messages.topics import CreatePartitionsRequest, CreateTopicsRequest
from tests.server.conftest import StartBrokers
from tests.server.test_data import batch, values_in
from tests.support.facts import until
from tests.support.leases import TERM_MS, let_pass
from tests.support.wire import Wire

Alter = AlterPartitionReassignmentsRequest
Told = tuple[int, list[int], list[int]]
"""Leader, replicas, ISR."""


async def call(broker: Broker, request: Any, version: int) -> Any:
    async with await Wire.connect(broker.port) as wire:
        return await wire.call(request, version)


async def create(broker: Broker, name: str = "t", **asked: Any) -> Any:
    lists = asked.pop("assigned", ())
    fields = {"num_partitions": -1, "replication_factor": -1, **asked}
    topic = CreateTopicsRequest.CreatableTopic(
        name=name,
        configs=[],
        assignments=[
            CreateTopicsRequest.CreatableReplicaAssignment(partition_index=index, broker_ids=list(replicas))
            for index, replicas in enumerate(lists)
        ],
        **fields,
    )
    (result,) = (await call(broker, CreateTopicsRequest(topics=[topic]), 7)).topics
    return result


async def told(broker: Broker, name: str = "t") -> list[Told]:
    asked = MetadataRequest(topics=[MetadataRequest.Topic(name=name)], allow_auto_topic_creation=False)
    (topic,) = (await call(broker, asked, 12)).topics
    return [(each.leader_id, each.replica_nodes, each.isr_nodes) for each in topic.partitions]


async def until_told(brokers: Brokers, wanted: list[Told], name: str = "t") -> None:
    """Check that all running brokers report `wanted`, once they see its leaders and no broker that has
    left."""
    live = {each.node_id for each in brokers.running}
    for broker in brokers.running:

        def leaders(broker: Broker = broker) -> bool:
            topic = broker.catalogue.by_name(name)
            return topic is not None and [each for each, _, _ in wanted] == [
                broker.leader(topic, index).node_id for index in range(topic.partitions)
            ]

        def nodes(broker: Broker = broker) -> bool:
            return set(broker.membership.topology.nodes) == live

        await until(leaders, f"{broker} sees the leaders of {wanted}")
        await until(nodes, f"{broker} sees {live}")
        assert await told(broker, name) == wanted


async def reassign(
    broker: Broker, lists: dict[int, Sequence[int] | None], name: str = "t", version: int = 1, **asked: Any
) -> list[int]:
    topic = Alter.ReassignableTopic(
        name=name,
        partitions=[
            Alter.ReassignablePartition(
                partition_index=index, replicas=None if replicas is None else list(replicas)
            )
            for index, replicas in lists.items()
        ],
    )
    (result,) = (await call(broker, Alter(topics=[topic], **asked), version)).responses
    return [each.error_code for each in result.partitions]


async def elect(broker: Broker, election_type: int, *partitions: int, timeout_ms: int = 10_000) -> list[int]:
    asked = ElectLeadersRequest.TopicPartitions(topic="t", partitions=list(partitions))
    request = ElectLeadersRequest(
        election_type=election_type, topic_partitions=[asked], timeout_ms=timeout_ms
    )
    (result,) = (await call(broker, request, 2)).replica_election_results
    return [each.error_code for each in result.partition_result]


async def drain(broker: Broker, drained: str) -> None:
    change = ConfigChange(DRAINED, Operation.SET, drained)
    await broker.configs.alter(str(broker.node_id), [change], replace=False, validate_only=False)


def leader_of(brokers: Brokers, partition: int = 0) -> Broker:
    first = brokers.running[0]
    node_id = first.leader(first.catalogue.named("t"), partition).node_id
    return next(each for each in brokers.running if each.node_id == node_id)


async def produce(broker: Broker, value: bytes, partition: int = 0) -> int:
    """Produce a record and return the error code."""
    topic = broker.catalogue.named("t")
    data = ProduceRequest.PartitionProduceData(index=partition, records=batch(value))
    of_topic = ProduceRequest.TopicProduceData(name="t", topic_id=topic.topic_id, partition_data=[data])
    request = ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=[of_topic])
    (answer,) = (await call(broker, request, 9)).responses
    return int(answer.partition_responses[0].error_code)


async def values(broker: Broker, partition: int = 0) -> list[bytes | None]:
    asked = FetchRequest.FetchTopic.FetchPartition(
        partition=partition, fetch_offset=0, partition_max_bytes=1 << 20
    )
    request = FetchRequest(
        max_wait_ms=0, min_bytes=0, topics=[FetchRequest.FetchTopic(topic="t", partitions=[asked])]
    )
    (answer,) = (await call(broker, request, 11)).responses
    assert answer.partitions[0].error_code == ErrorCode.NONE
    return values_in(answer.partitions[0].records)


# --- what was asked for is kept -----------------------------------------------------------------------------


async def test_an_explicit_assignment_says_who_leads(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers(brokers=3)
    created = await create(brokers.brokers[0], assigned=[[3, 1], [2, 3]])
    assert (created.error_code, created.num_partitions, created.replication_factor) == (0, 2, 2)
    wanted = [(3, [3, 1], [3, 1]), (2, [2, 3], [2, 3])]
    assert await told(brokers.brokers[0]) == wanted  # with the answer, without waiting
    await until_told(brokers, wanted)
    asked = DescribeTopicPartitionsRequest(topics=[DescribeTopicPartitionsRequest.TopicRequest(name="t")])
    (topic,) = (await call(brokers.brokers[1], asked, 0)).topics
    assert [(each.leader_id, each.replica_nodes, each.isr_nodes) for each in topic.partitions] == wanted


async def test_a_replication_factor_is_spread_over_the_brokers(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers(brokers=3)
    first = brokers.brokers[0]
    assert (await create(first, num_partitions=6, replication_factor=2)).replication_factor == 2
    found = await told(first)
    assert all(leader == replicas[0] and replicas == isr for leader, replicas, isr in found)
    assert all(len(set(replicas)) == 2 for _, replicas, _ in found)
    assert sorted(leader for leader, _, _ in found) == [1, 1, 2, 2, 3, 3]
    assert sorted(each for _, replicas, _ in found for each in replicas) == [1] * 4 + [2] * 4 + [3] * 4


async def test_more_replicas_than_brokers_are_refused(start_brokers: StartBrokers) -> None:
    for count in (1, 2):
        brokers = await start_brokers(brokers=count)
        refused = await create(brokers.brokers[0], num_partitions=1, replication_factor=3)
        assert refused.error_code == ErrorCode.INVALID_REPLICATION_FACTOR


async def test_new_partitions_have_as_many_replicas_as_the_first(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers(brokers=3)
    first = brokers.brokers[0]
    await create(first, assigned=[[3, 1]])

    async def grow(count: int, *lists: Sequence[int]) -> int:
        to = CreatePartitionsRequest.CreatePartitionsAssignment
        assigned = [to(broker_ids=list(each)) for each in lists]
        topic = CreatePartitionsRequest.CreatePartitionsTopic(
            name="t", count=count, assignments=assigned or None
        )
        request = CreatePartitionsRequest(topics=[topic], timeout_ms=10_000, validate_only=False)
        (result,) = (await call(first, request, 3)).results
        return int(result.error_code)

    assert await grow(2, [2]) == await grow(2, [2, 2]) == await grow(2, [2, 9])
    assert await grow(2, [2]) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert await grow(2, [2, 3]) == ErrorCode.NONE
    assert (await told(first))[1] == (2, [2, 3], [2, 3])
    assert await grow(4) == ErrorCode.NONE
    assert all(len(set(replicas)) == 2 for _, replicas, _ in await told(first))


async def test_assignments_outlive_all_brokers(start_brokers: StartBrokers, tmp_path: Path) -> None:
    kept = {"brokers": 3, "ephemeral": False, "data": str(tmp_path)}
    brokers = await start_brokers(**kept)
    await create(brokers.brokers[0], assigned=[[3, 1], [2, 3]])
    assert await reassign(brokers.brokers[0], {1: [1, 2, 3]}) == [ErrorCode.NONE]
    epoch = brokers.brokers[0].leader(brokers.brokers[0].catalogue.named("t"), 1).epoch
    await brokers.stop()
    after = await start_brokers(**kept)
    await until_told(after, [(3, [3, 1], [3, 1]), (1, [1, 2, 3], [1, 2, 3])])
    assert after.brokers[0].leader(after.brokers[0].catalogue.named("t"), 1).epoch > epoch


# --- who leads ----------------------------------------------------------------------------------------------


async def test_the_next_live_replica_leads_and_the_preferred_one_when_it_is_back(
    start_brokers: StartBrokers,
) -> None:
    brokers = await start_brokers(brokers=3, test_mode=True)
    await create(brokers.brokers[0], assigned=[[3, 1]])
    assert await produce(leader_of(brokers), b"a") == ErrorCode.NONE
    await brokers.kill_one(2)
    let_pass(brokers, TERM_MS, brokers.brokers[2])
    await until_told(brokers, [(1, [3, 1], [1])])
    assert await produce(leader_of(brokers), b"b") == ErrorCode.NONE
    await brokers.start_one(2)
    await until_told(brokers, [(3, [3, 1], [3, 1])])
    assert leader_of(brokers).node_id == 3
    assert await values(leader_of(brokers)) == [b"a", b"b"]


async def test_where_no_replica_lives_another_broker_serves_its_records(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers(brokers=3, test_mode=True)
    await create(brokers.brokers[0], assigned=[[3, 1]])
    assert await produce(leader_of(brokers), b"a") == ErrorCode.NONE
    await brokers.kill_one(2)
    await brokers.kill_one(0)
    let_pass(brokers, TERM_MS, brokers.brokers[0], brokers.brokers[2])
    await until_told(brokers, [(2, [3, 1], [])])
    assert await values(leader_of(brokers)) == [b"a"]
    await brokers.start_one(0)
    await until_told(brokers, [(1, [3, 1], [1])])


async def test_a_broker_that_leaves_in_good_order_hands_over_within_the_list(
    start_brokers: StartBrokers,
) -> None:
    brokers = await start_brokers(brokers=3)
    await create(brokers.brokers[0], assigned=[[3, 1], [2, 3]])
    await brokers.stop_one(2)
    await until_told(brokers, [(1, [3, 1], [1]), (2, [2, 3], [2])])


async def test_a_drained_broker_leads_nothing_and_is_in_sync(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers(brokers=3)
    first, _, third = brokers.brokers
    await create(first, assigned=[[3, 1]])
    await create(first, "alone", assigned=[[3]])
    alone = first.catalogue.named("alone")
    await drain(third, "true")
    await until_told(brokers, [(1, [3, 1], [3, 1])])
    await until(lambda: first.leader(alone, 0).node_id in (1, 2), "another leads")
    assert await elect(first, 0, 0) == [ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE]
    await drain(third, "false")
    await until_told(brokers, [(3, [3, 1], [3, 1])])
    await until_told(brokers, [(3, [3], [3])], "alone")


async def test_what_an_election_answers(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers(brokers=3, test_mode=True)
    first = brokers.brokers[0]
    await create(first, assigned=[[3, 1]])
    assert await elect(first, 0, 0, 7) == [
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    await brokers.kill_one(2)
    let_pass(brokers, TERM_MS, brokers.brokers[2])
    await until_told(brokers, [(1, [3, 1], [1])])
    assert await elect(first, 0, 0) == [ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE]
    assert await elect(first, 1, 0) == [ErrorCode.ELECTION_NOT_NEEDED]
    await brokers.start_one(2)
    await until(lambda: 3 in first.topology.nodes, "the preferred leader is back")
    assert await elect(first, 0, 0) in ([ErrorCode.NONE], [ErrorCode.ELECTION_NOT_NEEDED])
    assert (await told(first))[0][0] == 3


# --- reassigning --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [{"num_partitions": 2}, {"assigned": [[1, 2], [2, 1]]}])
async def test_a_reassigned_partition_keeps_its_records_and_its_epochs_grow(
    start_brokers: StartBrokers, asked: dict[str, Any]
) -> None:
    brokers = await start_brokers(brokers=3)
    first = brokers.brokers[0]
    await create(first, **asked)
    topic = first.catalogue.named("t")
    epochs = [first.leader(topic, 0).epoch]
    assert await produce(leader_of(brokers), b"0") == ErrorCode.NONE
    lists = [[3, 1], [2, 3], [3, 1], [1, 3], [2]]
    for number, replicas in enumerate(lists, start=1):
        before = leader_of(brokers)
        assert await reassign(first, {0: replicas}) == [ErrorCode.NONE]
        assert (await told(first))[0] == (replicas[0], replicas, replicas)
        if before.node_id != replicas[0]:
            assert await produce(before, b"stale") == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await until_told(brokers, await told(first))
        assert await produce(leader_of(brokers), str(number).encode()) == ErrorCode.NONE
        epochs.append(first.leader(first.catalogue.named("t"), 0).epoch)
    assert await values(leader_of(brokers)) == [str(number).encode() for number in range(len(lists) + 1)]
    assert epochs == sorted(set(epochs))
    assert (await told(first))[1] == (await told(brokers.brokers[1]))[1]


@pytest.mark.parametrize("version", [0, 1])
async def test_what_a_reassignment_refuses(start_brokers: StartBrokers, version: int) -> None:
    first = (await start_brokers(brokers=3)).brokers[0]
    await create(first, assigned=[[3, 1]] * 6)
    refused = {0: [], 1: [2, 2], 2: [9], 3: None, 6: [1], -1: [1]}
    assert await reassign(first, refused, version=version) == [
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert await reassign(first, {0: [1]}, "nobody", version) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert await told(first) == [(3, [3, 1], [3, 1])] * 6
    if version >= 1:
        fixed = {0: [1], 1: [2, 3]}
        outcomes = await reassign(first, fixed, allow_replication_factor_change=False)
        assert outcomes == [ErrorCode.INVALID_REPLICATION_FACTOR, ErrorCode.NONE]
        assert (await told(first))[:2] == [(3, [3, 1], [3, 1]), (2, [2, 3], [2, 3])]


async def test_entries_of_a_reassignment_for_the_same_partition_have_their_own_outcomes(
    start_brokers: StartBrokers,
) -> None:
    """As in Kafka, which does them one by one: the last valid one stands."""
    first = (await start_brokers(brokers=3)).brokers[0]
    await create(first, assigned=[[1, 2]] * 3)
    lists: dict[int, list[list[int] | None]] = {0: [[3, 1], [9]], 1: [[9], [], None], 2: [[9], [2], [3, 2]]}
    entries = [
        Alter.ReassignablePartition(partition_index=index, replicas=replicas)
        for index, several in lists.items()
        for replicas in several
    ]
    request = Alter(topics=[Alter.ReassignableTopic(name="t", partitions=entries)])
    (result,) = (await call(first, request, 1)).responses
    bad = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert [(each.partition_index, each.error_code) for each in result.partitions] == [
        (0, ErrorCode.NONE),
        (0, bad),
        (1, bad),
        (1, bad),
        (1, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        (2, bad),
        (2, ErrorCode.NONE),
        (2, ErrorCode.NONE),
    ]
    assert [replicas for _, replicas, _ in await told(first)] == [[3, 1], [1, 2], [3, 2]]


async def test_no_reassignment_is_ever_going_on(start_brokers: StartBrokers) -> None:
    first = (await start_brokers(brokers=2)).brokers[0]
    await create(first, assigned=[[1, 2]])
    assert await reassign(first, {0: [2]}) == [ErrorCode.NONE]
    of_topic = ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics(
        name="t", partition_indexes=[0]
    )
    for asked in (None, [of_topic]):
        answer = await call(first, ListPartitionReassignmentsRequest(topics=asked), 0)
        assert (answer.error_code, answer.topics) == (ErrorCode.NONE, [])


async def test_whoever_led_a_partition_stops_before_its_new_leader_begins(
    start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as the old leader has not heard of it, nobody else leads."""
    brokers = await start_brokers(brokers=2)
    first, second = brokers.brokers
    await create(first, assigned=[[2], [2]])
    assert await produce(second, b"a") == ErrorCode.NONE
    topic = second.catalogue.named("t")
    heard = asyncio.Event()
    refresh = second.catalogue.refresh

    async def deaf() -> Any:
        await heard.wait()
        return await refresh()

    monkeypatch.setattr(second.catalogue, "refresh", deaf)
    assert await reassign(first, {0: [1]}, timeout_ms=500) == [ErrorCode.REQUEST_TIMED_OUT]
    assert (await told(first))[0] == (-1, [1], [1])
    assert await produce(first, b"early") == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert second.partitions.leader_epoch(topic, 0) is not None
    assert await produce(second, b"b") == ErrorCode.NONE  # as far as it knows it leads, and it does
    heard.set()
    await until_told(brokers, [(1, [1], [1]), (2, [2], [2])])
    assert second.partitions.leader_epoch(topic, 0) is None
    assert await values(first) == [b"a", b"b"]


async def test_a_topic_that_cannot_be_reassigned_in_time_holds_back_no_other(
    start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = (await start_brokers(brokers=3)).brokers
    await create(first, "moving", assigned=[[1]])
    await create(first, "stuck", assigned=[[2]])
    await create(first, "fine", assigned=[[1]])
    await until(lambda: third.catalogue.by_name("fine"), "the third broker to hear of the topics")
    heard = asyncio.Event()
    refresh, led_under = second.catalogue.refresh, reassignments._led_under

    async def deaf() -> Any:
        await heard.wait()
        return await refresh()

    def moving(broker: Broker, topic: Topic, partition: int) -> Grant | None:
        return None if topic.name == "moving" else led_under(broker, topic, partition)

    monkeypatch.setattr(second.catalogue, "refresh", deaf)
    monkeypatch.setattr(reassignments, "_led_under", moving)
    to_third = Alter.ReassignablePartition(partition_index=0, replicas=[3])
    asked = [
        Alter.ReassignableTopic(name=name, partitions=[to_third]) for name in ("moving", "stuck", "fine")
    ]
    answer = await call(first, Alter(topics=asked, timeout_ms=5_000), 1)  # enough for the third to take over
    heard.set()
    found = [(each.partitions[0].error_code, each.partitions[0].error_message) for each in answer.responses]
    late = ErrorCode.REQUEST_TIMED_OUT
    assert found == [
        (late, "leases are moving, so nothing was reassigned; try again"),
        (late, "reassigned, but the new leader did not take over within the request's timeout"),
        (ErrorCode.NONE, None),
    ]
    assert await told(first, "moving") == [(1, [1], [1])]
    assert await told(first, "fine") == [(3, [3], [3])]


async def test_a_dead_leader_is_not_waited_for_beyond_its_lease(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers(brokers=3, test_mode=True)
    first = brokers.brokers[0]
    await create(first, assigned=[[3, 1]])
    assert await produce(leader_of(brokers), b"a") == ErrorCode.NONE
    await brokers.kill_one(2)
    before = first.catalogue.named("t")
    reassigning = asyncio.create_task(reassign(first, {0: [2, 1]}, timeout_ms=10 * TERM_MS))
    await until(lambda: first.catalogue.named("t") != before, "the new assignment")
    assert not reassigning.done()
    let_pass(brokers, TERM_MS, brokers.brokers[2])
    assert await reassigning == [ErrorCode.NONE]
    await until_told(brokers, [(2, [2, 1], [2, 1])])
    assert await values(leader_of(brokers)) == [b"a"]
