"""Transactions with coordinators that move, hang, cut connections and refuse: what was committed is stored
once, and no call waits longer than the setting that its error names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Final

import pytest

from muster.client import (
    Closed,
    ConcurrentUse,
    ErrorCode,
    GroupMetadata,
    KafkaError,
    NoTransaction,
    OffsetAndMetadata,
    Producer,
    ProducerFenced,
    TimedOut,
    TopicPartition,
    TransactionAborted,
)
from muster.client.network.connection import deadline
from muster.client.produce.accumulator import ProducerIdentity
from muster.client.produce.settings import ProducerSettings
from muster.client.produce.transaction import Transaction
from muster.client.produce.transactions import State, Transactions
from muster.protocol.api import ApiKey
from tests.client.scripted import Say
from tests.client.transaction_coordinators import LAST_EPOCH, TransactionCluster
from tests.support.facts import DEADLINE_S, turns, until

NOBODY: Final = GroupMetadata("g", -1, "", None)
OFFSETS: Final = {TopicPartition("t", 0): 7}
LEVELS: Final = pytest.mark.parametrize("level", [1, 2])
FENCED: Final = [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH]
REQUESTS: Final = [
    (1, ApiKey.ADD_PARTITIONS_TO_TXN),
    (1, ApiKey.ADD_OFFSETS_TO_TXN),
    (1, ApiKey.TXN_OFFSET_COMMIT),
    (1, ApiKey.END_TXN),
    (2, ApiKey.TXN_OFFSET_COMMIT),
    (2, ApiKey.END_TXN),
]
"""The requests to coordinators in a transaction, by level of the protocol."""


@asynccontextmanager
async def transactional(
    cluster: TransactionCluster, **settings: Any
) -> AsyncIterator[Producer[bytes, bytes]]:
    """A producer on a cluster of two nodes. Whatever the test is about, nothing in it hangs."""
    given = {"retry_backoff_ms": 5, "retry_backoff_max_ms": 20, "linger_ms": 0} | settings
    async with asyncio.timeout(DEADLINE_S), cluster.listening(1, 2) as (address, _):
        producer = Producer[bytes, bytes](str(address), transactional_id="x", **given)
        try:
            await producer.start()
            yield producer
        finally:
            await producer.close(0)


def of(producer: Producer[Any, Any]) -> Transactions:
    assert producer._transactions is not None
    return producer._transactions


def reset(producer: Producer[Any, Any], settings: ProducerSettings) -> None:
    of(producer)._settings = of(producer)._coordinator._settings = settings


def ask_again_after(producer: Producer[Any, Any], request_timeout_ms: int) -> None:
    """From now on, a coordinator that has not answered within this time is asked again."""
    reset(producer, replace(of(producer)._settings, request_timeout_ms=request_timeout_ms))


def block_for(producer: Producer[Any, Any], max_block_ms: int) -> None:
    """From now on, coordinators have this long, and two thirds of it for each request. (From the start, a
    test would depend on how fast it connects.)"""
    of(producer)._limit_s = max_block_ms / 1000
    reset(producer, replace(of(producer)._settings, max_block_ms=max_block_ms))
    ask_again_after(producer, max_block_ms * 2 // 3)


async def begun(producer: Producer[bytes, bytes], value: bytes = b"1") -> Transaction[bytes, bytes]:
    """A transaction with a record and an offset."""
    transaction = await producer.transaction().begin()
    await transaction.send("t", value)
    await transaction.commit_offsets(NOBODY, OFFSETS)
    return transaction


async def one(producer: Producer[bytes, bytes], value: bytes) -> None:
    async with producer.transaction() as transaction:
        await transaction.send("t", value)


async def until_one_is_fast_enough(producer: Producer[bytes, bytes], value: bytes) -> None:
    """Send the value in one transaction after another, until it is delivered in time."""
    while True:
        with suppress(TransactionAborted, TimedOut):
            return await one(producer, value)


async def tells(producer: Producer[bytes, bytes], aborted: bool) -> None:
    """Begin a transaction, and abort it. If the last commit ended as an abort, that is said first, once."""
    if aborted:
        with pytest.raises(
            TransactionAborted, match="its commit was cancelled while records were being sent"
        ):
            await producer.transaction().begin()
    await (await producer.transaction().begin()).abort()


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


# --- a coordinator that moves -------------------------------------------------------------------------------


@pytest.mark.parametrize(("level", "api_key"), REQUESTS)
async def test_a_coordinator_that_moves_is_followed(level: int, api_key: ApiKey) -> None:
    cluster = TransactionCluster(level)
    async with transactional(cluster) as producer:
        cluster.moves_at = api_key
        await (await begun(producer)).commit()
        assert [each.node for each in cluster.seen if each.api_key is api_key] == [1, 2]
        await one(producer, b"2")
    assert (cluster.committed, cluster.ends) == ([b"1", 7, b"2"], [True, True])


@LEVELS
async def test_a_coordinator_that_moves_before_it_gives_the_id_is_followed(level: int) -> None:
    cluster = TransactionCluster(level)
    cluster.moves_at = ApiKey.INIT_PRODUCER_ID
    async with transactional(cluster) as producer:
        await one(producer, b"1")
    assert cluster.committed == [b"1"]


@LEVELS
@pytest.mark.parametrize("done", [True, False])
async def test_a_coordinator_that_dies_over_the_commit_commits_once(level: int, done: bool) -> None:
    cluster = TransactionCluster(level)
    async with transactional(cluster) as producer:
        transaction = await begun(producer)
        cluster.script[ApiKey.END_TXN].append(Say(write=done, cut=True))
        await transaction.commit()
        await one(producer, b"2")
        first, again, _ = cluster.requests_of(ApiKey.END_TXN)
        assert first == again
    assert (cluster.committed, cluster.ends) == ([b"1", 7, b"2"], [True, True])


# --- an end that hangs --------------------------------------------------------------------------------------


@LEVELS
@pytest.mark.parametrize("done", [True, False])
async def test_an_end_that_hangs_is_asked_for_on(level: int, done: bool) -> None:
    """The next transaction waits for it, also no longer than max_block_ms."""
    cluster = TransactionCluster(level)
    async with transactional(cluster) as producer:
        transaction = await begun(producer)
        block_for(producer, 300)
        if done:
            cluster.script[ApiKey.END_TXN].append(Say(write=True, hang=True))
            ended = asyncio.create_task(transaction.commit())
            await until(lambda: cluster.ends, "the commit")
            cluster.deaf.add(ApiKey.END_TXN)
        else:
            cluster.deaf.add(ApiKey.END_TXN)
            ended = asyncio.create_task(transaction.commit())
        with pytest.raises(TimedOut, match=r"within max_block_ms \(300\).*goes on asking"):
            await ended
        with pytest.raises(TimedOut, match=r"within max_block_ms \(300\)"):
            await producer.transaction().begin()
        await until(lambda: len(cluster.requests_of(ApiKey.END_TXN)) > 2, "another request")
        cluster.deaf.clear()
        block_for(producer, 60_000)
        await one(producer, b"2")
        *same, _ = cluster.requests_of(ApiKey.END_TXN)
        assert all(each == same[0] for each in same)
    assert (cluster.committed, cluster.ends) == ([b"1", 7, b"2"], [True, True])


@LEVELS
async def test_an_abort_that_hangs_is_asked_for_on(level: int) -> None:
    cluster = TransactionCluster(level)
    async with transactional(cluster) as producer:
        transaction = await begun(producer)
        block_for(producer, 300)
        cluster.deaf.add(ApiKey.END_TXN)
        with pytest.raises(TimedOut, match=r"within max_block_ms \(300\).*goes on asking"):
            await transaction.abort()
        cluster.deaf.clear()
        block_for(producer, 60_000)
        await transaction.abort()
        await one(producer, b"2")
    assert (cluster.committed, cluster.ends) == ([b"2"], [False, True])


@LEVELS
@pytest.mark.parametrize("call", ["commit", "abort"])
async def test_a_block_does_not_wait_again_for_what_timed_out_by_hand(level: int, call: str) -> None:
    cluster = TransactionCluster(level)
    async with transactional(cluster) as producer:
        async with producer.transaction() as transaction:
            await transaction.send("t", b"1")
            block_for(producer, 300)
            cluster.deaf.add(ApiKey.END_TXN)
            with pytest.raises(TimedOut):
                await getattr(transaction, call)()
        assert of(producer).state is State.ENDING
        block_for(producer, 60_000)
        cluster.deaf.clear()
        await one(producer, b"2")
    assert cluster.committed == ([b"1", b"2"] if call == "commit" else [b"2"])


@pytest.mark.parametrize(
    "place",
    [-1, 2**63, OffsetAndMetadata(1, "", 2**31), OffsetAndMetadata(1, b"m")],  # type: ignore[arg-type]
)
async def test_what_is_no_offset_is_refused_and_the_transaction_goes_on(place: Any) -> None:
    cluster = TransactionCluster(2)
    async with transactional(cluster) as producer, producer.transaction() as transaction:
        with pytest.raises((ValueError, TypeError), match=r"(offset|leader_epoch|metadata).*: it takes"):
            await transaction.commit_offsets(NOBODY, {TopicPartition("t", 0): place})
        await transaction.send("t", b"1")
        await transaction.commit_offsets(NOBODY, OFFSETS)
    assert cluster.committed == [b"1", 7]


async def test_what_is_no_partition_is_refused_and_the_transaction_goes_on() -> None:
    cluster = TransactionCluster(2)
    async with transactional(cluster) as producer, producer.transaction() as transaction:
        with pytest.raises(ValueError, match=r"\('t', 0\).*it takes TopicPartition"):
            await transaction.commit_offsets(NOBODY, {("t", 0): 7})  # type: ignore[dict-item]
        await transaction.commit_offsets(NOBODY, OFFSETS)
    assert cluster.committed == [7]


async def test_what_is_being_committed_is_not_committed_again() -> None:
    cluster = TransactionCluster(2)
    async with transactional(cluster) as producer:
        transaction = await producer.transaction().begin()
        gate = cluster.hold(ApiKey.PRODUCE)
        await transaction.post("t", b"1")
        commit = asyncio.create_task(transaction.commit())
        await until(lambda: of(producer).state is State.COMMITTING, "the commit")
        for call in (transaction.commit(), transaction.send("t", b"2")):
            with pytest.raises(NoTransaction, match="is being committed already"):
                await call
        gate.set()
        await commit
    assert (cluster.committed, cluster.ends) == ([b"1"], [True])


async def test_what_is_being_committed_is_not_aborted() -> None:
    cluster = TransactionCluster(2)
    async with transactional(cluster) as producer:
        transaction = await begun(producer)
        gate = cluster.hold(ApiKey.END_TXN)
        commit = asyncio.create_task(transaction.commit())
        await until(lambda: cluster.requests_of(ApiKey.END_TXN), "the commit")
        with pytest.raises(NoTransaction, match="is being committed"):
            await transaction.abort()
        gate.set()
        await commit
    assert (cluster.committed, cluster.ends) == ([b"1", 7], [True])


@LEVELS
async def test_what_is_aborted_may_be_aborted_again(level: int) -> None:
    """As error handlers do, which cannot know that the commit has already aborted it."""
    cluster = TransactionCluster(level)
    async with transactional(cluster) as producer:
        transaction = await producer.transaction().begin()
        cluster.script[ApiKey.PRODUCE].append(Say(code=ErrorCode.MESSAGE_TOO_LARGE))
        await transaction.post("t", b"1")
        with pytest.raises(TransactionAborted):
            await transaction.commit()
        asked = len(cluster.seen)
        for _ in range(2):
            await transaction.abort()
        assert len(cluster.seen) == asked
        await one(producer, b"2")
        await transaction.abort()  # nor does it affect the next one
        again = await transaction.begin()
        await again.send("t", b"3")
        await again.abort()
        await again.abort()
    assert cluster.committed == [b"2"]


@pytest.mark.parametrize(
    ("code", "perhaps"),
    [(ErrorCode.TOPIC_AUTHORIZATION_FAILED, True), (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, False)],
)
async def test_only_numbers_out_of_order_say_that_no_earlier_try_was_written(
    code: ErrorCode, perhaps: bool
) -> None:
    cluster = TransactionCluster(2)
    async with transactional(cluster) as producer:
        transaction = await producer.transaction().begin()
        cluster.script[ApiKey.PRODUCE] += [Say(cut=True), Say(code=code)]
        with pytest.raises(KafkaError) as refused:
            await transaction.send("t", b"1")
        await transaction.abort()
    assert refused.value.code is code
    assert ("may have been written" in str(refused.value)) is perhaps


async def test_a_commit_that_failed_late_is_told_to_the_next_one_once() -> None:
    cluster = TransactionCluster(2)
    async with transactional(cluster) as producer:
        transaction = await begun(producer)
        block_for(producer, 300)
        cluster.deaf.add(ApiKey.END_TXN)
        with pytest.raises(TimedOut):
            await transaction.commit()
        block_for(producer, 60_000)
        cluster.time_out()
        cluster.deaf.clear()
        with pytest.raises(TransactionAborted, match="transaction_timeout_ms"):
            await producer.transaction().begin()
        await one(producer, b"2")
    assert (cluster.committed, cluster.aborted) == ([b"2"], [b"1", 7])


async def test_a_commit_that_was_fenced_late_is_told_to_the_next_one() -> None:
    cluster = TransactionCluster(1)
    async with transactional(cluster) as producer:
        transaction = await begun(producer)
        block_for(producer, 300)
        cluster.deaf.add(ApiKey.END_TXN)
        with pytest.raises(TimedOut):
            await transaction.commit()
        block_for(producer, 60_000)
        following = producer.transaction()
        cluster.time_out()
        cluster.deaf.clear()
        with pytest.raises(ProducerFenced):
            await following.begin()
    assert cluster.committed == []


# --- other requests that hang -------------------------------------------------------------------------------


async def test_a_start_that_hangs_names_its_limit_and_can_be_tried_again() -> None:
    cluster = TransactionCluster(2)
    async with asyncio.timeout(DEADLINE_S), cluster.listening(1) as (address,):
        producer = Producer[bytes, bytes](
            str(address), transactional_id="x", max_block_ms=500, request_timeout_ms=200
        )
        cluster.deaf.add(ApiKey.INIT_PRODUCER_ID)
        with pytest.raises(TimedOut, match=r"not started within max_block_ms \(500\)"):
            await producer.start()
        cluster.deaf.clear()
        producer._settings = replace(producer._settings, max_block_ms=60_000, request_timeout_ms=30_000)
        async with producer:
            await one(producer, b"1")
    assert cluster.committed == [b"1"]


async def test_closing_ends_a_start_in_progress() -> None:
    cluster = TransactionCluster(2)
    async with asyncio.timeout(DEADLINE_S), cluster.listening(1) as (address,):
        producer = Producer[bytes, bytes](str(address), transactional_id="x")
        cluster.hold(ApiKey.INIT_PRODUCER_ID)
        starting = asyncio.create_task(producer.start())
        await until(lambda: cluster.requests_of(ApiKey.INIT_PRODUCER_ID), "the start")
        with pytest.raises(ConcurrentUse, match="being started already"):
            await producer.start()
        await producer.close()
        for start in (starting, producer.start(), producer.send("t", b"1")):
            with pytest.raises(Closed, match="the producer is closed; make another one"):
                await start


async def test_closing_as_a_start_succeeds_undoes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = TransactionCluster(2)
    async with asyncio.timeout(DEADLINE_S), cluster.listening(1) as (address,):
        producer = Producer[bytes, bytes](str(address), transactional_id="x")
        start = Transactions.start

        async def last_moment(transactions: Transactions) -> None:
            await start(transactions)
            await producer.close()

        monkeypatch.setattr(Transactions, "start", last_moment)
        for call in (producer.start(), producer.send("t", b"1")):
            with pytest.raises(Closed, match="the producer is closed; make another one"):
                await call


@pytest.mark.parametrize(
    ("level", "api_key"),
    [(1, ApiKey.ADD_OFFSETS_TO_TXN), (1, ApiKey.TXN_OFFSET_COMMIT), (2, ApiKey.TXN_OFFSET_COMMIT)],
)
async def test_offsets_that_hang_fail_the_transaction(level: int, api_key: ApiKey) -> None:
    cluster = TransactionCluster(level)
    async with transactional(cluster) as producer:
        transaction = await producer.transaction().begin()
        await transaction.send("t", b"1")
        block_for(producer, 300)
        cluster.deaf.add(api_key)
        with pytest.raises(TransactionAborted, match=r"offsets of group g .* within max_block_ms \(300\)"):
            await transaction.commit_offsets(NOBODY, OFFSETS)
        cluster.deaf.clear()
        block_for(producer, 60_000)
        with pytest.raises(TransactionAborted, match="offsets of group g"):
            await transaction.commit()
        await one(producer, b"2")
    assert (cluster.committed, cluster.ends) == ([b"2"], [False, True])


async def test_partitions_that_hang_fail_the_transaction() -> None:
    cluster = TransactionCluster(1)
    async with transactional(cluster, delivery_timeout_ms=1_000) as producer:
        transaction = await producer.transaction().begin()
        ask_again_after(producer, 200)
        cluster.deaf.add(ApiKey.ADD_PARTITIONS_TO_TXN)
        await transaction.post("t", b"1")
        await until(lambda: cluster.requests_of(ApiKey.ADD_PARTITIONS_TO_TXN), "the announcement")
        with pytest.raises(TransactionAborted, match=r"delivery_timeout_ms \(1000\)"):
            await transaction.commit()
        cluster.deaf.clear()
        ask_again_after(producer, 30_000)
        await until_one_is_fast_enough(producer, b"2")
    assert cluster.committed == [b"2"]


class Slow:
    """A consumer whose offsets do not come."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def offsets_for_transaction(self, *_: object) -> Any:
        self.asked.set()
        await asyncio.Event().wait()

    def transaction_refused(self, code: ErrorCode, group: GroupMetadata) -> bool:
        raise AssertionError("it is never asked")


