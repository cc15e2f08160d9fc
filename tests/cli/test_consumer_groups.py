"""`muster groups` with groups of the consumer protocol (KIP-848), next to classic ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from uuid import UUID

import pytest

from muster.coordinator.testing import Broker
from muster.protocol.messages.consumer_group import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tests.cli.running import Muster
from tests.cli.test_groups import with_offsets
from tests.support.wire_blocking import WireConnection

JOINING: Final = 0
LEAVING: Final = -1


class Members:
    """Members of the group `shipping` that send what the test gives them."""

    def __init__(self, broker: Broker) -> None:
        self._connection = WireConnection("127.0.0.1", broker.port, "app")

    def close(self) -> None:
        self._connection.close()

    def beat(
        self, member_id: str, epoch: int, owned: dict[UUID, list[int]] | None = None
    ) -> ConsumerGroupHeartbeatResponse:
        joining = epoch == JOINING
        Owned = ConsumerGroupHeartbeatRequest.TopicPartitions
        request = ConsumerGroupHeartbeatRequest(
            group_id="shipping",
            member_id=member_id,
            member_epoch=epoch,
            rebalance_timeout_ms=60_000 if joining else -1,
            subscribed_topic_names=["orders"] if joining else None,
            topic_partitions=[]
            if joining
            else owned and [Owned(topic_id=topic, partitions=each) for topic, each in owned.items()],
        )
        answer = self._connection.call(request, 1, ConsumerGroupHeartbeatResponse)
        assert answer.error_code == 0, answer
        return answer


@pytest.fixture
def broker() -> Iterator[Broker]:
    """Computes every new assignment at once."""
    with Broker(group_consumer_assignment_interval_ms=0) as running:
        yield running


@pytest.fixture
def members(broker: Broker) -> Iterator[Members]:
    made = Members(broker)
    yield made
    made.close()


def test_a_group_between_two_assignments(muster: Muster, members: Members) -> None:
    with_offsets(muster)  # creates a classic group, billing
    first = members.beat("m-1", JOINING)
    assert first.assignment is not None
    members.beat("m-2", JOINING)
    assert muster.done("groups", "list") == (
        "GROUP     TYPE      PROTOCOL  STATE\n"
        "billing   classic   consumer  Empty\n"
        "shipping  consumer  consumer  Reconciling\n"
    )
    for option, value, group in (
        ("--type", "consumer", "shipping"),
        ("--type", "classic", "billing"),
        ("--state", "reconciling", "shipping"),
    ):
        assert muster.done("groups", "list", option, value).splitlines()[1].startswith(group)
    (described,) = muster("groups", "describe", "shipping", "--output", "json").json
    assert (described["type"], described["state"], described["assignor"]) == ("consumer", "Reconciling", "")
    assert (described["epoch"], described["target_epoch"]) == (3, 3)
    told = {
        each["member_id"]: (each["protocol"], each["epoch"], each["assignment"], each["target"])
        for each in described["members"]
    }
    both = [{"topic": "orders", "partition": number} for number in (0, 1)]
    mine, other = told["m-1"][3], told["m-2"][3]
    assert sorted(mine + other, key=str) == both
    assert told == {"m-1": ("consumer", 2, both, mine), "m-2": ("consumer", 3, [], other)}
    shown = muster.done("groups", "describe", "shipping", "--members", "--verbose").splitlines()
    assert shown[0].split()[-4:] == ["ASSIGNMENT", "PROTOCOL", "EPOCH", "TARGET"]
    assert {tuple(row.split()[-4:-1]) for row in shown[1:]} == {
        ("orders-0,orders-1", "consumer", "2"),
        ("-", "consumer", "3"),
    }
    state = muster.done("groups", "describe", "shipping", "billing", "--state", "--verbose").splitlines()
    assert [row.split()[-4:] for row in state[1:]] == [
        ["consumer", "consumer", "3", "3"],
        ["classic", "consumer", "-", "-"],
    ]


def test_a_group_with_members_is_left_alone(muster: Muster, members: Members) -> None:
    muster.done("topics", "create", "orders", "--partitions", "2")
    joined = members.beat("m-1", JOINING)
    assert "the group has 1 member (app at 127.0.0.1)" in muster.refused("groups", "delete", "shipping")
    reset = ("groups", "reset-offsets", "shipping", "--to-earliest", "--topic", "orders", "--execute")
    assert "group shipping is Stable with 1 member (app at 127.0.0.1)" in muster.refused(*reset)
    assert joined.member_epoch > 0
    members.beat("m-1", LEAVING)
    assert muster.done(*reset).splitlines()[1].split() == ["shipping", "orders", "0", "-", "0"]
    assert muster.done("groups", "list").splitlines()[1].split() == [
        "shipping", "consumer", "consumer", "Empty",
    ]  # fmt: skip
    assert muster.done("groups", "delete", "shipping") == "shipping deleted\n"
    assert "shipping" not in muster.done("groups", "list")
