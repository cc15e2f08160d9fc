"""Broker configs that Kafka 4.4 can change while it runs (KIP-226) and that nothing in muster follows:
they are kept and reported, so that tools which set them go on working, and are without effect.

What they are about, muster has not: thread pools, remote storage, replication between brokers, groups of
newer kinds, TLS and SASL. (Where a broker has plaintext listeners alone, Kafka's TLS and SASL configs are
without effect too.)
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, NamedTuple

from muster.coordinator.topics.config import INT32_MAX, INT64_MAX, ConfigSpec, ConfigType

_INT16_MAX: Final = 2**15 - 1
_DOUBLE_MAX: Final = sys.float_info.max


class Scope(Enum):
    """Where a config can be altered: nowhere, since it is taken at start; on one broker at a time; or on one
    or all."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


class Kept(NamedTuple):
    """One config. `threads`: a change may at most double or halve it. `hidden`: it is described only where it
    is set. `by_listener`: it is altered under the prefix of a listener alone."""

    name: str
    values: ConfigSpec
    scope: Scope = Scope.CLUSTER_WIDE
    threads: bool = False
    hidden: bool = False
    by_listener: bool = False


def _spec(type: ConfigType, default: Any, meaning: str, **bounds: Any) -> ConfigSpec:
    low, high = _RANGES.get(type, (None, None))
    return ConfigSpec(type, default, None, meaning, **{"low": low, "high": high, "served": False} | bounds)


_RANGES: Final = {
    ConfigType.SHORT: (-_INT16_MAX - 1, _INT16_MAX),
    ConfigType.INT: (-INT32_MAX - 1, INT32_MAX),
    ConfigType.LONG: (-INT64_MAX - 1, INT64_MAX),
    ConfigType.DOUBLE: (-_DOUBLE_MAX, _DOUBLE_MAX),
}


def _flag(name: str, default: bool, meaning: str, **how: Any) -> Kept:
    return Kept(name, _spec(ConfigType.BOOLEAN, default, meaning), **how)


def _int(name: str, default: int, low: int, meaning: str, **how: Any) -> Kept:
    return Kept(name, _spec(ConfigType.INT, default, meaning, low=low), **how)


def _long(name: str, default: int | None, low: int, meaning: str, **how: Any) -> Kept:
    return Kept(name, _spec(ConfigType.LONG, default, meaning, low=low), **how)


def _double(name: str, default: float, meaning: str, **how: Any) -> Kept:
    return Kept(name, _spec(ConfigType.DOUBLE, default, meaning), **how)


def _text(
    name: str, default: str | None, meaning: str, scope: Scope = Scope.CLUSTER_WIDE, **spec: Any
) -> Kept:
    return Kept(name, _spec(ConfigType.STRING, default, meaning, **spec), scope)


def _list(
    name: str, default: tuple[str, ...], meaning: str, scope: Scope = Scope.CLUSTER_WIDE, **spec: Any
) -> Kept:
    return Kept(name, _spec(ConfigType.LIST, default, meaning, **spec), scope)


def _secret(name: str, meaning: str, **how: Any) -> Kept:
    return Kept(name, _spec(ConfigType.PASSWORD, None, meaning), Scope.PER_BROKER, **how)


def _class(name: str, default: str | None, meaning: str) -> Kept:
    classes = () if default is None else (default,)
    shape = default or "nothing: muster loads no Java classes"
    return Kept(
        name, _spec(ConfigType.CLASS, default, meaning, choices=classes, shape=shape), Scope.PER_BROKER
    )


_ONE: Final = Scope.PER_BROKER
_PROTOCOL: Final = r"([A-Za-z0-9_-]+:PLAINTEXT|SSL:SSL|SASL_PLAINTEXT:SASL_PLAINTEXT|SASL_SSL:SASL_SSL)"
_PER_IP: Final = r"[^:,\s]+:[0-9]{1,10}"
_JMX: Final = "org.apache.kafka.common.metrics.JmxReporter"
_PRINCIPALS: Final = "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"
_PROTOCOLS: Final = "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT"

_OF_THREADS: Final = (
    _int("background.threads", 10, 1, "Threads for background tasks.", threads=True),
    _int("log.cleaner.threads", 1, 0, "Threads that compact.", threads=True),
    _int("num.io.threads", 8, 1, "Threads that handle requests.", threads=True),
    _int("num.network.threads", 3, 1, "Threads that read and write sockets.", threads=True),
    _int("num.recovery.threads.per.data.dir", 2, 1, "Threads that recover logs.", threads=True),
    _int("num.replica.fetchers", 1, 1, "Threads that fetch from another broker.", threads=True),
)

