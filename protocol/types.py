"""Kafka's wire types.

A field is declared with a `WireType`: a Kafka type, named as in the protocol guide. Its encoding depends on
the version: muster.protocol.constructs is the plain, slow reference, and muster.protocol.compiler, which
knows the same types, must agree with it.
"""

from __future__ import annotations

import struct as structs
import uuid
from typing import Any, Final

STRING_BYTES_MAX: Final = 0x7FFF
"""Kafka limits strings by an int16 in every encoding, compact ones included."""

ELEMENTS_UNLIMITED: Final = 2**63 - 1
"""For a message whose array elements and tags are limited only by its bytes."""

UVARINT_MAX: Final = 0xFFFF_FFFF
INT64_MAX: Final = 0x7FFF_FFFF_FFFF_FFFF
ZERO_UUID: Final = uuid.UUID(int=0)
"""Kafka's "no id"."""


class WireType:
    """A Kafka type, independent of the encoding that a version uses."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name

    def implicit_default(self) -> Any:
        """Kafka's default for a field of this type that declares none."""
        raise NotImplementedError

    def bytes_min(self, *, flexible: bool) -> int:
        """The fewest bytes a value can take; bounds an array's length before anything is allocated."""
        raise NotImplementedError


class FixedWidth(WireType):
    """A type that has the same width in every version. `code` is its format code in the struct module."""

    def __init__(self, name: str, code: str, default: Any) -> None:
        super().__init__(name)
        self.code = code
        self.width = structs.calcsize(">" + code)
        self._default = default

    def implicit_default(self) -> Any:
        return self._default

    def bytes_min(self, *, flexible: bool) -> int:
        return self.width


class StringType(WireType):
    """UTF-8 text of at most 32767 bytes. What is not UTF-8 decodes to U+FFFD: `muster.protocol.text`."""

    def implicit_default(self) -> str:
        return ""

    def bytes_min(self, *, flexible: bool) -> int:
        return 1 if flexible else 2


class BytesType(WireType):
    """Opaque bytes: `Bytes`, and `Records`, whose record batches are opaque to this layer."""

    def implicit_default(self) -> bytes:
        return b""

    def bytes_min(self, *, flexible: bool) -> int:
        return 1 if flexible else 4


class Array(WireType):
    """A list of one element type: a WireType, or a Struct class. Elements are never null and never arrays
    themselves."""

    def __init__(self, element: Any, *, encoded: bool = False) -> None:
        """`encoded`: a message may hold the elements, which are structs, in encoded form
        (`muster.protocol.elements`)."""
        super().__init__("Array")
        self.element = element
        self.encoded = encoded

    def __repr__(self) -> str:
        return f"Array({getattr(self.element, '__name__', self.element)})"

    def implicit_default(self) -> list[Any]:
        return []

    def bytes_min(self, *, flexible: bool) -> int:
        return 1 if flexible else 4


Boolean: Final = FixedWidth("Boolean", "?", False)
Int8: Final = FixedWidth("Int8", "b", 0)
Int16: Final = FixedWidth("Int16", "h", 0)
Int32: Final = FixedWidth("Int32", "l", 0)
Int64: Final = FixedWidth("Int64", "q", 0)
Float64: Final = FixedWidth("Float64", "d", 0.0)
Uuid: Final = FixedWidth("Uuid", "16s", ZERO_UUID)
String: Final = StringType("String")
Bytes: Final = BytesType("Bytes")
Records: Final = BytesType("Records")
