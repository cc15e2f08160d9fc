"""When a fetch is answered. `tests/kafka/test_when_fetches_answer.py` compares this with Apache Kafka."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, NamedTuple

import pytest

from muster.coordinator.cluster.placement import data_shard
from muster.coordinator.storage.folders import Folders
from muster.coordinator.topics.catalogue import Topic
from muster.coordinator.topics.guards import UNVERIFIED
from muster.coordinator.topics.logs import Logs
from muster.coordinator.topics.partitions import FetchedPartition, FetchPartition, Partitions
from muster.coordinator.transactions.marker import Marker
from muster.protocol.errors import ErrorCode
from muster.protocol.record_batch import batches
from tests.topics.support import NOW_MS, SHARDS, Brokers, InlineExecutor, batch
from tests.topics.test_at_once import Cache, CachedFolder
from tests.topics.test_partitions import ask, fetch, parked, settled, topic_at, values

VALUE = bytes(100)
ONE = len(batch(VALUE))
"""Size of a batch of one record."""
MINUTE_MS = 60_000
WAIT_MS = 500


@pytest.fixture
async def brokers() -> AsyncIterator[Brokers]:
    brokers = Brokers()
    yield brokers
    await brokers.close()


async def filled(brokers: Brokers, *counts: int, **configs: str) -> tuple[Partitions, Topic]:
    """A topic with that many one-record batches in each partition."""
    node = await brokers.add()
    topic = await topic_at(brokers, partitions=len(counts), **configs)
    for partition, count in enumerate(counts):
        for _ in range(count):
            await node.append(topic, partition, batch(VALUE))
    return node, topic


async def waits(
    node: Partitions, *asked: FetchPartition, **limits: int
) -> asyncio.Task[list[FetchedPartition]]:
    task = await parked(fetch(node, *asked, **{"max_wait_ms": WAIT_MS, **limits}))
    assert not task.done()
    return task


async def at_once(node: Partitions, *asked: FetchPartition, **limits: int) -> list[int]:
    """Fetch, check that the answer comes at once, and return the number of records of each partition."""
    task = await parked(fetch(node, *asked, **{"max_wait_ms": WAIT_MS, **limits}))
    assert task.done()
    return [len(values(answer)) for answer in task.result()]


# --- the first look ---------------------------------------------------------------------------------


async def test_an_answer_that_is_full_waits_for_nothing(brokers: Brokers) -> None:
    node, topic = await filled(brokers, 10, 3)
    limit = 2 * ONE + 10
    assert await at_once(node, ask(topic, max_bytes=limit), min_bytes=limit) == [2]
    assert await at_once(node, ask(topic), min_bytes=limit, max_bytes=limit) == [2]
    both = ask(topic, max_bytes=limit), ask(topic, partition=1, max_bytes=limit)
    assert await at_once(node, *both, min_bytes=2 * limit) == [2, 2]
    for task in (
        await waits(node, ask(topic, max_bytes=limit), min_bytes=limit + 1),
        await waits(node, *both, min_bytes=2 * limit + 1),
        await waits(node, ask(topic), min_bytes=10 * ONE + 1),
    ):
        task.cancel()


async def test_no_more_is_waited_for_than_the_answer_may_have(brokers: Brokers) -> None:
    node, topic = await filled(brokers, 10)
    assert await at_once(node, ask(topic), min_bytes=1 << 20, max_bytes=2 * ONE) == [2]


async def test_what_finds_no_room_counts_all_the_same(brokers: Brokers) -> None:
    node, topic = await filled(brokers, 10, 3)
    limit = 2 * ONE + 10
    first = ask(topic, max_bytes=2 * ONE)
    assert await at_once(node, first, ask(topic, partition=1), min_bytes=limit, max_bytes=limit) == [2, 0]
    second = ask(topic, partition=1, max_bytes=9)
    (await waits(node, first, second, min_bytes=limit, max_bytes=limit)).cancel()


async def test_a_batch_beyond_its_limit_counts_in_full_at_the_first_look(brokers: Brokers) -> None:
    node, topic = await filled(brokers, 10, 0)
    await node.append(topic, 1, large := batch(bytes(5_000)))
    beyond, limited = ask(topic, partition=1, max_bytes=100), ask(topic, max_bytes=2 * ONE + 10)
    assert await at_once(node, beyond, min_bytes=len(large)) == [1]
    assert await at_once(node, beyond, limited, min_bytes=len(large) + 2 * ONE + 10) == [1, 2]
    for task in (
        await waits(node, beyond, min_bytes=len(large) + 1),
        await waits(node, beyond, limited, min_bytes=len(large) + 2 * ONE + 11),
    ):
        task.cancel()


async def test_an_older_segment_waits_for_nothing(brokers: Brokers) -> None:
    node, topic = await filled(brokers, 2, 1, segment_ms=str(MINUTE_MS))
    await node.append(topic, 0, batch(VALUE, timestamps=[NOW_MS + 2 * MINUTE_MS]))
    for offset, count in ((0, 2), (1, 1)):
        assert await at_once(node, ask(topic, offset), min_bytes=100_000) == [count]
        both = ask(topic, 0, 1), ask(topic, offset)
        assert await at_once(node, *both, min_bytes=100_000) == [1, count]
    for offset in (2, 3):
        (await waits(node, ask(topic, offset), min_bytes=100_000)).cancel()


async def test_memory_that_is_short_makes_no_fetch_wait(brokers: Brokers) -> None:
    node, topic = await filled(brokers, 10)
    task = await parked(
        node.fetch(
            [ask(topic)], min_bytes=5 * ONE, max_bytes=1 << 20, max_wait_ms=WAIT_MS, lend=lambda _: 2 * ONE
        )
    )
    assert [len(values(answer)) for answer in task.result()] == [2]


# --- committed records ------------------------------------------------------------------------------

MARKER: Final = 78
"""Size of a marker's batch."""


