"""How long partitions stand still when a member joins: cooperative beside eager, and beside aiokafka.

`python -m tests.bench client_rebalance`

A record a partition every few milliseconds, a member that owns all six partitions, a second one that joins,
gets three and leaves again, several times. A partition stands still from the last record before it is moved,
or only revoked, to the next one that any member gets. Then the same with a third member that is busy: its
handler takes half a second, and a rebalance waits for it. Members and what produces share one process and one
loop; the median over the joins of the worst partition of its kind.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import pairwise
from statistics import median
from typing import Any, Final

from muster.protocol.messages.data import ProduceRequest
from muster.protocol.record_batch import Record, build
from tests.bench import client_topics, load, processes
from tests.bench.figures import Figure

JOINS: Final = 5
TOPIC: Final = "rebalance"
EVERY_S: Final = 0.004
BUSY_S: Final = 0.5
_HEARTBEAT_MS: Final = 200
_SECONDS_MAX: Final = 60.0
_PRODUCE_VERSION: Final = 12

Delivered = dict[int, list[float]]
"""By partition: when its records were delivered, on the loop's clock."""


async def _feed(port: int) -> None:
    """One record to every partition, again and again."""
    (link,) = await load.connect(port, 1)
    contents = build([Record(0, time.time_ns() // 1_000_000, b"k", b"v")])
    parts = [
        ProduceRequest.PartitionProduceData(index=index, records=contents)
        for index in range(client_topics.PARTITIONS)
    ]
    data = ProduceRequest.TopicProduceData(name=TOPIC, partition_data=parts)
    try:
        while True:
            await link.call(ProduceRequest(acks=1, timeout_ms=30_000, topic_data=[data]), _PRODUCE_VERSION)
            await asyncio.sleep(EVERY_S)
    finally:
        link.close()


def _muster(port: int, group: str, assignor: str) -> Any:
    from muster.client import Consumer

    return Consumer(
        f"127.0.0.1:{port}",
        group_id=group,
        topics=[TOPIC],
        assignors=(assignor,),
        heartbeat_interval_ms=_HEARTBEAT_MS,
        auto_offset_reset="latest",
    )


def _aiokafka(port: int, group: str, _: str) -> Any:
    from aiokafka import AIOKafkaConsumer
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor

    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # every rebalance is an error to it
    return AIOKafkaConsumer(
        TOPIC,
        bootstrap_servers=f"127.0.0.1:{port}",
        group_id=group,
        heartbeat_interval_ms=_HEARTBEAT_MS,
        partition_assignment_strategy=(RangePartitionAssignor,),
        auto_offset_reset="latest",
    )


@asynccontextmanager
async def _member(
    consumer: Any, delivered: Delivered, busy_s: float = 0.0
) -> AsyncIterator[Callable[[], set[int]]]:
    """A member that reads in a task of its own; what it owns. `busy_s`: how long it handles a record."""
    loop = asyncio.get_running_loop()

    async def read() -> None:
        async for record in consumer:
            delivered[record.partition].append(loop.time())
            if busy_s:
                await asyncio.sleep(busy_s)

    def owned() -> set[int]:
        assignment = consumer.assignment
        return {each.partition for each in (assignment() if callable(assignment) else assignment)}

    async with consumer:
        reading = asyncio.create_task(read())
        try:
            yield owned
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading


async def _until(fact: Callable[[], bool]) -> None:
    async with asyncio.timeout(_SECONDS_MAX):
        while not fact():  # noqa: ASYNC110 - what the members have got is no event
            await asyncio.sleep(0.001)


async def _joins(make: Callable[[], Any], busy: bool) -> list[dict[str, float]]:
    """Per join: the longest stand-still of a partition that stays with the first member, and, unless somebody
    is busy, of one that moves, in ms."""
    loop = asyncio.get_running_loop()
    delivered: Delivered = defaultdict(list)
    pauses = []

    async def all_delivered(partitions: set[int]) -> None:
        since = loop.time()
        await _until(lambda: all(delivered[each] and delivered[each][-1] > since for each in partitions))

    async with AsyncExitStack() as stack:
        members = [await stack.enter_async_context(_member(make(), delivered))]
        if busy:
            members.append(await stack.enter_async_context(_member(make(), defaultdict(list), BUSY_S)))
        for _ in range(JOINS):
            await _until(lambda: _is_shared(members))
            before = members[0]()
            await all_delivered(before)
            began = loop.time()
            async with _member(make(), delivered) as joining:
                await _until(lambda joining=joining: _is_shared([*members, joining]))
                stay, move = before & members[0](), joining() & before
                await all_delivered(stay | move)
            found = {"stay": _longest(delivered, stay, began)}
            if not busy:
                found["move"] = _longest(delivered, move, began)
            pauses.append(found)
    return pauses


def _is_shared(members: Sequence[Callable[[], set[int]]]) -> bool:
    """Each has as many as the others, and all are owned once."""
    owned = [member() for member in members]
    everything = sorted(partition for each in owned for partition in each)
    return len(set(map(len, owned))) == 1 and everything == list(range(client_topics.PARTITIONS))


def _longest(delivered: Delivered, partitions: set[int], since: float) -> float:
    gaps = [
        later - earlier
        for partition in partitions
        for earlier, later in pairwise(delivered[partition])
        if later > since
    ]
    return max(gaps) * 1_000


async def _measure(port: int, client: str, assignor: str, busy: bool) -> list[dict[str, float]]:
    group = f"bench-{uuid.uuid4()}"
    consumer = {"muster": _muster, "aiokafka": _aiokafka}[client]
    async with AsyncExitStack() as stack:
        feeding = asyncio.create_task(_feed(port))
        stack.push_async_callback(_end, feeding)
        return await _joins(lambda: consumer(port, group, assignor), busy)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def pauses(port: int, client: str, assignor: str, busy: bool) -> list[dict[str, float]]:
    """In the load's process."""
    return asyncio.run(_measure(port, client, assignor, busy))


def measure() -> list[Figure]:
    figures = []
    with processes.muster("--group-initial-rebalance-delay-ms", "0") as server:
        processes.load(client_topics.create, port=server.port, topic=TOPIC)
        for busy in (False, True):
            found = [
                processes.load(pauses, port=server.port, client=client, assignor=assignor, busy=busy)
                for client, assignor in (
                    ("aiokafka", "range"),
                    ("muster", "range"),
                    ("muster", "cooperative-sticky"),
                )
            ]
            for kind in found[0][0]:
                peer, eager, cooperative = (median(each[kind] for each in joins) for joins in found)
                what = f"stand-still of partitions that {kind}{', a member busy' if busy else ''}"
                theirs = "aiokafka rebalances beside handlers, which may then work on what others have"
                figures.append(
                    Figure(f"{what}, eager", "ms", eager, peer, "aiokafka", note=theirs if busy else "")
                )
                stays = kind == "stay"
                figures.append(
                    Figure(
                        f"{what}, cooperative",
                        "ms",
                        cooperative,
                        eager,
                        "ours, eager",
                        target="less than eager" if stays else "",
                        reached=cooperative < eager if stays else None,
                        note=""
                        if stays
                        else "they come to the new member with a rebalance of their own, "
                        f"of which it hears with its next heartbeat (here every {_HEARTBEAT_MS} ms)",
                    )
                )
    return figures
