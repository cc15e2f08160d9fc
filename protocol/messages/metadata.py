"""Finding brokers, partitions and coordinators: Metadata, DescribeTopicPartitions, DescribeCluster,
FindCoordinator."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Final, TypeAlias

from muster.protocol.message import OWN_TAGS, Message, Struct, field, request, response, struct
from muster.protocol.types import ZERO_UUID, Array, Boolean, Int8, Int16, Int32, Int64, String, Uuid

AUTHORIZED_OPERATIONS_OMITTED: Final = -(2**31)
"""The value of an `authorized_operations` field that the request did not ask for (KIP-430)."""


@request(3, versions="0-13", flexible="9+")
class MetadataRequest(Message):
    """Metadata v0-13: v0 an empty list asks for all topics; v1+ null does, and an empty list asks for none.
    v2-3 no change here, v4 allow_auto_topic_creation (before, it is always allowed), v5-7 no change here, v8
    authorized operations (KIP-430), v9 flexible, v10 topic id and nullable name in the layout, v11 cluster
    operations go to DescribeCluster (KIP-700), v12 look-up by topic id works (KIP-516; in v10-11 it is an
    INVALID_REQUEST), v13 no change here."""

    @struct
    class Topic(Struct):
        topic_id: uuid.UUID = field(Uuid, "10+", default=ZERO_UUID, ignorable=True)
        name: str | None = field(String, "0+", nullable="10+")

    topics: list[Topic] | None = field(Array(Topic), "0+", nullable="1+")
    allow_auto_topic_creation: bool = field(Boolean, "4+", default=True)
    include_cluster_authorized_operations: bool = field(Boolean, "8-10", default=False)
    include_topic_authorized_operations: bool = field(Boolean, "8+", default=False)


@response(3, versions="0-13", flexible="9+")
class MetadataResponse(Message):
    """Metadata v0-13: v1 rack, controller id, is_internal, v2 cluster id (KIP-78), v3 throttle time, v4 no
    change here, v5 offline replicas (KIP-112), v6 throttling after the reply, LISTENER_NOT_FOUND in place of
    LEADER_NOT_AVAILABLE for a leader without the listener, v7 leader epoch (KIP-320), v8 authorized
    operations (KIP-430), v9 flexible, v10 topic ids (KIP-516), v11 no cluster operations (KIP-700), v12 names
    may be null (for an unknown topic id), v13 top-level error code (REBOOTSTRAP_REQUIRED, KIP-1102)."""

    @struct
    class Broker(Struct):
        node_id: int = field(Int32, "0+")
        host: str = field(String, "0+")
        port: int = field(Int32, "0+")
        rack: str | None = field(String, "1+", nullable="1+", default=None, ignorable=True)

    @struct
    class Topic(Struct):
        @struct
        class Partition(Struct):
            error_code: int = field(Int16, "0+", default=0)
            partition_index: int = field(Int32, "0+")
            leader_id: int = field(Int32, "0+")
            leader_epoch: int = field(Int32, "7+", default=-1, ignorable=True)
            replica_nodes: list[int] = field(Array(Int32), "0+")
            isr_nodes: list[int] = field(Array(Int32), "0+")
            offline_replicas: list[int] = field(Array(Int32), "5+", default_factory=list, ignorable=True)

        error_code: int = field(Int16, "0+", default=0)
        name: str | None = field(String, "0+", nullable="12+")
        topic_id: uuid.UUID = field(Uuid, "10+", default=ZERO_UUID, ignorable=True)
        is_internal: bool = field(Boolean, "1+", default=False, ignorable=True)
        partitions: list[Partition] = field(Array(Partition), "0+")
        topic_authorized_operations: int = field(Int32, "8+", default=AUTHORIZED_OPERATIONS_OMITTED)

    Partition: TypeAlias = Topic.Partition  # type: ignore[misc]

    throttle_time_ms: int = field(Int32, "3+", default=0, ignorable=True)
    brokers: list[Broker] = field(Array(Broker), "0+")
    cluster_id: str | None = field(String, "2+", nullable="2+", default=None, ignorable=True)
    controller_id: int = field(Int32, "1+", default=-1, ignorable=True)
    topics: Sequence[Topic] = field(Array(Topic, encoded=True), "0+")
    cluster_authorized_operations: int = field(Int32, "8-10", default=AUTHORIZED_OPERATIONS_OMITTED)
    error_code: int = field(Int16, "13+", default=0, ignorable=True)


@request(75, versions="0", flexible="0+")
class DescribeTopicPartitionsRequest(Message):
    """DescribeTopicPartitions v0 (KIP-966): partitions of topics, in pages.

    An empty list asks for all topics. A response holds at most `response_partition_limit` partitions, and its
    cursor is where the next one begins; topics are in name order.
    """

    @struct
    class TopicRequest(Struct):
        name: str = field(String, "0+")

    @struct
    class Cursor(Struct):
        topic_name: str = field(String, "0+")
        partition_index: int = field(Int32, "0+")

    topics: list[TopicRequest] = field(Array(TopicRequest), "0+")
    response_partition_limit: int = field(Int32, "0+", default=2000)
    cursor: Cursor | None = field(Cursor, "0+", nullable="0+", default=None)


@response(75, versions="0", flexible="0+")
class DescribeTopicPartitionsResponse(Message):
    """DescribeTopicPartitions v0 (KIP-966): topics by name, and where to continue; a null cursor means the
    end.

    `eligible_leader_replicas` are those outside the in-sync set that may lead without data loss,
    `last_known_elr` those that were so before an unclean shutdown; null if a broker does not know.
    """

    @struct
    class Topic(Struct):
        @struct
        class Partition(Struct):
            error_code: int = field(Int16, "0+", default=0)
            partition_index: int = field(Int32, "0+")
            leader_id: int = field(Int32, "0+")
            leader_epoch: int = field(Int32, "0+", default=-1, ignorable=True)
            replica_nodes: list[int] = field(Array(Int32), "0+")
            isr_nodes: list[int] = field(Array(Int32), "0+")
            eligible_leader_replicas: list[int] | None = field(
                Array(Int32), "0+", nullable="0+", default=None
            )
            last_known_elr: list[int] | None = field(Array(Int32), "0+", nullable="0+", default=None)
            offline_replicas: list[int] = field(Array(Int32), "0+", default_factory=list, ignorable=True)

        error_code: int = field(Int16, "0+", default=0)
        name: str | None = field(String, "0+", nullable="0+")
        topic_id: uuid.UUID = field(Uuid, "0+", default=ZERO_UUID, ignorable=True)
        is_internal: bool = field(Boolean, "0+", default=False, ignorable=True)
        partitions: list[Partition] = field(Array(Partition), "0+")
        topic_authorized_operations: int = field(Int32, "0+", default=AUTHORIZED_OPERATIONS_OMITTED)

    Partition: TypeAlias = Topic.Partition  # type: ignore[misc]

    @struct
    class Cursor(Struct):
        topic_name: str = field(String, "0+")
        partition_index: int = field(Int32, "0+")

    throttle_time_ms: int = field(Int32, "0+", default=0, ignorable=True)
    topics: list[Topic] = field(Array(Topic), "0+")
    next_cursor: Cursor | None = field(Cursor, "0+", nullable="0+", default=None)


@request(60, versions="0-2", flexible="0+")
class DescribeClusterRequest(Message):
    """DescribeCluster v0-2 (KIP-700): v1 endpoint type, 1 brokers or 2 controllers (KIP-919), v2 fenced
    brokers on request (KIP-1073).

    `include_leases` is muster's own: other brokers ignore it, and leave out what it asks for.
    """

    include_cluster_authorized_operations: bool = field(Boolean, "0+")
    endpoint_type: int = field(Int8, "1+", default=1)
    include_fenced_brokers: bool = field(Boolean, "2+", default=False)
    include_leases: bool = field(Boolean, "0+", tag=OWN_TAGS, default=False)


@response(60, versions="0-2", flexible="0+")
class DescribeClusterResponse(Message):
    """DescribeCluster v0-2 (KIP-700): v1 endpoint type; MISMATCHED_ENDPOINT_TYPE and
    UNSUPPORTED_ENDPOINT_TYPE possible (KIP-919), v2 is_fenced (KIP-1073).

    The tagged fields are muster's own, and are sent only when the request has `include_leases`.
    `answering_id` is the broker that answers, `version` its release and build ("0.1.0 (pure)"). A broker
    renews its registration all the time, the last time `registered_ago_ms` ago; `term_ms` after that it
    counts as gone. A lease of `kind` "group", "data" or "replicas" expires in `remaining_ms` unless its
    holder renews it; `announced`: the holder has loaded what the lease is for. A lease without a holder has
    `holder_id` -1. `why_short` says why the broker that answers lacks leases that it should have, "" if it
    does not.
    """

    @struct
    class DescribeClusterBroker(Struct):
        broker_id: int = field(Int32, "0+")
        host: str = field(String, "0+")
        port: int = field(Int32, "0+")
        rack: str | None = field(String, "0+", nullable="0+", default=None)
        is_fenced: bool = field(Boolean, "2+", default=False)
        is_drained: bool = field(Boolean, "0+", tag=OWN_TAGS, default=False)
        registered_ago_ms: int = field(Int64, "0+", tag=OWN_TAGS + 1, default=-1)
        term_ms: int = field(Int64, "0+", tag=OWN_TAGS + 2, default=-1)

    @struct
    class Lease(Struct):
        kind: str = field(String, "0+")
        number: int = field(Int32, "0+")
        holder_id: int = field(Int32, "0+", default=-1)
        epoch: int = field(Int64, "0+", default=-1)
        remaining_ms: int = field(Int64, "0+", default=-1)
        announced: bool = field(Boolean, "0+", default=False)

    throttle_time_ms: int = field(Int32, "0+", default=0)
    error_code: int = field(Int16, "0+", default=0)
    error_message: str | None = field(String, "0+", nullable="0+", default=None)
    endpoint_type: int = field(Int8, "1+", default=1)
    cluster_id: str = field(String, "0+")
    controller_id: int = field(Int32, "0+", default=-1)
    brokers: list[DescribeClusterBroker] = field(Array(DescribeClusterBroker), "0+")
    cluster_authorized_operations: int = field(Int32, "0+", default=AUTHORIZED_OPERATIONS_OMITTED)
    answering_id: int = field(Int32, "0+", tag=OWN_TAGS, default=-1)
    leases: list[Lease] = field(Array(Lease), "0+", tag=OWN_TAGS + 1, default_factory=list)
    version: str = field(String, "0+", tag=OWN_TAGS + 2, default="")
    why_short: str = field(String, "0+", tag=OWN_TAGS + 3, default="")


@request(10, versions="0-6", flexible="3+")
class FindCoordinatorRequest(Message):
    """FindCoordinator v0-6: v1 key type, 0 group or 1 transactional id, v2 no change here, v3 flexible, v4
    several keys in one request: `coordinator_keys` replaces `key` (KIP-699), v5 no change here, v6 key type
    2, a share group's "groupId:topicId:partition" (KIP-932)."""

    key: str = field(String, "0-3", default="")
    key_type: int = field(Int8, "1+", default=0)
    coordinator_keys: list[str] = field(Array(String), "4+", default_factory=list)


