"""Offsets in transactions over the wire: TxnOffsetCommit, markers at `__consumer_offsets`, and what the
transaction's coordinator, which is simulated here, is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from muster.coordinator.server.broker import Broker
from muster.coordinator.transactions.marker import Marker
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.acls import Operation, ResourceType
from muster.protocol.messages.offsets import OffsetFetchRequest
from muster.protocol.messages.transactions import (
    DescribeProducersRequest,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)
from tests.server.conftest import StartBrokers
from tests.server.test_authorize import as_user, creation, give
from tests.server.test_configs import alter
from tests.server.test_offsets import codes, commit
from tests.support.coordinators import Coordinators
from tests.support.each import each
from tests.support.facts import until
from tests.support.principals import know_users
from tests.support.wire import Wire
from tests.support.wire_configs import BROKER, SET

P = 41
MINUTE_MS = 60_000
VERSIONS = range(7)
BY_ID_FROM = 6


@pytest.fixture
async def broker(start_brokers: StartBrokers) -> Broker:
    (broker,) = (await start_brokers()).brokers
    await broker.catalogue.create("t", partitions=2)
    broker.transactions = Coordinators()
    return broker


@pytest.fixture
async def wire(broker: Broker) -> Any:
    async with await Wire.connect(broker.port) as wire:
        yield wire


def coordinators(broker: Broker) -> Coordinators:
    assert isinstance(broker.transactions, Coordinators)
    return broker.transactions


def txn_commit(*offsets: tuple[str | Any, int, int], **fields: Any) -> TxnOffsetCommitRequest:
    """A commit of (topic name or id, partition, offset)."""
    return TxnOffsetCommitRequest(
        **{
            "transactional_id": "tx",
            "group_id": "g",
            "producer_id": P,
            "producer_epoch": 0,
            "topics": [
                TxnOffsetCommitRequest.Topic(
                    **({"name": topic} if isinstance(topic, str) else {"topic_id": topic}),
                    partitions=[
                        TxnOffsetCommitRequest.Partition(
                            partition_index=partition, committed_offset=offset, committed_metadata="m"
                        )
                    ],
                )
                for topic, partition, offset in offsets
            ],
            **fields,
        }
    )


def of_t(broker: Broker, version: int) -> Any:
    return broker.catalogue.named("t").topic_id if version >= BY_ID_FROM else "t"


async def mark(
    wire: Wire, *partitions: int, committed: bool = True, epoch: int = 0, version: int = 0
) -> list[int]:
    marker = WriteTxnMarkersRequest.WritableTxnMarker(
        producer_id=P,
        producer_epoch=epoch,
        transaction_result=committed,
        topics=[
            WriteTxnMarkersRequest.WritableTxnMarkerTopic(
                name="__consumer_offsets", partition_indexes=list(partitions)
            )
        ],
        coordinator_epoch=0,
        transaction_version=version,
    )
    (result,) = (await wire.call(WriteTxnMarkersRequest(markers=[marker]), 2)).markers
    return [each.error_code for topic in result.topics for each in topic.partitions]


async def fetched(wire: Wire, *, stable: bool = False) -> list[tuple[int, str | None, int]]:
    """Offset, metadata and code of both partitions."""
    topic = OffsetFetchRequest.Topic(name="t", partition_indexes=[0, 1])
    answer = await wire.call(OffsetFetchRequest(group_id="g", topics=[topic], require_stable=stable), 7)
    return [(each.committed_offset, each.metadata, each.error_code) for each in answer.topics[0].partitions]


NOTHING = (-1, "", 0)
UNSTABLE = (-1, "", ErrorCode.UNSTABLE_OFFSET_COMMIT)


@pytest.mark.parametrize("version", VERSIONS)
async def test_offsets_are_there_when_the_transaction_is_over(
    broker: Broker, wire: Wire, version: int
) -> None:
    topic = of_t(broker, version)
    answer = await wire.call(txn_commit((topic, 0, 7), (topic, 1, 8)), version)
    assert codes(answer) == [0, 0]
    assert (answer.topics[0].topic_id if version >= BY_ID_FROM else answer.topics[0].name) == topic
    assert await fetched(wire, stable=True) == [UNSTABLE, UNSTABLE]
    assert await fetched(wire) == [NOTHING, NOTHING]
    assert await mark(wire, broker.runtime.number_of("g")) == [0]
    assert await fetched(wire, stable=True) == [(7, "m", 0), (8, "m", 0)]


async def test_an_aborted_transaction_leaves_nothing(broker: Broker, wire: Wire) -> None:
    assert codes(await wire.call(txn_commit(("t", 0, 7)), 5)) == [0]
    assert await mark(wire, broker.runtime.number_of("g"), committed=False) == [0]
    assert await fetched(wire, stable=True) == [NOTHING, NOTHING]


async def test_producers_are_described(broker: Broker, wire: Wire) -> None:
    number = broker.runtime.number_of("g")

    async def described() -> dict[int, tuple[int, int, bool]]:
        """Epoch, coordinator epoch and whether a transaction is open, by producer."""
        asked = DescribeProducersRequest.TopicRequest(
            name="__consumer_offsets", partition_indexes=[number, 50]
        )
        here, missing = (await wire.call(DescribeProducersRequest(topics=[asked]), 0)).topics[0].partitions
        assert (here.error_code, missing.error_code) == (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        starts = [each.current_txn_start_offset for each in here.active_producers]
        assert len({start for start in starts if start >= 0}) == sum(start >= 0 for start in starts)
        assert all(
            0 <= broker.clock.now_ms() - each.last_timestamp < MINUTE_MS for each in here.active_producers
        )
        return {
            each.producer_id: (each.producer_epoch, each.coordinator_epoch, start >= 0)
            for each, start in zip(here.active_producers, starts, strict=True)
        }

    assert await described() == {}
    for producer_id in (P, P + 1):
        assert codes(await wire.call(txn_commit(("t", 0, 7), producer_id=producer_id), 5)) == [0]
    assert await described() == {P: (0, -1, True), P + 1: (0, -1, True)}
    assert await mark(wire, number) == [0]
    assert await described() == {P: (0, 0, False), P + 1: (0, -1, True)}


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_coordinator_is_asked_once_in_a_transaction(
    broker: Broker, wire: Wire, version: int
) -> None:
    """It is asked about the group's partition, which it adds from v5 on."""
    topic, number = of_t(broker, version), broker.runtime.number_of("g")
    question = "tx", P, 0, frozenset({("__consumer_offsets", number)}), version >= 5
    for _ in range(2):
        assert codes(await wire.call(txn_commit((topic, 0, 7)), version)) == [0]
        assert coordinators(broker).asked == [question]
    await mark(wire, number)
    assert codes(await wire.call(txn_commit((topic, 0, 8)), version)) == [0]
    assert coordinators(broker).asked == [question] * 2


