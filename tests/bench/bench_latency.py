"""How long heartbeats take while the broker has other work: 99th percentiles.

`python -m tests.bench latency`

1,000 members of ten groups heartbeat once a second each, from a process of their own, while another process

- produces as fast as the broker takes it, in batches of 100 KB (the rate reached stands in the note);
- has 5,000 members join one group, with the initial delay at its shortest, so that nothing is spread out.

The peer is the same heartbeats with nothing else to do. What a member notices is this time, from its own
process; on two cores that process competes with the server and the other load, and its delays are in it.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from muster.protocol.header import encode_request
from muster.protocol.messages.topics import CreateTopicsRequest
from tests.bench import bench_records, load, processes
from tests.bench.bulk import Bulks, batch, produce
from tests.bench.figures import Figure

MEMBERS: Final = 1_000
GROUP_MEMBERS: Final = 100
JOINING: Final = 5_000
INTERVAL_S: Final = 1.0
MEASURED_S: Final = 4.0
SETTLED_S: Final = 1.5
TARGET_MS: Final = 50.0
DELAY_MS: Final = 500
_SECONDS_MAX: Final = 120.0
_CREATE_VERSION: Final = 5


async def _beat(port: int, ready: str, seconds: float) -> dict[str, float]:
    """Join, say so on standard error, and measure from the moment the load is ready."""
    links = await load.connect(port, MEMBERS)
    members = await load.join_groups(links, GROUP_MEMBERS)
    heartbeats = load.Heartbeats(INTERVAL_S)
    heartbeats.start(members)
    await asyncio.sleep(SETTLED_S)
    processes.tell(ready)
    await asyncio.sleep(SETTLED_S)
    heartbeats.latencies.seconds.clear()
    await asyncio.sleep(seconds)
    heartbeats.end()
    return {
        "p50_ms": heartbeats.latencies.ms(50),
        "p99_ms": heartbeats.latencies.ms(99),
        "worst_ms": heartbeats.latencies.ms(100),
    }


def beat(port: int, ready: str, seconds: float) -> dict[str, float]:
    """In the load's process. `ready` is a file that is made when the members heartbeat."""
    return load.run(_beat(port, ready, seconds))


async def _produce(port: int, pid: int, seconds: float) -> dict[str, float]:
    (link,) = await load.connect(port, 1)
    topic = CreateTopicsRequest.CreatableTopic(
        name=bench_records.TOPIC,
        num_partitions=bench_records.PARTITIONS,
        replication_factor=1,
        assignments=[],
        configs=[
            CreateTopicsRequest.CreatableTopic.CreatableTopicConfig(
                name="retention.bytes", value=str(bench_records.KEPT_BYTES)
            )
        ],
    )
    await link.call(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), _CREATE_VERSION)
    contents = batch(100_000)
    requests = [
        produce(bench_records.TOPIC, partition, contents, acks=1)
        for partition in range(bench_records.PARTITIONS)
    ]
    frames = [(port, encode_request(0, bench_records.PRODUCE_VERSION, 1, "bench", each)) for each in requests]
    began = time.perf_counter()
    bulks = await Bulks.producing(frames, len(contents))
    await asyncio.sleep(seconds)
    took_s = time.perf_counter() - began
    moved_bytes = bulks.moved_bytes
    await bulks.stop()
    return {"rate": moved_bytes / took_s / 1e6}


def produce_as_fast(port: int, pid: int, seconds: float) -> dict[str, float]:
    """In the load's process: megabytes a second."""
    return load.run(_produce(port, pid, seconds))


async def _join(port: int, pid: int, seconds: float) -> dict[str, float]:
    """Groups of 5,000 that form and go, one after the other, until the time is over."""
    links = await load.connect(port, JOINING)
    end, formed = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        group = load.Group(f"bench-joining-{formed}", links)
        group.join()
        await group.stable(_SECONDS_MAX)
        formed += 1
    return {"rate": formed}


def join(port: int, pid: int, seconds: float) -> dict[str, float]:
    return load.run(_join(port, pid, seconds))


def _during(other: Any) -> tuple[dict[str, float], dict[str, float]]:
    """The heartbeats' times while `other` runs, and what that says."""
    with (
        processes.muster("--group-initial-rebalance-delay-ms", str(DELAY_MS)) as server,
        processes.signal() as ready,
    ):
        seconds = MEASURED_S
        beating = processes.start_load(beat, port=server.port, ready=str(ready), seconds=seconds)
        processes.wait_for(ready)
        said: dict[str, float] = {}
        if other is not None:
            said = processes.load(other, port=server.port, pid=server.pid, seconds=SETTLED_S + seconds)
        return processes.finish_load(beating), said


def measure() -> list[Figure]:
    alone, _ = _during(None)
    producing, produced = _during(produce_as_fast)
    joining, joined = _during(join)
    notes = {
        "produce": f"at {produced['rate']:.0f} MB/s; the worst took {producing['worst_ms']:.0f} ms",
        "join": f"{joined['rate']:.0f} times {JOINING:,} joined; the worst took {joining['worst_ms']:.0f} ms",
    }
    return [
        Figure(
            f"p99 of a Heartbeat during {name}",
            "ms",
            found["p99_ms"],
            alone["p99_ms"],
            "with nothing else",
            target=f"at most {TARGET_MS:g} ms",
            reached=found["p99_ms"] <= TARGET_MS,
            note=notes[name],
        )
        for name, found in (("produce", producing), ("join", joining))
    ]
