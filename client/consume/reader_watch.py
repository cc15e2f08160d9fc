"""Watches how long the reader has been away from its consumer, and how far behind the loop is.

A reader that does not ask for records within max.poll.interval.ms loses its partitions: the group considers
it dead. The watch warns at half and at four fifths of that time, and names the code it is busy in; Kafka's
clients only report it afterwards. In its own thread, the watch warns even while the loop is blocked, and
names what blocks it.
"""

from __future__ import annotations

import asyncio
import logging
import selectors
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, Final

from muster.realtime import RealTime

_LOG: Final = logging.getLogger("muster.client.consumer")

_SHARES: Final = ((0.5, "half"), (0.8, "four fifths"))
_TICK_MAX_S: Final = 1.0
_TICKS_PER_INTERVAL: Final = 20
_FRAMES_MAX: Final = 6
_LOOP: Final = frozenset({asyncio.base_events.__file__, asyncio.events.__file__, asyncio.runners.__file__})
"""The files of event loop frames; uvloop leaves only the runner's."""


class ReaderWatch:
    """Watches one reader, which is away unless it waits for records.

    `progress` returns a new value each time the reader gets records without `came` and `went` being called;
    `asked` is then called on the loop now and then, as it is while the reader waits. `silence_s` is how long
    this loop's heartbeats may be missing, if it sends any. While `missed()` is false, nobody misses the
    reader, and only the loop is watched.
    """

    def __init__(
        self,
        interval_s: float,
        *,
        silence_s: float | None = None,
        missed: Callable[[], bool],
        progress: Callable[[], object],
        asked: Callable[[], None],
        warn: Callable[[str], None] = _LOG.warning,
        clock: Callable[[], float] = RealTime.monotonic,
    ) -> None:
        self.loop_lag_s = 0.0
        """How late the loop ran the last check."""
        self.loop_lag_max_s = 0.0
        self._interval_s = interval_s
        self._silence_s = silence_s
        self._missed = missed
        self._progress = progress
        self._asked = asked
        self._warn = warn
        self._clock = clock
        self._seen: object = None
        self._away_since: float | None = None
        self._waits = False
        self._warned = 0
        self.reader: asyncio.Task[Any] | None = None
        """The task to name in warnings."""
        self._lock = threading.Lock()
        self._loop_thread = threading.get_ident()
        self._task: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    @property
    def away_s(self) -> float:
        """Seconds since the reader last asked; 0 while it waits for records."""
        since = self._away_since
        return 0.0 if since is None else self._clock() - since

    # --- what the reader does -------------------------------------------------------------------------------

    def came(self, reader: asyncio.Task[Any] | None) -> None:
        """The reader asks for records; other work may come first, including the user's callbacks."""
        with self._lock:
            self._away_since, self._warned, self.reader = self._clock(), 0, reader
            self._waits = False

    def waits(self) -> None:
        """The reader waits for records."""
        with self._lock:
            self._away_since, self._warned = None, 0
            self._waits = True

    def went(self) -> None:
        """The reader no longer waits."""
        with self._lock:
            self._away_since, self._seen = self._clock(), self._progress()
            self._waits = False

    # --- looking --------------------------------------------------------------------------------------------

    def start(self, *, thread: bool) -> None:
        """Start watching; if `thread`, also from a thread, which sees a blocked loop."""
        self._loop_thread = threading.get_ident()
        self._task = asyncio.create_task(self._look_now_and_then(), name="watch of the reader")
        if thread:
            self._thread = threading.Thread(target=self._look_from_outside, name="muster-watch", daemon=True)
            self._thread.start()

    async def close(self) -> None:
        """Stop watching."""
        self._stop.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    def look(self) -> None:
        """Warn if due."""
        if not self._missed():
            return
        with self._lock:
            if self._progress() != self._seen:  # It got a record since, so it has asked.
                self._seen = self._progress()
                if self._away_since is not None:
                    self._away_since, self._warned = self._clock(), 0
            away_s, reader = self.away_s, self.reader
            due = sum(away_s >= share * self._interval_s for share, _ in _SHARES)
            if due <= self._warned:
                return
            self._warned = due
        self._warn(
            f"nobody has asked for records for {away_s:.1f} s, {_SHARES[due - 1][1]} of max_poll_interval_ms "
            f"({self._interval_s * 1000:.0f}), after which others get the partitions; the reader is in "
            f"{whereabouts(reader, self._loop_thread)}"
        )

    async def _look_now_and_then(self) -> None:
        while True:
            seen, due = self._seen, self._clock() + self._tick_s
            await asyncio.sleep(self._tick_s)
            self.loop_lag_s = max(0.0, self._clock() - due)
            self.loop_lag_max_s = max(self.loop_lag_max_s, self.loop_lag_s)
            self._look_at_lag()
            if self._waits or self._progress() != seen:
                self._asked()
            self.look()

    def _look_at_lag(self) -> None:
        silence_s = self._silence_s
        if silence_s is not None and self.loop_lag_s >= silence_s / 2 and self._missed():
            self._warn(
                f"the event loop was blocked for {self.loop_lag_s:.1f} s, and so were heartbeats: after "
                f"session_timeout_ms ({silence_s * 1000:.0f}) the partitions go to others. Give a thread to "
                'what blocks it (asyncio.to_thread), or to heartbeats (heartbeat="thread"); the reader is in '
                f"{whereabouts(self.reader, self._loop_thread)}"
            )

    def _look_from_outside(self) -> None:
        while not self._stop.wait(self._tick_s):
            self.look()

    @property
    def _tick_s(self) -> float:
        return min(_TICK_MAX_S, self._interval_s / _TICKS_PER_INTERVAL)