@LEVELS
@pytest.mark.parametrize("ends", [True, False])
async def test_offsets_left_over_from_a_transaction_do_not_touch_the_next(level: int, ends: bool) -> None:
    cluster = TransactionCluster(level)
    async with transactional(cluster) as producer:
        before = await begun(producer)
        slow = Slow()
        left_over = asyncio.create_task(before.commit_offsets(slow))
        await slow.asked.wait()
        await before.abort()
        transaction = await begun(producer, b"2")
        if ends:
            await cancelled(left_over)
        await transaction.commit()
        left_over.cancel()
    assert (cluster.committed, cluster.ends) == ([b"2", 7], [False, True])


@pytest.mark.parametrize("same", [True, False], ids=["the same object", "another"])
async def test_a_group_that_joins_after_its_transaction_is_over_does_not_join_the_next(
    monkeypatch: pytest.MonkeyPatch, same: bool
) -> None:
    cluster = TransactionCluster(1)
    joined, goes_on = asyncio.Event(), asyncio.Event()
    async with transactional(cluster) as producer:
        coordinator = of(producer)._coordinator
        add_group = coordinator.add_group

        async def late(*args: Any) -> None:
            await add_group(*args)
            if not joined.is_set():
                joined.set()
                await goes_on.wait()

        monkeypatch.setattr(coordinator, "add_group", late)
        before = await producer.transaction().begin()
        left_over = asyncio.create_task(before.commit_offsets(NOBODY, {TopicPartition("t", 0): 5}))
        await joined.wait()
        await before.abort()
        transaction = await (before if same else producer.transaction()).begin()
        await transaction.send("t", b"2")
        goes_on.set()
        with pytest.raises(TransactionAborted, match="over"):
            await left_over
        assert not cluster.requests_of(ApiKey.TXN_OFFSET_COMMIT)
        await transaction.commit_offsets(NOBODY, OFFSETS)
        await transaction.commit()
    assert (cluster.committed, cluster.ends) == ([b"2", 7], [False, True])


