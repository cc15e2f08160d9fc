"""Each situation is recognised where it occurs, and not where something only looks like it."""

from __future__ import annotations

from typing import Any, cast

import pytest

from muster.coordinator.storage.store import Append, Lease, LeaseKind, Outcome
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode
from muster.protocol.message import Message
from muster.protocol.messages.classic_group import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)
from muster.protocol.messages.coordinator_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    encode_key,
    encode_value,
)
from muster.protocol.messages.offsets import OffsetCommitRequest, OffsetCommitResponse
from tests.simulator.checkers import Exchange
from tests.simulator.coverage import Coverage, Ending, report, unseen
from tests.simulator.member import Asked
from tests.simulator.store import Fault, Written
from tests.simulator.stream import CLIENT_HOST
from tests.support import embedded

ADDRESSES = [("broker-1", 9092), ("broker-2", 9092)]
LEASE = Lease(LeaseKind.GROUP, 0)


class FakeBroker:
    def __init__(self) -> None:
        self.kills = 0
        self.skew_ms = 0


class FakeLink:
    def __init__(self, broker: int = 0) -> None:
        self.address = ADDRESSES[broker]
        self.open = True
        self.client_host = "10.0.0.1"
        self.loses_requests = False
        self.loses_replies = False


class Story:
    """Events, reported to a Coverage."""

    def __init__(self) -> None:
        self.brokers = {address: FakeBroker() for address in ADDRESSES}
        self.coverage = Coverage(self.brokers)

    @property
    def seen(self) -> set[str]:
        return set(self.coverage.seen)

    def ask(self, api: ApiKey, request: Message, client: str, broker: int = 0) -> Exchange:
        exchange = Exchange(Asked(api, 5, 1, request, client), cast(Any, FakeLink(broker)), 0.0)
        self.coverage.asked(exchange)
        return exchange

    def join(
        self,
        client: str,
        member_id: str,
        *,
        broker: int = 0,
        metadata: bytes = b"",
        instance: str | None = None,
    ) -> Exchange:
        protocol = JoinGroupRequest.Protocol(name="range", metadata=metadata)
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=1,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type="consumer",
            protocols=[protocol],
        )
        return self.ask(ApiKey.JOIN_GROUP, request, client, broker)

    def joined(
        self,
        exchange: Exchange,
        member_id: str,
        *,
        leader: str = "",
        generation_id: int = 1,
        code: ErrorCode = ErrorCode.NONE,
        members: int = 0,
    ) -> None:
        response = JoinGroupResponse(
            error_code=code,
            generation_id=generation_id,
            protocol_name="range",
            leader=leader,
            member_id=member_id,
            members=[JoinGroupResponse.Member(member_id=f"{n}", metadata=b"") for n in range(members)],
        )
        self.coverage.replied(exchange, response)

    def sync(
        self, client: str, member_id: str, *, generation_id: int = 1, broker: int = 0, orders: int = 0
    ) -> Exchange:
        """`orders` is how many partitions of that topic the leader assigns."""
        assigned = embedded.assignment({"orders": range(orders)})
        assignment = SyncGroupRequest.Assignment(member_id=member_id, assignment=assigned)
        request = SyncGroupRequest(
            group_id="g",
            generation_id=generation_id,
            member_id=member_id,
            assignments=[assignment] if orders else [],
        )
        return self.ask(ApiKey.SYNC_GROUP, request, client, broker)

    def synced(self, exchange: Exchange, code: ErrorCode = ErrorCode.NONE) -> None:
        self.coverage.replied(exchange, SyncGroupResponse(error_code=code, assignment=b""))

    def heartbeat(self, member_id: str, code: ErrorCode = ErrorCode.NONE, broker: int = 0) -> None:
        request = HeartbeatRequest(group_id="g", generation_id=1, member_id=member_id)
        exchange = self.ask(ApiKey.HEARTBEAT, request, "a", broker)
        self.coverage.replied(exchange, HeartbeatResponse(error_code=code))

    def commit(self) -> Exchange:
        request = OffsetCommitRequest(group_id="g", member_id="a", topics=[])
        return self.ask(ApiKey.OFFSET_COMMIT, request, "a")

    def committed(self, code: ErrorCode) -> None:
        partition = OffsetCommitResponse.Partition(partition_index=0, error_code=code)
        topic = OffsetCommitResponse.Topic(name="orders", partitions=[partition])
        self.coverage.replied(self.commit(), OffsetCommitResponse(topics=[topic]))


