"""A whole broker in the test's own loop, reached over real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from muster.coordinator.config import Settings
from muster.coordinator.server.brokers import Brokers
from tests.support.leases import TERM_MS

StartBrokers = Callable[..., Awaitable[Brokers]]


@pytest.fixture
async def start_brokers() -> AsyncIterator[StartBrokers]:
    """Start brokers in memory with these settings and leases of `TERM_MS`, and wait until their shards are
    loaded; they are stopped at the end of the test."""
    started: list[Brokers] = []

    async def start(**settings: Any) -> Brokers:
        defaults = {
            "port": 0,
            "ephemeral": True,
            "group_initial_rebalance_delay_ms": 0,
            "shutdown_grace_ms": 30_000,
            "lease_term_ms": TERM_MS,
        }
        brokers = Brokers(Settings(**{**defaults, **settings}))
        started.append(brokers)
        await brokers.start()
        for broker in brokers.brokers:
            await broker.runtime.loaded()
        return brokers

    yield start
    for each in started:
        for broker in each.running:
            # Whatever the test has left in flight need not be waited for.
            broker.settings = replace(broker.settings, shutdown_grace_ms=2_000)
        await each.stop()


@pytest.fixture
async def port(start_brokers: StartBrokers) -> int:
    """The port of one broker with test settings."""
    return (await start_brokers()).brokers[0].port
