"""Full, read-only or failing disks: nothing unwritten is acknowledged, writers learn the reason, and what was
acknowledged is there when the disk works again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import UUID

import pytest

from muster.client import Admin, ConfigResource, Producer
from muster.coordinator.storage.sqlite import SqliteStore
from muster.coordinator.storage.store import Append, Lease, LeaseKind, StoreFull, TopicRow
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.classic_group import HeartbeatRequest
from tests.faults import strace
from tests.faults.clients import fetch, read_log
from tests.faults.disk import SmallDisk
from tests.faults.lived import Lived
from tests.faults.load import FLUSHED_TOPIC, REPLY_S, SMALL_TOPIC, Committer, Pipe, Producing
from tests.storage.conftest import StoreClock
from tests.support import facts
from tests.support.served import Served

RETRIABLE = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with SmallDisk(tmp_path / "disk", megabytes=24) as disk:
        yield disk


@pytest.fixture
async def lived(grown: Lived, disk: SmallDisk, tmp_path: Path) -> AsyncIterator[Lived]:
    """A running broker on the small disk."""
    lived = grown.copied(disk.path / "data", tmp_path / "log")
    try:
        lived.served.start()
        await lived.settle()
        yield lived
    finally:
        lived.end()


async def until(wire: Pipe, committer: Committer, *, refused: bool) -> int:
    """Commit until that is refused for more than loading, or accepted again; returns the last code. A refusal
    is always one that clients retry."""
    async with asyncio.timeout(REPLY_S):
        while True:
            code = await committer.attempt(wire)
            assert code in {*RETRIABLE, ErrorCode.NONE}
            if code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and bool(code) is refused:
                return code


async def until_written(wire: Pipe, producing: Producing, *, refused: bool) -> str:
    """Produce until that is refused with KAFKA_STORAGE_ERROR, or accepted again; returns the last message."""
    async with asyncio.timeout(REPLY_S):
        while True:
            code, said = await producing.attempt(wire)
            assert code in (ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR), said
            if bool(code) is refused:
                return said


def producing_to(lived: Lived, topic: str) -> Producing:
    """The idempotent producer for that topic, which repeats refused batches."""
    return next(
        each for each in lived.clients.producing if each.produced.idempotent and each.produced.topic == topic
    )


async def is_at_work(wire: Pipe, lived: Lived) -> None:
    """Clients that only read or heartbeat notice nothing."""
    for group in lived.clients.steady:
        for member, _ in group.life.durable.members:
            generation = group.life.durable.generation
            beat = HeartbeatRequest(group_id=group.life.group, generation_id=generation, member_id=member)
            assert (await wire.call(beat, 4)).error_code == ErrorCode.NONE
    assert await read_log(wire, SMALL_TOPIC, 0, 0)


async def test_a_full_disk_refuses_what_would_write_and_nothing_else(lived: Lived, disk: SmallDisk) -> None:
    committer, producing = lived.clients.simple[0], producing_to(lived, SMALL_TOPIC)
    folder = lived.folder(SMALL_TOPIC, producing.produced.partition)
    async with await Pipe.connect(lived.served.port) as wire:
        disk.fill()
        await until(wire, committer, refused=True)
        said = await until_written(wire, producing, refused=True)
        assert str(folder) in said
        assert "the disk is full" in said
        await is_at_work(wire, lived)
        path = lived.served.data / "store.sqlite"
        await lived.says(f"writing to {path}: database or disk is full; free some space there")
        disk.make_room()
        await until(wire, committer, refused=False)
        await until_written(wire, producing, refused=False)
    await lived.settle()
    await lived.load()
    lived.served.start()
    await lived.settle()


async def test_a_kill_on_a_full_disk_loses_nothing(lived: Lived, disk: SmallDisk) -> None:
    async with await Pipe.connect(lived.served.port) as wire:
        disk.fill()
        await until(wire, lived.clients.simple[0], refused=True)
        await until_written(wire, producing_to(lived, SMALL_TOPIC), refused=True)
    lived.served.kill()
    (lived.served.data / "store.reserve").unlink()
    disk.fill()
    said = lived.refusal()
    assert str(lived.served.data) in said
    assert "full" in said
    assert "free some space" in said
    assert "\n" not in said
    disk.make_room()
    lived.served.start()
    await lived.settle()


@pytest.mark.parametrize("ended", ["killed while it was full", "stopped before"])
async def test_a_broker_starts_on_a_full_disk_so_that_topics_can_be_deleted(
    lived: Lived, disk: SmallDisk, ended: str
) -> None:
    if ended == "stopped before":
        assert lived.served.stop() == 0
    disk.fill()
    if ended != "stopped before":
        lived.served.kill()
        disk.fill()
    lived.served.start()
    disk.fill()  # others take what the start has left of its room
    async with Admin(lived.served.bootstrap) as admin:
        await admin.delete_topic(FLUSHED_TOPIC)
        assert FLUSHED_TOPIC not in {topic.name for topic in await admin.list_topics()}


async def test_leases_are_claimed_on_a_full_disk(disk: SmallDisk) -> None:
    store = SqliteStore(disk.path / "data", now_ms=StoreClock())
    await store.open()
    disk.fill()
    leases = [Lease(kind, 0) for kind in LeaseKind]
    grants = await store.claim(leases, 1, 10_000)
    assert [grant and grant.lease for grant in grants] == leases
    await store.close()


async def test_a_read_only_disk_is_named_at_the_start(lived: Lived, disk: SmallDisk) -> None:
    lived.served.kill()
    disk.read_only()
    said = lived.refusal()
    assert said.startswith(
        f"muster serve: cannot use data directory {lived.served.data}: "
        f"{lived.served.data}/muster.lock: Read-only file system"
    )
    assert "\n" not in said
    disk.writable()
    lived.served.start()
    await lived.settle()


@pytest.mark.parametrize("error", ["EIO", "EROFS", "ENOSPC"])
@pytest.mark.parametrize("syscall", ["fdatasync", "pwrite64"])
async def test_a_disk_that_fails_under_it_has_nothing_acknowledged(
    lived: Lived, syscall: str, error: str
) -> None:
    """The store's writes fail, and with fdatasync also those of the topic that is synced."""
    committer, producing = lived.clients.simple[0], producing_to(lived, FLUSHED_TOPIC)
    async with await Pipe.connect(lived.served.port) as wire:
        with strace.attached(lived.served.process.pid, strace.fail_with(error, syscall)):
            acknowledged = committer.commits.acknowledged
            for _ in range(20):
                assert await committer.attempt(wire) in RETRIABLE
            assert committer.commits.acknowledged == acknowledged
            if syscall == "fdatasync":
                said = await until_written(wire, producing, refused=True)
                assert str(lived.folder(FLUSHED_TOPIC, producing.produced.partition)) in said
                for _ in range(3):  # the batch is in the file, but was never synced
                    code, said = await producing.attempt(wire)
                    assert code == ErrorCode.KAFKA_STORAGE_ERROR, said
            await lived.says(f"writing to {lived.served.data / 'store.sqlite'}: ")
            assert (await fetch(wire, SMALL_TOPIC, 0, 0)).error_code == ErrorCode.NONE
        await until(wire, committer, refused=False)
        await until_written(wire, producing, refused=False)
    lived.served.kill()
    lived.served.start()
    await lived.settle()


