"""What each broker reports about the cluster, and whether all agree."""

from __future__ import annotations

import asyncio
import time
from asyncio import IncompleteReadError
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from muster.protocol.errors import KafkaError
from muster.protocol.messages.metadata import FindCoordinatorRequest, MetadataRequest
from tests.faults.cluster.netns import address
from tests.faults.cluster.setting import TOPIC
from tests.support.wire import Wire

_ANSWER_S: Final = 5.0
_GONE: Final = (OSError, IncompleteReadError, KafkaError)


class View(NamedTuple):
    """One broker's view: live nodes, leaders with their epochs by partition, coordinators by group."""

    nodes: frozenset[int]
    leaders: tuple[tuple[int, int, int], ...]
    """Partition, leader, leader epoch."""
    coordinators: tuple[tuple[str, int], ...]
    topic_id: UUID


async def look(node: int, port: int, groups: Sequence[str]) -> View | str:
    """This broker's view, or the reason why it is unusable if the broker does not know all of it."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            async with await Wire.connect(port, address(node)) as wire:
                topics = [MetadataRequest.Topic(name=TOPIC)]
                metadata = await wire.call(MetadataRequest(topics=topics), 12)
                found = await wire.call(FindCoordinatorRequest(key_type=0, coordinator_keys=list(groups)), 4)
    except (*_GONE, TimeoutError) as error:
        return f"broker {node}: {error!r}"
    (topic,) = metadata.topics
    codes = {part.error_code for part in topic.partitions} | {each.error_code for each in found.coordinators}
    if topic.error_code or codes - {0}:
        return f"broker {node}: codes {topic.error_code}, {codes}"
    return View(
        frozenset(each.node_id for each in metadata.brokers),
        tuple(sorted((each.partition_index, each.leader_id, each.leader_epoch) for each in topic.partitions)),
        tuple(sorted((each.key, each.node_id) for each in found.coordinators)),
        topic.topic_id,
    )


async def agreed(nodes: Iterable[int], port: int, groups: Sequence[str], seconds: float) -> View:
    """Wait until all these brokers agree, and report themselves as the live ones. Raises AssertionError if
    they do not."""
    wanted = frozenset(nodes)
    ends = time.monotonic() + seconds
    while True:
        views = await asyncio.gather(*(look(node, port, groups) for node in sorted(wanted)))
        first = views[0]
        if isinstance(first, View) and first.nodes == wanted and all(view == first for view in views):
            return first
        if time.monotonic() > ends:
            raise AssertionError(f"brokers do not agree within {seconds:.0f} s: {views}")
        await asyncio.sleep(0.1)
