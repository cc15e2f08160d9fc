"""How long a record takes from its producer to a consumer that waits for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final

from muster.protocol.messages.data import FetchRequest, ProduceRequest
from tests.bench import load
from tests.bench.bulk import batch, fetch, produce
from tests.bench.followers import Connection
from tests.bench.peers.driver import Target
from tests.bench.peers.measure import IN_PROCESS, Measure, Point, Quantity, Scale, drive, over_sizes
from tests.bench.peers.servers import Kind, Options, Running

_TOPIC: Final = "records-{}"
"""One for each rate."""
_RECORD_BYTES: Final = 1_000
_MAX_WAIT_MS: Final = 500
"""fetch.max.wait.ms of Java's consumer."""
_ARRIVED_S: Final = 30.0


class _Trip:
    """A producer that sends at a rate, and a consumer; each record's time from one to the other."""

    def __init__(self, target: Target, topic: str, link: load.Link, sending: Connection) -> None:
        self._target = target
        self._topic = topic
        self._link = link
        self._sending = sending
        self._sent_s: list[float] = []
        """By offset: the partition is new, and nobody else writes."""
        self.arrived = 0
        self.latencies = load.Latencies()

    async def produce(self, rate: float, seconds: float) -> None:
        loop, contents = asyncio.get_running_loop(), batch(_RECORD_BYTES)
        answers = []
        began_s = loop.time()
        for number in range(int(rate * seconds)):
            due_s = began_s + number / rate
            if due_s > loop.time():
                await asyncio.sleep(due_s - loop.time())
            self._sent_s.append(time.perf_counter())
            request = produce(self._topic, 0, contents)
            answers.append(
                asyncio.ensure_future(self._sending.call(request, self._target.version(ProduceRequest)))
            )
            await asyncio.sleep(0)  # it is sent now
        for answered in await asyncio.gather(*answers):
            if answered.responses[0].partition_responses[0].error_code:
                raise RuntimeError(f"Produce: {answered}")
        async with asyncio.timeout(_ARRIVED_S):
            while self.arrived < len(self._sent_s):  # noqa: ASYNC110  # the measured time is over
                await asyncio.sleep(0.01)

    async def consume(self) -> None:
        version = self._target.version(FetchRequest)
        while True:
            request = fetch(self._topic, 0, self.arrived, max_wait_ms=_MAX_WAIT_MS)
            answer = (await self._link.call(request, version)).responses[0].partitions[0]
            now = time.perf_counter()
            if answer.error_code:
                raise RuntimeError(f"Fetch: {answer.error_code}")
            end = _end_offset(answer.records or b"")
            self.latencies.seconds += [now - sent_s for sent_s in self._sent_s[self.arrived : end]]
            self.arrived = max(end, self.arrived)


def _end_offset(records: bytes) -> int:
    """Behind the last whole batch of what a Fetch returned; 0 if there is none."""
    at, end = 0, 0
    while at + 61 <= len(records):
        stop = at + 12 + int.from_bytes(records[at + 8 : at + 12])
        if stop > len(records):
            break
        end = int.from_bytes(records[at : at + 8]) + int.from_bytes(records[at + 23 : at + 27]) + 1
        at = stop
    return end


async def _travel(
    server: dict[str, Any], rate: int, warm_up_s: float, seconds: float
) -> list[dict[str, Any]]:
    target = await Target.ask(**server)
    topic = _TOPIC.format(rate)
    port = (await target.leaders(topic, 1))[0]
    (link,) = await load.connect(port, 1)
    _, sending = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port)
    trip = _Trip(target, topic, link, sending)
    consuming = asyncio.ensure_future(trip.consume())
    for measured_s in (warm_up_s, seconds):
        trip.latencies.seconds.clear()
        meter = target.meter()
        producing = asyncio.ensure_future(trip.produce(rate, measured_s))
        await asyncio.wait({producing, consuming}, return_when=asyncio.FIRST_COMPLETED)
        if consuming.done():
            consuming.result()  # it never ends but by an error
        producing.result()
    used = meter.read()
    consuming.cancel()
    await asyncio.wait({consuming})
    link.close()
    sending.close()
    return [
        Point("p50_ms", trip.latencies.ms(50), rate, used["driver"]).as_json(),
        Point("p99_ms", trip.latencies.ms(99), rate, used["driver"]).as_json(),
    ]


def travel(server: dict[str, Any], rate: int, warm_up_s: float, seconds: float) -> list[dict[str, Any]]:
    """In the driver's process."""
    return load.run(_travel(server, rate, warm_up_s, seconds))


def _run(kind: Kind, scale: Scale) -> list[Point]:
    def measured(running: Running, rate: int, times: Mapping[str, float]) -> list[Point]:
        return drive(travel, running, rate=rate, **times)

    rates = scale.sizes((100,), (100, 1_000), cold=(100,))
    topics = {_TOPIC.format(rate): 1 for rate in rates}
    return over_sizes(kind, Options(topics=topics), scale, rates, measured)


MEASURE: Final = Measure(
    "end_to_end",
    "End to end",
    "Records of 1 KB, a Produce with acks=all for each, at a steady rate on one connection; on another a "
    "consumer that always waits in a Fetch. From the sending of the Produce to the answer of the Fetch.",
    (
        Quantity(
            "p50_ms", "median, producer to consumer", "ms", "less", axis="records a second", chart=False
        ),
        Quantity(
            "p99_ms",
            "99th percentile, producer to consumer",
            "ms",
            "less",
            axis="records a second",
            chart=False,
        ),
    ),
    _run,
    cannot={"muster-3": IN_PROCESS},
    cold=True,
)
