"""Kafka's wire types: bytes worked out by hand, both ways, and what is refused."""

from __future__ import annotations

import uuid
from typing import Any

import construct
import pytest

from muster.protocol.constructs import UnsignedVarint, encoding
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
    Records,
    String,
    Uuid,
    WireType,
)
from tests.support.each import each

LEGACY, COMPACT = False, True

VALUES: list[tuple[WireType, bool, bool, Any, str]] = [
    (Boolean, LEGACY, False, True, "01"),
    (Boolean, COMPACT, False, False, "00"),
    (Int8, LEGACY, False, -1, "ff"),
    (Int16, LEGACY, False, -2, "fffe"),
    (Int32, COMPACT, False, 258, "00000102"),
    (Int64, LEGACY, False, -(2**63), "8000000000000000"),
    (Float64, LEGACY, False, 1.5, "3ff8000000000000"),
    (Uuid, LEGACY, False, uuid.UUID(int=1), "00" * 15 + "01"),
    (Uuid, COMPACT, False, ZERO_UUID, "00" * 16),
    (String, LEGACY, False, "né", "0003 6ec3a9"),
    (String, LEGACY, False, "", "0000"),
    (String, LEGACY, True, None, "ffff"),
    (String, COMPACT, False, "né", "04 6ec3a9"),
    (String, COMPACT, False, "", "01"),
    (String, COMPACT, True, None, "00"),
    (String, COMPACT, False, "x" * 126, "7f" + "78" * 126),
    (String, COMPACT, False, "x" * 127, "8001" + "78" * 127),
    (Bytes, LEGACY, False, b"\x00\xff", "00000002 00ff"),
    (Bytes, LEGACY, True, None, "ffffffff"),
    (Bytes, COMPACT, False, b"", "01"),
    (Records, COMPACT, True, b"abc", "04 616263"),
    (Records, COMPACT, True, None, "00"),
    (Array(Int16), LEGACY, False, [1, 2], "00000002 0001 0002"),
    (Array(Int16), LEGACY, False, [], "00000000"),
    (Array(Int16), LEGACY, True, None, "ffffffff"),
    (Array(String), COMPACT, False, ["a", ""], "03 0261 01"),
    (Array(String), COMPACT, True, None, "00"),
]


@each("wire_type, flexible, nullable, value, encoded", VALUES)
def test_value_and_bytes(
    wire_type: WireType, flexible: bool, nullable: bool, value: Any, encoded: str
) -> None:
    both_ways = encoding(wire_type, flexible=flexible, nullable=nullable)
    data = bytes.fromhex(encoded)
    assert both_ways.build(value) == data
    assert both_ways.parse(data) == value


@each("wire_type, flexible, nullable, value, encoded", VALUES)
def test_bytes_min_is_a_lower_bound(
    wire_type: WireType, flexible: bool, nullable: bool, value: Any, encoded: str
) -> None:
    smallest = encoding(wire_type, flexible=flexible, nullable=False).build(wire_type.implicit_default())
    assert wire_type.bytes_min(flexible=flexible) == len(smallest) <= len(bytes.fromhex(encoded))


@each(
    "wire_type, flexible, nullable, encoded",
    [
        pytest.param(String, LEGACY, False, "ffff", id="null where there is none"),
        pytest.param(String, COMPACT, False, "00", id="compact null where there is none"),
        pytest.param(String, LEGACY, True, "fffe", id="length -2"),
        pytest.param(String, LEGACY, False, "0003 6162", id="cut off"),
        pytest.param(String, COMPACT, False, "818002" + "78" * 32768, id="longer than an int16 says"),
        pytest.param(Bytes, LEGACY, True, "fffffffe", id="bytes of length -2"),
        pytest.param(Bytes, COMPACT, False, "05 616263", id="cut off bytes"),
        pytest.param(Array(Int32), LEGACY, False, "7fffffff 00000000", id="more elements than bytes"),
        pytest.param(Array(Int32), LEGACY, False, "80000000", id="the most negative length"),
        pytest.param(Array(Int32), COMPACT, False, "ffffffff0f", id="the largest compact length"),
        pytest.param(Array(Int32), COMPACT, False, "ffffffff1f", id="a varint of 33 bits"),
        pytest.param(Array(Int32), COMPACT, False, "808080808001", id="a varint of 6 bytes"),
        pytest.param(Int64, LEGACY, False, "00" * 7, id="cut off number"),
    ],
)
def test_refused_bytes(wire_type: WireType, flexible: bool, nullable: bool, encoded: str) -> None:
    with pytest.raises(construct.ConstructError):
        encoding(wire_type, flexible=flexible, nullable=nullable).parse(bytes.fromhex(encoded))


@each(
    "encoded, text",
    [
        pytest.param("03 c328", "\ufffd(", id="cut off in a character"),
        pytest.param("04 eda080", "\ufffd" * 3, id="a lone surrogate"),
    ],
)
def test_what_is_not_utf8_is_replaced(encoded: str, text: str) -> None:
    assert encoding(String, flexible=COMPACT, nullable=False).parse(bytes.fromhex(encoded)) == text


@each(
    "wire_type, flexible, value",
    [
        pytest.param(Int8, LEGACY, 128, id="too large"),
        pytest.param(Int32, LEGACY, "1", id="str for int"),
        pytest.param(Int32, LEGACY, 1.0, id="float for int"),
        pytest.param(Boolean, LEGACY, "yes", id="str for bool"),
        pytest.param(Boolean, LEGACY, None, id="None for bool"),
        pytest.param(String, LEGACY, "x" * 32768, id="string too long"),
        pytest.param(String, COMPACT, "x" * 32768, id="compact string too long"),
        pytest.param(String, LEGACY, b"x", id="bytes for str"),
        pytest.param(String, LEGACY, "\ud800", id="a lone surrogate"),
        pytest.param(String, COMPACT, None, id="None where there is no null"),
        pytest.param(Bytes, LEGACY, "x", id="str for bytes"),
        pytest.param(Array(String), LEGACY, "abc", id="str for list"),
        pytest.param(Array(Int32), COMPACT, None, id="None for list"),
        pytest.param(Uuid, LEGACY, "0" * 32, id="str for UUID"),
    ],
)
def test_refused_values(wire_type: WireType, flexible: bool, value: Any) -> None:
    with pytest.raises(construct.ConstructError):
        encoding(wire_type, flexible=flexible, nullable=False).build(value)


@each("encoded", ["02", "ff", "80"])
def test_any_byte_but_zero_is_true(encoded: str) -> None:
    assert encoding(Boolean, flexible=False, nullable=False).parse(bytes.fromhex(encoded)) is True


@each(
    "number, encoded",
    [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (16384, "808001"), (2**32 - 1, "ffffffff0f")],
)
def test_unsigned_varint(number: int, encoded: str) -> None:
    assert UnsignedVarint().build(number) == bytes.fromhex(encoded)
    assert UnsignedVarint().parse(bytes.fromhex(encoded)) == number


def test_a_varint_may_be_longer_than_it_need_be() -> None:
    assert UnsignedVarint().parse(bytes.fromhex("8180808000")) == 1


def test_names() -> None:
    assert repr(Array(Int32)) == "Array(Int32)"
    assert repr(Records) == "Records"
