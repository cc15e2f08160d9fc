"""What brokers can be configured with, by Kafka's names: one declaration for each, wherever it comes
from.

Some give topics their defaults (`topics.config`), muster's settings
(`coordinator.config`), what follows from them or is fixed, and what Kafka can change while it runs and is
without effect here (`kept_configs`). A TLS or SASL config, and a few of connections, can have the prefix
`listener.name.NAME.` as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from muster.coordinator.config import kafka_name, kind_of, settings_declared, spec_of
from muster.coordinator.server.kept_configs import KEPT, OF_MECHANISMS, ON_LISTENERS, Kept, Scope
from muster.coordinator.topics.config import (
    INT32_MAX,
    INT64_MAX,
    SPECS,
    ConfigSpec,
    ConfigType,
    text_of,
)
from muster.protocol.errors import KafkaError

DRAINED: Final = "muster.drained"


@dataclass(frozen=True, slots=True)
class BrokerConfigSpec:
    """What is said about one broker config. `default` is None where Kafka leaves it unset."""

    values: ConfigSpec
    default: str | None
    documentation: str
    scope: Scope = Scope.READ_ONLY
    threads: bool = False
    """A change may at most double or halve it, as in Kafka."""
    hidden: bool = False
    """It is described only where it is set."""
    by_listener: bool = False
    """It is altered only under the prefix of a listener."""

    @property
    def type(self) -> ConfigType:
        return self.values.type

    @property
    def dynamic(self) -> bool:
        return self.scope is not Scope.READ_ONLY

    @property
    def sensitive(self) -> bool:
        """Never shown."""
        return self.values.type is ConfigType.PASSWORD

    def shown(self, name: str, text: str) -> str | None:
        """The value of `text` as Kafka writes it; None of what is sensitive."""
        if self.sensitive:
            return None
        if not self.dynamic:
            return text
        try:
            return text_of(self.values.parse(name, text))
        except KafkaError:  # set by a muster that took it
            return text


SYNONYMS: Final[Mapping[str, Sequence[str]]] = {
    name: names
    for names in (
        ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
        ("log.roll.ms", "log.roll.hours"),
        ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    )
    for name in names
} | {"log.flush.interval.ms": ("log.flush.interval.ms", "log.flush.scheduler.interval.ms")}
"""Configs that say the same thing in several units, the one that counts first."""

_UNSET: Final = frozenset({"log.retention.ms", "log.roll.ms", "log.roll.jitter.ms", "log.flush.interval.ms"})
"""Kafka has no default for these: the one of a synonym counts, and comes to the same."""

_FIXED_HERE: Final = (
    ("advertised.listeners", ConfigType.LIST, None, "Where clients are told to connect."),
    ("broker.id", ConfigType.INT, "-1", "The node id of this broker."),
    ("broker.rack", ConfigType.STRING, None, "The rack reported for this broker."),
    ("default.replication.factor", ConfigType.INT, "1", "Copies of each partition; there is one here."),
    ("listeners", ConfigType.LIST, "PLAINTEXT://:9092", "Where this broker listens."),
    ("log.cleaner.enable", ConfigType.BOOLEAN, "true", "Whether compaction runs; it does."),
    ("log.dirs", ConfigType.LIST, None, "The data directory; none where all is kept in memory."),
    (
        "log.flush.scheduler.interval.ms",
        ConfigType.LONG,
        str(INT64_MAX),
        "What log.flush.interval.ms is where it is not set.",
    ),
    ("log.retention.hours", ConfigType.INT, "168", "Says log.retention.ms where that is not set."),
    ("log.retention.minutes", ConfigType.INT, None, "Says log.retention.ms where that is not set."),
    ("log.roll.hours", ConfigType.INT, "168", "Says log.roll.ms where that is not set."),
    ("log.roll.jitter.hours", ConfigType.INT, "0", "Says log.roll.jitter.ms where that is not set."),
    ("node.id", ConfigType.INT, None, "The node id of this broker."),
    ("offsets.topic.num.partitions", ConfigType.INT, "50", "Into how many shards groups are divided."),
    (
        "offsets.topic.replication.factor",
        ConfigType.SHORT,
        "3",
        "Copies of committed offsets: the store's one here.",
    ),
)
"""What tools look for in any broker, and here follows from other settings or cannot be set."""


def _fixed(type: ConfigType, default: str | None, documentation: str) -> BrokerConfigSpec:
    return BrokerConfigSpec(ConfigSpec(type, None, None, documentation), default, documentation)


_NARROWER: Final = {"log.retention.ms": replace(SPECS["retention.ms"], low=1, also=-1)}
"""Bounds that are others for brokers than for topics: one topic may keep nothing, not all of them."""

_FOLLOWED: Final = frozenset({"log.cleaner.backoff.ms", "max.connections", "producer.id.expiration.ms"})
"""Settings that can be altered while the broker runs."""

_TYPES: Final = {
    bool: ConfigType.BOOLEAN,
    int: ConfigType.INT,
    float: ConfigType.DOUBLE,
    str: ConfigType.STRING,
}


def _declared() -> Iterator[tuple[str, BrokerConfigSpec]]:
    yield from ((name, _fixed(*described)) for name, *described in _FIXED_HERE)
    documentation = "Whether this broker hands its shards over to others and takes none, to be stopped."
    drained = ConfigSpec(ConfigType.BOOLEAN, False, None, documentation)
    yield DRAINED, BrokerConfigSpec(drained, "false", documentation, Scope.PER_BROKER)
    for each in KEPT.values():
        yield each.name, _of_kept(each)
    for setting in settings_declared():
        spec, name = spec_of(setting), kafka_name(setting.name)
        if spec.kafka:
            type = _TYPES[kind_of(setting)]
            if type is ConfigType.INT and (spec.high or 0) > INT32_MAX:
                type = ConfigType.LONG
            unit = f" Unit: {spec.unit}." if spec.unit else ""
            documentation = f"{spec.meaning[0].upper()}{spec.meaning[1:]}.{unit}"
            yield (
                name,
                BrokerConfigSpec(
                    ConfigSpec(type, setting.default, None, documentation, spec.low, spec.high),
                    text_of(setting.default),
                    documentation,
                    Scope.CLUSTER_WIDE if name in _FOLLOWED else Scope.READ_ONLY,
                ),
            )
    for topic_name, topic_spec in SPECS.items():
        if topic_spec.broker_name is not None:
            default = None if topic_spec.broker_name in _UNSET else text_of(topic_spec.default)
            documentation = f"Default of the topic config {topic_name}. {topic_spec.documentation}"
            yield (
                topic_spec.broker_name,
                BrokerConfigSpec(
                    _NARROWER.get(topic_spec.broker_name, topic_spec),
                    default,
                    documentation,
                    Scope.CLUSTER_WIDE,
                ),
            )


def _of_kept(kept: Kept) -> BrokerConfigSpec:
    return BrokerConfigSpec(
        kept.values,
        None if kept.values.default is None else text_of(kept.values.default),
        kept.values.documentation,
        kept.scope,
        threads=kept.threads,
        hidden=kept.hidden,
        by_listener=kept.by_listener,
    )


BROKER_SPECS: Final[Mapping[str, BrokerConfigSpec]] = dict(sorted(dict(_declared()).items()))
"""Every broker config without a prefix, by Kafka's name."""

