"""An admin client and a producer for one broker."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from muster.client.admin.client import Admin
from muster.client.partitions import TopicPartition
from muster.client.producer import Producer
from muster.coordinator.testing import Broker


@pytest.fixture
async def admin(broker: Broker) -> AsyncIterator[Admin]:
    async with Admin(broker.bootstrap) as admin:
        yield admin


@pytest.fixture
async def producer(broker: Broker) -> AsyncIterator[Producer[bytes, bytes]]:
    async with Producer[bytes, bytes](broker.bootstrap, linger_ms=0) as producer:
        yield producer


@pytest.fixture
async def orders(admin: Admin, producer: Producer[bytes, bytes]) -> list[TopicPartition]:
    """Topic `orders` with two partitions. The first holds ten records, from 1000 ms on and a second apart, of
    which the first three are deleted; the second is empty."""
    partitions = [TopicPartition("orders", 0), TopicPartition("orders", 1)]
    await admin.create_topic("orders", 2)
    for number in range(10):
        await producer.send("orders", b"%d" % number, partition=0, timestamp_ms=1000 * (number + 1))
    (await admin.delete_records({partitions[0]: 3})).raise_for_failures()
    return partitions
