"""Watches groups catch up after a rebalance, and records their lag in the journal. Driven by the clock and
the journal, so that commits cost nothing extra. It writes an entry 10 s after a rebalance, then less and less
often; none for a group that commits nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final, Protocol
from zlib import crc32

from muster.coordinator.base.clock import Clock, Timer
from muster.coordinator.base.log import Logger
from muster.coordinator.journal.entries import Entry
from muster.coordinator.observe.lag import Lag

_log: Final = Logger(part="lag")

FIRST_MS: Final = 10_000
RARELY_MS: Final = 300_000
"""How often the lag of a committing group is written long after a rebalance."""
LOOK_MIN_MS: Final = 1_000
LOOK_MAX_MS: Final = 30_000
"""Bounds of the interval between checks of a recovering group: a quarter of the time since its rebalance."""
RECOVERY_MAX_MS: Final = 600_000
"""After this, a group that has not caught up is watched like any other."""
GROUPS_MAX: Final = 10_000
"""Maximum number of groups watched; others wait for room."""
_GROUPS_AT_ONCE: Final = 100
_PARTITIONS_MAX: Final = 100
"""Per entry."""


class Note(Protocol):
    """Adds an entry of a group to the journal; see `Runtime.note`."""

    def __call__(self, type: str, data: Mapping[str, Any], *, group_id: str) -> None: ...


class _Watched:
    __slots__ = ("before", "completed_ms", "due_ms", "grew", "interval_ms", "told_ms", "write_ms")

    def __init__(self, now_ms: int) -> None:
        self.before: int | None = None  # the lag when the rebalance began
        self.completed_ms: int | None = None  # when it completed; None: no need to check the group for it
        self.grew = False  # the lag has grown since, and has not recovered
        self.interval_ms = FIRST_MS
        self.write_ms = now_ms + FIRST_MS  # when to write the lag next
        self.told_ms = now_ms - 1  # commits up to this time were reported
        self.due_ms = 0  # when its newest queue entry is due


class Recovery:
    """See the module. `observe` is a listener of the journal. Used on the broker's loop."""

    def __init__(
        self,
        lag: Lag,
        clock: Clock,
        *,
        groups_of_shard: Callable[[int], Sequence[str]],
        note: Note,
    ) -> None:
        """`groups_of_shard` returns a shard's groups with committed offsets."""
        self._lag = lag
        self._clock = clock
        self._groups_of_shard = groups_of_shard
        self._note = note
        self._watched: dict[str, _Watched] = {}
        self._queue: list[tuple[int, int, str]] = []
        self._order = count()
        self._timer: Timer | None = None
        self._timer_ms = 0
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<Recovery groups={len(self._watched)}>"

    def close(self) -> None:
        """Stop watching."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def of_rebalance(self, group_id: str) -> dict[str, Any]:
        """The known lag at the end of a group's rebalance, as fields of its entry."""
        watched = self._watched.get(group_id)
        before = None if watched is None else watched.before
        now = self._lag.total(group_id)
        partitions = None if now is None else self._partitions(group_id)
        found = {"lag_before": before, "lag": now, "lag_partitions": partitions}
        return {name: value for name, value in found.items() if value is not None}

    def observe(self, entries: Sequence[Entry]) -> None:
        """Take entries added to the journal."""
        for entry in entries:
            if entry.group is not None:
                self._observe(entry, entry.group)
            elif entry.type == "shard_loaded":
                self._loaded(entry.shard)

    def _observe(self, entry: Entry, group_id: str) -> None:
        match entry.type:
            case "state_changed" if (
                entry.data["to_state"] == "PreparingRebalance"
                and entry.data["from_state"] != "CompletingRebalance"  # it merely restarted
            ):
                self._begins(group_id, entry)
            case "epoch_bumped" if not entry.data["restarts"]:
                self._begins(group_id, entry)
            case "rebalance_completed":
                watched = self._watch(group_id)
                if watched is not None:
                    watched.interval_ms = FIRST_MS
                    watched.write_ms = entry.at_ms + FIRST_MS
                    watched.completed_ms = entry.at_ms
                    self._put(group_id, watched, entry.at_ms)
            case "group_created":
                watched = self._watch(group_id)
                if watched is not None:
                    self._put(group_id, watched, watched.write_ms)
            case "group_removed":
                self._watched.pop(group_id, None)

    def _begins(self, group_id: str, entry: Entry) -> None:
        """A rebalance of the group has begun."""
        watched = self._watch(group_id)
        if watched is not None:
            watched.before = self._lag.total(group_id)
            watched.completed_ms, watched.grew = None, False  # the previous one is over
            self._put(group_id, watched, entry.at_ms)  # read the ends that are not known

    def _loaded(self, shard: int) -> None:
        now_ms = self._clock.now_ms()
        for group_id in self._groups_of_shard(shard):
            if group_id not in self._watched and (watched := self._watch(group_id)) is not None:
                watched.interval_ms = RARELY_MS // 2  # the first check doubles it
                # Not all groups at once: spread by something that is the same in every run.
                ahead_ms = crc32(group_id.encode(errors="surrogatepass")) % (RARELY_MS - FIRST_MS)
                watched.write_ms = now_ms + RARELY_MS - ahead_ms
                self._put(group_id, watched, watched.write_ms)

    def _watch(self, group_id: str) -> _Watched | None:
        watched = self._watched.get(group_id)
        if watched is None and len(self._watched) < GROUPS_MAX:
            watched = self._watched[group_id] = _Watched(self._clock.now_ms())
        return watched

    # --- by the clock ---------------------------------------------------------------------------------------

    def _put(self, group_id: str, watched: _Watched, due_ms: int) -> None:
        """Schedule the next check of the group."""
        watched.due_ms = due_ms
        heappush(self._queue, (due_ms, next(self._order), group_id))
        self._arm()

    def _arm(self) -> None:
        if self._task is not None or self._closed or not self._queue:
            return
        due_ms = self._queue[0][0]
        if self._timer is not None:
            if self._timer_ms <= due_ms:
                return
            self._timer.cancel()
        self._timer_ms = due_ms
        self._timer = self._clock.at(due_ms, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._task = asyncio.get_running_loop().create_task(self._look(), name="watch groups recover")

    async def _look(self) -> None:
        try:
            due = self._take_due()
            if due:
                await self._look_at_all(due)
        finally:
            self._task = None
            self._arm()

    async def _look_at_all(self, group_ids: Sequence[str]) -> None:
        try:
            await self._lag.read(group_ids)
        except Exception as error:
            _log.error("failed to read lag", exc_info=error)
            for group_id in group_ids:
                self._look_later(group_id)
            return
        for group_id in group_ids:
            try:
                self._look_at(group_id)
            except Exception as error:
                _log.error("failed to watch lag", group=group_id, exc_info=error)
                self._look_later(group_id)
            await asyncio.sleep(0)  # a group may have thousands of partitions

    def _look_later(self, group_id: str) -> None:
        watched = self._watched.get(group_id)
        if watched is not None:
            self._put(group_id, watched, self._clock.now_ms() + LOOK_MAX_MS)

    def _take_due(self) -> list[str]:
        now_ms = self._clock.now_ms()
        due: list[str] = []
        while self._queue and self._queue[0][0] <= now_ms and len(due) < _GROUPS_AT_ONCE:
            due_ms, _, group_id = heappop(self._queue)
            watched = self._watched.get(group_id)
            if watched is not None and watched.due_ms == due_ms and group_id not in due:
                due.append(group_id)
        return due

    def _look_at(self, group_id: str) -> None:
        watched = self._watched.get(group_id)
        if watched is None:
            return
        now_ms = self._clock.now_ms()
        committed_ms, total = self._lag.committed_ms(group_id), self._lag.total(group_id)
        if committed_ms is None and now_ms >= watched.write_ms:
            del self._watched[group_id]  # until its next rebalance
            return
        if watched.completed_ms is not None and total is not None:
            self._look_whether_recovered(group_id, watched, total, now_ms)
        if now_ms >= watched.write_ms:
            commits = committed_ms is not None and committed_ms > watched.told_ms
            if commits and total is not None:
                self._write(group_id, total)
                watched.told_ms = now_ms
            # The longer a group has committed nothing, the rarer the checks; commits do not trigger them.
            most_ms = RARELY_MS if commits else 2 * max(watched.interval_ms, RARELY_MS)
            watched.interval_ms = min(2 * watched.interval_ms, most_ms)
            watched.write_ms = now_ms + watched.interval_ms
        due_ms = watched.write_ms
        if watched.completed_ms is not None:
            look_ms = (now_ms - watched.completed_ms) // 4
            due_ms = min(due_ms, now_ms + min(max(look_ms, LOOK_MIN_MS), LOOK_MAX_MS))
        self._put(group_id, watched, due_ms)

    def _look_whether_recovered(self, group_id: str, watched: _Watched, total: int, now_ms: int) -> None:
        assert watched.completed_ms is not None
        recovered = False
        if watched.before is not None and total > watched.before:
            watched.grew = True
        elif watched.before is not None:
            recovered = watched.grew
        past_ms = now_ms - watched.completed_ms
        if recovered or past_ms >= (RECOVERY_MAX_MS if watched.grew else FIRST_MS):
            watched.before, watched.completed_ms, watched.grew = None, None, False
        if recovered:
            watched.told_ms = now_ms
            self._write(group_id, total, recovered=True)

    def _partitions(self, group_id: str) -> list[list[Any]]:
        behind = sorted(self._lag.of(group_id), key=lambda each: each.lag or 0, reverse=True)
        return [[each.topic, each.partition, each.committed, each.lag] for each in behind[:_PARTITIONS_MAX]]

    def _write(self, group_id: str, total: int, *, recovered: bool = False) -> None:
        data: dict[str, Any] = {"total": total, "partitions": self._partitions(group_id)}
        if recovered:
            data["recovered"] = True
        self._note("lag_at_commit", data, group_id=group_id)
