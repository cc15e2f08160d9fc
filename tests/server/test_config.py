"""Settings come from options and variables, have bounds, and reach the parts they are for."""

from __future__ import annotations

from dataclasses import fields

import pytest

from muster.coordinator import config
from muster.coordinator.config import SettingError, Settings, option, read_settings, variable
from muster.coordinator.group.config import GroupConfig, MigrationPolicy
from muster.coordinator.server.broker import group_config
from muster.coordinator.server.broker_config_specs import BROKER_SPECS
from muster.coordinator.topics.config import SPECS, TopicConfig, defaults_from, parse
from tests.server import settings_page
from tests.server.test_admission import NO_ADDRESSES


def test_options_win_over_variables_and_variables_over_defaults() -> None:
    variables = {"MUSTER_PORT": "1", "MUSTER_BROKERS": "2"}
    settings = read_settings({"port": "5", "brokers": None}, variables)
    assert (settings.port, settings.brokers, settings.node_id) == (5, 2, 1)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("ephemeral", "true", True),
        ("ephemeral", "No", False),
        ("rack", "", None),
        ("rack", "b", "b"),
        ("advertised", "[::1]:9092", "[::1]:9092"),
        ("store", "postgresql://u:p@h:5432/d?sslmode=require", "postgresql://u:p@h:5432/d?sslmode=require"),
        ("store", "postgres:///d", "postgres:///d"),
        ("super_users", "User:a; b ;CN=x;User:CN=y,O=z:1", "User:a; b ;CN=x;User:CN=y,O=z:1"),
        ("log_cleaner_min_cleanable_ratio", "0.25", 0.25),
        ("log_retention_ms", "-1", -1),
        ("log_cleanup_policy", "compact,delete", "compact,delete"),
    ],
)
def test_values_are_read(name: str, text: str, value: object) -> None:
    assert getattr(read_settings({name: text}, {}), name) == value
    assert getattr(read_settings({}, {config.variable(name): text}), name) == value


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("port", "65536", "a whole number, 0 to 65535"),
        ("port", "x", "a whole number, 0 to 65535"),
        ("port", "", "a whole number, 0 to 65535"),
        ("port", "1.5", "a whole number, 0 to 65535"),
        ("brokers", "0", "a whole number, 1 to 64"),
        ("ephemeral", "perhaps", "true or false"),
        ("log_level", "loud", "debug, info, warning or error"),
        ("log_cleanup_policy", "none", "delete or compact or compact,delete or delete,compact"),
        ("log_cleaner_min_cleanable_ratio", "1.1", "a number, 0 to 1"),
        ("log_cleaner_min_cleanable_ratio", "nan", "a number, 0 to 1"),
        ("group_initial_rebalance_delay_ms", "-1", "a whole number of ms, 0 to 2147483647"),
        ("log_retention_ms", "-2", "a whole number of ms, -1 or more"),
        ("data", "", "text of 1 to 4096 characters"),
        ("super_users", "user:admin", "User:NAME[;...], with semicolons in between"),
        ("super_users", "User:a;Group:b", "User:NAME[;...], with semicolons in between"),
        ("super_users", "User:a,User:b", "User:NAME[;...], with semicolons in between"),
        ("super_users", "a, User:b", "User:NAME[;...], with semicolons in between"),
        ("super_users", "User:a; ", "User:NAME[;...], with semicolons in between"),
        ("super_users", "User:a;\nUser:c,User:d", "User:NAME[;...], with semicolons in between"),
        ("super_users", "User: a", "User:NAME[;...], with semicolons in between"),
        ("super_users", "User:", "User:NAME[;...], with semicolons in between"),
        *(
            (
                "max_connections_per_ip_overrides",
                f"127.0.0.1:5,{address}:5",
                "ADDRESS:NUMBER[,...], an IPv6 address in brackets",
            )
            for address in NO_ADDRESSES
        ),
        ("advertised", "kafka", "HOST:PORT"),
        ("advertised", "kafka:", "HOST:PORT"),
        ("advertised", "kafka:99999", "HOST:PORT"),
    ],
)
def test_a_wrong_value_names_what_was_given_and_what_is_allowed(name: str, text: str, allowed: str) -> None:
    for options, variables, given in [
        ({name: text}, {}, config.option(name)),
        ({}, {config.variable(name): text}, config.variable(name)),
    ][: 2 if text else 1]:  # an empty variable counts as unset
        with pytest.raises(SettingError) as raised:
            read_settings(options, variables)
        assert str(raised.value) == f"{given}: {text!r} is not allowed; it takes {allowed}"


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(SettingError, match="at most group_max_session_timeout_ms"):
        Settings(group_min_session_timeout_ms=20, group_max_session_timeout_ms=10)
    with pytest.raises(
        SettingError, match=r"^--max-connections-per-ip: 0 .* at least 1, or 0 beside max_con"
    ):
        read_settings({"max_connections_per_ip": "0"}, {})
    with pytest.raises(SettingError, match=r"port: 65534 .* at most 65533 with 3 brokers"):
        Settings(port=65534, brokers=3)
    with pytest.raises(SettingError, match=r"advertised: 'kafka:65534' .* at most 65533 with 3 brokers"):
        Settings(advertised="kafka:65534", brokers=3)
    assert Settings(port=65533, brokers=3).port == 65533
    with pytest.raises(SettingError, match=r"^MUSTER_PORT: 65534 "):
        read_settings({"brokers": "3"}, {"MUSTER_PORT": "65534"})


