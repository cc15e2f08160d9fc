"""Apache Kafka with an authorizer compared with muster with ACLs: the answers of every API to clients with
all, some or none of the necessary rights. Users authenticate with SASL PLAIN at both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final
from uuid import UUID, uuid4

import pytest

from muster.coordinator.server.apis import APIS
from muster.coordinator.testing import Broker
from muster.coordinator.testing.security import USER
from muster.protocol.api import ApiKey, versions
from muster.protocol.message import Message
from muster.protocol.messages.acls import (
    CreateAclsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from muster.protocol.messages.classic_group import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from muster.protocol.messages.configs import (
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
)
from muster.protocol.messages.configs import ResourceType as ConfigType
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
from muster.protocol.messages.group_admin import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from muster.protocol.messages.metadata import (
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    FindCoordinatorRequest,
    MetadataRequest,
)
from muster.protocol.messages.offsets import OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest
from muster.protocol.messages.topics import CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest
from muster.protocol.messages.transactions import DescribeProducersRequest, InitProducerIdRequest
from muster.protocol.record_batch import Record, build
from muster.protocol.types import ZERO_UUID
from tests.cli.running import Muster
from tests.kafka.acl_sides import AclSide, Allowed, kafka_with_acls, subsets
from tests.kafka.compared import error_codes
from tests.kafka.differences import assert_as_listed
from tests.kafka.stories import CHOSEN_BY_STORIES, name_of, told_apart
from tests.kafka.test_consumer_groups import configure
from tests.server.test_api_versions import smallest_request
from tests.support.apache_kafka import ApacheKafka
from tests.support.wire_topics import until
from tests.support.wire_transactions import (
    adding,
    adding_as_broker,
    adding_offsets,
    describing,
    ending,
    joining,
    listing,
    starting,
)

pytestmark = pytest.mark.kafka

AclStory = Callable[[AclSide], None]

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID
READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE = (
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
)


def on(operation: Operation, *names: str, type: ResourceType = TOPIC) -> list[Allowed]:
    return [Allowed(operation, type, name) for name in names]


def on_cluster(operation: Operation) -> Allowed:
    return Allowed(operation, CLUSTER)


def denied(operation: Operation, name: str, type: ResourceType = TOPIC) -> Allowed:
    return Allowed(operation, type, name, Permission.DENY)


def tell(
    side: AclSide,
    title: str,
    needs: Sequence[Allowed],
    request: Callable[[], Message],
    version: int,
    **options: Any,
) -> None:
    """Send the request with none of the ACLs, with each of them, and with all."""
    for acls in subsets(needs):
        with side.as_user("alice", *acls):
            given = ", ".join(map(str, acls)) or "nothing"
            side.ask(f"{title}, v{version}, with {given}", request(), version, **options)


def last(api_key: ApiKey) -> int:
    return versions(api_key).last


def every_version(api_key: int) -> range:
    first, last = versions(api_key)
    return range(first, last + 1)


# --- denied -------------------------------------------------------------------------------------------------

_NOT_ASKED: Final = {
    ApiKey.API_VERSIONS,
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
}
"""About the connection, not about what its client may do. Apache Kafka 4.4 with an authorizer never answers
the last."""


def everything_denied(side: AclSide) -> None:
    """Every API, in every version, called by a user without any rights."""
    with side.as_user("alice"):
        for api_key in sorted(APIS.keys() - _NOT_ASKED):
            for version in every_version(api_key):
                request: Any = smallest_request(ApiKey(api_key), version)
                if hasattr(request, "timeout_ms"):
                    request.timeout_ms = 30_000  # otherwise Kafka times out before it checks
                side.ask(f"{ApiKey(api_key).name} v{version}", request, version, but="host")


# --- topics -------------------------------------------------------------------------------------------------


def metadata(side: AclSide) -> None:
    ids = side.create(t=1, hidden=1)

    def named(version: int, *names: str) -> MetadataRequest:
        topics = [MetadataRequest.Topic(name=side.name(name)) for name in names]
        operations = {"include_topic_authorized_operations": True} if version >= 8 else {}
        if 8 <= version <= 10:
            operations["include_cluster_authorized_operations"] = True
        return MetadataRequest(topics=topics, allow_auto_topic_creation=version < 4, **operations)

    rights = [*on(DESCRIBE, "t", "absent"), on_cluster(DESCRIBE), on_cluster(CREATE), *on(READ, "hidden")]
    for version in every_version(ApiKey.METADATA):
        names = ("t", "hidden", "absent") if version >= 4 else ("t", "hidden")
        few = rights if version in (4, 8, 12, 13) else []
        tell(
            side,
            "named",
            few,
            lambda version=version, names=names: named(version, *names),
            version,
            but="host",
        )
        all_of_them = MetadataRequest(topics=None if version else [], allow_auto_topic_creation=version < 4)
        tell(side, "all", [*on(DESCRIBE, "t")], lambda asked=all_of_them: asked, version, but="host")
    for version in (12, 13):
        by_id = MetadataRequest(
            topics=[
                MetadataRequest.Topic(topic_id=each, name=None)
                for each in (ids["t"], ids["hidden"], UUID(int=7))
            ],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=True,
        )
        tell(
            side,
            "by id",
            [*on(DESCRIBE, "t"), *on(READ, "hidden")],
            lambda asked=by_id: asked,
            version,
            but="host",
        )
    for title, acls in {
        "describe": on(DESCRIBE, "new"),
        "describe all": on(DESCRIBE, "*"),
        "create without describe": on(CREATE, "new"),
    }.items():
        with side.as_user("alice", *acls):
            creating = MetadataRequest(
                topics=[MetadataRequest.Topic(name=side.name("new"))], allow_auto_topic_creation=True
            )
            side.ask(f"creating, may {title}", creating, 12, but="host")


def topic_partitions(side: AclSide) -> None:
    side.create(t=1, hidden=1)
    for names in (("t", "hidden", "absent"), ()):
        asked = DescribeTopicPartitionsRequest(
            topics=[DescribeTopicPartitionsRequest.TopicRequest(name=side.name(name)) for name in names]
        )
        title = "named" if names else "all"
        tell(side, title, [*on(DESCRIBE, "t", "absent"), *on(ALTER, "hidden")], lambda asked=asked: asked, 0)
    with side.as_user("alice", *on(DESCRIBE, "t")):
        for begin in ("absent", "hidden", "t"):
            at = DescribeTopicPartitionsRequest.Cursor(topic_name=side.name(begin), partition_index=0)
            asked = DescribeTopicPartitionsRequest(
                topics=[
                    DescribeTopicPartitionsRequest.TopicRequest(name=side.name(name))
                    for name in ("t", "hidden", "absent")
                ],
                cursor=at,
            )
            side.ask(f"cursor at {begin}", asked, 0)


def topics(side: AclSide) -> None:
    ids = side.create(t=1, hidden=1, doomed=1, other=1)

    def creating(*names: str) -> CreateTopicsRequest:
        return CreateTopicsRequest(
            topics=[
                CreateTopicsRequest.CreatableTopic(
                    name=side.name(name), num_partitions=1, replication_factor=1, assignments=[], configs=[]
                )
                for name in names
            ],
            timeout_ms=10_000,
            validate_only=True,
        )

    describe_configs = Allowed(Operation.DESCRIBE_CONFIGS, TOPIC, "new")
    for version in (2, 5, 7):
        rights = [*on(CREATE, "new"), describe_configs, on_cluster(CREATE), *on(DESCRIBE, "t")]
        tell(side, "create", rights, lambda: creating("new", "t"), version, arranged=_without_configs)
    with side.as_user("alice", *on(CREATE, "new"), denied(CREATE, "new"), on_cluster(CREATE)):
        side.ask("create, denied of the topic", creating("new", "t"), 7, arranged=_without_configs)

    def growing(*names: str) -> CreatePartitionsRequest:
        grown = CreatePartitionsRequest.CreatePartitionsTopic
        return CreatePartitionsRequest(
            topics=[grown(name=side.name(name), count=2, assignments=None) for name in names],
            timeout_ms=10_000,
            validate_only=True,
        )

    for version in every_version(ApiKey.CREATE_PARTITIONS):
        tell(side, "grow", on(ALTER, "t", "absent"), lambda: growing("t", "hidden", "absent"), version)

    def deleting(*names: str | UUID) -> DeleteTopicsRequest:
        state = DeleteTopicsRequest.DeleteTopicState
        return DeleteTopicsRequest(
            topics=[
                state(name=None, topic_id=each)
                if isinstance(each, UUID)
                else state(name=side.name(each), topic_id=ZERO_UUID)
                for each in names
            ],
            timeout_ms=10_000,
        )

    for title, acls in {
        "nothing": [],
        "describe": on(DESCRIBE, "t", "absent"),
        "describe all": on(DESCRIBE, "*"),
        "delete of what is not there": on(DELETE, "absent"),
        "delete of the cluster alone": [on_cluster(DELETE)],
    }.items():
        with side.as_user("alice", *acls):
            side.ask(f"delete, may {title}", deleting("t", "hidden", "absent"), 6)
            if "cluster" not in title:
                by_id = deleting(ids["t"], ids["hidden"], UUID(int=7))
                side.ask(f"delete by id, may {title}", by_id, 6)
                for each in ("hidden", "t"):
                    both = deleting("hidden", ids[each])
                    side.ask(f"delete hidden and {each}, may {title}", both, 6, arranged=_names_first)
            by_name = DeleteTopicsRequest(
                topic_names=[side.name(each) for each in ("t", "hidden", "absent")], timeout_ms=10_000
            )
            side.ask(f"delete by name, may {title}", by_name, 5)
    with side.as_user("alice", *on(DELETE, "doomed")):
        side.ask("delete, may", deleting("doomed", "t"), 6)
    with side.as_user("alice", on_cluster(DELETE)):
        side.ask("delete by id, may of the cluster", deleting(ids["other"]), 6)


def _names_first(answer: Any) -> None:
    """Kafka shuffles them, so that their order tells nothing."""
    answer.responses.sort(key=lambda each: each.topic_id != ZERO_UUID)


# --- records ------------------------------------------------------------------------------------------------


def records(side: AclSide) -> None:
    ids = side.create(t=1, hidden=1)
    data = build([Record(0, 1_000, b"k", b"v")])

    def producing(version: int, *names: str) -> ProduceRequest:
        part = ProduceRequest.PartitionProduceData(index=0, records=data)
        of_topic = ProduceRequest.TopicProduceData
        return ProduceRequest(
            acks=1,
            timeout_ms=10_000,
            topic_data=[
                of_topic(name=side.name(name), partition_data=[part])
                if version < 13
                else of_topic(topic_id=ids.get(name, UUID(int=7)), partition_data=[part])
                for name in names
            ],
        )

    def fetching(version: int, *names: str) -> FetchRequest:
        part = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000)
        of_topic = FetchRequest.FetchTopic
        return FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            topics=[
                of_topic(topic=side.name(name), partitions=[part])
                if version < 13
                else of_topic(topic_id=ids.get(name, UUID(int=7)), partitions=[part])
                for name in names
            ],
        )

    three = ("t", "hidden", "absent")
    for version in (3, 8, 12, last(ApiKey.PRODUCE)):
        tell(
            side,
            "produce",
            [*on(WRITE, "t"), *on(DESCRIBE, "t", "absent")],
            lambda version=version: producing(version, *three),
            version,
        )
        for title, acls in {
            "denied": [*on(WRITE, "t"), denied(WRITE, "t")],
            "denied all": [*on(Operation.ALL, "t"), denied(Operation.ALL, "t")],
            "denied reading": [*on(WRITE, "t"), denied(READ, "t")],
        }.items():
            with side.as_user("alice", *acls):
                side.ask(f"produce, {title}, v{version}", producing(version, "t"), version)
    for version in (4, 6, 7, 12, 13, last(ApiKey.FETCH)):
        tell(
            side,
            "fetch",
            [*on(READ, "t"), *on(DESCRIBE, "t", "absent"), on_cluster(Operation.CLUSTER_ACTION)],
            lambda version=version: fetching(version, *three),
            version,
        )

    def listing() -> ListOffsetsRequest:
        part = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-2)
        of_topic = ListOffsetsRequest.ListOffsetsTopic
        return ListOffsetsRequest(
            replica_id=-1, topics=[of_topic(name=side.name(name), partitions=[part]) for name in three]
        )

    for version in (1, last(ApiKey.LIST_OFFSETS)):
        tell(side, "offsets", [*on(DESCRIBE, "t", "absent"), *on(WRITE, "hidden")], listing, version)

    def epochs() -> OffsetForLeaderEpochRequest:
        part = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=0, leader_epoch=9)
        of_topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
        return OffsetForLeaderEpochRequest(
            topics=[of_topic(topic=side.name(name), partitions=[part]) for name in three], replica_id=-1
        )

    rights = [*on(DESCRIBE, "t", "absent"), on_cluster(Operation.CLUSTER_ACTION)]
    tell(side, "epochs", rights, epochs, last(ApiKey.OFFSET_FOR_LEADER_EPOCH))

    def cutting() -> DeleteRecordsRequest:
        part = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=0)
        of_topic = DeleteRecordsRequest.DeleteRecordsTopic
        return DeleteRecordsRequest(
            topics=[of_topic(name=side.name(name), partitions=[part]) for name in three], timeout_ms=10_000
        )

    tell(side, "cut", [*on(DELETE, "t", "absent"), *on(READ, "t")], cutting, last(ApiKey.DELETE_RECORDS))

    def producers() -> DescribeProducersRequest:
        of_topic = DescribeProducersRequest.TopicRequest
        return DescribeProducersRequest(
            topics=[of_topic(name=side.name(name), partition_indexes=[0]) for name in three]
        )

    tell(side, "producers", [*on(READ, "t", "absent"), *on(DESCRIBE, "t")], producers, 0)

    def starting() -> InitProducerIdRequest:
        return InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)

    until(lambda: side.quietly(starting(), 4).error_code == 0, "producer ids")
    rights = [on_cluster(Operation.IDEMPOTENT_WRITE), *on(WRITE, "t"), *on(READ, "t"), *on(WRITE, "*")]
    for version in every_version(ApiKey.INIT_PRODUCER_ID):
        tell(side, "producer id", rights, starting, version, but="producer_id")
    prefixed = Allowed(WRITE, TOPIC, "pre", pattern=PatternType.PREFIXED)
    no_prefix = prefixed._replace(permission=Permission.DENY)
    shorter = no_prefix._replace(name="p")
    for title, acls in {
        "a prefix": [prefixed],
        "a prefix that is denied": [prefixed, no_prefix],
        "a topic that is denied": [*on(WRITE, "t"), denied(WRITE, "t")],
        "every topic and no topic": [*on(WRITE, "*"), denied(WRITE, "*")],
        "every topic but one": [*on(WRITE, "*"), denied(WRITE, "t")],
        "a topic of a prefix that is denied": [*on(WRITE, "pre"), shorter],
    }.items():
        with side.as_user("alice", *acls):
            side.ask(f"producer id, may write {title}", starting(), 4, but="producer_id")


# --- groups -------------------------------------------------------------------------------------------------


def fetch_sessions(side: AclSide) -> None:
    """A client that may read nothing keeps its session."""
    side.create(t=1)

    def fetching(session_id: int, epoch: int, *names: str) -> FetchRequest:
        part = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000)
        topics = [FetchRequest.FetchTopic(topic=side.name(name), partitions=[part]) for name in names]
        return FetchRequest(
            max_wait_ms=0, min_bytes=0, session_id=session_id, session_epoch=epoch, topics=topics
        )

    with side.as_user("alice"):
        opened = side.ask("open a session", fetching(0, 0, "t"), 12)
        for epoch in (1, 2):
            told = side.ask(f"go on, epoch {epoch}", fetching(opened.session_id, epoch), 12)
            assert told.session_id == opened.session_id != 0


def offsets(side: AclSide) -> None:
    ids = side.create(t=1, hidden=1)
    group = side.name("g")
    side.coordinate(group)
    three = ("t", "hidden", "absent")

    def committing(version: int) -> OffsetCommitRequest:
        part = OffsetCommitRequest.Partition(partition_index=0, committed_offset=1, committed_metadata="")
        of_topic = OffsetCommitRequest.Topic
        return OffsetCommitRequest(
            group_id=group,
            member_id="",
            topics=[
                of_topic(name=side.name(name), partitions=[part])
                if version < 10
                else of_topic(topic_id=ids.get(name, UUID(int=7)), partitions=[part])
                for name in three
            ],
        )

    for version in every_version(ApiKey.OFFSET_COMMIT):
        rights = [*on(READ, "g", type=GROUP), *on(READ, "t"), *on(DESCRIBE, "absent", "hidden")]
        tell(side, "commit", rights, lambda version=version: committing(version), version)
    side.quietly(committing(8), 8)

    def fetching(version: int, names: Sequence[str] | None) -> OffsetFetchRequest:
        if version < 8:
            of_topic = OffsetFetchRequest.Topic
            listed = (
                None
                if names is None
                else [of_topic(name=side.name(name), partition_indexes=[0]) for name in names]
            )
            return OffsetFetchRequest(group_id=group, topics=listed)
        in_group = OffsetFetchRequest.Group.Topics
        return OffsetFetchRequest(
            groups=[
                OffsetFetchRequest.Group(
                    group_id=each,
                    topics=None
                    if names is None
                    else [
                        in_group(name=side.name(name), partition_indexes=[0])
                        if version < 10
                        else in_group(topic_id=ids.get(name, UUID(int=7)), partition_indexes=[0])
                        for name in names
                    ],
                )
                for each in (group, side.name("other"))
            ]
        )

    for version in every_version(ApiKey.OFFSET_FETCH):
        rights = [*on(DESCRIBE, "g", type=GROUP), *on(DESCRIBE, "t", "absent")]
        for names in (three, None):
            if names is None and version < 2:
                continue
            title = "fetch" if names else "fetch all"
            tell(side, title, rights, lambda version=version, names=names: fetching(version, names), version)

    def deleting() -> OffsetDeleteRequest:
        part = OffsetDeleteRequest.Partition(partition_index=0)
        of_topic = OffsetDeleteRequest.Topic
        return OffsetDeleteRequest(
            group_id=group, topics=[of_topic(name=side.name(name), partitions=[part]) for name in three]
        )

    tell(side, "delete", [*on(DELETE, "g", type=GROUP), *on(READ, "t", "absent")], deleting, 0)


def groups(side: AclSide) -> None:
    side.create(t=1)
    names = ("g", "hidden-g", "absent-g")
    side.coordinate(*map(side.name, names))
    part = OffsetCommitRequest.Partition(partition_index=0, committed_offset=1, committed_metadata="")
    for name in names[:2]:
        of_topic = OffsetCommitRequest.Topic(name=side.name("t"), partitions=[part])
        side.quietly(OffsetCommitRequest(group_id=side.name(name), member_id="", topics=[of_topic]), 8)
    asked = [side.name(name) for name in names]

    for version in (2, 3, last(ApiKey.DESCRIBE_GROUPS)):
        describing = DescribeGroupsRequest(
            groups=asked, **({"include_authorized_operations": True} if version >= 3 else {})
        )
        rights = [*on(DESCRIBE, "g", "absent-g", type=GROUP), *on(READ, "hidden-g", type=GROUP)]
        tell(side, "describe", rights, lambda asked=describing: asked, version)
    for version in (0, last(ApiKey.LIST_GROUPS)):
        rights = on(DESCRIBE, "g", type=GROUP)
        tell(side, "list", rights, lambda: ListGroupsRequest(), version)
    for version in (1, last(ApiKey.FIND_COORDINATOR)):
        finding = (
            FindCoordinatorRequest(key=asked[0], key_type=0)
            if version < 4
            else FindCoordinatorRequest(key_type=0, coordinator_keys=asked)
        )
        rights = [*on(DESCRIBE, "g", "absent-g", type=GROUP), *on(READ, "g")]
        tell(side, "find 0", rights, lambda asked=finding: asked, version, but="host")

    rights = [*on(READ, "g", type=GROUP), *on(DESCRIBE, "g", type=GROUP), *on(READ, "t")]
    group = asked[0]
    protocols = [JoinGroupRequest.Protocol(name="range", metadata=b"")]
    members = [LeaveGroupRequest.MemberIdentity(member_id="m")]
    for title, request, version in (
        (
            "join",
            JoinGroupRequest(
                group_id=group,
                session_timeout_ms=10_000,
                rebalance_timeout_ms=10_000,
                member_id="m",
                protocol_type="consumer",
                protocols=protocols,
            ),
            last(ApiKey.JOIN_GROUP),
        ),
        (
            "sync",
            SyncGroupRequest(
                group_id=group,
                generation_id=1,
                member_id="m",
                protocol_type="consumer",
                protocol_name="range",
                assignments=[],
            ),
            last(ApiKey.SYNC_GROUP),
        ),
        ("beat", HeartbeatRequest(group_id=group, generation_id=1, member_id="m"), last(ApiKey.HEARTBEAT)),
        ("leave", LeaveGroupRequest(group_id=group, members=members), last(ApiKey.LEAVE_GROUP)),
    ):
        tell(side, title, rights, lambda request=request: request, version)
    deleting = DeleteGroupsRequest(groups_names=asked)
    rights = [
        *on(DESCRIBE, "g", type=GROUP),
        *on(DELETE, "absent-g", type=GROUP),
        *on(DELETE, "g", type=GROUP),
    ]
    tell(side, "delete", rights, lambda: deleting, last(ApiKey.DELETE_GROUPS))


def transactions(side: AclSide) -> None:
    side.create(t=1, hidden=1)
    side.coordinate(side.name("g"))
    tx, hidden_tx = side.name("tx"), side.name("hidden-tx")
    finding = FindCoordinatorRequest(key_type=1, coordinator_keys=[tx])
    until(lambda: side.quietly(finding, 4).coordinators[0].error_code == 0, "a coordinator")

    def producer(name: str) -> tuple[int, int]:
        asked = starting(name, timeout_ms=900_000)  # nothing times out, however slow the machine is
        until(lambda: side.quietly(asked, 5).error_code == 0, f"the shard of {name}")
        answer = side.quietly(asked, 5)
        return answer.producer_id, answer.producer_epoch

    mine, other = producer(tx), producer(hidden_tx)
    for version in (1, last(ApiKey.FIND_COORDINATOR)):
        asked = (
            FindCoordinatorRequest(key=tx, key_type=1)
            if version < 4
            else FindCoordinatorRequest(key_type=1, coordinator_keys=[tx, hidden_tx])
        )
        rights = [*on(DESCRIBE, "tx", type=TRANSACTIONAL_ID), *on(WRITE, "hidden-tx", type=TRANSACTIONAL_ID)]
        tell(side, "find 1", rights, lambda asked=asked: asked, version, but="host")
    t, hidden = side.name("t"), side.name("hidden")
    may_write = on(WRITE, "tx", type=TRANSACTIONAL_ID)
    may_describe = on(DESCRIBE, "tx", type=TRANSACTIONAL_ID)
    everything = {t: [0], hidden: [0], "absent": [0], "__consumer_offsets": [0]}
    rights = [*may_write, *on(WRITE, "t"), *on(DESCRIBE, "hidden")]
    for version in (0, 3):
        tell(side, "add", rights, lambda: adding(tx, mine, everything), version)
        tell(side, "add internal", rights, lambda: adding(tx, mine, {"__consumer_offsets": [0]}), version)
    tell(side, "add to another", rights, lambda: adding(hidden_tx, other, {t: [0]}), 3)
    for version in (4, 5):
        of_brokers = adding_as_broker(
            joining(tx, mine, {t: [0]}, verify_only=True), joining(hidden_tx, other, {hidden: [0]})
        )
        rights = [on_cluster(Operation.CLUSTER_ACTION), *may_write, on_cluster(ALTER)]
        tell(side, "add as a broker", rights, lambda asked=of_brokers: asked, version)
    rights = [*may_write, *on(READ, "g", type=GROUP), *on(DESCRIBE, "g", type=GROUP)]
    for version in every_version(ApiKey.ADD_OFFSETS_TO_TXN):
        few = rights if version in (0, 4) else []
        tell(side, "add offsets", few, lambda: adding_offsets(tx, mine, side.name("g")), version)
    side.quietly(adding(hidden_tx, other, {t: [0], hidden: [0]}), 3)
    rights = [
        *may_describe,
        *on(DESCRIBE, "t"),
        *on(READ, "hidden"),
        *on(DESCRIBE, "hidden-tx", type=TRANSACTIONAL_ID),
    ]
    tell(
        side, "describe", rights, lambda: describing(tx, hidden_tx, "absent", tx), 0, arranged=_topics_sorted
    )

    def only(answer: Any) -> None:
        """Drop ids of other stories, which are listed too."""
        answer.transaction_states = sorted(
            (each for each in answer.transaction_states if each.transactional_id in (tx, hidden_tx)),
            key=lambda each: each.transactional_id,
        )

    for version in every_version(ApiKey.LIST_TRANSACTIONS):
        rights = [*may_describe, *on(WRITE, "hidden-tx", type=TRANSACTIONAL_ID), on_cluster(DESCRIBE)]
        tell(side, "list", rights, lambda: listing(), version, arranged=only)
    nobody = (CHOSEN_BY_STORIES[0], 0)
    for version in every_version(ApiKey.END_TXN):
        rights = [*may_write, *may_describe] if version in (0, 5) else []
        tell(side, "end", rights, lambda: ending(tx, nobody, commits=True), version)
    for version in every_version(ApiKey.INIT_PRODUCER_ID):
        few = [*may_write, on_cluster(Operation.IDEMPOTENT_WRITE)] if version in (0, 5) else []
        tell(side, "start", few, lambda: starting(tx, timeout_ms=0), version)


def _topics_sorted(answer: Any) -> None:
    for each in answer.transaction_states:
        each.topics.sort(key=lambda of_topic: of_topic.topic)


def consumer_groups(side: AclSide) -> None:
    side.create(t=1, hidden=1)
    group = side.name("cg")
    side.coordinate(group)
    configure(side, "cg", assignment="0")  # otherwise the time since the last one decides about the next

    def beating(*names: str, member: str = "", epoch: int = 0) -> ConsumerGroupHeartbeatRequest:
        return ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=member or str(uuid4()),
            member_epoch=epoch,
            rebalance_timeout_ms=10_000,
            subscribed_topic_names=[side.name(name) for name in names],
            topic_partitions=[],
        )

    for title, acls in {
        "nothing": [],
        "the group": on(READ, "cg", type=GROUP),
        "a topic": on(DESCRIBE, "t"),
        "the group and a topic": [*on(READ, "cg", type=GROUP), *on(DESCRIBE, "t")],
        "to describe the group": [*on(DESCRIBE, "cg", type=GROUP), *on(DESCRIBE, "t")],
    }.items():
        with side.as_user("alice", *acls):
            for version in every_version(ApiKey.CONSUMER_GROUP_HEARTBEAT):
                side.ask(f"beat of two topics, may {title}, v{version}", beating("t", "hidden"), version)
                side.ask(f"beat of one that is absent, may {title}, v{version}", beating("absent"), version)
    member = str(uuid4())
    beat = beating("t", "hidden", member=member)
    side.quietly(beat, 1)

    def describing() -> ConsumerGroupDescribeRequest:
        return ConsumerGroupDescribeRequest(
            group_ids=[group, side.name("absent-g")], include_authorized_operations=True
        )

    rights = [*on(DESCRIBE, "cg", "absent-g", type=GROUP), *on(DESCRIBE, "t")]
    tell(side, "describe", rights, describing, last(ApiKey.CONSUMER_GROUP_DESCRIBE))
    with side.as_user("alice", *on(READ, "cg", type=GROUP)):
        side.ask("a beat of who may not see its topics", beating("t", "hidden", member=member, epoch=1), 1)
    gone = beating("t", member=member, epoch=-1)
    gone.subscribed_topic_names = None
    side.quietly(gone, 1)


def regular_expressions(side: AclSide) -> None:
    """What a regular expression matches depends on the user on whose behalf it is resolved."""
    ids = side.create(t=1, hidden=1)
    names = {topic_id: name for name, topic_id in ids.items()}
    for title, acls in {
        "nothing": [],
        "a topic": on(READ, "t"),
        "all but a topic": [*on(DESCRIBE, "*"), denied(DESCRIBE, "hidden")],
    }.items():
        group = side.name(f"rg-{title.replace(' ', '-')}")
        side.coordinate(group)
        beat = ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=str(uuid4()),
            member_epoch=0,
            rebalance_timeout_ms=10_000,
            subscribed_topic_names=[],
            subscribed_topic_regex=f"({side.name('t')}|{side.name('hidden')})",
            topic_partitions=[],
        )
        reads = Allowed(READ, GROUP, f"rg-{title.replace(' ', '-')}")
        with side.as_user("alice", reads, *acls):
            said = side.quietly(beat, 1)
            assert said.error_code == 0
            beat.subscribed_topic_names = beat.subscribed_topic_regex = beat.topic_partitions = None
            assigned: set[str] = set()

            def settled(beat: Any = beat, assigned: set[str] = assigned, expected: bool = bool(acls)) -> bool:
                answer = side.quietly(beat, 1)
                beat.member_epoch = answer.member_epoch
                if answer.assignment is not None:
                    assigned |= {names[each.topic_id] for each in answer.assignment.topic_partitions}
                return bool(assigned) if expected else answer.member_epoch >= 1

            beat.member_epoch = said.member_epoch
            until(settled, f"an assignment of {group}")
            side.note(f"may see {title}", sorted(assigned))
            beat.member_epoch = -1
            side.quietly(beat, 1)


# --- configs and the cluster --------------------------------------------------------------------------------


def configs(side: AclSide) -> None:
    side.create(t=1, hidden=1)

    def resource(type: ConfigType, name: str) -> dict[str, Any]:
        plain = type in (ConfigType.BROKER, ConfigType.BROKER_LOGGER)
        return {"resource_type": type, "resource_name": name if plain else side.name(name)}

    things = [
        resource(ConfigType.TOPIC, "t"),
        resource(ConfigType.TOPIC, "hidden"),
        resource(ConfigType.TOPIC, "absent"),
        resource(ConfigType.GROUP, "g"),
        resource(ConfigType.BROKER, "1"),
        resource(ConfigType.CLIENT_METRICS, "m"),
    ]

    def describing() -> DescribeConfigsRequest:
        described = DescribeConfigsRequest.DescribeConfigsResource
        return DescribeConfigsRequest(
            resources=[described(**each, configuration_keys=["no.such"]) for each in things]
        )

    configs_of = Operation.DESCRIBE_CONFIGS
    rights = [*on(configs_of, "t", "absent"), *on(configs_of, "g", type=GROUP), on_cluster(configs_of)]
    for version in (1, last(ApiKey.DESCRIBE_CONFIGS)):
        tell(side, "describe", [*rights, *on(DESCRIBE, "hidden")], describing, version)

    def altering(*types: ConfigType) -> IncrementalAlterConfigsRequest:
        altered = IncrementalAlterConfigsRequest.AlterConfigsResource
        return IncrementalAlterConfigsRequest(
            resources=[altered(**each, configs=[]) for each in things if each["resource_type"] in types],
            validate_only=True,
        )

    alter = Operation.ALTER_CONFIGS
    rights = [*on(alter, "t", "absent"), *on(alter, "g", type=GROUP), on_cluster(alter)]
    types = (ConfigType.TOPIC, ConfigType.GROUP, ConfigType.CLIENT_METRICS)
    for version in every_version(ApiKey.INCREMENTAL_ALTER_CONFIGS):
        rights_and_more = [*rights, *on(ALTER, "hidden")]
        tell(side, "alter", rights_and_more, lambda: altering(*types), version, arranged=_by_resource)
    logger = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsRequest.AlterConfigsResource(
                resource_type=ConfigType.BROKER_LOGGER, resource_name="1", configs=[]
            )
        ],
        validate_only=True,
    )
    rights = [on_cluster(alter), on_cluster(Operation.CLUSTER_ACTION)]
    tell(side, "alter a logger", rights, lambda: logger, 1)
    listing = ListConfigResourcesRequest(resource_types=[ConfigType.CLIENT_METRICS])
    tell(side, "list", [on_cluster(configs_of), *on(configs_of, "*")], lambda: listing, 1)


def cluster(side: AclSide) -> None:
    """Requests that need a right on the cluster, made with each such right. This also shows refusals for
    other reasons."""
    for operation in (
        DESCRIBE,
        ALTER,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.CLUSTER_ACTION,
    ):
        with side.as_user("alice", on_cluster(operation)):
            for api_key in (
                ApiKey.DESCRIBE_ACLS,
                ApiKey.DESCRIBE_CLIENT_QUOTAS,
                ApiKey.ALTER_CLIENT_QUOTAS,
                ApiKey.LIST_PARTITION_REASSIGNMENTS,
                ApiKey.UPDATE_FEATURES,
            ):
                version = last(api_key)
                answer = side.quietly(smallest_request(api_key, version), version)
                refused = {31} & set(error_codes(answer))
                side.note(f"{api_key.name}, may {operation.name}", refused)
            asked = DescribeClusterRequest(include_cluster_authorized_operations=True)
            answer = side.quietly(asked, 1)
            side.note(f"operations, may {operation.name}", answer.cluster_authorized_operations)


# --- ACLs ---------------------------------------------------------------------------------------------------


def acls(side: AclSide) -> None:
    """Requests by a super user: which ACLs are valid, and which filters match. Undefined numbers, and ANY in
    an ACL, are left out: Kafka closes the connection or has no code for them, muster says INVALID_REQUEST."""
    fine = {
        "resource_type": 2,
        "resource_name": side.name("a"),
        "resource_pattern_type": 3,
        "principal": "User:zoe",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    made = CreateAclsRequest.AclCreation
    for field, values in {
        "resource_type": [2, 3, 5, 6, 7],
        "resource_name": ["", side.name("b")],
        "resource_pattern_type": [4],
        "principal": ["zoe", "User:", ":zoe", "", "Group:zoe", "User:zoe:x"],
        "host": [
            "10.0.0.1",
            "10.0.0.0/8",
            "10.0.0.0/33",
            "10.0.0.1/8",
            "x/8",
            "::1",
            "fe80::/10",
            "a host",
            "",
        ],
        "operation": [2, 15],
        "permission_type": [2],
    }.items():
        for value in values:
            asked = CreateAclsRequest(creations=[made(**{**fine, field: value})])
            side.ask(f"create {field}={side.bare(value)}", asked, 3)
    cluster_name = {**fine, "resource_type": 4}
    side.ask("create another cluster", CreateAclsRequest(creations=[made(**cluster_name)]), 3)
    twice = CreateAclsRequest(creations=[made(**fine), made(**fine), made(**{**fine, "principal": "x"})])
    for version in every_version(ApiKey.CREATE_ACLS):
        side.ask(f"create twice, v{version}", twice, version)
    side.settle()

    every = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": "User:zoe",
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    for title, chosen in {
        "all of zoe": {},
        "of nobody": {"principal_filter": "User:nobody"},
        "literal": {"pattern_type_filter": 3, "resource_name_filter": side.name("a")},
        "prefixed": {"pattern_type_filter": 4},
        "match": {"pattern_type_filter": 2, "resource_name_filter": side.name("a") + "x"},
        "any pattern": {"resource_name_filter": side.name("a")},
        "of a host": {"host_filter": "10.0.0.1"},
        "denied": {"permission_type": 2},
        "an operation": {"operation": 2},
    }.items():
        for version in every_version(ApiKey.DESCRIBE_ACLS):
            if version < 3 and not chosen:
                continue
            side.ask(
                f"describe {title}, v{version}",
                DescribeAclsRequest(**{**every, **chosen}),
                version,
                arranged=_sorted,
            )
        removed = DeleteAclsRequest.DeleteAclsFilter(**{**every, **chosen})
        if title == "of nobody":
            for version in every_version(ApiKey.DELETE_ACLS):
                side.ask(f"delete {title}, v{version}", DeleteAclsRequest(filters=[removed]), version)
    both = [
        DeleteAclsRequest.DeleteAclsFilter(**{**every, **chosen})
        for chosen in (
            {"host_filter": "10.0.0.1"},
            {"resource_type_filter": 2, "host_filter": "10.0.0.1"},
            {"principal_filter": "User:nobody"},
        )
    ]
    side.ask("delete, several", DeleteAclsRequest(filters=both), 3, arranged=_sorted)


def _without_configs(answer: Any) -> None:
    """Drop config values, which are compared elsewhere, and ids of topics that are not created."""
    for topic in answer.topics:
        topic.topic_id = ZERO_UUID
        if topic.configs:
            topic.configs = topic.configs[:1]
            topic.configs[0].config_source = 0
            topic.configs[0].name = topic.configs[0].value = ""


def _by_resource(answer: Any) -> None:
    answer.responses.sort(key=lambda each: (each.resource_type, each.resource_name))


def _sorted(answer: Any) -> None:
    """Sort the answer: Kafka's order is that of its hash tables."""

    def key(each: Any) -> str:
        return repr(each)

    for resource in getattr(answer, "resources", ()):
        resource.acls.sort(key=key)
    for result in getattr(answer, "filter_results", ()):
        result.matching_acls.sort(key=key)
    getattr(answer, "resources", []).sort(key=key)


