"""The facts that `muster top` shows about groups. Each refresh sends few requests and is bounded in time."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from itertools import pairwise
from typing import Final, NamedTuple

from muster.client.admin.groups import GroupDescription, describe_groups, list_groups
from muster.client.admin.offsets import EARLIEST, LATEST, list_group_offsets, list_offsets
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
from muster.coordinator.commands.group_events import TOPIC, dates
from muster.coordinator.commands.group_reads import log_ends, of_groups
from muster.coordinator.journal.entries import Entry
from muster.protocol.errors import ErrorCode, KafkaError

GROUPS_MAX: Final = 200
"""Maximum groups described in one refresh: the first by id."""
_RATE_WINDOW_S: Final = 10.0
"""Groups commit every few seconds: a shorter window would show all or nothing."""
_REBALANCES_WINDOW_MS: Final = 60 * 60_000
_AT_ONCE: Final = 5_000
_COMPLETED: Final = b'"rebalance_completed"'
_ENTRIES_MAX: Final = 100_000
"""Journal entries read in one refresh; the rest are left for the next."""


class Row(NamedTuple):
    """A group; None for what is unknown."""

    group_id: str
    state: str
    members: int
    partitions: int
    """Partitions with a committed offset."""
    lag: int | None
    """Records between the committed offsets and the log ends, over all partitions; None if the end of one is
    unknown."""
    records_per_second: float | None
    """How fast the committed offsets move; None before the second refresh."""
    rebalances: int | None
    """Rebalances completed within the last hour; None if there is no journal, or not all of it was read."""


class Look(NamedTuple):
    """The result of one refresh. `more`: number of groups not described. `trouble`: an error in part of it,
    "" if none."""

    rows: Sequence[Row]
    more: int
    trouble: str


class Watched:
    """The groups being watched: those named, or all."""

    def __init__(self, cluster: Cluster, group_ids: Sequence[str]) -> None:
        self._cluster = cluster
        self._wanted = list(dict.fromkeys(group_ids))
        self._rates = _Rates()
        self._journal = _Journal(cluster, self._wanted)

    async def look(self, timeout_s: float, *, whole_journal: bool = False) -> Look:
        """Refresh. `whole_journal`: wait for the journal's whole last hour instead of taking what is there.

        Raises ClientError and KafkaError if nothing could be read.
        """
        until = deadline(timeout_s)
        names = self._wanted or [each.group_id for each in await list_groups(self._cluster, until)]
        more = max(len(names) - GROUPS_MAX, 0)
        found = await of_groups(describe_groups, self._cluster, names[:GROUPS_MAX], until)
        failures = list(found.failed.values())
        if self._wanted and not found.succeeded:
            raise failures[0]
        groups = found.succeeded
        committed = await of_groups(list_group_offsets, self._cluster, groups, until)
        at = time.monotonic()
        positions = {
            name: {where: each.offset for where, each in offsets.items()}
            for name, offsets in committed.succeeded.items()
        }
        partitions = {where for each in positions.values() for where in each}
        ends, endless = await log_ends(self._cluster, partitions, until)
        failures += [*committed.failed.values(), *endless.values()]
        await self._journal.read(until, whole=whole_journal)
        self._rates.add(at, positions)
        deleted = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        unknown = {where for where, error in endless.items() if error.code != deleted}
        rows = [self._row(group, positions.get(name, {}), ends, unknown) for name, group in groups.items()]
        # Topics and groups deleted meanwhile are not errors.
        gone = (deleted, ErrorCode.GROUP_ID_NOT_FOUND)
        said = next((each.why for each in failures if self._wanted or each.code not in gone), "")
        return Look(rows, more, said)

    def _row(
        self,
        group: GroupDescription,
        committed: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        unknown: Set[TopicPartition],
    ) -> Row:
        # A part of the lag would look like a group that catches up. Deleted topics have none.
        behind = [max(ends[where] - offset, 0) for where, offset in committed.items() if where in ends]
        return Row(
            group.group_id,
            group.state,
            len(group.members),
            len(committed),
            sum(behind) if behind and unknown.isdisjoint(committed) else None,
            self._rates.of(group.group_id),
            self._journal.rebalances(group.group_id),
        )

    async def close(self) -> None:
        """Stop reading."""
        await self._journal.close()


class _Rates:
    """How fast committed offsets move."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, Mapping[str, Mapping[TopicPartition, int]]]] = deque()

    def add(self, at: float, positions: Mapping[str, Mapping[TopicPartition, int]]) -> None:
        self._seen.append((at, positions))
        while len(self._seen) > 2 and at - self._seen[1][0] >= _RATE_WINDOW_S:
            self._seen.popleft()

    def of(self, group: str) -> float | None:
        """Records per second; None until the second refresh. Offsets that were reset backwards count as 0."""
        seen = [(at, positions[group]) for at, positions in self._seen if group in positions]
        if len(seen) < 2 or seen[-1][0] <= seen[0][0]:
            return None
        moved = sum(
            max(after.get(where, offset) - offset, 0)
            for (_, before), (_, after) in pairwise(seen)
            for where, offset in before.items()
        )
        return moved / (seen[-1][0] - seen[0][0])


