"""A proxy in front of brokers that knows frame boundaries, so that a fault can be placed at an exact point:
at the n-th request of an API, before the broker sees it, or at its answer, once the broker has carried it
out.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass
from enum import Enum
from typing import Final

from muster.protocol.api import ApiKey
from tests.support.ports import free_ports
from tests.support.proxy import InAThread, reset

_TRICKLED_BYTES: Final = 400


class At(Enum):
    """Where a fault strikes."""

    REQUEST = "request"
    """Before the broker sees it."""
    ANSWER = "answer"
    """After the broker has carried it out."""


class Do(Enum):
    """What happens to the frame and its connection."""

    RESET = "reset"
    """Both sides get a RST; the frame is lost."""
    CLOSE = "close"
    """Both sides get a FIN; the frame is lost."""
    HALF_CLOSE = "half-close"
    """The client gets a FIN and no more answers, but may go on sending to the broker."""
    TRUNCATE = "truncate"
    """Half of the frame is passed on, then a FIN."""
    HOLD = "hold"
    """Nothing passes in either direction, and nobody is notified, until `mend`."""
    DELAY = "delay"
    """The frame and everything after it are passed on after a delay."""
    TRICKLE = "trickle"
    """The frame is passed on a byte at a time (the first few hundred of them)."""


@dataclass
class Fault:
    """Strike frames of this API (None: any) `times` times, after letting the first `skip` of them pass."""

    api_key: ApiKey | None
    at: At
    do: Do
    skip: int = 0
    times: int = 1
    delay_s: float = 0.5

    def strikes(self, api_key: int, at: At) -> bool:
        """Whether this fault is due; counts the frame."""
        if self.at is not at or self.api_key not in (None, api_key) or not self.times:
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.times -= 1
        return True


class Weather:
    """Random faults: each frame is struck with probability `rate`, by one of `kinds`."""

    def __init__(
        self, seed: int, rate: float, kinds: tuple[Do, ...] = tuple(Do), delay_s: float = 0.3
    ) -> None:
        self._dice = random.Random(seed)
        self._rate = rate
        self._kinds = kinds
        self._delay_s = delay_s

    def draw(self, api_key: int, at: At) -> Fault | None:
        if self._dice.random() >= self._rate:
            return None
        do = self._dice.choice(self._kinds)
        return Fault(None, at, do, delay_s=self._dice.uniform(0, self._delay_s))


class FaultProxy(InAThread):
    """Listens on `count` consecutive ports from `port` on, in front of `upstreams`."""

    def __init__(self, count: int = 1) -> None:
        super().__init__()
        self.port = free_ports(count)
        self.upstreams: list[int] = []
        self.accepted = 0
        self.held = 0
        """Frames on their way through."""
        self.struck: list[str] = []
        """What happened, in order, for whoever reads a failure."""
        self.weather: Weather | None = None
        self._count = count
        self._faults: list[Fault] = []
        self._links: set[_Link] = set()
        self._black = False
        self._flowing = True
        self._servers: list[asyncio.Server] = []

    # --- what a test does with it ---------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{self.port + index}" for index in range(self._count))

    def place(self, *faults: Fault) -> None:
        """Let these faults strike, in addition to those already placed."""
        self._faults.extend(faults)

    @property
    def placed(self) -> list[Fault]:
        """Faults that have yet to strike."""
        return [fault for fault in self._faults if fault.times]

    def black(self) -> None:
        """Pass on nothing in either direction and accept silently: a network that swallows everything."""
        self._call(self._hold_all())

    def cut(self) -> None:
        """Reset all open connections."""
        self._call(self._reset_all())

    def mend(self) -> None:
        """End all faults; held frames flow on."""
        self.weather = None
        self._faults.clear()
        self._call(self._flow_all())

    # --- links ----------------------------------------------------------------------------------------------

    def strike(self, api_key: int, at: At) -> Fault | None:
        """The fault that is due at this frame, if any."""
        due = next((fault for fault in self._faults if fault.strikes(api_key, at)), None)
        if due is None and self.weather is not None:
            due = self.weather.draw(api_key, at)
        if due is not None:
            self.struck.append(f"{due.do.value} at {at.value} {ApiKey(api_key).name}")
        return due

    async def _listen(self) -> None:
        for index in range(self._count):
            server = await asyncio.start_server(
                lambda reader, writer, index=index: self._serve(index, reader, writer),
                "127.0.0.1",
                self.port + index,
            )
            self._servers.append(server)

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for link in list(self._links):
            link.reset()
        here = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not here]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)

    async def _hold_all(self) -> None:
        self._black = True
        for link in self._links:
            link.flowing.clear()

    async def _flow_all(self) -> None:
        self._black = False
        for link in self._links:
            link.flowing.set()

    async def _reset_all(self) -> None:
        for link in list(self._links):
            link.reset()

    async def _serve(self, index: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        try:
            upstream = await asyncio.open_connection("127.0.0.1", self.upstreams[index])
        except OSError:
            reset(writer)
            return
        link = _Link(self, (reader, writer), upstream)
        if self._black:
            link.flowing.clear()
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)


class _Link:
    """One connection through the proxy."""

    def __init__(
        self,
        proxy: FaultProxy,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        broker: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self.flowing = asyncio.Event()
        self.flowing.set()
        self._proxy = proxy
        self._from_client, self._to_client = client
        self._from_broker, self._to_broker = broker
        self._asked: dict[bytes, int] = {}  # correlation id -> api key
        self._client_hears = True

    async def run(self) -> None:
        pumps = [asyncio.ensure_future(self._requests()), asyncio.ensure_future(self._answers())]
        try:
            # When one direction ends, so does the other, except for a half-closed client: it may still send.
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self._to_client.close()
            self._to_broker.close()

    def reset(self) -> None:
        reset(self._to_client)
        reset(self._to_broker)

    async def _requests(self) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                frame = await _read_frame(self._from_client)
                api_key = int.from_bytes(frame[:2], "big")
                self._asked[frame[4:8]] = api_key
                await self._pass(frame, api_key, At.REQUEST, self._to_broker)

    async def _answers(self) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                frame = await _read_frame(self._from_broker)
                api_key = self._asked.pop(frame[:4], ApiKey.API_VERSIONS)
                await self._pass(frame, api_key, At.ANSWER, self._to_client)

    async def _pass(self, frame: bytes, api_key: int, at: At, writer: asyncio.StreamWriter) -> None:
        fault = self._proxy.strike(api_key, at)
        do = None if fault is None else fault.do
        whole = len(frame).to_bytes(4, "big") + frame
        if do is Do.RESET:
            self.reset()
            raise ConnectionResetError
        if do is Do.CLOSE:
            raise ConnectionAbortedError  # `run` closes
        if do is Do.HALF_CLOSE:
            self._client_hears = False
            self._to_client.write_eof()
        elif do is Do.HOLD:
            self.flowing.clear()
        elif do is Do.DELAY:
            assert fault is not None
            await asyncio.sleep(fault.delay_s)
        self._proxy.held += 1
        try:
            await self.flowing.wait()
        finally:
            self._proxy.held -= 1
        if at is At.ANSWER and not self._client_hears:
            return
        if do is Do.TRUNCATE:
            writer.write(whole[: len(whole) // 2])
            await writer.drain()
            raise ConnectionAbortedError
        if do is Do.TRICKLE:
            for byte in whole[:_TRICKLED_BYTES]:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0)
            whole = whole[_TRICKLED_BYTES:]
        writer.write(whole)
        await writer.drain()


async def _read_frame(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
