"""The compiled codec by itself: bytes worked out by hand, refusals that name the field, bounded work."""

from __future__ import annotations

import enum
import struct as structs
import tracemalloc
import uuid
from typing import Any

import pytest

from muster.protocol import codec, compiler, reference
from muster.protocol.codec import EXPLAINED_BYTES_MAX
from muster.protocol.errors import DecodeError, EncodeError, TooLargeError
from muster.protocol.layout import message_layout
from muster.protocol.message import Message, Struct, field, record, struct
from muster.protocol.types import (
    ZERO_UUID,
    Array,
    Boolean,
    Bytes,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    String,
    Uuid,
)
from tests.support.each import each


@record(versions="0-3", flexible="2+")
class Everything(Message):
    """Every wire type, and every way Kafka uses one. No single message of Kafka has them all."""

    @struct
    class Pair(Struct):
        left: int = field(Int16)
        right: str = field(String)

    @struct
    class Empty(Struct):
        later: int = field(Int32, "1+", default=0, ignorable=True)

    flag: bool = field(Boolean, default=False)
    small: int = field(Int8, default=0)
    short: int = field(Int16, default=0)
    number: int = field(Int32, default=0)
    long: int = field(Int64, default=0)
    share: float = field(Float64, default=0.0)
    topic_id: uuid.UUID = field(Uuid, default=ZERO_UUID)
    name: str = field(String, default="")
    reason: str | None = field(String, nullable="1+", default="")
    blob: bytes = field(Bytes, default=b"")
    extra: bytes | None = field(Bytes, nullable="0+", default=None)
    numbers: list[int] = field(Array(Int32), default_factory=list)
    flags: list[bool] = field(Array(Boolean), default_factory=list)
    ids: list[uuid.UUID] = field(Array(Uuid), default_factory=list)
    names: list[str] = field(Array(String), default_factory=list)
    blobs: list[bytes] = field(Array(Bytes), default_factory=list)
    pairs: list[Pair] | None = field(Array(Pair), nullable="1+", default_factory=list)
    empties: list[Empty] = field(Array(Empty), default_factory=list)
    pair: Pair = field(Pair, default_factory=lambda: Everything.Pair(left=0, right=""))
    maybe: Pair | None = field(Pair, "1+", nullable="1+", default=None)
    strict: int = field(Int32, "1+", default=5)
    strict_list: list[int] = field(Array(Int32), "1+", default_factory=list)
    lenient: int = field(Int32, "1+", default=5, ignorable=True)
    tag_number: int = field(Int32, "2+", tag=1, default=-1)
    tag_pairs: list[Pair] = field(Array(Pair), "2+", tag=0, default_factory=list)
    tag_pair: Pair | None = field(Pair, "3+", tag=2, nullable="3+", default=None)
    tag_name: str = field(String, "3+", tag=200, default="")


def everything(**values: Any) -> Everything:
    return Everything(**values)


Pair = Everything.Pair

FULL = everything(
    flag=True,
    small=-1,
    short=2,
    number=3,
    long=4,
    share=0.5,
    topic_id=uuid.UUID(int=7),
    name="né",
    reason=None,
    blob=b"b" * 200,
    extra=b"",
    numbers=[1, -1],
    flags=[True, False],
    ids=[ZERO_UUID, uuid.UUID(int=1)],
    names=["", "x" * 300],
    blobs=[b"", b"y"],
    pairs=[Pair(left=1, right="one"), Pair(left=2, right="")],
    empties=[Everything.Empty(later=1)],
    pair=Pair(left=9, right="nine"),
    maybe=Pair(left=8, right="eight"),
    strict=6,
    strict_list=[1],
    lenient=7,
)


@each("version", [0, 1, 2, 3])
def test_every_type_in_every_version(version: int) -> None:
    message = everything(**{field.name: getattr(FULL, field.name) for field in Everything.__fields__})
    if version == 0:
        message.reason, message.maybe, message.strict, message.strict_list = "why", None, 5, []
        message.lenient = 5
        message.empties = []  # elements of no bytes at all, see below
    if version >= 2:
        message.tag_number, message.tag_pairs = 1, [Pair(left=1, right="r")]
    if version >= 3:
        message.tag_pair, message.tag_name = Pair(left=2, right=""), "tagged"
    data = codec.encode(message, version)
    assert data == reference.encode(message, version)
    assert codec.decode(Everything, version, data) == message
    assert reference.decode(Everything, version, data) == message


