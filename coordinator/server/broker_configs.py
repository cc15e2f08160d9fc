"""What one broker is configured with, by Kafka's names: the settings it was started with, and what
AlterConfigs has laid over them since (KIP-226).

What can be altered while it runs are the configs that topics take their defaults from. It is kept in the
store, for all brokers (the cluster-wide default) or for one, which goes before it. `muster.drained`, which is
none of Kafka's, is altered on one broker alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import dropwhile
from typing import Final, NamedTuple

from muster.coordinator.config import Settings, kafka_name, kind_of, settings_declared, spec_of
from muster.coordinator.storage.store import BrokerConfigsRow, Store, StoreConflict
from muster.coordinator.topics.config import (
    INT32_MAX,
    INT64_MAX,
    SPECS,
    ConfigChange,
    ConfigType,
    changed,
    defaults_from,
    text_of,
    validated,
)
from muster.protocol.errors import ErrorCode, KafkaError

_ATTEMPTS: Final = 8


class Source(IntEnum):
    """Where a value is from, as DescribeConfigs says it."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    BROKER_LOGGER = 6


class Synonym(NamedTuple):
    """One place that gives a config its value, if none before it does."""

    name: str
    value: str
    source: Source


def source_of(synonyms: Sequence[Synonym]) -> Source:
    """The source of the value that counts."""
    return synonyms[0].source if synonyms else Source.DEFAULT


class BrokerConfigSpec(NamedTuple):
    """What is said about one broker config. `default` is None where Kafka leaves it unset."""

    type: ConfigType
    default: str | None
    documentation: str
    dynamic: bool


DRAINED: Final = "muster.drained"

