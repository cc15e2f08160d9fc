"""Encodes and decodes messages. Codecs are compiled on first use; the reference explains what they refuse."""

from __future__ import annotations

import struct as structs
from typing import Any, Final, TypeVar

from muster.protocol import compiler, source
from muster.protocol.compiler import Decoder, Encoder, Pieces
from muster.protocol.errors import DecodeError, EncodeError, TooLargeError
from muster.protocol.message import Message
from muster.protocol.types import ELEMENTS_UNLIMITED

M = TypeVar("M", bound=Message)

EXPLAINED_BYTES_MAX: Final = 4 * 1024
"""Refused bytes up to this length are read again by the slow reference, to name the invalid field. Bounded,
since a sender of garbage must not choose how long that takes."""

_DECODE_FAILURES: Final = (DecodeError, structs.error, IndexError, UnicodeDecodeError)
_ENCODE_FAILURES: Final = (
    AttributeError,
    BufferError,
    KeyError,
    OverflowError,
    TypeError,
    ValueError,  # EncodeError and UnicodeEncodeError included
    structs.error,
)

_decoders: dict[tuple[type[Message], int], Decoder] = {}
_encoders: dict[tuple[type[Message], int], Encoder] = {}


def encode(message: Message, version: int) -> bytes:
    """Encode the message. Raises EncodeError, naming the field, if `version` cannot carry it."""
    key = (message.__class__, version)
    try:
        encoder = _encoders[key]
    except KeyError:
        encoder = _encoders[key] = _encoder(*key)
    try:
        return encoder(message)
    except _ENCODE_FAILURES as error:
        raise _encode_error(message, version, error) from error


def encode_pieces(message: Message, version: int) -> Pieces:
    """Like `encode`, but returns pieces: bytes fields, which may be most of a message, are not copied."""
    try:
        return compiler.pieces_encoder(message.__class__, version)(message)
    except _ENCODE_FAILURES as error:
        raise _encode_error(message, version, error) from error


def decode(cls: type[M], version: int, data: bytes | bytearray | memoryview, offset: int = 0) -> M:
    """Decode the message from `offset` to the end of `data`. Raises only DecodeError, whatever the bytes."""
    if data.__class__ is not bytes:
        data = bytes(data)
    end = len(data)
    message, position = _decode(cls, version, data, offset, end, ELEMENTS_UNLIMITED)
    if position != end:
        raise _decode_error(cls, version, data, offset, None)
    return message


def decode_with_views(cls: type[M], version: int, data: bytes | bytearray, offset: int = 0) -> M:
    """Like `decode`, but record fields, which may be most of the data, are memoryviews of it."""
    end = len(data)
    decoder: Any = _decoder(cls, version, views=True)
    try:
        message, position = decoder(data, offset, end, ELEMENTS_UNLIMITED)
    except _DECODE_FAILURES as error:
        raise _decode_error(cls, version, bytes(data), offset, error) from error
    if position != end:
        raise _decode_error(cls, version, bytes(data), offset, None)
    return message  # type: ignore[no-any-return]


def decode_prefix(
    cls: type[M],
    version: int,
    data: bytes | bytearray | memoryview,
    offset: int = 0,
    elements_max: int = ELEMENTS_UNLIMITED,
) -> tuple[M, int]:
    """Decode the message at `offset`; also returns the offset of the first byte after it. Raises DecodeError,
    or TooLargeError if its arrays and tags have more than `elements_max` elements in total."""
    if data.__class__ is not bytes:
        data = bytes(data)
    end = len(data)
    message, position = _decode(cls, version, data, offset, end, elements_max)
    if position > end:
        raise _decode_error(cls, version, data, offset, None)
    return message, position


def skip_tags(data: bytes | bytearray, offset: int, tags_max: int = ELEMENTS_UNLIMITED) -> int:
    """The offset after the tag block that begins at `offset`. Raises DecodeError, or TooLargeError for more
    than `tags_max` tags."""
    try:
        position, _ = source.skip_tags(data, offset + 1, data[offset], len(data), tags_max)
    except IndexError:
        position = len(data) + 1
    if position > len(data):
        raise DecodeError("the tag block is longer than the bytes left")
    return position


def _decode(cls: type[M], version: int, data: Any, offset: int, end: int, elements_max: int) -> tuple[M, int]:
    key = (cls, version)
    try:
        decoder = _decoders[key]
    except KeyError:
        decoder = _decoders[key] = _decoder(*key)
    try:
        return decoder(data, offset, end, elements_max)
    except TooLargeError as too_large:
        raise TooLargeError(f"{cls.__qualname__} v{version}: {too_large}") from None
    except _DECODE_FAILURES as error:
        raise _decode_error(cls, version, data, offset, error) from error


def _encoder(cls: type[Message], version: int) -> Encoder:
    try:
        return compiler.encoder(cls, version)
    except ValueError as error:
        raise EncodeError(str(error)) from None


def _decoder(cls: type[Message], version: int, *, views: bool = False) -> Decoder:
    try:
        return compiler.decoder(cls, version, views=views)
    except ValueError as error:
        raise DecodeError(str(error)) from None


def _encode_error(message: Message, version: int, error: Exception) -> EncodeError:
    from muster.protocol import reference

    try:
        reference.encode(message, version)
    except EncodeError as explained:
        return explained
    return EncodeError(f"{type(message).__qualname__} v{version}: {error}")


def _decode_error(
    cls: type[Message], version: int, data: bytes, offset: int, error: Exception | None
) -> DecodeError:
    if len(data) - offset <= EXPLAINED_BYTES_MAX:
        from muster.protocol import reference

        try:
            _, position = reference.decode_prefix(cls, version, data, offset)
        except DecodeError as explained:
            return explained
        if error is None:
            return DecodeError(f"{cls.__qualname__} v{version}: {len(data) - position} bytes left over")
    reason = "too few bytes, or too many" if error is None else str(error)
    return DecodeError(f"{cls.__qualname__} v{version}: {reason}")
