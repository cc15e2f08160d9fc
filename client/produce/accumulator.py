"""What a producer has to send: batches by partition, in order, until they are settled.

Pure: the sender tells what time it is and what became of a batch, and hears what may go out now. Times are
seconds of any one clock.

Order is kept through failures. A partition's batches go out in the order in which they were begun, to one
node at a time. After a failure nothing more goes out until every answer on its way has come; then the
sequence begins again with the oldest batch. Without numbers (idempotence off) one batch is on its way at a
time, since no broker could tell the second from the first.

Numbers (KIP-98) are given when a batch first goes out. Until the broker has acknowledged the first batch of
an epoch there is only that one on its way: a broker that knows nothing of a producer takes any number for the
first. None goes out either that would make the broker forget the oldest one whose fate is not known. Where a
numbered batch is given up there may be a gap in the numbers; the partition then begins again at 0 in a new
epoch (KIP-360), once no batch is left of which nobody knows whether it was written.

In transactions the id and its epochs are the transaction coordinator's to give: a batch that is given up ends
the transaction, and the numbers begin anew with the identity of the next. `joined` holds back the partitions
that the coordinator has to hear of first.
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
"""What a partition gets of a topic's records without keys, before it is the next one's turn: the batch.size
of Java's producer, which does likewise. Larger batches do not make it more, or few records would all be in
one partition."""

PRODUCER_EPOCH_MAX: Final = 2**15 - 1
REMEMBERED_BATCHES: Final = 5
"""How many of a producer's batches in a partition a broker knows for repeats."""

NEVER: Final = math.inf


class ProducerIdentity(NamedTuple):
    """Who numbers batches: the id a broker gave, and an epoch."""

    producer_id: int
    epoch: int


