"""The configuration of one broker, under Kafka's names: the settings it was started with, and what
AlterConfigs has set over them since (KIP-226).

The configs that can be altered at runtime are those that Kafka can alter, wherever muster takes them from
(`broker_config_specs`). They are kept in the store, for all brokers (the cluster-wide default) or for one,
which takes precedence. `muster.drained`, which is not one of Kafka's, can be altered only on a single broker.
Sensitive values are neither reported nor logged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import dropwhile
from typing import Final, NamedTuple

from muster.coordinator.base.log import Logger
from muster.coordinator.config import SETTINGS, Settings
from muster.coordinator.server.broker_config_specs import (
    BROKER_SPECS,
    DRAINED,
    names_of,
    spec_named,
)
from muster.coordinator.server.config_rows import ConfigRows, Rows
from muster.coordinator.server.kept_configs import BY_LISTENER, HIDDEN, THREADS
from muster.coordinator.topics.config import (
    SPECS,
    ConfigChange,
    changed,
    defaults_from,
    read,
    to_check,
    validated,
)
from muster.protocol.errors import ErrorCode, KafkaError
from muster.settings import Scope, Setting, text_of

_log = Logger(part="broker")


class Source(IntEnum):
    """Where a value comes from, as in DescribeConfigs."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    BROKER_LOGGER = 6
    GROUP = 8


class Synonym(NamedTuple):
    """One place that gives a config its value, if none before it does."""

    name: str
    value: str | None
    """None if it is sensitive."""
    source: Source


def source_of(synonyms: Sequence[Synonym]) -> Source:
    """The source of the effective value."""
    return synonyms[0].source if synonyms else Source.DEFAULT


_SETTING_DEFAULTS: Final = {each.name: text_of(each.default) for each in SETTINGS.values()}
_DEFAULTS: Final = {
    name: text_of(spec.default) for name, spec in BROKER_SPECS.items() if spec.default is not None
}
CONFIGS_MAX: Final = 1_000
"""Configs set on one broker, or on all: a listener may have any name, and each change reads all of them."""
_DEDUPE_BYTES_MIN: Final = 1 << 20
"""Each compaction thread must have more than this."""
_OF_CLEANER: Final = ("log.cleaner.threads", "log.cleaner.dedupe.buffer.size")
_INTERVAL: Final = "group.consumer.assignment.interval.ms"
_INTERVAL_MIN: Final = "group.consumer.min.assignment.interval.ms"
_INTERVAL_MAX: Final = "group.consumer.max.assignment.interval.ms"
_IN_ORDER: Final = (
    ("log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"),
    (_INTERVAL_MIN, _INTERVAL),
    (_INTERVAL, _INTERVAL_MAX),
)
"""The first of each pair may not exceed the second."""
_PER_IP: Final = ("max.connections.per.ip", "max.connections.per.ip.overrides")
"""The first may be 0 only beside the second, or no client could connect."""


