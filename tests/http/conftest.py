"""Brokers in the test's own loop, with their HTTP endpoint."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from muster.coordinator.config import Settings
from muster.coordinator.server.broker import Broker
from muster.coordinator.server.brokers import Brokers
from muster.coordinator.web import app
from muster.coordinator.web.binding import prepare
from muster.coordinator.web.feed import Feed
from tests.http.member import Member
from tests.server.security.conftest import keys
from tests.support.facts import until
from tests.support.leases import TERM_MS

__all__ = ["keys"]


@dataclass
class Shown:
    """Brokers, their page, and a client of it."""

    brokers: Brokers
    page: app.Running
    http: aiohttp.ClientSession

    @property
    def broker(self) -> Broker:
        return self.brokers.brokers[0]

    @property
    def port(self) -> int:
        """The first broker's port."""
        return self.broker.port

    @property
    def page_feed(self) -> Feed:
        return self.page.feed

    async def get(self, path: str, **request: Any) -> tuple[int, Any]:
        """Get a path and return its status and JSON."""
        async with self.http.get(self.page.url + path, **request) as answer:
            return answer.status, json.loads(await answer.text())

    async def text(self, path: str) -> str:
        """Get a path that is not JSON and return its text."""
        async with self.http.get(self.page.url + path) as answer:
            assert answer.status == 200
            return await answer.text()

    async def create_topic(self, name: str = "orders", partitions: int = 3) -> None:
        await self.broker.catalogue.create(name, partitions=partitions)
        for each in self.brokers.running:
            await each.catalogue.refresh()

    async def groups_of_brokers(self) -> dict[int, str]:
        """For each broker, by node id, a group id that it coordinates."""
        topology = self.broker.topology

        def found() -> dict[int, str]:
            nodes = {str(name): self.broker.topology.coordinator(str(name)) for name in range(100)}
            return (
                {} if None in nodes.values() else {node.node_id: name for name, node in nodes.items() if node}
            )

        await until(lambda: len(found()) == len(topology.nodes), "a coordinator for every group")
        return found()

    async def journalled(self, type: str, group: str = "billing", *, times: int = 1) -> None:
        """Wait until that many entries of that type are in the journal."""
        journal = self.broker.journal
        await until(lambda: sum(each.type == type for each in journal.of(group)) >= times, type)


Show = Callable[..., Awaitable[Shown]]


@pytest.fixture
async def show() -> AsyncIterator[Show]:
    """Start brokers with these settings and their page; both are stopped at the end of the test."""
    async with AsyncExitStack() as stack:

        async def start(**settings: Any) -> Shown:
            defaults = {
                "port": 0,
                "http": "127.0.0.1:0",
                "ephemeral": True,
                "test_mode": True,
                "group_initial_rebalance_delay_ms": 0,
                "shutdown_grace_ms": 2_000,
                "lease_term_ms": TERM_MS,
            }
            brokers = Brokers(Settings(**{**defaults, **settings}))
            prepared = await prepare(brokers)
            stack.callback(prepared.listener.release)
            stack.push_async_callback(brokers.stop)
            await brokers.start()
            for each in brokers.brokers:
                await each.runtime.loaded()
            page = await app.start(prepared)
            stack.push_async_callback(page.close)
            http = await stack.enter_async_context(aiohttp.ClientSession())
            return Shown(brokers, page, http)

        yield start


@pytest.fixture
async def shown(show: Show) -> Shown:
    """One broker with the topic orders."""
    shown = await show()
    await shown.create_topic()
    return shown


@pytest.fixture
async def member(shown: Shown) -> AsyncIterator[Member]:
    """The only member of the Stable group billing, with all three partitions of orders."""
    async with await Member.connect(shown.port) as member:
        yield await member.alone([0, 1, 2])
