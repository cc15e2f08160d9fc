"""The muster commands with a client.properties, against Apache Kafka."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.security.conftest import PASSWORD, USER, Secured

pytestmark = pytest.mark.interop


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
    """As a Java client would have them."""
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
