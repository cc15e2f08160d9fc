"""Transactions: what is committed is there once, what is aborted never is; a producer that was replaced
learns of it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from muster.client import (
    ClientError,
    ConcurrentUse,
    ConsumerRecord,
    GroupMetadata,
    KafkaError,
    NoTransaction,
    Producer,
    ProducerFenced,
    RecordMetadata,
    TopicPartition,
    Transaction,
    TransactionAborted,
)
from tests.examples.test_examples import running
from tests.interop.behaviour.place import BOTH, DEADLINE_S, Place, take, until, values_of
from tests.interop.behaviour.targets import KAFKA_BEFORE_890, TARGETS, Target

pytestmark = [
    pytest.mark.interop,
    pytest.mark.parametrize("target", [*TARGETS, KAFKA_BEFORE_890], indirect=True),
]


def transactional(place: Place, name: str = "writer", **settings: Any) -> Producer[bytes, bytes]:
    return Producer(place.bootstrap, transactional_id=f"{place.name}-{name}", **settings)


async def committed_values(place: Place, topic: str, partitions: int = 1) -> list[bytes]:
    return [record.value for record in await committed_records(place, topic, partitions)]


async def committed_records(place: Place, topic: str, partitions: int = 1) -> list[ConsumerRecord[Any, Any]]:
    """Everything that read_committed shows once no transaction is open: coordinators answer before partitions
    have their markers."""
    wheres = [TopicPartition(topic, number) for number in range(partitions)]
    async with (
        place.consumer() as uncommitted,
        place.consumer(isolation_level="read_committed") as consumer,
        asyncio.timeout(DEADLINE_S),
    ):
        uncommitted.assign(wheres)
        consumer.assign(wheres)
        ends = await uncommitted.end_offsets(wheres)
        while await consumer.end_offsets(wheres) != ends:
            await asyncio.sleep(0.01)
            ends = await uncommitted.end_offsets(wheres)
        records = []
        async with asyncio.timeout(DEADLINE_S):
            while any([await consumer.position(where) < ends[where] for where in wheres]):
                records += await consumer.get_many(timeout=0.1)
        return records


async def test_a_block_commits_at_its_end_and_aborts_when_it_is_left(place: Place) -> None:
    topic = await place.topic(partitions=2)
    async with transactional(place) as producer:
        async with producer.transaction() as transaction:
            sent = await transaction.send(topic, b"1", partition=0)
            await transaction.post(topic, b"2", partition=1)
        assert (sent.partition, sent.offset) == (0, 0)

        async def fail() -> None:
            async with producer.transaction() as transaction:
                await transaction.send(topic, b"never", partition=0)
                await transaction.post(topic, b"never either", partition=1)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        async with producer.transaction():
            await producer.send(topic, b"3", partition=0)
            await producer.post(topic, b"4", partition=1)
        async with producer.transaction():
            pass
        async with producer.transaction() as transaction:
            await transaction.post(topic, b"no more", partition=0)
            await transaction.abort()
        async with producer.transaction() as transaction:
            await transaction.post(topic, b"5", partition=0)
            await transaction.commit()
    assert sorted(await committed_values(place, topic, 2)) == [b"1", b"2", b"3", b"4", b"5"]


async def test_many_in_a_row_number_their_records_anew(place: Place) -> None:
    topic = await place.topic(partitions=3)
    wanted = []
    async with transactional(place) as producer:
        for number in range(30):
            values = [b"%d-%d" % (number, each) for each in range(5)]
            kept = number % 3 != 1
            transaction = await producer.transaction().begin()
            for each, value in enumerate(values):
                await transaction.post(topic, value, partition=each % 3)
            if kept:
                await transaction.commit()
                wanted += values
            else:
                await transaction.abort()
    assert sorted(await committed_values(place, topic, 3)) == sorted(wanted)


async def test_what_is_wrong_is_said(place: Place) -> None:
    topic = await place.topic()
    async with transactional(place) as producer:
        with pytest.raises(
            NoTransaction, match="a record of a producer with a transactional_id is part of a transaction"
        ):
            await producer.send(topic, b"outside")
        async with producer.transaction() as transaction:
            await transaction.send(topic, b"1")
            with pytest.raises(ConcurrentUse, match="one at a time"):
                await producer.transaction().begin()
            await transaction.send(topic, b"2")
        with pytest.raises(NoTransaction, match="over"):
            await transaction.send(topic, b"behind")
        with pytest.raises(NoTransaction, match="over"):
            await transaction.abort()
    with pytest.raises(KafkaError, match=r"transaction_timeout_ms \(2000000000\): the broker allows less"):
        await transactional(place, transaction_timeout_ms=2_000_000_000).start()
    with pytest.raises(ClientError, match="transaction\\(\\) requires a transactional_id"):
        place.producer.transaction()
    assert await committed_values(place, topic) == [b"1", b"2"]


async def test_a_record_that_fails_fails_the_transaction(place: Place) -> None:
    topic = await place.topic(max_message_bytes="1000")
    async with transactional(place) as producer:
        transaction = await producer.transaction().begin()
        await transaction.send(topic, b"first")
        failing = await transaction.post(topic, b"x" * 5_000)
        await asyncio.wait([failing])
        with pytest.raises(TransactionAborted, match="can only be aborted"):
            await transaction.send(topic, b"late")
        with pytest.raises(TransactionAborted, match="MESSAGE_TOO_LARGE") as raised:
            await transaction.commit()
        assert isinstance(raised.value.__cause__, KafkaError)
        assert isinstance(failing.exception(), KafkaError)
        async with producer.transaction() as transaction:
            await transaction.send(topic, b"next")
    assert await committed_values(place, topic) == [b"next"]


async def test_records_that_were_not_sent_when_it_was_aborted_say_so(place: Place) -> None:
    topic = await place.topic()
    async with transactional(place, linger_ms=60_000) as producer:
        transaction = await producer.transaction().begin()
        futures = [await transaction.post(topic, b"never") for _ in range(3)]
        await transaction.abort()
        told = await asyncio.gather(*futures, return_exceptions=True)
        assert [type(each) for each in told] == [TransactionAborted] * 3
        async with producer.transaction() as transaction:
            await transaction.post(topic, b"next")
    assert await committed_values(place, topic) == [b"next"]


async def test_cancelled_anywhere_nothing_hangs_and_the_next_one_works(place: Place) -> None:
    topic = await place.topic()
    wanted = 0

    async def one(producer: Producer[bytes, bytes], number: int) -> None:
        async with producer.transaction() as transaction:
            await transaction.post(topic, b"%d" % number)
            await transaction.send(topic, b"%d" % number)

    async with transactional(place) as producer:
        await one(producer, 0)
        for steps in range(40):
            task = asyncio.create_task(one(producer, steps + 1))
            for _ in range(steps):
                await asyncio.sleep(0.0005 if steps > 10 else 0)  # some turns of the loop, then of the broker
            task.cancel()
            await asyncio.wait([task], timeout=DEADLINE_S)
            assert task.done()
        async with asyncio.timeout(DEADLINE_S):
            try:
                await one(producer, 99)
            except TransactionAborted:  # about the one before, whose commit was cancelled: said once
                await one(producer, 99)
    values = await committed_values(place, topic)
    wanted = len(set(values))
    assert values == [value for each in values[::2] for value in (each, each)]  # each complete, none twice
    assert (values[0], values[-1], len(values)) == (b"0", b"99", 2 * wanted)


async def test_a_producer_with_the_same_id_takes_over(place: Place) -> None:
    topic = await place.topic()
    async with transactional(place) as first:
        transaction = await first.transaction().begin()
        await transaction.send(topic, b"never")
        async with transactional(place) as second:
            async with second.transaction() as other:
                await other.send(topic, b"second")
            with pytest.raises(ProducerFenced, match="another producer has started"):
                await transaction.commit()
            with pytest.raises(ProducerFenced):
                await first.send(topic, b"x")
            with pytest.raises(ProducerFenced):
                first.transaction()
    assert await committed_values(place, topic) == [b"second"]


@asynccontextmanager
async def one_sent_in_time(
    place: Place, topic: str, value: bytes
) -> AsyncIterator[tuple[Producer[bytes, bytes], Transaction[bytes, bytes], RecordMetadata]]:
    """A producer whose transactions may take a second, and one of them in which the value was sent in that
    time: on a busy machine not the first."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        async with transactional(place, transaction_timeout_ms=1_000) as producer:
            transaction = await producer.transaction().begin()
            try:
                sent = await transaction.send(topic, value)
            except (TransactionAborted, ProducerFenced):
                assert time.monotonic() < deadline, "never fast enough"
            else:
                yield producer, transaction, sent
                return


