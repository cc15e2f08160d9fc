"""Other protocols are recognised by their first bytes."""

from __future__ import annotations

import ssl

import pytest

from muster.protocol.api import ApiKey
from muster.protocol.errors import DecodeError, ForeignProtocolError
from muster.protocol.foreign import AMQP, HTTP, POSTGRESQL, PROXY, REDIS, SSH, TLS, protocol_of
from muster.protocol.frame import FRAME_BYTES_MAX_DEFAULT, FrameSplitter
from tests.support.each import each


def client_hello() -> bytes:
    """What a TLS client sends first."""
    out = ssl.MemoryBIO()
    made = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        made.do_handshake()
    return out.read()


FOREIGN = [
    (b"GET / HTTP/1.1\r\n\r\n", HTTP),
    (b"POST /topics HTTP/1.1\r\n", HTTP),
    (b"PUT / HTTP/1.1\r\n", HTTP),
    (b"HEAD / HTTP/1.1\r\n", HTTP),
    (b"OPTIONS * HTTP/1.1\r\n", HTTP),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", HTTP),
    (b"HTTP/1.1 400 Bad Request\r\n", HTTP),
    (client_hello(), TLS),
    (bytes.fromhex("15030100020232"), TLS),
    (b"SSH-2.0-OpenSSH_9.6\r\n", SSH),
    (b"PROXY TCP4 10.0.0.1 10.0.0.2 5000 9092\r\n", PROXY),
    (b"\r\n\r\n\x00\r\nQUIT\n", PROXY),
    (b"*1\r\n$4\r\nPING\r\n", REDIS),
    (b"PING\r\n", REDIS),
    (b"AMQP\x00\x00\x09\x01", AMQP),
]


@each("beginning, protocol", FOREIGN)
def test_a_stream_of_another_protocol_is_no_frame(beginning: bytes, protocol: str) -> None:
    assert protocol_of(beginning) == protocol
    with pytest.raises(ForeignProtocolError, match=f"^{protocol} instead of Kafka's protocol") as refused:
        FrameSplitter(FRAME_BYTES_MAX_DEFAULT).feed(beginning)
    assert refused.value.protocol == protocol


def test_postgresql_begins_with_the_size_of_a_small_frame() -> None:
    assert protocol_of(bytes.fromhex("0000000804d2162f")) == POSTGRESQL
    assert protocol_of(bytes.fromhex("0000000804d21630")) == POSTGRESQL


@each("size", [0, 8, FRAME_BYTES_MAX_DEFAULT, FRAME_BYTES_MAX_DEFAULT + 1, 2**31 - 1])
@each("api_key", [ApiKey.PRODUCE, ApiKey.API_VERSIONS, 0x04D2])
def test_no_request_is_taken_for_another_protocol(size: int, api_key: int) -> None:
    assert protocol_of(size.to_bytes(4, "big") + api_key.to_bytes(2, "big") + b"\x00\x00") is None


def test_a_frame_that_is_merely_too_large_is_no_other_protocol() -> None:
    with pytest.raises(DecodeError, match="a frame of 2147483647 bytes; allowed are 0 to 10") as refused:
        FrameSplitter(10).feed(b"\x7f\xff\xff\xff")
    assert not isinstance(refused.value, ForeignProtocolError)
