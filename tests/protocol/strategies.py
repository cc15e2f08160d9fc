"""Hypothesis strategies: messages that a version can carry, and damaged bytes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from functools import cache
from typing import Any

from hypothesis import strategies as st

from muster.protocol import api, embedded
from muster.protocol.layout import Layout, layout, message_layout
from muster.protocol.message import RECORDS, REQUESTS, RESPONSES, Message, StructType
from muster.protocol.types import ZERO_UUID, Array, WireType

ELEMENTS_MAX = 3


def every_version() -> Iterator[tuple[type[Message], int]]:
    """Every message muster declares in each of its versions, the coordinator's records and blobs included."""
    api.load_messages()
    assert embedded.ConsumerProtocolSubscription.__name__ in RECORDS
    for registry in (REQUESTS, RESPONSES, RECORDS):
        for cls in registry.values():
            if cls.__module__.startswith("muster."):
                first, last = cls.__schema__.versions
                yield from ((cls, version) for version in range(first, last + 1))


@cache
def messages(cls: type[Message], version: int) -> st.SearchStrategy[Any]:
    """Any value of `cls` that encodes in `version`: fields the version lacks hold their defaults."""
    return _structs(message_layout(cls, version))


def _structs(whole: Layout) -> st.SearchStrategy[Any]:
    values = {}
    for field, nullable in (*whole.body, *whole.tagged):
        value = _values(field.type, whole)
        if nullable:
            value = st.none() | value
        if (field, nullable) in whole.tagged:
            # Defaults matter most in tag blocks, which leave them out.
            value = st.builds(field.make_default) | value
        values[field.name] = value
    for field in whole.absent:
        values[field.name] = st.builds(field.make_default)
    return st.builds(whole.cls, **values)


def _values(wire_type: Any, whole: Layout) -> st.SearchStrategy[Any]:
    if isinstance(wire_type, StructType):
        return _structs(layout(wire_type, whole.version, flexible=whole.flexible))
    if isinstance(wire_type, Array):
        return st.lists(_values(wire_type.element, whole), max_size=ELEMENTS_MAX)
    assert isinstance(wire_type, WireType)
    return _PRIMITIVES[wire_type.name]


def _integers(bits: int, *, signed: bool = True) -> st.SearchStrategy[int]:
    low = -(1 << bits - 1) if signed else 0
    high = (1 << bits - 1) - 1 if signed else (1 << bits) - 1
    return st.integers(low, high)


_PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "Boolean": st.booleans(),
    "Int8": _integers(8),
    "Int16": _integers(16),
    "Int32": _integers(32),
    "Int64": _integers(64),
    "Float64": st.floats(allow_nan=False),
    # 126 bytes are the longest string whose compact length takes one byte.
    "String": st.text("abc-é猫😀", max_size=6) | st.integers(125, 129).map("x".__mul__),
    "Bytes": st.binary(max_size=6) | st.integers(125, 129).map(b"x".__mul__),
    "Records": st.binary(max_size=6),
    "Uuid": st.just(ZERO_UUID) | st.integers(0, 2**128 - 1).map(lambda number: uuid.UUID(int=number)),
}

# Bytes at which varints, lengths and markers change their meaning, more often than others.
_BYTES = st.sampled_from((0x00, 0x01, 0x02, 0x0F, 0x10, 0x7F, 0x80, 0xFF)) | st.integers(0, 255)


@st.composite
def mutations(draw: st.DrawFn, data: bytes) -> bytes:
    """`data` with one to three changes: a byte changed or inserted, a few removed, or the rest cut off."""
    mutated = bytearray(data)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(mutated)))
        match draw(st.integers(0, 5)):
            case 0 | 1 | 2:
                mutated[at : at + 1] = (draw(_BYTES),)
            case 3:
                mutated[at:at] = (draw(_BYTES),)
            case 4:
                del mutated[at : at + draw(st.integers(1, 4))]
            case 5:
                del mutated[at:]
    return bytes(mutated)
