"""`muster store check` of a database: it finds every kind of damage, and brokers may keep running."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from muster.coordinator.storage.postgres import PostgresStore, soundness
from muster.coordinator.storage.postgres.soundness import check_database
from muster.coordinator.storage.soundness import Checked, Fault
from muster.coordinator.storage.store import Lease, LeaseKind, StoreError, TopicRow
from muster.coordinator.topics.compaction import compact
from muster.coordinator.topics.config import parse
from muster.coordinator.topics.log import PartitionLog
from muster.coordinator.topics.logs import Logs
from tests.support.facts import until
from tests.support.postgres import Postgres
from tests.topics.support import NOW_MS, batch

TOPIC_ID = UUID(int=7)
LEASE = Lease(LeaseKind.DATA, 3)
BATCHES = 40
RECORDS = 3
"""Per batch."""


@pytest.fixture
async def filled(store: str) -> str:
    """URL of a database with a topic "orders" whose partition has several segments."""
    async with written(store) as log:
        for number in range(BATCHES):
            if number and number % 10 == 0:
                log.segments.roll()
            log.append(batch(*(b"%03d" % number * 20 for _ in range(RECORDS))))
            log.commit()
    return store


@asynccontextmanager
async def written(url: str, **configs: str) -> AsyncIterator[PartitionLog]:
    """The log of the topic's partition."""
    opened = PostgresStore(url)
    await opened.open()
    await opened.create_topic(TopicRow(TOPIC_ID, "orders", 1))
    (grant,) = await opened.claim([LEASE], 1, 10_000)
    assert grant is not None
    await opened.close()
    logs = Logs.in_postgres(url)
    log = logs.open(TOPIC_ID, 0, "orders-0", parse(configs), LEASE, grant.epoch, lambda: NOW_MS)
    yield log
    log.close()
    logs.close()


async def faults(url: str, checked: Checked | None = None) -> list[Fault]:
    return [fault async for fault in check_database(url, checked or Checked())]


async def change(url: str, statement: str, *arguments: Any) -> None:
    connection = await asyncpg.connect(url)
    try:
        done = await connection.execute(statement, *arguments)
        assert done.rpartition(" ")[2] != "0", done
    finally:
        await connection.close()


async def test_what_brokers_wrote_is_sound(filled: str) -> None:
    checked = Checked()
    assert await faults(filled, checked) == []
    assert (checked.partitions, checked.segments, checked.batches) == (1, 4, BATCHES)


async def test_nothing_is_sound_too(store: str) -> None:
    assert await faults(store) == []


@pytest.mark.parametrize(
    ("harm", "offset", "said"),
    [
        (
            "UPDATE muster.batches SET contents = overlay(contents placing '\\xffffff'::bytea from 90) "
            "WHERE base_offset = 33",
            33,
            "the batch's checksum does not match",
        ),
        (
            "UPDATE muster.batches SET contents = substring(contents from 1 for 100) WHERE base_offset = 33",
            33,
            "the row has 100 bytes",
        ),
        (
            "UPDATE muster.batches SET contents = '\\x00' WHERE base_offset = 33",
            33,
            "the row holds no batch",
        ),
        (
            "UPDATE muster.batches SET contents = overlay(contents placing '\\x07'::bytea from 8) "
            "WHERE base_offset = 33",
            33,
            "the batch has offsets 7 to 9, but its row says otherwise",
        ),
        ("DELETE FROM muster.batches WHERE base_offset = 33", 33, "the batch's offset 36 should be 33"),
        ("DELETE FROM muster.batches WHERE base_offset = 117", 117, "the end of the log is missing"),
        ("DELETE FROM muster.segments WHERE base_offset = 30", 30, "a segment is missing"),
        ("DELETE FROM muster.segments WHERE base_offset = 0", 0, "a segment is missing"),
        ("DELETE FROM muster.segments", 0, "all segments are missing"),
        ("DELETE FROM muster.logs", 0, "the partition's row is missing"),
    ],
)
async def test_rows_that_are_not_what_was_written(filled: str, harm: str, offset: int, said: str) -> None:
    await change(filled, harm)
    first, *others = await faults(filled)
    assert (first.partition, first.first_offset) == ("orders-0", offset)
    assert first.what.startswith(said)
    assert all(other.place.startswith("muster.segments, ") for other in others), "its counts at most"


