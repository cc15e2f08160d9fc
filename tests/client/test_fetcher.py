"""Fetching from in-memory brokers: what is handed out, in which order and how far ahead, and what changes of
the assignment and of positions do to it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from muster.client.errors import Closed
from muster.client.fetch import fetched
from muster.client.fetch.positions import Position
from muster.client.partitions import TopicPartition
from muster.protocol.messages.data import FetchRequest
from muster.protocol.record_batch import ControlType
from tests.client.fetch_fakes import LONG_S, T0, T1, T2, Reader, batch, one_topic
from tests.support.control_batches import build_control
from tests.support.each import each
from tests.support.facts import turns, until

# --- reading ------------------------------------------------------------------------------------------------


async def test_it_reads_from_the_position_on() -> None:
    cluster = one_topic()
    cluster.append(T0, batch(0, b"0", b"1", b"2", epoch=3), batch(3, b"3", epoch=4))
    async with Reader(cluster) as reader:
        reader.fetcher.set_assigned([T0])
        assert reader.fetcher.unpositioned == {T0}
        assert reader.fetcher.position(T0) is None
        reader.fetcher.seek(T0, Position(1))
        assert reader.fetcher.unpositioned == frozenset()
        records = await reader.read(3)
        assert [(each.offset, each.value, each.leader_epoch) for each in records] == [
            (1, b"1", 3),
            (2, b"2", 3),
            (3, b"3", 4),
        ]
        assert reader.fetcher.position(T0) == Position(4, 4)
        cluster.append(T0, batch(4, b"4"))
        assert await reader.values(1) == [b"4"]
        assert (reader.fetcher.lag(T0), reader.fetcher.high_watermark(T0)) == (0, 5)
        assert (reader.fetcher.last_stable_offset(T0), reader.fetcher.log_start(T0)) == (5, 0)


async def test_a_poll_hands_out_no_more_than_it_is_asked_for() -> None:
    cluster = one_topic(2)
    for where in (T0, T1):
        cluster.append(where, batch(0, *(b"%d" % index for index in range(10))))
    async with Reader(cluster) as reader:
        reader.begin(T0, T1)
        sizes = []
        async with asyncio.timeout(LONG_S):
            while sum(sizes) < 20:
                sizes.append(sum(len(each) for each in await reader.fetcher.poll(4, LONG_S)))
        assert max(sizes) <= 4
        assert reader.fetcher.position(T0) == reader.fetcher.position(T1) == Position(10, 0)


async def test_nothing_comes_of_nothing() -> None:
    cluster = one_topic()
    async with Reader(cluster) as reader:
        assert await reader.fetcher.poll(500, 0.01) == []
        reader.fetcher.set_assigned([T0])
        assert await reader.fetcher.poll(500, 0.01) == []
        assert cluster.fetches == []
        reader.fetcher.seek(T0, Position(0))
        assert await reader.fetcher.poll(500, 0.01) == []


async def test_partitions_take_turns() -> None:
    """However many records one of them has."""
    cluster = one_topic(3)
    cluster.append(T0, *(batch(offset, *[b"0"] * 10) for offset in range(0, 1000, 10)))
    for where in (T1, T2):
        cluster.append(where, batch(0, *[b"%d" % where.partition] * 20))
    async with Reader(cluster) as reader:
        reader.fetcher.set_assigned([T0, T1, T2])
        for where in (T0, T1, T2):
            reader.fetcher.seek(where, Position(0))
        served = [(await reader.read(1, max_records=10))[0].partition for _ in range(6)]
        assert sorted(served[:3]) == sorted(served[3:]) == [0, 1, 2]


async def test_whoever_had_records_is_asked_for_last() -> None:
    """So that a broker that fills its answer in the order of the request serves all partitions in turn."""
    cluster = one_topic(3, version=11)
    async with Reader(cluster) as reader:
        reader.fetcher.set_assigned([T0, T1, T2])
        for where in (T0, T1, T2):
            reader.fetcher.seek(where, Position(0))
        cluster.append(T0, batch(0, b"0"))
        await reader.read(1)
        await until(lambda: len(cluster.fetches) >= 2)
        asked = [each.partition for each in cluster.fetches[-1].topics[0].partitions]
        assert asked == [1, 2, 0]


async def test_it_reads_ahead_so_far_and_no_further() -> None:
    cluster = one_topic()
    size = len(batch(0, b"x" * 1000))
    for offset in range(100):
        cluster.logs[T0].batches.append(batch(offset, b"x" * 1000))
    async with Reader(cluster, partition_max_bytes=10 * size) as reader:
        reader.begin(T0)
        await until(lambda: len(cluster.fetches) == 1)
        await turns()
        # Ten wait to be handed out; the next are fetched once those are taken.
        assert len(cluster.fetches) == 1
        assert len(await reader.read(5, max_records=5)) == 5
        await turns()
        assert len(cluster.fetches) == 1
        assert len(await reader.read(5, max_records=5)) == 5
        await until(lambda: len(cluster.fetches) == 2)
        offsets = [each.offset for each in await reader.read(90)]
        assert offsets == list(range(10, 100))


async def test_no_more_of_one_broker_than_its_share() -> None:
    cluster = one_topic(3)
    for where in (T0, T1, T2):
        cluster.append(where, batch(0, b"x" * 1000))
    async with Reader(cluster, max_bytes=1000) as reader:
        reader.fetcher.set_assigned([T0, T1, T2])
        for where in (T0, T1, T2):
            reader.fetcher.seek(where, Position(0))
        await until(lambda: len(cluster.fetches) == 1)
        await turns()
        assert len(cluster.fetches) == 1
        await reader.read(3)
        await until(lambda: len(cluster.fetches) == 2)


async def test_one_that_is_full_does_not_hold_up_the_others() -> None:
    """Nobody takes the records of one partition; the other is fetched all the same, without waiting at the
    broker."""
    cluster = one_topic(2)
    cluster.append(T0, batch(0, *[b"x" * 100] * 10))
    async with Reader(cluster, partition_max_bytes=100, max_wait_ms=60_000) as reader:
        reader.begin(T0, T1)
        await reader.read(1, max_records=1)

        def alone() -> list[int]:
            asked = [
                (each, [part.partition for part in each.topics[0].partitions]) for each in cluster.fetches
            ]
            return [each.max_wait_ms for each, partitions in asked if partitions == [1]]

        await until(lambda: len(alone()) >= 2)
        assert set(alone()) == {0}
        cluster.append(T1, batch(0, b"1"))
        asked = len(alone())
        await until(lambda: len(alone()) >= asked + 2)
        assert {each.partition for each in await reader.read(2, max_records=1)} == {0, 1}


async def test_polls_can_be_cancelled_at_any_point() -> None:
    cluster = one_topic()
    for offset in range(0, 300, 3):
        cluster.append(T0, batch(offset, b"0", b"1", b"2"))
    async with Reader(cluster) as reader:
        reader.begin(T0)
        offsets: list[int] = []
        for steps in range(2000):
            if len(offsets) == 300:
                break
            poll = asyncio.create_task(reader.fetcher.poll(7, LONG_S))
            await turns(steps % 7)
            poll.cancel()
            await asyncio.wait([poll])
            if not poll.cancelled():
                offsets += [record.offset for each in poll.result() for record in each]
        assert offsets == list(range(300))


async def test_waking_ends_a_poll() -> None:
    cluster = one_topic()
    async with Reader(cluster) as reader:
        poll = asyncio.create_task(reader.fetcher.poll(500, LONG_S))
        await turns()
        reader.fetcher.wake()
        assert await poll == []
        reader.fetcher.wake()
        assert await reader.fetcher.poll(500, LONG_S) == []


async def test_closing_ends_everything() -> None:
    cluster = one_topic()
    reader = Reader(cluster)
    reader.begin(T0)
    poll = asyncio.create_task(reader.fetcher.poll(500, LONG_S))
    await until(lambda: cluster.fetches)
    await reader.fetcher.close()
    with pytest.raises(Closed):
        await poll
    with pytest.raises(Closed):
        await reader.fetcher.poll(500, LONG_S)
    with pytest.raises(Closed):
        reader.fetcher.set_assigned([])
    await reader.fetcher.close()


async def test_a_task_that_dies_is_heard_of() -> None:
    cluster = one_topic()
    cluster.fails[1] = ZeroDivisionError("unforeseen")  # type: ignore[assignment]
    async with Reader(cluster) as reader:
        reader.begin(T0)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                await reader.fetcher.poll(500, LONG_S)


# --- what is read -------------------------------------------------------------------------------------------


async def test_what_stays_assigned_keeps_its_state() -> None:
    cluster = one_topic(2)
    cluster.append(T0, batch(0, b"0", b"1"))
    async with Reader(cluster) as reader:
        reader.fetcher.set_assigned([T0, T1])
        reader.fetcher.seek(T0, Position(0))
        reader.fetcher.pause([T1])
        assert len(await reader.read(1, max_records=1)) == 1
        reader.fetcher.set_assigned([T0])
        assert reader.fetcher.position(T0) == Position(1, 0)
        assert await reader.values(1) == [b"1"]
        with pytest.raises(KeyError):
            reader.fetcher.position(T1)
        reader.fetcher.set_assigned([T0, T1])
        assert reader.fetcher.unpositioned == {T1}
        assert reader.fetcher.paused == frozenset()


async def test_what_was_fetched_before_a_seek_is_dropped() -> None:
    cluster = one_topic()
    cluster.append(T0, batch(0, b"0"), batch(1, b"1"), batch(2, b"2"))
    async with Reader(cluster) as reader:
        reader.begin(T0)
        await reader.read(1, max_records=1)
        reader.fetcher.seek(T0, Position(2))
        assert await reader.values(1) == [b"2"]
        # Also while the answer is in flight.
        reader.fetcher.seek(T0, Position(0))
        await turns(1)
        reader.fetcher.seek(T0, Position(1))
        assert await reader.values(2) == [b"1", b"2"]


async def test_what_comes_for_a_partition_that_was_taken_away_is_dropped() -> None:
    cluster = one_topic(2)
    cluster.append(T0, batch(0, b"0"))
    cluster.hangs.add(1)
    async with Reader(cluster) as reader:
        reader.fetcher.set_assigned([T0, T1])
        reader.fetcher.seek(T0, Position(0))
        await until(lambda: cluster.fetches)
        reader.fetcher.set_assigned([T1])
        cluster.hangs.clear()
        cluster.released.set()
        await turns()
        assert await reader.fetcher.poll(500, 0.01) == []
        reader.fetcher.set_assigned([T0, T1])
        assert reader.fetcher.unpositioned == {T0, T1}


async def test_a_seek_does_not_wait_for_a_fetch_that_waits_at_the_broker() -> None:
    cluster = one_topic()
    cluster.append(T0, batch(0, b"0"))
    async with Reader(cluster, max_wait_ms=600_000) as reader:
        reader.fetcher.set_assigned([T0])
        reader.fetcher.seek(T0, Position(1))
        await until(lambda: len(cluster.fetches) == 1)
        reader.fetcher.seek(T0, Position(0))
        assert await reader.values(1) == [b"0"]
        assert len({lane for request, _, lane in cluster.requests if isinstance(request, FetchRequest)}) == 2


async def test_a_fetch_is_left_for_what_it_does_not_ask_for_alone() -> None:
    cluster = one_topic(2)
    async with Reader(cluster, max_wait_ms=600_000) as reader:
        reader.begin(T0, T1)
        await until(lambda: cluster.fetches)
        for _ in range(3):
            reader.fetcher.pause([T0])
            reader.fetcher.resume([T0])
            reader.fetcher.set_assigned([T0, T1])
            await turns()
        assert len(cluster.fetches) == 1


async def test_paused_partitions_keep_what_was_fetched() -> None:
    cluster = one_topic(2)
    cluster.append(T0, batch(0, b"0", b"1"))
    async with Reader(cluster) as reader:
        reader.begin(T0, T1)
        await reader.read(1, max_records=1)
        reader.fetcher.pause([T0])
        assert reader.fetcher.paused == {T0}
        cluster.append(T1, batch(0, b"other"))
        assert await reader.values(1) == [b"other"]
        assert await reader.fetcher.poll(500, 0.01) == []
        asked = len(cluster.fetches)
        await until(lambda: len(cluster.fetches) > asked)
        assert [each.partition for each in cluster.fetches[-1].topics[0].partitions] == [1]
        reader.fetcher.resume([T0])
        assert await reader.values(1) == [b"1"]
        with pytest.raises(KeyError):
            reader.fetcher.pause([T1, T2])
        assert reader.fetcher.paused == frozenset()


async def test_a_paused_partition_does_not_take_up_the_room_of_others() -> None:
    cluster = one_topic(2)
    cluster.append(T0, batch(0, b"x" * 1000, b"y"))
    async with Reader(cluster, max_bytes=1000, partition_max_bytes=1000) as reader:
        reader.begin(T0, T1)
        await reader.read(1, max_records=1)
        reader.fetcher.pause([T0])
        cluster.append(T1, batch(0, b"other"))
        assert await reader.values(1) == [b"other"]


async def test_held_partitions_wait_for_the_next_assignment() -> None:
    cluster = one_topic(2)
    cluster.append(T0, batch(0, b"0", b"1"))
    async with Reader(cluster) as reader:
        reader.begin(T0, T1)
        await reader.read(1, max_records=1)
        reader.fetcher.hold([T0, T1])
        assert await reader.fetcher.poll(500, 0.01) == []
        reader.fetcher.hold([T1])
        assert await reader.values(1) == [b"1"]
        reader.fetcher.hold([T0, T1])
        cluster.append(T1, batch(0, b"other"))
        assert await reader.fetcher.poll(500, 0.01) == []
        reader.fetcher.set_assigned([T1])
        assert await reader.values(1) == [b"other"]


async def test_a_partition_that_is_assigned_again_does_not_wait_for_a_fetch_of_before() -> None:
    cluster = one_topic()
    cluster.append(T0, batch(0, b"0"))
    async with Reader(cluster, max_wait_ms=600_000) as reader:
        reader.fetcher.set_assigned([T0])
        reader.fetcher.seek(T0, Position(1))
        await until(lambda: len(cluster.fetches) == 1)
        await turns()
        reader.fetcher.set_assigned([])
        reader.begin(T0)
        assert await reader.values(1) == [b"0"]


async def test_the_position_goes_past_a_marker_that_came_behind_what_is_handed_out() -> None:
    cluster = one_topic()
    cluster.append(T0, batch(0, b"0", b"1"))
    end = build_control(
        ControlType.COMMIT, offset=2, timestamp=1, producer_id=5, producer_epoch=0, coordinator_epoch=0
    )
    async with Reader(cluster) as reader:
        reader.begin(T0)
        await reader.read(1, max_records=1)
        cluster.append(T0, end)
        await until(lambda: reader.fetcher.high_watermark(T0) == 3)
        assert reader.fetcher.position(T0) == Position(1, 0)
        assert await reader.values(1) == [b"1"]
        assert (reader.fetcher.position(T0), reader.fetcher.lag(T0)) == (Position(3, -1), 0)


async def test_thousands_of_partitions_are_shared_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 3000
    cluster = one_topic(count)
    async with Reader(cluster) as reader:
        partitions = [TopicPartition("t", index) for index in range(count)]
        calls: list[int] = []
        share_out = reader.fetcher._share_out
        monkeypatch.setattr(reader.fetcher, "_share_out", lambda: calls.append(1) or share_out())
        reader.fetcher.set_assigned(partitions)
        for where in partitions:
            reader.fetcher.seek(where, Position(0))
        await until(lambda: cluster.fetches)
        assert len(cluster.fetches[0].topics[0].partitions) == count
        assert len(calls) <= 3


@pytest.mark.interpreted
@each("error", [MemoryError, SystemExit])
async def test_no_record_is_lost_to_an_error_in_the_middle(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Raised once, while the records of one partition are unpacked."""
    cluster = one_topic(3)
    read, failed = fetched.read_records, []

    def fails_once(data: bytes, *args: Any) -> Any:
        if not failed and b"large" in data:
            failed.append(data)
            raise error
        return read(data, *args)

    monkeypatch.setattr(fetched, "read_records", fails_once)
    for where in (T0, T1, T2):
        cluster.append(where, batch(0, b"0"), batch(1, b"large" if where == T1 else b"1", epoch=1))
    async with Reader(cluster) as reader:
        reader.begin(T0, T1, T2)
        seen: dict[TopicPartition, list[int]] = {T0: [], T1: [], T2: []}
        async with asyncio.timeout(LONG_S):
            while sum(map(len, seen.values())) < 6:
                try:
                    for each in await reader.fetcher.poll(500, LONG_S):
                        seen[each.topic_partition] += each.offsets
                except error:
                    pass
                for where, offsets in seen.items():
                    position = reader.fetcher.position(where)
                    assert position is not None
                    assert position.offset == len(offsets)
        assert failed
        assert all(offsets == [0, 1] for offsets in seen.values())