async def until_one_is_fast_enough(producer: Producer[bytes, bytes], topic: str, value: bytes) -> None:
    """Send the value in one transaction after another, until the broker does not abort it."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            with suppress(TransactionAborted):
                async with producer.transaction() as transaction:
                    await transaction.send(topic, value)
                return


async def test_one_that_takes_too_long_is_aborted_by_the_broker(place: Place, target: Target) -> None:
    """Before KIP-890 this cannot be distinguished from a producer that has taken over."""
    topic = await place.topic()
    where = TopicPartition(topic, 0)
    async with one_sent_in_time(place, topic, b"too slow") as (producer, transaction, sent):
        async with place.consumer(isolation_level="read_committed") as consumer:
            consumer.assign([where])
            over = sent.offset + 2  # behind the marker
            async with asyncio.timeout(DEADLINE_S):
                while (await consumer.end_offsets([where]))[where] < over:  # noqa: ASYNC110 - the broker's fact
                    await asyncio.sleep(0.01)
        fails = ProducerFenced if target.name == KAFKA_BEFORE_890 else TransactionAborted
        with pytest.raises(fails, match=r"transaction_timeout_ms \(1000\)"):
            await transaction.commit()
        if target.name != KAFKA_BEFORE_890:
            await until_one_is_fast_enough(producer, topic, b"next")
    assert await committed_values(place, topic) == ([] if target.name == KAFKA_BEFORE_890 else [b"next"])


# --- offsets ------------------------------------------------------------------------------------------------


@BOTH
async def test_offsets_are_committed_with_the_records(place: Place) -> None:
    source, target = await place.topic(), await place.topic()
    where = TopicPartition(source, 0)
    await place.send(source, *(b"%d" % number for number in range(10)))
    async with (
        transactional(place) as producer,
        place.consumer(group_id=place.group, topics=source, isolation_level="read_committed") as consumer,
    ):
        seen = 0
        async for batch in consumer.batches(3):
            async with producer.transaction() as transaction:
                for value in batch.values:
                    await transaction.post(target, value)
                await transaction.commit_offsets(consumer)
            seen += len(batch)
            if seen == 6:
                break
    await place.until_committed({where: 6})
    assert await committed_values(place, target) == [b"%d" % number for number in range(6)]
    async with (
        transactional(place) as producer,
        place.consumer(group_id=place.group, topics=source, isolation_level="read_committed") as consumer,
    ):
        await take(consumer, 2)

        async def fail() -> None:
            async with producer.transaction() as transaction:
                await transaction.post(target, b"never")
                await transaction.commit_offsets(consumer)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
    assert await place.committed() == {where: 6}  # closing committed nothing by itself
    assert await committed_values(place, target) == [b"%d" % number for number in range(6)]


async def test_offsets_of_another_process_and_of_no_member(place: Place) -> None:
    source = await place.topic()
    where = TopicPartition(source, 0)
    async with transactional(place) as producer:
        async with producer.transaction() as transaction:
            nobody = GroupMetadata(place.group, -1, "", None)
            await transaction.commit_offsets(nobody, {where: 7})
        await place.until_committed({where: 7})
        transaction = await producer.transaction().begin()
        stranger = GroupMetadata(place.group, 3, "stranger", None)
        with pytest.raises(TransactionAborted, match=r"UNKNOWN_MEMBER_ID|ILLEGAL_GENERATION"):
            await transaction.commit_offsets(stranger, {where: 8})
        with pytest.raises(TransactionAborted, match=r"UNKNOWN_MEMBER_ID|ILLEGAL_GENERATION"):
            await transaction.commit()
        async with producer.transaction() as transaction:
            with pytest.raises(ValueError, match="offsets are required"):
                await transaction.commit_offsets(nobody)
            await transaction.commit_offsets(nobody, {where: 9})
        await place.until_committed({where: 9})


@BOTH
async def test_a_member_of_an_earlier_generation_cannot_commit(place: Place) -> None:
    source, target = await place.topic(2), await place.topic()
    await place.spread(source, 2, 5)
    async with transactional(place) as producer:
        async with place.member(source) as first:
            await until(lambda: len(first.records) == 10, "all records")
            stale = first.consumer.group_metadata()
            async with place.member(source) as second:
                await until(lambda: second.owned and len(first.owned) == 1, "the second member")
                (moved,) = second.owned
                transaction = await producer.transaction().begin()
                await transaction.send(target, b"never")
                with pytest.raises(TransactionAborted, match=r"ILLEGAL_GENERATION|STALE_MEMBER_EPOCH"):
                    await transaction.commit_offsets(stale, {TopicPartition(source, moved): 2})
                with pytest.raises(TransactionAborted):
                    await transaction.commit()
        async with producer.transaction() as transaction:
            await transaction.send(target, b"good")
    assert await committed_values(place, target) == [b"good"]


@BOTH
async def test_a_consumer_that_left_its_group_cannot_commit(place: Place) -> None:
    source, target = await place.topic(), await place.topic()
    await place.send(source, b"0", b"1")
    async with (
        transactional(place) as producer,
        place.consumer(
            group_id=place.group, topics=source, max_poll_interval_ms=1_000, revocation_grace_ms=0
        ) as consumer,
    ):
        await take(consumer, 2)
        transaction = await producer.transaction().begin()
        await transaction.send(target, b"never")
        await until(lambda: consumer.group_metadata().generation_id < 0, "the end of its membership")
        with pytest.raises(TransactionAborted, match="lost its place in group"):
            await transaction.commit_offsets(consumer)
        with pytest.raises(TransactionAborted, match="lost its place in group"):
            await transaction.commit()
        async with producer.transaction() as transaction:
            await transaction.send(target, b"good")
    assert await committed_values(place, target) == [b"good"]


async def test_the_example_killed_at_any_point_counts_exactly_once(place: Place, tmp_path: Path) -> None:
    source, target = await place.topic(2), await place.topic()
    arguments = (place.bootstrap, source, target, f"{place.name}-etl")
    accounts = [b"account-%d" % number for number in range(5)]

    async def pay() -> None:
        for number in range(100):
            await place.producer.post(source, b"7", key=accounts[number % 5], partition=number % 2)
        await place.producer.flush()

    for _ in range(3):
        with running("transactions", *arguments, folder=tmp_path) as example:
            await pay()
            await until(lambda example=example: example.lines, "the first transaction")
            # and killed, in the middle of the next
        await place.admin.remove_members("etl")
    with running("transactions", *arguments, folder=tmp_path) as example:
        await pay()
        async with asyncio.timeout(DEADLINE_S):
            while sum((await place.committed("etl")).values()) < 400:  # noqa: ASYNC110 - a broker's fact
                await asyncio.sleep(0.05)
    totals: Counter[bytes] = Counter()
    for record in await committed_records(place, target):
        totals[record.key] += int(record.value)
    assert totals == dict.fromkeys(accounts, 7 * 80)


# --- reading ------------------------------------------------------------------------------------------------


async def test_interleaved_producers_and_a_start_in_the_middle_of_an_aborted_one(place: Place) -> None:
    topic = await place.topic()
    where = TopicPartition(topic, 0)
    async with transactional(place, "one") as one, transactional(place, "two") as two:
        mine, other = await one.transaction().begin(), await two.transaction().begin()
        for number in range(4):  # offsets 0 to 7
            await mine.send(topic, b"aborted %d" % number)
            await other.send(topic, b"committed %d" % number)
        await place.send(topic, b"plain")  # 8
        await mine.abort()
        await other.commit()
        async with one.transaction() as mine:
            await mine.send(topic, b"later")
    wanted = [*(b"committed %d" % number for number in range(4)), b"plain", b"later"]
    assert await committed_values(place, topic) == wanted
    for start, left in ((2, 1), (3, 1), (4, 2), (5, 2), (8, 4)):
        async with place.consumer(isolation_level="read_committed", fetch_max_bytes=1) as consumer:
            consumer.assign([where])
            consumer.seek(where, start)
            assert await values_of(consumer, len(wanted) - left) == wanted[left:]
