"""Connections to a broker that many plays share.

Every request names its client, so any idle connection will do; a connection with a request in flight is held
until its answer arrives, since brokers process one request per connection at a time.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from muster.protocol import codec, header
from muster.protocol.api import ApiKey, response_class
from muster.protocol.frame import FrameSplitter
from muster.protocol.message import Message
from muster.protocol.messages.connection import ApiVersionsRequest
from tests.kafka.compared import Answers
from tests.kafka.differential.same_ids import SameIds
from tests.kafka.differential.watched import Watched

ANSWER_S_MAX: Final = 60.0
"""For requests that are answered at once."""


class Line(asyncio.Protocol):
    """One connection with at most one request in flight."""

    def __init__(self) -> None:
        self._splitter = FrameSplitter()
        self._transport: asyncio.Transport | None = None
        self._correlation_id = 0
        self._asked: tuple[ApiKey, int, Callable[[Message | None], None]] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    @property
    def is_idle(self) -> bool:
        return self._asked is None and not self.is_closed

    @property
    def is_closed(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def send(
        self, client_id: str, message: Message, version: int, answered: Callable[[Message | None], None]
    ) -> None:
        """Send a request. `answered` receives its answer, or None if the connection ends without one."""
        assert self.is_idle
        assert self._transport is not None
        api = ApiKey(message.__schema__.api_key or 0)
        self._correlation_id += 1
        self._asked = (api, version, answered)
        self._transport.write(header.encode_request(api, version, self._correlation_id, client_id, message))

    async def call(self, client_id: str, message: Message, version: int) -> Any:
        """Send a request and wait for its answer. Raises ConnectionError, TimeoutError."""
        future = asyncio.get_running_loop().create_future()
        self.send(client_id, message, version, lambda answer: future.done() or future.set_result(answer))
        async with asyncio.timeout(ANSWER_S_MAX):
            answer = await future
        if answer is None:
            raise ConnectionError("the broker closed the connection")
        return answer

    def close(self) -> None:
        self._asked = None
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        for frame in self._splitter.feed(data):
            assert self._asked is not None, "an answer to nothing"
            api, version, answered = self._asked
            correlation_id, offset = header.decode_response_header(api, version, frame)
            assert correlation_id == self._correlation_id
            self._asked = None
            answered(codec.decode(response_class(api), version, frame, offset))

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._asked is not None:
            _, _, answered = self._asked
            self._asked = None
            answered(None)


class Connections:
    """Connections to one broker, which has the topics of `topic_ids`."""

    def __init__(
        self, host: str, port: int, topic_ids: Mapping[str, uuid.UUID], ids: SameIds | None = None
    ) -> None:
        self.address = (host, port)
        self.ids = ids or SameIds()
        """Where the broker gets its ids, if it is given any."""
        self.watched = Watched()
        self._idle: list[Line] = []
        self._topic_ids = dict(topic_ids)
        self.answers = Answers()

    def topic_id(self, name: str) -> uuid.UUID:
        """The id of a topic; for a name without a topic, an id that no topic has."""
        return self._topic_ids.setdefault(name, uuid.uuid4())

    def know_topic(self, name: str, topic_id: uuid.UUID) -> None:
        """Record a new topic."""
        self._topic_ids[name] = topic_id

    async def lease(self) -> Line:
        """A connection without a request in flight, to be returned with `give_back`."""
        while self._idle:
            line = self._idle.pop()
            if line.is_idle:
                return line
        loop = asyncio.get_running_loop()
        _, line = await loop.create_connection(Line, *self.address)
        # A broker accepts connections in parallel: before this answer, others could overtake it.
        await line.call("control", ApiVersionsRequest(), 0)
        return line

    def give_back(self, line: Line) -> None:
        """Return a connection; one with a request in flight is closed."""
        if line.is_idle:
            self._idle.append(line)
        else:
            line.close()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()
