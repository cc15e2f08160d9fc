"""Kafka's wire types, as construct classes.

A field is declared with a `WireType`: a Kafka type as the protocol guide names it. How it looks on the wire
depends on the version; `wire_type.encoding(flexible=…, nullable=…)` gives the construct that reads and writes
it there. Lengths stand in front: int16 (strings) or int32 (bytes, arrays) with -1 for null, or, in flexible
versions, an unsigned varint of length + 1 with 0 for null (KIP-482).

These constructs are the plain, slow truth; muster.protocol.compiler knows the same types and must agree with
them.
"""

from __future__ import annotations

import struct as structs
import uuid
from typing import TYPE_CHECKING, Any, Final

import construct

from muster.protocol.errors import TooLargeError

if TYPE_CHECKING:
    AnyConstruct = construct.Construct[Any, Any]
else:
    AnyConstruct = construct.Construct

STRING_BYTES_MAX: Final = 0x7FFF
"""Kafka bounds strings by an int16 in every encoding, the compact ones too."""

UVARINT_MAX: Final = 0xFFFF_FFFF
INT64_MAX: Final = 0x7FFF_FFFF_FFFF_FFFF
ZERO_UUID: Final = uuid.UUID(int=0)
"""Kafka's "no id"."""


class WireType:
    """A Kafka type, apart from which of its encodings a version uses."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name

    def implicit_default(self) -> Any:
        """What Kafka gives a field of this type for which no default is declared."""
        raise NotImplementedError

    def bytes_min(self, *, flexible: bool) -> int:
        """The fewest bytes a value can take; bounds an array's length before anything is allocated."""
        raise NotImplementedError

    def encoding(self, *, flexible: bool, nullable: bool) -> AnyConstruct:
        """The construct for one kind of version."""
        raise NotImplementedError


class FixedWidth(WireType):
    """A type of one width in every version. `code` is its letter in the language of the struct module."""

    def __init__(self, name: str, code: str, default: Any, encoding: AnyConstruct | None = None) -> None:
        super().__init__(name)
        self.code = code
        self.width = structs.calcsize(">" + code)
        self._default = default
        self._encoding = construct.FormatField(">", code) if encoding is None else encoding

    def implicit_default(self) -> Any:
        return self._default

    def bytes_min(self, *, flexible: bool) -> int:
        return self.width

    def encoding(self, *, flexible: bool, nullable: bool) -> AnyConstruct:
        return self._encoding


class StringType(WireType):
    """UTF-8 text of at most 32767 bytes."""

    def implicit_default(self) -> str:
        return ""

    def bytes_min(self, *, flexible: bool) -> int:
        return 1 if flexible else 2

    def encoding(self, *, flexible: bool, nullable: bool) -> AnyConstruct:
        return Utf8(length_encoding("h", flexible=flexible), nullable=nullable)


class BytesType(WireType):
    """Opaque bytes: `Bytes`, and `Records`, whose content is record batches and nothing to this layer."""

    def implicit_default(self) -> bytes:
        return b""

    def bytes_min(self, *, flexible: bool) -> int:
        return 1 if flexible else 4

    def encoding(self, *, flexible: bool, nullable: bool) -> AnyConstruct:
        return Opaque(length_encoding("l", flexible=flexible), nullable=nullable)


class Array(WireType):
    """A list of one element type: a WireType, or a Struct class. Elements are never null and never arrays
    themselves."""

    def __init__(self, element: Any) -> None:
        super().__init__("Array")
        self.element = element

    def __repr__(self) -> str:
        return f"Array({getattr(self.element, '__name__', self.element)})"

    def implicit_default(self) -> list[Any]:
        return []

    def bytes_min(self, *, flexible: bool) -> int:
        return 1 if flexible else 4

    def encoding(self, *, flexible: bool, nullable: bool) -> AnyConstruct:
        # An element that is a Struct has its own version; muster.protocol.reference calls `sequence` with it.
        element = self.element.encoding(flexible=flexible, nullable=False)
        return self.sequence(
            element, self.element.bytes_min(flexible=flexible), flexible=flexible, nullable=nullable
        )

    @staticmethod
    def sequence(
        element: AnyConstruct, element_bytes_min: int, *, flexible: bool, nullable: bool
    ) -> AnyConstruct:
        """The construct of an array whose elements read as `element`, each at least `element_bytes_min`
        long."""
        return Sequence(
            length_encoding("l", flexible=flexible), element, element_bytes_min, nullable=nullable
        )


