"""What a leader's assignment changes; nothing it may send is an error."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.coordinator.group.classic import ownership
from muster.coordinator.group.classic.member import ClassicMember
from muster.coordinator.group.classic.ownership import UNREADABLE, assigned_partitions, compare, owner
from muster.coordinator.group.events import MOVES_MAX, Move
from muster.protocol.embedded import decode_assignment
from muster.protocol.errors import DecodeError
from tests.group.requests import member
from tests.support.each import each
from tests.support.embedded import assignment

Topics = dict[str, list[int]]
alice, bob, carol = member("alice-1"), member("bob-1"), member("carol-1")


def assigned(topics: Topics, version: int = 1, user_data: bytes | None = None) -> bytes:
    return assignment(topics, version, user_data=user_data)


def of(**owned: Topics) -> dict[ClassicMember, bytes]:
    members = {"alice": alice, "bob": bob, "carol": carol}
    return {members[name]: assigned(topics) for name, topics in owned.items()}


# --- comparing ----------------------------------------------------------------------------------------------


def test_what_moved_is_told_with_both_owners() -> None:
    before = of(alice={"orders": [0, 1], "clicks": [0]}, bob={"orders": [2, 3]})
    after = of(alice={"orders": [0, 2], "clicks": [0]}, carol={"orders": [1, 4]})
    told = compare(before, after)
    assert told._replace(moves=(), owned={}) == ownership.Compared(
        partitions=5, kept=2, moved=2, lost=1, moves=(), owned={}, truncated=False
    )
    assert told.moves == (
        Move("orders", 1, "alice-1", "carol-1"),
        Move("orders", 2, "bob-1", "alice-1"),
        Move("orders", 3, "bob-1", None),
        Move("orders", 4, None, "carol-1"),
    )
    assert told.owned == {"alice-1": 3, "carol-1": 2}


def test_the_first_assignment_moves_nothing() -> None:
    told = compare({}, of(alice={"orders": [0, 1]}, bob={}))
    assert (told.partitions, told.kept, told.moved, told.lost) == (2, 0, 0, 0)
    assert told.moves == (Move("orders", 0, None, "alice-1"), Move("orders", 1, None, "alice-1"))
    assert told.owned == {"alice-1": 2, "bob-1": 0}


def test_a_static_member_is_the_same_under_its_new_id() -> None:
    shop = member("s-1", instance_id="s")
    before = {shop: assigned({"orders": [0]})}
    shop.member_id = "s-2"
    told = compare(before, {shop: assigned({"orders": [0]})})
    assert (told.kept, told.moved, told.owned) == (1, 0, {"s-2": 1})


def test_a_partition_given_to_two_counts_once() -> None:
    told = compare({}, of(alice={"orders": [0]}, bob={"orders": [0]}))
    assert (told.partitions, told.moves) == (1, (Move("orders", 0, None, "bob-1"),))


@each("garbage", [b"", b"\x00", b"\xff\xff\x00\x00\x00\x00\xff\xff\xff\xff", b"\x00\x01\x7f\xff\xff\xff"])
def test_garbage_is_not_compared(garbage: bytes) -> None:
    sound = of(alice={"orders": [0]})
    assert compare(sound, {alice: garbage}) == UNREADABLE
    assert compare({alice: garbage}, sound) == UNREADABLE
    assert owner({alice: garbage, **of(bob={"orders": [0]})}, "orders", 0) is None


@each("count, truncated", [(MOVES_MAX, False), (MOVES_MAX + 1, True)])
def test_many_moves_are_told_in_part_and_counted_in_full(count: int, truncated: bool) -> None:
    many = {"orders": list(range(count))}
    told = compare(of(alice=many), of(bob=many))
    assert (told.moved, told.truncated) == (count, truncated)
    assert told.moves == tuple(
        Move("orders", partition, "alice-1", "bob-1") for partition in range(MOVES_MAX)
    )


@each("count, truncated", [(MOVES_MAX, False), (MOVES_MAX + 1, True)])
def test_of_what_is_new_and_what_is_lost_as_many_are_told(count: int, truncated: bool) -> None:
    told = compare(of(alice={"clicks": [0], "orders": [7]}), of(alice={"orders": list(range(count))}))
    assert (told.kept, told.moved, told.lost, told.truncated) == (1, 0, 1, truncated)
    assert told.moves is not None
    assert len(told.moves) == MOVES_MAX


@each("count, truncated", [(MOVES_MAX, False), (MOVES_MAX + 1, True)])
def test_of_many_members_some_are_told(count: int, truncated: bool) -> None:
    members = {member(f"m-{number}"): assigned({"orders": [number]}) for number in range(count)}
    told = compare(members, members)
    assert (told.partitions, told.kept, told.moves, told.truncated) == (count, count, (), truncated)
    assert told.owned is not None
    assert len(told.owned) == MOVES_MAX


@pytest.mark.interpreted
def test_what_would_take_long_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "LISTED_MAX", 4)
    few, many = (
        of(alice={"orders": [0]}, bob={"orders": [1]}),
        of(alice={"orders": [0]}, bob={"orders": [1, 2]}),
    )
    assert compare(few, few).kept == 2
    assert compare(few, many) == UNREADABLE
    assert compare(many, few) == UNREADABLE


def test_the_owner_of_a_partition() -> None:
    owned = of(alice={"orders": [0]}, bob={"orders": [1]})
    assert owner(owned, "orders", 1) is bob
    assert owner(owned, "orders", 2) is None
    assert owner(owned, "clicks", 0) is None


# --- the short cut and its slow twin ------------------------------------------------------------------------

topics = st.dictionaries(
    st.text(max_size=6), st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5), max_size=4
)


def slowly(blob: bytes) -> list[tuple[str, tuple[int, ...]]] | None:
    try:
        found = decode_assignment(blob)
    except DecodeError:
        return None
    return [(each.topic, tuple(each.partitions)) for each in found.assigned_partitions]


def quickly(blob: bytes) -> list[tuple[str, tuple[int, ...]]] | None:
    try:
        return assigned_partitions(blob)
    except ownership._Unreadable:
        return None


@each(
    "blob",
    [
        struct.pack(">hii", 0, -1, -1),
        struct.pack(">hih", 0, 1, -5) + bytes(2_100),  # steps back to where 511 partitions follow
        struct.pack(">hihii", 0, 1, 0, -1, -1),
        struct.pack(">hii", 0, 0, -2),
    ],
    ids=["topics", "the length of a name", "partitions", "user data"],
)
def test_a_number_below_zero_is_no_assignment(blob: bytes) -> None:
    assert quickly(blob) is slowly(blob) is None


@each("topics", [{"orders": []}, {"orders": [0], "clicks": []}])
def test_topics_and_partitions_count_alike(topics: Topics) -> None:
    room = len(topics) + sum(map(len, topics.values()))
    assert assigned_partitions(assigned(topics), room)
    with pytest.raises(ownership._Unreadable):
        assigned_partitions(assigned(topics), room - 1)


@given(topics, st.integers(0, 32_767), st.none() | st.binary(max_size=4), st.binary(max_size=3))
def test_assignments_are_read_as_the_codec_reads_them(
    owned: Topics, version: int, user_data: bytes | None, rest: bytes
) -> None:
    blob = struct.pack(">h", version) + assigned(owned, 0, user_data)[2:] + rest
    expected = [(topic, tuple(partitions)) for topic, partitions in owned.items()]
    assert quickly(blob) == slowly(blob) == expected


@given(topics, st.none() | st.binary(max_size=4), st.data())
def test_damaged_assignments_too(owned: Topics, user_data: bytes | None, data: st.DataObject) -> None:
    blob = bytearray(assigned(owned, 1, user_data))
    for _ in range(data.draw(st.integers(0, 3))):
        blob[data.draw(st.integers(0, len(blob) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(blob[: data.draw(st.integers(0, len(blob)))])
    assert quickly(cut) == slowly(cut)


@given(st.binary(max_size=40))
def test_and_any_bytes(blob: bytes) -> None:
    assert quickly(blob) == slowly(blob)
