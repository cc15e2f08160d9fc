"""Settings of a broker process: one frozen dataclass, filled from options and `MUSTER_*` variables.

A field is declared once, with its default, unit, bounds and meaning; its option (`--group-max-size`), its
variable (`MUSTER_GROUP_MAX_SIZE`), the help text and the checks all come from that declaration. Where Kafka
has the same setting it has Kafka's name (`group.max.size`) and Kafka's default. Options win over variables,
variables over defaults.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from itertools import pairwise
from typing import Any, Final

from muster.coordinator.base.endpoints import Endpoint, Listening, read_endpoints

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
PORT_MAX: Final = 65_535
_SHOWN_MAX: Final = 100  # characters of a refused value
VARIABLE_PREFIX: Final = "MUSTER_"
_MISSPELT: Final = 0.88  # how much alike two variables are of which one is the other misspelt, from 0 to 1


class SettingError(ValueError):
    """A setting has a value it cannot have; the text names the setting as it was given and what is
    allowed."""

    def __init__(self, given: str, value: object, allowed: str, *, secret: bool = False) -> None:
        shown = "what was given" if secret else repr(value)
        if len(shown) > _SHOWN_MAX:
            shown = shown[:_SHOWN_MAX] + "…"
        super().__init__(f"{given}: {shown} is not allowed; it takes {allowed}")
        self.given = given
        self.value = value
        self.allowed = allowed


class NoSuchVariable(SettingError):
    """A variable can only be a misspelt one; the text names both. Its value, which may be a password, is not
    shown."""

    def __init__(self, given: str, meant: str) -> None:
        ValueError.__init__(self, f"{given}: there is no such variable; perhaps {meant} was meant")
        self.given = given


@dataclass(frozen=True, slots=True)
class Spec:
    """What is declared about one setting beside its name and default."""

    meaning: str
    section: str
    unit: str | None = None
    low: int | float | None = None
    high: int | float | None = None
    choices: tuple[str, ...] | None = None
    pattern: str | None = None  # of text
    shape: str | None = None  # the pattern in words
    length_max: int | None = None  # of text that may not be empty
    kafka: bool = False  # Kafka has this setting under the same name, written with dots
    optional: bool = False  # None: not set
    secret: bool = False  # may hold a password: its value is never shown

    def allowed(self, kind: type) -> str:
        """The permitted values in words: what refusals and the help say."""
        if kind is bool:
            return "true or false"
        if self.choices is not None:
            return " or ".join(self.choices)
        if kind in (int, float):
            noun = "a whole number" if kind is int else "a number"
            unit = f" of {self.unit}" if self.unit else ""
            if self.high is None or self.high == INT64_MAX:
                return f"{noun}{unit}, {self.low} or more"
            return f"{noun}{unit}, {self.low} to {self.high}"
        if self.length_max is not None:
            return f"text of 1 to {self.length_max} characters"
        return self.shape or "text"


def setting(
    default: Any,
    section: str,
    meaning: str,
    *,
    low: float | None = None,
    high: float | None = None,
    **spec: Any,
) -> Any:
    """Declare one setting; whole numbers without explicit bounds run from 0 to Kafka's int maximum."""
    if type(default) is int:
        low, high = (0 if low is None else low), (INT32_MAX if high is None else high)
    declared = Spec(meaning, section, low=low, high=high, **spec)
    return field(default=default, repr=not declared.secret, metadata={"spec": declared})


STORE_PATTERN: Final = r"postgres(ql)?://\S+"
STORE_SHAPE: Final = "postgresql://USER:PASSWORD@HOST:PORT/DATABASE"

_PORT: Final = r"([1-9]\d{0,3}|[1-5]\d{4}|6[0-4]\d{3}|65[0-4]\d\d|655[0-2]\d|6553[0-5])"

_HOST: Final = r"(\[[0-9A-Fa-f:.]+\]|[^:\s\[\],]+)"
_LISTENER: Final = r"[A-Za-z][A-Za-z0-9_.-]*://"
_LISTENER_SHAPE: Final = "NAME://HOST:PORT[,...]"


def _several(pattern: str) -> str:
    return f"{pattern}(,{pattern})*"


