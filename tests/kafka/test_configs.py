"""One story about configs, played against Apache Kafka and muster, with their answers compared."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

import pytest

from muster.coordinator.base import log
from muster.coordinator.server.broker_config_specs import BROKER_SPECS, DRAINED
from muster.coordinator.testing import Broker
from muster.protocol.compression import Codec
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.configs import (
    AlterConfigsResponse,
    DescribeConfigsResponse,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from muster.protocol.messages.data import ProduceRequest, ProduceResponse
from muster.protocol.record_batch import Record, build
from tests.kafka.conftest import KafkaOfConfigs
from tests.support.wire_blocking import WireConnection
from tests.support.wire_configs import (
    APPEND,
    BROKER,
    BROKER_LOGGER,
    CLIENT_METRICS,
    DELETE,
    GROUP,
    SET,
    SUBTRACT,
    TOPIC,
    Change,
    altering,
    describing,
    replacing,
)
from tests.support.wire_topics import create_topics, settled

pytestmark = pytest.mark.kafka

_TOO_LARGE: Final = ErrorCode.MESSAGE_TOO_LARGE
_INVALID_RECORD: Final = ErrorCode.INVALID_RECORD
_SETTINGS: Final[Mapping[str, str]] = {
    "auto.create.topics.enable": "false",
    "log.cleaner.enable": "true",
    "log.retention.check.interval.ms": "600000",
    "log.retention.ms": "700000000",
    "log.segment.bytes": "2097152",
}
"""Set in both, so that some values come from the brokers' own settings."""
_KAFKAS_THREADS: Final[Mapping[str, str]] = {
    "background.threads": "10",
    "num.io.threads": "8",
    "num.network.threads": "3",
}
"""Set only for Kafka: its defaults, which the tests' Kafka otherwise overrides."""

_ABSENT: Final = "(absent)"
_AT_START_ONLY: Final = "muster takes this setting when it starts"
_ONE_REPLICA: Final = (
    "Kafka's replication sets this cluster-wide when it is made (ELR); the store has one copy"
)
_NEEDS_SETTING: Final = "the tests' Kafka has this in its file; in muster it is the default, or not a setting"
_OTHER_GROUPS: Final = "muster has no share groups and no streams groups"
_NO_CLIENT_METRICS: Final = "muster collects no client metrics"
_TOPICS: Final = "muster has more topics: __group_events, and __transaction_state before it is needed"
_CHECKED: Final = "muster refuses what it would not follow, or could only misunderstand"

DIFFERENCES: Final[Mapping[tuple[str, str], str]] = {
    ("*", "min.insync.replicas s*"): _ONE_REPLICA,
    ("the broker*", "listeners read_only"): _AT_START_ONLY,
    ("what can be altered", "names"): _AT_START_ONLY,
    ("log.cleaner.backoff.ms='0' on *", "*"): "muster waits a millisecond at least",
    ("min.insync.replicas*", "*"): _ONE_REPLICA,
    ("all brokers with what is kept", "min.insync.replicas *"): _ONE_REPLICA,
    (
        "*",
        "listener.name.* read_only",
    ): "Kafka says so of every config with a prefix, and alters it all the same",
    **{
        (f"{name} on *", "*"): _CHECKED
        for name in (
            "listener.name.x.*max.reauth.ms='*'",
            "listener.name.x.max.conn*='0'",
            "listener.name.x.log.retention.ms='5'",
            "listener.name.?.no.such.config='5'",
            "listener.name..max.connections='5'",
            "log.flush.interval.ms='-7'",
            "log.retention.ms='-7'",
            "no.such.config='5'",
        )
    },
    **{("the broker*", f"{name} s*"): _NEEDS_SETTING for name in _KAFKAS_THREADS},
    ("the broker*", "default.replication.factor s*"): _NEEDS_SETTING,
    ("the broker*", "log.cleaner.enable s*"): _NEEDS_SETTING,
    ("the broker*", "log.dirs *"): "muster keeps all in memory here",
    ("the broker*", "num.partitions s*"): _NEEDS_SETTING,
    ("the broker*", "transaction.state.log.num.partitions *"): "the tests' Kafka has one shard of them",
    ("the broker*", "muster.drained *"): "muster's own",
    ("the broker*", "queued.max.request.bytes *"): "muster has a bound by default",
    ("an operation that does not exist", "error"): "Kafka fails unexpectedly; muster says what is wrong",
    ("an operation that does not exist", "message"): "Kafka fails unexpectedly; muster says what is wrong",
    ("a ratio that is no number", "*"): _CHECKED,
    ("a broker config that nobody knows", "*"): _CHECKED,
    ("a retention below -1", "*"): _CHECKED,
    ("a level that muster has not", "*"): "muster has four levels",
    ("the loggers", "org.apache.kafka.*"): "a logger of Kafka's own",
    **{
        ("a group*", f"{name} *"): _OTHER_GROUPS
        for name in ("share.*", "streams.*", "errors.deadletterqueue.*")
    },
    ("share.session.timeout.ms* on a group", "*"): _OTHER_GROUPS,
    ("a group's name with NUL", "*"): "PostgreSQL's text cannot have it",
    ("the broker*", "group.coordinator.rebalance.protocols *"): _OTHER_GROUPS,
    ("a client metrics subscription", "*"): _NO_CLIENT_METRICS,
    ("client metrics are set", "*"): _NO_CLIENT_METRICS,
    ("list ()", "resources"): _TOPICS,
    ("list (2,)", "resources"): _TOPICS,
}
"""By step and fact, both with wildcards: why muster answers differently."""


