"""`muster serve --http` as a process."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from muster.coordinator import cli
from muster.coordinator.config import SettingError, Settings, read_settings
from muster.coordinator.web import binding
from tests.support.each import each
from tests.support.served import Served


def test_the_ready_line_names_the_page_and_it_answers_by_then(tmp_path: Path) -> None:
    with Served(tmp_path / "data", "--http", "127.0.0.1:0") as served:
        address = served.ready_line.rpartition(", ")[2]
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(f"{address}/readyz", timeout=30) as answer:
            assert json.load(answer)["ready"] is True
        assert served.stop() == 0


def test_what_takes_the_port_imports_nothing_of_http() -> None:
    program = """
import sys
import muster.coordinator.cli, muster.coordinator.web.binding
print([name in sys.modules for name in ("aiohttp", "prometheus_client")])
"""
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout == "[False, False]\n"


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RuntimeError, match="ended with 1") as raised:
            Served(tmp_path / "data", "--http", f"127.0.0.1:{port}").start()
    assert str(raised.value).endswith(
        f"muster serve: 127.0.0.1:{port} is in use by another process; "
        "choose another port for --http, or 0 for any free one\n"
    )


def test_without_the_packages_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(binding, "find_spec", lambda name: None)
    variables = {"MUSTER_HTTP": "127.0.0.1:0", "MUSTER_EPHEMERAL": "true", "MUSTER_PORT": "0"}
    assert cli.main(["serve"], variables) == 1
    assert capsys.readouterr().err == (
        "muster serve: --http needs aiohttp and prometheus-client: "
        "install them with pip install 'muster-kafka[http]'\n"
    )


@each("address", ["8080", "127.0.0.1", "127.0.0.1:70000", "http://127.0.0.1:80", ":80"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(SettingError, match=r"--http: .* is not allowed; it takes HOST:PORT"):
        read_settings({"http": address}, {})


def test_addresses_that_are_allowed() -> None:
    for address in ("127.0.0.1:0", "localhost:8080", "[::1]:8080", "127.8.0.1:65535"):
        assert Settings(http=address).http == address
    with pytest.raises(SettingError, match="advertised_http"):
        Settings(http="127.0.0.1:80", advertised_http="pages.example:0")
