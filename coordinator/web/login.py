"""Decides who is let in where a token is required. Answers to wrong tokens are delayed, like those to failed
logins on Kafka listeners."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler

from muster.coordinator.security.http_token import Token
from muster.coordinator.server.guessing import Guessing
from muster.coordinator.server.renewed import Renewed
from muster.coordinator.server.turned_away import failed_login
from muster.coordinator.server.unserved import Unserved
from muster.coordinator.web.guard import refusal

OPEN_PATHS: Final = frozenset({"/healthz", "/readyz"})
"""Served without a login, for process monitors."""

_LOOK_S: Final = 0.5
"""How often to check that a client waiting for a refusal is still there."""
_CHALLENGE: Final = 'Basic realm="muster"'
"""Makes a browser ask its user. Stands for Bearer, too."""


class Login:
    """Requires the token. Without a token, `LOGIN` is None and everyone is let in."""

    def __init__(self, token: Renewed[Token], guessing: Guessing, unserved: Unserved) -> None:
        self._token = token
        self._guessing = guessing
        self._unserved = unserved
        self._ended = asyncio.Event()

    def close(self) -> None:
        """Send delayed refusals at once."""
        self._ended.set()

    def has(self, request: web.Request) -> bool:
        """Whether the client of a request that got this far has logged in: open paths do not require it."""
        return "Authorization" in request.headers

    @web.middleware
    async def checked(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Raises HTTPUnauthorized."""
        shown = request.headers.get("Authorization")
        if shown is None:
            if request.path in OPEN_PATHS:
                return await handler(request)
            # Browsers first ask without it.
            raise _unauthorized("a login is required: the token of --http-token-file")
        why = self._token.content.why_not(shown)
        if why is None:
            return await handler(request)
        host = f"/{request.remote or 'unknown'}"
        self._unserved.tell(host, failed_login(why))
        await self._hold_back(request, self._guessing.delay_ms(host))
        refused = _unauthorized("the login failed: it is not the token of --http-token-file")
        refused.force_close()
        raise refused

    async def _hold_back(self, request: web.Request, ms: int) -> None:
        """Wait this long, until `close`, or until the client goes away."""
        loop = asyncio.get_running_loop()
        end = loop.time() + ms / 1000
        while (left := end - loop.time()) > 0 and not self._ended.is_set() and request.transport is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, _LOOK_S)):
                    await self._ended.wait()


LOGIN: Final = web.AppKey[Login | None]("login", Login)


def is_let_in(request: web.Request) -> bool:
    """Whether the client of a request may see everything."""
    login = request.app[LOGIN]
    return login is None or login.has(request)


def _unauthorized(why: str) -> web.HTTPException:
    refused = refusal(web.HTTPUnauthorized, why)
    refused.headers["WWW-Authenticate"] = _CHALLENGE
    return refused
