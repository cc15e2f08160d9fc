"""Client quotas over PostgreSQL: every broker knows them, and they survive a restart."""

from __future__ import annotations

import random
import string
from typing import Final

from muster.coordinator.config import Settings
from muster.coordinator.security.quotas import PERCENTAGE, PRODUCED
from muster.coordinator.server.broker import Broker
from muster.coordinator.server.brokers import Brokers
from muster.protocol.messages.quotas import AlterClientQuotasRequest, DescribeClientQuotasRequest
from tests.support.facts import until
from tests.support.wire import Wire

_Entry = AlterClientQuotasRequest.EntryData
NAMES: Final = ("alice", "".join(random.Random(1).choices(string.ascii_letters, k=30_000)), "\0ü", None)
"""The second is too long for an index, even compressed; PostgreSQL rejects text like the third."""


async def described(broker: Broker) -> dict[str | None, dict[str, float]]:
    async with await Wire.connect(broker.port) as wire:
        answer = await wire.call(DescribeClientQuotasRequest(components=[], strict=False), 1)
    return {
        each.entity[0].entity_name: {value.key: value.value for value in each.values}
        for each in answer.entries
    }


async def alter(broker: Broker, key: str, value: float | None) -> None:
    op = _Entry.OpData(key=key, value=value or 0.0, remove=value is None)
    entries = [
        _Entry(entity=[_Entry.EntityData(entity_type="user", entity_name=name)], ops=[op]) for name in NAMES
    ]
    async with await Wire.connect(broker.port) as wire:
        answer = await wire.call(AlterClientQuotasRequest(entries=entries, validate_only=False), 1)
    assert [each.error_code for each in answer.entries] == [0] * len(NAMES)


async def test_quotas_are_kept_and_known_to_every_broker(store: str) -> None:
    settings = Settings(port=0, store=store, brokers=2)
    brokers = Brokers(settings)
    await brokers.start()
    try:
        one, other = brokers.brokers
        await alter(one, PRODUCED, 1_024.0)
        await alter(other, PERCENTAGE, 0.1)
        await until(lambda: PERCENTAGE in one.quotas.in_force.of(frozenset({("user", None)})), "the quotas")
        expected = {name: {PRODUCED: 1_024.0, PERCENTAGE: 0.1} for name in NAMES}
        assert await described(one) == await described(other) == expected
        await alter(one, PRODUCED, None)
    finally:
        await brokers.stop()
    again = Brokers(Settings(port=0, store=store))
    await again.start()
    try:
        assert await described(again.brokers[0]) == {name: {PERCENTAGE: 0.1} for name in NAMES}
        await alter(again.brokers[0], PERCENTAGE, None)
        assert await described(again.brokers[0]) == {}
    finally:
        await again.stop()
