"""Moving partitions to other brokers: AlterPartitionReassignments, ListPartitionReassignments."""

from __future__ import annotations

from typing import TypeAlias

from muster.protocol.message import Message, Struct, field, request, response, struct
from muster.protocol.types import Array, Boolean, Int16, Int32, String


@request(45, versions="0-1", flexible="0+")
class AlterPartitionReassignmentsRequest(Message):
    """AlterPartitionReassignments v0-1 (KIP-455): v1 can forbid changes of the replication factor (KIP-860).

    `replicas` are node ids, the preferred leader first; null cancels an ongoing reassignment.
    """

    @struct
    class ReassignableTopic(Struct):
        @struct
        class ReassignablePartition(Struct):
            partition_index: int = field(Int32, "0+")
            replicas: list[int] | None = field(Array(Int32), "0+", nullable="0+", default=None)

        name: str = field(String, "0+")
        partitions: list[ReassignablePartition] = field(Array(ReassignablePartition), "0+")

    ReassignablePartition: TypeAlias = ReassignableTopic.ReassignablePartition  # type: ignore[misc]

    timeout_ms: int = field(Int32, "0+", default=60000)
    allow_replication_factor_change: bool = field(Boolean, "1+", default=True)
    topics: list[ReassignableTopic] = field(Array(ReassignableTopic), "0+")


@response(45, versions="0-1", flexible="0+")
class AlterPartitionReassignmentsResponse(Message):
    """AlterPartitionReassignments v0-1: v1 repeats whether the replication factor was allowed to change."""

    @struct
    class ReassignableTopicResponse(Struct):
        @struct
        class ReassignablePartitionResponse(Struct):
            partition_index: int = field(Int32, "0+")
            error_code: int = field(Int16, "0+", default=0)
            error_message: str | None = field(String, "0+", nullable="0+")

        name: str = field(String, "0+")
        partitions: list[ReassignablePartitionResponse] = field(Array(ReassignablePartitionResponse), "0+")

    ReassignablePartitionResponse: TypeAlias = ReassignableTopicResponse.ReassignablePartitionResponse  # type: ignore[misc]

    throttle_time_ms: int = field(Int32, "0+", default=0)
    allow_replication_factor_change: bool = field(Boolean, "1+", default=True, ignorable=True)
    error_code: int = field(Int16, "0+", default=0)
    error_message: str | None = field(String, "0+", nullable="0+")
    responses: list[ReassignableTopicResponse] = field(Array(ReassignableTopicResponse), "0+")


@request(46, versions="0", flexible="0+")
class ListPartitionReassignmentsRequest(Message):
    """ListPartitionReassignments v0 (KIP-455). Null `topics` ask about every partition."""

    @struct
    class ListPartitionReassignmentsTopics(Struct):
        name: str = field(String, "0+")
        partition_indexes: list[int] = field(Array(Int32), "0+")

    timeout_ms: int = field(Int32, "0+", default=60000)
    topics: list[ListPartitionReassignmentsTopics] | None = field(
        Array(ListPartitionReassignmentsTopics), "0+", nullable="0+", default=None
    )


@response(46, versions="0", flexible="0+")
class ListPartitionReassignmentsResponse(Message):
    """ListPartitionReassignments v0: only ongoing reassignments."""

    @struct
    class OngoingTopicReassignment(Struct):
        @struct
        class OngoingPartitionReassignment(Struct):
            partition_index: int = field(Int32, "0+")
            replicas: list[int] = field(Array(Int32), "0+")
            adding_replicas: list[int] = field(Array(Int32), "0+")
            removing_replicas: list[int] = field(Array(Int32), "0+")

        name: str = field(String, "0+")
        partitions: list[OngoingPartitionReassignment] = field(Array(OngoingPartitionReassignment), "0+")

    OngoingPartitionReassignment: TypeAlias = OngoingTopicReassignment.OngoingPartitionReassignment  # type: ignore[misc]

    throttle_time_ms: int = field(Int32, "0+", default=0)
    error_code: int = field(Int16, "0+", default=0)
    error_message: str | None = field(String, "0+", nullable="0+")
    topics: list[OngoingTopicReassignment] = field(Array(OngoingTopicReassignment), "0+")
