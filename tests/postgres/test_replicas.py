"""Replica lists over PostgreSQL, where brokers learn of each other's changes with a delay."""

from __future__ import annotations

from muster.coordinator.config import Settings
from muster.coordinator.server.brokers import Brokers
from muster.protocol.errors import ErrorCode
from tests.server.test_replicas import create, leader_of, produce, reassign, until_told, values
from tests.support.leases import TERM_MS, run_out


async def test_partitions_are_led_by_their_lists_and_keep_their_records(store: str) -> None:
    brokers = Brokers(Settings(port=0, store=store, brokers=3, lease_term_ms=TERM_MS))
    await brokers.start()
    try:
        first = brokers.brokers[0]
        assert (await create(first, assigned=[[3, 1], [2, 3]])).error_code == ErrorCode.NONE
        await until_told(brokers, [(3, [3, 1], [3, 1]), (2, [2, 3], [2, 3])])
        assert await produce(leader_of(brokers), b"a") == ErrorCode.NONE
        for value, replicas in ((b"b", [2, 1]), (b"c", [3, 2, 1]), (b"d", [3, 1])):
            assert await reassign(first, {0: replicas}) == [ErrorCode.NONE]
            await until_told(brokers, [(replicas[0], replicas, replicas), (2, [2, 3], [2, 3])])
            assert await produce(leader_of(brokers), value) == ErrorCode.NONE
        await brokers.kill_one(2)
        await run_out(brokers.shared.store, brokers.brokers[2])
        await until_told(brokers, [(1, [3, 1], [1]), (2, [2, 3], [2])])
        assert await produce(leader_of(brokers), b"e") == ErrorCode.NONE
        await brokers.start_one(2)
        await until_told(brokers, [(3, [3, 1], [3, 1]), (2, [2, 3], [2, 3])])
        assert await values(leader_of(brokers)) == [b"a", b"b", b"c", b"d", b"e"]
    finally:
        await brokers.stop()
