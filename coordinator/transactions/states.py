"""The states of a transactional id, and every transition between them.

Kafka's are documented in `TransactionState.java`; the names are those of ListTransactions, the numbers those
of `__transaction_state`. Kafka's Dead and PrepareEpochFence are never written; here a forgotten id is gone
with the step, and fencing is a trigger.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, StrEnum
from typing import Final


class TransactionState(Enum):
    """The state of a transactional id: its number in records, and its name on the wire."""

    EMPTY = (0, "Empty")
    """The id's present producer has had no transaction yet."""
    ONGOING = (1, "Ongoing")
    """Partitions have been added."""
    PREPARE_COMMIT = (2, "PrepareCommit")
    """It will be committed: markers are on their way to its partitions."""
    PREPARE_ABORT = (3, "PrepareAbort")
    """It will be aborted: markers are on their way to its partitions."""
    COMPLETE_COMMIT = (4, "CompleteCommit")
    """Committed: every partition has its marker."""
    COMPLETE_ABORT = (5, "CompleteAbort")
    """Aborted: every partition has its marker."""

    __hash__ = object.__hash__  # Enum's own is Python code

    def __init__(self, number: int, wire_name: str) -> None:
        self.number = number
        self.wire_name = wire_name

    @property
    def is_prepared(self) -> bool:
        """Whether the outcome is decided, and the markers are on their way."""
        return self in _PREPARED

    @property
    def is_idle(self) -> bool:
        """Whether there is no transaction, so that the id may expire."""
        return self in _IDLE


class Trigger(StrEnum):
    """What moved a transactional id to another state."""

    PRODUCER_STARTED = "producer started"
    """InitProducerId."""
    PARTITIONS_ADDED = "partitions added"
    """The first one begins the transaction."""
    COMMITTED = "committed by its producer"
    ABORTED = "aborted by its producer"
    FENCED = "fenced by a newer producer"
    """InitProducerId of another producer while the transaction was under way."""
    TIMED_OUT = "timed out"
    """transaction.timeout.ms had passed since its first partition was added."""
    MARKED = "every partition has its marker"


_EMPTY, _ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
_PREPARE_COMMIT, _PREPARE_ABORT = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT
_COMPLETE_COMMIT, _COMPLETE_ABORT = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT

_PREPARED: Final = frozenset({_PREPARE_COMMIT, _PREPARE_ABORT})
_IDLE: Final = frozenset({_EMPTY, _COMPLETE_COMMIT, _COMPLETE_ABORT})

_STARTED: Final = frozenset({Trigger.PRODUCER_STARTED})
_ADDED: Final = frozenset({Trigger.PARTITIONS_ADDED})
_MARKED: Final = frozenset({Trigger.MARKED})
_ABORTED: Final = frozenset({Trigger.ABORTED})

TRANSITIONS: Final[Mapping[tuple[TransactionState, TransactionState], frozenset[Trigger]]] = {
    (_EMPTY, _EMPTY): _STARTED,
    (_COMPLETE_COMMIT, _EMPTY): _STARTED,
    (_COMPLETE_ABORT, _EMPTY): _STARTED,
    (_EMPTY, _ONGOING): _ADDED,
    (_ONGOING, _ONGOING): _ADDED,
    (_COMPLETE_COMMIT, _ONGOING): _ADDED,
    (_COMPLETE_ABORT, _ONGOING): _ADDED,
    (_ONGOING, _PREPARE_COMMIT): frozenset({Trigger.COMMITTED}),
    (_ONGOING, _PREPARE_ABORT): frozenset({Trigger.ABORTED, Trigger.FENCED, Trigger.TIMED_OUT}),
    # A producer of the second generation aborts what it cannot know to be empty (KIP-890).
    (_EMPTY, _PREPARE_ABORT): _ABORTED,
    (_COMPLETE_COMMIT, _PREPARE_ABORT): _ABORTED,
    (_COMPLETE_ABORT, _PREPARE_ABORT): _ABORTED,
    (_PREPARE_COMMIT, _COMPLETE_COMMIT): _MARKED,
    (_PREPARE_ABORT, _COMPLETE_ABORT): _MARKED,
}
"""Every allowed transition (from, to), with the triggers that may cause it."""

BY_NUMBER: Final[Mapping[int, TransactionState]] = {each.number: each for each in TransactionState}
BY_WIRE_NAME: Final[Mapping[str, TransactionState]] = {each.wire_name: each for each in TransactionState}