class BrokerConfigs:
    """The configs of the node `node_id`. `apply` gets the topic defaults whenever the configs have changed.

    Refusals are KafkaErrors.
    """

    def __init__(
        self, rows: ConfigRows, node_id: int, settings: Settings, apply: Callable[[Mapping[str, str]], None]
    ) -> None:
        self._rows = rows
        self._node_id = node_id
        self._apply = apply
        self._left_out: set[str] = set()  # unreadable ones that have been logged
        self._contradicting: set[tuple[str, str]] = set()  # those that have been logged
        rows.listeners.append(self._read)
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
        """The sources of the broker config `name`, in order of precedence; empty if it is unset."""
        return _synonyms(name, self._layers)

    def text(self, name: str) -> str:
        """The config of this broker, as written; empty if it is unset."""
        return _text(name, self._layers)

    def number(self, name: str) -> int:
        """The value of an integer config that has a default."""
        return _number(name, self._layers)

    def is_on(self, name: str) -> bool:
        """The value of a boolean config that has a default."""
        return self.text(name).strip().lower() == "true"

    @property
    def per_ip(self) -> tuple[int, str]:
        """max.connections.per.ip and its overrides, as in force: without what is set on this broker, or on
        all, if no client could connect with it, not even to reset it."""
        layers = dict(self._layers)
        for source in (Source.DYNAMIC_BROKER, Source.DYNAMIC_DEFAULT_BROKER):
            if _lets_nobody_in(layers):
                del layers[source]
        limit, overrides = _PER_IP
        return _number(limit, layers), _text(overrides, layers)

    def described(self, broker: str) -> Iterator[tuple[str, Setting]]:
        """The configs shown to clients for `broker`, this one's id, by name; for all brokers (""), only
        those that are set."""
        altered = {name for layer in self._altered_layers(broker) for name in layer}
        shown = [name for name in BROKER_SPECS if broker and name not in HIDDEN]
        for name in sorted({*altered, *shown}):
            spec = spec_named(name)
            if spec is not None:
                yield name, spec

    def _altered_layers(self, broker: str) -> list[Mapping[str, str]]:
        return [self.altered(each) for each in dict.fromkeys((broker, ""))]

    def inherited(self, name: str) -> list[Synonym]:
        """The sources of the topic config `name` for topics that do not set it."""
        source = SPECS[name].default_from
        return [] if source is None else self.synonyms(source)

    def altered(self, broker: str) -> Mapping[str, str]:
        """What has been set on `broker`: this one's id, or "" for all."""
        return self._layers[Source.DYNAMIC_BROKER if broker else Source.DYNAMIC_DEFAULT_BROKER]

    @property
    def drained(self) -> bool:
        """Whether this broker should have no shards."""
        return self._layers[Source.DYNAMIC_BROKER].get(DRAINED, "").strip().lower() == "true"

    # --- changing -------------------------------------------------------------------------------------------

    async def start(self, fixed: Mapping[str, str]) -> None:
        """Read the store, before topics are read. `fixed` are configs known once the ports are bound."""
        self._static.update(fixed)
        await self.refresh()

    async def refresh(self) -> None:
        """Read what is set in the store, and apply it. Raises StoreError."""
        await self._rows.refresh()

    def _read(self, rows: Rows) -> None:
        self._layers[Source.DYNAMIC_BROKER] = self._readable(rows.get(str(self._node_id), {}))
        self._layers[Source.DYNAMIC_DEFAULT_BROKER] = self._readable(rows.get("", {}))
        self._apply(self._topic_defaults(self._layers))
        self._warn_of_contradictions()

    def _readable(self, row: Mapping[str, str]) -> Mapping[str, str]:
        """The row without values that this muster does not take: a newer or an older one does."""
        unreadable = {
            name: spec
            for name, text in row.items()
            if (spec := spec_named(name)) is not None and spec.read(text) is None
        }
        for name in sorted(unreadable.keys() - self._left_out):
            said = {} if unreadable[name].sensitive else _refused_value(unreadable[name], row[name])
            _log.warning(
                "a broker config that cannot be read is left out", node=self._node_id, name=name, **said
            )
        self._left_out |= unreadable.keys()
        return {name: text for name, text in row.items() if name not in unreadable}

    def _warn_of_contradictions(self) -> None:
        """Log, once, what is set in the store and contradicts this broker's settings, or other configs that
        another broker set: it is in force all the same, unless no client could connect with it."""
        found = {
            pair for pair in _IN_ORDER if _number(pair[0], self._layers) > _number(pair[1], self._layers)
        }
        if not _cleaner_has_memory(self._layers):
            found.add(_OF_CLEANER)
        if _lets_nobody_in(self._layers):
            found.add(_PER_IP)
        for pair in sorted(found - self._contradicting):
            sources = {name: source_of(self.synonyms(name)) for name in pair}
            stored = min(pair, key=lambda name: sources[name])
            (other,) = (name for name in pair if name != stored)
            of_one = sources[stored] is Source.DYNAMIC_BROKER
            of = f"--entity-name {self._node_id}" if of_one else "--entity-default"
            _log.warning(
                "a broker config in the store contradicts another config or setting",
                node=self._node_id,
                config=stored,
                value=self.text(stored),
                contradicts=f"{other} ({self.text(other).strip() or 'empty'})",
                in_force=pair != _PER_IP,
                reset_with=f"kafka-configs --alter --entity-type brokers {of} --delete-config {stored}",
            )
        self._contradicting = found

    async def alter(
        self, broker: str, changes: Sequence[ConfigChange], *, replace: bool, validate_only: bool
    ) -> None:
        """Change what is set on `broker`, this one (however its id is written) or "" for all; `replace` first
        drops what is set. What only a newer muster can read stays, unless it is among the changed configs.

        Codes: 40 for an unknown config, or APPEND to one that is not a list; 42 for one that cannot be
        altered at runtime, for an invalid value, and for more than `CONFIGS_MAX` configs.
        """

        def after(before: Mapping[str, str]) -> Mapping[str, str]:
            configs = changed({} if replace else before, changes, BROKER_SPECS)
            if len(configs) > max(CONFIGS_MAX, len(before)):
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"at most {CONFIGS_MAX} configs can be set on a broker, or on all, not {len(configs)}",
                )
            self._check(broker, to_check(configs, changes, spec_named))
            return configs

        await self._rows.change(str(self._node_id) if broker else "", after, validate_only=validate_only)

    def _check(self, broker: str, configs: Mapping[str, str]) -> None:
        specs = {name: spec_named(name) for name in configs}
        unknown = [name for name, spec in specs.items() if spec is None]
        if unknown:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown broker config name: {', '.join(unknown)}")
        known = {name: spec for name, spec in specs.items() if spec is not None}
        for refused, why in _REFUSED_SPECS:
            names = [name for name, spec in known.items() if refused(spec, broker)]
            if names:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"{why}: [{', '.join(names)}]")
        source = Source.DYNAMIC_BROKER if broker else Source.DYNAMIC_DEFAULT_BROKER
        layers = {**self._layers, source: configs}
        try:
            for name, text in configs.items():
                read(known[name], name, text)
            validated(self._topic_defaults(layers), self._topic_defaults(self._layers))
        except KafkaError as refusal:  # Kafka has another code for a broker's configs than for a topic's
            raise KafkaError(ErrorCode.INVALID_REQUEST, refusal.why) from None
        self._check_threads(layers)
        self._check_assignment_interval(layers)
        if self._changes(layers, *_PER_IP) and _lets_nobody_in(layers):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"{_PER_IP[0]} can be 0 only if {_PER_IP[1]} is set, too"
            )

    def _check_threads(self, layers: Mapping[Source, Mapping[str, str]]) -> None:
        """As in Kafka, which has threads: INVALID_REQUEST unless each pool is at most doubled or halved."""
        for name in sorted(THREADS):
            before, after = (_number(name, of) for of in (self._layers, layers))
            if not before // 2 <= after <= before * 2:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"Invalid value {after} for configuration {name}: it is {before}, and one change may at "
                    "most double or halve it",
                )
        if self._changes(layers, *_OF_CLEANER) and not _cleaner_has_memory(layers):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "log.cleaner.dedupe.buffer.size must exceed 1 MiB for each of log.cleaner.threads, of which "
                "there must be at least one",
            )

    def _check_assignment_interval(self, layers: Mapping[Source, Mapping[str, str]]) -> None:
        if not self._changes(layers, _INTERVAL):  # its bounds are settings
            return
        value = _number(_INTERVAL, layers)
        for bound, kept, how in (
            (_INTERVAL_MIN, int.__ge__, "greater"),
            (_INTERVAL_MAX, int.__le__, "less"),
        ):
            if not kept(value, _number(bound, layers)):
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"{_INTERVAL} must be {how} than or equal to {bound} ({_number(bound, layers)})",
                )

    def _changes(self, layers: Mapping[Source, Mapping[str, str]], *names: str) -> bool:
        """Whether `layers` give one of these configs another value than it has."""
        return any(_text(name, layers) != self.text(name) for name in names)

    def _topic_defaults(self, layers: Mapping[Source, Mapping[str, str]]) -> dict[str, str]:
        """Topic defaults by config name: set on this broker, on all, or by its settings."""
        set_here = {
            **self._static,
            **layers[Source.DYNAMIC_DEFAULT_BROKER],
            **layers[Source.DYNAMIC_BROKER],
        }
        return defaults_from(set_here.get)


