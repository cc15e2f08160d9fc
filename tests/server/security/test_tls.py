"""TLS listeners: who is let in, how both sides learn why a client is not, and that hundreds of handshakes
disturb nobody."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import shutil
import socket
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from muster.client.security.tls import client_context
from muster.coordinator.base.clock import ManualClock
from muster.coordinator.base.step import ANONYMOUS
from muster.coordinator.config import Settings
from muster.coordinator.security.exchange import SecurityError
from muster.coordinator.server import certificates, renewed, turned_away, unserved
from muster.coordinator.server.broker import Broker
from muster.coordinator.server.certificates import Certificates, Pem
from muster.coordinator.server.tls import HANDSHAKE_MS, UNDER_WAY_MAX, Handshakes, Secured
from muster.coordinator.server.unserved import Unserved
from muster.protocol.messages.connection import ApiVersionsRequest
from muster.protocol.messages.metadata import MetadataRequest
from tests.server.conftest import StartBrokers
from tests.server.security.conftest import Keys
from tests.server.test_unserved import Lines
from tests.support.certificates import Authority
from tests.support.each import each
from tests.support.facts import until
from tests.support.wire import DEADLINE_S, Wire

SSL = "SSL://127.0.0.1:0"


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Lines:
    made = Lines()
    monkeypatch.setattr(unserved, "_log", made)
    return made


@pytest.fixture
async def broker(start_brokers: StartBrokers, keys: Keys) -> Broker:
    return (await start_brokers(listeners=SSL, **keys.settings)).brokers[0]


def principals(broker: Broker) -> list[str]:
    return [each.session.principal for each in broker.connections.open.values()]  # type: ignore[union-attr]


async def refused(port: int, context: ssl.SSLContext) -> str:
    """What a refused client is told, in the handshake or (TLS 1.3) at its first bytes."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    except ssl.SSLError as error:
        return error.reason or ""
    try:
        async with asyncio.timeout(DEADLINE_S):
            assert await reader.read() == b""
    except ssl.SSLError as error:
        return error.reason or ""
    finally:
        writer.close()
    raise AssertionError("closed without a word")


async def test_requests_and_large_answers(broker: Broker, keys: Keys) -> None:
    names = [f"topic-{number:05}" for number in range(5_000)]
    async with await Wire.connect(broker.port, tls=keys.context()) as wire:
        topics = [MetadataRequest.Topic(name=name) for name in names]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        for _ in range(3):
            await wire.send(request, 9)
        for _ in range(3):
            answer = await wire.receive()
            assert sorted(each.name for each in answer.topics) == names
    assert principals(broker) in ([], [ANONYMOUS])


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_versions(broker: Broker, keys: Keys, version: ssl.TLSVersion) -> None:
    context = keys.context()
    context.minimum_version = context.maximum_version = version
    async with await Wire.connect(broker.port, tls=context) as wire:
        assert (await wire.call(ApiVersionsRequest(), 0)).error_code == 0


