"""Each situation of transactions is recognised where it occurs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import pytest

from muster.coordinator.storage.store import Append, Lease, LeaseKind
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode
from muster.protocol.message import Message
from muster.protocol.messages import coordinator_records, transaction_records
from muster.protocol.messages.coordinator_records import OffsetCommitValue, PendingOffsetKey
from muster.protocol.messages.data import FetchRequest, FetchResponse, ProduceRequest, ProduceResponse
from muster.protocol.messages.offsets import OffsetFetchRequest, OffsetFetchResponse
from muster.protocol.messages.transaction_records import TransactionLogKey, TransactionLogValue
from muster.protocol.messages.transactions import (
    EndTxnResponse,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from muster.protocol.record_batch import Record, build
from tests.simulator.checkers import Exchange
from tests.simulator.coverage import SITUATIONS
from tests.simulator.ledger import Entry
from tests.simulator.member import Asked
from tests.simulator.store import Fault, Written
from tests.simulator.transaction_coverage import TRANSACTION_SITUATIONS, TransactionCoverage
from tests.support import wire_transactions

ONE, OTHER = ("broker-1", 9092), ("broker-2", 9092)
PRODUCER = (7, 0)
TRANSACTIONS, GROUPS = Lease(LeaseKind.TRANSACTION, 0), Lease(LeaseKind.GROUP, 0)
ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE = 1, 2, 3, 4


class FakeLink:
    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address


class Story:
    """Events of a transactional id."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.coverage = TransactionCoverage(self._saw)

    def _saw(self, situation: str) -> None:
        assert situation in SITUATIONS
        self.seen[situation] += 1

    def ask(self, api: ApiKey, request: Message, at: tuple[str, int] = ONE) -> Exchange:
        exchange = Exchange(Asked(api, 0, 1, request), cast(Any, FakeLink(at)), 0.0)
        self.coverage.asked(exchange)
        return exchange

    def produce(self, at: tuple[str, int] = ONE) -> Exchange:
        Topic = ProduceRequest.TopicProduceData
        records = build(
            [Record(0, 0, None, b"")], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True
        )
        topic = Topic(name="ledger", partition_data=[Topic.PartitionProduceData(index=0, records=records)])
        request = ProduceRequest(transactional_id="id", acks=-1, timeout_ms=0, topic_data=[topic])
        return self.ask(ApiKey.PRODUCE, request, at)

    def produced(self, exchange: Exchange, code: ErrorCode = ErrorCode.NONE) -> None:
        Topic = ProduceResponse.TopicProduceResponse
        partition = Topic.PartitionProduceResponse(index=0, error_code=code, base_offset=0)
        response = ProduceResponse(responses=[Topic(name="ledger", partition_responses=[partition])])
        self.coverage.replied(exchange, response)

    def end(self, at: tuple[str, int] = ONE) -> Exchange:
        return self.ask(ApiKey.END_TXN, wire_transactions.ending("id", PRODUCER, commits=True), at)

    def ended(self, exchange: Exchange, code: ErrorCode = ErrorCode.NONE) -> None:
        self.coverage.replied(exchange, EndTxnResponse(error_code=code))

    def start(self, at: tuple[str, int] = ONE) -> Exchange:
        return self.ask(ApiKey.INIT_PRODUCER_ID, wire_transactions.starting("id"), at)

    def started(self, exchange: Exchange, code: ErrorCode) -> None:
        self.coverage.replied(
            exchange, InitProducerIdResponse(error_code=code, producer_id=7, producer_epoch=1)
        )

    def commit(self, member_id: str = "", at: tuple[str, int] = ONE) -> Exchange:
        request = TxnOffsetCommitRequest(
            transactional_id="id",
            group_id="g",
            producer_id=7,
            producer_epoch=0,
            member_id=member_id,
            topics=[],
        )
        return self.ask(ApiKey.TXN_OFFSET_COMMIT, request, at)

    def committed(self, exchange: Exchange, code: ErrorCode = ErrorCode.NONE) -> None:
        Topic = TxnOffsetCommitResponse.Topic
        partition = Topic.Partition(partition_index=0, error_code=code)
        self.coverage.replied(
            exchange, TxnOffsetCommitResponse(topics=[Topic(name="input", partitions=[partition])])
        )

    def state(self, status: int, *, epoch: int = 1) -> None:
        """The coordinator with this lease epoch stores a state."""
        self.coverage.written(Written(0.0, TRANSACTIONS, epoch, *self.row(status)))

    def row(self, status: int) -> tuple[bytes, bytes]:
        value = TransactionLogValue(
            producer_id=7,
            producer_epoch=0,
            transaction_timeout_ms=1,
            transaction_status=status,
            transaction_partitions=[],
            transaction_last_update_timestamp_ms=0,
            transaction_start_timestamp_ms=0,
        )
        key = TransactionLogKey(transactional_id="id")
        return transaction_records.encode_key(key), transaction_records.encode_value(value)

    def pending(self, offset: int | None, *, epoch: int = 1) -> None:
        key = PendingOffsetKey(producer_id=7, group="g", topic="input", partition=0)
        value = None
        if offset is not None:
            committed = OffsetCommitValue(offset=offset, metadata="", commit_timestamp=0)
            value = coordinator_records.encode_value(committed, 4)
        self.coverage.written(Written(0.0, GROUPS, epoch, coordinator_records.encode_key(key), value))

    def fail(self, status: int, fault: Fault) -> None:
        self.coverage.failed([Append(TRANSACTIONS, 1, [self.row(status)])], fault)

    def fetched(self, stable: int, end: int, *, aborted: int = 0, isolation: int = 1) -> None:
        exchange = self.ask(
            ApiKey.FETCH, FetchRequest(max_wait_ms=0, min_bytes=0, isolation_level=isolation, topics=[])
        )
        Topic = FetchResponse.FetchableTopicResponse
        Partition = Topic.PartitionData
        partition = Partition(
            partition_index=0,
            high_watermark=end,
            last_stable_offset=stable,
            aborted_transactions=[
                Partition.AbortedTransaction(producer_id=each, first_offset=0) for each in range(aborted)
            ],
            records=None,
        )
        self.coverage.replied(
            exchange, FetchResponse(responses=[Topic(topic="ledger", partitions=[partition])])
        )

    def marked(self, code: ErrorCode) -> None:
        exchange = self.ask(ApiKey.WRITE_TXN_MARKERS, WriteTxnMarkersRequest(markers=[]))
        Marker = WriteTxnMarkersResponse.WritableTxnMarkerResult
        Topic = Marker.WritableTxnMarkerTopicResult
        partition = Topic.WritableTxnMarkerPartitionResult(partition_index=0, error_code=code)
        marker = Marker(producer_id=7, topics=[Topic(name="ledger", partitions=[partition])])
        self.coverage.replied(exchange, WriteTxnMarkersResponse(markers=[marker]))

    def offsets(self, code: ErrorCode) -> None:
        exchange = self.ask(ApiKey.OFFSET_FETCH, OffsetFetchRequest(groups=[]))
        Group = OffsetFetchResponse.Group
        partition = Group.Topics.Partitions(
            partition_index=0, committed_offset=-1, metadata="", error_code=code
        )
        group = Group(group_id="g", topics=[Group.Topics(name="input", partitions=[partition])])
        self.coverage.replied(exchange, OffsetFetchResponse(groups=[group]))


