"""Kafka's wire types as construct classes: the plain, slow reference.

Values are preceded by their length: int16 (strings) or int32 (bytes, arrays) with -1 for null, or, in
flexible versions, an unsigned varint of length + 1 with 0 for null (KIP-482).

Only muster.protocol.reference imports this, and only when something is refused: construct would take a tenth
of a broker's memory and a twentieth of its start-up time.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import construct

from muster.protocol.errors import TooLargeError
from muster.protocol.text import LENIENT
from muster.protocol.types import (
    STRING_BYTES_MAX,
    UVARINT_MAX,
    Array,
    Boolean,
    BytesType,
    FixedWidth,
    StringType,
    Uuid,
    WireType,
)

if TYPE_CHECKING:
    AnyConstruct = construct.Construct[Any, Any]
else:
    AnyConstruct = construct.Construct


class UnsignedVarint(AnyConstruct):
    """An unsigned integer in groups of 7 bits, lowest first; at most 5 bytes and 32 bits. Overlong encodings
    are allowed."""

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
    """A length prefix, or None: int16 or int32 with -1 for null."""

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
    """A length prefix, or None: an unsigned varint of length + 1 with 0 for null."""

    _number = UnsignedVarint()

    def _parse(self, stream: Any, context: Any, path: Any) -> int | None:
        length: int = self._number._parsereport(stream, context, path)
        return None if length == 0 else length - 1

    def _build(self, obj: Any, stream: Any, context: Any, path: Any) -> Any:
        return self._number._build(0 if obj is None else obj + 1, stream, context, path)


def length_encoding(code: str, *, flexible: bool) -> AnyConstruct:
    """The length prefix of a string, bytes or array."""
    return CompactLength() if flexible else Length(code)


class _Prefixed(AnyConstruct):
    """A length-prefixed value; None is null."""

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
    """A length-prefixed string."""

    def _parse(self, stream: Any, context: Any, path: Any) -> str | None:
        length = self._parse_length(stream, context, path)
        if length is None:
            return None
        if length > STRING_BYTES_MAX:
            raise construct.StringError(f"a string of {length} bytes", path=path)
        content: bytes = construct.stream_read(stream, length, path)
        try:
            return content.decode("utf-8", LENIENT)
        except UnicodeDecodeError as error:
            raise construct.StringError(error.reason, path=path) from None

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
    """Length-prefixed bytes."""

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


ELEMENTS: Final = "_elements"
"""The name of the ElementAllowance in the context of a parse, if it has one."""


class ElementAllowance:
    """How many more array elements and tags one message may have."""

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
    """A length-prefixed array."""

    def __init__(
        self, length: AnyConstruct, element: AnyConstruct, element_bytes_min: int, *, nullable: bool
    ) -> None:
        super().__init__(length, nullable=nullable)
        self._element = element
        # Elements of zero bytes would let four bytes demand two billion objects; no Kafka array has them.
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
    """One byte: any value but zero reads as true; true is written as one."""

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


_FIXED: Final[Mapping[WireType, AnyConstruct]] = {Boolean: Truth(), Uuid: Uuid16()}
"""Fixed-width types that are not plain numbers."""


def encoding(wire_type: WireType, *, flexible: bool, nullable: bool) -> AnyConstruct:
    """The construct of a type in flexible or inflexible versions. Arrays of Structs depend on the version:
    see `sequence`."""
    match wire_type:
        case FixedWidth():
            return _FIXED.get(wire_type) or construct.FormatField(">", wire_type.code)
        case StringType():
            return Utf8(length_encoding("h", flexible=flexible), nullable=nullable)
        case BytesType():
            return Opaque(length_encoding("l", flexible=flexible), nullable=nullable)
        case Array():
            element = encoding(wire_type.element, flexible=flexible, nullable=False)
            element_bytes_min = wire_type.element.bytes_min(flexible=flexible)
            return sequence(element, element_bytes_min, flexible=flexible, nullable=nullable)
    raise TypeError(f"{wire_type!r} is no type of the wire")


def sequence(
    element: AnyConstruct, element_bytes_min: int, *, flexible: bool, nullable: bool
) -> AnyConstruct:
    """The construct of an array of `element`, each at least `element_bytes_min` bytes long."""
    return Sequence(length_encoding("l", flexible=flexible), element, element_bytes_min, nullable=nullable)


class NullableStruct(AnyConstruct):
    """A struct preceded by an int8: negative for null, 1 for present."""

    def __init__(self, inner: AnyConstruct) -> None:
        super().__init__()
        self._inner = inner

    def _parse(self, stream: Any, context: Any, path: Any) -> Any:
        if construct.Int8sb._parsereport(stream, context, path) < 0:
            return None
        return self._inner._parsereport(stream, context, path)

    def _build(self, obj: Any, stream: Any, context: Any, path: Any) -> Any:
        construct.Int8sb._build(-1 if obj is None else 1, stream, context, path)
        return obj if obj is None else self._inner._build(obj, stream, context, path)


class TagBlock(AnyConstruct):
    """The tagged fields at the end of a flexible struct (KIP-482): count, then tag, size and value of each.

    A block whose tags do not ascend, or repeat, is refused. Unknown tags are skipped. The value of a known
    tag must fill its size.
    """

    _number = UnsignedVarint()

    def __init__(self, known: Mapping[int | None, tuple[str, AnyConstruct]]) -> None:
        super().__init__()
        self._known = known

    def _parse(self, stream: Any, context: Any, path: Any) -> construct.Container[Any]:
        count = self._number._parsereport(stream, context, path)
        take_elements(context, count)
        values: construct.Container[Any] = construct.Container()
        last = -1
        for _ in range(count):
            tag = self._number._parsereport(stream, context, path)
            size = self._number._parsereport(stream, context, path)
            if tag <= last:
                raise construct.ValidationError(f"tag {tag} behind tag {last}", path=path)
            last = tag
            payload = construct.stream_read(stream, size, path)
            if tag not in self._known:
                continue
            name, encoding = self._known[tag]
            tag_path = f"{path} -> {name}"
            tag_stream = io.BytesIO(payload)
            values[name] = encoding._parsereport(tag_stream, context, tag_path)
            if tag_stream.tell() != size:
                raise construct.ValidationError(f"{size - tag_stream.tell()} bytes left over", path=tag_path)
        return values

    def _build(self, obj: Any, stream: Any, context: Any, path: Any) -> Any:
        written = [(tag, *rest) for tag, rest in self._known.items() if rest[0] in obj]
        self._number._build(len(written), stream, context, path)
        for tag, name, encoding in written:
            tag_path = f"{path} -> {name}"
            tag_stream = io.BytesIO()
            encoding._build(obj[name], tag_stream, context, tag_path)
            payload = tag_stream.getvalue()
            self._number._build(tag, stream, context, tag_path)
            self._number._build(len(payload), stream, context, tag_path)
            construct.stream_write(stream, payload, len(payload), tag_path)
        return obj