async def test_a_version_that_is_not_enabled(start_brokers: StartBrokers, keys: Keys, lines: Lines) -> None:
    brokers = await start_brokers(listeners=SSL, ssl_enabled_protocols=("TLSv1.3",), **keys.settings)
    context = keys.context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    assert await refused(brokers.brokers[0].port, context) == "TLSV1_ALERT_PROTOCOL_VERSION"
    assert lines.why == ["the client and the listener share no TLS version: unsupported protocol"]


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"\0\0\0\x14\0\x12\0\0\0\0\0\1\0\nordinary-client", "plaintext on a TLS listener"),
        (b"GET / HTTP/1.1\r\n\r\n", "HTTP request on a Kafka listener"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "plaintext on a TLS listener"),
    ],
)
async def test_what_is_no_tls(broker: Broker, lines: Lines, sent: bytes, why: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    writer.write(sent)
    async with asyncio.timeout(DEADLINE_S):
        await reader.read()
    writer.close()
    assert lines.why == [why]
    assert broker.connections.counts.accepted == 0


async def test_a_client_that_does_not_trust_the_broker(broker: Broker, lines: Lines) -> None:
    def connect() -> None:
        context = ssl.create_default_context()
        with (
            socket.create_connection(("127.0.0.1", broker.port), DEADLINE_S) as plain,
            pytest.raises(ssl.SSLCertVerificationError),
        ):
            context.wrap_socket(plain, server_hostname="127.0.0.1")

    await asyncio.to_thread(connect)
    await until(lambda: bool(lines.why))
    assert lines.why == [
        "the client does not trust the CA of the broker's certificate: tlsv1 alert unknown ca"
    ]
    assert "ssl.truststore.location" in lines.fields[0]["remedy"]


async def test_a_client_that_gives_up_without_a_word(broker: Broker, lines: Lines) -> None:
    """As asyncio does, which sends no alert; a client that sends nothing at all may be a health check."""
    _, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    writer.close()
    with pytest.raises(ssl.SSLCertVerificationError):
        await asyncio.open_connection("127.0.0.1", broker.port, ssl=ssl.create_default_context())
    await until(lambda: bool(lines.why))
    assert lines.why == ["the client closed during the TLS handshake"]
    await until(lambda: broker.doors.shaking_hands == 0)


def logged_by_mistake() -> dict[str, list[str]]:
    """What docs/security.md says is in the log, by the client's mistake."""
    page = (Path(__file__).parents[3] / "docs" / "security.md").read_text()
    table = page.partition("| mistake | at the client | in the log |\n")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[1:]]
    return {mistake: re.split(", (?:with|and) ", logged)[0].split("; ") for mistake, _, logged in rows}


def test_the_page_says_of_misconfigured_clients_what_the_log_says() -> None:
    told = logged_by_mistake()
    assert len(told) > 8
    source = inspect.getsource(turned_away) + inspect.getsource(unserved)
    for phrase in chain.from_iterable(told.values()):
        assert f'"{phrase}"' in source, phrase


@each(
    "reason, mistake",
    [
        ("TLSV1_ALERT_UNKNOWN_CA", "broker's certificate of an authority that the client does not know"),
        ("SSLV3_ALERT_CERTIFICATE_EXPIRED", "broker's certificate has expired"),
        (
            "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
            "broker's certificate refused for another reason, or without a reason given",
        ),
        ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "no client certificate, or one from an unknown authority"),
    ],
)
def test_the_page_has_the_log_line_of_each_alert(reason: str, mistake: str) -> None:
    error = ssl.SSLError()
    error.reason = reason
    assert turned_away.failed_handshake(error, turned_away.SPOKEN_KAFKA).why in logged_by_mistake()[mistake]


async def test_handshakes_count_against_an_address(
    start_brokers: StartBrokers, keys: Keys, lines: Lines
) -> None:
    brokers = await start_brokers(listeners=SSL, max_connections_per_ip=1, **keys.settings)
    broker = brokers.brokers[0]
    _, silent = await asyncio.open_connection("127.0.0.1", broker.port)
    await until(lambda: broker.doors.shaking_hands == 1)
    with pytest.raises(ConnectionError):
        await asyncio.open_connection("127.0.0.1", broker.port, ssl=keys.context())
    assert lines.why == ["the address has max.connections.per.ip connections"]
    silent.close()
    await until(lambda: not broker.admission._open)
    async with await Wire.connect(broker.port, tls=keys.context()) as wire:
        await wire.call(MetadataRequest(topics=[]), 12)


# --- client certificates ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "principal"),
    [("DEFAULT", "User:CN=client,OU="), (r"RULE:^CN=(\w+),.*$/$1-app/U", "User:CLIENT-APP")],
)
async def test_the_subject_is_the_principal(
    start_brokers: StartBrokers, keys: Keys, rules: str, principal: str
) -> None:
    brokers = await start_brokers(
        listeners=SSL, ssl_client_auth="required", ssl_principal_mapping_rules=rules, **keys.settings
    )
    async with await Wire.connect(brokers.brokers[0].port, tls=keys.context(keys.client)) as wire:
        await wire.call(ApiVersionsRequest(), 0)
        (found,) = principals(brokers.brokers[0])
        assert found.startswith(principal)


