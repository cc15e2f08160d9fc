"""One node of a cluster: registers it, claims what placement gives it, keeps that, hands over on leaving."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from muster.coordinator.cluster.lease import HeldLeases, wanted
from muster.coordinator.cluster.topology import Topology
from muster.coordinator.storage.store import Grant, Lease, LeaseKind, NodeRow, Store, StoreCounts, StoreError

log = logging.getLogger(__name__)

TERM_MS_DEFAULT: Final = 3_000
"""How long a broker that died keeps its shards before another may take them."""


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    """What this module needs of `muster.coordinator.runtime.clock.Clock`, which stands above it."""

    def now_ms(self) -> int: ...

    def at(self, when_ms: int, callback: Callable[[], None]) -> Timer: ...


class LeaseHolder(Protocol):
    """Who works under the leases of one kind: the group runtime, the partitions."""

    def own(self, number: int, epoch: int) -> object:
        """Begin to serve; when `number` is served already, begin anew under the new epoch."""

    def disown(self, number: int) -> Awaitable[object]:
        """Stop serving now. The awaitable is done when nothing is written under the lease any more."""


class Membership:
    """The leases and the registration of one node. Implements `lease.Tenure`.

    Everything is renewed at a third of the term. A node stops serving a lease `margin_ms` before the store
    could give it away, by its own clock, whether it can reach the store or not. Changes made through the same
    store object are seen at once, those of other processes at the next renewal, and a lease that runs out
    elsewhere when it does.
    """

    def __init__(
        self, store: Store, clock: Clock, *, term_ms: int = TERM_MS_DEFAULT, margin_ms: int | None = None
    ) -> None:
        self._store = store
        self._clock = clock
        self._term_ms = term_ms
        self._held = HeldLeases(term_ms // 10 if margin_ms is None else margin_ms)
        self._holders: Mapping[LeaseKind, LeaseHolder] = {}
        self._node: NodeRow | None = None
        self._counts: StoreCounts | None = None
        self._topology: Topology | None = None
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._renew_ms = 0
        self._round_timer: Timer | None = None
        self._lapse_timer: Timer | None = None
        self._leaving = False
        # Leases no longer served here whose holder is not at rest yet, with the grant to be released then, if
        # any. They are not claimed meanwhile, and those to be released are still renewed, so that nobody else
        # begins before the end here.
        self._resting: dict[Lease, Grant | None] = {}
        self._handovers: set[asyncio.Task[None]] = set()
        self.changed: list[Callable[[], None]] = []
        """Called when `topology` has been read anew."""

    def __repr__(self) -> str:
        node = "not started" if self._node is None else f"node {self._node.node_id}"
        return f"<Membership {node} {self._held!r} resting={len(self._resting)}>"

    # --- what others ask ------------------------------------------------------------------------------------

    @property
    def topology(self) -> Topology:
        """The last reading; there is one once `start` has returned."""
        if self._topology is None:
            raise RuntimeError("the membership has not been started")
        return self._topology

    def serving(self, lease: Lease) -> bool:
        """Whether the lease certainly is this node's now."""
        return self._held.serving(lease, self._clock.now_ms())

    def epoch(self, lease: Lease) -> int | None:
        """The epoch under which this node serves the lease; None when it does not."""
        grant = self._held.grant(lease)
        return grant.epoch if grant is not None and self.serving(lease) else None

    def reclaim(self, lease: Lease, epoch: int) -> None:
        """What was kept under `epoch` is lost: claim again if the lease still is this node's."""
        grant = self._held.grant(lease)
        if grant is not None and grant.epoch == epoch:
            self._held.drop(lease)
        self._wake.set()

    # --- life -----------------------------------------------------------------------------------------------

    async def start(self, node: NodeRow, holders: Mapping[LeaseKind, LeaseHolder]) -> None:
        """Register, claim what is free, and keep at it.

        Returns with `topology` read and the claimed leases owned; those that others have to hand over follow.
        Nodes that start together should all be registered before the first of them starts, or it claims
        everything. Leases of kinds without a holder are left alone. Raises StoreError; `kill` what did not
        start.
        """
        self._node = NodeRow(node.node_id, node.host, node.port, node.rack, self._term_ms)
        self._holders = dict(holders)
        self._counts = await self._store.counts()
        await self._renew()
        await self._reconcile()
        self._store.changed.append(self._wake.set)
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"membership {node.node_id}")

    async def stop(self) -> None:
        """Leave: stop serving, and release each lease once it is at rest, for the others to claim at once."""
        if self._task is None:
            return
        self._leaving = True
        self._wake.set()
        await self._task  # A claim under way is waited for: a lease nobody knows of would have to run out.
        self._end()
        # The registration first, so that the others already want the leases when they are released.
        await self._store.remove_node(self._self.node_id)
        for grant in self._held.grants():
            self._disown(grant.lease, release=grant)
        if self._handovers:
            await asyncio.wait(self._handovers)

    def kill(self) -> None:
        """Die as a process does: release nothing, tell nobody."""
        if self._task is not None:
            self._task.cancel()
        self._end()
        for task in self._handovers:
            task.cancel()
        for grant in self._held.grants():
            self._held.drop(grant.lease)

    def _end(self) -> None:
        if self._task is not None:
            self._task = None
            self._store.changed.remove(self._wake.set)
        for timer in (self._round_timer, self._lapse_timer):
            if timer is not None:
                timer.cancel()

    # --- the rounds -----------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while not self._leaving:
            look_again_ms: int | None = None
            try:
                if self._clock.now_ms() >= self._renew_ms:
                    await self._renew()
                look_again_ms = await self._reconcile()
            except StoreError as error:
                # What cannot be renewed lapses by itself; the next round tries again.
                log.error("node %d cannot keep its leases: %s", self._self.node_id, error)
            except Exception:
                # A membership that ended here would take the broker along without a word.
                log.exception("node %d cannot keep its leases", self._self.node_id)
            self._arm_round(look_again_ms)
            await self._wake.wait()
            self._wake.clear()

    def _arm_round(self, look_again_ms: int | None) -> None:
        if self._round_timer is not None:
            self._round_timer.cancel()
        when_ms = self._renew_ms if look_again_ms is None else min(self._renew_ms, look_again_ms)
        self._round_timer = self._clock.at(when_ms, self._wake.set)

    async def _renew(self) -> None:
        """Registration and leases, for another term from now."""
        sent_ms = self._clock.now_ms()
        self._renew_ms = sent_ms + self._term_ms // 3
        # The registration first: when both run out, a node is no longer wanted as holder by the time its
        # leases are free.
        await self._store.register_node(self._self)
        sent_ms = self._clock.now_ms()
        grants = self._held.grants() + [grant for grant in self._resting.values() if grant is not None]
        if not grants:
            return
        lost: list[Lease] = []
        for grant, remaining_ms in zip(grants, await self._store.renew(grants, self._term_ms), strict=True):
            if remaining_ms is not None:
                self._held.renewed(grant, remaining_ms, sent_ms)
            elif self._is_current(grant):
                lost.append(grant.lease)
        if lost:
            log.warning("node %d has lost %d leases to others", self._self.node_id, len(lost))
        for lease in lost:
            self._disown(lease)
        self._arm_lapse()

    async def _reconcile(self) -> int | None:
        """Give up what belongs to others, claim what belongs here. Returns when to look again."""
        seen_ms = self._clock.now_ms()
        nodes = await self._live_nodes()
        if self._self.node_id not in nodes:
            # Our registration ran out while we or the store stood still. Placement without us would give away
            # everything we have, and all of it back a moment later.
            await self._renew()
            nodes = await self._live_nodes()
        holders: dict[Lease, Grant] = {}
        for kind in LeaseKind:
            holders |= {grant.lease: grant for grant in (await self._store.holders(kind)).values()}
        counts = self._known.leases
        node_id = self._self.node_id
        ours = wanted(node_id, nodes, {kind: counts[kind] for kind in self._holders})
        plan = self._held.plan(ours, holders, node_id, seen_ms)
        for grant in plan.give_up:
            self._disown(grant.lease, release=grant)
        for grant in await self._claim([lease for lease in plan.claim if lease not in self._resting]):
            holders[grant.lease] = grant
        self._topology = Topology(
            self._known.cluster_id,
            nodes,
            {lease: grant for lease, grant in holders.items() if grant.node_id in nodes},
            counts,
        )
        for callback in self.changed:
            callback()
        return plan.look_again_ms

    async def _live_nodes(self) -> dict[int, NodeRow]:
        return {node.node_id: node for node in await self._store.nodes()}

    async def _claim(self, leases: list[Lease]) -> list[Grant]:
        if not leases:
            return []
        sent_ms = self._clock.now_ms()
        claimed = await self._store.claim(leases, self._self.node_id, self._term_ms)
        grants = [grant for grant in claimed if grant is not None]
        for grant in grants:
            self._held.granted(grant, sent_ms)
            self._holders[grant.lease.kind].own(grant.lease.number, grant.epoch)
        self._arm_lapse()
        return grants

    def _is_current(self, grant: Grant) -> bool:
        held = self._held.grant(grant.lease)
        return held is not None and held.epoch == grant.epoch

    # --- stopping to serve ----------------------------------------------------------------------------------

    def _disown(self, lease: Lease, *, release: Grant | None = None) -> None:
        """Stop serving now, and release the lease when its holder is at rest."""
        self._held.drop(lease)
        self._resting[lease] = release
        at_rest = asyncio.ensure_future(self._holders[lease.kind].disown(lease.number))
        task = asyncio.get_running_loop().create_task(
            self._rest(lease, at_rest, release), name=f"hand over {lease.kind} {lease.number}"
        )
        self._handovers.add(task)
        task.add_done_callback(self._handovers.discard)

    async def _rest(self, lease: Lease, at_rest: Awaitable[object], release: Grant | None) -> None:
        try:
            await at_rest
            if release is not None:
                await self._store.release([release])
        except StoreError as error:
            log.warning("%s was not released and runs out by itself: %s", lease, error)
        except Exception:
            log.exception("%s is not served any more, but its holder failed to come to rest", lease)
        finally:
            del self._resting[lease]
            self._wake.set()

    def _arm_lapse(self) -> None:
        lapse_ms = self._held.lapse_ms()
        if self._lapse_timer is not None:
            self._lapse_timer.cancel()
        self._lapse_timer = None if lapse_ms is None else self._clock.at(lapse_ms, self._lapse)

    def _lapse(self) -> None:
        """By our own clock and without the store: it may be the store that cannot be reached."""
        lapsed = self._held.lapsed(self._clock.now_ms())
        if lapsed:
            log.warning("node %d could not renew %d leases in time", self._self.node_id, len(lapsed))
        for lease in lapsed:
            self._disown(lease)
        self._arm_lapse()
        self._wake.set()

    @property
    def _self(self) -> NodeRow:
        assert self._node is not None
        return self._node

    @property
    def _known(self) -> StoreCounts:
        assert self._counts is not None
        return self._counts
