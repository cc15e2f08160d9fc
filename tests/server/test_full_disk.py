"""A broker whose disk is full: no client loses the broker, and whoever tries to write is told why it
fails."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest

from muster.coordinator.base import log
from muster.coordinator.server.brokers import Brokers
from muster.coordinator.storage.sqlite import SqliteStore
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.classic_group import (
    HeartbeatRequest,
    JoinGroupRequest,
    SyncGroupRequest,
)
from muster.protocol.messages.data import FetchRequest
from muster.protocol.messages.metadata import MetadataRequest
from muster.protocol.messages.offsets import OffsetFetchRequest
from muster.protocol.messages.topics import DeleteTopicsRequest
from tests.server.conftest import StartBrokers
from tests.server.test_metadata import asking, creating
from tests.server.test_offsets import codes, commit
from tests.support.facts import until
from tests.support.leases import TERM_MS, let_pass
from tests.support.sqlite_room import make_room, take_all_room
from tests.support.wire import Wire


async def test_a_full_disk_ends_neither_reads_nor_groups_nor_leadership(
    start_brokers: StartBrokers, tmp_path: Path
) -> None:
    brokers = await start_brokers(ephemeral=False, data=str(tmp_path), test_mode=True)
    (broker,) = brokers.brokers
    store = the_store(brokers)
    topic = await broker.catalogue.create("t")
    epochs = [each.epoch for each in broker.runtime.shards()]
    leader_epoch = broker.partitions.leader_epoch(topic, 0)
    async with await Wire.connect(broker.port) as wire:
        member_id, generation = await join(wire)
        beat = HeartbeatRequest(group_id="members", generation_id=generation, member_id=member_id)
        assert codes(await wire.call(commit(("t", 0, 7)), 8)) == [0]

        await take_all_room(store)
        refused = set()
        for _ in range(6):  # a term and a half
            let_pass(brokers, TERM_MS // 4, broker)
            await until(lambda: broker.membership.at_rest)
            refused |= set(codes(await wire.call(commit(("t", 0, 8)), 8)))
            # As far as the member knows, nothing has happened.
            assert (await wire.call(beat, 4)).error_code == ErrorCode.NONE
            assert (await fetch(wire)).error_code == ErrorCode.NONE
            (told,) = (await wire.call(metadata(), 9)).topics
            assert told.partitions[0].leader_id == broker.node_id
        assert refused <= {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
        await broker.runtime.loaded()
        assert await committed(wire) == 7
        assert [each.epoch for each in broker.runtime.shards()] == epochs
        assert broker.partitions.leader_epoch(topic, 0) == leader_epoch

        await make_room(store)
        async with asyncio.timeout(30):
            while codes(await wire.call(commit(("t", 0, 9)), 8)) != [0]:
                pass
        assert await committed(wire) == 9
        assert (await wire.call(beat, 4)).error_code == ErrorCode.NONE


async def test_a_change_of_topics_says_that_the_store_is_full_and_the_log_says_it_once(
    start_brokers: StartBrokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    brokers = await start_brokers(ephemeral=False, data=str(tmp_path))
    await brokers.brokers[0].catalogue.create("t")
    for name, value in {"level": 20, "format": "json", "stream": stream, "logger": None}.items():
        monkeypatch.setattr(log._Output, name, value)
    deleting = DeleteTopicsRequest(topic_names=["t"], timeout_ms=1_000)
    async with await Wire.connect(brokers.brokers[0].port) as wire:
        await take_all_room(the_store(brokers))
        for _ in range(3):
            (asked,) = (await wire.call(asking("u", create=True), 12)).topics
            assert asked.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            (created,) = (await wire.call(creating("u"), 7)).topics
            (deleted,) = (await wire.call(deleting, 5)).responses
            for refused in (created, deleted):
                assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
                assert refused.error_message == "the broker's store is full: free some space there"
        await make_room(the_store(brokers))
        (deleted,) = (await wire.call(deleting, 5)).responses
        assert deleted.error_code == ErrorCode.NONE
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    (line,) = [line for line in lines if line["level"] == "error"]
    assert (line["event"], line["api"]) == ("the store is full", "METADATA")
    assert str(tmp_path) in line["why"]
    assert "exception" not in line


def the_store(brokers: Brokers) -> SqliteStore:
    assert brokers._shared is not None
    assert isinstance(brokers._shared.store, SqliteStore)
    return brokers._shared.store


async def join(wire: Wire) -> tuple[str, int]:
    """Join as the only member of a group; return (member id, generation)."""
    joining: dict[str, Any] = {
        "group_id": "members",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "protocol_type": "consumer",
        "protocols": [JoinGroupRequest.Protocol(name="range", metadata=b"")],
    }
    told = await wire.call(JoinGroupRequest(member_id="", **joining), 5)
    joined = await wire.call(JoinGroupRequest(member_id=told.member_id, **joining), 5)
    synced = await wire.call(
        SyncGroupRequest(
            group_id="members", generation_id=joined.generation_id, member_id=joined.member_id, assignments=[]
        ),
        3,
    )
    assert synced.error_code == ErrorCode.NONE
    return joined.member_id, joined.generation_id


async def fetch(wire: Wire) -> Any:
    wanted = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topic = FetchRequest.FetchTopic(topic="t", partitions=[wanted])
    response = await wire.call(FetchRequest(max_wait_ms=0, min_bytes=0, topics=[topic]), 11)
    return response.responses[0].partitions[0]


def metadata() -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequest.Topic(name="t")])


async def committed(wire: Wire) -> int:
    topic = OffsetFetchRequest.Topic(name="t", partition_indexes=[0])
    response = await wire.call(OffsetFetchRequest(group_id="g", topics=[topic]), 5)
    offset: int = response.topics[0].partitions[0].committed_offset
    return offset
