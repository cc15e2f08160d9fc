"""How coordinators frame their records in internal topics: a key is an int16 record type followed by its
fields, a value an int16 schema version followed by its fields; a tombstone (no value) deletes the key."""

from __future__ import annotations

import struct as binary
from collections.abc import Mapping
from typing import Final

from muster.protocol import codec
from muster.protocol.errors import DecodeError
from muster.protocol.message import Message

_INT16: Final = binary.Struct(">h")

Schemas = Mapping[int, tuple[type[Message], type[Message]]]
"""Record type -> key and value."""


def frame_key(record_type: int, key: Message) -> bytes:
    """The record type and the key's fields."""
    return _INT16.pack(record_type) + codec.encode(key, 0)


def frame_value(value: Message, version: int) -> bytes:
    """The schema version and the value's fields in that version."""
    return _INT16.pack(version) + codec.encode(value, version)


def decode(schemas: Schemas, key: bytes, value: bytes | None) -> tuple[Message, Message | None] | None:
    """The record's key and value; (key, None) for a tombstone; None for a record type that has no schemas.
    Raises DecodeError for bytes that do not fit the schema, and for value versions that are newer than the
    schema."""
    found = schemas.get(_int16(key, "record type"))
    if found is None:
        return None
    key_class, value_class = found
    decoded_key = codec.decode(key_class, 0, key, 2)
    if value is None:
        return decoded_key, None
    return decoded_key, codec.decode(value_class, _int16(value, "value version"), value, 2)


def _int16(blob: bytes, what: str) -> int:
    if len(blob) < 2:
        raise DecodeError(f"{what}: 2 bytes expected, {len(blob)} there")
    number: int = _INT16.unpack_from(blob)[0]
    return number
