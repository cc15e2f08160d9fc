"""The records that a producer has to send: batches by partition, in order, until they are settled.

Pure: the sender passes in the time and the outcomes of batches, and learns what may be sent now. Times are
seconds of any one clock.

Order is preserved through failures. A partition's batches are sent in the order in which they were begun, to
one node at a time. After a failure nothing more is sent until everything in flight is answered; then sending
resumes with the oldest batch. Without sequence numbers (idempotence off), one batch is in flight at a time,
since no broker could tell the second from the first.

Sequence numbers (KIP-98) are assigned when a batch is first sent. Until the broker has acknowledged the first
batch of an epoch, only that one is in flight: a broker that does not know a producer accepts any number as
the first. Nor is a batch sent that would make the broker forget the oldest one whose outcome is unknown.
Giving up a numbered batch may leave a gap in the numbers; the partition then restarts at 0 in a new epoch
(KIP-360), once no batch with an unknown outcome is left.

In transactions, the transaction coordinator assigns the id and its epochs: a batch that is given up ends the
transaction, and numbering restarts with the identity of the next. `joined` holds back partitions that must be
announced to the coordinator first.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from muster.client.partitions import TopicPartition
from muster.protocol.compression import Codec
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.record_batch import (
    HEADER_BYTES,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    advance_sequence,
    batches,
    records,
)
from muster.protocol.record_writer import PackedRecords, RecordBatchWriter

Headers = Iterable[tuple[str, bytes | None]]

SHARE_BYTES: Final = 16_384
"""How many bytes of a topic's keyless records a partition gets before the next one's turn: the batch.size of
Java's producer, which does the same. Larger batches do not raise it, or few records would all be in one
partition."""

PRODUCER_EPOCH_MAX: Final = 2**15 - 1
REMEMBERED_BATCHES: Final = 5
"""How many of a producer's batches per partition a broker remembers to recognize repeats."""

NEVER: Final = math.inf


class ProducerIdentity(NamedTuple):
    """The identity that numbers batches: the id a broker gave, and an epoch."""

    producer_id: int
    epoch: int


