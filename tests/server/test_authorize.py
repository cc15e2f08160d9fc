"""The ACL gate: every API declares what it needs, and nobody gets past it. `tests/kafka/test_acls.py`
compares the answers of each API with Apache Kafka's."""

from __future__ import annotations

import asyncio
import io
import json
import shlex
from typing import Any
from uuid import UUID, uuid4

import pytest

from muster.coordinator import command_line
from muster.coordinator.base import log
from muster.coordinator.base.clock import ManualClock
from muster.coordinator.base.step import RequestContext
from muster.coordinator.config import Settings
from muster.coordinator.security.acls import Filter, acl
from muster.coordinator.server import authorizer
from muster.coordinator.server.api import Api
from muster.coordinator.server.apis import APIS
from muster.coordinator.server.authorizer import Authorizer, ClientRights, super_users
from muster.coordinator.server.broker import Broker
from muster.coordinator.server.config_rows import ConfigRows
from muster.coordinator.server.kept_acls import KeptAcls
from muster.coordinator.server.needs import Needs
from muster.coordinator.server.rights import UNRESTRICTED
from muster.coordinator.storage.memory import MemoryStore
from muster.coordinator.storage.store import BrokerConfigsRow
from muster.protocol.api import ApiKey, versions
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.acls import (
    CreateAclsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from muster.protocol.messages.classic_group import HeartbeatRequest, JoinGroupRequest
from muster.protocol.messages.cluster import DescribeLogDirsResponse
from muster.protocol.messages.consumer_group import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
)
from muster.protocol.messages.data import FetchRequest, ListOffsetsRequest, ProduceRequest
from muster.protocol.messages.group_admin import ListGroupsRequest
from muster.protocol.messages.metadata import DescribeTopicPartitionsRequest, MetadataRequest
from muster.protocol.messages.offsets import OffsetCommitRequest, OffsetFetchRequest
from muster.protocol.messages.topics import DeleteTopicsRequest
from muster.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
)
from muster.protocol.types import ZERO_UUID
from tests.kafka.compared import error_codes
from tests.server.conftest import StartBrokers
from tests.server.test_api_versions import smallest_request
from tests.server.test_offsets import codes, commit
from tests.support import principals
from tests.support.each import each
from tests.support.facts import until
from tests.support.principals import know_users
from tests.support.wire import Wire

DENIED = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
FOR_EVERYONE = {
    ApiKey.API_VERSIONS,
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE,
    ApiKey.CREATE_DELEGATION_TOKEN,
    ApiKey.RENEW_DELEGATION_TOKEN,
    ApiKey.EXPIRE_DELEGATION_TOKEN,
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
    ApiKey.DESCRIBE_CLUSTER,
}
THEY_LEAVE_OUT = {ApiKey.METADATA, ApiKey.LIST_GROUPS, ApiKey.LIST_TRANSACTIONS}
"""Their smallest requests name nothing."""

BY_ID_FROM = {ApiKey.PRODUCE: 13, ApiKey.FETCH: 13}


@pytest.fixture
async def broker(start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch) -> Broker:
    know_users(monkeypatch)
    (broker,) = (await start_brokers(super_users="User:root;admin")).brokers
    for name in ("t", "secret"):
        await broker.catalogue.create(name, partitions=1)
    return broker


def every_version(api_key: int) -> range:
    first, last = versions(api_key)
    return range(first, last + 1)


async def as_user(broker: Broker, name: str = "alice") -> Wire:
    return await principals.as_user(broker.port, name)


def creation(
    operation: Operation,
    type: ResourceType,
    name: str,
    *,
    principal: str = "User:alice",
    permission: Permission = Permission.ALLOW,
    pattern: PatternType = PatternType.LITERAL,
    host: str = "*",
) -> CreateAclsRequest.AclCreation:
    return CreateAclsRequest.AclCreation(
        resource_type=type,
        resource_name=name,
        resource_pattern_type=pattern,
        principal=principal,
        host=host,
        operation=operation,
        permission_type=permission,
    )


async def give(broker: Broker, *creations: CreateAclsRequest.AclCreation) -> None:
    async with await as_user(broker, "admin") as wire:
        answer = await wire.call(CreateAclsRequest(creations=list(creations)), 3)
    assert [result.error_code for result in answer.results] == [0] * len(creations)


async def take_all(broker: Broker) -> None:
    everything = DeleteAclsRequest.DeleteAclsFilter(
        resource_type_filter=1,
        resource_name_filter=None,
        pattern_type_filter=1,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )
    async with await as_user(broker, "admin") as wire:
        assert (await wire.call(DeleteAclsRequest(filters=[everything]), 3)).filter_results[0].matching_acls


READ_T = creation(Operation.READ, ResourceType.TOPIC, "t")
READ_G = creation(Operation.READ, ResourceType.GROUP, "g")


# --- declarations -------------------------------------------------------------------------------------------


