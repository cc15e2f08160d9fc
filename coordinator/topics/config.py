"""Topic configs: Kafka's names, types, defaults and bounds (LogConfig of Apache Kafka 4.x), and how requests
change a set of configs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple

from muster.protocol.errors import ErrorCode, KafkaError
from muster.settings import INT32_MAX, INT64_MAX, Scope, Setting, Type, setting, settings_of, text_of

DAY_MS: Final = 86_400_000

_TEXT_BYTES_MAX: Final = 32_767
"""As UTF-8: no response can carry a longer string."""


def _config(default: Any, default_from: str | None, meaning: str, *bounds: float, **rest: Any) -> Any:
    return setting(
        default, meaning, None, *bounds, default_from=default_from, scope=Scope.CLUSTER_WIDE, **rest
    )


def _long(default: Any, default_from: str | None, meaning: str, *bounds: float, **rest: Any) -> Any:
    return setting(
        default, meaning, Type.LONG, *bounds, default_from=default_from, scope=Scope.CLUSTER_WIDE, **rest
    )


def _idle(default: Any, default_from: str | None, meaning: str, *bounds: float, **rest: Any) -> Any:
    return _config(default, default_from, meaning, *bounds, served=False, **rest)


def _throttled(meaning: str) -> Any:
    shape = "* or a list of partition:broker, both numbers"
    return _idle((), None, meaning, pattern=r"[0-9]+:[0-9]+", shape=shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The values in force for one topic. Field names are Kafka's topic config names with `_` for `.`."""

    cleanup_policy: tuple[str, ...] = _config(
        ("delete",),
        "log.cleanup.policy",
        "what happens to old records: delete removes them by age and size, compact keeps the latest of "
        "each key; both may be set. Empty: old records are kept",
        choices=("compact", "delete"),
    )
    compression_gzip_level: int = _idle(
        -1, "compression.gzip.level", "gzip level; -1: gzip's default", 1, 9, also=-1
    )
    compression_lz4_level: int = _idle(9, "compression.lz4.level", "lz4 level", 1, 17)
    compression_type: str = _config(
        "producer",
        "compression.type",
        "how records are compressed; producer: as the producer compressed them",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    )
    compression_zstd_level: int = _idle(3, "compression.zstd.level", "zstd level", -131_072, 22)
    delete_retention_ms: int = _long(
        DAY_MS, "log.cleaner.delete.retention.ms", "how long tombstones are kept after compaction", 0
    )
    errors_deadletterqueue_group_enable: bool = _idle(
        False, None, "whether groups may use the topic as a dead letter queue"
    )
    file_delete_delay_ms: int = _long(
        60_000,
        "log.segment.delete.delay.ms",
        "how long a removed segment's file stays on disk",
        0,
        served=False,
    )
    flush_messages: int = _long(
        INT64_MAX,
        "log.flush.interval.messages",
        "records are synced to disk after this many; 1: before each is acknowledged",
        1,
    )
    flush_ms: int = _long(INT64_MAX, "log.flush.interval.ms", "records are synced to disk after this time", 0)
    follower_replication_throttled_replicas: tuple[str, ...] = _throttled(
        "followers whose replication is throttled"
    )
    index_interval_bytes: int = _config(
        4_096, "log.index.interval.bytes", "bytes of records between index entries", 0
    )
    internal_segment_bytes: int = _config(
        -1, None, "segment size that overrides segment.bytes; for tests", -1
    )
    leader_replication_throttled_replicas: tuple[str, ...] = _throttled(
        "leaders whose replication is throttled"
    )
    local_retention_bytes: int = _long(
        -2,
        "log.local.retention.bytes",
        "how much stays on the local disk of a topic with remote storage",
        -2,
        served=False,
    )
    local_retention_ms: int = _long(
        -2,
        "log.local.retention.ms",
        "how long records stay on the local disk of a topic with remote storage",
        -2,
        served=False,
    )
    max_compaction_lag_ms: int = _long(
        INT64_MAX, "log.cleaner.max.compaction.lag.ms", "longest time a record may stay uncompacted", 1
    )
    max_decompressed_message_bytes: int = _config(
        INT32_MAX - 8,
        "max.decompressed.message.bytes",
        "largest size a record batch may decompress to; never more than 16 times message.max.bytes, or 16 "
        "MiB if that is more",
        1,
        INT32_MAX - 8,
    )
    max_message_bytes: int = _config(1_048_588, "message.max.bytes", "largest record batch accepted", 0)
    message_timestamp_after_max_ms: int = _long(
        3_600_000,
        "log.message.timestamp.after.max.ms",
        "how far in the future a record's timestamp may be",
        0,
    )
    message_timestamp_before_max_ms: int = _long(
        INT64_MAX,
        "log.message.timestamp.before.max.ms",
        "how far in the past a record's timestamp may be",
        0,
    )
    message_timestamp_type: str = _config(
        "CreateTime",
        "log.message.timestamp.type",
        "whose timestamp records carry, the producer's or the broker's",
        choices=("CreateTime", "LogAppendTime"),
    )
    min_cleanable_dirty_ratio: float = _config(
        0.5,
        "log.cleaner.min.cleanable.ratio",
        "uncompacted share of a log at which compaction starts",
        0,
        1,
    )
    min_compaction_lag_ms: int = _long(
        0, "log.cleaner.min.compaction.lag.ms", "shortest time a record stays uncompacted", 0
    )
    min_insync_replicas: int = _idle(
        1,
        "min.insync.replicas",
        "how many replicas must have a record before it is acknowledged; muster keeps one",
        1,
    )
    preallocate: bool = _idle(False, "log.preallocate", "whether segment files are preallocated at full size")
    remote_copy_lag_bytes: int = _long(
        -1, "log.remote.copy.lag.bytes", "how many bytes remote storage may lag", -1, served=False
    )
    remote_copy_lag_ms: int = _long(
        0, "log.remote.copy.lag.ms", "how long remote storage may lag", -1, served=False
    )
    remote_log_copy_disable: bool = _idle(False, None, "whether copying to remote storage is stopped")
    remote_log_delete_on_disable: bool = _idle(
        False, None, "whether records in remote storage are deleted when it is switched off"
    )
    remote_storage_enable: bool = _idle(
        False, None, "whether the topic uses remote storage, which muster does not have"
    )
    retention_bytes: int = _long(
        -1, "log.retention.bytes", "partition size above which the oldest records are deleted; -1: no limit"
    )
    retention_ms: int = _long(
        7 * DAY_MS, "log.retention.ms", "age at which records are deleted; -1: never", -1
    )
    segment_bytes: int = _config(
        1 << 30, "log.segment.bytes", "size at which a new segment file is started", 1 << 20
    )
    segment_index_bytes: int = _idle(
        10_485_760, "log.index.size.max.bytes", "size at which the index of a segment is full", 4
    )
    segment_jitter_ms: int = _long(
        0, "log.roll.jitter.ms", "most that the start of new segments is delayed at random", 0, served=False
    )
    segment_ms: int = _long(7 * DAY_MS, "log.roll.ms", "age at which a new segment file is started", 1)
    unclean_leader_election_enable: bool = _idle(
        False, "unclean.leader.election.enable", "whether an out-of-sync replica may become leader"
    )

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def syncs(self) -> bool:
        """Whether records are synced after some number of them, or some time."""
        return min(self.flush_messages, self.flush_ms) < INT64_MAX

    @property
    def segment_bytes_max(self) -> int:
        """Size at which a segment is closed."""
        return self.segment_bytes if self.internal_segment_bytes < 0 else self.internal_segment_bytes

    @property
    def log_append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"


