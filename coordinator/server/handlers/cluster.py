"""DescribeLogDirs: what operators ask of any Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from muster.coordinator.base.log import Logger
from muster.coordinator.group.effects import RequestContext
from muster.coordinator.server.handlers.several import Turns
from muster.coordinator.server.refusals import LogDir
from muster.coordinator.topics.catalogue import Topic
from muster.coordinator.topics.logs import PartitionId
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.cluster import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)

if TYPE_CHECKING:
    from muster.coordinator.server.broker import Broker

_MEASURED_AT_ONCE: Final = 500
"""Partitions whose files one turn in an executor looks at, so that fetches come in between."""

_log = Logger(part="cluster")


async def describe_log_dirs(
    broker: Broker, request: DescribeLogDirsRequest, context: RequestContext
) -> DescribeLogDirsResponse:
    """The one folder of this broker's logs, with the partitions it leads; what it does not lead is left out,
    and clients ask every broker."""
    return DescribeLogDirsResponse(results=[await _log_dir(broker, await _asked_of(broker, request))])


async def _asked_of(broker: Broker, request: DescribeLogDirsRequest) -> list[tuple[Topic, list[int]]]:
    """Topics with their partitions that this broker leads, each once."""
    asked: dict[str, set[int]] | None = None
    if request.topics is not None:
        asked = {}
        for each in request.topics:
            asked.setdefault(each.topic, set()).update(each.partitions)
    found: list[tuple[Topic, list[int]]] = []
    turns = Turns()
    for topic in broker.catalogue.topics():
        await turns.next()
        partitions = range(topic.partitions)
        wanted = partitions if asked is None else sorted(asked.get(topic.name, ()))
        led = [
            each
            for each in wanted
            if each in partitions and broker.partitions.leader_epoch(topic, each) is not None
        ]
        if led:
            found.append((topic, led))
    return found


async def _log_dir(broker: Broker, asked: list[tuple[Topic, list[int]]]) -> LogDir:
    volume = await broker.partitions.volume()
    everything = [PartitionId(topic.topic_id, each) for topic, partitions in asked for each in partitions]
    sizes: list[int] = []
    try:
        for start in range(0, len(everything), _MEASURED_AT_ONCE):
            sizes += await broker.partitions.sizes(everything[start : start + _MEASURED_AT_ONCE])
    except OSError as error:
        _log.warning("the logs cannot be measured", why=str(error))
        return LogDir(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=volume.path, topics=[])
    found = LogDir(
        log_dir=volume.path,
        topics=[],
        total_bytes=volume.total_bytes,
        usable_bytes=volume.usable_bytes,
    )
    size = iter(sizes)
    turns = Turns()
    for topic, partitions in asked:
        of_topic = LogDir.DescribeLogDirsTopic(name=topic.name, partitions=[])
        for each in partitions:
            await turns.next()
            of_topic.partitions.append(
                # Nothing is copied, so nothing lags and nothing is being moved.
                LogDir.DescribeLogDirsPartition(
                    partition_index=each, partition_size=next(size), offset_lag=0, is_future_key=False
                )
            )
        found.topics.append(of_topic)
    return found
