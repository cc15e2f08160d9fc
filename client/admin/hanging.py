"""Hanging transactions: find them, and the groups that they hold back (KIP-664).

A transaction hangs on a partition if no coordinator will ever end it there. Its records, and all behind them,
stay hidden from consumers that read only committed records.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from muster.client.admin.answers import Outcomes
from muster.client.admin.configs import ConfigResource, ResourceType, describe_configs
from muster.client.admin.groups import list_groups
from muster.client.admin.offsets import LATEST, READ_COMMITTED, list_group_offsets, list_offsets
from muster.client.admin.replicas import ProducerState, describe_producers
from muster.client.admin.topics import list_topics
from muster.client.admin.transactions import (
    TransactionDescription,
    describe_transactions,
    list_transactions,
)
from muster.client.errors import ClientError
from muster.client.network.cluster import Cluster
from muster.client.network.connection import deadline
from muster.client.partitions import OffsetAndTimestamp, TopicPartition
from muster.protocol.errors import DecodeError, ErrorCode, KafkaError
from muster.protocol.messages.data import FetchRequest, FetchResponse
from muster.protocol.record_batch import HEADER_BYTES, peek

MAX_TIMEOUT: Final = "transaction.max.timeout.ms"
_STATE_TOPIC: Final = "__transaction_state"
"""The leader of each of its partitions coordinates that partition's transactional ids."""
_MAX_TIMEOUT_DEFAULT_MS: Final = 900_000
_GRACE_MS: Final = 300_000
"""What Kafka's tool adds to transaction.max.timeout.ms: markers may take a while."""
_READING_S: Final = 5.0
"""How long to wait for a transaction's first record: its timestamp is not worth more."""


class HangingTransaction(NamedTuple):
    """A transaction that is open on a partition, and that no coordinator will end there.

    The timestamps, in epoch ms, are those of its first record (None if it cannot be read) and of its
    producer's last one. The epochs and ids are what `abort_transaction` takes. `transactional_id` is None if
    no coordinator knows the producer id. `why` explains how it is known to hang.
    """

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int | None
    start_offset: int
    start_timestamp: int | None
    last_timestamp: int
    transactional_id: str | None
    why: str


class Verdict(NamedTuple):
    """What the coordinators report on a transaction that is open on a partition: it hangs because of `why`
    or, if that is None, is still theirs to end."""

    transactional_id: str | None
    why: str | None


async def find_hanging_transactions(
    cluster: Cluster,
    until: float,
    *,
    partitions: Iterable[TopicPartition] | None = None,
    longer_than_ms: int | None = None,
) -> Outcomes[TopicPartition, list[HangingTransaction]]:
    """The hanging transactions of each partition (default: all), in the order of their offsets: those whose
    producer has written nothing for `longer_than_ms` (default: the brokers' transaction.max.timeout.ms plus
    five minutes), and that no coordinator will end.

    Needs READ on topics, and DESCRIBE on all transactional ids: a transaction whose id you may not describe
    looks as if it were hanging. The default of `longer_than_ms` needs DESCRIBE_CONFIGS on the cluster.
    """
    if longer_than_ms is None:
        longer_than_ms = await _max_timeout_ms(cluster, until) + _GRACE_MS
    everywhere = partitions is None
    if partitions is None:
        topics = await list_topics(cluster, until, include_internal=True)
        partitions = [
            TopicPartition(each.name, part.partition) for each in topics for part in each.partitions
        ]
    described = await describe_producers(cluster, partitions, until)
    before_ms = time.time_ns() // 1_000_000 - longer_than_ms
    suspects = {
        where: [each for each in open_transactions(producers) if each.last_timestamp < before_ms]
        for where, producers in described.succeeded.items()
    }
    found: dict[TopicPartition, list[HangingTransaction] | KafkaError] = {
        where: error
        for where, error in described.failed.items()
        if not (everywhere and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)  # deleted meanwhile
    }
    found |= {where: [] for where in suspects}
    found |= await _hanging(cluster, {where: each for where, each in suspects.items() if each}, until)
    return Outcomes({where: found[where] for where in described if where in found})