@each("version", VERSIONS)
async def test_a_partition_that_is_not_in_the_transaction(broker: Broker, wire: Wire, version: int) -> None:
    coordinators(broker).lacking.add(("__consumer_offsets", broker.runtime.number_of("g")))
    expected = ErrorCode.TRANSACTION_ABORTABLE if version >= 4 else ErrorCode.INVALID_TXN_STATE
    assert codes(await wire.call(txn_commit((of_t(broker, version), 0, 7)), version)) == [expected]
    assert await fetched(wire, stable=True) == [NOTHING, NOTHING]


@each("version", VERSIONS)
async def test_verification_that_is_switched_off_leaves_what_adds_the_partition(
    broker: Broker, wire: Wire, version: int
) -> None:
    switch = ("transaction.partition.verification.enable", SET, "false")
    assert await alter(wire, BROKER, "", switch) == 0
    coordinators(broker).lacking.add(("__consumer_offsets", broker.runtime.number_of("g")))
    expected = ErrorCode.TRANSACTION_ABORTABLE if version >= 5 else ErrorCode.NONE
    coordinators(broker).asked.clear()
    asked = txn_commit((of_t(broker, version), 0, 7), producer_id=P + version)
    assert codes(await wire.call(asked, version)) == [expected]
    assert len(coordinators(broker).asked) == (version >= 5)


