"""Generates the decoding function of a message version; see muster.protocol.compiler."""

from __future__ import annotations

import struct as structs
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from muster.protocol.errors import DecodeError, TooLargeError
from muster.protocol.layout import Layout, layout, message_layout, type_bytes_min
from muster.protocol.message import Field, Message, Struct, StructType
from muster.protocol.source import (
    COMPACT_STRING_LENGTH_MAX,
    Scope,
    Source,
    read_tag,
    read_uvarint,
    skip_tags,
    uuid_of,
)
from muster.protocol.text import LENIENT
from muster.protocol.types import Array, BytesType, FixedWidth, Records, StringType, Uuid, WireType


def decoder_source(
    cls: type[Message],
    version: int,
    *,
    views: bool = False,
    name: str = "decode",
    scope: Scope | None = None,
) -> Source:
    """The source of a function `decode(data, at, end, elements)`, or one called `name`. With `views`, it does
    not copy records out of the data. Raises ValueError for a version the message does not have."""
    return _Decoder(message_layout(cls, version), views, name, scope).source


def struct_decoder_source(cls: StructType, version: int, *, flexible: bool) -> Source:
    """The same for a struct nested in messages, in one of their versions."""
    return _Decoder(layout(cls, version, flexible=flexible), False, "decode", None).source


class _Read(NamedTuple):
    """One value of a run: its struct code and its target."""

    code: str
    target: str