_OF_SECURITY: Final = ("ssl.", "sasl.", "principal.builder.class")


def spec_named(name: str) -> BrokerConfigSpec | None:
    """The declaration of a config, which may have the prefix of a listener, and of a SASL mechanism; None if
    nobody knows it."""
    spec = BROKER_SPECS.get(name)
    return spec if spec is not None else _of_listener(name)


def names_of(name: str) -> Sequence[str]:
    """The names that give the config `name` its value, the one that counts first."""
    without = _without_prefix(name)
    return SYNONYMS.get(name, (name,)) if without is None else (name, without)


def _of_listener(name: str) -> BrokerConfigSpec | None:
    without = _without_prefix(name)
    if without is None:
        return None
    kept = OF_MECHANISMS.get(without)
    spec = _of_kept(kept) if kept is not None else BROKER_SPECS[without]
    scope = Scope.CLUSTER_WIDE if without in ON_LISTENERS else Scope.PER_BROKER
    return BrokerConfigSpec(spec.values, spec.default, spec.documentation, scope)


def _without_prefix(name: str) -> str | None:
    """What is configured for a listener, if anything is."""
    prefix, _, rest = name.partition(".name.")
    listener, _, rest = rest.partition(".")
    if prefix != "listener" or not listener:
        return None
    if rest in ON_LISTENERS or (rest in KEPT and rest.startswith(_OF_SECURITY)):
        return rest
    return next((each for each in OF_MECHANISMS if rest == each or _is_of_mechanism(rest, each)), None)


def _is_of_mechanism(name: str, config: str) -> bool:
    mechanism, _, rest = name.partition(".")
    return bool(mechanism) and rest == config
