"""The tables in PostgreSQL: `migrate` creates and upgrades them, `check` verifies them.

All are in the schema `muster` of the database. CockroachDB and YugabyteDB support everything here too, except
`_TUNING`, which is left out where it is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import uuid4

from muster.coordinator.storage.postgres.connect import Server, connect, failure, parse, transaction
from muster.coordinator.storage.postgres.record_schema import RECORD_TABLES, RECORD_TUNING
from muster.coordinator.storage.store import LEASE_COUNTS_DEFAULT, LeaseKind, StoreError

if TYPE_CHECKING:
    from asyncpg import Connection

SCHEMA_VERSION: Final = 4
"""Grows with every change of the tables; `_VERSIONS` has the upgrade to each."""

_KINDS_AT_FIRST: Final = (LeaseKind.GROUP, LeaseKind.DATA)
_TIMEOUT_MS: Final = 60_000
_ATTEMPTS: Final = 10
_LOCK_TIMEOUT_MS: Final = 300
"""While a change of a table waits for a lock, every later statement on that table waits behind it, those of
running brokers too, which lose their leases after a few seconds."""
_LOCK_PAUSE_S: Final = 1.0
_NO_LOCK: Final = "55P03"

# Epochs and terms are kept apart: writing locks the row of `leases`, and renewing, which changes `tenancies`,
# never waits for it. Every lease has its rows from the start, so that claiming inserts none. Times are
# milliseconds by the server's clock. Records have no index on seq: they are sorted when loaded, and upserting
# them changes no index.
_FIRST: Final = (
    """CREATE TABLE muster.store (
        only_row integer PRIMARY KEY CHECK (only_row = 1),
        cluster_id uuid NOT NULL,
        next_producer_id bigint NOT NULL
    )""",
    """CREATE TABLE muster.revision (
        only_row integer PRIMARY KEY CHECK (only_row = 1),
        revision bigint NOT NULL
    )""",
    """CREATE TABLE muster.leases (
        lease_id integer PRIMARY KEY,
        kind text NOT NULL,
        number integer NOT NULL,
        epoch bigint NOT NULL,
        next_seq bigint NOT NULL,
        UNIQUE (kind, number)
    )""",
    """CREATE TABLE muster.tenancies (
        lease_id integer PRIMARY KEY,
        node_id integer,
        epoch bigint NOT NULL,
        expires_ms bigint NOT NULL,
        announced boolean NOT NULL
    )""",
    """CREATE TABLE muster.records (
        lease_id integer NOT NULL,
        key bytea NOT NULL,
        seq bigint NOT NULL,
        value bytea NOT NULL,
        PRIMARY KEY (lease_id, key)
    )""",
    """CREATE TABLE muster.topics (
        topic_id uuid PRIMARY KEY,
        name text NOT NULL UNIQUE,
        partitions integer NOT NULL,
        configs text NOT NULL,
        created_ms bigint NOT NULL
    )""",
    """CREATE TABLE muster.broker_configs (
        broker text PRIMARY KEY,
        configs text NOT NULL
    )""",
    """CREATE TABLE muster.nodes (
        node_id integer PRIMARY KEY,
        host text NOT NULL,
        port integer NOT NULL,
        rack text,
        term_ms bigint NOT NULL,
        incarnation uuid NOT NULL,
        drained boolean NOT NULL,
        listeners text NOT NULL,
        registered_ms bigint NOT NULL
    )""",
    *RECORD_TABLES,
)

# Bounds are kept apart from rows, so that the end remains when all rows are gone.
_SECOND: Final = (
    """CREATE TABLE muster.journals (
        lease_id integer PRIMARY KEY,
        start_offset bigint NOT NULL,
        next_offset bigint NOT NULL,
        size_bytes bigint NOT NULL
    )""",
    """CREATE TABLE muster.journal_rows (
        lease_id integer NOT NULL,
        row_offset bigint NOT NULL,
        at_ms bigint NOT NULL,
        key bytea,
        value bytea NOT NULL,
        PRIMARY KEY (lease_id, row_offset)
    )""",
    "INSERT INTO muster.journals (lease_id, start_offset, next_offset, size_bytes) "
    "SELECT lease_id, 0, 0, 0 FROM muster.leases",
)

# Brokers of the previous version keep running for a while: they register without knowing the column of
# `nodes`. `tombstones` says which records were deleted, for readers that see records as a log; the
# coordinator itself never reads it. Its keys are stored in full, however long, since no index has them.
_THIRD: Final = (
    "ALTER TABLE muster.topics ADD COLUMN assignments text NOT NULL DEFAULT ''",
    "ALTER TABLE muster.nodes ADD COLUMN keeps_replicas boolean NOT NULL DEFAULT false",
    """CREATE TABLE muster.replica_lists (
        number integer PRIMARY KEY,
        replicas text NOT NULL UNIQUE
    )""",
    """CREATE TABLE muster.tombstones (
        lease_id integer NOT NULL,
        seq bigint NOT NULL,
        key bytea NOT NULL,
        deleted_ms bigint NOT NULL,
        PRIMARY KEY (lease_id, seq)
    )""",
)

# Brokers of the previous version keep running for a while, as with the third. `letters` holds messages
# between brokers until they are taken; they are worthless once the server has crashed.
_FOURTH: Final = (
    "ALTER TABLE muster.nodes ADD COLUMN keeps_transactions boolean NOT NULL DEFAULT false",
    """CREATE TABLE muster.letters (
        node_id integer NOT NULL,
        sender uuid NOT NULL,
        number bigint NOT NULL,
        incarnation uuid NOT NULL,
        posted_ms bigint NOT NULL,
        payload bytea NOT NULL,
        PRIMARY KEY (node_id, sender, number)
    )""",
)

_VERSIONS: Final[Sequence[Sequence[str]]] = (_FIRST, _SECOND, _THIRD, _FOURTH)
"""The statements that lead from version n to n + 1."""
_KINDS_ADDED: Final = {3: LeaseKind.REPLICAS, 4: LeaseKind.TRANSACTION}
"""The kinds of leases added later, by the version that added each."""


def _often_updated(table: str, fill: int, threshold: int) -> str:
    """Leaves room for a row's next version beside it, and has dead rows vacuumed early."""
    return (
        f"ALTER TABLE muster.{table} SET (fillfactor = {fill}, autovacuum_vacuum_scale_factor = 0.0, "
        f"autovacuum_vacuum_threshold = {threshold}, autovacuum_vacuum_cost_delay = 0)"
    )


