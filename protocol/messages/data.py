"""The data plane: Produce, Fetch, ListOffsets, OffsetForLeaderEpoch, DeleteRecords."""

from __future__ import annotations

import struct as structs
import uuid
from collections.abc import Sequence
from typing import Final, TypeAlias

from muster.protocol.elements import Form
from muster.protocol.message import VERSION_MAX, Message, Struct, Versions, field, request, response, struct
from muster.protocol.types import (
    ZERO_UUID,
    Array,
    Int8,
    Int16,
    Int32,
    Int64,
    Records,
    String,
    Uuid,
)

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1


@request(0, versions="3-13", flexible="9+")
class ProduceRequest(Message):
    """Produce v3-13: v3 record batch v2 and transactional id (KIP-98), v4-6 no change here, v7 zstd allowed
    (KIP-110), v8 no change here, v9 flexible, v10-11 no change here, v12 producing to a partition adds it to
    the transaction (KIP-890), v13 topics by id instead of name (KIP-516).

    `acks` 0 none (no response at all), 1 the leader, -1 all in-sync replicas.
    """

    @struct
    class TopicProduceData(Struct):
        @struct
        class PartitionProduceData(Struct):
            index: int = field(Int32, "0+")
            records: bytes | None = field(Records, "0+", nullable="0+")

        name: str = field(String, "0-12", default="", ignorable=True)
        topic_id: uuid.UUID = field(Uuid, "13+", default=ZERO_UUID, ignorable=True)
        partition_data: list[PartitionProduceData] = field(Array(PartitionProduceData), "0+")

    PartitionProduceData: TypeAlias = TopicProduceData.PartitionProduceData  # type: ignore[misc]

    transactional_id: str | None = field(String, "3+", nullable="3+", default=None)
    acks: int = field(Int16, "0+")
    timeout_ms: int = field(Int32, "0+")
    topic_data: list[TopicProduceData] = field(Array(TopicProduceData), "0+")


@response(0, versions="3-13", flexible="9+")
class ProduceResponse(Message):
    """Produce v3-13: v4 KAFKA_STORAGE_ERROR possible, v5 log start offset, v6 throttling after the reply, v7
    no change here, v8 error message and the records at fault (KIP-467), v9 flexible, v10 the current leader
    along with NOT_LEADER_OR_FOLLOWER (KIP-951), v11 TRANSACTION_ABORTABLE possible (KIP-890), v12 no change
    here, v13 topics by id instead of name (KIP-516).

    `log_append_time_ms` is -1 if the topic keeps the producer's timestamps.
    """

    @struct
    class TopicProduceResponse(Struct):
        @struct
        class PartitionProduceResponse(Struct):
            @struct
            class BatchIndexAndErrorMessage(Struct):
                batch_index: int = field(Int32, "8+")
                batch_index_error_message: str | None = field(String, "8+", nullable="8+", default=None)

            @struct
            class LeaderIdAndEpoch(Struct):
                leader_id: int = field(Int32, "10+", default=-1)
                leader_epoch: int = field(Int32, "10+", default=-1)

            index: int = field(Int32, "0+")
            error_code: int = field(Int16, "0+", default=0)
            base_offset: int = field(Int64, "0+")
            log_append_time_ms: int = field(Int64, "2+", default=-1, ignorable=True)
            log_start_offset: int = field(Int64, "5+", default=-1, ignorable=True)
            record_errors: list[BatchIndexAndErrorMessage] = field(
                Array(BatchIndexAndErrorMessage), "8+", default_factory=list, ignorable=True
            )
            error_message: str | None = field(String, "8+", nullable="8+", default=None, ignorable=True)
            current_leader: LeaderIdAndEpoch = field(
                LeaderIdAndEpoch, "10+", tag=0, default_factory=LeaderIdAndEpoch
            )

        name: str = field(String, "0-12", default="", ignorable=True)
        topic_id: uuid.UUID = field(Uuid, "13+", default=ZERO_UUID, ignorable=True)
        partition_responses: list[PartitionProduceResponse] = field(Array(PartitionProduceResponse), "0+")

    PartitionProduceResponse: TypeAlias = TopicProduceResponse.PartitionProduceResponse  # type: ignore[misc]
    BatchIndexAndErrorMessage: TypeAlias = PartitionProduceResponse.BatchIndexAndErrorMessage  # type: ignore[misc]
    LeaderIdAndEpoch: TypeAlias = PartitionProduceResponse.LeaderIdAndEpoch  # type: ignore[misc]

    @struct
    class NodeEndpoint(Struct):
        node_id: int = field(Int32, "10+")
        host: str = field(String, "10+")
        port: int = field(Int32, "10+")
        rack: str | None = field(String, "10+", nullable="10+", default=None)

    responses: list[TopicProduceResponse] = field(Array(TopicProduceResponse), "0+")
    throttle_time_ms: int = field(Int32, "1+", default=0, ignorable=True)
    node_endpoints: list[NodeEndpoint] = field(Array(NodeEndpoint), "10+", tag=0, default_factory=list)


