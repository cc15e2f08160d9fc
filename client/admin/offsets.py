"""Offsets of logs, and offsets committed by groups."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from muster.client.admin.answers import (
    Outcomes,
    left_ms,
    of_coordinator,
    of_coordinators,
    of_leaders,
    refused,
)
from muster.client.errors import refusal
from muster.client.group.requests import offset_topics
from muster.client.network.cluster import Cluster
from muster.client.network.connection import Versioned
from muster.client.partitions import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition, grouped
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.data import DeleteRecordsRequest, ListOffsetsRequest
from muster.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from muster.settings import INT64_MAX

EARLIEST: Final = -2
LATEST: Final = -1
MAX_TIMESTAMP: Final = -3
"""Special timestamps for ListOffsets: the start and the end of the log, and the record with the largest
timestamp (KIP-734)."""

EARLIEST_LOCAL: Final = -4
"""The first offset that the leader has itself; those before it are in remote storage (KIP-405)."""

READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1
"""Isolation levels (KIP-98): with READ_COMMITTED, the end of the log is the last stable offset."""

HIGH_WATERMARK: Final = -1
"""In place of an offset: delete all records."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_CONSUMER: Final = -1  # the replica id of clients
_SINCE: Final = {MAX_TIMESTAMP: ("MAX_TIMESTAMP", 7, "3.0"), EARLIEST_LOCAL: ("EARLIEST_LOCAL", 8, "3.5")}
"""The names of special timestamps, and the versions of ListOffsets and of Kafka that they came with."""
_BATCHED_GROUPS_SINCE: Final = 8  # version of OffsetFetch (KIP-709)
_OFFSET_FETCH_BY_NAME: Final = 9  # its last version without topic ids


# --- of logs ------------------------------------------------------------------------------------------------