REFUSALS = [
    (ErrorCode.PRODUCER_FENCED, 0, ErrorCode.INVALID_PRODUCER_EPOCH),
    (ErrorCode.PRODUCER_FENCED, 6, ErrorCode.INVALID_PRODUCER_EPOCH),
    (ErrorCode.INVALID_PRODUCER_ID_MAPPING, 5, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    (ErrorCode.CONCURRENT_TRANSACTIONS, 0, ErrorCode.CONCURRENT_TRANSACTIONS),
    (ErrorCode.CONCURRENT_TRANSACTIONS, 6, ErrorCode.CONCURRENT_TRANSACTIONS),
    (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 1, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 2, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    (ErrorCode.COORDINATOR_NOT_AVAILABLE, 5, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    (ErrorCode.REQUEST_TIMED_OUT, 5, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    (ErrorCode.NOT_COORDINATOR, 5, ErrorCode.NOT_COORDINATOR),
]


@each("refusal, version, expected", REFUSALS)
async def test_what_the_coordinator_refuses_is_told_as_the_version_knows_it(
    broker: Broker, wire: Wire, refusal: ErrorCode, version: int, expected: ErrorCode
) -> None:
    coordinators(broker).refusals = [refusal]
    coordinators(broker).asked.clear()
    topic = of_t(broker, version)
    assert codes(await wire.call(txn_commit((topic, 0, 7), (topic, 1, 7)), version)) == [expected] * 2
    assert len(coordinators(broker).asked) == 1, "who sent it asks again"


async def test_a_marker_that_comes_while_the_coordinator_is_asked_ends_that_transaction(
    broker: Broker, wire: Wire
) -> None:
    """Anything written after it would be in a transaction that nobody ends."""
    number = broker.runtime.number_of("g")
    coordinators(broker).meanwhile = lambda: broker.runtime.end_transaction(number, Marker(P, 0, 0, False))
    assert codes(await wire.call(txn_commit(("t", 0, 7)), 5)) == [ErrorCode.INVALID_TXN_STATE]
    assert await fetched(wire, stable=True) == [NOTHING, NOTHING]


async def test_an_epoch_that_is_over_is_not_even_asked_about(broker: Broker, wire: Wire) -> None:
    await mark(wire, broker.runtime.number_of("g"), epoch=3)
    refused = codes(await wire.call(txn_commit(("t", 0, 7), producer_epoch=2), 5))
    assert refused == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert coordinators(broker).asked == []


# --- partitions, groups -------------------------------------------------------------------------------------


async def test_partitions_that_do_not_exist_are_refused_one_by_one(broker: Broker, wire: Wire) -> None:
    asked = txn_commit(("t", 0, 7), ("t", 2, 7), ("none", 0, 7), ("t", -1, 7), ("t", 1, 7))
    answer = await wire.call(asked, 5)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes(answer) == [0, unknown, unknown, unknown, 0]
    assert [topic.name for topic in answer.topics] == ["t", "t", "none", "t", "t"]
    t, none = broker.catalogue.named("t").topic_id, uuid4()
    answer = await wire.call(txn_commit((t, 0, 7), (t, 2, 7), (none, 0, 7)), 6)
    assert codes(answer) == [0, unknown, ErrorCode.UNKNOWN_TOPIC_ID]
    assert [topic.topic_id for topic in answer.topics] == [t, t, none]


async def test_of_partitions_that_do_not_exist_nobody_is_asked(broker: Broker, wire: Wire) -> None:
    answer = await wire.call(txn_commit(("none", 0, 7), ("t", 2, 7), group_id=""), 5)
    assert codes(answer) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2
    assert coordinators(broker).asked == []


@each("version, code", [(3, ErrorCode.ILLEGAL_GENERATION), (6, ErrorCode.GROUP_ID_NOT_FOUND)])
async def test_a_refusal_of_the_whole_commit_stands_at_every_partition_that_exists(
    broker: Broker, wire: Wire, version: int, code: ErrorCode
) -> None:
    topic = of_t(broker, version)
    asked = txn_commit(
        (topic, 0, 7), (topic, 2, 7), (topic, 1, 7), generation_id_or_member_epoch=1, member_id="m"
    )
    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes(await wire.call(asked, version)) == [code, missing, code]


async def test_a_group_without_a_name_is_refused(broker: Broker, wire: Wire) -> None:
    answer = await wire.call(txn_commit(("t", 0, 7), group_id=""), 5)
    assert codes(answer) == [ErrorCode.INVALID_GROUP_ID]
    assert coordinators(broker).asked == []


# --- markers, shards ----------------------------------------------------------------------------------------


async def test_markers_at_shards_that_are_not_here(start_brokers: StartBrokers) -> None:
    brokers = (await start_brokers(brokers=2)).brokers
    await until(lambda: all(0 < len(each.runtime.hosts()) < 50 for each in brokers))
    here = {host.lease.number for host in brokers[0].runtime.hosts()}
    number, elsewhere = min(here), min(set(range(50)) - here)
    async with await Wire.connect(brokers[0].port) as wire:
        assert await mark(wire, number, elsewhere, 50, -1) == [
            0,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]


async def test_markers_that_are_refused(broker: Broker, wire: Wire) -> None:
    number = broker.runtime.number_of("g")
    assert await mark(wire, number, epoch=3) == [0]
    assert await mark(wire, number, epoch=2) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    fenced = Marker(P, 3, -2, committed=False)
    with pytest.raises(KafkaError) as caught:
        await broker.runtime.end_transaction(number, fenced)
    assert caught.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED


async def test_while_its_shard_loads_a_marker_is_to_come_again(broker: Broker, wire: Wire) -> None:
    """The sender of markers does not know the codes that coordinators use."""
    number, runtime = broker.runtime.number_of("g"), broker.runtime
    assert codes(await wire.call(txn_commit(("t", 0, 7)), 5)) == [0]
    runtime.holds.hold(number)
    runtime.load_again(number)
    await until(lambda: runtime.holds.holding(number))
    assert await mark(wire, number) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    loading, away = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE
    for version, code in ((0, away), (1, away), (2, loading), (5, loading)):
        assert codes(await wire.call(txn_commit(("t", 0, 7)), version)) == [code]
    runtime.holds.release(number)
    await runtime.loaded()
    assert await mark(wire, number) == [0]
    assert (await fetched(wire, stable=True))[0] == (7, "m", 0)


async def test_what_is_pending_outlives_its_broker(tmp_path: Path, start_brokers: StartBrokers) -> None:
    first = await start_brokers(ephemeral=False, data=str(tmp_path))
    await first.brokers[0].catalogue.create("t", partitions=2)
    first.brokers[0].transactions = Coordinators()
    async with await Wire.connect(first.brokers[0].port) as wire:
        assert codes(await wire.call(txn_commit(("t", 0, 7), ("t", 1, 8)), 5)) == [0, 0]
        assert codes(await wire.call(commit(("t", 1, 3)), 9)) == [0]
    await first.stop()
    again = (await start_brokers(ephemeral=False, data=str(tmp_path))).brokers[0]
    async with await Wire.connect(again.port) as wire:
        assert await fetched(wire, stable=True) == [UNSTABLE, UNSTABLE]
        assert await mark(wire, again.runtime.number_of("g"), epoch=1, version=2) == [0]
        # The plain commit was made after the other, which the order of their rows still says.
        assert await fetched(wire, stable=True) == [(7, "m", 0), (3, "m", 0)]


# --- rights -------------------------------------------------------------------------------------------------


async def test_what_it_needs(start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch) -> None:
    know_users(monkeypatch)
    (broker,) = (await start_brokers(super_users="User:root;admin")).brokers
    for name in ("t", "secret"):
        await broker.catalogue.create(name, partitions=2)
    broker.transactions = Coordinators()
    no_id, no_group, no_topic = (
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    )
    steps = (
        (None, [no_id] * 3),
        ((Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, "tx"), [no_id] * 3),
        ((Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "tx"), [no_group] * 3),
        ((Operation.DESCRIBE, ResourceType.GROUP, "g"), [no_group] * 3),
        ((Operation.READ, ResourceType.GROUP, "g"), [no_topic] * 3),
        ((Operation.READ, ResourceType.TOPIC, "t"), [0, no_topic, no_topic]),
    )
    for right, expected in steps:
        if right is not None:
            await give(broker, creation(*right))
        async with await as_user(broker) as wire:
            asked = txn_commit(("t", 0, 7), ("secret", 0, 7), ("none", 0, 7))
            answer = await wire.call(asked, 5)
            found = {topic.name: topic.partitions[0].error_code for topic in answer.topics}
            assert [found[name] for name in ("t", "secret", "none")] == expected
            by_id = txn_commit(*((broker.catalogue.named(name).topic_id, 0, 7) for name in ("t", "secret")))
            assert sorted(codes(await wire.call(by_id, 6))) == sorted(expected[:2])