@request(1, versions="4-18", flexible="12+")
class FetchRequest(Message):
    """Fetch v4-18: v4 isolation level (KIP-98), v5 log start offset of a follower (KIP-107), v6 no change
    here, v7 fetch sessions and forgotten topics (KIP-227), v8 no change here, v9 current leader epoch
    (KIP-320), v10 zstd may be returned (KIP-110), v11 rack (KIP-392), v12 flexible, last fetched epoch
    (KIP-595), v13 topics by id instead of name (KIP-516), v14 OFFSET_MOVED_TO_TIERED_STORAGE understood
    (KIP-405), v15 replica state as a tag replaces replica id (KIP-903), v16 leader endpoints understood
    (KIP-951), v17 replica directory id (KIP-853), v18 high watermark of a follower (KIP-1166).

    `session_id` 0 with `session_epoch` 0 opens a session, epoch -1 fetches without one. Consumers have
    replica id -1.
    """

    @struct
    class ReplicaState(Struct):
        replica_id: int = field(Int32, "15+", default=-1)
        replica_epoch: int = field(Int64, "15+", default=-1)

    @struct
    class FetchTopic(Struct):
        @struct
        class FetchPartition(Struct):
            partition: int = field(Int32, "0+")
            current_leader_epoch: int = field(Int32, "9+", default=-1, ignorable=True)
            fetch_offset: int = field(Int64, "0+")
            last_fetched_epoch: int = field(Int32, "12+", default=-1)
            log_start_offset: int = field(Int64, "5+", default=-1, ignorable=True)
            partition_max_bytes: int = field(Int32, "0+")
            replica_directory_id: uuid.UUID = field(Uuid, "17+", tag=0, default=ZERO_UUID, ignorable=True)
            high_watermark: int = field(Int64, "18+", tag=1, default=INT64_MAX, ignorable=True)

        topic: str = field(String, "0-12", default="", ignorable=True)
        topic_id: uuid.UUID = field(Uuid, "13+", default=ZERO_UUID, ignorable=True)
        partitions: list[FetchPartition] = field(Array(FetchPartition), "0+")

    FetchPartition: TypeAlias = FetchTopic.FetchPartition  # type: ignore[misc]

    @struct
    class ForgottenTopic(Struct):
        topic: str = field(String, "7-12", default="", ignorable=True)
        topic_id: uuid.UUID = field(Uuid, "13+", default=ZERO_UUID, ignorable=True)
        partitions: list[int] = field(Array(Int32), "7+")

    cluster_id: str | None = field(String, "12+", nullable="12+", tag=0, default=None, ignorable=True)
    replica_id: int = field(Int32, "0-14", default=-1)
    replica_state: ReplicaState = field(ReplicaState, "15+", tag=1, default_factory=ReplicaState)
    max_wait_ms: int = field(Int32, "0+")
    min_bytes: int = field(Int32, "0+")
    max_bytes: int = field(Int32, "3+", default=INT32_MAX, ignorable=True)
    isolation_level: int = field(Int8, "4+", default=0, ignorable=True)
    session_id: int = field(Int32, "7+", default=0, ignorable=True)
    session_epoch: int = field(Int32, "7+", default=-1, ignorable=True)
    topics: list[FetchTopic] = field(Array(FetchTopic), "0+")
    forgotten_topics_data: list[ForgottenTopic] = field(Array(ForgottenTopic), "7+", default_factory=list)
    rack_id: str = field(String, "11+", default="", ignorable=True)