_TUNING: Final[Mapping[int, Sequence[str]]] = {
    1: (
        _often_updated("revision", 10, 1_000),
        _often_updated("leases", 25, 5_000),
        _often_updated("tenancies", 25, 5_000),
        _often_updated("nodes", 25, 1_000),
        "ALTER TABLE muster.records SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05)",
        *RECORD_TUNING,
    ),
    2: (_often_updated("journals", 25, 5_000),),
    4: (
        "ALTER TABLE muster.letters SET UNLOGGED",
        "ALTER TABLE muster.letters SET (autovacuum_vacuum_scale_factor = 0.0, "
        "autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0)",
    ),
}
"""For the tables that a version adds, in the same transaction: then no vacuum can hold up a statement. A
database that does not know these may refuse them."""


class Migration(NamedTuple):
    """What `migrate` did."""

    before: int | None
    """The version found; None if there were no tables yet."""
    after: int


async def migrate(
    url: str, *, lease_counts: Mapping[LeaseKind, int] | None = None, name: str = "muster-migrate"
) -> Migration:
    """Create the tables, or upgrade them to this version. Does nothing if they are up to date; two at once
    are safe. Running brokers are not held up for longer than a moment: if another session uses a table that
    must change, it is tried again and again.

    `lease_counts` are fixed by the first run. Raises StoreError, also for a newer schema.
    """
    server = parse(url)
    counts = {**LEASE_COUNTS_DEFAULT, **(lease_counts or {})}
    connection = await connect(server, name=name, statement_timeout_ms=_TIMEOUT_MS)
    attempts_left, table_in_use = _ATTEMPTS, False
    try:
        async with asyncio.timeout(_TIMEOUT_MS / 1000):
            await connection.execute(f"SET idle_in_transaction_session_timeout = {_TIMEOUT_MS}")
            while True:
                try:
                    async with transaction(connection):
                        return await _migrate(connection, server, counts)
                except StoreError:
                    raise
                except Exception as error:
                    table_in_use = getattr(error, "sqlstate", None) == _NO_LOCK
                    if not table_in_use:
                        attempts_left -= 1
                        if not attempts_left or not _met_another(error):
                            raise
                if table_in_use:
                    await asyncio.sleep(_LOCK_PAUSE_S)
    except StoreError:
        raise
    except TimeoutError:
        why = "; another session keeps using muster's tables (pg_dump?): let it end, then try again"
        raise StoreError(
            f"migrating {server.name}: timed out after {_TIMEOUT_MS} ms{why if table_in_use else ''}"
        ) from None
    except Exception as error:
        if getattr(error, "sqlstate", None) == "42501":
            raise StoreError(
                f"migrating {server.name}: {error}; the user needs permission to create a schema in the "
                "database (GRANT CREATE ON DATABASE), or tables in the schema muster if it exists"
            ) from error
        raise failure(f"migrating {server.name}", error) from error
    finally:
        with suppress(Exception):
            await connection.close(timeout=2)


