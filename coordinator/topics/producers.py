"""Idempotent producers as one partition sees them: which batch is next, which one is a repeat (KIP-98,
KIP-360).

Derived from the batches of the log alone: `observe` is the only way in, when a batch was appended and when a
log is opened. The snapshot spares a start the scan of closed segments.
"""

from __future__ import annotations

from collections import deque
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.record_batch import NO_PRODUCER_ID, SEQUENCE_MAX, Header

BATCHES_KEPT: Final = 5
"""max.in.flight.requests.per.connection of an idempotent producer: no older batch can be repeated."""

_SNAPSHOT = Struct(">I")
_PRODUCER = Struct(">qhqB")
_BATCH = Struct(">iiqi")


class Written(NamedTuple):
    """A batch of a producer, as long as a repeat of it may come."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    offset_delta: int


class ActiveProducer(NamedTuple):
    """What DescribeProducers tells of a producer. `last_ms` is the timestamp of its last batch."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_ms: int


class Producer:
    """What is known of one producer id."""

    __slots__ = ("batches", "epoch", "last_ms")

    def __init__(self, epoch: int, last_ms: int) -> None:
        self.epoch = epoch
        self.last_ms = last_ms  # timestamp of its last batch; decides when it is forgotten
        self.batches: deque[Written] = deque(maxlen=BATCHES_KEPT)


class Producers:
    """All producers of one partition."""

    __slots__ = ("_by_id",)

    def __init__(self) -> None:
        self._by_id: dict[int, Producer] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def active(self) -> list[ActiveProducer]:
        """All of them, by id."""
        return [
            ActiveProducer(producer_id, each.epoch, each.batches[-1].last_sequence, each.last_ms)
            for producer_id, each in sorted(self._by_id.items())
        ]

    def check(self, header: Header) -> int | None:
        """None if the batch may be appended now; the offset of the first time if it is a repeat.

        INVALID_PRODUCER_EPOCH (47) for an epoch older than the last; OUT_OF_ORDER_SEQUENCE_NUMBER (45) for a
        gap, for a repeat older than the last five batches, and for a new epoch that does not begin at 0. Of a
        producer that is not known (it never wrote, or its records are gone) any first sequence is taken.
        """
        if header.producer_id == NO_PRODUCER_ID:
            return None
        producer = self._by_id.get(header.producer_id)
        if producer is None:
            return None
        first, last, epoch = header.base_sequence, header.last_sequence, header.producer_epoch
        if epoch < producer.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} is at epoch {producer.epoch}; the batch has epoch {epoch}",
            )
        if epoch > producer.epoch:
            if first != 0:
                raise self._out_of_order(header, "a new epoch must begin at sequence 0")
            return None
        for batch in producer.batches:
            if batch.first_sequence == first and batch.last_sequence == last:
                return batch.base_offset
        newest = producer.batches[-1].last_sequence
        if first != (newest + 1) & SEQUENCE_MAX:
            raise self._out_of_order(header, f"the last sequence was {newest}")
        return None

    def due(self, header: Header) -> int | None:
        """The first sequence that `check` would take for a new batch; None for any, since the producer is not
        known."""
        producer = self._by_id.get(header.producer_id)
        if producer is None:
            return None
        if header.producer_epoch > producer.epoch:
            return 0
        if header.producer_epoch < producer.epoch:
            return header.base_sequence  # its sequence is not what it is refused for
        return (producer.batches[-1].last_sequence + 1) & SEQUENCE_MAX

    def observe(self, header: Header) -> None:
        """A batch is in the log."""
        if header.producer_id == NO_PRODUCER_ID or header.is_control:
            return
        producer = self._by_id.get(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            producer = self._by_id[header.producer_id] = Producer(header.producer_epoch, header.max_timestamp)
        producer.last_ms = header.max_timestamp
        producer.batches.append(
            Written(header.base_sequence, header.last_sequence, header.base_offset, header.last_offset_delta)
        )

    def is_newest(self, header: Header) -> bool:
        """Whether this batch holds its producer's last sequence: compaction keeps its header even without
        records."""
        producer = self._by_id.get(header.producer_id)
        return (
            producer is not None
            and bool(producer.batches)
            and (producer.batches[-1].base_offset + producer.batches[-1].offset_delta == header.last_offset)
        )

    def expire(self, before_ms: int) -> int:
        """Forget producers whose last batch is older (producer.id.expiration.ms); how many."""
        expired = [
            producer_id for producer_id, producer in self._by_id.items() if producer.last_ms < before_ms
        ]
        for producer_id in expired:
            del self._by_id[producer_id]
        return len(expired)

    def reset(self) -> None:
        self._by_id.clear()

    def snapshot(self) -> bytes:
        parts = [_SNAPSHOT.pack(len(self._by_id))]
        for producer_id, producer in self._by_id.items():
            parts.append(_PRODUCER.pack(producer_id, producer.epoch, producer.last_ms, len(producer.batches)))
            parts += (_BATCH.pack(*batch) for batch in producer.batches)
        return b"".join(parts)

    def restore(self, snapshot: bytes) -> int:
        """Take over a snapshot; how many bytes of `snapshot` it took. ValueError when it is cut short."""
        try:
            (count,) = _SNAPSHOT.unpack_from(snapshot)
            position = _SNAPSHOT.size
            for _ in range(count):
                producer_id, epoch, last_ms, batches = _PRODUCER.unpack_from(snapshot, position)
                position += _PRODUCER.size
                producer = self._by_id[producer_id] = Producer(epoch, last_ms)
                for _ in range(batches):
                    producer.batches.append(Written(*_BATCH.unpack_from(snapshot, position)))
                    position += _BATCH.size
        except StructError:
            raise ValueError("the snapshot of producers is truncated") from None
        return position

    def _out_of_order(self, header: Header, why: str) -> KafkaError:
        sent = f"sequence {header.base_sequence} in epoch {header.producer_epoch}"
        return KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"producer {header.producer_id} sent {sent}: {why}"
        )
