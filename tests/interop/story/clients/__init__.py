"""The stock clients and our own, in the order of the table in docs/compatibility.md."""

from __future__ import annotations

from typing import Final

from tests.interop.story.clients.base import StockClient
from tests.interop.story.clients.built import FRANZ_GO, KAFKAJS, KCAT
from tests.interop.story.clients.java import CONSOLE, JAVA, JAVA_COOPERATIVE
from tests.interop.story.clients.python import AIOKAFKA, CONFLUENT, KAFKA_PYTHON, MUSTER

CLIENTS: Final[tuple[StockClient, ...]] = (
    JAVA,
    JAVA_COOPERATIVE,
    CONSOLE,
    CONFLUENT,
    KAFKA_PYTHON,
    AIOKAFKA,
    KAFKAJS,
    FRANZ_GO,
    KCAT,
    MUSTER,
)


def by_name(name: str) -> StockClient:
    for client in CLIENTS:
        if client.name == name:
            return client
    raise ValueError(f"no client {name!r}; there are {', '.join(client.name for client in CLIENTS)}")