# --- a coordinator from before Kafka 2.5 --------------------------------------------------------------------


def before_2_5() -> TransactionCluster:
    cluster = TransactionCluster(1)
    cluster.versions |= {ApiKey.INIT_PRODUCER_ID: (0, 2), ApiKey.TXN_OFFSET_COMMIT: (0, 2)}
    return cluster


async def test_an_old_coordinator_takes_transactions_and_the_offsets_of_nobody() -> None:
    cluster = before_2_5()
    async with transactional(cluster) as producer:
        await (await begun(producer)).commit()
        await (await begun(producer, b"2")).abort()
        await one(producer, b"3")
    assert (cluster.committed, cluster.ends) == ([b"1", 7, b"3"], [True, False, True])


async def test_an_old_coordinator_takes_no_offsets_of_a_member() -> None:
    cluster = before_2_5()
    async with transactional(cluster) as producer:
        transaction = await producer.transaction().begin()
        await transaction.send("t", b"1")
        with pytest.raises(
            TransactionAborted, match=r"TXN_OFFSET_COMMIT for group g: this needs Apache Kafka 2\.5"
        ):
            await transaction.commit_offsets(GroupMetadata("g", 3, "m", None), OFFSETS)
        # The transaction is aborted there, but old coordinators give no next epoch (KIP-360).
        with pytest.raises(KafkaError, match=r"INIT_PRODUCER_ID: .* Kafka 2\.5.* start another") as refused:
            await transaction.abort()
        assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
        with pytest.raises(KafkaError, match=r"Kafka 2\.5"):
            producer.transaction()
    assert (cluster.committed, cluster.ends) == ([], [False])


