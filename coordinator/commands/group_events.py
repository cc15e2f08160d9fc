"""Reading what muster has recorded of a group: its partition of `__group_events`."""

from __future__ import annotations

import argparse
import time
from argparse import Namespace
from collections.abc import AsyncIterator
from typing import Any, Final

from muster import durations
from muster.client.admin.groups import describe_groups
from muster.client.admin.offsets import EARLIEST, LATEST, list_offsets
from muster.client.admin.topics import describe_topics
from muster.client.fetch.fetcher import Fetcher
from muster.client.fetch.positions import EARLIEST as FROM_EARLIEST
from muster.client.fetch.positions import Position
from muster.client.fetch.requests import FetchSettings
from muster.client.network.cluster import Cluster
from muster.client.network.connection import deadline
from muster.client.partitions import TopicPartition
from muster.coordinator.commands.group_views import members_of
from muster.coordinator.commands.run import Failed
from muster.coordinator.journal.entries import Entry, Member
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.java import java_hash

TOPIC: Final = "__group_events"
_INT32_MIN: Final = -(2**31)
_AT_ONCE: Final = 5_000
_WAIT_S: Final = 0.5
_MEMBERS_S: Final = 5.0
"""For so long it is waited to hear who is in a group. What is recorded of it tells most of that."""


def add_arguments(parser: Any, since: str) -> None:
    """What the commands that read events take; `since` says what that option means."""
    parser.add_argument("group", metavar="GROUP")
    parser.add_argument("--since", type=_duration_ms, metavar="DURATION", help=since)


def _duration_ms(text: str) -> int:
    try:
        return durations.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def now_ms() -> int:
    """By this machine's clock."""
    return time.time_ns() // 1_000_000


class GroupEvents:
    """The entries of one group and of its shard: `read` gives what is
    there, and `follow` what comes."""

    def __init__(self, cluster: Cluster, given: Namespace) -> None:
        self._cluster = cluster
        self._group: str = given.group
        self._timeout_s: float = given.timeout
        self._where = TopicPartition(TOPIC, 0)
        self._fetcher: Fetcher | None = None

    async def read(self, since_ms: int | None = None) -> list[Entry]:
        """All that is kept, or what was written since `since_ms` (epoch ms). Raises Failed, KafkaError."""
        until = deadline(self._timeout_s)
        self._where = TopicPartition(TOPIC, partition_of(self._group, await self._partitions(until)))
        end = await self._offset(LATEST, until) or 0
        start = await self._offset(EARLIEST if since_ms is None else since_ms, until)
        self._fetcher = Fetcher(self._cluster, FetchSettings(reset=FROM_EARLIEST))
        self._fetcher.set_assigned([self._where])
        self._fetcher.seek(self._where, Position(end if start is None else start))
        entries: list[Entry] = []
        position, moved = self._position, deadline(0)
        while position < end:
            entries += await self._poll()
            if self._position > position:
                position, moved = self._position, deadline(0)
            elif deadline(-self._timeout_s) > moved:
                raise Failed(
                    f"no records of {self._where} came for {self._timeout_s:g} s; --timeout says how long"
                )
        return entries

    async def follow(self) -> AsyncIterator[list[Entry]]:
        """What comes after what was read, without end."""
        while True:
            entries = await self._poll()
            if entries:
                yield entries

    async def members(self) -> list[Member] | None:
        """The members that the group has now; None where that cannot be told, as when it is gone."""
        try:
            described = await describe_groups(
                self._cluster, [self._group], deadline(min(self._timeout_s, _MEMBERS_S))
            )
        except KafkaError:
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
                f"there is no topic {TOPIC}: why groups rebalance is recorded by muster alone, and only with "
                "--group-events true (the default); Apache Kafka does not record it"
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

    async def _poll(self) -> list[Entry]:
        assert self._fetcher is not None
        batches = await self._fetcher.poll(_AT_ONCE, _WAIT_S)
        for error, since in self._fetcher.troubles.values():
            if deadline(-self._timeout_s) > since:
                raise error
        key = self._group.encode()
        entries: list[Entry] = []
        for batch in batches:
            for record in batch.records:
                if record.key in (None, key) and record.value is not None:
                    try:
                        entries.append(Entry.from_json(record.value))
                    except ValueError:
                        continue  # nothing that muster wrote, or would read
        return entries


def partition_of(group: str, partitions: int) -> int:
    """The partition of the group's coordinator: Kafka's Utils.abs, which is 0 for the one number that has
    none in 32 bits."""
    value = java_hash(group)
    return 0 if value == _INT32_MIN else abs(value) % partitions


def nothing_known(group: str, since_ms: int | None) -> str:
    """What to say when there is no entry of the group."""
    if since_ms is not None:
        return f"nothing happened in group {group} in that time; --since takes a longer one"
    return (
        f"nothing is known of group {group}: it has no events in {TOPIC}, where they are kept for 7 days by "
        "default; muster groups list shows what groups there are"
    )