def test_every_api_declares_what_it_needs() -> None:
    assert all(isinstance(api.needs, Needs) for api in APIS.values())
    with pytest.raises(TypeError, match="needs"):
        Api(ApiKey.HEARTBEAT, lambda *_: None)  # type: ignore[call-arg]


def test_which_need_nothing_that_is_declared() -> None:
    assert {key for key, api in APIS.items() if api.needs == Needs()} == {
        *FOR_EVERYONE,
        *THEY_LEAVE_OUT,
        ApiKey.DELETE_TOPICS,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    }


@each("api_key", sorted(APIS.keys() - FOR_EVERYONE - THEY_LEAVE_OUT), ids=lambda key: key.name)
async def test_who_has_no_rights_is_denied_every_api_and_changes_nothing(
    broker: Broker, api_key: ApiKey
) -> None:
    topics = list(broker.catalogue.topics())
    for version in every_version(api_key):
        async with await as_user(broker, "nobody") as wire:
            answer = await wire.call(smallest_request(api_key, version), version)
        found = set(error_codes(answer)) - {0}
        if version >= BY_ID_FROM.get(api_key, version + 1):
            assert found == {ErrorCode.UNKNOWN_TOPIC_ID}  # the smallest request has no id
            continue
        assert found or (api_key, answer) == (ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsResponse(results=[]))
        assert found <= DENIED, f"v{version}"
    assert list(broker.catalogue.topics()) == topics
    assert not [group async for group in _groups(broker)]


async def _groups(broker: Broker) -> Any:
    async with await as_user(broker, "admin") as wire:
        for group in (await wire.call(ListGroupsRequest(), 4)).groups:
            yield group.group_id


@each("api_key", sorted(APIS), ids=lambda key: key.name)
async def test_a_super_user_is_denied_nothing(broker: Broker, api_key: ApiKey) -> None:
    if api_key == ApiKey.DELETE_TOPICS:
        return  # deletes the topic between versions
    for version in every_version(api_key):
        async with await as_user(broker, "admin") as wire:
            answer = await wire.call(smallest_request(api_key, version), version)
        assert not DENIED & set(error_codes(answer))


def test_how_super_users_are_written() -> None:
    assert super_users("User:a; b ;CN=x;User:CN=y,O=z") == {"User:a", "User:b", "User:CN=x", "User:CN=y,O=z"}


def test_a_broker_that_has_not_read_its_acls_denies() -> None:
    """Even if it would allow resources without ACLs."""

    settings = Settings(super_users="admin", allow_everyone_if_no_acl_found=True)
    made = Authorizer(ConfigRows(MemoryStore.__new__(MemoryStore)), settings, ManualClock())

    def allowed(principal: str) -> bool:
        rights = made.rights(RequestContext(0, "", "/127.0.0.1", 1, principal=principal))
        return rights.may(Operation.READ, ResourceType.TOPIC, "t")

    assert allowed("User:admin")
    assert not allowed("User:alice")
    made.acls._read({})
    assert allowed("User:alice")


# --- what is decided ----------------------------------------------------------------------------------------


async def test_rights_taken_away_end_a_member_s_heartbeats(broker: Broker) -> None:
    """They were answered from what was remembered of the first one."""
    await give(broker, READ_G, creation(Operation.READ, ResourceType.TOPIC, "t", principal="User:bob"))
    async with await as_user(broker) as wire:
        protocols = [JoinGroupRequest.Protocol(name="range", metadata=b"")]
        join = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            member_id="",
            protocol_type="consumer",
            protocols=protocols,
        )
        join.member_id = (await wire.call(join, 5)).member_id
        joined = await wire.call(join, 5)
        assert joined.error_code == 0, joined
        beat = HeartbeatRequest(group_id="g", generation_id=joined.generation_id, member_id=joined.member_id)
        for _ in range(3):
            assert (await wire.call(beat, 4)).error_code in (0, ErrorCode.REBALANCE_IN_PROGRESS)
        await take_all(broker)
        for _ in range(3):
            assert (await wire.call(beat, 4)).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        await give(broker, READ_G)
        assert (await wire.call(beat, 4)).error_code in (0, ErrorCode.REBALANCE_IN_PROGRESS)


