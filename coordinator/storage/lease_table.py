"""Lease holders and registered nodes, where all of them live in one process.

Such holders die with the process that keeps this table, so only the epochs must be stored, by the backend:
terms are kept, renewed and ended even if the disk is full or slow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from threading import Lock
from uuid import UUID

from muster.coordinator.storage.store import Grant, Lease, LeaseKind, NodeIdTaken, NodeRow

_Whose = tuple[Lease, int] | UUID


class LeaseTable:
    """Leases and registrations with their terms. The store objects that share it may be on several threads
    and must use the same clock, which the caller reads.

    A claim has two halves, since its epoch becomes durable in between: what `begin_claim` returns is reserved
    for that node until `end_claim`, whatever expires or is renewed meanwhile.
    """

    def __init__(self) -> None:
        self._guard = Lock()
        self._held: dict[Lease, tuple[Grant, int]] = {}  # with the time at which it expires
        self._claiming: dict[Lease, Counter[int]] = {}  # node ids; one node may claim the same lease twice
        self._nodes: dict[int, tuple[NodeRow, int]] = {}  # with the time of the last registration
        self._revision = 0
        self._over: set[_Whose] = set()
        """What has been reported as expired (`let_pass`)."""

    def __repr__(self) -> str:
        return f"<LeaseTable held={len(self._held)} claiming={len(self._claiming)} nodes={list(self._nodes)}>"

    @property
    def revision(self) -> int:
        """Grows with every change of holders and nodes."""
        return self._revision

    # --- leases -----------------------------------------------------------------------------------

    def begin_claim(
        self, leases: Sequence[Lease], node_id: int, now_ms: int, incarnation: UUID | None = None
    ) -> list[Lease]:
        """Those of `leases` that `node_id` may take; each needs a higher epoch, then `end_claim`. None
        if `incarnation` is given and is not the registered one, even if that has expired."""
        with self._guard:
            node, _ = self._nodes.get(node_id, (None, 0))
            if incarnation is not None and (node is None or node.incarnation != incarnation):
                return []
            taken = [lease for lease in leases if self._may_take(lease, node_id, now_ms)]
            for lease in taken:
                self._claiming.setdefault(lease, Counter())[node_id] += 1
            return taken

    def _may_take(self, lease: Lease, node_id: int, now_ms: int) -> bool:
        claimers = self._claiming.get(lease)
        if claimers is not None:
            return node_id in claimers
        grant, expires_ms = self._held.get(lease, (None, 0))
        return grant is None or grant.node_id == node_id or expires_ms <= now_ms

    def end_claim(
        self, taken: Sequence[Lease], node_id: int, epochs: Mapping[Lease, int], term_ms: int, now_ms: int
    ) -> dict[Lease, Grant]:
        """Grant those of `taken` whose new epoch is durable; the others are unchanged."""
        with self._guard:
            grants = {}
            for lease in taken:
                claimers = self._claiming[lease]
                claimers[node_id] -= 1
                if not claimers[node_id]:
                    del self._claiming[lease]
                if lease not in epochs:
                    continue
                grants[lease] = grant = Grant(lease, node_id, epochs[lease], term_ms)
                before, _ = self._held.get(lease, (None, 0))
                if before is None or before.epoch < grant.epoch:
                    self._held[lease] = grant, now_ms + term_ms
            self._revision += bool(grants)
            return grants

    def announce(self, grants: Sequence[Grant]) -> bool:
        """Announce the grants. Returns whether any was held and not yet announced."""
        with self._guard:
            news = False
            for grant in grants:
                held = self._current(grant)
                if held is not None and not held.announced:
                    _, expires_ms = self._held[grant.lease]
                    self._held[grant.lease] = held._replace(announced=True), expires_ms
                    news = True
            self._revision += news
            return news

    def renew(self, grants: Sequence[Grant], term_ms: int, now_ms: int) -> list[int | None]:
        """As `Store.renew`. A lease that is being claimed is lost: it may have expired before that."""
        with self._guard:
            renewed: list[int | None] = []
            for grant in grants:
                held = self._current(grant)
                if held is None or grant.lease in self._claiming:
                    renewed.append(None)
                    continue
                self._held[grant.lease] = held, now_ms + term_ms
                renewed.append(term_ms)
            return renewed

    def release(self, grants: Sequence[Grant]) -> bool:
        """Release the grants. Returns whether any was still held."""
        with self._guard:
            current = [grant.lease for grant in grants if self._current(grant) is not None]
            for lease in current:
                self._held.pop(lease, None)
            self._revision += bool(current)
            return bool(current)

    def holders(self, kind: LeaseKind, now_ms: int) -> dict[int, Grant]:
        """As `Store.holders`."""
        with self._guard:
            held = [
                (lease.number, Grant(lease, grant.node_id, grant.epoch, expires_ms - now_ms, grant.announced))
                for lease, (grant, expires_ms) in self._held.items()
                if lease.kind is kind and expires_ms > now_ms
            ]
        return dict(sorted(held))

    def holds(self, lease: Lease, epoch: int) -> bool:
        """Whether the lease is held in this epoch, or was when it expired, and nobody is claiming it: then
        the epoch is the current one. Otherwise only the backend knows."""
        with self._guard:
            grant, _ = self._held.get(lease, (None, 0))
            return grant is not None and grant.epoch == epoch and lease not in self._claiming

    def _current(self, grant: Grant) -> Grant | None:
        held, _ = self._held.get(grant.lease, (None, 0))
        same = held is not None and (held.node_id, held.epoch) == (grant.node_id, grant.epoch)
        return held if same else None

    # --- time, for tests ----------------------------------------------------------------------------

    def runs_out_in(self, sparing: Container[int], now_ms: int) -> int | None:
        """As `Ageing.runs_out_in`."""
        with self._guard:
            left_ms = [
                max(end_ms - now_ms, 0)
                for whose, node_id, end_ms in self._terms()
                if node_id not in sparing and (end_ms > now_ms or whose not in self._over)
            ]
            return min(left_ms, default=None)

    def let_pass(self, ms: int, sparing: Container[int], now_ms: int) -> bool:
        """As `Ageing.let_pass`. Returns whether anything has expired that the last call did not know of."""
        with self._guard:
            # Real time passes too, and what it ended between two calls must be reported as well.
            over = {
                whose
                for whose, node_id, end_ms in self._terms()
                if node_id not in sparing and end_ms <= now_ms + ms
            }
            news = not over <= self._over
            self._over = over
            for lease, (grant, expires_ms) in self._held.items():
                if grant.node_id not in sparing:
                    self._held[lease] = grant, expires_ms - ms
            for node_id, (node, registered_ms) in self._nodes.items():
                if node_id not in sparing:
                    self._nodes[node_id] = node, registered_ms - ms
            return news

    def _terms(self) -> Iterator[tuple[_Whose, int, int]]:
        """For every lease and registration: what distinguishes it from earlier and later ones, the node id,
        and when it expires."""
        for grant, expires_ms in self._held.values():
            yield (grant.lease, grant.epoch), grant.node_id, expires_ms
        for node_id, (node, registered_ms) in self._nodes.items():
            yield node.incarnation, node_id, registered_ms + node.term_ms

    # --- nodes ------------------------------------------------------------------------------------

    def register(self, node: NodeRow, now_ms: int) -> bool:
        """Register a node. Returns whether this is news: it was not registered, or differently. Raises
        NodeIdTaken."""
        with self._guard:
            stored, registered_ms = self._nodes.get(node.node_id, (None, 0))
            remaining_ms = registered_ms + stored.term_ms - now_ms if stored is not None else 0
            if stored is not None and stored.incarnation != node.incarnation and remaining_ms > 0:
                raise NodeIdTaken(stored, remaining_ms)
            self._nodes[node.node_id] = node, now_ms
            news = stored != node or remaining_ms <= 0
            self._revision += news
            return news

    def remove(self, node_id: int, incarnation: UUID) -> bool:
        """Remove a registration. Returns whether it was there."""
        with self._guard:
            stored, _ = self._nodes.get(node_id, (None, 0))
            if stored is None or stored.incarnation != incarnation:
                return False
            del self._nodes[node_id]
            self._revision += 1
            return True

    def incarnation(self, node_id: int, now_ms: int) -> UUID | None:
        """The registered incarnation of a node."""
        with self._guard:
            node, registered_ms = self._nodes.get(node_id, (None, 0))
            return None if node is None or registered_ms + node.term_ms <= now_ms else node.incarnation

    def nodes(self, now_ms: int) -> list[NodeRow]:
        """As `Store.nodes`."""
        with self._guard:
            return [
                replace(node, age_ms=now_ms - registered_ms)
                for _, (node, registered_ms) in sorted(self._nodes.items())
                if registered_ms + node.term_ms > now_ms
            ]
