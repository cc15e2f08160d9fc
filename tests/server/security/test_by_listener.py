"""Settings of a single listener (listener.name.NAME.): which apply, where, and which are refused."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest

from muster.coordinator.config import SettingError, Settings, read_settings
from muster.coordinator.security.exchange import SecurityError
from muster.coordinator.server.broker import Broker
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.connection import ApiVersionsRequest
from muster.protocol.messages.sasl import SaslHandshakeRequest
from tests.server.conftest import StartBrokers
from tests.server.security.conftest import Keys
from tests.server.security.test_tls import principals, refused
from tests.support.ports import free_ports
from tests.support.served import Served
from tests.support.wire import Wire

TWO = "INTERNAL://127.0.0.1:0,External://127.0.0.1:0"


def read(protocols: str, **given: str) -> Settings:
    """Settings of two listeners with these protocols; `given` are options, without listener_name_."""
    return read_settings(
        {
            "listeners": TWO,
            "listener_security_protocol_map": protocols,
            **{f"listener_name_{name}": value for name, value in given.items()},
        },
        {},
    )


def ports(broker: Broker) -> list[int]:
    return [each.bound.port for each in broker.listening]


async def enabled(port: int, tls: ssl.SSLContext | None = None) -> list[str]:
    async with await Wire.connect(port, tls=tls) as wire:
        answer = await wire.call(SaslHandshakeRequest(mechanism="NONE"), 1)
    assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    return list(answer.mechanisms)


# --- what counts --------------------------------------------------------------------------------------------


def test_options_go_before_variables_and_both_before_what_is_for_all() -> None:
    options = {
        "listeners": TWO,
        "listener_security_protocol_map": "INTERNAL:SASL_PLAINTEXT,External:SASL_PLAINTEXT",
        "connections_max_reauth_ms": "1",
        "listener_name_external_sasl_enabled_mechanisms": "PLAIN",
    }
    variables = {
        "MUSTER_LISTENER_NAME_EXTERNAL_CONNECTIONS_MAX_REAUTH_MS": "2",
        "MUSTER_LISTENER_NAME_EXTERNAL_SASL_ENABLED_MECHANISMS": "SCRAM-SHA-256",
    }
    settings = read_settings(options, variables)
    own, other = settings.on("External").settings, settings.on("INTERNAL").settings
    assert (own.connections_max_reauth_ms, own.mechanisms) == (2, ("PLAIN",))
    assert (other.connections_max_reauth_ms, other.mechanisms) == (1, ("SCRAM-SHA-256", "SCRAM-SHA-512"))


def test_what_is_for_all_listeners_counts_where_it_has_an_effect() -> None:
    settings = Settings(
        listeners="PLAINTEXT://h:1,SASL_PLAINTEXT://h:2,SSL://h:3",
        sasl_enabled_mechanisms=("PLAIN",),
        ssl_keystore_location="x",
        ssl_enabled_protocols=("TLSv1.3",),
    )
    on = {name: settings.on(name).settings for name in ("PLAINTEXT", "SASL_PLAINTEXT", "SSL")}
    assert [each.mechanisms for each in on.values()] == [(), ("PLAIN",), ()]
    assert on["SSL"].ssl_enabled_protocols == ("TLSv1.3",)


def test_every_listener_has_its_own_names_in_options() -> None:
    settings = read_settings(
        {
            "listeners": "a://h:1,a-ssl://h:2,a.b_c://h:3",
            "listener_security_protocol_map": "a:SASL_PLAINTEXT,a-ssl:SASL_PLAINTEXT,a.b_c:SASL_PLAINTEXT",
            "listener_name_a_connections_max_reauth_ms": "1",
            "listener_name_a_ssl_connections_max_reauth_ms": "2",
            "listener_name_a_b_c_connections_max_reauth_ms": "3",
        },
        {},
    )
    found = [settings.on(name).settings.connections_max_reauth_ms for name in ("a", "a-ssl", "a.b_c")]
    assert found == [1, 2, 3]


async def test_mechanisms_and_certificates(start_brokers: StartBrokers, keys: Keys) -> None:
    other = keys.authority.issue("127.0.0.1", common_name="external")
    brokers = await start_brokers(
        listeners=TWO,
        listener_security_protocol_map="INTERNAL:SASL_SSL,External:SASL_SSL",
        listener_name={
            "external": {"sasl_enabled_mechanisms": ("PLAIN",), "ssl_keystore_location": str(other.both)}
        },
        **keys.settings,
    )
    internal, external = ports(brokers.brokers[0])
    assert await enabled(internal, keys.context()) == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    assert await enabled(external, keys.context()) == ["PLAIN"]
    presented = [
        await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))
        for port in (internal, external)
    ]
    assert [each in other.certificate.read_text() for each in presented] == [False, True]


async def test_client_certificates_and_their_principals(start_brokers: StartBrokers, keys: Keys) -> None:
    """SASL_SSL requests them only if that is set for the listener itself (KIP-684)."""
    brokers = await start_brokers(
        listeners="ONE://127.0.0.1:0,TWO://127.0.0.1:0,THREE://127.0.0.1:0,FOUR://127.0.0.1:0",
        listener_security_protocol_map="ONE:SSL,TWO:SSL,THREE:SASL_SSL,FOUR:SASL_SSL",
        ssl_client_auth="required",
        listener_name={
            "one": {"ssl_principal_mapping_rules": r"RULE:^CN=(\w+),.*$/$1/"},
            "two": {"ssl_client_auth": "none"},
            "four": {"ssl_client_auth": "required"},
        },
        **keys.settings,
    )
    (broker,) = brokers.brokers
    one, two, three, four = ports(broker)
    async with await Wire.connect(one, tls=keys.context(keys.client)) as wire:
        await wire.call(ApiVersionsRequest(), 0)
        assert principals(broker) == ["User:client"]
    async with await Wire.connect(two, tls=keys.context()) as wire:
        await wire.call(ApiVersionsRequest(), 0)
    assert await enabled(three, keys.context())
    assert await enabled(four, keys.context(keys.client))
    for port in (one, four):
        assert "CERTIFICATE_REQUIRED" in await refused(port, keys.context())


async def test_listeners_share_what_is_the_same(start_brokers: StartBrokers, keys: Keys) -> None:
    brokers = await start_brokers(
        listeners="ONE://127.0.0.1:0,TWO://127.0.0.1:0,THREE://127.0.0.1:0",
        listener_security_protocol_map="ONE:SASL_SSL,TWO:SASL_SSL,THREE:SASL_SSL",
        listener_name={"three": {"connections_max_reauth_ms": 5}},
        **keys.settings,
    )
    doors = brokers.brokers[0].doors.sasl
    assert doors["ONE"] is doors["TWO"] is not doors["THREE"]
    assert [each.reauth_ms for each in doors.values()] == [0, 0, 5]
    assert doors["ONE"].guessing is doors["THREE"].guessing


def test_an_option_s_form(tmp_path: Path, keys: Keys) -> None:
    port = free_ports(1)
    options = (
        *("--listeners", f"External://127.0.0.1:{port}", "--listener-security-protocol-map", "External:SSL"),
        f"--listener-name-external-ssl-keystore-location={keys.server.both}",
    )
    with Served(tmp_path / "data", *options):
        pem = ssl.get_server_certificate(("127.0.0.1", port), ca_certs=str(keys.authority.certificate))
    assert pem in keys.server.certificate.read_text()


# --- what is refused ----------------------------------------------------------------------------------------

_SASL = "INTERNAL:SASL_PLAINTEXT,External:SASL_PLAINTEXT"


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        (
            "outernal_sasl_enabled_mechanisms",
            "PLAIN",
            "no such listener; --listeners has INTERNAL, External",
        ),
        (
            "external_max_connections",
            "5",
            "max.connections cannot be set for one listener alone, only for all",
        ),
        (
            "external_sasl_enabled_mechanism",
            "PLAIN",
            "sasl.enabled.mechanism has no effect on a listener in muster; did you mean "
            "sasl.enabled.mechanisms?",
        ),
        (
            "external_ssl_client_auth",
            "none",
            "no effect on External, which is SASL_PLAINTEXT, not SSL or SASL_SSL",
        ),
        (
            "external_sasl_enabled_mechanisms",
            "GSSAPI",
            "'GSSAPI' is not allowed; it takes a list of PLAIN and SCRAM-SHA-256 and SCRAM-SHA-512 and "
            "OAUTHBEARER",
        ),
    ],
)
def test_what_would_have_no_effect_is_named_as_it_was_given(name: str, value: str, why: str) -> None:
    with pytest.raises(SettingError) as raised:
        read(_SASL, **{name: value})
    assert str(raised.value) == f"--listener-name-{name.replace('_', '-')}: {why}"
    variable = f"MUSTER_LISTENER_NAME_{name.upper()}"
    given = {"listeners": TWO, "listener_security_protocol_map": _SASL}
    with pytest.raises(SettingError) as raised:
        read_settings(given, {variable: value})
    assert str(raised.value) == f"{variable}: {why}"


@pytest.mark.parametrize(
    "name", ["scram_sha_256_sasl_jaas_config", "ssl_keystore_password", "ssl_keystore_key"]
)
def test_what_muster_has_not_is_refused_without_its_value(name: str) -> None:
    with pytest.raises(SettingError, match=f"^--listener-name-external-{name.replace('_', '-')}: ") as raised:
        read("INTERNAL:SASL_SSL,External:SASL_SSL", **{f"external_{name}": "geheim"})
    assert "geheim" not in str(raised.value)


def test_without_named_listeners_there_is_none() -> None:
    with pytest.raises(SettingError, match="no such listener; --listeners names none"):
        read_settings({"listener_name_x_ssl_client_auth": "none"}, {})


@pytest.mark.parametrize(
    ("settings", "refusal"),
    [
        ({"listener_name": {"other": {}}}, "listener_name: other: no such listener"),
        (
            {"listener_name": {"SSL": {"brokers": 2}}},
            "listener_name_ssl_brokers: brokers cannot be set for one",
        ),
        ({"listener_name": {"SSL": {"ssl_client_auth": 5}}}, "listener_name_ssl_ssl_client_auth: 5 is not"),
        (
            {"listeners": "A-B://h:1,a.b://h:2", "listener_name": {"a-b": {}}},
            "listener_name: a-b: several listeners are of that name: A-B, a.b",
        ),
    ],
)
def test_in_python(settings: dict[str, Any], refusal: str) -> None:
    with pytest.raises(SettingError) as raised:
        Settings(**{"listeners": "SSL://h:1", "ssl_keystore_location": "x", **settings})
    assert str(raised.value).startswith(refusal)


def test_passwords_are_not_shown() -> None:
    own = {"ssl_keystore_location": "x", "ssl_key_password": "geheim"}
    settings = Settings(listeners="SSL://h:1", listener_name={"ssl": own})
    assert "geheim" not in repr(settings) + repr(settings.on("SSL"))


def test_settings_of_a_listener_that_contradict_each_other() -> None:
    given = {"external_ssl_keystore_location": "x", "internal_ssl_keystore_location": "x"}
    with pytest.raises(SettingError) as raised:
        read("INTERNAL:SSL,External:SSL", **given, external_ssl_client_auth="required")
    assert str(raised.value).startswith(
        "--listener-name-external-ssl-client-auth: 'required' is not allowed; it takes none, unless "
    )
    required = r"^--ssl-keystore-location is required; it takes the PEM file of the broker's key"
    with pytest.raises(SettingError, match=required):
        read("INTERNAL:SSL,External:SSL", external_ssl_keystore_location="x")


async def test_files_are_named_with_the_option_that_gave_them(
    start_brokers: StartBrokers, keys: Keys, tmp_path: Path
) -> None:
    encrypted = keys.authority.issue("127.0.0.1", password="geheim")
    for own, why in (
        (
            {"ssl_keystore_location": "none.pem"},
            "--listener-name-ssl-ssl-keystore-location none.pem: no such file",
        ),
        (
            {"ssl_keystore_location": str(encrypted.both), "ssl_key_password": "wrong"},
            f"--listener-name-ssl-ssl-keystore-location {encrypted.both}: its private key cannot be read; "
            "--listener-name-ssl-ssl-key-password may be wrong",
        ),
    ):
        with pytest.raises(SecurityError) as raised:
            await start_brokers(listeners="SSL://127.0.0.1:0", listener_name={"ssl": own}, **keys.settings)
        assert str(raised.value).startswith(why)