def open_transactions(producers: Iterable[ProducerState]) -> list[ProducerState]:
    """The producers that have an open transaction, ordered by its first offset."""
    found = [each for each in producers if each.transaction_start_offset is not None]
    return sorted(found, key=lambda each: each.transaction_start_offset or 0)


async def judge(
    cluster: Cluster, suspects: Mapping[TopicPartition, Iterable[ProducerState]], until: float
) -> dict[tuple[TopicPartition, int], Verdict | KafkaError]:
    """The coordinators' verdicts on open transactions, by partition and producer id. Raises
    KafkaError(COORDINATOR_NOT_AVAILABLE) if some coordinator cannot be asked: its transactions must not look
    as if nobody knew them."""
    asked = [(where, each.producer_id) for where, producers in suspects.items() for each in producers]
    if not asked:
        return {}
    await _check_all_coordinated(cluster, until)
    listed = await list_transactions(cluster, until, producer_ids=sorted({each for _, each in asked}))
    ids = {each.producer_id: each.transactional_id for each in listed}
    described = await describe_transactions(cluster, ids.values(), until)
    verdicts: dict[tuple[TopicPartition, int], Verdict | KafkaError] = {}
    for where, producer_id in asked:
        transactional_id = ids.get(producer_id)
        told = None if transactional_id is None else described[transactional_id]
        if isinstance(told, KafkaError) and told.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            transactional_id = told = None
        verdicts[where, producer_id] = (
            told
            if isinstance(told, KafkaError)
            else Verdict(transactional_id, _why(where, producer_id, told))
        )
    return verdicts


async def _check_all_coordinated(cluster: Cluster, until: float) -> None:
    told = await cluster.retrying(lambda: cluster.metadata([_STATE_TOPIC], until), until)
    for each in (part for topic in told.topics for part in topic.partitions):
        if each.leader_id < 0:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"{_STATE_TOPIC}-{each.partition_index} has no leader, so nobody can tell of its "
                "transactional ids",
            )


def _why(where: TopicPartition, producer_id: int, told: TransactionDescription | None) -> str | None:
    if told is None:
        return f"no coordinator knows producer id {producer_id}"
    if told.producer_id != producer_id:
        return f"{told.transactional_id} has producer id {told.producer_id} now"
    if where not in told.partitions:
        return f"{told.transactional_id} is {told.state} at its coordinator, without this partition"
    return None


async def _hanging(
    cluster: Cluster, suspects: Mapping[TopicPartition, list[ProducerState]], until: float
) -> dict[TopicPartition, list[HangingTransaction] | KafkaError]:
    verdicts = await judge(cluster, suspects, until)
    # Markers may have been written while the coordinators were asked.
    again = await describe_producers(cluster, suspects, until)
    found: dict[TopicPartition, list[HangingTransaction] | KafkaError] = {}
    for where, producers in suspects.items():
        now = again[where]
        if isinstance(now, KafkaError):
            found[where] = now
            continue
        still_open = {(each.producer_id, each.transaction_start_offset) for each in now}
        hanging: list[HangingTransaction] = []
        for each in producers:
            verdict, offset = verdicts[where, each.producer_id], each.transaction_start_offset
            if (each.producer_id, offset) not in still_open or offset is None:
                continue
            if isinstance(verdict, KafkaError):
                found[where] = verdict
            elif verdict.why is not None:
                hanging.append(
                    HangingTransaction(
                        where,
                        each.producer_id,
                        each.producer_epoch,
                        each.coordinator_epoch,
                        offset,
                        await _timestamp_at(cluster, where, offset, until),
                        each.last_timestamp,
                        verdict.transactional_id,
                        verdict.why,
                    )
                )
        found.setdefault(where, hanging)
    return found


