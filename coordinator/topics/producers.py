"""Producers as one partition sees them: which batch is next, which one is a repeat, and which of them have a
transaction open here (KIP-98, KIP-360, KIP-890).

Derived only from the log's batches, through the `observe` methods, when a batch is appended and when a log is
opened. The snapshot saves a start the scan of closed segments. Only the guards of beginning transactions are
kept nowhere else, and are lost with the log (`guards`).
"""

from __future__ import annotations

from collections import deque
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from muster.coordinator.topics.guards import UNVERIFIED, Guard, Guards
from muster.coordinator.transactions.marker import NO_COORDINATOR_EPOCH, Marker, check_marker
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.record_batch import NO_PRODUCER_ID, NO_SEQUENCE, SEQUENCE_MAX, Header

BATCHES_KEPT: Final = 5
"""max.in.flight.requests.per.connection of an idempotent producer: no older batch can be repeated."""

NO_TRANSACTION: Final = -1

_SNAPSHOT = Struct(">I")
_PRODUCER = Struct(">qhqBiq")
_PRODUCER_WITHOUT_TRANSACTIONS = Struct(">qhqB")
_BATCH = Struct(">iiqi")


class Written(NamedTuple):
    """A batch of a producer, kept while a repeat of it may come."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    offset_delta: int


class ActiveProducer(NamedTuple):
    """A producer as DescribeProducers shows it. `last_ms` is the timestamp of its last batch or marker."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_ms: int
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    transaction_start: int = NO_TRANSACTION


