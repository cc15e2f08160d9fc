"""The stock aiokafka client, unchanged, against muster."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import AIOKafkaConsumer

from muster.coordinator.testing import AsyncBroker, Broker
from tests.interop.polling import DEADLINE_S

pytestmark = pytest.mark.interop


async def consumer(broker: AsyncBroker, name: str) -> AIOKafkaConsumer:
    started = AIOKafkaConsumer(
        "orders",
        bootstrap_servers=broker.bootstrap,
        group_id="billing",
        client_id=name,
        session_timeout_ms=45_000,
        heartbeat_interval_ms=100,
    )
    await started.start()
    return started


async def test_after_a_crash_one_that_is_let_back_in_can_be_stopped() -> None:
    """As docs/testing.md says: its `stop` finds no coordinator that it does not know already."""
    async with Broker() as broker, asyncio.timeout(DEADLINE_S):
        await broker.create_topic("orders", partitions=2)
        group = broker.group("billing")
        one, two = await consumer(broker, "web-1"), await consumer(broker, "web-2")
        await group.stable(members=2)
        kept_away = await group.member("web-2").crash()
        await broker.clock.advance("45s")
        await group.stable(members=1)
        await kept_away.remove()
        await group.stable(members=2)
        await two.stop()
        await group.stable(members=1)
        await one.stop()