async def test_who_authenticates_anew_has_nothing_remembered(broker: Broker) -> None:
    await give(broker, creation(Operation.READ, ResourceType.GROUP, "g", principal="User:ANONYMOUS"))
    beat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    async with await Wire.connect(broker.port) as wire:
        for _ in range(2):
            assert (await wire.call(beat, 4)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        (connection,) = broker.connections.open.values()
        assert connection.session is not None
        connection.session.let_in("User:mallory")
        assert (await wire.call(beat, 4)).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED


async def test_a_commit_of_some_topics_keeps_the_others(broker: Broker) -> None:
    await give(broker, READ_G, READ_T)
    async with await as_user(broker) as wire:
        answer = await wire.call(commit(("secret", 0, 1), ("t", 0, 2), ("absent", 0, 3)), 9)
        assert {topic.name: topic.partitions[0].error_code for topic in answer.topics} == {
            "t": 0,
            "secret": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            "absent": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        }
    async with await as_user(broker, "admin") as wire:
        fetched = OffsetFetchRequest.Group(group_id="g", topics=None)
        (group,) = (await wire.call(OffsetFetchRequest(groups=[fetched]), 8)).groups
        assert [topic.name for topic in group.topics] == ["t"]


async def test_what_is_refused_is_not_told_again_in_later_answers(broker: Broker) -> None:
    """The group may give the same answer to the next commit."""
    await give(broker, READ_G, READ_T)
    async with await as_user(broker) as wire:
        for version in (8, 9, 9, 9):
            answer = await wire.call(commit(("secret", 0, 1), ("t", 0, 2)), version)
            assert len(answer.topics) == 2
        assert codes(await wire.call(commit(("t", 0, 2)), 9)) == [0]


@pytest.mark.parametrize("count", [1, 1_000, 1_001, 5_000])
async def test_however_many_are_named_each_is_decided(broker: Broker, count: int) -> None:
    await give(broker, creation(Operation.DESCRIBE, ResourceType.TOPIC, "even", pattern=PatternType.PREFIXED))
    names = [f"{('even', 'odd')[number % 2]}-{number}" for number in range(count)]
    part = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
    asked = ListOffsetsRequest(
        replica_id=-1,
        topics=[ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=[part]) for name in names],
    )
    async with await as_user(broker) as wire:
        answer = await wire.call(asked, 7)
    denied, missing = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert {topic.name: topic.partitions[0].error_code for topic in answer.topics} == {
        name: missing if name.startswith("even") else denied for name in names
    }
    assert len(answer.topics) == count