def test_what_further_brokers_count_up_to_must_fit_and_lags_must_not_cross() -> None:
    with pytest.raises(SettingError, match=r"node_id: 2147483647 .* at most 2147483646 with 2 brokers"):
        Settings(node_id=2**31 - 1, brokers=2)
    with pytest.raises(SettingError, match=r"at most log_cleaner_max_compaction_lag_ms \(5\)"):
        Settings(log_cleaner_min_compaction_lag_ms=10, log_cleaner_max_compaction_lag_ms=5)


def test_text_that_would_not_fit_a_response_is_refused_and_not_repeated_whole() -> None:
    with pytest.raises(SettingError, match="it takes text of 1 to 255 characters") as raised:
        Settings(rack="r" * 40_000)
    assert len(str(raised.value)) < 300


def test_whatever_settings_allow_is_a_topic_s_default() -> None:
    """A broker cannot start with a default that its topics could not have."""
    for each in config.SETTINGS.values():
        for value in each.choices or (each.low, each.high):
            if value is not None:
                configs = defaults_from({each.name: str(value)}.get)
                if "min.compaction.lag.ms" in configs or "max.compaction.lag.ms" in configs:
                    configs.setdefault("min.compaction.lag.ms", "0")
                    configs.setdefault("max.compaction.lag.ms", str(2**63 - 1))
                parse(configs)


def test_settings_made_in_python_are_checked_too() -> None:
    with pytest.raises(SettingError, match="port: '9092' is not allowed"):
        Settings(port="9092")  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="brokers: True"):
        Settings(brokers=True)


