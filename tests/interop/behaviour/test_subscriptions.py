"""Which topics a consumer reads while topics are created, extended and deleted."""

from __future__ import annotations

import re

import pytest

from muster.client import ClientError, TopicPartition
from tests.interop.behaviour.place import BOTH, Place, until, values_of

pytestmark = pytest.mark.interop

SOON_MS = 300
"""metadata_max_age_ms: how soon new topics and partitions are noticed."""


@BOTH
async def test_a_pattern_means_topics_that_come_later_too(place: Place) -> None:
    one = f"{place.name}-orders-1"
    await place.create(one)
    await place.create(f"{place.name}-invoices")
    await place.send(one, b"first")
    await place.send(f"{place.name}-invoices", b"not wanted")
    pattern = re.compile(f"{place.name}-orders-.*")
    async with place.member(pattern, metadata_max_age_ms=SOON_MS) as member:
        await until(lambda: member.values == [b"first"], "the first topic's record")
        later = f"{place.name}-orders-2"
        await place.create(later)
        await place.send(later, b"second")
        await until(lambda: member.values == [b"first", b"second"], "the new topic's record")
        assert {where.topic for where in member.consumer.assignment} == {one, later}
        await place.admin.delete_topic(one)
        await until(
            lambda: {where.topic for where in member.consumer.assignment} == {later},
            "an assignment without the deleted topic",
        )
        await place.send(later, b"third")
        await until(lambda: member.values[2:] == [b"third"], "a record after that")


@BOTH
async def test_partitions_that_are_added_are_read_from_their_beginning(place: Place) -> None:
    topic = await place.topic(partitions=1)
    await place.send(topic, b"0")
    async with place.member(topic, metadata_max_age_ms=SOON_MS, auto_offset_reset="earliest") as member:
        await until(lambda: member.values == [b"0"], "the record of the only partition")
        (await place.admin.create_partitions({topic: 3})).raise_for_failures()
        await place.send(topic, b"2", partition=2)
        await until(lambda: member.owned == {0, 1, 2}, "all partitions")
        await until(lambda: member.values == [b"0", b"2"], "the record of a new partition")


@BOTH
async def test_a_topic_that_does_not_exist_yet(place: Place) -> None:
    topic = f"{place.name}-later"
    async with place.member(topic, metadata_max_age_ms=SOON_MS, allow_auto_create_topics=False) as member:
        await place.until_members(1)
        assert member.owned == frozenset()
        await place.create(topic)
        await place.send(topic, b"here")
        await until(lambda: member.values == [b"here"], "the record of the topic")


@BOTH
async def test_a_topic_that_is_created_by_subscribing_to_it(place: Place) -> None:
    topic = f"{place.name}-made"
    async with place.member(topic, metadata_max_age_ms=SOON_MS) as member:
        await until(lambda: member.owned == {0}, "the topic's only partition")


@BOTH
async def test_a_topic_that_is_deleted_and_created_anew(place: Place) -> None:
    topic = await place.topic()
    await place.send(topic, b"old 0", b"old 1", b"old 2")
    # Otherwise the member, asking for the topic in between, would have it created.
    settings = {"metadata_max_age_ms": SOON_MS, "allow_auto_create_topics": False}
    async with place.member(topic, **settings) as member:
        await until(lambda: len(member.values) == 3, "the records of the first topic")
        await place.admin.delete_topic(topic)
        await place.create(topic)
        await place.send(topic, b"new 0", b"new 1")
        await until(lambda: member.values[3:] == [b"new 0", b"new 1"], "the records of the second")


@BOTH
async def test_unsubscribing_leaves_the_group(place: Place) -> None:
    one, two = await place.topic(), await place.topic()
    await place.send(one, b"one")
    await place.send(two, b"two")
    async with place.consumer(group_id=place.group) as consumer:
        consumer.subscribe([one])
        assert await values_of(consumer, 1) == [b"one"]
        await consumer.unsubscribe()
        assert consumer.assignment == frozenset()
        await place.until_members(0)
        consumer.assign([TopicPartition(two, 0)])
        assert await values_of(consumer, 1) == [b"two"]
        with pytest.raises(ClientError, match="unsubscribe"):
            consumer.subscribe([one])
        await consumer.unsubscribe()
        consumer.subscribe([one, two])
        await consumer.get(timeout=0.2)
        await place.until_members(1)


@BOTH
async def test_another_subscription_in_the_same_group(place: Place) -> None:
    one, two = await place.topic(), await place.topic()
    await place.send(one, b"one")
    await place.send(two, b"two")
    async with place.consumer(group_id=place.group, topics=one) as consumer:
        assert await values_of(consumer, 1) == [b"one"]
        consumer.subscribe([two])
        assert await values_of(consumer, 1) == [b"two"]
        assert consumer.assignment == {TopicPartition(two, 0)}
