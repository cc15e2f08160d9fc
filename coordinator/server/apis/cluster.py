"""DescribeLogDirs and ElectLeaders.

Leases elect leaders by themselves, the preferred one first; a requested election waits for that.
"""

from __future__ import annotations

import asyncio
from typing import Final

from muster.coordinator.base.log import Logger
from muster.coordinator.base.step import RequestContext
from muster.coordinator.cluster.lease import placeable
from muster.coordinator.server.api import Api
from muster.coordinator.server.apis.reassignments import has_partitions, named_partition
from muster.coordinator.server.apis.several import Attempts, Turns, heard_of_all
from muster.coordinator.server.names import TOPICS_BY_TOPIC, Listed, Names, by
from muster.coordinator.server.needs import Needs
from muster.coordinator.server.needs import cluster as on_cluster
from muster.coordinator.server.refusal import entry
from muster.coordinator.server.refusal import partitions as each_partition
from muster.coordinator.server.serving import Broker
from muster.coordinator.topics.catalogue import Topic
from muster.coordinator.topics.logs import PartitionId
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.acls import Operation
from muster.protocol.messages.cluster import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
)

_MEASURED_AT_ONCE: Final = 500
"""Partitions measured in one call to an executor, so that fetches come in between."""

_log = Logger(part="cluster")


LogDir = DescribeLogDirsResponse.DescribeLogDirsResult


async def describe_log_dirs(
    broker: Broker, request: DescribeLogDirsRequest, context: RequestContext
) -> DescribeLogDirsResponse:
    """The one log directory of this broker, with the partitions it leads; others are left out, and clients
    ask every broker."""
    return DescribeLogDirsResponse(results=[await _log_dir(broker, await _asked_of(broker, request))])


async def _asked_of(broker: Broker, request: DescribeLogDirsRequest) -> list[tuple[Topic, list[int]]]:
    """The requested topics, with their partitions that this broker leads, each once."""
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
        _log.warning("cannot read log sizes", why=str(error))
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


# --- ElectLeaders -------------------------------------------------------------------------------------------

PartitionElection = ElectLeadersResponse.ReplicaElectionResult.PartitionResult

_PREFERRED, _UNCLEAN = 0, 1


async def elect_leaders(
    broker: Broker, request: ElectLeadersRequest, context: RequestContext
) -> ElectLeadersResponse:
    """Leases elect leaders by themselves, so there is mostly nothing to do (ELECTION_NOT_NEEDED). A preferred
    leader that is alive is about to lead, and is waited for within the request's timeout; one that is dead or
    drained is not available (PREFERRED_LEADER_NOT_AVAILABLE).

    Without a replica list, the current leader is preferred. Any live broker may lead in an unclean election,
    as soon as the previous leader's lease has expired (ELIGIBLE_LEADERS_NOT_AVAILABLE until then).

    A request that allows no time is refused as a whole.
    """
    attempts = Attempts(ApiKey.ELECT_LEADERS, context, request.timeout_ms)
    if request.topic_partitions != []:
        attempts.check()
    if request.election_type not in (_PREFERRED, _UNCLEAN):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}")
    asked = request.topic_partitions
    everything = asked is None
    if asked is None:
        asked = [
            ElectLeadersRequest.TopicPartitions(topic=topic.name, partitions=list(range(topic.partitions)))
            for topic in broker.catalogue.topics()
        ]
    known = all(has_partitions(broker, each.topic, each.partitions) for each in asked)
    await heard_of_all(broker, attempts, known)
    until = asyncio.get_running_loop().time() + request.timeout_ms / 1_000
    response = ElectLeadersResponse(replica_election_results=[])
    turns = Turns()
    for of_topic in asked:
        outcomes = []
        for partition in of_topic.partitions:
            await turns.next()
            outcome = await _election(
                broker, of_topic.topic, partition, request.election_type, until, context.api_version
            )
            if not everything or outcome.error_code != ErrorCode.ELECTION_NOT_NEEDED:
                outcomes.append(outcome)
        response.replica_election_results.append(
            ElectLeadersResponse.ReplicaElectionResult(topic=of_topic.topic, partition_result=outcomes)
        )
    return response


async def _election(
    broker: Broker, name: str, partition: int, election_type: int, until: float, version: int
) -> PartitionElection:
    try:
        topic = named_partition(broker, name, partition)
        await _elect(broker, topic, partition, election_type, until)
    except KafkaError as error:
        return entry(PartitionElection, version, error, partition_id=partition)
    return PartitionElection(partition_id=partition, error_message=None)


async def _elect(broker: Broker, topic: Topic, partition: int, election_type: int, until: float) -> None:
    assignment = topic.assignments.get(partition)
    leader = broker.leader(topic, partition).node_id
    preferred = leader if assignment is None else assignment.replicas[0]
    if leader >= 0 and (election_type == _UNCLEAN or leader == preferred):
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, "the partition already has this leader")
    if election_type == _UNCLEAN:
        code, why = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "no live broker holds the partition's lease yet"
        raise KafkaError(code, why)
    code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    if assignment is None:
        raise KafkaError(code, "no live broker holds the partition's lease yet")
    if preferred not in placeable(broker.topology.nodes.values()):
        raise KafkaError(code, f"broker {preferred} is not alive or is drained")

    def elected() -> bool:
        return broker.leader(topic, partition).node_id == preferred

    if not await broker.membership.until(elected, max(until - asyncio.get_running_loop().time(), 0.0)):
        raise KafkaError(code, f"broker {preferred} does not hold the partition's lease yet")


APIS: Final = (
    Api(
        ApiKey.DESCRIBE_LOG_DIRS,
        describe_log_dirs,
        needs=Needs((on_cluster(Operation.DESCRIBE),)),
        names=Names(topics=TOPICS_BY_TOPIC),
    ),
    Api(
        ApiKey.ELECT_LEADERS,
        elect_leaders,
        needs=Needs((on_cluster(Operation.ALTER),)),
        names=Names(topics=(Listed("topic_partitions", by("topic")),)),
        refuse=each_partition(
            "replica_election_results",
            "topic_partitions",
            "partition_result",
            "partitions",
            itself="partition_id",
        ),
    ),
)
