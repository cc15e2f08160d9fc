"""The muster commands with a client.properties, against Apache Kafka."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.interop.security.conftest import PASSWORD, USER, Secured
from tests.interop.security.test_client import token
from tests.support.issuer import SECRET, Issuer

pytestmark = pytest.mark.interop

_OAUTH: Final = "org.apache.kafka.common.security.oauthbearer"


def muster(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "muster", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def properties(folder: Path, secured: Secured, password: str = PASSWORD) -> str:
    """The properties as a Java client would have them."""
    escaped = password.replace("\\", "\\\\").replace('"', '\\\\"')
    path = folder / "client.properties"
    path.write_text(
        f"bootstrap.servers={secured.kafka.bootstrap_of('SASL_SSL')}\n"
        "security.protocol=SASL_SSL\n"
        "sasl.mechanism=SCRAM-SHA-256\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\\n"
        f'    username="{USER}" password="{escaped}";\n'
        f"ssl.truststore.type=PEM\nssl.truststore.location={secured.ca}\n",
        encoding="utf-8",
    )
    return str(path)


def test_a_topic_records_and_a_group(secured: Secured, tmp_path: Path) -> None:
    config = ("--command-config", properties(tmp_path, secured))
    created = muster("topics", "create", "commanded", *config)
    assert created.returncode == 0, created.stderr
    sent = muster("produce", "commanded", *config, stdin="one\ntwo\n")
    assert sent.returncode == 0, sent.stderr
    read = muster(
        "consume", "commanded", "--from-beginning", "--group", "commanders", "--max-messages", "2", *config
    )
    assert read.stdout.splitlines() == ["one", "two"], read.stderr
    listed = muster("groups", "list", "--output", "json", *config)
    assert "commanders" in listed.stdout, listed.stderr


def test_a_wrong_password_is_one_line(secured: Secured, tmp_path: Path) -> None:
    said = muster("topics", "list", "--command-config", properties(tmp_path, secured, password="guess"))
    assert said.returncode == 1
    (line,) = said.stderr.splitlines()
    assert "the broker refused SCRAM-SHA-256" in line
    assert "guess" not in line


def test_a_token_from_an_issuer(secured: Secured, tmp_path: Path) -> None:
    """With the JAAS options that Java's clients have had since 3.1, including the issuer's CA."""
    path = tmp_path / "client.properties"
    with Issuer(tmp_path) as issuer:
        issuer.answer = lambda: {"access_token": token(), "expires_in": 3600}
        path.write_text(
            f"bootstrap.servers={secured.kafka.bootstrap_of('SASL_SSL')}\n"
            "security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\n"
            f"sasl.oauthbearer.token.endpoint.url={issuer.url}\n"
            f"sasl.jaas.config={_OAUTH}.OAuthBearerLoginModule required \\\n"
            f'  clientId="billing" clientSecret="{SECRET}" \\\n'
            f'  ssl.truststore.type="PEM" ssl.truststore.location="{issuer.ca.certificate}";\n'
            f"sasl.login.callback.handler.class={_OAUTH}.OAuthBearerLoginCallbackHandler\n"
            f"ssl.truststore.type=PEM\nssl.truststore.location={secured.ca}\n"
        )
        listed = muster("topics", "list", "--command-config", str(path))
        assert listed.returncode == 0, listed.stderr
        issuer.status, issuer.answer = 401, {"error": "invalid_client"}
        said = muster("topics", "list", "--command-config", str(path))
        assert said.returncode == 1
        (line,) = said.stderr.splitlines()
        assert "invalid_client" in line
        assert SECRET not in line
