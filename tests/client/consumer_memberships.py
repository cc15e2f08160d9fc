"""A membership of the consumer protocol (KIP-848) without a network, and a driver that carries out its
requests by hand."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any, Final

from muster.client.assignors import assignor
from muster.client.group.consumer_membership import ConsumerMembership
from muster.client.group.membership_types import Ask, GroupSettings, Joined, Kind, State
from muster.client.partitions import TopicPartition
from muster.protocol.messages.consumer_group import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

NODE: Final = 7
INTERVAL_MS: Final = 5_000
T, U = uuid.UUID(int=1), uuid.UUID(int=2)
NAMES: Final = {T: "t", U: "u"}


def settings(**options: Any) -> GroupSettings:
    defaults = {"group_id": "g", "assignors": (assignor("range"),), "group_protocol": "consumer"}
    return GroupSettings(**(defaults | options))


def partitions(*numbers: int, topic: str = "t") -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, each) for each in numbers)


def beaten(
    epoch: int = 1,
    assigned: Iterable[tuple[uuid.UUID, int]] | None = None,
    *,
    code: int = 0,
    why: str | None = None,
    interval_ms: int = INTERVAL_MS,
) -> ConsumerGroupHeartbeatResponse:
    """`assigned` None: the assignment is unchanged."""
    assignment = None
    if assigned is not None:
        topics: dict[uuid.UUID, list[int]] = {}
        for topic_id, number in sorted(assigned):
            topics.setdefault(topic_id, []).append(number)
        assignment = ConsumerGroupHeartbeatResponse.Assignment(
            topic_partitions=[
                ConsumerGroupHeartbeatResponse.TopicPartitions(topic_id=topic_id, partitions=numbers)
                for topic_id, numbers in topics.items()
            ]
        )
    return ConsumerGroupHeartbeatResponse(
        error_code=code,
        error_message=why,
        member_id=None if code else "m",
        member_epoch=0 if code else epoch,
        heartbeat_interval_ms=0 if code else interval_ms,
        assignment=assignment,
    )


class Hand:
    """Does what a driver does, one thing at a time, on a clock that moves only when told to."""

    def __init__(self, *, now_ms: int = 1_000, subscribed: bool = True, **options: Any) -> None:
        self.membership = ConsumerMembership(
            settings(**({"allow_auto_create_topics": False} | options)),
            member_id="m",
            jitter=lambda: 1.0,
        )
        self.now_ms = now_ms
        self.asked: list[Ask] = []
        if subscribed:
            self.membership.subscribe(frozenset({"t"}))

    @property
    def state(self) -> State:
        return self.membership.state

    def due(self) -> list[Kind]:
        """What it asks for now, besides what is still open."""
        asks = self.membership.due(self.now_ms)
        self.asked += asks
        return [each.kind for each in asks]

    def asks(self, kind: Kind) -> Ask:
        """The one open request of this kind."""
        self.due()
        found = [each for each in self.asked if each.kind is kind]
        assert len(found) == 1, f"{kind} is open {len(found)} times among {self.asked}"
        return found[0]

    def answer(self, kind: Kind, answer: Any = None) -> Ask:
        ask = self.asks(kind)
        self.asked.remove(ask)
        self.membership.answered(ask, answer, self.now_ms)
        return ask

    def fail(self, kind: Kind, error: Exception, *, final: bool = False) -> None:
        ask = self.asks(kind)
        self.asked.remove(ask)
        self.membership.failed(ask, error, self.now_ms, final=final)

    def wait(self, ms: int) -> list[Kind]:
        self.now_ms += ms
        return self.due()

    def beat(self) -> ConsumerGroupHeartbeatRequest:
        """The heartbeat in flight."""
        request = self.asks(Kind.HEARTBEAT).request
        assert isinstance(request, ConsumerGroupHeartbeatRequest)
        return request

    def told(self, *args: Any, **options: Any) -> ConsumerGroupHeartbeatRequest:
        """Answer the heartbeat in flight; return that heartbeat."""
        request = self.beat()
        self.answer(Kind.HEARTBEAT, beaten(*args, **options))
        return request

    def named(self) -> None:
        """Answer with the names of the requested topics, as far as they have names."""
        wanted = self.asks(Kind.NAMES).topic_ids
        self.answer(Kind.NAMES, {each: NAMES[each] for each in wanted if each in NAMES})

    def taken(self) -> Joined:
        """The consumer takes the result, and is working on it."""
        result = self.membership.result
        assert result is not None
        assert self.membership.take(result)
        return result

    def done(self) -> Joined:
        """The consumer takes the result and finishes with it."""
        result = self.taken()
        self.membership.reconciled(result, self.now_ms)
        return result

    # --- ways to a state ------------------------------------------------------------------------------------

    def joining(self) -> Hand:
        """The first heartbeat is in flight."""
        self.membership.join(frozenset(), self.now_ms)
        if Kind.FIND_COORDINATOR in self.due():
            self.answer(Kind.FIND_COORDINATOR, NODE)
        assert self.beat().member_epoch == 0
        assert self.state is State.JOINING
        return self

    def reconciling(self, *numbers: int) -> Hand:
        """It has joined, with these partitions of t to take."""
        self.joining().told(1, [(T, each) for each in numbers or (0, 1)])
        self.named()
        assert self.state is State.RECONCILING
        return self

    def stable(self, *numbers: int) -> Hand:
        """It has these partitions, and the coordinator knows."""
        self.reconciling(*numbers).done()
        self.told(1)
        assert self.state is State.STABLE
        return self
