"""A membership without a network: its coordinator's possible answers, and a driver that gives them by
hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from muster.client.assignors import (
    Assignor,
    TopicPartitions,
    assignment_bytes,
    assignor,
    subscription_bytes,
)
from muster.client.group.membership import Membership
from muster.client.group.membership_types import Ask, GroupSettings, Joined, Kind, State
from muster.client.partitions import TopicPartition
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.classic_group import (
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

NODE = 7
TOPICS = {"t": TopicPartitions(4)}


def settings(*assignors: str | Assignor, **options: Any) -> GroupSettings:
    made = tuple(assignor(each) for each in assignors or ("range",))
    return GroupSettings(**{"group_id": "g", "assignors": made} | options)


def partitions(*numbers: int, topic: str = "t") -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, each) for each in numbers)


def joined(
    generation_id: int = 1,
    member_id: str = "m",
    *,
    leader: str | None = None,
    others: Iterable[str] = (),
    protocol: str = "range",
    **fields: Any,
) -> JoinGroupResponse:
    """As the leader, unless another is named."""
    leader = member_id if leader is None else leader
    metadata = subscription_bytes(["t"])
    return JoinGroupResponse(
        **{
            "generation_id": generation_id,
            "protocol_name": protocol,
            "leader": leader,
            "member_id": member_id,
            "members": [
                JoinGroupResponse.Member(member_id=each, metadata=metadata)
                for each in ([member_id, *others] if leader == member_id else [])
            ],
        }
        | fields
    )


def refused_join(code: int, member_id: str = "") -> JoinGroupResponse:
    return JoinGroupResponse(error_code=code, protocol_name=None, leader="", member_id=member_id, members=[])


def synced(assigned: Iterable[TopicPartition] = partitions(0), code: int = 0) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=code, assignment=b"" if code else assignment_bytes(assigned))


def beaten(code: int = 0) -> HeartbeatResponse:
    return HeartbeatResponse(error_code=code)


class Hand:
    """Does what a driver does, one thing at a time, on a clock that moves only when told to."""

    def __init__(self, *assignors: str | Assignor, now_ms: int = 1_000, **options: Any) -> None:
        self.membership = Membership(settings(*assignors, **options), jitter=lambda: 1.0)
        self.now_ms = now_ms
        self.asked: list[Ask] = []
        self.membership.subscribe(frozenset({"t"}))

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

    def wait_until_due(self) -> list[Kind]:
        """Advance the clock to the time at which something is due again."""
        due_ms = self.membership.next_deadline_ms()
        assert due_ms is not None
        assert due_ms > self.now_ms
        self.now_ms = due_ms
        return self.due()

    # --- ways to a state --------------------------------------------------------------------------------

    def preparing(self, owned: frozenset[TopicPartition] = frozenset()) -> Hand:
        """A JoinGroup is open."""
        self.membership.join(owned, self.now_ms)
        if Kind.FIND_COORDINATOR in self.due():
            self.answer(Kind.FIND_COORDINATOR, NODE)
        assert self.asks(Kind.JOIN)
        assert self.membership.state is State.PREPARING_REBALANCE
        return self

    def completing(self, response: JoinGroupResponse | None = None) -> Hand:
        """A SyncGroup is open."""
        self.answer(Kind.JOIN, response or joined(leader="other"))
        while Kind.SYNC not in (kinds := self.due()):
            if Kind.TOPICS in kinds:
                self.answer(Kind.TOPICS, TOPICS)
            elif Kind.ASSIGN in kinds:
                work: Callable[[], Any] = self.asks(Kind.ASSIGN).work
                self.answer(Kind.ASSIGN, work())
            else:
                raise AssertionError(f"no way to a SyncGroup: {kinds}")
        assert self.membership.state is State.COMPLETING_REBALANCE
        return self

    def stable(self, assigned: frozenset[TopicPartition] = partitions(0, 1)) -> Joined:
        """The assignment has arrived and is taken."""
        self.answer(Kind.SYNC, synced(assigned))
        assert self.membership.state is State.STABLE
        result = self.membership.result
        assert result is not None
        assert self.membership.take(result)
        return result

    @classmethod
    def at(cls, state: State, *assignors: str | Assignor, **options: Any) -> Hand:
        """A new one in that state, as a follower."""
        made = cls(*assignors, **options)
        if state is not State.UNJOINED:
            made.preparing()
        if state in (State.COMPLETING_REBALANCE, State.STABLE):
            protocol = made.membership.settings.assignors[0].name
            made.completing(joined(leader="other", protocol=protocol))
        if state is State.STABLE:
            made.stable()
        assert made.membership.state is state
        return made


ALL_CODES = [code for code in ErrorCode if code is not ErrorCode.NONE]
LEFT = LeaveGroupResponse()


def join_request(hand: Hand) -> JoinGroupRequest:
    request = hand.asks(Kind.JOIN).request
    assert isinstance(request, JoinGroupRequest)
    return request


def sync_request(hand: Hand) -> SyncGroupRequest:
    request = hand.asks(Kind.SYNC).request
    assert isinstance(request, SyncGroupRequest)
    return request
