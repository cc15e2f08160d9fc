"""Each situation of consumer groups and of migration is recognised where it occurs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from muster.coordinator.storage.store import Append, Lease, LeaseKind
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode
from muster.protocol.message import Message
from muster.protocol.messages.classic_group import (
    HeartbeatRequest,
    HeartbeatResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from muster.protocol.messages.consumer_group import ConsumerGroupHeartbeatResponse
from muster.protocol.messages.coordinator_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    GroupMetadataKey,
    encode_key,
)
from muster.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from tests.simulator.checkers import Exchange
from tests.simulator.consumer_world import ORDERS, World
from tests.simulator.coverage import SITUATIONS
from tests.simulator.epoch_coverage import EpochCoverage
from tests.simulator.store import Fault
from tests.simulator.stream import CLIENT_HOST

BROKERS = [("broker-1", 9092), ("broker-2", 9092)]


class Story(World):
    """Events of the group, also reported to an EpochCoverage."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()
        self.coverage = EpochCoverage(self.disk, self._saw)
        self.now_s = 0.0

    def _saw(self, situation: str) -> None:
        assert situation in SITUATIONS
        self.seen[situation] += 1

    def write(self, key: Message, value: Message | None) -> None:
        super().write(key, value)
        self.coverage.written(key, value, self.now_s)

    def appended(self) -> None:
        touched, self.disk.consumers.touched = self.disk.consumers.touched, set()
        self.coverage.appended(touched)

    def state(self, member_id: str, state: int, *partitions: int) -> None:
        parts = ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions
        held = parts(topic_id=ORDERS, partitions=[*partitions], assignment_epochs=[1 for _ in partitions])
        value = ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=1,
            previous_member_epoch=1,
            state=state,
            assigned_partitions=[held] if partitions else [],
            partitions_pending_revocation=[],
        )
        self.write(ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id=member_id), value)

    def ask(self, exchange: Exchange, broker: int = 0, host: str = "10.0.0.1") -> Exchange:
        link: Any = exchange.link
        link.address, link.client_host = BROKERS[broker], host
        exchange.sent_s = self.now_s
        self.coverage.asked(exchange)
        return exchange

    def beats(
        self,
        member_id: str = "a",
        epoch: int = 2,
        *,
        then: int | None = None,
        code: ErrorCode = ErrorCode.NONE,
        broker: int = 0,
        host: str = "10.0.0.1",
        instance: str | None = None,
    ) -> None:
        """A heartbeat in an epoch, answered with the same one or with `then`."""
        exchange = self.beat(member_id, epoch)
        exchange.request.instance_id = instance
        self.ask(exchange, broker, host)
        response = ConsumerGroupHeartbeatResponse(
            error_code=code,
            member_id=member_id,
            member_epoch=epoch if then is None else then,
            heartbeat_interval_ms=1,
        )
        self.coverage.replied(exchange, response)

    def committing(self, epoch: int, code: ErrorCode = ErrorCode.NONE) -> None:
        request = OffsetCommitRequest(
            group_id="g", generation_id_or_member_epoch=epoch, member_id="a", topics=[]
        )
        exchange = self.ask(self.exchange(ApiKey.OFFSET_COMMIT, request))
        done = OffsetCommitResponse.Partition(partition_index=0, error_code=code)
        response = OffsetCommitResponse(topics=[OffsetCommitResponse.Topic(partitions=[done])])
        self.coverage.replied(exchange, response)

    def resolves(self, *topics: str) -> None:
        self.write(
            ConsumerGroupRegularExpressionKey(group_id="g", regular_expression=".*"),
            ConsumerGroupRegularExpressionValue(topics=list(topics), version=1, timestamp=1),
        )


@pytest.fixture
def story() -> Story:
    return Story()


def test_answers_to_heartbeats(story: Story) -> None:
    story.beats()
    assert not story.seen
    story.beats(code=ErrorCode.FENCED_MEMBER_EPOCH)
    story.beats(code=ErrorCode.UNRELEASED_INSTANCE_ID)
    story.beats(host=CLIENT_HOST)
    assert story.seen == {
        "member of a wrong epoch is fenced": 1,
        "instance is not released": 1,
        "muster's own client is in a consumer group": 1,
    }


def test_a_member_that_was_fenced_joins_again(story: Story) -> None:
    story.beats(epoch=0, then=1)
    story.beats(epoch=1, code=ErrorCode.UNKNOWN_MEMBER_ID)
    assert not story.seen
    story.beats(epoch=0, then=3)
    assert story.seen == {"member joins again after it was fenced": 1}


def test_a_heartbeat_of_the_epoch_before(story: Story) -> None:
    story.beats(epoch=2, then=3)
    story.beats(epoch=3)
    assert not story.seen
    story.beats(epoch=2, then=3)
    assert story.seen == {"heartbeat of the epoch before is taken": 1}


def test_a_member_goes_on_elsewhere(story: Story) -> None:
    story.beats(broker=0)
    story.beats(broker=0)
    assert not story.seen
    story.beats(broker=1)
    story.beats(broker=0, then=3)  # in another epoch
    assert story.seen == {"member goes on in its epoch at another broker": 1}


