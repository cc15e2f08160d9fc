"""Creating and checking the schema, and store URLs: errors say what is wrong, never with the password."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from traceback import format_exception
from uuid import UUID

import asyncpg
import pytest

from muster.coordinator.storage.postgres import PostgresStore, migrate, schema, server_of
from muster.coordinator.storage.postgres.schema import SCHEMA_VERSION
from muster.coordinator.storage.store import (
    LEASE_COUNTS_DEFAULT,
    Append,
    Assignment,
    JournalBounds,
    JournalRow,
    Lease,
    LeaseKind,
    Letter,
    NodeRow,
    Outcome,
    Posted,
    StoreBusy,
    StoreError,
    TopicRow,
)
from tests.support.each import each
from tests.support.facts import until
from tests.support.ports import free_ports
from tests.support.postgres import Postgres

SECRETS = ("open sesame", "open%20sesame", "sesame")


def no_secret(error: BaseException) -> bool:
    """Whether neither the message nor the traceback, including its causes, contains a password."""
    told = "".join(format_exception(error))
    return "\n" not in str(error) and not any(secret in told for secret in SECRETS)


async def test_migrating_makes_the_tables_once_and_is_harmless_again(postgres: Postgres) -> None:
    url = postgres.empty_database()
    counts = {LeaseKind.GROUP: 3, LeaseKind.TRANSACTION: 5, LeaseKind.DATA: 2, LeaseKind.REPLICAS: 4}
    assert await migrate(url, lease_counts=counts) == (None, SCHEMA_VERSION)
    store = PostgresStore(url)
    await store.open()
    before = await store.counts()
    assert before.leases == counts
    await store.close()
    assert await migrate(url) == (SCHEMA_VERSION, SCHEMA_VERSION)
    await store.open()
    assert await store.counts() == before
    await store.close()


async def test_migrations_at_the_same_time_make_one_store(postgres: Postgres) -> None:
    url = postgres.empty_database()
    done = await asyncio.gather(*(migrate(url) for _ in range(6)))
    assert {migration.after for migration in done} == {SCHEMA_VERSION}
    assert [migration.before for migration in done].count(None) == 1
    database = url.rpartition("/")[2]
    assert postgres.execute("SELECT count(*) FROM muster.leases", database=database) == str(
        sum(LEASE_COUNTS_DEFAULT.values())
    )
    assert postgres.execute("SELECT count(*) FROM muster.store", database=database) == "1"


async def test_opening_makes_nothing(postgres: Postgres) -> None:
    url = postgres.empty_database()
    with pytest.raises(
        StoreError, match=r"127\.0\.0\.1:\d+/muster_\d+ has no muster tables: .* muster store migrate"
    ):
        await PostgresStore(url).open()
    found = "SELECT count(*) FROM information_schema.schemata WHERE schema_name = 'muster'"
    assert postgres.execute(found, database=url.rpartition("/")[2]) == "0"


@pytest.mark.parametrize(
    ("step", "why"), [(1, "created by a newer muster"), (-1, "upgrade it with muster store")]
)
async def test_another_versions_schema_is_refused(postgres: Postgres, step: int, why: str) -> None:
    url = postgres.new_database()
    database = url.rpartition("/")[2]
    postgres.execute(f"UPDATE muster.schema_version SET version = version + {step}", database=database)
    with pytest.raises(StoreError, match=why):
        await PostgresStore(url).open()
    if step > 0:
        with pytest.raises(StoreError, match=why):
            await migrate(url)


async def test_tables_of_version_1_get_journals_and_tombstones_and_keep_what_they_have(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.empty_database()
    counts = {LeaseKind.GROUP: 3, LeaseKind.DATA: 2}
    lease = Lease(LeaseKind.GROUP, 2)
    with monkeypatch.context() as at_version_1:
        at_version_1.setattr(schema, "SCHEMA_VERSION", 1)
        at_version_1.setattr(schema, "_VERSIONS", schema._VERSIONS[:1])
        assert await migrate(url, lease_counts=counts) == (None, 1)
        store = PostgresStore(url)
        await store.open()
        (old,) = await store.claim([lease], 1, 60_000)
        assert old is not None
        assert await store.append([Append(lease, old.epoch, [(b"key", b"value")])]) == [Outcome.WRITTEN]
        await store.close()
    with pytest.raises(StoreError, match="upgrade it with muster store migrate"):
        await store.open()
    done = await asyncio.gather(*(migrate(url) for _ in range(3)))
    assert sorted(migration.before or 0 for migration in done) == [1, SCHEMA_VERSION, SCHEMA_VERSION]
    await store.open()
    assert (await store.counts()).leases == {**LEASE_COUNTS_DEFAULT, **counts}
    assert [row[1:] for row in await store.load(lease)] == [(b"key", b"value")]
    for kind, count in counts.items():
        for number in range(count):
            assert await store.journal_bounds(Lease(kind, number)) == JournalBounds(0, 0, 0)
    assert await store.append([Append(lease, old.epoch, [], [JournalRow(7, None, b"told")])]) == [
        Outcome.WRITTEN
    ]
    assert await store.read_journal(lease, 0, rows_max=9, bytes_max=9) == [(0, 7, None, b"told")]
    assert await store.append([Append(lease, old.epoch, [(b"key", None)], at_ms=8)]) == [Outcome.WRITTEN]
    (tombstone,) = await store.read_records(lease, 0, rows_max=9, bytes_max=9)
    assert tombstone[1:] == (b"key", None, 8)
    await store.close()


async def test_tables_of_version_2_learn_of_replica_lists_while_a_broker_of_that_version_runs(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.empty_database()
    with monkeypatch.context() as at_version_2:
        at_version_2.setattr(schema, "SCHEMA_VERSION", 2)
        at_version_2.setattr(schema, "_VERSIONS", schema._VERSIONS[:2])
        assert await migrate(url) == (None, 2)
    connection = await asyncpg.connect(url)
    insert = "INSERT INTO muster.topics (topic_id, name, partitions, configs, created_ms)"
    await connection.execute(f"{insert} VALUES ($1, 'orders', 3, '{{}}', 5)", UUID(int=1))
    assert await migrate(url) == (2, SCHEMA_VERSION)
    # The previous version registers like this, and keeps creating topics.
    await connection.execute(
        "INSERT INTO muster.nodes (node_id, host, port, rack, term_ms, incarnation, drained, listeners, "
        "registered_ms) VALUES (1, 'one', 9092, NULL, 60000, $1, false, '', "
        "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint))",
        UUID(int=2),
    )
    await connection.execute(f"{insert} VALUES ($1, 'audit', 1, '{{}}', 6)", UUID(int=3))
    await connection.close()
    store = PostgresStore(url)
    await store.open()
    old = TopicRow(UUID(int=1), "orders", 3, {}, 5)
    assert await store.topics() == [TopicRow(UUID(int=3), "audit", 1, {}, 6), old]
    await store.register_node(NodeRow(2, "two", 9092, None, 60_000, UUID(int=4)))
    assert [node.keeps_replicas for node in await store.nodes()] == [False, True]
    assert [node.keeps_transactions for node in await store.nodes()] == [False, True]
    await store.add_replica_lists([(2, 1)])
    (grant,) = await store.claim([Lease(LeaseKind.REPLICAS, 999)], 2, 60_000)
    assert grant is not None
    assert await store.journal_bounds(grant.lease) == JournalBounds(0, 0, 0)
    assigned = old._replace(assignments={0: Assignment((2, 1))})
    await store.update_topic(assigned, expected=old, epochs={grant.lease: grant.epoch})
    assert (await store.topics())[1] == assigned
    await store.close()


async def test_tables_of_version_3_learn_of_transactions_and_letters_while_a_broker_of_that_version_runs(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.empty_database()
    of_groups = Lease(LeaseKind.GROUP, 2)
    with monkeypatch.context() as at_version_3:
        at_version_3.setattr(schema, "SCHEMA_VERSION", 3)
        at_version_3.setattr(schema, "_VERSIONS", schema._VERSIONS[:3])
        assert await migrate(url) == (None, 3)
        older = PostgresStore(url)
        await older.open()
        (held,) = await older.claim([of_groups], 1, 60_000)
        assert held is not None
    assert await migrate(url) == (3, SCHEMA_VERSION)
    assert await older.append([Append(of_groups, held.epoch, [(b"key", b"value")])]) == [Outcome.WRITTEN]
    await older.close()
    store = PostgresStore(url)
    await store.open()
    assert (await store.counts()).leases == LEASE_COUNTS_DEFAULT
    assert [row[1:] for row in await store.load(of_groups)] == [(b"key", b"value")]
    lease = Lease(LeaseKind.TRANSACTION, 49)
    (grant,) = await store.claim([lease], 2, 60_000)
    assert grant is not None
    row = (b"id", b"state")
    assert await store.append([Append(lease, grant.epoch, [row], [JournalRow(7, None, b"told")])]) == [
        Outcome.WRITTEN
    ]
    assert [each[1:] for each in await store.load(lease)] == [row]
    assert (await store.journal_bounds(lease)).end == 1
    node = NodeRow(1, "one", 9092, None, 60_000, UUID(int=1))
    await store.register_node(node)
    got: list[bytes] = []
    store.open_mailbox(1, node.incarnation, got.extend)
    assert await store.post([Letter(1, b"hello")]) == [Posted.SENT]
    await until(lambda: got == [b"hello"], "the letter")
    await store.close()


@asynccontextmanager
async def in_use(url: str, lock: str) -> AsyncIterator[None]:
    """Another session that holds locks, as it does while its transaction is open."""
    session = await asyncpg.connect(url)
    try:
        async with session.transaction():
            await session.execute(f"LOCK TABLE {lock} MODE")
            yield
    finally:
        await session.close()


async def at_version_3(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as before:
        before.setattr(schema, "SCHEMA_VERSION", 3)
        before.setattr(schema, "_VERSIONS", schema._VERSIONS[:3])
        assert await migrate(url) == (None, 3)


async def test_a_table_in_use_holds_up_the_migration_but_no_broker(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pg_dump holds all tables for its whole run. What waits for a table makes all later ones wait."""
    url = postgres.empty_database()
    await at_version_3(url, monkeypatch)
    broker, watcher = await asyncpg.connect(url), await asyncpg.connect(url)
    waiting = (
        "SELECT virtualtransaction FROM pg_locks WHERE NOT granted AND relation = 'muster.nodes'::regclass"
    )
    tries = set[str]()
    async with in_use(url, "muster.nodes IN ACCESS SHARE"):
        migration = asyncio.create_task(migrate(url))
        async with asyncio.timeout(30):
            while len(tries) < 3:
                found = {row["virtualtransaction"] for row in await watcher.fetch(waiting)}
                if found:
                    await broker.fetch("SELECT node_id FROM muster.nodes", timeout=10)
                tries |= found
        assert not migration.done()
    assert await migration == (3, SCHEMA_VERSION)
    await broker.close()
    await watcher.close()


