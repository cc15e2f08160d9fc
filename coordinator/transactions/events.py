"""Events of transactional ids, as data, recorded when they happen."""

from __future__ import annotations

from typing import NamedTuple

from muster.coordinator.transactions.states import TransactionState, Trigger
from muster.coordinator.transactions.transaction import TopicPartition


class StateChanged(NamedTuple):
    """A transactional id moved from one state to another."""

    transactional_id: str
    before: TransactionState
    after: TransactionState
    trigger: Trigger
    producer_id: int
    producer_epoch: int
    partitions: int
    """Number of partitions in the transaction."""
    started_ms: int
    """Epoch milliseconds; -1 without a transaction."""


class IdExpired(NamedTuple):
    """A transactional id was forgotten: unused for transactional.id.expiration.ms."""

    transactional_id: str
    producer_id: int
    last_update_ms: int
    """Epoch milliseconds."""


class MarkersDue(NamedTuple):
    """Each of these partitions is owed a marker. Emitted when the outcome is durable, and again when the
    shard has been loaded."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    """The marker's epoch: that of the decision, which fences whoever wrote before it."""
    commits: bool
    partitions: frozenset[TopicPartition]
    version: int
    """The transaction.version whose rules the marker follows: 2 if its epoch was raised for it (KIP-890,
    KIP-1228)."""
