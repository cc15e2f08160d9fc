"""`muster users`: manage SCRAM users. It goes through the brokers, like any client command, but can write the
first user of a cluster that lets nobody else in directly into its store."""

from __future__ import annotations

import argparse
import asyncio
import sys
from argparse import Namespace
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from muster.client.admin.answers import Outcomes
from muster.client.admin.users import ITERATIONS_DEFAULT, MECHANISMS, Credentials
from muster.client.network.cluster import Cluster
from muster.coordinator.arguments import EXIT_USAGE, Parser, fail
from muster.coordinator.commands import users as acts
from muster.coordinator.commands.options import (
    BOOTSTRAP_VARIABLE,
    CONFIG_VARIABLE,
    actions,
    command,
    number,
    one_of,
)
from muster.coordinator.commands.run import Failed, Usage, reported, run
from muster.coordinator.config import variable
from muster.coordinator.security.scram import ITERATIONS, ScramCredential
from muster.coordinator.store_command import unlike_a_url
from muster.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from muster.coordinator.server.users import Users
    from muster.coordinator.storage.store import Store

_WHERE: Final = f"""\
Brokers are asked unless --data or --store is given. Those work on the store itself, for the first user of a
cluster that lets nobody else in: on a data directory while no broker runs there, on a database at any time.
{variable("store")} names the database if no brokers are named, by an option or a variable."""

_PASSWORD: Final = """\
Without --password-file the password is asked for on a terminal, twice, or read from standard input: one line.
Only a salted hash of it is sent and stored. A final newline does not count."""

_CREDENTIALS: Final = '{"name": text, "credentials": [{"mechanism": text, "iterations": number}]}'
_LIST_JSON: Final = f"JSON: [{_CREDENTIALS}], by name"
_UPSERT_JSON: Final = f"JSON: {_CREDENTIALS}"
_DELETE_JSON: Final = """\
JSON: [{"name": text, "error": null or {"code": Kafka's name, "message": text}}]"""
_DELETE: Final = """\
Connections that have logged in stay open. With --mechanism the user keeps the other credential."""

Act = Callable[[acts.Users, Namespace], Awaitable[int]]


def declare(commands: Any, name: str, summary: str) -> None:
    """Add the command and its actions."""
    below = actions(commands, name, summary)
    _command(below, "list", "list SCRAM users", acts.list_users, _LIST_JSON)
    for action, what, act in (
        ("create", "create a SCRAM user", acts.create_user),
        ("passwd", "change the password of a SCRAM user", acts.change_password),
    ):
        parser = _command(below, action, what, act, _PASSWORD, _UPSERT_JSON)
        parser.add_argument("user", metavar="NAME", type=_name)
        parser.add_argument("--password-file", metavar="FILE", help="file that holds the password")
        _add_mechanism(parser, "SCRAM mechanism to set the password for; may be repeated (default: both)")
        parser.add_argument(
            "--iterations",
            type=number(ITERATIONS[0], ITERATIONS[-1]),
            default=ITERATIONS_DEFAULT,
            metavar="N",
            help=f"of the hash, {ITERATIONS[0]} to {ITERATIONS[-1]} (default {ITERATIONS_DEFAULT})",
        )
        parser.set_defaults(asks=True)
    delete = _command(below, "delete", "delete SCRAM users", acts.delete_users, _DELETE, _DELETE_JSON)
    delete.add_argument("users", metavar="NAME", type=_name, nargs="+")
    _add_mechanism(delete, "delete only the credential for this mechanism; may be repeated")


def _command(commands: Any, name: str, summary: str, act: Act, *description: str) -> Parser:
    parser = command(commands, name, summary, "\n\n".join((_WHERE, *description)))
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--data",
        type=_directory,
        metavar="DIR",
        help="data directory to work on instead of asking brokers",
    )
    where.add_argument(
        "--store",
        metavar="URL",
        help=f"database to work on instead of asking brokers (variable {variable('store')})",
    )
    parser.set_defaults(work=work, act=act, asks=False)
    return parser


def _add_mechanism(parser: Parser, meaning: str) -> None:
    added: Any = parser.add_argument(
        "--mechanism", type=one_of(MECHANISMS), action="append", metavar="MECHANISM", help=meaning
    )
    added.known = MECHANISMS


def _directory(text: str) -> str:
    """Parse a path. An empty one, such as a script's unset variable, is not the current directory."""
    if not text:
        raise argparse.ArgumentTypeError("'' is not allowed; it takes the path of a data directory")
    return text


