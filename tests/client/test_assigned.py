"""The partitions a consumer reads; without a broker."""

from __future__ import annotations

from unittest.mock import Mock

from muster.client import Batch, TopicPartition
from muster.client.consume.assigned import Assigned
from muster.client.consume.delivery import Delivery
from muster.client.consume.subscription import Subscription
from muster.client.network.connection import deadline

PARTITIONS = [TopicPartition("t", number) for number in range(4)]


def read_from(*then: list[TopicPartition]) -> Assigned:
    """Of the first three partitions a record was returned; then these were assigned, one after another."""
    delivery = Delivery[None, bytes]()
    assigned = Assigned(Subscription(), delivery)
    assigned.open(Mock())
    assigned.adopt(frozenset(PARTITIONS))
    delivery.add([Batch(*where, [0], [0], keys=[None], values=[b""], next_offset=1) for where in PARTITIONS])
    delivery.take(3)
    for partitions in then:
        assigned.adopt(frozenset(partitions))
    return assigned


async def test_the_last_partition_that_was_given_up_stands_for_those_before() -> None:
    began = deadline(-1)
    assert read_from().take(began) is None
    assert read_from(PARTITIONS[2:]).take(began) == PARTITIONS[0]  # two at once
    assert read_from(PARTITIONS[2:], PARTITIONS[3:]).take(began) == PARTITIONS[2]
    assert read_from(PARTITIONS[3:], []).take(began) == PARTITIONS[0]  # of the last one, nothing was returned


async def test_a_partition_that_was_given_up_is_told_once_and_not_of_before() -> None:
    assigned = read_from(PARTITIONS[2:])
    assert assigned.take(deadline(-1)) == PARTITIONS[0]
    assert assigned.take(deadline(-1)) is None
    assigned.adopt(frozenset(PARTITIONS[3:]))  # what was returned of it, the transaction has taken
    assert assigned.take(deadline(-1)) is None
    assert read_from(PARTITIONS[2:]).take(deadline(1)) is None