@pytest.fixture
def story() -> Story:
    return Story()


def group_metadata(*members: str) -> tuple[bytes, bytes]:
    value = GroupMetadataValue(
        protocol_type="consumer",
        generation=1,
        protocol="range",
        leader=None,
        members=[
            GroupMetadataValue.MemberMetadata(
                member_id=member,
                client_id="",
                client_host="",
                session_timeout=1,
                subscription=b"",
                assignment=b"",
            )
            for member in members
        ],
    )
    return encode_key(GroupMetadataKey(group="g")), encode_value(value, 3)


@pytest.mark.parametrize(("leader", "who"), [("a", "leader"), ("b", "follower")])
def test_a_member_that_dies_with_its_generation_in_hand(story: Story, leader: str, who: str) -> None:
    story.joined(story.join("client", "a"), "a", leader=leader)
    story.coverage.member_ends("g", "client")
    assert story.seen == {f"{who} dies between join and sync"}


def test_a_member_that_dies_before_or_after(story: Story) -> None:
    story.join("client", "a")
    story.coverage.member_ends("g", "client")
    story.joined(story.join("other", "b"), "b", leader="b")
    story.sync("other", "b")
    story.coverage.member_ends("g", "other")
    assert story.seen == set()


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_member_id_that_nobody_comes_back_with(story: Story, comes_back: bool) -> None:
    story.joined(story.join("client", ""), "a", code=ErrorCode.MEMBER_ID_REQUIRED)
    if comes_back:
        story.join("client", "a")
    story.coverage.member_ends("g", "client")
    assert story.seen == (set() if comes_back else {"member id never used"})


def test_a_static_member_that_is_replaced_and_told_so(story: Story) -> None:
    story.joined(story.join("client", "", instance="1"), "a")
    story.joined(story.join("client", "a", instance="1"), "a")
    assert story.seen == set()
    story.joined(story.join("client", "", instance="1"), "b")
    assert story.seen == {"static member is replaced"}
    story.heartbeat("a", ErrorCode.FENCED_INSTANCE_ID)
    assert "two live members share an instance" in story.seen


def test_another_subscription(story: Story) -> None:
    story.joined(story.join("client", "a", metadata=b"1"), "a")
    story.joined(story.join("client", "a", metadata=b"1"), "a")
    assert story.seen == set()
    story.join("client", "a", metadata=b"2")
    assert story.seen == {"subscription changes"}


def test_a_leader_that_leaves(story: Story) -> None:
    story.joined(story.join("client", "a"), "a", leader="a")
    for member_id in ("b", "a"):
        identity = LeaveGroupRequest.MemberIdentity(member_id=member_id)
        request = LeaveGroupRequest(group_id="g", members=[identity])
        assert story.seen == set()
        story.ask(ApiKey.LEAVE_GROUP, request, "client")
    assert story.seen == {"leader leaves"}


@pytest.mark.parametrize(
    ("code", "situation"),
    [
        (ErrorCode.ILLEGAL_GENERATION, "sync of an old generation"),
        (ErrorCode.REBALANCE_IN_PROGRESS, "sync while the next rebalance runs"),
    ],
)
def test_syncs_that_are_refused(story: Story, code: ErrorCode, situation: str) -> None:
    story.synced(story.sync("client", "a"), code)
    assert story.seen == {situation}


@pytest.mark.parametrize(
    ("code", "situation"),
    [
        (ErrorCode.ILLEGAL_GENERATION, "late commit of an old generation"),
        (ErrorCode.UNKNOWN_MEMBER_ID, "late commit of a member that is gone"),
        (ErrorCode.REBALANCE_IN_PROGRESS, "commit while the assignment is awaited"),
    ],
)
def test_commits_that_are_refused(story: Story, code: ErrorCode, situation: str) -> None:
    story.committed(code)
    assert story.seen == {situation}


def test_a_commit_beside_a_parked_join(story: Story) -> None:
    story.committed(ErrorCode.NONE)
    join = story.join("b", "b")
    story.committed(ErrorCode.NONE)
    assert story.coverage.seen == {"commit while joins are awaited": 1}
    story.joined(join, "b")
    story.committed(ErrorCode.NONE)
    assert story.coverage.seen == {"commit while joins are awaited": 1}