class Transaction:
    """A transaction of one producer in one partition, on a broker that verifies nothing."""

    def __init__(self, node: Partitions, topic: Topic, producer: int = 7) -> None:
        self._node, self._topic, self._producer = node, topic, producer
        self._sequence = 0

    async def put(self) -> None:
        data = batch(VALUE, producer=(self._producer, 0, self._sequence), transactional=True)
        self._sequence += 1
        await self._node.append(self._topic, 0, data, transactional=True, guard=UNVERIFIED)

    async def end(self, *, committed: bool = True) -> None:
        await self._node.append_marker(self._topic, 0, Marker(self._producer, 0, 0, committed))


def committed(topic: Topic, offset: int = 0, **given: Any) -> FetchPartition:
    return ask(topic, offset, **given)._replace(read_committed=True)


async def test_who_reads_committed_records_waits_for_a_marker(brokers: Brokers) -> None:
    node, topic = await filled(brokers, 1)
    transaction = Transaction(node, topic)
    await transaction.put()
    task = await waits(node, committed(topic, 1))
    await node.append(topic, 0, batch(VALUE))
    await settled()
    assert not task.done()
    assert await at_once(node, ask(topic, 1)) == [2]
    await transaction.end()
    await settled()
    assert len(values(task.result()[0])) == 3


async def test_nobody_waits_behind_the_last_stable_offset(brokers: Brokers) -> None:
    node, topic = await filled(brokers, 1)
    await Transaction(node, topic).put()
    await node.append(topic, 0, batch(VALUE))
    for offset in (2, 3):
        assert await at_once(node, committed(topic, offset)) == [0]
    (await waits(node, committed(topic, 1))).cancel()


@pytest.mark.parametrize("opened", [False, True])
async def test_a_transaction_that_began_in_an_older_segment_is_waited_for(
    brokers: Brokers, opened: bool
) -> None:
    node, topic = await filled(brokers, 2, segment_ms=str(MINUTE_MS))
    await Transaction(node, topic, 7).put()
    await Transaction(node, topic, 8).put()
    await node.append(topic, 0, batch(VALUE, timestamps=[NOW_MS + 2 * MINUTE_MS]))
    if opened:
        await node.close()
        node = await brokers.add(epoch=2)
    transactional = len(batch(VALUE, producer=(7, 0, 0), transactional=True))
    assert await at_once(node, committed(topic), min_bytes=2 * ONE) == [2]
    less = await waits(node, committed(topic, 1), min_bytes=ONE + transactional)
    more = await waits(node, committed(topic, 1), min_bytes=ONE + transactional + 1)
    await Transaction(node, topic, 7).end()
    await settled()
    assert len(values(less.result()[0])) == 2
    assert not more.done()
    await Transaction(node, topic, 8).end()  # the log ends in a newer segment
    await settled()
    assert len(values(more.result()[0])) == 3