@response(1, versions="4-18", flexible="12+")
class FetchResponse(Message):
    """Fetch v4-18: v4 last stable offset and aborted transactions (KIP-98), v5 log start offset (KIP-107), v6
    no change here, v7 top-level error and session id (KIP-227), v8 throttling after the reply, v9
    FENCED_LEADER_EPOCH and UNKNOWN_LEADER_EPOCH possible (KIP-320), v10 zstd (KIP-110), v11 preferred read
    replica (KIP-392), v12 flexible, diverging epoch, current leader and snapshot id as tags (KIP-595), v13
    topics by id instead of name (KIP-516), v14-15 no change here, v16 endpoints of the leaders named
    (KIP-951), v17-18 no change here.

    `session_id` 0 means that there is no session. `aborted_transactions` is null unless the request is
    read-committed.
    """

    @struct
    class FetchableTopicResponse(Struct):
        @struct
        class PartitionData(Struct):
            @struct
            class EpochEndOffset(Struct):
                epoch: int = field(Int32, "12+", default=-1)
                end_offset: int = field(Int64, "12+", default=-1)

            @struct
            class LeaderIdAndEpoch(Struct):
                leader_id: int = field(Int32, "12+", default=-1)
                leader_epoch: int = field(Int32, "12+", default=-1)

            @struct
            class SnapshotId(Struct):
                end_offset: int = field(Int64, "0+", default=-1)
                epoch: int = field(Int32, "0+", default=-1)

            @struct
            class AbortedTransaction(Struct):
                producer_id: int = field(Int64, "4+")
                first_offset: int = field(Int64, "4+")

            partition_index: int = field(Int32, "0+")
            error_code: int = field(Int16, "0+", default=0)
            high_watermark: int = field(Int64, "0+")
            last_stable_offset: int = field(Int64, "4+", default=-1, ignorable=True)
            log_start_offset: int = field(Int64, "5+", default=-1, ignorable=True)
            diverging_epoch: EpochEndOffset = field(
                EpochEndOffset, "12+", tag=0, default_factory=EpochEndOffset
            )
            current_leader: LeaderIdAndEpoch = field(
                LeaderIdAndEpoch, "12+", tag=1, default_factory=LeaderIdAndEpoch
            )
            snapshot_id: SnapshotId = field(SnapshotId, "12+", tag=2, default_factory=SnapshotId)
            aborted_transactions: list[AbortedTransaction] | None = field(
                Array(AbortedTransaction), "4+", nullable="4+", ignorable=True
            )
            preferred_read_replica: int = field(Int32, "11+", default=-1)
            records: bytes | memoryview | None = field(Records, "0+", nullable="0+")

        topic: str = field(String, "0-12", default="", ignorable=True)
        topic_id: uuid.UUID = field(Uuid, "13+", default=ZERO_UUID, ignorable=True)
        partitions: list[PartitionData] = field(Array(PartitionData), "0+")

    PartitionData: TypeAlias = FetchableTopicResponse.PartitionData  # type: ignore[misc]
    EpochEndOffset: TypeAlias = PartitionData.EpochEndOffset  # type: ignore[misc]
    LeaderIdAndEpoch: TypeAlias = PartitionData.LeaderIdAndEpoch  # type: ignore[misc]
    SnapshotId: TypeAlias = PartitionData.SnapshotId  # type: ignore[misc]
    AbortedTransaction: TypeAlias = PartitionData.AbortedTransaction  # type: ignore[misc]

    @struct
    class NodeEndpoint(Struct):
        node_id: int = field(Int32, "16+")
        host: str = field(String, "16+")
        port: int = field(Int32, "16+")
        rack: str | None = field(String, "16+", nullable="16+", default=None)

    throttle_time_ms: int = field(Int32, "1+", default=0, ignorable=True)
    error_code: int = field(Int16, "7+", default=0, ignorable=True)
    session_id: int = field(Int32, "7+", default=0)
    responses: list[FetchableTopicResponse] = field(Array(FetchableTopicResponse), "0+")
    node_endpoints: list[NodeEndpoint] = field(Array(NodeEndpoint), "16+", tag=0, default_factory=list)


