"""The requests for fetching, and their settings."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from muster.client.fetch.positions import LATEST, ResetStrategy
from muster.client.fetch.session import Plan
from muster.client.partitions import TopicPartition, grouped
from muster.protocol.messages.data import (
    FetchRequest,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
)
from muster.protocol.types import ZERO_UUID

T = TypeVar("T")

READ_UNCOMMITTED: Final = "read_uncommitted"
READ_COMMITTED: Final = "read_committed"

_CONSUMER: Final = -1  # the replica id of clients


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings:
    """Fetch settings, with the names and defaults of Kafka's consumer."""

    min_bytes: int = 1
    max_wait_ms: int = 500
    max_bytes: int = 50 * 1024 * 1024
    partition_max_bytes: int = 1024 * 1024
    isolation_level: str = READ_UNCOMMITTED
    check_crcs: bool = True
    client_rack: str = ""
    reset: ResetStrategy | None = LATEST
    """Where to continue if the position is outside the log; None: raise an error."""
    request_timeout_ms: int = 30_000
    metadata_max_age_ms: int = 300_000

    @property
    def reads_committed(self) -> bool:
        return self.isolation_level == READ_COMMITTED


def fetch_request(plan: Plan, settings: FetchSettings, max_wait_ms: int) -> FetchRequest:
    """A Fetch with topic names and ids; the version decides which are sent."""
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=settings.min_bytes,
        max_bytes=settings.max_bytes,
        isolation_level=int(settings.reads_committed),
        session_id=plan.session_id,
        session_epoch=plan.session_epoch,
        rack_id=settings.client_rack,
        topics=[
            FetchRequest.FetchTopic(topic=topic, topic_id=topic_id or ZERO_UUID, partitions=parts)
            for (topic, topic_id), parts in _by_topic(
                (
                    where.topic,
                    asked.topic_id,
                    FetchRequest.FetchPartition(
                        partition=where.partition,
                        current_leader_epoch=asked.leader_epoch,
                        fetch_offset=asked.offset,
                        last_fetched_epoch=asked.last_fetched_epoch,
                        partition_max_bytes=asked.bytes_max,
                    ),
                )
                for where, asked in plan.send.items()
            ).items()
        ],
        forgotten_topics_data=[
            FetchRequest.ForgottenTopic(topic=topic, topic_id=topic_id or ZERO_UUID, partitions=parts)
            for (topic, topic_id), parts in _by_topic(
                (where.topic, topic_id, where.partition) for where, topic_id in plan.forget.items()
            ).items()
        ],
    )


def list_offsets_request(
    asked: Mapping[TopicPartition, tuple[int, int]], settings: FetchSettings
) -> ListOffsetsRequest:
    """A request to one broker for offsets by (leader epoch, timestamp)."""
    return ListOffsetsRequest(
        replica_id=_CONSUMER,
        isolation_level=int(settings.reads_committed),
        timeout_ms=settings.request_timeout_ms,
        topics=[
            ListOffsetsRequest.ListOffsetsTopic(
                name=topic,
                partitions=[
                    ListOffsetsRequest.ListOffsetsPartition(
                        partition_index=index, current_leader_epoch=leader_epoch, timestamp=timestamp
                    )
                    for index, (leader_epoch, timestamp) in parts
                ],
            )
            for topic, parts in grouped(asked.items()).items()
        ],
    )


def by_partition(
    response: ListOffsetsResponse,
) -> dict[TopicPartition, ListOffsetsResponse.ListOffsetsPartitionResponse]:
    return {
        TopicPartition(topic.name, each.partition_index): each
        for topic in response.topics
        for each in topic.partitions
    }


def epoch_request(asked: Mapping[TopicPartition, tuple[int, int]]) -> OffsetForLeaderEpochRequest:
    """A request to one broker for the ends of epochs, by (current leader epoch, requested epoch)."""
    return OffsetForLeaderEpochRequest(
        replica_id=_CONSUMER,
        topics=[
            OffsetForLeaderEpochRequest.OffsetForLeaderTopic(
                topic=topic,
                partitions=[
                    OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
                        partition=index, current_leader_epoch=current, leader_epoch=epoch
                    )
                    for index, (current, epoch) in parts
                ],
            )
            for topic, parts in grouped(asked.items()).items()
        ],
    )


def _by_topic(
    partitions: Iterable[tuple[str, uuid.UUID | None, T]],
) -> dict[tuple[str, uuid.UUID | None], list[T]]:
    topics: dict[tuple[str, uuid.UUID | None], list[T]] = {}
    for topic, topic_id, part in partitions:
        topics.setdefault((topic, topic_id), []).append(part)
    return topics