ANONYMOUS: Final = ProducerIdentity(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


class Batch:
    """Records of one partition that travel together. `tickets` and `timestamps` have one entry per record;
    what a ticket is only its owner knows."""

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
        """Its place among the partition's batches; halves of a batch stand between its neighbours."""
        self.created = created
        """When its time began: no later than its first record was added."""
        self.writer: RecordBatchWriter | None = RecordBatchWriter()
        self.packed: PackedRecords | None = None
        self.tickets: list[Any] = []
        self.timestamps: list[int] = []
        self.sealed = False
        """No record is added, and nothing is waited for."""
        self.urgent = False
        """Somebody awaits a record of it: it waits for company only while its node is busy."""
        self.identity = ANONYMOUS
        self.sequence = NO_SEQUENCE
        self.number = 0
        """Which of the partition's numbered batches it is."""
        self.in_doubt = False
        """It was sent, and may have been written although nobody said so."""
        self.done = False
        """Its tickets are settled; the answer on its way matters to the numbers alone."""
        self.unpacked_bytes = 0

    def __repr__(self) -> str:
        return f"<Batch {self.queue.where} {self.order} of {len(self.tickets)}, sequence {self.sequence}>"

    @property
    def where(self) -> TopicPartition:
        return self.queue.where

    @property
    def size_bytes(self) -> int:
        """What it takes of the buffer."""
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
        """The batch as it goes out."""
        return self.pack(codec).batch(*self.identity, self.sequence, transactional=transactional)


class PartitionQueue:
    """A partition's batches, and how far its numbers are."""

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
        """Those not on their way, in order; the last one may be `open`."""
        self.open: Batch | None = None
        self.in_flight: list[Batch] = []
        self.node = -1
        """Where those in flight went."""
        self.halted = False
        """Something in flight failed: nothing goes out before the rest is answered."""
        self.retry_at = 0.0
        self.tries = 0
        self.last_error: Exception | None = None
        self.identity = ANONYMOUS
        self.next_sequence = 0
        self.numbered = 0
        """How many batches were given numbers so far."""
        self.acknowledged = False
        """The leader has written a batch under `identity`, so it knows which one is next."""
        self.broken = False
        """A numbered batch was given up: the numbers begin anew as soon as they can."""

    def is_remembered(self) -> bool:
        """Whether the broker will still know a repeat of the oldest batch on its way for one when it has
        written one batch more. Younger ones may be acknowledged before it, so that they are not all on their
        way."""
        return self.numbered - min(batch.number for batch in self.in_flight) < REMEMBERED_BATCHES

    def is_oldest(self, batch: Batch) -> bool:
        """Whether no other batch of the partition, on its way or not, precedes this one on its way."""
        return all(batch.order <= other.order for other in self.in_flight) and (
            not self.batches or batch.order < self.batches[0].order
        )


class TopicQueues:
    """A topic's partitions, and which of them takes records without a key now (KIP-480, KIP-794)."""

    __slots__ = ("batch", "batch_began_at", "name", "queues", "share_left", "size_bytes_max", "sticky")

    def __init__(self, name: str, partitions: int, first: int = 0) -> None:
        self.name = name
        self.queues = [PartitionQueue(TopicPartition(name, number)) for number in range(partitions)]
        self.sticky = self.queues[first % partitions]
        """The one that takes records without a key."""
        self.size_bytes_max = 0
        """The size up to which its open batch does."""
        self.share_left = 0
        """Bytes of its share that were left when `batch` had `batch_began_at`."""
        self.batch: Batch | None = None
        self.batch_began_at = 0

    def resize(self, count: int) -> None:
        """There are this many partitions now, by what the cluster says. Fewer, if the topic was deleted and
        created again: those that are gone stay for as long as they have records."""
        for number in range(len(self.queues), count):
            self.queues.append(PartitionQueue(TopicPartition(self.name, number)))
        while len(self.queues) > count and not (self.queues[-1].batches or self.queues[-1].in_flight):
            self.queues.pop()
        if self.sticky.where.partition >= len(self.queues):
            self.sticky = self.queues[0]

    def move_on(self) -> None:
        """Another partition for records without a key: of those that have a leader one with the fewest
        batches waiting, in turns, so that all get equal shares while all are served equally fast."""
        count = len(self.queues)
        now = self.sticky.where.partition
        best, least = self.sticky, (True, NEVER)
        for step in range(1, count + 1):
            queue = self.queues[(now + step) % count]
            load = (queue.leader is None, float(len(queue.batches) + len(queue.in_flight)))
            if load < least:
                best, least = queue, load
        self.sticky = best


class Node:
    """What is on its way to a node."""

    __slots__ = ("in_flight", "muted_until")

    def __init__(self) -> None:
        self.in_flight = 0
        self.muted_until = 0.0


class Outgoing(NamedTuple):
    """Batches for one node that go out in one request, at most one of a partition."""

    node: int
    batches: list[Batch]


class Due(NamedTuple):
    """What `Accumulator.due` found: requests to send now, when to ask again at the latest (NEVER: when
    something happened), the partitions that have records but no leader, and those that are not in the
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
        """What all records take that are not settled."""
        self.filled = False
        """A batch became full; whoever looks at this takes it back."""
        self.identity: ProducerIdentity | None = None if idempotent else ANONYMOUS
        """Who numbers the batches of a partition that begins; None until a broker has given an id."""
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
        """Add a record to the partition's open batch. False if there is none, or it would grow beyond
        `size_bytes_max`: then one is to be begun. Raises TypeError or ValueError as the writer does, with
        nothing added."""
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
        """Begin a batch with a record; the one that was open is full. Raises KafkaError(MESSAGE_TOO_LARGE),
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
        """Add a record that may go to any partition, and was not taken by the open batch of `topic.sticky`:
        to a new one, or, when the partition has had its share, to another partition. Returns the batch if it
        is a new one, and raises as `begin` does."""
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
        """Let it go out without waiting for more records."""
        batch.sealed = True
        if batch.queue.open is batch:
            batch.queue.open = None

    def hurry(self, queue: PartitionQueue) -> bool:
        """Somebody awaits the last record added to the partition. Whether that is news to `due`."""
        batch = queue.batches[-1]
        news = not batch.urgent
        batch.urgent = True
        return news

    def began(self, queue: PartitionQueue, at: float) -> None:
        """The time of the last record added to the partition began before it was added."""
        batch = queue.batches[-1]
        batch.created = min(batch.created, at)

    @property
    def is_idle(self) -> bool:
        """There is nothing to send, and nothing on its way."""
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
        """What goes out now. What is returned counts as on its way until `arrived` is called for the request
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
        """Whether the partition's next batch may go out as far as those before it are concerned; readies the
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
        # Those not taken this time come first the next.
        del self._busy[queue]
        self._busy[queue] = None

    def arrived(self, node: int, muted_until: float = 0.0) -> None:
        """A request to the node was answered, or never will be. `muted_until`: the broker asked for a pause
        (KIP-219)."""
        facts = self._nodes[node]
        facts.in_flight -= 1
        facts.muted_until = max(facts.muted_until, muted_until)

    # --- what became of a batch -----------------------------------------------------------------------------

    def acknowledged(self, batch: Batch) -> None:
        """It is written. Its tickets are the caller's to settle, unless it was `done`."""
        queue = batch.queue
        queue.acknowledged = True
        queue.tries, queue.retry_at, queue.last_error = 0, 0.0, None
        self._remove(batch)

    def retry(self, batch: Batch, error: Exception, retry_at: float, *, in_doubt: bool) -> None:
        """It failed in a way that may pass. `in_doubt`: it may have been written all the same."""
        queue = batch.queue
        queue.in_flight.remove(batch)
        queue.halted = True
        queue.retry_at = max(queue.retry_at, retry_at)
        queue.last_error = error
        if batch.done:  # its time is over
            self._given_up(batch)
            return
        batch.in_doubt = batch.in_doubt or in_doubt  # a later refusal says nothing of earlier tries
        self._put_back(batch)

    def out_of_order(self, batch: Batch, error: Exception, retry_at: float) -> None:
        """The broker expects another number (or knows nothing of the numbers given so far), so it has not
        written this one. While one before it is not settled that is no surprise; otherwise the numbers begin
        anew."""
        batch.in_doubt = False
        if batch.queue.is_oldest(batch):
            batch.queue.broken = True
        self.retry(batch, error, retry_at, in_doubt=False)

    def give_up(self, batch: Batch) -> None:
        """It will not be written, or nobody will know. Its tickets are the caller's to settle."""
        queue = batch.queue
        if batch in queue.in_flight:
            queue.in_flight.remove(batch)
        else:
            queue.batches.remove(batch)
            if queue.open is batch:
                queue.open = None
        self._given_up(batch)

    def split(self, batch: Batch) -> list[Batch]:
        """It is too large for the broker, which has not written it: two halves take its place and its
        numbers. Returns them; none if it was `done`."""
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
        """The batches whose time is over, with those on their way left there as `done`, and when the next
        one's is. Their tickets are the caller's to settle."""
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
        """This one is of no use any more; partitions go on with the next."""
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
