"""Metadata, DescribeCluster and the administration of topics over the wire."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from muster import build
from muster.coordinator.base import log
from muster.coordinator.base.step import RequestContext
from muster.coordinator.server.apis.metadata import find_coordinator
from muster.coordinator.server.broker import Broker
from muster.coordinator.storage.store import StoreFull
from muster.protocol import codec
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.metadata import DescribeClusterRequest, FindCoordinatorRequest, MetadataRequest
from muster.protocol.messages.topics import CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest
from muster.protocol.types import ZERO_UUID
from tests.server.conftest import StartBrokers
from tests.support.each import each
from tests.support.facts import until
from tests.support.wire import Wire


@pytest.fixture
async def wire(start_brokers: StartBrokers) -> Any:
    brokers = await start_brokers()
    await brokers.brokers[0].catalogue.create("t", partitions=3)
    async with await Wire.connect(brokers.brokers[0].port) as wire:
        yield wire


def asking(*names: str, create: bool = False) -> MetadataRequest:
    return MetadataRequest(
        topics=[MetadataRequest.Topic(name=each) for each in names], allow_auto_topic_creation=create
    )


@each("version", range(14))
async def test_every_version_tells_brokers_and_partitions(wire: Wire, version: int) -> None:
    # Below v4 the field is not there, and creation is always allowed.
    response = await wire.call(asking("t", create=version < 4), version)
    (broker,) = response.brokers
    (topic,) = response.topics
    assert (broker.node_id, broker.host) == (1, "127.0.0.1")
    assert (topic.name, topic.error_code, len(topic.partitions)) == ("t", 0, 3)
    assert {(each.leader_id, each.error_code) for each in topic.partitions} == {(1, 0)}
    assert response.controller_id == (1 if version >= 1 else -1)
    assert (topic.topic_id != ZERO_UUID) == (version >= 10)


def listed(response: Any) -> list[str]:
    """The topics in a response that are not internal."""
    return [topic.name for topic in response.topics if not topic.name.startswith("__")]


async def test_which_topics_no_names_stand_for(wire: Wire) -> None:
    def count(response: Any) -> int:
        return len(listed(response))

    assert count(await wire.call(MetadataRequest(topics=[]), 0)) == 1
    assert count(await wire.call(MetadataRequest(topics=[]), 1)) == 0
    assert count(await wire.call(MetadataRequest(topics=None), 1)) == 1
    assert count(await wire.call(MetadataRequest(topics=None), 12)) == 1


async def test_librdkafkas_request_for_all_topics_is_three_bytes_too_long(wire: Wire) -> None:
    """As captured from confluent-kafka 2.16: a null array written with four bytes in a flexible version."""
    await wire.send_bytes(
        bytes.fromhex("00000019 0003000d 00000003 0007 72646b61666b61 00 00000000 01 00 00")
    )
    assert (await wire.receive_bytes())[:4] == b"\x00\x00\x00\x03"


async def test_a_topic_by_its_id(wire: Wire) -> None:
    (topic,) = (await wire.call(asking("t"), 12)).topics
    by_id = MetadataRequest(topics=[MetadataRequest.Topic(name=None, topic_id=topic.topic_id)])
    assert (await wire.call(by_id, 12)).topics[0].name == "t"
    (refused,) = (await wire.call(by_id, 11)).topics  # the layout has it, but it is not allowed yet
    assert refused.error_code == ErrorCode.INVALID_REQUEST
    other = uuid4()
    unknown = MetadataRequest(topics=[MetadataRequest.Topic(name=None, topic_id=other)])
    (missing,) = (await wire.call(unknown, 12)).topics
    assert (missing.error_code, missing.name, missing.topic_id) == (ErrorCode.UNKNOWN_TOPIC_ID, None, other)


@pytest.mark.parametrize(
    ("setting", "asked", "version", "created"),
    [(True, True, 12, True), (True, False, 12, False), (False, True, 12, False), (True, True, 3, True)],
)
async def test_auto_creation_needs_the_setting_and_the_request(
    start_brokers: StartBrokers, setting: bool, asked: bool, version: int, created: bool
) -> None:
    brokers = await start_brokers(auto_create_topics_enable=setting, num_partitions=4)
    async with await Wire.connect(brokers.brokers[0].port) as wire:
        (topic,) = (await wire.call(asking("new", create=asked), version)).topics
        if created:
            assert (topic.error_code, len(topic.partitions)) == (0, 4)
            assert {each.leader_id for each in topic.partitions} == {1}
        else:
            assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        everything = await wire.call(MetadataRequest(topics=None), 12)
        assert listed(everything) == (["new"] if created else [])


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "ü", "x" * 250])
async def test_impossible_names_are_refused_by_name(wire: Wire, name: str) -> None:
    for create in (True, False):
        (topic,) = (await wire.call(asking(name, create=create), 12)).topics
        assert (topic.error_code, topic.name) == (ErrorCode.INVALID_TOPIC_EXCEPTION, name)


async def test_authorized_operations_come_only_when_asked_for(wire: Wire) -> None:
    plain = await wire.call(asking("t"), 8)
    assert plain.topics[0].topic_authorized_operations == plain.cluster_authorized_operations == -(2**31)
    request = MetadataRequest(
        topics=[MetadataRequest.Topic(name="t")],
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    full = await wire.call(request, 8)
    assert full.topics[0].topic_authorized_operations & (1 << 3)  # READ
    assert full.cluster_authorized_operations & (1 << 5)  # CREATE


@each("length, turns", [(10, 0), (32_000, 2)])
async def test_long_keys_take_turns_to_find_their_coordinator(
    start_brokers: StartBrokers, length: int, turns: int
) -> None:
    """Each is hashed, which takes as long as it is."""
    broker = (await start_brokers()).brokers[0]
    request = FindCoordinatorRequest(coordinator_keys=["k" * length] * 8)
    answering = find_coordinator(broker, request, RequestContext(4, "c", "/127.0.0.1", 1)).__await__()
    assert len(list(answering)) == turns


async def test_describe_cluster(wire: Wire) -> None:
    def describing(endpoint_type: int = 1) -> DescribeClusterRequest:
        return DescribeClusterRequest(
            include_cluster_authorized_operations=False, endpoint_type=endpoint_type
        )

    response = await wire.call(describing(), 2)
    assert [each.broker_id for each in response.brokers] == [1]
    assert response.cluster_id == (await wire.call(asking(), 12)).cluster_id
    assert len(response.cluster_id) == 22
    assert (await wire.call(describing(2), 1)).error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE
    assert (await wire.call(describing(3), 1)).error_code == ErrorCode.UNSUPPORTED_ENDPOINT_TYPE


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_describe_cluster_tells_of_leases_on_request_alone(wire: Wire, version: int) -> None:
    """What Kafka's definitions lack is sent only to those who asked for it."""
    request = DescribeClusterRequest(include_cluster_authorized_operations=False)
    plain = await wire.call(request, version)
    assert (plain.answering_id, plain.leases) == (-1, [])
    assert [(each.is_drained, each.registered_ago_ms, each.term_ms) for each in plain.brokers] == [
        (False, -1, -1)
    ]
    request.include_leases = True
    told = await wire.call(request, version)
    assert (told.answering_id, told.version) == (1, build.version())
    (broker,) = told.brokers
    assert (broker.is_drained, broker.term_ms) == (False, 30_000)
    assert 0 <= broker.registered_ago_ms <= 30_000
    assert [(each.kind, each.number) for each in told.leases] == [
        (kind, number) for kind in ("group", "transaction", "data") for number in range(50)
    ]
    assert {(each.holder_id, each.announced) for each in told.leases} == {(1, True)}
    told.answering_id, told.version, told.leases = -1, "", []
    broker.registered_ago_ms = broker.term_ms = -1
    assert codec.encode(told, version) == codec.encode(plain, version)


