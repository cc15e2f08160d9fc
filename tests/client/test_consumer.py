"""The consumer against a broker: what is read, what counts as handled, where it continues."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any

import pytest

from muster.client import (
    Admin,
    ClientError,
    Closed,
    Committed,
    ConcurrentUse,
    Consumer,
    DeserializationFailed,
    KafkaError,
    NoOffset,
    OffsetAndMetadata,
    OffsetOutOfRange,
    TimedOut,
    TopicPartition,
)
from muster.client.consume import auto_commit
from muster.client.consume.core import ConsumerCore
from muster.client.network.connection import deadline
from muster.coordinator.testing import Broker
from muster.protocol.errors import ErrorCode
from tests.client.reading import LONG_S, numbers, on, reading, send, until
from tests.support.each import each
from tests.support.facts import turns

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)


def consumer(broker: Broker, **settings: Any) -> Consumer[Any, Any]:
    return Consumer(broker.bootstrap, **({"auto_offset_reset": "earliest"} | settings))


async def committed(broker: Broker, group_id: str = "g", topic: str = "t", partition: int = 0) -> int | None:
    where = TopicPartition(topic, partition)
    async with Consumer(broker.bootstrap, group_id=group_id) as asking:
        found = (await asking.committed([where]))[where]
        return found and found.offset


# --- reading ------------------------------------------------------------------------------------------------


async def test_the_loop_reads_every_record_of_a_partition_in_order(broker: Broker) -> None:
    broker.create_topic("t", 3)
    await send(broker.bootstrap, "t", 3000, partitions=3)
    seen: dict[int, list[int]] = {}
    async with consumer(broker, group_id="g", topics="t") as reader:
        async for record in reader:
            seen.setdefault(record.partition, []).append(int(record.value))
            if sum(map(len, seen.values())) == 3000:
                break
    assert seen == {partition: list(range(partition, 3000, 3)) for partition in range(3)}
    assert broker.group("g").facts == ("Empty", 0)


async def test_a_loop_that_was_left_goes_on_where_it_was(broker: Broker) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 10)
    async with consumer(broker, group_id="g", topics="t") as reader:
        seen = []
        for _ in range(5):
            async for record in reader:
                seen.append(record)
                break
            one = await reader.get()
            assert one is not None
            seen.append(one)
        assert numbers(seen) == list(range(10))


async def test_getting_records_one_by_one_many_at_a_time_and_in_batches(broker: Broker) -> None:
    broker.create_topic("t", 2)
    await send(broker.bootstrap, "t", 100, partitions=2)
    async with consumer(broker, group_id="g", topics="t") as reader:
        one = await reader.get(LONG_S)
        assert one is not None
        many = await reader.get_many(30, LONG_S)
        assert 1 <= len(many) <= 30
        seen = [one, *many]
        async for batch in reader.batches(7):
            assert 1 <= len(batch) <= 7
            assert {record.partition for record in batch.records} == {batch.partition}
            seen += batch.records
            if len(seen) == 100:
                break
        assert await reader.get(0.05) is None
        assert await reader.get_many(timeout=0.05) == []
        assert await reader.get(0) is None
    for partition in (0, 1):
        assert numbers(r for r in seen if r.partition == partition) == list(range(partition, 100, 2))


@pytest.mark.parametrize("fault", [{"close_before": True}, {"error": "LEADER_NOT_AVAILABLE"}], ids=str)
async def test_the_partitions_of_a_topic_are_asked_for_again(broker: Broker, fault: dict[str, Any]) -> None:
    broker.create_topic("t", 2)
    async with consumer(broker, allow_auto_create_topics=False) as reader:
        with broker.faults.add(api="Metadata", times=1, **fault) as rule:
            assert await reader.partitions_for("t") == [T0, T1]
            assert rule.fired == 1
        with pytest.raises(KafkaError) as raised:
            await reader.partitions_for("missing")
        assert raised.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_partitions_can_be_assigned_without_a_group(broker: Broker) -> None:
    broker.create_topic("t", 2)
    await send(broker.bootstrap, "t", 10, partitions=2)
    async with consumer(broker) as reader:
        assert await reader.partitions_for("t") == [T0, T1]
        assert (await reader.list_topics())["t"] == [T0, T1]
        assert await reader.beginning_offsets([T0, T1]) == {T0: 0, T1: 0}
        assert await reader.end_offsets([T0, T1]) == {T0: 5, T1: 5}
        reader.assign([T1])
        assert reader.assignment == {T1}
        reader.seek(T1, 2)
        assert numbers([await reader.get() for _ in range(3)]) == [5, 7, 9]
        assert await reader.position(T1) == 5
        assert reader.lag() == {T1: 0}
        reader.assign([T0])
        assert await reader.position(T0) == 0
        with pytest.raises(ClientError, match="t-1 is not assigned to this consumer: partitions t-0"):
            reader.seek(T1, 0)
        for call in (reader.commit(), reader.committed()):
            with pytest.raises(ClientError, match="requires a group"):
                await call
        with pytest.raises(ValueError, match="group_id"):
            reader.subscribe("t")
    async with consumer(broker, allow_auto_create_topics=False) as reader:
        with pytest.raises(KafkaError, match="no_such"):
            await reader.partitions_for("no_such")


async def test_assigned_partitions_of_a_group_begin_at_its_offsets_and_commit(broker: Broker) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 10)
    async with consumer(broker, group_id="g") as reader:
        reader.assign([T0])
        assert numbers(await reader.get_many(4)) == [0, 1, 2, 3]
        assert await reader.commit() == {T0: Committed(4)}
    async with consumer(broker, group_id="g") as reader:
        reader.assign([T0])
        assert numbers(await reader.get_many(2)) == [4, 5]
    assert await committed(broker) == 6


NO_TIMES: Any = [
    (-1, ValueError, "-1 for t-0: it takes epoch milliseconds, 0 or more"),
    (2**63, ValueError, f"t-0: it takes epoch milliseconds below .*, not {2**63}"),
    (1.5, TypeError, "t-0: it takes whole epoch milliseconds, or a datetime with a time zone, not 1.5"),
    ("now", TypeError, "t-0: it takes whole epoch milliseconds, or a datetime with a time zone, not 'now'"),
    (datetime(2026, 1, 31), ValueError, "t-0: 2026-01-31T00:00:00 has no time zone"),
]


async def test_records_are_found_by_their_time(broker: Broker) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 3)
    async with consumer(broker) as reader:
        reader.assign([T0])
        first, _, last = [await reader.get() for _ in range(3)]
        assert first is not None
        assert last is not None
        found = await reader.offsets_for_times({T0: first.timestamp})
        assert found[T0] is not None
        assert found[T0].offset == 0
        assert await reader.offsets_for_times({T0: last.timestamp + 3_600_000}) == {T0: None}
        for wrong, error, said in NO_TIMES:
            with pytest.raises(error, match=f"^times: {said}"):
                await reader.offsets_for_times({T0: wrong})


async def test_a_list_in_place_of_partitions_is_told_as_such(broker: Broker) -> None:
    broker.create_topic("t")
    given: Any = [T0]
    async with consumer(broker) as reader:
        reader.assign([T0])
        for call in (
            reader.pause,
            reader.resume,
            reader.seek_to_beginning,
            reader.seek_to_end,
            reader.lag,
            reader.scope,
        ):
            with pytest.raises(
                ValueError, match=r"^partitions: \[TopicPartition\(.*\)\] is not allowed; it takes"
            ):
                call(given)


async def test_seeking_in_the_loop_counts_at_once(broker: Broker) -> None:
    broker.create_topic("t", 2)
    await send(broker.bootstrap, "t", 40, partitions=2)
    async with consumer(broker) as reader:
        reader.assign([T0])
        seen = []
        async for record in reader:
            seen.append(record.offset)
            if record.offset == 3 and len(seen) == 4:
                reader.seek(T0, OffsetAndMetadata(18))
            if record.offset == 19:
                if len(seen) > 8:
                    break
                reader.seek_to_beginning(T0)
        assert seen[:6] == [0, 1, 2, 3, 18, 19]
        assert seen[6:] == list(range(20))
        reader.seek_to_end(T0)
        assert await reader.position(T0) == 20
        with pytest.raises(ValueError, match="offset -1"):
            reader.seek(T0, -1)


async def test_a_paused_partition_gives_nothing_until_it_is_resumed(broker: Broker) -> None:
    broker.create_topic("t", 2)
    await send(broker.bootstrap, "t", 200, partitions=2)
    async with consumer(broker) as reader:
        reader.assign([T0, T1])
        first = await reader.get()
        assert first is not None
        paused, other = first.topic_partition, T1 if first.topic_partition == T0 else T0
        reader.pause(paused)
        assert reader.paused == {paused}
        seen = [await reader.get() for _ in range(100)]
        assert {record.topic_partition for record in seen if record} == {other}
        assert await reader.get(0.05) is None
        assert await reader.position(paused) == 1
        reader.resume(paused)
        rest = [await reader.get() for _ in range(99)]
        assert [record.offset for record in rest if record] == list(range(1, 100))


# --- what counts as handled ---------------------------------------------------------------------------------


async def test_a_record_is_handled_when_the_next_one_is_asked_for_and_at_a_clean_end(broker: Broker) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 10)
    async with consumer(broker, group_id="g", topics="t") as reader:
        async for record in reader:
            if record.offset == 4:
                break
    assert await committed(broker) == 5


async def test_a_block_that_is_left_by_an_exception_does_not_wait_for_long(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers that are gone delay nobody for as long as a clean end may."""
    broker.create_topic("t")
    grace: list[float] = []
    part, close = ConsumerCore._part, ConsumerCore.close

    async def parting(self: Any, until: float, grace_s: float) -> None:
        grace.append(grace_s)
        await part(self, until, grace_s)

    async def closing(self: Any, timeout: float, *, error: BaseException | None, drain: bool = False) -> None:
        bounds.append((timeout, error is None))
        await close(self, timeout, error=error, drain=drain)

    async def read(error: type[Exception] | None) -> None:
        async with consumer(broker, group_id="g", topics="t", revocation_grace_ms=60_000):
            if error is not None:
                raise error

    bounds: list[tuple[float, bool]] = []
    monkeypatch.setattr(ConsumerCore, "_part", parting)
    monkeypatch.setattr(ConsumerCore, "close", closing)
    await read(None)
    with pytest.raises(ZeroDivisionError):
        await read(ZeroDivisionError)
    assert bounds == [(30.0, True), (10.0, False)]
    assert grace[0] <= 15.0, "the commit and the listener take time as well"
    assert grace[1] <= 5.0