_NETWORK: Final = "network"
_STORE: Final = "store and brokers"
_TOPIC: Final = "topics and records"
_GROUP: Final = "groups and offsets"
_LOG: Final = "logging"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything a broker process can be told. Field names are Kafka's setting names with `_` for `.`."""

    # ---- network
    host: str = setting(
        "127.0.0.1",
        _NETWORK,
        "address to listen on; localhost means IPv4 and IPv6; with 0.0.0.0 or :: clients are told localhost "
        "unless --advertised is given",
    )
    port: int = setting(
        9092,
        _NETWORK,
        "port of the first broker, the others take the next ones; 0 lets the system choose",
        high=PORT_MAX,
    )
    advertised: str | None = setting(
        None,
        _NETWORK,
        "address that clients are told to connect to, when it differs from host and port; with several "
        "brokers the port is that of the first",
        pattern=f"{_HOST}:{_PORT}",
        shape="HOST:PORT",
        optional=True,
    )
    listeners: str | None = setting(
        None,
        _NETWORK,
        "several listeners with names, in place of --host and --port: for clients that reach the "
        "broker by different addresses; with several brokers the ports are those of the first",
        pattern=_several(f"{_LISTENER}{_HOST}:(0|{_PORT})"),
        shape=_LISTENER_SHAPE,
        optional=True,
    )
    advertised_listeners: str | None = setting(
        None,
        _NETWORK,
        "address that clients of each listener are told to connect to, as --advertised is for the only one",
        pattern=_several(f"{_LISTENER}{_HOST}:{_PORT}"),
        shape=_LISTENER_SHAPE,
        optional=True,
    )
    http: str | None = setting(
        None,
        _NETWORK,
        "address of the page and its JSON, of /metrics, /healthz and /readyz, for all brokers of this "
        "process; port 0 lets the system choose; needs muster-kafka[http]",
        pattern=f"{_HOST}:(0|{_PORT})",
        shape="HOST:PORT",
        optional=True,
    )
    advertised_http: str | None = setting(
        None,
        _NETWORK,
        "address under which browsers reach what --http serves, when it differs: the pages of other brokers "
        "link to it",
        pattern=f"{_HOST}:{_PORT}",
        shape="HOST:PORT",
        optional=True,
    )
    http_records: bool = setting(
        True,
        _NETWORK,
        "records of topics can be looked at on the page of --http, by anybody who reaches it",
    )
    max_connections: int = setting(
        INT32_MAX,
        _NETWORK,
        "connections a broker keeps open at most; the open-files limit may lower it",
        low=1,
        kafka=True,
    )
    connections_max_idle_ms: int = setting(
        600_000,
        _NETWORK,
        "an idle connection is closed after this",
        unit="ms",
        low=1,
        high=INT64_MAX,
        kafka=True,
    )
    socket_request_max_bytes: int = setting(
        104_857_600,
        _NETWORK,
        "largest request accepted; those that carry no records are held to 4 MiB, JoinGroup and SyncGroup to "
        "16 MiB",
        unit="bytes",
        low=1,
        kafka=True,
    )
    request_elements_max: int = setting(
        50_000,
        _NETWORK,
        "most topics, partitions, members and so on, taken together, that one request may list",
        low=1,
    )
    request_receive_timeout_ms: int = setting(
        60_000,
        _NETWORK,
        "how long a request may take from its first byte to its last; the connection is then closed",
        unit="ms",
        low=1,
    )
    queued_max_request_bytes: int = setting(
        268_435_456,
        _NETWORK,
        "requests read but not yet answered, over all connections of a broker; reading waits at "
        "this bound (Kafka's default has no bound)",
        unit="bytes",
        low=1,
        high=INT64_MAX,
        kafka=True,
    )
    queued_max_response_bytes: int = setting(
        134_217_728,
        _NETWORK,
        "responses that clients have not taken yet, over all connections of a broker; at this bound a Fetch "
        "returns one record batch",
        unit="bytes",
        low=1,
        high=INT64_MAX,
    )
    shutdown_grace_ms: int = setting(
        5_000, _NETWORK, "at shutdown, how long requests in flight may take to finish", unit="ms"
    )

    # ---- store and brokers
    data: str = setting(
        "./data",
        _STORE,
        "directory of topics, records, groups and offsets; made when it is missing",
        length_max=4_096,
    )
    store: str | None = setting(
        None,
        _STORE,
        "database that brokers of several processes and machines share, instead of the directory of --data; "
        "`muster store migrate` makes it ready; a password may also stand in PGPASSWORD or ~/.pgpass",
        pattern=STORE_PATTERN,
        shape=STORE_SHAPE,
        optional=True,
        secret=True,
    )
    ephemeral: bool = setting(False, _STORE, "keep everything in memory and forget it at the end")
    brokers: int = setting(1, _STORE, "brokers in this process, each with its own listener", low=1, high=64)
    node_id: int = setting(1, _STORE, "node id of the first broker; the others count up from it")
    rack: str | None = setting(None, _STORE, "rack reported for the brokers", optional=True, length_max=255)
    test_mode: bool = setting(
        False,
        _STORE,
        "for tests: the clock of groups and records can be moved, faults can be placed, and brokers of this "
        "process stopped; over --http too, by anybody who reaches it; not with --store",
    )
    lease_term_ms: int = setting(
        3_000,
        _STORE,
        "how long a broker that died keeps its shards before another may take them",
        unit="ms",
        low=200,
    )

    # ---- topics and records
    auto_create_topics_enable: bool = setting(
        True, _TOPIC, "a topic that is asked for and missing is created, if the client allows it", kafka=True
    )
    delete_topic_enable: bool = setting(True, _TOPIC, "clients may delete topics", kafka=True)
    num_partitions: int = setting(
        1, _TOPIC, "partitions of topics created without a number", low=1, kafka=True
    )
    message_max_bytes: int = setting(
        1_048_588, _TOPIC, "largest record batch accepted", unit="bytes", kafka=True
    )
    max_decompressed_message_bytes: int = setting(
        INT32_MAX - 8,
        _TOPIC,
        "what a record batch may unpack to; never more than 16 times message.max.bytes, or 16 MiB where that "
        "is more",
        unit="bytes",
        low=1,
        kafka=True,
    )
    fetch_max_bytes: int = setting(
        57_671_680, _TOPIC, "most a Fetch returns, whatever it asks for", unit="bytes", low=1024, kafka=True
    )
    log_cleanup_policy: str = setting(
        "delete",
        _TOPIC,
        "what becomes of old records",
        kafka=True,
        choices=("delete", "compact", "compact,delete", "delete,compact"),
    )
    log_retention_ms: int = setting(
        604_800_000,
        _TOPIC,
        "age at which records go; -1: never",
        unit="ms",
        low=-1,
        high=INT64_MAX,
        kafka=True,
    )
    log_retention_bytes: int = setting(
        -1,
        _TOPIC,
        "size of a partition above which its oldest records go; -1: no limit",
        unit="bytes",
        low=-1,
        high=INT64_MAX,
        kafka=True,
    )
    log_retention_check_interval_ms: int = setting(
        300_000, _TOPIC, "how often retention is looked at", unit="ms", low=1, high=INT64_MAX, kafka=True
    )
    log_segment_bytes: int = setting(
        1_073_741_824,
        _TOPIC,
        "size at which a segment file is closed",
        unit="bytes",
        low=1_048_576,
        kafka=True,
    )
    log_roll_ms: int = setting(
        604_800_000,
        _TOPIC,
        "age at which a segment file is closed",
        unit="ms",
        low=1,
        high=INT64_MAX,
        kafka=True,
    )
    log_index_interval_bytes: int = setting(
        4_096, _TOPIC, "one index entry per so many bytes of records", unit="bytes", kafka=True
    )
    log_flush_interval_messages: int = setting(
        INT64_MAX,
        _TOPIC,
        "records are forced to the disk after so many; 1: before each is acknowledged",
        low=1,
        high=INT64_MAX,
        kafka=True,
    )
    log_flush_interval_ms: int = setting(
        INT64_MAX,
        _TOPIC,
        "records are forced to the disk after so long",
        unit="ms",
        high=INT64_MAX,
        kafka=True,
    )
    log_message_timestamp_type: str = setting(
        "CreateTime", _TOPIC, "which time records carry", choices=("CreateTime", "LogAppendTime"), kafka=True
    )
    log_message_timestamp_before_max_ms: int = setting(
        INT64_MAX,
        _TOPIC,
        "how far in the past a record's timestamp may lie",
        unit="ms",
        high=INT64_MAX,
        kafka=True,
    )
    log_message_timestamp_after_max_ms: int = setting(
        3_600_000,
        _TOPIC,
        "how far in the future a record's timestamp may lie",
        unit="ms",
        high=INT64_MAX,
        kafka=True,
    )
    producer_id_expiration_ms: int = setting(
        86_400_000,
        _TOPIC,
        "how long an idempotent producer that writes nothing is remembered",
        unit="ms",
        low=1,
        kafka=True,
    )
    log_cleaner_backoff_ms: int = setting(
        15_000, _TOPIC, "how often compaction looks for work", unit="ms", low=1, high=INT64_MAX, kafka=True
    )
    log_cleaner_min_cleanable_ratio: float = setting(
        0.5, _TOPIC, "share of a log not yet compacted at which compaction begins", low=0, high=1, kafka=True
    )
    log_cleaner_min_compaction_lag_ms: int = setting(
        0, _TOPIC, "how long a record stays uncompacted at least", unit="ms", high=INT64_MAX, kafka=True
    )
    log_cleaner_max_compaction_lag_ms: int = setting(
        INT64_MAX,
        _TOPIC,
        "how long a record may stay uncompacted at most",
        unit="ms",
        low=1,
        high=INT64_MAX,
        kafka=True,
    )
    log_cleaner_delete_retention_ms: int = setting(
        86_400_000, _TOPIC, "how long tombstones outlive compaction", unit="ms", high=INT64_MAX, kafka=True
    )

    # ---- groups and offsets
    group_initial_rebalance_delay_ms: int = setting(
        3_000, _GROUP, "how long an empty group waits for more members after the first", unit="ms", kafka=True
    )
    group_min_session_timeout_ms: int = setting(
        6_000, _GROUP, "shortest session timeout a member may ask for", unit="ms", kafka=True
    )
    group_max_session_timeout_ms: int = setting(
        1_800_000, _GROUP, "longest session timeout a member may ask for", unit="ms", low=1, kafka=True
    )
    group_max_size: int = setting(INT32_MAX, _GROUP, "most members of a group", low=1, kafka=True)
    offset_metadata_max_bytes: int = setting(
        4_096, _GROUP, "longest metadata text of a committed offset", unit="characters", kafka=True
    )
    offsets_commit_timeout_ms: int = setting(
        5_000, _GROUP, "how long a group's request may wait for the store", unit="ms", low=1, kafka=True
    )
    offsets_retention_minutes: int = setting(
        10_080,
        _GROUP,
        "how long offsets are kept once their group is empty",
        unit="minutes",
        low=1,
        kafka=True,
    )
    offsets_retention_check_interval_ms: int = setting(
        600_000,
        _GROUP,
        "how often expired offsets are looked for",
        unit="ms",
        low=1,
        high=INT64_MAX,
        kafka=True,
    )

    group_events: bool = setting(
        True, _GROUP, "what happens to groups is kept as records of the topic __group_events"
    )
    group_events_retention_ms: int = setting(
        604_800_000,
        _GROUP,
        "age at which records of __group_events go; -1: never",
        unit="ms",
        low=-1,
        high=INT64_MAX,
    )
    group_events_retention_bytes: int = setting(
        16_777_216,
        _GROUP,
        "size of a partition of __group_events (each shard has one) above which its oldest records go",
        unit="bytes",
        high=1 << 30,
    )

    # ---- logging
    log_level: str = setting(
        "info", _LOG, "least severe line that is logged", choices=("debug", "info", "warning", "error")
    )
    log_format: str = setting(
        "auto", _LOG, "auto: readable on a terminal, JSON otherwise", choices=("auto", "human", "json")
    )

    def __post_init__(self) -> None:
        for each in settings_declared():
            _check(each, getattr(self, each.name), each.name)
        self._check_order("group_min_session_timeout_ms", "group_max_session_timeout_ms")
        self._check_order("log_cleaner_min_compaction_lag_ms", "log_cleaner_max_compaction_lag_ms")
        self._check_room("port", self.port, PORT_MAX)
        self._check_room("node_id", self.node_id, INT32_MAX)
        if self.store is not None and self.ephemeral:
            raise SettingError("ephemeral", True, "false beside --store: a database keeps what it is given")
        if self.store is not None and self.test_mode:
            raise SettingError("test_mode", True, "false beside --store: the clock is the database's")
        self._check_listeners()

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

    def _check_order(self, low: str, high: str) -> None:
        if getattr(self, low) > getattr(self, high):
            raise SettingError(low, getattr(self, low), f"at most {high} ({getattr(self, high)})")

    def _check_room(self, name: str, first: int, last: int, noun: str = "") -> None:
        """The brokers count up from `first`: refuse it when the last of them would come behind `last`."""
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

    def kafka_text(self, kafka_name: str) -> str | None:
        """A setting's value by Kafka's name for it, as Kafka writes it; None for names that are no setting
        here."""
        value = getattr(self, kafka_name.replace(".", "_"), None)
        if value is None or isinstance(value, bool):
            return None if value is None else str(value).lower()
        return str(value)


