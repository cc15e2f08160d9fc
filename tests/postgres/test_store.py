"""Several stores on one database: fencing during open transactions, outages, changes by others."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from muster.coordinator.base.log import Logger
from muster.coordinator.storage.postgres import PostgresStore, statements
from muster.coordinator.storage.postgres import connect as connecting
from muster.coordinator.storage.postgres.connect import Host, Link, connect, failure, parse
from muster.coordinator.storage.postgres.statements import records
from muster.coordinator.storage.postgres.statements.records import Columns
from muster.coordinator.storage.store import (
    Append,
    Grant,
    JournalRow,
    Lease,
    LeaseKind,
    NodeIdTaken,
    NodeRow,
    Outcome,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreRefused,
    TopicRow,
)
from tests.support.facts import until
from tests.support.ports import free_ports
from tests.support.postgres import Postgres

A, B = Lease(LeaseKind.GROUP, 0), Lease(LeaseKind.GROUP, 1)
TERM_MS = 600_000
NODE = NodeRow(1, "127.0.0.1", 9092, None, TERM_MS, UUID(int=11))
DEADLINE_S = 30


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url, **options)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Any]:
    """A connection with a transaction that stays open until the block ends, or until it is committed."""
    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    await transaction.start()
    try:
        yield connection
    finally:
        connection.terminate()


async def claim(store: PostgresStore, lease: Lease = A, node_id: int = 1) -> Grant:
    (grant,) = await store.claim([lease], node_id, TERM_MS)
    assert grant is not None
    return grant


async def write(store: PostgresStore, grant: Grant, key: bytes, value: bytes | None = b"v") -> Outcome:
    return (await store.append([Append(grant.lease, grant.epoch, [(key, value)])]))[0]


async def keys(store: PostgresStore, lease: Lease = A) -> list[bytes]:
    return [key for _, key, _ in await store.load(lease)]


def open_write(store: PostgresStore, grant: Grant) -> Columns:
    """One record and one journal row."""
    record = ([7], [1], [b"open"], [b"v"])
    told = ([1], [4], [1], [0], [9], [None], [b"told"])
    return Columns([lease_id(store, grant.lease)], [grant.epoch], *record, *told, [], [], [], [])


async def told(store: PostgresStore, lease: Lease = A) -> list[bytes]:
    return [row.value for row in await store.read_journal(lease, 0, rows_max=100, bytes_max=10_000)]


async def waits_for_a_lock(postgres: Postgres, name: str) -> None:
    activity = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    count = f"{activity} AND application_name = '{name}'"
    async with asyncio.timeout(DEADLINE_S):
        while await asyncio.to_thread(postgres.execute, count) == "0":
            pass


# --- fencing --------------------------------------------------------------------------------------


async def test_a_write_that_is_open_keeps_its_lease_from_who_claims(postgres: Postgres, store: str) -> None:
    async with opened(store) as old, opened(store) as new:
        grant = await claim(old)
        await old.release([grant])
        async with connected(store) as connection:
            assert await statements.records.append(connection, open_write(old, grant)) == {1}
            # The call neither takes the lease nor waits for it: the other lease is granted at once.
            assert await new.claim([A, B], 2, TERM_MS) == [None, Grant(B, 2, 1, TERM_MS)]
            assert await keys(new) == []
            assert await told(new) == []
            await connection.execute("COMMIT")
        assert (await claim(new, A, 2)).epoch == grant.epoch + 1
        assert await keys(new) == [b"open"], "what was written before the claim is loaded after it"
        assert await told(new) == [b"told"]
        assert await write(old, grant, b"late") is Outcome.FENCED
        assert await keys(new) == [b"open"]


async def test_a_write_waits_for_a_claim_that_is_open_and_is_fenced(postgres: Postgres, store: str) -> None:
    """Without the lock, it would see the old epoch and be stored after the new holder has loaded."""
    async with opened(store, name="old") as old:
        grant = await claim(old)
        other = await claim(old, B)
        row = JournalRow(9, None, b"told")
        await old.append([Append(A, grant.epoch, [], [row])])
        await old.release([grant])
        async with connected(store) as connection:
            claimed, _ = await statements.leases.claim(connection, None, [lease_id(old, A)], 2, TERM_MS, 1)
            assert [row.epoch for row in claimed] == [grant.epoch + 1]
            late = asyncio.ensure_future(
                old.append(
                    [
                        Append(A, grant.epoch, [(b"late", b"v")], [row]),
                        Append(B, other.epoch, [(b"b", b"v")], [row, row]),
                    ]
                )
            )
            await waits_for_a_lock(postgres, "old")
            await connection.execute("COMMIT")
            assert await late == [Outcome.FENCED, Outcome.WRITTEN]
        assert await keys(old) == []
        assert await keys(old, B) == [b"b"]
        assert await told(old) == [b"told"]
        assert await told(old, B) == [b"told"] * 2


async def test_trimming_waits_for_a_claim_that_is_open_and_is_fenced(postgres: Postgres, store: str) -> None:
    async with opened(store, name="old") as old:
        grant = await claim(old)
        await old.append([Append(A, grant.epoch, [], [JournalRow(9, None, b"told")])])
        await old.release([grant])
        async with connected(store) as connection:
            await statements.leases.claim(connection, None, [lease_id(old, A)], 2, TERM_MS, 1)
            late = asyncio.ensure_future(old.trim_journal(A, grant.epoch, 1))
            await waits_for_a_lock(postgres, "old")
            await connection.execute("COMMIT")
            assert not await late
        assert await old.journal_bounds(A) == (0, 1, 4)
        assert await told(old) == [b"told"]


async def test_a_broker_that_stands_still_amid_a_write_keeps_no_lease(store: str) -> None:
    """A write with deletes takes two statements: stopped in between, it would lock the lease forever."""
    async with opened(store) as old, opened(store) as new:
        grant = await claim(old)
        await old.release([grant])
        stopped = await connect(parse(store), name="stopped")
        try:
            await stopped.execute("BEGIN")
            assert await statements.records.append(stopped, open_write(old, grant)) == {1}
            async with asyncio.timeout(DEADLINE_S):
                while await new.claim([A], 2, TERM_MS) == [None]:
                    pass
            assert await keys(new) == []
            await until(stopped.is_closed, "the end of its connection")
        finally:
            stopped.terminate()
        assert await keys(new) == []


async def test_of_brokers_that_come_with_one_id_at_once_one_is_registered(store: str) -> None:
    async with opened(store) as one, opened(store) as two, opened(store) as three:
        stores = (one, two, three)
        for node_id in range(1, 11):
            nodes = [replace(NODE, node_id=node_id, incarnation=UUID(int=n)) for n in (1, 2, 3)]
            results = await asyncio.gather(
                *(store_.register_node(node) for store_, node in zip(stores, nodes, strict=True)),
                return_exceptions=True,
            )
            (winner,) = (node for node, result in zip(nodes, results, strict=True) if result is None)
            refusals = [result for result in results if result is not None]
            assert all(isinstance(refusal, NodeIdTaken) for refusal in refusals), refusals
            assert {refusal.holder for refusal in refusals if isinstance(refusal, NodeIdTaken)} == {winner}
        assert len(await one.nodes()) == 10


async def test_where_the_rows_end_is_known_after_another_has_written(store: str) -> None:
    async with opened(store) as first, opened(store) as second:
        grant = await claim(first)
        await write(first, grant, b"a")
        before = await first.next_seq(A)
        await first.release([grant])
        later = await claim(second, node_id=2)
        await write(second, later, b"b")
        await first.holders(A.kind)
        end = await second.next_seq(A)
        assert await first.next_seq(A) == end > before


async def test_deletes_are_fenced_too(store: str) -> None:
    async with opened(store) as old, opened(store) as new:
        grant = await claim(old)
        await write(old, grant, b"a")
        await old.release([grant])
        await claim(new, A, 2)
        for records in ([(b"a", None)], [(b"b", b"v"), (b"a", None)]):
            assert await old.append([Append(A, grant.epoch, records)]) == [Outcome.FENCED]
        assert await keys(new) == [b"a"]


async def test_renewing_waits_for_no_write(postgres: Postgres, store: str) -> None:
    async with opened(store, name="renewing") as store_, connected(store) as connection:
        grant = await claim(store_)
        await connection.fetch("SELECT * FROM muster.leases FOR UPDATE")
        written = asyncio.ensure_future(write(store_, grant, b"a"))
        await waits_for_a_lock(postgres, "renewing")
        assert await store_.renew([grant], TERM_MS) == [TERM_MS]
        await store_.register_node(NODE)
        assert not written.done()
        await connection.execute("COMMIT")
        assert await written is Outcome.WRITTEN


async def test_of_two_processes_that_claim_at_once_each_lease_has_one(store: str) -> None:
    leases = [Lease(kind, number) for kind in LeaseKind for number in range(50)]
    async with opened(store) as one, opened(store) as two, opened(store) as three:
        claims = await asyncio.gather(
            *(
                one_of.claim(leases[:: 1 if node_id % 2 else -1], node_id, TERM_MS)
                for node_id, one_of in enumerate((one, two, three), 1)
                for _ in range(5)
            )
        )
        granted = [grant for grants in claims for grant in grants if grant is not None]
        assert len({grant.lease for grant in granted}) == len(leases)
        assert len({(grant.lease, grant.epoch) for grant in granted}) == len(granted), "no epoch comes twice"
        assert len({(grant.lease, grant.node_id) for grant in granted}) == len(leases)


def lease_id(store: PostgresStore, lease: Lease) -> int:
    return store._lease_ids[lease]


# --- changes by others ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{"listen": False}, {"poll_ms": 3_600_000}], ids=["by polling", "by notification"]
)
async def test_changes_of_other_processes_are_heard(store: str, options: dict[str, Any]) -> None:
    async with opened(store, **options) as one, opened(store, **options) as two:
        told: list[int] = []
        one.changed.append(lambda: told.append(1))
        changes: list[Callable[[], Awaitable[object]]] = [
            lambda: two.create_topic(TopicRow(UUID(int=1), "orders", 3)),
            lambda: two.register_node(NODE),
            lambda: claim(two),
            lambda: two.announce([Grant(A, 1, 1, 0)]),
            lambda: two.release([Grant(A, 1, 1, 0)]),
            lambda: two.remove_node(1, NODE.incarnation),
        ]
        for change in changes:
            told.clear()
            await change()
            await until(lambda: told, "hearing of it")


async def test_hearing_of_changes_outlives_a_restart(postgres: Postgres, store: str) -> None:
    async with opened(store) as one:
        told: list[int] = []
        one.changed.append(lambda: told.append(1))
        await asyncio.to_thread(postgres.restart)
        async with opened(store) as two:
            await two.create_topic(TopicRow(UUID(int=1), "orders", 3))
        await until(lambda: told, "hearing of it")
        assert [topic.name for topic in await one.topics()] == ["orders"]


async def test_changes_are_heard_after_some_were_lost(
    postgres: Postgres, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a failover to a replica without them: the revision has gone back."""
    said: list[str] = []
    monkeypatch.setattr(Logger, "error", lambda _, event, **fields: said.append(event))
    async with opened(store) as one, opened(store, listen=False) as two:
        for number in range(5):
            await two.create_topic(TopicRow(UUID(int=number), f"lost-{number}", 1))
        seen = await two.revision()
        await until(lambda: f"revision={seen} " in repr(one._watch), "having seen all")
        told: list[int] = []
        one.changed.append(lambda: told.append(1))
        lost = "DELETE FROM muster.topics; UPDATE muster.revision SET revision = revision - 5"
        await asyncio.to_thread(postgres.execute, lost, database=store.rpartition("/")[2])
        await until(lambda: told, "hearing of the loss")
        assert any("lost acknowledged changes" in event for event in said)
        await until(lambda: f"revision={seen - 5} " in repr(one._watch), "having seen it")
        told.clear()
        await two.create_topic(TopicRow(UUID(int=9), "orders", 3))
        await until(lambda: told, "hearing of what came after it")