# --- the protocol that changes, epochs that end -------------------------------------------------------------


async def test_the_protocol_changes_between_transactions() -> None:
    cluster = TransactionCluster(1)
    async with transactional(cluster) as producer:
        await (await begun(producer)).commit()
        cluster.level = 2
        cluster.cut()
        for value in (b"2", b"3", b"4"):
            await (await begun(producer, value)).commit()
    assert cluster.committed == [b"1", 7, b"2", 7, b"3", 7, b"4", 7]
    assert cluster.versions_of(ApiKey.END_TXN) == [4, 4, 5, 5]
    assert cluster.versions_of(ApiKey.TXN_OFFSET_COMMIT) == [4, 4, 5, 5]
    assert cluster.versions_of(ApiKey.PRODUCE) == [11, 11, 12, 12]
    # Protocol levels do not share an epoch.
    assert [each.epoch for each in cluster.identities] == [0, 0, 1, 2]


@pytest.mark.parametrize("done", [True, False])
async def test_a_change_of_protocol_that_hangs_can_be_tried_again(done: bool) -> None:
    cluster = TransactionCluster(1)
    async with transactional(cluster) as producer:
        cluster.level = 2
        cluster.cut()
        await one(producer, b"1")
        block_for(producer, 150)
        ask_again_after(producer, 200)
        cluster.script[ApiKey.INIT_PRODUCER_ID].append(Say(write=done, hang=True))
        with pytest.raises(TimedOut, match=r"did not begin within max_block_ms \(150\)"):
            await producer.transaction().begin()
        block_for(producer, 60_000)
        await one(producer, b"2")
    assert cluster.committed == [b"1", b"2"]


@pytest.mark.parametrize("kept", [True, False])
async def test_after_the_last_epoch_there_is_another_producer_id(kept: bool) -> None:
    cluster = TransactionCluster(2)
    cluster.identity = ProducerIdentity(100, LAST_EPOCH - 2)
    async with transactional(cluster) as producer:
        for value in (b"1", b"2", b"3"):
            transaction = await begun(producer, value)
            await (transaction.commit() if kept else transaction.abort())
    assert cluster.identities == [(100, LAST_EPOCH - 1), (100, LAST_EPOCH), (101, 0)]
    assert [cluster.committed, cluster.aborted][not kept] == [b"1", 7, b"2", 7, b"3", 7]


async def test_after_the_last_epoch_a_failure_brings_another_producer_id() -> None:
    cluster = TransactionCluster(1)
    cluster.identity = ProducerIdentity(100, LAST_EPOCH - 1)
    async with transactional(cluster) as producer:
        await one(producer, b"1")
        cluster.script[ApiKey.PRODUCE].append(Say(code=ErrorCode.MESSAGE_TOO_LARGE))
        with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
            await one(producer, b"2")
        await one(producer, b"3")
    assert cluster.identities == [(100, LAST_EPOCH), (101, 0)]
    assert cluster.committed == [b"1", b"3"]


