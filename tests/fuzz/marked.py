"""Valid messages whose bytes are understood: where each length, count, tag, marker and number is.

A separate encoder, built from the declarations, so that a mutation can falsify one length and leave
everything else right. It is slow and only writes the corpus; a test checks that it writes what the codec
writes.
"""

from __future__ import annotations

import struct as structs
from typing import Any, Final, NamedTuple

from muster.protocol.layout import Layout, layout, message_layout
from muster.protocol.message import Message, StructType
from muster.protocol.reference import holds_default
from muster.protocol.source import uvarint
from muster.protocol.types import Array, BytesType, FixedWidth, Float64, StringType, Uuid

VARINT: Final = "varint"
"""Code of an unsigned varint. Every other mark's code is a letter of the struct module."""


class Mark(NamedTuple):
    """A number `width` bytes long at `at`, and its meaning: "length" (of a string or bytes), "count" (of an
    array), "tags", "tag", "size" (of a tagged field), "marker" (of a nullable struct) or "value"."""

    at: int
    width: int
    code: str
    meaning: str
    number: int

    def written(self, number: int) -> bytes:
        """Encode `number` as it would appear here, truncated to what the encoding can carry."""
        if self.code == VARINT:
            return uvarint(number & 0xFFFF_FFFF)
        bits = 8 * self.width
        return (number & (1 << bits) - 1).to_bytes(self.width, "big")


class Element(NamedTuple):
    """One element of an array: its bytes, and the index of the mark that counts it."""

    counter: int
    begin: int
    end: int


class Marked(NamedTuple):
    data: bytes
    marks: tuple[Mark, ...]
    elements: tuple[Element, ...]


def marked(message: Message, version: int) -> Marked:
    """Return the message's bytes in `version`, and their marks."""
    writer = _Writer()
    writer.struct(message_layout(type(message), version), message)
    return Marked(bytes(writer.data), tuple(writer.marks), tuple(writer.elements))


class _Writer:
    def __init__(self) -> None:
        self.data = bytearray()
        self.marks: list[Mark] = []
        self.elements: list[Element] = []

    def struct(self, whole: Layout, message: Any) -> None:
        for field, nullable in whole.body:
            self._value(field.type, nullable, getattr(message, field.name), whole)
        if not whole.flexible:
            return
        written = [each for each in whole.tagged if not holds_default(each.field, _get(message, each))]
        self._number(VARINT, "tags", len(written))
        for each in written:
            assert each.field.tag is not None
            self._number(VARINT, "tag", each.field.tag)
            # The width of the size is known only once the value is written.
            inside = _Writer()
            inside._value(each.field.type, each.nullable, _get(message, each), whole)
            self._number(VARINT, "size", len(inside.data))
            self._append(inside)

    def _value(self, wire_type: Any, nullable: bool, value: Any, whole: Layout) -> None:
        if isinstance(wire_type, StructType):
            if nullable:
                self._number("b", "marker", -1 if value is None else 1)
            if value is not None:
                self.struct(layout(wire_type, whole.version, flexible=whole.flexible), value)
        elif wire_type is Uuid:
            self.data += value.bytes
        elif wire_type == Float64:  # marked as the integer with the same bits
            self._number("q", "value", *structs.unpack(">q", structs.pack(">d", value)))
        elif isinstance(wire_type, FixedWidth):
            self._number(wire_type.code, "value", value)
        elif isinstance(wire_type, Array):
            self._length("l", "count", value, whole)
            counter = len(self.marks) - 1
            for element in value or ():
                begin = len(self.data)
                self._value(wire_type.element, False, element, whole)
                self.elements.append(Element(counter, begin, len(self.data)))
        else:
            assert isinstance(wire_type, (StringType, BytesType))
            content = value.encode() if isinstance(value, str) else value
            self._length("h" if isinstance(wire_type, StringType) else "l", "length", content, whole)
            self.data += content or b""

    def _length(self, code: str, meaning: str, value: Any, whole: Layout) -> None:
        length = -1 if value is None else len(value)
        if whole.flexible:
            self._number(VARINT, meaning, length + 1)
        else:
            self._number(code, meaning, length)

    def _number(self, code: str, meaning: str, number: Any) -> None:
        at = len(self.data)
        self.data += uvarint(number) if code == VARINT else structs.pack(f">{code}", number)
        self.marks.append(Mark(at, len(self.data) - at, code, meaning, int(number)))

    def _append(self, inside: _Writer) -> None:
        at, first = len(self.data), len(self.marks)
        self.data += inside.data
        self.marks += [mark._replace(at=at + mark.at) for mark in inside.marks]
        self.elements += [
            Element(first + each.counter, at + each.begin, at + each.end) for each in inside.elements
        ]


def _get(message: Any, each: Any) -> Any:
    return getattr(message, each.field.name)
