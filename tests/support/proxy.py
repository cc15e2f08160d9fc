"""A TCP proxy on loopback whose connections can all be cut at once, for a while."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Final, Self

from tests.support.ports import free_ports

_CALL_S: Final = 30.0
_PIECE_BYTES: Final = 1 << 16
_RESET_AT_ONCE: Final = struct.pack("ii", 1, 0)  # SO_LINGER: on, for no time


class InAThread:
    """Runs on its own loop in a thread: a blocked loop under test does not block it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=type(self).__name__, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._listen())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_CALL_S)

    async def _listen(self) -> None:
        raise NotImplementedError

    async def _close(self) -> None:
        raise NotImplementedError


class Proxy(InAThread):
    """Forwards `port` to `upstream_port`. `cut` resets open and new connections until `mend`."""

    def __init__(self) -> None:
        super().__init__()
        self.port = free_ports(1)
        self.upstream_port = 0
        self.turned_away = 0
        """Connections that arrived while it was cut."""
        self._cut = False
        self._open: set[asyncio.StreamWriter] = set()

    def cut(self) -> None:
        self._call(self._reset_all())

    def mend(self) -> None:
        self._cut = False

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def _close(self) -> None:
        self._server.close()
        await self._reset_all()
        here = asyncio.current_task()
        pumps = [task for task in asyncio.all_tasks() if task is not here]
        await asyncio.gather(*pumps, return_exceptions=True)

    async def _reset_all(self) -> None:
        self._cut = True
        for writer in list(self._open):
            reset(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._cut:
            self.turned_away += 1
            reset(writer)
            return
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self.upstream_port)
        except OSError:
            reset(writer)
            return
        both = {writer, upstream_writer}
        self._open |= both
        if self._cut:  # in the meantime
            await self._reset_all()
        await asyncio.gather(self._pump(reader, upstream_writer), self._pump(upstream_reader, writer))
        self._open -= both

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one direction until it ends, then close the other side."""
        with contextlib.suppress(OSError):
            while piece := await reader.read(_PIECE_BYTES):
                writer.write(piece)
                await writer.drain()
        writer.close()


def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection with a RST."""
    sock: socket.socket | None = writer.get_extra_info("socket")
    if sock is not None and not writer.transport.is_closing():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_ONCE)
    writer.transport.abort()
