"""Committed offsets: OffsetCommit, OffsetFetch, OffsetDelete, retention, and deleted topics."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from muster.coordinator.base.step import Step
from muster.coordinator.group import records
from muster.coordinator.group.committed_offset import CommittedOffset
from muster.coordinator.group.config import GroupConfig
from muster.coordinator.group.effects import TopicsImage
from muster.coordinator.group.group import Group
from muster.coordinator.group.group_offsets import TopicOffsets, TopicPartition
from muster.coordinator.group.hard_state import HardState
from muster.protocol.elements import EncodedElements
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.offsets import (
    COMMITTED_PARTITION,
    FETCHED_PARTITION,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    encode_committed_partition,
    encode_fetched_partition,
)
from muster.protocol.types import INT64_MAX, ZERO_UUID

NO_OFFSET = -1

_CommittedTopic = OffsetCommitResponse.Topic
_CommittedPartition = OffsetCommitResponse.Partition
_WantedTopic = OffsetFetchRequest.Group.Topics
_FetchedTopic = OffsetFetchResponse.Group.Topics
_FetchedPartition = OffsetFetchResponse.Group.Topics.Partitions


class FetchOffsets(NamedTuple):
    """An OffsetFetch of one group, whatever the version of the request it came in."""

    group_id: str
    topics: list[OffsetFetchRequest.Group.Topics] | None
    """None: all that the group has. Each topic gives its name and, where known, its id."""
    require_stable: bool = False
    """Refuse partitions in an open transaction (KIP-447)."""
    member_id: str | None = None
    member_epoch: int = -1
    """Checked for members of the consumer protocol only (KIP-848)."""


# --- commit -------------------------------------------------------------------------------------------------


def commit(
    request: OffsetCommitRequest, *, hard: HardState, config: GroupConfig, step: Step
) -> OffsetCommitResponse:
    """Store what may be stored. OFFSET_METADATA_TOO_LARGE is reported per partition."""
    expires = request.retention_time_ms != -1
    # Capped by the record's int64; a longer time means "for ever".
    expire_timestamp = min(step.now_ms + request.retention_time_ms, INT64_MAX) if expires else -1
    topics: list[_CommittedTopic] = []
    for topic in request.topics:
        # The one version of the record with a field for an expiry has none for a topic id.
        topic_id = ZERO_UUID if expires else topic.topic_id
        committing: list[tuple[int, CommittedOffset]] = []
        codes: list[ErrorCode] = []
        for partition in topic.partitions:
            metadata = partition.committed_metadata or ""
            if metadata and is_too_long(metadata, config):
                codes.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
                continue
            committed = CommittedOffset(
                partition.committed_offset,
                partition.committed_leader_epoch,
                metadata,
                step.now_ms,
                expire_timestamp,
                topic_id,
            )
            committing.append((partition.partition_index, committed))
            codes.append(ErrorCode.NONE)
        hard.emit_offsets(request.group_id, topic.name, committing, step)
        if len(committing) == len(topic.partitions) == len(request.topics) == 1:
            return _committed(topic.name, topic.topic_id, committing[0][0])
        answers = [
            encode_committed_partition(partition.partition_index, code)
            for partition, code in zip(topic.partitions, codes, strict=True)
        ]
        told: EncodedElements[_CommittedPartition]
        told = EncodedElements(COMMITTED_PARTITION, len(answers), b"".join(answers))
        topics.append(_CommittedTopic(name=topic.name, topic_id=topic.topic_id, partitions=told))
    return OffsetCommitResponse(topics=topics)


@lru_cache(maxsize=4096)
def _committed(topic: str, topic_id: uuid.UUID, partition: int) -> OffsetCommitResponse:
    """The answer to a commit of one partition, always the same; nobody modifies an answer."""
    done = _CommittedPartition(partition_index=partition, error_code=ErrorCode.NONE)
    return OffsetCommitResponse(topics=[_CommittedTopic(name=topic, topic_id=topic_id, partitions=[done])])


def is_too_long(metadata: str, config: GroupConfig) -> bool:
    """Whether a commit's metadata exceeds offset.metadata.max.bytes."""
    return _utf16_units(metadata) > config.offset_metadata_max_bytes