async def test_the_record_in_hand_is_not_handled_when_the_block_ends_by_an_exception(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.client.consumer._HURRIED_CLOSE_S", LONG_S)
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 10)

    async def one_by_one(reader: Consumer[Any, Any]) -> None:
        async for record in reader:
            if record.offset == 4:
                raise RuntimeError("cannot handle")

    async def many(reader: Consumer[Any, Any]) -> None:
        await reader.get_many(2)
        await reader.get_many(3)
        raise RuntimeError("cannot handle")

    async def batches(reader: Consumer[Any, Any]) -> None:
        async for _ in reader.batches(2):
            raise RuntimeError("cannot handle")

    async def reads(read: Callable[[Consumer[Any, Any]], Awaitable[None]]) -> None:
        async with consumer(broker, group_id="g", topics="t") as reader:
            await read(reader)

    for read, handled in ((one_by_one, 4), (many, 6), (batches, 6)):
        with pytest.raises(RuntimeError, match="cannot handle"):
            await reads(read)
        assert await committed(broker) == handled


async def test_the_record_in_hand_is_not_handled_when_the_reader_is_cancelled(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.client.consumer._HURRIED_CLOSE_S", LONG_S)
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 10)
    at_work = asyncio.Event()

    async def read() -> None:
        async with consumer(broker, group_id="g", topics="t") as reader:
            async for record in reader:
                if record.offset == 4:
                    at_work.set()
                    await asyncio.Event().wait()

    task = asyncio.create_task(read())
    async with asyncio.timeout(LONG_S):
        await at_work.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert await committed(broker) == 4
    assert broker.group("g").facts == ("Empty", 0)


