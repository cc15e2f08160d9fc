"""Topic configs: Kafka's names, types, defaults and bounds (LogConfig of Apache Kafka 4.x), and how requests
change a set of configs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum, IntEnum
from typing import Any, Final, NamedTuple

from muster.protocol.errors import ErrorCode, KafkaError

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
DAY_MS: Final = 86_400_000


class ConfigType(Enum):
    """Types as DescribeConfigs reports them."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


@dataclass(frozen=True, slots=True)
class ConfigSpec:
    """One topic config: its type, what it takes, and the broker config that gives its default (None: there is
    none)."""

    type: ConfigType
    default: Any
    broker_name: str | None
    meaning: str
    low: float | None = None
    high: float | None = None
    also: float | None = None
    """One value outside the bounds that is taken too."""
    choices: tuple[str, ...] = ()
    pattern: str | None = None
    """What a text looks like, or an element of a list; of a list, `*` alone stands for all."""
    shape: str | None = None
    """What is allowed, in words, where it does not follow from the rest."""
    served: bool = True
    """False where muster has no such mechanism: the value is kept and reported, and changes nothing."""

    @property
    def documentation(self) -> str:
        """For clients that ask for it."""
        return self.meaning if self.served else f"{self.meaning} {_NOT_SERVED}"

    def parse(self, name: str, text: str) -> Any:
        """The value of `text`; INVALID_CONFIG saying what is allowed."""
        parsed = self._typed(text.strip())
        if parsed is None:
            raise _invalid(name, text, f"takes {self.allowed}")
        return parsed

    @property
    def allowed(self) -> str:
        if self.shape is not None:
            return self.shape
        match self.type:
            case ConfigType.BOOLEAN:
                return "true or false"
            case ConfigType.LIST if self.choices:
                return f"a list of {' and '.join(self.choices)}"
            case ConfigType.LIST if self.pattern is not None:
                return "* or a list of partition:broker, both numbers"
            case ConfigType.STRING if self.choices:
                return " or ".join(self.choices)
            case ConfigType.STRING | ConfigType.LIST | ConfigType.CLASS | ConfigType.PASSWORD:
                return "text"
        noun = "a number" if self.type is ConfigType.DOUBLE else "a whole number"
        also = "" if self.also is None else f", or {self.also}"
        return f"{noun} from {self.low} to {self.high}{also}"

    def _typed(self, text: str) -> Any:
        match self.type:
            case ConfigType.BOOLEAN:
                return {"true": True, "false": False}.get(text.lower())
            case ConfigType.LIST:
                return self._list(text)
            case ConfigType.STRING if self.pattern is not None:
                return text if re.fullmatch(self.pattern, text) is not None else None
            case ConfigType.STRING:
                return text if not self.choices or text in self.choices else None
            case ConfigType.CLASS:
                return text if text in self.choices else None
            case ConfigType.PASSWORD:
                return text
        # Python's own parsing would take 1_000, and digits of every script.
        if re.fullmatch(_DOUBLE if self.type is ConfigType.DOUBLE else _INTEGER, text) is None:
            return None
        number = float(text) if self.type is ConfigType.DOUBLE else int(text)
        assert self.low is not None
        assert self.high is not None
        return number if self.low <= number <= self.high or number == self.also else None

    def _list(self, text: str) -> tuple[str, ...] | None:
        parts = tuple(part.strip() for part in text.split(",")) if text else ()
        if self.choices:
            return tuple(dict.fromkeys(parts)) if set(parts) <= set(self.choices) else None
        if self.pattern is None or parts == ("*",):
            return parts
        return parts if all(re.fullmatch(self.pattern, part) for part in parts) else None


_TEXT_BYTES_MAX: Final = 32_767
"""As UTF-8: no response can carry a longer string."""
_NOT_SERVED: Final = "Kept and reported here, but without effect: muster has no such mechanism."
_INTEGER: Final = r"[+-]?[0-9]{1,20}"
_DOUBLE: Final = r"[+-]?([0-9]{1,20}\.?[0-9]{0,20}|\.[0-9]{1,20})([eE][+-]?[0-9]{1,3})?"
_THROTTLED: Final = r"[0-9]+:[0-9]+"


