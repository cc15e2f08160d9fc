"""Headers, by bytes worked out by hand from the protocol guide."""

from __future__ import annotations

import pytest

from muster.protocol import codec
from muster.protocol.api import ApiKey
from muster.protocol.errors import DecodeError, EncodeError
from muster.protocol.header import (
    RequestHeader,
    decode_request_header,
    decode_response_header,
    encode_request,
    encode_response,
    encode_response_pieces,
)
from muster.protocol.messages.classic_group import HeartbeatRequest, HeartbeatResponse
from muster.protocol.messages.connection import ApiVersionsRequest, ApiVersionsResponse
from muster.protocol.messages.data import FetchResponse
from tests.support.each import each

HEARTBEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
HEARTBEAT_V0 = "0001 67 00000001 0001 6d"
HEARTBEAT_V4 = "02 67 00000001 02 6d 00 00"


@each(
    "version, client_id, frame",
    [
        pytest.param(0, "me", "00000015 000c 0000 00000007 0002 6d65" + HEARTBEAT_V0, id="header v1"),
        pytest.param(0, None, "00000013 000c 0000 00000007 ffff" + HEARTBEAT_V0, id="no client id"),
        pytest.param(0, "", "00000013 000c 0000 00000007 0000" + HEARTBEAT_V0, id="an empty client id"),
        # Header v2 adds tags, but keeps the client id with its int16 length.
        pytest.param(4, "me", "00000017 000c 0004 00000007 0002 6d65 00" + HEARTBEAT_V4, id="header v2"),
    ],
)
def test_request(version: int, client_id: str | None, frame: str) -> None:
    data = bytearray.fromhex(frame)
    data[:4] = (len(data) - 4).to_bytes(4, "big")
    assert encode_request(ApiKey.HEARTBEAT, version, 7, client_id, HEARTBEAT) == data
    header, offset = decode_request_header(bytes(data[4:]))
    assert header == RequestHeader(ApiKey.HEARTBEAT, version, 7, client_id)
    assert codec.decode(HeartbeatRequest, version, bytes(data[4:]), offset) == HEARTBEAT


@each(
    "version, frame",
    [
        pytest.param(0, "00000006 00000007 001b", id="header v0"),
        pytest.param(1, "0000000a 00000007 00000000 001b", id="header v0 with throttle time"),
        pytest.param(4, "0000000c 00000007 00 00000000 001b 00", id="header v1"),
    ],
)
def test_response(version: int, frame: str) -> None:
    data = bytes.fromhex(frame)
    message = HeartbeatResponse(error_code=27)
    assert encode_response(ApiKey.HEARTBEAT, version, 7, message) == data
    correlation_id, offset = decode_response_header(ApiKey.HEARTBEAT, version, data[4:])
    assert correlation_id == 7
    assert codec.decode(HeartbeatResponse, version, data[4:], offset) == message


def fetched(*records: bytes | memoryview, high_watermark: int = 9) -> FetchResponse:
    parts = [
        FetchResponse.PartitionData(
            partition_index=index, high_watermark=high_watermark, aborted_transactions=None, records=each
        )
        for index, each in enumerate(records)
    ]
    return FetchResponse(responses=[FetchResponse.FetchableTopicResponse(partitions=parts)])


