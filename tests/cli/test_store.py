"""`muster store`, as far as it can be tested without a database."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.running import Muster
from tests.storage.test_soundness import fill, harm, places, segments
from tests.support.ports import free_ports
from tests.support.served import Served


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
        "muster store migrate: --store or MUSTER_STORE must name the database\n"
    )
    assert muster.misused("store", "migrate", "--store", "mysql://u:geheim@h/d") == (
        "muster store migrate: --store: the value given is not allowed; "
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


# --- check ----------------------------------------------------------------------------------------


def test_a_directory_that_is_sound(muster: Muster, tmp_path: Path) -> None:
    fill(tmp_path / "data")
    ended = muster("store", "check", "--data", str(tmp_path / "data"))
    assert ended.code == 0
    assert ended.out.startswith("no damage (partitions: 1, segments: ")
    assert ended.out.endswith("; records and events of groups: 9)\n")
    told = muster("store", "check", "--data", str(tmp_path / "data"), "--output", "json").json
    assert (told["sound"], told["faults"]) == (True, [])
    assert (told["checked"]["partitions"], told["checked"]["batches"]) == (1, 30)


def test_each_fault_is_a_line_with_its_place(muster: Muster, tmp_path: Path) -> None:
    data = tmp_path / "data"
    fill(data)
    path = segments(data)[0]
    position, offset = places(path)[2]
    harm(path, position + 80, b"\xff" * 50)
    ended = muster("store", "check", "--data", str(data))
    assert (ended.code, ended.err) == (1, "")
    fault, summary = ended.out.splitlines()
    assert fault.startswith(
        f"{path}, byte {position}: orders-0, offsets {offset} to {offset + 2}: "
        "the batch's checksum does not match; restore this file from a backup"
    )
    assert summary.startswith("1 fault (")
    ended = muster("store", "check", "--data", str(data), "--output", "json")
    (found,) = ended.json["faults"]
    assert (ended.code, ended.json["sound"]) == (1, False)
    assert (found["place"], found["position"], found["partition"]) == (str(path), position, "orders-0")
    assert (found["first_offset"], found["last_offset"]) == (offset, offset + 2)


def test_a_directory_that_a_broker_uses_is_refused(muster: Muster, tmp_path: Path) -> None:
    with Served(tmp_path / "data"):
        said = muster.refused("store", "check", "--data", str(tmp_path / "data"))
    assert "is in use by process" in said
    assert "check a snapshot" in said
    assert "another directory" not in said


def test_a_directory_of_a_newer_version_is_not_called_damaged(muster: Muster, tmp_path: Path) -> None:
    fill(tmp_path / "data")
    with closing(sqlite3.connect(tmp_path / "data" / "store.sqlite")) as connection:
        connection.execute("PRAGMA user_version = 99")
    said = muster.refused("store", "check", "--data", str(tmp_path / "data"))
    assert "was written by a newer muster" in said
    assert "backup" not in said


def test_what_cannot_be_checked_is_one_line(muster: Muster, tmp_path: Path) -> None:
    assert muster.misused("store", "check") == (
        "muster store check: --data or MUSTER_DATA must name a data directory, or --store or MUSTER_STORE "
        "a database\n"
    )
    assert "is not a data directory" in muster.misused("store", "check", "--data", str(tmp_path / "nowhere"))
    assert "not allowed with" in muster.misused("store", "check", "--data", "a", "--store", "b")
    assert "geheim" not in muster.misused("store", "check", "--store", "mysql://u:geheim@h/d")
    unreachable = f"postgresql://u:geheim@127.0.0.1:{free_ports(1)}/d"
    said = muster.refused("store", "check", "--store", unreachable)
    assert "127.0.0.1" in said
    assert "geheim" not in said