def _config(
    type: ConfigType,
    default: Any,
    broker_name: str | None,
    meaning: str,
    low: float | None = None,
    high: float | None = None,
    **spec: Any,
) -> Any:
    if type in (ConfigType.INT, ConfigType.LONG):
        low = -(2**63) if low is None else low
        high = (INT32_MAX if type is ConfigType.INT else INT64_MAX) if high is None else high
    return field(
        default=default,
        metadata={"spec": ConfigSpec(type, default, broker_name, meaning, low, high, **spec)},
    )


_BOOLEAN, _STRING, _INT, _LONG = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT, ConfigType.LONG
_DOUBLES, _LIST = ConfigType.DOUBLE, ConfigType.LIST


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The values in force for one topic. Field names are Kafka's topic config names with `_` for `.`."""

    cleanup_policy: tuple[str, ...] = _config(
        _LIST,
        ("delete",),
        "log.cleanup.policy",
        "What becomes of old records: delete removes them by age and size, compact keeps the last one of "
        "each key, both do both. Empty: they stay.",
        choices=("compact", "delete"),
    )
    compression_gzip_level: int = _config(
        _INT, -1, "compression.gzip.level", "Level for gzip; -1 is its default.", 1, 9, also=-1, served=False
    )
    compression_lz4_level: int = _config(
        _INT, 9, "compression.lz4.level", "Level for lz4.", 1, 17, served=False
    )
    compression_type: str = _config(
        _STRING,
        "producer",
        "compression.type",
        "How records are stored: producer keeps each batch as it came, anything else packs it anew.",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    )
    compression_zstd_level: int = _config(
        _INT, 3, "compression.zstd.level", "Level for zstd.", -131_072, 22, served=False
    )
    delete_retention_ms: int = _config(
        _LONG,
        DAY_MS,
        "log.cleaner.delete.retention.ms",
        "How many milliseconds a compacted topic keeps a tombstone, so that consumers can see it.",
        0,
    )
    errors_deadletterqueue_group_enable: bool = _config(
        _BOOLEAN, False, None, "Whether groups may use the topic as a dead letter queue.", served=False
    )
    file_delete_delay_ms: int = _config(
        _LONG,
        60_000,
        "log.segment.delete.delay.ms",
        "How many milliseconds a removed segment's file stays on the disk.",
        0,
        served=False,
    )
    flush_messages: int = _config(
        _LONG,
        INT64_MAX,
        "log.flush.interval.messages",
        "After how many records a partition is forced to the disk; 1: before each is acknowledged.",
        1,
    )
    flush_ms: int = _config(
        _LONG,
        INT64_MAX,
        "log.flush.interval.ms",
        "After how many milliseconds records are forced to the disk.",
        0,
    )
    follower_replication_throttled_replicas: tuple[str, ...] = _config(
        _LIST, (), None, "Followers whose replication is throttled.", pattern=_THROTTLED, served=False
    )
    index_interval_bytes: int = _config(
        _INT,
        4_096,
        "log.index.interval.bytes",
        "How many bytes of records lie between two entries of a segment's index.",
        0,
    )
    internal_segment_bytes: int = _config(
        _INT, -1, None, "Any segment size, put above segment.bytes; for tests.", -1
    )
    leader_replication_throttled_replicas: tuple[str, ...] = _config(
        _LIST, (), None, "Leaders whose replication is throttled.", pattern=_THROTTLED, served=False
    )
    local_retention_bytes: int = _config(
        _LONG,
        -2,
        "log.local.retention.bytes",
        "How much stays on the local disk of a topic with remote storage.",
        -2,
        served=False,
    )
    local_retention_ms: int = _config(
        _LONG,
        -2,
        "log.local.retention.ms",
        "How long records stay on the local disk of a topic with remote storage.",
        -2,
        served=False,
    )
    max_compaction_lag_ms: int = _config(
        _LONG,
        INT64_MAX,
        "log.cleaner.max.compaction.lag.ms",
        "How many milliseconds a record may stay uncompacted at most.",
        1,
    )
    max_decompressed_message_bytes: int = _config(
        _INT,
        INT32_MAX - 8,
        "max.decompressed.message.bytes",
        "How many bytes a batch may unpack to. muster sets a bound of its own as well: 16 times "
        "max.message.bytes, or 16 MiB where that is more.",
        1,
    )
    max_message_bytes: int = _config(
        _INT, 1_048_588, "message.max.bytes", "Largest record batch that is accepted, in bytes.", 0
    )
    message_timestamp_after_max_ms: int = _config(
        _LONG,
        3_600_000,
        "log.message.timestamp.after.max.ms",
        "How many milliseconds a record's timestamp may lie ahead of the broker's clock.",
        0,
    )
    message_timestamp_before_max_ms: int = _config(
        _LONG,
        INT64_MAX,
        "log.message.timestamp.before.max.ms",
        "How many milliseconds a record's timestamp may lie behind the broker's clock.",
        0,
    )
    message_timestamp_type: str = _config(
        _STRING,
        "CreateTime",
        "log.message.timestamp.type",
        "Which time records carry: the producer's (CreateTime) or the broker's (LogAppendTime).",
        choices=("CreateTime", "LogAppendTime"),
    )
    min_cleanable_dirty_ratio: float = _config(
        _DOUBLES,
        0.5,
        "log.cleaner.min.cleanable.ratio",
        "Share of a log not yet compacted at which compaction begins.",
        0,
        1,
    )
    min_compaction_lag_ms: int = _config(
        _LONG,
        0,
        "log.cleaner.min.compaction.lag.ms",
        "How many milliseconds a record stays uncompacted at least.",
        0,
    )
    min_insync_replicas: int = _config(
        _INT,
        1,
        "min.insync.replicas",
        "How many replicas must have a record before it is acknowledged; there is one here.",
        1,
        served=False,
    )
    preallocate: bool = _config(
        _BOOLEAN, False, "log.preallocate", "Whether segment files are made at full size.", served=False
    )
    remote_copy_lag_bytes: int = _config(
        _LONG, -1, "log.remote.copy.lag.bytes", "How many bytes remote storage may lag.", -1, served=False
    )
    remote_copy_lag_ms: int = _config(
        _LONG, 0, "log.remote.copy.lag.ms", "How long remote storage may lag.", -1, served=False
    )
    remote_log_copy_disable: bool = _config(
        _BOOLEAN, False, None, "Whether nothing more is copied to remote storage.", served=False
    )
    remote_log_delete_on_disable: bool = _config(
        _BOOLEAN, False, None, "Whether records in remote storage go when it is switched off.", served=False
    )
    remote_storage_enable: bool = _config(
        _BOOLEAN, False, None, "Whether the topic uses remote storage; it cannot here.", served=False
    )
    retention_bytes: int = _config(
        _LONG,
        -1,
        "log.retention.bytes",
        "Size in bytes of a partition above which its oldest segments go; -1: no limit.",
    )
    retention_ms: int = _config(
        _LONG, 7 * DAY_MS, "log.retention.ms", "Age in milliseconds at which records go; -1: never.", -1
    )
    segment_bytes: int = _config(
        _INT, 1 << 30, "log.segment.bytes", "Size in bytes at which a segment file is closed.", 1 << 20
    )
    segment_index_bytes: int = _config(
        _INT,
        10_485_760,
        "log.index.size.max.bytes",
        "Size at which the index of a segment is full.",
        4,
        served=False,
    )
    segment_jitter_ms: int = _config(
        _LONG,
        0,
        "log.roll.jitter.ms",
        "By how much the closing of segments is spread over time.",
        0,
        served=False,
    )
    segment_ms: int = _config(
        _LONG, 7 * DAY_MS, "log.roll.ms", "Age in milliseconds at which a segment file is closed.", 1
    )
    unclean_leader_election_enable: bool = _config(
        _BOOLEAN,
        False,
        "unclean.leader.election.enable",
        "Whether a replica that lags may become leader.",
        served=False,
    )

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def segment_bytes_max(self) -> int:
        """Size at which a segment is closed."""
        return self.segment_bytes if self.internal_segment_bytes < 0 else self.internal_segment_bytes

    @property
    def log_append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"


