"""Who coordinates and who leads what, as last read: the answers of Metadata and FindCoordinator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from muster.coordinator.cluster.coordinators import COORDINATORS, GROUPS, CoordinatorKind
from muster.coordinator.cluster.lease import placeable
from muster.coordinator.cluster.placement import data_shard, internal_topic_id
from muster.coordinator.storage.store import Assignment, Grant, Lease, LeaseKind, NodeRow, Replicas

NO_NODE = -1


class Leader(NamedTuple):
    """Who leads a partition. Without a leader `node_id` is -1 (LEADER_NOT_AVAILABLE), and so is the epoch."""

    node_id: int
    epoch: int


def shard_topics(cluster_id: UUID) -> dict[UUID, LeaseKind]:
    """The ids of the topics with a partition for each shard of a coordinator, and the kind of its leases:
    `__consumer_offsets`, `__group_events`, `__transaction_state`."""
    return {
        internal_topic_id(cluster_id, name): kind.lease
        for kind in COORDINATORS.values()
        for name in kind.topics
    }


def partition_lease(
    shard_topics: Mapping[UUID, LeaseKind], counts: Mapping[LeaseKind, int], topic_id: UUID, partition: int
) -> Lease:
    """The lease whose holder leads a partition without a replica list; for one of `shard_topics`, that of the
    coordinator's shard."""
    if (kind := shard_topics.get(topic_id)) is not None:
        return Lease(kind, partition)
    return Lease(LeaseKind.DATA, data_shard(topic_id, partition, counts[LeaseKind.DATA]))


@dataclass(frozen=True, slots=True)
class Topology:
    """One reading of the store. It may be out of date; the node asked next then says so (NOT_COORDINATOR,
    NOT_LEADER)."""

    cluster_id: UUID
    nodes: Mapping[int, NodeRow]
    """Live nodes by id, in order."""
    holders: Mapping[Lease, Grant]
    """Leases held by live nodes; clients are sent only to holders that have announced them."""
    counts: Mapping[LeaseKind, int]
    replicas: Mapping[Lease, Replicas] = field(default_factory=dict)
    """The replica list of each lease that covers the partitions with that list."""
    announced_epochs: Mapping[Lease, int] = field(default_factory=dict)
    """The highest epoch of each lease ever seen announced, by any node."""
    shard_topics: Mapping[UUID, LeaseKind] = field(init=False)
    """The topics led by the holders of the coordinators' shards."""
    _of_replicas: Mapping[Replicas, Lease] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shard_topics", shard_topics(self.cluster_id))
        object.__setattr__(self, "_of_replicas", {each: lease for lease, each in self.replicas.items()})

    @property
    def controller_id(self) -> int:
        """The node named as controller (any node takes its requests): the lowest id that is not drained, -1
        without nodes."""
        return min(placeable(self.nodes.values()), default=NO_NODE)

    def group_lease(self, group_id: str) -> Lease:
        return GROUPS.lease_of(group_id, self.counts)

    @property
    def leases(self) -> list[Lease]:
        """Every lease that some node should hold, by kind and number."""
        numbered = [
            Lease(kind, number)
            for kind, count in self.counts.items()
            if kind is not LeaseKind.REPLICAS
            for number in range(count)
        ]
        return numbered + sorted(self.replicas)

    @property
    def keeps_replicas(self) -> bool:
        """Whether all live brokers know replica lists. Brokers of an earlier version would lead partitions
        with a list under their data shard, so no list is made while there are any."""
        return all(node.keeps_replicas for node in self.nodes.values())

    def data_lease(
        self, topic_id: UUID, partition: int, assignment: Assignment | None = None
    ) -> Lease | None:
        """The lease whose holder leads the partition. None if a partition with an `assignment` is not led
        under any yet: the replica list is not known yet, or the partition's leader before the reassignment
        may not know of it yet."""
        if assignment is None:
            return partition_lease(self.shard_topics, self.counts, topic_id, partition)
        return self._of_replicas.get(assignment.replicas) if self.has_moved(assignment) else None

    def has_moved(self, assignment: Assignment) -> bool:
        """Whether a reassigned partition may be led under its new lease: its previous leader no longer serves
        it."""
        if assignment.moved_from is None:
            return True
        # Whoever has claimed the old lease since then read the topics before announcing it.
        return self.announced_epochs.get(assignment.moved_from, 0) > assignment.moved_epoch

    def coordinator(self, key: str, kind: CoordinatorKind = GROUPS) -> NodeRow | None:
        """The node that coordinates a group, or a key of another kind; None while its shard has no ready
        holder (COORDINATOR_NOT_AVAILABLE)."""
        grant = self._announced(kind.lease_of(key, self.counts))
        return None if grant is None else self.nodes[grant.node_id]

    def leader(self, topic_id: UUID, partition: int, assignment: Assignment | None = None) -> Leader:
        """The partition's leader and leader epoch: the holder of its lease, and the lease's epoch plus the
        base of its `assignment`."""
        lease = self.data_lease(topic_id, partition, assignment)
        grant = None if lease is None else self._announced(lease)
        if grant is None:
            return Leader(NO_NODE, -1)
        return Leader(grant.node_id, grant.epoch + (0 if assignment is None else assignment.epoch_base))

    def _announced(self, lease: Lease) -> Grant | None:
        grant = self.holders.get(lease)
        return grant if grant is not None and grant.announced else None