async def test_who_has_none_or_that_of_a_stranger(
    start_brokers: StartBrokers, keys: Keys, lines: Lines
) -> None:
    brokers = await start_brokers(listeners=SSL, ssl_client_auth="required", **keys.settings)
    port = brokers.brokers[0].port
    assert await refused(port, keys.context()) == "TLSV13_ALERT_CERTIFICATE_REQUIRED"
    assert await refused(port, keys.context(keys.stranger)) == "TLSV1_ALERT_UNKNOWN_CA"
    assert [each.partition(":")[0] for each in lines.why] == [
        "the client presents no certificate",
        "client certificate refused",
    ]


async def test_an_issuing_authority_is_trusted_without_its_root(
    start_brokers: StartBrokers, tmp_path: Path
) -> None:
    """As in Apache Kafka: then its clients are let in, and no others of the root. So do muster's clients with
    the broker's."""
    root = Authority(tmp_path)
    issuing, other = Authority(tmp_path, "issuing", above=root), Authority(tmp_path, "other", above=root)
    settings = {
        "ssl_keystore_location": str(issuing.issue("127.0.0.1").both),
        "ssl_truststore_location": str(issuing.certificate),
        "ssl_client_auth": "required",
    }
    (broker,) = (await start_brokers(listeners=SSL, **settings)).brokers

    def context(trusted: Authority, issuer: Authority) -> ssl.SSLContext:
        return client_context(
            cafile=str(trusted.certificate), certfile=str(issuer.issue("client", common_name="client").both)
        )

    for trusted in (root, issuing):
        async with await Wire.connect(broker.port, tls=context(trusted, issuing)) as wire:
            assert (await wire.call(ApiVersionsRequest(), 0)).error_code == 0
    assert await refused(broker.port, context(root, other)) == "TLSV1_ALERT_UNKNOWN_CA"
    assert await refused(broker.port, context(root, root)) == "TLSV1_ALERT_UNKNOWN_CA"
    assert await refused(broker.port, context(other, issuing)) == "CERTIFICATE_VERIFY_FAILED"


async def test_requested_ones_may_be_missing_but_not_a_strangers(
    start_brokers: StartBrokers, keys: Keys
) -> None:
    brokers = await start_brokers(listeners=SSL, ssl_client_auth="requested", **keys.settings)
    (broker,) = brokers.brokers
    async with await Wire.connect(broker.port, tls=keys.context()) as wire:
        await wire.call(ApiVersionsRequest(), 0)
        assert principals(broker) == [ANONYMOUS]
    assert await refused(broker.port, keys.context(keys.stranger)) == "TLSV1_ALERT_UNKNOWN_CA"


async def test_a_certificate_that_no_rule_makes_a_user_of(
    start_brokers: StartBrokers, keys: Keys, lines: Lines
) -> None:
    rules = "RULE:^CN=somebody-else$/x/"
    brokers = await start_brokers(
        listeners=SSL, ssl_client_auth="required", ssl_principal_mapping_rules=rules, **keys.settings
    )
    async with await Wire.connect(brokers.brokers[0].port, tls=keys.context(keys.client)) as wire:
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await wire.call(ApiVersionsRequest(), 0)
    (why,) = lines.why
    assert why.startswith(
        "no rule of ssl.principal.mapping.rules makes a user of the client certificate: CN=client"
    )


# --- other listeners ----------------------------------------------------------------------------------------


async def test_each_listener_has_its_protocol(start_brokers: StartBrokers, keys: Keys) -> None:
    brokers = await start_brokers(
        listeners="INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
        listener_security_protocol_map="INSIDE:PLAINTEXT,OUTSIDE:SSL",
        **keys.settings,
    )
    inside, outside = (each.bound.port for each in brokers.brokers[0].listening)
    async with (
        await Wire.connect(inside) as plain,
        await Wire.connect(outside, tls=keys.context()) as secured,
    ):
        for wire in (plain, secured):
            (told,) = (await wire.call(MetadataRequest(topics=[]), 9)).brokers
            assert told.port == (inside if wire is plain else outside)


# --- files that change --------------------------------------------------------------------------------------


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewed, "_LOOK_MS", 0)


async def served_by(port: int, authority: str) -> bytes:
    """The certificate that the broker presents now."""
    context = ssl.create_default_context(cafile=authority)
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    presented: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return presented