def test_a_kubernetes_service_link_is_not_taken_for_the_port() -> None:
    assert read_settings({}, {"MUSTER_PORT": "tcp://10.0.0.1:9092"}).port == 9092


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("MUSTER_GROUP_MAX_SIZ", "MUSTER_GROUP_MAX_SIZE"),
        ("MUSTER_STROE", "MUSTER_STORE"),
        ("MUSTER_BROKER", "MUSTER_BROKERS"),
        ("MUSTER_AUTO_CREATE_TOPIC_ENABLE", "MUSTER_AUTO_CREATE_TOPICS_ENABLE"),
        ("MUSTER_OFFSET_RETENTION_MINUTES", "MUSTER_OFFSETS_RETENTION_MINUTES"),
    ],
)
def test_a_misspelt_variable_is_refused_without_its_value(misspelt: str, meant: str) -> None:
    with pytest.raises(SettingError, match=f"^{misspelt}: .* did you mean {meant}") as refusal:
        read_settings({}, {misspelt: "postgresql://muster:secret@db/muster"})
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        *(
            (name, "brokers of muster talk to the store alone (--store), never to each other; leave it out")
            for name in (
                "inter_broker_listener_name",
                "security_inter_broker_protocol",
                "sasl_mechanism_inter_broker_protocol",
            )
        ),
        ("log_dirs", "muster has one data directory: --data (MUSTER_DATA)"),
        ("log_dir", "muster has one data directory: --data (MUSTER_DATA)"),
        ("broker_id", "muster's name for it is --node-id (MUSTER_NODE_ID)"),
        ("broker_rack", "muster's name for it is --rack (MUSTER_RACK)"),
        (
            "min_insync_replicas",
            "each record is stored once, so min.insync.replicas always holds; leave it out",
        ),
        ("default_replication_factor", "topics have 1 unless they are created with another; leave it out"),
        ("log_retention_hours", "muster has --log-retention-ms (MUSTER_LOG_RETENTION_MS), in milliseconds"),
        ("log_roll_hours", "muster has --log-roll-ms (MUSTER_LOG_ROLL_MS), in milliseconds"),
        *(
            (
                name,
                "muster reads the private key and its certificate chain from a PEM file: "
                "--ssl-keystore-location (MUSTER_SSL_KEYSTORE_LOCATION)",
            )
            for name in ("ssl_keystore_key", "ssl_keystore_certificate_chain")
        ),
        (
            "ssl_keystore_password",
            "only its key may have one: --ssl-key-password (MUSTER_SSL_KEY_PASSWORD)",
        ),
    ],
)
def test_kafka_s_names_of_what_muster_has_otherwise_are_refused_with_a_reason(name: str, why: str) -> None:
    for options, variables, given in (
        ({name: "SASL_SSL"}, {}, config.option(name)),
        ({}, {config.variable(name): "SASL_SSL"}, config.variable(name)),
    ):
        with pytest.raises(SettingError) as raised:
            read_settings(options, variables)
        assert str(raised.value) == f"{given}: {why}"
    assert read_settings({name: None}, {config.variable(name): ""}) == Settings()


@pytest.mark.parametrize(
    "name", [each.field for each in BROKER_SPECS.values() if each.kafka and each.field not in config.SETTINGS]
)
def test_variables_with_kafka_s_names_of_settings_that_there_are_not_are_refused(name: str) -> None:
    with pytest.raises(SettingError, match=f"^{variable(name)}: ") as refusal:
        read_settings({}, {variable(name): "secret"})
    assert "secret" not in str(refusal.value)
    assert read_settings({}, {variable(name): ""}) == Settings()


def test_the_refusal_says_whether_a_config_can_be_set_otherwise() -> None:
    with pytest.raises(SettingError, match=r"no such setting; set compression\.type at run time$"):
        read_settings({}, {"MUSTER_COMPRESSION_TYPE": "lz4"})
    with pytest.raises(SettingError, match=r"no such setting; leave it out$"):
        read_settings({}, {"MUSTER_NUM_IO_THREADS": "8"})


def test_variables_of_others_are_passed_over() -> None:
    """Those of Kubernetes for services called "muster" and "muster-http", of compose files and of clients."""
    theirs = {
        "MUSTER_SERVICE_HOST": "10.0.0.1",
        "MUSTER_SERVICE_PORT": "9092",
        "MUSTER_SERVICE_PORT_HTTP": "8080",
        "MUSTER_PORT": "tcp://10.0.0.1:9092",
        "MUSTER_PORT_9092_TCP": "tcp://10.0.0.1:9092",
        "MUSTER_PORT_9092_TCP_PROTO": "tcp",
        "MUSTER_PORT_9092_TCP_PORT": "9092",
        "MUSTER_PORT_9092_TCP_ADDR": "10.0.0.1",
        "MUSTER_HTTP_SERVICE_HOST": "10.0.0.2",
        "MUSTER_HTTP_SERVICE_PORT": "8080",
        "MUSTER_HTTP_PORT": "tcp://10.0.0.2:8080",
        "MUSTER_HTTP_CA_FILE": "ca.pem",
        "MUSTER_TAG": "1",
        "MUSTER_BOOTSTRAP_SERVERS": "127.0.0.1:9092",
    }
    assert read_settings({}, theirs) == Settings()


