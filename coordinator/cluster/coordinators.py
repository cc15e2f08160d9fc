"""The kinds of coordinators, and how their shards are found. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from muster.coordinator.cluster.placement import EVENTS_TOPIC, OFFSETS_TOPIC, TRANSACTIONS_TOPIC, shard_of
from muster.coordinator.storage.store import Lease, LeaseKind


class CoordinatorKind(NamedTuple):
    """A kind of coordinator: each key (a group id, a transactional id) belongs to a shard, and whoever holds
    the shard's lease coordinates it. How many shards there are is fixed when a store is created
    (`StoreCounts.leases`)."""

    part: str
    """What is coordinated, in the plural: the part of the broker that log lines name."""
    key_type: int
    """The key type by which FindCoordinator asks for it."""
    lease: LeaseKind
    route: Callable[[str, int], int]
    """The shard that a key belongs to, given the number of shards."""
    topics: tuple[str, ...]
    """The internal topics with a partition for each shard, led by the shard's holder."""

    def lease_of(self, key: str, counts: Mapping[LeaseKind, int]) -> Lease:
        """The lease whose holder coordinates the key."""
        return Lease(self.lease, self.route(key, counts[self.lease]))


GROUPS: Final = CoordinatorKind("groups", 0, LeaseKind.GROUP, shard_of, (OFFSETS_TOPIC, EVENTS_TOPIC))

TRANSACTIONS: Final = CoordinatorKind(
    "transactions", 1, LeaseKind.TRANSACTION, shard_of, (TRANSACTIONS_TOPIC,)
)

COORDINATORS: Final[Mapping[int, CoordinatorKind]] = {each.key_type: each for each in (GROUPS, TRANSACTIONS)}
"""By the key type of FindCoordinator."""