def settings_declared() -> Iterator[Field[Any]]:
    """Every setting's dataclass field, in the order in which the help shows them."""
    yield from fields(Settings)


def spec_of(each: Field[Any]) -> Spec:
    """The declaration beside a setting's default."""
    spec: Spec = each.metadata["spec"]
    return spec


def kind_of(each: Field[Any]) -> type:
    """bool, int, float or str; text when the default is None."""
    if each.default is None or each.default is MISSING:
        return int if spec_of(each).low is not None else str
    return type(each.default)


def option(name: str) -> str:
    """`group_max_size` -> `--group-max-size`"""
    return "--" + name.replace("_", "-")


def variable(name: str) -> str:
    """`group_max_size` -> `MUSTER_GROUP_MAX_SIZE`"""
    return VARIABLE_PREFIX + name.upper()


def kafka_name(name: str) -> str:
    """`group_max_size` -> `group.max.size`"""
    return name.replace("_", ".")


def read_settings(options: Mapping[str, str | None], variables: Mapping[str, str]) -> Settings:
    """Settings from command-line options (by field name; None: not given) and the environment.

    Raises SettingError naming the option or variable as it was given and the values it takes.
    """
    _check_variables(variables)
    if options.get("data") is not None and options.get("ephemeral") == "true":
        raise SettingError("--data", options["data"], "nothing beside --ephemeral, which keeps nothing there")
    values: dict[str, Any] = {}
    names_given: dict[str, str] = {}
    for each in settings_declared():
        given, text = option(each.name), options.get(each.name)
        if text is None:
            # Compose files pass on what is not set as an empty variable.
            given, text = variable(each.name), variables.get(variable(each.name)) or None
            # Kubernetes links a service called "muster" as MUSTER_PORT=tcp://10.0.0.1:9092: not meant for us.
            if text is not None and each.name == "port" and text.startswith("tcp://"):
                text = None
        if text is not None:
            values[each.name] = _parse(each, text, given)
            names_given[each.name] = given
    try:
        return Settings(**values)
    except SettingError as error:  # settings that contradict each other
        raise SettingError(
            names_given.get(error.given, option(error.given)), error.value, error.allowed
        ) from None


