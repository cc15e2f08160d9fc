"""The transaction coordinator's refusals."""

from __future__ import annotations

from muster.coordinator.transactions.transaction import Transaction
from muster.protocol.errors import ErrorCode, KafkaError


def unknown_id(transactional_id: str) -> KafkaError:
    """For requests about an id that does not exist: it never did, or has expired."""
    return KafkaError(
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        f"transactional id {transactional_id} is not known; it may have expired",
    )


def other_producer_id(transactional_id: str, transaction: Transaction, producer_id: int) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        f"transactional id {transactional_id} has producer id {transaction.producer_id}, not {producer_id}",
    )


def fenced(transactional_id: str, transaction: Transaction, producer_id: int, epoch: int) -> KafkaError:
    return KafkaError(
        ErrorCode.PRODUCER_FENCED,
        f"transactional id {transactional_id} is in epoch {transaction.producer_epoch} of producer id "
        f"{transaction.producer_id}; epoch {epoch} of producer id {producer_id} is over",
    )


def concurrent(transactional_id: str, transaction: Transaction) -> KafkaError:
    """For requests that come before every partition has its marker."""
    return KafkaError(
        ErrorCode.CONCURRENT_TRANSACTIONS,
        f"the transaction of {transactional_id} is being ended: {transaction.state.wire_name}",
    )


def wrong_state(transactional_id: str, transaction: Transaction, wanted: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_TXN_STATE,
        f"there is nothing to {wanted}: transactional id {transactional_id} is {transaction.state.wire_name}",
    )
