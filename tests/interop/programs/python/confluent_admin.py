"""Every admin call of confluent-kafka's AdminClient."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    ElectionType,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.interop.programs.python import lines

_SECONDS: Final = 30.0


def admin(bootstrap: str, prefix: str) -> None:
    lines.try_calls(_calls(bootstrap, prefix), _error_of)


def _error_of(error: Exception) -> str:
    if isinstance(error, KafkaException):
        return str(error.args[0].name())
    return repr(error)


def _one(futures: dict[Any, Any]) -> Any:
    """The result for the only resource in the request."""
    (future,) = futures.values()
    return future.result(_SECONDS)


def _calls(bootstrap: str, prefix: str) -> Iterator[tuple[str, Callable[[], object]]]:
    client = AdminClient({"bootstrap.servers": bootstrap})
    topic, group, user = f"{prefix}-topic", f"{prefix}-group", f"{prefix}-user"
    first = TopicPartition(topic, 0)
    at_three = TopicPartition(topic, 0, 3)
    acl = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, f"User:{user}", "*", AclOperation.READ)
    wait = {"request_timeout": _SECONDS}

    yield "create_topics", lambda: _one(client.create_topics([NewTopic(topic, 1, 1)], **wait))
    yield "create_partitions", lambda: _one(client.create_partitions([NewPartitions(topic, 3)], **wait))
    _produce_ten(bootstrap, topic)
    yield (
        "list_topics",
        lambda: lines.expect_in_time(
            lambda: len(client.list_topics(topic, _SECONDS).topics[topic].partitions), 3
        ),
    )
    yield (
        "describe_topics",
        lambda: lines.expect_in_time(
            lambda: len(_one(client.describe_topics(TopicCollection([topic]), **wait)).partitions), 3
        ),
    )
    yield "describe_cluster", lambda: client.describe_cluster(**wait).result(_SECONDS).nodes[0].host
    yield "cluster_id", lambda: lines.expect(bool(client.cluster_id(_SECONDS)), True)
    yield "describe_configs of a topic", lambda: _config(client, topic, "retention.ms")
    yield "describe_configs of a broker", lambda: _broker_config(client, "num.partitions")
    yield "alter_configs", lambda: _alter_configs(client, topic)
    yield "incremental_alter_configs", lambda: _incremental_alter_configs(client, topic)
    yield (
        "list_offsets",
        lambda: lines.expect(_one(client.list_offsets({first: OffsetSpec.latest()}, **wait)).offset, 10),
    )
    yield (
        "delete_records",
        lambda: lines.expect(_one(client.delete_records([at_three], **wait)).low_watermark, 3),
    )
    yield (
        "elect_leaders",
        lambda: _first_error(client.elect_leaders(ElectionType.PREFERRED, [first], **wait).result(_SECONDS)),
    )
    yield (
        "alter_consumer_group_offsets",
        lambda: lines.expect_in_time(lambda: _offset_is_set(client, group, at_three), True),
    )
    yield (
        "list_consumer_group_offsets",
        lambda: lines.expect(
            _one(client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)], **wait))
            .topic_partitions[0]
            .offset,
            3,
        ),
    )
    yield (
        "list_consumer_groups",
        lambda: lines.expect(
            group in {each.group_id for each in client.list_consumer_groups(**wait).result(_SECONDS).valid},
            True,
        ),
    )
    yield (
        "list_groups",
        lambda: lines.expect(group in {each.id for each in client.list_groups(timeout=_SECONDS)}, True),
    )
    yield (
        "describe_consumer_groups",
        lambda: lines.expect(_one(client.describe_consumer_groups([group], **wait)).state.name, "EMPTY"),
    )
    yield "delete_consumer_groups", lambda: _one(client.delete_consumer_groups([group], **wait))
    upsertion = UserScramCredentialUpsertion(
        user, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), b"password", b"salt"
    )
    yield (
        "alter_user_scram_credentials",
        lambda: _one(client.alter_user_scram_credentials([upsertion], **wait)),
    )
    yield (
        "describe_user_scram_credentials",
        lambda: _one(client.describe_user_scram_credentials([user], **wait)),
    )
    yield "create_acls", lambda: _one(client.create_acls([AclBinding(*acl, AclPermissionType.ALLOW)], **wait))
    acls = AclBindingFilter(*acl, AclPermissionType.ALLOW)
    yield "describe_acls", lambda: client.describe_acls(acls, **wait).result(_SECONDS)
    yield "delete_acls", lambda: _one(client.delete_acls([acls], **wait))
    yield "delete_topics", lambda: _one(client.delete_topics([topic], **wait))


def _produce_ten(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(10):
        producer.produce(topic, str(number), partition=0)
    producer.flush(_SECONDS)


def _first_error(results: Any) -> None:
    """Raise the first error among several partitions."""
    if isinstance(results, ConsumerGroupTopicPartitions):
        results = {each: each.error for each in results.topic_partitions}
    for error in results.values():
        if error is not None:
            raise error if isinstance(error, Exception) else KafkaException(error)


def _offset_is_set(client: AdminClient, group: str, to: TopicPartition) -> bool:
    """Set the offset; False if the group's coordinator does not know the topic yet, as Kafka's may not."""
    asked = [ConsumerGroupTopicPartitions(group, [to])]
    try:
        _first_error(_one(client.alter_consumer_group_offsets(asked, request_timeout=_SECONDS)))
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return False
        raise
    return True


def _config(client: AdminClient, topic: str, name: str) -> str:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    return str(_one(client.describe_configs([resource], request_timeout=_SECONDS))[name].value)


def _broker_config(client: AdminClient, name: str) -> str:
    node = min(client.list_topics(timeout=_SECONDS).brokers)
    resource = ConfigResource(ConfigResource.Type.BROKER, str(node))
    return str(_one(client.describe_configs([resource], request_timeout=_SECONDS))[name].value)


def _alter_configs(client: AdminClient, topic: str) -> None:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, set_config={"retention.ms": "70000000"})
    _one(client.alter_configs([resource], request_timeout=_SECONDS))
    lines.expect_in_time(lambda: _config(client, topic, "retention.ms"), "70000000")


def _incremental_alter_configs(client: AdminClient, topic: str) -> None:
    entry = ConfigEntry("retention.ms", "80000000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    _one(client.incremental_alter_configs([resource], request_timeout=_SECONDS))
    lines.expect_in_time(lambda: _config(client, topic, "retention.ms"), "80000000")