def _name(text: str) -> str:
    """Parse the name of a user."""
    try:
        text.encode()
    except UnicodeEncodeError:
        text = ""
    if not text:
        raise argparse.ArgumentTypeError("it takes the name of a user, in UTF-8 and not empty")
    return text


def work(given: Namespace, variables: Mapping[str, str]) -> int:
    """Run the action; returns the exit code."""
    named = [each for each in ("bootstrap_server", "command_config") if getattr(given, each) is not None]
    if named and (given.data is not None or given.store is not None):
        option = f"--{named[0].replace('_', '-')}"
        return fail(given.prog, f"{option} is for brokers; it excludes --data and --store", EXIT_USAGE)
    if given.data is None and given.store is None:
        asked = named or variables.get(BOOTSTRAP_VARIABLE) or variables.get(CONFIG_VARIABLE)
        url = None if asked else variables.get(variable("store"))
    else:
        url = given.store
    if url is not None:
        refusal = unlike_a_url(given, url)
        if refusal is not None:
            return refusal

    def body() -> int:
        is_new = False
        if given.data is not None:
            absent = _no_data_directory(given.data)
            is_new = absent is not None
            if absent is not None and given.act is not acts.create_user:
                raise Usage(f"--data: {absent}")
        if given.asks:
            given.password = acts.read_password(given.password_file, given.user)
        if url is None and given.data is None:
            return run(_on_cluster, given, variables)
        code = asyncio.run(_on_store(given, url))
        if is_new:  # as a mistyped path is, too
            print(f"{given.prog}: {given.data} is a new data directory", file=sys.stderr)
        return code

    return reported(given, body)


def _no_data_directory(path: str) -> str | None:
    """Why a path is not a data directory; None if it is one."""
    from muster.coordinator.storage.soundness import NoDataDirectory, expect_data_directory

    try:
        expect_data_directory(Path(path))
    except NoDataDirectory as error:
        return str(error)
    return None


async def _on_cluster(cluster: Cluster, given: Namespace) -> int:
    return int(await given.act(acts.UsersOfCluster(cluster, given.timeout), given))


async def _on_store(given: Namespace, url: str | None) -> int:
    from muster.coordinator.server.config_rows import ConfigRows
    from muster.coordinator.server.users import Users
    from muster.coordinator.storage.store import StoreError, StoreLocked

    try:
        store = _store(given, url)
        async with asyncio.timeout(given.timeout):
            await store.open()
            try:
                rows = ConfigRows(store)
                users = Users(rows)
                await rows.refresh()
                return int(await given.act(UsersOfStore(users), given))
            finally:
                await store.close()
    except StoreLocked as error:
        raise Failed(f"{error}; or leave out --data to ask the broker that runs there") from error
    except StoreError as error:
        raise Failed(str(error)) from error
    except TimeoutError:
        raise Failed(f"the store did not answer within {given.timeout:g} s") from None


def _store(given: Namespace, url: str | None) -> Store:
    if url is None:
        from muster.coordinator.storage.sqlite import SqliteStore

        return SqliteStore(Path(given.data))
    from muster.coordinator.storage.postgres import PostgresStore

    return PostgresStore(url, name=given.prog.replace(" ", "-"), readers=1)


class UsersOfStore:
    """The users in a store, as `acts.Users`."""

    def __init__(self, users: Users) -> None:
        self._users = users

    async def describe(self, names: Sequence[str] | None) -> Outcomes[str, Credentials]:
        return Outcomes(
            {
                name: {mechanism: each.iterations for mechanism, each in sorted(found.items())}
                if (found := self._users.of(name))
                else _missing(f"there is no user {name} with a SCRAM credential")
                for name in (self._users if names is None else names)
            }
        )

    async def upsert(self, name: str, password: str, mechanisms: Sequence[str], iterations: int) -> None:
        made = {each: ScramCredential.of_password(each, password, iterations) for each in mechanisms}
        await self._users.alter(name, made)

    async def delete(self, name: str, mechanisms: Sequence[str] | None) -> None:
        has = self._users.of(name)
        if not has:
            raise _missing(f"there is no user {name} with a SCRAM credential")
        for each in mechanisms or ():
            if each not in has:
                raise _missing(f"user {name} has no {each} credential to delete")
        await self._users.alter(name, dict.fromkeys(mechanisms or has))


def _missing(why: str) -> KafkaError:
    return KafkaError(ErrorCode.RESOURCE_NOT_FOUND, why)
