"""Resetting the offsets of a group."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from muster.client.admin.client import Admin
from muster.client.admin.offsets import HIGH_WATERMARK
from muster.client.admin.reset import (
    At,
    By,
    Current,
    Earliest,
    Latest,
    Offset,
    ResetOffset,
    Shift,
    Target,
)
from muster.client.partitions import TopicPartition
from muster.client.producer import Producer
from muster.protocol.errors import ErrorCode, KafkaError
from tests.support.each import each

SECOND_0 = datetime(1970, 1, 1, tzinfo=UTC)


@each(
    "to, places",
    [
        # The group's old offset, the requested one and the new one: the logs are 3 to 10, and empty.
        (Earliest(), [(5, 3, 3), (None, 0, 0)]),
        (Latest(), [(5, 10, 10), (None, 0, 0)]),
        (Current(), [(5, 5, 5), (None, 0, 0)]),
        (Offset(7), [(5, 7, 7), (None, 7, 0)]),
        (Offset(0), [(5, 0, 3), (None, 0, 0)]),
        (At(SECOND_0 + timedelta(seconds=8)), [(5, 7, 7), (None, 0, 0)]),
        (At(SECOND_0 + timedelta(seconds=8, microseconds=999)), [(5, 7, 7), (None, 0, 0)]),
        (At(SECOND_0 + timedelta(seconds=8, milliseconds=1)), [(5, 8, 8), (None, 0, 0)]),
        (At(SECOND_0), [(5, 3, 3), (None, 0, 0)]),
        (At(SECOND_0 + timedelta(seconds=99)), [(5, 10, 10), (None, 0, 0)]),
        (By(timedelta(minutes=1)), [(5, 10, 10), (None, 0, 0)]),
        (By(timedelta.max), [(5, 3, 3), (None, 0, 0)]),
        (At(SECOND_0 - timedelta(milliseconds=1)), [(5, 3, 3), (None, 0, 0)]),
    ],
)
async def test_targets(
    admin: Admin, orders: list[TopicPartition], to: Target, places: list[tuple[int | None, int, int]]
) -> None:
    full, group = orders[0], str(to)
    await admin.alter_group_offsets(group, {full: 5})
    expected = dict(zip(orders, (ResetOffset(*place) for place in places), strict=True))
    dry = await admin.reset_group_offsets(group, to, topics=["orders"], dry_run=True)
    assert dry == expected
    assert {where: there.offset for where, there in (await admin.list_group_offsets(group)).items()} == {
        full: 5
    }
    assert await admin.reset_group_offsets(group, to, topics=["orders"]) == expected
    committed = await admin.list_group_offsets(group)
    assert [each.offset for each in committed.values()] == [after for _, _, after in places]


@each("by, wanted, after", [(2, 7, 7), (-1, 4, 4), (-4, 1, 3), (99, 104, 10)])
async def test_a_shift_is_counted_from_where_the_group_is(
    admin: Admin, orders: list[TopicPartition], by: int, wanted: int, after: int
) -> None:
    full, empty = orders
    group = f"shifted by {by}"
    await admin.alter_group_offsets(group, {full: 5})
    outcomes = await admin.reset_group_offsets(group, Shift(by), topics=["orders"])
    assert outcomes[full] == ResetOffset(5, wanted, after)
    assert outcomes.failed[empty].why == "orders-1 has no committed offset, so there is none to shift"
    assert {where: there.offset for where, there in (await admin.list_group_offsets(group)).items()} == {
        full: after
    }


async def test_the_scope(admin: Admin, orders: list[TopicPartition]) -> None:
    full, empty = orders
    await admin.create_topic("audit")
    audit = TopicPartition("audit", 0)
    await admin.alter_group_offsets("billing", {full: 5})
    assert list(await admin.reset_group_offsets("billing", Latest())) == [full]
    assert list(await admin.reset_group_offsets("billing", Latest(), partitions=[empty])) == [empty]
    both = await admin.reset_group_offsets("billing", Latest(), topics=["audit"], partitions=[full])
    assert sorted(both) == [audit, full]
    assert sorted(await admin.list_group_offsets("billing")) == [audit, *orders]
    assert await admin.reset_group_offsets("billing", Latest(), topics=[]) == {}


async def test_what_is_not_there(admin: Admin, orders: list[TopicPartition]) -> None:
    beyond = TopicPartition("orders", 9)
    outcomes = await admin.reset_group_offsets(
        "billing", Earliest(), topics=["nope", "orders"], partitions=[beyond]
    )
    assert list(outcomes.succeeded) == orders
    assert {where: each.code for where, each in outcomes.failed.items()} == {
        TopicPartition("nope", -1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        beyond: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


async def test_a_log_that_was_emptied(
    admin: Admin, producer: Producer[bytes, bytes], orders: list[TopicPartition]
) -> None:
    full, _ = orders
    await admin.alter_group_offsets("billing", {full: 5})
    await admin.delete_records({full: HIGH_WATERMARK})
    assert await admin.reset_group_offsets("billing", Current()) == {full: ResetOffset(5, 5, 5)}
    assert await admin.reset_group_offsets("billing", Earliest()) == {full: ResetOffset(5, 10, 10)}


@each(
    "make, error, said",
    [
        (
            lambda: At(datetime(2026, 1, 31, 12)),
            ValueError,
            "At: 2026-01-31T12:00:00 has no time zone; it takes one",
        ),
        (lambda: At(1.5), TypeError, "At: it takes a datetime with a time zone, not 1.5"),  # type: ignore[arg-type]
        (lambda: Offset(-1), ValueError, "Offset: it takes an offset from 0 on, not -1"),
        (lambda: By(timedelta(seconds=-1)), ValueError, "By: it takes the maximum age of records"),
        (lambda: By(1.5), TypeError, "By: it takes a timedelta, not 1.5"),  # type: ignore[arg-type]
    ],
)
def test_targets_that_are_none(make: object, error: type[Exception], said: str) -> None:
    assert callable(make)
    with pytest.raises(error, match=said):
        make()


@each("to", ["earliest", Earliest])
async def test_a_target_that_is_none_is_named(admin: Admin, to: Any) -> None:
    with pytest.raises(TypeError, match=r"to: it takes Earliest\(\), Latest\(\), .* not "):
        await admin.reset_group_offsets("billing", to)


async def test_a_group_that_is_not_there_comes_to_be(admin: Admin, orders: list[TopicPartition]) -> None:
    assert await admin.reset_group_offsets("new", Latest()) == {}
    with pytest.raises(KafkaError):
        await admin.describe_group("new")
    await admin.reset_group_offsets("new", Latest(), topics=["orders"])
    assert (await admin.describe_group("new")).state == "Empty"