# --- outages --------------------------------------------------------------------------------------


async def test_what_was_acknowledged_outlives_the_server(postgres: Postgres, store: str) -> None:
    """Killed during writes, as by a power failure: each write is known to be written, or reported as
    unknown."""
    async with opened(store, name="writing") as store_:
        grant = await claim(store_)
        acknowledged: list[bytes] = []
        failed: list[StoreError] = []

        async def caller(number: int) -> None:
            for turn in range(1_000_000):
                key = b"%d-%d" % (number, turn)
                try:
                    outcome = await write(store_, grant, key)
                except StoreError as error:
                    failed.append(error)
                    return
                if outcome is Outcome.FENCED:  # an earlier write in this epoch went unanswered
                    return
                acknowledged.append(key)

        callers = [asyncio.ensure_future(caller(number)) for number in range(16)]
        await until(lambda: len(acknowledged) > 500, "writes")
        async with connected(store) as connection:
            await connection.fetch("SELECT * FROM muster.leases FOR UPDATE")
            await waits_for_a_lock(postgres, "writing")  # now at least one transaction is open
            await asyncio.to_thread(postgres.kill)
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*callers)
        assert any(not isinstance(error, StoreBusy) for error in failed), "some had been sent"
        with pytest.raises(StoreBusy, match="connecting"):
            await claim(store_)
        await asyncio.to_thread(postgres.start)
        assert await write(store_, grant, b"under the old epoch") is Outcome.FENCED
        again = await claim(store_)
        assert await write(store_, again, b"after") is Outcome.WRITTEN
        assert set(acknowledged) | {b"after"} <= set(await keys(store_))


