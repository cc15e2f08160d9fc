"""Topic configs: Kafka's names, types, defaults and bounds (LogConfig of Apache Kafka 4.x)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, Final

from muster.protocol.errors import ErrorCode, KafkaError

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
DAY_MS: Final = 86_400_000


class ConfigType(Enum):
    """Types as DescribeConfigs reports them."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


@dataclass(frozen=True, slots=True)
class ConfigSpec:
    """One topic config: its type, what it takes, and the broker setting that gives its default (None: there
    is none)."""

    type: ConfigType
    default: Any
    broker_name: str | None
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    served: bool = True
    """False where muster has no such mechanism: the value is kept and reported, and changes nothing."""

    def parse(self, name: str, text: str) -> Any:
        """The value of `text`; INVALID_CONFIG saying what is allowed."""
        parsed = self._typed(text.strip())
        if parsed is None:
            raise _invalid(name, text, f"takes {self.allowed}")
        return parsed

    @property
    def allowed(self) -> str:
        match self.type:
            case ConfigType.BOOLEAN:
                return "true or false"
            case ConfigType.LIST if self.choices:
                return f"a list of {' and '.join(self.choices)}"
            case ConfigType.STRING if self.choices:
                return " or ".join(self.choices)
            case ConfigType.STRING | ConfigType.LIST:
                return "text"
        noun = "a number" if self.type is ConfigType.DOUBLE else "a whole number"
        return f"{noun} from {self.low} to {self.high}"

    def _typed(self, text: str) -> Any:
        try:
            match self.type:
                case ConfigType.BOOLEAN:
                    return {"true": True, "false": False}.get(text.lower())
                case ConfigType.LIST:
                    parts = tuple(part.strip() for part in text.split(",")) if text else ()
                    return parts if not self.choices or set(parts) <= set(self.choices) else None
                case ConfigType.STRING:
                    return text if not self.choices or text in self.choices else None
                case ConfigType.DOUBLE:
                    number: float = float(text)
                case _:
                    number = int(text)
        except ValueError:
            return None
        return (
            number
            if self.low is not None and self.high is not None and self.low <= number <= self.high
            else None
        )


def _config(
    type: ConfigType,
    default: Any,
    broker_name: str | None,
    low: float | None = None,
    high: float | None = None,
    **spec: Any,
) -> Any:
    if type in (ConfigType.INT, ConfigType.LONG):
        low = -(2**63) if low is None else low
        high = (INT32_MAX if type is ConfigType.INT else INT64_MAX) if high is None else high
    return field(
        default=default, metadata={"spec": ConfigSpec(type, default, broker_name, low, high, **spec)}
    )


_BOOLEAN, _STRING, _INT, _LONG = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT, ConfigType.LONG


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The values in force for one topic. Field names are Kafka's topic config names with `_` for `.`."""

    cleanup_policy: tuple[str, ...] = _config(
        ConfigType.LIST, ("delete",), "log.cleanup.policy", choices=("compact", "delete")
    )
    compression_gzip_level: int = _config(_INT, -1, "compression.gzip.level", -1, 9, served=False)
    compression_lz4_level: int = _config(_INT, 9, "compression.lz4.level", 1, 17, served=False)
    compression_type: str = _config(
        _STRING,
        "producer",
        "compression.type",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    )
    compression_zstd_level: int = _config(_INT, 3, "compression.zstd.level", -131_072, 22, served=False)
    delete_retention_ms: int = _config(_LONG, DAY_MS, "log.cleaner.delete.retention.ms", 0)
    file_delete_delay_ms: int = _config(_LONG, 60_000, "log.segment.delete.delay.ms", 0, served=False)
    flush_messages: int = _config(_LONG, INT64_MAX, "log.flush.interval.messages", 1)
    flush_ms: int = _config(_LONG, INT64_MAX, "log.flush.interval.ms", 0)
    follower_replication_throttled_replicas: tuple[str, ...] = _config(
        ConfigType.LIST, (), None, served=False
    )
    index_interval_bytes: int = _config(_INT, 4_096, "log.index.interval.bytes", 0)
    internal_segment_bytes: int = _config(
        _INT, -1, None, -1
    )  # for tests: any segment size, over segment.bytes
    leader_replication_throttled_replicas: tuple[str, ...] = _config(ConfigType.LIST, (), None, served=False)
    local_retention_bytes: int = _config(_LONG, -2, "log.local.retention.bytes", -2, served=False)
    local_retention_ms: int = _config(_LONG, -2, "log.local.retention.ms", -2, served=False)
    max_compaction_lag_ms: int = _config(_LONG, INT64_MAX, "log.cleaner.max.compaction.lag.ms", 1)
    max_message_bytes: int = _config(_INT, 1_048_588, "message.max.bytes", 0)
    message_timestamp_after_max_ms: int = _config(_LONG, 3_600_000, "log.message.timestamp.after.max.ms", 0)
    message_timestamp_before_max_ms: int = _config(_LONG, INT64_MAX, "log.message.timestamp.before.max.ms", 0)
    message_timestamp_type: str = _config(
        _STRING, "CreateTime", "log.message.timestamp.type", choices=("CreateTime", "LogAppendTime")
    )
    min_cleanable_dirty_ratio: float = _config(
        ConfigType.DOUBLE, 0.5, "log.cleaner.min.cleanable.ratio", 0, 1
    )
    min_compaction_lag_ms: int = _config(_LONG, 0, "log.cleaner.min.compaction.lag.ms", 0)
    min_insync_replicas: int = _config(_INT, 1, "min.insync.replicas", 1, served=False)
    preallocate: bool = _config(_BOOLEAN, False, "log.preallocate", served=False)
    remote_log_copy_disable: bool = _config(_BOOLEAN, False, None, served=False)
    remote_log_delete_on_disable: bool = _config(_BOOLEAN, False, None, served=False)
    remote_storage_enable: bool = _config(_BOOLEAN, False, None, served=False)
    retention_bytes: int = _config(_LONG, -1, "log.retention.bytes")
    retention_ms: int = _config(_LONG, 7 * DAY_MS, "log.retention.ms", -1)
    segment_bytes: int = _config(_INT, 1 << 30, "log.segment.bytes", 1 << 20)
    segment_index_bytes: int = _config(_INT, 10_485_760, "log.index.size.max.bytes", 4, served=False)
    segment_jitter_ms: int = _config(_LONG, 0, "log.roll.jitter.ms", 0, served=False)
    segment_ms: int = _config(_LONG, 7 * DAY_MS, "log.roll.ms", 1)
    unclean_leader_election_enable: bool = _config(
        _BOOLEAN, False, "unclean.leader.election.enable", served=False
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
"""Taken, but not listed to clients."""


def parse(configs: Mapping[str, str]) -> TopicConfig:
    """The values in force with `configs` set; INVALID_CONFIG (40) naming the config and what it takes."""
    values: dict[str, Any] = {}
    for name, text in configs.items():
        spec = SPECS.get(name)
        if spec is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
        values[name.replace(".", "_")] = spec.parse(name, text)
    parsed = TopicConfig(**values)
    if parsed.min_compaction_lag_ms > parsed.max_compaction_lag_ms:
        raise _invalid(
            "min.compaction.lag.ms", str(parsed.min_compaction_lag_ms), "exceeds max.compaction.lag.ms"
        )
    return parsed


def present(name: str, config: TopicConfig) -> str:
    """The value of one config as Kafka writes it."""
    value = getattr(config, name.replace(".", "_"))
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, tuple) else str(value)


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
