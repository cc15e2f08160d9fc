"""`muster serve` with TLS, as a process of its own."""

from __future__ import annotations

import os
import shutil
import signal
import ssl
from pathlib import Path

import pytest

from tests.server.security.conftest import Keys
from tests.support.certificates import Authority
from tests.support.ports import free_ports
from tests.support.served import Served
from tests.support.wire_topics import until


def presented(port: int, authority: Authority) -> bytes:
    pem = ssl.get_server_certificate(("127.0.0.1", port), ca_certs=str(authority.certificate))
    return ssl.PEM_cert_to_DER_cert(pem)


def test_hangup_reads_the_certificates_again_and_ends_nothing(tmp_path: Path, keys: Keys) -> None:
    store = tmp_path / "server.pem"
    shutil.copy(keys.server.both, store)
    port = free_ports(1)
    options = ("--listeners", f"SSL://127.0.0.1:{port}", "--ssl-keystore-location", str(store))
    log = tmp_path / "log"
    with Served(tmp_path / "data", *options, log=log) as served:
        before = presented(port, keys.authority)
        renewed = keys.authority.issue("127.0.0.1", common_name="renewed")
        os.replace(shutil.copy(renewed.both, tmp_path / "new"), store)
        served.process.send_signal(signal.SIGHUP)
        until(lambda: presented(port, keys.authority) != before, "the new certificate")
        until(lambda: "certificates read again" in log.read_text(), "a line in the log")


def test_what_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    port = free_ports(1)
    options = (
        "--listeners",
        f"SSL://127.0.0.1:{port}",
        "--ssl-keystore-location",
        str(tmp_path / "none.pem"),
    )
    with pytest.raises(RuntimeError) as raised:
        Served(tmp_path / "data", *options).start()
    assert str(raised.value).endswith(
        f"muster serve: --ssl-keystore-location {tmp_path / 'none.pem'}: no such file or directory\n"
    )
