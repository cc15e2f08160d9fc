"""`muster users`, as a user runs it: through a broker, and directly on a store."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from muster.client.admin import users as user_calls
from muster.client.admin.client import Admin
from muster.client.errors import AuthenticationFailed, ConnectionLost
from muster.client.network.cluster import Cluster
from muster.coordinator import cli, command_line
from muster.coordinator.security.scram import ScramCredential
from muster.coordinator.storage.sqlite import SqliteStore
from muster.coordinator.testing import Broker
from tests.cli.running import DEADLINE_S, Muster, run
from tests.cli.terminal import Terminal
from tests.support.each import each
from tests.support.ports import free_ports
from tests.support.served import Served

PASSWORD = "s3cret wörd"
OTHER = "other one"


@pytest.fixture
def pw(tmp_path: Path) -> str:
    path = tmp_path / "pw"
    path.write_text(f"{PASSWORD}\n", encoding="utf-8")
    return str(path)


@pytest.fixture
def data(tmp_path: Path) -> str:
    return str(tmp_path / "data")


def kept(data: str) -> dict[str, dict[str, ScramCredential]]:
    """The credentials in a directory's store."""

    async def read() -> dict[str, dict[str, ScramCredential]]:
        store = SqliteStore(Path(data))
        await store.open()
        try:
            rows = await store.broker_configs()
        finally:
            await store.close()
        return {
            row.broker: {name: ScramCredential.decode(text) for name, text in row.configs.items()}
            for row in rows
        }

    return asyncio.run(read())


# --- through a broker ---------------------------------------------------------------------------------------


def test_a_user_is_created_listed_and_deleted(muster: Muster, pw: str) -> None:
    assert muster.done("users", "list") == "USER  MECHANISM  ITERATIONS\n"
    created = muster.done("users", "create", "alice", "--password-file", pw)
    assert created == "alice created: SCRAM-SHA-256, SCRAM-SHA-512\n"
    muster.done(
        "users",
        "create",
        "bob",
        "--password-file",
        pw,
        "--mechanism",
        "scram-sha-512",
        "--iterations",
        "4096",
    )
    assert muster.done("users", "list") == (
        "USER   MECHANISM      ITERATIONS\n"
        "alice  SCRAM-SHA-256       16384\n"
        "alice  SCRAM-SHA-512       16384\n"
        "bob    SCRAM-SHA-512        4096\n"
    )  # fmt: skip
    muster.done("users", "delete", "alice", "--mechanism", "SCRAM-SHA-256")
    assert muster("users", "list", "--output", "json").json == [
        {"name": "alice", "credentials": [{"mechanism": "SCRAM-SHA-512", "iterations": 16384}]},
        {"name": "bob", "credentials": [{"mechanism": "SCRAM-SHA-512", "iterations": 4096}]},
    ]
    assert muster.done("users", "delete", "alice", "bob") == "alice deleted\nbob deleted\n"
    assert muster("users", "list", "--output", "json").json == []


def test_json_of_a_change(muster: Muster, pw: str) -> None:
    shown = {
        "name": "alice",
        "credentials": [
            {"mechanism": "SCRAM-SHA-256", "iterations": 16384},
            {"mechanism": "SCRAM-SHA-512", "iterations": 16384},
        ],
    }
    for action in ("create", "passwd"):
        ended = muster("users", action, "alice", "--password-file", pw, "--output", "json")
        assert (ended.code, ended.json) == (0, shown)
    ended = muster("users", "delete", "alice", "nobody", "--output", "json")
    assert ended.code == 1
    assert [(each["name"], each["error"] and each["error"]["code"]) for each in ended.json] == [
        ("alice", None),
        ("nobody", "RESOURCE_NOT_FOUND"),
    ]


