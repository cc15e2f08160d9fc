"""Headers: the part of a frame before the message.

A request header holds api key int16, version int16, correlation id int32 and client id, a string with an
int16 length even in header version 2, which adds a tag block. A response header holds the correlation id and,
in version 1, a tag block.
"""

from __future__ import annotations

import struct as structs
from functools import lru_cache
from typing import Final, NamedTuple

from muster.protocol import api, codec
from muster.protocol.compiler import Pieces
from muster.protocol.errors import DecodeError, EncodeError, UnknownApiError
from muster.protocol.message import Message
from muster.protocol.text import LENIENT
from muster.protocol.types import STRING_BYTES_MAX

_REQUEST: Final = structs.Struct(">hhih")
_RESPONSE: Final = structs.Struct(">i")
_FRAMED_REQUEST: Final = structs.Struct(">ihhih")
_FRAMED_RESPONSE: Final = structs.Struct(">ii")
_SIZE_BYTES: Final = 4
_NO_TAGS: Final = b"\x00"
_PIECE_BYTES_MIN: Final = 8 * 1024
_TAGS_MAX: Final = 1_000
"""Maximum number of tags skipped in a request's header; Kafka has defined none so far."""


_request_header_version = lru_cache(maxsize=1024)(api.request_header_version)
_response_header_version = lru_cache(maxsize=1024)(api.response_header_version)


class RequestHeader(NamedTuple):
    """`client_id` is None if the client sent null."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def decode_request_header(frame: bytes) -> tuple[RequestHeader, int]:
    """The header of a request frame (without its size), and the offset at which the message begins.

    The version is not checked against those served: the caller refuses it, or, for ApiVersions, answers it.
    Raises DecodeError for an undeclared API, since the layout of its header is unknown.
    """
    try:
        api_key, api_version, correlation_id, length = _REQUEST.unpack_from(frame)
    except structs.error:
        raise DecodeError(f"a request of {len(frame)} bytes, shorter than its header") from None
    offset = _REQUEST.size
    client_id = None
    if length >= 0:
        end = offset + length
        if end > len(frame):
            raise DecodeError(f"client_id: {length} bytes announced, {len(frame) - offset} there")
        try:
            client_id = str(frame[offset:end], "utf-8", LENIENT)
        except UnicodeDecodeError as error:
            raise DecodeError(f"client_id: {error.reason}") from None
        offset = end
    elif length != -1:
        raise DecodeError(f"client_id: a length of {length}")
    try:
        header_version = _request_header_version(api_key, api_version)
    except KeyError:
        raise UnknownApiError(f"api_key: {_api_name(api_key)} is not spoken here", api_key) from None
    if header_version == 2:
        if frame[offset : offset + 1] == _NO_TAGS:
            offset += 1
        else:
            offset = codec.skip_tags(frame, offset, _TAGS_MAX)
    return RequestHeader(api_key, api_version, correlation_id, client_id), offset


def decode_response_header(api_key: int, version: int, frame: bytes | bytearray) -> tuple[int, int]:
    """The correlation id of a response frame (without its size), and the offset at which the message
    begins."""
    try:
        (correlation_id,) = _RESPONSE.unpack_from(frame)
    except structs.error:
        raise DecodeError(f"a response of {len(frame)} bytes, shorter than its header") from None
    offset = _RESPONSE.size
    if api.response_header_version(api_key, version) == 1:
        offset = codec.skip_tags(frame, offset)
    return correlation_id, offset


def encode_request(
    api_key: int, version: int, correlation_id: int, client_id: str | None, message: Message
) -> bytes:
    """A request frame, with its size."""
    name = b"" if client_id is None else client_id.encode("utf-8")
    if len(name) > STRING_BYTES_MAX:
        raise EncodeError(f"client_id: a string of {len(name)} bytes")
    tags = _NO_TAGS if api.request_header_version(api_key, version) == 2 else b""
    body = codec.encode(message, version)
    size = _FRAMED_REQUEST.size - _SIZE_BYTES + len(name) + len(tags) + len(body)
    length = -1 if client_id is None else len(name)
    return b"".join((_FRAMED_REQUEST.pack(size, api_key, version, correlation_id, length), name, tags, body))


def encode_response(api_key: int, version: int, correlation_id: int, message: Message) -> bytes:
    """A response frame, with its size."""
    body = codec.encode(message, version)
    if _response_header_version(api_key, version) == 1:
        return _FRAMED_RESPONSE.pack(len(body) + 5, correlation_id) + _NO_TAGS + body
    return _FRAMED_RESPONSE.pack(len(body) + 4, correlation_id) + body


def encode_response_pieces(
    api_key: int, version: int, correlation_id: int, message: Message
) -> bytes | Pieces:
    """Like `encode_response`, but large bytes fields are not copied into one frame; returns its pieces."""
    pieces = codec.encode_pieces(message, version)
    size = sum(map(len, pieces))
    tags = _NO_TAGS if _response_header_version(api_key, version) == 1 else b""
    pieces.insert(0, _FRAMED_RESPONSE.pack(size + _SIZE_BYTES + len(tags), correlation_id) + tags)
    return pieces if size >= _PIECE_BYTES_MIN * len(pieces) else b"".join(pieces)


def _api_name(api_key: int) -> str:
    try:
        return f"{api.ApiKey(api_key).name} ({api_key})"
    except ValueError:
        return f"API {api_key}"
