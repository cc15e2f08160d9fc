"""Where a broker listens, and the addresses it gives to clients.

A broker has one listener, or several named ones for clients that reach it at different addresses, such as
those inside and outside a container network. As in Kafka, a client gets the addresses of the listener it
connected to.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple, Protocol

WILDCARDS: Final = ("", "0.0.0.0", "::")
HTTP: Final = "@http"
HTTPS: Final = "@https"
"""Used in place of a listener's name, which begins with a letter, for the address of a node's page and its
scheme."""


class Node(Protocol):
    """A broker's address and its named listeners, as in `storage.store.NodeRow`."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...

    @property
    def listeners(self) -> str: ...


class Endpoint(NamedTuple):
    """An address and its listener, "" if the broker has only one."""

    listener: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.listener}://{self.address}" if self.listener else self.address

    def counted_up(self, index: int) -> Endpoint:
        """The same endpoint for the broker `index` places later; port 0 stays 0."""
        return self._replace(port=self.port and self.port + index)

    @property
    def address(self) -> str:
        """`host:port`, with brackets around an IPv6 address."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read_endpoints(text: str) -> list[Endpoint]:
    """Parse comma-separated `NAME://HOST:PORT`, or just HOST:PORT for a listener without a name. The text has
    been validated; "" yields none."""
    return [_read(each) for each in text.split(",") if each]


def _read(text: str) -> Endpoint:
    listener, _, address = text.rpartition("://")
    host, _, port = address.rpartition(":")
    return Endpoint(listener, host.strip("[]"), int(port))


class Listening(NamedTuple):
    """One listener of a broker: where it binds (port 0: the system chooses), and the address given to its
    clients, if different."""

    bound: Endpoint
    advertised: Endpoint | None

    def reached_at(self) -> Endpoint:
        """The address given to its clients."""
        if self.advertised is not None:
            return self.advertised
        # Nobody can connect to "all interfaces". Clients elsewhere need an advertised address.
        host = "localhost" if self.bound.host in WILDCARDS else self.bound.host
        return self.bound._replace(host=host)


def reached_at(node: Node, listener: str) -> Endpoint:
    """Where clients connected to `listener` reach `node`: at its first listener if it has none of that
    name."""
    return _by_listener(node.listeners).get(listener) or Endpoint("", node.host, node.port)


def page_of(node: Node) -> str | None:
    """The URL of `node`'s page, if it has one and advertises it."""
    listeners = _by_listener(node.listeners)
    page = listeners.get(HTTPS) or listeners.get(HTTP)
    return None if page is None else page_url(page)


def page_url(page: Endpoint) -> str:
    """The URL of a page's endpoint, whose listener is HTTP or HTTPS."""
    return f"{page.listener.removeprefix('@')}://{page.address}"


def is_loopback(host: str) -> bool:
    """Whether `host` is a loopback address or localhost. Other names are not looked up."""
    if host == "localhost":
        return True
    from ipaddress import ip_address  # not needed to start most brokers

    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


@lru_cache(maxsize=256)
def _by_listener(listeners: str) -> dict[str, Endpoint]:
    return {each.listener: each for each in read_endpoints(listeners)}