@pytest.mark.parametrize(
    ("host", "advertised", "told"),
    [
        ("localhost", None, "localhost"),
        ("0.0.0.0", None, "localhost"),
        ("::", None, "localhost"),
        ("127.0.0.1", "kafka.example:19092", "kafka.example"),
        ("127.0.0.1", "[::1]:19092", "::1"),
    ],
)
async def test_the_address_told_to_clients(
    start_brokers: StartBrokers, host: str, advertised: str | None, told: str
) -> None:
    brokers = await start_brokers(host=host, advertised=advertised)
    async with await Wire.connect(brokers.brokers[0].port) as wire:
        (broker,) = (await wire.call(asking(), 12)).brokers
        assert (broker.host, broker.port) == (told, 19092 if advertised else brokers.brokers[0].port)


# --- topics -------------------------------------------------------------------------------------------------


def creating(*names: str, validate_only: bool = False, **fields: Any) -> CreateTopicsRequest:
    defaults: dict[str, Any] = {
        "num_partitions": 1,
        "replication_factor": 1,
        "assignments": [],
        "configs": [],
    }
    topics = [CreateTopicsRequest.CreatableTopic(name=name, **{**defaults, **fields}) for name in names]
    return CreateTopicsRequest(topics=topics, validate_only=validate_only)


