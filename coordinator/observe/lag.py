"""The lag of a broker's groups, in records and in time. A partition's end is known if its log is open in this
process; the other ends are read together on demand (`refresh`), never for a client's request. Time lag is
derived from a history of ends, which is kept only while somebody asks for it.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from muster.coordinator.base.clock import Clock, Timer
from muster.coordinator.base.log import Logger
from muster.coordinator.group.committed_offset import CommittedOffset
from muster.coordinator.group.group_offsets import TopicPartition
from muster.coordinator.storage.store import StoreError
from muster.coordinator.topics.logs import PartitionId
from muster.coordinator.topics.sources import Bounds, Looked
from muster.protocol.errors import KafkaError

_log: Final = Logger(part="lag")

SAMPLE_MS: Final = 5_000
ASKED_MS: Final = 60_000
"""How long ends are sampled after a request: scrapers come every 15 to 60 seconds."""
FRESH_MS: Final = 1_000
"""An end read this recently is not read again."""
PARTITIONS_MAX: Final = 20_000
"""The limit over all groups: partitions beyond it have no history, and their ends are not read. `/metrics`
shows as many committed offsets."""
_POINTS_MAX: Final = 64
_IN_A_TURN: Final = 100
"""How many partitions are worked on before others have their turn; each takes some 20 µs."""
_LOOKED_AT_ONCE: Final = 100
"""Closed logs are opened one after the other, each of which may take 10 ms from a slow disk."""

Committed = Mapping[TopicPartition, CommittedOffset]


class PartitionLag(NamedTuple):
    """A group's lag in a partition."""

    topic: str
    partition: int
    committed: int
    """The committed offset: the group's next record."""
    end: int | None
    """The high watermark; None: unknown (so far)."""
    lag: int | None
    """Records from `committed` to `end`."""
    seconds: float | None
    """How long ago the first of them was written; 0 if there is none, None if the history is too short."""
    unread: bool = False
    """Whether the end has yet to be read: until then the group's total is unknown. Partitions that do not
    exist, whose logs cannot be read, or that are beyond PARTITIONS_MAX have no lag, and do not count."""


