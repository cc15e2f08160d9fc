"""Transactions as fast as they are ended, and reading what they have written."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from muster.coordinator.cluster.coordinators import TRANSACTIONS
from muster.protocol.header import encode_request
from muster.protocol.message import Message
from muster.protocol.messages.data import FetchRequest, ProduceRequest
from muster.protocol.messages.transactions import EndTxnRequest
from muster.protocol.record_batch import HEADER_BYTES, peek
from tests.bench import load
from tests.bench.bulk import FETCHED_BYTES, Bulks, fetch
from tests.bench.peers.driver import Target
from tests.bench.peers.measure import IN_PROCESS, Goal, Measure, Point, Quantity, Scale, drive
from tests.bench.peers.servers import Kind, Options
from tests.bench.transactional import (
    END_VERSION,
    PARTITIONS,
    PRODUCE_VERSION,
    RECORD_BYTES,
    RECORDS,
    TransactionalProducer,
    Transactions,
    shares,
)

_TOPIC: Final = "orders"
_TOPIC_PARTITIONS: Final = 30
_READ_TOPIC: Final = "settled"
_WRITERS: Final = 10
_ABORTED_EVERY: Final = 10
_FILLED_BYTES: Final = 2 * FETCHED_BYTES
"""In each partition of `_READ_TOPIC`."""


@asynccontextmanager
async def producing(
    target: Target, topic: str, partitions: int, count: int
) -> AsyncIterator[list[TransactionalProducer]]:
    """Producers of a topic with so many partitions, each with a connection of its own to its coordinator and
    to every leader that it writes to."""
    for request, wanted in ((ProduceRequest, PRODUCE_VERSION), (EndTxnRequest, END_VERSION)):
        if target.version(request) < wanted:
            raise RuntimeError(f"{request.__name__} v{wanted} is not there (transaction.version 2)")
    names = [f"{topic}-{count}-{number}" for number in range(count)]
    coordinators = await target.coordinators(names, TRANSACTIONS.key_type)
    leaders = await target.leaders(topic, partitions)
    producers: list[TransactionalProducer] = []
    opened: list[load.Link] = []
    try:
        for number, (name, coordinator) in enumerate(zip(names, coordinators, strict=True)):
            by_port: dict[int, dict[int, int]] = defaultdict(dict)
            for partition, records in shares(number, partitions).items():
                by_port[leaders[partition]][partition] = records
            links: dict[int, load.Link] = {}
            for port in {coordinator, *by_port}:
                (links[port],) = await load.connect(port, 1, target.context)
            opened += links.values()
            writes = {links[port]: records for port, records in by_port.items()}
            producers.append(TransactionalProducer(name, links[coordinator], writes, topic))
        await asyncio.gather(*(producer.init() for producer in producers))
        yield producers
    finally:
        for link in opened:
            link.close()


async def _transact(server: dict[str, Any], producers: int, warm_up_s: float, seconds: float) -> list[Any]:
    target = await Target.ask(**server)
    transactions = Transactions()
    async with producing(target, _TOPIC, _TOPIC_PARTITIONS, producers) as each:
        transactions.start(each)
        await asyncio.sleep(warm_up_s)
        transactions.reset()
        meter = target.meter()
        await asyncio.sleep(seconds)
        used, ended = meter.read(), transactions.ended
        percentiles = {
            f"{name}_p{percent}_ms": latencies.ms(percent)
            for name, latencies in (("end", transactions.end), ("next", transactions.next))
            for percent in (50, 99)
        }
        await transactions.stop()
    if not ended:
        raise RuntimeError(f"no transaction was ended within {seconds:g} s")
    driver = used["driver"]
    points = [
        Point("rate", ended / used["took_s"], producers, driver),
        Point("cpu_us", used["server_s"] / ended * 1e6, producers),
        *(Point(key, value, producers, driver) for key, value in percentiles.items()),
    ]
    return [point.as_json() for point in points]


def transact(server: dict[str, Any], producers: int, warm_up_s: float, seconds: float) -> list[Any]:
    """In the driver's process."""
    return load.run(_transact(server, producers, warm_up_s, seconds))


