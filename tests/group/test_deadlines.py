"""The heap of deadlines, compared with a plain dictionary."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from muster.coordinator.base.deadlines import Deadlines
from tests.support.each import each


def due(deadlines: Deadlines[str], now_ms: int) -> list[str]:
    return list(deadlines.due(now_ms))


def test_nothing_is_due_when_nothing_is_set() -> None:
    deadlines: Deadlines[str] = Deadlines()
    assert deadlines.next() is None
    assert due(deadlines, 10**15) == []
    assert len(deadlines) == 0
    assert repr(deadlines) == "<Deadlines 0 next=None>"


def test_due_at_the_millisecond_and_not_before() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 100)
    assert deadlines.next() == 100
    assert due(deadlines, 99) == []
    assert due(deadlines, 100) == ["a"]
    assert due(deadlines, 100) == []
    assert deadlines.next() is None
    assert "a" not in deadlines


def test_earliest_first_and_equal_ones_in_the_order_they_were_set() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for key, at_ms in (("late", 30), ("b", 20), ("a", 20), ("early", 10)):
        deadlines.set(key, at_ms)
    deadlines.set("b", 20)  # set again: now behind a
    assert due(deadlines, 30) == ["early", "a", "b", "late"]


def test_a_deadline_that_moves_later_is_not_due_at_its_old_time() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 10)
    deadlines.set("b", 15)
    deadlines.set("a", 20)
    assert deadlines.next() == 15
    assert deadlines.get("a") == 20
    assert due(deadlines, 19) == ["b"]
    assert due(deadlines, 20) == ["a"]


def test_a_deadline_that_moves_earlier_is_due_once() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 20)
    deadlines.set("a", 10)
    assert deadlines.next() == 10
    assert due(deadlines, 10) == ["a"]
    assert due(deadlines, 30) == []
    deadlines.set("a", 40)
    assert due(deadlines, 39) == []
    assert due(deadlines, 40) == ["a"]


def test_a_cancelled_deadline_is_gone_and_may_be_set_again() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 10)
    deadlines.cancel("a")
    deadlines.cancel("never set")
    assert deadlines.get("a") is None
    assert deadlines.next() is None
    deadlines.set("a", 10)
    deadlines.cancel("a")
    deadlines.set("a", 12)
    assert "a" in deadlines
    assert due(deadlines, 11) == []
    assert due(deadlines, 12) == ["a"]


def test_a_deadline_set_while_others_are_taken_takes_part() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 10)
    deadlines.set("c", 30)
    taken = []
    for key in deadlines.due(20):
        taken.append(key)
        if key == "a":
            deadlines.set("b", 15)
            deadlines.cancel("c")
            deadlines.set("d", 21)
    assert taken == ["a", "b"]
    assert deadlines.next() == 21


@each("stale", [64, 65, 1000])
def test_the_heap_does_not_grow_with_deadlines_that_move(stale: int) -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("z", 10_000)
    for at_ms in range(stale, 0, -1):  # each earlier than the previous, each leaving it behind
        deadlines.set("a", at_ms + 100)
    assert deadlines.next() == 101
    assert len(deadlines._heap) <= 2 * len(deadlines) + 64
    assert due(deadlines, 101) == ["a"]
    assert due(deadlines, 20_000) == ["z"]


def test_the_heap_does_not_grow_with_keys_that_come_and_go_while_only_the_bound_is_asked() -> None:
    deadlines: Deadlines[int] = Deadlines()
    deadlines.set(-1, 10)
    for key in range(1000):
        deadlines.set(key, 20 + key)
        deadlines.cancel(key)
        assert deadlines.bound() == 10
    assert len(deadlines._heap) <= 2 * 1 + 64 + 1
    assert len(deadlines._by_key) == len(deadlines._heap)
    assert due(deadlines, 5_000) == [-1]


def test_a_deadline_that_moves_later_leaves_the_heap_alone() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for at_ms in range(10, 100):
        deadlines.set("a", at_ms)
    assert len(deadlines._heap) == 1


moves = st.one_of(
    st.tuples(st.just("set"), st.sampled_from("abcde"), st.integers(0, 40)),
    st.tuples(st.just("cancel"), st.sampled_from("abcde"), st.just(0)),
    st.tuples(st.just("due"), st.just(""), st.integers(0, 20)),
)


@given(st.lists(moves, max_size=60))
def test_as_a_dictionary_would(steps: list[tuple[str, str, int]]) -> None:
    deadlines: Deadlines[str] = Deadlines()
    plain: dict[str, tuple[int, int]] = {}
    now_ms = 0
    for number, (what, key, time_ms) in enumerate(steps):
        if what == "set":
            deadlines.set(key, now_ms + time_ms)
            plain[key] = (now_ms + time_ms, number)
        elif what == "cancel":
            deadlines.cancel(key)
            plain.pop(key, None)
        else:
            now_ms += time_ms
            expected = sorted((key for key in plain if plain[key][0] <= now_ms), key=lambda key: plain[key])
            assert due(deadlines, now_ms) == expected
            for key in expected:
                del plain[key]
        assert len(deadlines) == len(plain)
        assert deadlines.next() == min((at_ms for at_ms, _ in plain.values()), default=None)
        assert {key: deadlines.get(key) for key in plain} == {key: at_ms for key, (at_ms, _) in plain.items()}
