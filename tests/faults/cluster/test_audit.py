"""The audit records what happens in a real database, and finds a write by a fenced broker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import pytest

from tests.faults.batches import Violation
from tests.faults.cluster import checker
from tests.faults.cluster.audit import Audit
from tests.support.postgres import Postgres

LEASE = 7
CLAIM = "UPDATE muster.leases SET epoch = epoch + 1 WHERE lease_id = $1"
WRITE = """INSERT INTO muster.records (lease_id, key, seq, value) VALUES ($1, $2, 1, $3)
ON CONFLICT (lease_id, key) DO UPDATE SET value = excluded.value"""
BEGIN_LOG = """INSERT INTO muster.logs
(topic_id, partition, version, start_offset, next_offset, cleaned_offset, size_bytes)
VALUES ($1, 0, 0, 0, 0, 0, 0)"""
MOVE_LOG = "UPDATE muster.logs SET version = version + 1 WHERE topic_id = $1"


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with Postgres(settings={"track_commit_timestamp": "on"}) as server:
        yield server


class Place:
    """A database with an audit, and the name of its only data lease."""

    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres
        self._url = postgres.new_database()
        self.audit = Audit(lambda topic_id, partition: self.lease)
        self.lease = ""

    @asynccontextmanager
    async def connected(self, name: str) -> AsyncIterator[asyncpg.Connection]:
        connection = await asyncpg.connect(
            host=str(self._postgres.socket_folder),
            port=self._postgres.port,
            user="postgres",
            database=urlsplit(self._url).path.lstrip("/"),
            server_settings={"application_name": name},
        )
        try:
            yield connection
        finally:
            await connection.close()

    async def judge(self) -> None:
        async with self.connected("psql") as connection:
            noted = await self.audit.read(connection)
        checker.check_epochs(noted.claims, noted.epochs)
        checker.check_writes(noted.claims, noted.writes)


@pytest.fixture
async def place(postgres: Postgres) -> Place:
    made = Place(postgres)
    async with made.connected("psql") as connection:
        await made.audit.install(connection)
        made.lease = await connection.fetchval("SELECT lease FROM audit.began WHERE lease_id = $1", LEASE)
    return made


async def test_holders_write(place: Place) -> None:
    async with place.connected("muster-1") as one, place.connected("muster-2-records") as other:
        await one.execute(CLAIM, LEASE)
        await one.execute(WRITE, LEASE, b"\x00\x09key", b"value")
        await one.execute(WRITE, LEASE, b"\x00\x09key", b"again")
        await other.execute(CLAIM, LEASE)
        await other.execute("DELETE FROM muster.records WHERE lease_id = $1", LEASE)
    await place.judge()
    assert [(each.node, each.lease) for each in place.audit.noted.claims] == [
        (1, place.lease),
        (2, place.lease),
    ]
    assert [each.node for each in place.audit.noted.writes] == [1, 1, 2]


async def test_a_write_after_a_claim_is_found(place: Place) -> None:
    async with place.connected("muster-1") as one, place.connected("muster-2") as other:
        await one.execute(CLAIM, LEASE)
        await other.execute(CLAIM, LEASE)
        await one.execute(WRITE, LEASE, b"\x00\x09key", b"value")
    with pytest.raises(Violation, match=r"node 1 has written records under epoch 2, which is of node \{2\}"):
        await place.judge()


async def test_a_write_that_a_claim_did_not_wait_for_is_found(place: Place) -> None:
    """It began under an epoch that was still the writer's, and was committed when that no longer held."""
    async with place.connected("muster-1") as one, place.connected("muster-2") as other:
        await one.execute(CLAIM, LEASE)
        async with one.transaction():
            await one.execute(WRITE, LEASE, b"\x00\x09key", b"value")
            await other.execute(CLAIM, LEASE)
    with pytest.raises(Violation, match=r"node 1 has written records .* after epoch 2 of node 2"):
        await place.judge()


async def test_a_log_that_moves_under_anothers_lease_is_found(place: Place) -> None:
    topic_id = uuid4()
    async with place.connected("muster-1") as one, place.connected("muster-2") as other:
        await one.execute(CLAIM, LEASE)
        await one.execute(BEGIN_LOG, topic_id)
        await one.execute(MOVE_LOG, topic_id)
        await place.judge()
        await other.execute(CLAIM, LEASE)
        await one.execute(MOVE_LOG, topic_id)
    with pytest.raises(Violation, match=r"node 1 has written logs .* after epoch 2 of node 2"):
        await place.judge()


async def test_what_is_not_committed_is_not_noted_yet(place: Place) -> None:
    async with place.connected("muster-1") as one, place.connected("muster-2") as other:
        await one.execute(CLAIM, LEASE)
        begun = one.transaction()
        await begun.start()
        await one.execute(WRITE, LEASE, b"\x00\x09key", b"value")
        await other.execute(CLAIM, LEASE + 1)
        await place.judge()
        assert len(place.audit.noted.claims) == 1
        assert not place.audit.noted.writes
        await begun.commit()
        await place.judge()
    assert len(place.audit.noted.claims) == 2
    assert len(place.audit.noted.writes) == 1


async def test_rows_of_transactions_are_not_taken_for_offsets(place: Place) -> None:
    """Their keys begin with the same number, which is a version."""
    key = b"\x00\x00\x00\x02id"
    async with place.connected("muster-1") as one:
        lease = await one.fetchval("SELECT min(lease_id) FROM muster.leases WHERE kind = 'transaction'")
        await one.execute(CLAIM, lease)
        await one.execute(WRITE, lease, key, b"value")
    await place.judge()
    assert [each.node for each in place.audit.noted.writes] == [1]
    assert not place.audit.noted.offsets