@response(10, versions="0-6", flexible="3+")
class FindCoordinatorResponse(Message):
    """FindCoordinator v0-6: v1 throttle time and error message, v2 throttling after the reply, v3 flexible,
    v4 an answer per key under `coordinators` replaces the top-level one (KIP-699), v5 TRANSACTION_ABORTABLE
    possible (KIP-890), v6 share coordinators (KIP-932).

    With an error, node id and port are -1 and the host is "".
    """

    @struct
    class Coordinator(Struct):
        key: str = field(String, "4+")
        node_id: int = field(Int32, "4+")
        host: str = field(String, "4+")
        port: int = field(Int32, "4+")
        error_code: int = field(Int16, "4+", default=0)
        error_message: str | None = field(String, "4+", nullable="4+", default=None, ignorable=True)

    throttle_time_ms: int = field(Int32, "1+", default=0, ignorable=True)
    error_code: int = field(Int16, "0-3", default=0)
    error_message: str | None = field(String, "1-3", nullable="1-3", default=None, ignorable=True)
    node_id: int = field(Int32, "0-3", default=0)
    host: str = field(String, "0-3", default="")
    port: int = field(Int32, "0-3", default=0)
    coordinators: list[Coordinator] = field(Array(Coordinator), "4+", default_factory=list)
