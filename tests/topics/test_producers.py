"""Idempotent producers: repeats are recognised, gaps and old epochs refused, over restarts too."""

from __future__ import annotations

import pytest

from muster.coordinator.storage.files import MemoryFolder
from muster.coordinator.topics.producers import Producers
from muster.protocol import record_batch
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.record_batch import NO_PRODUCER_ID, Header
from tests.topics.support import NOW_MS, OneLog


@pytest.fixture
def one() -> OneLog:
    return OneLog()


def send(one: OneLog, sequence: int, *, epoch: int = 0, producer: int = 9, count: int = 1) -> int:
    """The base offset that the broker answers."""
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


@pytest.mark.parametrize("cut", range(0, 60, 7))
def test_a_snapshot_that_is_cut_short_is_refused(one: OneLog, cut: int) -> None:
    send(one, 0)
    send(one, 0, producer=10)
    whole = one.log.producers.snapshot()
    with pytest.raises(ValueError, match="cut short"):
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
