"""Settings of a broker process: one frozen dataclass, filled from options and `MUSTER_*` variables.

A field is declared once, with its default, unit, bounds and meaning; its option (`--group-max-size`), its
variable (`MUSTER_GROUP_MAX_SIZE`), the help text and the checks all come from that declaration. Settings that
Kafka has, too, have Kafka's name (`group.max.size`) and Kafka's default. Options win over variables,
variables over defaults.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final

from muster.coordinator import by_listener
from muster.coordinator.base.endpoints import Endpoint, Listening, is_loopback, read_endpoints
from muster.coordinator.group.config import ASSIGNORS, MigrationPolicy
from muster.coordinator.topics.config import SPECS
from muster.settings import (
    INT32_MAX,
    INT64_MAX,
    Scope,
    Setting,
    Type,
    setting,
    setting_field,
    settings_of,
    text_of,
)

PORT_MAX: Final = 65_535
_SHOWN_MAX: Final = 100  # characters of a refused value
VARIABLE_PREFIX: Final = "MUSTER_"
_MISSPELT: Final = 0.88  # minimum similarity of a misspelt variable to the one meant, from 0 to 1


NOT_GIVEN: Final = object()
"""The value of a setting that is required and was not given, in a `SettingError`."""


class SettingError(ValueError):
    """A setting has an invalid value; the text names the setting as it was given and what is allowed."""

    def __init__(self, given: str, value: object, allowed: str, *, secret: bool = False) -> None:
        shown = "the value given" if secret else repr(value)
        if len(shown) > _SHOWN_MAX:
            shown = shown[:_SHOWN_MAX] + "…"
        wrong = f"{given} is required" if value is NOT_GIVEN else f"{given}: {shown} is not allowed"
        super().__init__(f"{wrong}; it takes {allowed}")
        self.given = given
        self.value = value
        self.allowed = allowed
        self.secret = secret


class NoSuchSetting(SettingError):
    """A setting was given that would have no effect; the text says why, and what was meant. The value, which
    may be a password, is not shown."""

    def __init__(self, given: str, why: str) -> None:
        ValueError.__init__(self, f"{given}: {why}")
        self.given = given
        self.why = why


CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"
"""Group protocols."""

PLAINTEXT: Final = "PLAINTEXT"
PROTOCOLS: Final = (PLAINTEXT, "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""Security protocols of listeners."""
_SCRAM: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS: Final = ("PLAIN", *_SCRAM, "OAUTHBEARER")
TLS_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")

_ALONE: Final = "brokers of muster talk to the store alone (--store), never to each other; leave it out"
_DATA: Final = "muster has one data directory: --data (MUSTER_DATA)"
_PEM: Final = (
    "muster reads the private key and its certificate chain from a PEM file: --ssl-keystore-location "
    "(MUSTER_SSL_KEYSTORE_LOCATION)"
)
_RETENTION: Final = "muster has --log-retention-ms (MUSTER_LOG_RETENTION_MS), in milliseconds"
WITHOUT_EFFECT: Final = {
    "inter_broker_listener_name": _ALONE,
    "security_inter_broker_protocol": _ALONE,
    "sasl_mechanism_inter_broker_protocol": _ALONE,
    "log_dirs": _DATA,
    "log_dir": _DATA,
    "broker_id": "muster's name for it is --node-id (MUSTER_NODE_ID)",
    "broker_rack": "muster's name for it is --rack (MUSTER_RACK)",
    "min_insync_replicas": "each record is stored once, so min.insync.replicas always holds; leave it out",
    "default_replication_factor": "topics have 1 unless they are created with another; leave it out",
    "log_retention_hours": _RETENTION,
    "log_retention_minutes": _RETENTION,
    "log_roll_hours": "muster has --log-roll-ms (MUSTER_LOG_ROLL_MS), in milliseconds",
    "ssl_keystore_key": _PEM,
    "ssl_keystore_certificate_chain": _PEM,
    "ssl_keystore_password": "only its key may have one: --ssl-key-password (MUSTER_SSL_KEY_PASSWORD)",
}
"""Kafka broker settings that muster does not have under that name, and why or what it has instead, for those
who bring along their Kafka configuration."""

RETENTION_IN_TESTS_MS: Final = -1
"""The default of `log_retention_ms` where tests move the clock: records have their producers' time, which
stays behind, and would expire as soon as they are written."""

STORE_PATTERN: Final = r"postgres(ql)?://\S+"
STORE_SHAPE: Final = "postgresql://USER:PASSWORD@HOST:PORT/DATABASE"

_PORT: Final = r"([1-9]\d{0,3}|[1-5]\d{4}|6[0-4]\d{3}|65[0-4]\d\d|655[0-2]\d|6553[0-5])"

_HOST: Final = r"(\[[0-9A-Fa-f:.]+\]|[^:\s\[\],]+)"
_NAME: Final = r"[A-Za-z][A-Za-z0-9_.-]*"
_LISTENER: Final = f"{_NAME}://"
_LISTENER_SHAPE: Final = "NAME://HOST:PORT[,...]"


_SUPER_USER: Final = r"\s*(User:[^;\s][^;]*|[^;:\s][^;:]*)"
# A list with commas would name a single user that does not exist.
_SUPER_USERS: Final = rf"(?!(?s:.*),\s*User:){_SUPER_USER}(;{_SUPER_USER})*"
"""Every client's principal has the type User, so no client can have one of another type, such as user."""

_PER_ADDRESS: Final = r"([0-9.]+|\[[0-9a-fA-F:.]+\]):[0-9]{1,9}"


