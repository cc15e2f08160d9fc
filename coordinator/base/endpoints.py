"""Where a broker listens, and where clients are told to reach it.

A broker has one listener, or several with names for clients that reach it by different addresses, such as
those inside a container network and those outside it. As in Kafka, a client is told the addresses of the
listener that it came by.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple, Protocol

WILDCARDS: Final = ("", "0.0.0.0", "::")
HTTP: Final = "@http"
HTTPS: Final = "@https"
"""In place of a listener's name, which begins with a letter: where a node's page is, and by what scheme."""


class Node(Protocol):
    """A broker's address and its named listeners, as `storage.store.NodeRow` has them."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...

    @property
    def listeners(self) -> str: ...


class Endpoint(NamedTuple):
    """An address, and the listener it is for: "" where a broker has only one."""

    listener: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.listener}://{self.address}" if self.listener else self.address

    def counted_up(self, index: int) -> Endpoint:
        """The same of the broker that comes `index` places later; port 0 stays 0."""
        return self._replace(port=self.port and self.port + index)

    @property
    def address(self) -> str:
        """`host:port`, with brackets around an IPv6 address."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read_endpoints(text: str) -> list[Endpoint]:
    """`NAME://HOST:PORT`, several with commas; of one without a name HOST:PORT alone. The text has been
    checked; "" is none."""
    return [_read(each) for each in text.split(",") if each]


def _read(text: str) -> Endpoint:
    listener, _, address = text.rpartition("://")
    host, _, port = address.rpartition(":")
    return Endpoint(listener, host.strip("[]"), int(port))


class Listening(NamedTuple):
    """One listener of a broker: where it binds (port 0: where the system chooses), and the address that its
    clients are told, if that is another."""

    bound: Endpoint
    advertised: Endpoint | None

    def reached_at(self) -> Endpoint:
        """What its clients are told."""
        if self.advertised is not None:
            return self.advertised
        # Nobody can connect to "all interfaces". Clients elsewhere need an advertised address.
        host = "localhost" if self.bound.host in WILDCARDS else self.bound.host
        return self.bound._replace(host=host)


def reached_at(node: Node, listener: str) -> Endpoint:
    """Where clients that came by `listener` reach `node`: by its first listener if it has none of that
    name."""
    return _by_listener(node.listeners).get(listener) or Endpoint("", node.host, node.port)


def page_of(node: Node) -> str | None:
    """The URL of the page of `node`, if it has one and says where."""
    listeners = _by_listener(node.listeners)
    page = listeners.get(HTTPS) or listeners.get(HTTP)
    return None if page is None else page_url(page)


def page_url(page: Endpoint) -> str:
    """The URL of what HTTP or HTTPS stands for."""
    return f"{page.listener.removeprefix('@')}://{page.address}"


def is_loopback(host: str) -> bool:
    """Whether an address, or the name localhost, is this machine's alone. No other name is looked up."""
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
