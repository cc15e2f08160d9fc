"""Disturbs the shards of groups on purpose: moves one to a broker and keeps it there, or holds one open while
it loads.

Only the brokers of this process know of either: brokers in other processes go on placing the same shards
where they belong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from muster.coordinator.cluster.placement import shard_of
from muster.coordinator.runtime.holds import HOLD_DEFAULT_MS
from muster.coordinator.server.test_mode.faults import FaultError, NotAsThingsAre
from muster.coordinator.storage.store import Lease, LeaseKind

if TYPE_CHECKING:
    from muster.coordinator.server.broker import Broker, Shared

MOVE_TIMEOUT_S: Final = 30.0


@dataclass(slots=True, eq=False)
class _Pin:
    """Where a move pins a lease."""

    node_id: int
    before: _Pin | None
    """What applies again if the move does not succeed; None too once it has."""
    given_up: bool = False


class ClusterFaults:
    """For the brokers of one process. `running` returns those that run."""

    def __init__(self, shared: Shared, running: Callable[[], list[Broker]]) -> None:
        self._shared = shared
        self._running = running
        self._pins: dict[Lease, _Pin] = {}
        """Those in force."""

    def lease_of(self, *, group: str | None = None, shard: int | None = None) -> Lease:
        """The lease of a shard, given by its number or by a group in it. Raises FaultError."""
        shards = self._shared.counts.leases[LeaseKind.GROUP]
        if (group is None) == (shard is None):
            raise FaultError("shard: name either a group or a shard number")
        if group is not None:
            return Lease(LeaseKind.GROUP, shard_of(group, shards))
        assert shard is not None
        if not 0 <= shard < shards:
            raise FaultError(f"shard: there is no shard {shard}; shards are 0 to {shards - 1}")
        return Lease(LeaseKind.GROUP, shard)

    # --- moving ---------------------------------------------------------------------------------------------

    async def move(self, lease: Lease, target: Broker, who: str) -> None:
        """Make `target` take the lease over in good order, and keep it as long as it runs; returns when every
        broker that runs sends clients there. Raises FaultError if it cannot take it, and TimeoutError; then,
        and if cancelled, the lease is pinned as before, unless it was moved again or unpinned since. `who`
        names the broker in the error."""
        if target not in self._running():
            raise NotAsThingsAre(f"to: {who} is not running; restart it first")
        if target.paused:
            raise NotAsThingsAre(f"to: {who} is paused and cannot take over; resume it first")
        if target.configs.drained and not all(each.configs.drained for each in self._running()):
            raise NotAsThingsAre(f"to: {who} is drained and cannot take over; undrain it first")
        pin = _Pin(target.node_id, before=self._pins.get(lease))
        self._pin(lease, pin)

        def moved() -> bool:
            return all(self._holder(each, lease) == target.node_id for each in self._awake())

        try:
            await self._until(moved, f"{who} to take over shard {lease.number}")
        except BaseException:
            pin.given_up = True
            if self._pins.get(lease) is pin:
                before = pin.before
                while before is not None and before.given_up:
                    before = before.before
                self._pin(lease, before)
            raise
        pin.before = None

    def unpin(self, lease: Lease) -> bool:
        """Let placement decide again; whether the lease was pinned."""
        pinned = lease in self._pins
        self._pin(lease, None)
        return pinned

    def pinned(self) -> dict[int, int]:
        """Which shards are pinned, and to which node."""
        return {lease.number: node_id for lease, node_id in self._shared.pins.items()}

    def _pin(self, lease: Lease, pin: _Pin | None) -> None:
        """Pin the lease, or unpin it."""
        if pin is None:
            self._pins.pop(lease, None)
            self._shared.pins.pop(lease, None)
        else:
            self._pins[lease] = pin
            self._shared.pins[lease] = pin.node_id
        for broker in self._running():
            broker.membership.place_again()

    @staticmethod
    def _holder(broker: Broker, lease: Lease) -> int | None:
        """The node that the broker sends clients to."""
        try:
            grant = broker.topology.holders.get(lease)
        except RuntimeError:  # it is still starting, and sends nobody anywhere
            return None
        return grant.node_id if grant is not None and grant.announced else None

    # --- loading --------------------------------------------------------------------------------------------

    async def hold(self, lease: Lease, limit_ms: int = HOLD_DEFAULT_MS, *, reload: bool = False) -> None:
        """Hold the next load of the shard open until `release`, at most for `limit_ms` after it began.

        With `reload` its coordinator reloads it now, and this returns once it is loading. Clients are sent
        there meanwhile and get COORDINATOR_LOAD_IN_PROGRESS. Raises FaultError if there is no broker to
        reload it, and TimeoutError; then, and if cancelled, the hold is over.
        """
        if reload and not self._awake():
            raise NotAsThingsAre("every broker is stopped or paused: restart or resume one first")
        holds = self._shared.holds
        hold = holds.hold(lease.number, limit_ms)
        if not reload:
            return
        for broker in self._awake():
            broker.runtime.load_again(lease.number)

        def loading() -> bool:
            sent_there = all(self._holder(each, lease) is not None for each in self._awake())
            return not holds.has(lease.number) or (holds.holding(lease.number) and sent_there)

        try:
            await self._until(loading, f"shard {lease.number} to reload: no broker holds it")
        except BaseException:
            holds.release(lease.number, hold)
            raise

    def release(self, lease: Lease) -> bool:
        """Let it load; whether there was a hold."""
        return self._shared.holds.release(lease.number)

    def held(self) -> list[int]:
        """The shards whose next load, or the one under way, is held open."""
        return self._shared.holds.shards()

    # --- both -----------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Let every shard load, and placement decide about all of them."""
        for number in self.held():
            self._shared.holds.release(number)
        for lease in list(self._shared.pins):
            self.unpin(lease)

    # --- waiting --------------------------------------------------------------------------------------------

    def _awake(self) -> list[Broker]:
        return [broker for broker in self._running() if not broker.paused]

    async def _until(self, reached: Callable[[], bool], wanted: str) -> None:
        """Raises TimeoutError, with what was `wanted`, after MOVE_TIMEOUT_S of real time."""
        with self._changes() as changed:
            try:
                async with asyncio.timeout(MOVE_TIMEOUT_S):
                    while not reached():
                        await changed.wait()
                        changed.clear()
            except TimeoutError:
                raise TimeoutError(f"timed out after {MOVE_TIMEOUT_S:g} s waiting for {wanted}") from None

    @contextmanager
    def _changes(self) -> Iterator[asyncio.Event]:
        """An event that is set whenever leases may have moved."""
        changed = asyncio.Event()
        watched = self._running()
        for broker in watched:
            broker.membership.changed.append(changed.set)
        try:
            yield changed
        finally:
            for broker in watched:
                broker.membership.changed.remove(changed.set)