SPECS: Final[Mapping[str, Setting]] = {each.name: each for each in settings_of(TopicConfig).values()}
"""Every topic config by Kafka's name."""

INTERNAL: Final = frozenset({"internal.segment.bytes"})
"""Accepted, but listed to clients only where it is set."""


def parse(configs: Mapping[str, str]) -> TopicConfig:
    """The values in force with `configs` set; INVALID_CONFIG (40) naming the config and what it takes."""
    values: dict[str, Any] = {}
    for name, text in configs.items():
        spec = SPECS.get(name)
        if spec is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
        values[spec.field] = read(spec, name, text)
    return TopicConfig(**values)


def readable(configs: Mapping[str, str]) -> dict[str, str]:
    """Those of `configs` that `parse` accepts: a newer muster may have set others."""
    return to_check(configs, (), SPECS.get)


def read(spec: Setting, name: str, text: str) -> Any:
    """The value of `text` for the config `name`; INVALID_CONFIG saying what is allowed."""
    value = spec.read(text)
    if value is None:
        raise _invalid(name, text, f"takes {spec.allowed}")
    return value


_LAGS: Final = ("min.compaction.lag.ms", "max.compaction.lag.ms")


def validated(configs: Mapping[str, str], before: Mapping[str, str]) -> TopicConfig:
    """As `parse`, for configs that are being set over those in `before`: INVALID_CONFIG also if they
    contradict each other, unless it is those in `before` alone that do.

    Configs that are already set may contradict each other: the broker's defaults below them can change.
    """
    parsed = parse(configs)
    changed_lags = any(configs.get(name) != before.get(name) for name in _LAGS)
    if changed_lags and parsed.min_compaction_lag_ms > parsed.max_compaction_lag_ms:
        raise _invalid(
            "min.compaction.lag.ms", str(parsed.min_compaction_lag_ms), "exceeds max.compaction.lag.ms"
        )
    if parsed.remote_storage_enable:
        raise _invalid("remote.storage.enable", "true", "takes false: muster has no remote storage")
    return parsed