_SYNONYMS: Final[Mapping[str, Sequence[str]]] = {
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

_FIXED_HERE: Final[Mapping[str, BrokerConfigSpec]] = {
    name: BrokerConfigSpec(type, default, documentation, dynamic=False)
    for name, type, default, documentation in (
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
}
"""What tools look for in any broker, and here follows from other settings or cannot be set."""


_TYPES: Final = {
    bool: ConfigType.BOOLEAN,
    int: ConfigType.INT,
    float: ConfigType.DOUBLE,
    str: ConfigType.STRING,
}


def _declared() -> Iterator[tuple[str, BrokerConfigSpec]]:
    yield from _FIXED_HERE.items()
    documentation = "Whether this broker hands its shards over to others and takes none, to be stopped."
    yield DRAINED, BrokerConfigSpec(ConfigType.BOOLEAN, "false", documentation, dynamic=True)
    for each in settings_declared():
        spec, name = spec_of(each), kafka_name(each.name)
        if spec.kafka:
            type = _TYPES[kind_of(each)]
            if type is ConfigType.INT and (spec.high or 0) > INT32_MAX:
                type = ConfigType.LONG
            unit = f" Unit: {spec.unit}." if spec.unit else ""
            documentation = f"{spec.meaning[0].upper()}{spec.meaning[1:]}.{unit}"
            yield name, BrokerConfigSpec(type, text_of(each.default), documentation, dynamic=False)
    for topic_name, topic_spec in SPECS.items():
        if topic_spec.broker_name is not None:
            default = None if topic_spec.broker_name in _UNSET else text_of(topic_spec.default)
            documentation = f"Default of the topic config {topic_name}. {topic_spec.documentation}"
            yield (
                topic_spec.broker_name,
                BrokerConfigSpec(topic_spec.type, default, documentation, topic_spec.served),
            )


BROKER_SPECS: Final[Mapping[str, BrokerConfigSpec]] = dict(sorted(dict(_declared()).items()))
"""Every broker config that is described, by Kafka's name."""

_SETTING_DEFAULTS: Final = {kafka_name(each.name): text_of(each.default) for each in settings_declared()}
_DEFAULTS: Final = {name: spec.default for name, spec in BROKER_SPECS.items() if spec.default is not None}
_TOPIC_SPECS: Final = {spec.broker_name: spec for spec in SPECS.values() if spec.broker_name is not None}


class BrokerConfigs:
    """The configs of the node `node_id`, whom `apply` tells the topic defaults whenever they have changed.

    Refusals are KafkaErrors.
    """

    def __init__(
        self, store: Store, node_id: int, settings: Settings, apply: Callable[[Mapping[str, str]], None]
    ) -> None:
        self._store = store
        self._node_id = node_id
        self._apply = apply
        self._refreshing = asyncio.Lock()
        self._static = {
            name: text
            for name in BROKER_SPECS
            if (text := settings.kafka_text(name)) is not None and text != _SETTING_DEFAULTS[name]
        }
        self._layers: dict[Source, Mapping[str, str]] = {
            Source.DYNAMIC_BROKER: {},
            Source.DYNAMIC_DEFAULT_BROKER: {},
            Source.STATIC_BROKER: self._static,
            Source.DEFAULT: _DEFAULTS,
        }

    def __repr__(self) -> str:
        counts = " ".join(f"{source.name}={len(layer)}" for source, layer in self._layers.items())
        return f"<BrokerConfigs of {self._node_id} {counts}>"

    # --- reading --------------------------------------------------------------------------------------------

    def synonyms(self, name: str) -> list[Synonym]:
        """What gives the broker config `name` its value, the one that counts first; empty if it is unset."""
        names = _SYNONYMS.get(name, (name,))
        found = [
            Synonym(each, layer[each], source)
            for source, layer in self._layers.items()
            for each in names
            if each in layer
        ]
        # What stands before the name itself is for its synonyms to tell.
        return list(dropwhile(lambda synonym: synonym.name != name, found))

    def inherited(self, name: str) -> list[Synonym]:
        """What gives the topic config `name` its value in topics for which it is not set."""
        broker_name = SPECS[name].broker_name
        return [] if broker_name is None else self.synonyms(broker_name)

    def altered(self, broker: str) -> Mapping[str, str]:
        """What has been set on `broker`: this one's id, or "" for all."""
        return self._layers[Source.DYNAMIC_BROKER if broker else Source.DYNAMIC_DEFAULT_BROKER]

    @property
    def drained(self) -> bool:
        """Whether this broker should have no shards."""
        return self._layers[Source.DYNAMIC_BROKER].get(DRAINED, "").lower() == "true"

    # --- changing -------------------------------------------------------------------------------------------

    async def start(self, fixed: Mapping[str, str]) -> None:
        """Read the store, before topics are read. `fixed` are configs known since the broker has its port."""
        self._static.update(fixed)
        await self.refresh()

    async def refresh(self) -> None:
        """Read what is set in the store, and apply it. Raises StoreError."""
        async with self._refreshing:  # one after the other, or an older picture could come last
            rows = {row.broker: row.configs for row in await self._store.broker_configs()}
            self._layers[Source.DYNAMIC_BROKER] = rows.get(str(self._node_id), {})
            self._layers[Source.DYNAMIC_DEFAULT_BROKER] = rows.get("", {})
            self._apply(self._topic_defaults(self._layers))

    async def alter(
        self, broker: str, changes: Sequence[ConfigChange], *, replace: bool, validate_only: bool
    ) -> None:
        """Change what is set on `broker`, this one (however its id is written) or "" for all; `replace` first
        drops what is set.

        Codes: 40 for a config that is not known, or APPEND to what is no list; 42 for one that cannot be
        altered while the broker runs, and for its value.
        """
        row_name = str(self._node_id) if broker else ""
        for _ in range(_ATTEMPTS):
            before = self.altered(broker)
            after = changed({} if replace else before, changes, _TOPIC_SPECS)
            self._check(broker, after)
            if validate_only:
                return
            try:
                await self._store.update_broker_configs(BrokerConfigsRow(row_name, after), expected=before)
            except StoreConflict:
                await self.refresh()
                continue
            await self.refresh()
            return
        raise KafkaError(
            ErrorCode.REQUEST_TIMED_OUT, "configs of brokers are being changed from elsewhere all the time"
        )

    def _check(self, broker: str, configs: Mapping[str, str]) -> None:
        unknown = [name for name in configs if name not in BROKER_SPECS]
        if unknown:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown broker config name: {', '.join(unknown)}")
        fixed = [name for name in configs if not BROKER_SPECS[name].dynamic]
        if fixed:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Cannot update these configs dynamically: [{', '.join(fixed)}]"
            )
        source = Source.DYNAMIC_BROKER if broker else Source.DYNAMIC_DEFAULT_BROKER
        try:
            for name, text in configs.items():
                if name == DRAINED:
                    _check_drained(broker, text)
                else:
                    _TOPIC_SPECS[name].parse(name, text)
            validated(self._topic_defaults({**self._layers, source: configs}))
        except KafkaError as refusal:  # Kafka has another code for a broker's config than for a topic's
            raise KafkaError(ErrorCode.INVALID_REQUEST, refusal.why) from None

    def _topic_defaults(self, layers: Mapping[Source, Mapping[str, str]]) -> dict[str, str]:
        """By topic config names: what is set on this broker, on all, or by its settings."""
        set_here = {
            **self._static,
            **layers[Source.DYNAMIC_DEFAULT_BROKER],
            **layers[Source.DYNAMIC_BROKER],
        }
        return defaults_from(set_here.get)


def _check_drained(broker: str, text: str) -> None:
    if not broker:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{DRAINED} is altered on one broker, not on all")
    if text.lower() not in ("true", "false"):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{DRAINED} takes true or false, not {text!r}")
