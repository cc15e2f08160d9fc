"""What a store does once another server has taken the database's place. Mostly the same server claims to be
another: it has everything then, and only the store can refuse."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from muster.coordinator.base.log import Logger
from muster.coordinator.server.pausing import PausableStore
from muster.coordinator.server.producer_ids import ProducerIds
from muster.coordinator.storage.postgres import PostgresStore, eras, statements
from muster.coordinator.storage.postgres.appends import Writers
from muster.coordinator.storage.postgres.connect import Link, connect, parse
from muster.coordinator.storage.postgres.eras import Eras, ServerId, identify
from muster.coordinator.storage.postgres.record_storage import Rows
from muster.coordinator.storage.store import (
    Append,
    JournalRow,
    LeaseKind,
    Letter,
    Outcome,
    Posted,
    StoreBusy,
    StoreConflict,
    TopicRow,
)
from muster.coordinator.topics.log import commit_together
from muster.protocol.errors import ErrorCode, KafkaError
from tests.postgres.test_store import NODE, TERM_MS, A, B, claim, keys, opened, write
from tests.support.facts import until
from tests.support.postgres import Postgres
from tests.topics.support import OneLog, TestRows, batch

Links = Callable[[PostgresStore], Link]
LINKS: dict[str, Links] = {
    "writer": lambda store: store._writer,
    "leases": lambda store: store._lease_link,
    "reader": lambda store: store._reader_links[0],
    "watch": lambda store: store._watch._link,
    "letters": lambda store: store._post_office._outgoing,
}


class Servers:
    """Which server each new connection reaches."""

    def __init__(self) -> None:
        self.answering = ServerId(1, 1)

    async def identify(self, _: Any) -> ServerId:
        return self.answering

    async def meet(self, link: Link, system: int, timeline: int) -> None:
        """Have the link lose its connection, and reach this server from then on."""
        self.answering = ServerId(system, timeline)
        if link._connection is not None:
            link._connection.terminate()
        await link.up()


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Servers:
    servers = Servers()
    monkeypatch.setattr(eras, "identify", servers.identify)
    return servers


# --- a real one -----------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["write", "renew"])
@pytest.mark.parametrize("lost", [True, False], ids=["claims lost", "nothing lost"])
async def test_nothing_claimed_before_is_held_any_more(first: str, lost: bool) -> None:
    """The first call finds out. What the new server has lost is not claimed again in the same epochs."""
    with Postgres() as server:
        url = server.new_database()
        async with opened(url) as store, opened(url) as other:
            await claim(store)
            await claim(store, B)
            await store.announce([grant := await claim(store), of_other := await claim(store, B)])
            assert (await other.holders(LeaseKind.GROUP))[0].epoch == grant.epoch == 2
            await write(store, grant, b"before")
            await asyncio.to_thread(server.stop)
            (server.socket_folder / "data" / "standby.signal").touch()
            await asyncio.to_thread(server.start)
            await asyncio.to_thread(server.execute, "SELECT pg_promote()")
            if lost:
                of_leases = "UPDATE muster.leases SET epoch = 1"
                loss = f"{of_leases}; UPDATE muster.tenancies SET epoch = 1, node_id = NULL"
                await asyncio.to_thread(server.execute, loss, database=url.rpartition("/")[2])
            if first == "write":
                assert await write(store, grant, b"under the old epoch") is Outcome.FENCED
            assert await store.renew([grant], TERM_MS) == [None]
            assert await write(store, grant, b"under the old epoch") is Outcome.FENCED
            again = await claim(store)
            assert again.epoch == grant.epoch + 1
            assert await write(store, again, b"after") is Outcome.WRITTEN
            assert await store.renew([again], TERM_MS) == [TERM_MS]
            assert await keys(store) == [b"before", b"after"]
            if lost:
                assert (await claim(other, B, 2)).epoch == of_other.epoch + 1, "as it was announced to others"


async def test_a_real_server_is_identified(postgres: Postgres, store: str) -> None:
    connection = await connect(parse(store), name="identifying")
    try:
        found = await identify(connection)
        assert found is not None
        assert found.system
        assert found.timeline == 1
        await asyncio.to_thread(
            postgres.execute,
            "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC",
            database=store.rpartition("/")[2],
        )
        assert await identify(connection) == ServerId(None, 1)
    finally:
        await connection.close()


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        ([asyncpg.InsufficientPrivilegeError("no"), (None, "00000002000000000000000A")], ServerId(None, 2)),
        ([asyncpg.FeatureNotSupportedError("no")] * 2, None),
        ([asyncpg.UndefinedFunctionError("no")] * 2, None),
        ([asyncpg.ObjectNotInPrerequisiteStateError("no")] * 2, None),
        ([(7, None)], None),
        ([asyncpg.QueryCanceledError("statement timeout")], asyncpg.QueryCanceledError),
        ([asyncpg.TooManyConnectionsError("no")], asyncpg.TooManyConnectionsError),
    ],
)
async def test_only_a_server_that_cannot_say_who_it_is_need_not(answers: list[Any], found: Any) -> None:
    class Connection:
        async def fetchrow(self, _: str) -> Any:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

    connection: Any = Connection()
    if isinstance(found, type):
        with pytest.raises(found):
            await identify(connection)
    else:
        assert await identify(connection) == found
    assert answers == []


# --- connections ----------------------------------------------------------------------------------


@pytest.mark.parametrize("link", LINKS.values(), ids=LINKS)
@pytest.mark.parametrize("new", [(1, 2), (2, 1)], ids=["promoted", "another system"])
async def test_whichever_connection_meets_another_server_no_other_one_is_used_again(
    store: str, servers: Servers, link: Links, new: tuple[int, int]
) -> None:
    async with opened(store, poll_ms=60_000, listen=False) as one:
        grant = await claim(one)
        await one.load(A)
        links = [*(each(one) for each in LINKS.values())]
        for each in links:
            await each.up()
        before = [each._connection for each in links]
        await servers.meet(link(one), *new)
        assert await one.renew([grant], TERM_MS) == [None]
        assert await write(one, grant, b"k") is Outcome.FENCED
        again = await claim(one)
        for each, connection in zip(links, before, strict=True):
            await each.up()
            assert connection is not None
            assert connection.is_closed()
            assert each.era == 1
        assert await one.renew([again], TERM_MS) == [TERM_MS]
        assert await write(one, again, b"k") is Outcome.WRITTEN


async def test_an_old_primary_that_still_answers_is_not_used(store: str, servers: Servers) -> None:
    servers.answering = ServerId(1, 2)
    async with opened(store, poll_ms=60_000, listen=False) as one:
        grant = await claim(one)
        with pytest.raises(StoreBusy, match="an old primary answers"):
            await servers.meet(one._writer, 1, 1)
        with pytest.raises(StoreBusy, match="an old primary answers"):
            await write(one, grant, b"to the old one")
        assert await one.renew([grant], TERM_MS) == [TERM_MS]
        await servers.meet(one._writer, 1, 2)
        assert await write(one, grant, b"k") is Outcome.WRITTEN
        assert await keys(one) == [b"k"]


async def test_an_old_primary_that_comes_back_is_passed_over(
    postgres: Postgres, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the first of the hosts, and the right one is there, too."""
    timelines = {"127.0.0.1": 1, "localhost": 2}

    async def by_host(connection: Any) -> ServerId:
        return ServerId(1, timelines[connection._addr[0]])

    monkeypatch.setattr(eras, "identify", by_host)
    here, known = f"127.0.0.1:{postgres.port}", Eras("known")
    new, both, old = (
        Link(parse(store.replace(here, hosts)), name="any", eras=known)
        for hosts in (here.replace("127.0.0.1", "localhost"), f"{here},localhost:{postgres.port}", here)
    )
    await new.up()
    await both.up()
    assert both._connection is not None
    assert both._connection._addr[0] == "localhost"
    rows = Rows.at(store.replace(here, f"{here},localhost:{postgres.port}"), "any", known)
    assert await asyncio.to_thread(rows.stored) == []
    rows.close()
    with pytest.raises(StoreBusy, match=rf"^connecting to {here}/\w+: an old primary answers"):
        await old.up()
    await new.close()
    await both.close()


