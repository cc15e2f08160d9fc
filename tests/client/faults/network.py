"""Brokers behind a `FaultProxy`, and the contents of their logs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

from muster.client.network.cluster import Cluster, parse_bootstrap
from muster.client.network.connection import deadline
from muster.client.partitions import TopicPartition
from muster.coordinator import testing
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.data import FetchRequest, FetchResponse
from muster.protocol.record_batch import HEADER_BYTES, peek, records
from tests.support.fault_proxy import At, Do, FaultProxy

LONG_S = 120.0

# Long enough for a machine that stalls for seconds, short enough to notice silence.
REQUEST_TIMEOUT_MS = 4_000

SIGNALLED = [
    (at, do) for at in At for do in Do if do is not Do.HOLD and not (at is At.REQUEST and do is Do.TRICKLE)
]
"""All faults except those that only a timeout reveals."""


class Network(NamedTuple):
    """Clients must use `bootstrap`."""

    proxy: FaultProxy
    brokers: testing.Cluster

    @property
    def bootstrap(self) -> str:
        return self.proxy.bootstrap


@contextmanager
def network(brokers: int = 1, **settings: Any) -> Iterator[Network]:
    """Brokers that advertise the proxy's address to their clients."""
    with (
        FaultProxy(brokers) as proxy,
        testing.Cluster(brokers, advertised=f"127.0.0.1:{proxy.port}", **settings) as cluster,
    ):
        proxy.upstreams = cluster.ports
        try:
            yield Network(proxy, cluster)
        except BaseException:
            print("faults, in order:", *proxy.struck, sep="\n  ")
            raise


async def logs(bootstrap: str, topic: str, partitions: int) -> list[list[bytes]]:
    """The values in each partition, by offset, read with plain fetches."""
    found: list[list[bytes]] = []
    async with Cluster(parse_bootstrap(bootstrap), patient=True) as cluster:
        for index in range(partitions):
            values: list[bytes] = []
            offset = 0

            async def fetch(where: TopicPartition, at: int) -> FetchResponse.PartitionData:
                node, _ = await cluster.leadership(where, deadline(LONG_S))
                asked = FetchRequest.FetchPartition(
                    partition=where.partition, fetch_offset=at, partition_max_bytes=1 << 20
                )
                request = FetchRequest(
                    max_wait_ms=0,
                    min_bytes=0,
                    topics=[FetchRequest.FetchTopic(topic=where.topic, partitions=[asked])],
                )
                answer = await cluster.call(request, deadline(LONG_S), node=node)
                told: FetchResponse.PartitionData = answer.responses[0].partitions[0]
                assert told.error_code == ErrorCode.NONE
                return told

            while True:
                here, at = TopicPartition(topic, index), offset
                told = await cluster.retrying(lambda: fetch(here, at), deadline(LONG_S))  # noqa: B023
                data, position = told.records or b"", 0
                while len(data) - position >= HEADER_BYTES:
                    header = peek(data, position)
                    values += [record.value or b"" for record in records(data, position, header)]
                    offset = header.next_offset
                    position += header.size
                if offset >= told.high_watermark:
                    break
            found.append(values)
    return found


def once_and_in_order(values: Sequence[bytes]) -> None:
    """Each value is there once, and the values, taken as numbers, are in ascending order."""
    numbers = [int(value) for value in values]
    assert numbers == sorted(set(numbers)), f"twice or out of order: {_disorder(numbers)}"


def _disorder(numbers: list[int]) -> list[tuple[int, int, int]]:
    """Where a number is not above the one before it: its index, the one before it, and itself."""
    pairs = enumerate(pairwise(numbers), start=1)
    return [(index, before, after) for index, (before, after) in pairs if after <= before][:20]
