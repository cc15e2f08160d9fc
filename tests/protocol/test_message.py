"""Declarations: constructors, defaults, equality, repr, and the mistakes that are refused."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from muster.protocol.message import (
    NO_VERSIONS,
    RECORDS,
    REQUIRED,
    Message,
    Struct,
    Versions,
    field,
    parse_versions,
    record,
    request,
    struct,
)
from muster.protocol.messages.classic_group import HeartbeatRequest, JoinGroupRequest
from muster.protocol.messages.sasl import SaslAuthenticateRequest
from muster.protocol.messages.scram import AlterUserScramCredentialsRequest
from muster.protocol.types import Array, Bytes, Int32, String
from tests.support.each import each


@record(versions="0-3", flexible="2+")
class Shelf(Message):
    """A message of this test."""

    @struct
    class Book(Struct):
        title: str = field(String)
        pages: int = field(Int32, "1+", default=-1, ignorable=True)

    name: str = field(String)
    books: list[Book] = field(Array(Book), default_factory=list)
    cover: bytes | None = field(Bytes, "2+", nullable="2+", default=None)
    place: str = field(String, "3+", tag=0, default="")


def test_constructor_is_keyword_only_and_wants_what_has_no_default() -> None:
    shelf = Shelf(name="A")
    assert (shelf.name, shelf.books, shelf.cover, shelf.place) == ("A", [], None, "")
    missing: Any = Shelf
    with pytest.raises(TypeError, match="name"):
        missing()
    with pytest.raises(TypeError, match="positional"):
        missing("A")
    with pytest.raises(TypeError, match="colour"):
        missing(name="A", colour="red")


def test_every_object_has_its_own_list() -> None:
    first, second = Shelf(name="A"), Shelf(name="A")
    first.books.append(Shelf.Book(title="x"))
    assert second.books == []


def test_objects_are_mutable_slotted_and_not_hashable() -> None:
    shelf: Any = Shelf(name="A")
    shelf.name = "B"
    assert shelf.name == "B"
    with pytest.raises(AttributeError):
        shelf.nmae = "typing mistake"
    with pytest.raises(TypeError, match="unhashable"):
        hash(shelf)


def test_equality_is_by_class_and_value() -> None:
    def shelf(pages: int) -> Shelf:
        return Shelf(name="A", books=[Shelf.Book(title="x", pages=pages)])

    assert shelf(1) == shelf(1)
    assert shelf(1) != shelf(2)
    assert shelf(1) != "A"
    heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    assert heartbeat != JoinGroupRequest(
        group_id="g", session_timeout_ms=1, member_id="m", protocol_type="consumer", protocols=[]
    )


def test_secrets_are_in_no_repr() -> None:
    user = AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        name="alice", mechanism=1, iterations=4096, salt=b"salt", salted_password=b"hunter2"
    )
    request = AlterUserScramCredentialsRequest(deletions=[], upsertions=[user])
    assert "salted_password=..." in repr(request)
    for message in (request, SaslAuthenticateRequest(auth_bytes=b"\0alice\0hunter2")):
        assert "hunter2" not in repr(message)


def test_repr_can_be_read() -> None:
    shelf = Shelf(name="A", books=[Shelf.Book(title="x", pages=3)], cover=b"c" * 1000)
    assert repr(shelf) == (
        "Shelf(name='A', books=[Shelf.Book(title='x', pages=3)], cover=<1000 bytes>, place='')"
    )


def test_objects_can_be_copied_and_pickled() -> None:
    shelf = Shelf(name="A", books=[Shelf.Book(title="x")])
    deep = copy.deepcopy(shelf)
    assert deep == shelf
    assert deep.books[0] is not shelf.books[0]
    heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    assert pickle.loads(pickle.dumps(heartbeat)) == heartbeat


def test_fields_know_what_was_declared() -> None:
    name, books, cover, place = Shelf.__fields__
    assert (name.name, name.required, name.default) == ("name", True, REQUIRED)
    assert books.make_default() == []
    assert cover.nullable == Versions(2, 32767)
    assert (place.tag, place.tagged) == (0, Versions(3, 32767))
    assert name.tagged == name.nullable == NO_VERSIONS
    assert name.make_default() == ""
    assert RECORDS["Shelf"] is Shelf


@each(
    "text, versions",
    [("3+", (3, 32767)), ("0-4", (0, 4)), ("2", (2, 2)), ("none", (0, -1))],
)
def test_versions(text: str, versions: tuple[int, int]) -> None:
    parsed = parse_versions(text)
    assert parsed == versions
    assert str(parsed) == text
    assert versions[0] - 1 not in parsed
    assert versions[1] + 1 not in parsed
    assert (versions[0] in parsed) == (text != "none")


@each("text", ["", "+", "a-b", "-1", "1..2"])
def test_misspelt_versions_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="versions are written"):
        parse_versions(text)


def test_mistakes_are_refused_where_they_are_made() -> None:
    with pytest.raises(TypeError, match=r"Twice\.second: tag 0 is taken"):

        @struct
        class Twice(Struct):
            first: int = field(Int32, tag=0, default=0)
            second: int = field(Int32, tag=0, default=0)

    with pytest.raises(TypeError, match=r"Shared\.items: a mutable default"):

        @struct
        class Shared(Struct):
            items: list[int] = field(Array(Int32), default=[])

    with pytest.raises(TypeError, match=r"Untyped\.number: .* is neither"):

        @struct
        class Untyped(Struct):
            number: int = field(int)  # type: ignore[arg-type]

    with pytest.raises(TypeError, match=r"Null\.number: Int32 has no null"):

        @struct
        class Null(Struct):
            number: int | None = field(Int32, nullable="0+", default=None)

    with pytest.raises(TypeError, match="arrays of arrays"):

        @struct
        class Square(Struct):
            rows: list[list[int]] = field(Array(Array(Int32)))

    with pytest.raises(TypeError, match="Bigger: a declared struct is not extended"):

        class Bigger(Shelf):
            more: int = field(Int32)

    with pytest.raises(TypeError, match="declared under 12 already"):

        @request(12, versions="0")
        class Heartbeat(Message):
            pass