def _utf16_units(text: str) -> int:
    """The length as Java counts it."""
    if text.isascii():
        return len(text)
    return len(text) + sum(character > "\uffff" for character in text)


# --- fetch --------------------------------------------------------------------------------------------------


def fetch(request: FetchOffsets, hard: HardState) -> OffsetFetchResponse.Group:
    """What the group has committed. A missing offset or group is no error: the offset is -1.
    UNSTABLE_OFFSET_COMMIT is reported per partition."""
    offsets = hard.offsets.get(request.group_id)
    of_topics = offsets.topics if offsets is not None else {}
    wanted: list[_WantedTopic]
    if request.topics is None:
        wanted = [
            _WantedTopic(name=name, partition_indexes=list(of_topic.offsets))
            for name, of_topic in of_topics.items()
        ]
    else:
        wanted = request.topics
    pending = hard.pending.of_group(request.group_id) if request.require_stable else {}
    return OffsetFetchResponse.Group(
        group_id=request.group_id,
        topics=[
            _FetchedTopic(
                name=each.name,
                topic_id=each.topic_id,
                partitions=_fetched(each, of_topics.get(each.name), pending),
            )
            for each in wanted
        ],
    )


def _fetched(
    wanted: _WantedTopic, of_topic: TopicOffsets | None, pending: Mapping[TopicPartition, object]
) -> EncodedElements[_FetchedPartition]:
    """The answer for each partition, mostly encoded already (`TopicOffsets.answer`)."""
    indexes = wanted.partition_indexes
    if of_topic is None:
        answers = [_no_offset(index) for index in indexes]
    else:
        known = of_topic.answer
        answers = [known(index) or _no_offset(index) for index in indexes]
        if of_topic.topic_id is None or not _same_topic(of_topic.topic_id, wanted.topic_id):
            for at, index in enumerate(indexes):
                committed = of_topic.offsets.get(index)
                if committed is not None and not _same_topic(committed.topic_id, wanted.topic_id):
                    answers[at] = _no_offset(index)  # committed for a deleted topic of that name
    if pending:
        for at, index in enumerate(indexes):
            if (wanted.name, index) in pending:
                answers[at] = encode_fetched_partition(
                    index, NO_OFFSET, -1, "", ErrorCode.UNSTABLE_OFFSET_COMMIT
                )
    return EncodedElements(FETCHED_PARTITION, len(indexes), b"".join(answers))


@lru_cache(maxsize=4096)
def _no_offset(partition: int) -> bytes:
    """The answer for a partition without an offset."""
    return encode_fetched_partition(partition, NO_OFFSET, -1, "", ErrorCode.NONE)


def _same_topic(stored: uuid.UUID, asked: uuid.UUID) -> bool:
    """Whether both ids stand for the same topic; an unknown id (zero) matches any."""
    return stored == asked or ZERO_UUID in (stored, asked)


# --- delete -------------------------------------------------------------------------------------------------


def delete(
    group: Group, request: OffsetDeleteRequest, hard: HardState, step: Step
) -> tuple[OffsetDeleteResponse, list[TopicPartition]]:
    """Remove the offsets an admin names, and return the partitions that had one (KIP-496).
    GROUP_SUBSCRIBED_TO_TOPIC is reported per partition; a missing offset is no error.

    Raises GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP.
    """
    group.validate_offset_delete()
    topics: list[OffsetDeleteResponse.Topic] = []
    deleted: list[TopicPartition] = []
    for topic in request.topics:
        indexes = [partition.partition_index for partition in topic.partitions]
        outcome = ErrorCode.NONE
        if group.is_subscribed(topic.name):
            outcome = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        else:
            deleted += remove(group.group_id, [(topic.name, index) for index in indexes], hard, step)
        topics.append(
            OffsetDeleteResponse.Topic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponse.Topic.Partition(partition_index=index, error_code=outcome)
                    for index in indexes
                ],
            )
        )
    return OffsetDeleteResponse(topics=topics), deleted