_REFUSED_SPECS: Final[Sequence[tuple[Callable[[Setting, str], bool], str]]] = (
    (lambda spec, broker: not spec.dynamic, "Cannot update these configs dynamically"),
    (
        lambda spec, broker: spec.name in BY_LISTENER,
        "These configs can be altered only with a listener prefix, listener.name.NAME",
    ),
    (
        lambda spec, broker: spec.scope is Scope.PER_BROKER and not broker,
        "Cannot update these configs for all brokers, only for one",
    ),
)
"""Checks that refuse to set a config on `broker`, and their messages."""


def _refused_value(spec: Setting, text: str) -> dict[str, object]:
    """Fields of a log line: a value that is not allowed, and which part of a list is to blame."""
    wrong = [part for part in text.split(",") if spec.read(part) is None]
    named = {"not_allowed": ",".join(wrong)} if wrong and wrong != [text] else {}
    return {"value": text, **named, "takes": spec.allowed}


def _synonyms(name: str, layers: Mapping[Source, Mapping[str, str]]) -> list[Synonym]:
    found = [
        Synonym(each, layer[each], source)
        for source, layer in layers.items()
        for each in names_of(name)
        if each in layer
    ]
    # What comes before the name itself is reported by its synonyms.
    return list(dropwhile(lambda synonym: synonym.name != name, found))


def _cleaner_has_memory(layers: Mapping[Source, Mapping[str, str]]) -> bool:
    threads, bytes_ = (_number(name, layers) for name in _OF_CLEANER)
    return threads >= 1 and bytes_ // threads > _DEDUPE_BYTES_MIN


def _lets_nobody_in(layers: Mapping[Source, Mapping[str, str]]) -> bool:
    limit, overrides = _PER_IP
    return _number(limit, layers) == 0 and not _text(overrides, layers).strip()


def _number(name: str, layers: Mapping[Source, Mapping[str, str]]) -> int:
    return int(_text(name, layers) or 0)


def _text(name: str, layers: Mapping[Source, Mapping[str, str]]) -> str:
    return next((each.value or "" for each in _synonyms(name, layers)), "")