def test_default_values_in_every_version() -> None:
    for version in (0, 1, 2, 3):
        data = codec.encode(everything(), version)
        assert data == reference.encode(everything(), version)
        assert codec.decode(Everything, version, data) == everything()
        assert codec.decode(Everything, version, memoryview(data)) == everything()
        assert codec.decode(Everything, version, bytearray(data)) == everything()


@record(versions="0-1", flexible="1+")
class Little(Message):
    name: str | None = field(String, nullable="0+")
    numbers: list[int] = field(Array(Int16))
    tagged: int = field(Int32, "1+", tag=3, default=-1)


@record(versions="0")
class Pairs(Message):
    pairs: list[Everything.Pair] = field(Array(Pair))


def test_bytes_worked_out_by_hand() -> None:
    message = Little(name="ab", numbers=[1, 2], tagged=5)
    flexible = bytes.fromhex("03 6162  03 0001 0002  01 03 04 00000005")
    assert codec.encode(message, 1) == flexible
    assert codec.decode(Little, 1, flexible) == message
    legacy = bytes.fromhex("0002 6162  00000002 0001 0002")
    assert codec.encode(Little(name="ab", numbers=[1, 2]), 0) == legacy
    assert codec.decode(Little, 0, legacy) == Little(name="ab", numbers=[1, 2])


def test_unknown_tags_are_skipped_and_known_ones_found_among_them() -> None:
    data = bytes.fromhex("00 01  03  00 02 ffff  03 04 00000005  8001 01 aa")
    assert codec.decode(Little, 1, data) == Little(name=None, numbers=[], tagged=5)


@each(
    "encoded, reason",
    [
        pytest.param("00 01 02 03 04 00000005 03 04 00000005", "tag 3 behind tag 3", id="twice"),
        pytest.param("00 01 02 04 00 03 04 00000005", "tag 3 behind tag 4", id="descending"),
        pytest.param("00 01 01 03 05 00000005 00", "tagged: 1 bytes left over", id="too large a size"),
        pytest.param("00 01 01 03 03 000005", "tagged: stream read less", id="too small a size"),
        pytest.param("00 01 01 03 05 00000005", "stream read less", id="a size past the end"),
        pytest.param("00 01 01 ffffffff1f 00", "more than 32 bits", id="a tag of 33 bits"),
        pytest.param("00 01 01 05 ff", "stream read less", id="an unknown tag past the end"),
        pytest.param("00 01 ffffffff0f", "stream read less", id="four thousand million tags"),
        pytest.param("00 01 ffffffff1f", "more than 32 bits", id="a count of 33 bits"),
        pytest.param("00 01 00 00", "1 bytes left over", id="trailing bytes"),
        pytest.param("00 00 00", "numbers: null", id="null where there is none"),
        pytest.param("00 ffffffff0f 00", "numbers: an array of 4294967294 elements", id="no such array"),
        pytest.param("", "name: stream read less", id="nothing"),
    ],
)
def test_refused_bytes_name_the_field(encoded: str, reason: str) -> None:
    data = bytes.fromhex(encoded)
    with pytest.raises(DecodeError, match=f"^Little v1: .*{reason}"):
        codec.decode(Little, 1, data)
    # Both refuse on their own, though the words are mostly the reference's.
    assert not compiled_accepts(data)
    with pytest.raises(DecodeError):
        reference.decode(Little, 1, data)


@each(
    "encoded, name",
    [("03 c328 01 00", "\ufffd("), ("04 61 ff 62 01 00", "a\ufffdb"), ("02 e2 01 00", "\ufffd")],
)
def test_strings_that_are_not_utf8_are_read_with_replacements(encoded: str, name: str) -> None:
    """As Kafka does: it answers such a request, and refuses at most the name."""
    data = bytes.fromhex(encoded)
    assert codec.decode(Little, 1, data) == reference.decode(Little, 1, data) == Little(name=name, numbers=[])


def test_a_string_that_replacements_make_too_long_is_refused() -> None:
    """An answer that repeats it could not be encoded."""
    for count, tail, accepted in ((10_922, b"", True), (10_922, b"a", True), (10_922, b"aa", False)):
        text = b"\xff" * count + tail
        data = structs.pack(">h", len(text)) + text + bytes(4)
        assert compiled_accepts(data, 0) == accepted
        if accepted:
            assert codec.encode(codec.decode(Little, 0, data), 0) != data
        else:
            for decode in (codec.decode, reference.decode):
                with pytest.raises(DecodeError, match="too long with replacements"):
                    decode(Little, 0, data)


