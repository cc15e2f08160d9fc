"""Clients that behave normally while others attack the broker: a group member, a producer, a consumer.

They fail with an AssertionError if they get an error, miss or repeat a record, or lose their membership.
Their request times are recorded but not judged: they depend on the machine as much as on the broker.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, Final

from muster.protocol.message import Message
from muster.protocol.messages.classic_group import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest
from muster.protocol.messages.data import FetchRequest, ProduceRequest
from muster.protocol.messages.topics import CreateTopicsRequest
from muster.protocol.record_batch import Record, batches, build, records
from tests.fuzz.served import SESSION_MS_MAX
from tests.support.wire import Wire

DEADLINE_S: Final = 60.0
_EVERY_S: Final = 0.05
TOPIC: Final = "bystanders-topic"
GROUP: Final = "bystanders-group"
BYSTANDERS: Final = 3
"""Number of their connections."""


class Patient(Wire):
    """A client that waits a long time for its responses."""

    async def receive_bytes(self, deadline_s: float = DEADLINE_S) -> bytes:
        return await super().receive_bytes(deadline_s)


async def create_topic(port: int, name: str, partitions: int) -> None:
    wanted = CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
    )
    async with await Patient.connect(port) as wire:
        created = await wire.call(CreateTopicsRequest(topics=[wanted], timeout_ms=30_000), 4)
        assert created.topics[0].error_code == 0, created


class Bystanders:
    """Call `start` before the attack, and `finish` when it is over."""

    def __init__(self) -> None:
        self.worst_ms = {"heartbeat": 0.0, "produce": 0.0, "fetch": 0.0}
        self.counts = {"heartbeat": 0, "produce": 0, "fetch": 0}
        self._over = asyncio.Event()
        self._answered = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []
        self._wires: list[Patient] = []
        self._produced = 0

    async def start(self, port: int) -> None:
        self._wires = [await Patient.connect(port) for _ in range(BYSTANDERS)]
        member, producer, consumer = self._wires
        await create_topic(port, TOPIC, 1)
        heartbeat = await self._joined(member)
        self._tasks = [
            asyncio.create_task(each)
            for each in (self._beat(member, heartbeat), self._produce(producer), self._consume(consumer))
        ]

    async def more(self, requests: int) -> None:
        """Return when each of them has received that many more responses. Raises whatever went wrong."""
        wanted = {what: count + requests for what, count in self.counts.items()}
        async with self._answered:
            enough = self._answered.wait_for(
                lambda: (
                    any(task.done() for task in self._tasks)
                    or all(self.counts[what] >= count for what, count in wanted.items())
                )
            )
            await asyncio.wait_for(enough, requests * DEADLINE_S)
        for task in self._tasks:
            if task.done():
                task.result()

    async def finish(self) -> None:
        """Let each finish its current work, and the consumer read to the end. Raises whatever went wrong."""
        self._over.set()
        for task in self._tasks:
            await task

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for wire in self._wires:
            await wire.close()

    async def _joined(self, wire: Wire) -> HeartbeatRequest:
        join = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=SESSION_MS_MAX,
            rebalance_timeout_ms=60_000,
            member_id="",
            protocol_type="consumer",
            protocols=[JoinGroupRequest.Protocol(name="range", metadata=b"")],
        )
        joined = await wire.call(join, 3)
        assert joined.error_code == 0, joined
        synced = await wire.call(
            SyncGroupRequest(
                group_id=GROUP,
                generation_id=joined.generation_id,
                member_id=joined.member_id,
                assignments=[SyncGroupRequest.Assignment(member_id=joined.member_id, assignment=b"all")],
            ),
            3,
        )
        assert synced.error_code == 0, synced
        return HeartbeatRequest(
            group_id=GROUP, generation_id=joined.generation_id, member_id=joined.member_id
        )

    async def _timed(self, what: str, call: Awaitable[Any]) -> Any:
        began = time.monotonic()
        answer = await call
        self.worst_ms[what] = max(self.worst_ms[what], (time.monotonic() - began) * 1000)
        self.counts[what] += 1
        async with self._answered:
            self._answered.notify_all()
        return answer

    async def _pause(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), _EVERY_S)

    async def _beat(self, wire: Wire, heartbeat: Message) -> None:
        while not self._over.is_set():
            answer = await self._timed("heartbeat", wire.call(heartbeat, 4))
            assert answer.error_code == 0, answer
            await self._pause()

    async def _produce(self, wire: Wire) -> None:
        while not self._over.is_set():
            batch = build([Record(0, 1_700_000_000_000, b"k", b"%d" % self._produced)])
            partition = ProduceRequest.PartitionProduceData(index=0, records=batch)
            topic = ProduceRequest.TopicProduceData(name=TOPIC, partition_data=[partition])
            request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])
            answer = await self._timed("produce", wire.call(request, 7))
            stored = answer.responses[0].partition_responses[0]
            assert (stored.error_code, stored.base_offset) == (0, self._produced), stored
            self._produced += 1
            await self._pause()

    async def _consume(self, wire: Wire) -> None:
        offset = 0
        while offset < self._produced or not self._over.is_set():
            partition = FetchRequest.FetchTopic.FetchPartition(
                partition=0, fetch_offset=offset, partition_max_bytes=1 << 20
            )
            topic = FetchRequest.FetchTopic(topic=TOPIC, partitions=[partition])
            request = FetchRequest(
                replica_id=-1, max_wait_ms=100, min_bytes=1, max_bytes=1 << 20, topics=[topic]
            )
            answer = await self._timed("fetch", wire.call(request, 11))
            (fetched,) = answer.responses[0].partitions
            assert fetched.error_code == 0, fetched
            data = fetched.records or b""
            for position, header in batches(data):
                for record in records(data, position, header):
                    assert (record.offset, record.value) == (offset, b"%d" % offset), record
                    offset += 1
            await self._pause()
