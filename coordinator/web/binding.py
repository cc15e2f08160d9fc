"""Binds the port before anything of HTTP is imported: a port in use should keep a broker from starting, and
nothing else should delay its start."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final, NoReturn

from muster.coordinator.base.endpoints import HTTP, WILDCARDS, Endpoint, read_endpoints
from muster.coordinator.config import Settings
from muster.coordinator.server.brokers import Brokers
from muster.coordinator.server.listener import Listener
from muster.coordinator.web.tallies import Tallies

_NEEDED: Final = ("aiohttp", "prometheus_client")


class MissingPackages(Exception):
    """The packages that serve HTTP are not installed; the text says how to install them."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What exists before the brokers start: a port, and counts from their first entry on."""

    brokers: Brokers
    listener: Listener
    tallies: Tallies


async def prepare(brokers: Brokers) -> Prepared:
    """Bind the port of `settings.http` before `brokers` are started, and have them publish their page's
    address. `app.start` serves. Raises MissingPackages, BindError."""
    settings = brokers.settings
    assert settings.http is not None
    if any(find_spec(each) is None for each in _NEEDED):
        raise MissingPackages(
            "--http needs aiohttp and prometheus-client: install them with pip install 'muster-kafka[http]'"
        )
    (endpoint,) = read_endpoints(settings.http)
    listener = Listener(endpoint.host, endpoint.port, _nobody, "port for --http")
    await listener.bind()
    brokers.page = _page_address(settings, listener)
    tallies = Tallies()
    brokers.watch(tallies.observe)
    return Prepared(brokers, listener, tallies)


def _page_address(settings: Settings, listener: Listener) -> Endpoint | None:
    """The page's address for browsers: `advertised_http`, or where it listens; None if that is every
    interface."""
    if settings.advertised_http is not None:
        return read_endpoints(settings.advertised_http)[0]._replace(listener=HTTP)
    return None if listener.host in WILDCARDS else Endpoint(HTTP, listener.host, listener.port)


def _nobody() -> NoReturn:
    raise AssertionError("accepted a connection before there is an application")
