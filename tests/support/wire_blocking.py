"""A blocking client with one connection that decides nothing (`wire` has the asyncio one)."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Final, Self, TypeVar

from muster.protocol import api, codec, header
from muster.protocol.frame import FrameSplitter
from muster.protocol.message import Message

M = TypeVar("M", bound=Message)

REPLY_SECONDS_MAX: Final = 30.0


class ConnectionClosed(Exception):
    """The broker closed the connection instead of answering."""


class WireConnection:
    """One TCP connection with at most one request in flight."""

    def __init__(self, host: str, port: int, client_id: str | None) -> None:
        self.client_id = client_id
        self._socket = socket.create_connection((host, port), timeout=REPLY_SECONDS_MAX)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._splitter = FrameSplitter()
        self._correlation_id = 0
        self._asked: tuple[int, int] | None = None  # api key and version of the request in flight

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        asked = "idle" if self._asked is None else f"waits for {api.ApiKey(self._asked[0]).name}"
        return f"<WireConnection {self.client_id} {asked}>"

    @property
    def in_flight(self) -> bool:
        return self._asked is not None

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def send(self, request: Message, version: int, *, answered: bool = True) -> None:
        """Send `request`; take the reply with `receive`, unless it is one that is not answered."""
        assert self._asked is None, f"{self!r} has a request in flight"
        api_key = request.__schema__.api_key
        assert api_key is not None
        self._correlation_id += 1
        self._asked = (api_key, version) if answered else None
        self._socket.sendall(
            header.encode_request(api_key, version, self._correlation_id, self.client_id, request)
        )

    def receive(self, seconds: float = REPLY_SECONDS_MAX) -> Message:
        """The reply in flight. Raises ConnectionClosed, or TimeoutError: then it may be called again."""
        assert self._asked is not None, f"{self!r} has nothing to wait for"
        deadline = time.monotonic() + seconds
        frames: list[bytes] = []
        while not frames:
            if not readable([self], deadline - time.monotonic()):
                raise TimeoutError(f"{self!r}: no reply within {seconds:g} s")
            piece = self._socket.recv(65536)
            if not piece:
                raise ConnectionClosed(repr(self))
            frames = self._splitter.feed(piece)
        (frame,) = frames
        api_key, version = self._asked
        correlation_id, offset = header.decode_response_header(api_key, version, frame)
        assert correlation_id == self._correlation_id, f"{self!r}: reply to request {correlation_id}"
        reply = codec.decode(api.response_class(api_key), version, frame, offset)
        self._asked = None
        return reply

    def call(self, request: Message, version: int, reply_class: type[M]) -> M:
        """Send `request` and wait for its reply, a `reply_class`."""
        self.send(request, version)
        reply = self.receive()
        assert isinstance(reply, reply_class)
        return reply


def readable(connections: Iterable[WireConnection], seconds: float) -> list[WireConnection]:
    """The `connections` that are readable or at their end; waits up to `seconds` for the first."""
    return select.select(list(connections), [], [], max(seconds, 0))[0]
