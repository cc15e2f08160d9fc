"""What all responses share: access checks, the format of errors, and headers."""

from __future__ import annotations

import ipaddress
import os
import re
from typing import Final, overload

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from yarl import URL

from muster.coordinator.base.endpoints import is_loopback
from muster.coordinator.base.log import Logger

TEST_PREFIX: Final = "/test/"
"""Paths that change things; they exist only in test mode."""

ADVERTISED: Final = web.AppKey[str | None]("advertised", str)
"""The name in --advertised-http."""
HAS_LOGIN: Final = web.AppKey("has_login", bool)
"""Whether a login is required. If so, host names do not matter: a web page whose domain was pointed here has
no login, since a browser keeps logins by domain."""

_HEADERS: Final = {
    # The page needs its own script, style and responses, and nothing from elsewhere.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}

_PLACEHOLDER: Final = re.compile(r"{(\w+)}")

_DIGITS_MAX: Final = 19
"""The digits of an int64, the largest number used here."""

_log: Final = Logger(part="http")


def install(app: web.Application, host: str, advertised: str | None = None, *, has_login: bool) -> None:
    """Guard an application that listens on `host`, and may also be reached as `advertised`."""
    app[ADVERTISED] = None if advertised is None else advertised.lower()  # as browsers send it
    app[HAS_LOGIN] = has_login
    app.middlewares.append(_middleware(is_loopback(host)))
    app.on_response_prepare.append(_add_headers)


def route(path: str) -> str:
    """A route whose placeholders match every character but a slash, or nothing: group and transactional ids
    may have braces, which aiohttp's own do not match, and a group id may be empty."""
    return _PLACEHOLDER.sub(r"{\1:[^/]*}", path)


def refusal(kind: type[web.HTTPException], why: str, **more: object) -> web.HTTPException:
    """An error response: a JSON object whose `error` says what is wrong."""
    answer = web.json_response({"error": why, **more})
    return kind(text=answer.text, content_type="application/json")


@overload
def whole_number(request: web.Request, name: str, default: int, highest: int, lowest: int = 1) -> int: ...


@overload
def whole_number(
    request: web.Request, name: str, default: None, highest: int, lowest: int = 1
) -> int | None: ...


def whole_number(
    request: web.Request, name: str, default: int | None, highest: int, lowest: int = 1
) -> int | None:
    """A whole-number query parameter, from `lowest` to `highest`. Raises HTTPBadRequest."""
    text = request.query.get(name)
    if text is None:
        return default
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX else -1
    if not lowest <= number <= highest:
        why = f"{name}: {text[:40]!r} is not a whole number from {lowest} to {highest}"
        raise refusal(web.HTTPBadRequest, why)
    return number


def check_named(request: web.Request, refused: str) -> None:
    """Protects users' data, such as records, and changes by browsers: raises HTTPMisdirectedRequest unless
    the request used an IP address, a name of this machine, or the advertised name, or a login is required. A
    web page can point its own domain at any address a browser reaches, and then read responses (DNS
    rebinding); it cannot do that with an address or with another's name. `refused` begins the error message.
    """
    host = _host_of(request)
    named = host is None or _is_loopback(host) or _is_address(host) or host == request.app[ADVERTISED]
    if not (named or request.app[HAS_LOGIN]):
        raise refusal(
            web.HTTPMisdirectedRequest,
            f"{refused} under the name {host!r}: open the page by its address, or name what it "
            "is called in --advertised-http",
        )


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers.setdefault("Cache-Control", "no-store")
    response.headers["Server"] = "muster"


def _middleware(local: bool) -> Middleware:
    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            _check(request, local)
            return await handler(request)
        except web.HTTPException as answer:
            if answer.status < 400 or answer.content_type == "application/json":
                raise
            # aiohttp's own errors only say "404: Not Found".
            said = (
                answer.text if answer.text != f"{answer.status}: {answer.reason}" else _said(request, answer)
            )
            return web.json_response({"error": said}, status=answer.status, headers=_allowed(answer))
        except ConnectionError:
            raise  # the client went away
        except Exception as error:
            reference = os.urandom(4).hex()
            _log.error("request failed", reference=reference, path=request.path, exc_info=error)
            why = f"internal error; the broker's log has the details under {reference}"
            return web.json_response({"error": why}, status=500)

    return guarded


def _check(request: web.Request, local: bool) -> None:
    """Raises HTTPException for requests that must not be answered. Any page can make a browser send requests,
    with the login that it keeps for this address, but cannot read the response. A page whose domain was
    pointed at this address can read it, but has no login. Requests of the first kind carry the page's origin,
    those of the second its domain.
    """
    host, app = _host_of(request), request.app
    named = host is None or _is_loopback(host) or host == app[ADVERTISED]
    if local and not app[HAS_LOGIN] and not named:
        raise refusal(
            web.HTTPMisdirectedRequest,
            f"this listens on this machine alone, and is not {host!r}; open it as localhost or by its "
            "address, or name what it is called in --advertised-http",
        )
    if request.method in ("GET", "HEAD"):
        return
    if not request.path.startswith(TEST_PREFIX):
        raise web.HTTPMethodNotAllowed(request.method, ["GET", "HEAD"])
    origin = request.headers.get("Origin")
    if origin is None:
        return  # not a browser
    if origin != f"{request.scheme}://{request.host}":
        raise refusal(
            web.HTTPForbidden, f"requests from pages of {origin} are not allowed to change anything"
        )
    check_named(request, "pages may not change anything")


def _said(request: web.Request, answer: web.HTTPException) -> str:
    match answer.status:
        case 404:
            return f"there is nothing at {request.path}"
        case 405:
            return f"{request.method} is not served at {request.path}"
    return answer.reason


def _allowed(answer: web.HTTPException) -> dict[str, str]:
    return {"Allow": answer.headers["Allow"]} if "Allow" in answer.headers else {}


def _host_of(request: web.Request) -> str | None:
    """The Host header without its port; None if there is none, as from no browser. `request.host` would then
    wait for a name server in older versions of aiohttp."""
    host = request.headers.get("Host")
    if host is None:
        return None
    try:
        return URL.build(scheme="http", authority=host).host or ""
    except ValueError:
        return host


def _is_loopback(host: str) -> bool:
    """Whether the name in a request can only be this machine: browsers know names under .localhost, too."""
    return host.endswith(".localhost") or is_loopback(host)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
