"""`muster users --store`: the first user of a cluster becomes known to running brokers."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.cli.running import Muster
from tests.support.facts import DEADLINE_S
from tests.support.ports import free_ports
from tests.support.postgres import PASSWORD
from tests.support.served import Served

LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule required"


def test_a_running_broker_learns_of_the_first_user(
    store: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bootstrap = f"127.0.0.1:{free_ports(1)}"
    muster = Muster("", capfd)
    pw, config = tmp_path / "pw", tmp_path / "admin.properties"
    pw.write_text("secret\n")
    config.write_text(
        f"bootstrap.servers={bootstrap}\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        f'sasl.jaas.config={LOGIN} username="admin" password="secret";\n'
    )
    secured = ("--listeners", f"SASL_PLAINTEXT://{bootstrap}", "--super-users", "User:admin")
    with Served(None, "--store", store, *secured):
        assert "authentication" in muster.refused("topics", "list", "--command-config", str(config)).lower()
        created = muster("users", "create", "admin", "--password-file", str(pw), "--store", store)
        assert (created.code, created.out) == (0, "admin created: SCRAM-SHA-256, SCRAM-SHA-512\n"), created
        deadline = time.monotonic() + DEADLINE_S
        while (listed := muster("users", "list", "--command-config", str(config))).code:
            assert time.monotonic() < deadline, listed
        assert listed.out == muster("users", "list", "--store", store).out
        assert "already exists" in muster.refused(
            "users", "create", "admin", "--password-file", str(pw), "--store", store
        )
        assert PASSWORD not in muster.done("users", "delete", "admin", "--store", store)
