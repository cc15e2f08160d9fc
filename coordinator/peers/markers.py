"""Sends the markers that end transactions, until every partition has its own (KIP-98).

The coordinator's core reports which are due, when the outcome is durable and again when a shard has been
loaded (`MarkersDue`), and is notified which partitions have theirs. Each goes to the partition's current
leader, under the epoch of the shard's lease: when that is over, the next holder sends them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, Final

from muster.coordinator.base.clock import Clock, Timer
from muster.coordinator.base.log import Logger
from muster.coordinator.peers.marker_holds import MarkerHolds
from muster.coordinator.peers.post import Ask
from muster.coordinator.storage.store import LETTER_BYTES_MAX, Lease, LeaseKind, StoreError
from muster.coordinator.transactions.events import MarkersDue
from muster.coordinator.transactions.transaction import TopicPartition
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.transactions import WriteTxnMarkersRequest, WriteTxnMarkersResponse

_ASK_TIMEOUT_MS: Final = 5_000
"""A letter may be lost, with the broker that had it or with the database. Until this time is over the shard
sends nothing else to that node, and its producers cannot begin again."""
_REQUEST_BYTES_MAX: Final = LETTER_BYTES_MAX // 2
"""Approximate size of a request and of its answer. What is left goes into the next."""
_MARKER_BYTES: Final = 32
_TOPIC_BYTES: Final = 8
_PARTITION_BYTES: Final = 7
_AGAIN_MS: Final = 20
_AGAIN_MAX_MS: Final = 1_000
_TOLD_AT: Final = 10
"""The attempt at which a warning is logged, some ten seconds after the first."""

_DONE: Final = frozenset(
    {ErrorCode.NONE, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION}
)
_OVERTAKEN: Final = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})
"""A newer producer or coordinator has ended the transaction, or will."""

_log: Final = Logger(part="transactions")

_Marker = WriteTxnMarkersRequest.WritableTxnMarker


class Whereabouts(Enum):
    """Why no node is known to lead a partition."""

    NO_LEADER = "no broker leads it now"
    UNKNOWN = "there is none, as far as was heard"


class _Owed:
    """A transaction whose markers are on their way."""

    __slots__ = ("attempts", "due", "epoch", "left", "shard")

    def __init__(self, shard: int, epoch: int, due: MarkersDue) -> None:
        self.shard = shard
        self.epoch = epoch
        self.due = due
        self.left = set(due.partitions)
        self.attempts = 0


_Batch = dict[_Owed, list[TopicPartition]]


class Markers:
    """Sends the markers of one broker's shards. Belongs to its event loop."""

    def __init__(
        self,
        ask: Ask,
        clock: Clock,
        *,
        serving: Callable[[Lease], bool],
        leader: Callable[[str, int], int | Whereabouts],
        read_topics: Callable[[], Awaitable[object]],
        marked: Callable[[int, int, MarkersDue, Iterable[TopicPartition]], None],
        holds: MarkerHolds | None = None,
    ) -> None:
        """`clock` is real time. `serving`: whether a lease is certainly still this broker's. `leader`: the
        node that leads a partition, as last read; `read_topics` returns when the topics have been reread;
        `marked(shard, epoch, due, partitions)` is called with partitions that have their markers, or are
        gone. Markers that `holds` covers wait until they are released."""
        self._ask = ask
        self._clock = clock
        self._serving = serving
        self._leader = leader
        self._read_topics = read_topics
        self._marked = marked
        self._holds = holds or MarkerHolds()
        self._holds.attach(self._released)
        self._held: _Batch = {}
        self._owed: dict[str, _Owed] = {}  # by transactional id
        self._queues: dict[tuple[int, int], _Batch] = {}  # by node and shard
        self._tasks: dict[tuple[int, int], asyncio.Task[None]] = {}
        self._again: _Batch = {}
        self._timer: Timer | None = None
        self._looking: set[asyncio.Task[None]] = set()
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}  # by transactional id
        self._closed = False

    def __repr__(self) -> str:
        return f"<Markers of {len(self._owed)} transactions>"

    def observe(self, shard: int, epoch: int, events: Sequence[Any]) -> None:
        """Take the events of a shard that this broker holds in this epoch of its lease."""
        for event in events:
            if isinstance(event, MarkersDue) and not self._closed:
                owed = self._owed[event.transactional_id] = _Owed(shard, epoch, event)
                self._route({owed: sorted(event.partitions)})

    def owes(self, transactional_id: str) -> bool:
        """Whether partitions of the id's transaction still lack markers that come from here."""
        return transactional_id in self._owed

    async def pause(self, transactional_id: str, seconds: float) -> None:
        """Return when all partitions of the id's transaction have their markers from here, or `seconds` have
        passed."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()
        waiting = self._waiting.setdefault(transactional_id, set())
        waiting.add(over)
        timer = loop.call_later(seconds, _end_pause, over)
        try:
            await over
        finally:
            timer.cancel()
            waiting.discard(over)
            if not waiting and self._waiting.get(transactional_id) is waiting:
                del self._waiting[transactional_id]

    def forget(self, shard: int) -> None:
        """The shard is not this broker's any more."""
        for transactional_id in [each for each, owed in self._owed.items() if owed.shard == shard]:
            del self._owed[transactional_id]
        self._held = {owed: partitions for owed, partitions in self._held.items() if self._is_owed(owed)}

    def close(self) -> None:
        """Send nothing more."""
        self._closed = True
        self._holds.detach(self._released)
        self._owed.clear()
        if self._timer is not None:
            self._timer.cancel()
        for task in (*self._tasks.values(), *self._looking):
            task.cancel()

    def under_way(self, live: Collection[int]) -> Iterator[str]:
        """Describe the work under way, except for markers to nodes that are not `live`."""
        writing = sum(self._is_writing(owed, live) for owed in self._owed.values())
        if writing:
            yield f"the markers of {writing} transactions are still being written"

    def _is_writing(self, owed: _Owed, live: Collection[int]) -> bool:
        leaders = (self._leader(*each) for each in owed.left.difference(self._held.get(owed, ())))
        return any(isinstance(each, Whereabouts) or each in live for each in leaders)

    # --- to whom --------------------------------------------------------------------------------------------

    def _route(self, batch: _Batch) -> None:
        """Send to the leaders of partitions, or look for them again later."""
        unknown: _Batch = {}
        for owed, partitions in batch.items():
            if not self._is_owed(owed):
                continue
            for partition in partitions:
                if self._holds.cover(owed.due.transactional_id, partition[0]):
                    self._held.setdefault(owed, []).append(partition)
                    continue
                node_id = self._leader(*partition)
                if node_id is Whereabouts.UNKNOWN:
                    unknown.setdefault(owed, []).append(partition)
                elif node_id is Whereabouts.NO_LEADER:
                    self._send_later({owed: [partition]})
                else:
                    assert isinstance(node_id, int)
                    self._enqueue(node_id, owed, partition)
        if unknown:
            self._look_for(unknown, self._route)

    def _released(self) -> None:
        held, self._held = self._held, {}
        self._route(held)

    def _is_owed(self, owed: _Owed) -> bool:
        return self._owed.get(owed.due.transactional_id) is owed

    def _look_for(self, unknown: _Batch, there: Callable[[_Batch], None]) -> None:
        """A topic that was just created may not be known here yet, so the store is queried before a partition
        counts as gone; `there` is called with those that are not."""

        async def look() -> None:
            try:
                await self._read_topics()
            except StoreError as error:
                _log.warning("failed to read topics, retrying", why=str(error))
                self._send_later(unknown)
                return
            except Exception as error:
                _log.error("failed to read topics, retrying", exc_info=error)
                self._send_later(unknown)
                return
            found: _Batch = {}
            for owed, partitions in unknown.items():
                gone = [each for each in partitions if self._leader(*each) is Whereabouts.UNKNOWN]
                found[owed] = [each for each in partitions if each not in gone]
                self._done(owed, gone)
            there(found)

        looking = asyncio.get_running_loop().create_task(look(), name="look for topics to be marked")
        self._looking.add(looking)
        looking.add_done_callback(self._looking.discard)

    def _send_later(self, batch: _Batch) -> None:
        for owed, partitions in batch.items():
            if self._is_owed(owed) and partitions:
                if owed not in self._again:
                    owed.attempts += 1
                    self._tell_stuck(owed, partitions)
                self._again.setdefault(owed, []).extend(partitions)
        if self._again and self._timer is None and not self._closed:
            attempts = min(owed.attempts for owed in self._again)
            delay_ms = min(_AGAIN_MS * 2 ** min(attempts - 1, 10), _AGAIN_MAX_MS)
            self._timer = self._clock.at(self._clock.now_ms() + delay_ms, self._send_again)

    def _send_again(self) -> None:
        self._timer = None
        batch, self._again = self._again, {}
        self._route(batch)

    def _tell_stuck(self, owed: _Owed, partitions: Sequence[TopicPartition]) -> None:
        if owed.attempts == _TOLD_AT:
            _log.warning(
                "a transaction cannot end yet: partitions do not take its marker",
                transactional_id=owed.due.transactional_id,
                partitions=[f"{topic}-{number}" for topic, number in partitions[:10]],
            )

    # --- sending --------------------------------------------------------------------------------------------

    def _enqueue(self, node_id: int, owed: _Owed, partition: TopicPartition) -> None:
        key = node_id, owed.shard
        self._queues.setdefault(key, {}).setdefault(owed, []).append(partition)
        if key not in self._tasks:
            self._begin(key)

    def _begin(self, key: tuple[int, int]) -> None:
        node_id, shard = key
        task = asyncio.get_running_loop().create_task(
            self._send_all(node_id, shard), name=f"markers of shard {shard} to node {node_id}"
        )
        self._tasks[key] = task
        task.add_done_callback(partial(self._sent_all, key))

    def _sent_all(self, key: tuple[int, int], task: asyncio.Task[None]) -> None:
        del self._tasks[key]
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            _log.error("failed to send markers, retrying", exc_info=error)
        if key in self._queues:
            self._begin(key)

    async def _send_all(self, node_id: int, shard: int) -> None:
        """Send one request at a time to a node for each shard; markers that arrive meanwhile go into the
        next."""
        while queue := self._queues.pop((node_id, shard), None):
            batch, left = _first(queue)
            if left:
                self._queues[node_id, shard] = left
            batch = {owed: partitions for owed, partitions in batch.items() if self._is_owed(owed)}
            if not batch:
                continue
            lease = Lease(LeaseKind.TRANSACTION, shard)
            if not self._serving(lease):
                self._send_later(batch)  # until the lease is renewed, or the shard given up (`forget`)
                continue
            request = WriteTxnMarkersRequest(markers=[_marker(*each) for each in batch.items()])
            # All have one epoch: markers of an earlier one are no longer owed.
            epoch = next(iter(batch)).epoch
            try:
                response = await self._ask(
                    node_id,
                    ApiKey.WRITE_TXN_MARKERS,
                    request,
                    timeout_ms=_ASK_TIMEOUT_MS,
                    under=(lease, epoch),
                )
            except KafkaError:
                self._send_later(batch)
            except Exception:
                self._send_later(batch)
                raise
            else:
                self._answered(batch, response)

    def _answered(self, batch: _Batch, response: WriteTxnMarkersResponse) -> None:
        codes = _codes(response)
        again: _Batch = {}
        doubtful: _Batch = {}
        for owed, partitions in batch.items():
            done: list[TopicPartition] = []
            for partition in partitions:
                code = codes.get((owed.due.producer_id, partition), ErrorCode.UNKNOWN_SERVER_ERROR)
                if code in _DONE:
                    done.append(partition)
                elif code in _OVERTAKEN:
                    self._give_up(owed, partition, code)
                elif code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    doubtful.setdefault(owed, []).append(partition)
                else:
                    again.setdefault(owed, []).append(partition)
            self._done(owed, done)
        self._send_later(again)
        if doubtful:
            self._look_for(doubtful, self._send_later)

    def _done(self, owed: _Owed, partitions: Sequence[TopicPartition]) -> None:
        if partitions and self._is_owed(owed):
            owed.left.difference_update(partitions)
            if not owed.left:
                del self._owed[owed.due.transactional_id]
            self._marked(owed.shard, owed.epoch, owed.due, partitions)
            if not owed.left:
                for over in self._waiting.pop(owed.due.transactional_id, ()):
                    _end_pause(over)

    def _give_up(self, owed: _Owed, partition: TopicPartition, code: int) -> None:
        if self._is_owed(owed):
            del self._owed[owed.due.transactional_id]
            _log.warning(
                "a marker was refused, since the partition has heard of a newer producer or coordinator",
                transactional_id=owed.due.transactional_id,
                producer_id=owed.due.producer_id,
                producer_epoch=owed.due.producer_epoch,
                partition=f"{partition[0]}-{partition[1]}",
                code=code,
            )


