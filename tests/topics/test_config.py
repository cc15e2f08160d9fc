"""Topic configs: Kafka's names, defaults and bounds."""

from __future__ import annotations

import pytest

from muster.coordinator.topics import config
from muster.coordinator.topics.config import SPECS, TopicConfig
from muster.protocol.errors import ErrorCode, KafkaError

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


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cleanup.policy", "shred"),
        ("cleanup.policy", "delete,shred"),
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
        ("message.format.version", "3.0"),
    ],
)
def test_wrong_values_are_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(KafkaError) as caught:
        config.parse({name: text})
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    assert name in caught.value.why


def test_lags_must_not_cross() -> None:
    with pytest.raises(KafkaError, match=r"min\.compaction\.lag\.ms"):
        config.parse({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"})


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
