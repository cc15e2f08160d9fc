"""The clients that speak both protocols."""

from __future__ import annotations

from typing import Final

from tests.interop.story.clients.base import StockClient
from tests.interop.story.clients.built import FRANZ_GO
from tests.interop.story.clients.java import JAVA
from tests.interop.story.clients.python import CONFLUENT, MUSTER

CANNOT_LEAVE_FOR_A_WHILE: Final = frozenset({FRANZ_GO.name})
"""Limits their use as static members of the consumer protocol. franz-go 1.22 sends the epoch -2 without its
instance id, which Apache Kafka refuses as well."""
CLIENTS: Final[dict[str, StockClient]] = {
    client.name: client for client in (MUSTER, CONFLUENT, JAVA, FRANZ_GO)
}