async def test_what_was_handled_is_committed_every_interval(broker: Broker) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 100)
    async with consumer(broker, group_id="g", topics="t", auto_commit_interval_ms=50) as reader:
        for _ in range(10):
            await reader.get()
        reader.pause(T0)
        async with asyncio.timeout(LONG_S):
            while await committed(broker) != 10:
                assert await reader.get(0.02) is None
        assert reader.health().commit_age_s is not None


async def test_committing_by_hand(broker: Broker) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 10)
    async with consumer(broker, group_id="g", topics="t", enable_auto_commit=False) as reader:
        assert await reader.commit() == {}
        for _ in range(3):
            await reader.get()
        result = await reader.commit()
        assert result.ok
        assert result == {T0: Committed(3)}
        await reader.get_many(4)
        assert await reader.commit({T0: OffsetAndMetadata(5, "by hand")}) == {T0: Committed(5)}
        assert (await reader.committed([T0]))[T0] == OffsetAndMetadata(5, "by hand")
        assert (await reader.committed())[T0] == OffsetAndMetadata(5, "by hand")
        assert (await reader.commit({T0: 4})).ok
        with pytest.raises(ValueError, match="offset -1"):
            await reader.commit({T0: -1})
        assert reader.group_metadata().generation_id == 1
    assert await committed(broker) == 4


async def _take_its_name(broker: Broker, reader: Consumer[Any, Any], first: int) -> None:
    """Delete topic t and create it again, with 20 records from this number on; returns once the reader's
    fetcher knows."""
    former = reader._core.fetcher.topic_ids([T0])
    async with Admin(broker.bootstrap) as admin:
        await admin.delete_topic("t")
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 20, first=first)
    await until(lambda: dict(reader._core.fetcher.topic_ids([T0]).items() - former.items()))


async def test_what_was_handled_of_a_topic_is_not_committed_for_one_that_takes_its_name(
    broker: Broker,
) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 10)
    async with consumer(broker, group_id="g", topics="t", allow_auto_create_topics=False) as reader:
        assert numbers([await reader.get(), await reader.get()]) == [0, 1]
        await _take_its_name(broker, reader, first=100)
    assert not await committed(broker)
    async with consumer(broker, group_id="g", topics="t") as reader:
        assert numbers(await reader.get_many(20)) == list(range(100, 120))


