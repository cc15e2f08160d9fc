"""Bytes a second through Produce and Fetch, by the size of a batch."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from muster.protocol.errors import ErrorCode
from muster.protocol.header import encode_request
from muster.protocol.messages.data import FetchRequest, ProduceRequest
from tests.bench import load
from tests.bench.bulk import FETCHED_BYTES, IN_FLIGHT, Bulks, batch, fetch, produce
from tests.bench.peers.driver import Target
from tests.bench.peers.measure import IN_PROCESS, Goal, Measure, Point, Quantity, Scale, drive, over_sizes
from tests.bench.peers.servers import SINK, Kind, Options, Running

TOPIC: Final = "records-{}"
"""One for each size of a batch: what is fetched are batches of that size."""
PARTITIONS: Final = 6
_FILLED_BYTES: Final = 2 * FETCHED_BYTES
_BY_NAME: Final = 12
"""The last version of Produce and of Fetch that names topics."""


async def _move(
    server: dict[str, Any], batch_bytes: int, fetching: bool, warm_up_s: float, seconds: float
) -> list[dict[str, Any]]:
    target = await Target.ask(**server)
    topic = TOPIC.format(batch_bytes)
    leaders = await target.leaders(topic, PARTITIONS)
    await _check(target, topic, leaders, batch(batch_bytes), fill=fetching)
    version = target.version(FetchRequest if fetching else ProduceRequest)
    return await _moved(target, leaders, version, batch_bytes, fetching, warm_up_s, seconds)


async def _sink(
    server: dict[str, Any], batch_bytes: int, fetching: bool, warm_up_s: float, seconds: float
) -> list[dict[str, Any]]:
    """The same frames, to a server that looks at nothing."""
    (port,) = server["ports"]
    target = Target([port], server["pids"], [], {}, None, None)
    leaders = dict.fromkeys(range(PARTITIONS), port)
    return await _moved(target, leaders, _BY_NAME, batch_bytes, fetching, warm_up_s, seconds)


async def _moved(
    target: Target,
    leaders: Mapping[int, int],
    version: int,
    batch_bytes: int,
    fetching: bool,
    warm_up_s: float,
    seconds: float,
) -> list[dict[str, Any]]:
    contents, topic = batch(batch_bytes), TOPIC.format(batch_bytes)
    frames = []
    for partition, port in leaders.items():
        request = fetch(topic, partition) if fetching else produce(topic, partition, contents)
        api_key = request.__schema__.api_key
        assert api_key is not None
        frames.append((port, encode_request(api_key, version, 1, "peers", request)))
    bulks = await (
        Bulks.fetching(frames, target.context)
        if fetching
        else Bulks.producing(frames, len(contents), target.context)
    )
    await asyncio.sleep(warm_up_s)
    before, meter = bulks.moved_bytes, target.meter()
    await asyncio.sleep(seconds)
    megabytes, used = (bulks.moved_bytes - before) / 1e6, meter.read()
    await bulks.stop()
    if not megabytes:
        raise RuntimeError(f"nothing was moved within {seconds:g} s")
    what = "fetch" if fetching else "produce"
    return [
        Point(f"{what}_rate", megabytes / used["took_s"], batch_bytes, used["driver"]).as_json(),
        Point(f"{what}_cpu_ms", used["server_s"] / megabytes * 1e3, batch_bytes).as_json(),
    ]


async def _check(target: Target, topic: str, leaders: dict[int, int], contents: bytes, *, fill: bool) -> None:
    """One batch or enough to fetch into each partition, and read it back: what is refused is no speed."""
    batches = max(_FILLED_BYTES // len(contents), 1) if fill else 1
    for partition, port in leaders.items():
        (link,) = await load.connect(port, 1, target.context)
        for _ in range(batches):
            produced = await link.call(produce(topic, partition, contents), target.version(ProduceRequest))
            if produced.responses[0].partition_responses[0].error_code != ErrorCode.NONE:
                raise RuntimeError(f"Produce: {produced}")
        answer = await link.call(fetch(topic, partition), target.version(FetchRequest))
        fetched = answer.responses[0].partitions[0]
        if fetched.error_code or len(fetched.records or b"") < min(len(contents), FETCHED_BYTES):
            raise RuntimeError(f"Fetch: {fetched.error_code}, {len(fetched.records or b'')} bytes")
        link.close()


def move(
    server: dict[str, Any], batch_bytes: int, fetching: bool, warm_up_s: float, seconds: float
) -> list[dict[str, Any]]:
    """In the driver's process."""
    return load.run(_move(server, batch_bytes, fetching, warm_up_s, seconds))


def sink(
    server: dict[str, Any], batch_bytes: int, fetching: bool, warm_up_s: float, seconds: float
) -> list[dict[str, Any]]:
    """In the driver's process."""
    return load.run(_sink(server, batch_bytes, fetching, warm_up_s, seconds))


def _run(kind: Kind, scale: Scale) -> list[Point]:
    moved = sink if kind is SINK else move

    def measured(running: Running, batch_bytes: int, times: Mapping[str, float]) -> list[Point]:
        fetched, produced = (
            drive(moved, running, batch_bytes=batch_bytes, fetching=fetching, **times)
            for fetching in (True, False)
        )
        return fetched + produced

    sizes = scale.sizes((100_000,), (1_000, 10_000, 100_000), cold=(1_000, 100_000))
    topics = {TOPIC.format(batch_bytes): PARTITIONS for batch_bytes in sizes}
    return over_sizes(kind, Options(topics=topics), scale, sizes, measured)


_PRODUCE_GOALS: Final = (Goal(0.5, at=(1_000, 10_000)), Goal(0.8, at=(100_000,)))
_FETCH_GOALS: Final = (Goal(0.75, at=(100_000,)),)

MEASURE: Final = Measure(
    "records",
    "Produce and Fetch",
    f"{PARTITIONS} partitions, a connection to each; records of 1 KB without compression, acks=all. Produce "
    f"has {IN_FLIGHT} requests of one batch in flight on a connection, Fetch one of up to 1 MB, always of "
    "the same records. The bare server writes what it gets to a file and sends what it reads from there; it "
    "parses nothing, and blocks its event loop on file I/O.",
    (
        Quantity("produce_rate", "Produce", "MB/s", "more", axis="bytes a batch", goals=_PRODUCE_GOALS),
        Quantity("fetch_rate", "Fetch", "MB/s", "more", axis="bytes a batch", goals=_FETCH_GOALS),
        Quantity(
            "produce_cpu_ms", "CPU of a MB through Produce", "ms", "less", axis="bytes a batch", chart=False
        ),
        Quantity(
            "fetch_cpu_ms", "CPU of a MB through Fetch", "ms", "less", axis="bytes a batch", chart=False
        ),
    ),
    _run,
    cannot={"muster-3": IN_PROCESS},
    cold=True,
)