async def test_a_server_that_stands_still_is_not_waited_for(postgres: Postgres, store: str) -> None:
    async with opened(store, statement_timeout_ms=1_000, connect_timeout_ms=1_000) as store_:
        grant = await claim(store_)
        postgres.pause()
        try:
            async with asyncio.timeout(DEADLINE_S):
                calls: list[Awaitable[object]] = [
                    write(store_, grant, b"in doubt"),
                    store_.renew([grant], TERM_MS),
                    store_.register_node(NODE),
                    store_.load(A),
                    store_.topics(),
                ]
                errors = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(error, StoreError) for error in errors), errors
            assert not isinstance(errors[0], StoreBusy), "it was sent: nobody knows what becomes of it"
            with pytest.raises(StoreBusy, match="no answer within"):
                await claim(store_)
        finally:
            postgres.resume()
        assert await write(store_, grant, b"after") is Outcome.FENCED
        again = await claim(store_)
        assert await write(store_, again, b"after") is Outcome.WRITTEN
        assert await store_.renew([again], TERM_MS) == [TERM_MS]
        assert b"after" in await keys(store_)


async def test_an_unanswered_write_fences_its_own_epoch_and_no_other(postgres: Postgres, store: str) -> None:
    async with opened(store, statement_timeout_ms=1_000, connect_timeout_ms=1_000) as store_:
        doubtful, sound = await claim(store_), await claim(store_, B)
        row = JournalRow(0, None, b"told")
        postgres.pause()
        try:
            async with asyncio.timeout(DEADLINE_S):
                with pytest.raises(StoreError, match="no answer within"):
                    await store_.append([Append(A, doubtful.epoch, [], [row])])
        finally:
            postgres.resume()
        both = [Append(A, doubtful.epoch, [], [row]), Append(B, sound.epoch, [(b"key", b"value")])]
        assert await store_.append(both) == [Outcome.FENCED, Outcome.WRITTEN]
        assert await keys(store_, B) == [b"key"]


