"""The leases of one node: what to claim, renew and give up, and until when each may be used. Pure: time is an
argument.

The store's clock decides when a lease expires; the holder stops a margin before that by its own. It counts
the remaining time from when it *sent* the claim or renewal, so a slow answer can only make it stop sooner.
The clocks need not agree; their speeds just must not differ by more than the margin over one term.

A node may hold a lease only while it is registered: once the registration has expired, another node that
starts under its id takes the leases of that id for its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol

from muster.coordinator.cluster.placement import place
from muster.coordinator.storage.store import Grant, Lease, LeaseKind, NodeRow, Replicas


class LeaseKeeper(Protocol):
    """The keeper of leases, as seen by those who work under one."""

    def serving(self, lease: Lease) -> bool:
        """Whether the lease is certainly still this node's. Cheap: called before every step."""

    def reclaim(self, lease: Lease, epoch: int) -> None:
        """State kept under `epoch` is lost: claim and `own` the lease again if it is still this node's."""

    @property
    def reclaiming(self) -> Set[Lease]:
        """The leases that are being claimed again. They are not served, and no other node is known to have
        them."""

    def silent_ms(self, node_id: int) -> int | None:
        """How long ago another node last registered, in real ms, as far as was seen; it lived no longer than
        a third of its term after that. None: nothing is known of it."""


def placeable(nodes: Iterable[NodeRow]) -> list[int]:
    """The ids of the nodes that leases are placed on: those that are not drained, or all if all are."""
    known = list(nodes)
    return [node.node_id for node in known if not node.drained] or [node.node_id for node in known]


def without_transactions(nodes: Iterable[NodeRow]) -> frozenset[int]:
    """The ids of the nodes that cannot hold transaction shards, since their version does not know them."""
    return frozenset(node.node_id for node in nodes if not node.keeps_transactions)


def home(
    lease: Lease,
    node_ids: Collection[int],
    pins: Mapping[Lease, int],
    replicas: Mapping[Lease, Replicas] = MappingProxyType({}),
    no_transactions: Set[int] = frozenset(),
) -> int | None:
    """The node that should hold a lease: the one it is pinned to if that is among the nodes, else the first
    of its replica list that is, else by placement. Nodes in `no_transactions` are excluded for transaction
    shards. None without nodes."""
    if no_transactions and lease.kind is LeaseKind.TRANSACTION:
        node_ids = [node_id for node_id in node_ids if node_id not in no_transactions]
    pinned = pins.get(lease)
    if pinned in node_ids:
        return pinned
    first = next((node_id for node_id in replicas.get(lease, ()) if node_id in node_ids), None)
    # The store holds the records, so if no replica is alive any other broker may serve them.
    return place(lease.kind.value, lease.number, node_ids) if first is None else first


def wanted(
    node_id: int,
    node_ids: Iterable[int],
    counts: Mapping[LeaseKind, int],
    pins: Mapping[Lease, int] = MappingProxyType({}),
    replicas: Mapping[Lease, Replicas] = MappingProxyType({}),
    no_transactions: Set[int] = frozenset(),
) -> set[Lease]:
    """The leases that `node_id` should hold among the nodes, out of `counts` of each kind and those with a
    replica list. The other arguments are those of `home`."""
    live = tuple(node_ids)
    leases = [Lease(kind, number) for kind, count in counts.items() for number in range(count)]
    return {
        lease
        for lease in (*leases, *replicas)
        if home(lease, live, pins, replicas, no_transactions) == node_id
    }


class Wanted:
    """The result of `wanted` for one node, recomputed only when something it depends on has changed."""

    def __init__(self) -> None:
        self._decided_by: tuple[object, ...] | None = None
        self._leases: set[Lease] = set()

    def of(
        self,
        node_id: int,
        node_ids: Iterable[int],
        counts: Mapping[LeaseKind, int],
        pins: Mapping[Lease, int],
        replicas: Mapping[Lease, Replicas],
        no_transactions: Set[int],
    ) -> Set[Lease]:
        """As `wanted`."""
        # A copy of the pins, which change in place.
        decided_by = (node_id, tuple(node_ids), counts, dict(pins), replicas, no_transactions)
        if decided_by != self._decided_by:
            self._leases = wanted(*decided_by)
            self._decided_by = decided_by
        return self._leases

    @property
    def last(self) -> Set[Lease]:
        """The last result."""
        return self._leases


class Plan(NamedTuple):
    """What a node should do now about its leases."""

    claim: list[Lease]
    give_up: list[Grant]
    check_again_ms: int | None
    """When the first lease of another node expires unless it is renewed."""
    more: bool = False
    """More leases are free than one call should claim."""