class UnsignedVarint(AnyConstruct):
    """An unsigned integer in groups of 7 bits, lowest first; at most 5 bytes and 32 bits. Longer than needed
    is allowed."""

    def _parse(self, stream: Any, context: Any, path: Any) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = construct.stream_read(stream, 1, path)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value > UVARINT_MAX:
                    break
                return value
        raise construct.IntegerError("a varint of more than 32 bits", path=path)

    def _build(self, obj: Any, stream: Any, context: Any, path: Any) -> int:
        value: int = obj
        if not 0 <= value <= UVARINT_MAX:
            raise construct.IntegerError(f"{value} is no unsigned 32-bit number", path=path)
        while value >= 0x80:
            construct.stream_write(stream, bytes((value & 0x7F | 0x80,)), 1, path)
            value >>= 7
        construct.stream_write(stream, bytes((value,)), 1, path)
        return value


class Length(AnyConstruct):
    """A length in front of something, or None: int16 or int32 with -1 for null."""

    def __init__(self, code: str) -> None:
        super().__init__()
        self._number = construct.FormatField(">", code)

    def _parse(self, stream: Any, context: Any, path: Any) -> int | None:
        length: int = self._number._parsereport(stream, context, path)
        if length < -1:
            raise construct.RangeError(f"a length of {length}", path=path)
        return None if length == -1 else length

    def _build(self, obj: Any, stream: Any, context: Any, path: Any) -> Any:
        return self._number._build(-1 if obj is None else obj, stream, context, path)


class CompactLength(AnyConstruct):
    """A length in front of something, or None: an unsigned varint of length + 1 with 0 for null."""

    _number = UnsignedVarint()

    def _parse(self, stream: Any, context: Any, path: Any) -> int | None:
        length: int = self._number._parsereport(stream, context, path)
        return None if length == 0 else length - 1

    def _build(self, obj: Any, stream: Any, context: Any, path: Any) -> Any:
        return self._number._build(0 if obj is None else obj + 1, stream, context, path)


def length_encoding(code: str, *, flexible: bool) -> AnyConstruct:
    """What counts the bytes or elements of a string, bytes or array."""
    return CompactLength() if flexible else Length(code)


class _Prefixed(AnyConstruct):
    """Something behind its length; None is null."""

    def __init__(self, length: AnyConstruct, *, nullable: bool) -> None:
        super().__init__()
        self._length = length
        self._nullable = nullable

    def _parse_length(self, stream: Any, context: Any, path: Any) -> int | None:
        length: int | None = self._length._parsereport(stream, context, path)
        if length is None and not self._nullable:
            raise construct.ValidationError("null, where this version has no null", path=path)
        return length

    def _build_null(self, stream: Any, context: Any, path: Any) -> None:
        if not self._nullable:
            raise construct.ValidationError("None, where this version has no null", path=path)
        self._length._build(None, stream, context, path)


class Utf8(_Prefixed):
    """A string behind its length."""

    def _parse(self, stream: Any, context: Any, path: Any) -> str | None:
        length = self._parse_length(stream, context, path)
        if length is None:
            return None
        if length > STRING_BYTES_MAX:
            raise construct.StringError(f"a string of {length} bytes", path=path)
        content: bytes = construct.stream_read(stream, length, path)
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise construct.StringError(f"not UTF-8: {error}", path=path) from None

    def _build(self, obj: Any, stream: Any, context: Any, path: Any) -> Any:
        if obj is None:
            return self._build_null(stream, context, path)
        if not isinstance(obj, str):
            raise construct.StringError(f"{obj!r} is no str", path=path)
        try:
            content = obj.encode("utf-8")
        except UnicodeEncodeError as error:
            raise construct.StringError(f"no UTF-8 for it: {error}", path=path) from None
        if len(content) > STRING_BYTES_MAX:
            raise construct.StringError(f"a string of {len(content)} bytes", path=path)
        self._length._build(len(content), stream, context, path)
        construct.stream_write(stream, content, len(content), path)
        return obj


