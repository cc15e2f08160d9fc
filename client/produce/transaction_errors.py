"""The meaning of each error code for a transaction, by request, in one table. Pure.

It follows Kafka's Java client (KIP-890, KIP-1050), with these differences. If the group refuses an offset
commit for its content (metadata too long), the transaction can be aborted, as after any error that the next
transaction may avoid. If it refuses one for the producer's epoch, EndTxn shows whether the producer is
fenced, as after the same code from a partition: the group cannot tell that from a transaction that took too
long. INVALID_TXN_STATE in the response to EndTxn means that there is nothing to end: the broker has aborted
the transaction.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode


class Fate(Enum):
    """What becomes of a transaction whose request was refused."""

    AGAIN = auto()
    """It goes on: resend the request."""
    ELSEWHERE = auto()
    """It goes on: look up the coordinator, then resend the request."""
    ABORT = auto()
    """It must be aborted; the producer goes on."""
    GONE = auto()
    """The coordinator has nothing to end: the transaction was aborted."""
    FENCED = auto()
    """Another producer has taken over the transactional id: this one is no longer usable."""
    FATAL = auto()
    """The producer is no longer usable."""


_EVERYWHERE: Final = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE: Fate.ELSEWHERE,
    ErrorCode.NOT_COORDINATOR: Fate.ELSEWHERE,
    ErrorCode.PRODUCER_FENCED: Fate.FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH: Fate.FENCED,  # PRODUCER_FENCED in old versions (KIP-588)
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: Fate.FATAL,
    ErrorCode.INVALID_TXN_STATE: Fate.FATAL,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Fate.FATAL,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: Fate.FATAL,
    ErrorCode.TRANSACTION_ABORTABLE: Fate.ABORT,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: Fate.ABORT,
}

_IN_ANSWER_TO: Final = {
    # The broker or somebody else has ended the transaction: EndTxn shows which.
    ApiKey.PRODUCE: {
        ErrorCode.INVALID_PRODUCER_EPOCH: Fate.ABORT,
        ErrorCode.INVALID_TXN_STATE: Fate.ABORT,
    },
    ApiKey.TXN_OFFSET_COMMIT: {ErrorCode.INVALID_PRODUCER_EPOCH: Fate.ABORT},
    ApiKey.END_TXN: {ErrorCode.INVALID_TXN_STATE: Fate.GONE},
}

_OTHERWISE: Final = {
    # Errors of a single partition or group; the next transaction may do without it.
    ApiKey.PRODUCE: Fate.ABORT,
    ApiKey.ADD_PARTITIONS_TO_TXN: Fate.ABORT,
    ApiKey.TXN_OFFSET_COMMIT: Fate.ABORT,
}


def fate_of(api_key: ApiKey, code: ErrorCode) -> Fate:
    """The transaction's fate after this code in the response to such a request; for InitProducerId, the
    producer's."""
    told = _IN_ANSWER_TO.get(api_key, {}).get(code) or _EVERYWHERE.get(code)
    if told is not None:
        return told
    return Fate.AGAIN if code.retriable else _OTHERWISE.get(api_key, Fate.FATAL)


ENDED_BY_OTHERS: Final = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE})
"""Codes by which partitions and groups refuse what comes after the transaction's end."""

MEMBER_IS_BEHIND: Final = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.STALE_MEMBER_EPOCH,
    }
)
"""Codes by which a group refuses offsets because it has changed meanwhile."""
