"""All broker configs under Kafka's names, one declaration for each, wherever it comes from.

They are the defaults of topic configs (`topics.config`), muster's settings (`coordinator.config`), configs
that are fixed or follow from those, and configs that Kafka can change at runtime but that have no effect here
(`kept_configs`). TLS and SASL configs, and a few connection configs, also exist with the prefix
`listener.name.NAME.`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from muster.coordinator.config import SETTINGS
from muster.coordinator.server.kept_configs import KEPT, OF_MECHANISMS, ON_LISTENERS
from muster.coordinator.topics.config import SPECS
from muster.settings import INT64_MAX, Scope, Setting, Type, declare, text_of

DRAINED: Final = "muster.drained"

SYNONYMS: Final[Mapping[str, Sequence[str]]] = {
    name: names
    for names in (
        ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
        ("log.roll.ms", "log.roll.hours"),
        ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    )
    for name in names
} | {"log.flush.interval.ms": ("log.flush.interval.ms", "log.flush.scheduler.interval.ms")}
"""Configs that set the same thing in several units, in order of precedence."""

_UNSET: Final = frozenset({"log.retention.ms", "log.roll.ms", "log.roll.jitter.ms", "log.flush.interval.ms"})
"""Kafka has no default for these; the default of a synonym applies and is equivalent."""


def _fixed(name: str, type: Type, default: Any, meaning: str) -> Setting:
    return declare(default, meaning, type).named(name)


_FIXED_HERE: Final = (
    _fixed("advertised.listeners", Type.LIST, None, "where clients are told to connect"),
    _fixed("broker.id", Type.INT, -1, "the node id of this broker"),
    _fixed("broker.rack", Type.STRING, None, "the rack reported for this broker"),
    _fixed("default.replication.factor", Type.INT, 1, "copies of each partition; muster keeps one"),
    _fixed("listeners", Type.LIST, ("PLAINTEXT://:9092",), "where this broker listens"),
    _fixed("log.cleaner.enable", Type.BOOLEAN, True, "whether compaction runs; always true"),
    _fixed("log.dirs", Type.LIST, None, "the data directory; unset if everything is kept in memory"),
    _fixed(
        "log.flush.scheduler.interval.ms",
        Type.LONG,
        INT64_MAX,
        "used if log.flush.interval.ms is not set",
    ),
    _fixed("log.retention.hours", Type.INT, 168, "used if log.retention.ms is not set"),
    _fixed("log.retention.minutes", Type.INT, None, "used if log.retention.ms is not set"),
    _fixed("log.roll.hours", Type.INT, 168, "used if log.roll.ms is not set"),
    _fixed("log.roll.jitter.hours", Type.INT, 0, "used if log.roll.jitter.ms is not set"),
    _fixed("node.id", Type.INT, None, "the node id of this broker"),
    _fixed("offsets.topic.num.partitions", Type.INT, 50, "number of shards that groups are divided into"),
    _fixed(
        "offsets.topic.replication.factor",
        Type.SHORT,
        3,
        "copies of committed offsets; the store keeps one",
    ),
    _fixed("transaction.state.log.min.isr", Type.INT, 2, "copies that must have a transaction's state"),
    _fixed(
        "transaction.state.log.num.partitions",
        Type.INT,
        50,
        "number of shards that transactional ids are divided into",
    ),
    _fixed(
        "transaction.state.log.replication.factor",
        Type.SHORT,
        3,
        "copies of transactions' state; the store keeps one",
    ),
)
"""Configs that tools expect of any broker; here they follow from other settings or cannot be set."""

_OF_AUTHORIZER: Final = frozenset({"super.users", "allow.everyone.if.no.acl.found"})
"""Kafka's authorizer reads these from its properties, and DescribeConfigs does not return them."""


def _declared() -> Iterator[Setting]:
    yield from _FIXED_HERE
    drained = "whether this broker hands its shards over and takes none, before it is stopped"
    yield declare(False, drained, scope=Scope.PER_BROKER, kafka=False).named(DRAINED)
    yield from (each for each in SETTINGS.values() if each.kafka and each.name not in _OF_AUTHORIZER)
    yield from KEPT
    yield from (_default_of(each) for each in SPECS.values() if each.default_from is not None)


def _default_of(config: Setting) -> Setting:
    """The setting that gives a topic config its default."""
    name = config.default_from
    assert name is not None
    setting = config._replace(
        name=name,
        default=None if name in _UNSET else config.default,
        meaning=f"default of the topic config {config.name}. {config.meaning[0].upper()}{config.meaning[1:]}",
        default_from=None,
    )
    # A single topic may be set to keep nothing; the default for all topics may not.
    return setting._replace(low=1, also=-1) if name == "log.retention.ms" else setting


BROKER_SPECS: Final[Mapping[str, Setting]] = {
    each.name: each
    for each in sorted({each.name: each for each in _declared()}.values(), key=lambda each: each.name)
}
"""Every broker config without a prefix, by Kafka's name."""

_OF_SECURITY: Final = frozenset(
    each.name for each in KEPT if each.name.startswith(("ssl.", "sasl.", "principal.builder.class"))
)
_OF_MECHANISMS: Final = {each.name: each for each in OF_MECHANISMS}


def spec_named(name: str) -> Setting | None:
    """The declaration of a config, whose name may have a listener prefix and a SASL mechanism prefix; None if
    it is unknown. With a prefix it has no effect, as no listener follows it."""
    spec = BROKER_SPECS.get(name)
    without = _without_prefix(name)
    if spec is not None or without is None:
        return spec
    scope = Scope.CLUSTER_WIDE if without in ON_LISTENERS else Scope.PER_BROKER
    of_all = _OF_MECHANISMS.get(without) or BROKER_SPECS[without]
    return of_all._replace(name=name, scope=scope, served=False)


def shown(setting: Setting, text: str) -> str | None:
    """The value of `text` as Kafka writes it; None for a sensitive setting."""
    if setting.sensitive:
        return None
    value = setting.read(text) if setting.dynamic else None
    return text if value is None else text_of(value)  # unchanged, too, if only an older muster took it


def names_of(name: str) -> Sequence[str]:
    """The names that give the config `name` its value, in order of precedence."""
    without = _without_prefix(name)
    return SYNONYMS.get(name, (name,)) if without is None else (name, without)


def _without_prefix(name: str) -> str | None:
    """The name without its listener and mechanism prefixes; None if it is not a config of a listener."""
    prefix, _, rest = name.partition(".name.")
    listener, _, rest = rest.partition(".")
    if prefix != "listener" or not listener:
        return None
    if rest in ON_LISTENERS or rest in _OF_SECURITY:
        return rest
    return next((each for each in _OF_MECHANISMS if rest == each or _is_of_mechanism(rest, each)), None)


def _is_of_mechanism(name: str, config: str) -> bool:
    mechanism, _, rest = name.partition(".")
    return bool(mechanism) and rest == config