def _dies_between_decision_and_end(story: Story, *, other: bool) -> None:
    story.state(PREPARE_COMMIT)
    story.state(COMPLETE, epoch=2 if other else 1)


def _told_by_a_second(story: Story, *, other: bool) -> None:
    story.end()
    story.ended(story.end(OTHER if other else ONE))


def _fenced_between(story: Story, *, stored: bool) -> None:
    story.produced(story.produce(), ErrorCode.NONE if stored else ErrorCode.NOT_LEADER_OR_FOLLOWER)
    story.ended(story.end(), ErrorCode.PRODUCER_FENCED)


def _open_is_fenced(story: Story, *, asked: bool) -> None:
    story.state(ONGOING)
    if asked:
        story.start()
    story.state(PREPARE_ABORT)


def _timeout(story: Story, *, asked: bool) -> None:
    story.end()
    story.state(COMPLETE)
    story.state(ONGOING)
    if asked:
        story.end()
    story.state(PREPARE_ABORT)


def _timeout_in_produce(story: Story, *, under_way: bool) -> None:
    story.state(ONGOING)
    exchange = story.produce()
    if not under_way:
        story.produced(exchange)
    story.state(PREPARE_ABORT)


def _resolved(story: Story, *, other: bool) -> None:
    story.pending(5)
    story.pending(None, epoch=2 if other else 1)


def _marked_twice(story: Story, *, between: bool) -> None:
    first = Entry(0, (7, 0), None, True)
    found = [Entry(1, (7, 0), "t|0")] if between else []
    story.coverage.read([first, *found, Entry(2, (7, 0), None, True)])


def _outlives(story: Story, *, leader: int) -> None:
    story.coverage.read([Entry(0, (7, 0), "t|0", None, 1), Entry(1, (7, 0), None, True, leader)])


def _dies(story: Story, exchange: Exchange, *, at: tuple[str, int]) -> None:
    assert exchange.link.address == ONE
    story.coverage.broker_dies(at)


