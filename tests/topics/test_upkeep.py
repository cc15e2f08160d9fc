"""Upkeep of a broker's partitions: it goes on whatever happens, reaches what it must, and delays no
request."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable
from errno import ENOSPC
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from muster.coordinator.base.log import Logger
from muster.coordinator.cluster.placement import data_shard
from muster.coordinator.storage.folders import Folders
from muster.coordinator.storage.store import Lease
from muster.coordinator.topics import upkeep
from muster.coordinator.topics.compaction import compact
from muster.coordinator.topics.log import PartitionLog
from muster.coordinator.topics.logs import Logs
from muster.coordinator.topics.retention import expire
from muster.protocol.errors import ErrorCode
from tests.support.facts import until
from tests.topics.support import NOW_MS, SHARDS, Brokers, HeldExecutor, KindredFolder, batch
from tests.topics.test_partitions import ask, code_of, fetch, settled, topic_at, values


async def swept(brokers: Brokers) -> None:
    """Let the sweeps that have begun end: in a database they also remove what other tests left behind."""
    await until(lambda: not any(node._upkeep.sweeping for node in brokers.nodes), "the sweeps to end")


async def test_upkeep_goes_on_after_a_lease_had_run_out() -> None:
    lapsed: set[Lease] = set()
    brokers = Brokers(
        retention_check_interval_ms=60_000,
        cleaner_backoff_ms=60_000,
        serving=lambda lease: lease not in lapsed,
    )
    node = await brokers.add()
    topic = await topic_at(brokers, partitions=2, retention_ms="1000")
    for partition in range(2):
        await node.append(topic, partition, batch(b"a"))
    lapsed.update(brokers.lease_of(shard) for shard in range(SHARDS))
    brokers.clock.advance(60_000)
    await swept(brokers)
    lapsed.clear()
    assert await node.offsets(topic, 0) == (0, 1)
    brokers.clock.advance(60_000)
    await swept(brokers)
    assert [await node.offsets(topic, partition) for partition in range(2)] == [(1, 1), (1, 1)]
    await brokers.close()


async def test_retention_goes_by_the_date() -> None:
    """After a suspend it is ahead of the broker's clock, as clients' records are."""
    brokers = Brokers(retention_check_interval_ms=60_000, cleaner_backoff_ms=60_000)
    node = await brokers.add()
    topic = await topic_at(brokers, retention_ms="3600000")
    await node.append(topic, 0, batch(b"a"))
    brokers.clock.advance(60_000)
    await swept(brokers)
    assert await node.offsets(topic, 0) == (0, 1)
    brokers.clock.date_ahead_ms = 7_200_000
    brokers.clock.advance(60_000)
    await swept(brokers)
    assert await node.offsets(topic, 0) == (1, 1)
    await brokers.close()


async def test_upkeep_that_fails_for_one_partition_is_done_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    brokers = Brokers(retention_check_interval_ms=60_000, cleaner_backoff_ms=60_000)
    node = await brokers.add()
    topic = await topic_at(brokers, partitions=3, retention_ms="1000")
    for partition in range(3):
        await node.append(topic, partition, batch(b"a"))

    def expire_or_fail(log: PartitionLog, now_ms: int) -> int:
        if log.name == "orders-1":
            raise ValueError("on purpose")
        return expire(log, now_ms)

    monkeypatch.setattr(upkeep, "expire", expire_or_fail)
    brokers.clock.advance(60_000)
    await swept(brokers)
    assert [await node.offsets(topic, partition) for partition in range(3)] == [(1, 1), (0, 1), (1, 1)]
    monkeypatch.undo()
    brokers.clock.advance(60_000)
    await swept(brokers)
    assert await node.offsets(topic, 1) == (1, 1)
    await brokers.close()


@pytest.mark.files
async def test_a_full_disk_does_not_stop_the_retention_that_frees_it() -> None:
    full, refused = False, 0

    class Folder(KindredFolder):
        def store(self, name: str, contents: bytes) -> None:
            if full:
                nonlocal refused
                refused += 1
                raise OSError(ENOSPC, "No space left on device")
            super().store(name, contents)

    brokers = Brokers(
        logs=Logs(Folders(Folder())), retention_check_interval_ms=60_000, cleaner_backoff_ms=60_000
    )
    node = await brokers.add()
    topic = await topic_at(brokers, internal_segment_bytes="250", retention_bytes="600")
    for _ in range(5):
        await node.append(topic, 0, batch(b"x" * 150))
    full = True
    for _ in range(5):
        await node.append(topic, 0, batch(b"x" * 150))
    assert refused == 1, "sealing waits for the next sweep"
    brokers.clock.advance(60_000)
    await swept(brokers)
    assert refused > 1
    assert (await node.offsets(topic, 0))[0] == 4, "what was sealed is removed"
    full = False
    brokers.clock.advance(60_000)
    await swept(brokers)
    assert (await node.offsets(topic, 0))[0] > 4
    await brokers.close()


@pytest.mark.files
@pytest.mark.parametrize("enough", [True, False])
async def test_retention_frees_a_full_disk_in_the_room_kept_for_it(enough: bool) -> None:
    """A closed segment needs none; here the records are in the active one."""
    full, given = True, 0

    class Folder(KindredFolder):
        def store(self, name: str, contents: bytes) -> None:
            if full:
                raise OSError(ENOSPC, "No space left on device")
            super().store(name, contents)

    def make_room() -> bool:
        nonlocal full, given
        given += 1
        full = not enough or given < 3  # producers, who go on trying, take some of it
        return given < 5

    logs = Logs(Folders(Folder(), make_room))
    brokers = Brokers(logs=logs, retention_check_interval_ms=60_000, cleaner_backoff_ms=60_000)
    node = await brokers.add()
    topic = await topic_at(brokers, retention_ms="1000")
    await node.append(topic, 0, batch(b"a"))
    brokers.clock.advance(60_000)
    await swept(brokers)
    assert await node.offsets(topic, 0) == ((1, 1) if enough else (0, 1))
    assert given == (3 if enough else 5)
    full = False
    brokers.clock.advance(60_000)
    await swept(brokers)
    assert await node.offsets(topic, 0) == (1, 1)
    await brokers.close()


@pytest.mark.files
async def test_files_that_cannot_be_removed_keep_upkeep_from_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Folder(KindredFolder):
        def remove(self, name: str) -> None:
            if name.endswith(".log"):
                raise PermissionError(name)
            super().remove(name)

    brokers = Brokers(
        logs=Logs(Folders(Folder())), retention_check_interval_ms=60_000, cleaner_backoff_ms=60_000
    )
    node = await brokers.add()
    topic = await topic_at(brokers, internal_segment_bytes="250", retention_ms="1000")
    for _ in range(2):
        await node.append(topic, 0, batch(b"x" * 150))
    rested: list[str] = []
    monkeypatch.setattr(PartitionLog, "rest", lambda log: rested.append(log.name))
    said: list[str] = []
    monkeypatch.setattr(Logger, "warning", lambda _, event, **fields: said.append(event))
    brokers.clock.advance(60_000)
    await swept(brokers)
    assert await node.offsets(topic, 0) == (2, 2)
    assert said == ["upkeep failed"]
    assert rested == ["orders-0"]
    await brokers.close()


async def test_deleted_topics_that_cannot_be_removed_keep_upkeep_from_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(logs: Logs, given_up: Callable[[], bool]) -> list[UUID]:
        raise OSError("no answer")

    monkeypatch.setattr(Logs, "remove_left_over", refuse)
    said: list[str] = []
    monkeypatch.setattr(Logger, "warning", lambda _, event, **fields: said.append(event))
    brokers = Brokers(retention_check_interval_ms=120_000, cleaner_backoff_ms=60_000)
    node = await brokers.add()
    topic = await topic_at(brokers, retention_ms="1000")
    await node.append(topic, 0, batch(b"a"))
    for sweeps in range(1, 4):
        brokers.clock.advance(60_000)
        await swept(brokers)
        assert await node.offsets(topic, 0) == ((0, 1) if sweeps == 1 else (1, 1))
    assert said == ["failed to remove the logs of deleted topics"] * 2, "tried again with retention only"
    await brokers.close()


async def test_logs_are_tended_before_deleted_topics_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    remove = Logs.remove_left_over
    starts: list[int] = []

    def noted(logs: Logs, given_up: Callable[[], bool]) -> list[UUID]:
        starts.append(log.start_offset)
        return remove(logs, given_up)

    monkeypatch.setattr(Logs, "remove_left_over", noted)
    brokers = Brokers()
    node = await brokers.add()
    topic = await topic_at(brokers, retention_ms="1000")
    await node.append(topic, 0, batch(b"a"))
    log = node._opened(node._led[topic.topic_id, 0])
    brokers.clock.advance(2_000)
    await node.sweep()
    assert starts == [1]
    await brokers.close()


async def finished(task: Awaitable[None], threads: HeldExecutor) -> None:
    """Let the threads run until `task` is done."""
    running = asyncio.ensure_future(task)
    await settled()
    while threads.waiting:
        threads.run_one()
        await settled()
    await running


@pytest.mark.files
async def test_requests_do_not_wait_for_upkeep() -> None:
    threads = HeldExecutor()
    brokers = Brokers(upkeep_executor=threads)
    node = await brokers.add()
    topic = await topic_at(brokers, internal_segment_bytes="250")
    await node.append(topic, 0, batch(b"x" * 150))
    sweep = asyncio.ensure_future(node.sweep())
    await settled()
    assert len(threads.waiting) == 1
    for _ in range(10):
        await node.append(topic, 0, batch(b"x" * 150))
    assert len(threads.waiting) == 2  # the sweep, and one call to seal all that was closed
    assert values((await fetch(node, ask(topic, 10)))[0]) == [b"x" * 150]
    log = node._led[topic.topic_id, 0].log
    assert log is not None
    assert len(log.segments.sealed_segments) == 0
    await finished(sweep, threads)
    assert len(log.segments.sealed_segments) == 10
    await node.append(topic, 0, batch(b"x" * 150))
    assert len(threads.waiting) == 1
    await finished(brokers.close(), threads)


@pytest.mark.files
async def test_sealing_does_not_wait_for_the_end_of_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "compact", lambda log, now_ms: True)
    threads = HeldExecutor()
    brokers = Brokers(upkeep_executor=threads)
    node = await brokers.add()
    topic = await topic_at(brokers, internal_segment_bytes="250", cleanup_policy="compact", partitions=3)
    for partition in range(3):
        await node.append(topic, partition, batch(b"x" * 150, keys=[b"k"]))
    sweep = asyncio.ensure_future(node.sweep())
    await settled()
    threads.run_one()  # looks up which partitions have files
    await settled()
    assert len(threads.waiting) == 1
    await node.append(topic, 2, batch(b"x" * 150, keys=[b"k"]))
    assert len(threads.waiting) == 2
    threads.run_one()  # the sweep, up to the first compaction
    await settled()
    threads.run_one()
    log = node._led[topic.topic_id, 2].log
    assert log is not None
    assert not log.segments.unsealed
    assert not sweep.done()
    await finished(sweep, threads)
    await finished(brokers.close(), threads)


async def test_retention_goes_between_the_passes_of_a_compaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "compact", partial(compact, keys_max=2))
    brokers = Brokers(retention_check_interval_ms=60_000, cleaner_backoff_ms=60_000)
    node = await brokers.add()
    topic = await topic_at(brokers, retention_ms="1000")
    configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "internal.segment.bytes": "250"}
    compacted = await brokers.catalogues[0].create("latest", configs=configs)
    for number in range(7):
        await node.append(compacted, 0, batch(b"x" * 150, keys=[b"k%d" % number]))
    log, found, clock = node._opened(node._led[compacted.topic_id, 0]), [], brokers.clock
    for sweep in range(1, 4):
        await node.append(topic, 0, batch(b"a"))
        clock.advance(60_000)
        await swept(brokers)
        assert await node.offsets(topic, 0) == (sweep, sweep)
        next_ms = clock.next_ms()
        assert next_ms is not None
        found.append((log.segments.cleaned_offset, next_ms - clock.now_ms()))
    assert found == [(2, 0), (4, 0), (6, 60_000)], "no pass but the first waits for the backoff"
    await brokers.close()


async def test_what_nobody_asks_for_is_compacted_at_once_too(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []

    def counted(log: PartitionLog, now_ms: int) -> bool:
        rewritten = compact(log, now_ms, keys_max=2)
        passes.append(log.segments.cleaned_offset)
        return rewritten

    monkeypatch.setattr(upkeep, "compact", counted)
    brokers = Brokers(retention_check_interval_ms=60_000, cleaner_backoff_ms=15_000)
    node = await brokers.add(epoch=1)
    configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "internal.segment.bytes": "250"}
    topic = await brokers.catalogues[0].create("latest", configs=configs)
    for number in range(7):
        await node.append(topic, 0, batch(b"x" * 150, keys=[b"k%d" % number]))
    for shard in range(SHARDS):
        node.own(shard, 2)  # nothing is open any more
    brokers.clock.advance(60_000)
    await swept(brokers)
    while brokers.clock.next_ms() == brokers.clock.now_ms():
        brokers.clock.advance(0)
        await swept(brokers)
    assert passes == [2, 4, 6]
    await brokers.close()


async def test_a_sweep_opens_what_has_files_and_closes_what_nobody_asked_for() -> None:
    brokers = Brokers()
    node = await brokers.add(epoch=1)
    topic = await topic_at(brokers, partitions=300, retention_ms="1000")
    for partition in range(0, 300, 2):
        await node.append(topic, partition, batch(b"a"))
    for shard in range(SHARDS):
        node.own(shard, 2)  # nothing is open any more
    brokers.clock.advance(2_000)
    await node.append(topic, 0, batch(b"b", timestamps=[NOW_MS + 2_000]))
    await node.sweep()
    assert list(node._led) == [(topic.topic_id, 0)]
    assert await node.offsets(topic, 0) == (0, 2)
    assert await node.offsets(topic, 298) == (1, 1)
    assert (await node.append(topic, 298, batch(b"c"))).base_offset == 1
    await brokers.close()


async def test_a_partition_asked_for_during_its_upkeep_stays_open() -> None:
    threads = HeldExecutor()
    brokers = Brokers(upkeep_executor=threads)
    node = await brokers.add(epoch=1)
    topic = await topic_at(brokers)
    await node.append(topic, 0, batch(b"a"))
    node.own(data_shard(topic.topic_id, 0, SHARDS), 2)
    sweep = asyncio.ensure_future(node.sweep())
    await settled()
    threads.run_one()  # looks up which partitions have files
    await settled()
    log = node._opened(node._led[topic.topic_id, 0])
    assert (await node.append(topic, 0, batch(b"b"))).base_offset == 1
    await finished(sweep, threads)
    assert not log.closed
    assert (await node.append(topic, 0, batch(b"c"))).base_offset == 2
    await finished(brokers.close(), threads)


async def test_closing_does_not_wait_for_the_rest_of_a_sweep() -> None:
    threads = HeldExecutor()
    brokers = Brokers(upkeep_executor=threads)
    node = await brokers.add()
    topic = await topic_at(brokers, partitions=250)
    for partition in range(250):
        await node.append(topic, partition, batch(b"a"))
    sweep = asyncio.ensure_future(node.sweep())
    await settled()
    threads.run_one()  # looks up which partitions have files
    await settled()
    closing = asyncio.ensure_future(brokers.close())
    await settled()
    threads.run_one()
    await settled()
    assert not threads.waiting
    await sweep
    await closing


async def test_upkeep_that_is_held_does_only_what_it_is_told_to() -> None:
    brokers = Brokers(retention_check_interval_ms=60_000, cleaner_backoff_ms=60_000)
    node = await brokers.add()
    topic = await topic_at(brokers, retention_ms="1000")
    await node.append(topic, 0, batch(b"a"))
    node.hold_upkeep()
    brokers.clock.advance(120_000)
    await swept(brokers)
    assert await node.offsets(topic, 0) == (0, 1)
    await node.sweep_quietly()
    assert await node.offsets(topic, 0) == (1, 1)
    await node.append(topic, 0, batch(b"b"))
    node.resume_upkeep()
    node.resume_upkeep()
    brokers.clock.advance(60_000)
    await swept(brokers)
    assert await node.offsets(topic, 0) == (2, 2)
    await brokers.close()


async def test_a_sweep_that_ends_while_upkeep_is_held_is_followed_by_none() -> None:
    threads = HeldExecutor()
    brokers = Brokers(retention_check_interval_ms=60_000, cleaner_backoff_ms=60_000, upkeep_executor=threads)
    node = await brokers.add()
    await topic_at(brokers)
    brokers.clock.advance(60_000)
    await settled()
    assert list(node.under_way()) == ["logs are still being read or written", "log upkeep is still running"]
    node.hold_upkeep()
    while threads.waiting:
        threads.run_one()
        await settled()
    assert list(node.under_way()) == []
    brokers.clock.advance(600_000)
    await swept(brokers)
    assert not threads.waiting
    await brokers.close()


@pytest.mark.interpreted  # compiled classes have no weak references
@pytest.mark.files
async def test_nothing_is_kept_of_logs_that_are_closed_but_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[weakref.ref[PartitionLog]] = []
    open_log = Logs.open

    def noted(logs: Logs, *args: Any, **options: Any) -> PartitionLog:
        log = open_log(logs, *args, **options)
        opened.append(weakref.ref(log))
        return log

    monkeypatch.setattr(Logs, "open", noted)
    brokers = Brokers()
    node = await brokers.add()
    topic = await topic_at(brokers)
    await node.append(topic, 0, batch(b"a", b"b"))
    shard = data_shard(topic.topic_id, 0, SHARDS)
    await node.disown(shard)
    node.own(shard, 2)
    await node.sweep()
    await settled()
    gc.collect()
    assert [log() for log in opened] == [None, None], "given up, and opened by upkeep alone"
    brokers.logs._storage.delete(topic.topic_id)
    await node.append(topic, 0, batch(b"c"))
    again = opened[-1]()
    assert again is not None
    assert again.known_end == 2, "that records were lost meanwhile is noticed"
    await brokers.close()


async def test_nothing_is_kept_of_a_topic_deleted_under_its_appends() -> None:
    brokers = Brokers()
    node = await brokers.add()
    topic = await topic_at(brokers)
    appending = node.append(topic, 0, batch(b"a", producer=(1, 0, 0)))
    await brokers.catalogues[0].delete(topic)  # in the same turn of the loop
    assert await code_of(appending) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    await settled()
    assert not brokers.logs._holders
    await brokers.close()
