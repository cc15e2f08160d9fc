"""Records as views of the frame, and as copies: the two decoders agree, on garbage too."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.protocol import codec
from muster.protocol.errors import DecodeError
from muster.protocol.messages.data import FetchResponse
from tests.protocol.strategies import messages

VERSIONS = range(FetchResponse.__schema__.versions.first, FetchResponse.__schema__.versions.last + 1)


def decoded(decode: Any, version: int, data: bytes | bytearray) -> FetchResponse | type[DecodeError]:
    try:
        message: FetchResponse = decode(FetchResponse, version, data)
    except DecodeError:
        return DecodeError
    return message


@pytest.mark.parametrize("version", VERSIONS)
@given(st.data())
@settings(max_examples=30)
def test_they_agree(version: int, data: st.DataObject) -> None:
    whole = bytearray(codec.encode(data.draw(messages(FetchResponse, version)), version))
    if whole and data.draw(st.booleans()):
        place = data.draw(st.integers(0, len(whole) - 1))
        whole[place] = data.draw(st.integers(0, 255))
        del whole[data.draw(st.integers(0, len(whole))) :]
    copied = decoded(codec.decode, version, bytes(whole))
    for frame in (whole, bytes(whole)):
        viewed = decoded(codec.decode_with_views, version, frame)
        if isinstance(viewed, FetchResponse):
            for topic in viewed.responses:
                for part in topic.partitions:
                    if part.records is not None:
                        assert isinstance(part.records, memoryview)
                        assert part.records.obj is frame
                        part.records = bytes(part.records)
        assert viewed == copied
