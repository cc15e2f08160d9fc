"""The compiled codec against its slow twin: the same bytes out, the same value or the same refusal back.

An ordinary run tries a handful of examples for each message and version. To try more:

    MUSTER_TWIN_EXAMPLES=200 pytest tests/protocol/test_twins.py
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.protocol import codec, reference
from muster.protocol.errors import DecodeError, EncodeError
from muster.protocol.layout import message_layout
from muster.protocol.message import Message
from tests.protocol.strategies import every_version, messages, mutations
from tests.support.each import each

EXAMPLES = int(os.environ.get("MUSTER_TWIN_EXAMPLES", "4"))

VERSIONS = [pytest.param(cls, version, id=f"{cls.__name__}-{version}") for cls, version in every_version()]

twins = settings(
    max_examples=EXAMPLES,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def outcome(decode: Any, cls: type[Message], version: int, data: bytes) -> object:
    """The outcome of `decode`; the repr distinguishes True from 1, which equality does not."""
    try:
        message = decode(cls, version, data)
    except DecodeError:
        return DecodeError
    return message, repr(message)


def test_every_message_is_here() -> None:
    assert len({cls.__name__ for cls, _ in every_version()}) > 50


@each("cls, version", VERSIONS)
def test_twins_agree(cls: type[Message], version: int) -> None:
    @twins
    @given(data=st.data())
    def agree(data: st.DataObject) -> None:
        message = data.draw(messages(cls, version))
        encoded = codec.encode(message, version)
        assert encoded == reference.encode(message, version)
        assert len(encoded) >= message_layout(cls, version).bytes_min()
        assert codec.decode(cls, version, encoded) == message
        assert reference.decode(cls, version, encoded) == message
        assert repr(codec.decode(cls, version, encoded)) == repr(message)

        for _ in range(3):
            mutated = data.draw(mutations(encoded))
            compiled = outcome(codec.decode, cls, version, mutated)
            assert compiled == outcome(reference.decode, cls, version, mutated)
            if compiled is not DecodeError:
                # What was accepted means something: it can be encoded, and decodes to the same message again.
                accepted = codec.decode(cls, version, mutated)
                assert codec.decode(cls, version, codec.encode(accepted, version)) == accepted

    agree()


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