class Story:
    """One broker's answers so far: the facts of each step."""

    def __init__(self, connection: WireConnection) -> None:
        self.facts: dict[tuple[str, str], Any] = {}
        self._connection = connection

    def describe(self, step: str, *resource: Any, until: Mapping[str, str | None] | None = None) -> None:
        """Record the facts of every config. `until` gives configs the values to wait for, since Kafka's
        brokers learn of a change after it was answered."""
        request = describing(resource, synonyms=True)

        def described() -> DescribeConfigsResponse.DescribeConfigsResult:
            (result,) = self._connection.call(request, 4, DescribeConfigsResponse).results
            return result

        def as_wanted(result: DescribeConfigsResponse.DescribeConfigsResult) -> bool:
            values = {config.name: config.value for config in result.configs}
            return all(values.get(name) == value for name, value in (until or {}).items())

        settled(described, as_wanted, step)
        result = described()  # again: the first of them may have been described amid the change
        self.facts[step, "error"] = result.error_code
        for config in result.configs:
            facts = {
                "value": config.value,
                "read_only": config.read_only,
                "source": config.config_source,
                "sensitive": config.is_sensitive,
                "synonyms": [(each.name, each.value, each.source) for each in config.synonyms],
                "type": config.config_type,
            }
            for fact, value in facts.items():
                self.facts[step, f"{config.name} {fact}"] = value

    def alterable(self, step: str, broker: str) -> None:
        """The names of a broker's configs that are not read-only."""
        response = self._connection.call(describing((BROKER, broker)), 4, DescribeConfigsResponse)
        names = {config.name for config in response.results[0].configs if not config.read_only}
        self.facts[step, "names"] = sorted(names - {DRAINED})

    def alter(
        self, step: str, type: int, name: str, *changes: Change, validate_only: bool = False, version: int = 1
    ) -> None:
        request = altering((type, name, changes), validate_only=validate_only)
        self._altered(step, self._connection.call(request, version, IncrementalAlterConfigsResponse))

    def alter_twice(self, step: str, type: int, name: str, *changes: Change) -> None:
        """Send one request that names the resource twice."""
        request = altering((type, name, changes), (type, name, changes))
        self._altered(step, self._connection.call(request, 1, IncrementalAlterConfigsResponse))

    def replace(
        self,
        step: str,
        type: int,
        name: str,
        configs: Mapping[str, str | None],
        *,
        validate_only: bool = False,
        version: int = 2,
    ) -> None:
        request = replacing((type, name, configs), validate_only=validate_only)
        self._altered(step, self._connection.call(request, version, AlterConfigsResponse))

    def _altered(self, step: str, response: Any) -> None:
        answers = [(each.resource_type, each.resource_name) for each in response.responses]
        self.facts[step, "resources"] = answers
        self.facts[step, "error"] = [each.error_code for each in response.responses]
        self.facts[step, "message"] = [each.error_message is not None for each in response.responses]

    def list(self, step: str, types: Sequence[int] = (), version: int = 1) -> None:
        request = ListConfigResourcesRequest(resource_types=list(types))
        response = self._connection.call(request, version, ListConfigResourcesResponse)
        listed = sorted((each.resource_type, each.resource_name) for each in response.config_resources)
        self.facts[step, "error"] = response.error_code
        self.facts[step, "resources"] = listed

    def produce(self, step: str, topic: str, value: bytes, codec: Codec, *, until: int | None = None) -> None:
        """Record the error of a batch. `until` is the error to wait for, since Kafka describes a config
        a moment before its logs follow it."""
        records = build([Record(0, int(time.time() * 1000), b"key", value)], codec=codec)
        part = ProduceRequest.PartitionProduceData(index=0, records=records)
        data = ProduceRequest.TopicProduceData(name=topic, partition_data=[part])
        request = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[data])

        def answered() -> int:
            response = self._connection.call(request, 9, ProduceResponse)
            return response.responses[0].partition_responses[0].error_code

        self.facts[step, "error"] = settled(answered, lambda error: until in (None, error), step)