@request(2, versions="1-11", flexible="6+")
class ListOffsetsRequest(Message):
    """ListOffsets v1-11: v1 one offset per partition (KIP-79), v2 isolation level (KIP-98), v3 no change
    here, v4 current leader epoch (KIP-320), v5 no change here, v6 flexible, v7 timestamp -3, the record with
    the largest timestamp (KIP-734), v8 timestamp -4, earliest local offset (KIP-405), v9 timestamp -5, last
    tiered offset (KIP-1005), v10 timeout for remote storage (KIP-1075), v11 timestamp -6, earliest offset not
    yet uploaded (KIP-1023).

    Timestamps are epoch milliseconds; -1 is the end of the log, -2 its start. Consumers have replica id -1.
    """

    @struct
    class ListOffsetsTopic(Struct):
        @struct
        class ListOffsetsPartition(Struct):
            partition_index: int = field(Int32, "0+")
            current_leader_epoch: int = field(Int32, "4+", default=-1, ignorable=True)
            timestamp: int = field(Int64, "0+")

        name: str = field(String, "0+")
        partitions: list[ListOffsetsPartition] = field(Array(ListOffsetsPartition), "0+")

    ListOffsetsPartition: TypeAlias = ListOffsetsTopic.ListOffsetsPartition  # type: ignore[misc]

    replica_id: int = field(Int32, "0+")
    isolation_level: int = field(Int8, "2+", default=0)
    topics: list[ListOffsetsTopic] = field(Array(ListOffsetsTopic), "0+")
    timeout_ms: int = field(Int32, "10+", default=0, ignorable=True)


@response(2, versions="1-11", flexible="6+")
class ListOffsetsResponse(Message):
    """ListOffsets v1-11: v2 throttle time, v3 throttling after the reply, v4 leader epoch (KIP-320), v5
    OFFSET_NOT_AVAILABLE possible (KIP-207), v6 flexible, v7-11 no change here.

    Offset and timestamp are -1 if no record matches.
    """

    @struct
    class ListOffsetsTopicResponse(Struct):
        @struct
        class ListOffsetsPartitionResponse(Struct):
            partition_index: int = field(Int32, "0+")
            error_code: int = field(Int16, "0+", default=0)
            timestamp: int = field(Int64, "1+", default=-1)
            offset: int = field(Int64, "1+", default=-1)
            leader_epoch: int = field(Int32, "4+", default=-1)

        name: str = field(String, "0+")
        partitions: Sequence[ListOffsetsPartitionResponse] = field(
            Array(ListOffsetsPartitionResponse, encoded=True), "0+"
        )

    ListOffsetsPartitionResponse: TypeAlias = ListOffsetsTopicResponse.ListOffsetsPartitionResponse  # type: ignore[misc]

    throttle_time_ms: int = field(Int32, "2+", default=0, ignorable=True)
    topics: list[ListOffsetsTopicResponse] = field(Array(ListOffsetsTopicResponse), "0+")


LISTED_PARTITION: Final = Form(ListOffsetsResponse.ListOffsetsPartitionResponse, Versions(6, VERSION_MAX), 6)
"""The form that `encode_listed_partition` writes."""

_LISTED: Final = structs.Struct(">lhqqlx")


def encode_listed_partition(
    partition_index: int, error_code: int, timestamp: int, offset: int, leader_epoch: int
) -> bytes:
    """Encode a partition of a ListOffsetsResponse. A response has thousands, so this is hand-written,
    alongside the compiled codec. Raises struct.error for numbers that are too large."""
    return _LISTED.pack(partition_index, error_code, timestamp, offset, leader_epoch)


