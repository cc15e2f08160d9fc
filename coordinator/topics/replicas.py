"""Replica lists: which ones a request may ask for, and how they are made for a replication factor."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from muster.coordinator.cluster.placement import spread
from muster.coordinator.storage.store import Assignment, Replicas
from muster.protocol.errors import ErrorCode, KafkaError


class Hosts(NamedTuple):
    """The live brokers that partitions can be assigned to."""

    racks: Mapping[int, str | None]
    """By node id."""
    drained: Collection[int] = ()
    """Brokers that get no new partitions while there are enough others."""
    keeps_replicas: bool = True
    """Whether all of them know replica lists; while one does not, none are made."""

    def spread(self, topic_id: UUID, partitions: range, factor: int) -> dict[int, Assignment]:
        """Assignments for new partitions of a topic. INVALID_REPLICATION_FACTOR (38) unless there are that
        many brokers. A partition with one replica gets no assignment: any broker may lead it."""
        if not 1 <= factor <= len(self.racks):
            many = len(self.racks)
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"replication factor {factor} with {many} broker{'s' if many != 1 else ''}",
            )
        if factor == 1 or not self.keeps_replicas:
            return {}
        placeable = {node_id: rack for node_id, rack in self.racks.items() if node_id not in self.drained}
        brokers = placeable if len(placeable) >= factor else self.racks
        lists = spread(topic_id, partitions, factor, brokers)
        return {partition: Assignment(replicas) for partition, replicas in lists.items()}

    def assigned(self, lists: Mapping[int, Replicas], factor: int | None = None) -> dict[int, Assignment]:
        """The requested assignments, by partition. INVALID_REPLICA_ASSIGNMENT (39) unless each names at least
        one broker, none twice, only live ones, and `factor` of them, by default as many as the first."""
        for replicas in lists.values():
            factor = len(replicas) if factor is None else factor
            self.check(replicas)
            if len(replicas) != factor:
                raise KafkaError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"each partition must have {factor} replicas, unlike {list(replicas)}",
                )
        if not self.keeps_replicas:
            return {}
        return {partition: Assignment(replicas) for partition, replicas in lists.items()}

    def check(self, replicas: Replicas) -> None:
        """INVALID_REPLICA_ASSIGNMENT (39) unless a partition can be assigned to these."""
        if not replicas:
            why = "a partition is assigned to no broker"
        elif len(set(replicas)) != len(replicas):
            why = f"a partition is assigned to brokers {list(replicas)}, one of them twice"
        elif missing := [node_id for node_id in replicas if node_id not in self.racks]:
            why = f"a partition is assigned to brokers {list(replicas)}, of which {missing} are not alive"
        else:
            return
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, why)


def factor_of(assignments: Mapping[int, Assignment], partition: int = 0) -> int:
    """How many replicas a partition has."""
    assignment = assignments.get(partition)
    return 1 if assignment is None else len(assignment.replicas)


def lists_of(assignments: Iterable[Assignment]) -> set[Replicas]:
    """The replica lists, each once."""
    return {each.replicas for each in assignments}