@dataclass(slots=True)
class _Held:
    grant: Grant
    serve_until_ms: int
    ready: bool = False


class HeldLeases:
    """The grants of one node. `now_ms` and `sent_ms` are by the node's own clock."""

    def __init__(self, margin_ms: int) -> None:
        self._margin_ms = margin_ms
        self._held: dict[Lease, _Held] = {}
        self._registered_until_ms = 0

    def __repr__(self) -> str:
        return f"<HeldLeases {len(self._held)} margin={self._margin_ms}ms>"

    def __contains__(self, lease: Lease) -> bool:
        return lease in self._held

    def __len__(self) -> int:
        return len(self._held)

    # --- what the store said --------------------------------------------------------------------------------

    def registered(self, term_ms: int, sent_ms: int) -> None:
        """A registration of the node that was sent at `sent_ms` succeeded."""
        self._registered_until_ms = max(self._registered_until_ms, sent_ms + term_ms - self._margin_ms)

    def granted(self, grant: Grant, sent_ms: int) -> None:
        """A claim that was sent at `sent_ms` succeeded."""
        self._held[grant.lease] = _Held(grant, sent_ms + grant.remaining_ms - self._margin_ms)

    def renewed(self, grant: Grant, remaining_ms: int, sent_ms: int) -> None:
        """A renewal sent at `sent_ms` succeeded. Ignored if the lease was dropped or claimed since."""
        held = self._current(grant)
        if held is not None:
            held.serve_until_ms = max(held.serve_until_ms, sent_ms + remaining_ms - self._margin_ms)

    def announced(self, grant: Grant) -> None:
        """The others have been notified. Ignored if the lease was dropped or claimed since."""
        held = self._current(grant)
        if held is not None:
            held.grant = held.grant._replace(announced=True)

    # --- what happened here ---------------------------------------------------------------------------------

    def loaded(self, grant: Grant) -> None:
        """What is served under the lease is ready. Ignored if the lease was dropped or claimed since."""
        held = self._current(grant)
        if held is not None:
            held.ready = True

    def drop(self, lease: Lease) -> None:
        self._held.pop(lease, None)

    # --- questions ------------------------------------------------------------------------------------------

    def serving(self, lease: Lease, now_ms: int) -> bool:
        """Whether nobody else can hold the lease at `now_ms`."""
        held = self._held.get(lease)
        return held is not None and now_ms < held.serve_until_ms and now_ms < self._registered_until_ms

    def is_registered(self, now_ms: int) -> bool:
        """Whether the node is certainly registered at `now_ms`."""
        return now_ms < self._registered_until_ms

    def grant(self, lease: Lease) -> Grant | None:
        held = self._held.get(lease)
        return None if held is None else held.grant

    def has(self, grant: Grant) -> bool:
        """Whether the lease is held under this grant's epoch."""
        return self._current(grant) is not None

    def grants(self) -> list[Grant]:
        return [held.grant for held in self._held.values()]

    def unannounced(self) -> list[Grant]:
        """The grants that are ready but not announced to the others yet."""
        return [held.grant for held in self._held.values() if held.ready and not held.grant.announced]

    def lapsed(self, now_ms: int) -> list[Lease]:
        """Leases that may no longer be used, though they have not been dropped yet."""
        return [lease for lease in self._held if not self.serving(lease, now_ms)]

    def lapse_ms(self) -> int | None:
        """When the first lease lapses unless it is renewed."""
        if not self._held:
            return None
        return min(self._registered_until_ms, min(held.serve_until_ms for held in self._held.values()))

    # --- beside what others hold ----------------------------------------------------------------------------

    def as_known(self, holders: Mapping[Lease, Grant], node_id: int) -> dict[Lease, Grant]:
        """Who holds what according to the store, except for this node's own leases, which it knows better:
        those it no longer serves are nobody's, and those it has taken or announced since are its own."""
        known = {lease: grant for lease, grant in holders.items() if grant.node_id != node_id}
        for lease, held in self._held.items():
            stored = holders.get(lease)
            if stored is None or stored.epoch < held.grant.epoch:
                known[lease] = held.grant
            elif stored.epoch == held.grant.epoch:
                known[lease] = stored._replace(announced=held.grant.announced)
        return known

    def plan(
        self,
        wanted: Set[Lease],
        holders: Mapping[Lease, Grant],
        node_id: int,
        seen_ms: int,
        *,
        resting: Set[Lease] = frozenset(),
        claims_max: int,
        give_up_max: int,
    ) -> Plan:
        """Compare what placement wants with who holds what, and plan steps of a bounded size.

        `holders` are the grants that had not expired when the store was queried at `seen_ms`. A lease that
        this node holds according to the store but has no grant for (it was restarted, or has dropped it) is
        claimed again at once, or given up. `resting` leases are being handed over, and left alone.
        `claims_max` is how many to claim in one call, `give_up_max` how many served ones to give up now.
        """
        of_others = {lease: grant for lease, grant in holders.items() if grant.node_id != node_id}
        claim = sorted(wanted - self._held.keys() - of_others.keys() - resting)
        unwanted = sorted(self._held.keys() - wanted)
        give_up = [self._held[lease].grant for lease in unwanted[:give_up_max]]
        left_over = holders.keys() - of_others.keys() - self._held.keys() - wanted - resting
        give_up += [holders[lease] for lease in sorted(left_over)]
        # Not only wanted leases: a node that has died counts as live, and its leases as its own, almost
        # until they expire. In the very last millisecond the store may still call them held.
        runs_out_ms = (seen_ms + grant.remaining_ms + 1 for grant in of_others.values())
        return Plan(claim[:claims_max], give_up, min(runs_out_ms, default=None), more=len(claim) > claims_max)

    def _current(self, grant: Grant) -> _Held | None:
        held = self._held.get(grant.lease)
        return held if held is not None and held.grant.epoch == grant.epoch else None


