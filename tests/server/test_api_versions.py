"""ApiVersions, and that it advertises exactly what is served."""

from __future__ import annotations

import pytest

from muster.coordinator.server.apis import APIS
from muster.protocol.api import (
    ApiKey,
    advertised_versions,
    declared_apis,
    request_class,
    response_class,
    versions,
)
from muster.protocol.codec import decode, encode
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.header import encode_request
from muster.protocol.message import Message
from muster.protocol.messages.acls import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest
from muster.protocol.messages.classic_group import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from muster.protocol.messages.cluster import DescribeLogDirsRequest, ElectLeadersRequest
from muster.protocol.messages.configs import (
    AlterConfigsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
)
from muster.protocol.messages.connection import ApiVersionsRequest
from muster.protocol.messages.consumer_group import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
)
from muster.protocol.messages.data import (
    DeleteRecordsRequest,
    FetchRequest,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
)
from muster.protocol.messages.delegation_tokens import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from muster.protocol.messages.features import UpdateFeaturesRequest
from muster.protocol.messages.group_admin import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from muster.protocol.messages.metadata import (
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    FindCoordinatorRequest,
    MetadataRequest,
)
from muster.protocol.messages.offsets import OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest
from muster.protocol.messages.quotas import AlterClientQuotasRequest, DescribeClientQuotasRequest
from muster.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
)
from muster.protocol.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from muster.protocol.messages.scram import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
)
from muster.protocol.messages.topics import CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest
from muster.protocol.messages.transactions import (
    DescribeProducersRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)
from muster.protocol.types import ZERO_UUID
from tests.server.conftest import StartBrokers
from tests.support.each import each
from tests.support.wire import Wire
from tests.support.wire_transactions import (
    OF_BROKERS_FROM,
    adding,
    adding_as_broker,
    adding_offsets,
    describing,
    ending,
    joining,
    listing,
)

SOFTWARE = ApiVersionsRequest(client_software_name="wire", client_software_version="1.0")


def ranges(response: object) -> dict[int, tuple[int, int]]:
    return {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}  # type: ignore[attr-defined]


@pytest.mark.parametrize("version", range(6))
async def test_every_version_advertises_what_has_a_handler_and_what_is_refused_in_words(
    port: int, version: int
) -> None:
    async with await Wire.connect(port) as wire:
        response = await wire.call(SOFTWARE, version)
        assert response.error_code == ErrorCode.NONE
        assert ranges(response) == {key: tuple(advertised_versions(key)) for key in APIS}


def test_whatever_is_served_can_be_decoded() -> None:
    assert APIS.keys() <= set(declared_apis())


def test_what_has_no_implementation_is_not_advertised() -> None:
    # librdkafka asks for telemetry as soon as it sees the key.
    assert not APIS.keys() & {ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY}


@each("api_key", APIS, ids=lambda key: key.name)
async def test_every_served_version_is_answered_and_the_ones_beside_close(
    start_brokers: StartBrokers, api_key: ApiKey
) -> None:
    broker = (await start_brokers()).brokers[0]
    first, last = versions(api_key)
    async with await Wire.connect(broker.port) as wire:
        for version in range(first, last + 1):
            await wire.call(smallest_request(api_key, version), version)
    assert broker.connections.counts.undecodable == broker.connections.counts.unserved == 0
    beside = {first - 1, last + 1} - {-1}
    for version in beside if api_key != ApiKey.API_VERSIONS else ():
        async with await Wire.connect(broker.port) as wire:
            await wire.send_bytes(encode_empty(api_key, version))
            assert await wire.closed()
    if api_key != ApiKey.API_VERSIONS:
        assert broker.connections.counts.unserved == len(beside)


@each("api_key", APIS, ids=lambda key: key.name)
def test_a_refusal_can_be_encoded_in_every_version_and_says_the_code(api_key: ApiKey) -> None:
    first, last = versions(api_key)
    error = KafkaError(ErrorCode.NOT_COORDINATOR, "somewhere else")
    for version in range(first, last + 1):
        refusal = APIS[api_key].refusal(smallest_request(api_key, version), version, error)
        body = encode(refusal, version)
        assert decode(response_class(api_key), version, body).__class__ is response_class(api_key)
        # Before v13, Metadata has codes only for topics, and none was asked for.
        first_with_a_code = {ApiKey.METADATA: 13, ApiKey.DESCRIBE_LOG_DIRS: 3}
        has_code = version >= first_with_a_code.get(api_key, 0)
        assert (ErrorCode.NOT_COORDINATOR.to_bytes(2, "big") in body) == has_code