async def _max_timeout_ms(cluster: Cluster, until: float) -> int:
    """The largest transaction.max.timeout.ms of all brokers."""
    told = await cluster.retrying(lambda: cluster.metadata([], until), until)
    brokers = [ConfigResource(ResourceType.BROKER, str(each.node_id)) for each in told.brokers]
    configs = (await describe_configs(cluster, brokers, until, names=[MAX_TIMEOUT])).raise_for_failures()
    values = [each[MAX_TIMEOUT].value for each in configs.values() if MAX_TIMEOUT in each]
    return max((int(each) for each in values if each), default=_MAX_TIMEOUT_DEFAULT_MS)


async def _timestamp_at(cluster: Cluster, where: TopicPartition, offset: int, until: float) -> int | None:
    """The timestamp of the first record of the batch at this offset; None if it is gone or unreadable.
    However few bytes a Fetch asks for, it gets one whole batch."""
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        topics=[
            FetchRequest.FetchTopic(
                topic=where.topic,
                partitions=[
                    FetchRequest.FetchPartition(
                        partition=where.partition, fetch_offset=offset, partition_max_bytes=HEADER_BYTES
                    )
                ],
            )
        ],
    )

    soon = min(until, deadline(_READING_S))
    with suppress(KafkaError, ClientError, DecodeError):
        leader, _ = await cluster.leadership(where, soon)
        response: FetchResponse = await cluster.call(request, soon, node=leader)
        for records in (each.records for topic in response.responses for each in topic.partitions):
            if records:
                return peek(records).first_timestamp
    return None


# --- groups held back ---------------------------------------------------------------------------------------


class HeldBackGroup(NamedTuple):
    """A group whose committed offset in a partition is not beyond its last stable offset. `lag` is the number
    of records to the end of the log."""

    group_id: str
    committed_offset: int
    lag: int


class HeldBack(NamedTuple):
    """A partition's last stable offset (KIP-98), where consumers that read only committed records have to
    stop; its log end offset; and the groups that are not beyond the former, the nearest first. Only a group's
    members know whether they read only committed records."""

    last_stable_offset: int
    log_end_offset: int
    groups: list[HeldBackGroup]


async def find_held_back_groups(
    cluster: Cluster, partitions: Iterable[TopicPartition], until: float
) -> Outcomes[TopicPartition, HeldBack]:
    """The groups that open transactions in these partitions hold back, or will once they get there; none
    where the last stable offset is the end of the log. Groups that you may not describe are left out."""
    wanted = dict.fromkeys(partitions, LATEST)
    stable = await list_offsets(cluster, wanted, until, isolation_level=READ_COMMITTED)
    ends = await list_offsets(cluster, wanted, until)
    outcomes: dict[TopicPartition, HeldBack | KafkaError] = {}
    for where in wanted:
        told = _bounds(stable[where], ends[where])
        outcomes[where] = told if isinstance(told, KafkaError) else HeldBack(*told, [])
    held = {
        where: each
        for where, each in Outcomes(outcomes).succeeded.items()
        if each.last_stable_offset < each.log_end_offset
    }
    if held:
        group_ids = [each.group_id for each in await list_groups(cluster, until)]
        fetched = await list_group_offsets(cluster, group_ids, until)
        for group_id, error in fetched.failed.items():
            if error.code == ErrorCode.GROUP_AUTHORIZATION_FAILED:
                del fetched[group_id]
        committed = fetched.raise_for_failures()
        for where, each in held.items():
            each.groups.extend(
                sorted(
                    (
                        HeldBackGroup(group_id, at.offset, each.log_end_offset - at.offset)
                        for group_id, offsets in committed.items()
                        if (at := offsets.get(where)) is not None and at.offset <= each.last_stable_offset
                    ),
                    key=lambda group: (group.lag, group.group_id),
                )
            )
    return Outcomes(outcomes)


def _bounds(
    stable: OffsetAndTimestamp | KafkaError | None, end: OffsetAndTimestamp | KafkaError | None
) -> tuple[int, int] | KafkaError:
    for each in (stable, end):
        if isinstance(each, KafkaError):
            return each
    assert isinstance(stable, OffsetAndTimestamp)  # LATEST is always there
    assert isinstance(end, OffsetAndTimestamp)
    return stable.offset, end.offset
