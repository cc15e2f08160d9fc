"""Bugs to plant in a run. A checker that catches none of them is worth nothing; tests hold that each is
caught.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from unittest import mock

from muster.coordinator.group.effects import Effects, Reply
from muster.coordinator.runtime import loader
from muster.coordinator.runtime import runtime as runtime_module
from muster.coordinator.runtime.shard_host import ShardHost
from muster.coordinator.storage.memory import MemoryStore
from muster.coordinator.storage.store import Append, Lease, Outcome

Bug = Callable[[], contextlib.AbstractContextManager[object]]
"""Plants a bug for the length of a `with`."""


class _EarlyReplies(ShardHost):
    """Releases the replies of a step before its records are appended."""

    def _finish(self, out: Effects, now_ms: int) -> None:
        early, out.replies = out.replies, []
        self._deliver(early)
        super()._finish(out, now_ms)


class _LostReplies(ShardHost):
    """Forgets one reply in fifty."""

    _delivered = 0

    def _deliver(self, replies: Sequence[Reply]) -> None:
        kept = []
        for reply in replies:
            self._delivered += 1
            if self._delivered % 50:
                kept.append(reply)
        super()._deliver(kept)


class _LostRecords(ShardHost):
    """Now and then appends a step's records but for the last one."""

    def _finish(self, out: Effects, now_ms: int) -> None:
        if len(out.records) > 1 and self.steps % 10 == 0:
            out.records.pop()
        super()._finish(out, now_ms)


class _Secretive(ShardHost):
    """Keeps what some steps did out of the journal."""

    def _finish(self, out: Effects, now_ms: int) -> None:
        if out.records and self.steps % 3 == 0:
            out.events.clear()
        super()._finish(out, now_ms)


def _append_unfenced(store: MemoryStore, append: Append) -> Outcome:
    present = store._leases[append.lease].epoch
    return _append(store, Append(append.lease, present, append.records, append.journal))


_append = MemoryStore._append


class _ForgetfulStore:
    """A store as the loader sees it, of which the newest row is missing."""

    def __init__(self, store: Any) -> None:
        self._store = store

    async def load(self, lease: Lease) -> list[tuple[int, bytes, bytes]]:
        rows: list[tuple[int, bytes, bytes]] = await self._store.load(lease)
        return rows[:-1]


async def _load_forgetfully(store: Any, lease: Lease, shard: Any) -> None:
    await _load(_ForgetfulStore(store), lease, shard)  # type: ignore[arg-type]


_load = loader.load


def _host(host: type[ShardHost]) -> Bug:
    return partial(mock.patch.object, runtime_module, "ShardHost", host)


BUGS: dict[str, Bug] = {
    "reply-before-append": _host(_EarlyReplies),
    "lost-replies": _host(_LostReplies),
    "lost-records": _host(_LostRecords),
    "secretive": _host(_Secretive),
    "unfenced-store": partial(mock.patch.object, MemoryStore, "_append", _append_unfenced),
    "forgetful-load": partial(mock.patch.object, runtime_module, "load", _load_forgetfully),
}
"""By the name that `python -m tests.simulator --bug` takes."""
