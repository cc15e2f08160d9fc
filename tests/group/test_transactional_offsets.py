"""Offsets in transactions: who may commit them, what becomes of them, and what remains after the shard is
reloaded."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from muster.coordinator.group.committed_offset import CommittedOffset
from muster.coordinator.group.config import GroupConfig
from muster.coordinator.group.effects import TopicsImage
from muster.coordinator.group.events import CommitRefused, Event, GroupCreated, MemberFenced, OffsetsRemoved
from muster.coordinator.group.offsets import FetchOffsets
from muster.coordinator.group.pending_offsets import TransactionalProducer
from muster.coordinator.group.shard import Shard
from muster.coordinator.group.topics import compared
from muster.coordinator.group.transactional_offsets import CommitInTransaction, Guard
from muster.coordinator.transactions.marker import Marker
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.consumer_group import ConsumerGroupHeartbeatRequest
from muster.protocol.messages.coordinator_records import (
    OffsetCommitKey,
    PendingOffsetKey,
    TransactionalProducerKey,
)
from muster.protocol.messages.offsets import OffsetDeleteRequest, OffsetFetchRequest
from muster.protocol.messages.transactions import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from muster.protocol.types import ZERO_UUID
from tests.group.harness import START_MS, Harness, told
from tests.group.requests import commit_request, context, join, join_request, leave_request, stable
from tests.support.each import each

P, Q, R = 41, 42, 43
A, B = uuid.UUID(int=1), uuid.UUID(int=2)
MINUTE = 60_000
ORDERS_0 = ("orders", 0)
Offsets = Mapping[tuple[str, int], int]


@pytest.fixture
def harness() -> Harness:
    return Harness()


def request(offsets: Offsets, producer: int = P, epoch: int = 0, **fields: Any) -> TxnOffsetCommitRequest:
    topic_id, metadata = fields.pop("topic_id", ZERO_UUID), fields.pop("metadata", "")
    return TxnOffsetCommitRequest(
        **{
            "transactional_id": "tx",
            "group_id": "orders",
            "producer_id": producer,
            "producer_epoch": epoch,
            "topics": [
                TxnOffsetCommitRequest.Topic(
                    name=topic,
                    topic_id=topic_id,
                    partitions=[
                        TxnOffsetCommitRequest.Topic.Partition(
                            partition_index=partition, committed_offset=offset, committed_metadata=metadata
                        )
                    ],
                )
                for (topic, partition), offset in offsets.items()
            ],
            **fields,
        }
    )


def begin(harness: Harness, asked: TxnOffsetCommitRequest) -> Any:
    return harness.ask(Shard.begin_transaction, asked, context(ApiKey.TXN_OFFSET_COMMIT))


def send(
    harness: Harness, asked: TxnOffsetCommitRequest, guard: Guard | None, version: int | None = None
) -> Any:
    """The response, or the code of the refusal."""
    answer = harness.ask(
        Shard.commit_in_transaction,
        CommitInTransaction(asked, guard),
        context(ApiKey.TXN_OFFSET_COMMIT, version=version),
    )
    return answer.code if isinstance(answer, KafkaError) else answer


def commit(
    harness: Harness,
    offsets: Offsets,
    producer: int = P,
    epoch: int = 0,
    *,
    version: int | None = None,
    **fields: Any,
) -> Any:
    """Commit as a broker does whose transaction coordinators allow everything; returns the codes by
    partition, or the refusal's code."""
    asked = request(offsets, producer, epoch, **fields)
    guard = begin(harness, asked)
    if isinstance(guard, KafkaError):
        return guard.code
    answer = send(harness, asked, guard, version)
    if not isinstance(answer, TxnOffsetCommitResponse):
        return answer
    return {
        (topic.name, each.partition_index): ErrorCode(each.error_code)
        for topic in answer.topics
        for each in topic.partitions
    }


def end(
    harness: Harness,
    producer: int = P,
    epoch: int = 0,
    *,
    committed: bool = True,
    coordinator_epoch: int = 0,
    version: int = 0,
) -> ErrorCode:
    marker = Marker(producer, epoch, coordinator_epoch, committed, version)
    answer = harness.ask(Shard.end_transaction, marker, context(ApiKey.WRITE_TXN_MARKERS))
    return answer.code if isinstance(answer, KafkaError) else ErrorCode.NONE


def plain(harness: Harness, offsets: dict[tuple[str, int], int], **fields: Any) -> None:
    answer = harness.ask(
        Shard.commit_offsets, commit_request(offsets, **fields), context(ApiKey.OFFSET_COMMIT)
    )
    assert not isinstance(answer, KafkaError)


def fetched(harness: Harness, *partitions: tuple[str, int], stable: bool = False) -> dict[Any, Any]:
    """Offsets or codes of the given partitions, or of all that the group has."""
    wanted = [
        OffsetFetchRequest.Group.Topics(name=topic, partition_indexes=[index]) for topic, index in partitions
    ]
    group = harness.ask(
        Shard.fetch_offsets,
        FetchOffsets("orders", wanted or None, require_stable=stable),
        context(ApiKey.OFFSET_FETCH),
    )
    return {
        (topic.name, each.partition_index): ErrorCode(each.error_code).name
        if each.error_code
        else each.committed_offset
        for topic in group.topics
        for each in topic.partitions
    }


def stored(harness: Harness) -> dict[tuple[str, int], int]:
    return {
        partition: committed.offset
        for partition, committed in harness.shard.hard.offsets.get("orders", {}).items()
    }


