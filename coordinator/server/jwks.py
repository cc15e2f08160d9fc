"""The keys that sign OAUTHBEARER tokens: a JWKS (RFC 7517), read from a file or over HTTP.

A thread reads it periodically. While it cannot be read, the keys that were read last stay in use.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Any, Final
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from muster.coordinator.base.log import Logger
from muster.coordinator.security.bearer import invalid
from muster.realtime import RealTime

_log: Final = Logger(part="jwks")

BYTES_MAX: Final = 1_048_576
READ_S: Final = 10.0
_CHUNK: Final = 65_536
_KEYS_MAX: Final = 1_000

MISSING_MAX: Final = 1_000
"""Number of missing keys that are remembered."""
EARLY_S: Final = 60.0
"""Minimum time between early reads because of the same missing key."""
_APART_S: Final = 1.0
"""Minimum time between early reads, whichever keys they are for."""
_BACK_OFF_S: Final = (0.1, 10.0)
_UNREAD_REMEDY: Final = (
    "make the keys readable there, or correct sasl.oauthbearer.jwks.endpoint.url; another line has the error"
)

Key = Mapping[str, Any]


class Jwks:
    """The keys, as last read."""

    def __init__(
        self,
        url: str,
        refresh_ms: int,
        read: Callable[[str], bytes] | None = None,
        now: Callable[[], float] = RealTime.monotonic,
    ) -> None:
        """`read` returns the content of the URL and runs in a thread; `now` is in seconds."""
        self._url = url
        self._refresh_s = refresh_ms / 1_000
        self._read = read or read_url
        self._now = now
        self._keys: dict[str, Key] | None = None
        self._due_s = float("-inf")
        self._early_s = float("-inf")
        self._failures = 0
        self._missing: OrderedDict[str, float] = OrderedDict()
        self._reading: asyncio.Task[None] | None = None
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="jwks")

    def __repr__(self) -> str:
        return f"<Jwks {self._url} {sorted(self._keys or ())}>"

    async def of(self, kid: str) -> Key | None:
        """See oauth.Keys."""
        now = self._now()
        if now >= self._due_s:
            self._begin()
        found = None if self._keys is None else self._keys.get(kid)
        if found is not None:
            return found
        if self._reading is None and self._may_read_early(kid, now):
            self._early_s = now
            self._begin()
        if self._reading is not None:
            await asyncio.shield(self._reading)  # cancelling one caller must not cancel the others
        if self._keys is None:
            raise invalid(f"no keys have been read yet from {self._url}", _UNREAD_REMEDY)
        return self._keys.get(kid)

    def _may_read_early(self, kid: str, now: float) -> bool:
        if self._failures or now - self._early_s < _APART_S:
            return False
        if now - self._missing.get(kid, float("-inf")) < EARLY_S:
            return False
        self._missing[kid] = now
        self._missing.move_to_end(kid)
        if len(self._missing) > MISSING_MAX:
            self._missing.popitem(last=False)
        return True

    def _begin(self) -> None:
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._refresh(), name="JWKS")

    async def _refresh(self) -> None:
        try:
            content = await asyncio.get_running_loop().run_in_executor(self._threads, self._read, self._url)
            self._keys = parsed(content)
        except (OSError, HTTPException, ValueError, RecursionError) as error:
            self._failures += 1
            low, high = _BACK_OFF_S
            self._due_s = self._now() + min(low * 2 ** min(self._failures - 1, 20), high, self._refresh_s)
            _log.warning("the keys of OAUTHBEARER cannot be read", url=self._url, error=str(error))
        else:
            self._failures = 0
            self._due_s = self._now() + self._refresh_s
            for kid in self._keys:
                self._missing.pop(kid, None)
        finally:
            self._reading = None


def parsed(content: bytes) -> dict[str, Key]:
    """The keys of a JWKS by id; keys without an id are ignored. Raises ValueError."""
    told = json.loads(content)
    keys = told.get("keys") if isinstance(told, dict) else None
    if not isinstance(keys, list):
        raise ValueError('not a JWKS: {"keys": [...]} was expected')
    if len(keys) > _KEYS_MAX:
        raise ValueError(f"{len(keys)} keys are more than {_KEYS_MAX}")
    return {each["kid"]: each for each in keys if isinstance(each, dict) and isinstance(each.get("kid"), str)}


def read_url(url: str) -> bytes:
    """The content of a file, or of an HTTP server, whose certificate is verified and which may not redirect.
    Bounded in size and time. Raises OSError, HTTPException and ValueError."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        with Path(unquote(parts.path)).open("rb") as file:
            return _bounded(file.read(BYTES_MAX + 1))
    ends_s = RealTime.monotonic() + READ_S
    content = b""
    request = Request(url, headers={"Accept": "application/json"})
    try:
        with build_opener(_NoRedirects).open(request, timeout=READ_S) as answer:
            while len(content) <= BYTES_MAX and (chunk := answer.read1(_CHUNK)):
                content += chunk
                if RealTime.monotonic() > ends_s:
                    raise TimeoutError(f"it took longer than {READ_S:g} s")
    except HTTPError as error:
        error.close()
        raise
    return _bounded(content)


def _bounded(content: bytes) -> bytes:
    if len(content) > BYTES_MAX:
        raise ValueError(f"it has more than {BYTES_MAX} bytes")
    return content


class _NoRedirects(HTTPRedirectHandler):
    """Follows no redirects: they could lead from https to http."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        return None