async def test_a_transaction_whose_first_records_are_gone_is_waited_for(brokers: Brokers) -> None:
    node, topic = await filled(brokers, 1)
    transaction = Transaction(node, topic)
    for _ in range(3):
        await transaction.put()
    await node.delete_records(topic, 0, 3)
    transactional = len(batch(VALUE, producer=(7, 0, 0), transactional=True))
    less = await waits(node, committed(topic, 3), min_bytes=transactional + MARKER)
    more = await waits(node, committed(topic, 3), min_bytes=transactional + MARKER + 1)
    await transaction.end()
    await settled()
    assert less.done()
    assert not more.done()
    more.cancel()


async def test_bytes_count_up_to_the_last_stable_offset(brokers: Brokers) -> None:
    node, topic = await filled(brokers, 1)
    first, second = Transaction(node, topic, 7), Transaction(node, topic, 8)
    transactional = len(batch(VALUE, producer=(7, 0, 0), transactional=True))
    await first.put()
    await second.put()
    assert await at_once(node, committed(topic), min_bytes=ONE) == [1]
    less = await waits(node, committed(topic), min_bytes=ONE + transactional)
    more = await waits(node, committed(topic), min_bytes=ONE + transactional + 1)
    await first.end(committed=False)
    await settled()
    (answer,) = less.result()
    assert (len(values(answer)), answer.last_stable_offset, answer.high_watermark) == (2, 2, 4)
    assert [tuple(each) for each in answer.aborted] == [(7, 1, 3)]
    assert not more.done()
    await second.end()
    await settled()
    assert len(more.result()[0].records) == ONE + 2 * transactional + 2 * MARKER


async def test_after_an_opening_a_transaction_is_waited_for_like_before(brokers: Brokers) -> None:
    node, topic = await filled(brokers, 1)
    await Transaction(node, topic).put()
    await node.close()
    again = await brokers.add(epoch=2)
    transaction = Transaction(again, topic)
    assert await at_once(again, committed(topic), min_bytes=ONE) == [1]
    tasks = [await waits(again, committed(topic, 1)), await waits(again, committed(topic), min_bytes=ONE + 1)]
    await again.append(topic, 0, batch(VALUE))
    await settled()
    assert not any(task.done() for task in tasks)
    await transaction.end()
    await settled()
    assert [len(values(task.result()[0])) for task in tasks] == [3, 4]


async def test_after_an_opening_the_next_of_several_transactions_is_waited_for(brokers: Brokers) -> None:
    node, topic = await filled(brokers, 1)
    for producer in (7, 8):
        await Transaction(node, topic, producer).put()
    await node.close()
    again = await brokers.add(epoch=2)
    first, second = Transaction(again, topic, 7), Transaction(again, topic, 8)
    transactional = len(batch(VALUE, producer=(7, 0, 0), transactional=True))
    task = await waits(again, committed(topic), min_bytes=ONE + transactional + 1)
    await first.end()
    await settled()
    assert not task.done()
    await second.end()
    await settled()
    assert len(task.result()[0].records) == ONE + 2 * transactional + 2 * MARKER


async def test_a_lost_leadership_ends_the_wait_for_committed_records(brokers: Brokers) -> None:
    node, topic = await filled(brokers, 1)
    await Transaction(node, topic).put()
    task = await waits(node, committed(topic, 1))
    node.disown(data_shard(topic.topic_id, 0, SHARDS))
    await settled()
    (answer,) = task.result()
    assert answer.error is not None
    assert answer.error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


# --- the wait ---------------------------------------------------------------------------------------


async def test_no_more_than_a_partitions_limit_counts(brokers: Brokers) -> None:
    node, topic = await filled(brokers, 0, 0)
    limited = ask(topic, max_bytes=ONE - 1)
    alone = await waits(node, limited, min_bytes=ONE)
    beside = await waits(node, limited, ask(topic, partition=1), min_bytes=2 * ONE)
    for _ in range(3):
        await node.append(topic, 0, batch(VALUE))
    await settled()
    assert not alone.done()
    assert not beside.done()
    await node.append(topic, 1, batch(VALUE))
    await settled()
    assert not beside.done()  # a byte is missing
    await node.append(topic, 1, batch(VALUE))
    assert [len(values(answer)) for answer in await beside] == [1, 2]
    brokers.clock.advance(WAIT_MS)
    assert [len(values(answer)) for answer in await alone] == [1]


