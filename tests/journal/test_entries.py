"""An entry and its JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.coordinator.journal.entries import COMMON, Entry, Member
from tests.support.each import each

WEB_2 = Member("web-2-5f0d", "web-2", "10.0.0.7", "web-2")

ENTRY = Entry(
    "member_removed",
    1_700_000_000_000,
    broker=1,
    shard=7,
    group="billing",
    generation=6,
    trigger="session expired",
    member=WEB_2,
    data={"silent_ms": 45_000, "connected": True, "disconnected_ms": None},
)


def test_an_entry_is_one_compact_object_with_the_common_fields_first() -> None:
    assert ENTRY.to_json() == (
        b'{"v":1,"type":"member_removed","at_ms":1700000000000,"broker":1,"shard":7,"group":"billing",'
        b'"generation":6,"trigger":"session expired","member":{"id":"web-2-5f0d","client_id":"web-2",'
        b'"host":"10.0.0.7","instance":"web-2"},"reason":null,"silent_ms":45000,"connected":true,'
        b'"disconnected_ms":null}'
    )


def test_an_entry_of_a_shard_has_no_group() -> None:
    entry = Entry("shard_loaded", 5, 1, 7, None, None, data={"epoch": 3, "groups": 2, "took_ms": 1})
    assert Entry.from_json(entry.to_json()) == entry


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_MEMBERS = st.builds(Member, _TEXT, _TEXT, _TEXT, st.none() | _TEXT)
_VALUES = st.none() | st.booleans() | st.integers() | _TEXT | st.lists(_TEXT, max_size=3)


@given(
    st.builds(
        Entry,
        _TEXT,
        st.integers(),
        broker=st.integers(),
        shard=st.integers(),
        group=st.none() | _TEXT,
        generation=st.none() | st.integers(),
        trigger=st.none() | _TEXT,
        member=st.none() | _MEMBERS,
        reason=st.none() | _TEXT,
        data=st.dictionaries(_TEXT.filter(lambda name: name not in COMMON), _VALUES, max_size=4),
    )
)
def test_what_is_written_is_read(entry: Entry) -> None:
    assert Entry.from_json(entry.to_json()) == entry


def test_types_and_fields_of_later_versions_are_kept() -> None:
    raw = b'{"v":2,"type":"group_painted","at_ms":1,"broker":1,"shard":0,"group":"g","colour":"red"}'
    entry = Entry.from_json(raw)
    assert (entry.type, entry.group, entry.generation, entry.data) == (
        "group_painted",
        "g",
        None,
        {"colour": "red"},
    )


def test_lone_surrogates_are_written_as_question_marks() -> None:
    entry = Entry("group_created", 1, 1, 0, "a\ud800b", 0)
    assert Entry.from_json(entry.to_json()).group == "a?b"


@each(
    "raw, why",
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "not an object"),
        (b"{}", "v is missing"),
        (b'{"v":0}', "v is 0, and the first version is 1"),
        (b'{"v":true}', "v is True, expected an integer"),
        (b'{"v":1,"at_ms":1,"broker":1,"shard":0}', "type is missing"),
        (
            b'{"v":1,"type":"x","at_ms":"now","broker":1,"shard":0}',
            "at_ms is 'now', expected an integer",
        ),
        (
            b'{"v":1,"type":"x","at_ms":1,"broker":1,"shard":0,"group":7}',
            "group is 7, expected a string",
        ),
        (b'{"v":1,"type":"x","at_ms":1,"broker":1,"shard":0,"member":"web-2"}', "not a member: 'web-2'"),
    ],
)
def test_what_is_no_entry_is_refused_with_what_is_wrong(raw: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Entry.from_json(raw)


def test_a_list_of_members_is_decoded() -> None:
    members = [WEB_2, Member("a", "b", "c")]
    entry = Entry(
        "state_changed", 1, 1, 0, "g", 0, data={"waiting_for": [each.to_json() for each in members]}
    )
    read = Entry.from_json(entry.to_json())
    assert read.members("waiting_for") == members
    assert read.members("dropped") == []


@each("value", ["web-2", 7, [{"id": "a"}], [{"id": "a", "client_id": "", "host": 7}]])
def test_what_is_no_list_of_members_is_refused(value: object) -> None:
    entry = Entry("state_changed", 1, 1, 0, "g", 0, data={"waiting_for": value})
    with pytest.raises(ValueError, match="member"):
        entry.members("waiting_for")


def test_the_common_fields_are_those_written() -> None:
    bare = Entry("x", 1, 1, 0, None, None)
    assert tuple(json.loads(bare.to_json())) == COMMON
