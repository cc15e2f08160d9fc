"""The HTTP server of a broker process: its parts, and its lifecycle."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from muster.coordinator.base.endpoints import HTTP, HTTPS, WILDCARDS, Endpoint, page_url
from muster.coordinator.server.guessing import Guessing
from muster.coordinator.server.tls import Handshakes
from muster.coordinator.server.turned_away import SPOKEN_HTTP
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
    transactions_api,
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
from muster.coordinator.web.login import LOGIN, Login
from muster.coordinator.web.trends import Trends

_END_S: Final = 1.0
"""How long requests in progress may take at shutdown."""
_KEEP_ALIVE_S: Final = 75.0
_REQUEST_BYTES_MAX: Final = 64 * 1024
_LOOKS_MAX: Final = 2
"""Maximum concurrent looks at records."""


@dataclass(slots=True)
class Running:
    """A server that listens on `host` and `port`."""

    host: str
    port: int
    feed: Feed
    """The subscribers of the event stream."""
    _prepared: Prepared
    _life: Life
    _close: Callable[[], Awaitable[None]]

    @property
    def url(self) -> str:
        """The page's URL for a browser on this machine."""
        scheme = HTTP if self._prepared.certificates is None else HTTPS
        return page_url(Endpoint(scheme, self.host, self.port))

    @property
    def has_tls(self) -> bool:
        """Whether it is served over TLS."""
        return self._prepared.certificates is not None

    def read_certificates(self) -> None:
        """Read the key and certificate again, for new connections."""
        if self._prepared.certificates is not None:
            self._prepared.certificates.read_again()

    def stopping(self) -> None:
        """Make `/readyz` fail from now on: the brokers are about to stop."""
        self._life.stopping = True

    async def close(self) -> None:
        """End the streams and stop listening. Safe to call again."""
        await self._close()


async def start(prepared: Prepared) -> Running:
    """Serve the brokers, which have been started by now. They keep running after `close`."""
    listener, life = prepared.listener, Life()
    app = _application(prepared, life)
    door = Door(app[LOGIN])
    app.middlewares.insert(0, door.heard)
    app.middlewares.append(door.let_in)
    runner = web.AppRunner(app, access_log=None, keepalive_timeout=_KEEP_ALIVE_S, shutdown_timeout=_END_S)
    await runner.setup()
    door.server = runner.server
    handshakes = None
    if prepared.certificates is None:
        listener.connect = door
    else:
        handshakes = Handshakes(
            prepared.certificates,
            prepared.clock,
            door,
            prepared.unserved,
            spoken=SPOKEN_HTTP,
        )
        listener.connect = handshakes.accept
    await listener.accept()

    async def close() -> None:
        life.stopping = True
        await listener.close()
        if handshakes is not None:
            handshakes.close()
        door.close()
        await runner.cleanup()

    # "All interfaces" is not an address to connect to.
    host = "localhost" if listener.host in WILDCARDS else listener.host
    return Running(host, listener.port, app[FEED], prepared, life, close)


def _application(prepared: Prepared, life: Life) -> web.Application:
    app = web.Application(client_max_size=_REQUEST_BYTES_MAX)
    brokers, feed, tallies = prepared.brokers, Feed(), prepared.tallies
    app[BROKERS], app[FEED], app[TALLIES], app[LIFE] = brokers, feed, tallies, life
    app[LATELY], app[TRENDS], app[LOOKS] = Lately(), Trends(), asyncio.Semaphore(_LOOKS_MAX)
    app[LOGIN] = login = _login(prepared)
    advertised = None if brokers.page is None else brokers.page.host
    guard.install(app, prepared.listener.host, advertised, has_login=login is not None)
    if login is not None:
        app.middlewares.append(login.checked)
    for part in (health, api, topics_api, transactions_api, cluster_api, events, metrics, page):
        part.add_routes(app)
    test_mode.add_routes(app, brokers)
    brokers.watch(feed.observe)

    async def end(_: web.Application) -> None:
        brokers.unwatch(tallies.observe)
        brokers.unwatch(feed.observe)
        feed.close()
        if login is not None:
            login.close()

    app.on_shutdown.append(end)
    return app


def _login(prepared: Prepared) -> Login | None:
    if prepared.token is None:
        return None
    delay_ms = prepared.brokers.settings.connection_failed_authentication_delay_ms
    return Login(prepared.token, Guessing(prepared.clock, delay_ms), prepared.unserved)