def test_a_directory_of_which_nothing_would_come_is_refused() -> None:
    for name, value in (("ephemeral", "true"), ("store", "postgresql://db/muster")):
        of_variable = {variable(name): value}
        with pytest.raises(SettingError, match=rf"^--data: './here' .* nothing beside {option(name)},"):
            read_settings({"data": "./here", name: value}, {})
        with pytest.raises(SettingError, match=rf"^--data: './here' .* nothing beside {variable(name)},"):
            read_settings({"data": "./here"}, of_variable)
        assert getattr(read_settings({name: value}, {"MUSTER_DATA": "./there"}), name)
    for options, variables in (
        ({}, {"MUSTER_EPHEMERAL": "false"}),
        ({"ephemeral": "false"}, {"MUSTER_EPHEMERAL": "1"}),
    ):
        settings = read_settings({"data": "./here", **options}, variables)
        assert (str(settings.data), settings.ephemeral) == ("./here", False)


@pytest.mark.parametrize(("name", "value"), [("host", "127.0.0.1"), ("port", "9093")])
def test_an_option_that_listeners_would_override_is_refused(name: str, value: str) -> None:
    listeners = "A://127.0.0.1:9092"
    with pytest.raises(SettingError, match=rf"^--{name}: '{value}' is not allowed; .* beside --listeners"):
        read_settings({"listeners": listeners, name: value}, {})
    # The image has MUSTER_HOST, and `make run` has --host and --port.
    assert read_settings({"listeners": listeners}, {f"MUSTER_{name.upper()}": value}).listeners == listeners
    assert read_settings({name: value}, {"MUSTER_LISTENERS": listeners}).listeners == listeners


def test_every_group_setting_is_an_option_with_its_default() -> None:
    assert group_config(Settings()) == GroupConfig()
    changed = {
        each.name: getattr(GroupConfig(), each.name) + 1
        for each in fields(GroupConfig)
        if type(each.default) is int and not each.name.endswith(("_max_size", "_within_ms"))
    }
    changed |= {
        "group_max_size": 5,
        "group_consumer_max_size": 6,
        "group_consumer_assignors": ("range",),
    }
    policy = "group_consumer_migration_policy"
    config = group_config(Settings(**changed, **{policy: "upgrade"}))
    assert config == GroupConfig(**changed, **{policy: MigrationPolicy.UPGRADE})
    assert config.group_consumer_migration_policy is MigrationPolicy.UPGRADE


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        (
            {"group_consumer_session_timeout_ms": "44999"},
            "--group-consumer-session-timeout-ms: 44999 is not allowed; it takes "
            "group_consumer_min_session_timeout_ms to group_consumer_max_session_timeout_ms (45000 to 60000)",
        ),
        (
            {"group_consumer_min_heartbeat_interval_ms": "15001"},
            "--group-consumer-min-heartbeat-interval-ms: 15001 is not allowed; it takes at most "
            "group_consumer_max_heartbeat_interval_ms (15000)",
        ),
        (
            {"group_consumer_max_assignment_interval_ms": "999"},
            "--group-consumer-assignment-interval-ms: 1000 is not allowed; it takes "
            "group_consumer_min_assignment_interval_ms to group_consumer_max_assignment_interval_ms "
            "(0 to 999)",
        ),
        (
            {
                "group_consumer_min_session_timeout_ms": "1000",
                "group_consumer_session_timeout_ms": "5000",
            },
            "--group-consumer-heartbeat-interval-ms: 5000 is not allowed; it takes less than "
            "group_consumer_session_timeout_ms (5000)",
        ),
        (
            {"group_consumer_assignors": "sticky"},
            "--group-consumer-assignors: 'sticky' is not allowed; it takes a list of uniform and range",
        ),
        (
            {"group_consumer_assignors": ""},
            "--group-consumer-assignors: '' is not allowed; it takes one or more of uniform, range",
        ),
        (
            {"group_coordinator_rebalance_protocols": "consumer"},
            "--group-coordinator-rebalance-protocols: 'consumer' is not allowed; it takes a list with "
            "classic, which cannot be switched off",
        ),
        (
            {"group_consumer_regex_refresh_interval_ms": "9999"},
            "--group-consumer-regex-refresh-interval-ms: '9999' is not allowed; it takes a whole number of "
            "ms, 10000 to 2147483647",
        ),
    ],
)
def test_settings_of_consumer_groups_are_checked_against_each_other(
    options: dict[str, str | None], refused: str
) -> None:
    with pytest.raises(SettingError) as raised:
        read_settings(options, {})
    assert str(raised.value) == refused


