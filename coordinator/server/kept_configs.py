"""Broker configs that Kafka 4.4 can change at runtime (KIP-226) and that nothing in muster follows: they are
kept and reported, so that tools that set them keep working, but have no effect.

They concern things that muster does not have: thread pools, remote storage, replication between brokers,
newer kinds of groups. TLS and SASL follow what is set when a broker starts (`config.Settings`, whose values
are reported under these names); altering them later has no effect.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, Final

from muster.settings import INT32_MAX, INT64_MAX, Scope, Setting, Type, declare


def _kept(
    name: str,
    default: Any,
    meaning: str,
    scope: Scope = Scope.CLUSTER_WIDE,
    *,
    type: Type | None = None,
    **rest: Any,
) -> Setting:
    return declare(default, meaning, type, scope=scope, served=False, **rest).named(name)


def _int(name: str, default: int, low: int, meaning: str) -> Setting:
    return _kept(name, default, meaning, low=low)


def _long(name: str, default: int | None, low: int | None, meaning: str, *scope: Scope) -> Setting:
    return _kept(name, default, meaning, *scope, type=Type.LONG, low=low)


def _secret(name: str, meaning: str) -> Setting:
    return _kept(name, None, meaning, _ONE, type=Type.PASSWORD)


def _class(name: str, default: str | None, meaning: str) -> Setting:
    classes = () if default is None else (default,)
    shape = default or "nothing: muster loads no Java classes"
    return _kept(name, default, meaning, _ONE, type=Type.CLASS, choices=classes, shape=shape)


def _names(settings: Iterable[Setting]) -> frozenset[str]:
    return frozenset(each.name for each in settings)


_ONE: Final = Scope.PER_BROKER
_PROTOCOL: Final = r"([A-Za-z0-9_-]+:PLAINTEXT|SSL:SSL|SASL_PLAINTEXT:SASL_PLAINTEXT|SASL_SSL:SASL_SSL)"
_JMX: Final = "org.apache.kafka.common.metrics.JmxReporter"
_PRINCIPALS: Final = "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"
_PROTOCOLS: Final = "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT"

_OF_THREADS: Final = (
    _int("background.threads", 10, 1, "threads for background tasks"),
    _int("log.cleaner.threads", 1, 0, "threads for compaction"),
    _int("num.io.threads", 8, 1, "threads that handle requests"),
    _int("num.network.threads", 3, 1, "threads that read and write sockets"),
    _int("num.recovery.threads.per.data.dir", 2, 1, "threads that recover logs"),
    _int("num.replica.fetchers", 1, 1, "threads that fetch from another broker"),
    _int("remote.log.manager.copier.thread.pool.size", 10, 1, "threads that copy segments to remote storage"),
    _int(
        "remote.log.manager.expiration.thread.pool.size",
        10,
        1,
        "threads that expire segments in remote storage",
    ),
    _int("remote.log.manager.follower.thread.pool.size", 2, 1, "threads that follow remote segments"),
    _int("remote.log.reader.threads", 10, 1, "threads that read from remote storage"),
)

_OF_CONNECTIONS: Final = (
    _kept(
        "listener.security.protocol.map",
        _PROTOCOLS,
        "security protocol of each listener",
        _ONE,
        pattern=f"{_PROTOCOL}(,{_PROTOCOL})*",
        shape="NAME:PLAINTEXT[,...]",
    ),
    _int("max.connection.creation.rate", INT32_MAX, 1, "most new connections a second"),
)

_OF_LOGS: Final = (
    _kept(
        "cordoned.log.dirs",
        (),
        "directories that get no new partitions",
        _ONE,
        choices=("",),
        shape="nothing: the one data directory cannot be cordoned",
    ),
    _long("log.cleaner.dedupe.buffer.size", 134_217_728, 1_048_577, "memory for compaction, in bytes"),
    _kept("log.cleaner.io.buffer.load.factor", 0.9, "how full the memory for compaction may be"),
    _int("log.cleaner.io.buffer.size", 524_288, 0, "I/O buffers of compaction, in bytes"),
    _kept(
        "log.cleaner.io.max.bytes.per.second", sys.float_info.max, "how fast compaction may read and write"
    ),
)

_THROTTLES: Final = (
    _long(
        "follower.replication.throttled.rate", None, 0, "bytes a second that throttled followers may fetch"
    ),
    _long("leader.replication.throttled.rate", None, 0, "bytes a second that throttled leaders may send"),
    _long(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        None,
        0,
        "bytes a second that replicas move at between directories",
    ),
)

_OF_REMOTE_STORAGE: Final = (
    _kept(
        "follower.fetch.last.tiered.offset.enable",
        False,
        "whether a new follower starts at the last offset in remote storage",
    ),
    _int("remote.fetch.max.wait.ms", 500, 1, "how long a Fetch waits for remote data"),
    _long("remote.list.offsets.request.timeout.ms", 30_000, 1, "how long ListOffsets waits for remote data"),
    _long("remote.log.index.file.cache.total.size.bytes", 1 << 30, 1, "cache of remote indexes"),
    _long(
        "remote.log.manager.copy.max.bytes.per.second",
        INT64_MAX,
        1,
        "bytes a second copied to remote storage",
    ),
    _long(
        "remote.log.manager.fetch.max.bytes.per.second",
        INT64_MAX,
        1,
        "bytes a second fetched from remote storage",
    ),
)

_OF_GROUPS: Final = (
    _kept(
        "errors.deadletterqueue.auto.create.topics.enable", False, "whether dead letter queues are created"
    ),
    _kept("errors.deadletterqueue.topic.name.prefix", "dlq.", "prefix of dead letter queue topics"),
    _int("group.coordinator.cached.buffer.max.bytes", 1_048_588, 524_288, "largest buffer that is kept"),
    _int("share.coordinator.cached.buffer.max.bytes", 1_048_588, 524_288, "largest buffer that is kept"),
    *(
        _int(
            f"group.{kind}.assignment.interval.ms",
            1_000,
            0,
            "shortest time between two assignments of such a group",
        )
        for kind in ("share", "streams")
    ),
)

_OFFLOADS: Final = tuple(
    _kept(
        f"group.{kind}.assignor.offload.enable",
        True,
        "whether assignors of such groups run on another thread",
    )
    for kind in ("consumer", "share", "streams")
)

_OF_PLUGINS: Final = (
    _kept("config.providers", (), "providers of config values"),
    _kept("metric.reporters", (_JMX,), "classes that report metrics", choices=(_JMX,)),
    _class("principal.builder.class", _PRINCIPALS, "the class that builds client principals"),
)

_OF_SASL: Final = (
    _kept("sasl.enabled.mechanisms", ("GSSAPI",), "SASL mechanisms that clients may use", _ONE),
    _secret("sasl.jaas.config", "how logins are checked"),
    _kept("sasl.kerberos.kinit.cmd", "/usr/bin/kinit", "the program that gets tickets", _ONE),
    _long("sasl.kerberos.min.time.before.relogin", 60_000, None, "least time between two logins", _ONE),
    _kept(
        "sasl.kerberos.principal.to.local.rules",
        ("DEFAULT",),
        "how Kerberos principals map to short names",
        _ONE,
    ),
    _kept("sasl.kerberos.service.name", None, "the broker's Kerberos service name", _ONE),
    _kept("sasl.kerberos.ticket.renew.jitter", 0.05, "random share added to the renewal time", _ONE),
    _kept(
        "sasl.kerberos.ticket.renew.window.factor",
        0.8,
        "share of a ticket's lifetime after which it is renewed",
        _ONE,
    ),
    _kept(
        "sasl.login.refresh.buffer.seconds",
        300,
        "seconds before a credential expires by which it is refreshed",
        _ONE,
        type=Type.SHORT,
    ),
    _kept(
        "sasl.login.refresh.min.period.seconds",
        60,
        "seconds a login waits at least before a refresh",
        _ONE,
        type=Type.SHORT,
    ),
    _kept(
        "sasl.login.refresh.window.factor",
        0.8,
        "share of a credential's lifetime after which it is refreshed",
        _ONE,
    ),
    _kept("sasl.login.refresh.window.jitter", 0.05, "random share added to the renewal time", _ONE),
    _kept("sasl.mechanism.inter.broker.protocol", "GSSAPI", "the SASL mechanism between brokers", _ONE),
)

_OF_TLS: Final = (
    _kept("ssl.cipher.suites", (), "cipher suites", _ONE),
    _kept(
        "ssl.client.auth",
        "none",
        "whether clients must present a certificate",
        _ONE,
        choices=("required", "requested", "none"),
    ),
    _kept("ssl.enabled.protocols", ("TLSv1.2", "TLSv1.3"), "enabled TLS versions", _ONE),
    _kept("ssl.endpoint.identification.algorithm", "https", "how server names are verified", _ONE),
    _class("ssl.engine.factory.class", None, "the class that creates TLS engines"),
    _kept("ssl.keymanager.algorithm", "SunX509", "the key manager algorithm", _ONE),
    _kept("ssl.protocol", "TLSv1.3", "the preferred TLS version", _ONE),
    _kept("ssl.provider", None, "the TLS provider", _ONE),
    _kept("ssl.secure.random.implementation", None, "the secure random implementation", _ONE),
    _kept("ssl.trustmanager.algorithm", "PKIX", "the trust manager algorithm", _ONE),
)

_OF_TLS_STORES: Final = (
    _secret("ssl.key.password", "password of the private key"),
    _secret("ssl.keystore.certificate.chain", "the broker's certificate chain"),
    _secret("ssl.keystore.key", "the broker's private key"),
    _kept("ssl.keystore.location", None, "the key store file", _ONE),
    _secret("ssl.keystore.password", "password of the key store"),
    _kept("ssl.keystore.type", "JKS", "the format of the store", _ONE),
    _secret("ssl.truststore.certificates", "trusted certificates"),
    _kept("ssl.truststore.location", None, "the trust store file", _ONE),
    _secret("ssl.truststore.password", "password of the trust store"),
    _kept("ssl.truststore.type", "JKS", "the format of the store", _ONE),
)

KEPT: Final = (
    *_OF_THREADS,
    *_OF_CONNECTIONS,
    *_OF_LOGS,
    *_THROTTLES,
    *_OF_REMOTE_STORAGE,
    *_OF_GROUPS,
    *_OFFLOADS,
    *_OF_PLUGINS,
    *_OF_SASL,
    *_OF_TLS,
    *_OF_TLS_STORES,
)
"""Configs that topics take their defaults from, and those that muster follows, are declared with its topic
configs and settings instead."""

THREADS: Final = _names(_OF_THREADS)
"""A change may at most double or halve these, as in Kafka."""

HIDDEN: Final = _names((*_THROTTLES, *_OFFLOADS)) | {"group.consumer.regex.refresh.interval.ms"}
"""These are described only where they are set."""

BY_LISTENER: Final = _names(_OF_TLS_STORES)
"""These can be altered only with a listener prefix."""

ON_LISTENERS: Final = frozenset({"max.connections", "max.connection.creation.rate", "num.network.threads"})
"""These can be altered on all brokers with a listener prefix; those of TLS and SASL only on one broker."""

OF_MECHANISMS: Final = (
    _long("connections.max.reauth.ms", 0, None, "how long a login lasts; 0: forever", _ONE),
    _secret("sasl.jaas.config", "how logins are checked"),
)
"""These can be altered with the prefixes of a listener and a SASL mechanism."""