def whereabouts(task: asyncio.Task[Any] | None, loop_thread: int) -> str:
    """The functions and lines a task is in, from its coroutine inwards; if it is running, or blocked by other
    code that runs, also that code. May be called from another thread."""
    if task is None:
        return "a callback"
    chain = _awaited(task.get_coro())
    running = _running(loop_thread)
    name = f"task {task.get_name()!r}: "
    if chain and chain[0] in running:
        # It is running: its calls are on the stack of the loop's thread.
        return name + _told(running[running.index(chain[0]) :])
    if threading.get_ident() != loop_thread and (blocking := _beyond_the_loop(running)):
        return f"{name}{_told(chain)}; the loop is kept by {_told(blocking)}"
    return name + _told(chain)


def _awaited(waiting: Any) -> list[FrameType]:
    """The frames of a coroutine and of those it waits for, outermost first."""
    frames: list[FrameType] = []
    while waiting is not None:
        frame = next(
            (f for n in ("cr_frame", "gi_frame", "ag_frame") if (f := getattr(waiting, n, None))), None
        )
        if frame is None:
            break
        frames.append(frame)
        waiting = next(
            (w for n in ("cr_await", "gi_yieldfrom", "ag_await") if (w := getattr(waiting, n, None))), None
        )
    return frames


def _running(thread: int) -> list[FrameType]:
    """The frames of a thread, outermost first."""
    frames: list[FrameType] = []
    frame = sys._current_frames().get(thread)
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames[::-1]


def _beyond_the_loop(frames: list[FrameType]) -> list[FrameType]:
    """The frames that the loop has called; none while it is idle."""
    files = [frame.f_code.co_filename for frame in frames]
    called = frames[
        max((index for index, file in enumerate(files) if file in _LOOP), default=len(files)) + 1 :
    ]
    return [] if called and called[0].f_code.co_filename == selectors.__file__ else called


def _told(frames: list[FrameType]) -> str:
    told = []
    for frame in frames:
        with suppress(AttributeError):  # it ended meanwhile
            told.append(f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})")
    if len(told) > _FRAMES_MAX:
        told[_FRAMES_MAX - 2 : -2] = ["…"]
    return " > ".join(told) or "nothing any more"
