"""What each error code means to a transaction, in the answer to each request: the one table of it. Pure.

It follows Kafka's Java client (KIP-890, KIP-1050), with these differences. A commit of offsets that the group
refuses for what is in it (metadata too long) can be aborted, as everything can that the next transaction may
do better. INVALID_TXN_STATE in the answer to EndTxn says that there is nothing to end: the broker has aborted
the transaction.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode


class Fate(Enum):
    """What comes of a transaction whose request was refused."""

    AGAIN = auto()
    """It goes on: the request is sent again."""
    ELSEWHERE = auto()
    """It goes on: the request is sent again, to the coordinator that is looked up before."""
    ABORT = auto()
    """It must be aborted; the producer goes on."""
    GONE = auto()
    """The coordinator has nothing to end: the transaction was aborted."""
    FENCED = auto()
    """Another producer has taken the transactional id: this one is of no use any more."""
    FATAL = auto()
    """The producer is of no use any more."""


_EVERYWHERE: Final = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE: Fate.ELSEWHERE,
    ErrorCode.NOT_COORDINATOR: Fate.ELSEWHERE,
    ErrorCode.PRODUCER_FENCED: Fate.FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH: Fate.FENCED,  # what old versions say for PRODUCER_FENCED (KIP-588)
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: Fate.FATAL,
    ErrorCode.INVALID_TXN_STATE: Fate.FATAL,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Fate.FATAL,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: Fate.FATAL,
    ErrorCode.TRANSACTION_ABORTABLE: Fate.ABORT,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: Fate.ABORT,
}

_IN_ANSWER_TO: Final = {
    # The broker has ended the transaction, or somebody else has: EndTxn tells which.
    ApiKey.PRODUCE: {
        ErrorCode.INVALID_PRODUCER_EPOCH: Fate.ABORT,
        ErrorCode.INVALID_TXN_STATE: Fate.ABORT,
    },
    ApiKey.END_TXN: {ErrorCode.INVALID_TXN_STATE: Fate.GONE},
}

_OTHERWISE: Final = {
    # What concerns one partition or one group; the next transaction may do without it.
    ApiKey.PRODUCE: Fate.ABORT,
    ApiKey.ADD_PARTITIONS_TO_TXN: Fate.ABORT,
    ApiKey.TXN_OFFSET_COMMIT: Fate.ABORT,
}


def fate_of(api_key: ApiKey, code: ErrorCode) -> Fate:
    """What comes of the transaction after this code in the answer to such a request. For InitProducerId, that
    is what comes of the producer."""
    told = _IN_ANSWER_TO.get(api_key, {}).get(code) or _EVERYWHERE.get(code)
    if told is not None:
        return told
    return Fate.AGAIN if code.retriable else _OTHERWISE.get(api_key, Fate.FATAL)


MEMBER_IS_BEHIND: Final = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.STALE_MEMBER_EPOCH,
    }
)
"""Refusals of offsets for what the group has become meanwhile."""