async def test_new_certificates_are_read_and_open_connections_go_on(
    start_brokers: StartBrokers, keys: Keys, tmp_path: Path, patient: None
) -> None:
    store = tmp_path / "server.pem"
    shutil.copy(keys.server.both, store)
    brokers = await start_brokers(listeners=SSL, ssl_keystore_location=str(store))
    port, ca = brokers.brokers[0].port, str(keys.authority.certificate)
    async with await Wire.connect(port, tls=keys.context()) as wire:
        before = await served_by(port, ca)
        assert before == await served_by(port, ca)
        store.write_bytes(b"half of a")
        assert before == await served_by(port, ca)  # unusable files are ignored
        renewed = keys.authority.issue("127.0.0.1", common_name="renewed")
        os.replace(shutil.copy(renewed.both, tmp_path / "new"), store)
        assert before != await served_by(port, ca)
        assert (await wire.call(ApiVersionsRequest(), 0)).error_code == 0


@pytest.mark.parametrize(
    ("validity", "password", "why"),
    [
        ({}, None, None),
        ({}, "open sesame", None),
        ({"not_after": datetime(2020, 1, 1, tzinfo=UTC)}, None, "certificate has expired"),
        ({"not_after": datetime(2020, 1, 1, tzinfo=UTC)}, "open sesame", "certificate has expired"),
        (
            {"not_before": datetime(2300, 1, 1, tzinfo=UTC), "not_after": datetime(2301, 1, 1, tzinfo=UTC)},
            None,
            "certificate is not yet valid",
        ),
    ],
)
async def test_a_certificate_that_is_not_valid_now_is_used_with_a_warning(
    keys: Keys,
    monkeypatch: pytest.MonkeyPatch,
    validity: dict[str, datetime],
    password: str | None,
    why: str | None,
) -> None:
    told: list[dict[str, Any]] = []

    class Log:
        def warning(self, event: str, **fields: Any) -> None:
            assert event == "clients will not accept the broker's certificate"
            told.append(fields)

    monkeypatch.setattr(certificates, "_log", Log())
    kept = keys.authority.issue("127.0.0.1", common_name="validity", password=password, **validity)
    store = str(kept.both)
    settings = Settings(listeners=SSL, ssl_keystore_location=store, ssl_key_password=password)
    assert Certificates(Pem.on_listener(settings.on("SSL")), ManualClock()).context()
    if why is None:
        assert told == []
        return
    (fields,) = told
    # OpenSSL 3.5 adds "or the system clock is incorrect".
    assert fields.pop("why").startswith(why)
    assert fields == {"file": store, "option": "--ssl-keystore-location"}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            lambda keys, folder: {"ssl_keystore_location": str(folder / "none.pem")},
            "no such file or directory",
        ),
        (
            lambda keys, folder: {"ssl_keystore_location": str(keys.server.certificate)},
            "no private key is in it",
        ),
        (lambda keys, folder: {"ssl_keystore_location": str(keys.server.key)}, "no PEM certificate is in it"),
        (
            lambda keys, folder: {"ssl_keystore_location": str(mismatched(keys, folder))},
            "its private key does not belong to its first certificate",
        ),
        (
            lambda keys, folder: {"ssl_keystore_location": str(encrypted(keys))},
            "its key is encrypted; give --ssl-key-password",
        ),
        (
            lambda keys, folder: {"ssl_keystore_location": str(encrypted(keys)), "ssl_key_password": "wrong"},
            "--ssl-key-password may be wrong",
        ),
        (
            lambda keys, folder: {
                "ssl_truststore_location": str(keys.server.key),
                "ssl_client_auth": "required",
            },
            "--ssl-truststore-location .* no PEM certificate is in it",
        ),
        (
            lambda keys, folder: {"ssl_client_auth": "required", "ssl_principal_mapping_rules": "RULE:x"},
            "--ssl-principal-mapping-rules: 'RULE:x' is no rule",
        ),
    ],
)
async def test_what_cannot_be_used_keeps_the_broker_from_starting(
    start_brokers: StartBrokers,
    keys: Keys,
    tmp_path: Path,
    change: Callable[[Keys, Path], dict[str, Any]],
    why: str,
) -> None:
    with pytest.raises(SecurityError, match=why) as error:
        await start_brokers(listeners=SSL, **{**keys.settings, **change(keys, tmp_path)})
    assert "wrong" not in str(error.value).replace("may be wrong", "")


