"""The state of a transactional id, as a shard keeps it in memory and as a record."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from muster.coordinator.base.step import Row
from muster.coordinator.transactions.states import BY_NUMBER, TransactionState
from muster.protocol.errors import DecodeError
from muster.protocol.messages.transaction_records import (
    TransactionLogKey,
    TransactionLogValue,
    decode_record,
    encode_key,
    encode_value,
)

TopicPartition = tuple[str, int]

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
NO_TIME: Final = -1

LAST_EPOCH: Final = 32_766
"""The highest epoch given to a producer: 32,767 is reserved for fencing it."""
FENCING_EPOCH: Final = 32_767


class Transaction(NamedTuple):
    """A transactional id as of its last record. Times are epoch milliseconds."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    last_update_ms: int
    """When it was last initialized, added to, ended or completed."""
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = NO_TIME
    """When its first partition was added. NO_TIME: no transaction."""
    previous_producer_id: int = NO_PRODUCER_ID
    """The id before the last change; differs from `producer_id` only right after a rotation."""
    next_producer_id: int = NO_PRODUCER_ID
    """The id after a transaction whose end uses up the last epoch."""
    client_version: int = 0
    """2 if partitions are added by the brokers that write to them (transaction.version 2, KIP-890), else
    0."""

    @property
    def is_exhausted(self) -> bool:
        """Whether its epochs are used up, so that the next one comes with another producer id."""
        return self.producer_epoch >= LAST_EPOCH


def to_row(transactional_id: str, transaction: Transaction | None) -> Row:
    """The id's record; a tombstone if `transaction` is None."""
    key = encode_key(TransactionLogKey(transactional_id=transactional_id))
    if transaction is None:
        return key, None
    value = TransactionLogValue(
        producer_id=transaction.producer_id,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=transaction.next_producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state.number,
        transaction_partitions=(
            None if transaction.state is TransactionState.EMPTY else _by_topic(transaction.partitions)
        ),
        transaction_last_update_timestamp_ms=transaction.last_update_ms,
        transaction_start_timestamp_ms=transaction.started_ms,
        client_transaction_version=transaction.client_version,
    )
    return key, encode_value(value)


def from_row(key: bytes, value: bytes | None) -> tuple[str, Transaction | None] | None:
    """The transactional id and its state in the record; None for a record of an unknown type. Raises
    DecodeError."""
    decoded = decode_record(key, value)
    if decoded is None:
        return None
    decoded_key, found = decoded
    if found is None:
        return decoded_key.transactional_id, None
    state = BY_NUMBER.get(found.transaction_status)
    if state is None:
        raise DecodeError(f"transaction status {found.transaction_status} is not one that is written")
    return decoded_key.transactional_id, Transaction(
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        timeout_ms=found.transaction_timeout_ms,
        state=state,
        last_update_ms=found.transaction_last_update_timestamp_ms,
        partitions=frozenset(
            (topic.topic, number)
            for topic in found.transaction_partitions or ()
            for number in topic.partition_ids
        ),
        started_ms=found.transaction_start_timestamp_ms,
        previous_producer_id=found.previous_producer_id,
        next_producer_id=found.next_producer_id,
        client_version=found.client_transaction_version,
    )


def _by_topic(partitions: Iterable[TopicPartition]) -> list[TransactionLogValue.PartitionsSchema]:
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(number)
    return [
        TransactionLogValue.PartitionsSchema(topic=topic, partition_ids=numbers)
        for topic, numbers in topics.items()
    ]