def tell(story: Story, broker: str) -> None:
    """The whole story. `broker` is the node id of the only broker."""
    tell_of_topics(story)
    tell_of_names(story, broker)
    tell_of_brokers(story, broker)
    tell_of_what_can_be_altered(story, broker)
    tell_of_the_rest(story, broker)


def tell_of_topics(story: Story) -> None:
    retention, policy = "retention.ms", "cleanup.policy"
    story.describe("a topic", TOPIC, "t")
    story.alter("set", TOPIC, "t", (retention, SET, " 5 "), ("segment.ms", SET, "9"), version=0)
    story.describe("after set", TOPIC, "t", until={retention: "5", "segment.ms": "9"})
    story.alter("validated only", TOPIC, "t", (retention, SET, "6"), validate_only=True)
    story.alter("append", TOPIC, "t", (policy, APPEND, "compact,delete"), (retention, DELETE, None))
    story.describe("after append", TOPIC, "t", until={policy: "delete,compact", retention: "700000000"})
    story.alter("subtract", TOPIC, "t", (policy, SUBTRACT, "delete"))
    story.describe("after subtract", TOPIC, "t", until={policy: "compact"})
    story.alter("a list emptied", TOPIC, "t", (policy, SET, ""))
    story.describe("after emptying", TOPIC, "t", until={policy: ""})
    story.alter("for tests only", TOPIC, "t", ("internal.segment.bytes", SET, "5"))
    story.describe("after setting what is for tests", TOPIC, "t", until={"internal.segment.bytes": "5"})
    story.replace("replace, validated only", TOPIC, "t", {}, validate_only=True)
    story.replace("replace", TOPIC, "t", {"max.message.bytes": "2000", policy: "delete"})
    story.describe("after replace", TOPIC, "t", until={"max.message.bytes": "2000", policy: "delete"})
    story.produce("a batch above max.message.bytes", "t", b"v" * 3_000, Codec.NONE, until=_TOO_LARGE)
    story.produce("a batch that is packed", "t", b"v" * 3_000, Codec.GZIP)
    story.alter("a bound for unpacking", TOPIC, "t", ("max.decompressed.message.bytes", SET, "1000"))
    story.describe("after the bound", TOPIC, "t", until={"max.decompressed.message.bytes": "1000"})
    step = "a batch above max.decompressed.message.bytes"
    story.produce(step, "t", b"v" * 3_000, Codec.GZIP, until=_INVALID_RECORD)
    story.produce("a batch above it that is not packed", "t", b"v" * 1_500, Codec.NONE)
    story.replace("replace by nothing, v0", TOPIC, "t", {}, version=0)
    story.describe("after replacing by nothing", TOPIC, "t", until={"max.message.bytes": "1048588"})

    story.alter_twice("a resource twice", TOPIC, "t", (retention, SET, "5"))
    story.alter("a config twice", TOPIC, "t", (retention, SET, "5"), (retention, DELETE, None))
    story.alter("null values", TOPIC, "t", (retention, SET, None), (policy, APPEND, None))
    story.replace("a null value to replace by", TOPIC, "t", {retention: None})
    story.alter("an operation that does not exist", TOPIC, "t", (retention, 9, "5"))
    story.alter("one good, one bad", TOPIC, "t", (retention, SET, "5"), ("segment.ms", SET, "0"))
    story.alter("a config that nobody knows", TOPIC, "t", ("no.such.config", SET, "5"))
    story.alter("the same, deleted", TOPIC, "t", ("no.such.config", DELETE, None))
    story.alter("the same, appended to", TOPIC, "t", ("no.such.config", APPEND, "5"))
    story.replace("the same, to replace by", TOPIC, "t", {"no.such.config": "5"})
    story.alter("append to a number", TOPIC, "t", (retention, APPEND, "5"))
    story.alter("subtract from a number", TOPIC, "t", (retention, SUBTRACT, "5"))
    story.alter("append nothing", TOPIC, "t", (policy, APPEND, ""))
    nan = ("min.cleanable.dirty.ratio", SET, "NaN")
    story.alter("a ratio that is no number", TOPIC, "t", nan, validate_only=True)
    for name, value in _VALUES:
        story.alter(f"{name}={value}", TOPIC, "t", (name, SET, value), validate_only=True)
    crossing = ("min.compaction.lag.ms", SET, "5"), ("max.compaction.lag.ms", SET, "4")
    story.alter("lags that cross", TOPIC, "t", *crossing)