# --- named twice ---


def named_twice(side: AclSide) -> None:
    """A name that is denied, given twice, beside one that is allowed."""
    ids = side.create(t=1, hidden=1)
    both = [side.name(each) for each in ("hidden", "t", "hidden")]
    data = build([Record(0, 1_000, b"k", b"v")])
    group = side.name("g")
    for each in ("g", "hidden"):
        side.coordinate(side.name(each))
    fetched = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000)
    listed = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-2)
    looked = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=0, leader_epoch=9)
    committed = OffsetCommitRequest.Partition(partition_index=0, committed_offset=1, committed_metadata="")
    produced = ProduceRequest.PartitionProduceData(index=0, records=data)
    cut = [DeleteRecordsRequest.DeleteRecordsPartition(partition_index=each, offset=0) for each in (0, 1)]
    forgotten = [OffsetDeleteRequest.Partition(partition_index=each) for each in (0, 1)]
    of_config = {"resource_type": ConfigType.TOPIC, "configuration_keys": ["cleanup.policy"]}
    asked: list[tuple[Message, int]] = [
        (MetadataRequest(topics=[MetadataRequest.Topic(name=each) for each in both]), 4),
        (MetadataRequest(topics=[MetadataRequest.Topic(name=each) for each in both]), 12),
        (
            DescribeTopicPartitionsRequest(
                topics=[DescribeTopicPartitionsRequest.TopicRequest(name=each) for each in both]
            ),
            0,
        ),
        (
            ProduceRequest(
                acks=1,
                timeout_ms=10_000,
                topic_data=[
                    ProduceRequest.TopicProduceData(name=each, partition_data=[produced]) for each in both
                ],
            ),
            9,
        ),
        (
            FetchRequest(
                max_wait_ms=0,
                min_bytes=0,
                topics=[FetchRequest.FetchTopic(topic=each, partitions=[fetched]) for each in both],
            ),
            12,
        ),
        (
            ListOffsetsRequest(
                replica_id=-1,
                topics=[ListOffsetsRequest.ListOffsetsTopic(name=each, partitions=[listed]) for each in both],
            ),
            last(ApiKey.LIST_OFFSETS),
        ),
        (
            OffsetForLeaderEpochRequest(
                replica_id=-1,
                topics=[
                    OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=each, partitions=[looked])
                    for each in both
                ],
            ),
            last(ApiKey.OFFSET_FOR_LEADER_EPOCH),
        ),
        (
            DeleteRecordsRequest(
                topics=[
                    DeleteRecordsRequest.DeleteRecordsTopic(name=each, partitions=cut[:count])
                    for each, count in zip(both, (1, 1, 2), strict=True)
                ],
                timeout_ms=10_000,
            ),
            last(ApiKey.DELETE_RECORDS),
        ),
        (
            DescribeProducersRequest(
                topics=[
                    DescribeProducersRequest.TopicRequest(name=each, partition_indexes=[0]) for each in both
                ]
            ),
            0,
        ),
        (
            OffsetCommitRequest(
                group_id=group,
                member_id="",
                topics=[OffsetCommitRequest.Topic(name=each, partitions=[committed]) for each in both],
            ),
            9,
        ),
        (
            OffsetFetchRequest(
                groups=[
                    OffsetFetchRequest.Group(
                        group_id=group,
                        topics=[
                            OffsetFetchRequest.Group.Topics(name=each, partition_indexes=[0]) for each in both
                        ],
                    )
                ]
            ),
            9,
        ),
        (
            OffsetFetchRequest(
                groups=[
                    OffsetFetchRequest.Group(
                        group_id=side.name(each),
                        topics=[OffsetFetchRequest.Group.Topics(name=both[1], partition_indexes=[0])],
                    )
                    for each in ("hidden", "g", "hidden")
                ]
            ),
            9,
        ),
        (
            OffsetDeleteRequest(
                group_id=group,
                topics=[
                    OffsetDeleteRequest.Topic(name=each, partitions=forgotten[:count])
                    for each, count in zip(both, (1, 1, 2), strict=True)
                ],
            ),
            0,
        ),
        (
            DescribeGroupsRequest(groups=[side.name(each) for each in ("hidden", "g", "hidden")]),
            last(ApiKey.DESCRIBE_GROUPS),
        ),
        (
            ConsumerGroupDescribeRequest(
                group_ids=[side.name(each) for each in ("hidden", "g", "hidden")],
                include_authorized_operations=False,
            ),
            last(ApiKey.CONSUMER_GROUP_DESCRIBE),
        ),
        (
            FindCoordinatorRequest(
                key_type=0, coordinator_keys=[side.name(each) for each in ("hidden", "g", "hidden")]
            ),
            4,
        ),
        (
            DescribeConfigsRequest(
                resources=[
                    DescribeConfigsRequest.DescribeConfigsResource(resource_name=each, **of_config)
                    for each in both
                ]
            ),
            last(ApiKey.DESCRIBE_CONFIGS),
        ),
        (
            IncrementalAlterConfigsRequest(
                resources=[
                    IncrementalAlterConfigsRequest.AlterConfigsResource(
                        resource_type=ConfigType.TOPIC, resource_name=each, configs=[]
                    )
                    for each in both
                ],
                validate_only=True,
            ),
            1,
        ),
        (
            CreateTopicsRequest(
                topics=[
                    CreateTopicsRequest.CreatableTopic(
                        name=f"new-{each}",
                        num_partitions=1,
                        replication_factor=1,
                        assignments=[],
                        configs=[],
                    )
                    for each in both
                ],
                timeout_ms=10_000,
                validate_only=True,
            ),
            7,
        ),
        (
            CreatePartitionsRequest(
                topics=[
                    CreatePartitionsRequest.CreatePartitionsTopic(name=each, count=2, assignments=None)
                    for each in both
                ],
                timeout_ms=10_000,
                validate_only=True,
            ),
            last(ApiKey.CREATE_PARTITIONS),
        ),
        (DeleteGroupsRequest(groups_names=[side.name(each) for each in ("hidden", "g", "hidden")]), 2),
        (DeleteTopicsRequest(topic_names=both, timeout_ms=10_000), 5),
        (
            DeleteTopicsRequest(
                topics=[DeleteTopicsRequest.DeleteTopicState(name=each, topic_id=ZERO_UUID) for each in both],
                timeout_ms=10_000,
            ),
            6,
        ),
        (
            DeleteTopicsRequest(
                topics=[
                    DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=ids[each])
                    for each in ("hidden", "t", "hidden")
                ],
                timeout_ms=10_000,
            ),
            6,
        ),
    ]
    rights = [Allowed(Operation.ALL, TOPIC, "t"), Allowed(Operation.ALL, GROUP, "g")]
    creates = Allowed(CREATE, TOPIC, "new-t")
    for title, acls in {"nothing": [], "one of them": [*rights, creates]}.items():
        with side.as_user("alice", *acls):
            for index, (request, version) in enumerate(asked):
                arranged = _without_configs if isinstance(request, CreateTopicsRequest) else _in_order
                side.ask(f"{index}, may {title}", request, version, but="host", arranged=arranged)


