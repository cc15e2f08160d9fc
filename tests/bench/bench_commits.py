"""Durable offset commits a second, against plain sqlite with one transaction each.

`python -m tests.bench commits`

100 connections, each with one OffsetCommit of one partition in flight, from a process of their own on the
same cores. The peer is what one gets without group commit: the standard library's sqlite3 with the same
settings (WAL, synchronous=FULL), called straight from one thread, with no broker around it.
"""

from __future__ import annotations

import asyncio
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from muster.protocol.messages.offsets import OffsetCommitRequest
from muster.protocol.messages.topics import CreateTopicsRequest
from tests.bench import bench_store, load, processes
from tests.bench.figures import Figure

CONNECTIONS: Final = 100
MEMBERS: Final = 10
WARM_UP_S: Final = 1.0
MEASURED_S: Final = 4.0
ROUNDS: Final = 2
TARGET_RATE: Final = 30_000
TARGET_P99_MS: Final = 10.0

_VERSION: Final = 9
_TOPIC: Final = "orders"
_OFFSET: Final = struct.Struct(">q")
_SENTINEL: Final = 0x0123_4567_89AB_CDEF


class Commits:
    """One member's commits: the same frame with an offset that moves on."""

    def __init__(
        self, member: load.Member, partition: int, *, topic: str = _TOPIC, version: int = _VERSION
    ) -> None:
        request = OffsetCommitRequest(
            group_id=member.group_id,
            generation_id_or_member_epoch=member.generation_id,
            member_id=member.member_id,
            topics=[
                OffsetCommitRequest.Topic(
                    name=topic,
                    partitions=[
                        OffsetCommitRequest.Partition(
                            partition_index=partition, committed_offset=_SENTINEL, committed_metadata=""
                        )
                    ],
                )
            ],
        )
        self._prebuilt = load.Prebuilt(request, version)
        self._at = self._prebuilt.next().index(_OFFSET.pack(_SENTINEL))
        self._offset = 0

    def next(self) -> bytes:
        frame = self._prebuilt.next()
        self._offset += 1
        return frame[: self._at] + _OFFSET.pack(self._offset) + frame[self._at + 8 :]


def _check(frame: bytes) -> None:
    # The partition's error code stands at the end, before three empty blocks of tags.
    if frame[-5:-3] != b"\x00\x00":
        raise RuntimeError(f"a commit was refused: {frame.hex()}")


async def _commit(port: int, pid: int) -> dict[str, float]:
    links = await load.connect(port, CONNECTIONS)
    topic = CreateTopicsRequest.CreatableTopic(
        name=_TOPIC, num_partitions=CONNECTIONS, replication_factor=1, assignments=[], configs=[]
    )
    created = await links[0].call(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 7)
    assert created.topics[0].error_code == 0, created
    members = await load.join_groups(links, MEMBERS)
    next_frames: list[Callable[[], bytes]] = [Commits(each, index).next for index, each in enumerate(members)]
    driving = load.ClosedLoop(links, next_frames)
    driving.start(_check)
    await asyncio.sleep(WARM_UP_S)
    loop, rounds, commits = asyncio.get_running_loop(), [], 0
    for _ in range(ROUNDS):
        commits += driving.answered
        driving.reset()
        before, began = processes.cpu_seconds(pid), loop.time()
        await asyncio.sleep(MEASURED_S / ROUNDS)
        cpu_s, took_s = processes.cpu_seconds(pid) - before, loop.time() - began
        rounds.append((driving.answered / took_s, driving.latencies.ms(99), cpu_s / driving.answered * 1e6))
    await driving.stop()
    best = max(rounds)
    return {"rate": best[0], "p99_ms": best[1], "cpu_us": best[2], "commits": commits + driving.answered}


def commit(port: int, pid: int) -> dict[str, float]:
    """In the load's process; `commits` are all of them, the rest is of the best round."""
    return load.run(_commit(port, pid))


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as directory:
        plain = bench_store.plain_sqlite(Path(directory), 2.0)
    with processes.muster("--group-initial-rebalance-delay-ms", "500") as server:
        found: dict[str, Any] = processes.load(commit, port=server.port, pid=server.pid)
    return [
        Figure(
            "durable commits a second",
            "/s",
            found["rate"],
            plain,
            "plain sqlite",
            target=f"at least {TARGET_RATE:,}",
            reached=found["rate"] >= TARGET_RATE,
        ),
        Figure(
            "p99 of a commit",
            "ms",
            found["p99_ms"],
            1000 / plain,
            "mean of plain sqlite",
            target=f"at most {TARGET_P99_MS:g} ms",
            reached=found["p99_ms"] <= TARGET_P99_MS,
        ),
        Figure(
            "CPU of a commit",
            "us",
            found["cpu_us"],
            note=f"of all threads of the server; one core would do {1e6 / found['cpu_us']:,.0f} a second",
        ),
    ]