_VALUES: Final = [
    (name, value)
    for name, values in {
        "cleanup.policy": ("shred", "delete,", "delete,delete", "compact , delete", "*"),
        "compression.gzip.level": ("0", "-1", "10"),
        "compression.lz4.level": ("18",),
        "compression.type": ("brotli", "", " gzip ", "gzip,zstd"),
        "compression.zstd.level": ("23",),
        "file.delete.delay.ms": ("-1",),
        "flush.messages": ("0",),
        "flush.ms": ("-1",),
        "index.interval.bytes": ("+5", "0x5", "1_0"),
        "internal.segment.bytes": ("-1",),
        "leader.replication.throttled.replicas": ("*", "*,0:1", "0:1,0:1", "none", ""),
        "local.retention.ms": ("5", "-3"),
        "max.decompressed.message.bytes": ("0",),
        "max.message.bytes": ("-1", "0"),
        "message.downconversion.enable": ("true",),
        "message.format.version": ("3.0",),
        "message.timestamp.type": ("createtime",),
        "min.cleanable.dirty.ratio": ("2", "0.50", "1e-1", "x"),
        "min.insync.replicas": ("0", "9"),
        "preallocate": ("maybe", "TRUE", ""),
        "remote.copy.lag.bytes": ("-2",),
        "remote.log.copy.disable": ("true",),
        "remote.storage.enable": ("true",),
        "retention.bytes": ("-5",),
        "retention.ms": ("x", "-2", "", "1.5", "9223372036854775808"),
        "segment.bytes": ("1", "99999999999"),
        "segment.index.bytes": ("3",),
        "segment.jitter.ms": ("-1",),
        "segment.ms": ("0",),
        "unclean.leader.election.enable": ("1",),
    }.items()
    for value in values
]


