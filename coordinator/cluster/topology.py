"""Who coordinates and who leads what, as last read: what Metadata and FindCoordinator answer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from muster.coordinator.cluster.lease import placeable
from muster.coordinator.cluster.placement import (
    EVENTS_TOPIC,
    OFFSETS_TOPIC,
    data_shard,
    internal_topic_id,
    shard_of,
)
from muster.coordinator.storage.store import Grant, Lease, LeaseKind, NodeRow

NO_NODE = -1


class Leader(NamedTuple):
    """Who leads a partition. Without a leader `node_id` is -1 (LEADER_NOT_AVAILABLE), and so is the epoch."""

    node_id: int
    epoch: int


def shard_topics(cluster_id: UUID) -> frozenset[UUID]:
    """The ids of the topics with a partition for each group shard: `__consumer_offsets`, `__group_events`."""
    return frozenset(internal_topic_id(cluster_id, name) for name in (OFFSETS_TOPIC, EVENTS_TOPIC))


def partition_lease(
    shard_topics: Collection[UUID], counts: Mapping[LeaseKind, int], topic_id: UUID, partition: int
) -> Lease:
    """The lease whose holder leads the partition: of one of `shard_topics` that of the group shard."""
    if topic_id in shard_topics:
        return Lease(LeaseKind.GROUP, partition)
    return Lease(LeaseKind.DATA, data_shard(topic_id, partition, counts[LeaseKind.DATA]))


@dataclass(frozen=True, slots=True)
class Topology:
    """One reading; it may be out of date, and then the node asked next says so (NOT_COORDINATOR,
    NOT_LEADER)."""

    cluster_id: UUID
    nodes: Mapping[int, NodeRow]
    """Live nodes by id, in order."""
    holders: Mapping[Lease, Grant]
    """Leases held by live nodes; clients are sent only to holders that have announced them."""
    counts: Mapping[LeaseKind, int]
    shard_topics: frozenset[UUID] = field(init=False)
    """Those led by who holds the group shards."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "shard_topics", shard_topics(self.cluster_id))

    @property
    def controller_id(self) -> int:
        """The node named as controller (any node takes its requests): the lowest id that is not drained, -1
        without nodes."""
        return min(placeable(self.nodes.values()), default=NO_NODE)

    def group_lease(self, group_id: str) -> Lease:
        return Lease(LeaseKind.GROUP, shard_of(group_id, self.counts[LeaseKind.GROUP]))

    def data_lease(self, topic_id: UUID, partition: int) -> Lease:
        """The lease whose holder leads the partition."""
        return partition_lease(self.shard_topics, self.counts, topic_id, partition)

    def coordinator(self, group_id: str) -> NodeRow | None:
        """The node that coordinates the group; None while its shard has no holder that is ready
        (COORDINATOR_NOT_AVAILABLE)."""
        grant = self._announced(self.group_lease(group_id))
        return None if grant is None else self.nodes[grant.node_id]

    def leader(self, topic_id: UUID, partition: int) -> Leader:
        """The partition's leader and leader epoch: holder and epoch of its lease."""
        grant = self._announced(self.data_lease(topic_id, partition))
        return Leader(NO_NODE, -1) if grant is None else Leader(grant.node_id, grant.epoch)

    def _announced(self, lease: Lease) -> Grant | None:
        grant = self.holders.get(lease)
        return grant if grant is not None and grant.announced else None