class LookUps:
    """Counts the rights that are asked for, and the most in a turn of the loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.total = self.most = self._now = 0
        may = ClientRights.may

        def counted(rights: ClientRights, *what: Any, **how: Any) -> bool:
            if not self._now:
                asyncio.get_running_loop().call_soon(self._next_turn)
            self.total += 1
            self._now += 1
            self.most = max(self.most, self._now)
            return may(rights, *what, **how)

        monkeypatch.setattr(ClientRights, "may", counted)

    def _next_turn(self) -> None:
        self._now = 0


SEEN = creation(Operation.ALL, ResourceType.TOPIC, "seen", pattern=PatternType.PREFIXED)
MANY = 5_000


def beat_with(names: list[str]) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id=str(uuid4()),
        member_epoch=0,
        rebalance_timeout_ms=1_000,
        subscribed_topic_names=names,
        topic_partitions=[],
    )


def fetch_of(*groups: list[str]) -> OffsetFetchRequest:
    Topics = OffsetFetchRequest.Group.Topics
    return OffsetFetchRequest(
        groups=[
            OffsetFetchRequest.Group(
                group_id="g", topics=[Topics(name=name, partition_indexes=[0]) for name in names]
            )
            for names in groups
        ]
    )


def adding(names: list[str], partitions: list[int]) -> AddPartitionsToTxnRequest:
    asked = [
        AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=name, partitions=partitions) for name in names
    ]
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="x",
        v3_and_below_producer_id=1,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=asked,
    )


@pytest.mark.parametrize(
    ("request_of", "version", "found"),
    [
        (beat_with, 1, set()),
        (lambda names: beat_with([*names, "hidden"]), 1, {ErrorCode.TOPIC_AUTHORIZATION_FAILED}),
        (fetch_of, 9, set()),
        (
            lambda names: fetch_of([f"hidden{name}" for name in names]),
            9,
            {ErrorCode.TOPIC_AUTHORIZATION_FAILED},
        ),
        (lambda names: fetch_of(*(names[at : at + 100] for at in range(0, MANY, 100))), 9, set()),
        (
            lambda names: OffsetFetchRequest(
                group_id="g",
                topics=[OffsetFetchRequest.Topic(name=name, partition_indexes=[0]) for name in names],
            ),
            7,
            set(),
        ),
        (lambda names: adding(names, []), 3, set()),
        (lambda names: adding(names, [0]), 3, {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}),
    ],
    ids=["beat", "beat denied", "fetch", "fetch denied", "fetch groups", "fetch v7", "add none", "add"],
)
async def test_however_many_are_named_no_turn_of_the_loop_decides_on_all(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, request_of: Any, version: int, found: set[int]
) -> None:
    await give(broker, SEEN, READ_G, creation(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "x"))
    look_ups = LookUps(monkeypatch)
    async with await as_user(broker) as wire:
        answer = await wire.call(request_of([f"seen{number}" for number in range(MANY)]), version)
    assert set(error_codes(answer)) - {0} == found
    assert look_ups.total >= MANY
    assert look_ups.most <= 1_000


async def test_however_many_topics_are_told_of_no_turn_of_the_loop_decides_on_all(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = sorted(f"seen{number}" for number in range(1_500))
    for name in [*names, "hidden"]:
        await broker.catalogue.create(name, partitions=1)
    begin = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000)
    group_ids = ["offsets", "offsets2", "offsets3"]
    Topic, Partition = OffsetCommitRequest.Topic, OffsetCommitRequest.Partition
    committed = [
        Topic(
            name=name,
            partitions=[Partition(partition_index=0, committed_offset=1, committed_metadata="")],
        )
        for name in [*names, "hidden"]
    ]
    async with await as_user(broker, "admin") as wire:
        begun = await wire.call(begin, 4)
        add = adding([*names, "hidden"], [0])
        add.v3_and_below_producer_id = begun.producer_id
        add.v3_and_below_producer_epoch = begun.producer_epoch
        commits = [
            OffsetCommitRequest(group_id=group_id, member_id="", topics=committed) for group_id in group_ids
        ]
        for answer in (
            await wire.call(add, 3),
            *[await wire.call(commit_all, 8) for commit_all in commits],
            await wire.call(beat_with(names), 1),
        ):
            assert set(error_codes(answer)) == {0}
    await give(
        broker,
        SEEN,
        READ_G,
        creation(Operation.READ, ResourceType.GROUP, "offsets", pattern=PatternType.PREFIXED),
        creation(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "x"),
    )
    look_ups = LookUps(monkeypatch)
    groups = [OffsetFetchRequest.Group(group_id=group_id, topics=None) for group_id in group_ids]
    describe_groups = ConsumerGroupDescribeRequest(group_ids=["g"], include_authorized_operations=False)
    async with await as_user(broker) as wire:
        fetched = await wire.call(OffsetFetchRequest(groups=groups[:1]), 9)
        assert sorted(each.name for each in fetched.groups[0].topics) == names
        fetched = await wire.call(OffsetFetchRequest(group_id="offsets", topics=None), 7)
        assert sorted(each.name for each in fetched.topics) == names
        fetched = await wire.call(OffsetFetchRequest(groups=groups), 9)
        assert [len(each.topics) for each in fetched.groups] == [len(names)] * 3
        assert look_ups.total >= 5 * len(names)
        most = {"fetch": look_ups.most}
        look_ups.most = 0
        described = await wire.call(describe_groups, 1)
        assert [each.error_code for each in described.groups] == [0]
        assert {len(each.members[0].assignment.topic_partitions) for each in described.groups} == {len(names)}
        most["group"], look_ups.most = look_ups.most, 0
        told = await wire.call(DescribeTransactionsRequest(transactional_ids=["x"]), 0)
        assert [sorted(topic.topic for topic in each.topics) for each in told.transaction_states] == [names]
        most["transaction"] = look_ups.most
    assert {what: count for what, count in most.items() if count > 1_000} == {}


@pytest.mark.parametrize("count", [1_000, 1_001, MANY])
async def test_a_heartbeat_needs_every_topic_that_it_names(broker: Broker, count: int) -> None:
    await give(broker, SEEN, READ_G)
    names = [f"seen{number}" for number in range(count)]
    async with await as_user(broker) as wire:
        for hidden in (0, count // 2, count - 1):
            denied = await wire.call(beat_with([*names[:hidden], "hidden", *names[hidden + 1 :]]), 1)
            assert denied.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert not [group async for group in _groups(broker)], "the denied ones joined none"
        assert (await wire.call(beat_with(names), 1)).error_code == 0


async def test_a_topic_id_is_authorized_by_the_name_it_stands_for(broker: Broker) -> None:
    await give(broker, READ_G, READ_T)
    secret, t = broker.catalogue.named("secret").topic_id, broker.catalogue.named("t").topic_id
    async with await as_user(broker) as wire:
        answer = await wire.call(commit((secret, 0, 1), (t, 0, 2), (uuid4(), 0, 3)), 10)
        found = {topic.topic_id: topic.partitions[0].error_code for topic in answer.topics}
        assert (found.pop(secret), found.pop(t)) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0)
        assert list(found.values()) == [ErrorCode.UNKNOWN_TOPIC_ID]
        asked = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            topics=[
                FetchRequest.FetchTopic(
                    topic_id=each,
                    partitions=[
                        FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)
                    ],
                )
                for each in (secret, t)
            ],
        )
        answer = await wire.call(asked, 13)
        assert {topic.topic_id: topic.partitions[0].error_code for topic in answer.responses} == {
            secret: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            t: 0,
        }
        told = await wire.call(
            MetadataRequest(topics=[MetadataRequest.Topic(topic_id=secret, name=None)]), 12
        )
        assert [(topic.error_code, topic.name, topic.topic_id) for topic in told.topics] == [
            (ErrorCode.TOPIC_AUTHORIZATION_FAILED, None, secret)
        ]


async def test_a_commit_by_an_id_that_is_not_known_yet_is_not_remembered(broker: Broker) -> None:
    """The id may become known, and stand for a topic that the client may not read."""
    await give(broker, READ_G)
    catalogue = broker.catalogue
    topic_id = catalogue.named("secret").topic_id
    known = catalogue._by_id.pop(topic_id)
    async with await as_user(broker) as wire:
        for _ in range(2):
            assert codes(await wire.call(commit((topic_id, 0, 1)), 10)) == [ErrorCode.UNKNOWN_TOPIC_ID]
        catalogue._by_id[topic_id] = known
        assert codes(await wire.call(commit((topic_id, 0, 1)), 10)) == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]


async def test_internal_topics_are_topics_like_others(broker: Broker) -> None:
    async with await as_user(broker) as wire:
        listed = MetadataRequest(topics=None)
        assert (await wire.call(listed, 12)).topics == []
        asked = MetadataRequest(topics=[MetadataRequest.Topic(name="__consumer_offsets")])
        (told,) = (await wire.call(asked, 12)).topics
        assert told.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    await give(broker, creation(Operation.DESCRIBE, ResourceType.TOPIC, "__", pattern=PatternType.PREFIXED))
    async with await as_user(broker) as wire:
        assert {topic.name for topic in (await wire.call(listed, 12)).topics} == {
            "__consumer_offsets",
            "__group_events",
            "__transaction_state",
        }


@pytest.mark.parametrize("name", ["*", "t\u0301", "Т", "T", "t ", "t\u200b", "ｔ", "t*"])
async def test_odd_names_open_nothing(broker: Broker, name: str) -> None:
    for pattern in (PatternType.LITERAL, PatternType.PREFIXED):
        if (name, pattern) != ("*", PatternType.LITERAL):
            await give(broker, creation(Operation.ALL, ResourceType.TOPIC, name, pattern=pattern))
            await give(broker, creation(Operation.ALL, ResourceType.GROUP, name, pattern=pattern))
    async with await as_user(broker) as wire:
        assert (await wire.call(MetadataRequest(topics=None), 12)).topics == []
        beat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
        assert (await wire.call(beat, 4)).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED


async def test_a_user_called_star_is_not_everyone(broker: Broker) -> None:
    await give(broker, READ_G)
    beat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    async with await as_user(broker, "*") as wire:
        assert (await wire.call(beat, 4)).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED


async def test_acks_0_without_the_right_closes(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(broker.unserved, "tell", lambda host, cause, client_id: told.append(cause.detail))
    await give(broker, creation(Operation.WRITE, ResourceType.TOPIC, "t"))
    for names in (["secret"], ["t", "secret"]):
        async with await as_user(broker) as wire:
            asked = ProduceRequest(
                acks=0,
                timeout_ms=1_000,
                topic_data=[
                    ProduceRequest.TopicProduceData(
                        name=name, partition_data=[ProduceRequest.PartitionProduceData(index=0, records=None)]
                    )
                    for name in names
                ],
            )
            await wire.send(asked, 9)
            assert await wire.closed()
        assert told.pop().startswith("secret: TOPIC_AUTHORIZATION_FAILED")


async def test_groups_that_may_not_be_seen_are_left_out(broker: Broker) -> None:
    async with await as_user(broker, "admin") as wire:
        for group_id in ("g", "h"):
            assert codes(await wire.call(commit(("t", 0, 1), group_id=group_id), 9)) == [0]
    async with await as_user(broker) as wire:
        listing = ListGroupsRequest()
        assert (await wire.call(listing, 4)).groups == []
        await give(broker, creation(Operation.DESCRIBE, ResourceType.GROUP, "h"))
        assert [group.group_id for group in (await wire.call(listing, 4)).groups] == ["h"]
        await give(broker, creation(Operation.DESCRIBE, ResourceType.CLUSTER, "kafka-cluster"))
        assert {group.group_id for group in (await wire.call(listing, 4)).groups} == {"g", "h"}


async def test_however_many_there_are_no_turn_of_the_loop_decides_on_all(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 600
    async with await as_user(broker, "admin") as wire:
        for number in range(count):
            assert codes(await wire.call(commit(("t", 0, 1), group_id=f"g{number}"), 9)) == [0]
            begin = InitProducerIdRequest(transactional_id=f"x{number}", transaction_timeout_ms=1_000)
            assert (await wire.call(begin, 4)).error_code == 0
    prefixed = PatternType.PREFIXED
    await give(
        broker,
        creation(Operation.DESCRIBE, ResourceType.GROUP, "g1", pattern=prefixed),
        creation(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, "x1", pattern=prefixed),
    )
    look_ups = LookUps(monkeypatch)
    seen = sum(str(number).startswith("1") for number in range(count))
    async with await as_user(broker) as wire:
        assert len((await wire.call(ListGroupsRequest(), 4)).groups) == seen
        assert (
            len(
                (
                    await wire.call(ListTransactionsRequest(state_filters=[], producer_id_filters=[]), 1)
                ).transaction_states
            )
            == seen
        )
    assert look_ups.total >= 2 * count
    assert look_ups.most < count


async def test_a_hidden_and_a_missing_topic_look_alike(broker: Broker) -> None:
    async with await as_user(broker) as wire:
        for version in (1, 9, 12):
            named = [MetadataRequest.Topic(name=name) for name in ("secret", "absent")]
            asked = MetadataRequest(topics=named, allow_auto_topic_creation=version < 4)
            hidden, missing = sorted((await wire.call(asked, version)).topics, key=lambda topic: topic.name)[
                ::-1
            ]
            hidden.name = missing.name = ""
            assert hidden == missing
            assert hidden.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        deleted = [
            DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=ZERO_UUID)
            for name in ("secret", "absent")
        ]
        answer = await wire.call(DeleteTopicsRequest(topics=deleted, timeout_ms=1_000), 6)
        hidden, missing = answer.responses
        hidden.name = missing.name = ""
        assert hidden == missing
        beat = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id=str(uuid4()),
            member_epoch=0,
            rebalance_timeout_ms=1_000,
            topic_partitions=[],
        )
        await give(broker, READ_G)
        for name in ("secret", "absent"):
            beat.subscribed_topic_names = [name]
            assert (await wire.call(beat, 0)).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert broker.catalogue.by_name("secret") is not None
    assert broker.catalogue.by_name("absent") is None


async def test_topics_that_may_not_be_seen_are_not_looked_for(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take longer if they do not exist."""
    reads = 0
    read_topics = broker.read_topics

    async def counted() -> None:
        nonlocal reads
        reads += 1
        await read_topics()

    monkeypatch.setattr(broker, "read_topics", counted)
    State = DeleteTopicsRequest.DeleteTopicState
    hidden = State(name="secret", topic_id=ZERO_UUID)
    missing = State(name="absent", topic_id=ZERO_UUID)
    unknown = State(name=None, topic_id=uuid4())

    async def reads_to_delete(*topics: DeleteTopicsRequest.DeleteTopicState) -> int:
        before = reads
        await wire.call(DeleteTopicsRequest(topics=list(topics), timeout_ms=30_000), 6)
        return reads - before

    async with await as_user(broker) as wire:
        assert await reads_to_delete(hidden) == await reads_to_delete(missing) == 0
        assert await reads_to_delete(unknown) == 0
        assert await reads_to_delete(hidden, missing, unknown) == 0
        await give(broker, creation(Operation.DESCRIBE, ResourceType.TOPIC, "absent"))
        assert await reads_to_delete(hidden, missing) == 1
        assert await reads_to_delete(hidden, unknown) == 0
        await give(broker, creation(Operation.DELETE, ResourceType.TOPIC, "t"))
        assert await reads_to_delete(hidden, unknown) == 1
        await take_all(broker)
        await give(broker, creation(Operation.DELETE, ResourceType.CLUSTER, "kafka-cluster"))
        assert await reads_to_delete(missing) == await reads_to_delete(unknown) == 1
    assert broker.catalogue.by_name("secret") is not None


