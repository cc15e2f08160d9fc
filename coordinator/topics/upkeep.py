"""The periodic upkeep of led partitions: retention, compaction, syncing by time, forgetting producers, and
sealing closed segments."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from errno import EDQUOT, ENOSPC
from functools import partial
from typing import Final, Protocol
from uuid import UUID

from muster.coordinator.base.clock import Clock, Timer
from muster.coordinator.base.log import Logger
from muster.coordinator.topics.compaction import compact, due
from muster.coordinator.topics.log import PartitionLog
from muster.coordinator.topics.logs import Logs, PartitionId
from muster.coordinator.topics.retention import expire
from muster.coordinator.topics.writer import Run
from muster.protocol.errors import KafkaError

MARK_BYTES: Final = 64 << 20
"""A start after a crash scans about this much of a log, and what was written since the last sweep."""
_TURN_LOGS_MAX: Final = 100
"""Logs that one turn of a sweep handles, so that sealing and other brokers' sweeps get in between."""
_TURN_STEPS_MAX: Final = 32
"""Steps of `Logs.remove_left_over` in one turn, for the same reason."""

_log = Logger(part="topics")


class Leaderships(Protocol):
    """What a sweep needs from a broker's partitions, on the loop."""

    def in_use(self) -> list[PartitionId]:
        """The partitions whose logs are open."""

    def borrow(self, topic_id: UUID, partition: int) -> Callable[[], PartitionLog] | None:
        """A call that gets the log, in the executor (KafkaError: it is not available); None when it is not
        led here or the lease may have expired."""

    def give_back(self, topic_id: UUID, partition: int) -> None:
        """The borrowed log is no longer needed; called once for each."""

    async def expire_elsewhere(self) -> None:
        """Apply retention to records that are in no log."""