def _in_order(answer: Any) -> None:
    """Sort the lists: Kafka's hash tables have an order of their own."""
    for declared in type(answer).__fields__:
        value = getattr(answer, declared.name)
        if isinstance(value, list):
            value.sort(key=repr)


# --- where no ACL is found ---


def default_allow(side: AclSide) -> None:
    """allow.everyone.if.no.acl.found applies only to resources without any ACL."""
    side.create(free=1, bobs=1, prefixed_x=1)
    side.allow("bob", *on(READ, "bobs"), Allowed(READ, TOPIC, "prefixed", pattern=PatternType.PREFIXED))
    names = [side.name(name) for name in ("free", "bobs", "prefixed_x")]
    asked = MetadataRequest(
        topics=[MetadataRequest.Topic(name=name) for name in names],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
    )
    starting = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    until(lambda: side.quietly(starting, 4).error_code == 0, "producer ids")
    for title, acls in {
        "nothing": [],
        "one of bob's": on(DESCRIBE, "bobs"),
        "is denied": [denied(READ, "free")],
    }.items():
        with side.as_user("alice", *acls):
            side.ask(f"metadata, {title}", asked, 12, but="host")
            side.ask(f"producer id, {title}", starting, 4, but="producer_id")
            side.ask(
                f"groups, {title}", ListGroupsRequest(), 4, arranged=lambda answer: answer.groups.clear()
            )
    side.take_all("bob")