async def test_what_the_database_never_accepts_is_refused_and_leaves_nothing_in_doubt(store: str) -> None:
    async with opened(store) as store_:
        bad, sound = await claim(store_), await claim(store_, B)
        good = Append(B, sound.epoch, [(b"key", b"value")])
        with pytest.raises(StoreRefused):
            await store_.append(
                [Append(A, bad.epoch, [], [JournalRow(2**70, None, b"beyond 64 bits")]), good]
            )
        assert await keys(store_, B) == []
        assert (
            await store_.append([Append(A, bad.epoch, [(b"key", b"value")]), good]) == [Outcome.WRITTEN] * 2
        )


async def test_the_time_for_leases_is_a_third_of_their_term(postgres: Postgres, store: str) -> None:
    async with opened(store, statement_timeout_ms=3_600_000, connect_timeout_ms=3_600_000) as store_:
        (grant,) = await store_.claim([A], 1, 3_000)
        assert grant is not None
        postgres.pause()
        try:
            async with asyncio.timeout(DEADLINE_S):
                with pytest.raises(StoreError, match="no answer within 1000 ms"):
                    await store_.renew([grant], 3_000)
        finally:
            postgres.resume()


async def test_without_a_server_nothing_that_waits_is_in_doubt(postgres: Postgres, store: str) -> None:
    async with opened(store) as store_:
        grant = await claim(store_)
        assert await write(store_, grant, b"before") is Outcome.WRITTEN
        await asyncio.to_thread(postgres.stop)
        calls: list[Awaitable[object]] = [
            *(store_.create_topic(TopicRow(UUID(int=n), f"topic-{n}", 1)) for n in range(5)),
            *(write(store_, grant, b"%d" % n) for n in range(5)),
            store_.append([Append(A, grant.epoch, [])]),
            store_.allocate_producer_ids(1),
        ]
        async with asyncio.timeout(DEADLINE_S):
            errors = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(error, StoreBusy) for error in errors), errors
        await asyncio.to_thread(postgres.start)
        assert await write(store_, grant, b"after") is Outcome.WRITTEN, "under the same epoch"
        assert await keys(store_) == [b"before", b"after"]


