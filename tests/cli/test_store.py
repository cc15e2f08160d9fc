"""`muster store`: what can be seen of it without a database."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.cli.running import Muster
from tests.support.ports import free_ports


@pytest.fixture
def muster(capfd: pytest.CaptureFixture[str]) -> Muster:
    return Muster("127.0.0.1:9092", capfd)


def test_help_says_what_it_does_and_takes(muster: Muster) -> None:
    assert "    store " in muster("--help").out
    shown = muster("store", "migrate", "--help").out
    for said in ("usage: muster store migrate", "--store URL", "MUSTER_STORE", "PGPASSWORD", "Exit codes"):
        assert said in shown


def test_a_url_it_does_not_take_is_one_line_and_not_shown(muster: Muster) -> None:
    assert muster.misused("store", "migrate") == (
        "muster store migrate: --store or MUSTER_STORE has to name the database\n"
    )
    assert muster.misused("store", "migrate", "--store", "mysql://u:geheim@h/d") == (
        "muster store migrate: --store: what was given is not allowed; "
        "it takes postgresql://USER:PASSWORD@HOST:PORT/DATABASE\n"
    )
    assert "ACTION" in muster.misused("store")


@pytest.mark.parametrize("command", [("store", "migrate"), ("serve", "--port", "0")])
def test_a_database_that_is_not_there_is_one_line(muster: Muster, command: tuple[str, ...]) -> None:
    port = free_ports(1)
    said = muster.refused(*command, "--store", f"postgresql://u:geheim@127.0.0.1:{port}/d")
    assert f"127.0.0.1:{port}" in said
    assert "geheim" not in said


@pytest.mark.parametrize("command", [("store", "migrate"), ("serve", "--port", "0")])
def test_without_asyncpg_it_says_what_to_install(command: tuple[str, ...]) -> None:
    script = (
        "import sys; sys.modules['asyncpg'] = None\n"
        "from muster.coordinator import cli\n"
        f"sys.exit(cli.main([*{command!r}, '--store', 'postgresql://u:geheim@127.0.0.1:1/d'], {{}}))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=dict(os.environ), timeout=120
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.count("\n") == 1
    assert "muster-kafka[postgres]" in ended.stderr
    assert "geheim" not in ended.stderr


def test_brokers_start_without_what_only_a_database_needs() -> None:
    script = (
        "import sys\n"
        "from muster.coordinator import cli\n"
        "import muster.coordinator.server.brokers, muster.coordinator.storage.sqlite\n"
        "print([name for name in sys.modules if 'asyncpg' in name or 'storage.postgres' in name])"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"
