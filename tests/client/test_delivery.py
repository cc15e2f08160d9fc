"""Handing out records: order, positions, and what is in hand; without a broker."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from muster.client import Batch, DeserializationFailed, OffsetAndMetadata, TopicPartition
from muster.client.consume.delivery import Delivery, RawBatch
from tests.support.each import each

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def batch(where: TopicPartition, first: int, count: int, *, epoch: int = 3, gap: int = 0) -> RawBatch:
    offsets = range(first, first + count)
    return Batch(
        *where,
        offsets,
        offsets,
        keys=[None] * count,
        values=[b"%d" % each for each in offsets],
        next_offset=first + count + gap,
        leader_epoch=epoch,
    )


def delivery(*batches: RawBatch) -> Delivery[None, bytes]:
    made: Delivery[None, bytes] = Delivery()
    made.add(batches)
    return made


def test_a_run_is_given_out_one_by_one() -> None:
    handing = delivery(batch(T0, 5, 3))
    assert handing.places().get(T0) == OffsetAndMetadata(5)
    assert handing.start_run(10)
    assert handing.places().get(T0) == OffsetAndMetadata(5)
    assert handing.in_hand() == {}
    assert next(handing.run).offset == 5
    assert handing.places().get(T0) == OffsetAndMetadata(6, leader_epoch=3)
    assert handing.in_hand() == {T0: OffsetAndMetadata(5)}
    assert next(handing.run).offset == 6
    assert handing.in_hand() == {T0: OffsetAndMetadata(6)}
    handing.asked()
    assert handing.in_hand() == {}
    assert next(handing.run).offset == 7
    # The fetcher knows the rest.
    assert handing.places().get(T0) is None
    assert handing.in_hand() == {T0: OffsetAndMetadata(7)}
    assert not handing.start_run(10)
    assert handing.in_hand() == {T0: OffsetAndMetadata(7)}


def test_a_run_that_is_interrupted_goes_on_later() -> None:
    handing = delivery(batch(T0, 0, 5), batch(T1, 0, 5))
    assert handing.start_run(4)
    next(handing.run)
    handing.interrupt()
    assert next(handing.run, None) is None
    assert handing.in_hand() == {T0: OffsetAndMetadata(0)}
    assert handing.places().get(T0) == OffsetAndMetadata(1, leader_epoch=3)
    assert handing.is_ready()
    assert [each.offset for taken in handing.take(100) for each in taken.records] == [
        1,
        2,
        3,
        4,
        0,
        1,
        2,
        3,
        4,
    ]
    assert handing.in_hand() == {T0: OffsetAndMetadata(0), T1: OffsetAndMetadata(0)}
    assert not handing.is_ready()


def test_what_is_blocked_waits_and_what_is_dropped_is_gone() -> None:
    handing = delivery(batch(T0, 0, 5), batch(T1, 0, 5))
    handing.block({T0})
    assert [taken.topic_partition for taken in handing.take(3)] == [T1]
    assert handing.is_ready()
    handing.drop([T1])
    assert handing.places().get(T1) is None
    assert handing.in_hand() == {}
    assert not handing.is_ready()
    assert not handing.start_run(3)
    handing.block(())
    assert handing.start_run(3)
    handing.block({T0})
    assert not handing.start_run(3)
    assert handing.places().get(T0) == OffsetAndMetadata(0)


def test_records_in_hand_stay_those_of_a_topic_whose_name_another_takes() -> None:
    first, second = uuid.uuid4(), uuid.uuid4()
    handing = delivery(batch(T0, 0, 5), batch(T1, 0, 5))
    assert handing.start_run(5)
    next(handing.run)
    for former in (first, second):
        handing.replaced(T0, former)
        handing.replaced(T1, former)
        assert not handing.is_ready()
        assert handing.places() == {}
        assert handing.in_hand() == {T0: OffsetAndMetadata(0)}
        assert handing.former_topics == {T0: first}
    handing.asked()
    assert handing.in_hand() == handing.former_topics == {}
    handing.add([batch(T0, 0, 5)])
    assert handing.start_run(5)
    next(handing.run)
    handing.replaced(T0, second)
    handing.drop([T0])
    assert handing.in_hand() == handing.former_topics == {}


def test_batches_are_taken_up_to_a_number_of_records_and_of_batches() -> None:
    handing = delivery(batch(T0, 0, 5), batch(T1, 0, 5), batch(T0, 5, 5))
    assert [len(each) for each in handing.take(3)] == [3]
    assert [len(each) for each in handing.take(9, max_batches=2)] == [2, 5]
    assert handing.places().get(T0) == OffsetAndMetadata(5, leader_epoch=3)
    assert [len(each) for each in handing.take(9)] == [5]


@each("deserializer", [None, bytes.decode])
def test_whole_batches_are_taken_without_a_copy(deserializer: Callable[[bytes], Any] | None) -> None:
    class Column(list[Any]):
        def __getitem__(self, index: Any) -> Any:
            assert not isinstance(index, slice), "copied"
            return super().__getitem__(index)

    whole = batch(T0, 0, 5)
    whole.keys, whole.values, whole.timestamps = (
        Column(each) for each in (whole.keys, whole.values, whole.timestamps)
    )
    handing: Delivery[Any, Any] = Delivery(value_deserializer=deserializer)
    handing.add([whole, batch(T1, 0, 5)])
    assert [len(each) for each in handing.take(7)] == [5, 2]


def test_progress_shows_that_records_were_given_out() -> None:
    handing = delivery(batch(T0, 0, 5))
    handing.start_run(5)
    seen = {handing.progress()}
    for _ in handing.run:
        assert handing.progress() not in seen
        seen.add(handing.progress())


@each("seed", range(20))
def test_every_record_once_and_in_order_whatever_happens_in_between(seed: int) -> None:
    dice = random.Random(seed)
    blocked: set[TopicPartition] = set()
    handing = delivery()
    partitions = [TopicPartition("t", each) for each in range(3)]
    added = dict.fromkeys(partitions, 0)
    seen: dict[TopicPartition, list[int]] = {each: [] for each in partitions}
    handled = dict.fromkeys(partitions, 0)

    def asked() -> None:
        handing.asked()
        for where in partitions:
            handled[where] = len(seen[where])

    for _ in range(400):
        where = dice.choice(partitions)
        match dice.randrange(6):
            case 0:
                count = dice.randint(1, 9)
                handing.add([batch(where, added[where], count)])
                added[where] += count
            case 1:
                blocked ^= {where}
                handing.block(blocked)
            case 2:
                asked()
                for taken in handing.take(dice.randint(1, 12), max_batches=dice.choice([None, 1])):
                    seen[taken.topic_partition] += taken.offsets
            case 3:
                asked()
                if handing.start_run(dice.randint(1, 12)):
                    first = next(handing.run)
                    seen[first.topic_partition].append(first.offset)
            case 4:
                for record in handing.run:
                    for each in partitions:
                        handled[each] = len(seen[each])
                    seen[record.topic_partition].append(record.offset)
                    break
            case 5:
                handing.interrupt()
        for each in partitions:
            assert seen[each] == list(range(len(seen[each])))
            place = handing.places().get(each)
            assert (added[each] if place is None else place.offset) == len(seen[each])
            in_hand = handing.in_hand().get(each)
            assert (len(seen[each]) if in_hand is None else in_hand.offset) == handled[each]
    handing.block(())
    for taken in handing.take(10**6):
        seen[taken.topic_partition] += taken.offsets
    assert {each: len(seen[each]) for each in partitions} == added


def test_deserializers() -> None:
    def number(value: bytes) -> int:
        if value == b"3":
            raise ValueError("three")
        return int(value)

    handing: Delivery[None, int] = Delivery(None, number)
    handing.add([batch(T0, 0, 3), batch(T0, 3, 3)])
    assert handing.start_run(10)
    assert [record.value for record in handing.run] == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(DeserializationFailed, match="t-0: the value at offset 3 cannot be read"):
            handing.start_run(10)
        with pytest.raises(DeserializationFailed):
            handing.take(10)
        assert handing.places().get(T0) == OffsetAndMetadata(3, leader_epoch=3)
    handing.drop([T0])
    handing.add([batch(T0, 1, 5)])
    assert [record.value for taken in handing.take(10) for record in taken.records] == [1, 2]


def test_a_key_that_cannot_be_read_and_a_null() -> None:
    def fail(_: bytes) -> bytes:
        raise ValueError

    handing: Delivery[bytes, bytes] = Delivery(fail)
    handing.add([Batch("t", 0, [0, 1], [0, 0], keys=[None, b"k"], values=[None, b"v"], next_offset=2)])
    (taken,) = handing.take(10)
    assert [(record.key, record.value) for record in taken.records] == [(None, None)]
    with pytest.raises(DeserializationFailed, match="the key at offset 1"):
        handing.take(10)


def test_nothing_is_lost_if_a_deserializer_is_left_by_an_exit() -> None:
    exits = True

    def number(value: bytes) -> int:
        if exits and value == b"4":
            raise SystemExit
        return int(value)

    handing: Delivery[None, int] = Delivery(None, number)
    handing.add([batch(T1, 0, 2), batch(T0, 0, 2), batch(T0, 2, 4)])
    whole = handing.places()
    for most in (100, 7):  # 7: not the whole last batch
        with pytest.raises(SystemExit):
            handing.take(most)
        assert (handing.places(), handing.in_hand(), handing.returned()) == (whole, {}, set())
    handing.take(4)
    handing.asked()
    for most in (100, 3):
        with pytest.raises(SystemExit):
            handing.start_run(most)
        assert next(handing.run, None) is None
        assert handing.places() == {T0: OffsetAndMetadata(2, leader_epoch=3)}
        assert handing.in_hand() == {}
    exits = False
    assert [record.value for taken in handing.take(100) for record in taken.records] == [2, 3, 4, 5]
