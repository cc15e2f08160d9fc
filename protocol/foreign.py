"""Recognises other protocols by their first bytes, so that errors and logs can name them."""

from __future__ import annotations

from typing import Final

HTTP: Final = "HTTP"
TLS: Final = "TLS"
SSH: Final = "SSH"
PROXY: Final = "the PROXY protocol"
REDIS: Final = "Redis"
AMQP: Final = "AMQP"
POSTGRESQL: Final = "PostgreSQL"

BEGINNING_BYTES: Final = 8
"""How many bytes are examined."""

_BEGINNINGS: Final = {
    **dict.fromkeys(
        (b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"DELE", b"PATC", b"CONN", b"TRAC", b"PRI ", b"HTTP"),
        HTTP,
    ),
    b"SSH-": SSH,
    b"PROX": PROXY,
    b"\r\n\r\n": PROXY,  # version 2
    b"PING": REDIS,
    b"AMQP": AMQP,
}
_POSTGRESQL_REQUESTS: Final = (b"\x00\x00\x00\x08\x04\xd2\x16\x2f", b"\x00\x00\x00\x08\x04\xd2\x16\x30")
"""SSLRequest and GSSENCRequest."""
_TLS_RECORDS: Final = range(0x14, 0x18)
_TLS_MAJOR: Final = 3


def protocol_of(beginning: bytes) -> str | None:
    """The protocol of a stream that begins with these bytes; None if unknown."""
    if len(beginning) < 4:
        return None
    if beginning[0] in _TLS_RECORDS and beginning[1] == _TLS_MAJOR:
        return TLS
    if beginning[:1] == b"*" and beginning[1:2].isdigit() and beginning[2:4] == b"\r\n":
        return REDIS
    if beginning[:BEGINNING_BYTES] in _POSTGRESQL_REQUESTS:
        return POSTGRESQL
    return _BEGINNINGS.get(beginning[:4])
