"""The floor of Produce and Fetch: sockets and one file, `python -m tests.bench.sink FILE`.

A frame that is longer than a Fetch could be is written to the file as it is and answered with four bytes; a
short one is answered with FETCHED_BYTES of the file, read anew each time. Nothing is looked at or checked.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from typing import Final

import uvloop

FETCHED_BYTES: Final = 1 << 20
SHORT_BYTES: Final = 200
_ANSWER: Final = (4).to_bytes(4) + bytes(4)


class Sink(asyncio.Protocol):
    def __init__(self, file: int) -> None:
        self._file = file
        self._pending = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._write = transport.write  # type: ignore[attr-defined]  # a Transport's

    def data_received(self, data: bytes) -> None:
        pending = self._pending
        pending += data
        while len(pending) >= 4:
            stop = 4 + int.from_bytes(pending[:4])
            if len(pending) < stop:
                return
            if stop > SHORT_BYTES:
                with memoryview(pending) as view:
                    os.write(self._file, view[:stop])
                self._write(_ANSWER)
            else:
                found = os.pread(self._file, FETCHED_BYTES, 0)
                self._write(len(found).to_bytes(4) + found)
            del pending[:stop]


async def serve(path: str) -> None:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Sink(file), "127.0.0.1", 0, backlog=1024)
    print(f"ready on 127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.Runner(loop_factory=uvloop.new_event_loop).run(serve(sys.argv[1]))