async def test_offsets_of_records_in_hand_belong_to_the_topic_that_they_are_of(broker: Broker) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 10)
    settings = {"allow_auto_create_topics": False, "enable_auto_commit": False}
    async with consumer(broker, group_id="g", topics="t", **settings) as reader:
        assert numbers(await reader.get_many(4)) == [0, 1, 2, 3]
        await _take_its_name(broker, reader, first=100)
        assert await reader.commit() == {}
        assert not (await reader.commit({T0: 4}, timeout=0.2)).ok
        assert await committed(broker) is None
        assert numbers(await reader.get_many(5)) == [100, 101, 102, 103, 104]
        assert await reader.commit() == {T0: Committed(5)}


# --- where to begin -----------------------------------------------------------------------------------------


async def test_without_a_policy_the_missing_offset_is_raised_and_seeking_helps(broker: Broker) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 3)
    async with consumer(broker, group_id="g", topics="t", auto_offset_reset="none") as reader:
        for _ in range(2):
            with pytest.raises(NoOffset, match="no offset is committed for t-0") as raised:
                await reader.get()
            assert raised.value.partitions == {T0}
        with pytest.raises(NoOffset):
            await reader.position(T0)
        reader.seek(T0, 1)
        assert numbers(await reader.get_many()) == [1, 2]
        reader.seek(T0, 77)
        with pytest.raises(OffsetOutOfRange, match="77"):
            await reader.get()
        reader.seek(T0, 2)
        assert numbers(await reader.get_many()) == [2]


async def test_a_position_beyond_the_log_is_reset_and_said_loudly(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 3)
    async with consumer(broker) as reader:
        reader.assign([T0])
        reader.seek(T0, 77)
        assert numbers(await reader.get_many()) == [0, 1, 2]
    (warning,) = [each for each in caplog.messages if "reading goes on at" in each]
    assert "no offset 77; reading goes on at offset 0 (earliest)" in warning


async def test_the_latest_offset_is_where_a_new_group_begins_by_default(broker: Broker) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 3)
    async with reading(broker.bootstrap, group_id="g", topics="t", auto_offset_reset="latest") as reader:
        await reader.until_assigned(T0)
        assert await reader.consumer.position(T0) == 3
        await send(broker.bootstrap, "t", 1, first=3)
        await reader.until(lambda: reader.seen)
        assert numbers(reader.seen) == [3]


async def test_beginning_by_duration(broker: Broker) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 3)
    for setting, first in (("by_duration:PT1H", 0), ("by_duration:PT0S", 3)):
        async with consumer(broker, auto_offset_reset=setting) as reader:
            reader.assign([T0])
            assert await reader.position(T0) == first


# --- deserializers ------------------------------------------------------------------------------------------


async def test_what_cannot_be_deserialized_is_raised_with_its_place_and_can_be_left_out(
    broker: Broker,
) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 10)

    def even(value: bytes) -> int:
        if int(value) == 5:
            raise ValueError("five")
        return int(value)

    async with Consumer(broker.bootstrap, value_deserializer=even, auto_offset_reset="earliest") as reader:
        reader.assign([T0])
        assert [record.value for record in await reader.get_many()] == [0, 1, 2, 3, 4]
        for call in (reader.get, reader.get_many, lambda: anext(reader)):
            with pytest.raises(
                DeserializationFailed, match=r"t-0: the value at offset 5 .*five.*seek to 6"
            ) as raised:
                await call()
            assert (raised.value.partition, raised.value.offset) == (T0, 5)
            assert await reader.position(T0) == 5
        reader.seek(T0, 6)
        assert [record.value for record in await reader.get_many()] == [6, 7, 8, 9]


@each("call", ["loop", "many"])
async def test_what_nobody_was_given_is_not_committed_after_an_exit_in_a_deserializer(
    broker: Broker, call: str
) -> None:
    """As if SIGTERM, handled by `sys.exit`, arrived there."""
    broker.create_topic(call)
    await send(broker.bootstrap, call, 10)
    seen: list[int] = []

    def number(value: bytes) -> int:
        if int(value) == 5:
            raise SystemExit
        return int(value)

    async def read() -> None:
        async with consumer(broker, group_id=call, topics=call, value_deserializer=number) as reader:
            if call == "many":
                seen.extend(record.value for record in await reader.get_many(2))
                await reader.get_many(8)
            async for record in reader:
                seen.append(record.value)

    with pytest.raises(SystemExit):
        await read()
    assert seen == list(range(len(seen)))
    assert await committed(broker, call, call) == len(seen)


# --- patterns -----------------------------------------------------------------------------------------------