def smallest_request(api_key: ApiKey, version: int) -> Message:
    """A request that is answered in each part of the response that can hold a code."""
    match api_key:
        case ApiKey.PRODUCE:
            part = ProduceRequest.PartitionProduceData(index=0, records=None)
            data = ProduceRequest.TopicProduceData(name="t", partition_data=[part])
            return ProduceRequest(acks=1, timeout_ms=1000, topic_data=[data])
        case ApiKey.FETCH:
            partition = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)
            return FetchRequest(
                max_wait_ms=0,
                min_bytes=0,
                topics=[FetchRequest.FetchTopic(topic="t", partitions=[partition])],
            )
        case ApiKey.LIST_OFFSETS:
            listed = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
            return ListOffsetsRequest(
                replica_id=-1, topics=[ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[listed])]
            )
        case ApiKey.METADATA:
            return MetadataRequest(topics=[])
        case ApiKey.OFFSET_COMMIT:
            committed = OffsetCommitRequest.Partition(
                partition_index=0, committed_offset=1, committed_metadata=""
            )
            return OffsetCommitRequest(
                group_id="g",
                member_id="",
                topics=[OffsetCommitRequest.Topic(name="t", partitions=[committed])],
            )
        case ApiKey.OFFSET_FETCH if version >= 8:
            return OffsetFetchRequest(groups=[OffsetFetchRequest.Group(group_id="g", topics=[])])
        case ApiKey.OFFSET_FETCH:
            return OffsetFetchRequest(
                group_id="g", topics=[OffsetFetchRequest.Topic(name="t", partition_indexes=[0])]
            )
        case ApiKey.FIND_COORDINATOR:
            return (
                FindCoordinatorRequest(coordinator_keys=["g"])
                if version >= 4
                else FindCoordinatorRequest(key="g")
            )
        case ApiKey.JOIN_GROUP:
            return JoinGroupRequest(
                group_id="g", session_timeout_ms=1, member_id="", protocol_type="consumer", protocols=[]
            )
        case ApiKey.HEARTBEAT:
            return HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
        case ApiKey.LEAVE_GROUP:
            return LeaveGroupRequest(group_id="g")
        case ApiKey.SYNC_GROUP:
            named = {"protocol_type": "consumer", "protocol_name": "range"} if version >= 5 else {}
            return SyncGroupRequest(group_id="g", generation_id=1, member_id="m", assignments=[], **named)
        case ApiKey.DESCRIBE_GROUPS:
            return DescribeGroupsRequest(groups=["g"])
        case ApiKey.LIST_GROUPS:
            return ListGroupsRequest()
        case ApiKey.API_VERSIONS:
            return SOFTWARE
        case ApiKey.CREATE_TOPICS:
            topic = CreateTopicsRequest.CreatableTopic(
                name="t", num_partitions=1, replication_factor=1, assignments=[], configs=[]
            )
            return CreateTopicsRequest(topics=[topic])
        case ApiKey.DELETE_TOPICS:
            doomed = DeleteTopicsRequest.DeleteTopicState(name="t", topic_id=ZERO_UUID)
            return DeleteTopicsRequest(
                topics=[doomed] if version >= 6 else [],
                topic_names=["t"] if version < 6 else [],
                timeout_ms=1,
            )
        case ApiKey.DELETE_RECORDS:
            cut = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=-1)
            return DeleteRecordsRequest(
                topics=[DeleteRecordsRequest.DeleteRecordsTopic(name="t", partitions=[cut])], timeout_ms=1
            )
        case ApiKey.INIT_PRODUCER_ID:
            return InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1)
        case ApiKey.OFFSET_FOR_LEADER_EPOCH:
            asked = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=0, leader_epoch=0)
            return OffsetForLeaderEpochRequest(
                topics=[OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic="t", partitions=[asked])]
            )
        case ApiKey.CREATE_PARTITIONS:
            grown = CreatePartitionsRequest.CreatePartitionsTopic(name="t", count=2, assignments=None)
            return CreatePartitionsRequest(topics=[grown], timeout_ms=1, validate_only=False)
        case ApiKey.DESCRIBE_CONFIGS:
            described = DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=2, resource_name="t", configuration_keys=None
            )
            return DescribeConfigsRequest(resources=[described])
        case ApiKey.ALTER_CONFIGS:
            altered = AlterConfigsRequest.AlterConfigsResource(resource_type=2, resource_name="t", configs=[])
            return AlterConfigsRequest(resources=[altered], validate_only=False)
        case ApiKey.INCREMENTAL_ALTER_CONFIGS:
            changed = IncrementalAlterConfigsRequest.AlterConfigsResource(
                resource_type=2, resource_name="t", configs=[]
            )
            return IncrementalAlterConfigsRequest(resources=[changed], validate_only=False)
        case ApiKey.LIST_CONFIG_RESOURCES:
            return ListConfigResourcesRequest()
        case ApiKey.DELETE_GROUPS:
            return DeleteGroupsRequest(groups_names=["g"])
        case ApiKey.OFFSET_DELETE:
            return OffsetDeleteRequest(group_id="g", topics=[])
        case ApiKey.DESCRIBE_LOG_DIRS:
            return DescribeLogDirsRequest(topics=None)
        case ApiKey.ELECT_LEADERS:
            elected = ElectLeadersRequest.TopicPartitions(topic="t", partitions=[0])
            return ElectLeadersRequest(topic_partitions=[elected])
        case ApiKey.ALTER_PARTITION_REASSIGNMENTS:
            moved = AlterPartitionReassignmentsRequest.ReassignablePartition(partition_index=0)
            of_topic = AlterPartitionReassignmentsRequest.ReassignableTopic(name="t", partitions=[moved])
            return AlterPartitionReassignmentsRequest(topics=[of_topic])
        case ApiKey.LIST_PARTITION_REASSIGNMENTS:
            return ListPartitionReassignmentsRequest()
        case ApiKey.ADD_PARTITIONS_TO_TXN if version >= OF_BROKERS_FROM:
            return adding_as_broker(joining("tx", (1, 0), {"t": [0]}))
        case ApiKey.ADD_PARTITIONS_TO_TXN:
            return adding("tx", (1, 0), {"t": [0]})
        case ApiKey.ADD_OFFSETS_TO_TXN:
            return adding_offsets("tx", (1, 0), "g")
        case ApiKey.END_TXN:
            return ending("tx", (1, 0), commits=True)
        case ApiKey.DESCRIBE_TRANSACTIONS:
            return describing("tx")
        case ApiKey.LIST_TRANSACTIONS:
            return listing()
        case ApiKey.DESCRIBE_PRODUCERS:
            written = DescribeProducersRequest.TopicRequest(name="t", partition_indexes=[0])
            return DescribeProducersRequest(topics=[written])
        case ApiKey.WRITE_TXN_MARKERS:
            ended = WriteTxnMarkersRequest.WritableTxnMarkerTopic(name="t", partition_indexes=[0])
            marker = WriteTxnMarkersRequest.WritableTxnMarker(
                producer_id=1,
                producer_epoch=0,
                transaction_result=False,
                topics=[ended],
                coordinator_epoch=0,
            )
            return WriteTxnMarkersRequest(markers=[marker])
        case ApiKey.DESCRIBE_TOPIC_PARTITIONS:
            return DescribeTopicPartitionsRequest(
                topics=[DescribeTopicPartitionsRequest.TopicRequest(name="t")]
            )
        case ApiKey.DESCRIBE_CLUSTER:
            return DescribeClusterRequest(include_cluster_authorized_operations=False)
        case ApiKey.UPDATE_FEATURES:
            update = UpdateFeaturesRequest.FeatureUpdateKey(feature="group.version", max_version_level=1)
            return UpdateFeaturesRequest(feature_updates=[update])
        case ApiKey.CONSUMER_GROUP_HEARTBEAT:
            return ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=0)
        case ApiKey.CONSUMER_GROUP_DESCRIBE:
            return ConsumerGroupDescribeRequest(group_ids=["g"], include_authorized_operations=True)
        case ApiKey.TXN_OFFSET_COMMIT:
            return smallest_commit_in_a_transaction()
    return smallest_request_about_security(api_key)