def pending(harness: Harness) -> set[tuple[int, tuple[str, int]]]:
    return {
        (producer, partition)
        for partition, of in harness.shard.hard.pending.of_group("orders").items()
        for producer in of
    }


# --- commit, marker -----------------------------------------------------------------------------------------


def test_offsets_are_the_groups_when_the_transaction_is_committed(harness: Harness) -> None:
    plain(harness, {ORDERS_0: 1, ("orders", 1): 1})
    answered = commit(harness, {ORDERS_0: 5, ("clicks", 3): 7})
    assert answered == {ORDERS_0: ErrorCode.NONE, ("clicks", 3): ErrorCode.NONE}
    assert fetched(harness) == {ORDERS_0: 1, ("orders", 1): 1}
    assert fetched(harness, ORDERS_0, ("clicks", 3)) == {ORDERS_0: 1, ("clicks", 3): -1}
    assert end(harness) is ErrorCode.NONE
    assert fetched(harness) == {ORDERS_0: 5, ("orders", 1): 1, ("clicks", 3): 7}
    assert pending(harness) == set()


def test_offsets_of_an_aborted_transaction_are_gone(harness: Harness) -> None:
    plain(harness, {ORDERS_0: 1})
    commit(harness, {ORDERS_0: 5, ("clicks", 3): 7})
    assert end(harness, committed=False) is ErrorCode.NONE
    assert fetched(harness, ORDERS_0, ("clicks", 3), stable=True) == {ORDERS_0: 1, ("clicks", 3): -1}
    assert pending(harness) == set()


def test_what_a_commit_stores(harness: Harness) -> None:
    """The timestamp is that of the commit, not of the marker."""
    asked = request({ORDERS_0: 42}, topic_id=A, metadata="here")
    asked.topics[0].partitions[0].committed_leader_epoch = 3
    harness.advance(5)
    send(harness, asked, begin(harness, asked))
    harness.advance(7)
    end(harness)
    assert harness.shard.hard.offsets == {
        "orders": {ORDERS_0: CommittedOffset(42, 3, "here", START_MS + 5, -1, A)}
    }


def test_metadata_may_be_missing(harness: Harness) -> None:
    commit(harness, {ORDERS_0: 1}, metadata=None)
    end(harness)
    assert harness.shard.hard.offsets["orders"][ORDERS_0].metadata == ""


def test_the_last_commit_of_a_transaction_counts(harness: Harness) -> None:
    commit(harness, {ORDERS_0: 5, ("orders", 1): 6})
    commit(harness, {ORDERS_0: 4})
    end(harness)
    assert stored(harness) == {ORDERS_0: 4, ("orders", 1): 6}


def test_too_much_metadata_concerns_its_partition_alone(harness: Harness) -> None:
    asked = request({ORDERS_0: 1, ("clicks", 0): 2})
    asked.topics[0].partitions[0].committed_metadata = "x" * 4097
    answer = send(harness, asked, begin(harness, asked))
    assert [(topic.name, topic.partitions[0].error_code) for topic in answer.topics] == [
        ("orders", ErrorCode.OFFSET_METADATA_TOO_LARGE),
        ("clicks", ErrorCode.NONE),
    ]
    end(harness)
    assert stored(harness) == {("clicks", 0): 2}


def test_a_commit_that_stores_nothing_begins_nothing(harness: Harness) -> None:
    code = ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert commit(harness, {ORDERS_0: 1}, metadata="x" * 4097) == {ORDERS_0: code}
    assert harness.log == []
    assert harness.shard.groups == {}


def test_a_marker_ends_what_its_producer_has_committed_to_any_group_in_one_step(harness: Harness) -> None:
    commit(harness, {ORDERS_0: 5, ("orders", 1): 6})
    commit(harness, {ORDERS_0: 7}, group_id="other")
    commit(harness, {ORDERS_0: 8}, Q, group_id="third")
    before = len(harness.log)
    harness.take_records()
    end(harness)
    assert harness.last.rows == harness.log[before:]
    assert [type(record.key) for record in harness.take_records()] == [
        *[PendingOffsetKey, OffsetCommitKey] * 3,
        TransactionalProducerKey,
    ]
    offsets = harness.shard.hard.offsets
    assert {group: {part: each.offset for part, each in of.items()} for group, of in offsets.items()} == {
        "orders": {ORDERS_0: 5, ("orders", 1): 6},
        "other": {ORDERS_0: 7},
    }
    assert list(harness.shard.hard.pending.groups()) == ["third"]


def test_nobody_is_told_of_more_than_of_a_plain_commit(harness: Harness) -> None:
    """Offsets are not events; a new group is."""
    commit(harness, {ORDERS_0: 5})
    assert [type(event) for event in harness.take_events()] == [GroupCreated]
    commit(harness, {ORDERS_0: 6})
    end(harness)
    commit(harness, {ORDERS_0: 7}, epoch=1)
    end(harness, epoch=1, committed=False)
    assert harness.take_events() == []


def test_fetches_wait_for_what_they_tell_and_commits_do_not(harness: Harness) -> None:
    begin(harness, request({ORDERS_0: 1}))
    assert not harness.last.reads_hard_state
    commit(harness, {ORDERS_0: 1})
    assert not harness.last.reads_hard_state
    fetched(harness, ORDERS_0, stable=True)
    assert harness.last.reads_hard_state


# --- which of two commits is newer --------------------------------------------------------------------------


