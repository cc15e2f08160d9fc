"""What producers, consumers and admins live through, one fault after the other; tests choose where it
strikes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from muster.client.admin.client import Admin
from muster.client.partitions import OffsetAndMetadata, TopicPartition
from muster.client.producer import Producer
from muster.protocol.api import ApiKey
from tests.client.faults.network import (
    LONG_S,
    REQUEST_TIMEOUT_MS,
    SIGNALLED,
    Network,
    logs,
    network,
    once_and_in_order,
)
from tests.client.faults.reading import PARTITIONS, Reader, produce
from tests.support.facts import until
from tests.support.fault_proxy import At, Do, Fault

RECORDS = 60


def idempotent(bootstrap: str) -> Producer[bytes, bytes]:
    return Producer(bootstrap, linger_ms=0, request_timeout_ms=REQUEST_TIMEOUT_MS)


async def send_all(producer: Producer[bytes, bytes], first: int, count: int) -> None:
    """Send one after the other and, now and then, several at once."""
    waiting = []
    for number in range(first, first + count):
        waiting.append(await producer.post("t", b"%d" % number, partition=number % PARTITIONS))
        if number % 7 == 0:
            await asyncio.gather(*waiting)
            waiting.clear()
    await asyncio.gather(*waiting)


async def check_logs(bootstrap: str, count: int) -> None:
    found = await logs(bootstrap, "t", PARTITIONS)
    for values in found:
        once_and_in_order(values)
    assert sum(map(len, found)) == count


async def sending(skip: int) -> None:
    """Each fault at a Produce, `skip` requests after the last fault."""
    with network() as net:
        net.brokers.create_topic("t", PARTITIONS)
        sent = 0
        async with idempotent(net.bootstrap) as producer:
            for at, do in SIGNALLED:
                net.proxy.place(Fault(ApiKey.PRODUCE, at, do, skip=skip))
                async with asyncio.timeout(LONG_S):
                    await send_all(producer, sent, RECORDS)
                sent += RECORDS
                assert not net.proxy.placed
        await check_logs(net.bootstrap, sent)


async def beginning_to_send(api_key: ApiKey) -> None:
    """Each fault in turn, with a new producer."""
    with network() as net:
        net.brokers.create_topic("t", PARTITIONS)
        sent = 0
        for at, do in SIGNALLED:
            net.proxy.place(Fault(api_key, at, do))
            async with asyncio.timeout(LONG_S), idempotent(net.bootstrap) as producer:
                await send_all(producer, sent, 4)
            sent += 4
            assert not net.proxy.placed
        await check_logs(net.bootstrap, sent)


async def sending_into_silence(at: At) -> None:
    """A connection goes silent."""
    with network() as net:
        net.brokers.create_topic("t", PARTITIONS)
        async with idempotent(net.bootstrap) as producer:
            await send_all(producer, 0, RECORDS)
            net.proxy.place(Fault(ApiKey.PRODUCE, at, Do.HOLD, skip=2))
            async with asyncio.timeout(LONG_S):
                await send_all(producer, RECORDS, RECORDS)
            assert not net.proxy.placed
        net.proxy.mend()
        await check_logs(net.bootstrap, 2 * RECORDS)


async def reading(api_key: ApiKey, heartbeat: str) -> None:
    """Each fault in turn in a stable group: member and generation stay the same, and everything is
    committed."""
    with network() as net:
        net.brokers.create_topic("t", PARTITIONS)
        async with Reader(net, heartbeat=heartbeat) as reader:
            sent = await produce(net, 0, 10)
            await reader.has(sent)
            before = reader.identity
            for at, do in SIGNALLED:
                net.proxy.place(Fault(api_key, at, do))
                sent = await produce(net, sent, 10)
                await reader.has(sent)
                await until(lambda: not net.proxy.placed)
            sent = await produce(net, sent, 10)
            await reader.has(sent)
            assert reader.identity == before
        reader.check(sent)
        assert net.brokers.group("g").facts.members == 0
        async with Reader(net) as later:
            await produce(net, sent, 1)
            await later.has(1)
        assert later.count == 1, "what was committed is not read again"


async def joining(api_key: ApiKey) -> None:
    """Each fault in turn, with a new member: it reads everything, and no other member is left behind."""
    with network() as net:
        net.brokers.create_topic("t", PARTITIONS)
        sent = await produce(net, 0, 10)
        for index, (at, do) in enumerate(SIGNALLED):
            group_id = f"g{index}"
            net.proxy.place(Fault(api_key, at, do))
            async with Reader(net, group_id=group_id) as reader:
                await reader.has(sent)
                assert not net.proxy.placed
                assert net.brokers.group(group_id).facts.members == 1
            reader.check(sent)


async def reading_from_silence(api_key: ApiKey, at: At, heartbeat: str) -> None:
    """A connection goes silent: a timeout ends it, long before the session expires."""
    with network() as net:
        net.brokers.create_topic("t", PARTITIONS)
        async with Reader(net, heartbeat=heartbeat) as reader:
            sent = await produce(net, 0, 10)
            await reader.has(sent)
            before = reader.identity
            net.proxy.place(Fault(api_key, at, Do.HOLD))
            sent = await produce(net, sent, 10)
            await until(lambda: not net.proxy.placed)
            await reader.has(sent)
            sent = await produce(net, sent, 10)
            await reader.has(sent)
            assert reader.identity == before
        reader.check(sent)


Ask: TypeAlias = Callable[[Admin], Awaitable[Any]]

ASKING: Final[dict[ApiKey, Ask]] = {
    ApiKey.DESCRIBE_CLUSTER: lambda admin: admin.describe_cluster(),
    ApiKey.METADATA: lambda admin: admin.describe_topic("t"),
    ApiKey.LIST_GROUPS: lambda admin: admin.list_groups(),
    ApiKey.DESCRIBE_GROUPS: lambda admin: admin.describe_group("g"),
    ApiKey.OFFSET_FETCH: lambda admin: admin.list_group_offsets("g"),
    ApiKey.FIND_COORDINATOR: lambda admin: admin.list_group_offsets("g"),
}
"""Calls that only read."""


def admin_of(net: Network) -> Admin:
    return Admin(net.bootstrap, request_timeout_ms=REQUEST_TIMEOUT_MS)


async def asking(api_key: ApiKey) -> None:
    """Each fault in turn, with a new client: the answer is the same as without faults."""
    ask = ASKING[api_key]
    with network() as net:
        net.brokers.create_topic("t", 1)
        async with admin_of(net) as admin:
            await admin.alter_group_offsets("g", {TopicPartition("t", 0): OffsetAndMetadata(0)})
            expected = await ask(admin)
        for at, do in SIGNALLED:
            net.proxy.place(Fault(api_key, at, do))
            async with asyncio.timeout(LONG_S), admin_of(net) as admin:
                assert await ask(admin) == expected
            assert not net.proxy.placed
