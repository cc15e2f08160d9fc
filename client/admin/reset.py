"""Resets the committed offsets of a group, as `kafka-consumer-groups --reset-offsets` does."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from muster.client.admin.answers import Outcomes
from muster.client.admin.groups import describe_groups
from muster.client.admin.offsets import (
    EARLIEST,
    LATEST,
    GroupOffsets,
    alter_group_offsets,
    epoch_ms,
    list_group_offsets,
    list_offsets,
)
from muster.client.admin.topics import describe_topics
from muster.client.network.cluster import Cluster
from muster.client.partitions import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition
from muster.protocol.errors import ErrorCode, KafkaError


@dataclass(frozen=True, slots=True)
class Earliest:
    """The oldest record."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The end of the log."""


@dataclass(frozen=True, slots=True)
class Current:
    """The committed offset, or the end of the log if there is none. It may lie outside the log."""


@dataclass(frozen=True, slots=True)
class Offset:
    """This offset."""

    offset: int

    def __post_init__(self) -> None:
        if self.offset < 0:
            raise ValueError(f"Offset: it takes an offset from 0 on, not {self.offset}")


@dataclass(frozen=True, slots=True)
class Shift:
    """This many records forward from the committed offset, or back if negative."""

    by: int


@dataclass(frozen=True, slots=True)
class At:
    """The first record at or after this time, or the end of the log if there is none. Needs a time zone."""

    moment: datetime

    def __post_init__(self) -> None:
        epoch_ms(self.moment, "At")


@dataclass(frozen=True, slots=True)
class By:
    """The first record no older than this, or the end of the log if there is none."""

    age: timedelta

    def __post_init__(self) -> None:
        if not isinstance(self.age, timedelta):
            raise TypeError(f"By: it takes a timedelta, not {self.age!r}")
        if self.age < timedelta(0):
            raise ValueError(f"By: it takes the maximum age of records, 0 or more, not {self.age}")


@dataclass(frozen=True, slots=True)
class PerPartition:
    """An offset for each partition; other partitions cannot be reset."""

    offsets: Mapping[TopicPartition, int]

    def __post_init__(self) -> None:
        for where, offset in self.offsets.items():
            if offset < 0:
                raise ValueError(f"PerPartition: it takes offsets from 0 on, not {offset} for {where}")


Target = Earliest | Latest | Current | Offset | Shift | At | By | PerPartition


class ResetOffset(NamedTuple):
    """A group's committed offset in a partition (None if there is none), the requested one, and the new one:
    the nearest in the log, except for `Current`."""

    before: int | None
    wanted: int
    after: int


async def reset_group_offsets(
    cluster: Cluster,
    group_id: str,
    to: Target,
    until: float,
    *,
    topics: Iterable[str] | None = None,
    partitions: Iterable[TopicPartition] | None = None,
    dry_run: bool = False,
) -> Outcomes[TopicPartition, ResetOffset]:
    """Reset a group without members to `to` in all partitions of these topics and in these partitions;
    without either, in those that `to` names (PerPartition), or wherever it has committed offsets. `dry_run`:
    only compute the new offsets.

    Raises KafkaError(NON_EMPTY_GROUP) if the group has members. A missing group is created. A topic that does
    not exist appears in the outcomes as its partition -1.
    """
    if not isinstance(to, Target):
        raise TypeError(
            f"to: it takes Earliest(), Latest(), Current(), Offset(n), Shift(n), At(datetime),"
            f" By(timedelta) or PerPartition(offsets), not {to!r}"
        )
    moment_ms = _moment_ms(to)
    await _refuse_active(cluster, group_id, until)
    committed = (await list_group_offsets(cluster, [group_id], until)).raise_for_failures()[group_id]
    outcomes: Outcomes[TopicPartition, ResetOffset] = Outcomes()
    if topics is None and partitions is None:
        wanted = set(to.offsets if isinstance(to, PerPartition) else committed)
    else:
        wanted = set(partitions or ())
    for name, topic in (await describe_topics(cluster, topics or (), until)).items():
        if isinstance(topic, KafkaError):
            outcomes[TopicPartition(name, -1)] = topic
        else:
            wanted |= {TopicPartition(name, each.partition) for each in topic.partitions}
    places = await _places(cluster, sorted(wanted), to, moment_ms, committed, until)
    outcomes |= places
    if not dry_run and places.succeeded:
        offsets = {where: OffsetAndMetadata(each.after) for where, each in places.succeeded.items()}
        outcomes |= (await alter_group_offsets(cluster, group_id, offsets, until)).failed
    return outcomes


def _moment_ms(to: Target) -> int | None:
    match to:
        case At(moment):
            return epoch_ms(moment, "At")
        case By(age):
            return max(0, time.time_ns() // 1_000_000 - age // timedelta(milliseconds=1))
    return None


async def _refuse_active(cluster: Cluster, group_id: str, until: float) -> None:
    """Brokers refuse outside commits while a group has members; check that first."""
    group = (await describe_groups(cluster, [group_id], until))[group_id]
    if isinstance(group, KafkaError):
        if group.code != ErrorCode.GROUP_ID_NOT_FOUND:
            raise group
    elif group.state != "Empty":
        raise KafkaError(
            ErrorCode.NON_EMPTY_GROUP,
            f"group {group_id} is {group.state} with {group.member_names}: offsets can only be reset while a"
            " group has no members, which would go on from where they are",
        )


async def _places(
    cluster: Cluster,
    partitions: list[TopicPartition],
    to: Target,
    moment_ms: int | None,
    committed: GroupOffsets,
    until: float,
) -> Outcomes[TopicPartition, ResetOffset]:
    """The new offset in each partition, within its log."""
    starts = await list_offsets(cluster, dict.fromkeys(partitions, EARLIEST), until)
    ends = await list_offsets(cluster, dict.fromkeys(partitions, LATEST), until)
    found = ends
    if moment_ms is not None:
        found = await list_offsets(cluster, dict.fromkeys(partitions, moment_ms), until)
    outcomes: Outcomes[TopicPartition, ResetOffset] = Outcomes()
    for where in partitions:
        start, end, record = starts[where], ends[where], found[where]
        for each in (start, end, record):
            if isinstance(each, KafkaError):
                outcomes[where] = each
                break
        else:
            before = committed[where].offset if where in committed else None
            outcomes[where] = _place(where, to, before, _offset(start), _offset(end), _offset(record))
    return outcomes


def _offset(found: OffsetAndTimestamp | KafkaError | None) -> int | None:
    return found.offset if isinstance(found, OffsetAndTimestamp) else None


def _place(
    where: TopicPartition,
    to: Target,
    before: int | None,
    start: int | None,
    end: int | None,
    record: int | None,
) -> ResetOffset | KafkaError:
    assert start is not None, "every log has a start and an end"
    assert end is not None
    match to:
        case Earliest():
            wanted = start
        case Latest():
            wanted = end
        case Current():
            wanted = end if before is None else before
            return ResetOffset(before, wanted, wanted)
        case Offset(offset):
            wanted = offset
        case PerPartition(offsets):
            if where not in offsets:
                return KafkaError(ErrorCode.INVALID_REQUEST, f"{where} has no offset among those given")
            wanted = offsets[where]
        case Shift(by):
            if before is None:
                return KafkaError(
                    ErrorCode.INVALID_REQUEST, f"{where} has no committed offset, so there is none to shift"
                )
            wanted = before + by
        case At() | By():
            wanted = end if record is None else record
    return ResetOffset(before, wanted, min(max(wanted, start), end))
