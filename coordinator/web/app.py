"""The HTTP server of a broker process: its parts, and its lifecycle."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from muster.coordinator.base.endpoints import WILDCARDS, Endpoint
from muster.coordinator.web import (
    api,
    cluster_api,
    events,
    guard,
    health,
    metrics,
    page,
    test_mode,
    topics_api,
)
from muster.coordinator.web.binding import Prepared
from muster.coordinator.web.door import Door
from muster.coordinator.web.feed import Feed
from muster.coordinator.web.keys import (
    BROKERS,
    FEED,
    LATELY,
    LIFE,
    LOOKS,
    TALLIES,
    TRENDS,
    Life,
)
from muster.coordinator.web.lately import Lately
from muster.coordinator.web.trends import Trends

_END_S: Final = 1.0
"""How long requests in progress may take at shutdown."""
_KEEP_ALIVE_S: Final = 75.0
_REQUEST_BYTES_MAX: Final = 64 * 1024
_LOOKS_MAX: Final = 2
"""Most concurrent looks at records."""


@dataclass(slots=True)
class Running:
    """A server that listens on `host` and `port`."""

    host: str
    port: int
    feed: Feed
    """The subscribers of the event stream."""
    _life: Life
    _close: Callable[[], Awaitable[None]]

    @property
    def url(self) -> str:
        """The page's URL for a browser on this machine."""
        return f"http://{Endpoint('', self.host, self.port).address}"

    def stopping(self) -> None:
        """Make `/readyz` fail from now on: the brokers are about to stop."""
        self._life.stopping = True

    async def close(self) -> None:
        """End the streams and stop listening. Safe to call again."""
        await self._close()


async def start(prepared: Prepared) -> Running:
    """Serve the brokers, which were started meanwhile. They keep running after `close`."""
    listener, life = prepared.listener, Life()
    app = _application(prepared, life)
    door = Door()
    app.middlewares.insert(0, door.heard)
    runner = web.AppRunner(app, access_log=None, keepalive_timeout=_KEEP_ALIVE_S, shutdown_timeout=_END_S)
    await runner.setup()
    door.server = runner.server
    listener.connect = door
    await listener.accept()

    async def close() -> None:
        life.stopping = True
        await listener.close()
        door.close()
        await runner.cleanup()

    # "All interfaces" is not an address to connect to.
    host = "localhost" if listener.host in WILDCARDS else listener.host
    return Running(host, listener.port, app[FEED], life, close)


def _application(prepared: Prepared, life: Life) -> web.Application:
    app = web.Application(client_max_size=_REQUEST_BYTES_MAX)
    brokers, feed, tallies = prepared.brokers, Feed(), prepared.tallies
    app[BROKERS], app[FEED], app[TALLIES], app[LIFE] = brokers, feed, tallies, life
    app[LATELY], app[TRENDS], app[LOOKS] = Lately(), Trends(), asyncio.Semaphore(_LOOKS_MAX)
    guard.install(app, prepared.listener.host, None if brokers.page is None else brokers.page.host)
    for part in (health, api, topics_api, cluster_api, events, metrics, page):
        part.add_routes(app)
    test_mode.add_routes(app, brokers)
    brokers.watch(feed.observe)

    async def end(_: web.Application) -> None:
        brokers.unwatch(tallies.observe)
        brokers.unwatch(feed.observe)
        feed.close()

    app.on_shutdown.append(end)
    return app