class Producer:
    """The state of one producer id."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_ms", "transaction_start")

    def __init__(self, epoch: int, last_ms: int) -> None:
        self.epoch = epoch
        self.last_ms = last_ms  # timestamp of its last batch or marker; decides when it is forgotten
        self.coordinator_epoch = NO_COORDINATOR_EPOCH  # of its last marker
        self.transaction_start = NO_TRANSACTION  # first offset of the transaction it has open here
        self.batches: deque[Written] = deque(maxlen=BATCHES_KEPT)  # of this epoch

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def due(self) -> int:
        """The next sequence expected in its epoch."""
        batches = self.batches
        return (batches[-1].last_sequence + 1) & SEQUENCE_MAX if batches else 0

    def has_open(self, epoch: int) -> bool:
        """Whether it has a transaction open here, of this epoch."""
        return self.transaction_start != NO_TRANSACTION and self.epoch == epoch

    def enter(self, epoch: int) -> None:
        """Its first batch or marker of another epoch is in the log."""
        self.epoch = epoch
        self.batches.clear()


class Producers:
    """All producers of one partition."""

    __slots__ = ("_by_id", "_open", "guards")

    def __init__(self) -> None:
        self.guards = Guards()
        self._by_id: dict[int, Producer] = {}
        self._open: dict[int, int] = {}  # first offsets of open transactions by producer, ascending

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def first_undecided(self) -> int | None:
        """Where the oldest open transaction began."""
        return next(iter(self._open.values()), None)

    def transaction_start(self, producer_id: int) -> int:
        """The first offset of the producer's open transaction, or NO_TRANSACTION."""
        return self._open.get(producer_id, NO_TRANSACTION)

    def open(self) -> list[tuple[int, int, int]]:
        """Producer id, epoch and first offset of each open transaction, the oldest first."""
        return [(each, self._by_id[each].epoch, start) for each, start in self._open.items()]

    def active(self) -> list[ActiveProducer]:
        """All producers, by id."""
        return [
            ActiveProducer(
                producer_id,
                each.epoch,
                each.last_sequence,
                each.last_ms,
                each.coordinator_epoch,
                each.transaction_start,
            )
            for producer_id, each in sorted(self._by_id.items())
        ]

    # --- what may be appended ---------------------------------------------------------------------

    def begin_verification(self, header: Header, *, epoch_raised: bool, now_ms: int) -> Guard | None:
        """The guard that a transactional batch needs, to be made before its coordinator is asked
        (`Guards.make`); None if its transaction is open. INVALID_PRODUCER_EPOCH (47) as for `check`. From any
        thread, beside appends: what it sees may be outdated a moment later, which `check` detects."""
        producer = self._by_id.get(header.producer_id)
        if producer is not None:
            self._check_epoch(header, producer)
            if producer.has_open(header.producer_epoch):
                return None
        return self.guards.make(header, epoch_raised=epoch_raised, now_ms=now_ms)

    def check(self, header: Header, guard: Guard | None = None) -> int | None:
        """Return None if the batch may be appended now, or the original's offset if it is a repeat.

        INVALID_PRODUCER_EPOCH (47) for an epoch older than the last; OUT_OF_ORDER_SEQUENCE_NUMBER (45) for a
        gap, for a repeat older than the last five batches, and for a new epoch that does not begin at 0. Any
        first sequence is accepted from an unknown producer (it never wrote, or its records are gone).
        INVALID_TXN_STATE (48) for a transactional batch that would open a transaction under a `guard` that is
        not (or no longer) kept, and for a plain one of a producer that has one open. NOT_LEADER_OR_FOLLOWER
        (6) for a `guard` made before the log was opened: its producer sends the batch again, and the
        coordinator is asked again.
        """
        producer_id = header.producer_id
        if producer_id == NO_PRODUCER_ID:
            return None
        producer = self._by_id.get(producer_id)
        transactional = header.is_transactional
        if producer is None:
            if transactional:
                self._check_guard(header, None, guard)
            return None
        self._check_epoch(header, producer)
        first, last, epoch = header.base_sequence, header.last_sequence, header.producer_epoch
        if epoch == producer.epoch:
            for batch in producer.batches:
                if batch.first_sequence == first and batch.last_sequence == last:
                    return batch.base_offset
        if transactional and not producer.has_open(epoch):
            self._check_guard(header, producer, guard)
        if epoch > producer.epoch:
            if first != 0:
                raise self._out_of_order(header, "a new epoch must begin at sequence 0")
        elif first != producer.due:
            raise self._out_of_order(header, f"the last sequence was {producer.last_sequence}")
        if producer.transaction_start != NO_TRANSACTION and not transactional:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {producer_id} has a transaction open, and the batch is not part of it",
            )
        return None

    def _check_epoch(self, header: Header, producer: Producer) -> None:
        if header.producer_epoch < producer.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} is at epoch {producer.epoch}; the batch has epoch "
                f"{header.producer_epoch}",
            )

    def _check_guard(self, header: Header, producer: Producer | None, guard: Guard | None) -> None:
        if guard is not None and guard is not UNVERIFIED and guard.guards is not self.guards:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                "the log was reopened while the transaction's coordinator was asked",
            )
        kept = self.guards.of(header.producer_id)
        if guard is not UNVERIFIED and (guard is None or guard is not kept):
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} has no transaction open here, and its coordinator was not "
                "asked about one, or one has been ended since",
            )
        if kept is None or kept.epoch != header.producer_epoch:
            return
        first = header.base_sequence
        if kept.epoch_raised and first != 0 and (producer is None or not producer.batches):
            raise self._out_of_order(header, "a transaction's epoch must begin at sequence 0")
        if first > kept.lowest_sequence:
            raise self._out_of_order(header, f"sequence {kept.lowest_sequence} came before")

    def check_marker(self, marker: Marker) -> None:
        """Raises unless the marker may be appended now, as `transactions.marker.check_marker` says; one of an
        unknown producer may."""
        producer = self._by_id.get(marker.producer_id)
        if producer is not None:
            check_marker(
                marker,
                epoch=producer.epoch,
                is_open=producer.transaction_start != NO_TRANSACTION,
                coordinator_epoch=producer.coordinator_epoch,
            )

    def due(self, header: Header) -> int | None:
        """The first sequence that `check` would accept for a new batch; None for any, since the producer is
        unknown."""
        producer = self._by_id.get(header.producer_id)
        if producer is None:
            return None
        if header.producer_epoch > producer.epoch:
            return 0
        if header.producer_epoch < producer.epoch:
            return header.base_sequence  # it is not refused for its sequence
        return producer.due

    # --- what is in the log -----------------------------------------------------------------------

    def observe(self, header: Header) -> None:
        """A batch of records is in the log."""
        producer_id = header.producer_id
        if producer_id == NO_PRODUCER_ID:
            return
        producer = self._by_id.get(producer_id)
        if producer is None:
            producer = self._by_id[producer_id] = Producer(header.producer_epoch, header.max_timestamp)
        elif producer.epoch != header.producer_epoch:
            producer.enter(header.producer_epoch)
        producer.last_ms = header.max_timestamp
        producer.batches.append(
            Written(header.base_sequence, header.last_sequence, header.base_offset, header.last_offset_delta)
        )
        if header.is_transactional and producer.transaction_start == NO_TRANSACTION:
            producer.transaction_start = self._open[producer_id] = header.base_offset

    def observe_marker(self, header: Header, coordinator_epoch: int) -> int:
        """A marker is in the log. Returns where the transaction it ended began, or NO_TRANSACTION."""
        producer_id = header.producer_id
        producer = self._by_id.get(producer_id)
        if producer is None:
            producer = self._by_id[producer_id] = Producer(header.producer_epoch, header.max_timestamp)
        elif producer.epoch != header.producer_epoch:
            producer.enter(header.producer_epoch)
        producer.last_ms = header.max_timestamp
        producer.coordinator_epoch = coordinator_epoch
        producer.transaction_start = NO_TRANSACTION
        return self._open.pop(producer_id, NO_TRANSACTION)

    def observe_empty_marker(self, header: Header) -> None:
        """A marker whose record compaction removed is in the log: it ends nothing, but tells its producer's
        epoch."""
        producer = self._by_id.get(header.producer_id)
        if producer is None:
            self._by_id[header.producer_id] = Producer(header.producer_epoch, header.max_timestamp)
        elif producer.epoch < header.producer_epoch:
            producer.enter(header.producer_epoch)

    def is_newest(self, header: Header) -> bool:
        """Whether this batch holds its producer's last sequence, or its epoch if no batch was sent in that:
        compaction keeps the header even without records."""
        producer = self._by_id.get(header.producer_id)
        if producer is None:
            return False
        if not producer.batches:
            return header.is_control and header.producer_epoch == producer.epoch
        newest = producer.batches[-1]
        return newest.base_offset + newest.offset_delta == header.last_offset

    def expire(self, before_ms: int) -> int:
        """Forget producers whose last batch or marker is older (producer.id.expiration.ms), unless they have
        a transaction open; return how many. Also drop older guards."""
        self.guards.expire(before_ms)
        expired = [
            producer_id
            for producer_id, producer in self._by_id.items()
            if producer.last_ms < before_ms and producer.transaction_start == NO_TRANSACTION
        ]
        for producer_id in expired:
            del self._by_id[producer_id]
        return len(expired)

    def reset(self) -> None:
        self._by_id.clear()
        self._open.clear()

    def snapshot(self) -> bytes:
        parts = [_SNAPSHOT.pack(len(self._by_id))]
        for producer_id, producer in self._by_id.items():
            known = producer.epoch, producer.last_ms, len(producer.batches)
            marked = producer.coordinator_epoch, producer.transaction_start
            parts.append(_PRODUCER.pack(producer_id, *known, *marked))
            parts += (_BATCH.pack(*batch) for batch in producer.batches)
        return b"".join(parts)

    def restore(self, snapshot: bytes, *, with_transactions: bool = True) -> int:
        """Restore a snapshot; return how many bytes of `snapshot` it took. ValueError if it is truncated.

        `with_transactions`: False for one from before there were any.
        """
        form = _PRODUCER if with_transactions else _PRODUCER_WITHOUT_TRANSACTIONS
        try:
            (count,) = _SNAPSHOT.unpack_from(snapshot)
            position = _SNAPSHOT.size
            for _ in range(count):
                producer_id, epoch, last_ms, batches, *marked = form.unpack_from(snapshot, position)
                position += form.size
                producer = self._by_id[producer_id] = Producer(epoch, last_ms)
                if marked:
                    producer.coordinator_epoch, producer.transaction_start = marked
                for _ in range(batches):
                    producer.batches.append(Written(*_BATCH.unpack_from(snapshot, position)))
                    position += _BATCH.size
        except StructError:
            raise ValueError("the snapshot of producers is truncated") from None
        begun = ((each.transaction_start, producer_id) for producer_id, each in self._by_id.items())
        self._open = {producer_id: start for start, producer_id in sorted(begun) if start != NO_TRANSACTION}
        return position

    def _out_of_order(self, header: Header, why: str) -> KafkaError:
        sent = f"sequence {header.base_sequence} in epoch {header.producer_epoch}"
        return KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"producer {header.producer_id} sent {sent}: {why}"
        )
