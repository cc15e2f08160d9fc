"""Idempotent producers: repeats are recognised, gaps and old epochs refused, across restarts too."""

from __future__ import annotations

import pytest

from muster.coordinator.storage.files import MemoryFolder
from muster.coordinator.topics.producers import Producers
from muster.coordinator.topics.refused import KEPT_MS, PRODUCERS_MAX, Refused
from muster.protocol import record_batch
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.record_batch import NO_PRODUCER_ID, SEQUENCE_MAX, Header
from tests.support.each import each
from tests.topics.support import NOW_MS, OneLog, batch


@pytest.fixture
def one() -> OneLog:
    return OneLog()


def send(one: OneLog, sequence: int, *, epoch: int = 0, producer: int = 9, count: int = 1) -> int:
    """Append a batch and return the base offset that the broker answers."""
    return one.append(*[b"x"] * count, producer=(producer, epoch, sequence)).base_offset


def refusal(one: OneLog, sequence: int, *, epoch: int = 0, count: int = 1) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        send(one, sequence, epoch=epoch, count=count)
    return caught.value.code


def test_batches_in_sequence_are_appended(one: OneLog) -> None:
    assert [send(one, 0, count=3), send(one, 3, count=2), send(one, 5)] == [0, 3, 5]
    assert one.log.high_watermark == 6


def test_a_repeat_of_one_of_the_last_five_gets_the_first_answer(one: OneLog) -> None:
    offsets = [send(one, sequence) for sequence in range(7)]
    assert [send(one, sequence) for sequence in range(2, 7)] == offsets[2:]
    assert one.log.high_watermark == 7


@each("read_back", [False, True])
def test_a_repeat_is_answered_with_the_first_append_time(read_back: bool) -> None:
    one = OneLog(message_timestamp_type="LogAppendTime")
    first = one.log.append(batch(b"x", producer=(9, 0, 0)))
    if read_back:
        one.log.commit()
        one.append(b"between")
        one.reopen()
    one.now_ms += 500
    repeat = one.log.append(batch(b"x", producer=(9, 0, 0)))
    assert (repeat.base_offset, repeat.log_append_time_ms) == (0, first.log_append_time_ms) == (0, NOW_MS)


def test_the_append_time_of_a_batch_that_has_been_deleted_is_not_known() -> None:
    one = OneLog(message_timestamp_type="LogAppendTime")
    one.append(b"x", producer=(9, 0, 0))
    one.append(b"y")
    one.log.delete_records(1)
    repeat = one.append(b"x", producer=(9, 0, 0))
    assert (repeat.base_offset, repeat.log_append_time_ms) == (0, -1)


