"""InitProducerId: who owns a transactional id from now on, and in which epoch (KIP-98, KIP-360, KIP-890)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from muster.coordinator.transactions.refusals import concurrent, fenced
from muster.coordinator.transactions.states import TransactionState
from muster.coordinator.transactions.transaction import (
    LAST_EPOCH,
    NO_EPOCH,
    NO_PRODUCER_ID,
    Transaction,
)


class Had(NamedTuple):
    """The producer id and epoch that a producer had before, to continue after an error; both are -1 when it
    starts."""

    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_EPOCH

    @property
    def is_none(self) -> bool:
        return self.epoch == NO_EPOCH


class Started(NamedTuple):
    """The state of an id after InitProducerId."""

    transaction: Transaction
    last_epoch: int
    """The epoch that the same request would carry if repeated because its answer was lost; NO_EPOCH: none."""


def unused(producer_id: int, timeout_ms: int, now_ms: int) -> Transaction:
    """An id that no producer has had, before its first epoch."""
    return Transaction(producer_id, NO_EPOCH, timeout_ms, TransactionState.EMPTY, now_ms)


def check(transactional_id: str, transaction: Transaction, had: Had) -> None:
    """Raises CONCURRENT_TRANSACTIONS while markers are on their way, and PRODUCER_FENCED for a producer with
    another producer id: the one before a rotation is accepted only with the last epoch it was given."""
    if transaction.state.is_prepared:
        raise concurrent(transactional_id, transaction)
    if had.is_none or transaction.producer_epoch == NO_EPOCH or had.producer_id == transaction.producer_id:
        return
    if had.producer_id == transaction.previous_producer_id and had.epoch >= LAST_EPOCH:
        return
    raise fenced(transactional_id, transaction, had.producer_id, had.epoch)


def started(
    transactional_id: str,
    transaction: Transaction,
    last_epoch: int,
    had: Had,
    timeout_ms: int,
    now_ms: int,
    new_id: Callable[[], int],
) -> Started:
    """Give an id without a transaction its next epoch; after the last one, another producer id from `new_id`.
    Raises PRODUCER_FENCED for a producer in an epoch that is over."""
    continues = transaction.producer_epoch == NO_EPOCH or had.epoch == transaction.producer_epoch
    producer_id, epoch = transaction.producer_id, transaction.producer_epoch
    if had.is_none or continues:
        last_epoch = NO_EPOCH if had.is_none else epoch
        if transaction.is_exhausted:
            producer_id, epoch = new_id(), 0
        else:
            epoch += 1
    elif had.epoch != last_epoch:
        raise fenced(transactional_id, transaction, had.producer_id, had.epoch)
    after = Transaction(
        producer_id,
        epoch,
        timeout_ms,
        TransactionState.EMPTY,
        now_ms,
        previous_producer_id=transaction.producer_id,
    )
    return Started(after, last_epoch)
