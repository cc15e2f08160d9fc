"""The floor of every request: a bare asyncio.Protocol on uvloop, `python -m tests.bench.echo`.

It answers each piece that arrives with that piece, and looks at nothing.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import uvloop


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._write = transport.write  # type: ignore[attr-defined]  # a Transport's

    def data_received(self, data: bytes) -> None:
        self._write(data)


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0, backlog=1024)
    print(f"ready on 127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.Runner(loop_factory=uvloop.new_event_loop).run(serve())