_OF_CONNECTIONS: Final = (
    _text(
        "listener.security.protocol.map",
        _PROTOCOLS,
        "Which protocol each listener speaks; muster's speak PLAINTEXT.",
        _ONE,
        pattern=f"{_PROTOCOL}(,{_PROTOCOL})*",
        shape="NAME:PLAINTEXT[,...]",
    ),
    _int("max.connection.creation.rate", INT32_MAX, 1, "Most new connections a second."),
    _int("max.connections.per.ip", INT32_MAX, 1, "Most connections from one address."),
    _text(
        "max.connections.per.ip.overrides",
        "",
        "Most connections from addresses of their own bounds.",
        pattern=f"({_PER_IP}(,{_PER_IP})*)?",
        shape="ADDRESS:NUMBER[,...]",
    ),
)

_OF_LOGS: Final = (
    _list(
        "cordoned.log.dirs",
        (),
        "Directories in which no partition is placed any more.",
        _ONE,
        choices=("",),
        shape="nothing: the one data directory cannot be cordoned",
    ),
    _long("log.cleaner.dedupe.buffer.size", 134_217_728, 1_048_577, "Memory for compacting, in bytes."),
    _double("log.cleaner.io.buffer.load.factor", 0.9, "How full the memory for compacting may be."),
    _int("log.cleaner.io.buffer.size", 524_288, 0, "Buffers of compacting, in bytes."),
    _double("log.cleaner.io.max.bytes.per.second", _DOUBLE_MAX, "How fast compacting may read and write."),
    _flag(
        "transaction.partition.verification.enable", True, "Whether transactions are checked by partition."
    ),
)

_OF_REPLICATION: Final = (
    _long(
        "follower.replication.throttled.rate",
        None,
        0,
        "Bytes a second that throttled followers may fetch.",
        hidden=True,
    ),
    _long(
        "leader.replication.throttled.rate",
        None,
        0,
        "Bytes a second that throttled leaders may send.",
        hidden=True,
    ),
    _long(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        None,
        0,
        "Bytes a second that replicas move at between directories.",
        hidden=True,
    ),
    _flag(
        "follower.fetch.last.tiered.offset.enable", False, "Whether a new follower begins behind remote data."
    ),
)

_OF_REMOTE_STORAGE: Final = (
    _int("remote.fetch.max.wait.ms", 500, 1, "How long a Fetch waits for remote data."),
    _long("remote.list.offsets.request.timeout.ms", 30_000, 1, "How long ListOffsets waits for remote data."),
    _long("remote.log.index.file.cache.total.size.bytes", 1 << 30, 1, "Cache of remote indexes, in bytes."),
    _int("remote.log.manager.copier.thread.pool.size", 10, 1, "Threads that copy.", threads=True),
    _long("remote.log.manager.copy.max.bytes.per.second", INT64_MAX, 1, "Bytes a second that are copied."),
    _int("remote.log.manager.expiration.thread.pool.size", 10, 1, "Threads that remove.", threads=True),
    _long("remote.log.manager.fetch.max.bytes.per.second", INT64_MAX, 1, "Bytes a second that are fetched."),
    _int("remote.log.manager.follower.thread.pool.size", 2, 1, "Threads of followers.", threads=True),
    _int("remote.log.reader.threads", 10, 1, "Threads that read.", threads=True),
)

_OF_GROUPS: Final = (
    _flag(
        "errors.deadletterqueue.auto.create.topics.enable", False, "Whether dead letter queues are created."
    ),
    _text("errors.deadletterqueue.topic.name.prefix", "dlq.", "How the topics of dead letters begin."),
    _int("group.coordinator.cached.buffer.max.bytes", 1_048_588, 524_288, "Largest buffer that is kept."),
    _int("share.coordinator.cached.buffer.max.bytes", 1_048_588, 524_288, "Largest buffer that is kept."),
    *(
        _int(f"group.{kind}.assignment.interval.ms", 1_000, 0, "How often such a group is assigned anew.")
        for kind in ("consumer", "share", "streams")
    ),
    *(
        _flag(
            f"group.{kind}.assignor.offload.enable",
            True,
            "Whether such groups are assigned on another thread.",
            hidden=True,
        )
        for kind in ("consumer", "share", "streams")
    ),
)

_OF_PLUGINS: Final = (
    _list("config.providers", (), "Where values of configs can come from."),
    _list("metric.reporters", (_JMX,), "Classes that report metrics.", choices=(_JMX,)),
    _class("principal.builder.class", _PRINCIPALS, "The class that names clients."),
)

