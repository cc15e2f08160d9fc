"""Brokers that die while clients are at work."""

from __future__ import annotations

import asyncio

import pytest

from muster.coordinator.testing import Cluster
from tests.interop.behaviour.place import BOTH, DEADLINE_S, Listening, Place, until
from tests.interop.behaviour.targets import Target

pytestmark = pytest.mark.interop

RECORDS = 3_000


@BOTH
async def test_a_restart_costs_neither_records_nor_the_membership(place: Place, target: Target) -> None:
    topic = await place.topic(partitions=3)
    listening = Listening()
    async with place.member(topic, listener=listening, session_timeout_ms=60_000) as member:
        await until(lambda: member.owned == {0, 1, 2}, "all partitions")
        generation = member.consumer.group_metadata().generation_id

        async def send() -> None:
            for number in range(RECORDS):
                sent.append(await place.producer.post(topic, b"%d" % number, partition=number % 3))
                if not number % 50:
                    await asyncio.sleep(0.01)

        sent: list[asyncio.Future[object]] = []
        sending = asyncio.create_task(send())
        await until(lambda: len(member.records) > RECORDS // 10, "the first records")
        await asyncio.to_thread(target.restart)
        await sending
        await asyncio.gather(*sent)
        await until(lambda: len(member.records) >= RECORDS, "all records")
        for partition in range(3):
            mine = [int(each.value) for each in member.records if each.partition == partition]
            assert mine == list(range(partition, RECORDS, 3)), "each record once, in order"
        assert member.consumer.group_metadata().generation_id == generation
        assert listening.changes == [("assigned", {0, 1, 2})]
        where = {each: len(range(each.partition, RECORDS, 3)) for each in member.consumer.assignment}
    assert await place.committed() == where


async def test_a_coordinator_that_moves_costs_no_rebalance() -> None:
    """Of three brokers, the group's coordinator dies for good."""
    from muster.client import Admin, Producer

    with Cluster(3) as cluster:
        async with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
            place = Place(cluster.bootstrap, admin, producer)
            topic = await place.topic(partitions=6)
            listening = Listening()
            async with place.member(topic, listener=listening, session_timeout_ms=60_000) as member:
                await place.spread(topic, 6, 10)
                await until(lambda: len(member.records) == 60, "the records before")
                coordinator = cluster.coordinator_of(place.group)
                assert coordinator is not None
                await asyncio.to_thread(cluster.kill, coordinator)
                await place.spread(topic, 6, 10, "after ")
                await until(lambda: len(member.records) == 120, "the records after")
                assert (await member.consumer.commit(timeout=DEADLINE_S)).ok
                assert cluster.coordinator_of(place.group) != coordinator
                assert len(listening.told) == 1
            assert set((await place.committed()).values()) == {20}