def mismatched(keys: Keys, folder: Path) -> Path:
    path = folder / "mismatched.pem"
    path.write_bytes(keys.client.key.read_bytes() + keys.server.certificate.read_bytes())
    return path


def encrypted(keys: Keys) -> Path:
    return keys.authority.issue("127.0.0.1", common_name="locked", password="open sesame").both


async def test_an_encrypted_key(start_brokers: StartBrokers, keys: Keys) -> None:
    brokers = await start_brokers(
        listeners=SSL, ssl_keystore_location=str(encrypted(keys)), ssl_key_password="open sesame"
    )
    async with await Wire.connect(brokers.brokers[0].port, tls=keys.context()) as wire:
        assert (await wire.call(ApiVersionsRequest(), 0)).error_code == 0


# --- those who never finish ---------------------------------------------------------------------------------


async def test_half_open_handshakes_disturb_nobody(broker: Broker, keys: Keys) -> None:
    """They come by the thousand; a client that completes its handshake is served meanwhile, and their number
    stays bounded."""
    streams = []
    async with await Wire.connect(broker.port, tls=keys.context()) as wire:
        for number in range(2 * UNDER_WAY_MAX):
            streams.append(await asyncio.open_connection("127.0.0.1", broker.port))
            if number % 100 == 0:
                assert (await wire.call(ApiVersionsRequest(), 0)).error_code == 0
        await until(lambda: broker.doors.shaking_hands == UNDER_WAY_MAX)
        async with await Wire.connect(broker.port, tls=keys.context()) as another:
            assert (await another.call(ApiVersionsRequest(), 0)).error_code == 0
        assert broker.connections.counts.accepted == 2
        # The earliest have lost their places.
        async with asyncio.timeout(DEADLINE_S):
            assert await streams[0][0].read() == b""
    for _, writer in streams:
        writer.close()
    await until(lambda: broker.doors.shaking_hands == 0)


class _Socket(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__({"peername": ("10.0.0.7", 50_000)})
        self.closed = False

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def get_write_buffer_size(self) -> int:
        return 0


def test_a_handshake_has_its_time(keys: Keys, lines: Lines) -> None:
    clock = ManualClock()
    settings = Settings(ephemeral=True, listeners=SSL, **keys.settings)
    held = certificates.Certificates(certificates.Pem.on_listener(settings.on("SSL")), clock)
    handshakes = Handshakes(held, clock, asyncio.Protocol, Unserved(clock))
    secured: Secured = handshakes.accept()
    accepted = _Socket()
    secured.connection_made(accepted)
    clock.advance(HANDSHAKE_MS - 1)
    assert (accepted.closed, len(handshakes)) == (False, 1)
    clock.advance(1)
    assert (accepted.closed, len(handshakes), handshakes.failed) == (True, 0, 1)
    assert lines.why == [f"TLS handshake incomplete after {HANDSHAKE_MS} ms"]
    assert lines.fields[0]["host"] == "/10.0.0.7"


async def test_a_client_that_is_cut_off_in_the_middle_of_a_record(broker: Broker, keys: Keys) -> None:
    async with await Wire.connect(broker.port, tls=keys.context()) as wire:
        await wire.call(ApiVersionsRequest(), 0)
        wire.abort()
    await until(lambda: not broker.connections.open)


async def test_garbage_behind_the_handshake_ends_that_connection_alone(broker: Broker, keys: Keys) -> None:
    async with await Wire.connect(broker.port, tls=keys.context()) as wire:
        await wire.call(ApiVersionsRequest(), 0)
        theirs = wire._writer.get_extra_info("socket")
        os.write(theirs.fileno(), b"\x17\x03\x03\x00\x20" + bytes(32))
        await until(lambda: not broker.connections.open)
    async with await Wire.connect(broker.port, tls=keys.context()) as wire:
        assert (await wire.call(ApiVersionsRequest(), 0)).error_code == 0