def compiled_accepts(data: bytes, version: int = 1) -> bool:
    try:
        _, position = compiler.decoder(Little, version)(data, 0, len(data), 1_000)
    except (DecodeError, IndexError, UnicodeDecodeError, structs.error):
        return False
    return position == len(data)


@record(versions="0")
class Holder(Message):
    pair: Everything.Pair | None = field(Pair, nullable="0+", default=None)


def test_bytes_min_is_what_the_smallest_message_takes() -> None:
    assert message_layout(Holder, 0).bytes_min() == len(codec.encode(Holder(), 0)) == 1
    assert message_layout(Little, 0).bytes_min() == len(codec.encode(Little(name=None, numbers=[]), 0)) == 6
    assert message_layout(Little, 1).bytes_min() == len(codec.encode(Little(name=None, numbers=[]), 1)) == 3


def test_elements_without_bytes_are_bounded_too() -> None:
    message = everything(empties=[Everything.Empty()] * 1000)
    data = codec.encode(message, 0)
    with pytest.raises(DecodeError, match="empties: an array of 1000 elements"):
        codec.decode(Everything, 0, data)


@each("version", [0, 2])
def test_both_codecs_count_the_elements_of_all_arrays(version: int) -> None:
    pair = Everything.Pair(left=1, right="x")
    data = codec.encode(everything(pairs=[pair] * 40, numbers=[1] * 60), version)
    elements = 100
    for decode in (codec.decode_prefix, reference.decode_prefix):
        whole, end = decode(Everything, version, data, 0, elements)
        assert (whole.pairs, end) == ([pair] * 40, len(data))
        with pytest.raises(TooLargeError, match=rf"Everything v{version}: .*more elements than are accepted"):
            decode(Everything, version, data, 0, elements - 1)


def test_tags_are_elements_too() -> None:
    known = b"".join(bytes((tag, 0)) for tag in range(100, 110))
    data = codec.encode(Little(name="x", numbers=[]), 1)[:-1] + bytes((10,)) + known
    for decode in (codec.decode_prefix, reference.decode_prefix):
        assert decode(Little, 1, data, 0, 10)[1] == len(data)
        with pytest.raises(TooLargeError):
            decode(Little, 1, data, 0, 9)


@each(
    "claim",
    [
        pytest.param(bytes.fromhex("0000 7fffffff") + bytes(1000), id="two thousand million numbers"),
        pytest.param(bytes.fromhex("7fff") + bytes(10), id="a long string"),
    ],
)
def test_lengths_allocate_nothing_before_they_are_checked(claim: bytes) -> None:
    codec.decode(Little, 0, bytes.fromhex("0000 00000000"))  # compiled before memory is measured
    with pytest.raises(DecodeError):
        codec.decode(Little, 0, claim)
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            codec.decode(Little, 0, claim)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200_000


@each(
    "values, path",
    [
        pytest.param({"small": 128}, "small", id="int8 too large"),
        pytest.param({"number": 2**31}, "number", id="int32 too large"),
        pytest.param({"number": "1"}, "number", id="str for int"),
        pytest.param({"number": None}, "number", id="None for int"),
        pytest.param({"flag": "no"}, "flag", id="str for bool"),
        pytest.param({"flag": []}, "flag", id="list for bool"),
        pytest.param({"topic_id": "x"}, "topic_id", id="str for UUID"),
        pytest.param({"name": b"x"}, "name", id="bytes for str"),
        pytest.param({"name": None}, "name", id="None where there is no null"),
        pytest.param({"name": "x" * 32768}, "name", id="string too long"),
        pytest.param({"name": "\ud800"}, "name", id="a lone surrogate"),
        pytest.param({"reason": 5}, "reason", id="int for str"),
        pytest.param({"blob": "x"}, "blob", id="str for bytes"),
        pytest.param({"blob": 5}, "blob", id="int for bytes"),
        pytest.param({"numbers": None}, "numbers", id="None for list"),
        pytest.param({"numbers": "12"}, "numbers", id="str for list"),
        pytest.param({"numbers": [1, 2**31]}, r"numbers\[1\]", id="element too large"),
        pytest.param({"names": "abc"}, "names", id="str for list of str"),
        pytest.param({"names": ["a", None]}, r"names\[1\]", id="null element"),
        pytest.param({"flags": [2]}, r"flags\[0\]", id="int for bool element"),
        pytest.param(
            {"pairs": [Pair(left=0, right=""), Pair(left="x", right="")]}, r"pairs\[1\]\.left", id="deep"
        ),
        pytest.param({"pairs": [{"left": 1}]}, r"pairs\[0\]\.left", id="dict for struct"),
        pytest.param({"pair": None}, "pair", id="None for struct"),
        pytest.param({"maybe": Pair(left=0, right=None)}, r"maybe\.right", id="in a nullable struct"),
        pytest.param({"tag_number": 2**31}, "tag_number", id="tagged, or too early for it"),
    ],
)
@each("version", [1, 2])
def test_refused_values_name_the_field(values: dict[str, Any], path: str, version: int) -> None:
    with pytest.raises(EncodeError, match=rf"^Everything v{version}: {path}: "):
        codec.encode(everything(**values), version)


