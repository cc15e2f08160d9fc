"""A look at some records of a partition, shortened and read like any Fetch. Slow work runs in a thread, for
at most two looks at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from muster.coordinator.server.broker import Broker
from muster.coordinator.server.memory import ResponseReservation
from muster.coordinator.topics.catalogue import Topic
from muster.coordinator.topics.partitions import FetchPartition
from muster.protocol.compression import UnpackedTooLarge
from muster.protocol.errors import DecodeError
from muster.protocol.record_batch import Header, Record, batches, records

RECORDS_MAX: Final = 100
_READ_BYTES_MAX: Final = 4 * 1024 * 1024
"""Maximum bytes of batches read for one look."""
_PIECE_BYTES: Final = 512 * 1024
_UNPACKED_BYTES_MAX: Final = 2 * 1024 * 1024
"""Maximum bytes of one unpacked batch; larger ones are reported, not shown."""
_READS_MAX: Final = 40
_SHOWN_BYTES: Final = 256 * 1024
"""Maximum bytes of keys, values and headers for one look."""
_FIELD_BYTES_MAX: Final = 4_096
_KEY_BYTES_MAX: Final = 512
_HEADERS_MAX: Final = 20
_PRINTABLE: Final = frozenset("\t\n\r")


class Look(NamedTuple):
    """The records found, oldest first."""

    start: int
    """The log start offset."""
    end: int
    """The high watermark."""
    records: list[dict[str, Any]]
    left_out: list[dict[str, Any]]
    """Batches not shown between those records, or before or behind them if all that were read are shown;
    and why."""
    cut: bool
    """More were requested than one look may read."""


class _Found(NamedTuple):
    """The records of some batches."""

    records: list[Record]
    left_out: list[dict[str, Any]]


async def newest(broker: Broker, topic: Topic, partition: int, *, before: int | None, limit: int) -> Look:
    """The last `limit` records, below `before` if given. Raises KafkaError 3, 6, 56 like a Fetch."""
    start, end = await broker.partitions.of(topic).offsets(topic, partition)
    reading = _Reading(broker, topic, partition)
    high, step = end if before is None else min(before, end), 1
    found = _Found([], [])
    while high > start and len(found.records) < limit and not reading.spent:
        low = max(start, high - step)
        data = await reading.span(low, high)
        if data is None:
            break  # a part not read to its end would leave a gap
        piece = await asyncio.to_thread(_decode, data, start, high)
        found = _Found(piece.records + found.records, piece.left_out + found.left_out)
        # Batches are complete, so the first may begin below `low`.
        firsts = [each.offset for each in piece.records] + [each["offset"] for each in piece.left_out]
        high = min(low, *firsts) if firsts else low
        step *= 4
    cut = len(found.records) < limit and high > start
    some, left_out = found.records[-limit:], found.left_out
    if len(some) < len(found.records):
        left_out = [each for each in left_out if each["offset"] > some[0].offset]
    return await asyncio.to_thread(_shown, start, end, some, left_out[-RECORDS_MAX:], limit, cut)


async def since(broker: Broker, topic: Topic, partition: int, *, offset: int, limit: int) -> Look:
    """The first `limit` records from `offset` on. Raises like `newest`."""
    start, end = await broker.partitions.of(topic).offsets(topic, partition)
    reading = _Reading(broker, topic, partition)
    low, found = max(offset, start), _Found([], [])
    while low < end and len(found.records) < limit and not reading.spent:
        data = await reading.piece(low)
        if not data:
            break
        piece = await asyncio.to_thread(_decode, data, low, end)
        found = _Found(found.records + piece.records, found.left_out + piece.left_out)
        low = _behind(data)
    cut = len(found.records) < limit and low < end
    some, left_out = found.records[:limit], found.left_out
    if len(some) < len(found.records):
        left_out = [each for each in left_out if each["offset"] < some[-1].offset]
    return await asyncio.to_thread(_shown, start, end, some, left_out[:RECORDS_MAX], limit, cut)


class _Reading:
    """The reads of one look, and how much they may still read."""

    def __init__(self, broker: Broker, topic: Topic, partition: int) -> None:
        self._broker = broker
        self._topic = topic
        self._partition = partition
        self._reads = 0
        self._bytes = 0

    @property
    def spent(self) -> bool:
        return self._reads >= _READS_MAX or self._bytes >= _READ_BYTES_MAX

    async def piece(self, offset: int) -> bytes:
        """Complete batches, starting with the one that contains `offset`; empty at the end of the log."""
        with ResponseReservation(self._broker.connections.responses) as share:
            asked = FetchPartition(self._topic, self._partition, offset, _PIECE_BYTES)
            (answer,) = await self._broker.partitions.fetch(
                [asked], min_bytes=0, max_bytes=_PIECE_BYTES, max_wait_ms=0, lend=share.lend
            )
        if answer.error is not None:
            raise answer.error
        self._reads += 1
        self._bytes += len(answer.records)
        return bytes(answer.records)

    async def span(self, low: int, high: int) -> bytes | None:
        """All batches from the one that contains `low` up to `high`; None if that is too much."""
        pieces: list[bytes] = []
        while low < high:
            if self.spent:
                return None
            data = await self.piece(low)
            if not data:
                break
            pieces.append(data)
            low = _behind(data)
        return b"".join(pieces)


def _behind(data: bytes) -> int:
    """The offset after these complete batches."""
    *_, (_, last) = batches(data)
    return last.next_offset


# --- in a thread --------------------------------------------------------------------------------------------


def _decode(data: bytes, low: int, high: int) -> _Found:
    """The records from `low` up to `high`."""
    found = _Found([], [])
    for position, header in batches(data):
        if header.next_offset <= low or header.base_offset >= high or header.is_control:
            continue
        try:
            unpacked = records(data, position, header, bytes_max=_UNPACKED_BYTES_MAX)
            if header.size > _UNPACKED_BYTES_MAX:
                raise UnpackedTooLarge("too large")
            found.records.extend(each for each in unpacked if low <= each.offset < high)
        except UnpackedTooLarge:
            why = f"it is larger than {_UNPACKED_BYTES_MAX // 1024 // 1024} MiB"
            found.left_out.append(_left_out(header, why))
        except DecodeError as error:
            found.left_out.append(_left_out(header, f"it cannot be read: {error}"))
    return found


def _left_out(header: Header, why: str) -> dict[str, Any]:
    return {
        "offset": header.base_offset,
        "last_offset": header.next_offset - 1,
        "records": header.record_count,
        "why": why,
    }


def _shown(
    start: int, end: int, some: list[Record], left_out: list[dict[str, Any]], limit: int, cut: bool
) -> Look:
    room = min(_FIELD_BYTES_MAX, _SHOWN_BYTES // max(limit, 1))
    return Look(start, end, [_record_json(each, room) for each in some], left_out, cut)


def _record_json(record: Record, room: int) -> dict[str, Any]:
    headers = record.headers[:_HEADERS_MAX]
    each_room = max(min(_KEY_BYTES_MAX, room // max(len(headers), 1)), 32)
    return {
        "offset": record.offset,
        "timestamp_ms": record.timestamp,
        "key": shown(record.key, min(_KEY_BYTES_MAX, room)),
        "value": shown(record.value, room),
        "headers": [[name[:_KEY_BYTES_MAX], shown(value, each_room)] for name, value in headers],
        "more_headers": len(record.headers) - len(headers),
    }


def shown(data: bytes | None, room: int) -> dict[str, Any] | None:
    """The first `room` bytes: as `text` if they are printable UTF-8, as `hex` otherwise; None for null.
    `size` is the full size, `cut` whether there is more."""
    if data is None:
        return None
    part, cut = data[:room], len(data) > room
    text = _text(part, cut)
    if text is not None:
        return {"size": len(data), "cut": cut, "text": text}
    few = part[: max(room // 4, 16)]
    return {"size": len(data), "cut": len(few) < len(data), "hex": few.hex()}


def _text(part: bytes, cut: bool) -> str | None:
    """The bytes as printable text; None if they are not."""
    for trimmed in _endings(part) if cut else (part,):
        try:
            text = trimmed.decode()
        except UnicodeDecodeError:
            continue
        return text if all(each.isprintable() or each in _PRINTABLE for each in text) else None
    return None


def _endings(part: bytes) -> Iterable[bytes]:
    """The bytes without the last 0 to 3: a UTF-8 character has at most four, and may be cut within them."""
    return (part[: len(part) - gone] for gone in range(4))