def test_lists_are_given_with_commas() -> None:
    settings = read_settings(
        {"group_consumer_assignors": "range, uniform"},
        {"MUSTER_GROUP_COORDINATOR_REBALANCE_PROTOCOLS": "classic"},
    )
    assert settings.group_consumer_assignors == ("range", "uniform")
    assert settings.group_coordinator_rebalance_protocols == ("classic",)
    assert settings.kafka_text("group.consumer.assignors") == "range,uniform"


def test_in_real_time_a_group_waits_for_a_millisecond_at_least() -> None:
    without = Settings(group_initial_rebalance_delay_ms=0)
    assert group_config(without).group_initial_rebalance_delay_ms == 0
    assert group_config(without).newcomers_return_within_ms == 0
    assert group_config(without, real_time=True).group_initial_rebalance_delay_ms == 1
    assert group_config(without, real_time=True).newcomers_return_within_ms > 0
    assert group_config(Settings(), real_time=True) == GroupConfig()


def test_every_topic_default_that_has_an_effect_is_an_option_with_its_default() -> None:
    served = {spec.default_from for spec in SPECS.values() if spec.served and spec.default_from is not None}
    names = {each.name for each in config.SETTINGS.values()}
    assert served - names == {"compression.type"}
    assert parse(defaults_from(Settings().kafka_text)) == TopicConfig()
    changed = parse(defaults_from(Settings(log_retention_ms=5, log_cleanup_policy="compact").kafka_text))
    assert (changed.retention_ms, changed.cleanup_policy) == (5, ("compact",))


def test_every_setting_says_what_it_means_and_numbers_of_time_and_size_their_unit() -> None:
    for name, each in config.SETTINGS.items():
        assert each.meaning
        assert each.section
        for suffix, unit in [("_ms", "ms"), ("_bytes", "bytes"), ("_minutes", "minutes")]:
            if name.endswith(suffix) and name != "offset_metadata_max_bytes":
                assert each.unit == unit, name


def test_the_page_of_settings_is_made_from_them() -> None:
    assert settings_page.PAGE.read_text() == settings_page.page(), (
        "python -m tests.server.settings_page writes it"
    )


def test_in_test_mode_records_do_not_expire_unless_that_is_asked_for() -> None:
    assert read_settings({"test_mode": "true"}, {}).log_retention_ms == -1
    assert read_settings({}, {"MUSTER_TEST_MODE": "true"}).log_retention_ms == -1
    assert read_settings({"test_mode": "true", "log_retention_ms": "5"}, {}).log_retention_ms == 5
    assert read_settings({"test_mode": "true"}, {"MUSTER_LOG_RETENTION_MS": "5"}).log_retention_ms == 5
    assert read_settings({"test_mode": "false"}, {}) == read_settings({}, {}) == Settings()


def test_an_empty_variable_is_one_that_is_not_set() -> None:
    assert read_settings({}, {"MUSTER_PORT": "", "MUSTER_DATA": "", "MUSTER_RACK": ""}) == read_settings(
        {}, {}
    )


@pytest.mark.parametrize("text", ["mysql://u:geheim@h/d", "u:geheim@h/d", "postgresql://u:geheim@h/d a"])
def test_a_store_that_is_refused_is_not_shown(text: str) -> None:
    for options, variables, given in (
        ({"store": text}, {}, "--store"),
        ({}, {"MUSTER_STORE": text}, "MUSTER_STORE"),
    ):
        with pytest.raises(SettingError) as raised:
            read_settings(options, variables)
        assert str(raised.value) == (
            f"{given}: the value given is not allowed; it takes postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
        )
    with pytest.raises(SettingError) as raised:
        Settings(store=text)
    assert "geheim" not in str(raised.value)


def test_settings_are_shown_without_the_store() -> None:
    assert "geheim" not in repr(Settings(store="postgresql://u:geheim@h/d"))


def test_a_database_is_not_forgotten_at_the_end() -> None:
    with pytest.raises(SettingError, match="--ephemeral: True is not allowed; it takes false beside --store"):
        read_settings({"ephemeral": "true"}, {"MUSTER_STORE": "postgresql://u:geheim@h/d"})