def _end_pause(over: asyncio.Future[None]) -> None:
    if not over.done():
        over.set_result(None)


def _first(queue: _Batch) -> tuple[_Batch, _Batch]:
    """Split off what goes into one request: one transaction per producer, since answers are told apart by
    producer, and as many partitions as a letter holds; and return the rest."""
    batch: _Batch = {}
    left: _Batch = {}
    producers: set[int] = set()
    size = 0
    for owed, partitions in queue.items():
        if owed.due.producer_id in producers or size >= _REQUEST_BYTES_MAX:
            left[owed] = partitions
        else:
            size += _MARKER_BYTES
            fitting = 0
            topics: set[str] = set()
            for topic, _ in partitions:
                if topic not in topics:
                    topics.add(topic)
                    size += len(topic) + _TOPIC_BYTES
                size += _PARTITION_BYTES
                fitting += 1
                if size >= _REQUEST_BYTES_MAX:
                    break
            batch[owed] = partitions[:fitting]
            if fitting < len(partitions):
                left[owed] = partitions[fitting:]
        producers.add(owed.due.producer_id)
    return batch, left


def _marker(owed: _Owed, partitions: Iterable[TopicPartition]) -> _Marker:
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    return _Marker(
        producer_id=owed.due.producer_id,
        producer_epoch=owed.due.producer_epoch,
        transaction_result=owed.due.commits,
        topics=[
            _Marker.WritableTxnMarkerTopic(name=name, partition_indexes=numbers)
            for name, numbers in topics.items()
        ],
        coordinator_epoch=owed.epoch,
        transaction_version=owed.due.version,
    )


def _codes(response: WriteTxnMarkersResponse) -> Mapping[tuple[int, TopicPartition], int]:
    return {
        (marker.producer_id, (topic.name, each.partition_index)): each.error_code
        for marker in response.markers
        for topic in marker.topics
        for each in topic.partitions
    }
