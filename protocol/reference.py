"""The slow twin of the compiled codec: a plain construct per message version.

Deliberately not clever: the tests compare the compiled codec with it, and the codec asks it which field is at
fault when bytes or messages are refused. It can also be used by hand:

    >>> reference.struct(HeartbeatRequest, 4).parse(body)
    Container(group_id='orders', generation_id=7, …)

In flexible versions the Container ends with `_tags`, a Container of the tagged fields that were written.
"""

from __future__ import annotations

import io
from functools import cache
from typing import Any, TypeVar

import construct

from muster.protocol.constructs import (
    ELEMENTS,
    AnyConstruct,
    ElementAllowance,
    NullableStruct,
    TagBlock,
    encoding,
    sequence,
)
from muster.protocol.elements import EncodedElements
from muster.protocol.errors import DecodeError, EncodeError, NotInVersionError, TooLargeError
from muster.protocol.layout import Layout, layout, message_layout, type_bytes_min
from muster.protocol.message import Field, Message, Struct, StructType
from muster.protocol.types import ELEMENTS_UNLIMITED, Array, WireType

M = TypeVar("M", bound=Message)

TAGS = "_tags"


def struct(cls: type[Message], version: int) -> AnyConstruct:
    """The construct of `cls` in `version`: a `construct.Struct` of the fields in wire order."""
    return _struct(message_layout(cls, version))


def decode(cls: type[M], version: int, data: bytes) -> M:
    """Like `codec.decode`."""
    message, end = decode_prefix(cls, version, data, 0)
    if end != len(data):
        raise DecodeError(f"{cls.__qualname__} v{version}: {len(data) - end} bytes left over")
    return message


def decode_prefix(
    cls: type[M], version: int, data: bytes, offset: int, elements_max: int = ELEMENTS_UNLIMITED
) -> tuple[M, int]:
    """Like `codec.decode_prefix`."""
    try:
        whole = message_layout(cls, version)
    except ValueError as error:
        raise DecodeError(str(error)) from None
    stream = io.BytesIO(data)
    stream.seek(offset)
    try:
        container = _struct(whole).parse_stream(stream, **{ELEMENTS: ElementAllowance(elements_max)})
    except construct.ConstructError as error:
        raise DecodeError(_text(cls, version, error)) from error
    except TooLargeError as error:
        raise TooLargeError(f"{cls.__qualname__} v{version}: {error}") from error
    return _message(whole, container), stream.tell()


def encode(message: Message, version: int) -> bytes:
    """Like `codec.encode`."""
    cls = type(message)
    try:
        whole = message_layout(cls, version)
    except ValueError as error:
        raise EncodeError(str(error)) from None
    values = _values(whole, message, f"{cls.__qualname__} v{version}: ")
    try:
        encoded: bytes = _struct(whole).build(values)
    except construct.ConstructError as error:
        raise EncodeError(_text(cls, version, error)) from error
    return encoded


def holds_default(field: Field, value: object) -> bool:
    """Whether a field with this value may be omitted: from a version that lacks it, or from a tag block."""
    default = field.make_default()
    if isinstance(default, list):
        return isinstance(value, (list, tuple)) and len(value) == len(default) == 0
    return value is None if default is None else bool(value == default)


# --- constructs ---


@cache
def _struct(whole: Layout) -> AnyConstruct:
    subconstructs = [field.name / _encoding(field.type, nullable, whole) for field, nullable in whole.body]
    if whole.flexible:
        known = {
            field.tag: (field.name, _encoding(field.type, nullable, whole))
            for field, nullable in whole.tagged
        }
        subconstructs.append(TAGS / TagBlock(known))
    return construct.Struct(*subconstructs)


def _encoding(wire_type: WireType | type[Struct], nullable: bool, whole: Layout) -> AnyConstruct:
    if isinstance(wire_type, StructType):
        inner = _struct(layout(wire_type, whole.version, flexible=whole.flexible))
        return NullableStruct(inner) if nullable else inner
    if isinstance(wire_type, Array):
        return sequence(
            _encoding(wire_type.element, False, whole),
            type_bytes_min(wire_type.element, whole.version, whole.flexible),
            flexible=whole.flexible,
            nullable=nullable,
        )
    return encoding(wire_type, flexible=whole.flexible, nullable=nullable)


# --- Containers to messages and back ---


def _message(whole: Layout, container: Any) -> Any:
    tags = container.get(TAGS) or {}
    values = {field.name: field.make_default() for field in whole.absent}
    for field, _ in whole.body:
        values[field.name] = _value(field.type, container[field.name], whole)
    for field, _ in whole.tagged:
        if field.name in tags:
            values[field.name] = _value(field.type, tags[field.name], whole)
        else:
            values[field.name] = field.make_default()
    return whole.cls(**values)


def _value(wire_type: WireType | type[Struct], value: Any, whole: Layout) -> Any:
    if value is None:
        return None
    if isinstance(wire_type, StructType):
        return _message(layout(wire_type, whole.version, flexible=whole.flexible), value)
    if isinstance(wire_type, Array):
        return [_value(wire_type.element, element, whole) for element in value]
    return value


def _values(whole: Layout, message: Any, path: str) -> dict[str, Any]:
    for field in whole.absent:
        if not field.ignorable and not holds_default(field, getattr(message, field.name)):
            raise NotInVersionError(
                f"{path}{field.name}: not in version {whole.version}, and not its default but "
                f"{getattr(message, field.name)!r}"
            )
    values: dict[str, Any] = {}
    for field, nullable in whole.body:
        value = _get(message, field, path)
        values[field.name] = _plain(field.type, nullable, value, whole, f"{path}{field.name}")
    if whole.flexible:
        values[TAGS] = tags = {}
        for field, nullable in whole.tagged:
            value = _get(message, field, path)
            if not holds_default(field, value):
                tags[field.name] = _plain(field.type, nullable, value, whole, f"{path}{field.name}")
    return values


def _get(message: Any, field: Field, path: str) -> Any:
    try:
        return getattr(message, field.name)
    except AttributeError:
        raise EncodeError(f"{path}{field.name}: {message!r} has no such field") from None


def _plain(wire_type: WireType | type[Struct], nullable: bool, value: Any, whole: Layout, path: str) -> Any:
    if isinstance(wire_type, StructType):
        if value is None and nullable:
            return None
        if value is None:
            raise EncodeError(f"{path}: None, where this version has no null")
        return _values(layout(wire_type, whole.version, flexible=whole.flexible), value, f"{path}.")
    if isinstance(wire_type, Array) and _is_list(wire_type, value):
        return [
            _plain(wire_type.element, False, element, whole, f"{path}[{index}]")
            for index, element in enumerate(value)
        ]
    return value


def _is_list(wire_type: Array, value: Any) -> bool:
    return isinstance(value, (list, tuple)) or (wire_type.encoded and isinstance(value, EncodedElements))


def _text(cls: type[Message], version: int, error: construct.ConstructError) -> str:
    """Construct's error as "JoinGroupRequest v9: protocols[2].name: …"."""
    reason = str(error).partition("\n")[2] or str(error)
    path = ""
    for step in (error.path or "").split(" -> ")[1:]:
        if step.isdigit():
            path += f"[{step}]"
        elif step != TAGS:
            path += f".{step}" if path else step
    return f"{cls.__qualname__} v{version}: {path or 'the whole'}: {reason}"
