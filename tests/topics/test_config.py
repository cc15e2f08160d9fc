"""Topic configs: Kafka's names, defaults and bounds."""

from __future__ import annotations

import pytest

from muster.coordinator.topics import config
from muster.coordinator.topics.config import SPECS, ConfigChange, Operation, TopicConfig, changed
from muster.protocol.errors import ErrorCode, KafkaError
from muster.settings import text_of
from tests.support.each import each

KAFKA_DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "delete.retention.ms": "86400000",
    "flush.messages": "9223372036854775807",
    "flush.ms": "9223372036854775807",
    "index.interval.bytes": "4096",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "preallocate": "false",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}


def test_defaults_are_kafkas() -> None:
    for name, value in KAFKA_DEFAULTS.items():
        assert config.present(name, TopicConfig()) == value


def test_what_is_presented_parses_to_the_same() -> None:
    parsed = config.parse({name: config.present(name, TopicConfig()) for name in SPECS})
    assert parsed == TopicConfig()


@each(
    "name, text",
    [
        ("cleanup.policy", "shred"),
        ("cleanup.policy", "delete,shred"),
        ("cleanup.policy", "delete,"),
        ("compression.gzip.level", "0"),
        ("compression.gzip.level", "10"),
        ("index.interval.bytes", "1_0"),
        ("index.interval.bytes", "\u0663"),
        ("leader.replication.throttled.replicas", "0"),
        ("leader.replication.throttled.replicas", "*,0:1"),
        ("compression.type", "brotli"),
        ("max.message.bytes", "-1"),
        ("max.message.bytes", "2147483648"),
        ("message.timestamp.type", "createtime"),
        ("min.cleanable.dirty.ratio", "1.1"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("preallocate", "maybe"),
        ("retention.ms", "-2"),
        ("retention.ms", "1.5"),
        ("segment.bytes", "1024"),
        ("segment.ms", "0"),
        ("flush.messages", "0"),
        ("max.decompressed.message.bytes", "2147483640"),
        ("message.format.version", "3.0"),
    ],
)
def test_wrong_values_are_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(KafkaError) as caught:
        config.parse({name: text})
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    assert name in caught.value.why


@each(
    "name, text, value",
    [
        ("retention.ms", " +7 ", "7"),
        ("compression.gzip.level", "-1", "-1"),
        ("min.cleanable.dirty.ratio", "1e-1", "0.1"),
        ("max.decompressed.message.bytes", "2147483639", "2147483639"),
        ("preallocate", "TRUE", "true"),
        ("cleanup.policy", "", ""),
        ("cleanup.policy", " delete , compact,delete", "delete,compact"),
        ("leader.replication.throttled.replicas", "*", "*"),
        ("leader.replication.throttled.replicas", "0:1, 10:2", "0:1,10:2"),
    ],
)
def test_values_are_presented_as_kafka_does(name: str, text: str, value: str) -> None:
    assert config.present(name, config.parse({name: text})) == value


@pytest.mark.parametrize(
    ("name", "configs"),
    [
        ("min.compaction.lag.ms", {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"}),
        ("remote.storage.enable", {"remote.storage.enable": "true"}),
    ],
)
def test_what_contradicts_itself_or_this_broker_is_refused_when_it_is_set(
    name: str, configs: dict[str, str]
) -> None:
    with pytest.raises(KafkaError, match=name) as caught:
        config.validated(configs, {})
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    config.parse(configs)  # configs already set are still read


def test_a_contradiction_that_was_there_before_refuses_no_other_change() -> None:
    before = {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"}
    assert config.validated({**before, "retention.ms": "5"}, before).retention_ms == 5
    with pytest.raises(KafkaError, match=r"min\.compaction\.lag\.ms"):
        config.validated({**before, "max.compaction.lag.ms": "8"}, before)


def test_every_config_is_documented_and_the_idle_ones_say_so() -> None:
    for name, spec in SPECS.items():
        assert not spec.meaning.endswith("."), name
        assert ("without effect" in spec.documentation) is not spec.served, name


POLICY = "cleanup.policy"


@each(
    "before, operation, value, after",
    [
        ({}, Operation.SET, "compact", {POLICY: "compact"}),
        ({POLICY: "compact"}, Operation.DELETE, None, {}),
        ({}, Operation.DELETE, "whatever", {}),
        ({}, Operation.APPEND, "compact", {POLICY: "delete,compact"}),
        ({POLICY: "compact"}, Operation.APPEND, "compact,delete", {POLICY: "compact,delete"}),
        ({POLICY: ""}, Operation.APPEND, "compact", {POLICY: "compact"}),
        ({POLICY: "compact,delete"}, Operation.SUBTRACT, "compact", {POLICY: "delete"}),
        ({POLICY: "compact"}, Operation.SUBTRACT, "delete", {POLICY: "compact"}),
        ({}, Operation.SUBTRACT, "delete", {POLICY: ""}),
        # As in Kafka, a blank belongs to the element.
        ({POLICY: "delete, compact"}, Operation.SUBTRACT, "compact", {POLICY: "delete, compact"}),
    ],
)
def test_changes(
    before: dict[str, str], operation: Operation, value: str | None, after: dict[str, str]
) -> None:
    untouched = dict(before)
    assert changed(before, [ConfigChange(POLICY, operation, value)], SPECS) == after
    assert before == untouched


@pytest.mark.parametrize(
    ("before", "operation", "value", "after"),
    [
        ("1:1,2:2,1:1,1:1", Operation.SUBTRACT, "1:1,1:1,3:3", "2:2,1:1"),
        ("1:1,1:1", Operation.APPEND, "2:2,1:1,2:2", "1:1,1:1,2:2"),
    ],
)
def test_an_element_stands_for_one_of_those_like_it(
    before: str, operation: Operation, value: str, after: str
) -> None:
    name = "leader.replication.throttled.replicas"
    assert changed({name: before}, [ConfigChange(name, operation, value)], SPECS) == {name: after}


@pytest.mark.parametrize("operation", [Operation.APPEND, Operation.SUBTRACT])
@pytest.mark.parametrize("name", ["retention.ms", "no.such.config"])
def test_only_lists_are_added_to_and_taken_from(name: str, operation: Operation) -> None:
    with pytest.raises(KafkaError, match=name) as caught:
        changed({}, [ConfigChange(name, operation, "5")], SPECS)
    assert caught.value.code is ErrorCode.INVALID_CONFIG


def test_policies() -> None:
    both = config.parse({"cleanup.policy": "compact, delete"})
    assert both.compacts
    assert both.deletes
    assert not TopicConfig().compacts
    assert not config.parse({"cleanup.policy": "compact"}).deletes


def test_defaults_come_from_broker_settings() -> None:
    settings = {"log.retention.ms": "5", "message.max.bytes": "77", "num.partitions": "3"}
    assert config.defaults_from(settings.get) == {"retention.ms": "5", "max.message.bytes": "77"}


def test_the_size_for_tests_is_not_listed() -> None:
    listed = [name for name, _ in config.described()]
    assert "segment.bytes" in listed
    assert "internal.segment.bytes" not in listed
    assert config.parse({"internal.segment.bytes": "10"}).segment_bytes_max == 10


@each(
    "value, text",
    [
        (0.5, "0.5"),
        (0.001, "0.001"),
        (9_999_999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (123_456_789.0, "1.23456789E8"),
        (1e-4, "1.0E-4"),
        (0.000_123, "1.23E-4"),
        (-2.5e-7, "-2.5E-7"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (0.0, "0.0"),
    ],
)
def test_doubles_are_written_as_java_writes_them(value: float, text: str) -> None:
    assert text_of(value) == text
