"""Topics: CreateTopics, DeleteTopics, CreatePartitions."""

from __future__ import annotations

import uuid
from typing import TypeAlias

from muster.protocol.message import Message, Struct, field, request, response, struct
from muster.protocol.types import ZERO_UUID, Array, Boolean, Int8, Int16, Int32, String, Uuid


@request(19, versions="2-7", flexible="5+")
class CreateTopicsRequest(Message):
    """CreateTopics v2-7: v3 no change here, v4 partitions and replication factor may be -1 for the broker's
    defaults (KIP-464), v5 flexible, v6-7 no change here.

    With `assignments`, both numbers are -1: the assignments determine them.
    """

    @struct
    class CreatableTopic(Struct):
        @struct
        class CreatableReplicaAssignment(Struct):
            partition_index: int = field(Int32, "0+")
            broker_ids: list[int] = field(Array(Int32), "0+")

        @struct
        class CreatableTopicConfig(Struct):
            name: str = field(String, "0+")
            value: str | None = field(String, "0+", nullable="0+")

        name: str = field(String, "0+")
        num_partitions: int = field(Int32, "0+")
        replication_factor: int = field(Int16, "0+")
        assignments: list[CreatableReplicaAssignment] = field(Array(CreatableReplicaAssignment), "0+")
        configs: list[CreatableTopicConfig] = field(Array(CreatableTopicConfig), "0+")

    CreatableReplicaAssignment: TypeAlias = CreatableTopic.CreatableReplicaAssignment  # type: ignore[misc]
    CreatableTopicConfig: TypeAlias = CreatableTopic.CreatableTopicConfig  # type: ignore[misc]

    topics: list[CreatableTopic] = field(Array(CreatableTopic), "0+")
    timeout_ms: int = field(Int32, "0+", default=60000)
    validate_only: bool = field(Boolean, "1+", default=False)


@response(19, versions="2-7", flexible="5+")
class CreateTopicsResponse(Message):
    """CreateTopics v2-7: v3 throttling after the reply, v4 no change here, v5 flexible, the topic's settings
    (KIP-525), v6 THROTTLING_QUOTA_EXCEEDED possible (KIP-599), v7 topic id (KIP-516).

    `configs` is null and `topic_config_error_code` TOPIC_AUTHORIZATION_FAILED for clients that may not see
    settings.
    """

    @struct
    class CreatableTopicResult(Struct):
        @struct
        class CreatableTopicConfigs(Struct):
            name: str = field(String, "5+")
            value: str | None = field(String, "5+", nullable="5+")
            read_only: bool = field(Boolean, "5+")
            config_source: int = field(Int8, "5+", default=-1, ignorable=True)
            is_sensitive: bool = field(Boolean, "5+")

        name: str = field(String, "0+")
        topic_id: uuid.UUID = field(Uuid, "7+", default=ZERO_UUID, ignorable=True)
        error_code: int = field(Int16, "0+", default=0)
        error_message: str | None = field(String, "1+", nullable="0+", default=None, ignorable=True)
        topic_config_error_code: int = field(Int16, "5+", tag=0, default=0, ignorable=True)
        num_partitions: int = field(Int32, "5+", default=-1, ignorable=True)
        replication_factor: int = field(Int16, "5+", default=-1, ignorable=True)
        configs: list[CreatableTopicConfigs] | None = field(
            Array(CreatableTopicConfigs), "5+", nullable="5+", default_factory=list, ignorable=True
        )

    CreatableTopicConfigs: TypeAlias = CreatableTopicResult.CreatableTopicConfigs  # type: ignore[misc]

    throttle_time_ms: int = field(Int32, "2+", default=0, ignorable=True)
    topics: list[CreatableTopicResult] = field(Array(CreatableTopicResult), "0+")


@request(20, versions="1-6", flexible="4+")
class DeleteTopicsRequest(Message):
    """DeleteTopics v1-6: v2-3 no change here, v4 flexible, v5 no change here, v6 topics by name or by id:
    `topics` replaces `topic_names` (KIP-516)."""

    @struct
    class DeleteTopicState(Struct):
        name: str | None = field(String, "6+", nullable="6+", default=None)
        topic_id: uuid.UUID = field(Uuid, "6+")

    topics: list[DeleteTopicState] = field(Array(DeleteTopicState), "6+", default_factory=list)
    topic_names: list[str] = field(Array(String), "0-5", default_factory=list, ignorable=True)
    timeout_ms: int = field(Int32, "0+")


@response(20, versions="1-6", flexible="4+")
class DeleteTopicsResponse(Message):
    """DeleteTopics v1-6: v1 throttle time, v2 throttling after the reply, v3 TOPIC_DELETION_DISABLED
    possible, v4 flexible, v5 error message; THROTTLING_QUOTA_EXCEEDED possible (KIP-599), v6 topic id, and
    names may be null (KIP-516)."""

    @struct
    class DeletableTopicResult(Struct):
        name: str | None = field(String, "0+", nullable="6+")
        topic_id: uuid.UUID = field(Uuid, "6+", default=ZERO_UUID, ignorable=True)
        error_code: int = field(Int16, "0+", default=0)
        error_message: str | None = field(String, "5+", nullable="5+", default=None, ignorable=True)

    throttle_time_ms: int = field(Int32, "1+", default=0, ignorable=True)
    responses: list[DeletableTopicResult] = field(Array(DeletableTopicResult), "0+")


@request(37, versions="0-3", flexible="2+")
class CreatePartitionsRequest(Message):
    """CreatePartitions v0-3 (KIP-195): v1 no change here, v2 flexible, v3 no change here.

    `count` is the topic's new total; null `assignments` leave the choice of brokers to the cluster.
    """

    @struct
    class CreatePartitionsTopic(Struct):
        @struct
        class CreatePartitionsAssignment(Struct):
            broker_ids: list[int] = field(Array(Int32), "0+")

        name: str = field(String, "0+")
        count: int = field(Int32, "0+")
        assignments: list[CreatePartitionsAssignment] | None = field(
            Array(CreatePartitionsAssignment), "0+", nullable="0+"
        )

    CreatePartitionsAssignment: TypeAlias = CreatePartitionsTopic.CreatePartitionsAssignment  # type: ignore[misc]

    topics: list[CreatePartitionsTopic] = field(Array(CreatePartitionsTopic), "0+")
    timeout_ms: int = field(Int32, "0+")
    validate_only: bool = field(Boolean, "0+")


@response(37, versions="0-3", flexible="2+")
class CreatePartitionsResponse(Message):
    """CreatePartitions v0-3 (KIP-195): v1 throttling after the reply, v2 flexible, v3
    THROTTLING_QUOTA_EXCEEDED possible (KIP-599)."""

    @struct
    class CreatePartitionsTopicResult(Struct):
        name: str = field(String, "0+")
        error_code: int = field(Int16, "0+", default=0)
        error_message: str | None = field(String, "0+", nullable="0+", default=None)

    throttle_time_ms: int = field(Int32, "0+", default=0)
    results: list[CreatePartitionsTopicResult] = field(Array(CreatePartitionsTopicResult), "0+")