class Moves:
    """The leases this node has given up for others, until they have a ready holder.

    Until then they serve nobody, and a node that joins or leaves is in no hurry, so only `at_once` of them
    are under way at a time. One that nobody has taken after `patience_ms` is no longer waited for.
    """

    def __init__(self, at_once: int, patience_ms: int) -> None:
        self._at_once = at_once
        self._patience_ms = patience_ms
        self._until_ms: dict[Lease, int] = {}

    def __repr__(self) -> str:
        return f"<Moves {len(self._until_ms)} of {self._at_once}>"

    @property
    def room(self) -> int:
        """How many more leases may be given up now."""
        return max(self._at_once - len(self._until_ms), 0)

    @property
    def check_again_ms(self) -> int | None:
        """When `patience_ms` is over for the first of them."""
        return min(self._until_ms.values(), default=None)

    def begin(self, lease: Lease, now_ms: int) -> None:
        """The lease has been given up."""
        self._until_ms[lease] = now_ms + self._patience_ms

    def settle(
        self, known: Mapping[Lease, Grant], node_id: int, held: HeldLeases, now_ms: int
    ) -> list[Lease]:
        """Forget leases that another node has announced or that came back. Returns those given up on.

        `known` may still name this node as holder of leases it is about to release.
        """
        overdue = [lease for lease, until_ms in self._until_ms.items() if until_ms <= now_ms]
        for lease in list(self._until_ms):
            grant = known.get(lease)
            taken = grant is not None and grant.node_id != node_id and grant.announced
            if taken or lease in held or lease in overdue:
                del self._until_ms[lease]
        return overdue


class Standing:
    """Whether a node stands aside: it is registered, but cannot do its share, which the others should take.

    It steps aside once every attempt has failed for `patience_ms`, and back once every one has succeeded for
    as long, so attempts that now fail and now succeed change nothing.
    """

    def __init__(self, patience_ms: int) -> None:
        self._patience_ms = patience_ms
        self._since_ms: int | None = None  # of the attempts in a row that ended unlike the ones before
        self.aside = False
        self.failing = False
        """Whether the last attempt failed."""

    def __repr__(self) -> str:
        return f"<Standing {'aside' if self.aside else 'in line'}{', failing' if self.failing else ''}>"

    def succeeded(self, now_ms: int) -> bool:
        """Note that an attempt succeeded. Returns whether that ends standing aside."""
        self.failing = False
        return self._note(self.aside, now_ms)

    def failed(self, now_ms: int, *, replaceable: bool) -> bool:
        """Note that one failed. Returns whether that begins standing aside: only failures count during which
        the node was `replaceable`, that is registered, and not the only one."""
        self.failing = True
        return self._note(replaceable and not self.aside, now_ms)

    def _note(self, differs: bool, now_ms: int) -> bool:
        if not differs:
            self._since_ms = None
        elif self._since_ms is None:
            self._since_ms = now_ms
        elif now_ms - self._since_ms >= self._patience_ms:
            self._since_ms = None
            self.aside = not self.aside
            return True
        return False
