"""Generates the encoding function of a message version; see muster.protocol.compiler."""

from __future__ import annotations

import struct as structs
from contextlib import nullcontext
from typing import NamedTuple

from muster.protocol.elements import EncodedElements
from muster.protocol.errors import EncodeError
from muster.protocol.layout import Layout, layout, message_layout
from muster.protocol.message import Field, Message, Struct, StructType
from muster.protocol.source import Scope, Source, string_uvarint, uvarint
from muster.protocol.types import Array, BytesType, FixedWidth, StringType, Uuid, WireType

_ONE_BYTE_VARINT_MAX = 127
_JOINED = "b''.join(out)"


def encoder_source(
    cls: type[Message],
    version: int,
    *,
    pieces: bool = False,
    name: str = "encode",
    scope: Scope | None = None,
) -> Source:
    """The source of a function `encode(message)`, or one called `name`. With `pieces`, it returns a list of
    pieces instead of joining them. Raises ValueError for a version the message does not have."""
    return _Encoder(message_layout(cls, version), pieces, name, scope).source


def struct_encoder_source(cls: StructType, version: int, *, flexible: bool) -> Source:
    """The same for a struct nested in messages, in one of their versions."""
    return _Encoder(layout(cls, version, flexible=flexible), False, "encode", None).source


class _Write(NamedTuple):
    """One value of a run: its struct code and its expression. Code "x" writes a zero byte and needs no
    expression."""

    code: str
    value: str