@request(23, versions="2-4", flexible="4+")
class OffsetForLeaderEpochRequest(Message):
    """OffsetForLeaderEpoch v2-4: v2 current leader epoch (KIP-320), v3 replica id, v4 flexible.

    `replica_id` is -1 from a consumer; -2, the default, means that the version cannot say.
    """

    @struct
    class OffsetForLeaderTopic(Struct):
        @struct
        class OffsetForLeaderPartition(Struct):
            partition: int = field(Int32, "0+")
            current_leader_epoch: int = field(Int32, "2+", default=-1, ignorable=True)
            leader_epoch: int = field(Int32, "0+")

        topic: str = field(String, "0+")
        partitions: list[OffsetForLeaderPartition] = field(Array(OffsetForLeaderPartition), "0+")

    OffsetForLeaderPartition: TypeAlias = OffsetForLeaderTopic.OffsetForLeaderPartition  # type: ignore[misc]

    replica_id: int = field(Int32, "3+", default=-2, ignorable=True)
    topics: list[OffsetForLeaderTopic] = field(Array(OffsetForLeaderTopic), "0+")


@response(23, versions="2-4", flexible="4+")
class OffsetForLeaderEpochResponse(Message):
    """OffsetForLeaderEpoch v2-4: v2 throttle time, v3 no change here, v4 flexible.

    The response holds the largest epoch not above the requested one, and its end offset; -1 and -1 if there
    is none.
    """

    @struct
    class OffsetForLeaderTopicResult(Struct):
        @struct
        class EpochEndOffset(Struct):
            error_code: int = field(Int16, "0+", default=0)
            partition: int = field(Int32, "0+")
            leader_epoch: int = field(Int32, "1+", default=-1, ignorable=True)
            end_offset: int = field(Int64, "0+", default=-1)

        topic: str = field(String, "0+")
        partitions: list[EpochEndOffset] = field(Array(EpochEndOffset), "0+")

    EpochEndOffset: TypeAlias = OffsetForLeaderTopicResult.EpochEndOffset  # type: ignore[misc]

    throttle_time_ms: int = field(Int32, "2+", default=0, ignorable=True)
    topics: list[OffsetForLeaderTopicResult] = field(Array(OffsetForLeaderTopicResult), "0+")


@request(21, versions="0-2", flexible="2+")
class DeleteRecordsRequest(Message):
    """DeleteRecords v0-2 (KIP-107): v1 no change here, v2 flexible.

    Records below `offset` are deleted; -1 means the high watermark.
    """

    @struct
    class DeleteRecordsTopic(Struct):
        @struct
        class DeleteRecordsPartition(Struct):
            partition_index: int = field(Int32, "0+")
            offset: int = field(Int64, "0+")

        name: str = field(String, "0+")
        partitions: list[DeleteRecordsPartition] = field(Array(DeleteRecordsPartition), "0+")

    DeleteRecordsPartition: TypeAlias = DeleteRecordsTopic.DeleteRecordsPartition  # type: ignore[misc]

    topics: list[DeleteRecordsTopic] = field(Array(DeleteRecordsTopic), "0+")
    timeout_ms: int = field(Int32, "0+")


@response(21, versions="0-2", flexible="2+")
class DeleteRecordsResponse(Message):
    """DeleteRecords v0-2 (KIP-107): v1 throttling after the reply, v2 flexible.

    `low_watermark` is the first remaining offset, -1 with an error.
    """

    @struct
    class DeleteRecordsTopicResult(Struct):
        @struct
        class DeleteRecordsPartitionResult(Struct):
            partition_index: int = field(Int32, "0+")
            low_watermark: int = field(Int64, "0+")
            error_code: int = field(Int16, "0+", default=0)

        name: str = field(String, "0+")
        partitions: list[DeleteRecordsPartitionResult] = field(Array(DeleteRecordsPartitionResult), "0+")

    DeleteRecordsPartitionResult: TypeAlias = DeleteRecordsTopicResult.DeleteRecordsPartitionResult  # type: ignore[misc]

    throttle_time_ms: int = field(Int32, "0+", default=0)
    topics: list[DeleteRecordsTopicResult] = field(Array(DeleteRecordsTopicResult), "0+")
