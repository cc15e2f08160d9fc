"""The cluster from an operator's side: DescribeLogDirs, ElectLeaders."""

from __future__ import annotations

from typing import TypeAlias

from muster.protocol.message import Message, Struct, field, request, response, struct
from muster.protocol.types import Array, Boolean, Int8, Int16, Int32, Int64, String


@request(35, versions="1-5", flexible="2+")
class DescribeLogDirsRequest(Message):
    """DescribeLogDirs v1-5 (KIP-113): v1 no change here, v2 flexible, v3-5 no change here.

    Null `topics` ask about every partition of the broker.
    """

    @struct
    class DescribableLogDirTopic(Struct):
        topic: str = field(String, "0+")
        partitions: list[int] = field(Array(Int32), "0+")

    topics: list[DescribableLogDirTopic] | None = field(Array(DescribableLogDirTopic), "0+", nullable="0+")


@response(35, versions="1-5", flexible="2+")
class DescribeLogDirsResponse(Message):
    """DescribeLogDirs v1-5 (KIP-113): v1 throttling after the reply, v2 flexible, v3 top-level error, v4 size
    of the volume and its usable space (KIP-827), v5 is_cordoned (KIP-1066).

    Sizes are in bytes, -1 if unknown. `offset_lag` is how far a replica is behind the high watermark, or a
    copy being moved (`is_future_key`) behind the original.
    """

    @struct
    class DescribeLogDirsResult(Struct):
        @struct
        class DescribeLogDirsTopic(Struct):
            @struct
            class DescribeLogDirsPartition(Struct):
                partition_index: int = field(Int32, "0+")
                partition_size: int = field(Int64, "0+")
                offset_lag: int = field(Int64, "0+")
                is_future_key: bool = field(Boolean, "0+")

            name: str = field(String, "0+")
            partitions: list[DescribeLogDirsPartition] = field(Array(DescribeLogDirsPartition), "0+")

        DescribeLogDirsPartition: TypeAlias = DescribeLogDirsTopic.DescribeLogDirsPartition  # type: ignore[misc]

        error_code: int = field(Int16, "0+", default=0)
        log_dir: str = field(String, "0+")
        topics: list[DescribeLogDirsTopic] = field(Array(DescribeLogDirsTopic), "0+")
        total_bytes: int = field(Int64, "4+", default=-1, ignorable=True)
        usable_bytes: int = field(Int64, "4+", default=-1, ignorable=True)
        is_cordoned: bool = field(Boolean, "5+", default=False, ignorable=True)

    DescribeLogDirsTopic: TypeAlias = DescribeLogDirsResult.DescribeLogDirsTopic  # type: ignore[misc]
    DescribeLogDirsPartition: TypeAlias = DescribeLogDirsTopic.DescribeLogDirsPartition  # type: ignore[misc]

    throttle_time_ms: int = field(Int32, "0+", default=0)
    error_code: int = field(Int16, "3+", default=0, ignorable=True)
    results: list[DescribeLogDirsResult] = field(Array(DescribeLogDirsResult), "0+")


@request(43, versions="0-2", flexible="2+")
class ElectLeadersRequest(Message):
    """ElectLeaders v0-2: v1 election type, 0 preferred or 1 unclean (KIP-460; v0 is always preferred), v2
    flexible.

    Null `topic_partitions` mean every partition.
    """

    @struct
    class TopicPartitions(Struct):
        topic: str = field(String, "0+")
        partitions: list[int] = field(Array(Int32), "0+")

    election_type: int = field(Int8, "1+", default=0)
    topic_partitions: list[TopicPartitions] | None = field(Array(TopicPartitions), "0+", nullable="0+")
    timeout_ms: int = field(Int32, "0+", default=60000)


@response(43, versions="0-2", flexible="2+")
class ElectLeadersResponse(Message):
    """ElectLeaders v0-2: v1 top-level error (KIP-460), v2 flexible.

    Asked about every partition, a broker leaves out those that need no election.
    """

    @struct
    class ReplicaElectionResult(Struct):
        @struct
        class PartitionResult(Struct):
            partition_id: int = field(Int32, "0+")
            error_code: int = field(Int16, "0+", default=0)
            error_message: str | None = field(String, "0+", nullable="0+")

        topic: str = field(String, "0+")
        partition_result: list[PartitionResult] = field(Array(PartitionResult), "0+")

    PartitionResult: TypeAlias = ReplicaElectionResult.PartitionResult  # type: ignore[misc]

    throttle_time_ms: int = field(Int32, "0+", default=0)
    error_code: int = field(Int16, "1+", default=0)
    replica_election_results: list[ReplicaElectionResult] = field(Array(ReplicaElectionResult), "0+")
