"""Shared by both generators of muster.protocol.compiler: source lines, the names they use, and varints."""

from __future__ import annotations
import __future__

import builtins
import keyword
import struct as structs
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any, Final

from muster.protocol.errors import DecodeError, EncodeError, TooLargeError
from muster.protocol.message import Field, StructType
from muster.protocol.types import STRING_BYTES_MAX, UVARINT_MAX

COMPACT_STRING_LENGTH_MAX: Final = STRING_BYTES_MAX + 1
"""The largest length + 1 that may precede a compact string."""


_ANNOTATIONS: Final = __future__.annotations.compiler_flag
_PYTHON_NAMES: Final = frozenset((*dir(builtins), *keyword.kwlist))


class Scope:
    """The global names of generated source. Several functions may share one."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        """The objects that the names refer to."""
        self.expressions: dict[str, str] = {}
        """Expressions by which a built module gets the objects that it does not import
        (`muster.protocol.building`)."""


class Source:
    """The Python source of a function being generated, and the objects that its global names refer to.

    Its annotations are for mypyc; Python does not evaluate them.
    """

    def __init__(self, known: dict[str, Any], scope: Scope | None = None) -> None:
        """`known`: the objects that the generator uses, by name. `scope` may hold names of other
        functions."""
        self._names = Scope() if scope is None else scope
        self._names.objects.update(known)
        self._lines: list[str] = []
        self._depth = 0
        self._locals: set[str] = set()

    @property
    def scope(self) -> dict[str, Any]:
        return self._names.objects

    def line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """Lines written inside are indented below `header`."""
        self.line(header)
        self._depth += 1
        before = len(self._lines)
        yield
        if len(self._lines) == before:
            self.line("pass")
        self._depth -= 1

    def local(self, name: str) -> str:
        """`name`, or `name` with a number if it is already taken or has a meaning in Python."""
        fresh, number = name, 2
        while fresh in self._locals or fresh in self.scope or fresh in _PYTHON_NAMES:
            fresh, number = f"{name}_{number}", number + 1
        self._locals.add(fresh)
        return fresh

    def bind(self, name: str, value: Any, expression: str) -> str:
        """A global name for `value`, which `expression` yields; the same object gets the same name."""
        fresh, number = name, 2
        while fresh in self._locals or self.scope.get(fresh, value) is not value:
            fresh, number = f"{name}_{number}", number + 1
        self.scope[fresh] = value
        self._names.expressions[fresh] = expression
        return fresh

    def class_name(self, cls: StructType) -> str:
        """The global name of a struct's class."""
        return self.bind(cls.__name__, cls, _path(cls))

    def factory(self, owner: StructType, field: Field) -> str:
        """The global name of a field's default factory."""
        return self.bind(
            f"make_{field.name}", field.default_factory, f"{_place(owner, field)}.default_factory"
        )

    def default(self, owner: StructType, field: Field, value: Any) -> str:
        """An expression for `value`, a field's default: a literal if possible, else a global name."""
        if value is None or type(value) in (int, str, bool, bytes, float):
            return repr(value)
        return self.bind(f"default_{field.name}", value, f"{_place(owner, field)}.make_default()")

    def format_struct(self, operation: str, codes: str) -> str:
        """The global name of `pack` or `unpack_from` of a struct of these fields."""
        name = f"{operation}_{codes.replace('?', 'T')}"
        if name not in self.scope:
            method = "pack" if operation == "pack" else "unpack_from"
            self.scope[name] = getattr(_compiled_struct(codes), method)
            self._names.expressions[name] = f"Struct({'>' + codes!r}).{method}"
        return name

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def function(self, name: str, title: str) -> Any:
        """The function that the source defines under `name`; `title` appears in tracebacks."""
        scope = dict(self.scope)
        exec(compile(self.text(), f"<{title}>", "exec", _ANNOTATIONS), scope)
        return scope[name]


def _path(cls: StructType) -> str:
    """An expression for a struct's class, for a module that imports the one that declares it."""
    return f"{cls.__module__.rpartition('.')[2]}.{cls.__qualname__}"


def _place(owner: StructType, field: Field) -> str:
    return f"{_path(owner)}.__fields__[{owner.__fields__.index(field)}]"


@cache
def _compiled_struct(codes: str) -> structs.Struct:
    return structs.Struct(">" + codes)


def read_uvarint(data: bytes | bytearray, position: int, first: int) -> tuple[int, int]:
    """Finish reading an unsigned varint whose first byte was `first`, 128 or more. Returns its value and the
    position after it."""
    value = first & 0x7F
    for shift in (7, 14, 21, 28):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > UVARINT_MAX:
                break
            return value, position
    raise DecodeError("a varint of more than 32 bits")


def uvarint(value: int) -> bytes:
    """Encode an unsigned varint."""
    if value < 0x80:
        return bytes((value,))
    if value > UVARINT_MAX:
        raise EncodeError(f"{value} is no unsigned 32-bit number")
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def string_uvarint(length: int) -> bytes:
    """The prefix of a compact string of length - 1 bytes."""
    if length > COMPACT_STRING_LENGTH_MAX:
        raise EncodeError(f"a string of {length - 1} bytes")
    return uvarint(length)


def skip_tags(data: bytes | bytearray, position: int, count: int, end: int, elements: int) -> tuple[int, int]:
    """Skip a tag block without known tags, whose first byte is `count`. Returns the position after it and how
    many elements the message may still have: each tag counts as one."""
    if count > 127:
        count, position = read_uvarint(data, position, count)
    if count * 2 > end - position:
        raise DecodeError(f"{count} tags, more than the bytes left")
    if count > elements:
        raise TooLargeError("more elements than are accepted")
    last = -1
    for _ in range(count):
        tag, size, position = read_tag(data, position, last)
        last = tag
        position += size
    return position, elements - count


def read_tag(data: bytes | bytearray, position: int, last: int) -> tuple[int, int, int]:
    """Read a tag. Returns the tag, the size of its value and the value's position. Refuses tags that do not
    ascend."""
    tag = data[position]
    position += 1
    if tag > 127:
        tag, position = read_uvarint(data, position, tag)
    if tag <= last:
        raise DecodeError(f"tag {tag} behind tag {last}")
    size = data[position]
    position += 1
    if size > 127:
        size, position = read_uvarint(data, position, size)
    return tag, size, position


@lru_cache(maxsize=1024)
def uuid_of(content: bytes) -> uuid.UUID:
    """A UUID from its 16 bytes. Cached: creating one is slow, and the same few topic ids recur."""
    return uuid.UUID(bytes=content)
