"""What can be decoded from members' metadata, and what a change in it means."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from muster.coordinator.group.classic.member import Protocols
from muster.coordinator.group.classic.subscriptions import (
    Difference,
    difference,
    grown,
    subscribes_alike,
    topics,
)
from muster.protocol.embedded import ConsumerProtocolSubscription, encode_subscription


def protocols(*names: str, **fields: Any) -> Protocols:
    return tuple((name, metadata(**fields)) for name in names or ("range",))


def metadata(
    of: str = "orders", user_data: bytes | None = None, owned: str = "", generation: int = -1
) -> bytes:
    """`of` and `owned` are topics and partitions separated by spaces."""
    owned_partitions = [
        ConsumerProtocolSubscription.TopicPartition(topic=topic, partitions=[int(partition)])
        for topic, partition in (each.split("-") for each in owned.split())
    ]
    return encode_subscription(
        ConsumerProtocolSubscription(
            topics=of.split(),
            user_data=user_data,
            owned_partitions=owned_partitions,
            generation_id=generation,
        )
    )


NOTHING = Difference((), (), ("range",), ("range",), user_data_changed=False, owned_changed=False)


def test_topics_are_those_of_the_protocol_wanted_most() -> None:
    assert topics((("sticky", metadata("b a")), ("range", metadata("c")))) == ("b", "a")
    assert topics(()) is None
    assert topics((("range", b"garbage"),)) is None
    many = " ".join(f"topic-{number}" for number in range(500))  # too large to be cached
    assert topics(protocols(of=many)) == tuple(many.split())


def naming(count: int) -> bytes:
    """A subscription to as many topics without a name, which takes two bytes each."""
    return bytes(2) + count.to_bytes(4, "big") + bytes(2 * count) + b"\xff\xff\xff\xff"


def test_too_many_topics_are_not_read() -> None:
    most, more = (("range", naming(100_000)),), (("range", naming(100_001)),)
    assert topics(most) == ("",) * 100_000
    assert topics(more) is None
    changed = NOTHING._replace(user_data_changed=True)
    assert difference(protocols(), more, consumers=True) == changed
    assert difference(more, protocols(), consumers=True) == changed


def test_several_protocols_may_list_as_much_as_one() -> None:
    names = ("range", "sticky")
    before = protocols(*names, of="")
    few, many = (tuple((name, naming(count)) for name in names) for count in (50_000, 50_001))
    assert not difference(before, few, consumers=True).user_data_changed
    assert difference(before, many, consumers=True).user_data_changed


def test_short_subscriptions_are_remembered() -> None:
    """However many members an application has, they share one tuple."""
    shared = padded(1_024)
    assert topics(shared) == ("orders",)
    assert topics(shared) is topics(shared)
    assert topics(padded(1_025)) is not topics(padded(1_025))


def padded(size: int) -> Protocols:
    """A subscription of `size` bytes."""
    blob = metadata(user_data=b"")
    return (("range", metadata(user_data=bytes(size - len(blob)))),)


def test_a_changed_subscription() -> None:
    changed = difference(protocols(of="a b c"), protocols(of="d c b"), consumers=True)
    assert changed == NOTHING._replace(topics_added=("d",), topics_removed=("a",))


def test_the_order_of_topics_is_no_change() -> None:
    assert difference(protocols(of="a b"), protocols(of="b a"), consumers=True) == NOTHING


def test_changed_protocols() -> None:
    changed = difference(protocols("range"), protocols("sticky", "range"), consumers=True)
    assert changed == NOTHING._replace(protocols_after=("sticky", "range"))


def test_what_a_cooperative_member_owns() -> None:
    before, after = (
        protocols(owned="orders-0 orders-1", generation=3),
        protocols(owned="orders-0", generation=4),
    )
    assert difference(before, after, consumers=True) == NOTHING._replace(owned_changed=True)
    assert difference(after, protocols(owned="orders-0", generation=5), consumers=True) == NOTHING


def test_the_data_of_an_assignor() -> None:
    changed = difference(protocols(user_data=None), protocols(user_data=b"1"), consumers=True)
    assert changed == NOTHING._replace(user_data_changed=True)


def test_one_protocol_of_several_is_enough() -> None:
    before = (("range", metadata()), ("sticky", metadata()))
    after = (
        ("range", metadata(user_data=b"1", owned="orders-0")),
        ("sticky", metadata(of="orders", generation=2)),
    )
    changed = difference(before, after, consumers=True)
    assert (changed.user_data_changed, changed.owned_changed) == (True, True)


def test_bytes_that_nobody_can_read() -> None:
    """Likewise for types other than consumers, which are not decoded."""
    garbage: Protocols = (("range", b"garbage"),)
    assert difference(garbage, protocols(), consumers=True) == NOTHING._replace(user_data_changed=True)
    assert difference(protocols(), garbage, consumers=True) == NOTHING._replace(user_data_changed=True)
    changed = difference(protocols(of="a"), protocols(of="b"), consumers=False)
    assert changed == NOTHING._replace(user_data_changed=True)


@given(st.binary(max_size=30), st.binary(max_size=30), st.booleans())
def test_any_bytes_have_a_difference(before: bytes, after: bytes, consumers: bool) -> None:
    changed = difference((("range", before),), (("range", after),), consumers=consumers)
    assert changed.protocols_before == changed.protocols_after == ("range",)
    assert before != after or changed == NOTHING


def test_subscribing_alike() -> None:
    assert subscribes_alike(protocols(owned="orders-0"), protocols(owned="orders-1"), consumers=True)
    assert not subscribes_alike(protocols(of="a"), protocols(of="b"), consumers=True)
    assert subscribes_alike(protocols(of="a"), protocols(of="b"), consumers=False)
    assert not subscribes_alike(protocols("range"), protocols("sticky"), consumers=True)


def test_what_has_grown() -> None:
    assert grown({"a": 3, "b": 1, "c": 0, "d": 2}, {"a": 6, "b": 1, "c": 4, "e": 1}) == [
        ("a", 3, 6),
        ("c", 0, 4),
        ("d", 2, 0),
    ]