def smallest_commit_in_a_transaction() -> TxnOffsetCommitRequest:
    Topic = TxnOffsetCommitRequest.Topic
    partition = Topic.Partition(partition_index=0, committed_offset=0, committed_metadata="")
    return TxnOffsetCommitRequest(
        transactional_id="tx",
        group_id="g",
        producer_id=1,
        producer_epoch=0,
        topics=[Topic(name="t", partitions=[partition])],
    )


def smallest_request_about_security(api_key: ApiKey) -> Message:
    acls = {"principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1}
    resource = {"resource_type_filter": 1, "resource_name_filter": None}
    match api_key:
        case ApiKey.DESCRIBE_ACLS:
            return DescribeAclsRequest(**resource, **acls)
        case ApiKey.CREATE_ACLS:
            made = CreateAclsRequest.AclCreation(
                resource_type=2,
                resource_name="t",
                principal="User:a",
                host="*",
                operation=3,
                permission_type=3,
            )
            return CreateAclsRequest(creations=[made])
        case ApiKey.DELETE_ACLS:
            return DeleteAclsRequest(filters=[DeleteAclsRequest.DeleteAclsFilter(**resource, **acls)])
        case ApiKey.CREATE_DELEGATION_TOKEN:
            return CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1)
        case ApiKey.RENEW_DELEGATION_TOKEN:
            return RenewDelegationTokenRequest(hmac=b"x", renew_period_ms=1)
        case ApiKey.EXPIRE_DELEGATION_TOKEN:
            return ExpireDelegationTokenRequest(hmac=b"x", expiry_time_period_ms=1)
        case ApiKey.DESCRIBE_DELEGATION_TOKEN:
            return DescribeDelegationTokenRequest(owners=None)
        case ApiKey.DESCRIBE_CLIENT_QUOTAS:
            return DescribeClientQuotasRequest(components=[], strict=False)
        case ApiKey.ALTER_CLIENT_QUOTAS:
            return AlterClientQuotasRequest(
                entries=[AlterClientQuotasRequest.EntryData(entity=[], ops=[])], validate_only=True
            )
        case ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS:
            return DescribeUserScramCredentialsRequest(users=None)
        case ApiKey.ALTER_USER_SCRAM_CREDENTIALS:
            doomed = AlterUserScramCredentialsRequest.ScramCredentialDeletion(name="u", mechanism=1)
            return AlterUserScramCredentialsRequest(deletions=[doomed], upsertions=[])
        case ApiKey.SASL_HANDSHAKE:
            return SaslHandshakeRequest(mechanism="PLAIN")
        case ApiKey.SASL_AUTHENTICATE:
            return SaslAuthenticateRequest(auth_bytes=b"x")
    raise NotImplementedError(f"say here what the smallest {api_key.name} is")