_OF_SASL: Final = (
    _list("sasl.enabled.mechanisms", ("GSSAPI",), "Mechanisms that clients may log in by.", _ONE),
    _secret("sasl.jaas.config", "How logins are checked."),
    _text("sasl.kerberos.kinit.cmd", "/usr/bin/kinit", "The program that gets tickets.", _ONE),
    Kept(
        "sasl.kerberos.min.time.before.relogin",
        _spec(ConfigType.LONG, 60_000, "Least time between two logins."),
        _ONE,
    ),
    _list("sasl.kerberos.principal.to.local.rules", ("DEFAULT",), "How Kerberos names become names.", _ONE),
    _text("sasl.kerberos.service.name", None, "The broker's Kerberos name.", _ONE),
    _double("sasl.kerberos.ticket.renew.jitter", 0.05, "How much renewals are spread.", scope=_ONE),
    _double("sasl.kerberos.ticket.renew.window.factor", 0.8, "When a ticket is renewed.", scope=_ONE),
    Kept(
        "sasl.login.refresh.buffer.seconds",
        _spec(ConfigType.SHORT, 300, "How long before its end a login is renewed at the latest."),
        _ONE,
    ),
    Kept(
        "sasl.login.refresh.min.period.seconds",
        _spec(ConfigType.SHORT, 60, "How long a login is not renewed at least."),
        _ONE,
    ),
    _double("sasl.login.refresh.window.factor", 0.8, "When a login is renewed.", scope=_ONE),
    _double("sasl.login.refresh.window.jitter", 0.05, "How much renewals are spread.", scope=_ONE),
    _text("sasl.mechanism.inter.broker.protocol", "GSSAPI", "The mechanism between brokers.", _ONE),
)

_OF_TLS: Final = (
    _list("ssl.cipher.suites", (), "Cipher suites.", _ONE),
    _text(
        "ssl.client.auth",
        "none",
        "Whether clients show a certificate.",
        _ONE,
        choices=("required", "requested", "none"),
    ),
    _list("ssl.enabled.protocols", ("TLSv1.2", "TLSv1.3"), "Versions of TLS.", _ONE),
    _text("ssl.endpoint.identification.algorithm", "https", "How names of servers are checked.", _ONE),
    _class("ssl.engine.factory.class", None, "The class that makes TLS engines."),
    _text("ssl.keymanager.algorithm", "SunX509", "How keys are managed.", _ONE),
    _text("ssl.protocol", "TLSv1.3", "The version of TLS that is preferred.", _ONE),
    _text("ssl.provider", None, "Who provides TLS.", _ONE),
    _text("ssl.secure.random.implementation", None, "Where random numbers come from.", _ONE),
    _text("ssl.trustmanager.algorithm", "PKIX", "How trust is managed.", _ONE),
    *(
        _secret(name, meaning, by_listener=True)
        for name, meaning in (
            ("ssl.key.password", "Password of the key."),
            ("ssl.keystore.certificate.chain", "The broker's certificates."),
            ("ssl.keystore.key", "The broker's key."),
            ("ssl.keystore.password", "Password of the store of keys."),
            ("ssl.truststore.certificates", "Certificates that are trusted."),
            ("ssl.truststore.password", "Password of the store of certificates that are trusted."),
        )
    ),
    *(
        Kept(name, _spec(ConfigType.STRING, default, meaning), _ONE, by_listener=True)
        for name, default, meaning in (
            ("ssl.keystore.location", None, "The file with the broker's key."),
            ("ssl.keystore.type", "JKS", "The format of that file."),
            ("ssl.truststore.location", None, "The file with certificates that are trusted."),
            ("ssl.truststore.type", "JKS", "The format of that file."),
        )
    ),
)

KEPT: Final[Mapping[str, Kept]] = {
    each.name: each
    for each in (
        *_OF_THREADS,
        *_OF_CONNECTIONS,
        *_OF_LOGS,
        *_OF_REPLICATION,
        *_OF_REMOTE_STORAGE,
        *_OF_GROUPS,
        *_OF_PLUGINS,
        *_OF_SASL,
        *_OF_TLS,
    )
}
"""By name. Those that topics take their defaults from, and those that muster follows, are declared with its
topic configs and settings."""

ON_LISTENERS: Final = frozenset({"max.connections", "max.connection.creation.rate", "num.network.threads"})
"""Those that can be altered on all brokers under the prefix of a listener; so can, on one broker, those
of TLS and SASL."""

OF_MECHANISMS: Final[Mapping[str, Kept]] = {
    each.name: each
    for each in (
        Kept(
            "connections.max.reauth.ms",
            _spec(ConfigType.LONG, 0, "How long a login lasts; 0: for ever."),
            _ONE,
        ),
        _secret("sasl.jaas.config", "How logins are checked."),
    )
}
"""Those that can be altered under the prefixes of a listener and a SASL mechanism."""