@each("reload", [False, True])
def test_a_plain_commit_made_after_the_pending_one_stays(reload: bool) -> None:
    harness = Harness()
    commit(harness, {ORDERS_0: 5, ("orders", 1): 5})
    plain(harness, {ORDERS_0: 2})
    if reload:
        harness.reload()
    end(harness)
    assert stored(harness) == {ORDERS_0: 2, ("orders", 1): 5}


@each("reload", [False, True])
def test_what_is_committed_again_in_the_transaction_is_newer_than_the_plain_commit(reload: bool) -> None:
    harness = Harness()
    commit(harness, {ORDERS_0: 5})
    plain(harness, {ORDERS_0: 2})
    commit(harness, {ORDERS_0: 6})
    if reload:
        harness.reload()
    end(harness)
    assert stored(harness) == {ORDERS_0: 6}


def test_a_plain_commit_stays_when_the_transaction_is_aborted(harness: Harness) -> None:
    commit(harness, {ORDERS_0: 5})
    plain(harness, {ORDERS_0: 2})
    assert fetched(harness, ORDERS_0) == {ORDERS_0: 2}
    assert fetched(harness, ORDERS_0, stable=True) == {ORDERS_0: "UNSTABLE_OFFSET_COMMIT"}
    end(harness, committed=False)
    assert fetched(harness, ORDERS_0, stable=True) == {ORDERS_0: 2}


@each("first, last", [(P, Q), (Q, P)])
@each("reload", [False, True])
def test_of_two_transactions_that_commit_the_later_commit_stays(first: int, last: int, reload: bool) -> None:
    """Whichever ends first."""
    harness = Harness()
    commit(harness, {ORDERS_0: 5}, P)
    commit(harness, {ORDERS_0: 6}, Q)
    end(harness, first)
    if reload:
        harness.reload()
    end(harness, last)
    assert stored(harness) == {ORDERS_0: 6}


def test_what_a_transaction_has_brought_is_overtaken_by_a_plain_commit_between_them(harness: Harness) -> None:
    commit(harness, {ORDERS_0: 5}, P)
    commit(harness, {ORDERS_0: 6}, Q)
    plain(harness, {ORDERS_0: 7})
    commit(harness, {ORDERS_0: 8}, R)
    for producer, offset in ((Q, 7), (R, 8), (P, 8)):
        end(harness, producer)
        assert stored(harness) == {ORDERS_0: offset}


# --- require_stable -----------------------------------------------------------------------------------------


def test_only_the_partition_in_a_transaction_is_unstable(harness: Harness) -> None:
    plain(harness, {ORDERS_0: 1, ("orders", 1): 2})
    commit(harness, {ORDERS_0: 5, ("clicks", 0): 6})
    unstable = "UNSTABLE_OFFSET_COMMIT"
    asked = ORDERS_0, ("orders", 1), ("clicks", 0), ("clicks", 1)
    assert fetched(harness, *asked, stable=True) == dict(zip(asked, (unstable, 2, unstable, -1), strict=True))
    assert fetched(harness, *asked) == dict(zip(asked, (1, 2, -1, -1), strict=True))
    # A fetch of all partitions reports those that the group has.
    assert fetched(harness, stable=True) == {ORDERS_0: unstable, ("orders", 1): 2}
    end(harness)
    assert fetched(harness, *asked, stable=True) == dict(zip(asked, (5, 2, 6, -1), strict=True))


def test_a_partition_is_unstable_until_the_last_of_its_transactions_is_over(harness: Harness) -> None:
    commit(harness, {ORDERS_0: 5}, P)
    commit(harness, {ORDERS_0: 6}, Q)
    end(harness, Q)
    assert fetched(harness, ORDERS_0, stable=True) == {ORDERS_0: "UNSTABLE_OFFSET_COMMIT"}
    end(harness, P)
    assert fetched(harness, ORDERS_0, stable=True) == {ORDERS_0: 6}


def test_an_unstable_partition_tells_no_offset(harness: Harness) -> None:
    plain(harness, {ORDERS_0: 1}, metadata="here")
    commit(harness, {ORDERS_0: 5})
    wanted = OffsetFetchRequest.Group.Topics(name="orders", partition_indexes=[0])
    asked = FetchOffsets("orders", [wanted], require_stable=True)
    group = harness.ask(Shard.fetch_offsets, asked, context(ApiKey.OFFSET_FETCH))
    [partition] = group.topics[0].partitions
    assert (partition.committed_offset, partition.committed_leader_epoch, partition.metadata) == (-1, -1, "")


# --- who may ------------------------------------------------------------------------------------------------


def test_without_leave_no_transaction_begins(harness: Harness) -> None:
    assert send(harness, request({ORDERS_0: 5}), None) is ErrorCode.INVALID_TXN_STATE
    assert harness.shard.groups == {}
    assert commit(harness, {ORDERS_0: 5}) == {ORDERS_0: ErrorCode.NONE}
    # From now on it is ongoing and needs no permission.
    assert begin(harness, request({ORDERS_0: 6})) is None
    assert isinstance(send(harness, request({ORDERS_0: 6}), None), TxnOffsetCommitResponse)
    assert begin(harness, request({ORDERS_0: 6}, Q)) is not None
    assert begin(harness, request({ORDERS_0: 6}, epoch=1)) is not None
    assert send(harness, request({ORDERS_0: 6}, epoch=1), None) is ErrorCode.INVALID_TXN_STATE


