"""Leases no longer served here, from the last request until another broker may claim them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

from muster.coordinator.base.clock import Clock
from muster.coordinator.base.log import Logger
from muster.coordinator.cluster.worker import Worker
from muster.coordinator.storage.store import Grant, Lease, Store, StoreError


class Deferred:
    """A coroutine that is made when it is awaited. Unlike an existing one it may be dropped unawaited, as
    happens when a broker dies in the turn in which it lost a lease."""

    __slots__ = ("_begin",)

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._begin = begin

    def __await__(self) -> Generator[Any, None, None]:
        return self._begin().__await__()


class Handovers:
    """Waits until the holder of each lease is at rest, then releases the lease if asked to.

    Leases that come to rest during one call to the store go into the next one. A lease must not be claimed
    again while it is in here, and `grants` are still renewed, so that nobody else begins before the end.
    """

    def __init__(
        self, store: Store, clock: Clock, retry_ms: int, log: Logger, at_rest: Callable[[], None]
    ) -> None:
        """`at_rest` is called whenever leases have left."""
        self._store = store
        self._log = log
        self._at_rest = at_rest
        self._resting: dict[Lease, Grant | None] = {}
        self._waiting: set[asyncio.Task[None]] = set()
        self._to_release: list[Grant] = []
        self._empty = asyncio.Event()
        self._empty.set()
        self._releasing = Worker("releasing leases", clock, self._release, retry_ms, log)

    def __len__(self) -> int:
        return len(self._resting)

    @property
    def leases(self) -> set[Lease]:
        """The leases in here."""
        return set(self._resting)

    @property
    def at_rest(self) -> bool:
        """Whether nothing is in here, or on its way out."""
        return not self._resting and self._releasing.at_rest

    def start(self) -> None:
        self._releasing.start(None)

    def begin(self, lease: Lease, rest: Awaitable[object], release: Grant | None) -> None:
        """Wait for `rest`, after which nothing is written under the lease; then `release` it, if given."""
        self._resting[lease] = release
        self._empty.clear()
        task = asyncio.get_running_loop().create_task(
            self._wait(lease, rest, release), name=f"rest of {lease.kind} {lease.number}"
        )
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    def grants(self) -> list[Grant]:
        """The grants still to be released."""
        return [grant for grant in self._resting.values() if grant is not None]

    async def end(self) -> None:
        """Return when nothing is in here any more; nothing may be begun after that."""
        await self._empty.wait()
        await self._releasing.end()

    def kill(self) -> None:
        """Release nothing more, and wait for nothing."""
        self._empty.set()
        self._releasing.kill()
        for task in self._waiting:
            task.cancel()

    async def _wait(self, lease: Lease, rest: Awaitable[object], release: Grant | None) -> None:
        try:
            await rest
        except Exception as error:
            # Its writes may still be in flight: let it expire.
            self._log.error(
                "shard did not stop cleanly; its lease is left to expire", lease=str(lease), exc_info=error
            )
            release = None
        if release is None:
            self._out([lease])
        else:
            self._to_release.append(release)
            self._releasing.wake()

    async def _release(self) -> None:
        grants, self._to_release = self._to_release, []
        if not grants:
            return
        try:
            await self._store.release(grants)
        except StoreError as error:
            self._log.warning(
                "failed to release leases; they will expire", leases=len(grants), why=str(error)
            )
        finally:
            self._out([grant.lease for grant in grants])

    def _out(self, leases: list[Lease]) -> None:
        for lease in leases:
            del self._resting[lease]
        if not self._resting:
            self._empty.set()
        self._at_rest()