def test_refused_values_inside_a_tag_name_the_field() -> None:
    with pytest.raises(EncodeError, match=r"^Everything v2: tag_pairs\[0\]\.right: 1 is no str"):
        codec.encode(everything(tag_pairs=[Pair(left=0, right=1)]), 2)


def test_fields_a_version_lacks() -> None:
    assert codec.encode(everything(lenient=6), 0) == codec.encode(everything(), 0)
    for values in ({"strict": 6}, {"strict_list": [1]}, {"strict": None}, {"maybe": Pair(left=1, right="")}):
        (name,) = values
        with pytest.raises(EncodeError, match=rf"Everything v0: {name}: not in version 0"):
            codec.encode(everything(**values), 0)
    assert codec.decode(Everything, 0, codec.encode(everything(lenient=6), 0)).lenient == 5


def test_tagged_fields_are_written_only_when_they_say_something() -> None:
    plain = codec.encode(everything(), 3)
    assert plain[-1:] == b"\x00"
    assert codec.encode(everything(tag_name="x"), 3) == plain[:-1] + bytes.fromhex("01 c801 02 0278")
    # A tag that was written although it holds the default reads as the default.
    assert codec.decode(Everything, 3, plain[:-1] + bytes.fromhex("01 c801 01 01")) == everything()


def test_any_byte_but_zero_is_true() -> None:
    data = bytearray(codec.encode(everything(), 0))
    data[0] = 0x80
    assert codec.decode(Everything, 0, bytes(data)).flag is True


def test_int_enums_are_ints() -> None:
    class Colour(enum.IntEnum):
        RED = 3

    assert codec.decode(Everything, 0, codec.encode(everything(short=Colour.RED), 0)).short == 3


def test_decode_prefix_and_offset() -> None:
    data = b"--" + codec.encode(Little(name="x", numbers=[1]), 0) + b"rest"
    message, end = codec.decode_prefix(Little, 0, data, 2)
    assert message == Little(name="x", numbers=[1])
    assert data[end:] == b"rest"
    assert codec.decode(Little, 0, data[:end], 2) == message
    with pytest.raises(DecodeError, match="4 bytes left over"):
        codec.decode(Little, 0, data, 2)
    with pytest.raises(DecodeError):
        codec.decode_prefix(Little, 0, data[: end - 1], 2)
    cut_off_in_a_string = codec.encode(Pairs(pairs=[Pair(left=1, right="one")]), 0)[:-1]
    with pytest.raises(DecodeError, match=r"pairs\[0\]\.right"):
        codec.decode_prefix(Pairs, 0, cut_off_in_a_string)


def test_long_garbage_is_refused_without_the_slow_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference would name the field, but takes time proportional to what a stranger sent."""

    def too_slow(*_: object) -> None:
        pytest.fail("the reference was asked")

    data = codec.encode(Little(name="x", numbers=[0] * EXPLAINED_BYTES_MAX), 0) + b"\x00"
    monkeypatch.setattr(reference, "decode_prefix", too_slow)
    with pytest.raises(DecodeError, match="Little v0: too few bytes, or too many"):
        codec.decode(Little, 0, data)
    with pytest.raises(DecodeError, match="Little v0: numbers: more elements than bytes left"):
        codec.decode(Little, 0, data[:-2])


def test_source_is_python_that_can_be_read() -> None:
    text = compiler.source(Little, 1)
    compile(text, "source", "exec")
    assert "def decode(data: bytes, at: i64, end: i64, elements: i64) -> tuple[Any, int]:" in text
    assert "def encode(message: Any) -> bytes:" in text
    assert "message.name = data[at:stop].decode('utf-8', 'muster.lenient')" in text


def test_compiled_once() -> None:
    assert compiler.decoder(Little, 1) is compiler.decoder(Little, 1)
    assert compiler.encoder(Little, 1) is compiler.encoder(Little, 1)
