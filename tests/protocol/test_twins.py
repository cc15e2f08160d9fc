"""The compiled codec against its slow twin where messages end too early, too late, or in another version.

tests/fuzz/test_codec_twins.py tries any messages.
"""

from __future__ import annotations

from typing import Any

import pytest

from muster.protocol import codec, reference
from muster.protocol.errors import DecodeError, EncodeError
from muster.protocol.message import Message
from tests.protocol.strategies import every_version
from tests.support.each import each

VERSIONS = [pytest.param(cls, version, id=f"{cls.__name__}-{version}") for cls, version in every_version()]


def test_every_message_is_here() -> None:
    assert len({cls.__name__ for cls, _ in every_version()}) > 50


@each("cls, version", VERSIONS)
def test_every_prefix_is_refused(cls: type[Message], version: int) -> None:
    message = reference.decode(cls, version, _smallest(cls, version))
    data = codec.encode(message, version)
    for length in range(len(data)):
        with pytest.raises(DecodeError):
            codec.decode(cls, version, data[:length])
    with pytest.raises(DecodeError):
        codec.decode(cls, version, data + b"\x00")


def _smallest(cls: type[Message], version: int) -> bytes:
    """The bytes of the message whose fields are as empty as possible."""
    return reference.encode(_empty(cls), version)


def _empty(cls: Any) -> Any:
    required = {
        field.name: field.type.implicit_default()
        if hasattr(field.type, "implicit_default")
        else _empty(field.type)
        for field in cls.__fields__
        if field.required
    }
    return cls(**required)


@each("cls, version", VERSIONS)
def test_twins_refuse_the_same_versions(cls: type[Message], version: int) -> None:
    beyond = cls.__schema__.versions.last + 1
    for refused in (beyond, -1):
        with pytest.raises(DecodeError, match="has versions"):
            codec.decode(cls, refused, b"")
        with pytest.raises(EncodeError, match="has versions"):
            codec.encode(_empty(cls), refused)