def test_a_static_member_comes_back(story: Story) -> None:
    story.beats(epoch=0, then=1, instance="i")
    story.beats(epoch=-2, instance="i")
    assert not story.seen
    story.beats("b", epoch=0, then=1, instance="i")
    assert story.seen == {"static member leaves for a while and is back": 1}


def test_commits_and_fetches_of_an_earlier_epoch(story: Story) -> None:
    story.beats(epoch=3)
    story.committing(3)
    assert not story.seen
    story.committing(2)
    story.committing(2, ErrorCode.STALE_MEMBER_EPOCH)
    fetch = story.ask(story.exchange(ApiKey.OFFSET_FETCH, OffsetFetchRequest(group_id="g")))
    stale = OffsetFetchResponse.Group(group_id="g", topics=[], error_code=ErrorCode.STALE_MEMBER_EPOCH)
    story.coverage.replied(fetch, OffsetFetchResponse(groups=[stale]))
    assert story.seen == {
        "commit of an earlier epoch is taken": 1,
        "commit of an earlier epoch is refused": 1,
        "offsets are fetched in an earlier epoch": 1,
    }


def test_partitions_move(story: Story) -> None:
    story.state("a", 0, 0)
    assert not story.seen
    story.state("a", 1, 0)
    story.state("b", 2)
    assert story.seen == {
        "member is to give up partitions": 1,
        "member waits for partitions of another": 1,
    }


@pytest.mark.parametrize(("after_s", "counts"), [(3.0, 1), (9.0, 0)])
def test_a_member_that_does_not_give_up(story: Story, after_s: float, counts: int) -> None:
    story.beats()
    story.state("a", 1, 0)
    story.now_s = after_s
    story.gone("a")
    assert story.seen["member that does not give up in time is fenced"] == counts


def test_a_broker_that_dies_during_a_reconciliation(story: Story) -> None:
    story.beats(broker=0)
    story.state("a", 0, 0)
    story.coverage.broker_dies(BROKERS[0])
    story.state("a", 1, 0)
    story.coverage.broker_dies(BROKERS[1])
    assert not story.seen["broker dies during a reconciliation"]
    story.coverage.broker_dies(BROKERS[0])
    assert story.seen["broker dies during a reconciliation"] == 1


def test_topics_come_and_go(story: Story) -> None:
    story.resolves("orders")
    story.resolves("orders")
    story.state("a", 0, 0)
    story.state("a", 0)
    assert not story.seen
    story.resolves("audit", "orders")
    story.state("a", 0, 0)
    story.topics = []
    story.names.look()
    story.state("a", 0)
    assert story.seen == {
        "regular expression means a new topic": 1,
        "topic of a consumer group is deleted": 1,
    }


def test_a_group_with_members_migrates(story: Story) -> None:
    story.classic(1, "a")
    story.appended()
    assert not story.seen
    story.classic(None)
    story.member("a", 1, {})
    story.appended()
    assert story.seen == {"group with members becomes a consumer group": 1}
    story.write(ConsumerGroupMemberMetadataKey(group_id="g", member_id="a"), None)
    story.gone("a")
    story.classic(2, "a")
    story.appended()
    assert story.seen["group with members becomes a classic group"] == 1


def test_a_group_without_members_changes_its_kind(story: Story) -> None:
    story.classic(1)
    story.appended()
    story.classic(None)
    story.member("a", 1, {})
    story.appended()
    assert story.seen == {"group without members changes its kind": 1}


def test_classic_members_of_a_consumer_group(story: Story) -> None:
    def ask() -> None:
        sync = SyncGroupRequest(group_id="g", generation_id=1, member_id="a", assignments=[])
        synced = story.ask(story.exchange(ApiKey.SYNC_GROUP, sync))
        story.coverage.replied(synced, SyncGroupResponse(assignment=b""))
        beat = HeartbeatRequest(group_id="g", generation_id=1, member_id="a")
        beaten = story.ask(story.exchange(ApiKey.HEARTBEAT, beat))
        rejoin = HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
        story.coverage.replied(beaten, rejoin)

    ask()
    assert not story.seen
    story.member("a", 1, {})
    ask()
    assert story.seen == {
        "classic member is assigned by the coordinator": 1,
        "classic member is to rejoin a consumer group": 1,
    }


def test_the_store_fails_in_a_migration(story: Story) -> None:
    classic = encode_key(GroupMetadataKey(group="g")), None
    consumer = encode_key(ConsumerGroupMemberMetadataKey(group_id="g", member_id="a")), None
    lease = Lease(LeaseKind.GROUP, 0)
    for records in ([classic], [consumer]):
        story.coverage.failed([Append(lease, 1, records)], Fault.NOTHING_WRITTEN)
    assert not story.seen
    both = [Append(lease, 1, [classic, consumer])]
    story.coverage.failed(both, Fault.NOTHING_WRITTEN)
    story.coverage.failed(both, Fault.ANSWER_LOST)
    assert story.seen == {"migration is not stored": 1, "migration is stored and the answer lost": 1}
