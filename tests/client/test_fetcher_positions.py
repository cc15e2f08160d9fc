"""Where fetching begins and continues, with in-memory brokers: positions that are looked up, and logs that
have changed since they were read."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest

from muster.client.errors import ConnectionLost, OffsetOutOfRange, TruncationDetected
from muster.client.fetch.fetcher import Reset
from muster.client.fetch.positions import EARLIEST, LATEST, Position, ResetStrategy
from muster.client.partitions import TopicPartition
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.data import FetchResponse, OffsetForLeaderEpochRequest
from muster.protocol.record_batch import ControlType
from tests.client.fetch_fakes import T0, T1, T2, FakeCluster, Reader, batch, one_topic
from tests.support.control_batches import build_control
from tests.support.facts import turns, until

# --- where to begin -----------------------------------------------------------------------------------------


async def test_resets_find_a_position() -> None:
    cluster = FakeCluster({"t": 3, "u": 1})
    for where in (T0, T1, T2):
        cluster.append(where, batch(5, b"5"), batch(6, b"6"))
        cluster.logs[where].start, cluster.logs[where].leader_epoch = 5, 9
    async with Reader(cluster) as reader:
        reader.fetcher.set_assigned([T0, T1, T2])
        reader.fetcher.reset(T0)
        reader.fetcher.reset(T1, LATEST, "the user wants it")
        reader.fetcher.reset(T2, EARLIEST)
        assert reader.fetcher.unpositioned == frozenset()
        await until(lambda: len(reader.resets) == 3)
        assert sorted(reader.resets) == [
            Reset(T0, None, 5, "there is no committed offset"),
            Reset(T1, None, 7, "the user wants it"),
            Reset(T2, None, 5, "there is no committed offset"),
        ]
        assert reader.fetcher.position(T1) == Position(7, 9)
        assert sorted(each.offset for each in await reader.read(4)) == [5, 5, 6, 6]
        with pytest.raises(KeyError):
            reader.fetcher.reset(TopicPartition("u", 0))


async def test_by_duration_the_first_record_that_is_young_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = one_topic(2)
    cluster.append(T0, batch(0, b"0"), batch(1, b"1"), batch(2, b"2"))  # at 1000, 1001 and 1002 ms
    monkeypatch.setattr("time.time", lambda: 1.501)
    async with Reader(cluster, reset=ResetStrategy.by_duration(timedelta(milliseconds=500))) as reader:
        reader.fetcher.set_assigned([T0, T1])
        reader.fetcher.reset(T0)
        assert await reader.values(2) == [b"1", b"2"]
        reader.fetcher.reset(T1)  # no record is young enough: the end
        await until(lambda: len(reader.resets) == 2)
        assert reader.resets[1].to_offset == 0


async def test_a_look_up_that_fails_is_tried_again() -> None:
    cluster = one_topic(nodes=(1, 2))
    cluster.append(T0, batch(0, b"0"))
    cluster.fails[1] = ConnectionLost("gone")
    async with Reader(cluster) as reader:
        reader.fetcher.set_assigned([T0])
        reader.fetcher.reset(T0)
        await until(lambda: reader.fetcher.troubles)
        assert str(reader.fetcher.troubles[T0].error) == "gone"
        cluster.logs[T0].leader = 2
        assert await reader.values(1) == [b"0"]
        assert reader.fetcher.troubles == {}


async def test_without_a_policy_there_is_nothing_to_reset_by() -> None:
    async with Reader(one_topic(), reset=None) as reader:
        reader.fetcher.set_assigned([T0])
        with pytest.raises(ValueError, match="t-0: no strategy"):
            reader.fetcher.reset(T0)


# --- logs that are not as they were -------------------------------------------------------------------------


async def test_a_log_that_does_not_reach_back_that_far(caplog: pytest.LogCaptureFixture) -> None:
    cluster = one_topic()
    cluster.append(T0, batch(5, b"5"))
    cluster.logs[T0].start = 5
    async with Reader(cluster) as reader:
        reader.fetcher.set_assigned([T0])
        reader.fetcher.seek(T0, Position(2))
        assert await reader.values(1) == [b"5"]
        why = "the log of t-0 has no offset 2; it begins at 5"
        assert reader.resets == [Reset(T0, 2, 5, why)]
        assert f"t-0: {why}; reading goes on at offset 5 (earliest), 3 offsets are skipped" in caplog.text


async def test_without_a_policy_it_raises_for_all_and_reads_the_others_on() -> None:
    cluster = one_topic(3)
    cluster.append(T1, batch(0, b"1"))
    async with Reader(cluster, reset=None) as reader:
        reader.fetcher.set_assigned([T0, T1, T2])
        reader.fetcher.seek(T0, Position(7))
        reader.fetcher.seek(T1, Position(0))
        reader.fetcher.seek(T2, Position(8))
        # Records read so far are handed out first, then the error is raised; it does not go away by itself.
        assert await reader.values(1) == [b"1"]
        await until(lambda: reader.fetcher._reading._failures.keys() == {T0, T2})
        for _ in range(2):
            raised = await reader.raised(OffsetOutOfRange)
            assert raised.positions == {T0: 7, T2: 8}
            assert "t-0 has no offset 7" in str(raised)
            cluster.append(T1, batch(cluster.logs[T1].end, b"on"))
            assert await reader.values(1) == [b"on"]
        reader.fetcher.seek(T0, Position(0))
        assert (await reader.raised(OffsetOutOfRange)).positions == {T2: 8}


async def test_a_seek_settles_a_failure_that_was_not_raised_yet() -> None:
    cluster = one_topic()
    cluster.append(T0, batch(0, b"0"))
    async with Reader(cluster, reset=None) as reader:
        reader.fetcher.set_assigned([T0])
        reader.fetcher.seek(T0, Position(7))
        await until(lambda: reader.fetcher._reading.has_failures)
        reader.fetcher.seek(T0, Position(0))
        assert await reader.values(1) == [b"0"]
        assert await reader.fetcher.poll(500, 0.01) == []


async def test_a_failure_is_raised_however_much_there_is_of_others() -> None:
    cluster = one_topic(2)
    cluster.append(T0, *(batch(offset, b"0") for offset in range(1000)))
    async with Reader(cluster, reset=None) as reader:
        reader.fetcher.set_assigned([T0, T1])
        reader.fetcher.seek(T0, Position(0))
        reader.fetcher.seek(T1, Position(7))
        with pytest.raises(OffsetOutOfRange):
            await reader.read(1000, max_records=1)
        assert await reader.read(1, max_records=1)


async def test_what_was_fetched_is_handed_out_before_a_position_is_given_up() -> None:
    cluster = one_topic()
    cluster.append(T0, batch(0, b"0"), batch(1, b"1"))
    async with Reader(cluster) as reader:
        reader.begin(T0)
        await until(lambda: reader.fetcher.high_watermark(T0))
        cluster.logs[T0].batches[:] = [batch(50, b"50")]
        cluster.logs[T0].start = 50
        cluster.tell()
        await until(lambda: reader.fetcher._reading.assigned[T0].drain_first)
        assert await reader.values(3) == [b"0", b"1", b"50"]
        assert [(each.from_offset, each.to_offset) for each in reader.resets] == [(2, 50)]


async def test_a_log_that_was_cut_is_read_on_from_there(caplog: pytest.LogCaptureFixture) -> None:
    """With any policy: what the new leader wrote in place of the lost records must not be missed."""
    cluster = one_topic()
    cluster.append(T0, batch(0, b"0", b"1", epoch=1), batch(2, b"new", epoch=3))
    cluster.logs[T0].leader_epoch = 3
    cluster.logs[T0].diverging = (1, 2)
    async with Reader(cluster, reset=LATEST) as reader:
        reader.fetcher.set_assigned([T0])
        reader.fetcher.seek(T0, Position(3, 2))
        assert await reader.values(1) == [b"new"]
        asked = cluster.fetches[0].topics[0].partitions[0]
        assert (asked.last_fetched_epoch, asked.current_leader_epoch) == (2, 3)
        assert cluster.fetches[1].topics[0].partitions[0].last_fetched_epoch == 1
        why = "the log of t-0 was cut at offset 2, below 3"
        assert reader.resets == [Reset(T0, 3, 2, why)]
        assert why in caplog.text


async def test_what_was_fetched_is_handed_out_before_a_log_that_was_cut_is_followed() -> None:
    cluster = one_topic()
    cluster.append(T0, batch(0, b"0", b"1", epoch=1))
    async with Reader(cluster) as reader:
        reader.begin(T0)
        await until(lambda: reader.fetcher.high_watermark(T0))
        cluster.logs[T0].diverging = (0, 1)
        cluster.tell()
        await until(lambda: reader.fetcher._reading.assigned[T0].drain_first)
        cluster.logs[T0].batches[:] = [batch(0, b"0", epoch=0), batch(1, b"other", epoch=2)]
        cluster.logs[T0].diverging = (0, 1)
        assert await reader.values(3) == [b"0", b"1", b"other"]
        assert [(each.from_offset, each.to_offset) for each in reader.resets] == [(2, 1)]


async def test_without_a_policy_a_cut_is_raised() -> None:
    cluster = one_topic()
    cluster.append(T0, batch(0, b"0", epoch=1))
    cluster.logs[T0].diverging = (1, 1)
    async with Reader(cluster, reset=None) as reader:
        reader.fetcher.set_assigned([T0])
        reader.fetcher.seek(T0, Position(3, 2))
        raised = await reader.raised(TruncationDetected)
        assert raised.diverging == {T0: 1}
        assert reader.fetcher.position(T0) == Position(3, 2)


async def test_without_a_policy_older_brokers_are_asked_until_the_cut_is_settled() -> None:
    cluster = one_topic(version=11)
    cluster.append(T0, batch(0, b"0", epoch=1), batch(1, b"1", b"2", b"3", epoch=3))
    cluster.logs[T0].leader_epoch = 3
    async with Reader(cluster, reset=None) as reader:
        reader.fetcher.set_assigned([T0])
        reader.fetcher.seek(T0, Position(3, 2))
        for _ in range(3):
            assert (await reader.raised(TruncationDetected)).diverging == {T0: 1}
        reader.fetcher.seek(T0, Position(1, 1))
        assert await reader.values(3) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("reset", [LATEST, None])
async def test_where_the_leader_cannot_tell_where_it_was_cut(reset: ResetStrategy | None) -> None:
    cluster = one_topic(version=11)
    cluster.append(T0, batch(0, b"0", epoch=3))
    cluster.logs[T0].leader_epoch = 3
    async with Reader(cluster, reset=reset) as reader:
        reader.fetcher.set_assigned([T0])
        reader.fetcher.seek(T0, Position(9, 2))
        if reset is None:
            assert (await reader.raised(TruncationDetected)).diverging == {T0: -1}
        else:
            await until(lambda: reader.resets)
            why = "the log of t-0 was cut below offset 9, it cannot be told where"
            assert reader.resets == [Reset(T0, 9, 1, why)]


async def test_an_epoch_that_never_was_is_no_loss_where_the_log_goes_on() -> None:
    cluster = one_topic()
    cluster.append(T0, batch(0, b"0", b"1", epoch=1))
    cluster.logs[T0].diverging = (1, 2)
    async with Reader(cluster) as reader:
        reader.fetcher.set_assigned([T0])
        reader.fetcher.seek(T0, Position(1, 2))
        assert await reader.values(1) == [b"1"]
        assert reader.resets == []


@pytest.mark.parametrize("version", [4, 9, 11])
async def test_older_brokers_are_asked_before(version: int) -> None:
    """Once per leader epoch."""
    cluster = one_topic(version=version)
    cluster.append(T0, batch(0, b"0", b"1", epoch=1), batch(2, b"new", epoch=3))
    cluster.logs[T0].leader_epoch = 3
    async with Reader(cluster) as reader:
        reader.fetcher.set_assigned([T0])
        reader.fetcher.seek(T0, Position(3, 2))
        assert await reader.values(1) == [b"new"]
        assert [each[:3] for each in reader.resets] == [(T0, 3, 2)]
        cluster.append(T0, batch(3, b"3", epoch=3))
        assert await reader.values(1) == [b"3"]

        def checks() -> int:
            return sum(isinstance(each, OffsetForLeaderEpochRequest) for each, _, _ in cluster.requests)

        asked = checks()
        cluster.append(T0, batch(4, b"4", epoch=3))
        assert await reader.values(1) == [b"4"]
        assert checks() == asked


@pytest.mark.parametrize("reset", [LATEST, None])
async def test_a_topic_that_was_created_again_is_read_from_its_beginning(reset: ResetStrategy | None) -> None:
    cluster = one_topic()
    cluster.append(T0, batch(0, b"old", b"old"))
    async with Reader(cluster, reset=reset) as reader:
        reader.begin(T0)
        await reader.read(2)
        former, cluster.ids["t"] = cluster.ids["t"], uuid.uuid4()
        cluster.logs[T0].batches[:] = [batch(0, b"new", b"newer", b"newest")]
        cluster.tell()
        if reset is None:
            for _ in range(3):  # It does not go away by itself.
                assert (await reader.raised(TruncationDetected)).diverging == {T0: 0}
            reader.fetcher.seek(T0, Position(0))
            assert (await reader.values(3))[0] == b"new"
        else:
            assert await reader.values(3) == [b"new", b"newer", b"newest"]
            assert reader.resets == [Reset(T0, 2, 0, "topic t was deleted and created again", former)]


async def test_damage_is_raised_and_fetched_again() -> None:
    cluster = one_topic()
    cluster.append(T0, batch(0, b"0"), batch(1, b"1"))
    bad = bytearray(batch(1, b"1"))
    bad[-1] ^= 1
    cluster.logs[T0].raw = batch(0, b"0") + bytes(bad)
    async with Reader(cluster) as reader:
        reader.begin(T0)
        assert await reader.values(1) == [b"0"]
        raised = await reader.raised(KafkaError)
        assert raised.code is ErrorCode.CORRUPT_MESSAGE
        assert "t-0: the batch at offset 1" in str(raised)
        assert reader.fetcher.position(T0) == Position(1, 0)
        assert await reader.values(1) == [b"1"]


async def test_less_than_one_batch_is_trouble_and_no_busy_loop() -> None:
    cluster = one_topic()
    cluster.append(T0, batch(0, b"0" * 100))
    cluster.logs[T0].raw = batch(0, b"0" * 100)[:70]
    async with Reader(cluster) as reader:
        reader.begin(T0)
        await until(lambda: reader.fetcher.troubles)
        assert "less than one batch of t-0 at offset 0" in str(reader.fetcher.troubles[T0].error)
        assert len(await reader.read(1)) == 1


async def test_committed_reads_leave_out_what_was_aborted() -> None:
    cluster = one_topic()
    transaction = {"producer_id": 5, "producer_epoch": 0, "transactional": True}
    end = build_control(
        ControlType.ABORT, offset=1, timestamp=1, producer_id=5, producer_epoch=0, coordinator_epoch=0
    )
    cluster.append(T0, batch(0, b"aborted", **transaction), end, batch(2, b"2"))
    cluster.logs[T0].aborted = [(5, 0)]
    cluster.logs[T0].last_stable_offset = 3
    async with Reader(cluster, isolation_level="read_committed") as reader:
        reader.begin(T0)
        assert await reader.values(1) == [b"2"]
        assert cluster.fetches[0].isolation_level == 1
        assert reader.fetcher.lag(T0) == 0


async def test_damage_that_hides_what_follows_is_fetched_once_until_it_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = one_topic()
    cluster.append(T0, batch(0, b"0"))
    bad = bytearray(batch(0, b"0"))
    bad[16] = 1  # an old message format
    part_of = cluster._part_of

    def damaged(asked: Any, log: Any, _: bytes) -> FetchResponse.FetchableTopicResponse.PartitionData:
        return part_of(asked, log, bytes(bad))

    monkeypatch.setattr(cluster, "_part_of", damaged)
    async with Reader(cluster) as reader:
        reader.begin(T0)
        await until(lambda: reader.fetcher._reading.has_buffered)
        await turns(100)
        assert len(cluster.fetches) == 1
        for _ in range(2):
            assert (await reader.raised(KafkaError)).code is ErrorCode.CORRUPT_MESSAGE
        monkeypatch.setattr(cluster, "_part_of", part_of)
        reader.fetcher.seek(T0, Position(0))
        assert await reader.values(1) == [b"0"]
