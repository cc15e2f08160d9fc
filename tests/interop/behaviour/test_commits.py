"""What a group has committed, and when."""

from __future__ import annotations

import asyncio

import pytest

from muster.client import Committed, KafkaError, OffsetAndMetadata, StaleOwner, TopicPartition
from tests.interop.behaviour.place import BOTH, DEADLINE_S, Place, take, until, values_of

pytestmark = pytest.mark.interop

BY_HAND = {"enable_auto_commit": False}


@BOTH
async def test_the_next_consumer_goes_on_at_the_commit(place: Place) -> None:
    topic = await place.topic()
    where = TopicPartition(topic, 0)
    await place.send(topic, *(b"%d" % number for number in range(10)))
    async with place.consumer(group_id=place.group, topics=topic, **BY_HAND) as consumer:
        await take(consumer, 4)
        # The fourth record is still being handled: it is committed explicitly, as only three count.
        result = await consumer.commit({where: OffsetAndMetadata(4, "four of them")})
        assert result.ok
        assert dict(result) == {where: Committed(4)}
        await take(consumer, 3)
    assert await place.committed() == {where: 4}
    async with place.consumer(group_id=place.group, topics=topic, **BY_HAND) as consumer:
        assert await values_of(consumer, 1) == [b"4"]
        found = await consumer.committed([where])
        assert found[where] is not None
        assert (found[where].offset, found[where].metadata) == (4, "four of them")
        assert (await consumer.commit()).ok  # what was handled so far: nothing new


@BOTH
async def test_commit_without_offsets_is_about_what_was_handled(place: Place) -> None:
    topic = await place.topic()
    where = TopicPartition(topic, 0)
    await place.send(topic, *(b"%d" % number for number in range(10)))
    async with place.consumer(group_id=place.group, topics=topic, **BY_HAND) as consumer:
        await consumer.get_many(6, timeout=DEADLINE_S)
        assert dict(await consumer.commit()) == {where: Committed(6)}
    assert await place.committed() == {where: 6}


async def test_nothing_is_committed_for_nobody(place: Place) -> None:
    topic = await place.topic(partitions=2)
    one, two = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with place.consumer(group_id=place.group) as consumer:
        assert await consumer.committed([one, two]) == {one: None, two: None}
        consumer.assign([one])
        # Without a subscription, a group is just a name for offsets.
        assert (await consumer.commit({one: OffsetAndMetadata(3)})).ok
        found = await consumer.committed([one, two])
        assert (found[one] and found[one].offset, found[two]) == (3, None)


@BOTH
async def test_commits_by_themselves(place: Place) -> None:
    topic = await place.topic()
    where = TopicPartition(topic, 0)
    await place.send(topic, *(b"%d" % number for number in range(10)))
    async with place.member(topic, auto_commit_interval_ms=200) as member:
        await place.until_committed({where: 10})
        await place.send(topic, b"10")
        await place.until_committed({where: 11})
    assert member.values == [b"%d" % number for number in range(11)]


@BOTH
async def test_a_clean_end_commits_what_was_handled(place: Place) -> None:
    topic = await place.topic()
    where = TopicPartition(topic, 0)
    await place.send(topic, *(b"%d" % number for number in range(10)))
    async with place.consumer(group_id=place.group, topics=topic) as consumer:
        await take(consumer, 8)
    assert await place.committed() == {where: 8}
    async with place.consumer(group_id=place.group, topics=topic, **BY_HAND) as consumer:
        assert await values_of(consumer, 2) == [b"8", b"9"]
    assert await place.committed() == {where: 8}


@BOTH
async def test_what_was_in_hand_when_the_block_was_left_by_an_exception_comes_again(place: Place) -> None:
    topic = await place.topic()
    where = TopicPartition(topic, 0)
    await place.send(topic, *(b"%d" % number for number in range(10)))

    async def read() -> None:
        async with place.consumer(group_id=place.group, topics=topic) as consumer:
            async for record in consumer:
                if record.value == b"3":
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await read()
    assert await place.committed() == {where: 3}
    async with place.consumer(group_id=place.group, topics=topic) as consumer:
        assert await values_of(consumer, 1) == [b"3"]


