"""Transactions: listed, described, fenced, and aborted when they hang."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest

from muster.client.admin.client import Admin
from muster.client.admin.hanging import HangingTransaction, HeldBack, HeldBackGroup
from muster.client.admin.transactions import FencedProducer, TransactionDescription, TransactionListing
from muster.client.errors import ConnectionLost
from muster.client.partitions import TopicPartition
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.metadata import FindCoordinatorRequest
from muster.protocol.messages.transactions import (
    DescribeTransactionsRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    WriteTxnMarkersRequest,
)
from tests.client.transaction_brokers import Described, Producer, TransactionBrokers
from tests.support.each import each

ORDERS, SALES = TopicPartition("orders", 0), TopicPartition("sales", 0)
HOUR_MS = 3_600_000


def transaction(
    name: str, producer_id: int, state: str = "Ongoing", topics: tuple[str, ...] = (), since: int = 5
) -> Described:
    return Described(
        transactional_id=name,
        transaction_state=state,
        transaction_timeout_ms=60_000,
        transaction_start_time_ms=since,
        producer_id=producer_id,
        producer_epoch=2,
        topics=[Described.TopicData(topic=each, partitions=[0]) for each in topics],
    )


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def producer(producer_id: int, *, start: int = 4, written_ms_ago: int = HOUR_MS) -> Producer:
    return Producer(
        producer_id=producer_id,
        producer_epoch=1,
        last_sequence=0,
        last_timestamp=now_ms() - written_ms_ago,
        coordinator_epoch=-1,
        current_txn_start_offset=start,
    )


@pytest.fixture
async def brokers() -> AsyncIterator[TransactionBrokers]:
    """Node 1 leads `orders`, node 2 `sales`."""
    brokers = TransactionBrokers()
    brokers.leaders = {"orders": (1, 1), "sales": (2, 1)}
    async with brokers.listening(1, 2):
        yield brokers


@pytest.fixture
async def admin(brokers: TransactionBrokers) -> AsyncIterator[Admin]:
    async with Admin([str(each) for each in brokers.nodes.values()]) as admin:
        yield admin


# --- list ---------------------------------------------------------------------------------------------------


async def test_every_broker_is_asked_for_its_ids(admin: Admin, brokers: TransactionBrokers) -> None:
    brokers.ids[1]["etl-2"] = transaction("etl-2", 8)
    brokers.ids[2]["etl-1"] = transaction("etl-1", 7, "Empty")
    brokers.codes[ApiKey.LIST_TRANSACTIONS].append(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert await admin.list_transactions() == [
        TransactionListing("etl-1", 2, 7, "Empty"),
        TransactionListing("etl-2", 1, 8, "Ongoing"),
    ]
    assert sorted(brokers.nodes_of(ListTransactionsRequest)) == [1, 1, 2, 2]


@each(
    "given, sent",
    [
        ({}, ([], [], -1, None)),
        ({"states": ["Dead"], "producer_ids": [7]}, (["Dead"], [7], -1, None)),
        ({"pattern": "etl-.*"}, ([], [], -1, "etl-.*")),
        # Transactional ids without a transaction pass Kafka's filter, whatever the duration.
        ({"longer_than_ms": 9}, (["Ongoing", "PrepareCommit", "PrepareAbort"], [], 9, None)),
        ({"longer_than_ms": 9, "states": ["Empty"]}, (["Empty"], [], 9, None)),
    ],
)
async def test_brokers_filter(
    admin: Admin, brokers: TransactionBrokers, given: dict[str, object], sent: tuple[object, ...]
) -> None:
    await admin.list_transactions(**given)  # type: ignore[arg-type]
    asked = brokers.requests_of(ListTransactionsRequest)[-1]
    assert sent == (
        asked.state_filters,
        asked.producer_id_filters,
        asked.duration_filter,
        asked.transactional_id_pattern,
    )


async def test_a_state_that_no_broker_knows(admin: Admin, brokers: TransactionBrokers) -> None:
    brokers.unknown_states[1] = ["Fenced"]
    assert await admin.list_transactions(states=["Fenced"]) == []  # the other broker is newer
    brokers.unknown_states[2] = ["Fenced"]
    with pytest.raises(ValueError, match="states: no broker knows Fenced"):
        await admin.list_transactions(states=["Fenced"])
    with pytest.raises(TypeError, match="states: it takes several names"):
        await admin.list_transactions(states="Fenced")


async def test_filters_that_brokers_refuse_or_do_not_have(admin: Admin, brokers: TransactionBrokers) -> None:
    brokers.codes[ApiKey.LIST_TRANSACTIONS] += [ErrorCode.INVALID_REGULAR_EXPRESSION] * 2
    with pytest.raises(KafkaError, match=r"INVALID_REGULAR_EXPRESSION: pattern 'etl\('"):
        await admin.list_transactions(pattern="etl(")


async def test_a_broker_that_is_too_old_for_a_filter(brokers: TransactionBrokers) -> None:
    brokers.versions[ApiKey.LIST_TRANSACTIONS] = (0, 0)
    async with Admin([str(each) for each in brokers.nodes.values()]) as admin:
        assert await admin.list_transactions() == []
        with pytest.raises(KafkaError, match=r"duration_filter: not in version \d, .*; no newer version"):
            await admin.list_transactions(longer_than_ms=1)


# --- describe, fence ----------------------------------------------------------------------------------------


async def test_ids_are_described_by_their_coordinators(admin: Admin, brokers: TransactionBrokers) -> None:
    brokers.ids[1]["etl-1"] = transaction("etl-1", 7, topics=("sales", "orders"))
    brokers.ids[2]["etl-2"] = transaction("etl-2", 8, "Empty", since=-1)
    outcomes = await admin.describe_transactions(["etl-2", "etl-1", "none"])
    assert outcomes.succeeded == {
        "etl-2": TransactionDescription("etl-2", 2, "Empty", 8, 2, 60_000, None, []),
        "etl-1": TransactionDescription("etl-1", 1, "Ongoing", 7, 2, 60_000, 5, [ORDERS, SALES]),
    }
    assert [one.is_open for one in outcomes.succeeded.values()] == [False, True]
    assert outcomes.failed["none"].code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert {one.key_type for one in brokers.requests_of(FindCoordinatorRequest)} == {1}
    with pytest.raises(KafkaError, match="TRANSACTIONAL_ID_NOT_FOUND"):
        await admin.describe_transaction("none")


async def test_a_coordinator_that_has_moved_is_looked_up_again(
    admin: Admin, brokers: TransactionBrokers
) -> None:
    brokers.ids[1]["etl-1"] = transaction("etl-1", 7)
    brokers.codes[ApiKey.DESCRIBE_TRANSACTIONS].append(ErrorCode.NOT_COORDINATOR)

    def move() -> None:
        brokers.ids[2]["etl-1"] = brokers.ids[1].pop("etl-1")

    brokers.after[ApiKey.DESCRIBE_TRANSACTIONS] = move
    assert (await admin.describe_transaction("etl-1")).coordinator == 2
    assert brokers.nodes_of(DescribeTransactionsRequest) == [1, 2]


async def test_producers_are_fenced_as_by_a_new_one(admin: Admin, brokers: TransactionBrokers) -> None:
    brokers.ids[2]["etl-1"] = transaction("etl-1", 7)
    brokers.codes[ApiKey.INIT_PRODUCER_ID] += [ErrorCode.CONCURRENT_TRANSACTIONS]
    outcomes = await admin.fence_producers(["etl-1", "new"], timeout=120)
    assert outcomes == {"etl-1": FencedProducer(7, 3), "new": FencedProducer(7, 3)}
    asked = brokers.requests_of(InitProducerIdRequest)
    assert {(one.producer_id, one.producer_epoch) for one in asked} == {(-1, -1)}
    assert max(one.transaction_timeout_ms for one in asked) <= 60_000, "brokers may refuse more"
    assert len(asked) == 3
    brokers.codes[ApiKey.INIT_PRODUCER_ID] += [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]
    refused = (await admin.fence_producers(["etl-1"])).failed
    assert refused["etl-1"].code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


# --- abort --------------------------------------------------------------------------------------------------


async def test_a_transaction_is_aborted_at_the_leader(admin: Admin, brokers: TransactionBrokers) -> None:
    await admin.abort_transaction(SALES, 7, 1)
    await admin.abort_transaction(SALES, 7, 1, coordinator_epoch=4)
    assert brokers.nodes_of(WriteTxnMarkersRequest) == [2, 2]
    sent = [one.markers[0] for one in brokers.requests_of(WriteTxnMarkersRequest)]
    assert [one.coordinator_epoch for one in sent] == [0, 4]
    for one in sent:
        assert (one.producer_id, one.producer_epoch, one.transaction_result) == (7, 1, False)
        assert [(topic.name, topic.partition_indexes) for topic in one.topics] == [("sales", [0])]
    brokers.codes[ApiKey.WRITE_TXN_MARKERS].append(ErrorCode.INVALID_PRODUCER_EPOCH)
    with pytest.raises(KafkaError, match="INVALID_PRODUCER_EPOCH: sales-0, producer id 7, epoch 1"):
        await admin.abort_transaction(SALES, 7, 1)


async def test_an_abort_without_an_answer_is_not_sent_again(
    admin: Admin, brokers: TransactionBrokers
) -> None:
    brokers.deaf.add(ApiKey.WRITE_TXN_MARKERS)
    with pytest.raises(ConnectionLost, match="it may have been applied anyway"):
        await admin.abort_transaction(ORDERS, 7, 1, timeout=10)
    assert len(brokers.requests_of(WriteTxnMarkersRequest)) == 1


# --- hanging ------------------------------------------------------------------------------------------------


@each(
    "known, transactional_id, why",
    [
        (None, None, "no coordinator knows producer id 7"),
        (transaction("etl-1", 7, topics=("orders",)), None, None),
        (transaction("etl-1", 7, "PrepareAbort", topics=("orders",)), None, None),
        (
            transaction("etl-1", 7, topics=("sales",)),
            "etl-1",
            "etl-1 is Ongoing at its coordinator, without this partition",
        ),
        (
            transaction("etl-1", 7, "CompleteCommit"),
            "etl-1",
            "etl-1 is CompleteCommit at its coordinator, without this partition",
        ),
    ],
)
async def test_what_hangs(
    admin: Admin,
    brokers: TransactionBrokers,
    known: Described | None,
    transactional_id: str | None,
    why: str | None,
) -> None:
    brokers.ids.clear()
    if known is not None:
        brokers.ids[2]["etl-1"] = known
    brokers.producers = {"orders": [producer(7)]}
    brokers.began_at = {"orders": 123}
    found = (await admin.find_hanging_transactions()).raise_for_failures()
    last = brokers.producers["orders"][0].last_timestamp
    hanging = [HangingTransaction(ORDERS, 7, 1, None, 4, 123, last, transactional_id, why)] if why else []
    assert found == {ORDERS: hanging, SALES: []}


@each(
    "told, why",
    [
        (transaction("etl-1", 9, topics=("orders",)), "etl-1 has producer id 9 now"),
        (None, "no coordinator knows producer id 7"),
    ],
)
async def test_an_id_that_moved_on_after_it_was_listed(
    admin: Admin, brokers: TransactionBrokers, told: Described | None, why: str
) -> None:
    brokers.ids[1] = {"etl-1": transaction("etl-1", 7, topics=("orders",))}
    brokers.producers = {"orders": [producer(7)]}

    def move_on() -> None:
        brokers.ids[1] = {} if told is None else {"etl-1": told}

    brokers.after[ApiKey.FIND_COORDINATOR] = move_on
    found = (await admin.find_hanging_transactions([ORDERS])).raise_for_failures()
    assert [one.why for one in found[ORDERS]] == [why]


async def test_what_is_not_old_enough_does_not_hang(admin: Admin, brokers: TransactionBrokers) -> None:
    brokers.producers = {"orders": [producer(7, written_ms_ago=HOUR_MS)]}
    brokers.max_timeouts_ms[2] = HOUR_MS - 60_000  # plus the five minutes
    assert await admin.find_hanging_transactions() == {ORDERS: [], SALES: []}
    brokers.max_timeouts_ms[2] = HOUR_MS - 360_000
    assert [len(found) for found in (await admin.find_hanging_transactions()).succeeded.values()] == [1, 0]
    for longer_than_ms, count in ((HOUR_MS + 60_000, 0), (HOUR_MS - 1, 1)):
        found = await admin.find_hanging_transactions([ORDERS], longer_than_ms=longer_than_ms)
        assert len(found.succeeded[ORDERS]) == count


async def test_what_ended_while_coordinators_were_asked(admin: Admin, brokers: TransactionBrokers) -> None:
    brokers.producers = {"orders": [producer(7, start=4), producer(8, start=9)], "sales": [producer(9)]}

    def end() -> None:
        brokers.producers["orders"] = [producer(7, start=-1), producer(8, start=11)]

    brokers.after[ApiKey.LIST_TRANSACTIONS] = end
    found = (await admin.find_hanging_transactions()).raise_for_failures()
    assert found[ORDERS] == [], "the first has ended, and the other one is the next"
    assert [one.producer_id for one in found[SALES]] == [9]


async def test_in_the_order_of_offsets_and_without_a_time_that_cannot_be_read(
    admin: Admin, brokers: TransactionBrokers
) -> None:
    brokers.producers = {"orders": [producer(7, start=30), producer(8, start=4), producer(9, start=-1)]}
    found = (await admin.find_hanging_transactions([ORDERS])).raise_for_failures()
    assert [(one.start_offset, one.start_timestamp) for one in found[ORDERS]] == [(4, None), (30, None)]


async def test_what_cannot_be_asked_is_told(admin: Admin, brokers: TransactionBrokers) -> None:
    nowhere = TopicPartition("orders", 5)
    outcomes = await admin.find_hanging_transactions([ORDERS, nowhere])
    assert outcomes[ORDERS] == []
    assert outcomes.failed[nowhere].code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    brokers.ids[1]["etl-1"] = transaction("etl-1", 7)
    brokers.producers = {"orders": [producer(7)]}
    brokers.codes[ApiKey.DESCRIBE_TRANSACTIONS].append(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    told = (await admin.find_hanging_transactions([ORDERS])).failed
    assert told[ORDERS].code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    brokers.codes[ApiKey.DESCRIBE_CONFIGS] += [ErrorCode.CLUSTER_AUTHORIZATION_FAILED] * 2
    with pytest.raises(KafkaError, match="CLUSTER_AUTHORIZATION_FAILED"):
        await admin.find_hanging_transactions([ORDERS])


async def test_a_coordinator_that_is_away_does_not_make_transactions_hang(
    admin: Admin, brokers: TransactionBrokers
) -> None:
    brokers.producers = {"orders": [producer(7)]}
    brokers.leaders["__transaction_state"] = (-1, 1)
    with pytest.raises(KafkaError, match="COORDINATOR_NOT_AVAILABLE: __transaction_state-0 has no leader"):
        await admin.find_hanging_transactions([ORDERS])
    brokers.leaders["__transaction_state"] = (2, 2)
    assert len((await admin.find_hanging_transactions([ORDERS])).succeeded[ORDERS]) == 1


async def test_who_is_held_back(admin: Admin, brokers: TransactionBrokers) -> None:
    brokers.ends = {"orders": (12, 40), "sales": (7, 7)}
    brokers.committed = {"orders": {"behind": 3, "there": 12, "beyond": 13}, "sales": {"behind": 1}}
    held = (await admin.find_held_back_groups([ORDERS, SALES])).raise_for_failures()
    groups = [HeldBackGroup("there", 12, 28), HeldBackGroup("behind", 3, 37)]
    assert held == {ORDERS: HeldBack(12, 40, groups), SALES: HeldBack(7, 7, [])}