async def test_an_id_does_not_tell_which_name_it_stands_for(broker: Broker) -> None:
    ids = {name: broker.catalogue.named(name).topic_id for name in ("secret", "t")}
    state = DeleteTopicsRequest.DeleteTopicState

    async def refused(topic_id: UUID) -> list[tuple[str | None, int]]:
        named = [state(name="secret", topic_id=ZERO_UUID), state(name=None, topic_id=topic_id)]
        async with await as_user(broker) as wire:
            answer = await wire.call(DeleteTopicsRequest(topics=named, timeout_ms=1_000), 6)
        return [(each.name, each.error_code) for each in answer.responses]

    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert await refused(ids["secret"]) == await refused(ids["t"]) == [("secret", denied), (None, denied)]
    await give(broker, creation(Operation.DELETE, ResourceType.TOPIC, "secret"))
    assert await refused(ids["secret"]) == [("secret", ErrorCode.INVALID_REQUEST)]


async def test_a_cursor_may_be_at_a_topic_that_is_hidden_since(broker: Broker) -> None:
    for name in ("a", "b", "c"):
        await broker.catalogue.create(name, partitions=2)
    await give(broker, *(creation(Operation.DESCRIBE, ResourceType.TOPIC, name) for name in ("a", "c")))
    request = DescribeTopicPartitionsRequest(
        topics=[DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in ("secret", "c", "b", "a")],
        cursor=DescribeTopicPartitionsRequest.Cursor(topic_name="b", partition_index=1),
    )
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    async with await as_user(broker) as wire:
        answer = await wire.call(request, 0)
        told = [(each.name, each.error_code, len(each.partitions)) for each in answer.topics]
        assert told == [("c", 0, 2), ("b", denied, 0), ("secret", denied, 0)]
        assert answer.topics[1].topic_id == ZERO_UUID
        request.cursor.topic_name = "c"
        answer = await wire.call(request, 0)
        told = [(each.name, each.error_code, len(each.partitions)) for each in answer.topics]
        assert told == [("c", 0, 1), ("secret", denied, 0)]  # as in Kafka, nothing of those before it