class _Encoder:
    """Writes statements that append bytes to a list.

    A run collects fixed-width values until a variable-length value follows, whose length still joins the run.
    One pack writes the whole run.
    """

    def __init__(self, whole: Layout, pieces: bool, name: str, scope: Scope | None) -> None:
        self.source = Source(
            {
                "EncodeError": EncodeError,
                "EncodedElements": EncodedElements,
                "boolean": {False: 0, True: 1},
                "pack": structs.pack,
                "string_uvarint": string_uvarint,
                "uvarint": uvarint,
            },
            scope,
        )
        self._run: list[_Write] = []
        self._out = "out"
        self._whole = whole
        # Each is used up before the next value is written, so all values share these names.
        shared = {
            "length": "i64",
            "content": "bytes",
            "text": "str",
            "text_or_null": "str | None",
            "blob": "Any",
        }
        for reserved in ("message", "out", name, *shared):
            self.source.local(reserved)
        with self.source.block(f"def {name}(message: Any) -> {'list[Any]' if pieces else 'bytes'}:"):
            for each, kind in shared.items():
                self.source.line(f"{each}: {kind}")
            self.source.line("out: list[Any] = []")
            self._struct(whole, "message", "")
            self._flush()
            self.source.line(f"return {'out' if pieces else _JOINED}")

    # --- runs ---

    def _write(self, code: str, value: str = "") -> None:
        self._run.append(_Write(code, value))

    def _flush(self) -> None:
        run, self._run = self._run, []
        if run:
            self.source.line(f"{self._out}.append({self._packed(run)})")

    def _packed(self, run: list[_Write]) -> str:
        codes = "".join(write.code for write in run)
        if not codes.strip("x"):
            return repr(bytes(len(codes)))
        if codes == "16s":
            return run[0].value
        values = ", ".join(write.value for write in run if write.code != "x")
        return f"{self.source.format_struct('pack', codes)}({values})"

    # --- structs ---

    def _struct(self, inner: Layout, owner: str, path: str) -> None:
        """Write the fields of `owner`. The last ones may still be in the run."""
        for field in inner.absent:
            if not field.ignorable:
                with self.source.block(f"if {self._differs(inner, field, f'{owner}.{field.name}')}:"):
                    reason = f"not in version {inner.version}, and not its default"
                    self._refuse(f"{path}{field.name}", reason)
        for field, nullable in inner.body:
            self._value(field.type, nullable, f"{owner}.{field.name}", f"{path}{field.name}")
        if inner.flexible:
            self._tags(inner, owner, path)

    def _differs(self, inner: Layout, field: Field, value: str) -> str:
        """A condition that holds if the value is not the default and must be written."""
        default = field.make_default()
        if isinstance(default, list) and not default:
            return f"{value} is None or len({value})"
        if default is None:
            return f"{value} is not None"
        if isinstance(default, Struct):
            values = {each.name: getattr(default, each.name) for each in type(default).__fields__}
            if all(type(each) is int for each in values.values()):
                # Avoids calling `Struct.__eq__`: a Fetch has three such defaults per partition.
                return " or ".join(f"{value}.{name} != {each}" for name, each in values.items())
        return f"{value} != {self.source.default(inner.cls, field, default)}"

    def _tags(self, inner: Layout, owner: str, path: str) -> None:
        line, block = self.source.line, self.source.block
        if not inner.tagged:
            self._write("x")
            return
        self._flush()
        differs = [self._differs(inner, field, f"{owner}.{field.name}") for field, _ in inner.tagged]
        outer = self._out
        first, _ = inner.tagged[0]
        if len(inner.tagged) == 1 and isinstance(first.type, FixedWidth):
            # Everything but the value is known in advance.
            head = uvarint(1) + uvarint(first.tag or 0) + uvarint(first.type.width)
            with block(f"if {differs[0]}:"):
                line(f"{outer}.append({head!r})")
                self._value(first.type, False, f"{owner}.{first.name}", f"{path}{first.name}")
                self._flush()
            with block("else:"):
                line(f"{outer}.append({uvarint(0)!r})")
            return
        with block(f"if {' or '.join(differs)}:"):
            tags = self.source.local("tags")
            line(f"{tags}: list[bytes] = []")
            for (field, nullable), condition in zip(inner.tagged, differs, strict=True):
                with block(f"if {condition}:") if len(differs) > 1 else nullcontext():
                    parts, value = self.source.local("parts"), self.source.local("value")
                    line(f"{parts}: list[Any] = []")
                    self._out = parts
                    self._value(field.type, nullable, f"{owner}.{field.name}", f"{path}{field.name}")
                    self._flush()
                    self._out = outer
                    line(f"{value} = b''.join({parts})")
                    line(f"{tags} += {uvarint(field.tag or 0)!r}, uvarint(len({value})), {value}")
            line(f"{outer}.append(uvarint(len({tags}) // 3))")
            line(f"{outer}.append(b''.join({tags}))")
        with block("else:"):
            line(f"{outer}.append(b'\\x00')")

    # --- values ---

    def _value(self, wire_type: WireType | type[Struct], nullable: bool, value: str, path: str) -> None:
        if isinstance(wire_type, FixedWidth):
            self._write(wire_type.code.replace("?", "b"), self._fixed(wire_type, value))
        elif isinstance(wire_type, StringType):
            self._string(nullable, value)
        elif isinstance(wire_type, BytesType):
            self._bytes(nullable, value)
        elif isinstance(wire_type, Array):
            self._array(wire_type, nullable, value, path)
        elif isinstance(wire_type, StructType):
            self._nested(wire_type, nullable, value, path)
        else:
            raise TypeError(f"{path}: no code for {wire_type!r}")

    def _fixed(self, wire_type: FixedWidth, value: str) -> str:
        if wire_type is Uuid:
            return f"{value}.bytes"
        # The struct module would accept any object as a bool.
        return f"boolean[{value}]" if wire_type.code == "?" else value

    def _string(self, nullable: bool, value: str) -> None:
        line, block = self.source.line, self.source.block
        if nullable:
            line(f"text_or_null = {value}")
            with block("if text_or_null is None:"):
                line("content = b''")
                line(f"length = {self._null}")
            with block("else:"):
                line("content = text_or_null.encode()")
                line(f"length = len(content){self._more}")
        else:
            line(f"text = {value}")
            line("content = text.encode()")
            line(f"length = len(content){self._more}")
        self._write_length("h", "string_uvarint")
        line(f"{self._out}.append(content)")

    def _bytes(self, nullable: bool, value: str) -> None:
        line, block = self.source.line, self.source.block
        line(f"blob = {value}")
        if nullable:
            with block("if blob is None:"):
                line("blob = b''")
                line(f"length = {self._null}")
            with block("else:"):
                line(f"length = len(blob){self._more}")
        else:
            line(f"length = len(blob){self._more}")
        self._write_length("l", "uvarint")
        line(f"{self._out}.append(blob)")

    def _array(self, wire_type: Array, nullable: bool, value: str, path: str) -> None:
        line, block = self.source.line, self.source.block
        items = self.source.local("items")
        line(f"{items} = {value}")
        if not wire_type.encoded:
            self._elements(wire_type, nullable, items, path)
            return
        encoded, run = self.source.local("encoded"), self._run
        known = f"{items}.encoded({self._whole.version}) if {items}.__class__ is EncodedElements else None"
        line(f"{encoded} = {known}")
        with block(f"if {encoded} is not None:"):
            self._run = list(run)
            line(f"length = len({items}){self._more}")
            self._write_length("l", "uvarint")
            line(f"{self._out}.append({encoded})")
        with block("else:"):
            self._run = list(run)
            self._elements(wire_type, nullable, items, path)

    def _elements(self, wire_type: Array, nullable: bool, items: str, path: str) -> None:
        """Write the elements of `items`, preceded by their count."""
        line, block = self.source.line, self.source.block
        if nullable:
            with block(f"if {items} is None:"):
                line(f"{items} = ()")
                line(f"length = {self._null}")
            with block("else:"):
                line(f"length = len({items}){self._more}")
        else:
            line(f"length = len({items}){self._more}")
        # A str or a dict is iterable too, and would be written as garbage.
        lists = "(list, tuple, EncodedElements)" if wire_type.encoded else "(list, tuple)"
        with block(f"if not isinstance({items}, {lists}):"):
            self._refuse(path, "no list")
        self._write_length("l", "uvarint")
        element = wire_type.element
        if isinstance(element, FixedWidth) and element.code not in ("?", "16s"):
            line(f"{self._out}.append(pack(f'>{{len({items})}}{element.code}', *{items}))")
            return
        item = self.source.local("item")
        with block(f"for {item} in {items}:"):
            if isinstance(element, StructType):
                inner = layout(element, self._whole.version, flexible=self._whole.flexible)
                self._struct(inner, item, f"{path}.")
            else:
                self._value(element, False, item, path)
            self._flush()

    def _nested(self, cls: type[Struct], nullable: bool, value: str, path: str) -> None:
        line, block = self.source.line, self.source.block
        inner = layout(cls, self._whole.version, flexible=self._whole.flexible)
        nested = self.source.local("nested")
        line(f"{nested} = {value}")
        if not nullable:
            self._struct(inner, nested, f"{path}.")
            return
        self._write("b", f"-1 if {nested} is None else 1")
        self._flush()
        with block(f"if {nested} is not None:"):
            self._struct(inner, nested, f"{path}.")
            self._flush()

    # --- lengths ---

    @property
    def _more(self) -> str:
        """The term that compact lengths add to the count."""
        return " + 1" if self._whole.flexible else ""

    @property
    def _null(self) -> int:
        """The length that means null."""
        return 0 if self._whole.flexible else -1

    def _write_length(self, code: str, long_form: str) -> None:
        """Write the pending run, then `length`. `long_form` encodes lengths that do not fit in one byte."""
        line, block = self.source.line, self.source.block
        if not self._whole.flexible:
            self._write(code, "length")
            self._flush()
            return
        run, self._run = self._run, []
        with block(f"if length <= {_ONE_BYTE_VARINT_MAX}:"):
            line(f"{self._out}.append({self._packed([*run, _Write('B', 'length')])})")
        with block("else:"):
            if run:
                line(f"{self._out}.append({self._packed(run)})")
            line(f"{self._out}.append({long_form}(length))")

    def _refuse(self, path: str, reason: str) -> None:
        self.source.line(f"raise EncodeError({f'{path}: {reason}'!r})")
