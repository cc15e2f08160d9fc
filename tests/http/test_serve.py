"""`muster serve --http` as a process."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from muster.coordinator import cli
from muster.coordinator.config import SettingError, Settings, read_settings
from muster.coordinator.web import binding
from tests.server.security.conftest import Keys
from tests.support.each import each
from tests.support.served import Served
from tests.support.wire_topics import until


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
        f"muster serve: 127.0.0.1:{port} is in use; choose another port for --http, or 0 for any free one\n"
    )


def test_what_is_wrong_with_the_variable_of_muster_test_is_told_with_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is exported for `muster test`, in the shell where the next broker is started."""
    said = "; the value is from the variable MUSTER_HTTP, which `muster test` reads too\n"
    begun = ["serve", "--ephemeral", "--port", "0"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert cli.main(begun, {"MUSTER_HTTP": address}) == 1
        in_use = f"muster serve: {address} is in use; choose another port for --http, or 0 for any free one"
        assert capsys.readouterr().err == in_use + said
        assert cli.main([*begun, "--http", address], {"MUSTER_HTTP": "127.0.0.1:0"}) == 1
        assert capsys.readouterr().err == f"{in_use}\n"
    assert cli.main(begun, {"MUSTER_HTTP": "https://broker.example:8443"}) == 2
    told = capsys.readouterr().err
    assert told.startswith("muster serve: MUSTER_HTTP: 'https://broker.example:8443' is not allowed; ")
    assert told.endswith(said)
    assert cli.main(begun, {"MUSTER_HTTP_TOKEN_FILE": "http-token"}) == 2
    assert capsys.readouterr().err == (
        "muster serve: MUSTER_HTTP_TOKEN_FILE: 'http-token' is not allowed; it takes nothing without --http; "
        "the value is from the variable MUSTER_HTTP_TOKEN_FILE, which `muster test` reads too\n"
    )
    assert cli.main([*begun, "--http-token-file", "http-token"], {}) == 2
    assert "variable" not in capsys.readouterr().err


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


# --- beyond this machine ------------------------------------------------------------------------------------

TLS_OPTION, LOGIN_OPTION = "--http-ssl-keystore-location (TLS)", "--http-token-file (a login)"
SECURED = {"http_ssl_keystore_location": "page.pem", "http_token_file": "token"}


@each("address", ["0.0.0.0:80", "[::]:80", "10.0.0.7:80", "broker-1:80", "localhost.example:80", "127.1:80"])
def test_what_others_can_reach_needs_tls_and_a_login(address: str) -> None:
    for given, lacking in (
        ({}, f"{TLS_OPTION} and {LOGIN_OPTION}"),
        ({"http_token_file": "token"}, TLS_OPTION),
        ({"http_ssl_keystore_location": "page.pem"}, LOGIN_OPTION),
    ):
        with pytest.raises(SettingError) as raised:
            read_settings({"http": address, **given}, {})
        assert str(raised.value) == (
            f"--http: '{address}' is not allowed; it takes a loopback address (127.0.0.1, ::1, localhost); "
            f"for others give {lacking}, or, behind a proxy or in a network of containers, --http-insecure"
        )
        assert read_settings({"http": address, "http_insecure": "true", **given}, {}).http == address
    assert read_settings({"http": address, **SECURED}, {}).http == address


def test_the_variables_are_those_of_the_settings() -> None:
    variables = {"MUSTER_HTTP": "0.0.0.0:80", "MUSTER_HTTP_TOKEN_FILE": "token"}
    with pytest.raises(
        SettingError, match=r"^MUSTER_HTTP: '0\.0\.0\.0:80' is not allowed; .* --http-ssl-keystore"
    ):
        read_settings({}, variables)
    assert read_settings({}, {**variables, "MUSTER_HTTP_INSECURE": "yes"}).http_token_file == "token"


@each("name", ["http_token_file", "http_ssl_keystore_location", "http_ssl_key_password"])
def test_options_without_what_they_are_for_are_refused(name: str) -> None:
    option = f"--{name.replace('_', '-')}"
    with pytest.raises(
        SettingError, match=f"^{option}: .* is not allowed; it takes nothing without --http$"
    ) as alone:
        read_settings({name: "open sesame"}, {})
    assert ("open sesame" in str(alone.value)) == (name != "http_ssl_key_password")


def test_a_password_without_a_keystore_is_refused_and_not_shown() -> None:
    with pytest.raises(SettingError, match="nothing without --http-ssl-keystore-location") as raised:
        read_settings({"http": "127.0.0.1:0", "http_ssl_key_password": "open sesame"}, {})
    assert "sesame" not in str(raised.value)


def refusal(data: Path, *options: str) -> str:
    with pytest.raises(RuntimeError) as raised:
        Served(data, *options).start()
    return str(raised.value)


def test_a_refusal_is_one_line(tmp_path: Path, keys: Keys) -> None:
    assert refusal(tmp_path / "data", "--http", "0.0.0.0:0").startswith(
        "muster serve ended with 2: muster serve: --http: '0.0.0.0:0' is not allowed; "
    )
    for options, why in (
        (("--http-token-file", str(tmp_path / "none")), "no such file or directory"),
        (("--http-token-file", str(tmp_path)), "is a directory"),
        (("--http-ssl-keystore-location", str(keys.server.key)), "no PEM certificate is in it"),
    ):
        said = refusal(tmp_path / "data", "--http", "127.0.0.1:0", *options)
        assert said.startswith(f"muster serve ended with 1: muster serve: {' '.join(options)}: {why}")
        assert said.count("\n") == 1


def warnings(log: Path) -> list[dict[str, str]]:
    """The warnings in the log."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [each for each in lines if each["level"] == "warning"]


def test_a_secured_page_warns_of_nothing_and_renews_its_certificate_on_hangup(
    tmp_path: Path, keys: Keys
) -> None:
    token, keystore, log = tmp_path / "token", tmp_path / "page.pem", tmp_path / "log"
    token.write_text("sesame\n")
    token.chmod(0o600)
    shutil.copy(keys.server.both, keystore)
    secured = ("--http-token-file", str(token), "--http-ssl-keystore-location", str(keystore))
    with Served(tmp_path / "data", "--http", "0.0.0.0:0", *secured, log=log) as served:
        address = served.ready_line.rpartition(", ")[2]
        assert address.startswith("https://localhost:")
        request = urllib.request.Request(f"{address}/api/groups", headers={"Authorization": "Bearer sesame"})
        with urllib.request.urlopen(request, timeout=30, context=keys.context()) as answer:
            assert json.load(answer)["groups"] == []
        served.process.send_signal(signal.SIGHUP)
        until(lambda: "certificates read again" in log.read_text(), "a line in the log")
        assert served.stop() == 0
    assert warnings(log) == []
    assert "sesame" not in log.read_text()


def test_what_is_open_is_told_at_the_start(tmp_path: Path) -> None:
    token, log = tmp_path / "token", tmp_path / "log"
    token.write_text("sesame\n")
    token.chmod(0o644)
    for options, told in (
        ((), [("--http can be reached by others", "TLS, a login")]),
        (
            ("--http-token-file", str(token)),
            [
                ("every user of this machine can read the token", None),
                ("--http can be reached by others", "TLS"),
            ],
        ),
    ):
        with Served(tmp_path / "data", "--http", "0.0.0.0:0", "--http-insecure", *options, log=log) as served:
            assert served.stop() == 0
        assert [(each["event"], each.get("without")) for each in warnings(log)] == told
        log.unlink()


ROOT = Path(__file__).parents[2]


@each(
    "setting",
    [
        ("Dockerfile", r"\b(MUSTER_\w+)=(\S+)", {"MUSTER_HTTP": "127.0.0.1:8080"}),
        (
            "docker-compose.yml",
            r'^  (MUSTER_HTTP\w*): "?([^"\n]+)"?$',
            {"MUSTER_HTTP": "0.0.0.0:8080", "MUSTER_HTTP_INSECURE": "true"},
        ),
        (
            "docs/kubernetes.md",
            r'\{name: (MUSTER_HTTP\w*), value: "?([^"}]+)"?\}',
            {
                "MUSTER_HTTP": "0.0.0.0:8080",
                "MUSTER_HTTP_TOKEN_FILE": "/etc/muster/http/token",
                "MUSTER_HTTP_INSECURE": "true",
            },
        ),
    ],
)
def test_containers_have_settings_that_are_allowed(setting: tuple[str, str, dict[str, str]]) -> None:
    file, pattern, expected = setting
    variables = dict(re.findall(pattern, (ROOT / file).read_text(), re.MULTILINE))
    assert variables.items() >= expected.items()
    assert read_settings({}, variables).http == expected["MUSTER_HTTP"]
