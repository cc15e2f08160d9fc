"""The contents of a topic's logs, read with bare requests, without the client's own fetcher."""

from __future__ import annotations

from typing import NamedTuple

from muster.client.errors import refusal
from muster.client.network.cluster import Cluster, parse_bootstrap
from muster.client.network.connection import deadline
from muster.client.partitions import TopicPartition
from muster.protocol.messages.data import FetchRequest, FetchResponse
from muster.protocol.record_batch import batches, records

LONG_S = 60.0


class Logged(NamedTuple):
    """A record in a log."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


async def everything(bootstrap: str, topic: str) -> list[Logged]:
    """All records of a topic, by partition and offset."""
    until = deadline(LONG_S)
    found: list[Logged] = []
    async with Cluster(parse_bootstrap(bootstrap)) as cluster:
        image = await cluster.retrying(lambda: cluster.topic(topic, until), until)
        for partition in sorted(image.partitions):
            found += await _partition(cluster, TopicPartition(topic, partition), until)
    return found


async def values(bootstrap: str, topic: str) -> list[bytes | None]:
    """The values of a topic, by partition and offset."""
    return [each.value for each in await everything(bootstrap, topic)]


async def _partition(cluster: Cluster, where: TopicPartition, until: float) -> list[Logged]:
    found: list[Logged] = []
    offset = 0
    while True:
        answer = await cluster.retrying(lambda at=offset: _fetch(cluster, where, at, until), until)  # type: ignore[misc]
        data = bytes(answer.records or b"")
        for position, header in batches(data):
            found += [
                Logged(where.partition, *each)
                for each in records(data, position, header)
                if each.offset >= offset
            ]
            offset = header.next_offset
        if offset >= answer.high_watermark:
            return found


async def _fetch(
    cluster: Cluster, where: TopicPartition, offset: int, until: float
) -> FetchResponse.FetchableTopicResponse.PartitionData:
    node, _ = await cluster.leadership(where, until)
    wanted = FetchRequest.FetchTopic.FetchPartition(
        partition=where.partition, fetch_offset=offset, partition_max_bytes=1 << 24
    )
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        topics=[FetchRequest.FetchTopic(topic=where.topic, partitions=[wanted])],
    )
    response = await cluster.call(request, until, node=node, last_version=12)
    ((answer,),) = [topic.partitions for topic in response.responses]
    if answer.error_code:
        raise refusal(answer.error_code)
    return answer  # type: ignore[no-any-return]
