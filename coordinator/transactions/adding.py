"""AddPartitionsToTxn: adds or verifies the partitions that a transaction writes to (KIP-98, KIP-890)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from muster.coordinator.transactions.refusals import concurrent, fenced, other_producer_id
from muster.coordinator.transactions.states import TransactionState
from muster.coordinator.transactions.transaction import TopicPartition, Transaction
from muster.protocol.errors import ErrorCode


class AddPartitions(NamedTuple):
    """Partitions that a producer is about to write to. A group that it commits offsets to is represented by
    the group's partition of `__consumer_offsets`."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]
    client_version: int = 0
    """2: a broker adds them for a client that leaves this to brokers (KIP-890)."""


class VerifyPartitions(NamedTuple):
    """Asks whether a producer's transaction has these partitions: a broker does so before it accepts the
    first batch."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]


Verified = Mapping[TopicPartition, ErrorCode]
"""NONE, or TRANSACTION_ABORTABLE for a partition that the transaction does not have."""


def added(transaction: Transaction, asked: AddPartitions, now_ms: int) -> Transaction | None:
    """The transaction with these partitions; None if it has them already. Raises CONCURRENT_TRANSACTIONS
    while the previous one is being ended, which is checked first: after a rotation, its producer id and epoch
    are not yet those its producer was given. Else INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED."""
    if transaction.state.is_prepared:
        raise concurrent(asked.transactional_id, transaction)
    _check(transaction, asked)
    ongoing = transaction.state is TransactionState.ONGOING
    if ongoing and asked.partitions <= transaction.partitions:
        return None
    return transaction._replace(
        state=TransactionState.ONGOING,
        partitions=transaction.partitions | asked.partitions if ongoing else asked.partitions,
        started_ms=transaction.started_ms if ongoing else now_ms,
        last_update_ms=now_ms,
        previous_producer_id=transaction.producer_id,
        client_version=asked.client_version,
    )


def verified(transaction: Transaction, asked: VerifyPartitions) -> Verified:
    """Which of the partitions the transaction has. Raises INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED,
    CONCURRENT_TRANSACTIONS."""
    _check(transaction, asked)
    if transaction.state.is_prepared:
        raise concurrent(asked.transactional_id, transaction)
    there = transaction.partitions
    return {
        each: ErrorCode.NONE if each in there else ErrorCode.TRANSACTION_ABORTABLE
        for each in asked.partitions
    }


def _check(transaction: Transaction, asked: AddPartitions | VerifyPartitions) -> None:
    if asked.producer_id != transaction.producer_id:
        raise other_producer_id(asked.transactional_id, transaction, asked.producer_id)
    if asked.producer_epoch != transaction.producer_epoch:
        raise fenced(asked.transactional_id, transaction, asked.producer_id, asked.producer_epoch)