def test_a_repeat_older_than_five_is_out_of_order(one: OneLog) -> None:
    for sequence in range(7):
        send(one, sequence)
    assert refusal(one, 1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_gap_is_out_of_order_and_changes_nothing(one: OneLog) -> None:
    send(one, 0)
    assert refusal(one, 2) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(one, 1) == 1


def test_a_repeat_with_other_bounds_is_no_repeat(one: OneLog) -> None:
    send(one, 0, count=3)
    assert refusal(one, 0, count=2) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_an_unknown_producer_may_begin_anywhere(one: OneLog) -> None:
    assert send(one, 42) == 0
    assert send(one, 43) == 1


def test_a_new_epoch_begins_at_zero(one: OneLog) -> None:
    send(one, 0)
    assert refusal(one, 1, epoch=1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(one, 0, epoch=1) == 1
    assert send(one, 1, epoch=1) == 2


def test_an_older_epoch_is_refused_even_for_repeats(one: OneLog) -> None:
    send(one, 0, epoch=3)
    send(one, 0, epoch=4)
    assert refusal(one, 0, epoch=3) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_sequences_wrap_to_zero(one: OneLog) -> None:
    send(one, 2**31 - 2, count=2)
    assert send(one, 0) == 2
    assert send(one, 2**31 - 2, count=2) == 0  # a repeat of the batch before the wrap


def test_a_batch_across_the_wrap_is_followed_by_the_next(one: OneLog) -> None:
    send(one, 2**31 - 1, count=3)
    assert refusal(one, 1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(one, 2) == 3


def test_producers_do_not_see_each_other(one: OneLog) -> None:
    assert [send(one, 0, producer=1), send(one, 0, producer=2), send(one, 1, producer=1)] == [0, 1, 2]


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_forgets_nothing(one: OneLog, clean: bool) -> None:
    for sequence in range(7):
        send(one, sequence)
    if clean:
        one.log.close()
    one.reopen()
    assert send(one, 2) == 2
    assert refusal(one, 1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(one, 7) == 7


@pytest.mark.files
def test_the_snapshot_of_closed_segments_is_enough() -> None:
    one = OneLog(internal_segment_bytes="300")
    for sequence in range(10):
        send(one, sequence)
    one.log.seal()
    assert isinstance(one.folder, MemoryFolder)
    assert any(name.endswith(".snapshot") for name in one.folder.names())
    one.reopen()
    assert send(one, 5) == 5
    assert send(one, 10) == 10


def test_records_that_were_deleted_leave_their_sequences(one: OneLog) -> None:
    send(one, 0)
    one.log.delete_records(-1)
    assert refusal(one, 5) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(one, 1) == 1


def test_silent_producers_are_forgotten(one: OneLog) -> None:
    send(one, 0)
    assert one.log.producers.expire(NOW_MS) == 0
    assert one.log.producers.expire(NOW_MS + 1) == 1
    assert send(one, 77) == 1


def test_batches_without_a_producer_are_not_looked_at() -> None:
    producers = Producers()
    header = Header(0, 49, 0, 2, 0, 0, 0, 0, 0, NO_PRODUCER_ID, -1, -1, 1)
    assert producers.check(header) is None
    producers.observe(header)
    assert len(producers) == 0


@each("cut", range(0, 60, 7))
def test_a_snapshot_that_is_cut_short_is_refused(one: OneLog, cut: int) -> None:
    send(one, 0)
    send(one, 0, producer=10)
    whole = one.log.producers.snapshot()
    with pytest.raises(ValueError, match="is truncated"):
        Producers().restore(whole[:cut])
    again = Producers()
    assert again.restore(whole) == len(whole)
    assert again.snapshot() == whole


def test_a_repeat_does_not_grow_the_log(one: OneLog) -> None:
    send(one, 0, count=4)
    size = one.log.segments.size
    send(one, 0, count=4)
    assert one.log.segments.size == size
    assert record_batch.peek(one.log.read(0, 1, first_may_exceed=True)).record_count == 4


# --- what was refused though nothing was wrong with it ---------------------------------------------


def sent(sequence: int, *, epoch: int = 0, count: int = 1) -> Header:
    return record_batch.peek(batch(*[b"x"] * count, producer=(9, epoch, sequence)))


def test_what_follows_a_refused_batch_misses_it_and_nothing_else() -> None:
    refused = Refused()
    assert not refused
    refused.note(sent(20), NOW_MS)
    assert refused
    refused.note(sent(21, count=2), NOW_MS + 1)
    for sequence, due, misses in (
        (21, 20, True),
        (23, 20, True),
        (23, 22, True),
        (20, 20, False),  # sent again
        (23, 23, False),  # they were stored after all
        (19, 20, False),  # a repeat
        (25, 24, False),  # a gap behind them
        (20, 19, False),  # a gap before them
        (21, None, True),
        (20, None, False),
        (19, None, False),
    ):
        assert refused.misses(sent(sequence), due, NOW_MS) is misses, (sequence, due)
    assert not refused.misses(sent(21, epoch=1), 20, NOW_MS)
    assert refused.misses(sent(21), 20, NOW_MS + KEPT_MS)
    assert not refused.misses(sent(21), 20, NOW_MS + KEPT_MS + 1)


def test_refused_batches_are_noted_over_the_end_of_the_sequence_and_by_epoch() -> None:
    refused = Refused()
    refused.note(sent(0), NOW_MS)
    refused.note(sent(SEQUENCE_MAX), NOW_MS)
    assert refused.misses(sent(0), SEQUENCE_MAX, NOW_MS)
    assert refused.misses(sent(1), 0, NOW_MS)
    refused.note(sent(0, epoch=1), NOW_MS)
    refused.note(sent(7), NOW_MS)  # of the earlier epoch
    assert refused.misses(sent(1, epoch=1), 0, NOW_MS)
    assert not refused.misses(sent(1), 0, NOW_MS)


def test_what_was_refused_long_ago_is_forgotten() -> None:
    refused = Refused()
    refused.note(sent(0), NOW_MS)
    refused.note(record_batch.peek(batch(b"x")), NOW_MS + 2 * KEPT_MS)
    assert refused
    refused.note(record_batch.peek(batch(b"x", producer=(10, 0, 0))), NOW_MS + 2 * KEPT_MS)
    assert len(refused._by_id) == 1


def test_of_too_many_producers_the_oldest_are_forgotten() -> None:
    refused = Refused()
    for producer_id in range(PRODUCERS_MAX + 1):
        refused.note(record_batch.peek(batch(b"x", producer=(producer_id, 0, 0))), NOW_MS)
    for producer_id, misses in ((0, False), (1, True), (PRODUCERS_MAX, True)):
        header = record_batch.peek(batch(b"x", producer=(producer_id, 0, 1)))
        assert refused.misses(header, 0, NOW_MS) is misses