def failing_at_the_second(broker: Broker, change: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Let the store make one such change and fail on later ones; the list collects all attempts."""
    carry_out, tried = getattr(broker._store, change), []

    async def once(*arguments: Any, **options: Any) -> Any:
        tried.append(arguments)
        if len(tried) > 1:
            raise StoreFull("database or disk is full")
        return await carry_out(*arguments, **options)

    monkeypatch.setattr(broker._store, change, once)
    monkeypatch.setattr(log._Output, "level", 99)
    return tried


async def test_what_was_done_before_the_store_failed_is_told_so(
    start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = (await start_brokers()).brokers[0]
    names = ["a", "b", "c"]

    async def told(change: str, request: Any, version: int, answers: str) -> None:
        with monkeypatch.context() as patch:
            tried = failing_at_the_second(broker, change, patch)
            async with await Wire.connect(broker.port) as wire:
                response = await wire.call(request, version)
        found = {each.name: each.error_code for each in getattr(response, answers)}
        failed = ErrorCode.KAFKA_STORAGE_ERROR
        assert found == {"a": ErrorCode.NONE, "b": failed, "c": failed}
        assert len(tried) == 2  # the rest is not tried

    await told("create_topic", creating(*names), 7, "topics")
    assert "a" in {topic.name for topic in broker.catalogue.topics()}
    for name in names[1:]:
        await broker.catalogue.create(name)
    grown = [
        CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=2, assignments=None) for name in names
    ]
    await told(
        "update_topic",
        CreatePartitionsRequest(topics=grown, timeout_ms=1_000, validate_only=False),
        3,
        "results",
    )
    assert [broker.catalogue.named(name).partitions for name in names] == [2, 1, 1]
    await told("delete_topic", DeleteTopicsRequest(topic_names=names, timeout_ms=1_000), 5, "responses")
    assert [broker.catalogue.by_name(name) is None for name in names] == [True, False, False]


async def test_a_store_that_does_not_answer_is_waited_for_as_long_as_the_request_allows(
    start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = (await start_brokers()).brokers[0]
    names = ["a", "b", "c"]

    async def told(change: str, request: Any, version: int, answers: str) -> None:
        request.timeout_ms = 50
        carry_out, go_on, tried = getattr(broker._store, change), asyncio.Event(), []

        async def held(*arguments: Any, **options: Any) -> Any:
            tried.append(arguments)
            if len(tried) > 1:
                await go_on.wait()
            return await carry_out(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(broker._store, change, held)
            async with await Wire.connect(broker.port) as wire:
                response = await wire.call(request, version)
        found = {each.name: each.error_code for each in getattr(response, answers)}
        late = ErrorCode.REQUEST_TIMED_OUT
        assert found == {"a": ErrorCode.NONE, "b": late, "c": late}
        assert len(tried) == 2
        go_on.set()

    await told("create_topic", creating(*names), 7, "topics")
    # A change that nobody waits for any more is still made.
    await until(lambda: broker.catalogue.by_name("b") is not None)
    await broker.catalogue.create("c")
    grown = [
        CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=2, assignments=None) for name in names
    ]
    await told(
        "update_topic",
        CreatePartitionsRequest(topics=grown, timeout_ms=1, validate_only=False),
        3,
        "results",
    )
    await until(lambda: [broker.catalogue.named(name).partitions for name in names] == [2, 2, 1])
    await told("delete_topic", DeleteTopicsRequest(topic_names=names, timeout_ms=1), 5, "responses")
    await until(lambda: [broker.catalogue.by_name(name) is None for name in names] == [True, True, False])


async def test_one_request_creates_ten_thousand_things_at_most(wire: Wire) -> None:
    many = creating(*(f"t{number}" for number in range(5_000)), num_partitions=-1, validate_only=True)
    for more, code in ((), ErrorCode.NONE), (creating("more").topics, ErrorCode.POLICY_VIOLATION):
        many.topics += more
        answers = (await wire.call(many, 7)).topics
        assert {each.error_code for each in answers} == {code}
        assert len(answers) == len(many.topics)


@pytest.mark.parametrize("version", range(2, 8))
async def test_topics_are_created_in_every_version(wire: Wire, version: int) -> None:
    configs = [CreateTopicsRequest.CreatableTopicConfig(name="retention.ms", value="1000")]
    (created,) = (await wire.call(creating("new", num_partitions=2, configs=configs), version)).topics
    assert (created.name, created.error_code) == ("new", 0)
    if version >= 5:
        assert (created.num_partitions, created.replication_factor) == (2, 1)
        told = {each.name: (each.value, each.config_source) for each in created.configs}
        assert told["retention.ms"] == ("1000", 1)
        assert told["cleanup.policy"] == ("delete", 5)
    (topic,) = (await wire.call(asking("new"), 12)).topics
    assert len(topic.partitions) == 2
    assert created.topic_id == (topic.topic_id if version >= 7 else ZERO_UUID)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"names": ["t"]}, ErrorCode.TOPIC_ALREADY_EXISTS),
        ({"names": ["a b"]}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"names": ["twice", "twice"]}, ErrorCode.INVALID_REQUEST),
        ({"num_partitions": 0}, ErrorCode.INVALID_PARTITIONS),
        ({"replication_factor": 2}, ErrorCode.INVALID_REPLICATION_FACTOR),
        (
            {"configs": [CreateTopicsRequest.CreatableTopicConfig(name="no.such", value="1")]},
            ErrorCode.INVALID_CONFIG,
        ),
        (
            {"configs": [CreateTopicsRequest.CreatableTopicConfig(name="retention.ms", value="x")]},
            ErrorCode.INVALID_CONFIG,
        ),
    ],
)
async def test_topics_are_refused_with_a_reason(wire: Wire, fields: dict[str, Any], code: ErrorCode) -> None:
    names = fields.pop("names", ["new"])
    (refused,) = (await wire.call(creating(*names, **fields), 7)).topics
    assert (refused.error_code, refused.topic_id) == (code, ZERO_UUID)
    assert refused.error_message


async def test_one_refused_topic_keeps_no_other_from_being_created(wire: Wire) -> None:
    response = await wire.call(creating("a", "t", "b"), 7)
    assert [each.error_code for each in response.topics] == [0, ErrorCode.TOPIC_ALREADY_EXISTS, 0]


async def test_validation_creates_nothing(wire: Wire) -> None:
    (validated,) = (await wire.call(creating("new", validate_only=True), 7)).topics
    assert (validated.error_code, validated.topic_id) == (0, ZERO_UUID)
    (topic,) = (await wire.call(asking("new"), 12)).topics
    assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", range(1, 7))
async def test_topics_are_deleted_in_every_version(wire: Wire, version: int) -> None:
    if version >= 6:
        named = [
            DeleteTopicsRequest.DeleteTopicState(name=each, topic_id=ZERO_UUID) for each in ("t", "none")
        ]
        request = DeleteTopicsRequest(topics=named, timeout_ms=1_000)
    else:
        request = DeleteTopicsRequest(topic_names=["t", "none"], timeout_ms=1_000)
    response = await wire.call(request, version)
    assert [(each.name, each.error_code) for each in response.responses] == [
        ("t", 0),
        ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert listed(await wire.call(MetadataRequest(topics=None), 12)) == []


async def test_topics_are_deleted_by_id_and_refused_when_named_wrongly(wire: Wire) -> None:
    (topic,) = (await wire.call(asking("t"), 12)).topics
    state = DeleteTopicsRequest.DeleteTopicState
    wrong = [
        state(name="t", topic_id=topic.topic_id),
        state(name=None, topic_id=ZERO_UUID),
        state(name="twice", topic_id=ZERO_UUID),
        state(name="twice", topic_id=ZERO_UUID),
    ]
    response = await wire.call(DeleteTopicsRequest(topics=wrong, timeout_ms=1_000), 6)
    assert [each.error_code for each in response.responses] == [ErrorCode.INVALID_REQUEST] * 3
    by_id = [state(topic_id=topic.topic_id), state(topic_id=uuid4())]
    response = await wire.call(DeleteTopicsRequest(topics=by_id, timeout_ms=1_000), 6)
    assert [(each.name, each.error_code) for each in response.responses] == [
        ("t", 0),
        (None, ErrorCode.UNKNOWN_TOPIC_ID),
    ]


async def test_deletion_can_be_switched_off(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers(delete_topic_enable=False)
    await brokers.brokers[0].catalogue.create("t")
    async with await Wire.connect(brokers.brokers[0].port) as wire:
        for version in range(1, 6):
            response = await wire.call(DeleteTopicsRequest(topic_names=["t"], timeout_ms=1_000), version)
            code = ErrorCode.INVALID_REQUEST if version < 3 else ErrorCode.TOPIC_DELETION_DISABLED
            assert [(each.name, each.error_code) for each in response.responses] == [("t", code)]
        state = DeleteTopicsRequest.DeleteTopicState
        (topic,) = (await wire.call(asking("t"), 12)).topics
        named = [state(name="t", topic_id=ZERO_UUID), state(topic_id=topic.topic_id)]
        response = await wire.call(DeleteTopicsRequest(topics=named, timeout_ms=1_000), 6)
        assert [(each.name, each.topic_id, each.error_code) for each in response.responses] == [
            ("t", ZERO_UUID, ErrorCode.TOPIC_DELETION_DISABLED),
            (None, topic.topic_id, ErrorCode.TOPIC_DELETION_DISABLED),
        ]


async def test_partitions_are_added(wire: Wire) -> None:
    def growing(count: int, *names: str, validate_only: bool = False) -> CreatePartitionsRequest:
        grown = CreatePartitionsRequest.CreatePartitionsTopic
        topics = [grown(name=each, count=count, assignments=None) for each in names]
        return CreatePartitionsRequest(topics=topics, timeout_ms=1_000, validate_only=validate_only)

    for request, codes in [
        (growing(5, "t", validate_only=True), [0]),
        (growing(3, "t"), [ErrorCode.INVALID_PARTITIONS]),
        (growing(2, "t"), [ErrorCode.INVALID_PARTITIONS]),
        (growing(5, "none", "t"), [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0]),
        (growing(9, "t", "t"), [ErrorCode.INVALID_REQUEST]),
    ]:
        response = await wire.call(request, 3)
        assert [each.error_code for each in response.results] == codes
    (topic,) = (await wire.call(asking("t"), 12)).topics
    assert len(topic.partitions) == 5


async def test_more_partitions_reach_the_clients_of_every_broker(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers(brokers=3)
    await brokers.brokers[0].catalogue.create("t")
    grown = CreatePartitionsRequest.CreatePartitionsTopic(name="t", count=6, assignments=None)
    request = CreatePartitionsRequest(topics=[grown], timeout_ms=10_000, validate_only=False)
    async with await Wire.connect(brokers.brokers[2].port) as wire:
        assert (await wire.call(request, 3)).results[0].error_code == 0
    for broker in brokers.brokers:
        async with asyncio.timeout(30), await Wire.connect(broker.port) as wire:
            while True:
                (topic,) = (await wire.call(asking("t"), 12)).topics
                if [each.partition_index for each in topic.partitions] == list(range(6)):
                    break
            assert {each.leader_id for each in topic.partitions} <= {1, 2, 3}


async def test_a_topic_may_ask_for_as_many_replicas_as_there_are_brokers(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers(brokers=3)

    def assigned(*replicas: list[int]) -> dict[str, Any]:
        assignment = CreateTopicsRequest.CreatableReplicaAssignment
        assignments = [assignment(partition_index=at, broker_ids=ids) for at, ids in enumerate(replicas)]
        return {"num_partitions": -1, "replication_factor": -1, "assignments": assignments}

    wrong = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    async with await Wire.connect(brokers.brokers[0].port) as wire:
        for number, (fields, code, told) in enumerate(
            [
                ({"replication_factor": 3}, 0, 3),
                ({"replication_factor": -1}, 0, 1),
                ({"replication_factor": 4}, ErrorCode.INVALID_REPLICATION_FACTOR, -1),
                (assigned([1, 2, 3], [3, 2, 1]), 0, 3),
                (assigned([1, 2], [3]), wrong, -1),
                (assigned([1, 4]), wrong, -1),
                (assigned([2, 2]), wrong, -1),
                (assigned([]), wrong, -1),
            ]
        ):
            (created,) = (await wire.call(creating(f"t{number}", **fields), 7)).topics
            assert (created.error_code, created.replication_factor) == (code, told), fields
        (topic,) = (await wire.call(asking("t0"), 12)).topics
        assert [sorted(each.replica_nodes) for each in topic.partitions] == [[1, 2, 3]]
        (topic,) = (await wire.call(asking("t1"), 12)).topics
        assert [each.replica_nodes for each in topic.partitions] == [[topic.partitions[0].leader_id]]
