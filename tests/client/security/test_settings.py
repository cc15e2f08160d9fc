"""TLS and SASL settings: which go together, and the errors for those that do not."""

from __future__ import annotations

import re
import ssl
import traceback
from pathlib import Path
from typing import Any

import pytest

from muster.client import Admin, Consumer, Producer
from muster.client.security.settings import SecuritySettings
from tests.support.certificates import Authority, Pem

USER = {"sasl_plain_username": "alice", "sasl_plain_password": "secret"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pem")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority(folder)


@pytest.fixture(scope="module")
def client(authority: Authority) -> Pem:
    return authority.issue("client")


@pytest.mark.parametrize(
    ("given", "protocol"),
    [
        ({}, None),
        ({"security_protocol": "SSL"}, "SSL"),
        ({"security_protocol": "SSL", "ssl_context": ssl.create_default_context()}, "SSL"),
        ({"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", **USER}, "SASL_PLAINTEXT"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "SCRAM-SHA-512", **USER}, "SASL_SSL"),
    ],
)
def test_what_they_come_to(given: dict[str, Any], protocol: str | None) -> None:
    found = SecuritySettings(**given).security
    assert (found and found.protocol) == protocol


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"security_protocol": "ssl"}, "security_protocol='ssl': it takes 'PLAINTEXT', 'SSL'"),
        ({"ssl_cafile": "ca.pem"}, "ssl_cafile is given with security_protocol='PLAINTEXT'"),
        (
            {"security_protocol": "SASL_PLAINTEXT", "ssl_certfile": "x"},
            "set security_protocol to SSL or SASL_SSL",
        ),
        ({"security_protocol": "SSL", **USER}, "sasl_plain_username is given with security_protocol='SSL'"),
        ({"security_protocol": "SASL_SSL"}, "requires sasl_mechanism: one of PLAIN, SCRAM-SHA-256"),
        (
            {"security_protocol": "SASL_SSL", "sasl_mechanism": "GSSAPI"},
            "sasl_mechanism='GSSAPI': it takes PLAIN, ",
        ),
        (
            {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_plain_username": "alice"},
            "sasl_mechanism='PLAIN' requires sasl_plain_password",
        ),
        (
            {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"},
            "sasl_mechanism='OAUTHBEARER' requires sasl_oauth_token_provider",
        ),
        (
            {
                "security_protocol": "SASL_SSL",
                "sasl_mechanism": "OAUTHBEARER",
                "sasl_oauth_token_provider": "a.b.c",
            },
            "it takes a function that returns a token",
        ),
        ({"security_protocol": "SSL", "ssl_context": True}, "ssl_context=True: it takes an ssl.SSLContext"),
        (
            {"security_protocol": "SSL", "ssl_context": ssl.create_default_context(), "ssl_cafile": "x"},
            "ssl_cafile is given with ssl_context",
        ),
        ({"security_protocol": "SSL", "ssl_keyfile": "key.pem"}, "ssl_keyfile is given without ssl_certfile"),
        ({"security_protocol": "SSL", "ssl_cafile": "/nowhere"}, "ssl_cafile='/nowhere': no such file"),
        ({"security_protocol": "SSL", "ssl_certfile": "/nowhere"}, "ssl_certfile='/nowhere': no such file"),
    ],
)
def test_what_does_not_go_together(given: dict[str, Any], said: str) -> None:
    for make in (
        lambda: SecuritySettings(**given),
        lambda: Admin("127.0.0.1:9092", **given),
        lambda: Consumer("127.0.0.1:9092", **given),
        lambda: Producer("127.0.0.1:9092", **given),
    ):
        with pytest.raises(ValueError, match=re.escape(said)):
            make()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
@pytest.mark.parametrize("name", ["sasl_plain_username", "sasl_plain_password"])
def test_credentials_that_are_no_text_are_not_shown(name: str, mechanism: str) -> None:
    """As os.environ gives bytes that are not UTF-8."""
    given = {"security_protocol": "SASL_SSL", "sasl_mechanism": mechanism, **USER, name: "Hunter2\udcff"}
    with pytest.raises(ValueError, match=f"{name} is no Unicode text") as raised:
        Admin("127.0.0.1:9092", **given)
    assert "Hunter2" not in "".join(traceback.format_exception(raised.value))


def test_files_of_the_wrong_kind(authority: Authority, client: Pem, folder: Path) -> None:
    def said(**given: str) -> str:
        with pytest.raises(ValueError, match="ssl_") as raised:
            SecuritySettings(security_protocol="SSL", **given)
        return str(raised.value)

    assert "no PEM certificate in it" in said(ssl_cafile=str(client.key))
    assert "no PEM certificate" in said(ssl_certfile=str(client.key))
    other = authority.issue("other")
    told = said(ssl_certfile=str(client.certificate), ssl_keyfile=str(other.key))
    assert "the private key is not that of the certificate" in told
    encrypted = authority.issue("encrypted", password="open sesame")
    assert "set ssl_password" in said(ssl_certfile=str(encrypted.both))
    wrong = said(ssl_certfile=str(encrypted.both), ssl_password="guess")
    assert "a wrong ssl_password" in wrong
    assert "guess" not in wrong


def test_secrets_are_not_shown() -> None:
    given: dict[str, Any] = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", **USER}
    settings = SecuritySettings(**given)
    assert "secret" not in repr(settings)
    assert "secret" not in repr(settings.security)
    with pytest.raises(ValueError, match=r"sasl_plain_password=\.\.\.: it takes text") as raised:
        SecuritySettings(**given | {"sasl_plain_password": b"secret"})
    assert "b'secret'" not in str(raised.value)


def test_admin_knows_no_other_arguments() -> None:
    with pytest.raises(TypeError, match="Admin has no setting 'ssl_ca_file'; did you mean ssl_cafile"):
        Admin("127.0.0.1:9092", ssl_ca_file="x")  # type: ignore[call-arg]
