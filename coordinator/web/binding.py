"""Binds the port and reads what secures it before anything for HTTP is imported: a port in use should keep a
broker from starting, but nothing else should delay its start."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final, NoReturn

from muster.coordinator.base.clock import Clock, LoopClock
from muster.coordinator.base.endpoints import HTTP, HTTPS, WILDCARDS, Endpoint, read_endpoints
from muster.coordinator.base.log import Logger
from muster.coordinator.base.system import others_may_read
from muster.coordinator.config import Settings, option
from muster.coordinator.security.exchange import SecurityError
from muster.coordinator.security.http_token import Token, TokenError
from muster.coordinator.server.brokers import Brokers
from muster.coordinator.server.certificates import Certificates, Pem
from muster.coordinator.server.listener import Listener
from muster.coordinator.server.renewed import Renewed
from muster.coordinator.server.unserved import Unserved
from muster.coordinator.web.tallies import Tallies

_NEEDED: Final = ("aiohttp", "prometheus_client")
_log: Final = Logger(part="http")


class MissingPackages(Exception):
    """The packages that serve HTTP are not installed; the text says how to install them."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What exists before the brokers start: the port, what secures it, and counts from the first entry on."""

    brokers: Brokers
    listener: Listener
    tallies: Tallies
    clock: Clock
    """Real time."""
    unserved: Unserved
    certificates: Certificates | None
    """None for plaintext."""
    token: Renewed[Token] | None
    """None to let everyone in."""


async def prepare(brokers: Brokers) -> Prepared:
    """Bind the port of `settings.http` before `brokers` are started, and have them publish their page's
    address. `app.start` serves. Raises MissingPackages, SecurityError, BindError."""
    settings = brokers.settings
    assert settings.http is not None
    if any(find_spec(each) is None for each in _NEEDED):
        raise MissingPackages(
            "--http needs aiohttp and prometheus-client: install them with pip install 'muster-kafka[http]'"
        )
    clock = LoopClock(asyncio.get_running_loop())
    secured = settings.http_ssl_keystore_location is not None
    certificates = Certificates(Pem.of_http(settings), clock) if secured else None
    token = _token(settings.http_token_file, clock)
    (endpoint,) = read_endpoints(settings.http)
    listener = Listener(endpoint.host, endpoint.port, _nobody, "port for --http")
    await listener.bind()
    if lacking := settings.http_lacks:
        remedy = f"give {' and '.join(lacking.values())}, or have a proxy in front that has both"
        _log.warning("--http can be reached by others", without=", ".join(lacking), remedy=remedy)
    brokers.page = _page_address(settings, listener, HTTPS if secured else HTTP)
    tallies = Tallies()
    brokers.watch(tallies.observe)
    return Prepared(brokers, listener, tallies, clock, Unserved(clock), certificates, token)


def _token(path: str | None, clock: Clock) -> Renewed[Token] | None:
    if path is None:
        return None

    def read() -> Token:
        try:
            return Token.read(path)
        except TokenError as error:
            raise SecurityError(f"--http-token-file {path}: {error}") from None

    token = Renewed({option("http_token_file"): path}, read, clock, _log, "token")
    if others_may_read(path):
        _log.warning("every user of this machine can read the token", file=path, remedy=f"chmod 600 {path}")
    return token


def _page_address(settings: Settings, listener: Listener, scheme: str) -> Endpoint | None:
    """The page's address for browsers: `advertised_http`, or where it listens; None if that is every
    interface."""
    if settings.advertised_http is not None:
        return read_endpoints(settings.advertised_http)[0]._replace(listener=scheme)
    return None if listener.host in WILDCARDS else Endpoint(scheme, listener.host, listener.port)


def _nobody() -> NoReturn:
    raise AssertionError("accepted a connection before there is an application")
