"""Guards of beginning transactions (KIP-890): they keep out a batch whose transaction has ended while its
coordinator was being asked about it.

A transactional batch that finds no transaction of its producer open in a partition may open one, if the
coordinator says that the transaction has this partition. A guard is made before the coordinator is asked, and
the batch is appended only if this guard is still the one kept: whatever ends the transaction meanwhile drops
it.
"""

from __future__ import annotations

from threading import Lock
from typing import Final

from muster.protocol.record_batch import SEQUENCE_MAX, Header


class Guard:
    """The guard of one producer in one partition."""

    __slots__ = ("epoch", "epoch_raised", "guards", "lowest_sequence", "made_ms")

    def __init__(
        self, guards: Guards | None, epoch: int, lowest_sequence: int, *, epoch_raised: bool, made_ms: int
    ) -> None:
        self.guards = guards
        """Those of the log it was made for; None for UNVERIFIED."""
        self.epoch = epoch
        self.lowest_sequence = lowest_sequence
        """Of the batches of this epoch that came while the coordinator was asked: no later one may go
        first."""
        self.epoch_raised = epoch_raised
        """Whether the epoch is the transaction's own (transaction.version 2), so its sequences begin at 0."""
        self.made_ms = made_ms

    def __repr__(self) -> str:
        return f"<Guard epoch={self.epoch} lowest_sequence={self.lowest_sequence}>"


UNVERIFIED: Final = Guard(None, -1, SEQUENCE_MAX, epoch_raised=False, made_ms=0)
"""Stands for any guard where nothing is verified (transaction.partition.verification.enable)."""


class Guards:
    """The guards of one partition, at most one per producer. They exist only in memory: a new leader asks
    again. Usable from any thread."""

    __slots__ = ("_by_producer", "_lock")

    def __init__(self) -> None:
        self._by_producer: dict[int, Guard] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._by_producer)

    def of(self, producer_id: int) -> Guard | None:
        """The guard kept for a producer."""
        return self._by_producer.get(producer_id)

    def make(self, header: Header, *, epoch_raised: bool, now_ms: int) -> Guard:
        """The guard for a batch about whose transaction the coordinator will be asked: the kept one, if
        any."""
        epoch, sequence = header.producer_epoch, header.base_sequence
        with self._lock:
            kept = self._by_producer.get(header.producer_id)
            if kept is None:
                kept = Guard(self, epoch, sequence, epoch_raised=epoch_raised, made_ms=now_ms)
                self._by_producer[header.producer_id] = kept
            elif epoch > kept.epoch:
                kept.epoch, kept.lowest_sequence, kept.epoch_raised = epoch, sequence, epoch_raised
            elif epoch == kept.epoch:
                kept.lowest_sequence = min(sequence, kept.lowest_sequence)
            return kept

    def begun(self, producer_id: int) -> None:
        """A batch of a transaction is in the log, which shows from now on that the transaction is open."""
        with self._lock:
            self._by_producer.pop(producer_id, None)

    def ended(self, producer_id: int, epoch: int, *, epoch_raised: bool) -> None:
        """A marker of this epoch is in the log. If it raises the epoch (transaction.version 2) to that of the
        guard, it has ended the transaction before the guard's, and the guard stays."""
        with self._lock:
            kept = self._by_producer.get(producer_id)
            if kept is not None and not (epoch_raised and epoch == kept.epoch):
                del self._by_producer[producer_id]

    def expire(self, before_ms: int) -> None:
        """Drop guards made before this time (producer.id.expiration.ms)."""
        with self._lock:
            self._by_producer = {
                producer_id: guard
                for producer_id, guard in self._by_producer.items()
                if guard.made_ms >= before_ms
            }