async def test_a_new_producer_id_whose_answer_is_lost_is_heard_of() -> None:
    cluster = TransactionCluster(2)
    cluster.identity = ProducerIdentity(100, LAST_EPOCH - 1)
    async with transactional(cluster) as producer:
        cluster.script[ApiKey.END_TXN].append(Say(write=True, cut=True))
        await one(producer, b"1")
        await one(producer, b"2")
    assert cluster.identities == [(100, LAST_EPOCH), (101, 0)]
    assert (cluster.committed, cluster.ends) == ([b"1", b"2"], [True, True])


async def test_an_epoch_is_taken_from_a_coordinator_that_leaves_the_cluster_meanwhile() -> None:
    """Its successor does not know that it was given, and fences who asks again: Kafka does not store it."""
    cluster = TransactionCluster(1)
    cluster.coordinator = 2
    async with transactional(cluster) as producer:
        transaction = await begun(producer)
        cluster.script[ApiKey.PRODUCE].append(Say(code=ErrorCode.MESSAGE_TOO_LARGE))
        with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
            await transaction.send("t", b"2")
        goes_on = cluster.hold(ApiKey.INIT_PRODUCER_ID)
        aborting = asyncio.create_task(transaction.abort())
        await until(lambda: len(cluster.requests_of(ApiKey.INIT_PRODUCER_ID)) == 2, "the request")
        del cluster.nodes[2]
        await of(producer)._coordinator._cluster.refresh([], deadline(DEADLINE_S))
        before = cluster.identity
        goes_on.set()
        await until(lambda: cluster.identity != before, "the next epoch")
        cluster.succeeded_by(1)
        await aborting
        await one(producer, b"3")
    assert len(cluster.requests_of(ApiKey.INIT_PRODUCER_ID)) == 2
    assert (cluster.committed, cluster.ends) == ([b"3"], [False, True])


# --- fenced -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "api_key", "code"),
    [
        (level, api_key, code)
        for level, api_key in REQUESTS
        for code in FENCED
        # Groups answer this for a transaction that took too long as well: see below.
        if (api_key, code) != (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.INVALID_PRODUCER_EPOCH)
    ],
)
async def test_who_is_fenced_does_nothing_more(level: int, api_key: ApiKey, code: ErrorCode) -> None:
    cluster = TransactionCluster(level)
    async with transactional(cluster) as producer:
        cluster.script[api_key].append(Say(code=code))
        transaction = producer.transaction()

        async def whole() -> None:
            await transaction.begin()
            await transaction.send("t", b"1")
            await transaction.commit_offsets(NOBODY, OFFSETS)
            await transaction.commit()

        with pytest.raises((ProducerFenced, TransactionAborted)):
            await whole()
        asked = len(cluster.seen)
        for call in (transaction.commit, transaction.abort, transaction.begin):
            with pytest.raises(ProducerFenced, match="another producer has started with transactional_id x"):
                await call()
        for refused in (producer.send("t", b"2"), transaction.send("t", b"2")):
            with pytest.raises(ProducerFenced):
                await refused
        with pytest.raises(ProducerFenced):
            producer.transaction()
        assert len(cluster.seen) == asked
    assert (cluster.committed, cluster.ends) == ([], [])


@pytest.mark.parametrize("code", FENCED)
async def test_who_is_fenced_at_the_start_has_not_started(code: ErrorCode) -> None:
    cluster = TransactionCluster(2)
    cluster.script[ApiKey.INIT_PRODUCER_ID].append(Say(code=code))
    with pytest.raises(ProducerFenced, match="has started with transactional_id x meanwhile") as raised:
        async with transactional(cluster):
            raise AssertionError("it has started")
    assert isinstance(raised.value.__cause__, KafkaError)
    assert raised.value.__cause__.code is code


@pytest.mark.parametrize("code", FENCED)
async def test_who_is_fenced_while_its_epoch_is_renewed(code: ErrorCode) -> None:
    cluster = TransactionCluster(1)
    async with transactional(cluster) as producer:
        transaction = await begun(producer)
        cluster.script[ApiKey.PRODUCE].append(Say(code=ErrorCode.MESSAGE_TOO_LARGE))
        with pytest.raises(KafkaError):
            await transaction.send("t", b"2")
        cluster.script[ApiKey.INIT_PRODUCER_ID].append(Say(code=code))
        with pytest.raises(ProducerFenced):
            await transaction.abort()
        with pytest.raises(ProducerFenced):
            producer.transaction()
    assert cluster.committed == []


@LEVELS
async def test_a_fenced_record_fences_its_producer(level: int) -> None:
    cluster = TransactionCluster(level)
    async with transactional(cluster) as producer:
        transaction = await begun(producer)
        cluster.script[ApiKey.PRODUCE].append(Say(code=ErrorCode.PRODUCER_FENCED))
        with pytest.raises(KafkaError, match="PRODUCER_FENCED"):
            await transaction.send("t", b"2")
        with pytest.raises(ProducerFenced):
            await transaction.commit()
    assert (cluster.committed, cluster.ends) == ([], [])


@LEVELS
@pytest.mark.parametrize("api_key", [ApiKey.PRODUCE, ApiKey.TXN_OFFSET_COMMIT], ids=lambda each: each.name)
async def test_an_old_epoch_aborts_the_transaction(level: int, api_key: ApiKey) -> None:
    """Leaders and groups answer this for a transaction that the coordinator has ended, and for a fenced
    producer."""
    cluster = TransactionCluster(level)
    words = r"INVALID_PRODUCER_EPOCH: the transaction took longer than transaction_timeout_ms \(60000\), or"
    async with transactional(cluster) as producer:
        transaction = await begun(producer)
        cluster.script[api_key].append(Say(code=ErrorCode.INVALID_PRODUCER_EPOCH))
        with pytest.raises(TransactionAborted, match=words) as raised:
            await added(transaction, api_key)
        assert isinstance(raised.value.__cause__, KafkaError)
        with pytest.raises(TransactionAborted, match=words):
            await transaction.commit()
        await one(producer, b"3")
    assert (cluster.committed, cluster.ends) == ([b"3"], [False, True])


