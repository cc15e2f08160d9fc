"""The actions of `muster users`: list, create, delete, passwd. They work on the users that brokers keep or,
for the first user, on those in a store (see `users_command`)."""

from __future__ import annotations

import getpass
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from muster.client.admin import users as user_calls
from muster.client.admin.answers import Outcomes, failure_of
from muster.client.admin.users import Credentials
from muster.client.errors import ClientError
from muster.client.network.cluster import Cluster
from muster.client.network.connection import deadline
from muster.coordinator.arguments import printable
from muster.coordinator.commands import output
from muster.coordinator.commands.run import Failed, Usage, report_outcomes
from muster.protocol.errors import ErrorCode, KafkaError

_PASSWORD_BYTES_MAX: Final = 64 * 1024


class Users(Protocol):
    """Where users are kept. Each call raises KafkaError or another error that the command reports."""

    async def describe(self, names: Sequence[str] | None) -> Outcomes[str, Credentials]:
        """The credentials of these users, or of all if None. A user without any is RESOURCE_NOT_FOUND."""

    async def upsert(self, name: str, password: str, mechanisms: Sequence[str], iterations: int) -> None:
        """Set a user's password for these mechanisms."""

    async def delete(self, name: str, mechanisms: Sequence[str] | None) -> None:
        """Delete a user's credentials for these mechanisms, or for all if None."""


class UsersOfCluster:
    """The users that brokers keep, muster's or Apache Kafka's."""

    def __init__(self, cluster: Cluster, timeout_s: float) -> None:
        self._cluster = cluster
        self._until = deadline(timeout_s)

    async def describe(self, names: Sequence[str] | None) -> Outcomes[str, Credentials]:
        return await user_calls.describe_user_scram_credentials(self._cluster, names, self._until)

    async def upsert(self, name: str, password: str, mechanisms: Sequence[str], iterations: int) -> None:
        await user_calls.upsert_user_scram_credentials(
            self._cluster, name, password, self._until, mechanisms=mechanisms, iterations=iterations
        )

    async def delete(self, name: str, mechanisms: Sequence[str] | None) -> None:
        await user_calls.delete_user_scram_credentials(
            self._cluster, name, self._until, mechanisms=mechanisms
        )


async def list_users(users: Users, given: Namespace) -> int:
    """List users with their credentials."""
    found = (await users.describe(None)).raise_for_failures()
    if given.output == "json":
        print(output.document([_json(name, credentials) for name, credentials in found.items()]))
    else:
        rows = [
            (name, mechanism, iterations)
            for name, credentials in found.items()
            for mechanism, iterations in credentials.items()
        ]
        print(output.table(("USER", "MECHANISM", "ITERATIONS"), rows))
    return 0


async def create_user(users: Users, given: Namespace) -> int:
    """Create a user."""
    if given.user == "*":
        raise Usage("the user *: ACLs take this name for everyone's; choose another")
    if await _exists(users, given.user):
        raise Failed(f"user {given.user} already exists; muster users passwd changes the password")
    return await _upsert(users, given, "created")


async def change_password(users: Users, given: Namespace) -> int:
    """Change a user's password."""
    if not await _exists(users, given.user):
        raise Failed(f"there is no user {given.user}; muster users create creates one")
    return await _upsert(users, given, "has a new password")


async def delete_users(users: Users, given: Namespace) -> int:
    """Delete users."""
    outcomes: Outcomes[str, None] = Outcomes()
    names = list(dict.fromkeys(given.users))
    for name in names:
        try:
            await users.delete(name, given.mechanism)
        except KafkaError as error:
            outcomes[name] = error
        except ClientError as error:
            if len(names) == 1:
                raise
            outcomes[name] = failure_of(error)
        else:
            outcomes[name] = None
    return report_outcomes(given, outcomes, "name", "deleted")


async def _exists(users: Users, name: str) -> bool:
    found = (await users.describe([name]))[name]
    if not isinstance(found, KafkaError):
        return True
    if found.code == ErrorCode.RESOURCE_NOT_FOUND:
        return False
    raise found


async def _upsert(users: Users, given: Namespace, done: str) -> int:
    mechanisms = list(dict.fromkeys(given.mechanism or user_calls.MECHANISMS))
    await users.upsert(given.user, given.password, mechanisms, given.iterations)
    if given.output == "json":
        print(output.document(_json(given.user, dict.fromkeys(mechanisms, given.iterations))))
    else:
        print(f"{printable(given.user)} {done}: {', '.join(mechanisms)}")
    return 0


def _json(name: str, credentials: Mapping[str, int]) -> dict[str, Any]:
    return {
        "name": name,
        "credentials": [
            {"mechanism": mechanism, "iterations": iterations}
            for mechanism, iterations in credentials.items()
        ],
    }


# --- the password -------------------------------------------------------------------------------------------


def read_password(path: str | None, user: str) -> str:
    """Read a password from the file, or from standard input if None: twice and without echo on a terminal,
    otherwise one line. Raises Failed."""
    if path is not None:
        return _checked(_of_file(path), f"--password-file {path}")
    if sys.stdin is None:
        raise Failed("standard input is closed; use --password-file")
    if not sys.stdin.isatty():
        return _checked(sys.stdin.buffer.readline(_PASSWORD_BYTES_MAX + 1), "the password on standard input")
    try:
        password = getpass.getpass(f"Password of {printable(user)}: ")
        if password and getpass.getpass("Again: ") != password:
            raise Failed("the two passwords differ")
    except EOFError:
        raise Failed("no password was given") from None
    return _checked(password.encode(errors="surrogateescape"), "the password")


def _of_file(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(_PASSWORD_BYTES_MAX + 1)
    except OSError as error:
        raise Failed(f"--password-file {path}: {error.strerror}") from error


def _checked(given: bytes, where: str) -> str:
    if len(given) > _PASSWORD_BYTES_MAX:
        raise Failed(f"{where}: longer than {_PASSWORD_BYTES_MAX} bytes")
    try:
        # Some editors and shells of Windows begin UTF-8 with a byte order mark, which nobody types.
        password = given.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Failed(f"{where}: not UTF-8") from None
    if not password:
        raise Failed(f"{where}: empty")
    if "\n" in password or "\0" in password:
        raise Failed(f"{where}: more than one line of text")
    return password
