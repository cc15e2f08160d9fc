"""Batches of idempotent producers that this process refused though nothing was wrong with them: their log
could not be written, or its leadership was in doubt. They come again, and what their producers sent after
them must not be judged before that.

A sequence gap is answered with OUT_OF_ORDER_SEQUENCE_NUMBER only when it is the producer's own. Producers
take it for a loss, and some start over under another id or epoch: whatever of theirs was stored, in any
partition, and not acknowledged yet, would then be there twice.
"""

from __future__ import annotations

from threading import Lock
from typing import Final, NamedTuple

from muster.protocol.errors import ErrorCode
from muster.protocol.record_batch import NO_PRODUCER_ID, SEQUENCE_MAX, Header

COMES_AGAIN: Final = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.KAFKA_STORAGE_ERROR,
)
"""The refusals after which a producer sends the same batch again."""
KEPT_MS: Final = 120_000
"""Kafka's delivery.timeout.ms: producers give a record up after that."""
PRODUCERS_MAX: Final = 10_000
"""Producers for which one partition keeps anything; the oldest are dropped first."""


class _Range(NamedTuple):
    """Sequences of one producer, the last included."""

    epoch: int
    first: int
    last: int
    since_ms: int


class Refused:
    """The refused batches of one partition. Usable from any thread."""

    __slots__ = ("_by_id", "_lock")

    def __init__(self) -> None:
        self._lock = Lock()
        self._by_id: dict[int, _Range] = {}  # the oldest first

    def __bool__(self) -> bool:
        return bool(self._by_id)

    def note(self, header: Header, now_ms: int) -> None:
        """A batch was refused, with one of `COMES_AGAIN`."""
        if header.producer_id == NO_PRODUCER_ID:
            return
        first, last = header.base_sequence, header.last_sequence
        with self._lock:
            self._forget(now_ms)
            noted = self._by_id.get(header.producer_id)
            if noted is None or noted.epoch < header.producer_epoch:
                self._by_id.pop(header.producer_id, None)
                self._by_id[header.producer_id] = _Range(header.producer_epoch, first, last, now_ms)
            elif noted.epoch == header.producer_epoch:
                self._by_id[header.producer_id] = noted._replace(
                    first=first if _behind(first, noted.first) else noted.first,
                    last=last if _behind(noted.last, last) else noted.last,
                )

    def _forget(self, now_ms: int) -> None:
        """Forget what is too old, or too much."""
        while self._by_id:
            producer_id, oldest = next(iter(self._by_id.items()))
            if now_ms - oldest.since_ms <= KEPT_MS and len(self._by_id) < PRODUCERS_MAX:
                break
            del self._by_id[producer_id]

    def misses(self, header: Header, due: int | None, now_ms: int) -> bool:
        """Whether a batch came ahead of an earlier one that was refused; `due` is the next sequence of its
        producer, None when the log does not know the producer."""
        noted = self._by_id.get(header.producer_id)
        if (
            noted is None
            or noted.epoch != header.producer_epoch
            or not 0 <= now_ms - noted.since_ms <= KEPT_MS
        ):
            return False
        if due is None:
            return _behind(noted.first, header.base_sequence)
        refused = not _behind(due, noted.first) and not _behind(noted.last, due)
        return refused and _behind(due, header.base_sequence)


def _behind(one: int, other: int) -> bool:
    """Whether `one` comes before `other`; sequences begin at 0 again after SEQUENCE_MAX."""
    return 0 < (other - one) & SEQUENCE_MAX <= SEQUENCE_MAX // 2