def _are_for_addresses(overrides: str) -> bool:
    from muster.coordinator.security.quotas import address_of  # commands do without

    return all(address_of(each.rpartition(":")[0].strip("[]")) for each in overrides.split(",") if each)


def _several(pattern: str) -> str:
    return f"{pattern}(,{pattern})*"


def _kafka(default: Any, meaning: str, *, low: float = 0, high: float = INT32_MAX, **rest: Any) -> Any:
    """A Kafka broker setting."""
    if type(default) is not int:
        return setting(default, meaning, **rest)
    return setting(default, meaning, low=low, high=high, **rest)


def _setting(default: Any, meaning: str, **rest: Any) -> Any:
    """A setting that Kafka does not have, or not in this form."""
    return _kafka(default, meaning, kafka=False, **rest)


def _by_listener(default: Any, meaning: str, **rest: Any) -> Any:
    """A Kafka broker setting that can be set for one listener alone."""
    return _kafka(default, meaning, by_listener=True, **rest)


def _of_topics(name: str, **changed: Any) -> Any:
    """The Kafka broker setting that gives the topic config `name` its default."""
    return setting_field(SPECS[name]._replace(default_from=None, **changed))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of a broker process. Field names are Kafka's setting names with `_` for `.`."""

    # ---- network
    host: str = _setting(
        "127.0.0.1",
        "address to listen on; localhost means IPv4 and IPv6; with 0.0.0.0 or :: clients are told localhost "
        "unless --advertised is given",
        section="network",
    )
    port: int = _setting(
        9092,
        "port of the first broker, the others take the next ones; 0 lets the system choose",
        high=PORT_MAX,
    )
    advertised: str | None = _setting(
        None,
        "address that clients are told to connect to, if it differs from host and port; with several "
        "brokers the port is that of the first",
        pattern=f"{_HOST}:{_PORT}",
        shape="HOST:PORT",
        optional=True,
    )
    listeners: str | None = _setting(
        None,
        "several named listeners, instead of --host and --port: for clients that reach the broker by "
        "different addresses; with several brokers the ports are those of the first",
        pattern=_several(f"{_LISTENER}{_HOST}:(0|{_PORT})"),
        shape=_LISTENER_SHAPE,
        optional=True,
    )
    advertised_listeners: str | None = _setting(
        None,
        "address that clients of each listener are told to connect to, as --advertised for a single one",
        pattern=_several(f"{_LISTENER}{_HOST}:{_PORT}"),
        shape=_LISTENER_SHAPE,
        optional=True,
    )
    http: str | None = _setting(
        None,
        "address of the page and its JSON, of /metrics, /healthz and /readyz, for all brokers of this "
        "process; port 0 lets the system choose; needs muster-kafka[http]",
        pattern=f"{_HOST}:(0|{_PORT})",
        shape="HOST:PORT",
        optional=True,
    )
    advertised_http: str | None = _setting(
        None,
        "address under which browsers reach what --http serves, if it differs: the pages of other brokers "
        "link to it",
        pattern=f"{_HOST}:{_PORT}",
        shape="HOST:PORT",
        optional=True,
    )
    http_records: bool = _setting(
        True, "show topic records on the page of --http, to everyone who is let in there"
    )
    http_token_file: str | None = _setting(
        None,
        "file with the token that --http lets in: as `Authorization: Bearer`, or as the password in a "
        "browser; read again when it changes; without it everyone is let in",
        length_max=4_096,
        optional=True,
    )
    http_ssl_keystore_location: str | None = _setting(
        None,
        "PEM file with a private key and its certificate chain, for TLS on --http; read again when it "
        "changes; it may be that of --ssl-keystore-location",
        length_max=4_096,
        optional=True,
    )
    http_ssl_key_password: str | None = _setting(
        None,
        "password of the private key in --http-ssl-keystore-location, if it is encrypted",
        type=Type.PASSWORD,
        optional=True,
    )
    http_insecure: bool = _setting(
        False,
        "allow --http on an address that others can reach without TLS or without a token: behind a proxy "
        "that has both, or in a network of containers",
    )
    max_connections: int = _kafka(
        INT32_MAX,
        "most connections a broker keeps open; the open-files limit may lower it",
        low=1,
        scope=Scope.CLUSTER_WIDE,
    )
    max_connections_per_ip: int = _kafka(
        INT32_MAX,
        "most connections from one address; 0, if there are overrides: only theirs",
        scope=Scope.CLUSTER_WIDE,
        unit="connections",
    )
    max_connections_per_ip_overrides: str = _kafka(
        "",
        "most connections from these addresses, in place of max.connections.per.ip",
        pattern=f"({_several(_PER_ADDRESS)})?",
        holds=_are_for_addresses,
        shape="ADDRESS:NUMBER[,...], an IPv6 address in brackets",
        scope=Scope.CLUSTER_WIDE,
    )
    connections_max_idle_ms: int = _kafka(
        600_000, "idle time after which a connection is closed", low=1, high=INT64_MAX
    )
    socket_request_max_bytes: int = _kafka(
        104_857_600,
        "largest request accepted; requests without records are limited to 4 MiB, JoinGroup and SyncGroup to"
        " 16 MiB",
        low=1,
    )
    request_elements_max: int = _setting(
        50_000,
        "most topics, partitions, members and so on, in total, that one request may list",
        low=1,
        unit="elements",
    )
    request_receive_timeout_ms: int = _setting(
        60_000,
        "how long a request may take from its first byte to its last; the connection is then closed",
        low=1,
    )
    queued_max_request_bytes: int = _kafka(
        268_435_456,
        "requests read but not yet answered, over all connections of a broker; at this limit reading waits "
        "(Kafka's default is no limit). Clients that have not logged in yet share an eighth as much",
        low=1,
        high=INT64_MAX,
    )
    queued_max_response_bytes: int = _setting(
        134_217_728,
        "responses that clients have not read yet, over all connections of a broker; at this limit a Fetch "
        "returns one record batch",
        low=1,
        high=INT64_MAX,
    )
    shutdown_grace_ms: int = _setting(5_000, "at shutdown, how long requests in flight may take to finish")

    # ---- security
    listener_security_protocol_map: str | None = _kafka(
        None,
        "security protocol of each listener; without it a listener's name is its protocol, else PLAINTEXT",
        section="security",
        pattern=_several(f"{_NAME}:({'|'.join(PROTOCOLS)})"),
        shape=f"NAME:PROTOCOL[,...], of {', '.join(PROTOCOLS)}",
        optional=True,
    )
    ssl_keystore_location: str | None = _by_listener(
        None,
        "PEM file with the broker's private key and its certificate chain; read again when it changes",
        length_max=4_096,
        optional=True,
    )
    ssl_key_password: str | None = _by_listener(
        None, "password of the private key, if it is encrypted", type=Type.PASSWORD, optional=True
    )
    ssl_truststore_location: str | None = _by_listener(
        None,
        "PEM file with the CAs whose client certificates are accepted",
        length_max=4_096,
        optional=True,
    )
    ssl_client_auth: str = _by_listener(
        "none",
        "whether clients of SSL listeners present a certificate, whose subject is then their principal",
        choices=("none", "requested", "required"),
    )
    ssl_principal_mapping_rules: str = _by_listener(
        "DEFAULT",
        "how certificate subjects become user names: the first rule that matches",
        shape="DEFAULT or RULE:PATTERN/REPLACEMENT/[LU], several with commas",
        pattern=r"\S.*",
    )
    ssl_enabled_protocols: tuple[str, ...] = _by_listener(
        TLS_VERSIONS, "versions of TLS that are served", choices=TLS_VERSIONS
    )
    sasl_enabled_mechanisms: tuple[str, ...] = _by_listener(
        (),
        "how clients of SASL listeners may authenticate; by default SCRAM-SHA-256 and SCRAM-SHA-512",
        choices=MECHANISMS,
    )
    sasl_server_max_receive_size: int = _by_listener(
        524_288, "largest request of a client that has not authenticated yet", low=1
    )
    connection_failed_authentication_delay_ms: int = _kafka(
        100, "how long the answer to a failed authentication is held back"
    )
    connections_max_reauth_ms: int = _by_listener(
        0,
        "how long a client stays authenticated before it must authenticate again; 0: forever",
        high=INT64_MAX,
    )
    sasl_oauthbearer_jwks_endpoint_url: str | None = _by_listener(
        None,
        "where to find the keys that sign OAUTHBEARER tokens",
        pattern=r"(https?|file)://\S+",
        shape="https://... or file:///...",
        optional=True,
    )
    sasl_oauthbearer_expected_audience: tuple[str, ...] = _by_listener(
        (), "accepted audiences, one of which a token must have; needed unless unverified ones are allowed"
    )
    sasl_oauthbearer_expected_issuer: str | None = _by_listener(
        None,
        "issuer that a token must have; needed unless unverified ones are allowed",
        length_max=4_096,
        optional=True,
    )
    sasl_oauthbearer_allow_unverified_audience: bool = _by_listener(False, "accept tokens for any audience")
    sasl_oauthbearer_allow_unverified_issuer: bool = _by_listener(False, "accept tokens of any issuer")
    sasl_oauthbearer_sub_claim_name: str = _by_listener("sub", "claim that names the user", length_max=255)
    sasl_oauthbearer_scope_claim_name: str = _by_listener(
        "scope", "claim that has the token's scopes", length_max=255
    )
    sasl_oauthbearer_clock_skew_seconds: int = _by_listener(30, "how far the token issuer's clock may be off")
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = _by_listener(
        3_600_000, "how often the keys are read again", low=1, high=INT64_MAX
    )
    sasl_oauthbearer_allow_unsecured: bool = _by_listener(
        False,
        "accept unsigned OAUTHBEARER tokens, with which anyone who can connect can act as any user: for "
        "development",
        kafka=False,
    )
    super_users: str | None = _kafka(
        None,
        "users who may do everything; ACLs are in force if there are any",
        pattern=_SUPER_USERS,
        shape="User:NAME[;...], with semicolons in between",
        optional=True,
    )
    allow_everyone_if_no_acl_found: bool = _kafka(
        False, "let everyone use resources that no ACL covers; takes effect with --super-users"
    )

    listener_name: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False, hash=False)
    """Settings for one listener alone, by listener and field name; `on` applies them."""

    # ---- store and brokers
    data: str = _setting(
        "./data",
        "directory of topics, records, groups and offsets; created if missing",
        section="store and brokers",
        length_max=4_096,
    )
    store: str | None = _setting(
        None,
        "database that brokers of several processes and machines share, instead of the directory of --data; "
        "`muster store migrate` prepares it; the password may also be in PGPASSWORD or ~/.pgpass",
        type=Type.PASSWORD,
        pattern=STORE_PATTERN,
        shape=STORE_SHAPE,
        optional=True,
    )
    ephemeral: bool = _setting(False, "keep everything in memory and lose it on exit")
    brokers: int = _setting(1, "brokers in this process, each with its own listener", low=1, high=64)
    node_id: int = _setting(1, "node id of the first broker; the others count up from it")
    rack: str | None = _setting(None, "rack reported for the brokers", length_max=255, optional=True)
    test_mode: bool = _setting(
        False,
        "for tests: the clock of groups and records can be advanced, faults injected, and brokers of this "
        "process stopped; over --http too, by everyone who is let in there; not with --store. Records do not "
        "expire (--log-retention-ms -1), since their producers' clocks stay behind",
    )
    lease_term_ms: int = _setting(
        3_000, "how long a broker that died keeps its shards before another may take them", low=200
    )

    # ---- topics and records
    auto_create_topics_enable: bool = _kafka(
        True,
        "create missing topics that clients ask for, if the client allows it",
        section="topics and records",
    )
    delete_topic_enable: bool = _kafka(True, "clients may delete topics")
    num_partitions: int = _kafka(1, "partitions of topics created without a partition count", low=1)
    message_max_bytes: int = _of_topics("max.message.bytes")
    max_decompressed_message_bytes: int = _of_topics("max.decompressed.message.bytes")
    fetch_max_bytes: int = _kafka(57_671_680, "most that a Fetch returns, whatever it asks for", low=1024)
    max_incremental_fetch_session_cache_slots: int = _kafka(
        1_000, "fetch sessions, in which consumers name only what changed (0: none)", low=0
    )
    log_cleanup_policy: str = _kafka(
        "delete",
        "what happens to old records",
        choices=("delete", "compact", "compact,delete", "delete,compact"),
    )
    log_retention_ms: int = _of_topics(
        "retention.ms", meaning=f"{SPECS['retention.ms'].meaning}, the default with --test-mode"
    )
    log_retention_bytes: int = _of_topics("retention.bytes", low=-1)
    log_retention_check_interval_ms: int = _kafka(
        300_000, "how often retention is checked", low=1, high=INT64_MAX
    )
    log_segment_bytes: int = _of_topics("segment.bytes")
    log_roll_ms: int = _of_topics("segment.ms")
    log_index_interval_bytes: int = _of_topics("index.interval.bytes")
    log_flush_interval_messages: int = _of_topics("flush.messages")
    log_flush_interval_ms: int = _of_topics("flush.ms")
    log_message_timestamp_type: str = _of_topics("message.timestamp.type")
    log_message_timestamp_before_max_ms: int = _of_topics("message.timestamp.before.max.ms")
    log_message_timestamp_after_max_ms: int = _of_topics("message.timestamp.after.max.ms")
    producer_id_expiration_ms: int = _kafka(
        86_400_000,
        "how long an idle idempotent producer is remembered",
        low=1,
        scope=Scope.CLUSTER_WIDE,
    )
    transaction_max_timeout_ms: int = _kafka(
        900_000, "longest transaction.timeout.ms that a producer may ask for", low=1
    )
    transactional_id_expiration_ms: int = _kafka(
        604_800_000, "how long a transactional id that is not used is remembered", low=1
    )
    transaction_partition_verification_enable: bool = _kafka(
        True,
        "whether a partition asks the coordinator if it is part of a transaction, and a group too when "
        "offsets are committed in one (TxnOffsetCommit); both always do for clients that leave the adding of "
        "partitions and groups to brokers (transaction.version 2)",
        scope=Scope.CLUSTER_WIDE,
    )
    add_partitions_to_txn_retry_backoff_ms: int = _kafka(
        20,
        "longest pause of a broker before it tries again to add a partition while the previous transaction "
        "is ending",
        low=1,
    )
    add_partitions_to_txn_retry_backoff_max_ms: int = _kafka(
        100, "how long a broker keeps retrying before it leaves the retry to the producer", low=0
    )
    log_cleaner_backoff_ms: int = _kafka(
        15_000, "how often compaction looks for work", low=1, high=INT64_MAX, scope=Scope.CLUSTER_WIDE
    )
    log_cleaner_min_cleanable_ratio: float = _of_topics("min.cleanable.dirty.ratio")
    log_cleaner_min_compaction_lag_ms: int = _of_topics("min.compaction.lag.ms")
    log_cleaner_max_compaction_lag_ms: int = _of_topics("max.compaction.lag.ms")
    log_cleaner_delete_retention_ms: int = _of_topics("delete.retention.ms")

    # ---- groups and offsets
    group_initial_rebalance_delay_ms: int = _kafka(
        3_000, "how long an empty group waits for more members after the first", section="groups and offsets"
    )
    group_min_session_timeout_ms: int = _kafka(6_000, "shortest session timeout a member may ask for")
    group_max_session_timeout_ms: int = _kafka(
        1_800_000, "longest session timeout a member may ask for", low=1
    )
    group_max_size: int = _kafka(INT32_MAX, "most members of a classic group", low=1)
    group_coordinator_rebalance_protocols: tuple[str, ...] = _kafka(
        (CLASSIC, CONSUMER),
        "group protocols that are served; without consumer, clients with group.protocol=consumer are refused",
        choices=(CLASSIC, CONSUMER),
    )
    group_consumer_session_timeout_ms: int = _kafka(
        45_000, "session timeout of the members of consumer groups (KIP-848)", low=1
    )
    group_consumer_min_session_timeout_ms: int = _kafka(
        45_000, "shortest session timeout that can be set for a consumer group", low=1
    )
    group_consumer_max_session_timeout_ms: int = _kafka(
        60_000, "longest session timeout that can be set for a consumer group", low=1
    )
    group_consumer_heartbeat_interval_ms: int = _kafka(
        5_000, "how often the members of consumer groups send a heartbeat", low=1
    )
    group_consumer_min_heartbeat_interval_ms: int = _kafka(
        5_000, "shortest heartbeat interval that can be set for a consumer group", low=1
    )
    group_consumer_max_heartbeat_interval_ms: int = _kafka(
        15_000, "longest heartbeat interval that can be set for a consumer group", low=1
    )
    group_consumer_max_size: int = _kafka(INT32_MAX, "most members of a consumer group", low=1)
    group_consumer_assignors: tuple[str, ...] = _kafka(
        ASSIGNORS,
        "assignors of consumer groups; the first serves groups whose members ask for none",
        choices=ASSIGNORS,
    )
    group_consumer_migration_policy: str = _kafka(
        MigrationPolicy.BIDIRECTIONAL.value,
        "which groups may change their protocol while they have members: upgrade from classic to consumer, "
        "downgrade from consumer to classic, bidirectional both",
        choices=tuple(each.value for each in MigrationPolicy),
    )
    group_consumer_assignment_interval_ms: int = _kafka(
        1_000,
        "least time between two assignments of a consumer group",
        scope=Scope.CLUSTER_WIDE,
    )
    group_consumer_min_assignment_interval_ms: int = _kafka(
        0, "shortest assignment interval that can be set for a consumer group"
    )
    group_consumer_max_assignment_interval_ms: int = _kafka(
        15_000, "longest assignment interval that can be set for a consumer group"
    )
    group_consumer_regex_refresh_interval_ms: int = _kafka(
        600_000,
        "how often the topics that a regular expression of consumers matches are looked up, at the latest",
        low=10_000,
    )
    offset_metadata_max_bytes: int = _kafka(
        4_096, "longest metadata text of a committed offset", unit="characters"
    )
    offsets_commit_timeout_ms: int = _kafka(5_000, "how long a group's request may wait for the store", low=1)
    offsets_retention_minutes: int = _kafka(
        10_080, "how long offsets are kept once their group is empty", low=1
    )
    offsets_retention_check_interval_ms: int = _kafka(
        600_000, "how often expired offsets are removed", low=1, high=INT64_MAX
    )
    group_events: bool = _setting(True, "record what happens to groups in the topic __group_events")
    group_events_retention_ms: int = _setting(
        604_800_000, "age at which records of __group_events are deleted; -1: never", low=-1, high=INT64_MAX
    )
    group_events_retention_bytes: int = _setting(
        16_777_216,
        "partition size of __group_events (one per shard) above which the oldest records are deleted",
        high=1 << 30,
    )

    # ---- logging
    log_level: str = _setting(
        "info",
        "lowest level that is logged",
        section="logging",
        choices=("debug", "info", "warning", "error"),
    )
    log_format: str = _setting(
        "auto", "auto: readable on a terminal, JSON otherwise", choices=("auto", "human", "json")
    )

    def __post_init__(self) -> None:
        for name, each in SETTINGS.items():
            _check(each, getattr(self, name), name)
        self._check_order("group_min_session_timeout_ms", "group_max_session_timeout_ms")
        self._check_order("log_cleaner_min_compaction_lag_ms", "log_cleaner_max_compaction_lag_ms")
        self._check_consumer_groups()
        if not self.max_connections_per_ip and not self.max_connections_per_ip_overrides:
            allowed = "at least 1, or 0 beside max_connections_per_ip_overrides"
            raise SettingError("max_connections_per_ip", 0, allowed)
        self._check_room("port", self.port, PORT_MAX)
        self._check_room("node_id", self.node_id, INT32_MAX)
        if self.store is not None and self.ephemeral:
            raise SettingError("ephemeral", True, "false beside --store: a database keeps what it is given")
        if self.store is not None and self.test_mode:
            raise SettingError("test_mode", True, "false beside --store: the clock is the database's")
        self._check_listeners()
        self._check_protocols()
        self._check_listener_name()
        self._check_tls()
        self._check_http()

    def _check_listeners(self) -> None:
        if self.listeners is None:
            if self.advertised_listeners is not None:
                allowed = "addresses of what --listeners names, and that is not given"
                raise SettingError("advertised_listeners", self.advertised_listeners, allowed)
        elif self.advertised is not None:
            allowed = "nothing beside --listeners: --advertised-listeners has their addresses"
            raise SettingError("advertised", self.advertised, allowed)
        listeners = read_endpoints(self.listeners or "")
        ports = sorted(each.port for each in listeners if each.port)
        if any(following - port < self.brokers for port, following in pairwise(ports)):
            allowed = f"ports at least {self.brokers} apart: each broker takes one"
            raise SettingError("listeners", self.listeners, allowed)
        names = [each.listener for each in listeners]
        for name in ("advertised", "listeners", "advertised_listeners"):
            text: str | None = getattr(self, name)
            endpoints = read_endpoints(text or "")
            for each in endpoints:
                self._check_room(name, each.port, PORT_MAX, "a port of ")
            given = [each.listener for each in endpoints]
            if len(set(given)) < len(given):
                raise SettingError(name, text, "each listener once")
            if names and not set(given) <= set(names):
                raise SettingError(name, text, f"the listeners of --listeners ({', '.join(names)})")

    def _check_protocols(self) -> None:
        names = [each.listener for each in read_endpoints(self.listeners or "")]
        given = self._protocols()
        for name in given:
            if name not in names:
                there = ", ".join(names) or "none are named"
                allowed = f"listeners of --listeners ({there}), not {name}"
                raise SettingError(
                    "listener_security_protocol_map", self.listener_security_protocol_map, allowed
                )
        # A misspelt SASL_SSL must not become a listener that lets everybody in.
        lacking = [name for name in names if name not in given and name not in PROTOCOLS]
        secured = any(self.protocol_of(name) != PLAINTEXT for name in names)
        for name in lacking:
            if secured or given or "SSL" in name.upper() or "SASL" in name.upper():
                allowed = (
                    f"names that are protocols ({', '.join(PROTOCOLS)}), or that have one in "
                    f"--listener-security-protocol-map: {name} is neither"
                )
                raise SettingError("listeners", self.listeners, allowed)

    def _check_listener_name(self) -> None:
        names = [each.listener for each in read_endpoints(self.listeners or "")]
        for listener, given in self.listener_name.items():
            alike = [
                each for each in names if by_listener.normalised(each) == by_listener.normalised(listener)
            ]
            if len(alike) != 1:
                why = (
                    f"several listeners are of that name: {', '.join(alike)}" if alike else "no such listener"
                )
                raise NoSuchSetting(f"listener_name: {listener}", why)
            for name, value in given.items():
                prefixed = by_listener.prefixed(listener, name)
                try:
                    by_listener.check_name(name, SETTINGS)
                except LookupError as error:
                    raise NoSuchSetting(prefixed, str(error.args[0])) from None
                _check(SETTINGS[name], value, prefixed)
                protocol, effective = self.protocol_of(alike[0]), by_listener.protocols_with(name)
                if protocol not in effective:
                    why = f"no effect on {alike[0]}, which is {protocol}, not {' or '.join(effective)}"
                    raise NoSuchSetting(prefixed, why)

    def _check_tls(self) -> None:
        if self.listener_name or len(self.protocols) > 1:
            for each in self.listening(0):
                self.on(each.bound.listener)
        self._check_effect()
        if "SSL" in self.protocols[0] and len(self.protocols) == 1 and not self.listener_name:
            self._check_tls_listener()

    def _check_effect(self) -> None:
        """Who asks for TLS or a login, and forgets the listener's protocol, must not get an open broker."""
        for name, each in SETTINGS.items():
            value = getattr(self, name)
            if not each.by_listener or value == each.default:
                continue
            effective = by_listener.protocols_with(name)
            if not set(effective) & set(self.protocols):
                default = "" if each.default is None else text_of(each.default)
                allowed = (
                    f"{default or 'nothing'} while no listener has the protocol "
                    f"{' or '.join(effective)} (--listeners {effective[0]}://...)"
                )
                given = text_of(value) if isinstance(value, tuple) else value
                raise SettingError(name, given, allowed, secret=each.sensitive)

    def _check_tls_listener(self) -> None:
        """Check the only listener, which has TLS."""
        if self.ssl_keystore_location is None:
            allowed = "the PEM file of the broker's key and certificate, which SSL and SASL_SSL need"
            raise SettingError("ssl_keystore_location", NOT_GIVEN, allowed)
        if self.ssl_client_auth != "none" and self.ssl_truststore_location is None:
            allowed = "none, unless --ssl-truststore-location says whose client certificates are accepted"
            raise SettingError("ssl_client_auth", self.ssl_client_auth, allowed)
        if not self.ssl_enabled_protocols:
            raise SettingError("ssl_enabled_protocols", "", f"one or more of {', '.join(TLS_VERSIONS)}")

    def _check_http(self) -> None:
        if self.http is None:
            for name in ("http_token_file", "http_ssl_keystore_location", "http_ssl_key_password"):
                if (value := getattr(self, name)) is not None:
                    raise SettingError(name, value, "nothing without --http", secret=SETTINGS[name].sensitive)
            return
        if self.http_ssl_key_password is not None and self.http_ssl_keystore_location is None:
            allowed = "nothing without --http-ssl-keystore-location, whose key it is for"
            raise SettingError("http_ssl_key_password", self.http_ssl_key_password, allowed, secret=True)
        if self.http_lacks and not self.http_insecure:
            ways = " and ".join(self.http_lacks.values())
            allowed = (
                f"a loopback address (127.0.0.1, ::1, localhost); for others give {ways}, or, behind a proxy "
                "or in a network of containers, --http-insecure"
            )
            raise SettingError("http", self.http, allowed)

    @property
    def http_lacks(self) -> dict[str, str]:
        """What `http` lacks to be reachable from other machines, and the option for each."""
        assert self.http is not None
        if is_loopback(read_endpoints(self.http)[0].host):
            return {}
        given = {
            "TLS": ("http_ssl_keystore_location", self.http_ssl_keystore_location),
            "a login": ("http_token_file", self.http_token_file),
        }
        return {what: f"{option(name)} ({what})" for what, (name, value) in given.items() if value is None}

    def _check_order(self, low: str, high: str) -> None:
        if getattr(self, low) > getattr(self, high):
            raise SettingError(low, getattr(self, low), f"at most {high} ({getattr(self, high)})")

    def _check_consumer_groups(self) -> None:
        for name in ("session_timeout_ms", "heartbeat_interval_ms", "assignment_interval_ms"):
            low, value, high = (f"group_consumer_{which}{name}" for which in ("min_", "", "max_"))
            self._check_order(low, high)
            if not getattr(self, low) <= getattr(self, value) <= getattr(self, high):
                allowed = f"{low} to {high} ({getattr(self, low)} to {getattr(self, high)})"
                raise SettingError(value, getattr(self, value), allowed)
        heartbeat, session = "group_consumer_heartbeat_interval_ms", "group_consumer_session_timeout_ms"
        if getattr(self, heartbeat) >= getattr(self, session):
            allowed = f"less than {session} ({getattr(self, session)})"
            raise SettingError(heartbeat, getattr(self, heartbeat), allowed)
        if not self.group_consumer_assignors:
            raise SettingError("group_consumer_assignors", "", f"one or more of {', '.join(ASSIGNORS)}")
        if CLASSIC not in self.group_coordinator_rebalance_protocols:
            given = text_of(self.group_coordinator_rebalance_protocols)
            allowed = f"a list with {CLASSIC}, which cannot be switched off"
            raise SettingError("group_coordinator_rebalance_protocols", given, allowed)

    def _check_room(self, name: str, first: int, last: int, noun: str = "") -> None:
        """The brokers count up from `first`: reject it if the last of them would exceed `last`."""
        first_max = last - self.brokers + 1
        if first > first_max:
            allowed = f"{noun}at most {first_max} with {self.brokers} brokers"
            raise SettingError(name, getattr(self, name), allowed)

    def listening(self, index: int) -> list[Listening]:
        """The listeners of the broker `index` of this process, in the order given."""
        if self.listeners is None:
            bound = [Endpoint("", self.host, self.port)]
        else:
            bound = read_endpoints(self.listeners)
        advertised = {
            each.listener: each for each in read_endpoints(self.advertised_listeners or self.advertised or "")
        }
        return [
            Listening(each.counted_up(index), told and told.counted_up(index))
            for each in bound
            for told in (advertised.get(each.listener),)
        ]

    def on(self, listener: str) -> OnListener:
        """The settings on one listener, by its name. Raises SettingError if they contradict each other."""
        endpoint = next(each for each in self.listening(0) if each.bound.listener == listener)
        protocol = self.protocol_of(listener)
        own = {
            name: value
            for each, given in self.listener_name.items()
            if by_listener.normalised(each) == by_listener.normalised(listener)
            for name, value in given.items()
        }
        if not listener:
            return OnListener(listener, protocol, self, frozenset())
        unused: dict[str, Any] = {
            name: each.default
            for name, each in SETTINGS.items()
            if each.by_listener and protocol not in by_listener.protocols_with(name)
        }
        if protocol != "SSL":  # KIP-684: on SASL_SSL it counts only if set for that listener
            unused["ssl_client_auth"] = "none"
        advertised = endpoint.advertised
        alone: dict[str, Any] = {
            "listeners": str(endpoint.bound),
            "advertised_listeners": None if advertised is None else str(advertised),
            "listener_security_protocol_map": f"{listener}:{protocol}",
            "listener_name": {},
        }
        try:
            return OnListener(listener, protocol, replace(self, **{**alone, **unused, **own}), frozenset(own))
        except SettingError as error:
            if error.given not in own:
                raise
            prefixed = by_listener.prefixed(listener, error.given)
            raise SettingError(prefixed, error.value, error.allowed) from None

    def protocol_of(self, listener: str) -> str:
        """The security protocol of a listener, by its name."""
        return self._protocols().get(listener) or (listener if listener in PROTOCOLS else PLAINTEXT)

    @property
    def protocols(self) -> list[str]:
        """The security protocols of the listeners, in their order."""
        return [self.protocol_of(each.bound.listener) for each in self.listening(0)]

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The SASL mechanisms that clients may use; empty if no listener has SASL."""
        if not any("SASL" in protocol for protocol in self.protocols):
            return ()
        return self.sasl_enabled_mechanisms or _SCRAM

    def _protocols(self) -> dict[str, str]:
        pairs = (
            each.partition(":") for each in (self.listener_security_protocol_map or "").split(",") if each
        )
        return {name: protocol for name, _, protocol in pairs}

    def kafka_text(self, kafka_name: str) -> str | None:
        """A setting's value by Kafka's name for it, as Kafka writes it; None for names that are not settings
        here."""
        value = getattr(self, kafka_name.replace(".", "_"), None)
        return None if value is None else text_of(value)


@dataclass(frozen=True, slots=True)
class OnListener:
    """The settings on one listener."""

    listener: str
    protocol: str
    settings: Settings
    """As if the process had only that listener."""
    own: frozenset[str]
    """The fields set for this listener alone."""

    def option(self, name: str) -> str:
        """The option that gives the field its value."""
        return option(by_listener.prefixed(self.listener, name) if name in self.own else name)

    @property
    def alike(self) -> tuple[object, ...]:
        """Equal for listeners with the same settings."""
        return tuple(getattr(self.settings, name) for name, each in SETTINGS.items() if each.by_listener)


SETTINGS: Final = settings_of(Settings)
"""The declarations by field name, in the order of the help."""
BY_LISTENER_FLAGS: Final = tuple(
    name for name, each in SETTINGS.items() if each.by_listener and each.kind is bool
)


def option(name: str) -> str:
    """`group_max_size` -> `--group-max-size`"""
    return "--" + name.replace("_", "-")


def variable(name: str) -> str:
    """`group_max_size` -> `MUSTER_GROUP_MAX_SIZE`"""
    return VARIABLE_PREFIX + name.upper()


def read_settings(options: Mapping[str, str | None], variables: Mapping[str, str]) -> Settings:
    """Settings from command-line options (by field name; None: not given) and the environment.

    Raises SettingError naming the option or variable as it was given and the values it takes.
    """
    _check_variables(variables)
    for name in ("host", "port"):
        # Images have variables for them, which --listeners and MUSTER_LISTENERS override.
        if options.get("listeners") is not None and (text := options.get(name)) is not None:
            raise SettingError(option(name), text, "nothing beside --listeners, which has hosts and ports")
    for name, why in WITHOUT_EFFECT.items():
        for given, told in (
            (option(name), options.get(name)),
            (variable(name), variables.get(variable(name))),
        ):
            if told:
                raise NoSuchSetting(given, why)
    values: dict[str, Any] = {}
    names_given: dict[str, str] = {}
    for name, each in SETTINGS.items():
        given, text = option(name), options.get(name)
        if text is None:
            # Compose files pass unset variables on as empty ones.
            given, text = variable(name), variables.get(variable(name)) or None
            # Kubernetes links a service called "muster" as MUSTER_PORT=tcp://10.0.0.1:9092: not meant for us.
            if text is not None and name == "port" and text.startswith("tcp://"):
                text = None
        if text is not None:
            values[name] = _parse(each, text, given)
            names_given[name] = given
    if values.get("test_mode"):
        values.setdefault("log_retention_ms", RETENTION_IN_TESTS_MS)
    if options.get("data") is not None:  # the variable is a default that an image may set
        for name, why in (("ephemeral", "keeps nothing there"), ("store", "keeps everything in a database")):
            if values.get(name):
                raise SettingError(
                    "--data", options["data"], f"nothing beside {names_given[name]}, which {why}"
                )
    of_listeners: dict[str, dict[str, Any]] = {}
    listeners = [each.listener for each in read_endpoints(values.get("listeners") or "")]
    for given, text in _prefixed(options, variables):
        try:
            listener, name = by_listener.split(
                given.removeprefix(VARIABLE_PREFIX).lstrip("-"), listeners, SETTINGS
            )
        except LookupError as error:
            raise NoSuchSetting(given, str(error.args[0])) from None
        of_listeners.setdefault(listener, {})[name] = _parse(SETTINGS[name], text, given)
        names_given[by_listener.prefixed(listener, name)] = given
    try:
        return Settings(**values, listener_name=of_listeners)
    except NoSuchSetting as error:
        raise NoSuchSetting(names_given.get(error.given, error.given), error.why) from None
    except SettingError as error:  # settings that contradict each other
        raise SettingError(
            names_given.get(error.given, option(error.given)),
            error.value,
            error.allowed,
            secret=error.secret,
        ) from None


def _prefixed(options: Mapping[str, str | None], variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Settings given for one listener alone, as they were given: variables first, then options."""
    prefix = variable(by_listener.PREFIX)
    yield from ((name, text) for name, text in variables.items() if name.startswith(prefix) and text)
    for name, text in options.items():
        if name.startswith(by_listener.PREFIX) and text is not None:
            yield option(name), text


