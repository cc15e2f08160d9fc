"""The records of one partition in one response: split into batches on arrival, unpacked when they are
returned. What the reader must not see is left out at once: control batches, empty batches, and, for
read_committed, those of aborted transactions (KIP-98).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final, NamedTuple

from muster.client.fetch.records import CREATE_TIME, LOG_APPEND_TIME, Batch
from muster.client.partitions import TopicPartition
from muster.protocol.errors import DecodeError, ErrorCode, KafkaError
from muster.protocol.record_batch import (
    HEADER_BYTES,
    ControlType,
    Header,
    control_type,
    crc_matches,
    peek,
    records,
)
from muster.protocol.record_reader import Places, read_records

_NO_HEADERS: Final = ()


class AbortedTransaction(NamedTuple):
    """An aborted transaction, as a broker reports it: its producer, and its first offset in the partition."""

    producer_id: int
    first_offset: int


class _Item(NamedTuple):
    position: int
    header: Header


class Packed(NamedTuple):
    """A complete, verified batch whose records are not unpacked yet."""

    header: Header
    data: bytes


class Part:
    """Batches from `offset` on, as received; the last one may be incomplete if the response had no more room.
    `aborted` are the aborted transactions of a read_committed response, None for read_uncommitted.
    """

    __slots__ = (
        "_at",
        "_check_crcs",
        "_data",
        "_failure",
        "_following",
        "_items",
        "_offset",
        "_ready",
        "_where",
        "last_epoch",
        "next_offset",
        "size_bytes",
    )

    def __init__(
        self,
        where: TopicPartition,
        data: bytes | memoryview,
        offset: int,
        leader_epoch: int,
        aborted: Iterable[AbortedTransaction] | None = None,
        *,
        check_crcs: bool = True,
    ) -> None:
        self._where = where
        self._data = data
        self._offset = offset
        self._check_crcs = check_crcs
        self._items: deque[_Item] = deque()
        self._following: deque[int] = deque()  # the offset after each item
        self._failure: KafkaError | None = None
        self._ready: Batch[bytes | None, bytes | None] | None = None
        self._at = 0
        self.size_bytes = len(data)
        self.next_offset = offset
        """The next offset to fetch."""
        self.last_epoch = leader_epoch
        """The leader epoch of the last batch, or the one given if there is none."""
        try:
            self._find_batches(aborted)
        except DecodeError as undecodable:
            self._failure = self.corrupt(self.next_offset, undecodable)
        except KafkaError as error:
            self._failure = error

    @property
    def is_exhausted(self) -> bool:
        """Whether nothing is left, not even an error to raise."""
        return not self._items and self._ready is None and self._failure is None

    @property
    def is_damaged(self) -> bool:
        """Whether an error must be raised that stops fetching beyond it."""
        return self._failure is not None

    def take(self, records_max: int) -> Batch[bytes | None, bytes | None] | None:
        """The next records, at most this many; None if there are no more. Small batches are merged. Raises
        KafkaError(CORRUPT_MESSAGE) at unreadable data, once everything before it is taken."""
        ready = self._ready
        if ready is None:
            ready = self._unpack(records_max)
            if ready is None:
                return None
            if len(ready) <= records_max:
                return ready
            self._ready, self._at = ready, 0
        end = self._at + records_max
        taken = ready[self._at : end]
        self._at = end
        if end >= len(ready):
            self._ready = None
        return taken

    @property
    def upcoming(self) -> Header | None:
        """The header of the next batch that `take_packed` returns; None if there are no more."""
        return self._items[0].header if self._items else None

    def take_packed(self) -> Packed | None:
        """The next batch, for callers that unpack it themselves; None if there are no more. Its first records
        may lie before the requested offset. Must not be mixed with `take`. Raises KafkaError as `take`
        does."""
        if not self._items:
            if self._failure is not None:
                raise self._failure
            return None
        position, header = self._items[0]
        packed = Packed(header, self._batch(position, header))
        self._items.popleft()
        self._following.popleft()
        return packed

    def corrupt(self, offset: int, why: object) -> KafkaError:
        """The error raised at the batch at this offset."""
        return KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"{self._where}: the batch at offset {offset} cannot be read: {why}"
        )

    # --- finding --------------------------------------------------------------------------------------------

    def _find_batches(self, aborted: Iterable[AbortedTransaction] | None) -> None:
        data, end, position = self._data, len(self._data), 0
        filtering = None if aborted is None else _Aborted(aborted)
        while end - position >= HEADER_BYTES:
            header = peek(data, position)
            after = position + header.size
            if after > end:
                break
            shown = not header.is_control and header.record_count > 0
            if filtering is not None:
                if header.is_control:
                    filtering.end_transaction(self._batch(position, header), header)
                elif not filtering.shows(header):
                    shown = False
            self.next_offset = max(self.next_offset, header.next_offset)
            self.last_epoch = header.leader_epoch
            if shown and header.next_offset > self._offset:
                self._items.append(_Item(position, header))
                self._following.append(self.next_offset)
            elif self._following:
                self._following[-1] = self.next_offset
            position = after

    # --- unpacking ------------------------------------------------------------------------------------------

    def _unpack(self, records_max: int) -> Batch[bytes | None, bytes | None] | None:
        """The next non-empty batch, merged with those after it, up to `records_max`."""
        keys: list[bytes | None] = []
        values: list[bytes | None] = []
        places: list[Places] = []
        first: Header | None = None
        count = 0
        for item in self._items:
            if len(values) >= records_max or (first is not None and not _go_together(first, item.header)):
                break
            try:
                found = self._read(item, keys, values)
            except Exception:  # KafkaError, but also MemoryError
                if places:
                    break  # The error comes up again once these are returned.
                raise
            count += 1
            if found.timestamps:
                places.append(found)
                first = first or item.header
        batch = None
        if first is not None:
            batch = Batch(
                self._where.topic,
                self._where.partition,
                *_joined(places),
                keys=keys,
                values=values,
                next_offset=self._following[count - 1],
                timestamp_type=LOG_APPEND_TIME if first.is_log_append_time else CREATE_TIME,
                leader_epoch=first.leader_epoch,
            )
        for _ in range(count):
            self._items.popleft()
            self._following.popleft()
        if batch is None and self._failure is not None and not self._items:
            raise self._failure
        return batch

    def _read(self, item: _Item, keys: list[bytes | None], values: list[bytes | None]) -> Places:
        """Append the keys and values of a batch from the position on."""
        position, header = item
        known = len(values)
        try:
            found = read_records(self._batch(position, header), 0, header, keys, values)
        except DecodeError as error:
            raise self.corrupt(header.base_offset, error) from error
        if header.base_offset >= self._offset:
            return found
        # The first batch may start before the position.
        start = bisect_left(found.offsets, self._offset)
        del keys[known : known + start], values[known : known + start]
        offsets, timestamps, headers = found
        return Places(offsets[start:], timestamps[start:], None if headers is None else headers[start:])

    def _batch(self, position: int, header: Header) -> bytes:
        """The bytes of a batch, verified."""
        batch = bytes(self._data[position : position + header.size])
        if self._check_crcs and not crc_matches(batch, 0, header):
            raise self.corrupt(header.base_offset, "its checksum does not match")
        return batch


class _Aborted:
    """Knows which batches belong to aborted transactions; must be queried in log order."""

    def __init__(self, transactions: Iterable[AbortedTransaction]) -> None:
        self._coming = deque(sorted(transactions, key=lambda each: each.first_offset))
        self._under_way: set[int] = set()  # producer ids

    def shows(self, header: Header) -> bool:
        """Whether the batch's records are visible."""
        self._begin(header)
        return not (header.is_transactional and header.producer_id in self._under_way)

    def end_transaction(self, batch: bytes, header: Header) -> None:
        """Handle a control batch. Raises DecodeError if it is malformed."""
        self._begin(header)
        for marker in records(batch, 0, header):
            if control_type(marker) == ControlType.ABORT:
                self._under_way.discard(header.producer_id)

    def _begin(self, header: Header) -> None:
        while self._coming and self._coming[0].first_offset <= header.last_offset:
            self._under_way.add(self._coming.popleft().producer_id)


def _go_together(first: Header, second: Header) -> bool:
    """Whether the records of both fit into one Batch."""
    return first.leader_epoch == second.leader_epoch and first.is_log_append_time == second.is_log_append_time


def _joined(several: Sequence[Places]) -> Places:
    if len(several) == 1:
        return several[0]
    headers = None
    if any(each.headers is not None for each in several):
        headers = [
            one
            for each in several
            for one in (each.headers if each.headers is not None else [_NO_HEADERS] * len(each.timestamps))
        ]
    timestamps = list(chain.from_iterable(each.timestamps for each in several))
    return Places(_joined_offsets([each.offsets for each in several]), timestamps, headers)


def _joined_offsets(several: Sequence[Sequence[int]]) -> Sequence[int]:
    """One range if all are ranges without gaps between them."""
    expected = several[0][0]
    for each in several:
        if not isinstance(each, range) or each.start != expected:
            return list(chain.from_iterable(several))
        expected = each.stop
    return range(several[0][0], expected)
