"""Topics: created, listed, described, grown, deleted; each name has its own outcome."""

from __future__ import annotations

import uuid

import pytest

from muster.client.admin import topics
from muster.client.admin.acls import Acl, AclOperation
from muster.client.admin.answers import Outcomes
from muster.client.admin.client import Admin
from muster.client.admin.configs import ConfigResource
from muster.client.admin.topics import NewPartitions, NewTopic, PartitionDescription, TopicDescription
from muster.client.network.cluster import Cluster
from muster.client.network.connection import Address, deadline
from muster.coordinator import testing
from muster.coordinator.testing.security import USER
from muster.protocol.errors import ErrorCode, KafkaError
from tests.support.leases import TERM_MS


def codes(outcomes: dict[str, object]) -> dict[str, ErrorCode | None]:
    """The error code of each name, or None."""
    return {name: each.code if isinstance(each, KafkaError) else None for name, each in outcomes.items()}


async def test_a_life_of_a_topic(admin: Admin) -> None:
    created = await admin.create_topic("orders", 3, configs={"retention.ms": "5000"})
    assert created[0] == "orders"
    assert created[2:] == (3, 1)
    described = await admin.describe_topic("orders")
    assert (described.topic_id, described.internal) == (created.topic_id, False)
    assert [(each.partition, each.leader, each.replicas) for each in described.partitions] == [
        (0, 1, [1]),
        (1, 1, [1]),
        (2, 1, [1]),
    ]
    assert await admin.list_topics() == [described]
    assert [each.name for each in await admin.list_topics(include_internal=True)] == [
        "__consumer_offsets",
        "__group_events",
        "__transaction_state",
        "orders",
    ]
    (await admin.create_partitions({"orders": 5})).raise_for_failures()
    assert len((await admin.describe_topic("orders")).partitions) == 5
    await admin.delete_topic("orders")
    assert await admin.list_topics() == []


