"""A producer's records are written once and in order, whatever happens on the network."""

from __future__ import annotations

import asyncio

import pytest

from muster.client.errors import ClientError
from muster.client.network.connection import deadline
from muster.client.producer import Producer
from muster.protocol.api import ApiKey
from tests.client.faults import stories
from tests.client.faults.network import LONG_S, network
from tests.support.facts import until
from tests.support.fault_proxy import At


async def test_each_fault_at_a_produce() -> None:
    await stories.sending(2)


async def test_each_fault_while_it_begins() -> None:
    await stories.beginning_to_send(ApiKey.INIT_PRODUCER_ID)


async def test_a_connection_that_goes_silent() -> None:
    await stories.sending_into_silence(At.ANSWER)


async def test_closing_is_bounded_while_the_network_is_black() -> None:
    with network() as net:
        net.brokers.create_topic("t", 2)
        producer = Producer(net.bootstrap, linger_ms=0)
        await producer.start()
        await producer.send("t", b"0", partition=0)
        net.proxy.black()
        waiting = await producer.post("t", b"1", partition=0)
        began = deadline(0)
        await producer.close(timeout=0.5)
        assert deadline(0) - began < 20
        with pytest.raises(ClientError):
            await waiting


async def test_what_was_held_up_arrives_late_and_once() -> None:
    """The network recovers before anybody gives up: the old connections continue."""
    with network() as net:
        net.brokers.create_topic("t", 2)
        async with Producer(net.bootstrap, linger_ms=0) as producer:
            await stories.send_all(producer, 0, 20)
            accepted = net.proxy.accepted
            net.proxy.black()
            waiting = [await producer.post("t", b"%d" % (20 + each), partition=0) for each in range(10)]
            await until(lambda: net.proxy.held)
            net.proxy.mend()
            async with asyncio.timeout(LONG_S):
                await asyncio.gather(*waiting)
            assert net.proxy.accepted == accepted
        await stories.check_logs(net.bootstrap, 30)
