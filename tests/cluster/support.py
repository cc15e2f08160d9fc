"""Nodes without a network that share a store and a clock, and the holders that work under their leases."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID, uuid4

from muster.coordinator.base.clock import ManualClock, PausableClock
from muster.coordinator.cluster.membership import Membership
from muster.coordinator.cluster.placement import place
from muster.coordinator.server.pausing import PausableStore
from muster.coordinator.storage.memory import MemoryStore
from muster.coordinator.storage.store import Grant, Lease, LeaseKind, NodeRow, StoreError
from tests.support.facts import turns, until

TERM_MS = 3_000
MARGIN_MS = 300
KINDS = (LeaseKind.GROUP, LeaseKind.DATA)
ALL = {Lease(kind, number) for kind in KINDS for number in range(50)}


class UnreliableStore(MemoryStore):
    """A store whose lease calls fail or hang when the test says so."""

    broken = False

    def __init__(self, *, now_ms: Callable[[], int]) -> None:
        super().__init__(now_ms=now_ms)
        self.answers_claims = asyncio.Event()
        self.answers_claims.set()
        self.takes_claims = asyncio.Event()
        self.takes_claims.set()
        self.silent = False
        """Nothing can be announced."""
        self.claims: list[int] = []
        self.announcements: list[int] = []
        self.releases: list[int] = []
        """Number of leases in each call."""

    async def announce(self, grants: Sequence[Grant]) -> None:
        if self.silent:
            raise StoreError("announce: the disk is gone")
        self.announcements.append(len(grants))
        await super().announce(grants)

    async def release(self, grants: Sequence[Grant]) -> None:
        self.releases.append(len(grants))
        await super().release(grants)

    async def renew(self, grants: Sequence[Grant], term_ms: int) -> list[int | None]:
        if self.broken:
            raise StoreError("renew: the disk is gone")
        return await super().renew(grants, term_ms)

    async def claim(
        self, leases: Sequence[Lease], node_id: int, term_ms: int, *, incarnation: UUID | None = None
    ) -> list[Grant | None]:
        if self.broken:
            raise StoreError("claim: the disk is gone")
        self.claims.append(len(leases))
        await self.takes_claims.wait()
        grants = await super().claim(leases, node_id, term_ms, incarnation=incarnation)
        await self.answers_claims.wait()
        return grants


class Holder:
    """Works under the leases of one kind: records its calls, and comes to rest when the test lets it."""

    def __init__(self, kind: LeaseKind) -> None:
        self.kind = kind
        self.epochs: dict[int, int] = {}
        self.owned: list[int] = []
        self.gone: dict[int, str] = {}
        """Why it was last told to stop serving each."""
        self.loads_at_once = True
        self.loading: dict[int, asyncio.Future[None]] = {}
        self.may_rest = asyncio.Event()
        self.may_rest.set()

    def own(self, number: int, epoch: int) -> Awaitable[object] | None:
        self.epochs[number] = epoch
        self.owned.append(number)
        if self.loads_at_once:
            return None
        self.loading[number] = asyncio.get_running_loop().create_future()
        return self.loading[number]

    def disown(self, number: int, why: str) -> Awaitable[object]:
        self.epochs.pop(number, None)
        self.gone[number] = why
        return self.may_rest.wait()

    def load(self, number: int) -> None:
        self.loading.pop(number).set_result(None)

    def load_all(self) -> None:
        for number in list(self.loading):
            self.load(number)


class Node:
    def __init__(self, node_id: int, store: MemoryStore, clock: ManualClock) -> None:
        self.node_id = node_id
        self.row = NodeRow(node_id, "127.0.0.1", 9092 + node_id, None, TERM_MS, uuid4())
        self.clock = PausableClock(clock)
        self.store = PausableStore(store)
        self.holders = {kind: Holder(kind) for kind in KINDS}
        self.membership = Membership(self.store.as_store(), self.clock, term_ms=TERM_MS, margin_ms=MARGIN_MS)

    async def start(self) -> Node:
        await self.membership.start(self.row, self.holders)
        return self

    def pause(self) -> None:
        """As SIGSTOP does: nothing runs, and the store's answers do not arrive."""
        self.clock.pause()
        self.store.pause()

    def resume(self) -> None:
        self.clock.resume()
        self.store.resume()

    def owns(self) -> set[Lease]:
        return {Lease(kind, number) for kind in KINDS for number in self.holders[kind].epochs}

    def serves(self) -> set[Lease]:
        return {lease for lease in ALL if self.membership.serving(lease)}

    def names(self) -> dict[Lease, int]:
        """The node to which it sends clients, for each lease that has one."""
        holders = self.membership.topology.holders
        return {lease: grant.node_id for lease, grant in holders.items() if grant.announced}

    def epoch(self, lease: Lease) -> int | None:
        return self.holders[lease.kind].epochs.get(lease.number)


class Cluster:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = UnreliableStore(now_ms=self.clock.now_ms)
        self.nodes: dict[int, Node] = {}

    async def start(self, *node_ids: int) -> list[Node]:
        started = [await self.nodes.setdefault(n, Node(n, self.store, self.clock)).start() for n in node_ids]
        await until(lambda: self.is_placed(*self.nodes), "the placement")
        return started

    def agree(self, *live: int) -> bool:
        """Whether all live nodes send clients to the right node for every lease."""
        right = {lease: node_id for node_id in live for lease in share(node_id, *live)}
        return all(self.nodes[node_id].names() == right for node_id in live)

    def is_placed(self, *live: int) -> bool:
        return all(self.nodes[n].serves() == self.nodes[n].owns() == share(n, *live) for n in live)

    async def passes(self, ms: int, step_ms: int = 100) -> None:
        """Let time pass in steps small enough for renewals to be sent and answered in between."""
        for _ in range(ms // step_ms):
            self.clock.advance(step_ms)
            await turns()


def share(node_id: int, *live: int) -> set[Lease]:
    return {lease for lease in ALL if place(lease.kind.value, lease.number, live) == node_id}
