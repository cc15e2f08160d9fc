"""The partitions a consumer reads; without a broker."""

from __future__ import annotations

from unittest.mock import Mock

from muster.client import Batch, TopicPartition
from muster.client.consume.assigned import Assigned
from muster.client.consume.delivery import Delivery
from muster.client.consume.subscription import Subscription
from muster.client.network.connection import deadline

PARTITIONS = [TopicPartition("t", number) for number in range(4)]


async def test_the_last_partition_that_was_given_up_stands_for_those_before() -> None:
    delivery = Delivery[None, bytes]()
    assigned = Assigned(Subscription(), delivery)
    assigned.open(Mock())
    assigned.adopt(frozenset(PARTITIONS))
    delivery.add([Batch(*where, [0], [0], keys=[None], values=[b""], next_offset=1) for where in PARTITIONS])
    delivery.take(3)
    began = deadline(-1)
    assert assigned.given_up_since(began) is None
    assigned.adopt(frozenset(PARTITIONS[2:]))  # two at once
    assert assigned.given_up_since(began) == PARTITIONS[0]
    assigned.adopt(frozenset(PARTITIONS[3:]))
    assert assigned.given_up_since(began) == PARTITIONS[2]
    assert assigned.given_up_since(deadline(1)) is None
    assigned.adopt(frozenset())  # of the last one, nothing was returned
    assert assigned.given_up_since(began) == PARTITIONS[2]
    assigned.taken()
    assert assigned.given_up_since(began) is None