def tell_of_names(story: Story, broker: str) -> None:
    good, bad = ("retention.ms", SET, "5"), ("retention.ms", SET, "x")
    for name in ("missing", "a b", "..", ""):
        story.describe(f"describe topic {name!r}", TOPIC, name)
        story.alter(f"alter topic {name!r}", TOPIC, name, good)
        story.replace(f"replace topic {name!r}", TOPIC, name, {"retention.ms": "5"})
    story.alter("a bad value for a topic that is missing", TOPIC, "missing", bad)
    story.alter("nothing for a topic that is missing", TOPIC, "missing")
    for name in ("77", "x", " 1"):
        story.describe(f"describe broker {name!r}", BROKER, name)
        story.alter(f"alter broker {name!r}", BROKER, name, ("log.retention.ms", SET, "5"))
        story.replace(f"replace broker {name!r}", BROKER, name, {"log.retention.ms": "5"})
        story.describe(f"describe the loggers of {name!r}", BROKER_LOGGER, name)
        story.alter(f"alter the loggers of {name!r}", BROKER_LOGGER, name, ("root", SET, "INFO"))
    story.describe("describe the loggers of nobody", BROKER_LOGGER, "")
    story.alter("alter the loggers of nobody", BROKER_LOGGER, "", ("root", SET, "INFO"))
    for type in (0, 3, 99):
        story.describe(f"describe type {type}", type, "x")
        story.alter(f"alter type {type}", type, "x")
        story.replace(f"replace type {type}", type, "x", {})
    for type in (GROUP, CLIENT_METRICS):
        story.describe(f"describe type {type} without a name", type, "")
        story.alter(f"alter type {type} without a name", type, "", ("interval.ms", SET, "5"))


def tell_of_brokers(story: Story, broker: str) -> None:
    story.describe("the broker", BROKER, broker)
    retention, policy = "log.retention.ms", "log.cleanup.policy"
    story.alter("set for all brokers", BROKER, "", (retention, SET, "88"))
    story.describe("a topic of all brokers' default", TOPIC, "t", until={"retention.ms": "88"})
    story.alter("set for one broker", BROKER, broker, (retention, SET, "99"), (policy, APPEND, "compact"))
    story.describe("a topic of the broker's", TOPIC, "t", until={"retention.ms": "99"})
    story.describe("the broker after that", BROKER, broker, until={retention: "99"})
    story.alter("append, whatever the broker's default", TOPIC, "t", ("cleanup.policy", APPEND, "delete"))
    story.describe("after that append", TOPIC, "t", until={"cleanup.policy": "delete"})
    story.replace("one broker is replaced", BROKER, broker, {"message.max.bytes": "2000"})
    story.describe("the topic then", TOPIC, "t", until={"max.message.bytes": "2000", "retention.ms": "88"})
    story.produce("a batch above message.max.bytes", "t", b"v" * 3_000, Codec.NONE, until=_TOO_LARGE)
    fixed = ("num.partitions", SET, "5"), ("auto.create.topics.enable", SET, "true")
    story.alter("what is read only", BROKER, broker, *fixed)
    story.alter("what is read only, deleted", BROKER, broker, ("num.partitions", DELETE, None))
    story.replace("what is read only, for all", BROKER, "", {"num.partitions": "5"})
    story.alter("append to a broker's number", BROKER, broker, (retention, APPEND, "5"))
    story.alter("an operation that does not exist, on a broker", BROKER, broker, (retention, 7, "5"))
    for name, value in (
        (retention, "x"),
        ("message.max.bytes", "-1"),
        ("log.segment.bytes", "5"),
        ("log.roll.ms", "0"),
        (policy, "x"),
        (policy, ""),
        ("log.message.timestamp.type", "x"),
        ("log.flush.interval.messages", "0"),
        ("log.cleaner.min.cleanable.ratio", "2"),
        ("log.cleaner.max.compaction.lag.ms", "0"),
        ("log.index.interval.bytes", "-1"),
        ("log.retention.bytes", "-9"),
    ):
        story.alter(f"{name}={value!r} on a broker", BROKER, broker, (name, SET, value), validate_only=True)
    story.alter("a retention below -1", BROKER, broker, (retention, SET, "-3"), validate_only=True)
    unknown = ("no.such.config", SET, "5")
    story.alter("a broker config that nobody knows", BROKER, broker, unknown, validate_only=True)
    story.replace("nothing is left of the broker", BROKER, broker, {})
    story.alter("nothing is left of all", BROKER, "", (retention, DELETE, None))
    story.describe(
        "as it was", TOPIC, "t", until={"max.message.bytes": "1048588", "retention.ms": "700000000"}
    )


