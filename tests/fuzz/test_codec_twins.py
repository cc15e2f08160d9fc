"""The compiled codec against its slow twin: the same bytes out, the same value or the same refusal back.

An ordinary run tries a handful of examples for each message and version. To try more:

    MUSTER_TWIN_EXAMPLES=200 pytest tests/fuzz/test_codec_twins.py
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.protocol import codec, reference
from muster.protocol.errors import DecodeError
from muster.protocol.layout import message_layout
from muster.protocol.message import Message
from tests.protocol.strategies import every_version, messages, mutations
from tests.support.each import each

EXAMPLES = int(os.environ.get("MUSTER_TWIN_EXAMPLES", "4"))

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


@each("cls, version", every_version(), ids=str)
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
