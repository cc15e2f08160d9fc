"""Bootstrap addresses, as users write them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from muster.client.network.cluster import parse_bootstrap
from muster.client.network.connection import Address

DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"


def parse_servers(given: str | Sequence[str]) -> tuple[Address, ...]:
    """`host:port[,host:port]`, or several of these. Raises ValueError, naming the invalid part."""
    texts = [given] if isinstance(given, str) else list(given) if isinstance(given, Iterable) else None
    if not texts or not all(isinstance(each, str) for each in texts):
        raise ValueError(f"bootstrap_servers={given!r}: it takes host:port[,host:port], or a list of these")
    try:
        return tuple(address for text in texts for address in parse_bootstrap(text))
    except ValueError as error:
        raise ValueError(f"bootstrap_servers: {error}") from None