async def _fill(target: Target) -> None:
    """The topic that is read, by transactions of which some are aborted."""
    each_bytes = RECORDS // PARTITIONS * RECORD_BYTES
    transactions = Transactions(limit=_FILLED_BYTES // each_bytes + 1, aborts_every=_ABORTED_EVERY)
    async with producing(target, _READ_TOPIC, PARTITIONS, _WRITERS) as producers:
        transactions.start(producers)
        await transactions.quiet()


def records_of(data: bytes) -> int:
    """Those of its batches, but for markers; servers may cut the last batch off."""
    count = at = 0
    while at + HEADER_BYTES <= len(data):
        header = peek(data, at)
        at += header.size
        if at <= len(data) and not header.is_control:
            count += header.record_count
    return count


async def _answers(target: Target, leaders: Sequence[tuple[int, int]], *, committed: bool) -> list[int]:
    """How many records each of the requests that are about to be sent brings. Raises RuntimeError when what
    comes is not all that was asked for, or not said to be aborted."""
    found: list[int] = []
    for partition, port in leaders:
        (link,) = await load.connect(port, 1, target.context)
        request = fetch(_READ_TOPIC, partition, committed=committed)
        answer = await link.call(request, target.version(FetchRequest))
        link.close()
        fetched = answer.responses[0].partitions[0]
        size = len(fetched.records or b"")
        if fetched.error_code or size < FETCHED_BYTES - 2 * RECORDS * RECORD_BYTES:
            raise RuntimeError(f"Fetch: {fetched.error_code}, {size} bytes")
        if committed and not fetched.aborted_transactions:
            raise RuntimeError("Fetch: no aborted transactions, where there are some")
        found.append(records_of(fetched.records))
    return found


async def _read(server: dict[str, Any], warm_up_s: float, seconds: float) -> list[Any]:
    target = await Target.ask(**server)
    await _fill(target)
    leaders = list((await target.leaders(_READ_TOPIC, PARTITIONS)).items())
    found: list[Point] = []
    for level, committed in (("committed", True), ("uncommitted", False)):
        brings = await _answers(target, leaders, committed=committed)
        frames = [
            (port, _encoded(target, fetch(_READ_TOPIC, partition, committed=committed)))
            for partition, port in leaders
        ]
        bulks = await Bulks.fetching(frames, target.context)
        await asyncio.sleep(warm_up_s)
        before, meter = bulks.answered, target.meter()
        await asyncio.sleep(seconds)
        after, used = bulks.answered, meter.read()
        await bulks.stop()
        records = sum(each * (now - then) for each, now, then in zip(brings, after, before, strict=True))
        if not records:
            raise RuntimeError(f"nothing was fetched within {seconds:g} s")
        found.append(Point(f"{level}_rate", records / used["took_s"], driver=used["driver"]))
        found.append(Point(f"{level}_cpu_us", used["server_s"] / records * 1e6))
    return [point.as_json() for point in found]


def _encoded(target: Target, request: Message) -> bytes:
    api_key = request.__schema__.api_key
    assert api_key is not None
    return encode_request(api_key, target.version(type(request)), 1, "peers", request)


def read(server: dict[str, Any], warm_up_s: float, seconds: float) -> list[Any]:
    """In the driver's process."""
    return load.run(_read(server, warm_up_s, seconds))


def _run(kind: Kind, scale: Scale) -> list[Point]:
    found: list[Point] = []
    topics = {_TOPIC: _TOPIC_PARTITIONS, _READ_TOPIC: PARTITIONS}
    with kind.start(Options(topics=topics)) as running:
        for producers in scale.sizes((10,), (1, 10, 100)):
            times = scale.times(cold=not found)
            found += drive(transact, running, producers=producers, **times)
        found += drive(read, running, **scale.times(cold=True))
    return found


_AHEAD: Final = Goal(1.0, beside="kafka-flush")
"""Durability equal: muster's decisions are always synced to disk, Kafka's with flush.messages=1."""
_NEAR: Final = Goal(0.7)

MEASURE: Final = Measure(
    "transactions",
    "Transactions",
    "Producers with one transaction after the other, as clients of transaction.version 2 send them: to each "
    f"leader one Produce, acks=all, {RECORDS} records of 1 KB for {PARTITIONS} of {_TOPIC_PARTITIONS} "
    "partitions in all, then EndTxn, which commits. The next one begins as soon as that is answered; its "
    "first Produce waits in the broker until the markers of the one before are written. Fetch has a request "
    f"of up to 1 MB in flight for each of {PARTITIONS} partitions, always of the same records. One "
    f"transaction in {_ABORTED_EVERY} was aborted; its records count too, since consumers drop them. What an "
    "answered EndTxn survives is what the table of servers says of an offset commit.",
    (
        Quantity("rate", "transactions a second", "/s", "more", axis="producers", goals=(_AHEAD, _NEAR)),
        Quantity("cpu_us", "CPU of a transaction", "us", "less", axis="producers", chart=False),
        Quantity(
            "end_p50_ms",
            "median of EndTxn",
            "ms",
            "less",
            axis="producers",
            goals=(_AHEAD, _NEAR),
            chart=False,
        ),
        Quantity("end_p99_ms", "99th percentile of EndTxn", "ms", "less", axis="producers", chart=False),
        Quantity(
            "next_p50_ms",
            "median from EndTxn to the next transaction's acknowledged records",
            "ms",
            "less",
            axis="producers",
            chart=False,
        ),
        Quantity(
            "next_p99_ms",
            "99th percentile from EndTxn to the next transaction's acknowledged records",
            "ms",
            "less",
            axis="producers",
            chart=False,
        ),
        Quantity("committed_rate", "Fetch, read_committed", "records/s", "more", goals=(_NEAR,), chart=False),
        Quantity("uncommitted_rate", "Fetch, read_uncommitted", "records/s", "more", chart=False),
        Quantity("committed_cpu_us", "CPU of a record, read_committed", "us", "less", chart=False),
        Quantity("uncommitted_cpu_us", "CPU of a record, read_uncommitted", "us", "less", chart=False),
    ),
    _run,
    cannot={"muster-3": IN_PROCESS, "mock": "its Produce (v10 at most) adds no partitions to transactions."},
)
