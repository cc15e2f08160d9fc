"""A member of a group reads everything once and in order, and keeps its membership, whatever happens on the
way to its brokers."""

from __future__ import annotations

import logging

import pytest

from muster.client.consumer import Consumer
from muster.client.errors import ClientError
from muster.client.network.connection import deadline
from muster.protocol.api import ApiKey
from tests.client.faults import stories
from tests.client.faults.network import LONG_S, network
from tests.client.faults.reading import PARTITIONS, SETTINGS, Reader, produce
from tests.support.facts import until
from tests.support.fault_proxy import At


@pytest.mark.parametrize(("api_key", "heartbeat"), [(ApiKey.FETCH, "loop"), (ApiKey.HEARTBEAT, "thread")])
async def test_each_fault_in_a_stable_group(api_key: ApiKey, heartbeat: str) -> None:
    await stories.reading(api_key, heartbeat)


@pytest.mark.parametrize("api_key", [ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP])
async def test_each_fault_while_it_joins(api_key: ApiKey) -> None:
    await stories.joining(api_key)


async def test_heartbeats_go_on_when_their_connection_goes_silent() -> None:
    await stories.reading_from_silence(ApiKey.HEARTBEAT, At.ANSWER, "loop")


async def test_the_network_is_black_for_a_while() -> None:
    """Shorter than the session timeout: afterwards member and generation are unchanged."""
    with network() as net:
        net.brokers.create_topic("t", PARTITIONS)
        async with Reader(net) as reader:
            sent = await produce(net, 0, 10)
            await reader.has(sent)
            before = reader.identity
            net.proxy.black()
            accepted = net.proxy.accepted
            # Until the requests in flight to the coordinator and to the leader have timed out.
            await until(lambda: net.proxy.accepted >= accepted + 2)
            net.proxy.mend()
            sent = await produce(net, sent, 10)
            await reader.has(sent)
            assert reader.identity == before
        reader.check(sent)


@pytest.mark.parametrize("heartbeat", ["loop", "thread"])
async def test_closing_is_bounded_while_the_network_is_black(
    heartbeat: str, caplog: pytest.LogCaptureFixture
) -> None:
    with network() as net:
        net.brokers.create_topic("t", PARTITIONS)
        await produce(net, 0, 10)
        consumer = Consumer(net.bootstrap, **SETTINGS, heartbeat=heartbeat)
        await consumer.start()
        assert await consumer.get(LONG_S) is not None
        net.proxy.black()
        began = deadline(0)
        with caplog.at_level(logging.WARNING, "muster.client"):
            await consumer.close(timeout=2)
        assert deadline(0) - began < 20
        assert "may be read again" in caplog.text


async def test_calls_with_a_timeout_keep_it_while_the_network_is_black() -> None:
    with network() as net:
        net.brokers.create_topic("t", PARTITIONS)
        await produce(net, 0, 10)
        async with Consumer(net.bootstrap, **SETTINGS) as consumer:
            assert await consumer.get(LONG_S) is not None
            assigned = sorted(consumer.assignment)
            net.proxy.black()
            for call in (
                consumer.committed(assigned, timeout=0.3),
                consumer.end_offsets(assigned, timeout=0.3),
                consumer.offsets_for_times({assigned[0]: 0}, timeout=0.3),
                consumer.list_topics(timeout=0.3),
            ):
                began = deadline(0)
                with pytest.raises(ClientError):
                    await call
                assert deadline(0) - began < 20
            began = deadline(0)
            outcome = await consumer.commit(timeout=0.3)
            assert outcome.retry
            assert not outcome.committed
            assert deadline(0) - began < 20
            while await consumer.get(timeout=0.3) is not None:
                pass
            net.proxy.mend()