@each("committed", [False, True])
def test_a_marker_takes_back_the_leave_that_was_given_before_it(committed: bool) -> None:
    """Otherwise the coordinator's answer about a finished transaction would begin one that nobody ends."""
    harness = Harness()
    asked = request({ORDERS_0: 5})
    guard, of_other = begin(harness, asked), begin(harness, request({ORDERS_0: 5}, Q))
    end(harness, committed=committed)
    assert send(harness, asked, guard) is ErrorCode.INVALID_TXN_STATE
    assert isinstance(send(harness, request({ORDERS_0: 5}, Q), of_other), TxnOffsetCommitResponse)
    assert isinstance(send(harness, asked, begin(harness, asked)), TxnOffsetCommitResponse)


def test_a_marker_that_raises_the_epoch_leaves_the_leave_of_the_next_transaction(harness: Harness) -> None:
    """The producer learns the epoch before markers are written, so its next commit may arrive before the
    marker of the previous transaction."""
    commit(harness, {ORDERS_0: 4}, epoch=0)
    asked = request({ORDERS_0: 5}, epoch=1)
    guard = begin(harness, asked)
    end(harness, epoch=1, version=2)
    assert isinstance(send(harness, asked, guard), TxnOffsetCommitResponse)
    end(harness, epoch=2, version=2)
    assert send(harness, request({ORDERS_0: 5}, epoch=2), guard) is ErrorCode.INVALID_TXN_STATE


def test_the_leave_goes_with_a_transaction_that_others_began_and_ended(harness: Harness) -> None:
    asked = request({ORDERS_0: 5})
    guard = begin(harness, asked)
    commit(harness, {ORDERS_0: 4})
    assert isinstance(send(harness, asked, guard), TxnOffsetCommitResponse)  # it is ongoing
    end(harness)
    assert send(harness, asked, guard) is ErrorCode.INVALID_TXN_STATE


def test_the_leave_does_not_outlive_the_shard(harness: Harness) -> None:
    asked = request({ORDERS_0: 5})
    guard = begin(harness, asked)
    harness.reload()
    assert send(harness, asked, guard) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    commit(harness, {ORDERS_0: 5})
    harness.reload()
    assert begin(harness, asked) is None, "a transaction that is under way is known from the records"


@each("reload", [False, True])
def test_a_commit_of_an_epoch_that_is_over_is_refused(reload: bool) -> None:
    harness = Harness()
    asked = request({ORDERS_0: 5}, epoch=0)
    guard = begin(harness, asked)
    end(harness, epoch=1, committed=False)
    if reload:
        harness.reload()
    assert send(harness, asked, guard) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert begin(harness, asked).code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert commit(harness, {ORDERS_0: 5}, epoch=1) == {ORDERS_0: ErrorCode.NONE}


# --- markers ------------------------------------------------------------------------------------------------


def test_a_marker_of_a_producer_that_is_not_known_is_kept(harness: Harness) -> None:
    assert end(harness, epoch=3, coordinator_epoch=7) is ErrorCode.NONE
    assert harness.shard.hard.pending.producers == {P: TransactionalProducer(3, 7, START_MS, False)}
    assert harness.shard.groups == {}