async def list_offsets(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, int | datetime],
    until: float,
    *,
    isolation_level: int = READ_UNCOMMITTED,
) -> Outcomes[TopicPartition, OffsetAndTimestamp | None]:
    """For each partition, the first record at or after a time (epoch ms, or a datetime with a time zone), or
    the offset of EARLIEST, LATEST, MAX_TIMESTAMP or EARLIEST_LOCAL; None if there is no such record. All but
    MAX_TIMESTAMP have the timestamp -1."""
    timestamps = {where: timestamp_of(each, f"{where}") for where, each in wanted.items()}

    async def ask(
        node: int, partitions: list[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndTimestamp | KafkaError | None]:
        asked = [
            ListOffsetsRequest.ListOffsetsTopic(
                name=topic,
                partitions=[
                    ListOffsetsRequest.ListOffsetsPartition(partition_index=index, timestamp=timestamp)
                    for index, timestamp in parts
                ],
            )
            for topic, parts in grouped((where, timestamps[where]) for where in partitions).items()
        ]
        for special in _SINCE.keys() & {timestamps[where] for where in partitions}:
            name, since, release = _SINCE[special]
            connection = await cluster.connection(node, until)
            if connection.version_of(ApiKey.LIST_OFFSETS) < since:
                raise KafkaError(
                    ErrorCode.UNSUPPORTED_VERSION,
                    f"{name}: the broker is too old, Kafka has it since {release}",
                )
        request = ListOffsetsRequest(
            replica_id=_CONSUMER, isolation_level=isolation_level, topics=asked, timeout_ms=left_ms(until)
        )
        response = await cluster.call(request, until, node=node)
        offsets: dict[TopicPartition, OffsetAndTimestamp | KafkaError | None] = {}
        for topic in response.topics:
            for each in topic.partitions:
                where = TopicPartition(topic.name, each.partition_index)
                if each.error_code:
                    offsets[where] = refusal(each.error_code, about=str(where))
                elif each.offset < 0:
                    offsets[where] = None
                else:
                    offsets[where] = OffsetAndTimestamp(each.offset, each.timestamp, each.leader_epoch)
        return offsets

    return await of_leaders(cluster, wanted, ask, until, api="ListOffsets")


def timestamp_of(given: object, about: str) -> int:
    """As ListOffsets takes it: a time, or what stands for one. Raises TypeError, ValueError."""
    if isinstance(given, datetime):
        return epoch_ms(given, about)
    try:
        number = int(operator.index(given))  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(
            f"{about}: it takes whole epoch milliseconds, or a datetime with a time zone, not {given!r}"
        ) from None
    if not -INT64_MAX <= number <= INT64_MAX:
        raise ValueError(f"{about}: it takes epoch milliseconds below 2**63, not {number}")
    return number


def epoch_ms(moment: object, about: str) -> int:
    """Epoch milliseconds, 0 for times before the epoch. Raises TypeError for what is no datetime, ValueError
    for one without a time zone, which is ambiguous."""
    if not isinstance(moment, datetime):
        raise TypeError(f"{about}: it takes a datetime with a time zone, not {moment!r}")
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise ValueError(
            f"{about}: {moment.isoformat()} has no time zone; it takes one, such as "
            "datetime(2026, 1, 31, 12, tzinfo=UTC) or .astimezone() for local time"
        )
    return max(0, (moment - _EPOCH) // timedelta(milliseconds=1))


async def delete_records(
    cluster: Cluster, before: Mapping[TopicPartition, int], until: float
) -> Outcomes[TopicPartition, int]:
    """Delete the records before these offsets; HIGH_WATERMARK deletes all. The outcome is the first remaining
    offset. Retried if a response is lost, since deleting twice is harmless."""

    async def ask(node: int, partitions: list[TopicPartition]) -> dict[TopicPartition, int | KafkaError]:
        request = DeleteRecordsRequest(
            topics=[
                DeleteRecordsRequest.DeleteRecordsTopic(
                    name=topic,
                    partitions=[
                        DeleteRecordsRequest.DeleteRecordsPartition(partition_index=index, offset=offset)
                        for index, offset in parts
                    ],
                )
                for topic, parts in grouped((where, before[where]) for where in partitions).items()
            ],
            timeout_ms=left_ms(until),
        )
        response = await cluster.call(request, until, node=node)
        return {
            (where := TopicPartition(topic.name, each.partition_index)): refusal(
                each.error_code, about=str(where)
            )
            if each.error_code
            else each.low_watermark
            for topic in response.topics
            for each in topic.partitions
        }

    return await of_leaders(cluster, before, ask, until, api="DeleteRecords")


# --- of groups ----------------------------------------------------------------------------------------------

GroupOffsets = dict[TopicPartition, OffsetAndMetadata]


async def list_group_offsets(
    cluster: Cluster, group_ids: Iterable[str], until: float, *, require_stable: bool = False
) -> Outcomes[str, GroupOffsets]:
    """All committed offsets of each group; none for a group that does not exist. `require_stable`: wait for
    offsets of open transactions instead of ignoring them (KIP-447)."""

    async def ask(node: int, wanted: list[str]) -> dict[str, GroupOffsets | KafkaError]:
        found: dict[str, GroupOffsets | KafkaError] = {}

        def build(version: int) -> OffsetFetchRequest:
            left = wanted[len(found) :]
            if version >= _BATCHED_GROUPS_SINCE:
                groups = [OffsetFetchRequest.Group(group_id=each, topics=None) for each in left]
                return OffsetFetchRequest(groups=groups, require_stable=require_stable)
            return OffsetFetchRequest(group_id=left[0], topics=None, require_stable=require_stable)

        while len(found) < len(wanted):
            request = Versioned(ApiKey.OFFSET_FETCH, build, _OFFSET_FETCH_BY_NAME)
            response = await cluster.call(request, until, node=node)
            if response.groups:
                found |= {each.group_id: _group_offsets(each.group_id, each) for each in response.groups}
                break
            group_id = wanted[len(found)]
            found[group_id] = _group_offsets(group_id, response)
        return found

    return await of_coordinators(cluster, group_ids, ask, until, api="OffsetFetch")


def _group_offsets(
    group_id: str, told: OffsetFetchResponse | OffsetFetchResponse.Group
) -> GroupOffsets | KafkaError:
    """Versions before 8 have the fields of their one group at the top level."""
    if told.error_code:
        return refusal(told.error_code, about=f"group {group_id}")
    committed: GroupOffsets = {}
    for topic in told.topics:
        for each in topic.partitions:
            where = TopicPartition(topic.name, each.partition_index)
            if each.error_code:
                return refusal(each.error_code, about=f"group {group_id}, {where}")
            if each.committed_offset >= 0:
                committed[where] = OffsetAndMetadata(
                    each.committed_offset, each.metadata or "", each.committed_leader_epoch
                )
    return dict(sorted(committed.items()))


async def alter_group_offsets(
    cluster: Cluster,
    group_id: str,
    offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
    until: float,
) -> Outcomes[TopicPartition, None]:
    """Commit offsets for a group without members, which is created if missing. If it has members, the
    outcomes are KafkaError(UNKNOWN_MEMBER_ID). Retried if the response is lost."""
    wanted = {
        where: OffsetAndMetadata(each) if isinstance(each, int) else each for where, each in offsets.items()
    }
    for where, each in wanted.items():
        if each.offset < 0:
            raise ValueError(f"{where}: offset {each.offset} is below 0")

    async def ask(node: int, partitions: list[TopicPartition]) -> dict[TopicPartition, KafkaError | None]:
        request = OffsetCommitRequest(
            group_id=group_id,
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=offset_topics((where, wanted[where]) for where in partitions),
        )
        response = await cluster.call(request, until, node=node)
        return {
            (where := TopicPartition(topic.name, each.partition_index)): _commit_refused(
                each.error_code, group_id, where
            )
            if each.error_code
            else None
            for topic in response.topics
            for each in topic.partitions
        }

    return await of_coordinator(cluster, group_id, wanted, ask, until, api="OffsetCommit")


def _commit_refused(code: int, group_id: str, where: TopicPartition) -> KafkaError:
    """For a group with members, brokers answer UNKNOWN_MEMBER_ID, which does not say what to do."""
    if code == ErrorCode.UNKNOWN_MEMBER_ID:
        return refusal(
            code,
            f"group {group_id} has active members, so nobody else may commit for it: stop its members first",
        )
    return refusal(code, about=f"group {group_id}, {where}")


async def delete_group_offsets(
    cluster: Cluster, group_id: str, partitions: Iterable[TopicPartition], until: float
) -> Outcomes[TopicPartition, None]:
    """Delete a group's committed offsets for partitions, if there are any (KIP-496). Those of a topic that
    members subscribe to get KafkaError(GROUP_SUBSCRIBED_TO_TOPIC)."""

    async def ask(node: int, wanted: list[TopicPartition]) -> dict[TopicPartition, KafkaError | None]:
        request = OffsetDeleteRequest(
            group_id=group_id,
            topics=[
                OffsetDeleteRequest.Topic(
                    name=topic,
                    partitions=[
                        OffsetDeleteRequest.Topic.Partition(partition_index=index) for index, _ in parts
                    ],
                )
                for topic, parts in grouped((each, None) for each in wanted).items()
            ],
        )
        response = await cluster.call(request, until, node=node)
        if response.error_code:
            raise refusal(response.error_code, about=f"group {group_id}")
        return {
            (where := TopicPartition(topic.name, each.partition_index)): refused(
                each.error_code, about=f"group {group_id}, {where}"
            )
            for topic in response.topics
            for each in topic.partitions
        }

    return await of_coordinator(
        cluster, group_id, partitions, ask, until, api="OffsetDelete", repeatable=False
    )
