"""Pre-encoded array elements, so that encoding a response with thousands of them is a join of slices.

A field whose `Array` is declared with `encoded=True` accepts `EncodedElements` in place of a list. Both
codecs write the same bytes for either: the compiled one copies the bytes if the version uses this form, the
reference creates the objects and encodes each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar, overload

from muster.protocol.decoder_source import struct_decoder_source
from muster.protocol.layout import message_layout
from muster.protocol.message import Message, Struct, Versions
from muster.protocol.types import ELEMENTS_UNLIMITED

E = TypeVar("E", bound=Struct)


class Form(NamedTuple):
    """How elements are encoded."""

    element: type[Struct]
    versions: Versions
    """The message versions that encode elements this way; they may begin before those of `element`, if that
    came later."""
    version: int
    """The version used to decode the elements when they are accessed."""
    flexible: bool = True
    """Whether elements have compact lengths and end with a tag block."""


@cache
def form_in(message: type[Message], element: type[Struct], version: int) -> Form:
    """The form of elements of `message` in one version."""
    return Form(element, Versions(version, version), version, message_layout(message, version).flexible)


def encode_element(form: Form, element: Struct) -> bytes:
    """The bytes of one element. The content of `EncodedElements` is a concatenation of these."""
    encoded: bytes = _encoder(form)(element)
    return encoded


class EncodedElements(Sequence[E]):
    """The encoded elements of an array. The first access turns them into objects; from then on the objects
    are what counts, so they may be changed."""

    __slots__ = ("_content", "_count", "_elements", "form")

    def __init__(self, form: Form, count: int, content: bytes) -> None:
        self.form = form
        self._count = count
        self._content = content
        self._elements: list[Any] | None = None

    def encoded(self, version: int) -> bytes | None:
        """The bytes of all elements, concatenated; None if `version` encodes them differently, or they have
        been accessed."""
        if self._elements is None and version in self.form.versions:
            return self._content
        return None

    def _objects(self) -> list[Any]:
        elements = self._elements
        if elements is None:
            decode = _decoder(self.form)
            data, at = self._content, 0
            elements = []
            for _ in range(self._count):
                element, at = decode(data, at, len(data), ELEMENTS_UNLIMITED)
                elements.append(element)
            self._elements, self._content = elements, b""
        return elements

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> E: ...

    @overload
    def __getitem__(self, index: slice) -> list[E]: ...

    def __getitem__(self, index: int | slice) -> Any:
        return self._objects()[index]

    def __iter__(self) -> Iterator[E]:
        return iter(self._objects())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, EncodedElements):
            return bool(self._objects() == other._objects())
        return bool(self._objects() == other)

    def __repr__(self) -> str:
        return repr(self._objects())


@cache
def _decoder(form: Form) -> Any:
    source = struct_decoder_source(form.element, form.version, flexible=form.flexible)
    return source.function("decode", f"decode {form.element.__qualname__} v{form.version}")


@cache
def _encoder(form: Form) -> Any:
    # That module imports this one.
    from muster.protocol.encoder_source import struct_encoder_source

    source = struct_encoder_source(form.element, form.version, flexible=form.flexible)
    return source.function("encode", f"encode {form.element.__qualname__} v{form.version}")
