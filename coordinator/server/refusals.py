"""The one place where a KafkaError becomes a response: for every API, the refusal of a whole request.

Few responses have one error code for everything; where a code stands at each partition, topic, group or key,
it is repeated for everything that was asked, since clients look for the answer to each thing they named, and
librdkafka ends its process when a group it asked for is missing.

Every function takes (request, version, error). A handler that refuses only some of what was asked builds
those entries with the `..._error` functions, so that an entry looks the same either way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from muster.coordinator.server.security_refusals import SECURITY_REFUSALS
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.message import Message
from muster.protocol.messages.classic_group import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from muster.protocol.messages.cluster import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
)
from muster.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from muster.protocol.messages.connection import ApiVersionsRequest, ApiVersionsResponse
from muster.protocol.messages.consumer_group import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from muster.protocol.messages.data import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    ProduceRequest,
    ProduceResponse,
)
from muster.protocol.messages.group_admin import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from muster.protocol.messages.metadata import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from muster.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from muster.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from muster.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from muster.protocol.messages.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)

_PARTITION_WHY_BYTES_MAX: Final = 400
_NO_SUCH_LOG: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)

ProducedPartition = ProduceResponse.TopicProduceResponse.PartitionProduceResponse
FetchedPartitionData = FetchResponse.FetchableTopicResponse.PartitionData
ListedPartition = ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse
EpochEndOffset = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult.EpochEndOffset
LogDir = DescribeLogDirsResponse.DescribeLogDirsResult
PartitionReassignment = (
    AlterPartitionReassignmentsResponse.ReassignableTopicResponse.ReassignablePartitionResponse
)
PartitionElection = ElectLeadersResponse.ReplicaElectionResult.PartitionResult
ProducersOfPartition = DescribeProducersResponse.TopicResponse.PartitionResponse
CutPartition = DeleteRecordsResponse.DeleteRecordsTopicResult.DeleteRecordsPartitionResult


def _partition_why(error: KafkaError) -> str:
    """What is said of one partition, in a few bytes: of fifty thousand it may be said fifty thousand times,
    with the name that the client sent once."""
    return error.why if len(error.why.encode()) <= _PARTITION_WHY_BYTES_MAX else error.code.text


# --- connection, metadata -----------------------------------------------------------------------------------


def api_versions(request: ApiVersionsRequest, version: int, error: KafkaError) -> ApiVersionsResponse:
    return ApiVersionsResponse(error_code=error.code, api_keys=[])


def metadata_topic_error(
    topic: MetadataRequest.Topic, version: int, error: KafkaError
) -> MetadataResponse.Topic:
    # Before v12 a name cannot be null in the response: a topic asked for by id has none to give back.
    name = topic.name if topic.name is not None or version >= 12 else ""
    return MetadataResponse.Topic(error_code=error.code, name=name, topic_id=topic.topic_id, partitions=[])


def metadata(request: MetadataRequest, version: int, error: KafkaError) -> MetadataResponse:
    topics = [metadata_topic_error(topic, version, error) for topic in request.topics or ()]
    return MetadataResponse(brokers=[], topics=topics, error_code=error.code)


def described_topic_error(name: str, error: KafkaError) -> DescribeTopicPartitionsResponse.Topic:
    return DescribeTopicPartitionsResponse.Topic(error_code=error.code, name=name, partitions=[])


def describe_topic_partitions(
    request: DescribeTopicPartitionsRequest, version: int, error: KafkaError
) -> DescribeTopicPartitionsResponse:
    return DescribeTopicPartitionsResponse(
        topics=[described_topic_error(topic.name, error) for topic in request.topics]
    )


def describe_cluster(
    request: DescribeClusterRequest, version: int, error: KafkaError
) -> DescribeClusterResponse:
    return DescribeClusterResponse(
        error_code=error.code,
        error_message=error.why,
        cluster_id="",
        brokers=[],
    )


def describe_log_dirs(
    request: DescribeLogDirsRequest, version: int, error: KafkaError
) -> DescribeLogDirsResponse:
    return DescribeLogDirsResponse(error_code=error.code, results=[])


def elect_leaders(request: ElectLeadersRequest, version: int, error: KafkaError) -> ElectLeadersResponse:
    return ElectLeadersResponse(
        # v0 has no code for the whole.
        error_code=error.code if version >= 1 else 0,
        replica_election_results=[
            ElectLeadersResponse.ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[election_error(each, error) for each in topic.partitions],
            )
            for topic in request.topic_partitions or ()
        ],
    )


def election_error(partition: int, error: KafkaError) -> PartitionElection:
    return PartitionElection(
        partition_id=partition, error_code=error.code, error_message=_partition_why(error)
    )


def alter_partition_reassignments(
    request: AlterPartitionReassignmentsRequest, version: int, error: KafkaError
) -> AlterPartitionReassignmentsResponse:
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=error.code,
        error_message=error.why,
        responses=[
            AlterPartitionReassignmentsResponse.ReassignableTopicResponse(
                name=topic.name,
                partitions=[reassignment_error(each.partition_index, error) for each in topic.partitions],
            )
            for topic in request.topics
        ],
    )


def reassignment_error(partition: int, error: KafkaError) -> PartitionReassignment:
    return PartitionReassignment(
        partition_index=partition, error_code=error.code, error_message=_partition_why(error)
    )


def list_partition_reassignments(
    request: ListPartitionReassignmentsRequest, version: int, error: KafkaError
) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse(error_code=error.code, error_message=error.why, topics=[])


def coordinator_error(key: str, error: KafkaError) -> FindCoordinatorResponse.Coordinator:
    return FindCoordinatorResponse.Coordinator(
        key=key, node_id=-1, host="", port=-1, error_code=error.code, error_message=error.why
    )


def find_coordinator(
    request: FindCoordinatorRequest, version: int, error: KafkaError
) -> FindCoordinatorResponse:
    if version >= 4:
        return FindCoordinatorResponse(
            coordinators=[coordinator_error(key, error) for key in request.coordinator_keys]
        )
    return FindCoordinatorResponse(
        error_code=error.code, error_message=error.why, node_id=-1, host="", port=-1
    )


# --- classic groups -----------------------------------------------------------------------------------------


def join_group(request: JoinGroupRequest, version: int, error: KafkaError) -> JoinGroupResponse:
    # MEMBER_ID_REQUIRED and the refusals of known members carry a member id; those come from the core as
    # responses.
    return JoinGroupResponse(
        error_code=error.code,
        generation_id=-1,
        protocol_name=None if version >= 7 else "",
        leader="",
        member_id=request.member_id,
        members=[],
    )


def sync_group(request: SyncGroupRequest, version: int, error: KafkaError) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=error.code, assignment=b"")


def heartbeat(request: HeartbeatRequest, version: int, error: KafkaError) -> HeartbeatResponse:
    return HeartbeatResponse(error_code=error.code)


def leave_group(request: LeaveGroupRequest, version: int, error: KafkaError) -> LeaveGroupResponse:
    return LeaveGroupResponse(error_code=error.code)


# --- offsets ------------------------------------------------------------------------------------------------


def offset_commit(request: OffsetCommitRequest, version: int, error: KafkaError) -> OffsetCommitResponse:
    return OffsetCommitResponse(topics=[offset_commit_topic_error(topic, error) for topic in request.topics])


def offset_commit_topic_error(
    topic: OffsetCommitRequest.Topic, error: KafkaError
) -> OffsetCommitResponse.Topic:
    return OffsetCommitResponse.Topic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetCommitResponse.Partition(partition_index=each.partition_index, error_code=error.code)
            for each in topic.partitions
        ],
    )


def offset_fetch_group_error(group_id: str, error: KafkaError) -> OffsetFetchResponse.Group:
    return OffsetFetchResponse.Group(group_id=group_id, topics=[], error_code=error.code)


def offset_fetch(request: OffsetFetchRequest, version: int, error: KafkaError) -> OffsetFetchResponse:
    if version >= 8:
        groups = [offset_fetch_group_error(group.group_id, error) for group in request.groups]
        return OffsetFetchResponse(groups=groups)
    if version >= 2:
        return OffsetFetchResponse(error_code=error.code)
    # v1 has no code of its own for the group.
    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponse.Topic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponse.Partition(
                        partition_index=index, committed_offset=-1, metadata="", error_code=error.code
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics or ()
        ]
    )


def offset_delete(request: OffsetDeleteRequest, version: int, error: KafkaError) -> OffsetDeleteResponse:
    return OffsetDeleteResponse(error_code=error.code, topics=[])


# --- groups from outside ------------------------------------------------------------------------------------


def list_groups(request: ListGroupsRequest, version: int, error: KafkaError) -> ListGroupsResponse:
    return ListGroupsResponse(error_code=error.code, groups=[])


def described_group_error(
    group_id: str, version: int, error: KafkaError
) -> DescribeGroupsResponse.DescribedGroup:
    return DescribeGroupsResponse.DescribedGroup(
        error_code=error.code,
        error_message=error.why if version >= 6 else None,
        group_id=group_id,
        group_state="",
        protocol_type="",
        protocol_data="",
        members=[],
    )


def describe_groups(
    request: DescribeGroupsRequest, version: int, error: KafkaError
) -> DescribeGroupsResponse:
    return DescribeGroupsResponse(
        groups=[described_group_error(each, version, error) for each in request.groups]
    )


def deleted_group_error(group_id: str, error: KafkaError) -> DeleteGroupsResponse.DeletableGroupResult:
    return DeleteGroupsResponse.DeletableGroupResult(group_id=group_id, error_code=error.code)


def delete_groups(request: DeleteGroupsRequest, version: int, error: KafkaError) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(results=[deleted_group_error(each, error) for each in request.groups_names])


# --- data ---------------------------------------------------------------------------------------------------


def produce_partition_error(index: int, error: KafkaError) -> ProducedPartition:
    return ProducedPartition(
        index=index, error_code=error.code, base_offset=-1, error_message=_partition_why(error)
    )


def produce(request: ProduceRequest, version: int, error: KafkaError) -> ProduceResponse:
    return ProduceResponse(
        responses=[
            ProduceResponse.TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    produce_partition_error(each.index, error) for each in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


def fetch_partition_error(partition: int, error: KafkaError) -> FetchedPartitionData:
    return FetchedPartitionData(
        partition_index=partition,
        error_code=error.code,
        high_watermark=-1,
        # As Kafka, which has none to look at where there is no log.
        aborted_transactions=[] if error.code in _NO_SUCH_LOG else None,
        records=b"",  # not null: kafka-python and old Java clients take its length
    )


def fetch(request: FetchRequest, version: int, error: KafkaError) -> FetchResponse:
    if version >= 7:
        return FetchResponse(error_code=error.code, responses=[])
    return FetchResponse(
        responses=[
            FetchResponse.FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[fetch_partition_error(each.partition, error) for each in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def list_offsets_partition_error(index: int, error: KafkaError) -> ListedPartition:
    return ListedPartition(partition_index=index, error_code=error.code)


def list_offsets(request: ListOffsetsRequest, version: int, error: KafkaError) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        topics=[
            ListOffsetsResponse.ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    list_offsets_partition_error(each.partition_index, error) for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def epoch_end_offset_error(partition: int, error: KafkaError) -> EpochEndOffset:
    return EpochEndOffset(partition=partition, error_code=error.code)


def offset_for_leader_epoch(
    request: OffsetForLeaderEpochRequest, version: int, error: KafkaError
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[epoch_end_offset_error(each.partition, error) for each in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def delete_records_partition_error(index: int, error: KafkaError) -> CutPartition:
    return CutPartition(partition_index=index, low_watermark=-1, error_code=error.code)


def delete_records(request: DeleteRecordsRequest, version: int, error: KafkaError) -> DeleteRecordsResponse:
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsResponse.DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    delete_records_partition_error(each.partition_index, error) for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


# --- topics, producers --------------------------------------------------------------------------------------


def created_topic_error(name: str, error: KafkaError) -> CreateTopicsResponse.CreatableTopicResult:
    return CreateTopicsResponse.CreatableTopicResult(
        name=name, error_code=error.code, error_message=error.why
    )


def create_topics(request: CreateTopicsRequest, version: int, error: KafkaError) -> CreateTopicsResponse:
    return CreateTopicsResponse(topics=[created_topic_error(topic.name, error) for topic in request.topics])


def deleted_topic_error(
    topic: DeleteTopicsRequest.DeleteTopicState, error: KafkaError
) -> DeleteTopicsResponse.DeletableTopicResult:
    return DeleteTopicsResponse.DeletableTopicResult(
        name=topic.name, topic_id=topic.topic_id, error_code=error.code, error_message=error.why
    )


def delete_topics(request: DeleteTopicsRequest, version: int, error: KafkaError) -> DeleteTopicsResponse:
    named = [
        DeleteTopicsResponse.DeletableTopicResult(name=name, error_code=error.code, error_message=error.why)
        for name in request.topic_names
    ]
    return DeleteTopicsResponse(
        responses=named + [deleted_topic_error(topic, error) for topic in request.topics]
    )


def new_partitions_error(
    name: str, error: KafkaError
) -> CreatePartitionsResponse.CreatePartitionsTopicResult:
    return CreatePartitionsResponse.CreatePartitionsTopicResult(
        name=name, error_code=error.code, error_message=error.why
    )


def create_partitions(
    request: CreatePartitionsRequest, version: int, error: KafkaError
) -> CreatePartitionsResponse:
    return CreatePartitionsResponse(
        results=[new_partitions_error(topic.name, error) for topic in request.topics]
    )


def init_producer_id(
    request: InitProducerIdRequest, version: int, error: KafkaError
) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=error.code, producer_id=-1, producer_epoch=-1)


def producers_error(partition: int, error: KafkaError) -> ProducersOfPartition:
    return ProducersOfPartition(
        partition_index=partition,
        error_code=error.code,
        error_message=_partition_why(error),
        active_producers=[],
    )


def describe_producers(
    request: DescribeProducersRequest, version: int, error: KafkaError
) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        topics=[
            DescribeProducersResponse.TopicResponse(
                name=topic.name,
                partitions=[producers_error(each, error) for each in topic.partition_indexes],
            )
            for topic in request.topics
        ]
    )


# --- configs ------------------------------------------------------------------------------------------------


def described_configs_error(
    asked: DescribeConfigsRequest.DescribeConfigsResource, error: KafkaError
) -> DescribeConfigsResponse.DescribeConfigsResult:
    return DescribeConfigsResponse.DescribeConfigsResult(
        error_code=error.code,
        error_message=error.why,
        resource_type=asked.resource_type,
        resource_name=asked.resource_name,
        configs=[],
    )


def describe_configs(
    request: DescribeConfigsRequest, version: int, error: KafkaError
) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(
        results=[described_configs_error(each, error) for each in request.resources]
    )


def altered_configs(
    asked: AlterConfigsRequest.AlterConfigsResource, error: KafkaError | None
) -> AlterConfigsResponse.AlterConfigsResourceResponse:
    return AlterConfigsResponse.AlterConfigsResourceResponse(
        error_code=ErrorCode.NONE if error is None else error.code,
        error_message=None if error is None else error.why,
        resource_type=asked.resource_type,
        resource_name=asked.resource_name,
    )


def alter_configs(request: AlterConfigsRequest, version: int, error: KafkaError) -> AlterConfigsResponse:
    return AlterConfigsResponse(responses=[altered_configs(each, error) for each in request.resources])


def incrementally_altered_configs(
    asked: IncrementalAlterConfigsRequest.AlterConfigsResource, error: KafkaError | None
) -> IncrementalAlterConfigsResponse.AlterConfigsResourceResponse:
    return IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(
        error_code=ErrorCode.NONE if error is None else error.code,
        error_message=None if error is None else error.why,
        resource_type=asked.resource_type,
        resource_name=asked.resource_name,
    )


def incremental_alter_configs(
    request: IncrementalAlterConfigsRequest, version: int, error: KafkaError
) -> IncrementalAlterConfigsResponse:
    return IncrementalAlterConfigsResponse(
        responses=[incrementally_altered_configs(each, error) for each in request.resources]
    )


def list_config_resources(
    request: ListConfigResourcesRequest, version: int, error: KafkaError
) -> ListConfigResourcesResponse:
    return ListConfigResourcesResponse(error_code=error.code, config_resources=[])


# --- what is advertised for its refusal (`unserved`) --------------------------------------------------------


def consumer_group_heartbeat(
    request: ConsumerGroupHeartbeatRequest, version: int, error: KafkaError
) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(
        error_code=error.code, error_message=error.why, member_epoch=0, heartbeat_interval_ms=0
    )


Refusal = Callable[[Any, int, KafkaError], Message]

REFUSALS: Final[dict[ApiKey, Refusal]] = {
    ApiKey.PRODUCE: produce,
    ApiKey.FETCH: fetch,
    ApiKey.LIST_OFFSETS: list_offsets,
    ApiKey.METADATA: metadata,
    ApiKey.OFFSET_COMMIT: offset_commit,
    ApiKey.OFFSET_FETCH: offset_fetch,
    ApiKey.FIND_COORDINATOR: find_coordinator,
    ApiKey.JOIN_GROUP: join_group,
    ApiKey.HEARTBEAT: heartbeat,
    ApiKey.LEAVE_GROUP: leave_group,
    ApiKey.SYNC_GROUP: sync_group,
    ApiKey.DESCRIBE_GROUPS: describe_groups,
    ApiKey.LIST_GROUPS: list_groups,
    ApiKey.API_VERSIONS: api_versions,
    ApiKey.CREATE_TOPICS: create_topics,
    ApiKey.DELETE_TOPICS: delete_topics,
    ApiKey.DELETE_RECORDS: delete_records,
    ApiKey.INIT_PRODUCER_ID: init_producer_id,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch,
    ApiKey.CREATE_PARTITIONS: create_partitions,
    ApiKey.DESCRIBE_CONFIGS: describe_configs,
    ApiKey.ALTER_CONFIGS: alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs,
    ApiKey.LIST_CONFIG_RESOURCES: list_config_resources,
    ApiKey.DELETE_GROUPS: delete_groups,
    ApiKey.OFFSET_DELETE: offset_delete,
    ApiKey.DESCRIBE_CLUSTER: describe_cluster,
    ApiKey.DESCRIBE_LOG_DIRS: describe_log_dirs,
    ApiKey.ELECT_LEADERS: elect_leaders,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: alter_partition_reassignments,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: list_partition_reassignments,
    ApiKey.DESCRIBE_PRODUCERS: describe_producers,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: describe_topic_partitions,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: consumer_group_heartbeat,
    **SECURITY_REFUSALS,
}
"""What the router answers when a handler raises, for every API it advertises."""
