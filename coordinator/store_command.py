"""`muster store`: create or upgrade the tables of a shared database, and check stored data for damage.

It works on the store and contacts no broker, so it is not a client command.
"""

from __future__ import annotations

import json
import re
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from muster.coordinator.arguments import EXIT_FAILED, EXIT_USAGE, Parser, fail, printable
from muster.coordinator.config import STORE_PATTERN, STORE_SHAPE, variable

if TYPE_CHECKING:
    from muster.coordinator.storage.soundness import Checked, Fault

_MIGRATE: Final = f"""\
Creates the tables for the brokers' state and records in the schema "muster" of the database, or upgrades
those of an earlier version. Safe to repeat and to run concurrently. Brokers never create tables and do not
start without them.

URL is {STORE_SHAPE}. Percent-encode special
characters in user and password (/ is %2F, @ is %40). The password may also come from PGPASSWORD or ~/.pgpass.

Exit codes: 0 done; 1 failed, the message says why; 2 wrong usage; 130 interrupted."""


_CHECK: Final = """\
In a data directory, checks every batch of every topic (checksum, order of offsets), indexes and snapshots,
runs SQLite's integrity check, and verifies the checksum of every group record and event. No broker may use
the directory meanwhile: stop it first, or check a copy. Nothing is changed. Leftovers of a killed process,
such as a torn log tail, are not faults: the next start repairs them.

In a database (URL as for migrate), checks the records of topics the same way. Brokers may keep running. To
check a standby, name it alone: of several hosts, the one that accepts writes is checked.

Prints one line per fault: location, partition, lost offsets, what is wrong, what to do.

Exit codes: 0 no damage; 1 damage found, or the check failed, and a message on standard error
says why; 2 wrong usage; 130 interrupted."""


def declare(commands: Any, name: str, summary: str) -> None:
    """Add the command and its actions."""
    parser: Parser = commands.add_parser(
        name, help=summary, description=f"{summary[0].upper()}{summary[1:]}."
    )
    below = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    what = "create or upgrade the tables"
    migrating: Parser = below.add_parser(
        "migrate", help=what, description=f"{what[0].upper()}{what[1:]}.\n\n{_MIGRATE}"
    )
    migrating.add_argument("--store", metavar="URL", help=f"database to use (variable {variable('store')})")
    migrating.set_defaults(work=migrate, prog=migrating.prog)
    what = "check stored data for damage"
    checking: Parser = below.add_parser(
        "check", help=what, description=f"{what[0].upper()}{what[1:]}.\n\n{_CHECK}"
    )
    where = checking.add_mutually_exclusive_group()
    where.add_argument("--data", metavar="DIR", help=f"data directory to check (variable {variable('data')})")
    where.add_argument(
        "--store", metavar="URL", help=f"database to check instead (variable {variable('store')})"
    )
    checking.add_argument(
        "--output", choices=("table", "json"), default="table", help="table for people, json for programs"
    )
    checking.set_defaults(work=check, prog=checking.prog)


def migrate(given: Namespace, variables: Mapping[str, str]) -> int:
    """Create or upgrade the tables; returns the exit code."""
    url = _asked(given, variables, "store")
    if not url:
        return fail(given.prog, f"--store or {variable('store')} must name the database", EXIT_USAGE)
    refusal = unlike_a_url(given, url)
    if refusal is not None:
        return refusal

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


def check(given: Namespace, variables: Mapping[str, str]) -> int:
    """Report faults; returns the exit code."""
    url = None if given.data else _asked(given, variables, "store")
    data = None if url else _asked(given, variables, "data")
    if url:
        refusal = unlike_a_url(given, url)
        if refusal is not None:
            return refusal
    elif not data:
        return fail(
            given.prog,
            f"--data or {variable('data')} must name a data directory, or --store or "
            f"{variable('store')} a database",
            EXIT_USAGE,
        )

    from muster.coordinator.storage.soundness import Checked, Fault, NoDataDirectory, check_directory
    from muster.coordinator.storage.store import StoreError, StoreLocked

    checked, faults = Checked(), list[Fault]()

    def note(fault: Fault) -> None:
        faults.append(fault)
        if given.output == "table":
            print(printable(_line(fault)), flush=True)

    try:
        if url:
            import asyncio

            asyncio.run(_check_database(url, checked, note))
        else:
            for fault in check_directory(Path(data or ""), checked):
                note(fault)
    except NoDataDirectory as error:
        return fail(given.prog, str(error), EXIT_USAGE)
    except StoreLocked as error:
        advice = "stop that process, or check a snapshot: files copied one by one while it runs do not match"
        return fail(given.prog, f"{error.fact}; {advice}", EXIT_FAILED)
    except (StoreError, OSError) as error:
        return fail(given.prog, str(error), EXIT_FAILED)
    if given.output == "json":
        told = {"sound": not faults, "checked": asdict(checked), "faults": [asdict(each) for each in faults]}
        print(json.dumps(told, indent=2, ensure_ascii=False))
    else:
        print(_summary(checked, len(faults)))
    return EXIT_FAILED if faults else 0


async def _check_database(url: str, checked: Checked, note: Callable[[Fault], None]) -> None:
    from muster.coordinator.storage.postgres.soundness import check_database

    async for fault in check_database(url, checked):
        note(fault)


def _line(fault: Fault) -> str:
    place = fault.place if fault.position is None else f"{fault.place}, byte {fault.position}"
    lost = ""
    if fault.partition is not None:
        lost = f"{fault.partition}: "
        if fault.first_offset is not None:
            last = "the end" if fault.last_offset is None else fault.last_offset
            lost = f"{fault.partition}, offsets {fault.first_offset} to {last}: "
    return f"{place}: {lost}{fault.what}; {fault.advice}"


def _summary(checked: Checked, faults: int) -> str:
    found = "no damage" if not faults else "1 fault" if faults == 1 else f"{faults} faults"
    return (
        f"{found} (partitions: {checked.partitions}, segments: {checked.segments}, "
        f"batches: {checked.batches}, bytes: {checked.bytes}; "
        f"records and events of groups: {checked.group_rows})"
    )


def _asked(given: Namespace, variables: Mapping[str, str], name: str) -> str | None:
    """The option, or its variable."""
    found: str | None = getattr(given, name)
    return variables.get(variable(name)) if found is None else found


def unlike_a_url(given: Namespace, url: str) -> int | None:
    """Fail if this is not a database URL, without printing it: it may contain a password."""
    if re.fullmatch(STORE_PATTERN, url) is not None:
        return None
    option = "--store" if given.store is not None else variable("store")
    return fail(given.prog, f"{option}: the value given is not allowed; it takes {STORE_SHAPE}", EXIT_USAGE)


def _outcome(before: int | None, after: int) -> str:
    if before is None:
        return f"created the tables, version {after}"
    if before == after:
        return f"the tables already have version {after}"
    return f"upgraded the tables from version {before} to {after}"
