"""Compiles a message class and a version to straight-line Python: one function that decodes, one that
encodes.

Nothing is interpreted per field at run time. Neighbouring fixed-width fields, together with the length or tag
count that follows them, are read and written by one precompiled `struct.Struct`; nested structs are inlined,
arrays of them become plain loops. Compiling happens on first use and takes about a millisecond. A compiled
wheel has many of these functions built in, as machine code (muster.protocol.built). To see the source:

    python -m muster.protocol JoinGroupRequest 9

The generated decoder trusts nothing. An array's length is checked against the remaining bytes before any
element is made; anything else that runs past the end is caught by the next read or by the final comparison of
position and end, since the position never moves back: a slice that came out short leaves the position past
the end.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from muster.protocol import built
from muster.protocol.decoder_source import decoder_source
from muster.protocol.encoder_source import encoder_source
from muster.protocol.message import Message
from muster.protocol.source import Source

Decoder = Callable[[bytes, int, int, int], tuple[Any, int]]
"""(data, position, end of data, most elements) -> (message, position after it). Besides DecodeError
(TooLargeError for too many elements) it may raise struct.error, IndexError and UnicodeDecodeError; the
position may lie beyond the end, which the caller must refuse."""

Pieces = list[bytes | memoryview]

Encoder = Callable[[Any], bytes]
"""message -> bytes. Raises whatever Python raises if a value does not fit; muster.protocol.codec translates
it."""


@cache
def decoder(cls: type[Message], version: int, *, views: bool = False) -> Decoder:
    """With `views`, records are memoryviews of the data. Raises ValueError for a version that the message
    does not have."""
    found: Decoder | None = None if views else built.find(built.DECODE, cls, version)
    return found or _compile(decoder_source(cls, version, views=views), cls, version, "decode")


@cache
def encoder(cls: type[Message], version: int) -> Encoder:
    """Raises ValueError for a version the message does not have."""
    found: Encoder | None = built.find(built.ENCODE, cls, version)
    return found or _compile(encoder_source(cls, version), cls, version, "encode")


@cache
def pieces_encoder(cls: type[Message], version: int) -> Callable[[Any], Pieces]:
    """Like `encoder`, but the function returns pieces."""
    compiled: Callable[[Any], Pieces] = _compile(
        encoder_source(cls, version, pieces=True), cls, version, "encode"
    )
    return compiled


def source(cls: type[Message], version: int) -> str:
    """The source of both functions, for people. Raises ValueError for a version the message does not have."""
    return f"{decoder_source(cls, version).text()}\n\n{encoder_source(cls, version).text()}"


def _compile(generated: Source, cls: type[Message], version: int, name: str) -> Any:
    return generated.function(name, f"{name} {cls.__qualname__} v{version}")