async def test_a_trimmed_log_is_sound_if_its_last_segment_is_there(store: str) -> None:
    async with written(store) as log:
        for _ in range(3):
            log.segments.roll()
            for _ in range(3):
                log.append(batch(b"a", b"b", b"c"))
            log.commit()
        for offset in (1, 4, 9, 10, 26, 27):
            assert log.delete_records(offset) == offset
            assert await faults(store) == [], f"it starts at {offset}"
        assert [segment.base_offset for segment in log.segments.segments] == [18]
    await change(store, "DELETE FROM muster.segments")
    (fault,) = await faults(store)
    assert (fault.what, fault.first_offset) == ("all segments are missing", None), "no record is lost"


@pytest.mark.parametrize("lost", [0, 2, 4, 6, 8])
async def test_a_compacted_log_is_sound_if_all_its_segments_are_there(store: str, lost: int) -> None:
    configs = {
        "cleanup.policy": "compact,delete",
        "min.cleanable.dirty.ratio": "0",
        "segment.bytes": "1048576",
    }
    async with written(store, **configs) as log:
        for number in range(6):
            log.segments.roll()
            for key in (b"a", b"b" if number == 0 else b"a"):
                log.append(batch(bytes(400_000), keys=[key]))  # no two segments fit into one
            log.commit()
        assert await asyncio.to_thread(compact, log, NOW_MS)
        left = [(each.base_offset, each.batch_count) for each in log.segments.segments]
        assert left == [(0, 1), (2, 0), (4, 0), (6, 0), (8, 1), (10, 2)]
        assert await faults(store) == []
        assert log.delete_records(1) == 1
        assert await faults(store) == []
    await change(store, "DELETE FROM muster.segments WHERE base_offset = $1 AND state = 1", lost)
    (fault,) = await faults(store)
    assert fault.what == "a segment is missing"
    assert (fault.first_offset, fault.last_offset) == (max(lost, 1), lost + 1)


async def test_a_standby_is_checked_if_it_is_named_alone(filled: str) -> None:
    """Here it is the database that takes no writes, as a standby takes none."""
    database = filled.rpartition("/")[2]
    read_only = await asyncpg.connect(filled)
    await read_only.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = on")
    await read_only.close()
    checked = Checked()
    assert await faults(filled, checked) == []
    assert checked.batches == BATCHES
    hosts = filled.rpartition("@")[2].removesuffix(f"/{database}")
    with pytest.raises(StoreError, match="does not accept writes"):
        await faults(filled.replace(hosts, f"{hosts},{hosts}"))


async def test_whoever_reads_the_faults_may_take_a_while(postgres: Postgres, filled: str) -> None:
    """As a pager does."""
    await change(filled, "UPDATE muster.batches SET contents = '\\x00' WHERE base_offset = 33")
    idle_ms = (
        "SELECT (extract(epoch FROM clock_timestamp() - state_change) * 1000)::int FROM pg_stat_activity "
        "WHERE application_name = 'muster-check'"
    )
    found = check_database(filled, Checked())
    first = await anext(found)
    await until(lambda: int(postgres.execute(idle_ms) or 9_999) > 1_500, "more than a broker may take")
    others = [fault async for fault in found]
    assert first.first_offset == 33
    assert others
    assert all(other.place.startswith("muster.segments, ") for other in others)


async def test_a_reader_who_stops_for_good_is_told(
    postgres: Postgres, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await change(filled, "UPDATE muster.batches SET contents = '\\x00' WHERE base_offset = 33")
    connect = soundness.connect

    async def without_haste(server: Any, **options: Any) -> Any:
        return await connect(server, **options | {"statement_timeout_ms": 60_000})

    monkeypatch.setattr(soundness, "connect", without_haste)
    monkeypatch.setattr(soundness, "_TIMEOUT_MS", 1_000)

    async def read_slowly() -> None:
        async for _ in check_database(filled, Checked()):
            deadline = time.monotonic() + 30
            count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'muster-check'"
            while postgres.execute(count) != "0":
                assert time.monotonic() < deadline

    # If the machine stalls, perhaps even before the first fault.
    with pytest.raises(StoreError, match=r"checking .*due to idle-in-transaction timeout"):
        await read_slowly()


async def test_a_database_without_tables_is_refused(postgres: Any) -> None:
    with pytest.raises(StoreError, match="muster store migrate"):
        await faults(postgres.empty_database())