def test_a_member_that_hears_it_was_dropped(story: Story) -> None:
    story.heartbeat("a", ErrorCode.UNKNOWN_MEMBER_ID)  # an unknown member
    story.synced(story.sync("client", "a"))
    assert story.seen == set()
    story.heartbeat("a", ErrorCode.UNKNOWN_MEMBER_ID)
    assert story.seen == {"member comes back after it was dropped"}


def test_a_join_that_is_asked_again(story: Story) -> None:
    story.joined(story.join("client", "a"), "a", code=ErrorCode.REBALANCE_IN_PROGRESS)
    assert story.seen == {"parked join is asked again"}


def test_a_group_that_was_empty_for_a_while(story: Story) -> None:
    story.joined(story.join("client", "a"), "a")
    story.coverage.written(Written(0.0, LEASE, 1, *group_metadata("a")))
    story.joined(story.join("client", "a"), "a")
    assert story.seen == set()
    story.coverage.written(Written(0.0, LEASE, 1, *group_metadata()))
    story.joined(story.join("client", "a"), "a")
    assert story.seen == {"group becomes empty and is joined again"}


def test_a_broker_that_dies_with_requests_in_hand(story: Story) -> None:
    story.coverage.broker_ends(ADDRESSES[0], Ending.DIES)
    asked = story.join("a", "a"), story.sync("b", "b"), story.commit()
    story.coverage.broker_ends(ADDRESSES[1], Ending.DIES)
    assert story.seen == set()
    story.coverage.broker_ends(ADDRESSES[0], Ending.DIES)
    died = {
        "broker dies with a parked join",
        "broker dies with a parked sync",
        "broker dies with a commit under way",
    }
    assert story.seen == died
    story.coverage.broker_ends(ADDRESSES[0], Ending.LEAVES)
    assert story.seen == died | {"coordinator leaves during a rebalance"}
    for exchange in asked:
        story.coverage.closed(exchange.link)
    story.coverage.broker_ends(ADDRESSES[0], Ending.DIES)
    assert set(story.coverage.seen.values()) == {1}


def test_a_failover_between_join_and_sync(story: Story) -> None:
    story.joined(story.join("client", "a"), "a")
    story.joined(story.join("client", "a"), "a", generation_id=2)
    story.synced(story.sync("client", "a", generation_id=2))
    story.join("client", "a", broker=1)  # it had its assignment
    assert story.seen == set()
    story.joined(story.join("client", "a"), "a", generation_id=3)
    story.sync("client", "a", generation_id=3)
    story.join("client", "a", broker=1)
    assert story.seen == {"failover between join and sync"}


def test_a_generation_that_is_lost_in_a_failover(story: Story) -> None:
    story.joined(story.join("client", "a"), "a", generation_id=2)
    story.joined(story.join("other", "b"), "b", generation_id=2)
    story.synced(story.sync("client", "a", generation_id=2))
    story.joined(story.join("client", "a", broker=1), "a", generation_id=3)
    assert story.seen == set()
    story.joined(story.join("other", "b"), "b", generation_id=3)
    assert story.seen == {"generation is lost in a failover"}


def test_a_coordinator_that_died_and_is_back(story: Story) -> None:
    story.heartbeat("a")
    story.heartbeat("a", broker=1)
    story.heartbeat("a")
    assert story.seen == set()
    story.brokers[ADDRESSES[0]].kills += 1
    story.heartbeat("a")
    assert story.seen == {"coordinator restarts"}


def test_a_shard_that_had_to_stop(story: Story) -> None:
    story.heartbeat("a")
    story.joined(story.join("client", "a"), "a", code=ErrorCode.NOT_COORDINATOR)
    assert story.seen == set()
    story.heartbeat("a")
    assert story.seen == {"shard is loaded again while joins are parked"}


def test_a_shard_that_moved(story: Story) -> None:
    story.heartbeat("a")
    story.joined(story.join("client", "a"), "a", code=ErrorCode.NOT_COORDINATOR)
    story.heartbeat("a", broker=1)
    story.heartbeat("a")
    assert story.seen == set()


