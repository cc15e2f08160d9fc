"""The leases of one node: what to claim, renew and give up, and until when each may be used. Pure: time is an
argument.

The store's clock decides when a lease runs out; the holder stops a margin before that by its own. It counts
the remaining time from when it *sent* the claim or renewal, so a slow answer can only make it stop sooner.
Neither clock needs to agree with the other, they only must not run at speeds that differ by more than the
margin over one term.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from muster.coordinator.cluster.placement import place
from muster.coordinator.storage.store import Grant, Lease, LeaseKind


class Tenure(Protocol):
    """What those who work under a lease ask whoever keeps it."""

    def serving(self, lease: Lease) -> bool:
        """Whether the lease certainly still is this node's: cheap, asked before every step."""

    def reclaim(self, lease: Lease, epoch: int) -> None:
        """What was kept under `epoch` is lost: claim and `own` the lease anew if it still is this node's."""


def wanted(node_id: int, node_ids: Iterable[int], counts: Mapping[LeaseKind, int]) -> set[Lease]:
    """The leases that placement gives to `node_id` among the live nodes."""
    live = tuple(node_ids)
    return {
        Lease(kind, number)
        for kind, count in counts.items()
        for number in range(count)
        if place(kind.value, number, live) == node_id
    }


class Plan(NamedTuple):
    """What a node should do now about its leases."""

    claim: list[Lease]
    give_up: list[Grant]
    look_again_ms: int | None
    """When the first lease of another node runs out unless it is renewed."""


@dataclass(slots=True)
class _Held:
    grant: Grant
    serve_until_ms: int


class HeldLeases:
    """The grants of one node. `now_ms` and `sent_ms` are the node's own clock."""

    def __init__(self, margin_ms: int) -> None:
        self._margin_ms = margin_ms
        self._held: dict[Lease, _Held] = {}

    def __repr__(self) -> str:
        return f"<HeldLeases {len(self._held)} margin={self._margin_ms}ms>"

    def __contains__(self, lease: Lease) -> bool:
        return lease in self._held

    def granted(self, grant: Grant, sent_ms: int) -> None:
        """A claim that was sent at `sent_ms` succeeded."""
        self._held[grant.lease] = _Held(grant, sent_ms + grant.remaining_ms - self._margin_ms)

    def renewed(self, grant: Grant, remaining_ms: int, sent_ms: int) -> None:
        """A renewal sent at `sent_ms` succeeded. Passed over when the lease was dropped or claimed since."""
        held = self._held.get(grant.lease)
        if held is not None and held.grant.epoch == grant.epoch:
            held.serve_until_ms = max(held.serve_until_ms, sent_ms + remaining_ms - self._margin_ms)

    def drop(self, lease: Lease) -> None:
        self._held.pop(lease, None)

    def serving(self, lease: Lease, now_ms: int) -> bool:
        """Whether nobody else can have the lease at `now_ms`."""
        held = self._held.get(lease)
        return held is not None and now_ms < held.serve_until_ms

    def grant(self, lease: Lease) -> Grant | None:
        held = self._held.get(lease)
        return None if held is None else held.grant

    def grants(self) -> list[Grant]:
        return [held.grant for held in self._held.values()]

    def lapsed(self, now_ms: int) -> list[Lease]:
        """Leases that may no longer be used, though they have not been dropped yet."""
        return [lease for lease, held in self._held.items() if held.serve_until_ms <= now_ms]

    def lapse_ms(self) -> int | None:
        """When the first lease lapses unless it is renewed."""
        return min((held.serve_until_ms for held in self._held.values()), default=None)

    def plan(self, wanted: set[Lease], holders: Mapping[Lease, Grant], node_id: int, seen_ms: int) -> Plan:
        """Compare what placement wants with who holds what.

        `holders` are the grants that had not run out when the store was asked at `seen_ms`. A lease this node
        holds by the store's word but has no grant for (it was restarted, or has dropped it) is claimed again
        at once.
        """
        of_others = {lease: grant for lease, grant in holders.items() if grant.node_id != node_id}
        claim = sorted(wanted - self._held.keys() - of_others.keys())
        give_up = [held.grant for lease, held in self._held.items() if lease not in wanted]
        # Not only of those wanted: a node that has died counts as live, and its leases as its own, almost
        # until they run out. In the very last millisecond the store may still call them held.
        runs_out_ms = (seen_ms + grant.remaining_ms + 1 for grant in of_others.values())
        return Plan(claim, give_up, min(runs_out_ms, default=None))