def tell_of_what_can_be_altered(story: Story, broker: str) -> None:
    """Every config that can be altered on a running broker, and some that cannot."""
    story.alterable("what can be altered", broker)
    altered = [name for name, spec in BROKER_SPECS.items() if spec.dynamic and name != DRAINED]
    for name in (*altered, "listeners", *_OF_LISTENERS, *_NOT_ALTERED):
        for where in (broker, ""):
            for value in ("-7", "0", "1", "7", "x y", "true", "", "0.5"):
                change = (name, SET, value)
                story.alter(f"{name}={value!r} on {where!r}", BROKER, where, change, validate_only=True)
            for operation in (APPEND, SUBTRACT):
                title = f"{name} {operation} on {where!r}"
                story.alter(title, BROKER, where, (name, operation, "zz"), validate_only=True)
            story.alter(f"{name} deleted on {where!r}", BROKER, where, (name, DELETE, None))
    for name, value in _WORTH_TRYING:
        for where in (broker, ""):
            story.alter(
                f"{name}={value!r} on {where!r}", BROKER, where, (name, SET, value), validate_only=True
            )
    changes = [(name, SET, value) for name, value in _KEPT.items()]
    story.alter("kept", BROKER, broker, *changes)
    of_all = ("max.connections", "99"), ("follower.replication.throttled.rate", "9"), _OF_ALL_LISTENERS
    story.alter("kept for all", BROKER, "", *((name, SET, value) for name, value in of_all))
    kept = {"log.cleaner.backoff.ms": "77", "max.connections": "99"}
    story.describe("the broker with what is kept", BROKER, broker, until=kept)
    story.describe("all brokers with what is kept", BROKER, "", until=dict(of_all))
    story.replace("what was kept goes", BROKER, broker, {})
    story.alter("what was kept for all goes", BROKER, "", *((name, DELETE, None) for name, _ in of_all))
    without = {"log.cleaner.backoff.ms": "15000", "max.connections": "2147483647"}
    story.describe("the broker without it", BROKER, broker, until=without)


_OF_LISTENERS: Final = (
    "listener.name.x.max.connections",
    "listener.name.x.max.connection.creation.rate",
    "listener.name.x.num.network.threads",
    "listener.name.x.ssl.keystore.location",
    "listener.name.x.ssl.keystore.password",
    "listener.name.x.ssl.client.auth",
    "listener.name.x.sasl.enabled.mechanisms",
    "listener.name.x.sasl.login.refresh.buffer.seconds",
    "listener.name.x.plain.sasl.jaas.config",
    "listener.name.x.plain.connections.max.reauth.ms",
    "listener.name.x.connections.max.reauth.ms",
)
_NOT_ALTERED: Final = (
    "advertised.listeners",
    "broker.id",
    "broker.rack",
    "group.max.size",
    "log.cleaner.enable",
    "log.dirs",
    "log.retention.hours",
    "node.id",
    "num.partitions",
    "offsets.retention.minutes",
    "queued.max.request.bytes",
)
_WORTH_TRYING: Final = (
    ("background.threads", "20"),
    ("background.threads", "21"),
    ("background.threads", "5"),
    ("background.threads", "4"),
    ("num.replica.fetchers", "2"),
    ("num.replica.fetchers", "3"),
    ("log.cleaner.threads", "2"),
    ("log.cleaner.dedupe.buffer.size", "1048576"),
    ("log.cleaner.dedupe.buffer.size", "1048577"),
    ("log.cleaner.io.max.bytes.per.second", "1e6"),
    ("max.connections.per.ip.overrides", "127.0.0.1:5"),
    ("max.connections.per.ip.overrides", "127.0.0.1:x"),
    ("metric.reporters", "org.apache.kafka.common.metrics.JmxReporter"),
    ("sasl.login.refresh.buffer.seconds", "32768"),
    ("ssl.client.auth", "required"),
    ("ssl.client.auth", "Required"),
    ("no.such.config", "5"),
    ("listener.name.x.no.such.config", "5"),
    ("listener.name.x.log.retention.ms", "5"),
    ("listener.name..max.connections", "5"),
)
_OF_ALL_LISTENERS: Final = ("listener.name.x.max.connections", "6")
_KEPT: Final = {
    "group.share.assignor.offload.enable": "false",
    "leader.replication.throttled.rate": "9",
    "listener.name.x.max.connections": "5",
    "listener.name.x.plain.sasl.jaas.config": "secret",
    "listener.name.x.ssl.keystore.password": "secret",
    "listener.name.x.ssl.truststore.type": "JKS",
    "log.cleaner.backoff.ms": " 77 ",
    "log.cleaner.io.max.bytes.per.second": "1e8",
    "log.preallocate": "TRUE",
    "num.io.threads": "9",
    "sasl.enabled.mechanisms": "PLAIN , GSSAPI",
    "sasl.jaas.config": "secret",
    "unclean.leader.election.enable": "true",
}


