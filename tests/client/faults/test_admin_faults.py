"""Admin calls are answered or refused in time, whatever happens on the network; changes are not made
twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from muster.client.admin.client import Admin
from muster.client.errors import ClientError, ConnectionLost
from muster.client.network.connection import deadline
from muster.client.partitions import TopicPartition
from muster.protocol.api import ApiKey
from tests.client.faults import stories
from tests.client.faults.network import LONG_S, SIGNALLED, network
from tests.support.fault_proxy import At, Fault

WHERE = TopicPartition("t", 0)


@pytest.mark.parametrize("api_key", [ApiKey.METADATA, ApiKey.OFFSET_FETCH])
async def test_what_only_reads_is_answered_in_the_end(api_key: ApiKey) -> None:
    await stories.asking(api_key)


async def test_what_changes_something_is_done_once_or_said_to_be_unknown() -> None:
    """CreatePartitions cannot be repeated without an error: that none appears shows that it was not
    repeated."""
    with network() as net:
        count = 1
        net.brokers.create_topic("t", count)
        for at, do in SIGNALLED:
            net.proxy.place(Fault(ApiKey.CREATE_PARTITIONS, at, do))
            async with asyncio.timeout(LONG_S), stories.admin_of(net) as admin:
                there = {count + 1}
                try:
                    await admin.create_partitions({"t": count + 1})
                except ConnectionLost as unknown:
                    said = str(unknown)
                    if at is At.REQUEST:
                        there.add(count)
                else:
                    said = "may have been applied"
                assert "may have been applied" in said
                count = len((await admin.describe_topic("t")).partitions)
                assert count in there, (at, do)
            assert not net.proxy.placed


async def test_every_call_keeps_its_timeout_while_the_network_is_black() -> None:
    calls: list[Callable[[Admin], Awaitable[Any]]] = [
        lambda admin: admin.describe_cluster(timeout=0.3),
        lambda admin: admin.list_topics(timeout=0.3),
        lambda admin: admin.create_topic("u", num_partitions=1, timeout=0.3),
        lambda admin: admin.delete_topic("t", timeout=0.3),
        lambda admin: admin.list_groups(timeout=0.3),
        lambda admin: admin.describe_group("g", timeout=0.3),
        lambda admin: admin.list_group_offsets("g", timeout=0.3),
        lambda admin: admin.list_offsets({WHERE: 0}, timeout=0.3),
    ]
    with network() as net:
        net.brokers.create_topic("t", 1)
        for known in (False, True):
            async with stories.admin_of(net) as admin:
                if known:
                    await admin.describe_cluster()
                net.proxy.black()
                for call in calls:
                    began = deadline(0)
                    with pytest.raises(ClientError):
                        await call(admin)
                    assert deadline(0) - began < 20
            net.proxy.mend()
            async with stories.admin_of(net) as admin:
                assert "u" not in await admin.list_topics() or known
