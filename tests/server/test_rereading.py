"""Brokers go on reading what others change in the store, whatever a read fails with."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable
from typing import Any, Final, cast

import pytest

from muster.coordinator.base.log import Logger
from muster.coordinator.server import broker as broker_module
from muster.coordinator.server import shards
from muster.coordinator.server.shards import DataShards
from muster.coordinator.storage.store import Lease, LeaseKind, StoreClosed
from muster.coordinator.topics.config import ConfigChange, Operation
from muster.coordinator.topics.partitions import Partitions
from tests.server.conftest import StartBrokers
from tests.support.facts import until

DEADLINE_S: Final = 30.0


def failing(times: int, call: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, which fails the first times."""
    left = times

    async def called(*args: Any) -> Any:
        nonlocal left
        if left:
            left -= 1
            raise RuntimeError("nobody thought of this")
        return await call(*args)

    return called


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The warnings and errors that were logged."""
    said: list[str] = []
    for level in ("warning", "error"):
        monkeypatch.setattr(Logger, level, lambda _, event, **fields: said.append(event))
    monkeypatch.setattr(broker_module, "_READ_AGAIN_S", 0.0)
    monkeypatch.setattr(shards, "_READ_AGAIN_S", 0.0)
    return said


async def test_a_broker_hears_of_configs_after_a_read_has_failed(
    start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    first, second = (await start_brokers(brokers=2)).brokers
    said.clear()
    monkeypatch.setattr(second.configs, "refresh", failing(3, second.configs.refresh))
    change = ConfigChange("log.retention.ms", Operation.SET, "1000")
    await first.configs.alter("", [change], replace=False, validate_only=False)
    await until(lambda: second.configs.altered(""), "the other broker to hear of the config")
    assert said == ["failed to read topics and configs, retrying"], "once, not for each try"


async def test_a_broker_hears_of_topics_while_it_cannot_apply_configs(
    start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    first, second = (await start_brokers(brokers=2)).brokers
    monkeypatch.setattr(second.configs, "refresh", failing(sys.maxsize, second.configs.refresh))
    await first.catalogue.create("t")
    await until(lambda: second.catalogue.by_name("t"), "the other broker to hear of the topic")


async def test_a_read_of_the_topics_that_fails_when_its_callers_are_gone_is_no_news(
    start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    (broker,) = (await start_brokers(brokers=1)).brokers
    begun, goes_on = asyncio.Event(), asyncio.Event()
    complaints: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: complaints.append(about["message"]))

    async def fails() -> None:
        begun.set()
        await goes_on.wait()
        raise StoreClosed("the store is closed")

    monkeypatch.setattr(broker.catalogue, "refresh", fails)
    caller = asyncio.create_task(broker.read_topics())
    async with asyncio.timeout(DEADLINE_S):
        await begun.wait()
    caller.cancel()
    await asyncio.wait([caller])
    goes_on.set()
    await until(
        lambda: "read topics" not in map(asyncio.Task.get_name, asyncio.all_tasks()), "the read to end"
    )
    gc.collect()
    assert not complaints


class Owned:
    """Stands in for the partitions: the leases owned, with their epochs."""

    def __init__(self) -> None:
        self.epochs: dict[Lease, int] = {}

    def own(self, lease: Lease, epoch: int) -> None:
        self.epochs[lease] = epoch

    async def disown(self, lease: Lease) -> None:
        self.epochs.pop(lease, None)


async def test_a_lease_is_served_after_reading_the_topics_has_failed(said: list[str]) -> None:
    owned, read = Owned(), asyncio.Event()
    read.set()
    data = DataShards(LeaseKind.DATA, cast(Partitions, owned), failing(3, read.wait), lambda: None)
    async with asyncio.timeout(DEADLINE_S):
        await data.own(4, 7)
    assert owned.epochs == {Lease(LeaseKind.DATA, 4): 7}
    assert said == ["failed to read topics for a shard, retrying"], "once, not for each try"