async def test_a_migration_that_never_gets_its_table_says_what_is_in_the_way(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.empty_database()
    await at_version_3(url, monkeypatch)
    monkeypatch.setattr(schema, "_TIMEOUT_MS", 1_000)
    async with in_use(url, "muster.nodes IN ACCESS SHARE"):
        with pytest.raises(StoreError, match=r"timed out after 1000 ms; another session .*\(pg_dump\?\)"):
            await migrate(url)


async def test_a_vacuum_does_not_hold_up_an_upgrade(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that lasts would, once the tables that brokers need are locked, take the cluster down."""
    url = postgres.empty_database()
    await at_version_3(url, monkeypatch)
    older = "muster.records, muster.leases, muster.tenancies, muster.journals, muster.batches"
    async with in_use(url, f"{older} IN SHARE UPDATE EXCLUSIVE"), asyncio.timeout(30):
        assert await migrate(url) == (3, SCHEMA_VERSION)


async def test_every_table_is_tuned_in_the_version_that_adds_it(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned = (
        "SELECT relname, relpersistence, reloptions FROM pg_class "
        "WHERE relnamespace = 'muster'::regnamespace ORDER BY relname"
    )
    upgraded, new = postgres.empty_database(), postgres.empty_database()
    await at_version_3(upgraded, monkeypatch)
    for url in (upgraded, new):
        await migrate(url)
    old_tables, tables = (
        postgres.execute(tuned, database=url.rpartition("/")[2]).splitlines() for url in (upgraded, new)
    )
    assert old_tables == tables
    assert {line.partition("|")[0] for line in tables if "autovacuum" in line} == {
        *("journals", "leases", "letters", "logs", "nodes", "records", "revision", "tenancies")
    }
    assert any(line.startswith("letters|u|") for line in tables)


@pytest.mark.parametrize("while_tuning", [False, True])
async def test_a_migration_whose_connection_is_ended_says_why(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch, while_tuning: bool
) -> None:
    statement = "SELECT pg_terminate_backend(pg_backend_pid())"
    if while_tuning:
        monkeypatch.setattr(schema, "_TUNING", {**schema._TUNING, 1: [statement]})
    else:
        monkeypatch.setattr(schema, "_VERSIONS", [[statement], *schema._VERSIONS])
    with pytest.raises(StoreError, match=r"migrating .*terminating connection due to administrator command"):
        await migrate(postgres.empty_database())


async def test_who_may_not_create_is_told_what_is_missing(postgres: Postgres) -> None:
    database = "of_another"
    postgres.execute(f"CREATE DATABASE {database}")
    with pytest.raises(StoreError, match="GRANT CREATE ON DATABASE") as refusal:
        await migrate(postgres.url(database))
    assert no_secret(refusal.value)


async def test_a_schema_that_was_made_for_the_user_is_enough(postgres: Postgres) -> None:
    database = "with_schema"
    postgres.execute(f"CREATE DATABASE {database}")
    postgres.execute("CREATE SCHEMA muster AUTHORIZATION muster", database=database)
    assert await migrate(postgres.url(database)) == (None, SCHEMA_VERSION)


async def test_wrong_credentials_and_databases_are_said_without_the_password(postgres: Postgres) -> None:
    for wrong, why in (
        (postgres.url("nowhere"), "nowhere.* does not exist"),
        (postgres.url("postgres").replace("sesame", "sesame-open"), "password authentication failed"),
        (postgres.url("postgres").replace("muster:", "nobody:"), "password authentication failed"),
    ):
        for call in (PostgresStore(wrong).open(), migrate(wrong)):
            with pytest.raises(StoreError, match=why) as refusal:
                await call
            assert f"127.0.0.1:{postgres.port}/" in str(refusal.value)
            assert no_secret(refusal.value)


async def test_a_server_that_is_not_there(postgres: Postgres) -> None:
    port = free_ports(1)
    url = postgres.url("muster").replace(str(postgres.port), str(port))
    with pytest.raises(StoreBusy, match=rf"connecting to 127\.0\.0\.1:{port}/muster: ") as refusal:
        await PostgresStore(url).open()
    assert no_secret(refusal.value)


@each(
    "url, why",
    [
        ("mysql://muster:sesame@db/muster", "must be postgresql://"),
        ("muster:sesame@db", "must be postgresql://"),
        ("postgresql://muster:sesame@db:5432", "database name is missing"),
        ("postgresql://muster:open/sesame@db:5432/muster", "percent-encode"),
        ("postgresql://muster:open@sesame@db:5432/muster", "percent-encode"),
        ("postgresql://muster:open#sesame@db:5432/muster", "percent-encode"),
        ("postgresql://muster:open?sesame@db:5432/muster", "percent-encode"),
        ("postgresql://muster:[sesame@db:5432/muster", "must be postgresql://"),
        ("postgresql://muster:sesame@db:99999/muster", "a port is a number from 1 to 65535"),
        ("postgresql://muster:sesame@127.0.0.1:port/muster", "a port is a number from 1 to 65535"),
        ("postgresql://muster:sesame@one,two/muster?port=5432,0", "a port is a number from 1 to 65535"),
    ],
)
def test_a_url_that_is_none(url: str, why: str) -> None:
    with pytest.raises(StoreError, match=why) as refusal:
        PostgresStore(url)
    assert no_secret(refusal.value)


async def test_a_url_that_asyncpg_refuses() -> None:
    url = "postgresql://muster:sesame@127.0.0.1/muster?sslmode=sesame"
    with pytest.raises(
        StoreError, match="invalid option: sslmode parameter must be one of: disable,"
    ) as refusal:
        await PostgresStore(url).open()
    assert no_secret(refusal.value)


async def test_a_server_of_another_kind() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"R" + b"\0\0\0\x08" + b"\0\0\0\x63")  # asks for an unknown authentication method
        await writer.drain()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    url = f"postgresql://muster:sesame@127.0.0.1:{port}/muster?sslmode=disable"
    with pytest.raises(
        StoreError, match=f"connecting to 127.0.0.1:{port}/muster: .*authentication"
    ) as refusal:
        await PostgresStore(url).open()
    assert no_secret(refusal.value)
    server.close()
    await server.wait_closed()


async def test_a_certificate_that_is_missing_is_named(postgres: Postgres) -> None:
    url = f"{postgres.url('muster')}?sslmode=verify-full&sslrootcert=/nowhere/root.crt"
    with pytest.raises(StoreError, match=r": sslrootcert /nowhere/root\.crt: No such file") as refusal:
        await PostgresStore(url).open()
    assert no_secret(refusal.value)


async def test_a_server_that_is_down_is_not_blamed_on_a_file() -> None:
    url = f"postgresql://muster:sesame@127.0.0.1:{free_ports(1)}/muster?sslmode=prefer&sslrootcert=/nowhere/root.crt"
    with pytest.raises(StoreError, match="Connect call failed") as refusal:
        await PostgresStore(url).open()
    assert "sslrootcert" not in str(refusal.value)


async def test_a_port_may_come_after_the_host(postgres: Postgres) -> None:
    url = f"{postgres.new_database().replace(f':{postgres.port}/', '/')}?port={postgres.port}"
    store = PostgresStore(url)
    await store.open()
    await store.close()


@each(
    "url, server",
    [
        ("postgresql://muster:secret@db:6543/muster", "db:6543/muster"),
        ("postgres://db/muster?sslmode=require", "db:5432/muster"),
        ("postgresql://u:p@one,two:2/muster", "one:5432,two:2/muster"),
        ("postgresql://u:p%40@[::1]/muster", "[::1]:5432/muster"),
        ("postgresql:///muster", "localhost:5432/muster"),
        ("postgresql://u:p@/muster?host=/run/postgresql&port=6543", "/run/postgresql:6543/muster"),
        ("postgresql://u:p@%2Frun%2Fpostgresql/muster", "/run/postgresql:5432/muster"),
        ("postgresql://[::1]:6543,two/muster?port=7", "[::1]:6543,two:7/muster"),
    ],
)
def test_where_it_is_without_who_asks(url: str, server: str) -> None:
    assert server_of(url) == server