def _check_variables(variables: Mapping[str, str]) -> None:
    """Refuse what can only be a misspelt variable: others may have variables of that prefix for themselves,
    as Kubernetes has for a service called "muster"."""
    known = {variable(each.name) for each in settings_declared()}
    others = {name for name in variables if name.startswith(VARIABLE_PREFIX)} - known
    if not others:
        return
    from difflib import get_close_matches  # rarely wanted

    for name in sorted(others):
        close = get_close_matches(name, known, 1, _MISSPELT)
        if close and not variables[name].startswith("tcp://"):
            raise NoSuchVariable(name, close[0])


_TRUTHS: Final = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


def _parse(each: Field[Any], text: str, given: str) -> Any:
    """One setting's value from its text; the bounds are checked here so that the refusal names what was
    given."""
    kind, spec = kind_of(each), spec_of(each)
    if spec.optional and text == "":
        return None
    value: Any = text
    try:
        if kind is bool:
            value = _TRUTHS[text.strip().lower()]
        elif kind in (int, float):
            value = kind(text)
    except (KeyError, ValueError):
        raise SettingError(given, text, spec.allowed(kind), secret=spec.secret) from None
    _check(each, value, given, text)
    return value


def _check(each: Field[Any], value: Any, given: str, text: str | None = None) -> None:
    kind, spec = kind_of(each), spec_of(each)
    if value is None and spec.optional:
        return
    right = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    if right and kind in (int, float):
        right = (spec.low is None or value >= spec.low) and (spec.high is None or value <= spec.high)
    elif right and spec.choices is not None:
        right = value in spec.choices
    elif right and spec.pattern is not None:
        right = re.fullmatch(spec.pattern, value) is not None
    elif right and spec.length_max is not None:
        right = 0 < len(value) <= spec.length_max
    if not right:
        raise SettingError(given, value if text is None else text, spec.allowed(kind), secret=spec.secret)
