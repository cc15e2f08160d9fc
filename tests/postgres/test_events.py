"""`__group_events` over PostgreSQL: the next holder of a shard continues where the last one stopped."""

from __future__ import annotations

import asyncio

from muster.coordinator.config import Settings
from muster.coordinator.server.brokers import Brokers
from muster.coordinator.storage.store import Lease, LeaseKind
from muster.protocol.errors import ErrorCode
from tests.server.test_events_topic import Events, told
from tests.support.wire import Wire

DEADLINE_S = 60


async def test_events_go_on_with_the_next_holder(store: str) -> None:
    brokers = Brokers(Settings(port=0, store=store, brokers=2))
    await brokers.start()
    try:
        first, second = brokers.brokers
        held = [number for number in range(50) if first.membership.serving(Lease(LeaseKind.GROUP, number))]
        async with await Wire.connect(first.port) as wire, await Wire.connect(second.port) as other:
            here, there = Events(first, wire, held[0]), Events(second, other, held[0])
            await here.tell(b"one", b"two")
            assert told(await here.fetch(0)) == (0, [b"one", b"two"])
            assert (await there.fetch(0)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            epoch = here.leader_epoch
            await brokers.kill_one(0)
            async with asyncio.timeout(DEADLINE_S):
                while (answer := await there.fetch(0)).error_code:
                    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert told(answer) == (0, [b"one", b"two"])
            async with asyncio.timeout(DEADLINE_S):
                while there.leader_epoch <= epoch:
                    await there.end()
            await other.send(there.fetching(2, max_wait_ms=DEADLINE_S * 1_000), 12)
            await there.tell(b"three")
            answer = (await other.receive()).responses[0].partitions[0]
            assert (told(answer), answer.high_watermark) == ((0, [b"three"]), 3)
    finally:
        await brokers.stop()
