"""Reads the events that muster has recorded for a group, from its partition of `__group_events`."""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from muster import durations
from muster.client.admin.groups import describe_groups
from muster.client.admin.offsets import EARLIEST, LATEST, list_offsets
from muster.client.admin.topics import describe_topics
from muster.client.errors import ClientError
from muster.client.fetch.fetcher import Fetcher
from muster.client.fetch.positions import EARLIEST as FROM_EARLIEST
from muster.client.fetch.positions import Position
from muster.client.fetch.requests import FetchSettings
from muster.client.network.cluster import Cluster
from muster.client.network.connection import deadline
from muster.client.partitions import TopicPartition
from muster.coordinator.base.clock import wall_ms
from muster.coordinator.commands.group_views import members_of
from muster.coordinator.commands.options import any_name
from muster.coordinator.commands.run import Failed
from muster.coordinator.journal.entries import Entry, Member
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.java import java_hash

TOPIC: Final = "__group_events"
_INT32_MIN: Final = -(2**31)
_AT_ONCE: Final = 5_000
_WAIT_S: Final = 0.5
_APART_MS: Final = 60_000
"""How far the clocks of machines may be apart."""
_MEMBERS_S: Final = 5.0
"""How long to wait for a group's members; the recorded events usually identify them."""


def add_arguments(parser: Any, since: str) -> None:
    """Add the options of commands that read events; `since` is the help of --since."""
    parser.add_argument("group", type=any_name, metavar="GROUP")
    parser.add_argument("--since", type=_duration_ms, metavar="DURATION", help=since)


def _duration_ms(text: str) -> int:
    try:
        return durations.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


class GroupEvents:
    """The events of one group and of its shard: `read` returns those recorded, `follow` yields new ones."""

    def __init__(self, cluster: Cluster, given: Namespace) -> None:
        self._cluster = cluster
        self._group: str = given.group
        self._timeout_s: float = given.timeout
        self._where = TopicPartition(TOPIC, 0)
        self._fetcher: Fetcher | None = None

    async def read(self, since_ms: int | None = None) -> list[Entry]:
        """All stored events, or those written since `since_ms` (epoch ms). Raises Failed, KafkaError."""
        until = deadline(self._timeout_s)
        self._where = TopicPartition(TOPIC, partition_of(self._group, await self._partitions(until)))
        end = await self._offset(LATEST, until) or 0
        start = await self._offset(EARLIEST if since_ms is None else since_ms, until)
        self._fetcher = Fetcher(self._cluster, FetchSettings(reset=FROM_EARLIEST))
        self._fetcher.set_assigned([self._where])
        self._fetcher.seek(self._where, Position(end if start is None else start))
        entries: list[tuple[Entry, int]] = []
        position, moved = self._position, deadline(0)
        while position < end:
            entries += await self._poll()
            if self._position > position:
                position, moved = self._position, deadline(0)
            elif deadline(-self._timeout_s) > moved:
                raise Failed(
                    f"timed out after {self._timeout_s:g} s waiting for records of {self._where}; "
                    "--timeout sets how long"
                )
        return dated(entries, wall_ms())

    async def follow(self) -> AsyncIterator[list[Entry]]:
        """Yields events written after those read, now and then none; never ends."""
        while True:
            yield dated(await self._poll(), wall_ms())

    async def members(self) -> list[Member] | None:
        """The current members; None if unknown, for example when the group is gone."""
        try:
            described = await describe_groups(
                self._cluster, [self._group], deadline(min(self._timeout_s, _MEMBERS_S))
            )
        except (KafkaError, ClientError):  # also a coordinator that does not answer
            return None
        group = described.succeeded.get(self._group)
        return None if group is None else members_of(group)

    async def close(self) -> None:
        if self._fetcher is not None:
            await self._fetcher.close()

    async def __aenter__(self) -> GroupEvents:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _partitions(self, until: float) -> int:
        try:
            described = (await describe_topics(self._cluster, [TOPIC], until)).raise_for_failures()
        except KafkaError as error:
            if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            raise Failed(
                f"there is no topic {TOPIC}: only muster records why groups rebalance, and only with "
                "--group-events true (the default); Apache Kafka does not"
            ) from None
        return len(described[TOPIC].partitions)

    async def _offset(self, timestamp: int, until: float) -> int | None:
        found = (await list_offsets(self._cluster, {self._where: timestamp}, until)).raise_for_failures()
        where = found[self._where]
        return None if where is None else where.offset

    @property
    def _position(self) -> int:
        assert self._fetcher is not None
        position = self._fetcher.position(self._where)
        return -1 if position is None else position.offset

    async def _poll(self) -> list[tuple[Entry, int]]:
        """Entries, and the timestamps of their records."""
        assert self._fetcher is not None
        batches = await self._fetcher.poll(_AT_ONCE, _WAIT_S)
        for error, since in self._fetcher.troubles.values():
            if deadline(-self._timeout_s) > since:
                raise error
        key = self._group.encode()
        entries: list[tuple[Entry, int]] = []
        for batch in batches:
            for record in batch.records:
                if record.key in (None, key) and record.value is not None:
                    try:
                        entries.append((Entry.from_json(record.value), record.timestamp))
                    except ValueError:
                        continue  # not written by muster, or by a version unknown here
        return entries


def dated(entries: Sequence[tuple[Entry, int]], now_ms: int) -> list[Entry]:
    """Entries with the timestamps of their records, which are right where the broker's clock was behind."""
    times = dates([(entry.at_ms, at_ms) for entry, at_ms in entries], now_ms)
    return [
        entry if entry.at_ms == at_ms else entry.dated(at_ms)
        for (entry, _), at_ms in zip(entries, times, strict=True)
    ]


def dates(times: Sequence[tuple[int, int]], now_ms: int) -> list[int]:
    """When entries happened, by the broker's clock and the timestamp of the record, both in epoch ms. Times
    do not go back for a timestamp: one that is later than what followed was wrong, and the clock right."""
    found: list[int] = []
    latest_ms = now_ms
    for at_ms, record_ms in reversed(times):
        if at_ms < record_ms <= latest_ms + _APART_MS:
            at_ms = max(min(record_ms, latest_ms), at_ms)
        latest_ms = min(latest_ms, at_ms)
        found.append(at_ms)
    return found[::-1]


def partition_of(group: str, partitions: int) -> int:
    """The partition of the group's coordinator: Kafka's Utils.abs, which maps Integer.MIN_VALUE to 0."""
    value = java_hash(group)
    return 0 if value == _INT32_MIN else abs(value) % partitions


def nothing_known(group: str, since_ms: int | None) -> str:
    """The error message for a group without events."""
    if since_ms is not None:
        return f"nothing happened in group {group} in that time; try a longer --since"
    return (
        f"no events of group {group} in {TOPIC}, which keeps them for 7 days by default; muster groups "
        "list shows the groups"
    )