async def test_connections_that_were_ended_are_made_anew(postgres: Postgres, store: str) -> None:
    async with opened(store, name="ended") as store_:
        grant = await claim(store_)
        await store_.renew([grant], TERM_MS)
        await keys(store_)
        end = "SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity"
        ended = f"{end} WHERE application_name = 'ended'"
        assert int(await asyncio.to_thread(postgres.execute, ended)) >= 4
        assert await write(store_, grant, b"a") is Outcome.WRITTEN
        assert await store_.renew([grant], TERM_MS) == [TERM_MS]
        assert await keys(store_) == [b"a"]


async def test_a_connection_that_was_not_set_up_in_time_is_let_go(
    postgres: Postgres, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(*_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("muster.coordinator.storage.postgres.connect._set_up", hang)
    with pytest.raises(StoreBusy, match="no answer within 500 ms"):
        await connect(parse(store), name="hanging", timeout_ms=500)
    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'hanging'"
    async with asyncio.timeout(DEADLINE_S):
        while await asyncio.to_thread(postgres.execute, count) != "0":
            pass


async def test_a_connection_is_used_only_when_it_was_prepared(store: str) -> None:
    """Until then nothing was sent, whatever became of the connection."""
    prepared: list[int] = []
    failures = [
        asyncpg.QueryCanceledError("canceling statement due to statement timeout"),
        asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation"),
    ]

    async def prepare(connection: Any) -> None:
        prepared.append(1)
        if len(prepared) <= len(failures):
            raise failures[len(prepared) - 1]

    link = Link(parse(store), name="preparing", prepare=prepare)
    for failed in failures:
        with pytest.raises(StoreBusy, match=str(failed)):
            await link.run("reading", statements.meta.revision)
    for _ in range(2):
        assert await link.run("reading", statements.meta.revision) >= 1
    assert len(prepared) == len(failures) + 1
    await link.close()


async def test_nothing_is_in_doubt_when_the_end_of_an_idle_connection_came_first(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server announces the end of a connection a moment before it closes it."""
    ended = asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress")
    left = [1]
    fetch = asyncpg.Connection.fetch

    async def refuse(connection: Any, *arguments: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise ended
        return await fetch(connection, *arguments)

    async with opened(store) as store_:
        grant = await claim(store_)
        monkeypatch.setattr(asyncpg.Connection, "fetch", refuse)
        assert await write(store_, grant, b"a") is Outcome.WRITTEN, "on another connection"
        left[0] = 2
        with pytest.raises(StoreBusy, match="closed the connection"):
            await write(store_, grant, b"b")
        assert await write(store_, grant, b"c") is Outcome.WRITTEN, "under the same epoch"
        assert await keys(store_) == [b"a", b"c"]


async def test_only_a_server_without_notifications_is_polled_alone(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[Exception] = []

    async def listen(*_: Any) -> None:
        raise failures.pop()

    async with opened(store) as store_:
        # The watch is stopped and called by hand, or it would meet the failures itself.
        await store_._watch.close()
        monkeypatch.setattr(asyncpg.Connection, "add_listener", listen)
        for failure_, state in (
            (asyncpg.AdminShutdownError("terminating connection"), "listening"),
            (asyncpg.FeatureNotSupportedError("LISTEN"), "polling"),
        ):
            failures.append(failure_)
            with suppress(StoreError):
                await store_._watch._link.run("reading", statements.meta.revision)
            assert not failures
            assert state in repr(store_._watch)
        await store_._watch._link.close()


async def test_commits_are_durable_whatever_the_database_is_set_to(postgres: Postgres, store: str) -> None:
    database = store.rpartition("/")[2]
    for setting, used in (("off", "on"), ("local", "on"), ("remote_apply", "remote_apply")):
        postgres.execute(f"ALTER DATABASE {database} SET synchronous_commit = {setting}")
        connection = await connect(parse(store), name="committing")
        try:
            assert await connection.fetchval("SHOW synchronous_commit") == used
        finally:
            await connection.close()


async def test_a_standby_is_passed_over_and_refused(postgres: Postgres, store: str) -> None:
    """A broker that loads a shard from it would see an earlier state."""
    with Postgres() as standby:
        standby.execute(f"CREATE DATABASE {store.rpartition('/')[2]} OWNER muster")
        standby.stop()
        (standby.socket_folder / "data" / "standby.signal").touch()
        standby.start()
        here = f"127.0.0.1:{postgres.port}/"
        both = store.replace(here, f"127.0.0.1:{standby.port},{here}")
        async with opened(both) as store_:
            assert await write(store_, await claim(store_), b"a") is Outcome.WRITTEN
            assert await keys(store_) == [b"a"]
        there = store.replace(here, f"127.0.0.1:{standby.port}/")
        why = rf"connecting to \S+:{standby.port}/\w+: it does not accept writes; it may be a standby"
        for url, said in ((there, why), (there.replace("@", f"@127.0.0.1:{standby.port},"), f"{why}; {why}")):
            with pytest.raises(StoreBusy, match=f"^{said}$"):
                await PostgresStore(url).open()


async def test_a_host_that_is_silent_is_passed_over_once(postgres: Postgres, store: str) -> None:
    """As one whose machine has died or is cut off: nothing refuses the connection."""
    here = f"127.0.0.1:{postgres.port}/"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        both = store.replace(here, f"127.0.0.1:{port},{here}")
        async with opened(both) as store_:
            grant = await claim(store_)
            assert store_._writer._connection is not None
            store_._writer._connection.terminate()
            assert await write(store_, grant, b"a") is Outcome.WRITTEN
        silent.setblocking(False)
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):
            silent.accept()  # the host that worked last was tried first
        why = rf"connecting to 127\.0\.0\.1:{port}/\w+: no answer within \d+ ms"
        twice = store.replace(here, f"127.0.0.1:{port},127.0.0.1:{port}/")
        with pytest.raises(StoreBusy, match=f"^{why}; {why}$"):
            await connect(parse(twice), name="waiting", timeout_ms=100)


async def test_a_slow_host_gets_what_hosts_that_refuse_leave_of_the_time(
    postgres: Postgres, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes first, and needs more than its part."""
    here, there = f"127.0.0.1:{postgres.port}", f"127.0.0.1:{free_ports(1)}"
    server = parse(store.replace(here, f"{here},{there}"))
    tried, connect_to = list[tuple[str, int]](), connecting._connect_to

    async def tries(host: Host, url: str, name: str, timeout_ms: int, *options: Any) -> Any:
        tried.append((host.name.partition("/")[0], timeout_ms))
        slow = name == "slow" and host.name.startswith(here)
        return await connect_to(host, url, name, 100 if slow else timeout_ms, *options)

    async def endless(_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(connecting, "_connect_to", tries)
    silent, refused = rf"connecting to {here}/\w+: no answer within 100 ms", rf"connecting to {there}/\w+: .+"
    all_ms = 2 * DEADLINE_S * 1000
    for said in (f"^{silent}; {refused}$", f"^{refused}; {silent}$"):
        with pytest.raises(StoreBusy, match=said):
            await connect(server, name="slow", timeout_ms=all_ms, accept=endless)
    assert [host for host, _ in tried] == [here, there, there, here]
    first_ms, last_ms = tried[0][1], tried[3][1]
    assert first_ms <= all_ms // 2 < last_ms  # the last one has all that is left
    connection = await connect(server, name="fast", timeout_ms=all_ms)
    await connection.close()
    assert server.hosts[0].name.startswith(here)


async def test_what_a_server_has_said_is_the_cause_whatever_the_other_hosts_did(
    postgres: Postgres, store: str
) -> None:
    here = f"127.0.0.1:{postgres.port}/"
    there = f"127.0.0.1:{free_ports(1)}"
    url, role = await asyncio.to_thread(postgres.with_own_role, store)
    await asyncio.to_thread(postgres.execute, f"ALTER ROLE {role} CONNECTION LIMIT 0")
    for hosts in (f"{there},{here}", f"{here[:-1]},{there}/"):
        with pytest.raises(StoreBusy, match=r"too many connections") as refusal:
            await connect(parse(url.replace(here, hosts)), name="refused")
        assert isinstance(refusal.value.__cause__, asyncpg.TooManyConnectionsError)


async def test_what_a_broker_stalled_in_is_said_to_be_unwritten(
    postgres: Postgres, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL has ended the transaction meanwhile, so that its locks are released."""
    sent, calls = records._write, list[str]()

    async def stalling(connection: Any, *arguments: Any) -> set[int]:
        calls.append("")
        if len(calls) == 2:
            # The loop stands still, as in a process that is stopped.
            session = f"SELECT count(*) FROM pg_stat_activity WHERE pid = {connection.get_server_pid()}"
            deadline = time.monotonic() + DEADLINE_S
            while postgres.execute(session) != "0":
                assert time.monotonic() < deadline
        return await sent(connection, *arguments)

    async with opened(store, name="stalled", statement_timeout_ms=60_000) as store_:
        grant = await claim(store_)
        assert await write(store_, grant, b"before") is Outcome.WRITTEN
        both = Append(A, grant.epoch, [(b"a", b"v"), (b"before", None)], at_ms=1)
        monkeypatch.setattr(records, "_write", stalling)
        with pytest.raises(StoreBusy, match="idle-in-transaction timeout"):
            await store_.append([both])
        assert await keys(store_) == [b"before"]
        assert await store_.append([both]) == [Outcome.WRITTEN]
        assert await keys(store_) == [b"a"]


async def test_what_does_not_fit_is_said_to_be_unwritten(postgres: Postgres, store: str) -> None:
    """The server reports this by an error code, whichever disk is full; here a trigger raises it."""
    database = store.rpartition("/")[2]
    async with opened(store) as store_:
        grant = await claim(store_)
        await write(store_, grant, b"before")
        postgres.execute(
            "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS "
            "$$BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END$$; "
            "CREATE TRIGGER full_disk BEFORE INSERT ON muster.records EXECUTE FUNCTION full_disk()",
            database=database,
        )
        with pytest.raises(StoreFull, match="could not extend file; free some space"):
            await write(store_, grant, b"a")
        assert await keys(store_) == [b"before"]
        assert await store_.renew([grant], TERM_MS) == [TERM_MS]
        postgres.execute("DROP TRIGGER full_disk ON muster.records", database=database)
        assert await write(store_, grant, b"b") is Outcome.WRITTEN
        assert await keys(store_) == [b"before", b"b"]


async def test_one_call_at_fault_fails_alone(store: str) -> None:
    odd: Any = "not bytes", {"nor": "this"}
    async with opened(store) as store_:
        grant = await claim(store_)
        results = await asyncio.gather(
            write(store_, grant, b"a"),
            store_.append([Append(A, grant.epoch, [odd])]),
            write(store_, grant, b"c"),
            return_exceptions=True,
        )
        assert results[0] is results[2] is Outcome.WRITTEN
        assert isinstance(results[1], StoreError)
        assert await keys(store_) == [b"a", b"c"]
        assert await write(store_, grant, b"d") is Outcome.WRITTEN


async def test_serialization_failures_are_retried(postgres: Postgres, store: str) -> None:
    """As where transactions are serializable by default, which PostgreSQL can be configured for."""
    database = store.rpartition("/")[2]
    postgres.execute(
        f"ALTER DATABASE {database} SET default_transaction_isolation = 'serializable'", database=database
    )
    async with opened(store) as one, opened(store) as two:
        grants = [await claim(one, A, 1), await claim(two, B, 2)]

        async def work(store_: PostgresStore, grant: Grant) -> list[int]:
            ids = []
            for turn in range(60):
                ids.append(await store_.allocate_producer_ids(1))
                assert await write(store_, grant, b"%d" % turn) is Outcome.WRITTEN
            return ids

        ids = await asyncio.gather(*map(work, (one, two), grants))
        assert sorted(ids[0] + ids[1]) == list(range(120))
        assert len(await keys(one, A)) == len(await keys(one, B)) == 60
    conflicts = f"SELECT xact_rollback FROM pg_stat_database WHERE datname = '{database}'"
    async with asyncio.timeout(DEADLINE_S):  # statistics lag a little
        while int(await asyncio.to_thread(postgres.execute, conflicts)) == 0:
            pass


async def test_retrying_ends(store: str) -> None:
    link = Link(parse(store), name="retrying")
    tried: list[int] = []

    async def use(_: Any) -> None:
        tried.append(1)
        raise asyncpg.SerializationError("could not serialize access")

    with pytest.raises(StoreBusy, match=r"trying in .*could not serialize"):
        await link.run("trying", use)
    assert 3 < len(tried) < 30
    await link.close()


async def test_connections_are_bounded(postgres: Postgres, store: str) -> None:
    async with opened(store, name="bounded", readers=3) as store_:
        grant = await claim(store_)
        count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'bounded'"
        for _ in range(3):
            await asyncio.gather(
                *(store_.load(A) for _ in range(40)),
                *(write(store_, grant, b"%d" % n) for n in range(40)),
                *(store_.renew([grant], TERM_MS) for _ in range(10)),
                *(store_.nodes() for _ in range(20)),
            )
            assert 4 <= int(await asyncio.to_thread(postgres.execute, count)) <= 6


async def test_reads_use_the_connections_there_are_when_the_database_gives_no_more(
    postgres: Postgres, store: str
) -> None:
    url, role = await asyncio.to_thread(postgres.with_own_role, store)
    count = f"SELECT count(*) FROM pg_stat_activity WHERE usename = '{role}'"
    async with opened(url) as store_:
        assert await store_.nodes() == []
        there = int(await asyncio.to_thread(postgres.execute, count))
        await asyncio.to_thread(postgres.execute, f"ALTER ROLE {role} CONNECTION LIMIT {there}")
        assert await asyncio.gather(*(store_.nodes() for _ in range(20))) == [[]] * 20
        for _ in range(6):
            assert await store_.nodes() == []
        await asyncio.to_thread(postgres.execute, f"ALTER ROLE {role} CONNECTION LIMIT -1")
        await asyncio.gather(*(store_.nodes() for _ in range(20)))
        assert int(await asyncio.to_thread(postgres.execute, count)) > there


async def test_a_reader_that_is_cancelled_leaves_a_connection_that_works(store: str) -> None:
    async with opened(store, readers=1) as store_:
        for _ in range(20):
            call = asyncio.ensure_future(store_.topics())
            await asyncio.sleep(0)
            call.cancel()
        assert await store_.topics() == []


def test_which_errors_mean_that_nothing_was_written() -> None:
    for error, kind in (
        (asyncpg.DiskFullError("x"), StoreFull),
        (asyncpg.QueryCanceledError("x"), StoreBusy),
        (asyncpg.LockNotAvailableError("x"), StoreBusy),
        (asyncpg.DeadlockDetectedError("x"), StoreBusy),
        (asyncpg.AdminShutdownError("x"), StoreError),
        (asyncpg.ConnectionDoesNotExistError("x"), StoreError),
        (ConnectionResetError("x"), StoreError),
    ):
        assert type(failure("writing", error)) is kind, error
    assert str(failure("writing", asyncpg.PostgresError("x\nDETAIL:  y"))) == "writing: x"
    assert "session pooling" in str(failure("writing", asyncpg.InvalidSQLStatementNameError("x")))


async def test_a_pooler_that_mixes_sessions_is_named(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def set_up(*_: object) -> None:
        raise asyncpg.DuplicatePreparedStatementError('prepared statement "s" already exists')

    monkeypatch.setattr("muster.coordinator.storage.postgres.connect._set_up", set_up)
    with pytest.raises(StoreError, match=r"^connecting to .*already exists; a pooler .* session pooling$"):
        await PostgresStore(store).open()


async def test_a_shard_of_many_rows_is_loaded_in_the_order_of_their_writes(store: str) -> None:
    async with opened(store) as store_:
        grant = await claim(store_)
        records = [(b"%d" % (number * 7_919 % 12_007), b"v") for number in range(12_007)]
        assert await store_.append([Append(A, grant.epoch, records)]) == [Outcome.WRITTEN]
        assert await keys(store_) == [key for key, _ in records]


async def test_a_row_keeps_what_a_node_says_of_itself(store: str) -> None:
    node = replace(NODE, rack="r1", drained=True, listeners="IN://a:1,OUT://b:2")
    async with opened(store) as one, opened(store) as two:
        await one.register_node(node)
        assert await two.nodes() == [node]
        assert 0 <= (await two.nodes())[0].age_ms < TERM_MS