def _check_variables(variables: Mapping[str, str]) -> None:
    """Reject what can only be a misspelt variable, and Kafka's settings that muster does not have. Others may
    use the prefix, too, as Kubernetes does for a service called "muster"."""
    known = {variable(name) for name in SETTINGS}
    others = {name for name in variables if name.startswith(VARIABLE_PREFIX)} - known
    others -= {variable(name) for name in WITHOUT_EFFECT}  # each is refused with its reason
    others = {name for name in others if not name.startswith(variable(by_listener.PREFIX))}
    if not others:
        return
    from difflib import get_close_matches  # rarely wanted

    from muster.coordinator.server.broker_config_specs import BROKER_SPECS  # it imports this module

    of_kafka = {variable(each.field): each for each in BROKER_SPECS.values() if each.kafka}
    for name in sorted(others):
        if name in of_kafka and variables[name]:
            each = of_kafka[name]
            instead = f"set {each.name} at run time" if each.dynamic and each.served else "leave it out"
            raise NoSuchSetting(name, f"muster has no such setting; {instead}")
        close = get_close_matches(name, known, 1, _MISSPELT)
        if close and name not in of_kafka and not variables[name].startswith("tcp://"):
            raise NoSuchSetting(name, f"no such variable; did you mean {close[0]}?")