async def test_a_pattern_follows_topics_that_come(broker: Broker) -> None:
    broker.create_topic("eu-orders")
    broker.create_topic("eu-orders-old")
    pattern = re.compile("eu-[a-z]+")
    async with reading(broker.bootstrap, group_id="g", topics=pattern, metadata_max_age_ms=100) as reader:
        await reader.until_assigned(TopicPartition("eu-orders", 0))
        assert reader.consumer.subscription == {"eu-orders"}
        broker.create_topic("eu-refunds")
        await reader.until_assigned(TopicPartition("eu-orders", 0), TopicPartition("eu-refunds", 0))
        await send(broker.bootstrap, "eu-refunds", 1)
        await reader.until(lambda: reader.seen)


async def test_what_is_read_can_be_changed_and_given_up(broker: Broker) -> None:
    for topic in ("a", "b"):
        broker.create_topic(topic)
        await send(broker.bootstrap, topic, 2)
    async with consumer(broker, group_id="g", topics="a") as reader:
        assert {record.topic for record in await reader.get_many()} == {"a"}
        reader.subscribe(["b"])
        assert reader.subscription == {"b"}
        assert {record.topic for record in await reader.get_many()} == {"b"}
        with pytest.raises(ClientError, match="unsubscribe before assigning"):
            reader.assign([T0])
        await reader.unsubscribe()
        assert reader.assignment == reader.subscription == frozenset()
        assert broker.group("g").facts == ("Empty", 0)
        reader.assign([TopicPartition("a", 0)])
        assert await reader.position(TopicPartition("a", 0)) == 2
        await reader.unsubscribe()
        reader.subscribe("a")
        reader.seek_to_beginning()
        assert await reader.get(0.01) is None
    assert await committed(broker, topic="a") == 2
    assert await committed(broker, topic="b") == 2


async def test_partitions_no_longer_assigned_are_given_up(broker: Broker) -> None:
    broker.create_topic("t", 2)
    await send(broker.bootstrap, "t", 6, partitions=2)
    async with consumer(broker, group_id="g") as reader:
        reader.assign([T0])
        assert [await reader.get() for _ in range(3)][-1] is not None  # the last one is in hand
        left = reader.scope(T0).create_task(asyncio.Event().wait())
        reader.assign([T1])
        await until(left.cancelled)
        assert await reader.get() is not None
        reader.assign([T0])
        assert await reader.scope(T0).create_task(reader.position(T0)) == 2
        assert await committed(broker) == 2
    assert await committed(broker, partition=1) == 0


async def test_a_group_with_members_takes_no_commits_of_assigned_partitions_and_a_warning_says_so(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 4)
    caplog.set_level(logging.INFO, logger="muster.client.consumer")

    def told() -> list[str]:
        refused = "t-0 at . cannot be committed.* group g has members.* a group_id of its own"
        return [each.levelname for each in caplog.records if re.match(refused, each.getMessage())]

    async with consumer(broker, group_id="g", auto_commit_interval_ms=10) as reader, asyncio.timeout(LONG_S):
        async with reading(broker.bootstrap, group_id="g", topics="other") as member:
            await member.until_assigned(TopicPartition("other", 0))
            reader.assign([T0])
            while len(told()) < 3:
                await reader.get(0.01)
        while await committed(broker) != 4:
            await reader.get(0.01)
        levels = told()
        async with reading(broker.bootstrap, group_id="g", topics="other") as member:
            await member.until_assigned(TopicPartition("other", 0))
            await send(broker.bootstrap, "t", 1)
            assert await reader.get() is not None
            await reader.close()
    assert levels == ["WARNING", *["INFO"] * (len(levels) - 1)]
    assert told()[len(levels)] == "WARNING"


