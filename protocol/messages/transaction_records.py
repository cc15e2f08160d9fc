"""The transaction coordinator's own records: what Kafka keeps in the topic `__transaction_state`.

A key is an int16 record type followed by the transactional id, a value an int16 schema version followed by
its fields; a tombstone (no value) removes the id.
"""

from __future__ import annotations

from typing import Final, cast

from muster.protocol.message import Message, Struct, field, record, struct
from muster.protocol.messages.keyed_records import Schemas, decode, frame_key, frame_value
from muster.protocol.types import Array, Int8, Int16, Int32, Int64, String

TRANSACTION_LOG_VALUE_VERSION: Final = 1
"""The version Kafka writes from transaction.version 1 on; v0 is only read."""


@record(versions="0")
class TransactionLogKey(Message):
    """Key of a transactional id (record type 0). Never flexible."""

    transactional_id: str = field(String, "0")


@record(versions="0-1", flexible="1+")
class TransactionLogValue(Message):
    """The state of a transactional id's transactions, v0-1: v1 flexible, with the producer ids before and
    after a rotation and the protocol generation of the transaction's client (KIP-890).

    `transaction_status` is a state's number, `transaction_partitions` is null in state Empty. Timestamps are
    epoch milliseconds, `transaction_start_timestamp_ms` -1 without a transaction. Tag 3, the next producer
    epoch, belongs to two-phase commit (KIP-939), which Kafka does not write yet.
    """

    @struct
    class PartitionsSchema(Struct):
        topic: str = field(String, "0+")
        partition_ids: list[int] = field(Array(Int32), "0+")

    producer_id: int = field(Int64, "0+")
    previous_producer_id: int = field(Int64, "1+", tag=0, default=-1)
    next_producer_id: int = field(Int64, "1+", tag=1, default=-1)
    producer_epoch: int = field(Int16, "0+")
    next_producer_epoch: int = field(Int16, "1+", tag=3, default=-1)
    transaction_timeout_ms: int = field(Int32, "0+")
    transaction_status: int = field(Int8, "0+")
    transaction_partitions: list[PartitionsSchema] | None = field(
        Array(PartitionsSchema), "0+", nullable="0+"
    )
    transaction_last_update_timestamp_ms: int = field(Int64, "0+")
    transaction_start_timestamp_ms: int = field(Int64, "0+")
    client_transaction_version: int = field(Int16, "1+", tag=2, default=0)


_SCHEMAS: Final[Schemas] = {0: (TransactionLogKey, TransactionLogValue)}


def encode_key(key: TransactionLogKey) -> bytes:
    """The record type and the transactional id."""
    return frame_key(0, key)


def encode_value(value: TransactionLogValue) -> bytes:
    """The schema version and the value's fields in that version."""
    return frame_value(value, TRANSACTION_LOG_VALUE_VERSION)


def decode_record(
    key: bytes, value: bytes | None
) -> tuple[TransactionLogKey, TransactionLogValue | None] | None:
    """The record's key and value; (key, None) for a tombstone; None for a record type this module does not
    know. Raises DecodeError for bytes that do not fit the schema, and for value versions newer than the
    schema."""
    return cast("tuple[TransactionLogKey, TransactionLogValue | None] | None", decode(_SCHEMAS, key, value))