SPECS: Final[Mapping[str, ConfigSpec]] = {
    each.name.replace("_", "."): each.metadata["spec"] for each in fields(TopicConfig)
}
"""Every topic config by Kafka's name."""

INTERNAL: Final = frozenset({"internal.segment.bytes"})
"""Taken, but listed to clients only where it is set."""


def parse(configs: Mapping[str, str]) -> TopicConfig:
    """The values in force with `configs` set; INVALID_CONFIG (40) naming the config and what it takes."""
    values: dict[str, Any] = {}
    for name, text in configs.items():
        spec = SPECS.get(name)
        if spec is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
        values[name.replace(".", "_")] = spec.parse(name, text)
    return TopicConfig(**values)


def validated(configs: Mapping[str, str]) -> TopicConfig:
    """`parse` for configs that are being set: INVALID_CONFIG also where they contradict each other.

    Those that are set already may: the broker's defaults below them can change.
    """
    parsed = parse(configs)
    if parsed.min_compaction_lag_ms > parsed.max_compaction_lag_ms:
        raise _invalid(
            "min.compaction.lag.ms", str(parsed.min_compaction_lag_ms), "exceeds max.compaction.lag.ms"
        )
    if parsed.remote_storage_enable:
        raise _invalid("remote.storage.enable", "true", "takes false: muster has no remote storage")
    return parsed