# --- told ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kafka() -> Iterator[ApacheKafka]:
    with kafka_with_acls() as kafka:
        yield kafka


def test_apache_kafka_allows_what_no_acl_is_about_as_muster_does() -> None:
    with kafka_with_acls(allow_everyone_if_no_acl_found="true") as kafka:
        _assert_told_alike(default_allow, kafka, allow_everyone_if_no_acl_found=True)


@pytest.mark.parametrize(
    "story",
    [
        everything_denied,
        metadata,
        topic_partitions,
        topics,
        records,
        fetch_sessions,
        offsets,
        groups,
        transactions,
        consumer_groups,
        regular_expressions,
        configs,
        cluster,
        acls,
        named_twice,
    ],
)
def test_apache_kafka_answers_as_muster_does(story: AclStory, kafka: ApacheKafka) -> None:
    _assert_told_alike(story, kafka)


def test_muster_acls_manages_those_of_apache_kafka(
    kafka: ApacheKafka, capfd: pytest.CaptureFixture[str]
) -> None:
    muster = Muster(kafka.bootstrap, capfd)
    words = ("yan", "--consume", "orders", "--group", "bill", "--prefixed", "--host", "10.0.0.0/8")
    yans = [
        f"User:yan may read every {kind} that begins with {name} from 10.0.0.0/8"
        for kind, name in (("topic", "orders"), ("group", "bill"))
    ]
    assert muster.done("acls", "allow", *words).splitlines() == yans
    assert (
        muster.done("acls", "deny", "yan", "--operation", "all", "--cluster")
        == "User:yan may not do anything with the cluster\n"
    )

    def listed() -> bool:
        return len(muster("acls", "list", "--user", "yan", "--output", "json").json) == 3

    until(listed, "ACLs of yan")
    found = muster("acls", "list", "--topic", "orders-2", "--user", "yan", "--output", "json").json
    assert [each["resource_name"] for each in found] == ["orders"]
    assert muster.done("acls", "remove", *words).splitlines() == [f"removed: {each}" for each in yans]
    removed = muster.done("acls", "remove", "yan", "--all")
    assert removed == "removed: User:yan may not do anything with the cluster\n"


def _assert_told_alike(story: AclStory, kafka: ApacheKafka, **settings: Any) -> None:
    host, port = kafka.bootstrap_of("SASL_PLAINTEXT").split(":")
    # A lease that expires on a busy machine starts another leader epoch.
    settings |= {"lease_term_ms": 600_000, "group_initial_rebalance_delay_ms": 0}
    with Broker(security="SASL_PLAINTEXT", super_users=f"User:{USER}", **settings) as broker:
        theirs = AclSide((kafka.host, kafka.port), (host, int(port)), shared=True)
        here = ("127.0.0.1", broker.port)
        password = broker.client_settings("confluent-kafka")["sasl.password"]
        ours = AclSide(here, here, shared=False, root=USER, password=password)
        ours.make_users()
        assert_as_listed(name_of(story), told_apart(story, theirs, ours))