def _met_another(error: Exception) -> bool:
    """Whether another migration was doing the same and has won: trying again waits for it.

    A name or a row that appeared meanwhile, a deadlock, and PostgreSQL's "tuple concurrently updated".
    """
    return getattr(error, "sqlstate", None) in ("23505", "42P06", "42P07", "40001", "40P01", "XX000")


async def _migrate(connection: Connection, server: Server, counts: Mapping[LeaseKind, int]) -> Migration:
    # Not CREATE ... IF NOT EXISTS alone, which needs the right to create even if there is nothing to do.
    if not await connection.fetchval(
        "SELECT count(*) FROM information_schema.schemata WHERE schema_name = 'muster'"
    ):
        await connection.execute("CREATE SCHEMA muster")
    if not await connection.fetchval(
        "SELECT count(*) FROM information_schema.tables "
        "WHERE table_schema = 'muster' AND table_name = 'schema_version'"
    ):
        await connection.execute(
            "CREATE TABLE muster.schema_version (only_row integer PRIMARY KEY, version integer NOT NULL)"
        )
        await connection.execute("INSERT INTO muster.schema_version (only_row, version) VALUES (1, 0)")
    # Two migrations that get here at once wait for each other.
    before: int = await connection.fetchval("SELECT version FROM muster.schema_version FOR UPDATE")
    if before > SCHEMA_VERSION:
        raise _newer(server, before)
    if before:
        await _run_if_known(connection, f"SET LOCAL lock_timeout = {_LOCK_TIMEOUT_MS}")
    for version, statements in enumerate(_VERSIONS[before:], start=before + 1):
        for statement in statements:
            await connection.execute(statement)
        if version == 1:
            await _fill(connection)
            await _add_leases(connection, {kind: counts[kind] for kind in _KINDS_AT_FIRST})
        if (kind := _KINDS_ADDED.get(version)) is not None:
            await _add_leases(connection, {kind: counts[kind]})
            await connection.execute(
                "INSERT INTO muster.journals (lease_id, start_offset, next_offset, size_bytes) "
                "SELECT lease_id, 0, 0, 0 FROM muster.leases WHERE kind = $1",
                kind.value,
            )
        for statement in _TUNING.get(version, ()):
            await _run_if_known(connection, statement)
    if before < SCHEMA_VERSION:
        await connection.execute("UPDATE muster.schema_version SET version = $1", SCHEMA_VERSION)
    return Migration(before or None, SCHEMA_VERSION)


async def _run_if_known(connection: Connection, statement: str) -> None:
    """Run a statement of a transaction, or leave it out if the database refuses it."""
    import asyncpg

    try:
        async with transaction(connection):
            await connection.execute(statement)
    except asyncpg.PostgresError:
        if connection.is_closed():
            raise


async def _fill(connection: Connection) -> None:
    await connection.execute(
        "INSERT INTO muster.store (only_row, cluster_id, next_producer_id) VALUES (1, $1, 0)", uuid4()
    )
    await connection.execute("INSERT INTO muster.revision (only_row, revision) VALUES (1, 1)")


async def _add_leases(connection: Connection, counts: Mapping[LeaseKind, int]) -> None:
    # Ids are in the order of kind and number, in which rows are locked.
    leases = [(kind.value, number) for kind in sorted(counts) for number in range(counts[kind])]
    first: int = await connection.fetchval("SELECT COALESCE(max(lease_id) + 1, 0) FROM muster.leases")
    await connection.executemany(
        "INSERT INTO muster.leases (lease_id, kind, number, epoch, next_seq) VALUES ($1, $2, $3, 0, 1)",
        [(lease_id, *lease) for lease_id, lease in enumerate(leases, start=first)],
    )
    await connection.executemany(
        "INSERT INTO muster.tenancies (lease_id, node_id, epoch, expires_ms, announced) "
        "VALUES ($1, NULL, 0, 0, false)",
        [(lease_id,) for lease_id in range(first, first + len(leases))],
    )


async def check(connection: Connection, server: Server) -> None:
    """Raise StoreError unless the tables exist and are of this version."""
    try:
        version = await connection.fetchval("SELECT version FROM muster.schema_version")
    except Exception as error:
        if getattr(error, "sqlstate", None) in ("42P01", "3F000"):
            version = None
        else:
            raise
    if version is None:
        raise StoreError(
            f"the database {server.name} has no muster tables: create them with "
            "muster store migrate --store URL"
        )
    if version < SCHEMA_VERSION:
        raise StoreError(
            f"the database {server.name} has muster schema {version}, but this version needs "
            f"{SCHEMA_VERSION}: upgrade it with muster store migrate --store URL"
        )
    if version > SCHEMA_VERSION:
        raise _newer(server, version)


def _newer(server: Server, version: int) -> StoreError:
    return StoreError(
        f"the database {server.name} has muster schema {version}, created by a newer muster (this one knows "
        f"{SCHEMA_VERSION}): use that version, or another database"
    )
