"""Simulated TCP: ordered bytes with latency between clients and the real connection protocol of a broker.

A `Link` is one connection. The broker's end is an asyncio transport, the client's end is the link itself.
What can go wrong: either end closes or resets; the client vanishes, and the broker never notices; one
direction is lost for good, and neither end notices; or a broker is out of its clients' reach for a while, and
what is in flight arrives late.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from muster.protocol.frame import FrameSplitter

Address = tuple[str, int]

_CONNECT_TIMEOUT_S = 3.0


class Latency:
    """Seconds that a message is in flight; `slow` is the chance of one that takes up to a hundred times
    longer.

    Each pipe has its own dice. What a broker sends over several connections at the same instant may leave it
    in any order, that of a set, so this is what makes a seed reproducible.
    """

    def __init__(self, rng: random.Random) -> None:
        self.slow = 0.0
        self._rng = rng

    def dice(self) -> random.Random:
        return random.Random(self._rng.getrandbits(64))

    def draw_s(self, dice: random.Random) -> float:
        usual_s = dice.uniform(0.0002, 0.005)
        return usual_s * dice.uniform(10, 100) if dice.random() < self.slow else usual_s


class _Pipe:
    """One direction: what goes in comes out in order, each message after its own latency or right behind the
    previous one.
    """

    def __init__(self, network: Network, address: Address) -> None:
        self.lost = False
        """Whether everything sent from now on is lost."""
        self._loop = network.loop
        self._network = network
        self._address = address
        self._dice = network.latency.dice()
        self._queue: deque[Callable[[], None]] = deque()
        self._last_s = 0.0
        self._held_until_s = 0.0

    @property
    def held_s(self) -> float:
        """How long nothing sent now will arrive: during an outage, and also after it, until what was sent
        during the outage has been retransmitted."""
        return max(self._network.reached_in_s(self._address), self._held_until_s - self._loop.time(), 0.0)

    def send(self, arrive: Callable[[], None]) -> None:
        if self.lost:
            return
        self._queue.append(arrive)
        reached_in_s = self._network.reached_in_s(self._address)
        delay_s = reached_in_s + self._network.latency.draw_s(self._dice)
        self._last_s = max(self._last_s, self._loop.time() + delay_s)
        if reached_in_s:
            self._held_until_s = self._last_s
        self._loop.call_at(self._last_s, self._arrived)

    def drop(self) -> None:
        """Lose everything in flight."""
        self._queue.clear()

    def _arrived(self) -> None:
        if self._queue:
            self._queue.popleft()()


class Wire(Protocol):
    """Listens to what brokers put on the wire, at that moment."""

    def replied(self, link: Link, frame: bytes) -> None: ...

    def closed(self, link: Link) -> None: ...


class Disconnected(Exception):
    """The connection is gone."""


class Link:
    """One connection as its client sees it."""

    def __init__(self, network: Network, address: Address, client_host: str) -> None:
        self.address = address
        self.client_host = client_host
        self.open = True
        self._loop = network.loop
        self._network = network
        self._dropped = False
        self._to_broker = _Pipe(network, address)
        self._to_client = _Pipe(network, address)
        self._splitter = FrameSplitter()
        self._reply: asyncio.Future[bytes] | None = None
        self._transport = _BrokerEnd(self, network.wire)

    @property
    def closed_by_broker(self) -> bool:
        """Whether the broker's end is closed; the client may not know yet."""
        return self._transport.is_closing()

    async def exchange(self, frame: bytes, timeout_s: float) -> bytes:
        """Send a request frame and wait for the reply's frame, without its size. Raises Disconnected; the
        client closes if it takes longer than `timeout_s`.
        """
        if not self.open:
            raise Disconnected
        self._reply = self._loop.create_future()
        self.send(frame)
        timer = self._loop.call_later(timeout_s, self.close)
        try:
            return await self._reply
        finally:
            timer.cancel()
            self._reply = None

    def send(self, data: bytes) -> None:
        self._to_broker.send(lambda: self._transport.receive(data))

    def close(self) -> None:
        """FIN behind what was sent. If that cannot arrive now, it never will, because a client that may retry
        elsewhere has to ensure this.
        """
        if self.open:
            self._end()
            if self.held_s:
                self._to_broker.drop()
                self._dropped = True
            self._to_broker.send(self._transport.lose)

    @property
    def held_s(self) -> float:
        """How long nothing that the client sends reaches the broker."""
        return self._to_broker.held_s

    def lose(self, *, requests: bool, replies: bool) -> None:
        """From now on nothing arrives in these directions, and neither end notices."""
        self._to_broker.lost |= requests
        self._to_client.lost |= replies

    @property
    def loses_requests(self) -> bool:
        """Whether some of what the client sent may never arrive."""
        return self._to_broker.lost or self._dropped

    @property
    def loses_replies(self) -> bool:
        return self._to_client.lost

    def reset(self) -> None:
        """RST: what is in flight is dropped."""
        if self.open:
            self._end()
            self._to_broker.drop()
            self._dropped = True
            self._to_broker.send(self._transport.lose)

    def vanish(self) -> None:
        """The client disappears and the broker is not notified; what was sent arrives if it can by now."""
        if self.held_s:
            self._to_broker.drop()
            self._dropped = True
        self._end()

    def _end(self) -> None:
        self.open = False
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(Disconnected())

    # --- from the broker's end --------------------------------------------------------------------

    def _from_broker(self, data: bytes) -> None:
        self._to_client.send(lambda: self._arrive(data))

    def _closed_by_broker(self, *, reset: bool) -> None:
        if reset:
            self._to_client.drop()
        self._to_client.send(partial(self._ended_by_broker, reset=reset))

    def _ended_by_broker(self, *, reset: bool) -> None:
        """The client notices the end."""
        self._end()

    def _arrive(self, data: bytes) -> None:
        for frame in self._splitter.feed(data):
            if self._reply is not None and not self._reply.done():
                self._reply.set_result(frame)

    def _start(self, listener: Callable[[], Callable[[], asyncio.BaseProtocol] | None]) -> None:
        """SYN: a listener there on arrival accepts the connection; otherwise it is reset."""

        def arrive() -> None:
            accept = listener()
            if accept is None:
                self._transport.abort()
            else:
                self._transport.start(accept())

        self._to_broker.send(arrive)


