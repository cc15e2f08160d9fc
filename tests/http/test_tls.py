"""HTTPS: everything that HTTP serves, with the features of TLS listeners."""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
from pathlib import Path

import aiohttp
import pytest

from muster.coordinator.security.exchange import SecurityError
from muster.coordinator.server import renewed, unserved
from muster.coordinator.web import door
from muster.coordinator.web.facts import node_json
from tests.http.conftest import Show, Shown
from tests.server.security.conftest import Keys
from tests.server.test_unserved import Lines
from tests.support.facts import DEADLINE_S, until


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Lines:
    made = Lines()
    monkeypatch.setattr(unserved, "_log", made)
    return made


@pytest.fixture
async def secured(show: Show, keys: Keys, lines: Lines) -> Shown:
    shown = await show(http_ssl_keystore_location=str(keys.server.both))
    await shown.create_topic()
    return shown


async def test_everything_is_served_over_tls(secured: Shown, keys: Keys) -> None:
    assert secured.page.url.startswith("https://127.0.0.1:")
    tls = keys.context()
    assert (await secured.get("/readyz", ssl=tls))[0] == 200
    async with secured.http.get(secured.page.url + "/metrics", ssl=tls) as answer:
        assert b"kafka_brokers 1.0" in await answer.read()
    own = {"Origin": secured.page.url}
    async with secured.http.delete(secured.page.url + "/test/faults", headers=own, ssl=tls) as answer:
        assert answer.status == 200
    async with secured.http.get(secured.page.url + "/api/events/stream", ssl=tls) as stream:
        assert (await stream.content.readline()).startswith(b"retry: ")


async def test_others_link_to_it_by_https(show: Show, keys: Keys) -> None:
    keystore = str(keys.server.both)
    for settings, page in (
        ({"http_ssl_keystore_location": keystore}, None),
        (
            {"http_ssl_keystore_location": keystore, "advertised_http": "pages.example:8443"},
            "https://pages.example:8443",
        ),
        ({"advertised_http": "pages.example:8080"}, "http://pages.example:8080"),
    ):
        shown = await show(**settings)
        (node,) = shown.broker.topology.nodes.values()
        assert node_json(node)["page"] == (page or shown.page.url)


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"SSH-2.0-OpenSSH_9.6\r\n"])
async def test_plaintext_is_told_to_the_log(secured: Shown, lines: Lines, sent: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", secured.page.port)
    writer.write(sent)
    async with asyncio.timeout(DEADLINE_S):
        await reader.read()
    writer.close()
    assert [(each["why"], each["remedy"]) for each in lines.fields] == [
        ("plaintext on the HTTPS port", "open it with https://")
    ]


async def test_a_client_that_does_not_trust_the_certificate(secured: Shown, lines: Lines) -> None:
    with pytest.raises(aiohttp.ClientConnectorCertificateError):
        await secured.get("/readyz", ssl=ssl.create_default_context())
    await until(lambda: bool(lines.why))
    assert lines.why == ["the client closed during the TLS handshake"]


async def test_above_the_limit_connections_are_closed(
    secured: Shown, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = keys.context()
    monkeypatch.setattr(door, "CONNECTIONS_MAX", 1)
    async with secured.http.get(secured.page.url + "/api/events/stream", ssl=tls) as stream:
        assert stream.status == 200
        async with asyncio.timeout(DEADLINE_S):
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", secured.page.port, ssl=tls)
                assert await reader.read() == b""
                writer.close()
            except ConnectionError:
                pass
        assert not stream.content.at_eof()


async def test_a_new_certificate_is_presented_and_open_connections_go_on(
    show: Show, keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewed, "_LOOK_MS", 0)
    keystore, tls = tmp_path / "page.pem", keys.context()
    shutil.copy(keys.server.both, keystore)
    shown = await show(http_ssl_keystore_location=str(keystore))

    async def presented() -> bytes:
        _, writer = await asyncio.open_connection("127.0.0.1", shown.page.port, ssl=tls)
        certificate: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return certificate

    before = await presented()
    async with shown.http.get(shown.page.url + "/api/events/stream", ssl=tls) as stream:
        keystore.write_bytes(b"half of a")
        assert await presented() == before
        issued = keys.authority.issue("127.0.0.1", common_name="renewed page")
        os.replace(shutil.copy(issued.both, tmp_path / "new"), keystore)
        assert await presented() != before
        assert (await stream.content.readline()).startswith(b"retry: ")


async def test_what_is_no_keystore_keeps_the_broker_from_starting(
    show: Show, keys: Keys, tmp_path: Path
) -> None:
    locked = keys.authority.issue("127.0.0.1", common_name="locked page", password="open sesame").both
    for path, why in (
        (tmp_path / "none.pem", "no such file or directory"),
        (keys.server.certificate, "no private key is in it"),
        (locked, "its key is encrypted; give --http-ssl-key-password"),
    ):
        with pytest.raises(SecurityError, match=f"^--http-ssl-keystore-location {path}: {why}"):
            await show(http_ssl_keystore_location=str(path))
    shown = await show(http_ssl_keystore_location=str(locked), http_ssl_key_password="open sesame")
    assert (await shown.get("/healthz", ssl=keys.context()))[0] == 200