async def test_retention_frees_a_full_disk(disk: SmallDisk, tmp_path: Path) -> None:
    """The records are in the active segment, whose removal has to be noted first."""
    data = disk.path / "data"

    def stored_bytes() -> int:
        return sum(path.stat().st_size for path in data.glob("topics/*/0/*.log"))

    with Served(data, "--log-retention-check-interval-ms", "500", log=tmp_path / "log") as served:
        async with Admin(served.bootstrap) as admin, Producer(served.bootstrap) as producer:
            await admin.create_topic("t", 1)
            for _ in range(4):
                await producer.send("t", bytes(900_000))
            disk.fill()
            assert stored_bytes() > 3_600_000
            changes = {ConfigResource.of_topic("t"): {"retention.ms": "1"}}
            (await admin.alter_configs(changes)).raise_for_failures()
            disk.fill()  # others take what the change has left of its room
            await facts.until(lambda: stored_bytes() == 0, "retention")
            await producer.send("t", b"again")


async def test_topics_can_be_changed_and_deleted_on_a_full_disk(disk: SmallDisk) -> None:
    clock = StoreClock()
    store = SqliteStore(disk.path / "data", now_ms=clock)
    await store.open()
    lease = Lease(LeaseKind.GROUP, 0)
    rows = [TopicRow(UUID(int=number), f"t{number}", 1) for number in range(12)]
    for row in rows:
        await store.create_topic(row)
    (grant,) = await store.claim([lease], 1, 10_000)
    assert grant is not None
    disk.fill()
    with pytest.raises(StoreFull):  # what a group writes leaves the reserve alone
        await store.append(
            [Append(lease, grant.epoch, [(b"%d" % number, bytes(100_000)) for number in range(50)])]
        )
    with pytest.raises(StoreFull):
        await store.create_topic(TopicRow(UUID(int=99), "another", 1))
    disk.fill()
    kept = [row._replace(configs={"retention.ms": "1000"}) for row in rows[:2]]
    for row in kept:
        await store.update_topic(row)
        disk.fill()  # others take all room again and again
    for row in rows[2:]:
        assert await store.delete_topic(row.topic_id)
        disk.fill()
    assert await store.topics() == kept
    disk.make_room()
    clock.advance(60_000)
    await store.append([Append(lease, grant.epoch, [(b"small", b"")])])
    reserve = disk.path / "data" / "store.reserve"
    assert reserve.stat().st_size == 1024 * 1024, "it is filled up when there is room"
    await store.close()
