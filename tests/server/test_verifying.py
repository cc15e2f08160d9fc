"""What a Produce with a transactional id asks the transaction's coordinator before it stores anything, and
what producers are told of the answers (KIP-890)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from muster.coordinator.server.broker import Broker
from muster.coordinator.topics.producers import Marker
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.acls import Operation, ResourceType
from muster.protocol.messages.data import ProduceRequest
from tests.server.conftest import StartBrokers
from tests.server.test_authorize import as_user, creation, give
from tests.server.test_configs import alter
from tests.server.test_data import Topic, batch
from tests.support.coordinators import Coordinators, Joined
from tests.support.each import each
from tests.support.principals import know_users
from tests.support.wire import Wire
from tests.support.wire_configs import BROKER, SET

P = 41
EVERY_VERSION = range(3, 14)
ADDS_FROM = 12

NONE = ErrorCode.NONE
FENCED = ErrorCode.INVALID_PRODUCER_EPOCH
LATER = ErrorCode.NOT_ENOUGH_REPLICAS


class Verified(Topic):
    """A topic of two partitions, whose transactions are verified."""

    producer: int
    coordinators: Coordinators

    def begin_anew(self) -> None:
        """Start over with an unknown producer and coordinators that were asked nothing, since cases share
        their broker."""
        self.producer += 1
        self.coordinators = self.broker.transactions = Coordinators()

    @property
    def broker(self) -> Broker:
        return self.brokers.brokers[0]

    async def put(self, sequence: int = 0, version: int = 11, *, epoch: int = 0, **request: Any) -> ErrorCode:
        request = {"transactional_id": "tx", **request}
        data = transactional(sequence, producer=self.producer, epoch=epoch)
        part = await self.produce(data, version, **request)
        return ErrorCode(part.error_code)

    async def end(self, epoch: int = 0, *, version: int = 0) -> None:
        topic = self.broker.catalogue.named("t")
        marker = Marker(self.producer, epoch, 0, False, version)
        await self.broker.partitions.append_marker(topic, 0, marker)


def transactional(sequence: int = 0, *, producer: int = P, epoch: int = 0, **kinds: Any) -> bytes:
    fields = {"producer_id": producer, "producer_epoch": epoch, "base_sequence": sequence}
    return batch(b"v", **fields, **{"transactional": True, **kinds})


@pytest.fixture
async def topic(start_brokers: StartBrokers) -> AsyncIterator[Verified]:
    # Such a long patience never runs out: the test itself ends what is to end in time.
    brokers = await start_brokers(
        add_partitions_to_txn_retry_backoff_ms=1, add_partitions_to_txn_retry_backoff_max_ms=600_000
    )
    created = await brokers.brokers[0].catalogue.create("t", partitions=2)
    async with await Wire.connect(brokers.brokers[0].port) as wire:
        topic = Verified(wire, created.topic_id, brokers)
        topic.producer = P - 1
        topic.begin_anew()
        yield topic


# --- who is asked what --------------------------------------------------------------------------------------


@each("version", EVERY_VERSION)
async def test_the_coordinator_is_asked_once_about_each_transaction(topic: Verified, version: int) -> None:
    topic.begin_anew()
    for sequence in range(3):
        assert await topic.put(sequence, version) is NONE
    here = frozenset({("t", 0)})
    asked = Joined("tx", topic.producer, 0, here, adds=version >= ADDS_FROM)
    assert topic.coordinators.asked == [asked]
    await topic.end()
    assert await topic.put(3, version) is NONE
    assert topic.coordinators.asked == [asked, asked]


def of_partitions(*records: bytes, transactional_id: str | None = "tx", **more: Any) -> ProduceRequest:
    """A request with one batch for each partition of the topic, and one for partition 0 of each topic in
    `more`."""
    parts = [
        ProduceRequest.PartitionProduceData(index=index, records=data) for index, data in enumerate(records)
    ]
    topics = [ProduceRequest.TopicProduceData(name="t", partition_data=parts)]
    topics += [
        ProduceRequest.TopicProduceData(
            name=name, partition_data=[ProduceRequest.PartitionProduceData(index=0, records=data)]
        )
        for name, data in more.items()
    ]
    return ProduceRequest(acks=-1, timeout_ms=10_000, transactional_id=transactional_id, topic_data=topics)


async def codes(wire: Wire, request: ProduceRequest, version: int = 11) -> dict[tuple[str, int], ErrorCode]:
    answer = await wire.call(request, version)
    return {
        (topic.name, part.index): ErrorCode(part.error_code)
        for topic in answer.responses
        for part in topic.partition_responses
    }


async def test_all_partitions_of_a_request_are_asked_about_together(topic: Verified) -> None:
    assert await topic.put() is NONE
    await topic.broker.catalogue.create("u", partitions=1)
    request = of_partitions(
        transactional(1),
        transactional(),
        transactional(),
        u=transactional(),
        none=transactional(),
        __consumer_offsets=transactional(),
    )
    assert await codes(topic.wire, request) == {
        ("t", 0): NONE,
        ("t", 1): NONE,
        ("t", 2): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("u", 0): NONE,
        ("none", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("__consumer_offsets", 0): ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
    asked = [each.partitions for each in topic.coordinators.asked]
    assert asked == [{("t", 0)}, {("t", 1), ("u", 0)}]


async def test_batches_outside_transactions_need_no_coordinator(topic: Verified) -> None:
    plain = batch(b"v")
    idempotent = transactional(transactional=False)
    broken = transactional()[:40]
    assert await codes(topic.wire, of_partitions(plain, idempotent)) == {("t", 0): NONE, ("t", 1): NONE}
    assert await codes(topic.wire, of_partitions(broken, b"")) == {
        ("t", 0): ErrorCode.INVALID_RECORD,
        ("t", 1): ErrorCode.INVALID_RECORD,
    }
    assert await codes(topic.wire, of_partitions(plain, transactional_id=None)) == {("t", 0): NONE}
    assert topic.coordinators.asked == []


@each("other", [{"producer": P + 1}, {"epoch": 1}])
async def test_transactional_batches_of_one_request_are_of_one_producer(
    topic: Verified, other: dict[str, int]
) -> None:
    topic.begin_anew()
    mapping = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    request = of_partitions(transactional(), transactional(**{"producer": P, **other}))
    assert await codes(topic.wire, request) == {("t", 0): mapping, ("t", 1): mapping}
    assert topic.coordinators.asked == []
    mixed = of_partitions(transactional(producer=topic.producer), batch(b"v"))
    assert await codes(topic.wire, mixed) == {("t", 0): NONE, ("t", 1): NONE}


# --- what is told of the answers ----------------------------------------------------------------------------


def told(code: ErrorCode, version: int) -> ErrorCode:
    """The code that a producer must get when a coordinator refuses with `code`."""
    match code:
        case ErrorCode.PRODUCER_FENCED:
            return FENCED
        case ErrorCode.TRANSACTION_ABORTABLE:
            return code if version >= 11 else ErrorCode.INVALID_TXN_STATE
        case (
            ErrorCode.REQUEST_TIMED_OUT
            | ErrorCode.NETWORK_EXCEPTION
            | ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            | ErrorCode.COORDINATOR_NOT_AVAILABLE
            | ErrorCode.NOT_COORDINATOR
            | ErrorCode.CONCURRENT_TRANSACTIONS
        ):
            return LATER
        case _:
            return code


@each(
    "refusal",
    [
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
    ],
)
async def test_refusals_are_told_as_producers_of_each_version_know_them(
    topic: Verified, refusal: ErrorCode
) -> None:
    topic.begin_anew()
    for version in EVERY_VERSION:
        topic.coordinators.refusals = [refusal]
        assert (version, await topic.put(0, version)) == (version, told(refusal, version))
    assert len(topic.coordinators.asked) == len(EVERY_VERSION)
    assert await topic.put() is NONE, "nothing was stored"


@each("version", EVERY_VERSION)
async def test_a_partition_that_the_transaction_has_not_is_refused_alone(
    topic: Verified, version: int
) -> None:
    topic.begin_anew()
    topic.coordinators.lacking = {("t", 0)}
    name = {"topic_id": topic.topic_id} if version >= 13 else {"name": "t"}
    records = transactional(producer=topic.producer)
    parts = [ProduceRequest.PartitionProduceData(index=index, records=records) for index in (0, 1)]
    data = ProduceRequest.TopicProduceData(partition_data=parts, **name)
    request = ProduceRequest(acks=-1, timeout_ms=10_000, transactional_id="tx", topic_data=[data])
    answer = await topic.wire.call(request, version)
    answered = [part.error_code for part in answer.responses[0].partition_responses]
    assert answered == [told(ErrorCode.TRANSACTION_ABORTABLE, version), NONE]


@each("version", range(3, ADDS_FROM))
async def test_who_adds_partitions_itself_comes_again_while_the_one_before_is_ended(
    topic: Verified, version: int
) -> None:
    topic.begin_anew()
    topic.coordinators.refusals = [ErrorCode.CONCURRENT_TRANSACTIONS]
    assert await topic.put(0, version) is LATER
    assert len(topic.coordinators.asked) == 1
    assert await topic.put(0, version) is NONE


@each("version", range(ADDS_FROM, 14))
async def test_a_partition_is_added_once_the_transaction_before_is_ended(
    topic: Verified, version: int
) -> None:
    topic.begin_anew()
    topic.coordinators.refusals = [ErrorCode.CONCURRENT_TRANSACTIONS] * 3
    assert await topic.put(0, version) is NONE
    assert len(topic.coordinators.asked) == 4


async def test_a_broker_does_not_try_for_longer_than_it_may(topic: Verified) -> None:
    def forever() -> list[ErrorCode]:
        return [ErrorCode.CONCURRENT_TRANSACTIONS] * 1_000_000

    concurrent = ErrorCode.CONCURRENT_TRANSACTIONS
    topic.coordinators.refusals = forever()
    request = of_partitions(transactional())
    request.timeout_ms = 200
    assert await codes(topic.wire, request, ADDS_FROM) == {("t", 0): concurrent}, "nor than its client"
    assert len(topic.coordinators.asked) > 1
    topic.broker.settings = replace(topic.broker.settings, add_partitions_to_txn_retry_backoff_max_ms=0)
    topic.coordinators.asked.clear()
    assert await topic.put(0, ADDS_FROM) is concurrent
    assert len(topic.coordinators.asked) == 1


@each("version", EVERY_VERSION)
async def test_where_brokers_add_partitions_an_epoch_begins_at_sequence_0(
    topic: Verified, version: int
) -> None:
    topic.begin_anew()
    first = await topic.put(7, version)
    assert first is (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER if version >= ADDS_FROM else NONE)
    if version >= ADDS_FROM:
        assert await topic.put(0, version) is NONE


# --- races --------------------------------------------------------------------------------------------------


@each("version", EVERY_VERSION)
async def test_a_transaction_that_is_ended_before_its_batch_comes_is_not_opened(
    topic: Verified, version: int
) -> None:
    topic.begin_anew()
    topic.coordinators.meanwhile = topic.end
    assert await topic.put(0, version) is ErrorCode.INVALID_TXN_STATE


async def test_the_marker_before_does_not_end_the_transaction_that_waits_for_it(topic: Verified) -> None:
    assert await topic.put(0, ADDS_FROM) is NONE

    async def marker_of_the_one_before() -> None:
        await topic.end(1, version=2)

    topic.coordinators.meanwhile = marker_of_the_one_before
    assert await topic.put(0, ADDS_FROM, epoch=1) is NONE


async def test_after_each_marker_it_is_asked_anew_whether_the_next_may_begin(topic: Verified) -> None:
    """A marker of the first generation drops the guard of the transaction that is waiting."""
    assert await topic.put(0, ADDS_FROM) is NONE
    topic.coordinators.refusals = [ErrorCode.CONCURRENT_TRANSACTIONS]
    answers = iter([topic.end])

    async def marker_at_first() -> None:
        for happens in answers:
            await happens()

    topic.coordinators.meanwhile = marker_at_first
    assert await topic.put(1, ADDS_FROM, epoch=0) is NONE


async def test_a_fenced_producer_is_refused_without_its_coordinator(topic: Verified) -> None:
    assert await topic.put(epoch=1) is NONE
    topic.coordinators.asked.clear()
    assert await topic.put(epoch=0) is FENCED
    assert topic.coordinators.asked == []


# --- what is allowed ----------------------------------------------------------------------------------------


@each("version", EVERY_VERSION)
async def test_verification_that_is_switched_off_leaves_what_adds_partitions(
    topic: Verified, version: int
) -> None:
    topic.begin_anew()
    switch = ("transaction.partition.verification.enable", SET, "false")
    assert await alter(topic.wire, BROKER, "", switch) == 0
    topic.coordinators.refusals = [ErrorCode.INVALID_TXN_STATE]
    adds = version >= ADDS_FROM
    assert await topic.put(0, version) is (ErrorCode.INVALID_TXN_STATE if adds else NONE)
    assert len(topic.coordinators.asked) == adds


async def test_a_transactional_batch_without_a_transactional_id_refuses_the_whole_request(
    topic: Verified,
) -> None:
    denied = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    both = of_partitions(batch(b"v"), transactional(), transactional_id=None)
    assert await codes(topic.wire, both) == {("t", 0): denied, ("t", 1): denied}
    plain = await topic.wire.call(of_partitions(batch(b"v"), batch(b"v"), transactional_id=None), 11)
    assert [part.base_offset for part in plain.responses[0].partition_responses] == [0, 0]


async def test_a_transactional_id_needs_to_be_written_to(
    start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    know_users(monkeypatch)
    (broker,) = (await start_brokers(super_users="User:root;admin")).brokers
    broker.transactions = coordinators = Coordinators()
    await broker.catalogue.create("t", partitions=2)
    denied, plain = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, batch(b"v")
    await give(broker, creation(Operation.WRITE, ResourceType.TOPIC, "t"))
    async with await as_user(broker) as wire:
        both = of_partitions(transactional(), plain)
        assert await codes(wire, both) == {("t", 0): denied, ("t", 1): denied}
        without_id = of_partitions(transactional(), plain, transactional_id=None, secret=plain)
        assert set((await codes(wire, without_id)).values()) == {denied}
        assert await codes(wire, of_partitions(plain, plain)) == {("t", 0): NONE, ("t", 1): NONE}
        assert coordinators.asked == []
        await give(broker, creation(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "tx"))
        assert await codes(wire, both) == {("t", 0): NONE, ("t", 1): NONE}
        assert len(coordinators.asked) == 1