def tell_of_the_rest(story: Story, broker: str) -> None:
    story.alter("a level is set", BROKER_LOGGER, broker, ("root", SET, "ERROR"))
    story.describe("the loggers", BROKER_LOGGER, broker)
    for name, operation, value in (
        ("root", SET, "LOUD"),
        ("root", SET, "error"),
        ("root", DELETE, None),
        ("root", APPEND, "INFO"),
        ("root", SET, None),
        ("no.such.logger", SET, "INFO"),
        ("no.such.logger", DELETE, None),
    ):
        story.alter(f"logger {name} {operation} {value}", BROKER_LOGGER, broker, (name, operation, value))
    story.alter("a level that muster has not", BROKER_LOGGER, broker, ("root", SET, "TRACE"))
    story.alter("back to a level of both", BROKER_LOGGER, broker, ("root", SET, "WARN"))
    story.replace("loggers are not replaced", BROKER_LOGGER, broker, {})

    for types in ((), (TOPIC,), (BROKER,), (BROKER, BROKER_LOGGER), (GROUP,), (0,), (TOPIC, 99)):
        story.list(f"list {types}", types)
    story.list("list, v0", version=0)
    tell_of_groups(story, broker)
    story.describe("a client metrics subscription", CLIENT_METRICS, "m")
    story.alter("client metrics are set", CLIENT_METRICS, "m", ("interval.ms", SET, "50000"))
    story.alter("a client metric that nobody knows", CLIENT_METRICS, "m", ("no.such.config", SET, "5"))


def tell_of_groups(story: Story, broker: str) -> None:
    session, heartbeat, assignment, offload = _GROUP_VALUES
    story.describe("a group", GROUP, "g")
    story.alter("nothing is set for a group", GROUP, "g")
    story.alter("a group's config is deleted", GROUP, "g", (session, DELETE, None))
    story.alter("a group's configs are set", GROUP, "g", (session, SET, "50000"), (offload, SET, "false"))
    story.describe("a group with configs", GROUP, "g", until={session: "50000", offload: "false"})
    story.list("list groups with configs", (GROUP,))
    story.alter("an interval of all groups", BROKER, "", (f"group.{assignment}", SET, "2000"))
    story.describe("a group of that interval", GROUP, "g", until={assignment: "2000"})
    story.alter("it goes again", BROKER, "", (f"group.{assignment}", DELETE, None))
    story.replace("a group's configs are replaced", GROUP, "g", {heartbeat: " 6000 "})
    story.describe("a group then", GROUP, "g", until={heartbeat: "6000", session: "45000"})
    story.replace("a group's configs are replaced, validated only", GROUP, "g", {}, validate_only=True)
    for name, values in _GROUP_VALUES.items():
        for value in values:
            title = f"{name}={value!r} on a group"
            story.alter(title, GROUP, "g", (name, SET, value), validate_only=True)
            story.replace(f"{title}, replacing", GROUP, "g", {name: value}, validate_only=True)
        for operation in (APPEND, SUBTRACT):
            story.alter(f"{name} {operation} on a group", GROUP, "g", (name, operation, "1"))
        story.alter(f"{name} is null on a group", GROUP, "g", (name, SET, None))
    story.alter("share.session.timeout.ms on a group", GROUP, "g", ("share.session.timeout.ms", SET, "50000"))
    for operation, value in ((SET, "5"), (DELETE, None), (APPEND, "5")):
        title = f"a group config that nobody knows, {operation}"
        story.alter(title, GROUP, "g", ("no.such.config", operation, value))
    story.alter("a group's config twice", GROUP, "g", (session, SET, "50000"), (session, SET, "50001"))
    story.alter_twice("a group twice", GROUP, "g", (session, SET, "50000"))
    story.alter("a group's name with NUL", GROUP, "a\0b", (session, SET, "50000"), validate_only=True)
    for name in ("", " ", "x" * 300):
        story.alter(f"alter group {name!r}", GROUP, name, (session, SET, "50000"), validate_only=True)
        story.replace(f"replace group {name!r}", GROUP, name, {session: "50000"}, validate_only=True)
    for name, value in (
        ("group.consumer.session.timeout.ms", "50000"),
        ("group.consumer.max.size", "5"),
        ("group.consumer.assignors", "range"),
        ("group.consumer.migration.policy", "disabled"),
        ("group.consumer.regex.refresh.interval.ms", "20000"),
        ("group.coordinator.rebalance.protocols", "classic"),
        (f"group.{assignment}", "15000"),
        (f"group.{assignment}", "15001"),
        (f"group.{assignment}", "-1"),
        (f"group.{offload}", "false"),
    ):
        for where in (broker, ""):
            title = f"{name}={value!r} on {where!r}, of groups"
            story.alter(title, BROKER, where, (name, SET, value), validate_only=True)