_TRUTHS: Final = {"true": True, "yes": True, "on": True, "1": True} | {
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


def _parse(each: Setting, text: str, given: str) -> Any:
    """Parse a setting's value, which may be spelled as people and YAML write it. It is checked here so that
    the error names what was given."""
    if each.optional and text == "":
        return None
    value: Any = text
    try:
        if each.kind is bool:
            value = _TRUTHS[text.strip().lower()]
        elif each.numeric:
            value = each.kind(text)
        elif each.kind is tuple:
            value = each.read(text)
    except (KeyError, ValueError):
        value = None
    if value is None or not each.allows(value):
        raise _refused(each, text, given)
    return value


def _check(each: Setting, value: Any, given: str) -> None:
    if not (each.optional if value is None else each.allows(value)):
        raise _refused(each, value, given)


def _refused(each: Setting, value: object, given: str) -> SettingError:
    return SettingError(given, value, allowed(each), secret=each.sensitive)


def allowed(each: Setting) -> str:
    """What is allowed, in the command line's terms."""
    if not each.numeric:
        return each.allowed
    unit = f" of {each.unit}" if each.unit else ""
    bounds = f"{each.low} or more" if each.high == INT64_MAX else f"{each.low} to {each.high}"
    return f"{each.noun}{unit}, {bounds}"