def present(name: str, config: TopicConfig) -> str:
    """The value of one config as Kafka writes it."""
    return text_of(getattr(config, SPECS[name].field))


def described() -> Iterable[tuple[str, Setting]]:
    """The topic configs listed to clients, by name."""
    return ((name, spec) for name, spec in sorted(SPECS.items()) if name not in INTERNAL)


def defaults_from(broker_setting: Callable[[str], str | None]) -> dict[str, str]:
    """Topic config defaults from broker settings: `broker_setting("log.retention.ms")` is its text, or
    None."""
    found = {
        name: broker_setting(spec.default_from)
        for name, spec in SPECS.items()
        if spec.default_from is not None
    }
    return {name: text for name, text in found.items() if text is not None}


def _invalid(name: str, text: str, why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, f"Invalid value {text} for configuration {name}: it {why}")


# --- changes --------------------------------------------------------------------------------------


class Operation(IntEnum):
    """What IncrementalAlterConfigs may do with one config (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(NamedTuple):
    """One config of a request. `value` is ignored for DELETE, and not None otherwise."""

    name: str
    operation: Operation
    value: str | None = None


def changed(
    configs: Mapping[str, str], changes: Sequence[ConfigChange], specs: Mapping[str, Setting]
) -> dict[str, str]:
    """`configs` after `changes`, not validated. INVALID_CONFIG for APPEND or SUBTRACT on a config that is not
    a list in `specs`, and for a list that becomes too long to be described.

    As in Kafka, an unset list starts from its own default, not from the broker's setting, and blanks belong
    to the elements.
    """
    result = dict(configs)
    for name, operation, value in changes:
        if operation is Operation.DELETE:
            result.pop(name, None)
            continue
        assert value is not None
        if operation is Operation.SET:
            result[name] = value
            continue
        spec = specs.get(name)
        if spec is None or spec.type is not Type.LIST:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG, f"{name} is not a list, so it does not support {operation.name}"
            )
        present = [each for each in result.get(name, text_of(spec.default)).split(",") if each]
        combine = _appended if operation is Operation.APPEND else _subtracted
        result[name] = ",".join(combine(present, value.split(",")))
        if len(result[name].encode()) > _TEXT_BYTES_MAX:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG, f"{name} would become longer than {_TEXT_BYTES_MAX} bytes"
            )
    return result


def to_check(
    configs: Mapping[str, str],
    changes: Sequence[ConfigChange],
    spec_named: Callable[[str], Setting | None],
) -> dict[str, str]:
    """Those of `configs`, the outcome of `changes`, that have to be valid: all but what only a newer muster
    can read and the changes do not touch."""
    touched = {change.name for change in changes}
    return {
        name: text
        for name, text in configs.items()
        if name in touched or ((spec := spec_named(name)) is not None and spec.read(text) is not None)
    }


def _appended(present: Sequence[str], more: Sequence[str]) -> list[str]:
    there = set(present)
    return [*present, *(each for each in dict.fromkeys(more) if each not in there)]


def _subtracted(present: Sequence[str], less: Sequence[str]) -> list[str]:
    """Each of `less` removes the first element equal to it."""
    left = Counter(less)
    kept = []
    for each in present:
        if left[each] > 0:
            left[each] -= 1
        else:
            kept.append(each)
    return kept
