"""What brokers keep for partitions: log directories, leaders, producers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from muster.client.admin.answers import (
    Outcomes,
    left_ms,
    of_controller,
    of_leaders,
    of_nodes,
    present,
    refused,
)
from muster.client.errors import refusal
from muster.client.network.cluster import Cluster, left_out
from muster.client.partitions import TopicPartition, grouped
from muster.protocol.errors import KafkaError
from muster.protocol.messages.cluster import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    ElectLeadersRequest,
)
from muster.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
)
from muster.protocol.messages.transactions import DescribeProducersRequest

# --- log directories ----------------------------------------------------------------------------------------


class ReplicaDescription(NamedTuple):
    """A replica in a log directory. `offset_lag` is how many records it is behind the high watermark, or, if
    it is being moved to this directory (`future`), behind the original."""

    size_bytes: int
    offset_lag: int
    future: bool


class LogDir(NamedTuple):
    """A log directory of a broker. If it has failed, only the path and the error are known. The sizes of its
    volume are None from brokers before Kafka 3.3."""

    path: str
    error: KafkaError | None
    replicas: dict[TopicPartition, ReplicaDescription]
    total_bytes: int | None
    usable_bytes: int | None


async def describe_log_dirs(
    cluster: Cluster, until: float, nodes: Iterable[int] | None = None
) -> Outcomes[int, list[LogDir]]:
    """The log directories of these brokers (default: all), by node id."""
    if nodes is None:
        response = await cluster.retrying(lambda: cluster.metadata([], until), until)
        nodes = sorted(each.node_id for each in response.brokers)

    async def find(wanted: list[int]) -> dict[int, int | KafkaError]:
        return await present(cluster, wanted, until)

    async def ask(node: int, _: list[int]) -> dict[int, list[LogDir] | KafkaError]:
        response = await cluster.call(DescribeLogDirsRequest(topics=None), until, node=node)
        if response.error_code:
            return {node: refusal(response.error_code, about=f"broker {node}")}
        return {node: [_log_dir(each) for each in response.results]}

    return await of_nodes(cluster, nodes, find, ask, until, api="DescribeLogDirs")


def _log_dir(told: DescribeLogDirsResponse.DescribeLogDirsResult) -> LogDir:
    return LogDir(
        told.log_dir,
        refused(told.error_code, about=told.log_dir),
        {
            TopicPartition(topic.name, each.partition_index): ReplicaDescription(
                each.partition_size, each.offset_lag, each.is_future_key
            )
            for topic in told.topics
            for each in topic.partitions
        },
        told.total_bytes if told.total_bytes >= 0 else None,
        told.usable_bytes if told.usable_bytes >= 0 else None,
    )


# --- leaders ------------------------------------------------------------------------------------------------


class ElectionType(IntEnum):
    """Who may become leader: the preferred replica (the first), or, if no in-sync replica is alive, any live
    one, which may lose records (KIP-460)."""

    PREFERRED = 0
    UNCLEAN = 1


async def elect_leaders(
    cluster: Cluster,
    until: float,
    partitions: Iterable[TopicPartition] | None = None,
    *,
    election_type: ElectionType = ElectionType.PREFERRED,
) -> Outcomes[TopicPartition, None]:
    """Elect leaders for these partitions. None means all that need it; the outcomes are for those. A
    partition that already has the right leader gets ELECTION_NOT_NEEDED."""

    wanted = None if partitions is None else list(dict.fromkeys(partitions))

    async def ask() -> dict[TopicPartition, KafkaError | None]:
        request = ElectLeadersRequest(
            election_type=election_type,
            topic_partitions=None
            if wanted is None
            else [
                ElectLeadersRequest.TopicPartitions(topic=topic, partitions=[index for index, _ in parts])
                for topic, parts in grouped((each, None) for each in wanted).items()
            ],
            timeout_ms=left_ms(until),
        )
        response = await cluster.call_controller(request, until)
        if response.error_code:
            raise refusal(response.error_code)
        outcomes: dict[TopicPartition, KafkaError | None] = {}
        for topic in response.replica_election_results:
            for each in topic.partition_result:
                where = TopicPartition(topic.topic, each.partition_id)
                outcomes[where] = refused(each.error_code, each.error_message, about=str(where))
        return outcomes

    # Kafka marks a partition's error as retriable, but the caller wants to see it.
    told = await cluster.retrying(ask, until, repeatable=False)
    if wanted is None:
        return Outcomes(told)
    left_out(set(wanted) - told.keys(), "ElectLeaders")
    return Outcomes({where: told[where] for where in wanted})


# --- reassignments ------------------------------------------------------------------------------------------


class Reassignment(NamedTuple):
    """A partition being moved to other brokers, by node id: its replicas, and those being added and
    removed."""

    replicas: list[int]
    adding: list[int]
    removing: list[int]


async def alter_partition_reassignments(
    cluster: Cluster,
    reassignments: Mapping[TopicPartition, Sequence[int] | None],
    until: float,
    *,
    allow_replication_factor_change: bool = True,
) -> Outcomes[TopicPartition, None]:
    """Assign partitions to brokers, by node id, the preferred leader first; None cancels a reassignment in
    progress (KIP-455). When this returns, Apache Kafka has only started (see `list_partition_reassignments`);
    muster is done. Without `allow_replication_factor_change`, the number of replicas must stay the same
    (KIP-860).
    """

    async def ask(node: int, wanted: list[TopicPartition]) -> dict[TopicPartition, KafkaError | None]:
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=left_ms(until),
            allow_replication_factor_change=allow_replication_factor_change,
            topics=[
                AlterPartitionReassignmentsRequest.ReassignableTopic(
                    name=topic,
                    partitions=[
                        AlterPartitionReassignmentsRequest.ReassignablePartition(
                            partition_index=index, replicas=None if replicas is None else list(replicas)
                        )
                        for index, replicas in parts
                    ],
                )
                for topic, parts in grouped((each, reassignments[each]) for each in wanted).items()
            ],
        )
        response = await cluster.call(request, until, node=node)
        if response.error_code:
            raise refusal(response.error_code, response.error_message)
        return {
            (where := TopicPartition(topic.name, each.partition_index)): refused(
                each.error_code, each.error_message, about=str(where)
            )
            for topic in response.responses
            for each in topic.partitions
        }

    return await of_controller(cluster, reassignments, ask, until, api="AlterPartitionReassignments")


async def list_partition_reassignments(
    cluster: Cluster, until: float, partitions: Iterable[TopicPartition] | None = None
) -> dict[TopicPartition, Reassignment]:
    """The reassignments of these partitions (default: all) that are in progress. muster never has any."""
    wanted = None if partitions is None else list(dict.fromkeys(partitions))

    async def ask() -> dict[TopicPartition, Reassignment]:
        request = ListPartitionReassignmentsRequest(
            timeout_ms=left_ms(until),
            topics=None
            if wanted is None
            else [
                ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics(
                    name=topic, partition_indexes=[index for index, _ in parts]
                )
                for topic, parts in grouped((each, None) for each in wanted).items()
            ],
        )
        response = await cluster.call_controller(request, until)
        if response.error_code:
            raise refusal(response.error_code, response.error_message)
        return {
            TopicPartition(topic.name, each.partition_index): Reassignment(
                list(each.replicas), list(each.adding_replicas), list(each.removing_replicas)
            )
            for topic in response.topics
            for each in topic.partitions
        }

    return await cluster.retrying(ask, until)


# --- producers ----------------------------------------------------------------------------------------------


class ProducerState(NamedTuple):
    """A producer id that has written to a partition. The timestamp is that of its last batch, in epoch ms.
    `transaction_start_offset` is None outside a transaction, `coordinator_epoch` until the first marker."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int | None
    transaction_start_offset: int | None