ANONYMOUS: Final = ProducerIdentity(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


class Batch:
    """Records of one partition that are sent together. `tickets` and `timestamps` have one entry per record;
    only its owner knows what a ticket is."""

    __slots__ = (
        "created",
        "done",
        "identity",
        "in_doubt",
        "number",
        "order",
        "packed",
        "queue",
        "sealed",
        "sequence",
        "tickets",
        "timestamps",
        "unpacked_bytes",
        "urgent",
        "writer",
    )

    def __init__(self, queue: PartitionQueue, order: tuple[int, ...], created: float) -> None:
        self.queue = queue
        self.order = order
        """Its position among the partition's batches; halves of a batch sort between its neighbours."""
        self.created = created
        """When its clock started: no later than when its first record was added."""
        self.writer: RecordBatchWriter | None = RecordBatchWriter()
        self.packed: PackedRecords | None = None
        self.tickets: list[Any] = []
        self.timestamps: list[int] = []
        self.sealed = False
        """No more records are added, and it does not wait for any."""
        self.urgent = False
        """Somebody awaits a record of it: it waits for more records only while its node is busy."""
        self.identity = ANONYMOUS
        self.sequence = NO_SEQUENCE
        self.number = 0
        """Its index among the partition's numbered batches."""
        self.in_doubt = False
        """It was sent, and may have been written without an acknowledgement."""
        self.done = False
        """Its tickets are settled; the outstanding response matters only for the sequence numbers."""
        self.unpacked_bytes = 0

    def __repr__(self) -> str:
        return f"<Batch {self.queue.where} {self.order} of {len(self.tickets)}, sequence {self.sequence}>"

    @property
    def where(self) -> TopicPartition:
        return self.queue.where

    @property
    def size_bytes(self) -> int:
        """The buffer memory it takes."""
        return self.unpacked_bytes if self.writer is None else self.writer.size_bytes

    def pack(self, codec: Codec) -> PackedRecords:
        """The records, packed once."""
        if self.packed is None:
            assert self.writer is not None
            self.unpacked_bytes = self.writer.size_bytes
            self.packed = self.writer.packed(codec)
            self.writer = None
        return self.packed

    def encoded(self, codec: Codec, *, transactional: bool = False) -> bytes:
        """The batch as it is sent."""
        return self.pack(codec).batch(*self.identity, self.sequence, transactional=transactional)


class PartitionQueue:
    """A partition's batches, and the state of its sequence numbers."""

    __slots__ = (
        "acknowledged",
        "batches",
        "broken",
        "halted",
        "identity",
        "in_flight",
        "last_error",
        "leader",
        "next_sequence",
        "node",
        "numbered",
        "open",
        "retry_at",
        "tries",
        "where",
    )

    def __init__(self, where: TopicPartition) -> None:
        self.where = where
        self.leader: int | None = None
        """The node that leads the partition, as far as is known."""
        self.batches: deque[Batch] = deque()
        """Batches not in flight, in order; the last one may be `open`."""
        self.open: Batch | None = None
        self.in_flight: list[Batch] = []
        self.node = -1
        """The node that the batches in flight were sent to."""
        self.halted = False
        """A batch in flight failed: nothing is sent until the rest is answered."""
        self.retry_at = 0.0
        self.tries = 0
        self.last_error: Exception | None = None
        self.identity = ANONYMOUS
        self.next_sequence = 0
        self.numbered = 0
        """The number of batches numbered so far."""
        self.acknowledged = False
        """The leader has written a batch under `identity`, so it knows which number is next."""
        self.broken = False
        """A numbered batch was given up: numbering restarts as soon as possible."""

    @property
    def is_needed(self) -> bool:
        """Whether it has records, or has numbered any."""
        return bool(self.batches or self.in_flight or self.numbered)

    def is_remembered(self) -> bool:
        """Whether the broker will still recognize a repeat of the oldest batch in flight after writing one
        more. Younger batches may be acknowledged before it, so counting those in flight is not enough."""
        return self.numbered - min(batch.number for batch in self.in_flight) < REMEMBERED_BATCHES

    def is_oldest(self, batch: Batch) -> bool:
        """Whether this batch, which is in flight, precedes all other batches of the partition."""
        return all(batch.order <= other.order for other in self.in_flight) and (
            not self.batches or batch.order < self.batches[0].order
        )


class TopicQueues:
    """A topic's partitions, and the one that takes records without a key now (KIP-480, KIP-794)."""

    __slots__ = (
        "batch",
        "batch_began_at",
        "count",
        "name",
        "queues",
        "share_left",
        "size_bytes_max",
        "sticky",
        "used_at",
    )

    def __init__(self, name: str, partitions: int, first: int = 0) -> None:
        self.name = name
        self.count = partitions
        """The number of partitions: `queues` may be longer, by those that are gone but have records."""
        self.queues = [PartitionQueue(TopicPartition(name, number)) for number in range(partitions)]
        self.sticky = self.queues[first % partitions]
        """The partition that takes records without a key."""
        self.size_bytes_max = 0
        """The size up to which its open batch takes them."""
        self.share_left = 0
        """Bytes of its share that were left when `batch` had `batch_began_at` bytes."""
        self.batch: Batch | None = None
        self.batch_began_at = 0
        self.used_at = 0.0
        """When it was last asked for, or a batch begun."""

    def resize(self, count: int) -> None:
        """Set the number of partitions that the cluster reports. It is smaller if the topic was deleted and
        created again, or the broker does not know of new partitions yet. Those that are gone get no more
        records, but stay while they have some, or have numbered any: if such a partition comes back, its
        numbers must go on."""
        self.count = count
        for number in range(len(self.queues), count):
            self.queues.append(PartitionQueue(TopicPartition(self.name, number)))
        while len(self.queues) > count and not self.queues[-1].is_needed:
            self.queues.pop()
        if self.sticky.where.partition >= count:
            self.sticky = self.queues[0]

    def move_on(self) -> None:
        """Pick another partition for records without a key: one with a leader and the fewest batches waiting,
        in turns, so that all get equal shares while all are served equally fast."""
        count = self.count
        now = self.sticky.where.partition
        best, least = self.sticky, (True, NEVER)
        for step in range(1, count + 1):
            queue = self.queues[(now + step) % count]
            load = (queue.leader is None, float(len(queue.batches) + len(queue.in_flight)))
            if load < least:
                best, least = queue, load
        self.sticky = best


class Node:
    """The requests in flight to a node, and until when it is muted."""

    __slots__ = ("in_flight", "muted_until")

    def __init__(self) -> None:
        self.in_flight = 0
        self.muted_until = 0.0


class Outgoing(NamedTuple):
    """Batches for one node that are sent in one request, at most one per partition."""

    node: int
    batches: list[Batch]


class Due(NamedTuple):
    """The result of `Accumulator.due`: requests to send now, when to ask again at the latest (NEVER: once
    something has happened), the partitions that have records but no leader, and those that are not in the
    transaction yet."""

    requests: list[Outgoing]
    ask_again_at: float
    leaderless: list[PartitionQueue]
    outside: list[PartitionQueue]


class Accumulator:
    """The records of one producer. `batch_size_bytes` is measured before packing."""

    def __init__(
        self,
        *,
        idempotent: bool = True,
        codec: Codec = Codec.NONE,
        batch_size_bytes: int = 131_072,
        share_bytes: int = SHARE_BYTES,
        linger_s: float = 0.005,
        max_in_flight: int = 5,
        request_bytes_max: int = 1_048_576,
        delivery_timeout_s: float = 120.0,
    ) -> None:
        self.codec = codec
        self.topics: dict[str, TopicQueues] = {}
        self.size_bytes = 0
        """The memory that unsettled records take."""
        self.filled = False
        """A batch became full; whoever reads this resets it."""
        self.identity: ProducerIdentity | None = None if idempotent else ANONYMOUS
        """The identity for partitions that start numbering; None until a broker has given an id."""
        self.joined: set[PartitionQueue] | None = None
        """The partitions in the transaction; None: partitions need not be announced."""
        self._idempotent = idempotent
        self.batch_size_bytes = batch_size_bytes
        self._share_bytes = min(share_bytes, batch_size_bytes)
        self._linger_s = linger_s
        self._max_in_flight = max_in_flight
        self._request_bytes_max = request_bytes_max
        self._delivery_timeout_s = delivery_timeout_s
        self._busy: dict[PartitionQueue, None] = {}
        self._nodes: dict[int, Node] = {}
        self._begun = 0

    # --- in -------------------------------------------------------------------------------------------------

    def add(
        self,
        queue: PartitionQueue,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        ticket: Any,
        size_bytes_max: int,
    ) -> bool:
        """Add a record to the partition's open batch. Returns False if there is none, or it would grow beyond
        `size_bytes_max`: then one must be begun. Raises TypeError or ValueError like the writer, with nothing
        added."""
        batch = queue.open
        if batch is None:
            return False
        size = batch.writer.append(timestamp_ms, key, value, headers, size_bytes_max)  # type: ignore[union-attr]
        if not size:
            return False
        batch.tickets.append(ticket)
        batch.timestamps.append(timestamp_ms)
        self.size_bytes += size
        return True

    def begin(
        self,
        queue: PartitionQueue,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        ticket: Any,
        now: float,
    ) -> Batch:
        """Begin a batch with a record; the open one counts as full. Raises KafkaError(MESSAGE_TOO_LARGE),
        TypeError or ValueError, with nothing changed."""
        batch = Batch(queue, (self._begun,), now)
        writer = batch.writer
        assert writer is not None
        writer.append(timestamp_ms, key, value, headers)
        size = writer.size_bytes
        if size > self._request_bytes_max:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a record for {queue.where} takes {size} bytes, max_request_size is"
                f" {self._request_bytes_max}",
            )
        self._fill(queue)
        self._begun += 1
        batch.tickets.append(ticket)
        batch.timestamps.append(timestamp_ms)
        self.size_bytes += size
        queue.batches.append(batch)
        queue.open = batch
        self._busy[queue] = None
        return batch

    def begin_keyless(
        self,
        topic: TopicQueues,
        timestamp_ms: int,
        value: bytes | None,
        headers: Headers,
        ticket: Any,
        now: float,
    ) -> Batch | None:
        """Add a record that may go to any partition, and did not fit the open batch of `topic.sticky`: to a
        new batch or, if the partition has had its share, to another partition. Returns the batch if it is
        new; raises like `begin`."""
        if topic.batch is not None:
            topic.share_left -= topic.batch.size_bytes - topic.batch_began_at
            topic.batch = None
        if topic.sticky.open is not None or topic.share_left <= 0:
            topic.move_on()
            topic.share_left = self._share_bytes
        queue = topic.sticky
        batch = queue.open
        began_at = 0 if batch is None else batch.size_bytes
        begun = None
        if not self.add(queue, timestamp_ms, None, value, headers, ticket, self.batch_size_bytes):
            batch = begun = self.begin(queue, timestamp_ms, None, value, headers, ticket, now)
            began_at = 0
        topic.batch, topic.batch_began_at = batch, began_at
        topic.size_bytes_max = min(self.batch_size_bytes, began_at + topic.share_left)
        return begun

    def _fill(self, queue: PartitionQueue) -> None:
        if queue.open is not None:
            self.seal(queue.open)
            self.filled = True

    def seal(self, batch: Batch) -> None:
        """Let it be sent without waiting for more records."""
        batch.sealed = True
        if batch.queue.open is batch:
            batch.queue.open = None

    def hurry(self, queue: PartitionQueue) -> bool:
        """Somebody awaits the last record added to the partition. Returns whether that is news to `due`."""
        batch = queue.batches[-1]
        news = not batch.urgent
        batch.urgent = True
        return news

    def began(self, queue: PartitionQueue, at: float) -> None:
        """The clock of the last record added to the partition started at `at`, before it was added."""
        batch = queue.batches[-1]
        batch.created = min(batch.created, at)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to send, and nothing in flight."""
        return not self._busy

    @property
    def has_gaps(self) -> bool:
        """Whether numbers of this identity are missing in a partition."""
        return any(
            queue.broken and queue.identity == self.identity
            for topic in self.topics.values()
            for queue in topic.queues
        )

    def unsettled(self) -> Iterator[Batch]:
        """Every batch whose tickets are not settled."""
        for queue in self._busy:
            for batch in queue.in_flight:
                if not batch.done:
                    yield batch
            yield from queue.batches

    # --- out ------------------------------------------------------------------------------------------------

    def due(self, now: float) -> Due:
        """What to send now. The batches returned count as in flight until `arrived` is called for the request
        and each of its batches is acknowledged, retried, given up or split."""
        ask_again_at = NEVER
        leaderless: list[PartitionQueue] = []
        outside: list[PartitionQueue] = []
        chosen: dict[int, list[list[Batch]]] = {}
        room: dict[int, int] = {}
        if self.identity is None:
            return Due([], NEVER, leaderless, outside)
        for queue in list(self._busy):
            if not queue.batches or not self._may_go(queue):
                continue
            if queue.leader is None:
                leaderless.append(queue)
                continue
            if self.joined is not None and queue not in self.joined:
                outside.append(queue)
                continue
            batch = queue.batches[0]
            node = self._nodes.get(queue.leader)
            if node is None:
                node = self._nodes[queue.leader] = Node()
            if batch.sealed or len(queue.batches) > 1 or (batch.urgent and not node.in_flight):
                ready_at = 0.0
            else:
                ready_at = batch.created + self._linger_s
            ready_at = max(ready_at, queue.retry_at, node.muted_until)
            if ready_at > now:
                ask_again_at = min(ask_again_at, ready_at)
                continue
            requests = chosen.get(queue.leader)
            if requests is None:
                if node.in_flight >= self._max_in_flight:
                    continue
                requests = chosen[queue.leader] = [[]]
                room[queue.leader] = self._request_bytes_max
            if batch.size_bytes > room[queue.leader] and requests[-1]:
                if node.in_flight + len(requests) >= self._max_in_flight:
                    continue
                requests.append([])
                room[queue.leader] = self._request_bytes_max
            room[queue.leader] -= batch.size_bytes
            requests[-1].append(batch)
            self._send_off(queue, batch)
        outgoing = []
        for number, requests in chosen.items():
            self._nodes[number].in_flight += len(requests)
            outgoing += [Outgoing(number, request) for request in requests]
        return Due(outgoing, ask_again_at, leaderless, outside)

    def _may_go(self, queue: PartitionQueue) -> bool:
        """Whether the partition's next batch may be sent as far as those before it are concerned; readies the
        numbers for it."""
        if not queue.in_flight:
            queue.halted = False
            if queue.broken and not queue.batches[0].in_doubt:
                self._begin_anew(queue)
            return self.identity is not None
        return (
            self._idempotent
            and queue.acknowledged
            and not queue.halted
            and not queue.broken
            and queue.node == queue.leader
            and len(queue.in_flight) < self._max_in_flight
            and (
                queue.batches[0].sequence != NO_SEQUENCE
                or (queue.identity == self.identity and queue.is_remembered())
            )
        )

    def _send_off(self, queue: PartitionQueue, batch: Batch) -> None:
        self.seal(batch)
        queue.batches.popleft()
        if self._idempotent and batch.sequence == NO_SEQUENCE:
            assert self.identity is not None
            if queue.identity != self.identity:
                queue.identity, queue.next_sequence, queue.acknowledged = self.identity, 0, False
            batch.identity, batch.sequence = queue.identity, queue.next_sequence
            queue.next_sequence = advance_sequence(queue.next_sequence, len(batch.tickets))
            batch.number = queue.numbered
            queue.numbered += 1
        queue.in_flight.append(batch)
        assert queue.leader is not None
        queue.node = queue.leader
        # Partitions not chosen this time come first next time.
        del self._busy[queue]
        self._busy[queue] = None

    def arrived(self, node: int, muted_until: float = 0.0) -> None:
        """A request to the node was answered, or never will be. `muted_until`: the broker asked for a pause
        (KIP-219)."""
        facts = self._nodes[node]
        facts.in_flight -= 1
        facts.muted_until = max(facts.muted_until, muted_until)

    # --- outcomes of a batch --------------------------------------------------------------------------------

    def acknowledged(self, batch: Batch) -> None:
        """The batch is written. Its tickets are the caller's to settle, unless it was `done`."""
        queue = batch.queue
        queue.acknowledged = True
        queue.tries, queue.retry_at, queue.last_error = 0, 0.0, None
        self._remove(batch)

    def retry(self, batch: Batch, error: Exception, retry_at: float, *, in_doubt: bool) -> None:
        """The batch failed in a way that may pass. `in_doubt`: it may have been written anyway."""
        queue = batch.queue
        queue.in_flight.remove(batch)
        queue.halted = True
        queue.retry_at = max(queue.retry_at, retry_at)
        queue.last_error = error
        if batch.done:  # it has expired
            self._given_up(batch)
            return
        batch.in_doubt = batch.in_doubt or in_doubt  # a later refusal says nothing of earlier tries
        self._put_back(batch)

    def out_of_order(self, batch: Batch, error: Exception, retry_at: float) -> None:
        """The broker expects another number (or knows none of those given so far), so it has not written this
        batch. That is no surprise while an earlier batch is not settled; otherwise numbering restarts."""
        batch.in_doubt = False
        if batch.queue.is_oldest(batch):
            batch.queue.broken = True
        self.retry(batch, error, retry_at, in_doubt=False)

    def give_up(self, batch: Batch) -> None:
        """It will not be written, or its outcome stays unknown. Its tickets are the caller's to settle."""
        queue = batch.queue
        if batch in queue.in_flight:
            queue.in_flight.remove(batch)
        else:
            queue.batches.remove(batch)
            if queue.open is batch:
                queue.open = None
        self._given_up(batch)

    def split(self, batch: Batch) -> list[Batch]:
        """The batch is too large for the broker, which has not written it: two halves take its place and its
        numbers. Returns the halves; none if it was `done`."""
        queue = batch.queue
        queue.in_flight.remove(batch)
        queue.halted = True
        if batch.done:
            self._given_up(batch)
            return []
        self.size_bytes -= batch.size_bytes
        halves = _halves(batch, self.codec)
        for half in reversed(halves):
            self.size_bytes += half.size_bytes
            self._put_back(half)
        return halves

    def expired(self, now: float) -> tuple[list[Batch], float]:
        """The expired batches, and when the next one expires. Those in flight stay there, as `done`. Their
        tickets are the caller's to settle."""
        over: list[Batch] = []
        next_at = NEVER
        for batch in list(self.unsettled()):
            expires_at = batch.created + self._delivery_timeout_s
            if expires_at > now:
                next_at = min(next_at, expires_at)
                continue
            if batch in batch.queue.in_flight:
                batch.done = True
            else:
                self.give_up(batch)
            over.append(batch)
        return over, next_at

    def identified(self, identity: ProducerIdentity) -> None:
        """A broker has given an id."""
        self.identity = identity

    def forget_identity(self, identity: ProducerIdentity) -> None:
        """This identity is no longer usable; partitions continue with the next."""
        if self._idempotent and self.identity == identity:
            self.identity = None

    def _begin_anew(self, queue: PartitionQueue) -> None:
        """Take the numbers back from all of the partition's batches; none of them was written."""
        for batch in queue.batches:
            batch.identity, batch.sequence = ANONYMOUS, NO_SEQUENCE
        queue.broken = False
        if self.identity is not None and queue.identity == self.identity:
            if self.identity.epoch < PRODUCER_EPOCH_MAX:
                self.identity = self.identity._replace(epoch=self.identity.epoch + 1)
            else:
                self.identity = None

    def _put_back(self, batch: Batch) -> None:
        queue = batch.queue
        at = 0
        for other in queue.batches:
            if other.order > batch.order:
                break
            at += 1
        queue.batches.insert(at, batch)
        self._busy[queue] = None

    def _given_up(self, batch: Batch) -> None:
        if batch.sequence != NO_SEQUENCE:
            batch.queue.broken = True
        self._count_off(batch)

    def _remove(self, batch: Batch) -> None:
        batch.queue.in_flight.remove(batch)
        self._count_off(batch)

    def _count_off(self, batch: Batch) -> None:
        self.size_bytes -= batch.size_bytes
        queue = batch.queue
        if not queue.batches and not queue.in_flight:
            self._busy.pop(queue, None)


def _halves(batch: Batch, codec: Codec) -> list[Batch]:
    """The batch's records in two batches, with its numbers."""
    encoded = batch.encoded(codec)
    ((position, header),) = batches(encoded)
    contents = list(records(encoded, position, header, bytes_max=HEADER_BYTES + batch.size_bytes))
    half = len(contents) // 2
    parts = []
    for number, (start, end) in enumerate(((0, half), (half, len(contents)))):
        part = Batch(batch.queue, (*batch.order, number), batch.created)
        writer = part.writer
        assert writer is not None
        for each in contents[start:end]:
            writer.append(each.timestamp, each.key, each.value, each.headers)
        part.tickets = batch.tickets[start:end]
        part.timestamps = batch.timestamps[start:end]
        part.sealed = True
        part.identity = batch.identity
        part.sequence = advance_sequence(batch.sequence, start)
        part.number = batch.number - 1 + number  # there is one more now between the older and the younger
        parts.append(part)
    return parts