class History:
    """A log's end offset over time: a bounded number of points, denser for recent ones. Times are
    milliseconds."""

    def __init__(self) -> None:
        self._at_ms = array("q")
        self._ends = array("q")

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def newest(self) -> tuple[int, int]:
        """(when, end)"""
        return self._at_ms[-1], self._ends[-1]

    def add(self, at_ms: int, end: int) -> None:
        """Add the log's current end. If it went back (records were lost), the history restarts."""
        if self._ends and end < self._ends[-1]:
            del self._at_ms[:], self._ends[:]
        if len(self._ends) > 1 and self._ends[-2] == self._ends[-1] == end:
            self._at_ms[-1] = at_ms  # unchanged
            return
        self._at_ms.append(at_ms)
        self._ends.append(end)
        if len(self._ends) > _POINTS_MAX:
            # Drop every other point of the older half, but keep the oldest, which bounds the history.
            del self._at_ms[1 : _POINTS_MAX // 2 : 2], self._ends[1 : _POINTS_MAX // 2 : 2]

    def written_ms(self, offset: int) -> int | None:
        """When the record at `offset` was written, interpolated between points; None if it is older than the
        oldest point, or does not exist."""
        index = bisect_right(self._ends, offset)
        if index == 0 or index == len(self._ends):
            return None
        before, behind = self._ends[index - 1], self._ends[index]
        from_ms, to_ms = self._at_ms[index - 1], self._at_ms[index]
        return from_ms + (to_ms - from_ms) * (offset - before) // (behind - before)


class Lag:
    """The lag of the groups that a broker coordinates. Used on the broker's loop."""

    def __init__(
        self,
        clock: Clock,
        *,
        groups: Callable[[], Iterable[str]],
        committed: Callable[[str], Committed],
        topic_id: Callable[[str], UUID | None],
        known: Callable[[PartitionId], Bounds | None],
        look: Callable[[Sequence[PartitionId]], Awaitable[Sequence[Looked]]],
    ) -> None:
        """`groups` returns this broker's groups with committed offsets, `committed` a group's offsets.
        `known` and `look` are the methods of `topics.partitions.Partitions`."""
        self._clock = clock
        self._groups = groups
        self._committed = committed
        self._topic_id = topic_id
        self._known = known
        self._look = look
        self._histories: dict[PartitionId, History] = {}
        self._unreadable: set[PartitionId] = set()
        """Partitions without a history whose logs could not be read the last time."""
        self._asked_until_ms = 0
        self._forgot_ms = 0
        self._timer: Timer | None = None
        self._sampling: asyncio.Task[None] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._closed = False

    def __repr__(self) -> str:
        return f"<Lag histories={len(self._histories)}>"

    def groups(self) -> list[str]:
        """This broker's groups with committed offsets."""
        return sorted(self._groups())

    def of(self, group_id: str) -> list[PartitionLag]:
        """The lag of a group as far as known without waiting, ordered by topic and partition. It may be a
        moment ahead of what is durable."""
        now_ms = self._clock.now_ms()
        return [
            self._partition_lag(topic, partition, committed.offset, now_ms)
            for (topic, partition), committed in sorted(self._committed(group_id).items())
        ]

    async def in_turns(self, group_id: str) -> list[PartitionLag]:
        """As `of`, unordered, letting others have their turn: a group may have thousands of partitions."""
        now_ms, of_group = self._clock.now_ms(), self._committed(group_id)
        found = []
        for count, each in enumerate(list(of_group), 1):
            committed = of_group.get(each)
            if committed is not None:  # it may be gone by now
                found.append(self._partition_lag(*each, committed.offset, now_ms))
            if count % _IN_A_TURN == 0:
                await asyncio.sleep(0)
        return found

    def total(self, group_id: str) -> int | None:
        """The total lag of a group in records; None if it has no committed offsets, an end is unknown, or it
        has more than PARTITIONS_MAX partitions."""
        offsets = self._committed(group_id)
        if len(offsets) > PARTITIONS_MAX:
            return None
        total = 0 if offsets else None
        for (topic, partition), committed in offsets.items():
            end, _ = self._partition(topic, partition)
            if end is None or total is None:
                return None
            total += max(end - committed.offset, 0)
        return total

    def committed_ms(self, group_id: str) -> int | None:
        """When a group last committed, epoch ms; None if it has no offsets here."""
        committed = self._committed(group_id).values()
        return max((each.commit_timestamp for each in committed), default=None)

    async def refresh(self, group_ids: Iterable[str] | None = None) -> None:
        """`read` these groups (None: all), and keep sampling all groups for a while, also if the caller gives
        up."""
        self._asked_until_ms = self._clock.now_ms() + ASKED_MS
        try:
            await self.read(self._groups() if group_ids is None else group_ids)
        finally:
            if self._timer is None and not self._closed:
                self._timer = self._clock.at(self._clock.now_ms() + SAMPLE_MS, self._sample)

    def close(self) -> None:
        """Stop sampling."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._sampling is not None:
            self._sampling.cancel()

    # --- sampling -------------------------------------------------------------------------------------------

    def _sample(self) -> None:
        self._sampling = asyncio.get_running_loop().create_task(self._sample_all(), name="sample log ends")

    async def _sample_all(self) -> None:
        try:
            await self.read(self._groups())
        finally:
            self._timer = self._sampling = None
        now_ms = self._clock.now_ms()
        if now_ms < self._asked_until_ms and not self._closed:
            self._timer = self._clock.at(now_ms + SAMPLE_MS, self._sample)

    async def read(self, group_ids: Iterable[str]) -> None:
        """Read the ends of these groups' partitions that are not known yet. If a store or disk does not
        respond, nothing is raised and the ends stay unchanged."""
        wanted = await self._partitions(list(group_ids))
        noted_ms = self._clock.now_ms()
        self._forget_old(noted_ms)
        unknown = await self._note_in_turns(wanted)
        for start in range(0, len(unknown), _LOOKED_AT_ONCE):
            async with self._one_at_a_time:  # for each piece: nobody waits for all that another one reads
                if not await self._read_unknown(unknown[start : start + _LOOKED_AT_ONCE]):
                    return
            if self._clock.now_ms() >= noted_ms + SAMPLE_MS:
                noted_ms = self._clock.now_ms()
                await self._note_in_turns(wanted)

    async def _note_in_turns(self, partitions: Sequence[PartitionId]) -> list[PartitionId]:
        """`_note_known`, letting others have their turn."""
        unknown = self._note_known(partitions[:_IN_A_TURN])
        for start in range(_IN_A_TURN, len(partitions), _IN_A_TURN):
            await asyncio.sleep(0)
            unknown += self._note_known(partitions[start : start + _IN_A_TURN])
        return unknown

    def _note_known(self, partitions: Sequence[PartitionId]) -> list[PartitionId]:
        """Note the ends that are known; returns the partitions whose ends are to be looked up."""
        now_ms = self._clock.now_ms()
        unknown = []
        for each in partitions:
            bounds = self._known(each)
            if bounds is not None:
                self._note(each, bounds[1], now_ms)
            elif not self._fresh(each, now_ms):
                unknown.append(each)
        return unknown

    async def _read_unknown(self, partitions: Sequence[PartitionId]) -> bool:
        """False if a store or disk does not respond."""
        unknown = self._note_known(partitions)
        if not unknown:
            return True
        try:
            found = await self._look(unknown)
        except (OSError, StoreError) as error:
            _log.warning("cannot read log end offsets", why=str(error))
            return False
        for each, looked in zip(unknown, found, strict=True):
            # What is known now may have been noted meanwhile, and is never older than what the look found.
            bounds = self._known(each) or looked
            if isinstance(bounds, KafkaError):
                if each not in self._histories:
                    self._unreadable.add(each)
            elif bounds is not None:
                self._note(each, bounds[1], self._clock.now_ms())
        return True

    async def _partitions(self, group_ids: Sequence[str]) -> list[PartitionId]:
        wanted: dict[PartitionId, None] = {}
        left = _IN_A_TURN
        for group_id in group_ids:
            for topic, partition in list(self._committed(group_id)):
                topic_id = self._topic_id(topic)
                if topic_id is not None:
                    wanted[PartitionId(topic_id, partition)] = None
                left -= 1
                if left <= 0:
                    left = _IN_A_TURN
                    await asyncio.sleep(0)
            left -= 1
            if len(wanted) >= PARTITIONS_MAX:
                break
        return list(wanted)[:PARTITIONS_MAX]

    def _note(self, partition: PartitionId, end: int, now_ms: int) -> None:
        self._unreadable.discard(partition)
        self._histories.setdefault(partition, History()).add(now_ms, end)

    def _fresh(self, partition: PartitionId, now_ms: int) -> bool:
        history = self._histories.get(partition)
        return history is not None and history.newest[0] > now_ms - FRESH_MS

    def _forget_old(self, now_ms: int) -> None:
        if now_ms < self._forgot_ms + ASKED_MS:
            return
        self._forgot_ms = now_ms
        self._unreadable.clear()
        old = [each for each, one in self._histories.items() if one.newest[0] < now_ms - 2 * ASKED_MS]
        for each in old:
            del self._histories[each]

    # --- one partition --------------------------------------------------------------------------------------

    def _partition(self, topic: str, partition: int) -> tuple[int | None, History | None]:
        """The partition's end and its history."""
        topic_id = self._topic_id(topic)
        if topic_id is None:
            return None, None
        where = PartitionId(topic_id, partition)
        bounds, history = self._known(where), self._histories.get(where)
        if bounds is not None:
            return bounds[1], history
        return (None if history is None else history.newest[1]), history

    def _partition_lag(self, topic: str, partition: int, committed: int, now_ms: int) -> PartitionLag:
        end, history = self._partition(topic, partition)
        if end is None:
            topic_id = self._topic_id(topic)
            unread = (
                topic_id is not None
                and PartitionId(topic_id, partition) not in self._unreadable
                and len(self._histories) + len(self._unreadable) < PARTITIONS_MAX
            )
            return PartitionLag(topic, partition, committed, None, None, None, unread)
        if end <= committed:
            return PartitionLag(topic, partition, committed, end, 0, 0.0)
        written_ms: int | None = None
        if history is not None:
            at_ms, newest = history.newest
            # Records since the last sample were written between then and now.
            written_ms = at_ms if newest <= committed else history.written_ms(committed)
        seconds = None if written_ms is None else max(now_ms - written_ms, 0) / 1000
        return PartitionLag(topic, partition, committed, end, end - committed, seconds)
