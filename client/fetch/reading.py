"""The partitions that a fetcher reads: which records can be returned, and what to do if a log changed since
it was read. Every partition has its own state, backoff and failure, so that one does not hold up the others.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from muster.client.errors import OffsetOutOfRange, TruncationDetected
from muster.client.fetch.positions import Cause, PartitionState, Position, ResetStrategy, truncated_at
from muster.client.fetch.records import Batch
from muster.client.fetch.requests import FetchSettings
from muster.client.network.cluster import Cluster
from muster.client.network.connection import deadline
from muster.client.partitions import TopicPartition
from muster.protocol.errors import ErrorCode, KafkaError

E = TypeVar("E", bound=Exception)

RawBatch: TypeAlias = Batch[bytes | None, bytes | None]

log = logging.getLogger(__name__)


class Reset(NamedTuple):
    """A partition continues from another offset."""

    partition: TopicPartition
    from_offset: int | None
    """None if it had no position yet."""
    to_offset: int
    why: str
    former_topic: uuid.UUID | None = None
    """The id of the topic that was read, if another topic has taken its name."""


class Reading:
    """The assigned partitions, and what the next poll returns or raises."""

    def __init__(
        self,
        cluster: Cluster,
        settings: FetchSettings,
        on_reset: Callable[[Reset], None],
        on_failure: Callable[[], None],
    ) -> None:
        self.settings = settings
        self.assigned: dict[TopicPartition, PartitionState] = {}
        self.doubtful: set[str] = set()
        """Topics whose leaders must be looked up."""
        self.news = asyncio.Event()
        """Set when there is something for a poll."""
        self._cluster = cluster
        self._on_reset = on_reset
        self._on_failure = on_failure
        self._buffered: dict[TopicPartition, PartitionState] = {}
        """Partitions with records to return, in turn order."""
        self._failures: dict[TopicPartition | None, Exception] = {}
        """What polls raise, by partition."""

    @property
    def has_buffered(self) -> bool:
        return bool(self._buffered)

    @property
    def has_failures(self) -> bool:
        return bool(self._failures)

    def is_current(self, state: PartitionState, era: int) -> bool:
        """Whether responses of this era still matter."""
        return self.assigned.get(state.where) is state and state.era == era

    def buffer(self, state: PartitionState) -> None:
        """Mark it as having records to return."""
        self._buffered.setdefault(state.where, state)
        self.news.set()

    def forget(self, state: PartitionState) -> None:
        """Drop the records and failures found for it so far."""
        self._buffered.pop(state.where, None)
        self._failures.pop(state.where, None)

    # --- handing out ----------------------------------------------------------------------------------------

    def take(self, max_records: int) -> tuple[list[RawBatch], list[PartitionState]]:
        """The next records, at most this many, and the partitions that now have room for more. Whatever is
        raised, no record is lost."""
        before: list[tuple[PartitionState, Position | None]] = []
        try:
            return self._take(max_records, before)
        except BaseException:
            for state, position in before:
                state.fetch_again(position)
                self._buffered.setdefault(state.where, state)  # so that the next call notices its room
            raise

    def _take(
        self, max_records: int, before: list[tuple[PartitionState, Position | None]]
    ) -> tuple[list[RawBatch], list[PartitionState]]:
        """As `take`, which is told `before` what position each partition had."""
        taken: list[RawBatch] = []
        with_room: list[PartitionState] = []
        left = max_records
        for where, state in list(self._buffered.items()):
            if not state.is_delivering:
                continue
            before.append((state, state.position))
            try:
                while left > 0 and (batch := state.take(left)) is not None:
                    taken.append(batch)
                    left -= len(batch)
            except Exception as failure:  # damage, or too little memory
                self.fail(state, failure)
            del self._buffered[where]
            if state.has_buffered:
                self._buffered[where] = state  # at the end: the others come first next time
            if state.buffered_bytes < self.settings.partition_max_bytes:
                with_room.append(state)
            if left <= 0:
                break
        return taken, with_room

    def raise_failure(self) -> None:
        """Raise one failure, if any; failures of the same kind together, if the exception can hold
        several."""
        if not self._failures:
            return
        where, error = next(iter(self._failures.items()))
        del self._failures[where]
        if isinstance(error, OffsetOutOfRange):
            alike = [error, *self._all_of(OffsetOutOfRange)]
            raise OffsetOutOfRange(_texts(alike), {k: v for each in alike for k, v in each.positions.items()})
        if isinstance(error, TruncationDetected):
            cut = [error, *self._all_of(TruncationDetected)]
            raise TruncationDetected(_texts(cut), {k: v for each in cut for k, v in each.diverging.items()})
        raise error

    def _all_of(self, kind: type[E]) -> list[E]:
        """Take the failures of this kind, to raise them together."""
        found = {where: each for where, each in self._failures.items() if isinstance(each, kind)}
        for where in found:
            del self._failures[where]
        return list(found.values())

    # --- lost positions -------------------------------------------------------------------------------------

    def settle_at(self, state: PartitionState, position: Position, strategy: ResetStrategy | None) -> None:
        """Continue from a position other than the one the reader expects, and report it."""
        cause = state.cause
        assert cause is not None
        before = None if cause.before is None else cause.before.offset
        state.seek(position)
        self.forget(state)
        if before is not None and cause.is_loss:
            how = "" if strategy is None else f" ({strategy})"
            skipped = position.offset - before
            lost = f", {skipped} offsets are skipped" if skipped > 0 else ""
            log.warning(
                "%s: %s; reading goes on at offset %d%s%s",
                state.where,
                cause.text,
                position.offset,
                how,
                lost,
            )
        self._on_reset(Reset(state.where, before, position.offset, cause.text, cause.former_topic))
        self.news.set()

    def out_of_range(self, state: PartitionState, log_start: int) -> None:
        position = state.position
        assert position is not None
        begins = f"; it begins at {log_start}" if log_start >= 0 else ""
        text = f"the log of {state.where} has no offset {position.offset}{begins}"
        self.lost(state, text, OffsetOutOfRange(text, {state.where: position.offset}))

    def lost(self, state: PartitionState, text: str, error: Exception) -> None:
        """The position is no longer in the log: apply the reset policy, or raise."""
        if self.settings.reset is None:
            self.fail(state, error)
        else:
            state.reset(self.settings.reset, Cause(text, state.position, is_loss=True))
            self.forget(state)

    def diverges(self, state: PartitionState, epoch: int, end_offset: int) -> None:
        """The leader's log is not the one that was read (KIP-320): it was truncated, and may have grown
        again."""
        position = state.position
        assert position is not None
        diverging = truncated_at(position, epoch, end_offset)
        if diverging is None:
            text = f"the log of {state.where} was cut below offset {position.offset}, it cannot be told where"
            self.lost(state, text, TruncationDetected(text, {state.where: -1}))
        elif diverging.offset == position.offset:
            state.seek(diverging)
        else:
            text = f"the log of {state.where} was cut at offset {diverging.offset}, below {position.offset}"
            self.cut(state, text, diverging)

    def cut(
        self, state: PartitionState, text: str, diverging: Position, former_topic: uuid.UUID | None = None
    ) -> None:
        """With any reset policy, continue where the log was truncated, so that nothing of the new log is
        missed."""
        if self.settings.reset is None:
            self.fail(state, TruncationDetected(text, {state.where: diverging.offset}))
        else:
            state.cause = Cause(text, state.position, is_loss=True, former_topic=former_topic)
            self.settle_at(state, diverging, None)

    # --- failures -------------------------------------------------------------------------------------------

    def cannot_pass(self, error: Exception) -> bool:
        """Whether it is permanent, and so raised to the user. A missing topic may appear, or be
        re-created."""
        if isinstance(error, KafkaError):
            return not (error.code.retriable or error.code is ErrorCode.UNKNOWN_SERVER_ERROR)
        return self._cluster.is_final(error)

    def fail(self, state: PartitionState, error: Exception) -> None:
        """Have the next poll raise it, and retry later."""
        state.fails(error, deadline(0), self._cluster.backoff_s(state.failures))
        self._failures[state.where] = error
        self.news.set()
        self._on_failure()

    def try_again(self, state: PartitionState, error: Exception) -> None:
        """Retry later with fresh metadata; raise it if it is permanent."""
        state.replica = None
        if self.cannot_pass(error):
            self.fail(state, error)
        else:
            state.fails(error, deadline(0), self._cluster.backoff_s(state.failures))
        self._cluster.stale(state.where.topic)
        self.doubtful.add(state.where.topic)

    def fail_all(self, error: Exception) -> None:
        """Have the next poll raise a failure that concerns no single partition."""
        self._failures[None] = error
        self.news.set()


def _texts(errors: Sequence[Exception]) -> str:
    return "; ".join(str(each) for each in errors)