class _BrokerEnd(asyncio.Transport):
    """The transport handed to a broker's connection protocol."""

    def __init__(self, link: Link, wire: Wire) -> None:
        super().__init__({"peername": (link.client_host, 40_000)})
        self._link = link
        self._wire = wire
        self._protocol: asyncio.Protocol | None = None
        self._closing = False
        self._reading = True
        self._unread: list[bytes] = []
        self._written = FrameSplitter()

    def start(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self._protocol = protocol
        protocol.connection_made(self)

    def receive(self, data: bytes) -> None:
        if self._closing or self._protocol is None:
            return
        if self._reading:
            self._protocol.data_received(data)
        else:
            self._unread.append(data)

    def lose(self) -> None:
        """The client closed: it will not read anything still written."""
        if not self._closing:
            self._finish()

    # --- asyncio.Transport ------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if not self._closing:
            for frame in self._written.feed(bytes(data)):
                self._wire.replied(self._link, frame)
            self._link._from_broker(bytes(data))

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._link._closed_by_broker(reset=False)
            self._finish()

    def abort(self) -> None:
        if not self._closing:
            self._link._closed_by_broker(reset=True)
            self._finish()

    def pause_reading(self) -> None:
        self._reading = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignored: nothing is ever buffered here."""

    def resume_reading(self) -> None:
        self._reading = True
        unread, self._unread = self._unread, []
        for data in unread:
            self.receive(data)

    def _finish(self) -> None:
        self._closing = True
        self._wire.closed(self._link)
        if self._protocol is not None:
            self._link._loop.call_soon(self._protocol.connection_lost, None)


class Network:
    """Tracks who listens where."""

    def __init__(self, loop: asyncio.AbstractEventLoop, latency: Latency, wire: Wire) -> None:
        self.loop = loop
        self.latency = latency
        self.wire = wire
        self._listeners: dict[Address, Callable[[], asyncio.BaseProtocol]] = {}
        self._dice = latency.dice()
        self._cut_off_until_s: dict[Address, float] = {}

    def listen(self, address: Address, accept: Callable[[], asyncio.BaseProtocol]) -> None:
        self._listeners[address] = accept

    def unlisten(self, address: Address) -> None:
        self._listeners.pop(address, None)

    def cut_off(self, address: Address, seconds: float) -> None:
        """Neither clients nor this broker can reach the other for that long."""
        self._cut_off_until_s[address] = self.loop.time() + seconds

    def reached_in_s(self, address: Address) -> float:
        """How long until the broker can be reached."""
        return max(self._cut_off_until_s.get(address, 0.0) - self.loop.time(), 0.0)

    async def connect(self, address: Address, client_host: str, kind: type[Link] = Link) -> Link:
        """Raises Disconnected if nobody listens there."""
        await asyncio.sleep(
            min(self.reached_in_s(address), _CONNECT_TIMEOUT_S) + self.latency.draw_s(self._dice)
        )
        if address not in self._listeners or self.reached_in_s(address):
            raise Disconnected
        link = kind(self, address, client_host)
        link._start(lambda: self._listeners.get(address))
        return link