async def describe_producers(
    cluster: Cluster, partitions: Iterable[TopicPartition], until: float
) -> Outcomes[TopicPartition, list[ProducerState]]:
    """The producer ids that have written to each partition (KIP-664), in order."""

    async def ask(
        node: int, wanted: list[TopicPartition]
    ) -> dict[TopicPartition, list[ProducerState] | KafkaError]:
        request = DescribeProducersRequest(
            topics=[
                DescribeProducersRequest.TopicRequest(
                    name=topic, partition_indexes=[index for index, _ in parts]
                )
                for topic, parts in grouped((each, None) for each in wanted).items()
            ]
        )
        response = await cluster.call(request, until, node=node)
        return {
            (where := TopicPartition(topic.name, each.partition_index)): refusal(
                each.error_code, each.error_message, about=str(where)
            )
            if each.error_code
            else sorted(
                ProducerState(
                    state.producer_id,
                    state.producer_epoch,
                    state.last_sequence,
                    state.last_timestamp,
                    None if state.coordinator_epoch < 0 else state.coordinator_epoch,
                    None if state.current_txn_start_offset < 0 else state.current_txn_start_offset,
                )
                for state in each.active_producers
            )
            for topic in response.topics
            for each in topic.partitions
        }

    return await of_leaders(cluster, partitions, ask, until, api="DescribeProducers")
