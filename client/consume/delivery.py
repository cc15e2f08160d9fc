"""Records taken from the fetcher but not returned yet, and those in the reader's hands. Pure.

A record is in hand from when it is returned until the reader asks for the next one; then it is handled. So a
partition has two offsets: the position, that of the next record to return, and the offset up to which records
are handled, which may be auto-committed.

Records are returned one by one from a run, a part of one batch. The consumer iterates over it without calling
this module for each record; how much of the run is left shows how many were returned.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import length_hint
from typing import Any, Generic, TypeAlias, TypeVar, cast

from muster.client.errors import DeserializationFailed
from muster.client.fetch.records import Batch, ConsumerRecord
from muster.client.partitions import NO_LEADER_EPOCH, OffsetAndMetadata, TopicPartition

K = TypeVar("K")
V = TypeVar("V")

RawBatch: TypeAlias = Batch[bytes | None, bytes | None]
Deserializer: TypeAlias = Callable[[bytes], Any]


class Delivery(Generic[K, V]):
    """Records between the fetcher and the reader."""

    def __init__(
        self,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
    ) -> None:
        self.run: Iterator[ConsumerRecord[K, V]] = iter(())
        """The records to return next."""
        self.former_topics: dict[TopicPartition, uuid.UUID] = {}
        """The topics of records in hand whose names other topics have taken."""
        self._blocked: frozenset[TopicPartition] = frozenset()
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer
        self._queue: deque[RawBatch] = deque()
        self._raw: RawBatch | None = None  # the batch that the run was made from
        self._asked = 0  # how many records of the run are handled
        self._in_hand: dict[TopicPartition, int] = {}
        self._epochs: dict[TopicPartition, int] = {}
        self._returned: set[TopicPartition] = set()
        self._counted = 0  # how many records of the run `count_anew` has counted

    # --- in -------------------------------------------------------------------------------------------------

    def add(self, batches: Iterable[RawBatch]) -> None:
        """Add batches from the fetcher."""
        self._queue.extend(batches)

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Return nothing more of these, and forget their positions."""
        gone = set(partitions)
        self._end_run()
        self._queue = deque(each for each in self._queue if each.topic_partition not in gone)
        for where in gone:
            self._in_hand.pop(where, None)
            self.former_topics.pop(where, None)
            self._epochs.pop(where, None)
            self._returned.discard(where)

    def replaced(self, where: TopicPartition, former_topic: uuid.UUID) -> None:
        """Another topic has taken the name of the one that was read: return nothing more of that one."""
        place, former = self.in_hand().get(where), self.former_topics.get(where, former_topic)
        self.drop([where])
        if place is not None:
            self._in_hand[where], self.former_topics[where] = place.offset, former

    def block(self, partitions: Iterable[TopicPartition]) -> None:
        """Return nothing of these until called again with others."""
        self._end_run()
        self._blocked = frozenset(partitions)

    def interrupt(self) -> None:
        """End the run, so that the reader must call again for more."""
        self._end_run()

    # --- out ------------------------------------------------------------------------------------------------

    def is_ready(self) -> bool:
        """Whether there is something to return."""
        return any(each.topic_partition not in self._blocked for each in self._queue)

    def start_run(self, max_records: int) -> bool:
        """Start `run` with the next records, up to this many; False if there are none. Raises
        DeserializationFailed, until the record is skipped."""
        self._end_run()
        raw = self._next(max_records)
        if raw is None:
            return False
        try:
            batch = self._deserialized(raw)
        except BaseException:
            self._queue.appendleft(raw)
            raise
        self._raw, self._asked = raw, 0
        if len(batch) < len(raw):
            self._raw = raw[: len(batch)]
            self._queue.appendleft(raw[len(batch) :])
        self.run = iter(batch.records)
        return True

    def take(self, max_records: int, *, max_batches: int | None = None) -> list[Batch[K, V]]:
        """Batches with up to this many records, which are then in hand. Raises as `start_run` does. Whatever
        either raises, no record is lost."""
        self._end_run()
        taken: list[Batch[K, V]] = []
        raws: list[RawBatch] = []
        left = max_records
        while left > 0 and len(taken) != max_batches and (raw := self._next(left)) is not None:
            try:
                batch = self._deserialized(raw)
            except DeserializationFailed:
                self._queue.appendleft(raw)
                if taken:
                    break  # Records before it are returned first.
                raise
            except BaseException:
                self._queue.extendleft((raw, *reversed(raws)))
                raise
            if len(batch) < len(raw):
                self._queue.appendleft(raw[len(batch) :])
                raw = raw[: len(batch)]
            left -= len(batch)
            taken.append(batch)
            raws.append(raw)
        for batch in taken:
            where = batch.topic_partition
            self._in_hand.setdefault(where, batch.first_offset)
            self._epochs[where] = batch.leader_epoch
            self._returned.add(where)
        return taken

    def asked(self) -> None:
        """The reader asks for more: records in hand are now handled."""
        self._in_hand.clear()
        self.former_topics.clear()
        self._asked = self._given_out()

    # --- partitions that returned records -------------------------------------------------------------------

    def count_anew(self) -> None:
        """Let `returned` begin here."""
        self._returned.clear()
        self._counted = self._given_out()

    def returned(self) -> set[TopicPartition]:
        """The partitions of which records were returned since `count_anew`, except those dropped."""
        raw = self._raw
        if raw is not None and self._given_out() > self._counted:
            return self._returned | {raw.topic_partition}
        return self._returned.copy()

    # --- positions ------------------------------------------------------------------------------------------

    def places(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The position of each partition that has records here."""
        places: dict[TopicPartition, OffsetAndMetadata] = {}
        raw, index = self._raw, self._given_out()
        epochs = self._epochs
        if raw is not None and index:
            epochs = epochs | {raw.topic_partition: raw.leader_epoch}
        rest = [] if raw is None or index == len(raw) else [(raw, index)]
        for batch, first in (*rest, *((each, 0) for each in self._queue)):
            where = batch.topic_partition
            if where not in places:
                epoch = epochs.get(where, NO_LEADER_EPOCH)
                places[where] = OffsetAndMetadata(batch.offsets[first], leader_epoch=epoch)
        return places

    def in_hand(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offset of each partition's first record in hand."""
        offsets = dict(self._in_hand)
        raw, index = self._raw, self._given_out()
        if raw is not None and index > self._asked:
            offsets.setdefault(raw.topic_partition, raw.offsets[index - 1])
        return {where: OffsetAndMetadata(offset) for where, offset in offsets.items()}

    def progress(self) -> object:
        """A value that changes whenever records are returned one by one."""
        return id(self.run), length_hint(self.run)

    # --- inside ---------------------------------------------------------------------------------------------

    def _given_out(self) -> int:
        return 0 if self._raw is None else len(self._raw) - length_hint(self.run)

    def _end_run(self) -> None:
        """Put back the rest of the run; its last record may still be in hand."""
        raw = self._raw
        if raw is None:
            return
        index = self._given_out()
        where = raw.topic_partition
        if index:
            self._epochs[where] = raw.leader_epoch
        if index > self._asked:
            self._in_hand.setdefault(where, raw.offsets[index - 1])
        if index > self._counted:
            self._returned.add(where)
        if index < len(raw):
            self._queue.appendleft(raw[index:])
        self._raw, self._asked, self._counted, self.run = None, 0, 0, iter(())

    def _next(self, max_records: int) -> RawBatch | None:
        """The next batch to return, or as much of it as wanted; the rest stays."""
        for place, raw in enumerate(self._queue):
            if raw.topic_partition in self._blocked:
                continue
            if len(raw) > max_records:
                self._queue[place] = raw[max_records:]
                return raw[:max_records]
            del self._queue[place]
            return raw
        return None

    def _deserialized(self, raw: RawBatch) -> Batch[K, V]:
        """The batch up to the first record that fails to deserialize; raises if that is the first one."""
        if self._key_deserializer is None and self._value_deserializer is None:
            return cast("Batch[K, V]", raw)
        keys, key_failure = _mapped(self._key_deserializer, raw.keys)
        # Whole batches are not copied.
        readable = raw.values if len(keys) == len(raw) else raw.values[: len(keys)]
        values, value_failure = _mapped(self._value_deserializer, readable)
        which, failure = ("value", value_failure) if value_failure else ("key", key_failure)
        if failure is not None and not values:
            where, offset = raw.topic_partition, raw.first_offset
            raise DeserializationFailed(
                f"{where}: the {which} at offset {offset} cannot be read: {failure!r}; "
                f"seek to {offset + 1} to leave the record out",
                where,
                offset,
            ) from failure
        if len(values) < len(raw):
            raw, keys = raw[: len(values)], keys[: len(values)]
        return raw.with_contents(keys, values)


def _mapped(
    deserializer: Deserializer | None, column: Sequence[bytes | None]
) -> tuple[Sequence[Any], Exception | None]:
    """A column deserialized, up to where it fails; a null stays None."""
    if deserializer is None:
        return column, None
    made: list[Any] = []
    add = made.append
    try:
        for each in column:
            add(None if each is None else deserializer(each))
    except Exception as failure:
        return made, failure
    return made, None