@pytest.mark.parametrize("taken_over", [False, True])
def test_a_paused_broker_that_wakes(story: Story, taken_over: bool) -> None:
    story.heartbeat("a")
    story.coverage.broker_pauses(ADDRESSES[0])
    if taken_over:
        story.heartbeat("a", broker=1)
    story.coverage.broker_wakes(ADDRESSES[0])
    story.coverage.broker_wakes(ADDRESSES[0])
    assert story.coverage.seen == (
        {"paused broker wakes and another has its groups": 1} if taken_over else {}
    )


def test_what_the_store_does(story: Story) -> None:
    assignment = Append(LEASE, 1, (group_metadata("a"),), ())
    empty = Append(LEASE, 1, (group_metadata(),), ())
    story.coverage.failed([empty], Fault.NOTHING_WRITTEN)
    story.coverage.appended(assignment, Outcome.WRITTEN)
    assert story.seen == set()
    for fault in Fault:
        story.coverage.failed([empty, assignment], fault)
    story.coverage.appended(assignment, Outcome.FENCED)
    assert story.seen == {
        "assignment is not stored",
        "assignment is stored and the answer lost",
        "store is full in a rebalance",
        "transaction is torn",
        "append is fenced",
    }


def test_the_report_begins_with_what_was_not_seen() -> None:
    seen = {"leader leaves": 3}
    assert "leader leaves" not in unseen(seen)
    first, second, *_, last = report(seen, 7).splitlines()
    assert first == "situations seen in 7 runs:"
    assert second.split()[0] == "0"
    assert last.split(maxsplit=1) == ["3", "leader leaves"]


def test_a_member_that_goes_on_elsewhere(story: Story) -> None:
    story.synced(story.sync("a", "a"))
    story.heartbeat("a")
    story.heartbeat("b", broker=1)
    story.heartbeat("a", ErrorCode.REBALANCE_IN_PROGRESS, broker=1)
    assert story.seen == set()
    story.heartbeat("a", broker=1)
    story.heartbeat("a", broker=1)
    assert story.coverage.seen == {"failover without a rebalance": 1}


@pytest.mark.parametrize(
    ("leader", "members", "situation"),
    [
        ("a", 1, None),
        ("a", 2, "muster's own client leads others"),
        ("b", 0, "muster's own client is led by others"),
    ],
)
def test_who_leads(story: Story, leader: str, members: int, situation: str | None) -> None:
    story.joined(story.join("wire", "a"), "a", leader=leader, members=members)
    asked = story.join("own", "a")
    cast(Any, asked.link).client_host = CLIENT_HOST
    story.joined(asked, "a", leader=leader, members=members)
    assert story.seen == ({situation} if situation else set())


def test_two_static_members_that_swap(story: Story) -> None:
    for client, instance in (("a", "1"), ("b", "2"), ("c", "1")):
        story.joined(story.join(client, "", instance=instance), client + instance)
    assert "static members swap" not in story.seen
    for client, instance in (("b", "1"), ("c", "2")):
        story.joined(story.join(client, "", instance=instance), client + instance)
    assert "static members swap" in story.seen


def test_a_takeover_by_a_clock_that_differs(story: Story) -> None:
    story.brokers[ADDRESSES[1]].skew_ms = 900
    story.heartbeat("a")
    story.heartbeat("a", broker=1)
    assert story.seen == set()
    story.brokers[ADDRESSES[0]].skew_ms = -900
    story.heartbeat("a")
    assert story.seen == {"takeover by a skewed clock"}


def test_what_a_half_open_connection_loses(story: Story) -> None:
    asked = story.join("a", "a")
    link = cast(Any, asked.link)
    link.loses_replies = True
    story.joined(asked, "a")
    assert story.seen == {"reply is lost on a half-open connection"}
    link.loses_requests = True
    story.coverage.asked(asked)
    assert "request is lost on a half-open connection" in story.seen


def test_a_coordinator_out_of_reach(story: Story) -> None:
    story.heartbeat("a", broker=1)
    story.coverage.broker_is_cut_off(ADDRESSES[0])
    assert story.seen == set()
    story.coverage.broker_is_cut_off(ADDRESSES[1])
    assert story.seen == {"coordinator is out of its clients' reach"}


def test_a_topic_that_grows_under_its_group(story: Story) -> None:
    for partitions in (4, 4, 3):
        story.synced(story.sync("a", "a", orders=partitions))
    assert story.seen == set()
    story.synced(story.sync("a", "a", orders=4))
    assert story.seen == {"topic grows under its group"}
