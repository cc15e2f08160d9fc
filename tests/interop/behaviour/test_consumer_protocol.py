"""Members of the consumer protocol (KIP-848), where they differ from classic ones."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from muster.client import (
    Consumer,
    ErrorCode,
    KafkaError,
    SubscriptionPattern,
    TopicPartition,
)
from tests.interop.behaviour.place import (
    CONSUMER,
    DEADLINE_S,
    Listening,
    Member,
    Place,
    take,
    until,
)

pytestmark = [pytest.mark.interop, CONSUMER]

EVERYTHING = frozenset(range(4))


def shared(*members: Member) -> bool:
    owned = [member.owned for member in members]
    return all(owned) and sorted(each for mine in owned for each in mine) == sorted(EVERYTHING)


async def refusal(consumer: Consumer[Any, Any]) -> KafkaError:
    with pytest.raises(KafkaError) as refused:
        await consumer.get(timeout=DEADLINE_S)
    return refused.value


@pytest.mark.parametrize("assignor", [None, "uniform", "range"])
@pytest.mark.parametrize("heartbeat", ["loop", "thread"])
async def test_members_share_the_partitions_as_they_come_and_go(
    place: Place, assignor: str | None, heartbeat: str
) -> None:
    topic = await place.topic(partitions=4)
    options = {"group_remote_assignor": assignor, "heartbeat": heartbeat}
    async with place.member(topic, **options) as first:
        await until(lambda: first.owned == EVERYTHING, "all partitions for the only member")
        async with place.member(topic, **options) as second:
            await until(lambda: shared(first, second), "shared partitions")
            assert len(first.owned) == len(second.owned) == 2
            await place.until_members(2)
            group = await place.admin.describe_group(place.group)
            assert (group.state, group.assignor) == ("Stable", assignor or "uniform")
            sent = await place.spread(topic, 4, 25)
            await until(lambda: len(first.records) + len(second.records) >= 100, "all records")
            assert sorted([*first.values, *second.values]) == sorted(sent)
        await until(lambda: first.owned == EVERYTHING, "all partitions for the member that stays")
        await place.spread(topic, 4, 25, "more ")
        await until(lambda: len(first.records) + len(second.records) >= 200, "the records after that")
        assert len({*first.values, *second.values}) == len(first.values) + len(second.values) == 200


async def test_what_a_listener_is_told(place: Place) -> None:
    topic = await place.topic(partitions=4)
    listening = Listening()
    async with place.member(topic, listener=listening) as first:
        await until(lambda: first.owned == EVERYTHING, "all partitions for the only member")
        async with place.member(topic) as second:
            await until(lambda: shared(first, second), "shared partitions")
            gone = second.owned
        await until(lambda: first.owned == EVERYTHING, "all partitions again")
    # A revocation is followed by an empty assignment; the first one may have been empty, too.
    assert ("assigned", frozenset()) in listening.told[1:]
    assert listening.changes == [
        ("assigned", EVERYTHING),
        ("revoked", gone),
        ("assigned", gone),
        ("revoked", EVERYTHING),
    ]


async def test_the_brokers_find_the_topics_of_a_pattern(place: Place) -> None:
    one, other = f"{place.name}-orders-1", f"{place.name}-invoices"
    await place.create(one)
    await place.create(other)
    await place.send(one, b"first")
    await place.send(other, b"not wanted")
    async with place.member(SubscriptionPattern(f"{place.name}-orders-[0-9]+")) as member:
        await until(lambda: member.values == [b"first"], "the first topic's record")
        assert member.consumer.subscription == {one}
        later = f"{place.name}-orders-2"
        await place.create(later)
        await place.send(later, b"second")
        await until(lambda: member.values == [b"first", b"second"], "the new topic's record")
        assert member.consumer.subscription == {one, later}


async def test_another_subscription_after_a_pattern(place: Place) -> None:
    one, two = await place.topic(), await place.topic()
    async with place.member(SubscriptionPattern(one)) as member:
        await until(lambda: member.consumer.assignment == {TopicPartition(one, 0)}, "the first topic")
        member.consumer.subscribe(SubscriptionPattern(re.escape(two)))
        await until(lambda: member.consumer.assignment == {TopicPartition(two, 0)}, "the second topic")


@pytest.mark.parametrize(
    ("settings", "code", "names"),
    [
        (
            {"topics": SubscriptionPattern("(")},
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            "SubscriptionPattern('(')",
        ),
        ({"group_remote_assignor": "nope"}, ErrorCode.UNSUPPORTED_ASSIGNOR, "group_remote_assignor='nope'"),
    ],
)
async def test_what_a_broker_cannot_do_is_an_error_that_names_the_option(
    place: Place, settings: dict[str, Any], code: ErrorCode, names: str
) -> None:
    topic = await place.topic()
    async with place.consumer(**{"group_id": place.group, "topics": topic, **settings}) as consumer:
        refused = await refusal(consumer)
        assert refused.code is code
        assert names in str(refused)
        assert place.group in str(refused)
        assert (await refusal(consumer)).code is code  # and again, on every try


async def test_an_instance_id_that_is_in_use(place: Place) -> None:
    topic = await place.topic()
    async with place.member(topic, group_instance_id="one") as first:
        await until(lambda: first.owned == {0}, "the partition")
        async with place.consumer(group_id=place.group, topics=topic, group_instance_id="one") as second:
            refused = await refusal(second)
            assert refused.code is ErrorCode.UNRELEASED_INSTANCE_ID
            assert "group_instance_id='one'" in str(refused)
        assert first.owned == {0}
        await place.send(topic, b"still here")
        await until(lambda: first.values == [b"still here"], "a record for the member that has the id")


async def test_a_group_changes_its_protocol_member_by_member(place: Place) -> None:
    topic = await place.topic(partitions=4)
    async with place.member(topic, group_protocol="classic", assignors=["range"]) as classic:
        await until(lambda: classic.owned == EVERYTHING, "all partitions for the classic member")
        await place.spread(topic, 4, 10)
        await until(lambda: len(classic.records) == 40, "the records before")
        async with place.member(topic) as newer:
            await until(lambda: shared(classic, newer), "shared partitions")
            await place.spread(topic, 4, 10, "after ")
            await until(lambda: len(classic.records) + len(newer.records) >= 80, "the records after")
            assert len({*classic.values, *newer.values}) == len(classic.records) + len(newer.records) == 80
        await until(lambda: classic.owned == EVERYTHING, "all partitions for the classic member again")


async def test_auto_takes_the_consumer_protocol_where_it_is(place: Place) -> None:
    topic = await place.topic(partitions=4)
    async with place.member(topic, group_protocol="auto") as member:
        await until(lambda: member.owned == EVERYTHING, "all partitions")
        described = await place.admin.describe_groups([place.group])
        (group,) = described.succeeded.values()
        assert group.assignor == "uniform"


@pytest.mark.parametrize("heartbeat", ["loop", "thread"])
async def test_reading_calls_that_are_cancelled_anywhere_lose_nothing(place: Place, heartbeat: str) -> None:
    topic = await place.topic(partitions=4)
    sent = await place.spread(topic, 4, 10)
    options = {"heartbeat": heartbeat, "max_poll_records": 1}
    async with (
        place.consumer(group_id=place.group, topics=topic, **options) as first,
        place.consumer(group_id=place.group, topics=topic, **options) as second,
    ):
        values: list[bytes] = []
        turns = 0
        async with asyncio.timeout(DEADLINE_S):
            while len(values) < len(sent):
                for consumer in (first, second):
                    call = asyncio.create_task(consumer.get())
                    for _ in range(turns % 60):  # one more turn of the loop each time
                        await asyncio.sleep(0)
                    call.cancel()
                    await asyncio.wait([call])
                    if not call.cancelled() and (record := call.result()) is not None:
                        values.append(record.value)
                    turns += 1
        assert sorted(values) == sorted(sent)


async def test_a_member_that_is_cancelled_leaves_the_group(place: Place) -> None:
    topic = await place.topic(partitions=4)

    async def read() -> None:
        async with place.consumer(group_id=place.group, topics=topic) as consumer:
            await take(consumer, 1)

    reading = asyncio.create_task(read())
    await place.until_members(1)
    reading.cancel()
    await asyncio.wait([reading])
    assert reading.cancelled()
    await place.until_members(0)