class Opaque(_Prefixed):
    """Bytes behind their length."""

    def _parse(self, stream: Any, context: Any, path: Any) -> bytes | None:
        length = self._parse_length(stream, context, path)
        if length is None:
            return None
        content: bytes = construct.stream_read(stream, length, path)
        return content

    def _build(self, obj: Any, stream: Any, context: Any, path: Any) -> Any:
        if obj is None:
            return self._build_null(stream, context, path)
        if not isinstance(obj, (bytes, bytearray, memoryview)):
            raise construct.ConstructError(f"{obj!r} is no bytes", path=path)
        content = bytes(obj)
        self._length._build(len(content), stream, context, path)
        construct.stream_write(stream, content, len(content), path)
        return obj


ELEMENTS_UNLIMITED: Final = 2**63 - 1
ELEMENTS: Final = "_elements"
"""Under this name the context of a parse carries its ElementAllowance, if there is one."""


class ElementAllowance:
    """How many elements one message may still have: of its arrays, and tags."""

    def __init__(self, elements_max: int) -> None:
        self._left = elements_max

    def take(self, count: int) -> None:
        """Raises TooLargeError."""
        self._left -= count
        if self._left < 0:
            raise TooLargeError("more elements than are accepted")


def take_elements(context: Any, count: int) -> None:
    """Count elements about to be parsed. Raises TooLargeError."""
    allowance: ElementAllowance | None = context._params.get(ELEMENTS)
    if allowance is not None:
        allowance.take(count)


class Sequence(_Prefixed):
    """An array behind its length."""

    def __init__(
        self, length: AnyConstruct, element: AnyConstruct, element_bytes_min: int, *, nullable: bool
    ) -> None:
        super().__init__(length, nullable=nullable)
        self._element = element
        # An element without bytes would let four bytes demand two thousand million objects; no Kafka array
        # has such.
        self._element_bytes_min = max(element_bytes_min, 1)

    def _parse(self, stream: Any, context: Any, path: Any) -> list[Any] | None:
        length = self._parse_length(stream, context, path)
        if length is None:
            return None
        left = construct.stream_size(stream) - construct.stream_tell(stream, path)
        if length * self._element_bytes_min > left:
            raise construct.RangeError(f"an array of {length} elements, more than the bytes left", path=path)
        take_elements(context, length)
        return [self._element._parsereport(stream, context, f"{path} -> {index}") for index in range(length)]

    def _build(self, obj: Any, stream: Any, context: Any, path: Any) -> Any:
        if obj is None:
            return self._build_null(stream, context, path)
        if not isinstance(obj, (list, tuple)):
            raise construct.RangeError(f"{obj!r} is no list", path=path)
        self._length._build(len(obj), stream, context, path)
        for index, element in enumerate(obj):
            self._element._build(element, stream, context, f"{path} -> {index}")
        return obj


class Truth(AnyConstruct):
    """One byte; any but zero is true, one is written."""

    def _parse(self, stream: Any, context: Any, path: Any) -> bool:
        return bool(construct.stream_read(stream, 1, path)[0])

    def _build(self, obj: Any, stream: Any, context: Any, path: Any) -> Any:
        if not isinstance(obj, bool):
            raise construct.ConstructError(f"{obj!r} is no bool", path=path)
        construct.stream_write(stream, b"\x01" if obj else b"\x00", 1, path)
        return obj


class Uuid16(AnyConstruct):
    """A UUID as its 16 bytes, big-endian."""

    def _parse(self, stream: Any, context: Any, path: Any) -> uuid.UUID:
        return uuid.UUID(bytes=construct.stream_read(stream, 16, path))

    def _build(self, obj: Any, stream: Any, context: Any, path: Any) -> Any:
        if not isinstance(obj, uuid.UUID):
            raise construct.ConstructError(f"{obj!r} is no UUID", path=path)
        construct.stream_write(stream, obj.bytes, 16, path)
        return obj


Boolean: Final = FixedWidth("Boolean", "?", False, Truth())
Int8: Final = FixedWidth("Int8", "b", 0)
Int16: Final = FixedWidth("Int16", "h", 0)
Int32: Final = FixedWidth("Int32", "l", 0)
Int64: Final = FixedWidth("Int64", "q", 0)
UInt16: Final = FixedWidth("UInt16", "H", 0)
UInt32: Final = FixedWidth("UInt32", "L", 0)
Float64: Final = FixedWidth("Float64", "d", 0.0)
Uuid: Final = FixedWidth("Uuid", "16s", ZERO_UUID, Uuid16())
String: Final = StringType("String")
Bytes: Final = BytesType("Bytes")
Records: Final = BytesType("Records")
