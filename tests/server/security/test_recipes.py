"""The recipes of docs/security.md and docs/http.md, run as their readers would."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from muster.coordinator.testing import Broker
from muster.protocol.messages.connection import ApiVersionsRequest
from tests.support.wire import Wire

_MISSING: Final = [tool for tool in ("curl", "openssl") if shutil.which(tool) is None]
pytestmark = pytest.mark.skipif(bool(_MISSING), reason=f"the recipes call {' and '.join(_MISSING)}")

_NOBODY: Final = 65534
DOCS: Final = Path(__file__).parents[3] / "docs"


def blocks(heading: str, language: str = "sh", page: str = "security.md") -> list[str]:
    """The code under a heading."""
    text = (DOCS / page).read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    assert found, heading
    return found


def sh(script: str, folder: Path) -> bytes:
    ran = subprocess.run(["sh", "-ec", script], cwd=folder, check=True, capture_output=True, timeout=60)
    return ran.stdout


def sh_with_looks(script: str, folder: Path, file: str) -> list[str]:
    """Run a script; returns modes and owners of a file (`-rw------- 0`) as each cat begins to write to it."""
    looks = folder / "looks"
    sh(f'cat() {{ ls -ln {file} >> {looks}; command cat "$@"; }}\n{script}', folder)
    return [" ".join(line.split()[:3:2]) for line in looks.read_text().splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an authority and a broker's certificate."""
    sh(blocks("For a team: your own certificate authority")[0], tmp_path)
    return tmp_path


def context(folder: Path, certificate: str | None = None) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    made.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on
    if certificate is not None:
        made.load_cert_chain(folder / f"{certificate}-cert.pem", folder / f"{certificate}-key.pem")
    return made


async def test_your_own_certificate_authority(folder: Path) -> None:
    async with (
        Broker(listeners="SSL://127.0.0.1:0", ssl_keystore_location=str(folder / "server.pem")) as broker,
        await Wire.connect(broker.port, "localhost", tls=context(folder)) as wire,
    ):
        assert (await wire.call(ApiVersionsRequest(), 0)).error_code == 0


@pytest.mark.parametrize(
    ("heading", "file"),
    [("For a team: your own certificate authority", "server"), ("Client certificates (mTLS)", "alice")],
)
def test_nobody_else_reads_a_key_while_it_is_written(folder: Path, heading: str, file: str) -> None:
    sh(f"touch {file}-key.pem {file}-cert.pem; rm -f {file}.pem", folder)
    script = next(each for each in blocks(heading) if f"{file}.pem" in each)
    looks = sh_with_looks(script, folder, f"{file}.pem")
    assert looks == [f"-rw------- {os.geteuid()}"]


async def test_a_public_certificate_is_two_files_made_one(folder: Path) -> None:
    live, etc = folder / "live", folder / "etc"
    live.mkdir()
    etc.mkdir()
    (folder / "server-key.pem").rename(live / "privkey.pem")
    (folder / "server-cert.pem").rename(live / "fullchain.pem")
    (script,) = blocks("With a public certificate")
    owner = _NOBODY if os.geteuid() == 0 else os.geteuid()
    for named, here in (
        ("/etc/letsencrypt/live/kafka.example.com", str(live)),
        ("/etc/muster", str(etc)),
        ("-o muster", f"-o {owner}"),
    ):
        assert named in script
        script = script.replace(named, here)
    assert sh_with_looks(script, folder, f"{etc}/server.pem.new") == [f"-rw------- {owner}"]
    kept = (etc / "server.pem").stat()
    assert (kept.st_uid, kept.st_mode & 0o777) == (owner, 0o600)
    async with (
        Broker(listeners="SSL://127.0.0.1:0", ssl_keystore_location=str(etc / "server.pem")) as broker,
        await Wire.connect(broker.port, tls=context(folder)) as wire,
    ):
        assert (await wire.call(ApiVersionsRequest(), 0)).error_code == 0


async def test_client_certificates(folder: Path) -> None:
    script, one_file = blocks("Client certificates (mTLS)")
    (properties,) = blocks("Client certificates (mTLS)", "properties")
    openssl, _, serve = script.partition("muster serve")
    sh(openssl, folder)
    rules = re.search(r"--ssl-principal-mapping-rules '(.*)'", serve)
    assert rules is not None
    async with (
        Broker(
            listeners="SSL://127.0.0.1:0",
            ssl_keystore_location=str(folder / "server.pem"),
            ssl_truststore_location=str(folder / "ca.pem"),
            ssl_client_auth="required",
            ssl_principal_mapping_rules=rules[1],
        ) as broker,
        await Wire.connect(broker.port, tls=context(folder, "alice")) as wire,
    ):
        assert (await wire.call(ApiVersionsRequest(), 0)).error_code == 0
        node = broker._core.brokers.brokers[0]
        assert [each.principal for each in node.connections.open.values()] == ["User:alice"]
        sh(one_file, folder)
        (folder / "alice.properties").write_text(properties)
        command = f"{sys.executable} -m muster topics list --bootstrap-server {broker.bootstrap}"
        topics = await asyncio.to_thread(sh, f"{command} --command-config alice.properties", folder)
        assert topics.startswith(b"TOPIC")


async def test_tls_and_the_login_of_the_page(folder: Path) -> None:
    (script,) = blocks("TLS and the login", page="http.md")
    token, _, serve = script.partition("muster serve ")
    sh(token, folder)
    assert (folder / "http-token").stat().st_mode & 0o077 == 0
    options = serve.replace("8443", "0").split()
    command = [sys.executable, "-m", "muster", "serve", "--ephemeral", "--port", "0", *options]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, cwd=folder)
    try:
        assert process.stdout is not None
        ready = (await process.stdout.readline()).decode()
        (asked,) = blocks("TLS and the login", "console", "http.md")
        curl = asked.removeprefix("$ ").replace("https://broker-1.example:8443", ready.split()[-1])
        answer = await asyncio.to_thread(sh, curl, folder)
        assert json.loads(answer)["groups"] == []
    finally:
        process.terminate()
        await process.communicate()