def test_a_lost_answer_about_one_user_does_not_hide_the_others(
    muster: Muster, pw: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    muster.done("users", "create", "alice", "--password-file", pw)
    delete = user_calls.delete_user_scram_credentials

    async def lost(cluster: Cluster, user: str, *given: Any, **more: Any) -> None:
        if user == "bob":
            raise ConnectionLost("gone")
        await delete(cluster, user, *given, **more)

    monkeypatch.setattr(user_calls, "delete_user_scram_credentials", lost)
    ended = muster("users", "delete", "bob", "alice")
    assert (ended.code, ended.out) == (1, "alice deleted\n")
    assert ended.err == "muster users delete: bob: gone (NETWORK_EXCEPTION)\n"
    assert muster.refused("users", "delete", "bob") == "muster users delete: gone\n"


def test_create_takes_a_new_user_and_passwd_one_there_is(muster: Muster, pw: str) -> None:
    said = muster.refused("users", "passwd", "alice", "--password-file", pw)
    assert said == "muster users passwd: there is no user alice; muster users create creates one\n"
    muster.done("users", "create", "alice", "--password-file", pw, "--mechanism", "SCRAM-SHA-256")
    said = muster.refused("users", "create", "alice", "--password-file", pw)
    assert said == (
        "muster users create: user alice already exists; muster users passwd changes the password\n"
    )
    assert muster.done("users", "passwd", "alice", "--password-file", pw).startswith(
        "alice has a new password: "
    )
    assert "muster users list shows the users" in muster.refused("users", "delete", "nobody")


# --- the password -------------------------------------------------------------------------------------------


@each(
    "content, said",
    [
        (b"", "empty"),
        (b"\n", "empty"),
        (b"\r\n", "empty"),
        (b"\xef\xbb\xbf\r\n", "empty"),
        (b"secret\nsecret\n", "more than one line"),
        (b"secret\xff", "not UTF-8"),
        (b"secret" * 20_000, "longer than 65536 bytes"),
    ],
)
def test_a_password_that_is_none_is_one_line(
    muster: Muster, tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "pw"
    path.write_bytes(content)
    line = muster.refused("users", "create", "alice", "--password-file", str(path))
    assert line.startswith(f"muster users create: --password-file {path}: ")
    assert said in line
    assert "secret" not in line


def test_a_password_file_that_is_not_there_is_one_line(muster: Muster, tmp_path: Path) -> None:
    line = muster.refused("users", "create", "alice", "--password-file", str(tmp_path / "none"))
    assert line == (f"muster users create: --password-file {tmp_path / 'none'}: No such file or directory\n")


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_password_on_standard_input(data: str, end: str) -> None:
    ended = run("", "users", "create", "alice", "--data", data, stdin=f"{PASSWORD}{end}".encode())
    assert ended.code == 0, ended
    for mechanism, credential in kept(data)["user:alice"].items():
        assert credential.has_password(mechanism, PASSWORD)
    ended = run("", "users", "passwd", "alice", "--data", data)
    assert (ended.code, ended.err) == (
        1,
        "muster users passwd: the password on standard input: empty\n",
    )


@each("again, code", [(PASSWORD, 0), (OTHER, 1)])
def test_a_password_is_asked_for_twice_on_a_terminal(data: str, again: str, code: int) -> None:
    with Terminal("", "users", "create", "alice", "--data", data) as terminal:
        terminal.until("Password of alice: ")
        terminal.type(f"{PASSWORD}\n".encode())
        terminal.until("Again: ")
        terminal.type(f"{again}\n".encode())
        assert terminal.process.wait(DEADLINE_S) == code
        terminal.until("alice created" if code == 0 else "the two passwords differ")
        assert PASSWORD.encode() not in terminal.pieces


def test_a_byte_order_mark_is_no_part_of_a_password(muster: Muster, data: str, tmp_path: Path) -> None:
    file = tmp_path / "pw"
    file.write_text(f"{PASSWORD}\r\n", encoding="utf-8-sig", newline="")
    muster("users", "create", "alice", "--data", data, "--password-file", str(file))
    for mechanism, credential in kept(data)["user:alice"].items():
        assert credential.has_password(mechanism, PASSWORD)


# --- on a store ---------------------------------------------------------------------------------------------


def test_an_empty_path_is_not_the_current_directory(
    muster: Muster, pw: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    said = muster.misused("users", "create", "admin", "--password-file", pw, "--data", "")
    assert "argument --data: '' is not allowed; it takes the path of a data directory" in said
    assert not list(Path().iterdir())


def test_the_users_of_a_directory(muster: Muster, data: str, pw: str) -> None:
    created = muster("users", "create", "admin", "--password-file", pw, "--data", data)
    assert (created.code, created.out) == (0, "admin created: SCRAM-SHA-256, SCRAM-SHA-512\n")
    assert created.err == f"muster users create: {data} is a new data directory\n"
    assert muster.done("users", "create", "other", "--password-file", pw, "--data", data)
    muster.done("users", "delete", "other", "--data", data)
    for mechanism, credential in kept(data)["user:admin"].items():
        assert credential.has_password(mechanism, PASSWORD)
    assert "already exists" in muster.refused(
        "users", "create", "admin", "--password-file", pw, "--data", data
    )
    Path(pw).write_text(OTHER)
    muster.done("users", "passwd", "admin", "--password-file", pw, "--data", data)
    assert kept(data)["user:admin"]["SCRAM-SHA-256"].has_password("SCRAM-SHA-256", OTHER)
    assert muster.done("users", "list", "--data", data) == (
        "USER   MECHANISM      ITERATIONS\n"
        "admin  SCRAM-SHA-256       16384\n"
        "admin  SCRAM-SHA-512       16384\n"
    )  # fmt: skip
    muster.done("users", "delete", "admin", "--mechanism", "SCRAM-SHA-512", "--data", data)
    assert list(kept(data)["user:admin"]) == ["SCRAM-SHA-256"]
    said = muster.refused("users", "delete", "admin", "--mechanism", "SCRAM-SHA-512", "--data", data)
    assert "user admin has no SCRAM-SHA-512 credential to delete (RESOURCE_NOT_FOUND" in said
    muster.done("users", "delete", "admin", "--data", data)
    assert kept(data) == {}


def test_the_store_is_for_its_owner_alone(muster: Muster, data: str, pw: str) -> None:
    assert muster("users", "create", "admin", "--password-file", pw, "--data", data).code == 0
    modes = {each.name: each.stat().st_mode & 0o077 for each in Path(data).glob("store.sqlite*")}
    assert set(modes.values()) == {0}


def test_nobody_is_called_everyone(muster: Muster, pw: str) -> None:
    assert "choose another" in muster.misused("users", "create", "*", "--password-file", pw)


def test_a_directory_in_use_is_refused(muster: Muster, data: str, pw: str) -> None:
    with Served(Path(data)):
        said = muster.refused("users", "create", "admin", "--password-file", pw, "--data", data)
    assert "is in use by process" in said
    assert "leave out --data to ask the broker" in said


def test_only_create_makes_a_directory(muster: Muster, data: str, pw: str) -> None:
    for arguments in (["list"], ["delete", "admin"], ["passwd", "admin", "--password-file", pw]):
        assert "there is no such directory" in muster.misused("users", *arguments, "--data", data)
    assert not Path(data).exists()
    Path(data).mkdir()
    assert "it has neither store.sqlite nor topics" in muster.misused("users", "list", "--data", data)
    assert not any(Path(data).iterdir())


def test_a_database_that_is_not_there_is_one_line(muster: Muster, pw: str) -> None:
    port = free_ports(1)
    url = f"postgresql://u:geheim@127.0.0.1:{port}/d"
    said = muster.refused("users", "create", "admin", "--password-file", pw, "--store", url)
    assert f"127.0.0.1:{port}" in said
    assert "geheim" not in said
    unlike = muster.misused("users", "list", "--store", "mysql://u:geheim@h/d")
    assert "--store: the value given is not allowed" in unlike
    assert "geheim" not in unlike


@each(
    "url, said",
    [
        ("postgresql://u:geh@eim@127.0.0.1:1/d", "percent-encode"),
        ("postgresql://u:geheim@127.0.0.1:99999/d", "the store URL"),
        ("postgresql://u:geheim@127.0.0.1", "the store URL"),
    ],
)
def test_a_url_that_names_no_database_is_one_line(muster: Muster, url: str, said: str) -> None:
    refused = muster.refused("users", "list", "--store", url)
    assert said in refused
    assert "eim" not in refused


def test_the_variable_names_the_database_unless_brokers_are_named(
    broker: Broker, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    port = free_ports(1)
    store = {"MUSTER_STORE": f"postgresql://u:geheim@127.0.0.1:{port}/d"}
    assert cli.main(["users", "list"], store) == 1
    assert f"127.0.0.1:{port}" in capfd.readouterr().err
    properties = tmp_path / "client.properties"
    properties.write_text(f"bootstrap.servers={broker.bootstrap}\n")
    assert cli.main(["users", "list"], {**store, "MUSTER_BOOTSTRAP_SERVERS": broker.bootstrap}) == 0
    assert cli.main(["users", "list"], {**store, "MUSTER_COMMAND_CONFIG": str(properties)}) == 0
    assert cli.main(["users", "list", "--bootstrap-server", broker.bootstrap], store) == 0


# --- the command line ---------------------------------------------------------------------------------------


@each(
    "arguments, said",
    [
        ([], "muster users: the following arguments are required: ACTION"),
        (["lst"], "muster users: unknown action 'lst', did you mean list?"),
        (["create"], "muster users create: the following arguments are required: NAME"),
        (["create", ""], "it takes the name of a user"),
        (["create", "a", "--mechanism", "SCRAM-SHA-255"], "did you mean SCRAM-SHA-25"),
        (["create", "a", "--iterations", "4095"], "it takes a whole number, 4096 to 16384"),
        (["create", "a", "--password", "secret"], "unknown option --password"),
        (["list", "--data", "d", "--store", "s"], "not allowed with argument --data"),
        (["list", "--data", "d", "--bootstrap-server", "h:1"], "it excludes --data and --store"),
        (["list", "--store", "s", "--command-config", "f"], "--command-config is for brokers"),
    ],
)
def test_a_wrong_command_line_is_told_in_one_line(muster: Muster, arguments: list[str], said: str) -> None:
    assert said in muster.misused("users", *arguments)


def test_help(muster: Muster) -> None:
    assert "users" in command_line.EVERYTHING
    shown = muster("users", "create", "--help").out
    for said in (
        "--password-file FILE",
        "--data DIR",
        "--store URL",
        "MUSTER_STORE",
        "Exit codes",
        "JSON: {",
    ):
        assert said in shown


# --- a full round -------------------------------------------------------------------------------------------


def test_the_first_user_lets_the_next_one_in(muster: Muster, data: str, pw: str, tmp_path: Path) -> None:
    def properties(user: str, password: str) -> str:
        path = tmp_path / f"{user}.properties"
        path.write_text(
            f"bootstrap.servers={bootstrap}\nsecurity.protocol=SASL_PLAINTEXT\n"
            "sasl.mechanism=SCRAM-SHA-512\n"
            "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="{user}" password="{password}";\n',
            encoding="utf-8",
        )
        return str(path)

    async def topics(password: str) -> None:
        async with Admin(
            bootstrap,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="SCRAM-SHA-256",
            sasl_plain_username="alice",
            sasl_plain_password=password,
        ) as admin:
            await admin.list_topics()

    assert muster("users", "create", "admin", "--password-file", pw, "--data", data).code == 0
    bootstrap = f"127.0.0.1:{free_ports(1)}"
    options = ("--listeners", f"SASL_PLAINTEXT://{bootstrap}", "--super-users", "User:admin")
    with Served(Path(data), *options):
        config = ("--command-config", properties("admin", PASSWORD))
        Path(pw).write_text(OTHER)
        muster.done("users", "create", "alice", "--password-file", pw, *config)
        asyncio.run(topics(OTHER))
        with pytest.raises(AuthenticationFailed):
            asyncio.run(topics(PASSWORD))
        muster.done("users", "delete", "alice", *config)
        with pytest.raises(AuthenticationFailed):
            asyncio.run(topics(OTHER))
