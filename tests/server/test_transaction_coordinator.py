"""The transaction coordinator's APIs over the wire, at a single broker. tests/kafka/test_transactions.py
compares the answers with Apache Kafka's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any

import pytest

from muster.coordinator.cluster.coordinators import GROUPS, TRANSACTIONS
from muster.coordinator.cluster.placement import GROUP_SHARDS
from muster.coordinator.server.broker import Broker
from muster.coordinator.server.brokers import Brokers
from muster.coordinator.storage.store import StoreError
from muster.coordinator.transactions.transaction import Transaction
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.data import FetchRequest, ProduceRequest
from muster.protocol.messages.features import UpdateFeaturesRequest
from muster.protocol.messages.metadata import FindCoordinatorRequest
from muster.protocol.messages.transactions import DescribeProducersRequest
from tests.server.conftest import StartBrokers
from tests.server.test_data import batch
from tests.support.each import each
from tests.support.facts import until
from tests.support.wire import Wire
from tests.support.wire_transactions import (
    NOBODY,
    Producer,
    added,
    adding,
    adding_as_broker,
    adding_offsets,
    describing,
    ending,
    joined,
    joining,
    listing,
    starting,
)

ID = "etl-1"
T0, T1 = ("t", 0), ("t", 1)
TIMEOUT_MS = 60_000
HOURS_MS = 10_000_000
FIRST, SECOND = 4, 5
"""Versions of EndTxn: the generations of clients."""


class Coordinator:
    """A broker that coordinates an id, with the topic `t` of two partitions."""

    def __init__(self, wire: Wire, brokers: Brokers) -> None:
        self.wire = wire
        self.brokers = brokers
        self.id = ID

    @property
    def broker(self) -> Broker:
        return self.brokers.brokers[0]

    async def start(
        self, *, had: Producer = NOBODY, timeout_ms: int = TIMEOUT_MS, version: int = 5, id: str | None = None
    ) -> tuple[int, Producer]:
        """Start a producer; return the code and the producer."""
        answer = await self.wire.call(
            starting(self.id if id is None else id, had=had, timeout_ms=timeout_ms), version
        )
        return answer.error_code, (answer.producer_id, answer.producer_epoch)

    async def started(self, **more: Any) -> Producer:
        code, producer = await self.start(**more)
        assert code == 0
        return producer

    async def add(
        self, producer: Producer, *, numbers: Collection[int] = (0,), version: int = 3, id: str | None = None
    ) -> int:
        answer = await self.wire.call(
            adding(self.id if id is None else id, producer, {"t": numbers}), version
        )
        (code,) = set(added(answer).values())
        return code

    async def end(self, producer: Producer, *, commits: bool, version: int = SECOND) -> tuple[int, Producer]:
        """End a transaction; return the code, and the producer from now on."""
        answer = await self.wire.call(ending(self.id, producer, commits=commits), version)
        return answer.error_code, (answer.producer_id, answer.producer_epoch)

    async def described(self, id: str | None = None) -> Any:
        (found,) = (await self.wire.call(describing(self.id if id is None else id), 0)).transaction_states
        return found

    def kept(self, id: str | None = None) -> Transaction:
        """The transaction as the id's shard holds it."""
        wanted = self.id if id is None else id
        machines = [host.machine for host in self.broker.transaction_runtime.hosts() if host.machine]
        (found,) = [each.transactions[wanted] for each in machines if wanted in each.transactions]
        return found

    def state(self, id: str | None = None) -> str:
        """The state as its shard holds it."""
        return self.kept(id).state.wire_name

    async def is_over(self) -> None:
        """Return when the transaction has all its markers."""
        await until(lambda: self.state().startswith("Complete"), f"the markers of {self.id}")

    async def markers(self, partition: int = 0) -> int:
        """Number of markers in a partition of `t`."""
        part = FetchRequest.FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=10**6)
        topic = FetchRequest.FetchTopic(topic="t", partitions=[part])
        answer = await self.wire.call(FetchRequest(max_wait_ms=0, min_bytes=0, topics=[topic]), 12)
        return int(answer.responses[0].partitions[0].high_watermark)

    async def coordinator_epoch(self) -> int:
        """Coordinator epoch of the last marker in the first partition of `t`."""
        asked = DescribeProducersRequest.TopicRequest(name="t", partition_indexes=[0])
        answer = await self.wire.call(DescribeProducersRequest(topics=[asked]), 0)
        (producer,) = answer.topics[0].partitions[0].active_producers
        return int(producer.coordinator_epoch)


