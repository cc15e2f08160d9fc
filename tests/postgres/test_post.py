"""Letters between store objects on one database: outages, polling, and letters that nobody takes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from muster.coordinator.storage.postgres import PostgresStore, post_office
from muster.coordinator.storage.store import (
    LETTERS_KEPT_BYTES_MAX,
    LETTERS_KEPT_MAX,
    Lease,
    LeaseKind,
    Letter,
    NodeRow,
    Posted,
    StoreBusy,
    StoreError,
)
from tests.postgres.test_store import DEADLINE_S, claim, connected, opened, waits_for_a_lock
from tests.support.facts import until
from tests.support.postgres import Postgres

TERM_MS = 600_000
ONE, TWO = (NodeRow(n, "127.0.0.1", 9092, None, TERM_MS, UUID(int=n)) for n in (1, 2))
A = Lease(LeaseKind.GROUP, 0)


async def receiving(store: PostgresStore, node: NodeRow) -> list[bytes]:
    got: list[bytes] = []
    await store.register_node(node)
    store.open_mailbox(node.node_id, node.incarnation, got.extend)
    return got


async def ask(postgres: Postgres, url: str, what: str) -> str:
    database = url.rpartition("/")[2]
    return await asyncio.to_thread(postgres.execute, f"SELECT {what}", database=database)


async def kept(postgres: Postgres, url: str) -> int:
    return int(await ask(postgres, url, "count(*) FROM muster.letters"))


async def until_kept(postgres: Postgres, url: str, count: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while await kept(postgres, url) != count:
            pass


async def eventually(post: Callable[[], Awaitable[Sequence[Posted]]]) -> None:
    """Post again and again until a letter is sent."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                if await post() == [Posted.SENT]:
                    return
            except StoreError:
                pass


@pytest.mark.parametrize(
    "options", [{"listen": False}, {"poll_ms": 3_600_000}], ids=["by polling", "by notification"]
)
async def test_letters_go_from_process_to_process(store: str, options: dict[str, Any]) -> None:
    async with opened(store, **options) as one, opened(store, **options) as two:
        at_one, at_two = await receiving(one, ONE), await receiving(two, TWO)
        for turn in range(20):
            assert await one.post([Letter(2, b"to two %d" % turn)]) == [Posted.SENT]
            await until(lambda: len(at_two) > turn, "the letter to two")  # noqa: B023
            assert await two.post([Letter(1, b"to one %d" % turn)]) == [Posted.SENT]
            await until(lambda: len(at_one) > turn, "the letter to one")  # noqa: B023
        assert at_two == [b"to two %d" % turn for turn in range(20)]
        assert at_one == [b"to one %d" % turn for turn in range(20)]


