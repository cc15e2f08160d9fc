"""The topic `__transaction_state`: the records of the transaction shards (see `keyed_rows`)."""

from __future__ import annotations

from muster.coordinator.storage.store import LeaseKind
from muster.coordinator.topics.keyed_rows import NO_TIMESTAMP, KeyedRows
from muster.protocol.messages.transaction_records import TransactionLogValue, decode_record


class TransactionStates(KeyedRows):
    """The partitions of `__transaction_state` that one broker leads."""

    kind = LeaseKind.TRANSACTION

    def _made_ms(self, key: bytes, value: bytes) -> int:
        """When the transactional id was last initialized, or its transaction added to, ended or completed."""
        match decode_record(key, value):
            case (_, TransactionLogValue() as transaction):
                return transaction.transaction_last_update_timestamp_ms
        return NO_TIMESTAMP