@pytest.mark.parametrize(
    ("protocol", "assignor"),
    [("classic", "range"), ("classic", "cooperative-sticky"), ("consumer", None)],
    indirect=["protocol"],
)
async def test_what_was_handled_is_committed_before_partitions_move(
    place: Place, assignor: str | None
) -> None:
    topic = await place.topic(partitions=4)
    sent = await place.spread(topic, 4, 50)
    options = {} if assignor is None else {"assignors": [assignor]}
    async with place.member(topic, **options) as first:
        await until(lambda: len(first.records) == 200, "all records")
        async with place.member(topic, **options) as second:
            await until(lambda: len(first.owned) == len(second.owned) == 2, "shared partitions")
            await place.spread(topic, 4, 1, "later ")
            await until(lambda: len(first.records) + len(second.records) >= 204, "the later records")
            assert sorted(first.values[:200]) == sorted(sent)
            # The record that the first member held when it learned of the rebalance was handled by then.
            assert len(first.records) + len(second.records) == 204


@BOTH
async def test_a_commit_of_a_generation_that_has_passed(place: Place) -> None:
    topic = await place.topic(partitions=4)
    await place.spread(topic, 4, 10)
    async with place.consumer(group_id=place.group, topics=topic, **BY_HAND) as consumer:
        records = await take(consumer, 40)
        (await place.admin.remove_members(place.group)).raise_for_failures()
        everything = {record.topic_partition: OffsetAndMetadata(10) for record in records}
        result = await consumer.commit(everything)
        assert not result.ok
        assert result.stale.keys() == everything.keys()
        assert all(isinstance(outcome, StaleOwner) and outcome.offset == 10 for outcome in result.values())
        assert await place.committed() == {}
        # The loop goes on as a new member, with the uncommitted records.
        assert len(await take(consumer, 40)) == 40
        assert (await consumer.commit(everything)).ok
    assert set((await place.committed()).values()) == {10}


@BOTH
async def test_a_commit_that_no_broker_takes_is_an_error(place: Place) -> None:
    topic = await place.topic()
    where = TopicPartition(topic, 0)
    await place.send(topic, b"0")
    async with place.consumer(group_id=place.group, topics=topic, **BY_HAND) as consumer:
        await take(consumer, 1)
        with pytest.raises(KafkaError, match="OFFSET_METADATA_TOO_LARGE"):
            await consumer.commit({where: OffsetAndMetadata(1, "x" * 5_000)})
        assert (await consumer.commit({where: OffsetAndMetadata(1, "x" * 100)})).ok


@BOTH
async def test_commits_from_tasks_beside_the_reader(place: Place) -> None:
    topic = await place.topic(partitions=4)
    await place.spread(topic, 4, 20)
    async with place.member(topic, **BY_HAND) as member:
        await until(lambda: len(member.records) == 80, "all records")
        results = await asyncio.gather(
            *(
                member.consumer.commit({where: OffsetAndMetadata(20)})
                for where in sorted(member.consumer.assignment)
            )
        )
        assert all(result.ok for result in results)
        assert set((await place.committed()).values()) == {20}


@BOTH
async def test_offsets_stored_with_the_results(place: Place) -> None:
    """Exactly once, by seeking to offsets stored elsewhere when partitions are assigned."""
    topic = await place.topic(partitions=2)
    await place.spread(topic, 2, 10)
    stored: dict[TopicPartition, int] = {}
    counted: list[bytes] = []

    async def count(records: int) -> None:
        async with place.consumer(group_id=place.group, topics=topic, **BY_HAND) as consumer:
            first = await consumer.get(timeout=DEADLINE_S)
            assert first is not None
            for where in consumer.assignment:
                consumer.seek(where, stored.get(where, 0))
            async for record in consumer:
                counted.append(record.value)
                stored[record.topic_partition] = record.offset + 1
                if len(counted) >= records:
                    break

    await count(7)
    await count(20)
    assert len(counted) == len(set(counted)) == 20
    assert await place.committed() == {}
