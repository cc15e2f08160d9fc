"""Requests that tests send about an internal topic."""

from __future__ import annotations

from typing import Any, NamedTuple

from muster.protocol.messages.data import FetchRequest
from muster.protocol.messages.metadata import MetadataRequest
from tests.support.wire import Wire


class InternalTopic(NamedTuple):
    """An internal topic, by its name."""

    name: str

    async def told(self, wire: Wire) -> Any:
        """The topic as Metadata describes it."""
        asked = MetadataRequest(topics=[MetadataRequest.Topic(name=self.name)])
        (topic,) = (await wire.call(asked, 12)).topics
        return topic

    def fetching(self, partition: int, offset: int = 0, *, max_wait_ms: int = 0) -> FetchRequest:
        part = FetchRequest.FetchPartition(
            partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20
        )
        topic = FetchRequest.FetchTopic(topic=self.name, partitions=[part])
        return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, topics=[topic])

    async def fetched(self, wire: Wire, partition: int, offset: int = 0) -> Any:
        return (await wire.call(self.fetching(partition, offset), 12)).responses[0].partitions[0]