@each("version", [4, 11, 12, 18])
@each("size", [0, 10, 100_000])
def test_a_response_in_pieces_is_the_same_and_does_not_copy_what_is_large(version: int, size: int) -> None:
    records = [b"x" * size, memoryview(b"y" * size)[: size // 2]]
    message = fetched(*records)
    found = encode_response_pieces(ApiKey.FETCH, version, 7, message)
    whole = found if isinstance(found, bytes) else b"".join(found)
    assert whole == encode_response(ApiKey.FETCH, version, 7, message)
    assert isinstance(found, bytes) == (size < 100_000)
    if size == 100_000:
        assert [each for each in found if any(each is one for one in records)] == records


def test_what_a_response_in_pieces_cannot_carry_is_refused() -> None:
    with pytest.raises(EncodeError, match="high_watermark"):
        encode_response_pieces(ApiKey.FETCH, 12, 7, fetched(b"", high_watermark=1 << 64))


def test_api_versions_responses_never_have_tags_in_the_header() -> None:
    frame = encode_response(ApiKey.API_VERSIONS, 3, 7, ApiVersionsResponse(api_keys=[]))
    assert frame == bytes.fromhex("0000000c 00000007 0000 01 00000000 00")
    assert decode_response_header(ApiKey.API_VERSIONS, 3, frame[4:]) == (7, 4)


def test_api_versions_requests_that_are_too_new_still_have_a_header() -> None:
    frame = bytes.fromhex("0012 0063 00000007 0002 6d65 00") + b"who knows"
    assert decode_request_header(frame) == (RequestHeader(ApiKey.API_VERSIONS, 99, 7, "me"), 13)


def test_a_client_id_that_is_not_utf8_is_read_with_replacements() -> None:
    frame = bytes.fromhex("000c 0000 00000007 0002 c328") + b"rest"
    assert decode_request_header(frame) == (RequestHeader(ApiKey.HEARTBEAT, 0, 7, "\ufffd("), 12)


def test_tags_in_a_header_are_skipped() -> None:
    body = codec.encode(HEARTBEAT, 4)
    frame = bytes.fromhex("000c 0004 00000007 0000 02 00 01 aa 05 00") + body
    _, offset = decode_request_header(frame)
    assert frame[offset:] == body
    response = bytes.fromhex("00000007 01 8001 02 aabb") + b"rest"
    assert decode_response_header(ApiKey.HEARTBEAT, 4, response) == (7, 10)


@each(
    "frame, reason",
    [
        pytest.param("", "shorter than its header", id="nothing"),
        pytest.param("000c 0000 00000007 00", "shorter than its header", id="cut off in the length"),
        pytest.param("000c 0000 00000007 0003 6d65", "client_id: 3 bytes announced, 2 there", id="cut off"),
        pytest.param("000c 0000 00000007 fffe", "client_id: a length of -2", id="negative length"),
        pytest.param(
            "000c 0000 00000007 2aab" + "ff" * 0x2AAB,
            "client_id: too long with replacements",
            id="too long with replacements",
        ),
        pytest.param("03e7 0000 00000007 ffff", "API 999 is not spoken here", id="unknown API"),
        pytest.param("ffff 0000 00000007 ffff", "API -1 is not spoken here", id="negative API"),
        pytest.param("0034 0000 00000007 ffff", "VOTE \\(52\\) is not spoken here", id="undeclared API"),
        pytest.param("000c 0004 00000007 ffff", "tag block", id="no tags"),
        pytest.param("000c 0004 00000007 ffff 01 00", "1 tags, more than", id="half a tag"),
        pytest.param("000c 0004 00000007 ffff 01 00 05 00", "tag block", id="a tag past the end"),
        pytest.param("000c 0004 00000007 ffff ffffffffff", "more than 32 bits", id="a count of 35 bits"),
        pytest.param("000c 0004 00000007 ffff 02 00 00 00 00", "tag 0 behind tag 0", id="a tag twice"),
        pytest.param("000c 0004 00000007 ffff 0a 00 00", "10 tags, more than", id="too many tags"),
    ],
)
def test_refused_requests(frame: str, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        decode_request_header(bytes.fromhex(frame))


def test_refused_responses() -> None:
    with pytest.raises(DecodeError, match="shorter than its header"):
        decode_response_header(ApiKey.HEARTBEAT, 0, b"\x00\x00\x00")
    with pytest.raises(DecodeError, match="tag block"):
        decode_response_header(ApiKey.HEARTBEAT, 4, b"\x00\x00\x00\x07")


def test_a_client_id_that_does_not_fit() -> None:
    with pytest.raises(EncodeError, match="client_id"):
        encode_request(ApiKey.API_VERSIONS, 0, 7, "x" * 32768, ApiVersionsRequest())
