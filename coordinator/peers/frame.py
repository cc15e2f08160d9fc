"""The format of a letter between brokers: a header of fixed size, then a Kafka message or a refusal.

int8 layout (1), int8 kind, int32 node id and 16 bytes incarnation of the sender, int64 ticket, int16 api
key, int16 version of the message; the message, or for a refusal: int16 error code, text in UTF-8
"""

from __future__ import annotations

import struct as structs
from enum import IntEnum
from typing import Final, NamedTuple
from uuid import UUID

from muster.protocol.errors import DecodeError, ErrorCode, KafkaError

_LAYOUT: Final = 1
_HEAD: Final = structs.Struct(">bbi16sqhh")
_CODE: Final = structs.Struct(">h")
_CODES: Final = {code.value: code for code in ErrorCode}


class Kind(IntEnum):
    """The kind of a letter; the numbers are on the wire."""

    QUESTION = 1
    ANSWER = 2
    REFUSAL = 3


class Frame(NamedTuple):
    """A letter. An answer and a refusal repeat ticket, API and version of their question."""

    kind: Kind
    node_id: int
    """Of the sender, like the incarnation."""
    incarnation: UUID
    ticket: int
    """Unique only together with its asker's incarnation."""
    api_key: int
    version: int
    body: bytes

    def encoded(self) -> bytes:
        kind, node_id, incarnation, ticket, api_key, version, body = self
        return _HEAD.pack(_LAYOUT, kind, node_id, incarnation.bytes, ticket, api_key, version) + body


def decode_frame(payload: bytes) -> Frame:
    """Raises nothing but DecodeError, whatever the bytes."""
    try:
        layout, kind, node_id, incarnation, ticket, api_key, version = _HEAD.unpack_from(payload)
    except structs.error:
        raise DecodeError(f"a letter of {len(payload)} bytes, shorter than its head") from None
    if layout != _LAYOUT:
        raise DecodeError(f"a letter of layout {layout}; known is {_LAYOUT}")
    try:
        kind = Kind(kind)
    except ValueError:
        raise DecodeError(f"a letter of kind {kind}") from None
    body = payload[_HEAD.size :]
    return Frame(kind, node_id, UUID(bytes=incarnation), ticket, api_key, version, body)


def encode_refusal(error: KafkaError) -> bytes:
    """The body of a refusal."""
    return _CODE.pack(error.code) + error.why.encode("utf-8", "replace")


def decode_refusal(body: bytes) -> KafkaError:
    """Raises DecodeError. A code that is unknown here becomes UNKNOWN_SERVER_ERROR."""
    try:
        (code,) = _CODE.unpack_from(body)
        why = str(body[_CODE.size :], "utf-8")
    except (structs.error, UnicodeDecodeError) as error:
        raise DecodeError(f"a refusal: {error}") from None
    known = _CODES.get(code)
    if known is None:
        return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"error code {code}: {why}")
    return KafkaError(known, why)