async def test_a_lost_revision_fences_and_only_once(
    postgres: Postgres, store: str, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a server that cannot be told from the one before, or that was restored in place."""
    said: list[str] = []
    monkeypatch.setattr(Logger, "error", lambda _, event, **fields: said.append(event))

    async def lose() -> None:
        loss = "UPDATE muster.revision SET revision = revision - 1"
        await asyncio.to_thread(postgres.execute, loss, database=store.rpartition("/")[2])
        one._watch._look.set()
        before = len(said)
        await until(lambda: len(said) > before, "noticing the loss")

    async with opened(store) as one:
        grant = await claim(one)
        await lose()
        assert one.eras.current == 1
        assert await one.renew([grant], TERM_MS) == [None]
        grant = await claim(one)
        await one._watch.close()  # until the loss; then it meets the new server after the others
        await servers.meet(one._writer, 1, 2)
        one._watch._seen += 1
        await one._watch._link.run("watching", one._watch._poll)
        assert len(said) == 2
        assert one.eras.current == 2


# --- calls under way ------------------------------------------------------------------------------


async def test_a_claim_belongs_to_the_server_that_it_was_sent_to(
    store: str, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = statements.leases.claim

    async def answered_late(*arguments: Any) -> Any:
        answer = await sent(*arguments)
        await servers.meet(one._lease_link, 1, 2)
        return answer

    async with opened(store, poll_ms=60_000, listen=False) as one:
        monkeypatch.setattr(statements.leases, "claim", answered_late)
        grant = await claim(one)
        assert await one.renew([grant], TERM_MS) == [None]
        assert await write(one, grant, b"k") is Outcome.FENCED


async def test_an_append_belongs_to_the_era_that_it_was_made_in(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def reserve(*_: Any) -> None:
        one.eras.end(0)

    async with opened(store) as one:
        grant = await claim(one)
        monkeypatch.setattr(Writers, "_reserve", reserve)
        assert await write(one, grant, b"k") is Outcome.FENCED


async def test_a_store_that_is_closing_fences_too(store: str, servers: Servers) -> None:
    async with opened(store) as one:
        grant = await claim(one)
        async with one._writing:
            writing = asyncio.ensure_future(write(one, grant, b"k"))
            await until(lambda: one._calls, "being called")
            closing = asyncio.ensure_future(one.close())
            await until(lambda: not one._open, "closing")
            await servers.meet(one._lease_link, 1, 2)
        assert await writing is Outcome.FENCED
        await closing


async def test_nothing_is_changed_under_an_epoch_of_an_earlier_server(store: str) -> None:
    """This server has the claim; but what the caller knows may be another's."""
    async with opened(store) as one:
        await one.register_node(NODE)
        topic = TopicRow(UUID(int=1), "orders", 3)
        await one.create_topic(topic)
        grant = await claim(one)
        row = JournalRow(1, None, b"v")
        deleted = [(b"a", b"v"), (b"a", None)]
        assert await one.append([Append(A, grant.epoch, deleted, [row], at_ms=1)]) == [Outcome.WRITTEN]
        assert await write(one, grant, b"b") is Outcome.WRITTEN
        letter = Letter(1, b"x", under=(A, grant.epoch))
        assert await one.post([letter]) == [Posted.SENT]
        one.eras.end(0)
        assert not await one.trim_journal(A, grant.epoch, 1)
        assert await one.remove_tombstones(A, grant.epoch, before_ms=2, count_max=0) == 0
        with pytest.raises(StoreConflict, match="failed over"):
            await one.update_topic(topic._replace(partitions=4), epochs={A: grant.epoch})
        assert await one.post([letter]) == [Posted.FENCED]
        await one.announce([grant])
        await one.release([grant])
        held = (await one.holders(LeaseKind.GROUP))[0]
        assert (held.epoch, held.announced) == (grant.epoch, False)

        grant = await claim(one)
        assert await one.trim_journal(A, grant.epoch, 1)
        assert await one.remove_tombstones(A, grant.epoch, before_ms=2, count_max=0) == 1
        await one.update_topic(topic._replace(partitions=4), epochs={A: grant.epoch})
        assert await one.post([Letter(1, b"x", under=(A, grant.epoch))]) == [Posted.SENT]
        await one.announce([grant])
        assert (await one.holders(LeaseKind.GROUP))[0].announced
        await one.release([grant])
        assert await one.holders(LeaseKind.GROUP) == {}


# --- producer ids ---------------------------------------------------------------------------------


async def lose_producer_ids(postgres: Postgres, store: str) -> None:
    loss = "UPDATE muster.store SET next_producer_id = 0"
    await asyncio.to_thread(postgres.execute, loss, database=store.rpartition("/")[2])


async def test_ids_that_another_broker_had_before_are_not_given_out_again(
    postgres: Postgres, store: str, servers: Servers
) -> None:
    async with opened(store) as one, opened(store) as other:
        others = ProducerIds(PausableStore(other).as_store())
        assert await others.allocate() == 0
        assert await one.allocate_producer_ids(1_000) == 1_000
        await lose_producer_ids(postgres, store)
        await servers.meet(other._writer, 1, 2)
        after = [await others.allocate() for _ in range(1_500)]
        await servers.meet(one._writer, 1, 2)
        after.append(await one.allocate_producer_ids(1))
        assert len(set(after)) == len(after)
        assert min(after) >= 2_000, "not even those that were kept from before"
        await others.close()


async def test_ids_that_were_allocated_here_are_not_allocated_again_however_many_are_lost(
    postgres: Postgres, store: str, servers: Servers
) -> None:
    count = 2**40
    async with opened(store) as one:
        assert await one.allocate_producer_ids(count) == 0
        await lose_producer_ids(postgres, store)
        assert await one.allocate_producer_ids(1) == count, "even if no failover has been noticed"
        await lose_producer_ids(postgres, store)
        await servers.meet(one._writer, 1, 2)
        first = await one.allocate_producer_ids(1)
        assert first > count
        assert await one.allocate_producer_ids(1) == first + 1


# --- topic records --------------------------------------------------------------------------------


def values(one: OneLog) -> list[bytes | None]:
    return [record.value for record in one.records()]


async def test_a_log_opened_on_an_earlier_server_is_fenced(
    store: str, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> None:
        one, two = OneLog(), OneLog()
        one.append(b"1")
        two.append(b"1")
        before = [connection for connection, _ in rows.storage.database._idle]
        servers.answering = ServerId(1, 2)
        asyncio.run(meet(Eras.check))
        two.reopen()
        for each in (one, two):
            each.log.append(batch(b"2"))
        fenced, written = commit_together(rows.storage, [one.log, two.log])
        assert written is None
        assert isinstance(fenced, KafkaError)
        assert fenced.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert all(connection.is_closed() for connection in before)
        one.reopen()
        assert values(one) == [b"1"]
        one.append(b"3")
        assert (values(one), values(two)) == ([b"1", b"3"], [b"1", b"2"])

    async def meet(check: Callable[..., Awaitable[int]]) -> None:
        await check(rows.storage.database.eras, None)

    rows = TestRows(store)
    monkeypatch.setattr(TestRows, "in_use", rows)
    try:
        await asyncio.to_thread(run)
    finally:
        rows.storage.close()


async def test_a_write_to_the_log_that_finds_the_new_server_is_not_sent(
    store: str, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> None:
        one = OneLog()
        one.append(b"1")
        servers.answering = ServerId(1, 2)
        for connection, _ in rows.storage.database._idle:
            rows.storage.database._loop.call_soon_threadsafe(connection.terminate)  # type: ignore[union-attr]
        one.log.append(batch(b"2"))
        with pytest.raises(KafkaError) as fenced:
            one.log.commit()
        assert fenced.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER

    rows = TestRows(store)
    monkeypatch.setattr(TestRows, "in_use", rows)
    try:
        await asyncio.to_thread(run)
    finally:
        rows.storage.close()