def encode_empty(api_key: int, version: int) -> bytes:
    body = api_key.to_bytes(2, "big") + version.to_bytes(2, "big") + b"\x00\x00\x00\x01\xff\xff"
    flexible = request_class(api_key).__schema__.flexible
    if version >= flexible.first and flexible.last >= flexible.first:
        body += b"\x00"
    return len(body).to_bytes(4, "big") + body


async def test_produce_is_advertised_from_0_and_refused_below_3(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers()
    async with await Wire.connect(brokers.brokers[0].port) as wire:
        assert ranges(await wire.call(SOFTWARE, 3))[ApiKey.PRODUCE] == (0, versions(ApiKey.PRODUCE).last)
        await wire.send_bytes(encode_empty(ApiKey.PRODUCE, 2))
        assert await wire.closed()
    assert brokers.brokers[0].connections.counts.unserved == 1


@pytest.mark.parametrize("version", [6, 99, 32767])
async def test_a_version_above_ours_is_answered_in_the_layout_of_v0(port: int, version: int) -> None:
    async with await Wire.connect(port) as wire:
        await wire.send_bytes(encode_empty(ApiKey.API_VERSIONS, version))
        frame = await wire.receive_bytes()
        # correlation id without a tag block, error 35, one entry: key 18, from 0 to our last
        assert frame.hex() == "00000001" + "0023" + "00000001" + "0012" + "0000" + "0005"
        assert (await wire.call(SOFTWARE, 4)).error_code == ErrorCode.NONE  # the connection stays open


@pytest.mark.parametrize("name", ["", "-client", "client-", "cli ent", "клиент", "a\n"])
async def test_a_malformed_software_name_is_an_invalid_request(port: int, name: str) -> None:
    async with await Wire.connect(port) as wire:
        response = await wire.call(
            ApiVersionsRequest(client_software_name=name, client_software_version="1"), 3
        )
        assert response.error_code == ErrorCode.INVALID_REQUEST
        assert (
            await wire.call(ApiVersionsRequest(), 2)
        ).error_code == ErrorCode.NONE  # it has no name to check


async def test_a_client_that_means_another_node_is_sent_to_bootstrap_again(
    start_brokers: StartBrokers,
) -> None:
    broker = (await start_brokers()).brokers[0]

    def request(cluster_id: str | None, node_id: int) -> ApiVersionsRequest:
        return ApiVersionsRequest(
            client_software_name="wire", client_software_version="1", cluster_id=cluster_id, node_id=node_id
        )

    async with await Wire.connect(broker.port) as wire:
        seen = (await wire.call(MetadataRequest(topics=[]), 12)).cluster_id
        assert seen == broker.cluster_id
        for cluster_id, node_id, code in [
            (seen, 1, ErrorCode.NONE),
            (None, -1, ErrorCode.NONE),
            (seen, 2, ErrorCode.REBOOTSTRAP_REQUIRED),
            ("another", 1, ErrorCode.REBOOTSTRAP_REQUIRED),
            (seen, -1, ErrorCode.INVALID_REQUEST),
            (None, 1, ErrorCode.INVALID_REQUEST),
        ]:
            assert (await wire.call(request(cluster_id, node_id), 5)).error_code == code
        assert (await wire.call(request("another", 2), 4)).error_code == ErrorCode.NONE  # not in v4's layout


async def test_an_unknown_api_or_garbage_closes_only_its_own_connection(start_brokers: StartBrokers) -> None:
    broker = (await start_brokers()).brokers[0]
    async with await Wire.connect(broker.port) as good:
        for frame in [
            b"\x03\xe7\x00\x00\x00\x00\x00\x01\xff\xff",  # API 999
            b"\x00\x47\x00\x00\x00\x00\x00\x01\xff\xff\x00",  # telemetry
            b"\x00\x03\x00\x0c",  # half a header
            b"\x00\x03\x00\x0c\x00\x00\x00\x01\xff\xff\x00\xff\xff\xff\xff\xff",  # not a Metadata request
            b"",
        ]:
            async with await Wire.connect(broker.port) as wire:
                await wire.send_bytes(len(frame).to_bytes(4, "big") + frame)
                assert await wire.closed()
        async with await Wire.connect(broker.port) as wire:
            await wire.send_bytes(b"GET / HTTP/1.1\r\n\r\n")
            assert await wire.closed()
        assert broker.connections.counts.undecodable + broker.connections.counts.unserved == 6
        assert (await good.call(SOFTWARE, 3)).error_code == ErrorCode.NONE


async def test_a_request_header_without_client_id_is_fine(port: int) -> None:
    async with await Wire.connect(port, client_id=None) as wire:
        assert (await wire.call(SOFTWARE, 3)).error_code == ErrorCode.NONE


async def test_pipelined_requests_are_answered_in_order(port: int) -> None:
    async with await Wire.connect(port) as wire:
        sent = [await wire.send(SOFTWARE, version % 6) for version in range(50)]
        assert [(await wire.receive_correlated())[0] for _ in sent] == sent


def test_the_wire_client_and_the_header_agree() -> None:
    framed = encode_request(ApiKey.API_VERSIONS, 0, 1, None, ApiVersionsRequest())
    assert framed == encode_empty(ApiKey.API_VERSIONS, 0)


async def test_what_is_not_served_closes_the_connection(start_brokers: StartBrokers) -> None:
    """Such as share groups: clients that looked at ApiVersions never ask."""
    broker = (await start_brokers()).brokers[0]
    missing = sorted(set(ApiKey) - APIS.keys())
    for api_key in missing:
        async with await Wire.connect(broker.port) as wire:
            frame = api_key.to_bytes(2, "big") + bytes(5) + b"\x01\xff\xff\x00"
            await wire.send_bytes(len(frame).to_bytes(4, "big") + frame)
            assert await wire.closed(), api_key.name
    counts = broker.connections.counts
    assert counts.undecodable + counts.unserved == len(missing)
