"""A soak: hours of traffic that comes and goes, samples of what the server holds, and what is left at the
end."""

from __future__ import annotations

import asyncio
import gc
import json
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from muster.client import Admin
from tests.soak.lag import LoopLag
from tests.soak.lane import Lane
from tests.soak.server import Server
from tests.soak.verdict import Judged, flat, left
from tests.soak.visitors import scraper, strangers
from tests.support.held import LEFT, held_by_process

_REHEARSAL_S: Final = 40.0
"""Creates whatever is made at first use and kept (threads, caches, files) before anything is counted."""
_SAMPLE_S: Final = 20.0
_TELL_S: Final = 600.0
_LEFT_IN_CLIENT: Final = ("tasks", "files")
_SETTLED_S: Final = 300.0
_GROUPS_GONE_S: Final = 300.0
"""Longer than the session timeout and the offsets retention combined."""
_FAILURES_KEPT: Final = 20


class Outcome(NamedTuple):
    samples: Sequence[dict[str, Any]]
    judged: Sequence[Judged]
    counts: Counter[str]
    seconds: float

    @property
    def good(self) -> bool:
        return all(each.good is not False for each in self.judged)


class Soak:
    """Call `run` once. `stop` ends it early, with a verdict on the samples so far."""

    def __init__(
        self, seconds: float, seed: int, *, brokers: int = 1, lanes: int = 3, samples: Path | None = None
    ) -> None:
        self._seconds = seconds
        self._seed = seed
        self._brokers = brokers
        self._lanes = lanes
        self._to = samples
        self._stopping = asyncio.Event()
        self._counts: Counter[str] = Counter()
        self._failures: list[str] = []
        self._next_lane = 0
        self._lag = LoopLag()

    def stop(self) -> None:
        self._stopping.set()

    async def run(self) -> Outcome:
        """Run the soak and return the verdict. Raises Gone if the server fails to start or goes away."""
        with tempfile.TemporaryDirectory(prefix="muster-soak-") as directory:
            async with Server(Path(directory), self._brokers) as server:
                await self._traffic(server, min(_REHEARSAL_S, self._seconds / 3), [])
                await self._groups_gone(server)
                _, server_before = await server.until(
                    lambda now: now["connections"] == now["connection_tasks"] == 0, _SETTLED_S, "collected"
                )
                client_before = self._held()
                samples: list[dict[str, Any]] = []
                self._counts.clear()
                began = time.monotonic()
                await self._traffic(server, self._seconds, samples)
                seconds = time.monotonic() - began
                groups = await self._groups_gone(server)
                _, server_after = await server.until(
                    lambda now: all(now[name] <= server_before[name] for name in LEFT),
                    _SETTLED_S,
                    "collected",
                )
                client_after = self._held()
                code = await server.stop()
                complaints = server.complaints()
        judged = [
            *flat(samples, "server"),
            *flat(samples, "client"),
            left(server_before, server_after, LEFT, "server"),
            left(client_before, client_after, _LEFT_IN_CLIENT, "client"),
            Judged("groups left", not groups, ", ".join(groups) or "none"),
            Judged("failures of clients", not self._failures, "\n".join(self._failures) or "none"),
            Judged("errors in the server's log", not complaints, "\n".join(complaints[:20]) or "none"),
            Judged("the server's end", code == 0, f"exit code {code}"),
        ]
        return Outcome(samples, judged, self._counts, seconds)

    async def _traffic(self, server: Server, seconds: float, samples: list[dict[str, Any]]) -> None:
        """Run all traffic until the time is up or `stop` is called; then wait until it has ended."""
        over = asyncio.Event()
        lanes = [asyncio.create_task(self._lane_after_lane(server, over)) for _ in range(self._lanes)]
        others = [
            asyncio.create_task(
                self._noted(strangers(server.bootstrap, self._seed, self._counts), "a stranger")
            ),
            asyncio.create_task(self._noted(scraper(server.page, self._seed, self._counts), "the scraper")),
            asyncio.create_task(self._sample(server, samples)),
        ]
        try:
            stopped = asyncio.create_task(self._stopping.wait())
            # Lanes end on their own only when the server is gone.
            await asyncio.wait([stopped, others[2]], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            over.set()
            stopped.cancel()
            await asyncio.wait(lanes)
        finally:
            for task in (*lanes, *others):
                task.cancel()
            ended = await asyncio.gather(*lanes, *others, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                raise error

    async def _lane_after_lane(self, server: Server, over: asyncio.Event) -> None:
        while not over.is_set():
            number, self._next_lane = self._next_lane, self._next_lane + 1
            lane = Lane(server.bootstrap, self._seed, number, self._counts, over)
            await self._noted(lane.live(), f"lane {number}")

    async def _noted(self, work: Any, name: str) -> None:
        """Do the work; record a failure for the verdict."""
        try:
            await work
        except Exception as error:
            self._counts["failures"] += 1
            if len(self._failures) < _FAILURES_KEPT:
                told = "".join(traceback.format_exception(error))
                self._failures.append(f"{name}, {time.strftime('%H:%M:%S')}:\n{told}")
                print(self._failures[-1], flush=True)

    # --- samples --------------------------------------------------------------------------------------------

    def _held(self) -> dict[str, Any]:
        gc.collect()
        return {**held_by_process(), "objects": len(gc.get_objects())}

    async def _sample(self, server: Server, samples: list[dict[str, Any]]) -> None:
        """Take a sample at a fixed interval, until cancelled."""
        began = time.monotonic()
        told = 0.0
        every_s = min(_SAMPLE_S, self._seconds / 20)
        self._lag.start()
        try:
            while True:
                await asyncio.sleep(every_s)
                lag = self._lag.take()
                sample = {
                    "at_s": round(time.monotonic() - began, 1),
                    "server": await server.facts("collected"),
                    "client": {**held_by_process(), "objects": len(gc.get_objects()), "lag": lag},
                    "counts": dict(self._counts),
                }
                samples.append(sample)
                if self._to is not None:
                    with self._to.open("a") as file:
                        file.write(json.dumps(sample) + "\n")
                if sample["at_s"] - told > _TELL_S:
                    told = sample["at_s"]
                    print(brief(sample), flush=True)
        finally:
            self._lag.pause()

    async def _groups_gone(self, server: Server) -> list[str]:
        """Wait until no group is left; return those that are still there at the timeout."""
        names: list[str] = []
        async with Admin(server.bootstrap, request_timeout_ms=600_000) as admin:
            with suppress(TimeoutError):
                async with asyncio.timeout(_GROUPS_GONE_S):
                    while names := [each.group_id for each in await admin.list_groups()]:  # noqa: ASYNC110
                        await asyncio.sleep(1)
        return names


def brief(sample: dict[str, Any]) -> str:
    server, client = sample["server"], sample["client"]
    return (
        f"{sample['at_s'] / 60:6.1f} min: server {server['resident_bytes'] / 2**20:.1f} MiB, "
        f"{server['objects']:,} objects, {server['tasks']} tasks, {server['files']} files, "
        f"{server['threads']} threads, {server['connections']} connections, {server['requests']:,} requests, "
        f"lag p99 {server['lag']['p99_ms']:.0f} ms worst {server['lag']['worst_ms']:.0f} ms; "
        f"client {client['resident_bytes'] / 2**20:.1f} MiB, {client['objects']:,} objects"
    )