async def test_what_is_posted_in_one_turn_is_one_statement(
    postgres: Postgres, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    posted = post_office.statements.letters.post
    sizes: list[int] = []

    async def counted(connection: Any, now_ms: Any, sender: Any, columns: Any, **options: Any) -> Any:
        sizes.append(len(columns.numbers))
        return await posted(connection, now_ms, sender, columns, **options)

    monkeypatch.setattr(post_office.statements.letters, "post", counted)
    async with opened(store) as one:
        got = await receiving(one, ONE)
        payloads = [b"%d" % n for n in range(100)]
        await asyncio.gather(*(one.post([Letter(1, payload)]) for payload in payloads))
        assert sizes == [100]
        await until(lambda: len(got) == 100, "the letters")
        assert got == payloads


NOTED = """
CREATE TABLE noted (what text, synchronous_commit text);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
    INSERT INTO noted VALUES (TG_OP, current_setting('synchronous_commit')); RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER noting AFTER INSERT OR DELETE ON muster.letters
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION note()
"""
"""How each change of a letter is committed."""


@pytest.mark.parametrize("options", [{}, {"listen": False}], ids=["by notification", "by polling"])
async def test_the_table_is_unlogged_and_no_commit_of_a_letter_is_synced(
    postgres: Postgres, store: str, options: dict[str, Any]
) -> None:
    await asyncio.to_thread(postgres.execute, NOTED, database=store.rpartition("/")[2])
    async with opened(store, **options) as one:
        got = await receiving(one, ONE)
        await one.post([Letter(1, b"a")])
        await until(lambda: got, "the letter")
        assert await ask(postgres, store, "relpersistence FROM pg_class WHERE relname = 'letters'") == "u"
        await one.register_node(TWO)
        await one.post([Letter(2, b"nobody takes it")])
        await one.remove_node(TWO.node_id, TWO.incarnation)
        one.open_mailbox(1, ONE.incarnation, got.extend)  # which sweeps
        await until_kept(postgres, store, 0)
        noted = "string_agg(what || ' ' || synchronous_commit, ', ') FROM noted"
        assert await ask(postgres, store, noted) == "INSERT off, DELETE off, INSERT off, DELETE off"


async def test_no_session_is_left_without_sync(store: str) -> None:
    """A pooler that mixes sessions may hand it to whoever writes."""
    async with opened(store) as one:
        got = await receiving(one, ONE)
        await one.post([Letter(1, b"a")])
        await until(lambda: got, "the letter")
        office = one._post_office
        for link in (office._outgoing, office._incoming, one._writer, one._lease_link):
            assert link.is_up
            assert await link.run("asking", lambda c: c.fetchval("SHOW synchronous_commit")) == "on"


async def test_letters_go_where_every_commit_is_synced(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database does not know the setting."""
    unknown = "SELECT set_config('no_such_setting', 'off', true)"
    monkeypatch.setattr(post_office.statements.letters, "_NOT_SYNCED", unknown)
    async with opened(store) as one:
        got = await receiving(one, ONE)
        assert await one.post([Letter(1, b"a")]) == [Posted.SENT]
        await until(lambda: got == [b"a"], "the letter")


async def test_a_server_that_dies_takes_its_letters_along(postgres: Postgres, store: str) -> None:
    async with opened(store) as one, opened(store) as two:
        got = await receiving(one, ONE)
        await two.register_node(TWO)  # but it has no mailbox
        assert await one.post([Letter(2, b"lost")]) == [Posted.SENT]
        assert await kept(postgres, store) == 1
        await asyncio.to_thread(postgres.kill)
        with pytest.raises(StoreBusy):
            await one.post([Letter(1, b"nothing there")])
        await asyncio.to_thread(postgres.start)
        assert await kept(postgres, store) == 0
        await eventually(lambda: two.post([Letter(1, b"after")]))
        await until(lambda: got == [b"after"], "a letter after it")


async def test_receiving_outlives_the_loss_of_its_connection(postgres: Postgres, store: str) -> None:
    async with opened(store, name="receiving", poll_ms=3_600_000) as one, opened(store) as two:
        got = await receiving(one, ONE)
        await two.post([Letter(1, b"before")])
        await until(lambda: got == [b"before"], "a letter before it")
        ended = "count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity WHERE application_name = "
        assert int(await ask(postgres, store, ended + "'receiving'")) >= 4
        await two.post([Letter(1, b"after")])
        # Nobody polls: the loss of the connection was noticed, and the next connection listens.
        await until(lambda: got == [b"before", b"after"], "a letter after it")
        await two.post([Letter(1, b"heard")])
        await until(lambda: got[2:] == [b"heard"], "a letter that is told of on the new connection")


async def test_letters_to_one_node_have_a_bound(postgres: Postgres, store: str) -> None:
    async with opened(store) as one:
        await one.register_node(ONE)
        await one.register_node(TWO)
        size = LETTERS_KEPT_BYTES_MAX // 16
        for node_id, letter, count in ((1, b"small", LETTERS_KEPT_MAX), (2, bytes(size), 16)):
            assert await one.post([Letter(node_id, letter)] * count) == [Posted.SENT] * count
            assert await one.post([Letter(node_id, letter)]) == [Posted.UNDELIVERABLE]
        got: list[bytes] = []
        one.open_mailbox(1, ONE.incarnation, got.extend)
        await until(lambda: len(got) == LETTERS_KEPT_MAX, "those that were kept")
        assert await one.post([Letter(1, b"room"), Letter(2, b"none")]) == [
            Posted.SENT,
            Posted.UNDELIVERABLE,
        ]


async def test_letters_that_wait_to_be_sent_have_a_bound(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post_office, "WAITING_MAX", 5)
    async with opened(store) as one:
        await one.register_node(ONE)
        posted = await asyncio.gather(
            *(one.post([Letter(1, b"a")] * 2) for _ in range(4)), return_exceptions=True
        )
        assert posted[:2] == [[Posted.SENT] * 2] * 2
        assert [type(error) for error in posted[2:]] == [StoreBusy] * 2
        assert "4 wait already" in str(posted[3])
        assert await one.post([Letter(1, b"later")]) == [Posted.SENT]
        monkeypatch.setattr(post_office, "WAITING_BYTES_MAX", 5)
        posted = await asyncio.gather(
            *(one.post([Letter(1, b"long")]) for _ in range(3)), return_exceptions=True
        )
        assert posted[:2] == [[Posted.SENT]] * 2
        assert isinstance(posted[2], StoreBusy)
        assert await one.post([Letter(1, b"later")]) == [Posted.SENT]


async def test_more_than_goes_into_one_statement_goes_into_the_next(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(store) as one:
        got = await receiving(one, ONE)
        for bound, value in (("_BATCH_LETTERS", 3), ("_BATCH_BYTES", 5)):
            monkeypatch.setattr(post_office, bound, value)
            payloads = [b"%d" % n for n in range(10)]
            await asyncio.gather(*(one.post([Letter(1, payload)]) for payload in payloads))
            await until(lambda: len(got) == 10, "the letters")
            assert got == payloads
            got.clear()


async def test_letters_to_the_dead_are_swept_away(
    postgres: Postgres, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(post_office, "SWEEP_S", 0.0)
    async with opened(store, poll_ms=10, listen=False) as one, opened(store) as two:
        for node in (ONE, TWO):
            await one.register_node(node)
        await two.post([Letter(1, b"to the dead"), Letter(2, b"to who stands still")])
        three = replace(ONE, node_id=3, incarnation=UUID(int=3))
        await receiving(two, three)  # sweeps once and finds nothing to remove
        assert await kept(postgres, store) == 2
        await receiving(one, replace(three, node_id=4))
        await one.remove_node(1, ONE.incarnation)
        await until_kept(postgres, store, 1)
        await ask(postgres, store, "1; UPDATE muster.letters SET posted_ms = posted_ms - 60001")
        await until_kept(postgres, store, 0)


async def test_a_new_incarnation_gets_nothing_of_the_old_one(
    postgres: Postgres, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(post_office, "SWEEP_S", 3_600.0)
    async with opened(store) as one, opened(store) as two:
        other = await receiving(one, TWO)
        await two.post([Letter(2, b"a")])
        await until(lambda: other, "a letter: the next sweep is not due for an hour")
        await one.register_node(ONE)
        await two.post([Letter(1, b"to the old one")])
        await one.remove_node(1, ONE.incarnation)
        got = await receiving(one, replace(ONE, incarnation=UUID(int=11)))
        await until_kept(postgres, store, 0)
        await two.post([Letter(1, b"to the new one")])
        await until(lambda: got == [b"to the new one"], "its own letter")


async def test_a_letter_waits_for_a_claim_that_is_open_and_is_fenced(postgres: Postgres, store: str) -> None:
    async with opened(store, name="old") as old:
        got = await receiving(old, ONE)
        grant = await claim(old)
        async with connected(store) as connection:
            await connection.execute(
                "UPDATE muster.leases SET epoch = epoch + 1 WHERE lease_id = $1", old._lease_ids[A]
            )
            stale = asyncio.ensure_future(old.post([Letter(1, b"stale", under=(A, grant.epoch))]))
            await waits_for_a_lock(postgres, "old")
            await connection.execute("COMMIT")
        assert await stale == [Posted.FENCED]
        assert await old.post([Letter(1, b"new", under=(A, grant.epoch + 1))]) == [Posted.SENT]
        await until(lambda: got == [b"new"], "the letter of the new epoch")


async def test_where_neither_notify_nor_listen_is_known_letters_are_looked_for(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(post_office, "CHANNEL", "no'channel")  # a syntax error for pg_notify, like 42601
    async with opened(store, poll_ms=10) as one:
        monkeypatch.setattr(
            "asyncpg.Connection.add_listener", lambda connection, *_: connection.execute("LISTENS TO NOTHING")
        )
        got = await receiving(one, ONE)
        assert await one.post([Letter(1, b"a")]) == [Posted.SENT]
        await until(lambda: got == [b"a"], "the letter")
        assert not one._post_office._notify
        assert not one._post_office._listen


async def test_closing_sends_what_waits(store: str) -> None:
    async with opened(store) as two:
        got = await receiving(two, TWO)
        async with opened(store) as one:
            posting = asyncio.ensure_future(one.post([Letter(2, b"the last")]))
            await asyncio.sleep(0)
        assert await posting == [Posted.SENT]
        await until(lambda: got == [b"the last"], "the letter")