async def test_each_of_several_has_its_outcome(admin: Admin) -> None:
    await admin.create_topic("taken")
    created = await admin.create_topics(
        [NewTopic(name="new"), NewTopic(name="taken"), NewTopic(name="no/name")]
    )
    assert codes(created) == {
        "new": None,
        "taken": ErrorCode.TOPIC_ALREADY_EXISTS,
        "no/name": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
    assert list(created.succeeded) == ["new"]
    assert list(created.failed) == ["taken", "no/name"]
    with pytest.raises(KafkaError) as failed:
        created.raise_for_failures()
    assert failed.value.code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert codes(await admin.describe_topics(["nope", "new"])) == {
        "nope": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "new": None,
    }
    assert codes(await admin.create_partitions({"new": 1, "taken": 2})) == {
        "new": ErrorCode.INVALID_PARTITIONS,
        "taken": None,
    }
    assert codes(await admin.delete_topics(["new", "nope", "new"])) == {
        "new": None,
        "nope": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


async def test_one_name_raises_what_became_of_it(admin: Admin) -> None:
    await admin.create_topic("taken")
    with pytest.raises(KafkaError) as failed:
        await admin.create_topic("taken")
    assert failed.value.code == ErrorCode.TOPIC_ALREADY_EXISTS
    for call in (admin.describe_topic("nope"), admin.delete_topic("nope")):
        with pytest.raises(KafkaError) as failed:
            await call
        assert failed.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_who_may_only_create_learns_that_it_was_created() -> None:
    async with testing.Broker(security="SASL_PLAINTEXT", super_users=f"User:{USER}") as broker:
        settings = broker.client_settings("muster")
        login = {"sasl_plain_username": "ann", "sasl_plain_password": "secret"}
        async with Admin(**settings) as root, Admin(**{**settings, **login}) as ann:
            await root.upsert_user_scram_credentials("ann", "secret")
            (await root.create_acls([Acl.of_cluster("User:ann", AclOperation.CREATE)])).raise_for_failures()
            created = await ann.create_topic("orders", 3)
            described = await root.describe_topic("orders")
            assert created == ("orders", described.topic_id, -1, -1)
            with pytest.raises(KafkaError) as refused:
                await ann.create_topic("orders")
            assert refused.value.code == ErrorCode.TOPIC_ALREADY_EXISTS


async def test_what_is_only_validated_does_not_come_to_be(admin: Admin) -> None:
    validated = await admin.create_topic("orders", 4, validate_only=True)
    assert validated == ("orders", None, 4, 1)
    assert await admin.list_topics() == []
    with pytest.raises(KafkaError):
        await admin.create_topic("orders", configs={"retention.ms": "soon"}, validate_only=True)
    await admin.create_topic("orders")
    grown = await admin.create_partitions({"orders": 2}, validate_only=True)
    assert grown == {"orders": None}
    assert len((await admin.describe_topic("orders")).partitions) == 1


async def test_replicas_may_be_assigned() -> None:
    with testing.Cluster(3, lease_term_ms=TERM_MS) as brokers:
        async with Admin(brokers.bootstrap) as admin:
            await admin.create_topic("orders", replica_assignments={0: [2], 1: [3]})
            await admin.create_partitions({"orders": NewPartitions(3, [[1]])})
            assert len((await admin.describe_topic("orders")).partitions) == 3
            with pytest.raises(KafkaError) as failed:
                await admin.create_topic("nowhere", replica_assignments={0: [9]})
            assert failed.value.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_numbers_and_assignments_contradict_each_other() -> None:
    with pytest.raises(ValueError, match="topic t: replica_assignments say how many"):
        NewTopic(name="t", num_partitions=1, replica_assignments={0: [1]})


async def test_what_is_no_topic_and_no_config_is_named(admin: Admin) -> None:
    with pytest.raises(TypeError, match="topics: it takes NewTopic, not 'orders'"):
        await admin.create_topics(["orders"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"topic t: config retention.ms: it takes text such as '5', not 5"):
        await admin.create_topic("t", configs={"retention.ms": 5})  # type: ignore[dict-item]


async def test_nobody_can_tell_which_of_two_is_meant(admin: Admin) -> None:
    with pytest.raises(ValueError, match="topic t is to be created twice"):
        await admin.create_topics([NewTopic(name="t", num_partitions=1), NewTopic(name="t")])


async def test_a_text_is_not_several_names(admin: Admin) -> None:
    with pytest.raises(TypeError, match=r"names: it takes several names, such as \['orders'\]"):
        await admin.delete_topics("orders")
    with pytest.raises(TypeError, match=r"names: it takes several names, such as \['retention.ms'\]"):
        await admin.describe_configs([ConfigResource.of_topic("orders")], names="retention.ms")


async def test_nothing_asked_is_nothing_answered(admin: Admin) -> None:
    assert await admin.describe_topics([]) == {}
    assert await admin.create_topics([]) == {}
    assert await admin.delete_topics([]) == {}


async def test_what_was_created_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers that do not know the topic yet, then know it without a leader, then with fewer partitions."""

    def described(*leaders: int) -> TopicDescription:
        partitions = [
            PartitionDescription(index, leader, 0, [1], [1], []) for index, leader in enumerate(leaders)
        ]
        return TopicDescription("t", uuid.uuid4(), False, partitions)

    unknown = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    states: list[TopicDescription | KafkaError] = [unknown, described(-1), described(1), described(1, 1)]

    async def describe(*_: object) -> Outcomes[str, TopicDescription]:
        return Outcomes({"t": states.pop(0) if len(states) > 1 else states[0]})

    monkeypatch.setattr(topics, "describe_topics", describe)
    async with Cluster([Address("127.0.0.1", 1)], retry_backoff_ms=1, retry_backoff_max_ms=1) as cluster:
        led = await topics._until_led(cluster, {"t": 2}, deadline(60))
        assert led == {"t": states[0]}
        assert len(states) == 1
        late = await topics._until_led(cluster, {"t": 3}, deadline(0.2))
        assert late.failed["t"].code == ErrorCode.LEADER_NOT_AVAILABLE


async def test_a_topic_that_is_there_is_waited_for_longer_than_one_that_may_appear(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its leader may have died, and is replaced when its term is over."""
    unknown = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    partitions = {leader: [PartitionDescription(0, leader, 0, [1], [1], [])] for leader in (-1, 1)}
    topic = {leader: TopicDescription("t", uuid.uuid4(), False, partitions[leader]) for leader in (-1, 1)}
    led_from = deadline(0.3)
    first: KafkaError | TopicDescription = topic[-1]

    async def describe(*_: object) -> Outcomes[str, TopicDescription]:
        return Outcomes({"t": first if deadline(0) < led_from else topic[1]})

    async def metadata(*_: object, **__: object) -> None:
        pass

    monkeypatch.setattr(topics, "_APPEARS_S", 0.05)
    monkeypatch.setattr(topics, "describe_topics", describe)
    async with Cluster([Address("127.0.0.1", 1)], retry_backoff_ms=1, retry_backoff_max_ms=1) as cluster:
        monkeypatch.setattr(cluster, "metadata", metadata)
        assert await topics.ensure_topic(cluster, "t", deadline(60)) == topic[1]
        led_from, first = deadline(60), unknown
        with pytest.raises(KafkaError) as refused:
            await topics.ensure_topic(cluster, "t", deadline(60))
        assert refused.value is unknown