async def test_a_partition_assigned_again_continues_behind_its_last_commit(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("t", 2)
    await send(broker.bootstrap, "t", 3)
    async with consumer(broker, group_id="g") as reader:
        reader.assign([T0])
        for _ in range(3):
            await reader.get()
        group, gate = reader._core.group, asyncio.Event()
        assert group is not None
        commit = group.commit

        async def slowly(*given: Any, **named: Any) -> Any:
            await gate.wait()
            return await commit(*given, **named)

        monkeypatch.setattr(group, "commit", slowly)
        reader.assign([T1])
        reader.assign([T0])
        position = asyncio.create_task(reader.position(T0))
        await turns()
        gate.set()
        assert await position == 2


@pytest.mark.parametrize("sought", [False, True])
@pytest.mark.parametrize("by_hand", [False, True])
async def test_a_partition_assigned_again_is_committed_even_where_its_last_commit_was(
    broker: Broker, by_hand: bool, sought: bool
) -> None:
    broker.create_topic("t", 2)
    await send(broker.bootstrap, "t", 3)
    async with consumer(broker, group_id="g") as reader, Admin(broker.bootstrap) as admin:

        async def read_all() -> None:
            assert numbers([await reader.get() for _ in range(3)]) == [0, 1, 2]
            assert await reader.get(0) is None  # the last one is handled

        reader.assign([T0])
        await read_all()
        if by_hand:
            await reader.commit()
        reader.assign([T1])
        assert reader._core.auto_commit is not None
        await reader._core.auto_commit.until_let_go()
        assert await committed(broker) == 3
        assert await admin.delete_group_offsets("g", [T0]) == {T0: None}
        reader.assign([T0])
        if sought:
            reader.seek(T0, 0)
        await read_all()
    assert await committed(broker) == 3


async def test_a_quiet_assigned_partitions_offset_does_not_expire_while_it_is_read(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 3)
    later_s = 0.0
    monkeypatch.setattr(auto_commit, "deadline", lambda seconds: deadline(seconds + later_s))
    async with consumer(broker, group_id="g", auto_commit_interval_ms=10) as reader:
        core = reader._core
        reader.assign([T0])

        async def read_until_committed_since(at: float) -> None:
            async with asyncio.timeout(LONG_S):
                while (core.committed_at or 0) <= at:
                    await reader.get(0.01)

        for _ in range(3):
            assert await reader.get() is not None
        await read_until_committed_since(0)
        for _ in range(9):  # more than offsets.retention.minutes in all
            at, later_s = core.committed_at or 0, later_s + 86_400
            await asyncio.to_thread(broker.clock.advance, 86_400)
            await read_until_committed_since(at)
        assert await committed(broker) == 3
        monkeypatch.undo()
    for _ in range(9):  # programs that find nothing to read
        await asyncio.to_thread(broker.clock.advance, 86_400)
        async with consumer(broker, group_id="g") as reader:
            reader.assign([T0])
            assert await reader.position(T0) == 3
    assert await committed(broker) == 3


async def test_what_is_only_looked_at_is_committed_again_as_it_is(broker: Broker) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 10)
    async with consumer(broker, group_id="g", enable_auto_commit=False) as worker:
        worker.assign([T0])
        await worker.commit({T0: OffsetAndMetadata(5, "note")})
        async with consumer(broker, group_id="g") as other:
            other.assign([T0])
            assert await other.position(T0) == 5
        assert (await worker.committed([T0]))[T0] == OffsetAndMetadata(5, "note")
        async with consumer(broker, group_id="g") as other:
            other.assign([T0])
            assert await other.position(T0) == 5
            await worker.commit({T0: 8})
        assert await committed(broker) == 8


async def test_a_reader_that_has_handled_nothing_closes_though_no_broker_answers(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 3)
    async with consumer(broker, group_id="g") as reader:
        reader.assign([T0])
        for _ in range(3):
            assert await reader.get() is not None
    async with consumer(broker, group_id="g") as reader:
        reader.assign([T0])
        assert await reader.position(T0) == 3
        with broker.faults.add(api="OffsetFetch", delay="1h", times=None) as rule:
            await reader.close()
            rule.hit()
    assert "read again" not in caplog.text


async def test_what_is_handled_is_committed_though_old_offsets_cannot_be_looked_up(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """As long as a transaction with offsets of the partition is open."""
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 1)
    async with consumer(broker, group_id="g") as reader:
        reader.assign([T0])
        assert await reader.get() is not None
    async with consumer(broker, group_id="g", auto_commit_interval_ms=10) as reader:
        reader.assign([T0])
        assert await reader.position(T0) == 1
        with broker.faults.add(api="OffsetFetch", error="UNSTABLE_OFFSET_COMMIT", times=None) as rule:
            async with asyncio.timeout(LONG_S):
                while not rule.fired:
                    await reader.get(0.01)
            await send(broker.bootstrap, "t", 2)
            for _ in range(2):
                assert await reader.get() is not None
            await reader.close()
        assert await committed(broker) == 3
    assert "read again" not in caplog.text


@pytest.mark.parametrize("closes", [True, False])
async def test_an_old_offset_that_is_refused_holds_up_no_close_and_undoes_no_reset(
    broker: Broker, caplog: pytest.LogCaptureFixture, closes: bool
) -> None:
    """As while the topic of offsets has too few replicas."""
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 1)
    async with (
        consumer(broker, group_id="g", enable_auto_commit=False) as admin,
        consumer(
            broker,
            group_id="g",
            client_id="reader",
            auto_commit_interval_ms=10,
            request_timeout_ms=600_000,
        ) as reader,
        asyncio.timeout(LONG_S),
    ):
        admin.assign([T0])
        await admin.commit({T0: 1})
        reader.assign([T0])
        assert await reader.position(T0) == 1
        with broker.faults.add(
            api="OffsetCommit", client_id="reader", error="COORDINATOR_NOT_AVAILABLE", times=None
        ) as rule:
            while not rule.fired:
                await reader.get(0.01)
            await admin.commit({T0: 0})
            if closes:
                await reader.close()
            while reader._core.auto_commit is not None and reader._core.auto_commit._again is not None:
                await reader.get(0.01)
        assert (await admin.committed([T0]))[T0] == OffsetAndMetadata(0)
    assert not caplog.text