_GROUP_VALUES: Final = {
    "consumer.session.timeout.ms": ("44999", "45000", "60000", "60001", "x", "", " 50000 ", "-1", "5e4"),
    "consumer.heartbeat.interval.ms": ("4999", "5000", "15000", "15001", "0"),
    "consumer.assignment.interval.ms": ("-1", "0", "15000", "15001"),
    "consumer.assignor.offload.enable": ("false", "TRUE", "x", ""),
}


_OF_THE_PLACE: Final = (
    "advertised.listeners value",
    "advertised.listeners synonyms",
    "listeners value",
    "listeners synonyms",
)
"""Addresses, which differ between brokers."""


def _known_to_muster(facts: Mapping[tuple[str, str], Any], ours: Mapping[tuple[str, str], Any]) -> Any:
    """Kafka's facts about its broker, limited to the configs that muster has."""
    names = {fact.split()[0] for step, fact in ours if step.startswith("the broker")}
    return {
        (step, fact): value
        for (step, fact), value in facts.items()
        if not step.startswith("the broker") or fact.split()[0] in names
    }


def test_apache_kafka_and_muster_tell_the_same_story(
    kafka_of_configs: KafkaOfConfigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log._Output, "level", log._Output.level)  # the story alters it
    kafka = kafka_of_configs({**_SETTINGS, **_KAFKAS_THREADS})
    with WireConnection(kafka.host, kafka.port, "configs") as connection:
        create_topics(connection, {"t": 1})
        theirs = Story(connection)
        tell(theirs, "1")
    settings: dict[str, Any] = {
        "auto_create_topics_enable": False,
        "log_retention_check_interval_ms": 600_000,
        "log_retention_ms": 700_000_000,
        "log_segment_bytes": 2_097_152,
        "group_initial_rebalance_delay_ms": 3_000,
    }
    with (
        Broker(**settings) as broker,
        WireConnection("127.0.0.1", broker.port, "configs") as connection,
    ):
        create_topics(connection, {"t": 1})
        ours = Story(connection)
        tell(ours, "1")

    kafkas = _known_to_muster(theirs.facts, ours.facts)
    differing = {
        key: (kafkas.get(key, _ABSENT), ours.facts.get(key, _ABSENT))
        for key in kafkas.keys() | ours.facts.keys()
        if kafkas.get(key, _ABSENT) != ours.facts.get(key, _ABSENT) and key[1] not in _OF_THE_PLACE
    }
    used = set()
    unlisted = []
    for (step, fact), (said, our_words) in sorted(differing.items()):
        matching = [
            (steps, facts_)
            for steps, facts_ in DIFFERENCES
            if fnmatchcase(step, steps) and fnmatchcase(fact, facts_)
        ]
        used.update(matching)
        if not matching:
            unlisted.append(f"{step}: {fact}: Kafka {said!r}, muster {our_words!r}")
    assert not unlisted, "not listed in DIFFERENCES:\n" + "\n".join(unlisted)
    gone = sorted(DIFFERENCES.keys() - used)
    assert not gone, f"listed, and no longer so: {gone}"
