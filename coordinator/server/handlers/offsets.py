"""OffsetCommit, OffsetFetch, OffsetDelete.

The core knows groups and offsets, but not which topics exist: that is checked here, and topic ids become
names on the way in. A partition that is refused here does not keep the others from the core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from muster.coordinator.group.effects import RequestContext
from muster.coordinator.group.offsets import FetchOffsets
from muster.coordinator.group.shard import Shard
from muster.coordinator.server import refusals
from muster.coordinator.server.handlers.several import several
from muster.coordinator.server.refusals import offset_fetch_group_error
from muster.coordinator.topics.catalogue import Topic
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from muster.protocol.types import ZERO_UUID

if TYPE_CHECKING:
    from muster.coordinator.server.broker import Broker

COMMITTED_BY_ID_FROM: Final = 10
_FETCHED_BY_ID_FROM: Final = 10
_GROUPS_FROM: Final = 8


# --- OffsetCommit -------------------------------------------------------------------------------------------


async def offset_commit(
    broker: Broker, request: OffsetCommitRequest, context: RequestContext
) -> OffsetCommitResponse:
    """Commit the partitions that exist; the others answer 3, or 100 where they were named by topic id."""
    by_id = context.api_version >= COMMITTED_BY_ID_FROM
    existing: list[OffsetCommitRequest.Topic] = []
    for asked in request.topics:
        try:
            topic = (
                broker.catalogue.identified(asked.topic_id) if by_id else broker.catalogue.named(asked.name)
            )
        except KafkaError:
            continue
        partitions = [each for each in asked.partitions if 0 <= each.partition_index < topic.partitions]
        if partitions:
            existing.append(
                OffsetCommitRequest.Topic(name=topic.name, topic_id=topic.topic_id, partitions=partitions)
            )
    outcomes: dict[tuple[object, int], int] = {}
    if existing:
        committing = OffsetCommitRequest(
            group_id=request.group_id,
            generation_id_or_member_epoch=request.generation_id_or_member_epoch,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            retention_time_ms=request.retention_time_ms,
            topics=existing,
        )
        committed: OffsetCommitResponse
        try:
            committed = await broker.runtime.call(request.group_id, Shard.commit_offsets, committing, context)
        except KafkaError as refusal:
            # Only for what the group was asked about: what does not exist says so all the same.
            committed = refusals.offset_commit(committing, context.api_version, refusal)
        outcomes = {
            (done.topic_id if by_id else done.name, each.partition_index): each.error_code
            for done in committed.topics
            for each in done.partitions
        }
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponse.Topic(
                name=asked.name,
                topic_id=asked.topic_id,
                partitions=[
                    OffsetCommitResponse.Partition(
                        partition_index=each.partition_index,
                        error_code=outcomes.get(
                            (asked.topic_id if by_id else asked.name, each.partition_index),
                            _missing(broker, asked, unknown),
                        ),
                    )
                    for each in asked.partitions
                ],
            )
            for asked in request.topics
        ]
    )


def _missing(broker: Broker, asked: OffsetCommitRequest.Topic, unknown: ErrorCode) -> ErrorCode:
    # The topic id is known, only the partition is not.
    known = unknown is ErrorCode.UNKNOWN_TOPIC_ID and broker.catalogue.by_id(asked.topic_id) is not None
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if known else unknown


# --- OffsetFetch --------------------------------------------------------------------------------------------


async def offset_fetch(
    broker: Broker, request: OffsetFetchRequest, context: RequestContext
) -> OffsetFetchResponse:
    """Committed offsets of one group (v1-7) or several (v8+); a group that is not known has none, which is no
    error."""
    version = context.api_version
    if version >= _GROUPS_FROM:

        async def fetch(group: OffsetFetchRequest.Group) -> OffsetFetchResponse.Group:
            return await _fetch_group(broker, group, request.require_stable, context)

        return OffsetFetchResponse(groups=await several(fetch, request.groups))
    asked = FetchOffsets(
        group_id=request.group_id,
        topics=None
        if request.topics is None
        else [
            OffsetFetchRequest.Group.Topics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        ],
        require_stable=request.require_stable,
        member_id=None,
        member_epoch=-1,
    )
    group: OffsetFetchResponse.Group = await broker.runtime.call(
        request.group_id, Shard.fetch_offsets, asked, context
    )
    if group.error_code:
        # v1 repeats it at every partition.
        raise KafkaError(ErrorCode(group.error_code))  # type: ignore[call-arg]
    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponse.Topic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponse.Partition(
                        partition_index=each.partition_index,
                        committed_offset=each.committed_offset,
                        committed_leader_epoch=each.committed_leader_epoch,
                        metadata=each.metadata,
                        error_code=each.error_code,
                    )
                    for each in topic.partitions
                ],
            )
            for topic in group.topics
        ]
    )


async def _fetch_group(
    broker: Broker, asked: OffsetFetchRequest.Group, require_stable: bool, context: RequestContext
) -> OffsetFetchResponse.Group:
    by_id = context.api_version >= _FETCHED_BY_ID_FROM
    unknown: list[OffsetFetchRequest.Group.Topics] = []
    topics: list[OffsetFetchRequest.Group.Topics] | None = None
    if asked.topics is not None:
        topics = []
        for each in asked.topics:
            topic = broker.catalogue.by_id(each.topic_id) if by_id else None
            if by_id and topic is None:
                unknown.append(each)
                continue
            topics.append(
                OffsetFetchRequest.Group.Topics(
                    name=each.name if topic is None else topic.name,
                    topic_id=ZERO_UUID if topic is None else topic.topic_id,
                    partition_indexes=each.partition_indexes,
                )
            )
    fetch = FetchOffsets(
        group_id=asked.group_id,
        topics=topics,
        require_stable=require_stable,
        member_id=asked.member_id,
        member_epoch=asked.member_epoch,
    )
    try:
        group: OffsetFetchResponse.Group = await broker.runtime.call(
            asked.group_id, Shard.fetch_offsets, fetch, context
        )
    except KafkaError as error:
        return offset_fetch_group_error(asked.group_id, error)
    if by_id and not group.error_code:
        group.topics = _identified(broker, group.topics) + [_unknown_topic(each) for each in unknown]
    return group


def _identified(
    broker: Broker, topics: list[OffsetFetchResponse.Group.Topics]
) -> list[OffsetFetchResponse.Group.Topics]:
    """With their ids; a topic that is gone has none, and its offsets go soon: it is left out, as Kafka
    does."""
    found: list[OffsetFetchResponse.Group.Topics] = []
    for each in topics:
        topic: Topic | None = broker.catalogue.by_name(each.name)
        if topic is not None:
            each.topic_id = topic.topic_id
            found.append(each)
    return found


def _unknown_topic(asked: OffsetFetchRequest.Group.Topics) -> OffsetFetchResponse.Group.Topics:
    return OffsetFetchResponse.Group.Topics(
        topic_id=asked.topic_id,
        partitions=[
            OffsetFetchResponse.Group.Topics.Partitions(
                partition_index=index,
                committed_offset=-1,
                metadata="",
                error_code=ErrorCode.UNKNOWN_TOPIC_ID,
            )
            for index in asked.partition_indexes
        ],
    )


# --- OffsetDelete -------------------------------------------------------------------------------------------


async def offset_delete(
    broker: Broker, request: OffsetDeleteRequest, context: RequestContext
) -> OffsetDeleteResponse:
    """Forget offsets of partitions that exist; the others answer 3."""
    existing: list[OffsetDeleteRequest.Topic] = []
    for asked in request.topics:
        topic = broker.catalogue.by_name(asked.name)
        partitions = [
            each
            for each in asked.partitions
            if topic is not None and 0 <= each.partition_index < topic.partitions
        ]
        if partitions:
            existing.append(OffsetDeleteRequest.Topic(name=asked.name, partitions=partitions))
    deleted: OffsetDeleteResponse = await broker.runtime.call(
        request.group_id,
        Shard.delete_offsets,
        OffsetDeleteRequest(group_id=request.group_id, topics=existing),
        context,
    )
    if deleted.error_code:
        return deleted
    outcomes = {
        (done.name, each.partition_index): each.error_code
        for done in deleted.topics
        for each in done.partitions
    }
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponse.Topic(
                name=asked.name,
                partitions=[
                    OffsetDeleteResponse.Partition(
                        partition_index=each.partition_index,
                        error_code=outcomes.get(
                            (asked.name, each.partition_index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                        ),
                    )
                    for each in asked.partitions
                ],
            )
            for asked in request.topics
        ]
    )