@pytest.mark.parametrize("offset", [1, 2])
async def test_a_new_segment_ends_the_wait(brokers: Brokers, offset: int) -> None:
    node, topic = await filled(brokers, 2, segment_ms=str(MINUTE_MS))
    waiting = await waits(node, ask(topic, offset), min_bytes=100_000)
    await node.append(topic, 0, batch(VALUE))
    await settled()
    assert not waiting.done()
    await node.append(topic, 0, batch(VALUE, timestamps=[NOW_MS + 2 * MINUTE_MS]))
    assert [len(values(answer)) for answer in await waiting] == [3 - offset]


async def test_what_waits_reads_nothing_until_there_is_enough(brokers: Brokers) -> None:
    node, topic = await filled(brokers, 2)
    lent: list[int] = []

    def lend(wanted: int) -> int:
        lent.append(wanted)
        return wanted

    waiting = await parked(
        node.fetch([ask(topic)], min_bytes=5 * ONE, max_bytes=1 << 20, max_wait_ms=WAIT_MS, lend=lend)
    )
    for _ in range(2):
        await node.append(topic, 0, batch(VALUE))
        await settled()
    assert lent == [1 << 20, 0]
    await node.append(topic, 0, batch(VALUE))
    assert len(values((await waiting)[0])) == 5
    assert lent == [1 << 20, 0, 1 << 20]


async def test_no_more_memory_is_taken_than_the_records_may_need(brokers: Brokers) -> None:
    node, topic = await filled(brokers, 10, 3, 2)
    lent: list[int] = []

    def lend(wanted: int) -> int:
        lent.append(wanted)
        return wanted

    async def read(*asked: FetchPartition, max_bytes: int = 50 << 20) -> list[int]:
        answers = await node.fetch(asked, min_bytes=1, max_bytes=max_bytes, max_wait_ms=0, lend=lend)
        return [len(values(answer)) for answer in answers]

    part = partial(ask, topic, max_bytes=2 * ONE)
    assert await read(part(), part(0, 1), part(0, 2, max_bytes=-1)) == [2, 2, 0]
    assert await read(part(), part(0, 1), max_bytes=3 * ONE) == [2, 1]
    assert await read(part(), part(3, 1), part(2, 2, last_fetched_epoch=1), part(99, 2)) == [2, 0, 0, 0]
    assert await read(part(3, 1)) == [0]
    assert lent == [4 * ONE, 3 * ONE, 4 * ONE]


class LateExecutor(InlineExecutor):
    """Reports the results of its work only when the test says so."""

    def __init__(self) -> None:
        self.done: list[Callable[[], None]] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.done.append(partial(future.set_result, fn(*args, **kwargs)))
        return future


@pytest.mark.files
@pytest.mark.parametrize("enough", [True, False])
async def test_what_is_appended_during_the_first_look_is_not_missed(enough: bool) -> None:
    brokers = Brokers(logs=Logs(Folders(CachedFolder(Cache()))))
    node, topic = await filled(brokers, 1)
    before = node._executor
    node._executor = late = LateExecutor()
    min_bytes = 2 * ONE if enough else 3 * ONE
    waiting = await parked(fetch(node, ask(topic), min_bytes=min_bytes, max_wait_ms=WAIT_MS))
    node._executor = before
    await node.append(topic, 0, batch(VALUE))
    late.done.pop()()
    await settled()
    assert waiting.done() == enough
    await node.append(topic, 0, batch(VALUE))
    assert len(values((await waiting)[0])) == (2 if enough else 3)
    await brokers.close()


@pytest.mark.files
async def test_a_leadership_that_goes_during_the_first_look_is_told_at_once() -> None:
    cache = Cache()
    brokers = Brokers(logs=Logs(Folders(CachedFolder(cache))))
    node, topic = await filled(brokers, 1)
    node._executor = late = LateExecutor()
    cache.left = 1  # the records are read at once, but not where they begin
    waiting = await parked(fetch(node, ask(topic), min_bytes=2 * ONE, max_wait_ms=WAIT_MS))
    closing = node.disown(data_shard(topic.topic_id, 0, SHARDS))
    while late.done:
        late.done.pop()()
        await settled()
    await closing
    (answer,) = await waiting
    assert answer.error is not None
    assert answer.error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    await brokers.close()