class _Journal:
    """The rebalances of the last hour from muster's journal."""

    def __init__(self, cluster: Cluster, wanted: Collection[str]) -> None:
        """`wanted`: the groups to count; empty: all."""
        self._cluster = cluster
        self._wanted = wanted
        self._fetcher: Fetcher | None = None
        self._absent = False
        self._ends: Mapping[TopicPartition, int] = {}
        self._completed: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        """Completions by group, in epoch ms: by the broker's clock, and as `dates` has it."""

    def rebalances(self, group: str) -> int | None:
        """How many rebalances the group had in the last hour; None if there is no journal, or it is still
        being read."""
        if self._fetcher is None or self._is_behind():
            return None
        since_ms = wall_ms() - _REBALANCES_WINDOW_MS
        return sum(at_ms >= since_ms for _, at_ms in self._completed.get(group, ()))

    async def read(self, until: float, *, whole: bool) -> None:
        """Read the entries written since the last call."""
        if self._absent:
            return
        self._forget_old()
        try:
            if self._fetcher is None:
                self._fetcher = await self._begin(until)
            taken = 0
            while taken < _ENTRIES_MAX:
                behind = whole and self._is_behind()
                batches = await self._fetcher.poll(_AT_ONCE, 0.1 if behind else 0.0)
                records = [each for batch in batches for each in batch.records]
                taken += len(records)
                self._count((each.key, each.value, each.timestamp) for each in records)
                if not records and (not behind or deadline(0) >= until):
                    return
        except KafkaError as error:
            # Apache Kafka has no such topic; muster may have no journal, or deny reading it.
            self._absent = self._fetcher is None and not error.code.retriable
            self._absent |= error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        except ClientError:
            return  # reading the groups reports the error

    async def _begin(self, until: float) -> Fetcher:
        described = (await describe_topics(self._cluster, [TOPIC], until)).raise_for_failures()[TOPIC]
        partitions = [TopicPartition(TOPIC, each.partition) for each in described.partitions]
        found = []
        for timestamp in (wall_ms() - _REBALANCES_WINDOW_MS, EARLIEST, LATEST):
            offsets = (
                await list_offsets(self._cluster, dict.fromkeys(partitions, timestamp), until)
            ).succeeded
            found.append({where: each.offset for where, each in offsets.items() if each is not None})
        since, starts, self._ends = found
        fetcher = Fetcher(self._cluster, FetchSettings(reset=FROM_EARLIEST))
        fetcher.set_assigned(partitions)
        for where in partitions:
            # No entry that recent: read only new ones.
            fetcher.seek(where, Position(since.get(where, self._ends.get(where, starts.get(where, 0)))))
        return fetcher

    def _is_behind(self) -> bool:
        assert self._fetcher is not None
        for where, end in self._ends.items():
            position = self._fetcher.position(where)
            if position is not None and position.offset < end:
                return True
        return False

    def _count(self, records: Iterable[tuple[bytes | None, bytes | None, int]]) -> None:
        groups: set[str] = set()
        for key, value, record_ms in records:
            if key is None or value is None or _COMPLETED not in value:
                continue
            try:
                entry = Entry.from_json(value)
            except ValueError:
                continue  # not written by muster, or by a version unknown here
            if entry.type != "rebalance_completed" or entry.group is None:
                continue
            if not self._wanted or entry.group in self._wanted:
                self._completed[entry.group].append((entry.at_ms, record_ms))
                groups.add(entry.group)
        now_ms = wall_ms()
        for group in groups:
            times = self._completed[group]
            times[:] = [(at_ms, date) for (at_ms, _), date in zip(times, dates(times, now_ms), strict=True)]

    def _forget_old(self) -> None:
        since_ms = wall_ms() - _REBALANCES_WINDOW_MS
        for group, times in list(self._completed.items()):
            times[:] = [each for each in times if each[1] >= since_ms]
            if not times:
                del self._completed[group]

    async def close(self) -> None:
        if self._fetcher is not None:
            await self._fetcher.close()