async def test_a_task_of_a_partition_no_longer_assigned_may_clean_up_before_the_consumer_is_closed(
    broker: Broker,
) -> None:
    broker.create_topic("t", 2)
    refused: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await reader.commit({T0: 2})
            with pytest.raises(ClientError, match="scopes' tasks are waited for"):
                await reader.close()
            refused.append("close")

    async with consumer(broker, group_id="g") as reader:
        reader.assign([T0])
        task = reader.scope(T0).create_task(work())
        await turns()
        reader.assign([T1])
    assert task.done()
    assert refused == ["close"]
    assert await committed(broker) == 2


# --- using it wrongly ---------------------------------------------------------------------------------------


async def test_a_second_reader_is_refused(broker: Broker) -> None:
    broker.create_topic("t")
    async with consumer(broker, group_id="g", topics="t") as reader:
        waiting = asyncio.create_task(reader.get())
        await until(lambda: reader.assignment)
        for call in (reader.get(), reader.get_many(), anext(reader), anext(reader.batches())):
            with pytest.raises(ConcurrentUse, match="one reader"):
                await call
        await send(broker.bootstrap, "t", 1)
        assert numbers([await waiting]) == [0]


async def test_a_closed_consumer_takes_no_calls(broker: Broker) -> None:
    reader = consumer(broker, group_id="g", topics="t")
    with pytest.raises(Closed, match="not started"):
        await reader.get()
    with pytest.raises(Closed, match="not started"):
        await reader.commit()
    await reader.start()
    with pytest.raises(ClientError, match="started before"):
        await reader.start()
    await reader.close()
    await reader.close()
    await reader.drain()
    for call in (reader.get(), reader.commit(), reader.position(T0), anext(reader)):
        with pytest.raises(Closed, match="is closed"):
            await call
    with pytest.raises(Closed):
        reader.subscribe("t")
    with pytest.raises(ClientError, match="started before"):
        await reader.start()
    assert reader.health().state == "closed"
    await consumer(broker).close()


async def test_what_is_no_partition_is_refused(broker: Broker) -> None:
    no_partitions: Any = ["t"]
    async with consumer(broker, group_id="g") as reader:
        for call in (
            reader.commit({"t": 5}),  # type: ignore[dict-item]
            reader.committed(no_partitions),
            reader.committed(T0),  # type: ignore[arg-type]
            reader.end_offsets(no_partitions),
        ):
            with pytest.raises(ValueError, match="partitions: 't' is not allowed; it takes TopicPartition"):
                await call
        with pytest.raises(ValueError, match="offsets=5: it takes a mapping"):
            await reader.commit(5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="topics=5: it takes a name"):
        consumer(broker, group_id="g", topics=5)


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        (TopicPartition("t", 2**31), ValueError, f"partition={2**31}: it takes a whole number from 0 to"),
        (TopicPartition("t", -1), ValueError, "partition=-1: it takes a whole number from 0 to"),
        (TopicPartition("t", "0"), TypeError, "partition='0': it takes a whole number"),  # type: ignore[arg-type]
        (TopicPartition("t" * 32_768, 0), ValueError, "topic='t+': it takes .* at most 32767 bytes"),
        (TopicPartition(b"t", 0), TypeError, "topic=b't': it takes text"),  # type: ignore[arg-type]
    ],
)
async def test_a_partition_that_no_request_can_carry_fails_no_commit_but_its_own(
    broker: Broker, given: TopicPartition, kind: type[Exception], said: str
) -> None:
    broker.create_topic("t", 2)
    async with consumer(broker, group_id="g", enable_auto_commit=False) as reader:
        reader.assign([T0, T1])
        with broker.faults.add(api="OffsetCommit", error="COORDINATOR_LOAD_IN_PROGRESS", times=2):
            good = asyncio.create_task(reader.commit({T0: 1}))
            with pytest.raises(kind, match=said):
                await reader.commit({given: 1})
            assert (await good).ok
        with pytest.raises(kind, match=said):
            await reader.committed([given])


class Whole:
    """A whole number that is no int, as NumPy's."""

    def __index__(self) -> int:
        return 0

    def __hash__(self) -> int:
        return hash(0)

    def __eq__(self, other: object) -> bool:
        return other == 0


@pytest.mark.parametrize("zero", [Whole(), False], ids=["no int", "bool"])
async def test_a_partition_number_may_be_any_whole_number(broker: Broker, zero: Any) -> None:
    broker.create_topic("t", 1)
    given = TopicPartition("t", zero)
    async with consumer(broker, group_id="g", enable_auto_commit=False) as reader:
        result = await reader.commit({given: 3})
        assert result.ok
        told: list[Mapping[TopicPartition, Any]] = [
            result,
            await reader.committed([given]),
            await reader.end_offsets([given]),
            await reader.beginning_offsets([given]),
            await reader.offsets_for_times({given: 0}),
        ]
    for places in told:
        assert [(type(where.partition), where) for where in places] == [(int, T0)]


