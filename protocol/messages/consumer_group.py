"""The consumer group protocol of KIP-848: ConsumerGroupHeartbeat, ConsumerGroupDescribe."""

from __future__ import annotations

import uuid
from typing import TypeAlias

from muster.protocol.message import Message, Struct, field, request, response, struct
from muster.protocol.messages.metadata import AUTHORIZED_OPERATIONS_OMITTED
from muster.protocol.types import Array, Boolean, Int8, Int16, Int32, String, Uuid


@request(68, versions="0-1", flexible="0+")
class ConsumerGroupHeartbeatRequest(Message):
    """ConsumerGroupHeartbeat v0-1 (KIP-848): v1 subscription by regular expression, and the member generates
    its own member id (KIP-1082).

    `member_epoch` 0 joins, -1 leaves, -2 leaves for a while (static members). Null, and -1 for
    `rebalance_timeout_ms`, mean "unchanged since my last heartbeat"; a joining member sends everything.
    """

    @struct
    class TopicPartitions(Struct):
        topic_id: uuid.UUID = field(Uuid, "0+")
        partitions: list[int] = field(Array(Int32), "0+")

    group_id: str = field(String, "0+")
    member_id: str = field(String, "0+")
    member_epoch: int = field(Int32, "0+")
    instance_id: str | None = field(String, "0+", nullable="0+", default=None)
    rack_id: str | None = field(String, "0+", nullable="0+", default=None)
    rebalance_timeout_ms: int = field(Int32, "0+", default=-1)
    subscribed_topic_names: list[str] | None = field(Array(String), "0+", nullable="0+", default=None)
    subscribed_topic_regex: str | None = field(String, "1+", nullable="1+", default=None)
    server_assignor: str | None = field(String, "0+", nullable="0+", default=None)
    topic_partitions: list[TopicPartitions] | None = field(
        Array(TopicPartitions), "0+", nullable="0+", default=None
    )


@response(68, versions="0-1", flexible="0+")
class ConsumerGroupHeartbeatResponse(Message):
    """ConsumerGroupHeartbeat v0-1 (KIP-848): v1 INVALID_REGULAR_EXPRESSION possible.

    A v0 member that joined without a member id learns its id here. A null `assignment` means "unchanged".
    """

    @struct
    class Assignment(Struct):
        @struct
        class TopicPartitions(Struct):
            topic_id: uuid.UUID = field(Uuid, "0+")
            partitions: list[int] = field(Array(Int32), "0+")

        topic_partitions: list[TopicPartitions] = field(Array(TopicPartitions), "0+")

    TopicPartitions: TypeAlias = Assignment.TopicPartitions  # type: ignore[misc]

    throttle_time_ms: int = field(Int32, "0+", default=0)
    error_code: int = field(Int16, "0+", default=0)
    error_message: str | None = field(String, "0+", nullable="0+", default=None)
    member_id: str | None = field(String, "0+", nullable="0+", default=None)
    member_epoch: int = field(Int32, "0+")
    heartbeat_interval_ms: int = field(Int32, "0+")
    assignment: Assignment | None = field(Assignment, "0+", nullable="0+", default=None)


@request(69, versions="0-1", flexible="0+")
class ConsumerGroupDescribeRequest(Message):
    """ConsumerGroupDescribe v0-1 (KIP-848): v1 no change here."""

    group_ids: list[str] = field(Array(String), "0+")
    include_authorized_operations: bool = field(Boolean, "0+")


@response(69, versions="0-1", flexible="0+")
class ConsumerGroupDescribeResponse(Message):
    """ConsumerGroupDescribe v0-1 (KIP-848): v1 the protocol a member speaks (KIP-1099).

    `member_type` is 0 for the classic protocol, 1 for this one, -1 if unknown. `assignment` is what the
    member has, `target_assignment` what it is to get.
    """

    @struct
    class DescribedGroup(Struct):
        @struct
        class Member(Struct):
            @struct
            class Assignment(Struct):
                @struct
                class TopicPartitions(Struct):
                    topic_id: uuid.UUID = field(Uuid, "0+")
                    topic_name: str = field(String, "0+")
                    partitions: list[int] = field(Array(Int32), "0+")

                topic_partitions: list[TopicPartitions] = field(Array(TopicPartitions), "0+")

            member_id: str = field(String, "0+")
            instance_id: str | None = field(String, "0+", nullable="0+", default=None)
            rack_id: str | None = field(String, "0+", nullable="0+", default=None)
            member_epoch: int = field(Int32, "0+")
            client_id: str = field(String, "0+")
            client_host: str = field(String, "0+")
            subscribed_topic_names: list[str] = field(Array(String), "0+")
            subscribed_topic_regex: str | None = field(String, "0+", nullable="0+", default=None)
            assignment: Assignment = field(Assignment, "0+")
            target_assignment: Assignment = field(Assignment, "0+")
            member_type: int = field(Int8, "1+", default=-1, ignorable=True)

        error_code: int = field(Int16, "0+", default=0)
        error_message: str | None = field(String, "0+", nullable="0+", default=None)
        group_id: str = field(String, "0+")
        group_state: str = field(String, "0+")
        group_epoch: int = field(Int32, "0+")
        assignment_epoch: int = field(Int32, "0+")
        assignor_name: str = field(String, "0+")
        members: list[Member] = field(Array(Member), "0+")
        authorized_operations: int = field(Int32, "0+", default=AUTHORIZED_OPERATIONS_OMITTED)

    Member: TypeAlias = DescribedGroup.Member  # type: ignore[misc]
    Assignment: TypeAlias = Member.Assignment  # type: ignore[misc]
    TopicPartitions: TypeAlias = Assignment.TopicPartitions  # type: ignore[misc]

    throttle_time_ms: int = field(Int32, "0+", default=0)
    groups: list[DescribedGroup] = field(Array(DescribedGroup), "0+")