class HeldMarkers:
    """Holds markers, so that partitions get them only when a test says so."""

    def __init__(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        self._append = broker.partitions.append_marker
        self._release = asyncio.Event()
        monkeypatch.setattr(broker.partitions, "append_marker", self._held)

    def _held(self, *marker: Any) -> asyncio.Future[Any]:
        async def append() -> Any:
            await self._release.wait()
            return await self._append(*marker)

        return asyncio.ensure_future(append())

    def release(self) -> None:
        self._release.set()


@pytest.fixture
async def coordinator(start_brokers: StartBrokers) -> AsyncIterator[Coordinator]:
    brokers = await start_brokers()
    await brokers.brokers[0].transaction_runtime.loaded()
    await brokers.brokers[0].catalogue.create("t", partitions=2)
    async with await Wire.connect(brokers.brokers[0].port) as wire:
        yield Coordinator(wire, brokers)


# --- a producer's life --------------------------------------------------------------------------------------


async def test_a_transactional_id_belongs_to_a_producer_from_its_first_transaction_to_the_next_producer(
    coordinator: Coordinator,
) -> None:
    producer_id, epoch = await coordinator.started()
    assert epoch == 0
    assert await coordinator.add((producer_id, 0), numbers=(0, 1)) == 0
    described = await coordinator.described()
    assert (described.transaction_state, described.transaction_timeout_ms) == ("Ongoing", TIMEOUT_MS)
    assert [(each.topic, each.partitions) for each in described.topics] == [("t", [0, 1])]
    assert await coordinator.end((producer_id, 0), commits=True, version=FIRST) == (0, NOBODY)
    await coordinator.is_over()
    assert [await coordinator.markers(each) for each in (0, 1)] == [1, 1]
    assert await coordinator.started() == (producer_id, 1)
    assert (await coordinator.described()).topics == []
    assert await coordinator.add((producer_id, 0)) == ErrorCode.PRODUCER_FENCED


@each("commits", [True, False])
async def test_a_client_of_the_second_generation_gets_an_epoch_with_each_end(
    coordinator: Coordinator, commits: bool
) -> None:
    coordinator.id = f"commits {commits}"
    producer = await coordinator.started()
    for _ in range(3):
        assert await coordinator.add(producer) == 0
        code, after = await coordinator.end(producer, commits=commits)
        assert (code, after) == (0, (producer[0], producer[1] + 1))
        await coordinator.is_over()
        assert await coordinator.end(producer, commits=commits) == (0, after), "an answer that was lost"
        assert await coordinator.end(producer, commits=not commits) == (
            ErrorCode.INVALID_TXN_STATE,
            NOBODY,
        )
        producer = after


OK, STATE, FENCED, WAIT = (
    ErrorCode.NONE,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)
ENDS = {
    # Commit and abort of the first generation, of the second, and of the second in the epoch before.
    "Empty": (STATE, STATE, STATE, OK, FENCED, FENCED),
    "Ongoing": (OK, OK, OK, OK, FENCED, FENCED),
    "PrepareCommit": (WAIT, WAIT, WAIT, WAIT, WAIT, WAIT),
    "PrepareAbort": (WAIT, WAIT, WAIT, WAIT, WAIT, WAIT),
    "CompleteCommit": (OK, STATE, STATE, OK, OK, STATE),
    "CompleteAbort": (STATE, OK, STATE, OK, STATE, OK),
}
WAYS = [
    (version, commits, behind)
    for version, behind in ((FIRST, 0), (SECOND, 0), (SECOND, 1))
    for commits in (True, False)
]


@each("state", list(ENDS))
@each("way", range(len(WAYS)))
async def test_each_end_in_each_state(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch, state: str, way: int
) -> None:
    coordinator.id = f"{state} {way}"
    id_, epoch = await coordinator.started()
    held = HeldMarkers(coordinator.broker, monkeypatch) if state.startswith("Prepare") else None
    if state != "Empty":
        assert await coordinator.add((id_, epoch)) == 0
    if "Commit" in state or "Abort" in state:
        code, (_, epoch) = await coordinator.end((id_, epoch), commits=state.endswith("Commit"))
        assert code == 0
        if held is None:
            await coordinator.is_over()
    assert coordinator.state() == state
    version, commits, behind = WAYS[way]
    code, after = await coordinator.end((id_, epoch - behind), commits=commits, version=version)
    assert code == ENDS[state][way]
    if held is not None:
        held.release()
        await coordinator.is_over()
    elif version == SECOND and code == OK and not behind:
        assert after == (id_, epoch + 1)


async def test_a_transaction_is_decided_before_its_partitions_hear_of_it(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldMarkers(coordinator.broker, monkeypatch)
    producer = await coordinator.started()
    assert await coordinator.add(producer) == 0
    code, after = await coordinator.end(producer, commits=True)
    assert (code, coordinator.state(), await coordinator.markers()) == (0, "PrepareCommit", 0)
    assert await coordinator.add(after) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert (await coordinator.start())[0] == ErrorCode.CONCURRENT_TRANSACTIONS
    held.release()
    await coordinator.is_over()
    assert await coordinator.markers() == 1
    assert await coordinator.add(after) == 0


async def test_records_of_the_next_transaction_wait_for_the_last_marker_and_no_longer(
    start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers = await start_brokers(
        add_partitions_to_txn_retry_backoff_ms=HOURS_MS, add_partitions_to_txn_retry_backoff_max_ms=HOURS_MS
    )
    broker = brokers.brokers[0]
    await broker.transaction_runtime.loaded()
    await broker.catalogue.create("t", partitions=2)
    async with await Wire.connect(broker.port) as wire, await Wire.connect(broker.port) as another:
        coordinator = Coordinator(wire, brokers)
        held = HeldMarkers(broker, monkeypatch)
        before = await coordinator.started()
        assert await produce(wire, before) == 0
        _, after = await coordinator.end(before, commits=True)
        produced = asyncio.ensure_future(produce(another, after))
        waiting = broker.transacting._markers._waiting
        await until(lambda: ID in waiting, "the Produce waits")
        held.release()
        assert await produced == 0
        assert coordinator.state() == "Ongoing"


async def produce(wire: Wire, producer: Producer) -> int:
    """Produce one batch to the first partition of `t`, as a client of the second generation; return the
    code."""
    records = batch(
        b"v", producer_id=producer[0], producer_epoch=producer[1], base_sequence=0, transactional=True
    )
    part = ProduceRequest.PartitionProduceData(index=0, records=records)
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=[part])
    request = ProduceRequest(transactional_id=ID, acks=-1, timeout_ms=HOURS_MS, topic_data=[topic])
    answer = await wire.call(request, 12)
    return int(answer.responses[0].partition_responses[0].error_code)


async def test_a_new_producer_aborts_the_transaction_of_the_one_before(coordinator: Coordinator) -> None:
    first = await coordinator.started()
    assert await coordinator.add(first) == 0
    assert (await coordinator.start())[0] == ErrorCode.CONCURRENT_TRANSACTIONS
    await coordinator.is_over()
    assert coordinator.state() == "CompleteAbort"
    assert await coordinator.started() == (first[0], first[1] + 2)
    assert await coordinator.end(first, commits=True) == (ErrorCode.PRODUCER_FENCED, NOBODY)


# --- what versions know -------------------------------------------------------------------------------------


async def test_an_epoch_that_is_over_is_told_in_a_code_that_the_version_knows(
    coordinator: Coordinator,
) -> None:
    zombie = await coordinator.started()
    assert await coordinator.started() == (zombie[0], 1)
    assert await coordinator.started() == (zombie[0], 2)
    old, new = ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED
    assert [(await coordinator.start(had=zombie, version=version))[0] for version in (3, 4, 5)] == [
        old,
        new,
        new,
    ]
    assert [await coordinator.add(zombie, version=version) for version in range(4)] == [old, old, new, new]
    assert [(await coordinator.end(zombie, commits=True, version=version))[0] for version in range(6)] == [
        old,
        old,
        new,
        new,
        new,
        new,
    ]
    codes = [
        (await coordinator.wire.call(adding_offsets(ID, zombie, "g"), version)).error_code
        for version in range(5)
    ]
    assert codes == [old, old, new, new, new]


@each("version", range(6))
async def test_a_start_in_each_version(coordinator: Coordinator, version: int) -> None:
    coordinator.id = f"v{version}"
    producer = await coordinator.started(version=version)
    assert producer[1] == 0
    assert (await coordinator.start(version=version, timeout_ms=0))[0] == (
        ErrorCode.INVALID_TRANSACTION_TIMEOUT
    )
    assert (await coordinator.start(version=version, timeout_ms=900_001))[0] == (
        ErrorCode.INVALID_TRANSACTION_TIMEOUT
    )
    assert (await coordinator.start(version=version, id=""))[0] == ErrorCode.INVALID_REQUEST
    if version >= 3:
        half = (producer[0], -1)
        assert (await coordinator.start(version=version, had=half))[0] == ErrorCode.INVALID_REQUEST


async def test_without_producer_ids_a_start_is_to_be_tried_again(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails() -> None:
        raise StoreError("gone")

    monkeypatch.setattr(coordinator.broker.producer_ids, "fetch", fails)
    for id_ in (ID, None):
        answer = await coordinator.wire.call(starting(id_), 5)
        assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


# --- adding -------------------------------------------------------------------------------------------------


@each("version", range(4))
async def test_partitions_are_added_all_or_none(coordinator: Coordinator, version: int) -> None:
    coordinator.id = f"v{version}"
    producer = await coordinator.started()

    async def add(topics: dict[str, list[int]]) -> dict[tuple[str, int], int]:
        return added(await coordinator.wire.call(adding(coordinator.id, producer, topics), version))

    assert await add({"t": [0, 7], "none": [0], "__consumer_offsets": [0], "__transaction_state": [0]}) == {
        ("t", 0): ErrorCode.OPERATION_NOT_ATTEMPTED,
        ("t", 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("none", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("__consumer_offsets", 0): ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ("__transaction_state", 0): ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
    assert coordinator.state() == "Empty"
    assert await add({"t": [1, 1, 0]}) == {T0: 0, T1: 0}
    assert coordinator.kept().partitions == {T0, T1}


async def test_what_belongs_to_another_producer_or_to_nobody_is_refused(coordinator: Coordinator) -> None:
    producer_id, epoch = await coordinator.started()
    other = (producer_id + 1, epoch)
    assert await coordinator.add(other) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert (await coordinator.end(other, commits=True))[0] == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert await coordinator.add(other, id="unknown") == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert await coordinator.add(other, id="") == ErrorCode.INVALID_REQUEST


@each("version", (4, 5))
async def test_brokers_add_and_ask_for_several_transactions_at_once(
    coordinator: Coordinator, version: int
) -> None:
    coordinator.id = f"v{version}"
    other_id = f"other v{version}"
    mine = await coordinator.started()
    other = await coordinator.started(id=other_id)

    async def call(*transactions: Any) -> list[tuple[str, dict[tuple[str, int], int]]]:
        answer = await coordinator.wire.call(adding_as_broker(*transactions), version)
        assert answer.error_code == 0
        return joined(answer)

    assert await call(
        joining(coordinator.id, mine, {"t": [0]}),
        joining(other_id, other, {"t": [0]}, verify_only=True),
        joining("unknown", mine, {"t": [0, 1]}),
    ) == [
        (coordinator.id, {T0: ErrorCode.NONE}),
        (other_id, {T0: ErrorCode.TRANSACTION_ABORTABLE}),
        ("unknown", dict.fromkeys((T0, T1), ErrorCode.INVALID_PRODUCER_ID_MAPPING)),
    ]
    assert (coordinator.state(), coordinator.state(other_id)) == ("Ongoing", "Empty")
    assert coordinator.kept().client_version == 2
    assert await call(
        joining(coordinator.id, mine, {"t": [0, 1]}, verify_only=True),
        joining(other_id, (other[0], other[1] + 1), {"t": [0]}, verify_only=True),
        joining(other_id, other, {"t": [0, 9]}),
    ) == [
        (coordinator.id, {T0: ErrorCode.NONE, T1: ErrorCode.TRANSACTION_ABORTABLE}),
        (other_id, {T0: ErrorCode.PRODUCER_FENCED}),
        (other_id, {T0: ErrorCode.OPERATION_NOT_ATTEMPTED, ("t", 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}),
    ]
    assert await call(joining(coordinator.id, mine, {"__consumer_offsets": [3]})) == [
        (coordinator.id, {("__consumer_offsets", 3): ErrorCode.NONE})
    ]
    assert await call() == []


async def test_brokers_ask_each_other_the_same(coordinator: Coordinator) -> None:
    producer = await coordinator.started()
    asked = coordinator.broker.transactions
    found = await asked.join(ID, *producer, frozenset({T0}), adds=False)
    assert found == {T0: ErrorCode.TRANSACTION_ABORTABLE}
    assert await asked.join(ID, *producer, frozenset({T0}), adds=True) == {T0: ErrorCode.NONE}
    assert await asked.join(ID, *producer, frozenset({T0}), adds=False) == {T0: ErrorCode.NONE}
    with pytest.raises(KafkaError) as refused:
        await asked.join(ID, producer[0], producer[1] + 1, frozenset({T0}), adds=True)
    assert refused.value.code is ErrorCode.PRODUCER_FENCED


@each("version", range(5))
async def test_a_groups_offsets_are_a_partition_of_their_own(coordinator: Coordinator, version: int) -> None:
    coordinator.id = f"v{version}"
    producer = await coordinator.started()
    answer = await coordinator.wire.call(adding_offsets(coordinator.id, producer, "orders"), version)
    assert answer.error_code == 0
    expected = ("__consumer_offsets", GROUPS.route("orders", GROUP_SHARDS))
    assert coordinator.kept().partitions == {expected}
    answer = await coordinator.wire.call(adding_offsets("unknown", producer, "orders"), version)
    assert answer.error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING


# --- looking ------------------------------------------------------------------------------------------------


async def test_ids_that_are_not_there_are_described_as_such(coordinator: Coordinator) -> None:
    await coordinator.started()
    answer = await coordinator.wire.call(describing(ID, "unknown", "", ID), 0)
    assert [(each.transactional_id, each.error_code) for each in answer.transaction_states] == [
        (ID, 0),
        ("unknown", ErrorCode.TRANSACTIONAL_ID_NOT_FOUND),
        ("", ErrorCode.INVALID_REQUEST),
    ]


async def test_ids_are_listed_as_filters_say(coordinator: Coordinator) -> None:
    ids = {id_: await coordinator.started(id=id_) for id_ in ("etl-1", "etl-22", "report")}
    assert await coordinator.add(ids["report"], id="report") == 0

    async def listed(version: int = 2, **filters: Any) -> tuple[set[str], list[str]]:
        answer = await coordinator.wire.call(listing(**filters), version)
        assert answer.error_code == 0
        return {each.transactional_id for each in answer.transaction_states}, answer.unknown_state_filters

    for version in range(3):
        assert await listed(version) == (set(ids), [])
        assert await listed(version, states=["Ongoing", "ongoing"]) == ({"report"}, ["ongoing"])
        assert await listed(version, states=["Closed"]) == (set(), ["Closed"])
        assert await listed(version, producer_ids=[ids["etl-1"][0]]) == ({"etl-1"}, [])
    assert await listed(transactional_id_pattern="etl-.") == ({"etl-1"}, [])
    assert await listed(transactional_id_pattern="etl") == (set(), [])
    assert await listed(transactional_id_pattern="") == (set(ids), [])
    assert await listed(transactional_id_pattern="(etl|rep).*", states=["Empty"]) == (
        {"etl-1", "etl-22"},
        [],
    )
    assert await listed(duration_filter=10**9) == ({"etl-1", "etl-22"}, []), "no start counts as long ago"
    for pattern in ("(", "(?=e)etl"):
        answer = await coordinator.wire.call(listing(transactional_id_pattern=pattern), 2)
        assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
        assert answer.transaction_states == []


async def test_a_shard_that_loads_answers_so_for_all(coordinator: Coordinator) -> None:
    producer = await coordinator.started()
    runtime = coordinator.broker.transaction_runtime
    number = TRANSACTIONS.route(ID, len(runtime.hosts()))
    runtime.holds.hold(number)
    runtime.load_again(number)
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await until(lambda: runtime.holds.holding(number))
    assert (await coordinator.start())[0] == loading
    assert await coordinator.add(producer) == loading
    assert (await coordinator.end(producer, commits=True))[0] == loading
    assert (await coordinator.described()).error_code == loading
    assert (await coordinator.wire.call(listing(), 0)).error_code == loading
    assert (await coordinator.described("another")).error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    runtime.holds.release(number)
    await runtime.loaded()
    assert await coordinator.add(producer) == 0


async def test_each_broker_answers_for_the_ids_it_coordinates(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers(brokers=2)
    for broker in brokers.brokers:
        await broker.transaction_runtime.loaded()
    ids = [f"id-{number}" for number in range(20)]
    first = brokers.brokers[0]
    async with await Wire.connect(first.port) as wire:
        found = await wire.call(FindCoordinatorRequest(key_type=1, coordinator_keys=ids), 4)
        by_id = {each.key: each.node_id for each in found.coordinators}
        assert [each.error_code for each in found.coordinators] == [0] * len(ids)
        assert set(by_id.values()) == {each.node_id for each in brokers.brokers}
        here = {id_ for id_, node_id in by_id.items() if node_id == first.node_id}
        for id_ in ids:
            answer = await wire.call(starting(id_), 5)
            expected = ErrorCode.NONE if id_ in here else ErrorCode.NOT_COORDINATOR
            assert answer.error_code == expected
        listed = await wire.call(listing(), 2)
        assert {each.transactional_id for each in listed.transaction_states} == here


@each("version", range(4))
async def test_the_coordinator_of_an_id_is_found(coordinator: Coordinator, version: int) -> None:
    if version == 0:  # It knows only groups.
        return
    found = await coordinator.wire.call(FindCoordinatorRequest(key=ID, key_type=1), version)
    assert (found.error_code, found.node_id) == (0, coordinator.broker.node_id)


# --- time, restarts -----------------------------------------------------------------------------------------


async def test_a_transaction_that_takes_too_long_is_aborted(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers(test_mode=True)
    await brokers.brokers[0].transaction_runtime.loaded()
    await brokers.brokers[0].catalogue.create("t", partitions=2)
    async with await Wire.connect(brokers.brokers[0].port) as wire:
        coordinator = Coordinator(wire, brokers)
        producer = await coordinator.started()
        assert await coordinator.add(producer) == 0
        await brokers.advance(TIMEOUT_MS - 10_000)
        assert await coordinator.add(producer, numbers=(1,)) == 0, "which does not begin it anew"
        assert coordinator.state() == "Ongoing"
        await brokers.advance(10_001)
        assert coordinator.state() == "CompleteAbort"
        assert [await coordinator.markers(each) for each in (0, 1)] == [1, 1]
        assert (await coordinator.end(producer, commits=True, version=FIRST))[0] == FENCED
        assert (await coordinator.end(producer, commits=True, version=SECOND))[0] == STATE
        assert await coordinator.started() == (producer[0], producer[1] + 2)


async def test_an_id_that_nobody_uses_is_forgotten(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers(test_mode=True, transactional_id_expiration_ms=60_000)
    await brokers.brokers[0].transaction_runtime.loaded()
    async with await Wire.connect(brokers.brokers[0].port) as wire:
        coordinator = Coordinator(wire, brokers)
        producer = await coordinator.started()
        await brokers.advance(60_000)
        assert (await coordinator.described()).error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert await coordinator.add(producer, version=3) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        code, _ = await coordinator.end(producer, commits=True)
        assert code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        again = await coordinator.started(had=producer)
        assert again[0] != producer[0]
        assert again[1] == 0


@each("level", (0, 1, 2))
async def test_what_no_client_ends_is_aborted_by_the_level_in_force(
    start_brokers: StartBrokers, level: int
) -> None:
    brokers = await start_brokers(test_mode=True)
    await brokers.brokers[0].transaction_runtime.loaded()
    await brokers.brokers[0].catalogue.create("t", partitions=1)
    async with await Wire.connect(brokers.brokers[0].port) as wire:
        coordinator = Coordinator(wire, brokers)
        lowered = UpdateFeaturesRequest.FeatureUpdateKey(
            feature="transaction.version", max_version_level=level, upgrade_type=2
        )
        await wire.call(UpdateFeaturesRequest(feature_updates=[lowered]), 2)
        producer = await coordinator.started()
        assert await coordinator.add(producer) == 0
        await brokers.advance(TIMEOUT_MS + 1)
        assert coordinator.state() == "CompleteAbort"
        ended = coordinator.kept()
        assert (ended.producer_epoch, ended.client_version) == (producer[1] + 1, level)


@pytest.mark.parametrize("commits", [True, False])
async def test_what_was_decided_is_told_by_the_next_coordinator(
    tmp_path: Path, start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch, commits: bool
) -> None:
    kept_on_disk = {"ephemeral": False, "data": str(tmp_path)}
    brokers = await start_brokers(**kept_on_disk)
    await brokers.brokers[0].transaction_runtime.loaded()
    await brokers.brokers[0].catalogue.create("t", partitions=1)
    async with await Wire.connect(brokers.brokers[0].port) as wire:
        coordinator = Coordinator(wire, brokers)
        producer = await coordinator.started()
        assert await coordinator.add(producer) == 0
        code, first = await coordinator.end(producer, commits=commits)
        assert code == 0
        await coordinator.is_over()
        epoch = await coordinator.coordinator_epoch()
        HeldMarkers(brokers.brokers[0], monkeypatch)
        assert await coordinator.add(first) == 0
        code, after = await coordinator.end(first, commits=commits)
        assert code == 0
        assert coordinator.state().startswith("Prepare")
    await brokers.stop()
    again = await start_brokers(**kept_on_disk)
    await again.brokers[0].transaction_runtime.loaded()
    async with await Wire.connect(again.brokers[0].port) as wire:
        coordinator = Coordinator(wire, again)
        await coordinator.is_over()
        assert coordinator.state() == ("CompleteCommit" if commits else "CompleteAbort")
        assert await coordinator.markers() == 2
        assert await coordinator.coordinator_epoch() > epoch
        assert await coordinator.end(first, commits=commits) == (0, after)
        assert await coordinator.add(after) == 0