# --- as the rule says -------------------------------------------------------------------------------


class Stored(NamedTuple):
    """A batch of the model."""

    segment: int
    base_offset: int
    next_offset: int
    size: int


class Model:
    """One partition, counted as Kafka does."""

    def __init__(self) -> None:
        self.stored: list[Stored] = []

    def append(self, size: int, records: int, *, roll: bool) -> None:
        last = self.stored[-1] if self.stored else Stored(0, 0, 0, 0)
        self.stored.append(Stored(last.segment + roll, last.next_offset, last.next_offset + records, size))

    @property
    def end(self) -> int:
        return self.stored[-1].next_offset if self.stored else 0

    def start(self, offset: int) -> tuple[int, int]:
        """Segment and position where a read from `offset` begins."""
        segment = self.stored[-1].segment if self.stored else 0
        position = 0
        for each in self.stored:
            if each.next_offset > offset:
                return each.segment, self.position(each)
        return segment, position + sum(each.size for each in self.stored if each.segment == segment)

    def position(self, batch: Stored) -> int:
        return sum(
            each.size
            for each in self.stored
            if each.segment == batch.segment and each.base_offset < batch.base_offset
        )

    def available(self, start: tuple[int, int], offset: int, max_bytes: int) -> int | None:
        """The bytes available to a fetch; None if it begins in an older segment."""
        if offset >= self.end:
            return 0
        segment, position = self.start(self.end)
        return min(position - start[1], max_bytes) if segment == start[0] else None


@pytest.mark.parametrize("seed", range(8))
async def test_fetches_are_answered_as_the_rule_says(brokers: Brokers, seed: int) -> None:
    print("seed", seed)
    dice = random.Random(seed)
    node = await brokers.add()
    topic = await topic_at(brokers, partitions=3, segment_ms=str(MINUTE_MS))
    models = [Model() for _ in range(3)]
    now_ms = [NOW_MS - 86_400_000] * 3

    async def append(partition: int) -> None:
        roll = bool(models[partition].stored) and dice.random() < 0.15
        now_ms[partition] += 2 * MINUTE_MS * roll
        records = [bytes(dice.choice((0, 50, 400)))] * dice.randrange(1, 4)
        data = batch(*records, timestamps=[now_ms[partition]] * len(records))
        await node.append(topic, partition, data)
        models[partition].append(len(data), len(records), roll=roll)

    for _ in range(30):
        await append(dice.randrange(3))
    for _ in range(60):
        asked = [
            ask(
                topic,
                dice.choice((models[partition].end, dice.randrange(models[partition].end + 1))),
                partition,
                dice.choice((0, 100, 700, 1 << 20)),
            )
            for partition in dice.sample(range(3), dice.randrange(1, 4))
        ]
        min_bytes = dice.choice((1, 300, 1_000, 3_000))
        starts = [models[part.partition].start(part.fetch_offset) for part in asked]

        def available(
            asked: list[FetchPartition] = asked, starts: list[tuple[int, int]] = starts
        ) -> list[int | None]:
            return [
                models[part.partition].available(start, part.fetch_offset, part.max_bytes)
                for part, start in zip(asked, starts, strict=True)
            ]

        def enough(min_bytes: int = min_bytes, available: object = available) -> bool:
            counted = available()  # type: ignore[operator]
            return None in counted or sum(counted) >= min_bytes

        looked = await fetch(node, *asked, max_wait_ms=0)
        readable = sum(
            max(len(answer.records), counted or 0)
            for answer, counted in zip(looked, available(), strict=True)
            if answer.records
        )
        task = await parked(fetch(node, *asked, min_bytes=min_bytes, max_wait_ms=WAIT_MS))
        assert task.done() == (enough() or readable >= min_bytes), (asked, min_bytes, available())
        for _ in range(5):
            if not task.done():
                await append(dice.choice(asked).partition)
                await settled()
                assert task.done() == enough(), (asked, min_bytes, available())
        brokers.clock.advance(WAIT_MS)
        for answer in await task:
            assert answer.error is None
            assert not answer.records or list(batches(answer.records))