def remove(
    group_id: str, partitions: Iterable[TopicPartition], hard: HardState, step: Step
) -> list[TopicPartition]:
    """Remove the offsets of the partitions, and return the partitions that had one. Pending offsets go too,
    unreported: they were never the group's."""
    removed: list[TopicPartition] = []
    for topic, partition in partitions:
        if (topic, partition) in hard.offsets.get(group_id, {}):
            hard.emit(records.offset_tombstone(group_id, topic, partition), step)
            removed.append((topic, partition))
        for producer_id in list(hard.pending.of_partition(group_id, (topic, partition))):
            hard.emit(records.pending_offset_tombstone(producer_id, group_id, (topic, partition)), step)
    return removed


# --- retention ----------------------------------------------------------------------------------------------


def expired(group: Group, config: GroupConfig, hard: HardState, now_ms: int) -> list[TopicPartition]:
    """The partitions whose offsets are past their retention, and that no member subscribes to (KIP-211)."""
    return [partition for partition, end_ms in _retention_ends(group, config, hard) if now_ms >= end_ms]


def next_expiry(group: Group, config: GroupConfig, hard: HardState) -> int | None:
    """When the first of the group's offsets is past its retention, given the group's present state; perhaps
    already. None if none will be."""
    return min((end_ms for _, end_ms in _retention_ends(group, config, hard)), default=None)


def _retention_ends(
    group: Group, config: GroupConfig, hard: HardState
) -> Iterator[tuple[TopicPartition, int]]:
    """Until when each of the group's offsets is kept, given the group's present state. Leaves out offsets
    with no end in sight, and those for which another is pending."""
    retention_begins = group.retention_base()
    if retention_begins is None:
        return
    offsets = hard.offsets.get(group.group_id)
    if offsets is None:
        return
    pending = hard.pending.of_group(group.group_id)
    for topic, of_topic in offsets.topics.items():
        if group.is_subscribed(topic):
            continue
        for number, committed in of_topic.offsets.items():
            partition = topic, number
            if partition in pending:
                continue
            if committed.expire_timestamp != -1:
                yield partition, committed.expire_timestamp
            else:
                yield partition, retention_begins(committed) + config.offsets_retention_ms


# --- topics -------------------------------------------------------------------------------------------------


def remove_orphaned(
    group_id: str, image: TopicsImage, hard: HardState, names: frozenset[str] | None, step: Step
) -> list[TopicPartition]:
    """Remove the offsets, even pending ones, of deleted topics: those the image lists, and those whose name
    by now belongs to no topic, or to another. An offset without a topic id matches any topic of its name.
    Only topics of these `names` are looked at; None: all. Offsets of one partition may be for different
    topics of its name: each is judged by its own. Returns the partitions that had a committed one removed."""
    offsets = hard.offsets.get(group_id)
    of_topics = {} if offsets is None else offsets.topics
    pending = hard.pending.of_group(group_id)
    if names is not None and not pending and of_topics.keys().isdisjoint(names):
        return []  # the usual case
    deleted: dict[str, set[uuid.UUID]] = {}
    for name, topic_id in image.deleted:
        deleted.setdefault(name, set()).add(topic_id)

    def is_orphaned(topic: str, topic_id: uuid.UUID) -> bool:
        if topic in deleted and (topic_id == ZERO_UUID or topic_id in deleted[topic]):
            return True
        if image.live is None:
            return False
        return topic not in image.live or not _same_topic(topic_id, image.live[topic])

    removed = [
        (topic, number)
        for topic, of_topic in of_topics.items()
        if names is None or topic in names
        for number, committed in of_topic.offsets.items()
        if is_orphaned(topic, committed.topic_id)
    ]
    dropped = [
        (producer_id, partition)
        for partition, of_partition in pending.items()
        if names is None or partition[0] in names
        for producer_id, each in of_partition.items()
        if is_orphaned(partition[0], each.committed.topic_id)
    ]
    for topic, number in removed:
        hard.emit(records.offset_tombstone(group_id, topic, number), step)
    for producer_id, partition in dropped:
        hard.emit(records.pending_offset_tombstone(producer_id, group_id, partition), step)
    return removed
