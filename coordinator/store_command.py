"""`muster store`: the tables of a database that brokers share.

It works on the store and asks no broker, so it is none of the commands that are clients.
"""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Mapping
from typing import Any, Final

from muster.coordinator.arguments import EXIT_FAILED, EXIT_USAGE, Parser, fail
from muster.coordinator.config import STORE_PATTERN, STORE_SHAPE, variable

_MIGRATE: Final = f"""\
Makes the tables that brokers keep their state and records in, in the schema "muster" of the database, or
upgrades those of an earlier version. Harmless when repeated, and when two do it at once. Brokers make no
tables: they do not start before this was done.

URL is {STORE_SHAPE}, with what is special
in user and password written in percent (/ is %2F, @ is %40). A password may also stand in PGPASSWORD or
~/.pgpass.

Exit codes: 0 done; 1 could not be carried out, the message says why; 2 wrong usage; 130 interrupted."""


def declare(commands: Any, name: str, summary: str) -> None:
    """Add the command and its actions."""
    parser: Parser = commands.add_parser(
        name, help=summary, description=f"{summary[0].upper()}{summary[1:]}."
    )
    below = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    what = "make the tables, or upgrade them"
    migrating: Parser = below.add_parser(
        "migrate", help=what, description=f"{what[0].upper()}{what[1:]}.\n\n{_MIGRATE}"
    )
    migrating.add_argument(
        "--store", metavar="URL", help=f"database to work on (variable {variable('store')})"
    )
    migrating.set_defaults(work=migrate, prog=migrating.prog)


def migrate(given: Namespace, variables: Mapping[str, str]) -> int:
    """Make or upgrade the tables; the exit code."""
    option, url = "--store", given.store
    if url is None:
        option, url = variable("store"), variables.get(variable("store"))
        if not url:
            return fail(given.prog, f"--store or {option} has to name the database", EXIT_USAGE)
    if re.fullmatch(STORE_PATTERN, url) is None:  # which is not shown: it may hold a password
        return fail(
            given.prog, f"{option}: what was given is not allowed; it takes {STORE_SHAPE}", EXIT_USAGE
        )

    import asyncio

    from muster.coordinator.commands.progress import Progress
    from muster.coordinator.storage import postgres
    from muster.coordinator.storage.store import StoreError

    async def migration() -> postgres.Migration:
        with Progress(given.prog, None):
            return await postgres.migrate(url)

    try:
        done = asyncio.run(migration())
    except StoreError as error:
        return fail(given.prog, str(error), EXIT_FAILED)
    print(f"{postgres.server_of(url)}: {_outcome(done.before, done.after)}")
    return 0


def _outcome(before: int | None, after: int) -> str:
    if before is None:
        return f"made the tables, version {after}"
    if before == after:
        return f"the tables are of version {after} already"
    return f"upgraded the tables from version {before} to {after}"