@each("reload", [False, True])
def test_markers_that_come_late_are_refused_and_change_nothing(reload: bool) -> None:
    harness = Harness()
    commit(harness, {ORDERS_0: 5}, epoch=2)
    end(harness, epoch=3, coordinator_epoch=7, version=2)
    commit(harness, {ORDERS_0: 6}, epoch=3)
    if reload:
        harness.reload()
    before = harness.shard.durable()
    for epoch, coordinator_epoch, version, code in (
        (2, 7, 0, ErrorCode.INVALID_PRODUCER_EPOCH),
        (2, 7, 2, ErrorCode.INVALID_PRODUCER_EPOCH),
        (3, 7, 2, ErrorCode.INVALID_PRODUCER_EPOCH),  # of the previous transaction
        (4, 6, 2, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
        (3, 6, 0, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
    ):
        refused = end(
            harness, epoch=epoch, coordinator_epoch=coordinator_epoch, version=version, committed=False
        )
        assert refused is code
    assert harness.shard.durable() == before
    assert end(harness, epoch=4, coordinator_epoch=7, version=2) is ErrorCode.NONE
    assert stored(harness) == {ORDERS_0: 6}


def test_a_marker_that_is_repeated_is_written_again(harness: Harness) -> None:
    commit(harness, {ORDERS_0: 5})
    for at_ms in (0, 1):
        harness.advance(at_ms)
        assert end(harness, epoch=1, version=2) is ErrorCode.NONE
        assert harness.shard.hard.pending.producers[P].last_ms == START_MS + at_ms
    assert stored(harness) == {ORDERS_0: 5}


@each("delete", ["offsets", "group"])
@each("reload", [False, True])
def test_a_transaction_is_under_way_though_what_it_committed_is_gone(delete: str, reload: bool) -> None:
    """Otherwise the marker of the previous transaction would end it."""
    harness = Harness()
    end(harness, epoch=1, version=2)
    commit(harness, {ORDERS_0: 5}, epoch=1)
    if delete == "offsets":
        delete_offsets(harness, ORDERS_0)
    else:
        harness.ask(Shard.delete_group, "orders", context(ApiKey.DELETE_GROUPS))
    if reload:
        harness.reload()
    assert begin(harness, request({ORDERS_0: 5}, epoch=1)) is None
    assert end(harness, epoch=1, version=2) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert end(harness, epoch=2, version=2) is ErrorCode.NONE
    assert stored(harness) == {}


# --- offsets go ---------------------------------------------------------------------------------------------


def delete_offsets(harness: Harness, *partitions: tuple[str, int]) -> Any:
    topics = [
        OffsetDeleteRequest.Topic(
            name=topic, partitions=[OffsetDeleteRequest.Topic.Partition(partition_index=index)]
        )
        for topic, index in partitions
    ]
    asked = OffsetDeleteRequest(group_id="orders", topics=topics)
    return harness.ask(Shard.delete_offsets, asked, context(ApiKey.OFFSET_DELETE))


def removed(harness: Harness) -> list[tuple[tuple[str, int], ...]]:
    return [event.partitions for event in told(harness, OffsetsRemoved)]


def test_deleting_an_offset_drops_what_is_pending_for_it(harness: Harness) -> None:
    plain(harness, {ORDERS_0: 1})
    commit(harness, {ORDERS_0: 5, ("orders", 1): 6, ("orders", 2): 7})
    commit(harness, {("orders", 1): 8}, Q)
    delete_offsets(harness, ORDERS_0, ("orders", 1))
    assert pending(harness) == {(P, ("orders", 2))}
    assert removed(harness) == [(ORDERS_0,)], "what is pending has never been an offset of the group"
    end(harness, P)
    end(harness, Q)
    assert stored(harness) == {("orders", 2): 7}


def test_a_group_in_transactions_may_be_deleted(harness: Harness) -> None:
    plain(harness, {ORDERS_0: 1})
    commit(harness, {ORDERS_0: 5, ("orders", 1): 6})
    answer = harness.ask(Shard.delete_group, "orders", context(ApiKey.DELETE_GROUPS))
    assert answer.error_code == ErrorCode.NONE
    assert harness.shard.groups == {}
    assert not harness.shard.hard.has_offsets("orders")
    assert end(harness) is ErrorCode.NONE
    assert harness.shard.groups == {}
    assert not harness.shard.hard.has_offsets("orders")


@each("image", [TopicsImage(frozenset({("clicks", A)})), TopicsImage(live={"orders": B})])
def test_what_is_pending_goes_with_its_topic(image: TopicsImage) -> None:
    harness = Harness()
    plain(harness, {("clicks", 1): 1}, topic_id=A)
    commit(harness, {("clicks", 0): 5, ("clicks", 1): 5}, topic_id=A)
    commit(harness, {ORDERS_0: 6}, topic_id=B)
    harness.topics_changed(image)
    assert pending(harness) == {(P, ORDERS_0)}
    assert removed(harness) == [(("clicks", 1),)]
    end(harness)
    assert stored(harness) == {ORDERS_0: 6}


def test_what_is_pending_for_a_topic_made_anew_does_not_go_with_the_old_one(harness: Harness) -> None:
    commit(harness, {ORDERS_0: 5}, topic_id=B)
    harness.topics_changed(TopicsImage(frozenset({("orders", A)}), live={"orders": B}))
    assert pending(harness) == {(P, ORDERS_0)}


@each("ends", [False, True])
def test_what_is_committed_late_for_a_deleted_topic_goes_with_the_next_change(
    harness: Harness, ends: bool
) -> None:
    """Late: the topic was deleted after the broker had found it, and the shard was told of that first."""
    harness.topics_changed(TopicsImage(live={"orders": B, "clicks": A}))
    commit(harness, {("orders", 1): 5}, topic_id=A)
    commit(harness, {ORDERS_0: 5}, Q, topic_id=B)
    commit(harness, {("gone", 0): 5}, Q)
    if ends:
        end(harness)
        end(harness, Q)
    harness.topics_changed(TopicsImage(live={"orders": B}))
    assert removed(harness) == ([(("orders", 1), ("gone", 0))] if ends else [])
    assert (stored(harness), pending(harness)) == (({ORDERS_0: 5}, set()) if ends else ({}, {(Q, ORDERS_0)}))


TO_B = {
    "listed": TopicsImage(live={"orders": B, "more": A}),
    "told": TopicsImage(frozenset({("orders", A)})),
}


@each("image", [*TO_B])
def test_what_is_pending_for_a_deleted_topic_goes_alone(image: str) -> None:
    """The group has committed for the topic made anew, before the commit in the transaction came late."""
    harness = Harness()
    harness.topics_changed(TopicsImage(live={"orders": B}))
    plain(harness, {ORDERS_0: 7}, topic_id=B)
    commit(harness, {ORDERS_0: 100}, topic_id=A)
    commit(harness, {ORDERS_0: 8}, Q, topic_id=B)
    harness.topics_changed(TO_B[image])
    assert (stored(harness), pending(harness)) == ({ORDERS_0: 7}, {(Q, ORDERS_0)})
    assert removed(harness) == []
    end(harness)
    assert stored(harness) == {ORDERS_0: 7}
    end(harness, Q)
    assert stored(harness) == {ORDERS_0: 8}


@each("image", [*TO_B])
@each("reload", [False, True])
def test_an_offset_of_a_deleted_topic_goes_without_what_is_pending_for_the_topic_made_anew(
    image: str, reload: bool
) -> None:
    """Whether it came before or after what is pending; with the offset, nothing overtakes that."""
    harness = Harness()
    harness.topics_changed(TopicsImage(live={"orders": B}))
    plain(harness, {ORDERS_0: 7}, topic_id=A)
    commit(harness, {ORDERS_0: 8, ("orders", 1): 9}, topic_id=B)
    plain(harness, {("orders", 1): 7}, topic_id=A)
    harness.topics_changed(TO_B[image])
    assert removed(harness) == [(ORDERS_0, ("orders", 1))]
    if reload:
        harness.reload()
    else:
        harness.check_replay()
    end(harness)
    assert stored(harness) == {ORDERS_0: 8, ("orders", 1): 9}


def is_left(topic: str, topic_id: uuid.UUID, image: TopicsImage) -> bool:
    """Whether an image leaves an offset alone."""
    assert image.live is not None
    return (
        topic in image.live
        and topic_id in (ZERO_UUID, image.live[topic])
        and (topic, topic_id) not in image.deleted
        and (topic_id != ZERO_UUID or all(topic != name for name, _ in image.deleted))
    )


@each("seed", range(40))
def test_a_shard_keeps_only_offsets_of_topics_that_there_are(seed: int) -> None:
    """Whatever is committed, on time or late, and however topics come, go and are made anew: after each image
    that lists them, nothing else is left, and nothing more has been removed."""
    random = Random(seed)
    harness = Harness()
    ids = [uuid.UUID(int=each) for each in range(5)]  # the first is none
    image: TopicsImage | None = None
    for _ in range(60):
        what = random.randrange(10)
        offsets = {(random.choice("abc"), random.randrange(2)): 1 for _ in range(random.randrange(1, 3))}
        group_id, topic_id, producer = random.choice("gh"), random.choice(ids), random.choice((P, Q))
        if what < 3:
            plain(harness, offsets, topic_id=topic_id, group_id=group_id)
        elif what < 5:
            commit(harness, offsets, producer, topic_id=topic_id, group_id=group_id)
        elif what == 5:
            end(harness, producer, committed=random.random() < 0.8)
        elif what == 6 and random.random() < 0.3:
            harness.reload()
            if image is not None:
                harness.topics_changed(image)
        else:
            live = dict(image.live) if image is not None and image.live is not None else {}
            for name in random.sample("abc", random.randrange(3)):
                if live.pop(name, None) is None or random.random() < 0.5:
                    live[name] = random.choice(ids[1:])
            gone = frozenset(
                (name, random.choice(ids[1:])) for name in random.sample("abc", random.randrange(2))
            )
            image = compared(TopicsImage(gone, live, dict.fromkeys(live, 1)), image)
            before, pending_before = harness.shard.durable(), pending_offsets(harness)
            harness.topics_changed(image)
            left = {
                group: {
                    each: committed
                    for each, committed in of.items()
                    if is_left(each[0], committed.topic_id, image)
                }
                for group, of in before.offsets.items()
            }
            assert harness.shard.durable().offsets == {group: of for group, of in left.items() if of}, (
                f"{seed=}"
            )
            assert pending_offsets(harness) == [
                each for each in pending_before if is_left(each[1][0], each[-1], image)
            ], f"{seed=}"
            harness.check_replay()


def pending_offsets(harness: Harness) -> list[tuple[str, tuple[str, int], int, uuid.UUID]]:
    """Group, partition, producer id and topic id of what is pending."""
    table = harness.shard.hard.pending
    return [
        (group_id, partition, producer_id, each.committed.topic_id)
        for group_id in table.groups()
        for partition, of_partition in table.of_group(group_id).items()
        for producer_id, each in of_partition.items()
    ]


RETENTION = GroupConfig(
    group_initial_rebalance_delay_ms=0,
    offsets_retention_minutes=10,
    offsets_retention_check_interval_ms=MINUTE,
    producer_id_expiration_ms=30 * MINUTE,
)


def test_an_offset_with_another_pending_does_not_expire() -> None:
    harness = Harness(RETENTION)
    plain(harness, {ORDERS_0: 1, ("orders", 1): 2})
    commit(harness, {ORDERS_0: 5})
    harness.advance(60 * MINUTE)
    assert stored(harness) == {ORDERS_0: 1}
    end(harness, committed=False)
    harness.advance(MINUTE)
    assert stored(harness) == {}
    assert harness.shard.groups == {}


@each("reload", [False, True])
def test_a_group_with_nothing_but_what_is_pending_stays(reload: bool) -> None:
    harness = Harness(RETENTION)
    commit(harness, {ORDERS_0: 5})
    if reload:
        loading = Shard(0, RETENTION)
        for row in harness.log:
            loading.apply(*row)
        assert loading.contents() == {"groups": 1}, "as it is told before groups are made of it"
        harness.reload()
    assert harness.shard.contents() == {"groups": 1}
    harness.advance(60 * MINUTE)
    assert [*harness.shard.groups] == ["orders"]
    end(harness)
    assert stored(harness) == {ORDERS_0: 5}


def test_a_group_goes_when_its_last_transaction_is_aborted() -> None:
    harness = Harness(RETENTION)
    commit(harness, {ORDERS_0: 5})
    end(harness, committed=False)
    harness.advance(MINUTE)
    assert harness.shard.groups == {}


def test_an_idle_producer_is_forgotten_and_one_in_a_transaction_is_not() -> None:
    harness = Harness(RETENTION)
    commit(harness, {ORDERS_0: 5}, Q)
    harness.advance(MINUTE)
    end(harness, P)
    harness.advance(30 * MINUTE - 1)
    assert harness.shard.hard.pending.producers.keys() == {P, Q}
    harness.advance(1)
    assert harness.shard.hard.pending.producers.keys() == {Q}
    harness.advance(60 * MINUTE)
    end(harness, Q)
    harness.advance(30 * MINUTE)
    assert harness.shard.hard.pending.producers == {}
    harness.check_replay()


def test_how_long_producers_are_known_may_be_altered() -> None:
    harness = Harness(RETENTION)
    end(harness, P)
    harness.shard.configs.producer_id_expiration_ms = 2 * MINUTE
    harness.advance(2 * MINUTE)
    assert harness.shard.hard.pending.producers == {}


def test_a_moved_clock_does_not_pass_over_the_end_of_a_producer() -> None:
    harness = Harness(RETENTION)
    harness.advance(10)
    end(harness, P)
    harness.shard.skip_sweeps(START_MS + 24 * 60 * MINUTE, harness.now_ms)
    assert harness.shard.next_deadline() == START_MS + 10 + 30 * MINUTE
    harness.advance(30 * MINUTE)
    assert harness.shard.hard.pending.producers == {}
    harness.shard.skip_sweeps(START_MS + 24 * 60 * MINUTE, harness.now_ms)
    deadline_ms = harness.shard.next_deadline()
    assert deadline_ms is not None
    assert deadline_ms > START_MS + 24 * 60 * MINUTE


# --- groups of each kind ------------------------------------------------------------------------------------


def test_a_group_without_a_name_is_refused(harness: Harness) -> None:
    asked = request({ORDERS_0: 5}, group_id="")
    assert begin(harness, asked).code is ErrorCode.INVALID_GROUP_ID
    assert send(harness, asked, None) is ErrorCode.INVALID_GROUP_ID


@each("version, code", [(5, ErrorCode.ILLEGAL_GENERATION), (6, ErrorCode.GROUP_ID_NOT_FOUND)])
def test_nobody_is_a_member_of_a_group_that_is_not_there(version: int, code: ErrorCode) -> None:
    harness = Harness()
    fields = {"generation_id_or_member_epoch": 1, "member_id": "alice"}
    assert commit(harness, {ORDERS_0: 5}, version=version, **fields) is code
    assert harness.shard.groups == {}


@each(
    "fields, code",
    [
        ({}, None),
        ({"member_id": "alice"}, None),
        ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "nobody", "generation_id_or_member_epoch": -1}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation_id_or_member_epoch": 1}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "alice", "generation_id_or_member_epoch": 2}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "alice", "generation_id_or_member_epoch": -1}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "other", "group_instance_id": "store-1"}, ErrorCode.FENCED_INSTANCE_ID),
        ({"member_id": "alice", "group_instance_id": "store-1"}, None),
    ],
)
def test_members_of_a_classic_group_are_held_to_what_they_say(
    fields: dict[str, Any], code: ErrorCode | None
) -> None:
    harness = Harness()
    [alice] = stable(harness, "alice", instance_id="store-1")
    if "member_id" in fields:
        fields = {"generation_id_or_member_epoch": 1, **fields}
    if fields.get("member_id") == "alice":
        fields = {**fields, "member_id": alice}
    harness.take_events()
    expected = {ORDERS_0: ErrorCode.NONE} if code is None else code
    assert commit(harness, {ORDERS_0: 5}, **fields) == expected
    events: list[type[Event]] = [type(event) for event in harness.take_events()]
    fenced = [MemberFenced] if code is ErrorCode.FENCED_INSTANCE_ID else []
    assert events == ([] if code is None else [*fenced, CommitRefused])


def test_offsets_are_committed_while_the_group_rebalances(harness: Harness) -> None:
    """A plain commit is refused with REBALANCE_IN_PROGRESS while the group waits for its assignment."""
    first = harness.answers[join(harness, join_request(session_timeout_ms=45_000))].member_id
    joined: dict[str, Any] = {"member_id": first, "generation_id_or_member_epoch": 1}
    assert harness.group().state.value == "CompletingRebalance"
    assert commit(harness, {ORDERS_0: 5}, **joined) == {ORDERS_0: ErrorCode.NONE}
    assert commit(harness, {ORDERS_0: 6}) == {ORDERS_0: ErrorCode.NONE}, "who says nothing is not asked"


def test_a_transactional_commit_is_no_sign_of_life(harness: Harness) -> None:
    [alice] = stable(harness, "alice")
    fields: dict[str, Any] = {"member_id": alice, "generation_id_or_member_epoch": 1}
    harness.advance(45_000 - 1)
    assert commit(harness, {ORDERS_0: 5}, **fields) == {ORDERS_0: ErrorCode.NONE}
    harness.advance(1)
    assert harness.group().members == {}


_JOINED_EPOCH = 2


def with_consumer(harness: Harness, **fields: Any) -> None:
    """alice joins a new consumer group, or turns the empty group into one."""
    harness.topics_changed(TopicsImage(partitions={"orders": 2}, live={"orders": A}))
    asked = ConsumerGroupHeartbeatRequest(
        group_id="orders",
        member_id="alice",
        member_epoch=0,
        topic_partitions=[],
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=["orders"],
        **fields,
    )
    answer = harness.ask(Shard.consumer_heartbeat, asked, context(ApiKey.CONSUMER_GROUP_HEARTBEAT))
    assert answer.error_code == ErrorCode.NONE
    assert answer.member_epoch == _JOINED_EPOCH


@each("version, stale", [(5, ErrorCode.ILLEGAL_GENERATION), (6, ErrorCode.STALE_MEMBER_EPOCH)])
def test_members_of_a_consumer_group_are_held_to_what_they_say(version: int, stale: ErrorCode) -> None:
    harness = Harness()
    with_consumer(harness)
    for member_id, epoch, expected in (
        ("", -1, None),
        ("alice", _JOINED_EPOCH, None),
        ("nobody", _JOINED_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID),
        ("alice", _JOINED_EPOCH + 1, stale),
        ("alice", _JOINED_EPOCH - 1, stale),
        ("alice", -1, stale),
    ):
        fields = {"member_id": member_id, "generation_id_or_member_epoch": epoch}
        harness.take_events()
        answer = commit(harness, {ORDERS_0: 5}, version=version, topic_id=A, **fields)
        assert answer == ({ORDERS_0: ErrorCode.NONE} if expected is None else expected)
        assert [type(event) for event in harness.take_events()] == ([CommitRefused] if expected else [])
    end(harness)
    assert stored(harness) == {ORDERS_0: 5}


@each("reload", [False, True])
def test_what_is_pending_stays_when_the_group_changes_its_kind(reload: bool) -> None:
    """From a group without members to a consumer group, to a classic one, and back."""
    harness = Harness()
    commit(harness, {ORDERS_0: 5}, topic_id=A)
    with_consumer(harness)
    left = ConsumerGroupHeartbeatRequest(group_id="orders", member_id="alice", member_epoch=-1)
    commit(harness, {("orders", 1): 6}, Q, topic_id=A)
    if reload:
        harness.reload()
    harness.ask(Shard.consumer_heartbeat, left, context(ApiKey.CONSUMER_GROUP_HEARTBEAT))
    [bob] = stable(harness, "bob")
    assert pending(harness) == {(P, ORDERS_0), (Q, ("orders", 1))}
    if reload:
        harness.reload()
    end(harness, P)
    harness.ask(Shard.leave, leave_request(bob), context(ApiKey.LEAVE_GROUP))
    with_consumer(harness)
    end(harness, Q)
    assert stored(harness) == {ORDERS_0: 5, ("orders", 1): 6}


# --- anything -----------------------------------------------------------------------------------------------


class Model:
    """A partition of `__consumer_offsets` as Kafka keeps it: a log, whose offsets decide what is newer."""

    def __init__(self) -> None:
        self.log_end = 0
        self.committed: dict[tuple[str, tuple[str, int]], tuple[int, int]] = {}
        """Log offset and committed offset."""
        self.pending: dict[int, dict[tuple[str, tuple[str, int]], tuple[int, int]]] = {}

    def commit(self, group: str, partition: tuple[str, int], offset: int, producer: int | None) -> None:
        self.log_end += 1
        table = self.committed if producer is None else self.pending.setdefault(producer, {})
        table[group, partition] = self.log_end, offset

    def end(self, producer: int, *, committed: bool) -> None:
        for where, (log_offset, offset) in self.pending.pop(producer, {}).items():
            if committed and log_offset > self.committed.get(where, (-1, 0))[0]:
                self.committed[where] = log_offset, offset

    def delete(self, group: str, partition: tuple[str, int]) -> None:
        for table in (self.committed, *self.pending.values()):
            table.pop((group, partition), None)

    def seen(self) -> tuple[dict[Any, int], set[Any]]:
        offsets = {where: offset for where, (_, offset) in self.committed.items()}
        return offsets, {where for of in self.pending.values() for where in of}


@each("seed", range(40))
def test_any_order_of_commits_markers_and_deletes(seed: int) -> None:
    """Compared with a model that follows Kafka's rule, reloading the shard now and then."""
    random, harness, model = Random(seed), Harness(), Model()
    epochs = dict.fromkeys((P, Q, R), 0)
    groups, partitions = ("orders", "other"), (ORDERS_0, ("orders", 1), ("clicks", 0))
    for number in range(150):
        group, producer = random.choice(groups), random.choice((P, Q, R))
        some = random.sample(partitions, random.randrange(1, 3))
        match random.choices(("plain", "commit", "end", "delete", "group", "reload"), (4, 8, 5, 1, 1, 1))[0]:
            case "plain":
                plain(harness, dict.fromkeys(some, number), group_id=group)
                for partition in some:
                    model.commit(group, partition, number, None)
            case "commit":
                offsets = dict.fromkeys(some, number)
                commit(harness, offsets, producer, epochs[producer], group_id=group)
                for partition in some:
                    model.commit(group, partition, number, producer)
            case "end":
                version, committed = random.choice((0, 2)), random.random() < 0.7
                epochs[producer] += version // 2
                end(harness, producer, epochs[producer], committed=committed, version=version)
                model.end(producer, committed=committed)
            case "delete" if group == "orders" and group in harness.shard.groups:
                delete_offsets(harness, *some)
                for partition in some:
                    model.delete(group, partition)
            case "group" if group in harness.shard.groups:
                harness.ask(Shard.delete_group, group, context(ApiKey.DELETE_GROUPS))
                for partition in partitions:
                    model.delete(group, partition)
            case "reload":
                harness.reload()
        hard = harness.shard.hard
        offsets = {
            (group_id, partition): each.offset
            for group_id, of in hard.offsets.items()
            for partition, each in of.items()
        }
        unstable = {
            (group_id, partition)
            for group_id in hard.pending.groups()
            for partition in hard.pending.of_group(group_id)
        }
        assert (offsets, unstable) == model.seen(), f"after move {number}"
    harness.check_replay()
