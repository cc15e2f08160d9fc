"""The state of an assigned partition, and where its positions come from."""

from __future__ import annotations

from datetime import timedelta

import pytest

from muster.client.fetch.fetched import Part
from muster.client.fetch.positions import (
    EARLIEST,
    LATEST,
    Cause,
    PartitionState,
    Position,
    ResetStrategy,
    truncated_at,
)
from muster.client.partitions import TopicPartition
from muster.protocol.errors import KafkaError
from muster.protocol.record_batch import build
from tests.client.fetch_fakes import batch
from tests.support.each import each

T0 = TopicPartition("t", 0)


def at(offset: int) -> PartitionState:
    state = PartitionState(T0)
    state.seek(Position(offset, 3))
    return state


def add(state: PartitionState, data: bytes) -> None:
    assert state.fetch_position is not None
    state.add(Part(T0, data, *state.fetch_position))


def test_reading_and_fetching_move_apart_and_meet_again() -> None:
    state = at(0)
    add(state, batch(0, b"0", b"1", epoch=4))
    add(state, batch(2, b"2", epoch=5))
    assert (state.position, state.fetch_position) == (Position(0, 3), Position(3, 5))
    assert state.buffered_bytes > 0
    assert state.take(1).values == [b"0"]  # type: ignore[union-attr]
    assert state.position == Position(1, 4)
    assert state.take(9).values == [b"1"]  # type: ignore[union-attr]
    assert state.take(9).values == [b"2"]  # type: ignore[union-attr]
    assert state.position == state.fetch_position == Position(3, 5)
    assert state.take(9) is None
    assert (state.buffered_bytes, state.has_buffered) == (0, False)


def test_what_shows_nothing_moves_both() -> None:
    state = at(0)
    add(state, build([], base_offset=0, last_offset=9, leader_epoch=6))
    assert state.position == state.fetch_position == Position(10, 6)
    assert not state.has_buffered


def test_but_not_past_what_was_not_handed_out() -> None:
    state = at(0)
    add(state, batch(0, b"0"))
    add(state, build([], base_offset=1, last_offset=9))
    assert state.position == Position(0, 3)
    assert state.take(9).next_offset == 1  # type: ignore[union-attr]
    assert state.position == state.fetch_position == Position(10, -1)


def test_a_seek_drops_what_was_fetched_and_begins_an_era() -> None:
    state = at(0)
    add(state, batch(0, b"0"))
    state.fails(ValueError("a"), 5.0, 1.0)
    era = state.era
    state.seek(Position(7))
    assert (state.position, state.fetch_position, state.buffered_bytes) == (Position(7), Position(7), 0)
    assert state.take(9) is None
    assert (state.trouble, state.failures) == (None, 0)
    assert state.era > era


def test_a_reset_leaves_no_position_until_one_is_found() -> None:
    state = at(5)
    state.reset(LATEST, Cause("why", state.position))
    assert (state.position, state.fetch_position, state.strategy) == (None, None, LATEST)
    state.seek(Position(9))
    assert state.strategy is None


def test_damage_is_fetched_again() -> None:
    state = at(0)
    bad = bytearray(batch(1, b"1"))
    bad[-1] ^= 1
    add(state, batch(0, b"0") + bytes(bad))
    assert state.take(9).values == [b"0"]  # type: ignore[union-attr]
    era = state.era
    with pytest.raises(KafkaError):
        state.take(9)
    assert state.position == state.fetch_position == Position(1, 0)
    assert state.era > era
    add(state, batch(1, b"1"))
    assert state.take(9).values == [b"1"]  # type: ignore[union-attr]


def test_trouble_has_a_beginning_and_a_backoff() -> None:
    state = at(0)
    state.fails(ValueError("a"), 10.0, 1.0)
    state.fails(ValueError("b"), 12.0, 2.0)
    assert (str(state.trouble), state.troubled_since, state.backoff_until, state.failures) == (
        "b",
        10.0,
        14.0,
        2,
    )
    state.settled()
    assert (state.trouble, state.failures) == (None, 0)
    assert state.backoff_until < 0


def test_pausing_and_holding_are_two_things() -> None:
    state = at(0)
    assert state.is_delivering
    state.paused = state.held = True
    state.held = False
    assert not state.is_delivering


@each(
    "epoch, end_offset, expected",
    [(2, 7, Position(7, 2)), (2, 30, Position(10, 2)), (-1, -1, None), (2, -1, None)],
)
def test_where_a_log_was_cut(epoch: int, end_offset: int, expected: Position | None) -> None:
    assert truncated_at(Position(10, 3), epoch, end_offset) == expected


def test_strategies() -> None:
    assert (EARLIEST.timestamp(5_000), LATEST.timestamp(5_000)) == (-2, -1)
    back = ResetStrategy.by_duration(timedelta(seconds=2))
    assert (back.timestamp(5_000), back.timestamp(1_000)) == (3_000, 0)
    assert [str(each) for each in (EARLIEST, LATEST, back)] == ["earliest", "latest", "by_duration 0:00:02"]
    with pytest.raises(ValueError, match="negative"):
        ResetStrategy.by_duration(timedelta(seconds=-1))
