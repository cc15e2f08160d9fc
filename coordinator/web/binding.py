"""Taking the port, before anything of HTTP is imported: a port that is in use should keep a broker from
starting, and nothing else should hold its start up."""

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
    """What serves HTTP is not installed; the text says how to install it."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is there before the brokers are started: a port, and counts from their first entry on."""

    brokers: Brokers
    listener: Listener
    tallies: Tallies


async def prepare(brokers: Brokers) -> Prepared:
    """Take the port of `settings.http`, before `brokers` are started, and have them tell others where their
    page is. `app.start` serves. Raises MissingPackages, BindError."""
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
    """Where browsers find the page: as `advertised_http` says, or where it listens; None when that is every
    interface, which is no address."""
    if settings.advertised_http is not None:
        return read_endpoints(settings.advertised_http)[0]._replace(listener=HTTP)
    return None if listener.host in WILDCARDS else Endpoint(HTTP, listener.host, listener.port)


def _nobody() -> NoReturn:
    raise AssertionError("accepted a connection before there is an application")
