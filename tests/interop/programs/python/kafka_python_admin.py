"""Every admin call of kafka-python's KafkaAdminClient."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import (
    ACL,
    AbortTransactionSpec,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ConfigResource,
    ConfigResourceType,
    MemberToRemove,
    OffsetSpec,
    ResourcePattern,
    ResourceType,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kafka.errors import NoError
from kafka.structs import OffsetAndMetadata

from tests.interop.programs.python import lines

Call = tuple[str, Callable[[], object]]


def admin(bootstrap: str, prefix: str) -> None:
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap.split(","))) as client:
        lines.try_calls(_Calls(client, bootstrap, prefix).all(), _error_of)


def _error_of(error: Exception) -> str:
    return type(error).__name__ if not isinstance(error, AssertionError) else str(error)


def _no_error(results: dict[Any, Any]) -> None:
    """Raise the first of the errors that were returned for each resource."""
    for result in results.values():
        error = result.get("error") if isinstance(result, dict) else result
        if error not in (None, "OK", NoError):
            raise error if isinstance(error, type) else AssertionError(error)


class _Calls:
    def __init__(self, client: KafkaAdminClient, bootstrap: str, prefix: str) -> None:
        self._client = client
        self._bootstrap = bootstrap.split(",")
        self._topic = f"{prefix}-topic"
        self._group = f"{prefix}-group"
        self._user = f"{prefix}-user"
        self._first = TopicPartition(self._topic, 0)

    def all(self) -> Iterator[Call]:
        yield from self._topics()
        yield from self._cluster()
        yield from self._configs()
        yield from self._partitions()
        yield from self._groups()
        yield from self._transactions()
        yield from self._users()
        yield "delete_topics", lambda: self._client.delete_topics([self._topic])

    def _topics(self) -> Iterator[Call]:
        client, topic = self._client, self._topic
        created = {topic: {"num_partitions": 1, "replication_factor": 1}}
        yield "create_topics", lambda: client.create_topics(created)
        yield "wait_for_topics", lambda: client.wait_for_topics([topic], timeout_ms=30_000)
        yield "create_partitions", lambda: client.create_partitions({topic: 3})
        yield "list_topics", lambda: lines.expect_in_time(lambda: topic in client.list_topics(), True)
        yield (
            "describe_topics",
            lambda: lines.expect_in_time(lambda: len(client.describe_topics([topic])[0]["partitions"]), 3),
        )
        yield (
            "describe_topic_partitions",
            lambda: lines.expect_in_time(
                lambda: len(client.describe_topic_partitions([topic])["topics"][0]["partitions"]), 3
            ),
        )

    def _cluster(self) -> Iterator[Call]:
        client = self._client
        yield "describe_cluster", lambda: lines.expect(bool(client.describe_cluster()["brokers"]), True)
        yield "api_versions", client.api_versions
        yield "get_broker_version_data", lambda: client.get_broker_version_data(self._node())
        yield "describe_features", client.describe_features
        yield "update_features", lambda: _features(client.update_features({"group.version": 1}))
        yield "describe_metadata_quorum", client.describe_metadata_quorum
        yield "describe_log_dirs", lambda: lines.expect(bool(client.describe_log_dirs()), True)

    def _node(self) -> int:
        return int(min(broker["broker_id"] for broker in self._client.describe_cluster()["brokers"]))

    def _configs(self) -> Iterator[Call]:
        client = self._client
        yield (
            "describe_configs of a topic",
            lambda: lines.expect_in_time(lambda: self._retention("all"), "604800000"),
        )
        broker = ConfigResource(ConfigResourceType.BROKER, "1")
        yield "describe_configs of a broker", lambda: client.describe_configs([broker])
        yield "alter_configs", lambda: self._alter(70_000_000, incremental=True)
        yield "alter_configs, not incremental", lambda: self._alter(80_000_000, incremental=False)
        yield "reset_configs", self._reset
        yield (
            "list_config_resources",
            lambda: lines.expect_in_time(
                lambda: self._topic in client.list_config_resources(["TOPIC"])["topic"], True
            ),
        )

    def _retention(self, config_filter: str) -> str | None:
        resource = ConfigResource(ConfigResourceType.TOPIC, self._topic)
        found = self._client.describe_configs([resource], config_filter=config_filter)
        config = found["topic" if "topic" in found else "TOPIC"][self._topic].get("retention.ms")
        return None if config is None else str(config["value"])

    def _alter(self, retention_ms: int, *, incremental: bool) -> None:
        wanted = {"retention.ms": str(retention_ms)}
        resource = ConfigResource(ConfigResourceType.TOPIC, self._topic, wanted)
        self._client.alter_configs([resource], incremental=incremental)
        lines.expect_in_time(lambda: self._retention("modified"), str(retention_ms))

    def _reset(self) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, self._topic, ["retention.ms"])
        self._client.reset_configs([resource])
        lines.expect_in_time(lambda: self._retention("modified"), None)

    def _partitions(self) -> Iterator[Call]:
        client, first = self._client, self._first
        with closing(KafkaProducer(bootstrap_servers=self._bootstrap)) as producer:
            sent = [producer.send(self._topic, b"%d" % number, partition=0) for number in range(10)]
            for each in sent:
                each.get(30)
            yield "describe_producers", lambda: lines.expect(self._producers(), 1)
        latest = {first: OffsetSpec.LATEST}
        yield (
            "list_partition_offsets",
            lambda: lines.expect(client.list_partition_offsets(latest)[first].offset, 10),
        )
        yield (
            "delete_records",
            lambda: lines.expect(client.delete_records({first: 3})[first]["low_watermark"], 3),
        )
        yield "elect_leaders", lambda: client.elect_leaders(0, {self._topic: [0]})
        yield (
            "alter_partition_reassignments",
            lambda: _no_error(client.alter_partition_reassignments({first: [1]})),
        )
        yield "list_partition_reassignments", client.list_partition_reassignments
        nowhere = {(self._topic, 0, self._node()): "/there/is/no/such/folder"}
        yield "alter_replica_log_dirs", lambda: _no_error(client.alter_replica_log_dirs(nowhere))

    def _producers(self) -> int:
        return len(self._client.describe_producers([self._first])[self._first].active_producers)

    def _groups(self) -> Iterator[Call]:
        client, group, first = self._client, self._group, self._first
        three = {first: OffsetAndMetadata(3, "", -1)}
        yield "alter_group_offsets", lambda: _no_error(client.alter_group_offsets(group, three))
        yield (
            "list_group_offsets",
            lambda: lines.expect(client.list_group_offsets(group)[group][first].offset, 3),
        )
        yield (
            "reset_group_offsets",
            lambda: _no_error(client.reset_group_offsets(group, {first: OffsetSpec.LATEST})),
        )
        yield (
            "list_groups",
            lambda: lines.expect(group in {each["group_id"] for each in client.list_groups()}, True),
        )
        yield "describe_groups", lambda: client.describe_groups([group])[group]
        yield "delete_group_offsets", lambda: _no_error(client.delete_group_offsets(group, [first]))
        yield "remove_group_members", self._remove_a_member
        yield "delete_groups", lambda: _no_error(client.delete_groups([group]))

    def _remove_a_member(self) -> None:
        consumer = KafkaConsumer(
            self._topic, bootstrap_servers=self._bootstrap, group_id=self._group, group_instance_id="one"
        )
        with closing(consumer):
            lines.expect_in_time(lambda: bool(consumer.poll(100)) or bool(consumer.assignment()), True)
            member = MemberToRemove(group_instance_id="one")
            _no_error(self._client.remove_group_members(self._group, [member]))

    def _transactions(self) -> Iterator[Call]:
        client = self._client
        yield "list_transactions", client.list_transactions
        yield "describe_transactions", self._describe_one
        yield "find_hanging_transactions", client.find_hanging_transactions
        spec = AbortTransactionSpec(self._first, 123_456, 0)
        yield "abort_transaction", lambda: client.abort_transaction(spec)

    def _describe_one(self) -> None:
        # The first one makes Apache Kafka create the topic without which it has no coordinators.
        producer = KafkaProducer(bootstrap_servers=self._bootstrap, transactional_id=self._user)
        with closing(producer):
            producer.init_transactions()
        self._client.describe_transactions([self._user])

    def _users(self) -> Iterator[Call]:
        client, user = self._client, self._user
        upsertion = UserScramCredentialUpsertion(user, ScramMechanism.SCRAM_SHA_256, "password", 4096)
        yield (
            "alter_user_scram_credentials",
            lambda: _no_error(client.alter_user_scram_credentials([upsertion])),
        )
        yield "describe_user_scram_credentials", lambda: client.describe_user_scram_credentials([user])
        pattern = ResourcePattern(ResourceType.TOPIC, self._topic)
        acl = (f"User:{user}", "*", ACLOperation.READ, ACLPermissionType.ALLOW, pattern)
        yield "create_acls", lambda: lines.expect(client.create_acls([ACL(*acl)])["failed"], [])
        yield "describe_acls", lambda: client.describe_acls(ACLFilter(*acl))
        yield "delete_acls", lambda: client.delete_acls([ACLFilter(*acl)])


def _features(results: dict[str, str]) -> None:
    for said in results.values():
        lines.expect(said, "OK")
