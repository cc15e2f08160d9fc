"""DescribeLogDirs, ElectLeaders: what operators ask of any Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from muster.coordinator.group.effects import RequestContext
from muster.coordinator.observe.log import Logger
from muster.coordinator.server.handlers.several import Attempts, Turns, heard_of_all
from muster.coordinator.server.refusals import LogDir, PartitionElection, election_error
from muster.coordinator.topics.catalogue import Topic
from muster.coordinator.topics.logs import PartitionId
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.cluster import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
)

if TYPE_CHECKING:
    from muster.coordinator.server.broker import Broker

_MEASURED_AT_ONCE: Final = 500
"""Partitions whose files one turn in an executor looks at, so that fetches come in between."""

_PREFERRED, _UNCLEAN = 0, 1

_log = Logger(part="cluster")


# --- DescribeLogDirs ----------------------------------------------------------------------------------------


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
                # The leader is the only replica, so nothing lags and nothing is being moved.
                LogDir.DescribeLogDirsPartition(
                    partition_index=each, partition_size=next(size), offset_lag=0, is_future_key=False
                )
            )
        found.topics.append(of_topic)
    return found


# --- ElectLeaders -------------------------------------------------------------------------------------------


async def elect_leaders(
    broker: Broker, request: ElectLeadersRequest, context: RequestContext
) -> ElectLeadersResponse:
    """Leases elect by themselves, and a partition's leader is its only replica: whoever leads is preferred.

    So there is nothing to do for a partition that has a leader (ELECTION_NOT_NEEDED), and nobody to choose
    for one that has none right now.
    """
    if request.election_type not in (_PREFERRED, _UNCLEAN):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}")
    asked = request.topic_partitions
    everything = asked is None
    if asked is None:
        asked = [
            ElectLeadersRequest.TopicPartitions(topic=topic.name, partitions=list(range(topic.partitions)))
            for topic in broker.catalogue.topics()
        ]
    attempts = Attempts(ApiKey.ELECT_LEADERS, context, request.timeout_ms)
    await heard_of_all(broker, attempts, None not in (broker.catalogue.by_name(each.topic) for each in asked))
    response = ElectLeadersResponse(replica_election_results=[])
    turns = Turns()
    for of_topic in asked:
        outcomes = []
        for partition in of_topic.partitions:
            await turns.next()
            outcome = _election(broker, of_topic.topic, partition, request.election_type)
            if not everything or outcome.error_code != ErrorCode.ELECTION_NOT_NEEDED:
                outcomes.append(outcome)
        response.replica_election_results.append(
            ElectLeadersResponse.ReplicaElectionResult(topic=of_topic.topic, partition_result=outcomes)
        )
    return response


def _election(broker: Broker, name: str, partition: int, election_type: int) -> PartitionElection:
    topic = broker.catalogue.by_name(name)
    if topic is None:
        code, why = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}"
    elif not 0 <= partition < topic.partitions:
        code, why = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{partition}"
    elif broker.topology.leader(topic.topic_id, partition).node_id >= 0:
        code, why = ErrorCode.ELECTION_NOT_NEEDED, "the partition has its leader"
    elif election_type == _UNCLEAN:
        code, why = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "no live broker holds the partition's lease yet"
    else:
        code, why = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "no live broker holds the partition's lease yet"
    return election_error(partition, KafkaError(code, why))
