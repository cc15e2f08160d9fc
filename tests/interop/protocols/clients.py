"""The clients that speak both protocols."""

from __future__ import annotations

from typing import Final

from tests.interop.story.clients.base import StockClient
from tests.interop.story.clients.built import FRANZ_GO
from tests.interop.story.clients.java import JAVA
from tests.interop.story.clients.python import CONFLUENT, MUSTER

CLIENTS: Final[dict[str, StockClient]] = {
    client.name: client for client in (MUSTER, CONFLUENT, JAVA, FRANZ_GO)
}