class Upkeep:
    """One broker's upkeep, on the event loop; `run` hands the work to an executor of one thread.

    The work comes in turns, since other brokers may share that thread: a sweep is a series of turns, each of
    a limited number of logs or up to the first compaction. After them come turns that remove what deleted
    topics left behind. If that takes longer than the time between two sweeps, the next sweep continues it. A
    sweep makes one pass of a log's compaction; if that needs more, the next sweep follows at once.
    """

    def __init__(
        self,
        leaderships: Leaderships,
        logs: Logs,
        clock: Clock,
        run: Run,
        *,
        retention_check_interval_ms: int,
        cleaner_backoff_ms: int,
        producer_expiration_ms: int,
    ) -> None:
        self._leaderships = leaderships
        self._logs = logs
        self._clock = clock
        self._run = run
        self._retention_check_interval_ms = retention_check_interval_ms
        self.cleaner_backoff_ms = cleaner_backoff_ms
        self.producer_expiration_ms = producer_expiration_ms
        self._retention_due_ms = clock.now_ms() + retention_check_interval_ms
        self._left_over = True  # whether deleted topics may have left something behind
        self._due_again: dict[PartitionId, None] = {}  # logs that need another pass of compaction
        self._sealing: set[PartitionLog] = set()  # logs with a turn waiting or running
        self._sweeping = asyncio.Lock()
        self._timer: Timer | None = None
        self._task: asyncio.Task[None] | None = None
        self._held = False
        self._ended = False

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Sweep periodically from now on."""
        self._arm()

    def end(self) -> None:
        """Begin nothing more."""
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()

    async def close(self) -> None:
        """`end`, and wait for the turn that is under way."""
        self.end()
        if self._task is not None:
            await asyncio.wait([self._task])

    def abandon(self) -> None:
        """`end`, and wait for nothing."""
        self.end()
        if self._task is not None:
            self._task.cancel()

    def hold(self) -> None:
        """Begin no sweep by itself until `resume`; one that is under way continues."""
        self._held = True
        if self._timer is not None:
            self._timer.cancel()

    def resume(self) -> None:
        """Undo `hold`. Harmless without it."""
        if self._held:
            self._held = False
            self._arm()

    @property
    def sweeping(self) -> bool:
        """Whether a sweep is under way."""
        return self._sweeping.locked() or (self._task is not None and not self._task.done())

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._ended and not self._held:
            backoff_ms = 0 if self._due_again else self.cleaner_backoff_ms
            next_ms = min(self._clock.now_ms() + backoff_ms, self._retention_due_ms)
            self._timer = self._clock.at(next_ms, self._begin)

    def _begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._sweep_and_arm(), name="upkeep")

    async def _sweep_and_arm(self) -> None:
        try:
            await self.sweep_quietly(retention=self._clock.now_ms() >= self._retention_due_ms)
        finally:
            self._arm()  # whatever happened: without upkeep the disk fills up

    # --- on the loop ------------------------------------------------------------------------------

    def seal(self, log: PartitionLog) -> None:
        """Make a start after a crash quick: soon sync and index newly closed segments."""
        if log not in self._sealing:
            self._sealing.add(log)
            self._run(_seal, log).add_done_callback(partial(self._sealed, log))

    def _sealed(self, log: PartitionLog, turn: asyncio.Future[bool]) -> None:
        if turn.cancelled() or turn.exception() is not None or turn.result():
            self._sealing.discard(log)
        else:  # a full disk: producers try again far more often than it makes sense to here
            self._clock.at(
                self._clock.now_ms() + self.cleaner_backoff_ms, partial(self._sealing.discard, log)
            )

    async def sweep(self, *, retention: bool) -> None:
        """Tend the open logs, and those that the last sweep has left for another pass; with `retention` all
        led partitions that have files, and records that are in no log: old ones are removed even if nobody
        reads or writes there. Then remove what deleted topics left behind, of which the first sweep and those
        with `retention` look for more."""
        async with self._sweeping:
            due_again, self._due_again = self._due_again, {}
            if retention:
                self._retention_due_ms = self._clock.now_ms() + self._retention_check_interval_ms
                self._left_over = True
                await self._leaderships.expire_elsewhere()
            ids = (
                await self._run(self._logs.stored)
                if retention
                else list(dict.fromkeys((*self._leaderships.in_use(), *due_again)))
            )
            done = 0
            while done < len(ids) and not self._ended:
                done += await self._turn(ids[done : done + _TURN_LOGS_MAX], retention=retention)
            end_ms = self._clock.now_ms() + self.cleaner_backoff_ms
            while self._left_over and not self._ended:
                self._left_over = await self._run(self._remove_left_over)
                if self._clock.now_ms() >= end_ms:
                    break

    async def sweep_quietly(self, *, retention: bool) -> None:
        """As `sweep`, but what fails is logged."""
        try:
            await self.sweep(retention=retention)
        except OSError as error:
            _log.warning("upkeep sweep failed", error=str(error))
        except Exception as error:
            _log.error("upkeep sweep failed", exc_info=error)

    async def _turn(self, ids: Sequence[PartitionId], *, retention: bool) -> int:
        """Tend the first of `ids`, if not all; return how many of them are done."""
        borrowed: list[int] = []
        logs: dict[PartitionId, Callable[[], PartitionLog]] = {}
        for index, each in enumerate(ids):
            opened = self._leaderships.borrow(*each)
            if opened is not None:
                borrowed.append(index)
                logs[each] = opened
        if not logs:
            return len(ids)
        try:
            count = await self._run(partial(self._tend_some, logs, retention=retention))
        finally:
            for index in borrowed:
                self._leaderships.give_back(*ids[index])
        return borrowed[count] if count < len(borrowed) else len(ids)

    # --- in the executor --------------------------------------------------------------------------

    def _tend_some(self, logs: Mapping[PartitionId, Callable[[], PartitionLog]], *, retention: bool) -> int:
        """Tend all, or up to the first that took long; return how many. A failure with one of them is logged,
        and does not affect the others."""
        date_ms = self._clock.date_ms()
        for number, (where, opened) in enumerate(logs.items(), start=1):
            try:
                log = opened()
            except KafkaError:
                continue  # the leadership was lost, or the disk refuses: requests report it
            except Exception as error:
                _log.error("failed to open a log", exc_info=error)
                continue
            try:
                if self._tend(log, date_ms, retention=retention):
                    if due(log, date_ms):
                        self._due_again[where] = None
                    return number
            except Exception as error:
                _report(log, error)
        return len(logs)

    def _tend(self, log: PartitionLog, date_ms: int, *, retention: bool) -> bool:
        """Tend one log; return whether it took long."""
        if retention:  # first: on a full disk, what it frees is what the rest needs
            _expire(log, date_ms, self._logs.make_room)
            with log.lock:
                log.producers.expire(self._clock.now_ms() - self.producer_expiration_ms)
        log.seal()
        log.sync_if_due()
        log.mark(MARK_BYTES)
        log.rest()
        if not log.config.compacts or not compact(log, date_ms):
            return False
        _log.info("log compacted", partition=log.name, bytes=log.segments.size)
        return True

    def _remove_left_over(self) -> bool:
        """Remove some of what deleted topics left behind; return whether there is more. A failure is logged,
        and the next sweep with retention tries again."""
        steps = 0

        def given_up() -> bool:
            nonlocal steps
            steps += 1
            return self._ended or steps > _TURN_STEPS_MAX

        try:
            gone = self._logs.remove_left_over(given_up)
        except OSError as error:
            _log.warning("failed to remove the logs of deleted topics", error=str(error))
            return False
        if gone:
            _log.info("removed the logs of deleted topics", topic_ids=[str(topic_id) for topic_id in gone])
        return steps > _TURN_STEPS_MAX


def _expire(log: PartitionLog, date_ms: int, make_room: Callable[[], bool]) -> None:
    """Retention, on a full disk in the room that `make_room` frees; files that cannot be removed are
    logged."""
    while True:
        try:
            removed = expire(log, date_ms)
            break
        except OSError as error:
            # At once, or producers take it.
            if error.errno not in (ENOSPC, EDQUOT) or not make_room():
                _report(log, error)
                return
    if removed:
        _log.info(
            "segments removed by retention", partition=log.name, segments=removed, start=log.start_offset
        )


def _seal(log: PartitionLog) -> bool:
    """Return whether it succeeded; a failure is logged."""
    try:
        log.seal()
    except Exception as error:
        _report(log, error)
        return False
    return True


def _report(log: PartitionLog, error: Exception) -> None:
    if log.closed:
        return  # it was lost while it was tended: whoever has it now continues
    expected = isinstance(error, (KafkaError, OSError))
    _log.warning("upkeep failed", partition=log.name, error=str(error), exc_info=None if expected else error)
