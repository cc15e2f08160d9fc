"""Every call ends within the time that its setting names, whatever is at the address, and reports what was
tried."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from muster.client import Admin, Consumer, OffsetAndMetadata, Producer, TopicPartition
from muster.client.produce.accumulator import Batch
from muster.coordinator.testing import Broker
from tests.client.failing import failure
from tests.client.listeners import listener
from tests.client.logs import LONG_S
from tests.support.each import at_once
from tests.support.facts import until
from tests.support.ports import free_ports

LIMIT_MS: Final = 400
FAR_MS: Final = 3_600_000
"""For every other setting that could end a call: a test that waited for it would not end."""
WHERE: Final = TopicPartition("t", 0)


async def _silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(65_536):
        pass


async def _http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    await writer.drain()


async def _tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(bytes.fromhex("15030100020232"))  # an alert: decode_error
    await writer.drain()


async def _closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)


TRIED: Final = {
    "nobody": "connection refused",
    "silent": "did not answer API_VERSIONS in time",
    "http": "HTTP instead of Kafka's protocol",
    "tls": "TLS instead of Kafka's protocol",
    "closing": "it may be a listener for TLS or SASL",
}
"""What may be at an address, and what the errors say about it."""


@asynccontextmanager
async def _address(peer: str) -> AsyncIterator[str]:
    if peer == "nobody":
        yield f"127.0.0.1:{free_ports(1)}"
        return
    handles = {"silent": _silent, "http": _http, "tls": _tls, "closing": _closing}
    async with listener(handles[peer]) as address:
        yield str(address)


@pytest.mark.parametrize("peer", TRIED)
@at_once("partition", [None, 1])
async def test_send_ends_within_delivery_timeout_ms(peer: str, partition: int | None) -> None:
    async with (
        _address(peer) as address,
        Producer(address, delivery_timeout_ms=LIMIT_MS, max_block_ms=FAR_MS) as producer,
    ):
        why = str(await failure(lambda: producer.send("t", b"v", partition=partition), TRIED[peer]))
    if peer not in ("http", "tls"):  # no retry helps there
        assert why.endswith(f"topic t was not found within delivery_timeout_ms ({LIMIT_MS})")


@pytest.mark.parametrize("peer", TRIED)
@at_once("method", ["send", "post", "partitions_for"])
async def test_a_producer_waits_for_a_topic_up_to_max_block_ms(peer: str, method: str) -> None:
    async with (
        _address(peer) as address,
        Producer(address, delivery_timeout_ms=FAR_MS, max_block_ms=LIMIT_MS) as producer,
    ):
        why = str(await failure(lambda: getattr(producer, method)("t"), TRIED[peer]))
        async with asyncio.timeout(LONG_S):
            await producer.flush()
    if peer not in ("http", "tls"):
        assert why.endswith(f"topic t was not found within max_block_ms ({LIMIT_MS})")


CONSUMER_CALLS: Final[dict[str, Callable[[Consumer], Coroutine[Any, Any, Any]]]] = {
    "partitions_for": lambda consumer: consumer.partitions_for("t"),
    "list_topics": lambda consumer: consumer.list_topics(),
    "position": lambda consumer: consumer.position(WHERE),
    "beginning_offsets": lambda consumer: consumer.beginning_offsets([WHERE]),
    "end_offsets": lambda consumer: consumer.end_offsets([WHERE]),
    "offsets_for_times": lambda consumer: consumer.offsets_for_times({WHERE: 0}),
    "committed": lambda consumer: consumer.committed([WHERE]),
}


@pytest.mark.parametrize("peer", TRIED)
@at_once("call", CONSUMER_CALLS)
async def test_a_consumers_calls_end_within_default_api_timeout_ms(peer: str, call: str) -> None:
    async with _address(peer) as address:
        consumer = await Consumer(
            bootstrap_servers=address,
            group_id="g" if call == "committed" else None,
            default_api_timeout_ms=LIMIT_MS,
            request_timeout_ms=LIMIT_MS // 2 if call == "position" else FAR_MS,
            fetch_max_wait_ms=0,
        ).start()
        consumer.assign([WHERE])
        try:
            if call == "position":
                consumer._core.starting.look()
                await until(lambda: consumer.health().troubles, "a broker was asked in vain")
            said = TRIED[peer]
            if (call, peer) == ("committed", "silent"):  # the request has time left, the call does not
                said = f"{address} was asked"
            await failure(lambda: CONSUMER_CALLS[call](consumer), said)
            async with asyncio.timeout(LONG_S):
                if peer not in ("http", "tls"):
                    assert await consumer.get(timeout=0.1) is None
                await consumer.close(timeout=0.5)
        finally:
            await consumer.close(timeout=0)


ADMIN_CALLS: Final[dict[str, Callable[[Admin], Coroutine[Any, Any, Any]]]] = {
    "list_topics": lambda admin: admin.list_topics(),
    "create_topic": lambda admin: admin.create_topic("n"),
    "delete_topic": lambda admin: admin.delete_topic("t"),
    "list_groups": lambda admin: admin.list_groups(),
    "describe_group": lambda admin: admin.describe_group("g"),
    "remove_members": lambda admin: admin.remove_members("g", member_ids=["m"]),
    "list_group_offsets": lambda admin: admin.list_group_offsets("g"),
    "alter_group_offsets": lambda admin: admin.alter_group_offsets("g", {WHERE: OffsetAndMetadata(1)}),
    "list_offsets": lambda admin: admin.list_offsets({WHERE: 0}),
    "describe_cluster": lambda admin: admin.describe_cluster(),
    "describe_log_dirs": lambda admin: admin.describe_log_dirs(),
}


@pytest.mark.parametrize("peer", TRIED)
@at_once("call", ADMIN_CALLS)
async def test_an_admins_calls_end_within_default_api_timeout_ms(peer: str, call: str) -> None:
    async with (
        _address(peer) as address,
        Admin(address, default_api_timeout_ms=LIMIT_MS, request_timeout_ms=FAR_MS) as admin,
    ):
        await failure(lambda: ADMIN_CALLS[call](admin), TRIED[peer])


# --- a broker that stops answering --------------------------------------------------------------------------


async def test_calls_to_a_broker_that_stops_answering_end_in_time() -> None:
    with Broker() as broker:
        broker.create_topic("t")
        async with (
            Producer(broker.bootstrap, delivery_timeout_ms=FAR_MS, linger_ms=0) as producer,
            Admin(broker.bootstrap, default_api_timeout_ms=LIMIT_MS) as admin,
            Consumer(broker.bootstrap, topics="t", group_id="g") as consumer,
        ):
            await producer.send("t", b"v")
            await admin.list_topics()
            assert (await consumer.get_many(timeout=0)) == []
            broker.pause(0)
            try:
                await failure(admin.list_topics, "did not answer")
                gone = "did not answer|not found in time"
                await failure(lambda: consumer.list_topics(timeout=0.4), gone)
                await failure(lambda: consumer.committed([WHERE], timeout=0.4), gone)
                await failure(lambda: _flushed(producer), "stay on their way")
            finally:
                broker.resume(0)


@pytest.mark.parametrize("heartbeat", ["loop", "thread"])
async def test_a_members_calls_to_a_coordinator_that_stops_answering_end_in_time(heartbeat: Any) -> None:
    with Broker() as broker:
        broker.create_topic("t")
        broker.produce("t", [b"v"])
        consumer = await Consumer(
            broker.bootstrap,
            topics="t",
            group_id="g",
            auto_offset_reset="earliest",
            heartbeat=heartbeat,
            default_api_timeout_ms=LIMIT_MS,
        ).start()
        try:
            assert await consumer.get(timeout=LONG_S) is not None
            broker.pause(0)
            async with asyncio.timeout(LONG_S):
                result = await consumer.commit({WHERE: OffsetAndMetadata(1)})
                assert "did not answer the commit" in str(result)
                await failure(lambda: consumer.committed([WHERE]), "coordinator of group g")
                await failure(lambda: consumer.beginning_offsets([WHERE]), "did not answer")
                assert await consumer.get(timeout=0.1) is None
                await consumer.unsubscribe()
        finally:
            async with asyncio.timeout(LONG_S):
                await consumer.close(timeout=0.5)
            broker.resume(0)


@pytest.mark.parametrize("limit_s", [0.0, 0.3, 2.0])
async def test_nothing_that_closing_asks_of_a_broker_may_take_longer_than_its_timeout(limit_s: float) -> None:
    """What is left of it, that is: after it, the brokers are only told."""
    with Broker() as broker:
        broker.create_topic("t")
        broker.produce("t", [b"v"])
        consumer = await Consumer(
            broker.bootstrap, topics="t", group_id="g", auto_offset_reset="earliest", enable_auto_commit=False
        ).start()
        assert await consumer.get(timeout=LONG_S) is not None
        assert consumer._core.group is not None
        inside = consumer._core.group._inside
        assert inside is not None
        late_s: list[float] = []
        for cluster in (consumer._core.cluster, inside._cluster):
            call = cluster.call

            def timed(request: Any, until: float, *, call: Any = call, **given: Any) -> Any:
                late_s.append(until - max(by, asyncio.get_running_loop().time()))
                return call(request, until, **given)

            cluster.call = timed  # type: ignore[method-assign]
        broker.pause(0)
        try:
            by = asyncio.get_running_loop().time() + limit_s
            async with asyncio.timeout(LONG_S):
                await consumer.close(timeout=limit_s)
        finally:
            broker.resume(0)
        assert late_s
        assert max(late_s) < 0.3  # most of it for a loop that is slow


async def _flushed(producer: Producer[bytes, bytes]) -> None:
    await producer.post("t", b"v")
    await producer.flush(timeout=0.4)


async def test_the_wait_for_a_topic_is_a_part_of_delivery_timeout_ms() -> None:
    """A record that waited for its topic has the rest of its time to be acknowledged."""
    with Broker(auto_create_topics_enable=False) as broker:
        broker.create_topic("there")
        async with Producer(broker.bootstrap, delivery_timeout_ms=FAR_MS) as producer:
            await producer.send("there", b"v")
            sending = asyncio.create_task(producer.send("late", b"v"))
            await until(lambda: "late" in producer._lines, "the record waits for its topic")
            waited_at = asyncio.get_running_loop().time()
            began: list[float] = []
            settled = producer._sender._settled

            def look(batch: Batch) -> None:
                began.append(batch.created)
                settled(batch)

            producer._sender._settled = look  # type: ignore[method-assign]
            broker.create_topic("late")
            async with asyncio.timeout(LONG_S):
                await sending
            assert len(began) == 1
            assert began[0] <= waited_at


async def test_however_far_the_deadline_is_requests_can_carry_it(broker: Broker) -> None:
    broker.create_topic("t")
    where, far_s = TopicPartition("t", 0), 30 * 86_400.0
    async with Consumer(broker.bootstrap) as consumer:
        for timeout in (far_s, math.inf):
            assert await consumer.beginning_offsets([where], timeout=timeout) == {where: 0}
            assert await consumer.end_offsets([where], timeout=timeout) == {where: 0}
            assert await consumer.offsets_for_times({where: 0}, timeout=timeout) == {where: None}
    async with Admin(broker.bootstrap) as admin:
        await admin.create_topic("new", timeout=far_s)
        await admin.delete_topics(["new"], timeout=far_s)