@LEVELS
@pytest.mark.parametrize("api_key", [ApiKey.PRODUCE, ApiKey.TXN_OFFSET_COMMIT], ids=lambda each: each.name)
@pytest.mark.parametrize("by_hand", [False, True])
async def test_the_abort_shows_whether_an_old_epoch_is_that_of_a_fenced_producer(
    level: int, api_key: ApiKey, by_hand: bool
) -> None:
    cluster = TransactionCluster(level)
    async with transactional(cluster) as producer:
        transaction = producer.transaction()
        cluster.script[ApiKey.END_TXN].append(Say(code=ErrorCode.PRODUCER_FENCED))
        if by_hand:
            await transaction.begin()
            await transaction.send("t", b"1")
            cluster.script[api_key].append(Say(code=ErrorCode.INVALID_PRODUCER_EPOCH))
            with pytest.raises(TransactionAborted):
                await added(transaction, api_key)
            with pytest.raises(ProducerFenced):
                await transaction.abort()
        else:

            async def block() -> None:
                async with transaction:
                    await transaction.send("t", b"1")
                    cluster.script[api_key].append(Say(code=ErrorCode.INVALID_PRODUCER_EPOCH))
                    await added(transaction, api_key)

            with pytest.raises(ProducerFenced) as raised:
                await block()
            assert isinstance(raised.value.__cause__, KafkaError)
        with pytest.raises(ProducerFenced):
            producer.transaction()
    assert (cluster.committed, cluster.ends) == ([], [])


async def added(transaction: Transaction[bytes, bytes], api_key: ApiKey) -> None:
    """Add a record, or offsets."""
    if api_key is ApiKey.PRODUCE:
        await transaction.send("t", b"2")
    else:
        await transaction.commit_offsets(NOBODY, OFFSETS)


@pytest.mark.parametrize("moves", [False, True])
async def test_a_producer_survives_a_timeout_though_the_coordinator_moves(moves: bool) -> None:
    cluster = TransactionCluster(2)
    async with transactional(cluster) as producer:
        transaction = await begun(producer)
        cluster.time_out()
        if moves:
            cluster.succeeded_by(2)
        with pytest.raises(TransactionAborted, match="transaction_timeout_ms"):
            await transaction.commit()
        await one(producer, b"2")
    assert (cluster.committed, cluster.ends) == ([b"2"], [False, True])


# --- records on their way when it fails ---------------------------------------------------------------------


