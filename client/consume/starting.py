"""Where reading starts: at the committed offset, or where auto_offset_reset says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from muster.client.consume.auto_commit import AutoCommit
from muster.client.consume.settings import ConsumerSettings
from muster.client.consume.tasks import Tasks
from muster.client.errors import ClientError, NoOffset
from muster.client.fetch.fetcher import Fetcher
from muster.client.fetch.positions import Position
from muster.client.group.group import Group
from muster.client.network.cluster import Cluster
from muster.client.network.connection import deadline
from muster.client.partitions import OffsetAndMetadata, TopicPartition
from muster.protocol.errors import KafkaError


class Starting:
    """Finds positions for the fetcher's partitions without one, in a task. `note` is called with failures
    that are retried."""

    def __init__(
        self,
        cluster: Cluster,
        fetcher: Fetcher,
        group: Group | None,
        auto_commit: AutoCommit | None,
        settings: ConsumerSettings,
        tasks: Tasks,
        note: Callable[[Exception], None],
    ) -> None:
        self.due = False
        """Whether there may be partitions without a position that no task is looking up."""
        self._cluster = cluster
        self._fetcher = fetcher
        self._group = group
        self._auto_commit = auto_commit
        self._settings = settings
        self._tasks = tasks
        self._note = note
        self._task: asyncio.Task[None] | None = None

    def anew(self, *, due: bool) -> None:
        """The assignment changed: results of a look-up in progress may be out of date."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self.due = due

    def look(self) -> None:
        """Start a look-up, unless one is in progress."""
        self.due = False
        if self._task is None and self._fetcher.unpositioned:
            self._task = self._tasks.spawn(self._look(), "positions")

    async def _look(self) -> None:
        tries = 0
        try:
            while missing := self._fetcher.unpositioned:
                try:
                    offsets = await self._committed(missing)
                except (ClientError, KafkaError) as error:
                    if self._cluster.is_final(error):
                        self.due = True
                        raise
                    self._note(error)
                    await asyncio.sleep(self._cluster.backoff_s(tries))
                    tries += 1
                    continue
                self._start_at(offsets, missing & self._fetcher.unpositioned)
        finally:
            if self._task is asyncio.current_task():
                self._task = None

    async def _committed(
        self, partitions: frozenset[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        if self._group is None:
            return {}
        if self._auto_commit is not None:
            await self._auto_commit.until_let_go()
        return await self._group.committed(partitions, deadline(self._settings.request_timeout_ms / 1000))

    def _start_at(
        self, offsets: dict[TopicPartition, OffsetAndMetadata | None], partitions: frozenset[TopicPartition]
    ) -> None:
        nowhere = set()
        for where in partitions:
            place = offsets.get(where)
            if place is not None:
                self._fetcher.seek(where, Position(place.offset, place.leader_epoch))
                if self._auto_commit is not None:
                    self._auto_commit.known({where: place.offset}, now=False)
            elif self._settings.auto_offset_reset is None:
                nowhere.add(where)
            else:
                self._fetcher.reset(where)
        if nowhere:
            self.due = True
            raise NoOffset(
                f"no offset is committed for {', '.join(sorted(map(str, nowhere)))} and auto_offset_reset is "
                "'none': seek, or set another policy",
                frozenset(nowhere),
            )
