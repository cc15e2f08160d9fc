"""The partitions that a broker leads: appends, long polls on a clock controlled by the test, and leaderships
that come and go."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from errno import EIO, ENOSPC
from pathlib import Path
from typing import Any, NoReturn

import pytest

from muster.coordinator.base.log import Logger
from muster.coordinator.cluster.placement import data_shard
from muster.coordinator.storage.files import MemoryFile
from muster.coordinator.storage.folders import Folders
from muster.coordinator.storage.store import Lease, LeaseKind
from muster.coordinator.topics.catalogue import Change, Topic
from muster.coordinator.topics.config import ConfigChange, Operation, parse
from muster.coordinator.topics.log import PartitionLog
from muster.coordinator.topics.logs import Logs
from muster.coordinator.topics.partitions import (
    FetchedPartition,
    FetchPartition,
    Listed,
    ListTimestamp,
    Partitions,
)
from muster.coordinator.transactions.marker import Marker
from muster.protocol.compression import Codec
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.data import ListOffsetsRequest
from tests.topics.support import NOW_MS, SHARDS, Brokers, HeldExecutor, KindredFolder, batch, read_records


@pytest.fixture
async def brokers() -> AsyncIterator[Brokers]:
    brokers = Brokers()
    yield brokers
    await brokers.close()


async def topic_at(brokers: Brokers, partitions: int = 1, **configs: str) -> Topic:
    named = {name.replace("_", "."): value for name, value in configs.items()}
    topic = await brokers.catalogues[0].create("orders", partitions=partitions, configs=named)
    for catalogue in brokers.catalogues:
        await catalogue.refresh()
    return topic


def ask(
    topic: Topic, offset: int = 0, partition: int = 0, max_bytes: int = 1 << 20, **epochs: int
) -> FetchPartition:
    return FetchPartition(topic, partition, offset, max_bytes, **epochs)


async def fetch(node: Partitions, *asked: FetchPartition, **limits: int) -> list[FetchedPartition]:
    return await node.fetch(asked, **{"min_bytes": 1, "max_bytes": 1 << 20, "max_wait_ms": 0, **limits})


def values(answer: FetchedPartition) -> list[bytes | None]:
    return [record.value for record in read_records(answer.records)]


async def parked(
    waiting: Coroutine[Any, Any, list[FetchedPartition]],
) -> asyncio.Task[list[FetchedPartition]]:
    """Start the fetch as a task and let it get as far as it can."""
    task = asyncio.ensure_future(waiting)
    await settled()
    return task


async def settled() -> None:
    """Let all pending callbacks and trips to the (inline) executor finish."""
    for _ in range(20):
        await asyncio.sleep(0)


async def code_of(refused: Any) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        await refused
    return caught.value.code


# --- append and fetch ------------------------------------------------------------------------------


async def test_what_was_appended_is_fetched(brokers: Brokers) -> None:
    node = await brokers.add(epoch=3)
    topic = await topic_at(brokers, partitions=3)
    assert await node.append(topic, 2, batch(b"a", b"b")) == (0, -1, 0, 3)
    assert (await node.append(topic, 2, batch(b"c"))).base_offset == 2
    (answer,) = await fetch(node, ask(topic, partition=2))
    assert values(answer) == [b"a", b"b", b"c"]
    assert (answer.error, answer.high_watermark, answer.log_start_offset, answer.leader_epoch) == (
        None,
        3,
        0,
        3,
    )
    assert await node.offsets(topic, 2) == (0, 3)
    assert await node.offsets(topic, 0) == (0, 0)


async def test_appends_made_together_keep_their_order(brokers: Brokers) -> None:
    node = await brokers.add()
    topic = await topic_at(brokers)
    appends = [node.append(topic, 0, batch(b"%d" % n)) for n in range(100)]
    assert [appended.base_offset for appended in await asyncio.gather(*appends)] == list(range(100))


async def test_a_refused_append_fails_no_other(brokers: Brokers) -> None:
    node = await brokers.add()
    topic = await topic_at(brokers)
    outcomes = await asyncio.gather(
        node.append(topic, 0, batch(b"a")),
        node.append(topic, 0, batch(b"b")[:-1]),
        node.append(topic, 0, batch(b"c")),
        return_exceptions=True,
    )
    assert isinstance(outcomes[1], KafkaError)
    assert outcomes[1].code is ErrorCode.INVALID_RECORD
    assert values((await fetch(node, ask(topic)))[0]) == [b"a", b"c"]


async def test_the_limits_of_a_fetch(brokers: Brokers) -> None:
    node = await brokers.add()
    topic = await topic_at(brokers, partitions=3)
    size = len(batch(b"x" * 100))
    for partition in range(3):
        for _ in range(4):
            await node.append(topic, partition, batch(b"x" * 100))

    async def sizes(max_bytes: int, *limits: int) -> list[int]:
        asked = [ask(topic, partition=n, max_bytes=limit) for n, limit in enumerate(limits)]
        return [len(answer.records) // size for answer in await fetch(node, *asked, max_bytes=max_bytes)]

    assert await sizes(1 << 20, 1 << 20, 1 << 20, 1 << 20) == [4, 4, 4]
    assert await sizes(1 << 20, 2 * size, 3 * size - 1, size) == [2, 2, 1]
    assert await sizes(6 * size, 1 << 20, 1 << 20, 1 << 20) == [4, 2, 0]
    assert await sizes(1, 1 << 20, 1 << 20, 1 << 20) == [
        1,
        0,
        0,
    ]  # the first batch may exceed, the others may not
    assert await sizes(1 << 20, 1, 1, 1) == [1, 0, 0]
    asked = [ask(topic, 4), ask(topic, 0, partition=1)]
    assert [len(answer.records) // size for answer in await fetch(node, *asked, max_bytes=1)] == [0, 1]


async def test_partitions_that_do_not_exist_or_are_led_elsewhere(brokers: Brokers) -> None:
    node = await brokers.add(own=())
    topic = await topic_at(brokers, partitions=2)
    unknown, elsewhere = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER
    for partition, code in ((0, elsewhere), (2, unknown), (-1, unknown)):
        assert await code_of(node.append(topic, partition, batch(b"a"))) is code
        assert await code_of(node.list_offsets(topic, partition, -1)) is code
        assert await code_of(node.delete_records(topic, partition, 0)) is code
        (answer,) = await fetch(node, ask(topic, partition=partition), max_wait_ms=1_000)
        assert answer.error is not None
        assert answer.error.code is code
        assert answer[1:4] == (b"", -1, -1)
    assert node.leader_epoch(topic, 0) is None


async def test_leader_epochs_are_checked(brokers: Brokers) -> None:
    node = await brokers.add(epoch=5)
    topic = await topic_at(brokers)
    await node.append(topic, 0, batch(b"a"))
    for epoch, code in ((4, ErrorCode.FENCED_LEADER_EPOCH), (6, ErrorCode.UNKNOWN_LEADER_EPOCH)):
        (answer,) = await fetch(node, ask(topic, current_leader_epoch=epoch), max_wait_ms=1_000)
        assert answer.error is not None
        assert answer.error.code is code
        assert await code_of(node.list_offsets(topic, 0, 0, current_leader_epoch=epoch)) is code
        assert await code_of(node.end_offset_for_epoch(topic, 0, 5, current_leader_epoch=epoch)) is code
    (answer,) = await fetch(node, ask(topic, current_leader_epoch=5))
    assert values(answer) == [b"a"]
    assert await node.end_offset_for_epoch(topic, 0, 5) == (5, 1)
    (answer,) = await fetch(node, ask(topic, 9, last_fetched_epoch=5), max_wait_ms=1_000)
    assert answer.diverging_epoch == (5, 1)


async def test_offsets_are_listed_and_records_deleted(brokers: Brokers) -> None:
    node = await brokers.add()
    topic = await topic_at(brokers)
    await node.append(topic, 0, batch(b"a", b"b", timestamps=[NOW_MS - 10, NOW_MS]))
    assert (await node.list_offsets(topic, 0, NOW_MS)).offset == 1
    assert await node.delete_records(topic, 0, 1) == 1
    assert (await node.list_offsets(topic, 0, ListTimestamp.EARLIEST)).offset == 1
    assert (await node.list_offsets(topic, 0, ListTimestamp.LATEST)).offset == 2
    (answer,) = await fetch(node, ask(topic, 0), max_wait_ms=1_000)
    assert answer.error is not None
    assert answer.error.code is ErrorCode.OFFSET_OUT_OF_RANGE


async def listed(
    node: Partitions, topic: Topic, asked: ListOffsetsRequest.ListOffsetsPartition, read_committed: bool
) -> Listed | KafkaError:
    """The offset found, or the refusal."""
    try:
        return await node.list_offsets(
            topic,
            asked.partition_index,
            asked.timestamp,
            current_leader_epoch=asked.current_leader_epoch,
            read_committed=read_committed,
        )
    except KafkaError as refusal:
        return refusal


async def test_what_is_listed_at_once_is_what_is_listed(brokers: Brokers) -> None:
    node = await brokers.add(epoch=5)
    topic = await topic_at(brokers, partitions=3)
    await node.append(topic, 0, batch(b"a", b"b", timestamps=[NOW_MS - 10, NOW_MS]))
    await node.append(topic, 1, batch(b"a"))
    await node.delete_records(topic, 0, 1)
    asked = [
        ListOffsetsRequest.ListOffsetsPartition(
            partition_index=partition, timestamp=timestamp, current_leader_epoch=epoch
        )
        for partition in (0, 1, 2, 3, -1)  # the third is not open, the others are not there
        for timestamp in (ListTimestamp.LATEST, ListTimestamp.EARLIEST, ListTimestamp.MAX_TIMESTAMP, NOW_MS)
        for epoch in (-1, 4, 5, 6)
    ]
    open_ones = [0, 1]
    for read_committed in (False, True):
        found = node.listed(topic, asked, read_committed=read_committed)
        for each, at_once in zip(asked, found, strict=True):
            outcome = await listed(node, topic, each, read_committed)
            if isinstance(outcome, KafkaError):
                assert isinstance(at_once, KafkaError)
                assert (at_once.code, at_once.why) == (outcome.code, outcome.why)
                continue
            at_an_end = each.timestamp in (ListTimestamp.LATEST, ListTimestamp.EARLIEST)
            from_memory = at_an_end and each.partition_index in open_ones
            assert at_once == (outcome if from_memory else None)
        open_ones.append(2)
        assert {each.code for each in found if isinstance(each, KafkaError)} == {
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.FENCED_LEADER_EPOCH,
            ErrorCode.UNKNOWN_LEADER_EPOCH,
        }


# --- long polls ------------------------------------------------------------------------------------


async def test_an_append_wakes_the_fetch_that_waits(brokers: Brokers) -> None:
    node = await brokers.add()
    topic = await topic_at(brokers)
    waiting = await parked(fetch(node, ask(topic), max_wait_ms=500))
    assert not waiting.done()
    await node.append(topic, 0, batch(b"a"))
    assert values((await waiting)[0]) == [b"a"]
    assert brokers.clock.next_ms() != NOW_MS + 500  # its timer was cancelled too


async def test_the_wait_ends_at_its_time(brokers: Brokers) -> None:
    node = await brokers.add()
    topic = await topic_at(brokers, partitions=2)
    await node.append(topic, 0, batch(b"a"))
    waiting = await parked(fetch(node, ask(topic, 1), ask(topic, partition=1), max_wait_ms=500))
    brokers.clock.advance(499)
    await settled()
    assert not waiting.done()
    brokers.clock.advance(1)
    first, second = await waiting
    assert (first.records, first.high_watermark, second.records, second.high_watermark) == (b"", 1, b"", 0)


async def test_a_fetch_waits_for_its_fewest_bytes(brokers: Brokers) -> None:
    node = await brokers.add()
    topic = await topic_at(brokers, partitions=2)
    size = len(batch(b"a"))
    await node.append(topic, 0, batch(b"a"))
    asked = ask(topic), ask(topic, partition=1)
    waiting = await parked(fetch(node, *asked, min_bytes=3 * size, max_wait_ms=500))
    await node.append(topic, 1, batch(b"b"))
    await settled()
    assert not waiting.done()
    await node.append(topic, 0, batch(b"c"))
    assert [values(answer) for answer in await waiting] == [[b"a", b"c"], [b"b"]]


async def test_what_there_is_comes_at_the_end_of_the_wait(brokers: Brokers) -> None:
    node = await brokers.add()
    topic = await topic_at(brokers)
    waiting = await parked(fetch(node, ask(topic), min_bytes=1_000_000, max_wait_ms=500))
    await node.append(topic, 0, batch(b"a"))
    await settled()
    assert not waiting.done()
    brokers.clock.advance(500)
    assert values((await waiting)[0]) == [b"a"]


async def test_other_partitions_do_not_wake_a_fetch(brokers: Brokers) -> None:
    node = await brokers.add()
    topic = await topic_at(brokers, partitions=2)
    waiting = await parked(fetch(node, ask(topic), max_wait_ms=500))
    await node.append(topic, 1, batch(b"a"))
    await settled()
    assert not waiting.done()
    brokers.clock.advance(500)
    await waiting


async def test_one_error_answers_at_once(brokers: Brokers) -> None:
    node = await brokers.add()
    topic = await topic_at(brokers)
    first, second = await fetch(node, ask(topic), ask(topic, partition=7), max_wait_ms=500)
    assert first.error is None
    assert second.error is not None


async def test_a_lost_leadership_answers_the_fetch_that_waits(brokers: Brokers) -> None:
    node = await brokers.add()
    topic = await topic_at(brokers)
    waiting = await parked(fetch(node, ask(topic), max_wait_ms=500))
    await node.disown(data_shard(topic.topic_id, 0, SHARDS))
    (answer,) = await waiting
    assert answer.error is not None
    assert answer.error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_deleted_topic_answers_the_fetch_that_waits(brokers: Brokers) -> None:
    node = await brokers.add()
    topic = await topic_at(brokers)
    await node.append(topic, 0, batch(b"a"))
    waiting = await parked(fetch(node, ask(topic, 1), max_wait_ms=500))
    await brokers.catalogues[0].delete(topic)
    (answer,) = await waiting
    assert answer.error is not None
    assert answer.error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    again = await topic_at(brokers)
    assert again.topic_id != topic.topic_id
    assert await node.offsets(again, 0) == (0, 0)
    assert await code_of(node.append(topic, 0, batch(b"a"))) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_cancelled_fetch_leaves_nothing_behind(brokers: Brokers) -> None:
    node = await brokers.add()
    topic = await topic_at(brokers)
    before = brokers.clock.next_ms()
    waiting = await parked(fetch(node, ask(topic), max_wait_ms=500))
    assert "parked=1" in repr(node)
    waiting.cancel()
    await settled()
    assert "parked=0" in repr(node)
    assert brokers.clock.next_ms() == before
    await node.append(topic, 0, batch(b"a"))


async def test_beyond_the_bound_of_waiting_fetches_answers_come_at_once() -> None:
    brokers = Brokers(fetches_parked_max=2)
    node = await brokers.add()
    topic = await topic_at(brokers)
    waiting = [await parked(fetch(node, ask(topic), max_wait_ms=500)) for _ in range(2)]
    assert not any(task.done() for task in waiting)
    assert (await fetch(node, ask(topic), max_wait_ms=500))[0].records == b""
    brokers.clock.advance(500)
    await asyncio.gather(*waiting)
    await brokers.close()


async def test_beyond_the_bound_of_waiting_bytes_appends_are_refused() -> None:
    one = batch(b"a")
    brokers = Brokers(append_queue_bytes_max=2 * len(one))
    node = await brokers.add()
    topic = await topic_at(brokers)
    outcomes = await asyncio.gather(*[node.append(topic, 0, one) for _ in range(3)], return_exceptions=True)
    assert isinstance(outcomes[2], KafkaError)
    assert outcomes[2].code is ErrorCode.REQUEST_TIMED_OUT
    assert (await node.append(topic, 0, one)).base_offset == 2
    await brokers.close()


async def test_closing_answers_the_fetches_that_wait(brokers: Brokers) -> None:
    node = await brokers.add()
    topic = await topic_at(brokers)
    waiting = await parked(fetch(node, ask(topic), max_wait_ms=500))
    await node.close()
    assert (await waiting)[0].error is not None
    assert await code_of(node.append(topic, 0, batch(b"a"))) is ErrorCode.NOT_LEADER_OR_FOLLOWER


# --- batches that take long to validate ------------------------------------------------------------


def laborious(first: bytes, **kinds: Any) -> bytes:
    """Many records in few bytes."""
    return batch(first, *[b""] * 5_000, codec=Codec.ZSTD, **kinds)


async def firsts(node: Partitions, topic: Topic) -> list[bytes | None]:
    """The values of partition 0 that are not empty."""
    (answer,) = await fetch(node, ask(topic))
    return [value for value in values(answer) if value]


async def test_nobody_but_its_own_partition_waits_for_a_laborious_batch() -> None:
    validator = HeldExecutor()
    brokers = Brokers(validation_executor=validator)
    node = await brokers.add()
    topic = await topic_at(brokers, partitions=2)
    together = [
        node.append(topic, 0, batch(b"a", producer=(7, 0, 0))),
        node.append(topic, 0, laborious(b"b", producer=(7, 0, 1))),
        node.append(topic, 0, batch(b"c", producer=(7, 0, 5_002))),
    ]
    await settled()
    together += [
        node.append(topic, 0, laborious(b"d", producer=(7, 0, 5_003))),
        node.append(topic, 0, batch(b"e", producer=(7, 0, 10_004))),
    ]
    assert (await node.append(topic, 1, batch(b"other"))).base_offset == 0
    await settled()
    assert [append.done() for append in together] == [True, False, False, False, False]
    validator.run_one()
    await settled()
    assert [append.done() for append in together] == [True, True, True, False, False]
    validator.run_one()
    offsets = [appended.base_offset for appended in await asyncio.gather(*together)]
    assert offsets == [0, 1, 5_002, 5_003, 10_004]
    assert await firsts(node, topic) == [b"a", b"b", b"c", b"d", b"e"]
    assert validator.waiting == []
    await brokers.close()


async def test_a_laborious_batch_that_is_refused_lets_those_behind_it_pass() -> None:
    validator = HeldExecutor()
    brokers = Brokers(validation_executor=validator)
    node = await brokers.add()
    topic = await topic_at(brokers)
    refused = node.append(topic, 0, laborious(b"a", timestamps=[NOW_MS + 86_400_000] * 5_001))
    behind = node.append(topic, 0, batch(b"b"))
    await settled()
    validator.run_one()
    assert await code_of(refused) is ErrorCode.INVALID_TIMESTAMP
    assert (await behind).base_offset == 0
    await brokers.close()


@pytest.mark.parametrize(("made", "count"), [(batch, 1), (laborious, 5_001)])
async def test_records_are_judged_and_dated_by_the_date(made: Callable[..., bytes], count: int) -> None:
    """After a suspend it is ahead of the broker's clock, as clients' records are."""
    brokers = Brokers()
    node = await brokers.add()
    topic = await topic_at(brokers)
    brokers.clock.date_ahead_ms = 7_200_000
    date_ms = brokers.clock.date_ms()
    sent = node.append(topic, 0, made(b"a", timestamps=[date_ms] * count))
    assert (await sent).base_offset == 0
    await brokers.catalogues[0].alter_configs(
        "orders", [ConfigChange("message.timestamp.type", Operation.SET, "LogAppendTime")]
    )
    assert (await node.append(topic, 0, made(b"b"))).log_append_time_ms == date_ms
    brokers.clock.date_ahead_ms = 0
    assert (await node.append(topic, 0, made(b"c"))).log_append_time_ms == NOW_MS
    await brokers.close()


async def test_a_leadership_lost_during_a_validation_takes_nothing() -> None:
    validator = HeldExecutor()
    brokers = Brokers(validation_executor=validator)
    node = await brokers.add()
    topic = await topic_at(brokers)
    appends = [node.append(topic, 0, laborious(b"a")), node.append(topic, 0, batch(b"b"))]
    await settled()
    shard = data_shard(topic.topic_id, 0, SHARDS)
    await node.disown(shard)
    node.own(shard, 2)
    assert (await node.append(topic, 0, batch(b"c"))).base_offset == 0
    validator.run_one()
    for append in appends:
        assert await code_of(append) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert await firsts(node, topic) == [b"c"]
    await brokers.close()


async def test_what_waits_to_be_validated_leaves_room_for_other_appends() -> None:
    large = laborious(b"a")
    validator = HeldExecutor()
    brokers = Brokers(validation_executor=validator, append_queue_bytes_max=3 * len(large))
    node = await brokers.add()
    topic = await topic_at(brokers, partitions=3)
    held = node.append(topic, 0, large)
    await settled()
    assert await code_of(node.append(topic, 1, large)) is ErrorCode.REQUEST_TIMED_OUT
    assert (await node.append(topic, 2, batch(b"b"))).base_offset == 0
    validator.run_one()
    assert (await held).base_offset == 0
    later = node.append(topic, 1, large)  # there is room again
    await settled()
    validator.run_one()
    assert (await later).base_offset == 0
    await brokers.close()


async def test_a_marker_behind_a_batch_that_was_refused_is_written() -> None:
    large = laborious(b"a")
    validator = HeldExecutor()
    brokers = Brokers(validation_executor=validator, append_queue_bytes_max=3 * len(large))
    node = await brokers.add()
    topic = await topic_at(brokers, partitions=2)
    held = node.append(topic, 0, large)
    await settled()
    refused = node.append(topic, 1, large)
    marked = node.append_marker(topic, 1, Marker(7, 0, 0, True))
    assert await code_of(refused) is ErrorCode.REQUEST_TIMED_OUT
    assert (await marked).base_offset == 0
    validator.run_one()
    assert (await held).base_offset == 0
    await brokers.close()


# --- leaderships -----------------------------------------------------------------------------------


async def test_a_partition_moves_with_all_it_has(brokers: Brokers) -> None:
    first, second = await brokers.add(epoch=1), await brokers.add(own=())
    topic = await topic_at(brokers)
    shard = data_shard(topic.topic_id, 0, SHARDS)
    await first.append(topic, 0, batch(b"a", producer=(7, 0, 0)))
    await first.disown(shard)
    second.own(shard, 2)
    assert (await second.append(topic, 0, batch(b"a", producer=(7, 0, 0)))).base_offset == 0  # a repeat
    assert (await second.append(topic, 0, batch(b"b", producer=(7, 0, 1)))).leader_epoch == 2
    assert values((await fetch(second, ask(topic)))[0]) == [b"a", b"b"]
    assert await second.end_offset_for_epoch(topic, 0, 1) == (1, 1)


async def test_a_disowned_partition_is_refused_in_the_same_turn(brokers: Brokers) -> None:
    node = await brokers.add()
    topic = await topic_at(brokers)
    await node.append(topic, 0, batch(b"a"))
    at_rest = node.disown(data_shard(topic.topic_id, 0, SHARDS))
    refused = node.append(topic, 0, batch(b"late"))
    await at_rest
    assert await code_of(refused) is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_lease_that_may_have_run_out_serves_nothing(brokers: Brokers) -> None:
    lapsed: set[Lease] = set()
    brokers.options["serving"] = lambda lease: lease not in lapsed
    node = await brokers.add()
    topic = await topic_at(brokers)
    await node.append(topic, 0, batch(b"a"))
    lapsed.add(brokers.lease_of(data_shard(topic.topic_id, 0, SHARDS)))
    assert await code_of(node.append(topic, 0, batch(b"late"))) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    (answer,) = await fetch(node, ask(topic))
    assert answer.error is not None
    assert answer.error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_an_old_leader_that_has_not_noticed_writes_nothing_more(brokers: Brokers) -> None:
    old, new = await brokers.add(epoch=1), await brokers.add(own=())
    topic = await topic_at(brokers)
    await old.append(topic, 0, batch(b"a"))
    new.own(data_shard(topic.topic_id, 0, SHARDS), 2)
    await new.append(topic, 0, batch(b"b"))
    assert await code_of(old.append(topic, 0, batch(b"lost"))) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    (answer,) = await fetch(old, ask(topic))
    assert answer.error is not None
    assert answer.error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    for timestamp in (0, ListTimestamp.LATEST):
        assert await code_of(old.list_offsets(topic, 0, timestamp)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert values((await fetch(new, ask(topic)))[0]) == [b"a", b"b"]
    old.own(data_shard(topic.topic_id, 0, SHARDS), 3)
    await old.append(topic, 0, batch(b"c"))
    assert values((await fetch(old, ask(topic)))[0]) == [b"a", b"b", b"c"]
    assert await code_of(new.append(topic, 0, batch(b"lost"))) is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_log_is_not_opened_for_an_older_leader(brokers: Brokers) -> None:
    new, old = await brokers.add(epoch=2), await brokers.add(epoch=1)
    topic = await topic_at(brokers)
    await new.append(topic, 0, batch(b"a"))
    assert await code_of(old.append(topic, 0, batch(b"lost"))) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (await new.append(topic, 0, batch(b"b"))).base_offset == 1


async def test_a_late_message_of_an_old_lease_changes_nothing(brokers: Brokers) -> None:
    node = await brokers.add(epoch=4)
    topic = await topic_at(brokers)
    node.own(data_shard(topic.topic_id, 0, SHARDS), 3)
    assert node.leader_epoch(topic, 0) == 4


@pytest.mark.files
async def test_what_a_broker_acknowledged_before_it_was_killed_is_there(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as executor:
        brokers = Brokers(logs=Logs.on_disk(tmp_path))
        node = await brokers.add(epoch=1)
        node._executor = executor
        topic = await topic_at(brokers, partitions=4)
        await asyncio.gather(*[node.append(topic, n % 4, batch(b"%d" % n)) for n in range(200)])
        node.abandon()
        brokers.logs = Logs.on_disk(tmp_path)  # as another process sees it
        again = await brokers.add(epoch=2)
        again._executor = executor
        found = [
            values(answer) for answer in await fetch(again, *[ask(topic, partition=n) for n in range(4)])
        ]
        assert found == [[b"%d" % n for n in range(partition, 200, 4)] for partition in range(4)]
        await brokers.close()


@pytest.mark.files
async def test_nobody_waits_for_the_removal_of_large_topics(tmp_path: Path) -> None:
    upkeep = HeldExecutor()
    brokers = Brokers(logs=Logs.on_disk(tmp_path), upkeep_executor=upkeep)
    node, catalogue = await brokers.add(), brokers.catalogues[0]
    topics = [await catalogue.create(f"topic-{number}", partitions=1, configs={}) for number in range(5)]
    for topic in topics:
        await node.append(topic, 0, batch(b"a"))
    *deleted, kept = topics
    for topic in deleted:
        await catalogue.delete(topic)
    await settled()
    left = {f"{topic.topic_id}.deleted" for topic in deleted} | {str(kept.topic_id)}
    assert set(os.listdir(tmp_path)) == left, "a start after a crash finds that they were deleted"
    await node.append(kept, 0, batch(b"b"))
    assert len(upkeep.waiting) == len(deleted)
    while upkeep.waiting:
        upkeep.run_one()
    assert os.listdir(tmp_path) == [str(kept.topic_id)]
    await brokers.close()


@pytest.mark.files
async def test_logs_of_deleted_topics_are_removed(tmp_path: Path) -> None:
    logs = Logs.on_disk(tmp_path)
    brokers = Brokers(logs=logs)
    node = await brokers.add()
    topic = await topic_at(brokers)
    await node.append(topic, 0, batch(b"a"))
    assert os.listdir(tmp_path) == [str(topic.topic_id)]
    await brokers.catalogues[0].delete(topic)
    await settled()
    assert os.listdir(tmp_path) == []
    kept = await topic_at(brokers)
    await node.append(kept, 0, batch(b"a"))
    (tmp_path / str(topic.topic_id)).mkdir()
    (tmp_path / "lost+found").mkdir()
    assert logs.settle([kept.topic_id]) == {topic.topic_id: None}
    assert set(os.listdir(tmp_path)) == {str(kept.topic_id), "lost+found"}
    await brokers.close()


async def test_changed_configs_hold_for_open_logs(brokers: Brokers) -> None:
    node = await brokers.add()
    topic = await topic_at(brokers)
    await node.append(topic, 0, batch(b"a" * 100))
    topic = await brokers.catalogues[0].alter_configs(
        "orders", [ConfigChange("max.message.bytes", Operation.SET, "100")]
    )
    assert await code_of(node.append(topic, 0, batch(b"a" * 100))) is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.interpreted
@pytest.mark.parametrize("again", [False, True], ids=["opened", "reopened"])
async def test_a_config_changed_while_a_log_is_opened_holds_for_it(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    node = await brokers.add()
    topic = await topic_at(brokers)
    if again:
        await node.append(topic, 0, batch(b"a"))
        log = node._led[topic.topic_id, 0].log
        assert log is not None
        monkeypatch.setattr(log.segments, "failed", True)
    smaller = replace(topic, config=parse({"max.message.bytes": "100"}))
    opened = brokers.logs.open

    def altered_meanwhile(*arguments: Any, **options: Any) -> PartitionLog:
        log = opened(*arguments, **options)
        node._topics_changed(Change(altered=[(topic, smaller)]))
        return log

    monkeypatch.setattr(brokers.logs, "open", altered_meanwhile)
    await node.append(topic, 0, batch(b"b"))
    assert await code_of(node.append(smaller, 0, batch(b"a" * 100))) is ErrorCode.MESSAGE_TOO_LARGE


class NeverWalked(dict[Any, Any]):
    """Looked up by key only: there may be 100,000 partitions."""

    def _walk(self) -> NoReturn:
        raise AssertionError("all led partitions were gone through")

    __iter__ = keys = values = items = _walk  # type: ignore[assignment]


async def test_topics_and_leases_change_without_a_look_at_other_partitions(brokers: Brokers) -> None:
    node, catalogue = await brokers.add(), brokers.catalogues[0]
    topics = [await catalogue.create(f"topic-{number}", partitions=2, configs={}) for number in range(3)]
    for topic in topics:
        for partition in range(2):
            await node.append(topic, partition, batch(b"a"))
    led = node._led
    node._led = NeverWalked(led)
    await catalogue.alter_configs("topic-0", [ConfigChange("max.message.bytes", Operation.SET, "100")])
    catalogue.set_defaults({"retention.ms": "5000"})
    for topic in topics:
        for partition in range(2):
            log = node._led[topic.topic_id, partition].log
            assert log is not None
            assert log.config.retention_ms == 5_000
            assert (log.config.max_message_bytes == 100) == (topic is topics[0])
    await catalogue.delete(topics[0])
    lost = data_shard(topics[1].topic_id, 0, SHARDS)
    await node.disown(lost)
    await Partitions.disown(node, Lease(LeaseKind.GROUP, 0))
    left = {
        (topic.topic_id, partition)
        for topic in topics[1:]
        for partition in range(2)
        if data_shard(topic.topic_id, partition, SHARDS) != lost
    }
    assert set(dict.keys(node._led)) == left
    node._led = {key: led[key] for key in led if key in left}


@pytest.mark.files
async def test_a_disk_that_is_full_shows_and_recovers(monkeypatch: pytest.MonkeyPatch) -> None:
    full: int | None = None
    said: list[str] = []
    monkeypatch.setattr(Logger, "error", lambda _, event, **fields: said.append(fields["why"]))

    class Folder(KindredFolder):
        def new_file(self) -> MemoryFile:
            class File(MemoryFile):
                def append(self, buffers: Any) -> None:
                    if full is not None:
                        raise OSError(full, os.strerror(full))
                    super().append(buffers)

            return File()

    brokers = Brokers(logs=Logs(Folders(Folder())))
    node = await brokers.add()
    topic = await topic_at(brokers, partitions=2)
    await node.append(topic, 0, batch(b"a"))
    for minutes, cause in ((0, ENOSPC), (0, ENOSPC), (0, EIO), (1, ENOSPC)):
        full = cause
        brokers.clock.advance(minutes * 60_000)
        for partition in range(2):
            refused = node.append(topic, partition, batch(b"b"))
            assert await code_of(refused) is ErrorCode.KAFKA_STORAGE_ERROR
    assert ["the disk is full" in why for why in said] == [True, False, True], "each reason once a minute"
    assert values((await fetch(node, ask(topic)))[0]) == [b"a"]
    assert (
        await code_of(node.append(topic, 0, batch(b"b", producer=(1, 0, 0)))) is ErrorCode.KAFKA_STORAGE_ERROR
    )
    full = None
    with pytest.raises(KafkaError, match="must first resend"):
        await node.append(topic, 0, batch(b"c", producer=(1, 0, 1)))
    assert len(said) == 3, "which is no fault of the storage"
    await node.append(topic, 0, batch(b"c"))
    assert values((await fetch(node, ask(topic)))[0]) == [b"a", b"c"]
    await brokers.close()


async def test_retention_runs_at_its_interval_and_reaches_untouched_partitions() -> None:
    brokers = Brokers(retention_check_interval_ms=60_000, cleaner_backoff_ms=60_000)
    node = await brokers.add()
    topic = await topic_at(brokers, partitions=2, retention_ms="1000")
    await node.append(topic, 0, batch(b"a"))
    node.own(data_shard(topic.topic_id, 0, SHARDS), 2)  # reopened at the next use, but nobody uses it
    await settled()
    brokers.clock.advance(60_000)
    await settled()
    assert await node.offsets(topic, 0) == (1, 1)
    await node.append(topic, 0, batch(b"a", timestamps=[NOW_MS + 59_000]))
    brokers.clock.advance(59_999)
    await settled()
    assert await node.offsets(topic, 0) == (1, 2)
    brokers.clock.advance(1)
    await settled()
    assert await node.offsets(topic, 0) == (2, 2)
    brokers.clock.advance(60_000)
    await settled()
    assert await node.offsets(topic, 0) == (2, 2)
    await brokers.close()


# --- what was under way behind a refused batch -----------------------------------------------------


async def test_what_is_under_way_behind_a_batch_that_came_before_the_leadership_is_not_out_of_order(
    brokers: Brokers,
) -> None:
    node = await brokers.add(own=())
    topic = await topic_at(brokers)

    async def told(sequence: int) -> int | ErrorCode:
        try:
            return (await node.append(topic, 0, batch(b"x", producer=(7, 0, sequence)))).base_offset
        except KafkaError as error:
            return error.code

    assert await told(0) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    for shard in range(SHARDS):
        node.own(shard, 1)
    assert await told(1) is ErrorCode.KAFKA_STORAGE_ERROR
    assert [await told(0), await told(1)] == [0, 1]
    assert await told(3) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await told(2) == 2