async def test_a_regular_expression_stands_for_what_its_member_may_see(broker: Broker) -> None:
    await give(broker, READ_G, READ_T)
    beat = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id=str(uuid4()),
        member_epoch=0,
        rebalance_timeout_ms=1_000,
        topic_partitions=[],
        subscribed_topic_names=[],
        subscribed_topic_regex=".*",
    )
    assigned: set[Any] = set()
    async with await as_user(broker) as wire:
        answer = await wire.call(beat, 1)
        assert answer.error_code == 0
        while not assigned:
            beat.member_epoch = answer.member_epoch
            beat.subscribed_topic_names = beat.subscribed_topic_regex = None
            beat.topic_partitions = None
            answer = await wire.call(beat, 1)
            assert answer.error_code == 0
            if answer.assignment is not None:
                assigned |= {each.topic_id for each in answer.assignment.topic_partitions}
    assert assigned == {broker.catalogue.named("t").topic_id}


async def test_what_is_switched_off_says_so_whatever_one_may_do(
    start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    know_users(monkeypatch)
    settings = {"super_users": "admin", "group_coordinator_rebalance_protocols": ("classic",)}
    (broker,) = (await start_brokers(**settings)).brokers
    async with await as_user(broker, "nobody") as wire:
        for api_key in (ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE):
            answer = await wire.call(smallest_request(api_key, 1), 1)
            assert set(error_codes(answer)) - {0} == {ErrorCode.UNSUPPORTED_VERSION}


async def test_operations_told_are_those_that_are_allowed(broker: Broker) -> None:
    await give(broker, READ_T)
    asked = MetadataRequest(
        topics=[MetadataRequest.Topic(name="t")],
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    async with await as_user(broker) as wire:
        answer = await wire.call(asked, 8)
        read_and_describe = 1 << Operation.READ | 1 << Operation.DESCRIBE
        assert answer.topics[0].topic_authorized_operations == read_and_describe
        assert answer.cluster_authorized_operations == 0
    async with await as_user(broker, "root") as wire:
        answer = await wire.call(asked, 8)
        told = answer.topics[0].topic_authorized_operations, answer.cluster_authorized_operations
        assert told == tuple(
            UNRESTRICTED.operations(type) for type in (ResourceType.TOPIC, ResourceType.CLUSTER)
        )


# --- the ACLs themselves ------------------------------------------------------------------------------------


async def test_acls_that_cannot_be_read_leave_the_others_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[str] = []
    monkeypatch.setattr(log.Logger, "error", lambda _, event, **fields: logged.append(fields["row"]))
    store = MemoryStore()
    await store.open()
    key = '["User:a", "*", "READ", "ALLOW"]'
    unreadable = ["acl:odd", "acl:PLANET:LITERAL:t", "acl:TOPIC:REGEX:t"]
    for row in [*unreadable, "acl:TOPIC:LITERAL:t"]:
        await store.update_broker_configs(BrokerConfigsRow(row, {key: ""}), expected={})
    rows = ConfigRows(store)
    acls = KeptAcls(rows, default=False)
    await rows.refresh()
    await rows.change("1", lambda _: {"a": "b"})
    assert acls.in_force is not None
    readable = acl(
        ResourceType.TOPIC, PatternType.LITERAL, "t", "User:a", "*", Operation.READ, Permission.ALLOW
    )
    assert list(acls.in_force) == [readable]
    assert sorted(logged) == sorted(unreadable), "each once"


async def test_acls_reach_every_broker_and_outlive_them(start_brokers: StartBrokers, tmp_path: Any) -> None:
    stored = {"ephemeral": False, "data": str(tmp_path), "super_users": "User:ANONYMOUS"}
    brokers = await start_brokers(**stored)
    (broker,) = brokers.brokers
    async with await Wire.connect(broker.port) as wire:
        odd = ["t", "*", "a:b", 'q"', "é\\", "acl:TOPIC:LITERAL:x", "x" * 249]
        made = [creation(Operation.READ, ResourceType.TOPIC, name, principal=f"User:{name}") for name in odd]
        made += [
            creation(Operation.ALL, ResourceType.TOPIC, name, pattern=PatternType.PREFIXED) for name in odd
        ]
        answer = await wire.call(CreateAclsRequest(creations=made * 2), 3)
        assert [result.error_code for result in answer.results] == [0] * len(made) * 2
    await brokers.stop()
    (broker,) = (await start_brokers(**stored)).brokers
    assert broker.authorizer is not None
    assert broker.authorizer.acls.in_force is not None
    assert set(broker.authorizer.acls.in_force) == {
        acl(
            each.resource_type,
            each.resource_pattern_type,
            each.resource_name,
            each.principal,
            each.host,
            each.operation,
            each.permission_type,
        )
        for each in made
    }


async def test_another_broker_hears_of_them(
    start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    know_users(monkeypatch)
    first, second = (await start_brokers(brokers=2, super_users="admin")).brokers
    await give(first, READ_T)
    assert second.authorizer is not None
    acls = second.authorizer.acls
    await until(lambda: acls.in_force is not None and len(acls.in_force) == 1)
    await take_all(second)
    assert first.authorizer is not None
    of_first = first.authorizer.acls
    await until(lambda: of_first.in_force is not None and len(of_first.in_force) == 0)


async def test_what_another_broker_was_told_of_a_moment_ago_is_removed(
    start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    know_users(monkeypatch)
    first, second = (await start_brokers(brokers=2, super_users="admin")).brokers
    heard = second._catalogue_stale.set
    second._store.changed.remove(heard)  # it hears of nothing by itself
    await give(first, READ_T)
    await take_all(second)
    second._store.changed.append(heard)


async def test_there_is_room_for_more_once_another_broker_has_removed_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("muster.coordinator.server.kept_acls.ACLS_MAX", 1)
    store = MemoryStore()
    await store.open()
    here, elsewhere = (ConfigRows(store) for _ in range(2))
    acls, others = (KeptAcls(rows, default=False) for rows in (here, elsewhere))
    first, second = (
        acl(ResourceType.TOPIC, PatternType.LITERAL, name, "User:a", "*", Operation.READ, Permission.ALLOW)
        for name in ("a", "b")
    )
    await acls.create([first])
    with pytest.raises(KafkaError, match="there would be 2 ACLs, and at most 1"):
        await acls.create([second])
    await others.remove(
        [Filter(ResourceType.ANY, PatternType.ANY, None, None, None, Operation.ANY, Permission.ANY)]
    )
    await acls.create([second])
    assert list(acls.in_force or ()) == [second]


async def test_one_that_cannot_be_does_not_keep_the_others(broker: Broker) -> None:
    bad = creation(Operation.READ, ResourceType.TOPIC, "t", principal="alice")
    async with await as_user(broker, "admin") as wire:
        answer = await wire.call(CreateAclsRequest(creations=[READ_T, bad, READ_G]), 3)
        assert [result.error_code for result in answer.results] == [0, ErrorCode.INVALID_REQUEST, 0]
        everything = DescribeAclsRequest(
            resource_type_filter=1,
            resource_name_filter=None,
            pattern_type_filter=1,
            principal_filter=None,
            host_filter=None,
            operation=1,
            permission_type=1,
        )
        told = await wire.call(everything, 3)
    assert {(each.resource_type, each.resource_name) for each in told.resources} == {(2, "t"), (3, "g")}


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    stream = io.StringIO()
    for name, value in {"level": 20, "format": "json", "stream": stream, "logger": None}.items():
        monkeypatch.setattr(log._Output, name, value)
    return stream


def denials(logged: io.StringIO) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in logged.getvalue().splitlines()]
    return [line for line in lines if line.get("part") == "authorizer"]


async def test_a_refusal_stands_in_the_log_once_with_what_would_allow_it(
    broker: Broker, logged: io.StringIO
) -> None:
    async with await as_user(broker) as wire:
        for _ in range(3):
            await wire.call(HeartbeatRequest(group_id="my group", generation_id=1, member_id="m"), 4)
        for number in range(50):
            await wire.call(HeartbeatRequest(group_id=f"g{number}", generation_id=1, member_id="m"), 4)
    told = denials(logged)
    assert len(told) == 20
    assert (told[0]["level"], told[0]["event"], told[0]["principal"]) == ("info", "denied", "User:alice")
    assert (told[0]["operation"], told[0]["resource"]) == ("READ", "group my group")
    command = "muster acls allow alice --operation read --group 'my group'"
    assert told[0]["remedy"] == f"if it should be allowed: {command}"


async def test_a_producer_without_a_topic_to_write_to_is_to_be_given_one(
    broker: Broker, logged: io.StringIO
) -> None:
    starting = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    async with await as_user(broker) as wire:
        refused = await wire.call(starting, 4)
        assert refused.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        (told,) = denials(logged)
        assert (told["operation"], told["resource"]) == ("IDEMPOTENT_WRITE", "cluster")
        assert told["remedy"] == "if it should be allowed: muster acls allow alice --produce TOPIC"
        await give(broker, creation(Operation.WRITE, ResourceType.TOPIC, "t"))
        assert (await wire.call(starting, 4)).error_code == 0


def remedy_for(principal: str, group: str) -> str:
    return authorizer._remedy(principal, Operation.READ, ResourceType.GROUP, group)


@pytest.mark.parametrize("name", ["alice", "a b", "system:serviceaccount:shop:web", "-x", "--all", "User:x"])
def test_what_would_allow_it_names_the_same_user(name: str) -> None:
    command = remedy_for(f"User:{name}", "g").removeprefix("if it should be allowed: ")
    words = shlex.split(command)[1:]
    assert command_line.parser({"acls"}, words).parse_args(words).users == [f"User:{name}"]


@pytest.mark.parametrize(("principal", "group"), [("User:alice", "*"), ("User:*", "g")])
def test_no_command_is_suggested_that_would_allow_more(principal: str, group: str) -> None:
    assert remedy_for(principal, group) == "if it should be allowed, allow it with muster acls"
