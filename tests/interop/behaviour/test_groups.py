"""Members of a group: who owns what, and what they are notified of."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from muster.client import Consumer, StaleOwner, TopicPartition
from tests.interop.behaviour.place import (
    BOTH,
    DEADLINE_S,
    Listening,
    Member,
    Place,
    take,
    until,
    values_of,
)

pytestmark = pytest.mark.interop

EVERYTHING = frozenset(range(4))
ASSIGNORS = ("range", "roundrobin", "sticky", "cooperative-sticky")


def shared(*members: Member) -> bool:
    """Whether all own something, and together they own each partition once."""
    owned = [member.owned for member in members]
    return all(owned) and sorted(each for mine in owned for each in mine) == sorted(EVERYTHING)


@pytest.mark.parametrize("assignor", ASSIGNORS)
async def test_members_share_the_partitions_as_they_come_and_go(place: Place, assignor: str) -> None:
    topic = await place.topic(partitions=4)
    async with place.member(topic, assignors=[assignor]) as first:
        await until(lambda: first.owned == EVERYTHING, "all partitions for the only member")
        async with place.member(topic, assignors=[assignor]) as second:
            await until(lambda: shared(first, second), "shared partitions")
            assert len(first.owned) == len(second.owned) == 2
            group = await place.admin.describe_group(place.group)
            assert (group.state, group.assignor, len(group.members)) == ("Stable", assignor, 2)
            sent = await place.spread(topic, 4, 25)
            await until(lambda: len(first.records) + len(second.records) >= 100, "all records")
            assert sorted([*first.values, *second.values]) == sorted(sent)
        await until(lambda: first.owned == EVERYTHING, "all partitions for the member that stays")
        await place.spread(topic, 4, 25, "more ")
        await until(lambda: len(first.records) + len(second.records) >= 200, "the records after that")
        assert len({*first.values, *second.values}) == len(first.values) + len(second.values) == 200


async def test_what_a_listener_is_told_of_eager_rebalances(place: Place) -> None:
    topic = await place.topic(partitions=4)
    listening = Listening()
    async with place.member(topic, assignors=["range"], listener=listening) as first:
        await until(lambda: first.owned == EVERYTHING, "all partitions for the only member")
        async with place.member(topic, assignors=["range"]) as second:
            await until(lambda: shared(first, second), "shared partitions")
            kept = first.owned
        await until(lambda: first.owned == EVERYTHING, "all partitions again")
    assert listening.told == [
        ("assigned", EVERYTHING),
        ("revoked", EVERYTHING),
        ("assigned", kept),
        ("revoked", kept),
        ("assigned", EVERYTHING),
        ("revoked", EVERYTHING),
    ]


async def test_what_a_listener_is_told_of_cooperative_rebalances(place: Place) -> None:
    topic = await place.topic(partitions=4)
    listening = Listening()
    cooperative = {"assignors": ["cooperative-sticky"]}
    async with place.member(topic, **cooperative, listener=listening) as first:
        await until(lambda: first.owned == EVERYTHING, "all partitions for the only member")
        async with place.member(topic, **cooperative) as second:
            await until(lambda: shared(first, second), "shared partitions")
            gone = second.owned
        await until(lambda: first.owned == EVERYTHING, "all partitions again")
    # What stays is never revoked; `assigned` is called for every rebalance, with the new partitions.
    assert listening.changes == [
        ("assigned", EVERYTHING),
        ("revoked", gone),
        ("assigned", gone),
        ("revoked", EVERYTHING),
    ]


@pytest.mark.parametrize("heartbeat", ["loop", "thread"])
async def test_auto_is_a_member_whatever_the_brokers_offer(place: Place, heartbeat: str) -> None:
    topic = await place.topic(partitions=4)
    auto = {"group_protocol": "auto", "heartbeat": heartbeat}
    async with place.member(topic, **auto) as first:
        await until(lambda: first.owned == EVERYTHING, "all partitions for the only member")
        async with place.member(topic, **auto) as second:
            await until(lambda: shared(first, second), "shared partitions")
            sent = await place.spread(topic, 4, 25)
            await until(lambda: len(first.records) + len(second.records) >= 100, "all records")
            assert sorted([*first.values, *second.values]) == sorted(sent)
        await until(lambda: first.owned == EVERYTHING, "all partitions again")
    assert set((await place.committed()).values()) == {25}


@BOTH
async def test_a_listener_that_rewinds_the_whole_group(place: Place) -> None:
    topic = await place.topic(partitions=2)
    sent = await place.spread(topic, 2, 5)
    async with place.consumer(group_id=place.group, topics=topic) as consumer:
        assert set(await values_of(consumer, 10)) == sent
    assert sum((await place.committed()).values()) == 10

    class Rewind(Listening):
        async def on_partitions_assigned(
            self, consumer: Consumer[Any, Any], partitions: Iterable[TopicPartition]
        ) -> None:
            for where in partitions:
                assert await consumer.position(where) == 5
            consumer.seek_to_beginning(*partitions)

    async with place.consumer(group_id=place.group, topics=topic, listener=Rewind()) as consumer:
        assert set(await values_of(consumer, 10)) == sent


async def test_pauses_last_through_cooperative_rebalances(place: Place) -> None:
    topic = await place.topic(partitions=4)
    cooperative = {"assignors": ["cooperative-sticky"]}
    async with place.member(topic, **cooperative) as first:
        await until(lambda: first.owned == EVERYTHING, "all partitions for the only member")
        first.consumer.pause(*first.consumer.assignment)
        async with place.member(topic, **cooperative) as second:
            await until(lambda: shared(first, second), "shared partitions")
            assert first.consumer.paused == first.consumer.assignment
            await place.spread(topic, 4, 5)
            await until(lambda: len(second.records) == 10, "the records of the member without pauses")
            assert first.records == []
            first.consumer.resume(*first.consumer.assignment)
            await until(lambda: len(first.records) == 10, "the other records")


@BOTH
async def test_a_static_member_comes_back_without_a_rebalance(place: Place) -> None:
    topic = await place.topic(partitions=4)
    listening = Listening()
    async with place.member(topic, group_instance_id="one", listener=listening) as first:
        await until(lambda: first.owned == EVERYTHING, "all partitions for the only member")
        async with place.member(topic, group_instance_id="two") as second:
            await until(lambda: shared(first, second), "shared partitions")
            had = second.owned
        told = list(listening.told)
        generation = first.consumer.group_metadata().generation_id
        # A static member that closes stays a member until its session expires.
        async with place.member(topic, group_instance_id="two") as second:
            await until(lambda: second.owned == had, "what it had before")
            assert first.consumer.group_metadata().generation_id == generation
            await place.spread(topic, 4, 1)
            await until(lambda: len(first.records) + len(second.records) == 4, "records for both")
        assert listening.told == told


async def test_of_two_members_with_one_instance_id_the_first_is_fenced(place: Place) -> None:
    from muster.client import KafkaError

    topic = await place.topic()
    async with place.consumer(group_id=place.group, topics=topic, group_instance_id="one") as first:
        await place.send(topic, b"1")
        await take(first, 1)
        async with place.member(topic, group_instance_id="one") as second:
            await until(lambda: second.owned == {0}, "the partition for the second")
            with pytest.raises(KafkaError, match="FENCED_INSTANCE_ID"):
                await first.get(timeout=DEADLINE_S)


@BOTH
async def test_a_member_that_does_not_ask_for_records_leaves_and_comes_back(place: Place) -> None:
    topic = await place.topic(partitions=4)
    await place.spread(topic, 4, 10)
    listening = Listening()
    async with place.consumer(
        group_id=place.group,
        topics=topic,
        listener=listening,
        max_poll_interval_ms=4_000,
        revocation_grace_ms=500,
        enable_auto_commit=False,
    ) as slow:
        (record,) = await take(slow, 1)
        await place.until_members(0)  # its handler takes longer than max_poll_interval_ms
        result = await slow.commit()
        assert isinstance(result[record.topic_partition], StaleOwner)
        assert await place.committed() == {}
        # The next read reports this to the listener, and joins again.
        again = await take(slow, 40)
        assert len({(each.partition, each.offset) for each in again}) == 40
        assert listening.changes == [("assigned", EVERYTHING), ("lost", EVERYTHING), ("assigned", EVERYTHING)]


@BOTH
async def test_a_member_that_was_removed_learns_that_it_has_lost_its_partitions(place: Place) -> None:
    topic = await place.topic(partitions=4)
    listening = Listening()
    async with place.member(topic, listener=listening) as member:
        await until(lambda: member.owned == EVERYTHING, "all partitions")
        (await place.admin.remove_members(place.group)).raise_for_failures()
        await until(lambda: len(listening.changes) == 3, "a new assignment")
        assert listening.changes == [("assigned", EVERYTHING), ("lost", EVERYTHING), ("assigned", EVERYTHING)]
        await place.spread(topic, 4, 1)
        await until(lambda: len(member.records) == 4, "records")


@BOTH
async def test_draining_finishes_commits_and_leaves(place: Place) -> None:
    topic = await place.topic(partitions=4)
    await place.spread(topic, 4, 25)
    async with place.consumer(group_id=place.group, topics=topic) as consumer:
        seen: dict[TopicPartition, int] = {}

        async def read() -> None:
            async for record in consumer:
                seen[record.topic_partition] = record.offset + 1
                await asyncio.sleep(0)

        reading = asyncio.create_task(read())
        await until(lambda: sum(seen.values()) >= 10, "some records")
        await consumer.drain(timeout=DEADLINE_S)
        await asyncio.wait_for(reading, DEADLINE_S)  # the loop ends by itself
        # Where nothing was read, the starting position may be committed as well.
        assert {where: offset for where, offset in (await place.committed()).items() if offset} == seen
        await place.until_members(0)


@BOTH
async def test_work_on_a_partition_ends_with_its_assignment(place: Place) -> None:
    topic = await place.topic(partitions=4)
    async with place.member(topic, revocation_grace_ms=0) as first:
        await until(lambda: first.owned == EVERYTHING, "all partitions for the only member")
        never = asyncio.Event()
        work = {
            where.partition: first.consumer.scope(where).create_task(never.wait())
            for where in first.consumer.assignment
        }
        async with place.member(topic) as second:
            await until(lambda: shared(first, second), "shared partitions")
            gone = second.owned
            assert all(work[each].cancelled() for each in gone)


@BOTH
async def test_health_tells_how_a_member_is(place: Place) -> None:
    topic = await place.topic(partitions=4)
    async with place.member(topic) as member:
        await until(lambda: member.owned == EVERYTHING, "all partitions")
        await until(lambda: member.consumer.health().heartbeat_age_s is not None, "a heartbeat")
        await until(lambda: member.consumer.health().membership == "STABLE", "the assignment acknowledged")
        health = member.consumer.health()
        metadata = member.consumer.group_metadata()
        assert health.state == "running"
        assert (health.member_id, health.generation_id) == (metadata.member_id, metadata.generation_id)
        assert health.assignment == member.consumer.assignment
