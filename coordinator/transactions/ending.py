"""EndTxn, and what else ends a transaction: a newer producer, the transaction's timeout (KIP-98, KIP-890).

There are two generations of clients, told apart by the version of EndTxn. Those of the second (v5,
transaction.version 2) get a new epoch at the end of every transaction, so that nothing that arrives late from
an old transaction can be taken for part of the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from muster.coordinator.transactions.refusals import concurrent, fenced, other_producer_id, wrong_state
from muster.coordinator.transactions.states import TransactionState
from muster.coordinator.transactions.transaction import (
    FENCING_EPOCH,
    LAST_EPOCH,
    NO_PRODUCER_ID,
    Transaction,
)

_COMPLETED: Final = {True: TransactionState.COMPLETE_COMMIT, False: TransactionState.COMPLETE_ABORT}
_PREPARED: Final = {True: TransactionState.PREPARE_COMMIT, False: TransactionState.PREPARE_ABORT}

_RAISES_EPOCH: Final = 2
"""The transaction.version from which the end of a transaction raises its producer's epoch."""


class End(NamedTuple):
    """A producer's request to end its transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commits: bool
    raises_epoch: bool = False
    """The client is of the second generation."""

    @property
    def wish(self) -> str:
        return "commit" if self.commits else "abort"


def to_prepare(transaction: Transaction, asked: End) -> bool:
    """Whether to prepare the transaction: False for a repeated request, which succeeds again.
    Raises INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS, INVALID_TXN_STATE."""
    return _second_generation(transaction, asked) if asked.raises_epoch else _first(transaction, asked)


def _first(transaction: Transaction, asked: End) -> bool:
    if asked.producer_id != transaction.producer_id:
        raise other_producer_id(asked.transactional_id, transaction, asked.producer_id)
    if asked.producer_epoch != transaction.producer_epoch:
        raise fenced(asked.transactional_id, transaction, asked.producer_id, asked.producer_epoch)
    if transaction.state.is_prepared:
        raise concurrent(asked.transactional_id, transaction)
    if transaction.state is TransactionState.ONGOING:
        return True
    if transaction.state is _COMPLETED[asked.commits]:
        return False
    raise wrong_state(asked.transactional_id, transaction, asked.wish)


def _second_generation(transaction: Transaction, asked: End) -> bool:
    # Checked first: after a rotation, the producer has been given an id that the transaction does not have
    # yet.
    if transaction.state.is_prepared:
        raise concurrent(asked.transactional_id, transaction)
    # Under the first generation's rules, ending raises no epoch: an epoch one above the request's is then not
    # its producer's next one, but that of the producer that came after (Kafka does not tell them apart).
    completed = transaction.state in _COMPLETED.values() and transaction.client_version >= _RAISES_EPOCH
    rotated = (
        asked.producer_id == transaction.previous_producer_id
        and asked.producer_epoch == LAST_EPOCH
        and transaction.producer_epoch == 0
    )
    if asked.producer_id != transaction.producer_id and not rotated:
        raise other_producer_id(asked.transactional_id, transaction, asked.producer_id)
    if completed and (rotated or asked.producer_epoch + 1 == transaction.producer_epoch):
        if transaction.state is not _COMPLETED[asked.commits]:
            raise wrong_state(asked.transactional_id, transaction, asked.wish)
        return False
    if asked.producer_epoch != transaction.producer_epoch:
        raise fenced(asked.transactional_id, transaction, asked.producer_id, asked.producer_epoch)
    if asked.commits and transaction.state is not TransactionState.ONGOING:
        raise wrong_state(asked.transactional_id, transaction, asked.wish)
    return True


def prepared(
    transaction: Transaction, *, commits: bool, version: int, now_ms: int, new_id: Callable[[], int]
) -> Transaction:
    """The transaction with its outcome decided. Under the rules of version 2 its epoch is raised; after the
    last one it continues with another producer id, which `new_id` gives."""
    epoch, next_id = transaction.producer_epoch, NO_PRODUCER_ID
    if version >= _RAISES_EPOCH:
        next_id = new_id() if transaction.is_exhausted else NO_PRODUCER_ID
        epoch = min(epoch + 1, FENCING_EPOCH)
    ongoing = transaction.state is TransactionState.ONGOING
    return transaction._replace(
        state=_PREPARED[commits],
        producer_epoch=epoch,
        next_producer_id=next_id,
        previous_producer_id=transaction.producer_id,
        partitions=transaction.partitions if ongoing else frozenset(),
        started_ms=transaction.started_ms if ongoing else now_ms,
        last_update_ms=now_ms,
        client_version=version,
    )


def fenced_off(transaction: Transaction) -> Transaction:
    """The transaction in an epoch that its producer does not have, to be aborted under the rules of version 0
    or 1, which do not raise the epoch themselves."""
    return transaction._replace(producer_epoch=min(transaction.producer_epoch + 1, FENCING_EPOCH))


def completed(transaction: Transaction, now_ms: int) -> Transaction:
    """A prepared transaction, completed: all its partitions have their markers."""
    rotates = transaction.next_producer_id != NO_PRODUCER_ID
    return transaction._replace(
        state=_COMPLETED[transaction.state is TransactionState.PREPARE_COMMIT],
        producer_id=transaction.next_producer_id if rotates else transaction.producer_id,
        producer_epoch=0 if rotates else transaction.producer_epoch,
        previous_producer_id=transaction.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        partitions=frozenset(),
        last_update_ms=now_ms,
    )


class Ended(NamedTuple):
    """The producer id and epoch of the next transaction, sent to clients of the second generation."""

    producer_id: int
    producer_epoch: int

    @classmethod
    def of(cls, transaction: Transaction) -> Ended:
        """Of a transaction that is prepared or complete."""
        if transaction.next_producer_id != NO_PRODUCER_ID:
            return cls(transaction.next_producer_id, 0)
        return cls(transaction.producer_id, transaction.producer_epoch)
