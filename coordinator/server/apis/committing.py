"""What offset commits inside and outside transactions have in common: the core knows no topics, so it is
asked only about partitions that exist, and the others are refused here."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from muster.coordinator.server.serving import Broker
from muster.coordinator.topics.catalogue import Topic
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.offsets import OffsetCommitRequest, OffsetCommitResponse
from muster.protocol.messages.transactions import TxnOffsetCommitRequest, TxnOffsetCommitResponse

Commit = TypeVar("Commit", OffsetCommitRequest, TxnOffsetCommitRequest)
Committed = TypeVar("Committed", OffsetCommitResponse, TxnOffsetCommitResponse)
_Topic = OffsetCommitRequest.Topic | TxnOffsetCommitRequest.Topic


def existing(broker: Broker, request: Commit, *, by_id: bool) -> Commit | None:
    """The part of a commit for partitions that exist, with the names and ids of their topics; None if none
    exist."""
    topics: list[Any] = []
    for asked in request.topics:
        topic = _named(broker, asked, by_id=by_id)
        if topic is None:
            continue
        partitions = [each for each in asked.partitions if 0 <= each.partition_index < topic.partitions]
        if partitions:
            topics.append(type(asked)(name=topic.name, topic_id=topic.topic_id, partitions=partitions))
    if not topics:
        return None
    fields = {each.name: getattr(request, each.name) for each in type(request).__fields__}
    return type(request)(**{**fields, "topics": topics})


def whole(broker: Broker, request: Commit, committed: Committed, *, by_id: bool) -> Committed:
    """The answer to the whole request, from the group's answer: UNKNOWN_TOPIC_OR_PARTITION for what the group
    was not asked about, UNKNOWN_TOPIC_ID for an unknown id."""
    answer: Any = type(committed)
    outcomes = {
        (done.topic_id if by_id else done.name, each.partition_index): each.error_code
        for done in committed.topics
        for each in done.partitions
    }
    topics = []
    for asked in request.topics:
        name = asked.topic_id if by_id else asked.name
        unknown = by_id and _named(broker, asked, by_id=True) is None
        missing = ErrorCode.UNKNOWN_TOPIC_ID if unknown else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        partitions = [
            answer.Partition(
                partition_index=each.partition_index,
                error_code=outcomes.get((name, each.partition_index), missing),
            )
            for each in asked.partitions
        ]
        topics.append(answer.Topic(name=asked.name, topic_id=asked.topic_id, partitions=partitions))
    return cast(Committed, answer(topics=topics))


def _named(broker: Broker, asked: _Topic, *, by_id: bool) -> Topic | None:
    return broker.catalogue.by_id(asked.topic_id) if by_id else broker.catalogue.by_name(asked.name)