class _Decoder:
    """Writes statements that read at `at`.

    A run collects fixed-width values until a variable-length value needs them; then one unpack_from reads the
    whole run. Code that reads on its own must flush the run first.
    """

    def __init__(self, whole: Layout, views: bool, name: str, scope: Scope | None) -> None:
        self._views = views
        self.source = Source(
            {
                "DecodeError": DecodeError,
                "TooLargeError": TooLargeError,
                "new": object.__new__,
                "read_tag": read_tag,
                "read_uvarint": read_uvarint,
                "skip_tags": skip_tags,
                "unpack_from": structs.unpack_from,
                "uuid_of": uuid_of,
            },
            scope,
        )
        self._run: list[_Read] = []
        self._after_run: list[str] = []
        self._whole = whole
        # Counts and sizes are used before the next value is read, so all values share these names.
        for reserved in ("data", "at", "end", "elements", name, "length", "stop", "tags", "size"):
            self.source.local(reserved)
        of = "bytes | bytearray" if views else "bytes"
        head = f"def {name}(data: {of}, at: i64, end: i64, elements: i64) -> tuple[Any, int]:"
        with self.source.block(head):
            for number in ("length", "stop", "tags"):
                self.source.line(f"{number}: i64")
            message = self.source.local("message")
            self._struct(whole, message, "")
            self._flush()
            self.source.line(f"return {message}, at")

    # --- runs ---

    def _read(self, code: str, target: str) -> None:
        self._run.append(_Read(code, target))

    def _flush(self) -> None:
        run, self._run = self._run, []
        after, self._after_run = self._after_run, []
        if not run:
            return
        codes = "".join(read.code for read in run)
        if codes == "B":
            self.source.line(f"{run[0].target} = data[at]")
        elif codes == "?":
            self.source.line(f"{run[0].target} = data[at] != 0")
        else:
            unpack = self.source.format_struct("unpack", codes)
            targets = ", ".join(read.target for read in run)
            self.source.line(f"{targets}{',' if len(run) == 1 else ''} = {unpack}(data, at)")
        self.source.line(f"at += {structs.calcsize('>' + codes)}")
        for line in after:
            self.source.line(line)

    # --- structs ---

    def _struct(self, inner: Layout, target: str, path: str) -> None:
        """Create the object and read its fields. The last ones may still be in the run."""
        line = self.source.line
        line(f"{target} = new({self.source.class_name(inner.cls)})")
        for field in inner.absent:
            line(f"{target}.{field.name} = {self._default(inner.cls, field)}")
        for field, nullable in inner.body:
            self._value(field.type, nullable, f"{target}.{field.name}", f"{path}{field.name}")
        if inner.flexible:
            self._tags(inner, target, path)

    def _default(self, owner: StructType, field: Field) -> str:
        default = field.make_default()
        if isinstance(default, list) and not default:
            return "[]"
        if field.default_factory is not None:
            return f"{self.source.factory(owner, field)}()"
        if isinstance(field.type, StructType) and default is not None:
            return f"{self.source.class_name(field.type)}()"
        return self.source.default(owner, field, default)

    def _tags(self, inner: Layout, target: str, path: str) -> None:
        line, block = self.source.line, self.source.block
        self._read("B", "tags")
        self._flush()
        if not inner.tagged:
            with block("if tags:"):
                line("at, elements = skip_tags(data, at, tags, end, elements)")
            return
        for field, _ in inner.tagged:
            line(f"{target}.{field.name} = {self._default(inner.cls, field)}")
        tag, tag_end = self.source.local("tag"), self.source.local("tag_end")
        count = self.source.local("count")
        with block("if tags:"):
            with block("if tags > 127:"):
                line("tags, at = read_uvarint(data, at, tags)")
            with block("if tags * 2 > end - at:"):
                self._refuse(path, "more tags than bytes left")
            self._take("tags", path)
            line(f"{count} = tags")
            line(f"{tag} = -1")
            with block(f"for _ in range({count}):"):
                line(f"{tag}, size, at = read_tag(data, at, {tag})")
                line(f"{tag_end} = at + size")
                for index, (field, nullable) in enumerate(inner.tagged):
                    with block(f"{'elif' if index else 'if'} {tag} == {field.tag}:"):
                        self._value(field.type, nullable, f"{target}.{field.name}", f"{path}{field.name}")
                        self._flush()
                with block("else:"):
                    line(f"at = {tag_end}")
                with block(f"if at != {tag_end}:"):
                    self._refuse(path, "a tagged field does not fill its size")

    # --- values ---

    def _value(self, wire_type: WireType | type[Struct], nullable: bool, target: str, path: str) -> None:
        if isinstance(wire_type, FixedWidth):
            self._fixed(wire_type, target)
        elif isinstance(wire_type, StringType):
            self._string(nullable, target, path)
        elif isinstance(wire_type, BytesType):
            self._bytes(wire_type, nullable, target, path)
        elif isinstance(wire_type, Array):
            self._array(wire_type, nullable, target, path)
        elif isinstance(wire_type, StructType):
            self._nested(wire_type, nullable, target, path)
        else:
            raise TypeError(f"{path}: no code for {wire_type!r}")

    def _fixed(self, wire_type: FixedWidth, target: str) -> None:
        if wire_type is Uuid:
            content = self.source.local("uuid_bytes")
            self._read("16s", content)
            self._after_run.append(f"{target} = uuid_of({content})")
        else:
            self._read(wire_type.code, target)

    def _string(self, nullable: bool, target: str, path: str) -> None:
        line = self.source.line
        self._length("h")
        with self._present(nullable, target, path, COMPACT_STRING_LENGTH_MAX):
            line(f"stop = at + {self._count}")
            line(f"{target} = data[at:stop].decode('utf-8', {LENIENT!r})")
            line("at = stop")

    def _bytes(self, wire_type: BytesType, nullable: bool, target: str, path: str) -> None:
        line = self.source.line
        of = "memoryview(data)" if self._views and wire_type is Records else "data"
        self._length("l")
        with self._present(nullable, target, path):
            line(f"stop = at + {self._count}")
            line(f"{target} = {of}[at:stop]")
            line("at = stop")

    def _array(self, wire_type: Array, nullable: bool, target: str, path: str) -> None:
        line, block = self.source.line, self.source.block
        element = wire_type.element
        self._length("l")
        with self._present(nullable, target, path):
            # Needs its own name: mypyc ends the loop at the current value of the range's end.
            count = self.source.local("count")
            line(f"{count} = {self._count}")
            # Elements of zero bytes would let four bytes demand two billion objects; no Kafka array has them.
            width = max(type_bytes_min(element, self._whole.version, self._whole.flexible), 1)
            with block(f"if {count} * {width} > end - at:" if width > 1 else f"if {count} > end - at:"):
                self._refuse(path, "more elements than bytes left")
            self._take(count, path)
            if isinstance(element, FixedWidth):
                self._fixed_array(element, count, target)
                return
            items = self.source.local("items")
            line(f"{target} = {items} = []")
            with block(f"for _ in range({count}):"):
                if isinstance(element, StructType):
                    item = self.source.local(_snake(element.__name__))
                    inner = layout(element, self._whole.version, flexible=self._whole.flexible)
                    self._struct(inner, item, f"{path}.")
                else:
                    item = self.source.local("item")
                    self._value(element, False, item, path)
                self._flush()
                line(f"{items}.append({item})")

    def _fixed_array(self, element: FixedWidth, count: str, target: str) -> None:
        line = self.source.line
        line(f"stop = at + {count} * {element.width}" if element.width > 1 else f"stop = at + {count}")
        if element is Uuid:
            line(f"{target} = [uuid_of(data[begin : begin + 16]) for begin in range(at, stop, 16)]")
        else:
            line(f"{target} = list(unpack_from(f'>{{{count}}}{element.code}', data, at))")
        line("at = stop")

    def _nested(self, cls: type[Struct], nullable: bool, target: str, path: str) -> None:
        line, block = self.source.line, self.source.block
        inner = layout(cls, self._whole.version, flexible=self._whole.flexible)
        nested = self.source.local(_snake(cls.__name__))
        if not nullable:
            self._struct(inner, nested, f"{path}.")
            line(f"{target} = {nested}")
            return
        marker = self.source.local("marker")
        self._read("b", marker)
        self._flush()
        with block(f"if {marker} < 0:"):
            line(f"{target} = None")
        with block("else:"):
            self._struct(inner, nested, f"{path}.")
            self._flush()
            line(f"{target} = {nested}")

    # --- lengths ---

    def _length(self, code: str) -> None:
        """Read the pending run, then the count of a string, bytes or array into `length`."""
        self._read("B" if self._whole.flexible else code, "length")
        self._flush()

    @property
    def _count(self) -> str:
        """The number of bytes or elements."""
        return "length - 1" if self._whole.flexible else "length"

    @contextmanager
    def _present(
        self, nullable: bool, target: str, path: str, length_max: int | None = None
    ) -> Iterator[None]:
        """The code written inside reads a non-null value of `_count` bytes or elements."""
        line, block = self.source.line, self.source.block
        if self._whole.flexible:
            with block("if length > 127:"):
                line("length, at = read_uvarint(data, at, length)")
                if length_max is not None:
                    with block(f"if length > {length_max}:"):
                        self._refuse(path, f"a string of more than {length_max - 1} bytes")
            if nullable:
                with block("if length:"):
                    yield
                with block("else:"):
                    line(f"{target} = None")
            else:
                with block("if not length:"):
                    self._refuse(path, "null, where this version has no null")
                yield
        elif nullable:
            with block("if length >= 0:"):
                yield
            with block("elif length == -1:"):
                line(f"{target} = None")
            with block("else:"):
                self._refuse(path, "a negative length")
        else:
            with block("if length < 0:"):
                self._refuse(path, "a negative length")
            yield

    def _take(self, count: str, path: str) -> None:
        """Count array elements or tags before any of them is created."""
        self.source.line(f"elements -= {count}")
        with self.source.block("if elements < 0:"):
            self._refuse(path, "more elements than are accepted", "TooLargeError")

    def _refuse(self, path: str, reason: str, error: str = "DecodeError") -> None:
        where = path.rstrip(".") or "the whole"
        self.source.line(f"raise {error}({f'{where}: {reason}'!r})")


def _snake(name: str) -> str:
    """The name of a local variable for an object of class `name`."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