BAD_PLACES: Any = [
    (-1, ValueError, "offset -1: it takes a whole number from 0 to"),
    (2**63, ValueError, f"offset {2**63}: it takes a whole number from 0 to"),
    ("5", ValueError, "offset '5': it takes a whole number"),
    (OffsetAndMetadata(2**63), ValueError, f"offset OffsetAndMetadata.*{2**63}.*: it takes a whole number"),
    (OffsetAndMetadata("5"), ValueError, "offset OffsetAndMetadata.*'5'.*: it takes a whole number"),  # type: ignore[arg-type]
    (OffsetAndMetadata(5, "", 2**31), ValueError, "leader_epoch=2147483648: it takes"),
    (OffsetAndMetadata(5, "", -2), ValueError, "leader_epoch=-2: it takes"),
    (OffsetAndMetadata(5, "", "1"), TypeError, "leader_epoch='1': it takes a whole number"),  # type: ignore[arg-type]
    (OffsetAndMetadata(5, b"m"), TypeError, "metadata=b'm': it takes text"),  # type: ignore[arg-type]
    (OffsetAndMetadata(5, "\udc80"), ValueError, r"metadata='\\udc80': it takes Unicode text"),
    (OffsetAndMetadata(5, "é" * 16_384), ValueError, "metadata='é+': it takes .* at most 32767 bytes"),
]


async def test_what_is_no_offset_is_refused_at_once(broker: Broker) -> None:
    broker.create_topic("t")
    async with consumer(broker, group_id="g") as reader:
        reader.assign([T0])
        assert await reader.position(T0) == 0
        for place, kind, says in BAD_PLACES:
            with pytest.raises(kind, match=says):
                reader.seek(T0, place)
            with pytest.raises(kind, match=says):
                await reader.commit({T0: place})
        assert await reader.position(T0) == 0
        reader.seek(T0, 2**63 - 1)
        assert await reader.position(T0) == 2**63 - 1


@pytest.mark.parametrize(("timeout", "kind"), [("5", TypeError), ([], TypeError), (float("nan"), ValueError)])
async def test_a_timeout_that_is_none_is_refused_at_once(
    broker: Broker, timeout: Any, kind: type[Exception]
) -> None:
    broker.create_topic("t")
    await send(broker.bootstrap, "t", 1)
    async with consumer(broker, group_id="g", topics="t") as reader:
        for call in (
            reader.get(timeout),
            reader.get_many(timeout=timeout),
            reader.get_batches(timeout=timeout),
            reader.position(T0, timeout),
            reader.end_offsets([T0], timeout),
            reader.commit({T0: 0}, timeout),
            reader.list_topics(timeout),
            reader.unsubscribe(timeout),
            reader.drain(timeout),
            reader.close(timeout),
        ):
            with pytest.raises(kind, match=f"timeout={re.escape(repr(timeout))}: it takes seconds"):
                await call
        assert reader.subscription == {"t"}
        record = await reader.get(LONG_S)
        assert record is not None
        assert record.offset == 0


async def test_reading_nothing_is_refused(broker: Broker) -> None:
    async with consumer(broker, group_id="g") as reader:
        for read in (reader.get, reader.get_many, reader.__anext__):
            with pytest.raises(ClientError, match=r"nothing to read: subscribe\(...\)"):
                await read()


async def test_another_loop_is_refused(broker: Broker) -> None:
    async with consumer(broker) as reader:

        def elsewhere() -> None:
            with pytest.raises(ClientError, match="another event loop"):
                asyncio.run(_get(reader))
            with pytest.raises(ClientError, match="another event loop"):
                reader.assign([T0])

        await asyncio.to_thread(elsewhere)


async def _get(reader: Consumer[Any, Any]) -> None:
    await reader.get()


async def test_a_position_that_is_not_found_in_time(broker: Broker) -> None:
    async with consumer(broker, allow_auto_create_topics=False) as reader:
        reader.assign([T0])
        with pytest.raises(TimedOut, match="the position of t-0"):
            await reader.position(T0, timeout=0.2)


async def test_health(broker: Broker) -> None:
    broker.create_topic("t")
    reader = consumer(broker, group_id="g", topics="t")
    assert reader.health().state == "new"
    async with reader:
        await send(broker.bootstrap, "t", 1)
        assert await reader.get() is not None
        health = reader.health()
        assert (health.state, health.membership, health.generation_id) == ("running", "STABLE", 1)
        assert health.assignment == on("t", 0)
        assert health.member_id == reader.group_metadata().member_id
        assert health.records_age_s is not None
        assert (health.commit_age_s, health.rebalances, health.troubles) == (None, 1, {})
    assert "closed" in repr(reader)