@pytest.mark.interpreted
async def test_what_waits_behind_a_refused_record_is_not_sent_in_an_epoch_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the coordinator assigns epochs."""
    cluster = TransactionCluster(2)
    async with transactional(cluster) as producer:
        accumulator, arrived = producer._accumulator, producer._accumulator.arrived

        def woken_as_well(node: int, muted_until: float = 0.0) -> None:
            producer._sender.wake()  # as when a record is posted in the same turn
            arrived(node, muted_until)

        transaction = await producer.transaction().begin()
        gate = cluster.hold(ApiKey.PRODUCE)
        await transaction.post("t", b"1")
        await until(lambda: cluster.requests_of(ApiKey.PRODUCE), "the request")
        waiting = await transaction.post("t", b"behind")
        cluster.script[ApiKey.PRODUCE].append(Say(code=ErrorCode.MESSAGE_TOO_LARGE))
        monkeypatch.setattr(accumulator, "arrived", woken_as_well)
        gate.set()
        with pytest.raises(TransactionAborted, match="MESSAGE_TOO_LARGE"):
            await transaction.commit()
        assert isinstance(waiting.exception(), TransactionAborted)
        assert len(cluster.requests_of(ApiKey.PRODUCE)) == 1
        await one(producer, b"2")
    assert cluster.committed == [b"2"]


async def test_an_announcement_that_comes_behind_its_abort_begins_nothing() -> None:
    """Whenever it arrives, the epoch is over by then."""
    cluster = TransactionCluster(1)
    async with transactional(cluster) as producer:
        transaction = await begun(producer)
        cluster.deaf.add(ApiKey.ADD_PARTITIONS_TO_TXN)
        await transaction.post("u", b"2")
        await until(lambda: len(cluster.requests_of(ApiKey.ADD_PARTITIONS_TO_TXN)) == 2, "the announcement")
        await transaction.abort()
        late = cluster.requests_of(ApiKey.ADD_PARTITIONS_TO_TXN)[-1]
        assert late.v3_and_below_producer_epoch < cluster.identity.epoch
        cluster.deaf.clear()
        await one(producer, b"3")
    assert (cluster.committed, cluster.ends) == ([b"3"], [False, True])


async def test_a_partition_is_announced_once_however_many_records_wait_for_it() -> None:
    """A second announcement, for which nothing waits, could come behind the end and begin a transaction."""
    cluster = TransactionCluster(1)
    join = ApiKey.ADD_PARTITIONS_TO_TXN
    async with transactional(cluster) as producer:
        async with producer.transaction() as transaction:  # from here on the topics are known
            await transaction.send("t", b"1")
            await transaction.send("u", b"2")
        before = len(cluster.requests_of(join))
        refused = Say(code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        cluster.script[join] += [Say(write=True), refused, Say(write=True)]
        goes_on = cluster.hold(join)
        transaction = await producer.transaction().begin()
        await transaction.post("t", b"3")
        await until(lambda: len(cluster.requests_of(join)) > before, "the announcement")
        for topic, value in (("t", b"4"), ("u", b"5"), ("t", b"6")):
            await transaction.post(topic, value)
            await turns()  # the sender sees that it waits
        goes_on.set()
        await transaction.commit()
        await one(producer, b"7")
    announced = [
        [topic.name for topic in request.v3_and_below_topics] for request in cluster.requests_of(join)
    ]
    assert announced[before:] == [["t"], ["u"], ["u"], ["t"]]
    assert set(cluster.committed) == {b"%d" % number for number in range(1, 8)}
    assert cluster.ends == [True, True, True]


# --- cancelled ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "api_key", "kept"),
    [
        (1, ApiKey.ADD_PARTITIONS_TO_TXN, False),
        (1, ApiKey.PRODUCE, False),
        (2, ApiKey.PRODUCE, False),
        (1, ApiKey.END_TXN, True),
        (2, ApiKey.END_TXN, True),
    ],
)
async def test_a_commit_that_is_cancelled(level: int, api_key: ApiKey, kept: bool) -> None:
    """While records are still being sent, it becomes an abort, which the next transaction says; later it
    stays a commit."""
    cluster = TransactionCluster(level)
    async with transactional(cluster) as producer:
        transaction = await producer.transaction().begin()
        gate = cluster.hold(api_key)
        await transaction.post("t", b"1")
        commit = asyncio.create_task(transaction.commit())
        await until(lambda: cluster.requests_of(api_key), "the request")
        await cancelled(commit)
        gate.set()
        await tells(producer, aborted=not kept)
        await one(producer, b"2")
    assert cluster.committed == ([b"1", b"2"] if kept else [b"2"])
    assert cluster.ends == [kept, True]


async def a_commit_that_became_an_abort(
    cluster: TransactionCluster, producer: Producer[bytes, bytes]
) -> Transaction[bytes, bytes]:
    transaction = await producer.transaction().begin()
    gate = cluster.hold(ApiKey.PRODUCE)
    await transaction.post("t", b"1")
    commit = asyncio.create_task(transaction.commit())
    await until(lambda: cluster.requests_of(ApiKey.PRODUCE), "the record")
    await cancelled(commit)
    gate.set()
    return transaction


@LEVELS
@pytest.mark.parametrize("over", [True, False])
async def test_who_aborts_what_a_cancelled_commit_has_aborted_needs_not_be_told(
    level: int, over: bool
) -> None:
    """As error handlers do: there is nothing left to say to the next transaction."""
    cluster = TransactionCluster(level)
    async with transactional(cluster) as producer:
        transaction = await a_commit_that_became_an_abort(cluster, producer)
        if over:
            await until(lambda: of(producer).state is State.NONE, "the abort")
        for _ in range(2):
            await transaction.abort()
        await one(producer, b"2")
        await transaction.abort()
        again = await transaction.begin()
        await again.send("t", b"3")
        await again.commit()
        with pytest.raises(NoTransaction):
            await again.abort()
    assert (cluster.committed, cluster.ends) == ([b"2", b"3"], [False, True, True])


@LEVELS
@pytest.mark.parametrize("over", [True, False])
async def test_who_commits_again_what_a_cancelled_commit_has_aborted_is_told(level: int, over: bool) -> None:
    cluster = TransactionCluster(level)
    async with transactional(cluster) as producer:
        transaction = await a_commit_that_became_an_abort(cluster, producer)
        if over:
            await until(lambda: of(producer).state is State.NONE, "the abort")
        with pytest.raises(TransactionAborted, match="its commit was cancelled"):
            await transaction.commit()
        await transaction.abort()
        await one(producer, b"2")
    assert (cluster.committed, cluster.ends) == ([b"2"], [False, True])


@LEVELS
async def test_what_the_next_transaction_has_said_is_still_aborted(level: int) -> None:
    cluster = TransactionCluster(level)
    async with transactional(cluster) as producer:
        transaction = await a_commit_that_became_an_abort(cluster, producer)
        await tells(producer, aborted=True)
        await transaction.abort()
        with pytest.raises(TransactionAborted, match="its commit was cancelled"):
            await transaction.commit()
        await one(producer, b"2")
    assert (cluster.committed, cluster.ends) == ([b"2"], [False, True])


@LEVELS
async def test_a_commit_that_is_cancelled_while_it_aborts_is_told_to_the_next_one(level: int) -> None:
    """A record has failed, and the commit was to say so."""
    cluster = TransactionCluster(level)
    async with transactional(cluster) as producer:
        transaction = await begun(producer)
        cluster.script[ApiKey.PRODUCE].append(Say(code=ErrorCode.MESSAGE_TOO_LARGE))
        with pytest.raises(KafkaError):
            await transaction.send("t", b"too large")
        gate = cluster.hold(ApiKey.END_TXN)
        commit = asyncio.create_task(transaction.commit())
        await until(lambda: cluster.requests_of(ApiKey.END_TXN), "the abort")
        await cancelled(commit)
        gate.set()
        with pytest.raises(TransactionAborted, match="MESSAGE_TOO_LARGE"):
            await producer.transaction().begin()
        await one(producer, b"2")
    assert (cluster.committed, cluster.ends) == ([b"2"], [False, True])


async def test_a_commit_that_failed_late_can_be_aborted_and_committed_again() -> None:
    """Both say what became of it, so the next transaction does not."""
    cluster = TransactionCluster(2)
    for calls in (["abort", "commit"], ["commit", "abort"]):
        async with transactional(cluster) as producer:
            transaction = await begun(producer)
            block_for(producer, 300)
            cluster.deaf.add(ApiKey.END_TXN)
            with pytest.raises(TimedOut):
                await transaction.commit()
            block_for(producer, 60_000)
            cluster.time_out()
            cluster.deaf.clear()
            await until(lambda: of(producer).state is State.NONE, "the outcome")
            for call in calls:
                if call == "abort":
                    await transaction.abort()
                else:
                    with pytest.raises(TransactionAborted, match="transaction_timeout_ms"):
                        await transaction.commit()
            await one(producer, b"2")
    assert cluster.committed == [b"2", b"2"]


@LEVELS
async def test_a_commit_that_is_cancelled_while_the_coordinator_is_looked_up(level: int) -> None:
    cluster = TransactionCluster(level)
    async with transactional(cluster) as producer:
        transaction = await begun(producer)
        cluster.moves_at = ApiKey.END_TXN
        asked = len(cluster.requests_of(ApiKey.FIND_COORDINATOR))
        gate = cluster.hold(ApiKey.FIND_COORDINATOR)
        commit = asyncio.create_task(transaction.commit())
        await until(lambda: len(cluster.requests_of(ApiKey.FIND_COORDINATOR)) > asked, "the search")
        await cancelled(commit)
        gate.set()
        await one(producer, b"2")
    assert (cluster.committed, cluster.ends) == ([b"1", 7, b"2"], [True, True])


@pytest.mark.parametrize(
    ("level", "api_key"),
    [
        (1, ApiKey.PRODUCE),
        (2, ApiKey.PRODUCE),
        (1, ApiKey.END_TXN),
        (2, ApiKey.END_TXN),
        (1, ApiKey.INIT_PRODUCER_ID),
    ],
)
async def test_an_abort_that_is_cancelled_stays_an_abort(level: int, api_key: ApiKey) -> None:
    cluster = TransactionCluster(level)
    async with transactional(cluster) as producer:
        transaction = await begun(producer)
        if api_key is ApiKey.INIT_PRODUCER_ID:  # the request that renews the epoch
            cluster.script[ApiKey.PRODUCE].append(Say(code=ErrorCode.MESSAGE_TOO_LARGE))
            with pytest.raises(KafkaError):
                await transaction.send("t", b"too large")
        asked = len(cluster.requests_of(api_key))
        gate = cluster.hold(api_key)
        if api_key is ApiKey.PRODUCE:
            await transaction.post("t", b"late")
            await until(lambda: len(cluster.requests_of(api_key)) > asked, "the record")
        abort = asyncio.create_task(transaction.abort())
        if api_key is ApiKey.PRODUCE:
            await turns()
        await until(lambda: len(cluster.requests_of(api_key)) > asked, "the request")
        await cancelled(abort)
        gate.set()
        await one(producer, b"2")
    assert (cluster.committed, cluster.ends) == ([b"2"], [False, True])


@LEVELS
@pytest.mark.parametrize("end", [Transaction.commit, Transaction.abort])
async def test_cancelled_at_any_turn_the_next_one_works(
    level: int, end: Callable[[Transaction[bytes, bytes]], Coroutine[Any, Any, None]]
) -> None:
    """If a commit became an abort, the next one says so first, once; an abort is nothing to say."""
    cluster = TransactionCluster(level)
    told: list[bool] = []
    async with transactional(cluster) as producer:
        for count in range(40):
            transaction = await producer.transaction().begin()
            for _ in range(2):
                await transaction.post("t", b"%d" % count)
            ending = asyncio.create_task(end(transaction))
            await turns(count)
            ending.cancel()
            await asyncio.wait([ending])
            if of(producer).state is State.OPEN:  # it was cancelled before it ran
                await transaction.abort()
                continue
            if end is Transaction.commit:
                await until(lambda: of(producer).state is State.NONE, "the end")
                told.append(b"%d" % count not in cluster.committed[-2:])
                await tells(producer, aborted=told[-1])
        await one(producer, b"last")
    assert any(told) == (end is Transaction.commit)
    *whole, last = cluster.committed
    assert last == b"last"
    assert whole[::2] == whole[1::2]
    assert len(set(whole)) == len(whole) / 2


# --- closed -------------------------------------------------------------------------------------------------


@LEVELS
async def test_closing_aborts_what_is_open(level: int) -> None:
    cluster = TransactionCluster(level)
    async with transactional(cluster) as producer:
        transaction = await begun(producer)
        await producer.close()
        for call in (transaction.commit, transaction.abort, transaction.begin):
            with pytest.raises(Closed):
                await call()
    assert (cluster.committed, cluster.ends) == ([], [False])


@LEVELS
async def test_a_block_whose_producer_is_closed_does_not_end_as_if_it_were_committed(level: int) -> None:
    cluster = TransactionCluster(level)
    async with transactional(cluster) as producer:

        async def block() -> None:
            async with producer.transaction() as transaction:
                await transaction.send("t", b"1")
                await producer.close()

        with pytest.raises(Closed):
            await block()
    assert (cluster.committed, cluster.ends) == ([], [False])


@LEVELS
async def test_closing_waits_for_what_is_being_committed(level: int) -> None:
    cluster = TransactionCluster(level)
    async with transactional(cluster) as producer:
        transaction = await begun(producer)
        gate = cluster.hold(ApiKey.END_TXN)
        commit = asyncio.create_task(transaction.commit())
        await until(lambda: cluster.requests_of(ApiKey.END_TXN), "the commit")
        closing = asyncio.create_task(producer.close())
        await turns()
        assert not closing.done()
        gate.set()
        await commit
        await closing
    assert (cluster.committed, cluster.ends) == ([b"1", 7], [True])


@LEVELS
@pytest.mark.parametrize("cancels", [True, False])
async def test_closing_does_not_wait_for_ever(level: int, cancels: bool) -> None:
    """A caller that waits for the commit learns that its outcome is uncertain; one that wants to begin, that
    it no longer can."""
    cluster = TransactionCluster(level)
    async with transactional(cluster) as producer:
        transaction, following = await begun(producer), producer.transaction()
        cluster.deaf.add(ApiKey.END_TXN)
        commit = asyncio.create_task(transaction.commit())
        await until(lambda: cluster.requests_of(ApiKey.END_TXN), "the commit")
        begin = asyncio.create_task(following.begin())
        if cancels:
            closing = asyncio.create_task(producer.close())
            await turns()
            await cancelled(closing)
        else:
            await producer.close(0.05)
        with pytest.raises(Closed, match="may be committed or not"):
            await commit
        with pytest.raises(Closed):
            await begin
        with pytest.raises(Closed):
            await following.begin()


@LEVELS
async def test_closing_an_abort_that_hangs(level: int) -> None:
    cluster = TransactionCluster(level)
    async with transactional(cluster) as producer:
        transaction = await begun(producer)
        cluster.deaf.add(ApiKey.END_TXN)
        await producer.close(0.05)
        with pytest.raises(Closed):
            await transaction.commit()
    assert cluster.committed == []


async def test_closing_while_records_of_a_commit_are_sent_aborts_it() -> None:
    cluster = TransactionCluster(2)
    async with transactional(cluster) as producer:
        transaction = await producer.transaction().begin()
        gate = cluster.hold(ApiKey.PRODUCE)
        await transaction.post("t", b"1")
        commit = asyncio.create_task(transaction.commit())
        await until(lambda: cluster.requests_of(ApiKey.PRODUCE), "the record")
        closing = asyncio.create_task(producer.close())
        await turns()
        gate.set()
        with pytest.raises((TransactionAborted, Closed)):
            await commit
        await closing
    assert (cluster.committed, cluster.ends) == ([], [False])