_Act = Callable[[Story], None]
STORIES: dict[str, tuple[_Act, _Act]] = {
    "coordinator dies between a decision and its end": (
        lambda story: _dies_between_decision_and_end(story, other=True),
        lambda story: _dies_between_decision_and_end(story, other=False),
    ),
    "commit is told by a second coordinator": (
        lambda story: _told_by_a_second(story, other=True),
        lambda story: _told_by_a_second(story, other=False),
    ),
    "decision is not stored": (
        lambda story: story.fail(PREPARE_COMMIT, Fault.NOTHING_WRITTEN),
        lambda story: story.fail(ONGOING, Fault.NOTHING_WRITTEN),
    ),
    "decision is stored and the answer lost": (
        lambda story: story.fail(PREPARE_ABORT, Fault.ANSWER_LOST),
        lambda story: story.fail(COMPLETE, Fault.ANSWER_LOST),
    ),
    "store is full at a decision": (
        lambda story: story.fail(PREPARE_COMMIT, Fault.FULL),
        lambda story: story.fail(ONGOING, Fault.FULL),
    ),
    "marker comes twice": (
        lambda story: _marked_twice(story, between=False),
        lambda story: _marked_twice(story, between=True),
    ),
    "marker of an old epoch is refused": (
        lambda story: story.marked(ErrorCode.INVALID_PRODUCER_EPOCH),
        lambda story: story.marked(ErrorCode.NONE),
    ),
    "transaction outlives its partition's leader": (
        lambda story: _outlives(story, leader=2),
        lambda story: _outlives(story, leader=1),
    ),
    "transaction waits for the markers of the one before": (
        lambda story: story.started(story.start(), ErrorCode.CONCURRENT_TRANSACTIONS),
        lambda story: story.ended(story.end(), ErrorCode.CONCURRENT_TRANSACTIONS),
    ),
    "coordinator cannot be asked by a leader": (
        lambda story: story.produced(story.produce(), ErrorCode.NOT_ENOUGH_REPLICAS),
        lambda story: story.produced(story.produce()),
    ),
    "leader asks about a transaction that does not have it": (
        lambda story: story.produced(story.produce(), ErrorCode.TRANSACTION_ABORTABLE),
        lambda story: story.ended(story.end(), ErrorCode.INVALID_TXN_STATE),
    ),
    "fenced between produce and end": (
        lambda story: _fenced_between(story, stored=True),
        lambda story: _fenced_between(story, stored=False),
    ),
    "fenced producer writes": (
        lambda story: story.produced(story.produce(), ErrorCode.INVALID_PRODUCER_EPOCH),
        lambda story: story.produced(story.produce()),
    ),
    "fenced producer commits offsets": (
        lambda story: story.committed(story.commit(), ErrorCode.INVALID_PRODUCER_EPOCH),
        lambda story: story.committed(story.commit()),
    ),
    "open transaction is fenced": (
        lambda story: _open_is_fenced(story, asked=True),
        lambda story: _open_is_fenced(story, asked=False),
    ),
    "timeout aborts a transaction": (
        lambda story: _timeout(story, asked=False),
        lambda story: _timeout(story, asked=True),
    ),
    "timeout aborts while a produce is under way": (
        lambda story: _timeout_in_produce(story, under_way=True),
        lambda story: _timeout_in_produce(story, under_way=False),
    ),
    "broker dies with a produce under way": (
        lambda story: _dies(story, story.produce(), at=ONE),
        lambda story: _dies(story, story.produce(), at=OTHER),
    ),
    "broker dies with the end of a transaction under way": (
        lambda story: _dies(story, story.end(), at=ONE),
        lambda story: _dies(story, story.end(), at=OTHER),
    ),
    "broker dies with offsets of a transaction under way": (
        lambda story: _dies(story, story.commit(), at=ONE),
        lambda story: _dies(story, story.commit(), at=OTHER),
    ),
    "pending offset is resolved by a coordinator that took over": (
        lambda story: _resolved(story, other=True),
        lambda story: _resolved(story, other=False),
    ),
    "stable offset is waited for": (
        lambda story: story.offsets(ErrorCode.UNSTABLE_OFFSET_COMMIT),
        lambda story: story.offsets(ErrorCode.NONE),
    ),
    "offsets are committed in the name of a member": (
        lambda story: story.committed(story.commit("m")),
        lambda story: story.committed(story.commit()),
    ),
    "offsets of a member that is gone are refused": (
        lambda story: story.committed(story.commit("m"), ErrorCode.UNKNOWN_MEMBER_ID),
        lambda story: story.committed(story.commit("m"), ErrorCode.NOT_COORDINATOR),
    ),
    "reader waits for an open transaction": (
        lambda story: story.fetched(3, 5),
        lambda story: story.fetched(3, 5, isolation=0),
    ),
    "reader is told of several aborted transactions": (
        lambda story: story.fetched(5, 5, aborted=2),
        lambda story: story.fetched(5, 5, aborted=1),
    ),
}
"""Each situation, and a near miss."""


def test_every_situation_has_its_story() -> None:
    assert list(STORIES) == list(TRANSACTION_SITUATIONS)


@pytest.mark.parametrize("situation", STORIES)
def test_it_is_recognised(situation: str) -> None:
    is_it, is_not = STORIES[situation]
    story = Story()
    is_it(story)
    assert story.seen[situation] == 1
    story = Story()
    is_not(story)
    assert not story.seen[situation]


def test_what_a_closed_connection_had_asked_for_is_not_under_way() -> None:
    story = Story()
    story.coverage.closed(story.produce().link)
    story.coverage.broker_dies(ONE)
    assert not story.seen