def present(name: str, config: TopicConfig) -> str:
    """The value of one config as Kafka writes it."""
    return text_of(getattr(config, name.replace(".", "_")))


def text_of(value: Any) -> str:
    """A parsed value as Kafka writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _double_text(value)
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _double_text(value: float) -> str:
    """As Java writes it: 0.5, 1.0E7."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    power = int(exponent or "0") + len(whole) - 1 - (len(whole + fraction) - len(digits))
    return f"{'-' if value < 0 else ''}{digits[0]}.{digits[1:].rstrip('0') or '0'}E{power}"


def described() -> Iterable[tuple[str, ConfigSpec]]:
    """The topic configs that clients are told about, by name."""
    return ((name, spec) for name, spec in sorted(SPECS.items()) if name not in INTERNAL)


def defaults_from(broker_setting: Callable[[str], str | None]) -> dict[str, str]:
    """Topic config defaults from broker settings: `broker_setting("log.retention.ms")` is its text, or
    None."""
    found = {
        name: broker_setting(spec.broker_name) for name, spec in SPECS.items() if spec.broker_name is not None
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
    """One config of a request. `value` is not looked at for DELETE, and not None otherwise."""

    name: str
    operation: Operation
    value: str | None = None


def changed(
    configs: Mapping[str, str], changes: Sequence[ConfigChange], specs: Mapping[str, ConfigSpec]
) -> dict[str, str]:
    """`configs` after `changes`, not validated. INVALID_CONFIG for adding to or taking from what is no list
    of `specs`, and for a list that becomes too long to be described.

    As in Kafka, a list that is not set begins with its own default, not with what the broker is set to, and
    blanks belong to the elements.
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
        if spec is None or spec.type is not ConfigType.LIST:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG, f"{name} is no list, so {operation.name} cannot be done to it"
            )
        present = [each for each in result.get(name, text_of(spec.default)).split(",") if each]
        combine = _appended if operation is Operation.APPEND else _subtracted
        result[name] = ",".join(combine(present, value.split(",")))
        if len(result[name].encode()) > _TEXT_BYTES_MAX:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG, f"{name} would be longer than {_TEXT_BYTES_MAX} bytes with that"
            )
    return result


def _appended(present: Sequence[str], more: Sequence[str]) -> list[str]:
    there = set(present)
    return [*present, *(each for each in dict.fromkeys(more) if each not in there)]


def _subtracted(present: Sequence[str], less: Sequence[str]) -> list[str]:
    """Each of `less` takes the first that is like it."""
    left = Counter(less)
    kept = []
    for each in present:
        if left[each] > 0:
            left[each] -= 1
        else:
            kept.append(each)
    return kept
