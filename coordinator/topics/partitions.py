"""The partitions this broker leads: append, long-poll fetch, list-offsets, delete-records."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeVar
from uuid import UUID

from muster.coordinator.base.clock import Clock
from muster.coordinator.base.log import Logger
from muster.coordinator.cluster.handover import Deferred
from muster.coordinator.cluster.placement import data_shard
from muster.coordinator.storage.files import WouldBlock
from muster.coordinator.storage.records import LogOffsetMetadata
from muster.coordinator.storage.store import Lease, LeaseKind
from muster.coordinator.topics.aborted import AbortedTransaction
from muster.coordinator.topics.catalogue import Catalogue, Change, Topic
from muster.coordinator.topics.fetches import Fetches
from muster.coordinator.topics.guards import Guard
from muster.coordinator.topics.led import Led, locate, report_recovery
from muster.coordinator.topics.log import Appended, Listed, ListTimestamp, PartitionLog, StorageFault
from muster.coordinator.topics.logs import Logs, PartitionId, Volume
from muster.coordinator.topics.producers import ActiveProducer
from muster.coordinator.topics.refused import COMES_AGAIN
from muster.coordinator.topics.sources import (
    NOTHING_AVAILABLE,
    Available,
    Bounds,
    Elsewhere,
    FetchedPartition,
    FetchPartition,
    ListPartition,
    Looked,
    Parked,
    Source,
    check_epoch,
    refused_partition,
)
from muster.coordinator.topics.undecided import HeldBack
from muster.coordinator.topics.upkeep import Upkeep
from muster.coordinator.topics.writer import Writer, refuse
from muster.coordinator.transactions.marker import Marker
from muster.protocol.errors import DecodeError, ErrorCode, KafkaError
from muster.protocol.record_batch import peek

__all__ = ["Appended", "FetchPartition", "FetchedPartition", "ListTimestamp", "Listed", "Partitions"]

_T = TypeVar("_T")
_log = Logger(part="topics")


_AT_ONCE_BYTES: Final = 1 << 20
"""A fetch that has read this much on the loop reads the rest in the executor."""
_AT_THE_ENDS: Final = frozenset({int(ListTimestamp.LATEST), int(ListTimestamp.EARLIEST)})
_SAY_AGAIN_MS: Final = 60_000
_REASONS_MAX: Final = 20
"""How many reasons for failed writes are logged within that time."""


def _lend_all(wanted: int) -> int:
    return wanted


class Partitions:
    """All of one broker's leaderships. Lives on one event loop; file access runs in `executor`.

    `logs` is shared by all brokers of the process. The broker calls `own`/`disown` as its data leases come
    and go. A partition's log is opened at its first use. Refusals are KafkaErrors; code 6 is
    NOT_LEADER_OR_FOLLOWER, 3 UNKNOWN_TOPIC_OR_PARTITION (also when the topic was deleted meanwhile,
    however the client named it), 56 KAFKA_STORAGE_ERROR with the reason in its text, 74 and 75 for
    an older or newer leader epoch of the client.
    """

    def __init__(
        self,
        *,
        node_id: int,
        catalogue: Catalogue,
        logs: Logs,
        clock: Clock,
        executor: Executor,
        validation_executor: Executor | None = None,
        upkeep_executor: Executor | None = None,
        shards: int,
        lease_of: Callable[[UUID, int], Lease | None] | None = None,
        elsewhere: Mapping[UUID, Elsewhere] = MappingProxyType({}),
        serving: Callable[[Lease], bool] = lambda lease: True,
        of_process: Iterable[Partitions] = (),
        fetches_parked_max: int = 100_000,
        append_queue_bytes_max: int = 268_435_456,
        retention_check_interval_ms: int = 300_000,
        cleaner_backoff_ms: int = 15_000,
        producer_expiration_ms: int = 86_400_000,
    ) -> None:
        """`shards`: number of data leases in the store; `lease_of`: the lease under which a partition is led
        and its log written, by default as `placement.data_shard` says, None while nobody may lead it;
        `elsewhere`: the sources of topics whose records are in no log, by topic id; `serving`: whether a
        lease is certainly still this broker's, called at each use; `of_process`: all that use `logs`, for
        looks at what others lead. `validation_executor` runs what takes long to validate, by default
        `executor` does; `upkeep_executor`, of one thread, runs what nobody waits for.
        The intervals are Kafka's log.retention.check.interval.ms, log.cleaner.backoff.ms and
        producer.id.expiration.ms. At `fetches_parked_max` waiting fetches a further one is answered at once
        with what there is; at `append_queue_bytes_max` waiting bytes an append gets REQUEST_TIMED_OUT;
        batches that take long to validate may use half of them.
        """
        self._node_id = node_id
        self._catalogue = catalogue
        self._logs = logs
        self._clock = clock
        self._executor = executor
        self._lease_of = lease_of or (
            lambda topic_id, partition: Lease(LeaseKind.DATA, data_shard(topic_id, partition, shards))
        )
        self._serving = serving
        self._elsewhere = elsewhere
        self._of_process = of_process
        self._fetches = Fetches(clock, self.of, parked_max=fetches_parked_max)
        self._epochs: dict[Lease, int] = {}  # of the leases this broker has
        self._led: dict[tuple[UUID, int], Led] = {}
        self._led_under: dict[Lease, dict[tuple[UUID, int], None]] = {}
        """The keys of `_led` by lease: a lease may come and go without a look at all other partitions."""
        self._looked: dict[tuple[UUID, int], tuple[int, Bounds]] = {}
        """What `look` found in logs that have been closed since, with the leader epoch."""
        self._holding_back: asyncio.Future[dict[tuple[str, int], HeldBack]] | None = None
        self._closed = False
        self._writer: Writer[Led] = Writer(
            opened=self._opened,
            commit=logs.commit,
            settled=self._append_settled,
            refused=self._append_refused,
            date_ms=clock.date_ms,
            write=self._in_executor,
            validate=partial(self._track, validation_executor or executor),
            queue_bytes_max=append_queue_bytes_max,
        )
        self._running: set[asyncio.Future[Any]] = set()  # what `close` waits for
        self._unsubscribe: Callable[[], None] = lambda: None
        self._aside = partial(self._track, upkeep_executor or executor)  # for what nobody waits for
        self._upkeep = Upkeep(
            self,
            logs,
            clock,
            self._aside,
            retention_check_interval_ms=retention_check_interval_ms,
            cleaner_backoff_ms=cleaner_backoff_ms,
            producer_expiration_ms=producer_expiration_ms,
        )
        self._said_ms: dict[str, int] = {}  # why writes failed in the last minute, and when that was logged

    def __repr__(self) -> str:
        counts = f"leases={len(self._epochs)} led={len(self._led)} parked={len(self._fetches)}"
        return f"<Partitions node={self._node_id} {counts}>"

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin retention and compaction and watch the catalogue. Call it on the loop."""
        self._unsubscribe = self._catalogue.subscribe(self._topics_changed)
        self._upkeep.start()

    @property
    def busy(self) -> bool:
        """Whether a thread is working on a log."""
        return bool(self._running)

    async def at_rest(self) -> None:
        """Return when threads have finished what they are working on now."""
        if self._running:
            await asyncio.wait(self._running)

    async def close(self) -> None:
        """Refuse new work (NOT_LEADER_OR_FOLLOWER), finish what runs, sync and close the logs."""
        self._end()
        for lease in list(self._epochs):
            self._give_up(lease)
        await self._upkeep.close()
        while self._running:
            await asyncio.wait(self._running)

    def abandon(self) -> None:
        """As if the process died: refuse everything, sync nothing, close nothing. What was acknowledged
        stays."""
        self._end()
        self._upkeep.abandon()
        self._epochs.clear()
        for led in self._pop_led(list(self._led)):
            led.ended = True

    def _end(self) -> None:
        self._closed = True
        self._fetches.end()
        self._unsubscribe()
        self._upkeep.end()

    # --- leadership -------------------------------------------------------------------------------

    def own(self, lease: Lease, epoch: int) -> None:
        """This broker holds the lease in this epoch, which is the leader epoch of its partitions, or part of
        it (`Topic.epoch_base`)."""
        if self._closed or self._epochs.get(lease, -1) >= epoch:
            return
        self._give_up(lease)
        self._epochs[lease] = epoch

    def disown(self, lease: Lease) -> Awaitable[None]:
        """The lease is lost or about to be released: refuse at once (parked fetches get 6), then close the
        logs.

        The awaitable is done when they are closed. In a handover, release the lease after that; if it was
        lost, nothing need wait.
        """
        return Deferred(partial(_all_done, self._give_up(lease)))

    def leader_epoch(self, topic: Topic, partition: int) -> int | None:
        """The leader epoch if this broker certainly leads the partition now, else None."""
        lease = self._lease_of(topic.topic_id, partition)
        if lease is None or not self._serving(lease):
            return None
        return self._leader_epoch(topic.topic_id, partition)

    def _leader_epoch(self, topic_id: UUID, partition: int) -> int | None:
        lease = self._lease_of(topic_id, partition)
        epoch = None if lease is None else self._epochs.get(lease)
        topic = self._catalogue.by_id(topic_id)
        return epoch if epoch is None or topic is None else topic.epoch_base(partition) + epoch

    def _give_up(self, lease: Lease) -> list[asyncio.Future[None]]:
        self._epochs.pop(lease, None)
        ended = self._pop_led(list(self._led_under.get(lease, ())))
        return [self._in_executor(led.close, self._logs) for led in ended]

    def _pop_led(self, keys: Iterable[tuple[UUID, int]]) -> list[Led]:
        """Remove those of these partitions that are led, and make their parked fetches look again."""
        popped = []
        for key in keys:
            led = self._led.pop(key, None)
            if led is not None:
                of_lease = self._led_under[led.lease]
                del of_lease[key]
                if not of_lease:
                    del self._led_under[led.lease]
                led.wake_watchers()
                popped.append(led)
        return popped

    def _topics_changed(self, change: Change) -> None:
        for topic in change.deleted:
            keys = [(topic.topic_id, partition) for partition in range(topic.partitions)]
            for key in keys:
                self._looked.pop(key, None)
            ended = self._pop_led(keys)
            for led in ended:
                led.ended = True
            deleting = self._in_executor(self._delete, topic.topic_id, ended)
            deleting.add_done_callback(partial(self._deleted, topic.topic_id))
        for _, topic in change.altered:
            for partition in range(topic.partitions):
                altered = self._led.get((topic.topic_id, partition))
                if altered is not None:
                    altered.topic = topic
                    if altered.log is not None:
                        altered.log.config = topic.config

    def _delete(self, topic_id: UUID, ended: Sequence[Led]) -> None:
        """In the executor. No log of `ended` is opened any more; waits for an opening under way, which would
        otherwise create files after the removal."""
        for led in ended:
            with led.lock:
                pass
        self._logs.delete(topic_id)

    def _deleted(self, topic_id: UUID, deleting: asyncio.Future[None]) -> None:
        if not deleting.cancelled():
            self._aside(self._logs.remove_deleted, topic_id)

    def _leading(self, topic: Topic, partition: int) -> Led:
        """The led partition, to be used for a request within this turn of the loop; codes 3 and 6."""
        led = self._find(topic, partition)
        led.asked_for = True
        return led

    def _leading_with(self, serving: set[Lease], topic: Topic, partition: int) -> Led:
        """As `_leading`, for one of many: `serving` are leases that were checked in this turn."""
        led = self._led.get((topic.topic_id, partition))
        if led is None or led.lease not in serving:
            led = self._find(topic, partition)
            serving.add(led.lease)
        led.asked_for = True
        return led

    def _find(self, topic: Topic, partition: int) -> Led:
        led = self._led.get((topic.topic_id, partition))
        if led is not None:
            self._check_serving(led.lease, topic, partition)
            return led
        current = self._catalogue.by_id(topic.topic_id)
        if current is None or not 0 <= partition < current.partitions:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic.name}-{partition}"
            )
        if topic.topic_id in self._elsewhere:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} has no log")
        lease = self._lease_of(topic.topic_id, partition)
        self._check_serving(lease, topic, partition)
        assert lease is not None
        led = Led(current, partition, lease, self._epochs[lease])
        self._led[topic.topic_id, partition] = led
        self._led_under.setdefault(lease, {})[topic.topic_id, partition] = None
        return led

    def _check_serving(self, lease: Lease | None, topic: Topic, partition: int) -> None:
        # A broker that stood still for longer than its term gets requests before it learns of the loss.
        if lease is None or lease not in self._epochs or not self._serving(lease):
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"broker {self._node_id} does not lead {topic.name}-{partition}",
            )

    def _opened(self, led: Led) -> PartitionLog:
        """The partition's log, opened if it is not (in the executor)."""
        with led.lock:
            if led.ended:
                raise KafkaError(
                    ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {self._node_id} no longer leads {led.name}"
                )
            if led.log is None or led.log.failed:
                topic = led.topic
                led.log = self._logs.open(
                    topic.topic_id,
                    led.partition,
                    led.name,
                    topic.config,
                    led.lease,
                    led.leader_epoch,
                    self._clock.now_ms,
                    lease_epoch=led.lease_epoch,
                    date_ms=self._clock.date_ms,
                )
                while led.topic is not topic:  # altered meanwhile, when this log was not known yet
                    topic = led.topic
                    led.log.config = topic.config
                report_recovery(led.log)
            return led.log

    # --- append -----------------------------------------------------------------------------------

    def append(
        self,
        topic: Topic,
        partition: int,
        records: bytes,
        *,
        zstd_allowed: bool = True,
        transactional: bool = False,
        guard: Guard | None = None,
    ) -> asyncio.Future[Appended]:
        """Produce for one partition: exactly one record batch v2. Done when durable at the topic's flush
        level.

        There is one replica, so a request's acks of -1, 0 and 1 are equivalent. `zstd_allowed` is False
        below Produce v7, `transactional` True with a transactional id; `guard` is from `begin_verification`.
        Never raises itself; the future's KafkaError codes: 2 corrupt, 3 no such partition, 6 not the leader
        (any more), 7 too much waits already, 10 batch too large, 18 larger than a segment, 32 timestamp out
        of range, 45/47 idempotence, 48 transactions, 53 transactional batch without a transactional id, 56
        disk, 76 codec, 87 invalid records (`validation.InvalidRecords` has `record_errors` for Produce v8+).
        The order of appends to a partition is kept.
        """
        try:
            led = self._leading(topic, partition)
            return self._writer.append(
                led, records, zstd_allowed=zstd_allowed, transactional=transactional, guard=guard
            )
        except KafkaError as refusal:
            self._note_refused(topic, partition, records, refusal)
            return _refused(refusal)

    async def begin_verification(
        self, topic: Topic, partition: int, records: bytes, *, epoch_raised: bool
    ) -> Guard | None:
        """Call before asking a transaction's coordinator whether the transaction has the partition. Returns
        the guard to append under if it has; None if the transaction is open here, and the coordinator need
        not be asked. A batch whose guard is no longer the one kept when it is appended is refused with 48
        (`guards`).

        `records` begin with the header of a transactional batch; `epoch_raised`: every transaction has an
        epoch of its own (transaction.version 2). Codes 3, 6, 47 if the producer is known here with a higher
        epoch, 56.
        """
        header = peek(records)
        try:
            led = self._leading(topic, partition)
            log = led.ready_log
            if log is not None:
                return log.begin_verification(header, epoch_raised=epoch_raised)
            return await self._with_log(
                led, lambda log: log.begin_verification(header, epoch_raised=epoch_raised)
            )
        except KafkaError as refusal:
            self._note_refused(topic, partition, records, refusal)
            raise

    def append_marker(self, topic: Topic, partition: int, marker: Marker) -> asyncio.Future[Appended]:
        """End a producer's transaction in a partition, with the durability of produced batches and in order
        with them. Never raises itself; the future's codes: 3, 6, 7, 47, 52, 56."""
        try:
            return self._writer.append_marker(self._leading(topic, partition), marker)
        except KafkaError as refusal:
            return _refused(refusal)

    def _append_settled(self, led: Led, outcome: Appended | BaseException) -> None:
        if isinstance(outcome, Appended):
            led.tell_watchers()
        elif isinstance(outcome, StorageFault):
            self._say_unwritten(led, outcome)
        log = led.log
        if log is not None and log.segments.unsealed and not log.closed:
            self._upkeep.seal(log)

    def _say_unwritten(self, led: Led, fault: StorageFault) -> None:
        """Log why records could not be written: each reason now and then, since producers try again and
        again."""
        now_ms = self._clock.now_ms()
        self._said_ms = {
            reason: said_ms for reason, said_ms in self._said_ms.items() if now_ms < said_ms + _SAY_AGAIN_MS
        }
        if fault.reason not in self._said_ms and len(self._said_ms) < _REASONS_MAX:
            self._said_ms[fault.reason] = now_ms
            _log.error("failed to write records", node=self._node_id, partition=led.name, why=fault.why)

    def _append_refused(self, led: Led, records: bytes, refusal: KafkaError) -> None:
        self._note_refused(led.topic, led.partition, records, refusal)

    def _note_refused(self, topic: Topic, partition: int, records: bytes, refusal: KafkaError) -> None:
        """On the loop or in the executor: an append was refused. See `topics.refused`."""
        # Logs forget a topic when it is deleted: nothing may be noted for it after that.
        if refusal.code in COMES_AGAIN and self._catalogue.by_id(topic.topic_id) is not None:
            with suppress(DecodeError):
                self._logs.note_refused(topic.topic_id, partition, peek(records), self._clock.now_ms())

    # --- fetch ------------------------------------------------------------------------------------

    async def fetch(
        self,
        asked: Sequence[FetchPartition],
        *,
        min_bytes: int,
        max_bytes: int,
        max_wait_ms: int,
        lend: Callable[[int], int] = _lend_all,
    ) -> list[FetchedPartition]:
        """Fetch, parts in the order asked. Answers when Kafka does (see `fetches`): when `min_bytes` are
        there, at `max_wait_ms`, or at once if no append could make the answer longer, or a partition has an
        error or a diverging epoch. Whole batches only; the first batch may exceed both limits.
        `lend` is called for the memory that the records may take, before each look at the logs, and may lend
        less; `lend(0)` gives it back while the fetch waits.

        Codes per partition: 1 offset outside the log, 3, 6, 56, 74, 75.
        """
        return await self._fetches.fetch(
            asked, min_bytes=min_bytes, max_bytes=max_bytes, max_wait_ms=max_wait_ms, lend=lend
        )

    def of(self, topic: Topic) -> Source:
        """The source of the topic's records; its refusals are those of this class."""
        return self._elsewhere.get(topic.topic_id, self)

    async def read(
        self, asked: Sequence[FetchPartition], room: Callable[[int], int], *, first_may_exceed: bool
    ) -> list[FetchedPartition]:
        """See `Source`. Only reads that would block, or are long, cost a trip to the executor."""
        answers: list[FetchedPartition | None] = []
        to_read: list[tuple[int, Led, FetchPartition]] = []
        wanted = 0
        serving: set[Lease] = set()
        for part in asked:
            answer: FetchedPartition | None = None
            try:
                led = self._led_for(part, serving)
                log = led.ready_log
                at_end = log is not None and part.fetch_offset == log.high_watermark
                if log is not None and at_end and part.last_fetched_epoch < 0:
                    answer = led.nothing_to_read(log)
                else:
                    to_read.append((len(answers), led, part))
                    wanted += 0 if at_end else max(part.max_bytes, 0)
            except KafkaError as refusal:
                answer = refused_partition(refusal)
            answers.append(answer)
        if to_read:
            parts = [part[1:] for part in to_read]
            max_bytes = room(wanted)
            found = self._read_logs(parts, max_bytes, first_may_exceed, at_once=True)
            if len(found) < len(parts):
                size = sum(len(each.records) for each in found)
                found += await self._in_executor(
                    self._read_logs, parts[len(found) :], max_bytes - size, first_may_exceed and not size
                )
            for (number, _, _), read in zip(to_read, found, strict=True):
                answers[number] = read
        return [answer for answer in answers if answer is not None]

    def _led_for(self, part: FetchPartition, serving: set[Lease]) -> Led:
        led = self._leading_with(serving, part.topic, part.partition)
        _check_epoch(led, part.current_leader_epoch)
        return led

    def _led_for_all(self, asked: Sequence[FetchPartition]) -> list[Led]:
        serving: set[Lease] = set()
        return [self._led_for(part, serving) for part in asked]

    def _read_logs(
        self,
        parts: Sequence[tuple[Led, FetchPartition]],
        max_bytes: int,
        first_may_exceed: bool,
        at_once: bool = False,
    ) -> list[FetchedPartition]:
        """In the executor; or `at_once` on the loop, as far as possible without waiting."""
        answers: list[FetchedPartition] = []
        left, nothing_yet = max_bytes, first_may_exceed
        for led, part in parts:
            if at_once and max_bytes - left >= _AT_ONCE_BYTES:
                break
            try:
                log = led.ready_log if at_once else self._opened(led)
                if log is None:
                    break
                diverging = None
                if part.last_fetched_epoch >= 0:
                    diverging = log.diverges(part.fetch_offset, part.last_fetched_epoch)
                found: bytes | memoryview = b""
                aborted: Sequence[AbortedTransaction] = ()
                if diverging is None:
                    offset, limit = part.fetch_offset, max(0, min(left, part.max_bytes))
                    if part.read_committed:
                        found, aborted = log.read_committed(
                            offset, limit, first_may_exceed=nothing_yet, at_once=at_once
                        )
                    else:
                        found = log.read(offset, limit, first_may_exceed=nothing_yet, at_once=at_once)
                # If the lease was lost during the read, what was read may no longer be the log's.
                log.check_open()
                led.damage.look(log, found)
                answers.append(_fetched(led, log, found, diverging, aborted))
                nothing_yet = nothing_yet and not found
                left -= len(found)
            except WouldBlock:
                break
            except KafkaError as refusal:
                led.damage.refused(refusal, part.fetch_offset)
                answers.append(refused_partition(refusal))
        return answers

    async def watch(self, asked: Sequence[FetchPartition], parked: Parked) -> list[Available]:
        """See `Source`."""
        try:
            leds = self._led_for_all(asked)
            starts = [led.start_of(part) for led, part in zip(leds, asked, strict=True)]
            unknown = [number for number, start in enumerate(starts) if start is None]
            if unknown:
                found = await self._in_executor(self._locate, [(leds[each], asked[each]) for each in unknown])
                for number, start in zip(unknown, found, strict=True):
                    starts[number] = start
                if leds != self._led_for_all(asked):
                    parked.wake()  # a leadership was lost meanwhile, and regained
            return [
                led.watch(part, start, parked)
                for part, led, start in zip(asked, leds, starts, strict=True)
                if start is not None
            ]
        except KafkaError:
            parked.wake()
            return [NOTHING_AVAILABLE] * len(asked)

    def _locate(self, parts: Sequence[tuple[Led, FetchPartition]]) -> list[LogOffsetMetadata]:
        """In the executor."""
        return [locate(self._opened(led), part) for led, part in parts]

    # --- the rest ---------------------------------------------------------------------------------

    def listed(
        self, topic: Topic, asked: Sequence[ListPartition], *, read_committed: bool = False
    ) -> list[Listed | KafkaError | None]:
        """See `Source`. Answers from memory: the ends of open logs."""
        found: list[Listed | KafkaError | None] = []
        serving: set[Lease] = set()
        for each in asked:
            try:
                led = self._leading_with(serving, topic, each.partition_index)
                _check_epoch(led, each.current_leader_epoch)
            except KafkaError as refusal:
                found.append(refusal)
                continue
            log = led.ready_log if each.timestamp in _AT_THE_ENDS else None
            found.append(
                None if log is None else log.list_offset(each.timestamp, read_committed=read_committed)
            )
        return found

    async def list_offsets(
        self,
        topic: Topic,
        partition: int,
        timestamp: int,
        *,
        current_leader_epoch: int = -1,
        read_committed: bool = False,
    ) -> Listed:
        """See `Source`."""
        led = self._leading(topic, partition)
        _check_epoch(led, current_leader_epoch)
        return await self._with_log(
            led, lambda log: log.list_offset(timestamp, read_committed=read_committed)
        )

    async def end_offset_for_epoch(
        self, topic: Topic, partition: int, epoch: int, *, current_leader_epoch: int = -1
    ) -> tuple[int, int]:
        """See `Source`."""
        led = self._leading(topic, partition)
        _check_epoch(led, current_leader_epoch)
        return await self._with_log(led, lambda log: log.end_of_epoch(epoch))

    async def delete_records(self, topic: Topic, partition: int, before_offset: int) -> int:
        """DeleteRecords below `before_offset` (-1: the high watermark); returns the new low watermark. Codes
        1, 3, 6, 44, 56."""
        return await self._with_log(
            self._leading(topic, partition), lambda log: log.delete_records(before_offset)
        )

    async def offsets(self, topic: Topic, partition: int) -> tuple[int, int]:
        """(log start offset, high watermark) of a led partition, for lag and tests. Codes 3, 6, 56."""
        led = self._leading(topic, partition)
        log = led.ready_log
        if log is not None:
            return log.start_offset, log.high_watermark
        return await self._with_log(led, lambda log: (log.start_offset, log.high_watermark))

    async def look(self, partitions: Sequence[PartitionId]) -> list[Looked]:
        """(log start offset, high watermark) of partitions that may not be in use, in the order asked: of
        those led in this process, and with a database of all. Closed logs are opened for a look, one after
        the other, and given back, however long that takes; `known` has those done so far, for whoever gives
        up. OSError."""
        found: dict[PartitionId, Looked] = {each: self.known(each) for each in partitions}
        for each in partitions:
            if found[each] is None and each.topic_id in self._elsewhere:
                found[each] = await self._elsewhere[each.topic_id].look(each.partition)
        unknown = [each for each, bounds in found.items() if bounds is None]
        if unknown:
            stored = await self._in_executor(self._logs.bounds, unknown)
            found.update(zip(unknown, stored, strict=True))
        for each in unknown:
            if found[each] is None:
                found[each] = await self._leading_in_process(each)._look_into(each)
        return [found[each] for each in partitions]

    def known(self, partition: PartitionId) -> Bounds | None:
        """(log start offset, high watermark) if a broker of this process knows them; returns at once."""
        if partition.topic_id in self._elsewhere:
            return self._elsewhere[partition.topic_id].known(partition.partition)
        led = self._led.get(partition)
        if led is not None and led.ready_log is not None:
            return led.ready_log.start_offset, led.ready_log.high_watermark
        bounds = self._seen(partition) or self._logs.known(partition)
        if bounds is None:
            seen = (each._seen(partition) for each in self._of_process)
            bounds = next((each for each in seen if each is not None), None)
        return bounds

    def _seen(self, partition: PartitionId) -> Bounds | None:
        """What a look has found, if that still holds."""
        looked = self._looked.get(partition)
        if looked is None:
            return None
        epoch, bounds = looked
        # Nobody has opened it since, so nothing can have been appended.
        if partition not in self._led and epoch == self._leader_epoch(*partition):
            return bounds
        del self._looked[partition]
        return None

    def _leading_in_process(self, partition: PartitionId) -> Partitions:
        """Those of the broker of this process that leads the partition, or these."""
        if self._leader_epoch(*partition) is None:
            for each in self._of_process:
                if each._leader_epoch(*partition) is not None:
                    return each
        return self

    async def _look_into(self, partition: PartitionId) -> Looked:
        topic = self._catalogue.by_id(partition.topic_id)
        if topic is None:
            return None
        try:
            led = self._find(topic, partition.partition)
        except KafkaError as error:
            return error if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else None

        def look() -> Bounds:
            log = self._opened(led)
            return log.start_offset, log.high_watermark

        try:
            bounds = await self._in_executor(look)
        except KafkaError as error:
            # Otherwise the leadership is lost, or somebody else has looked too, and given the log back.
            return error if error.code is ErrorCode.KAFKA_STORAGE_ERROR else self.known(partition)
        finally:
            self.give_back(*partition)
        return bounds

    async def active_producers(self, topic: Topic, partition: int) -> list[ActiveProducer]:
        """See `Source`."""
        return await self._with_log(self._leading(topic, partition), PartitionLog.active_producers)

    async def held_back(self) -> dict[tuple[str, int], HeldBack]:
        """What open transactions hold back on the partitions led here that are in use, by topic and
        partition. There is one look at a time: callers that gave up take no further threads."""
        while self._holding_back is not None and not self._holding_back.done():
            await asyncio.wait([self._holding_back])
        held = [
            (led, log)
            for led in self._led.values()
            if (log := led.ready_log) is not None and log.last_stable_offset < log.high_watermark
        ]

        def look() -> dict[tuple[str, int], HeldBack]:
            found = (((led.topic.name, led.partition), log.held_back()) for led, log in held)
            return {where: each for where, each in found if each is not None}

        if not held:
            return {}
        self._holding_back = self._in_executor(look)
        return await asyncio.shield(self._holding_back)

    async def sizes(self, partitions: Sequence[PartitionId]) -> list[int]:
        """Bytes of each partition's records, in the order asked. OSError when the disk cannot tell."""
        in_logs = [each for each in partitions if each.topic_id not in self._elsewhere]
        measured = await self._in_executor(lambda: [self._logs.size(*each) for each in in_logs])
        sizes = dict(zip(in_logs, measured, strict=True))
        for each in partitions:
            if each not in sizes:
                sizes[each] = await self._elsewhere[each.topic_id].size(each.partition)
        return [sizes[each] for each in partitions]

    async def volume(self) -> Volume:
        """Where the logs are, and how much room there is."""
        return await self._in_executor(self._logs.volume)

    async def _with_log(self, led: Led, use: Callable[[PartitionLog], _T]) -> _T:
        def call() -> _T:
            log = self._opened(led)
            with led.damage.naming():
                found = use(log)
            log.check_open()  # if the leadership was lost meanwhile, the answer may be outdated
            return found

        return await self._in_executor(call)

    # --- upkeep -----------------------------------------------------------------------------------

    async def sweep(self) -> None:
        """Retention, compaction and the rest of the upkeep of all led partitions, now."""
        await self._upkeep.sweep(retention=True)

    async def sweep_quietly(self) -> None:
        """As `sweep`, but what fails is logged."""
        await self._upkeep.sweep_quietly(retention=True)

    def set_upkeep(self, *, cleaner_backoff_ms: int, producer_expiration_ms: int) -> None:
        """Takes effect from the next sweep on."""
        self._upkeep.cleaner_backoff_ms = cleaner_backoff_ms
        self._upkeep.producer_expiration_ms = producer_expiration_ms

    def hold_upkeep(self) -> None:
        """Sweep only when told to, until `resume_upkeep`."""
        self._upkeep.hold()

    def resume_upkeep(self) -> None:
        self._upkeep.resume()

    def under_way(self) -> Iterator[str]:
        """Describe the work under way; yields nothing when all appends are done and all fetches wait."""
        if self._running:
            yield "logs are still being read or written"
        if self._writer.busy:
            yield "topic records are still being written"
        if self._upkeep.sweeping:
            yield "log upkeep is still running"
        if not self._fetches.all_wait:
            yield "fetches are still being answered"

    async def expire_elsewhere(self) -> None:
        """See `upkeep.Leaderships`."""
        for source in self._elsewhere.values():
            await source.expire()

    def in_use(self) -> list[PartitionId]:
        """See `upkeep.Leaderships`, also for what follows."""
        return [PartitionId(*key) for key, led in self._led.items() if led.log is not None]

    def borrow(self, topic_id: UUID, partition: int) -> Callable[[], PartitionLog] | None:
        topic = self._catalogue.by_id(topic_id)
        try:
            return None if topic is None else partial(self._opened, self._find(topic, partition))
        except KafkaError:
            return None

    def give_back(self, topic_id: UUID, partition: int) -> None:
        led = self._led.get((topic_id, partition))
        if led is not None and not led.asked_for:
            # A broker with many idle partitions should not keep them all open.
            self._pop_led([(topic_id, partition)])
            if (log := led.ready_log) is not None:
                bounds = log.start_offset, log.high_watermark
                self._looked[PartitionId(topic_id, partition)] = led.leader_epoch, bounds
            else:
                self._looked.pop(PartitionId(topic_id, partition), None)
            self._in_executor(led.close, self._logs)

    def _in_executor(self, call: Callable[..., _T], *args: object) -> asyncio.Future[_T]:
        return self._track(self._executor, call, *args)

    def _track(self, executor: Executor, call: Callable[..., _T], *args: object) -> asyncio.Future[_T]:
        turn = asyncio.get_running_loop().run_in_executor(executor, call, *args)
        self._running.add(turn)
        turn.add_done_callback(self._finished)
        return turn

    def _finished(self, turn: asyncio.Future[Any]) -> None:
        self._running.discard(turn)
        if not turn.cancelled():
            turn.exception()  # whoever waits for it gets it too; nobody waits for the closing of a failed log


def _refused(refusal: KafkaError) -> asyncio.Future[Appended]:
    refused: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
    refuse(refused, refusal)
    return refused


def _check_epoch(led: Led, current_leader_epoch: int) -> None:
    """`check_epoch`, called only if the client sent an epoch: the partition's name is built anew each
    time."""
    if current_leader_epoch >= 0:
        check_epoch(led.name, led.leader_epoch, current_leader_epoch)


def _fetched(
    led: Led,
    log: PartitionLog,
    found: bytes | memoryview,
    diverging: tuple[int, int] | None,
    aborted: Sequence[AbortedTransaction],
) -> FetchedPartition:
    stable, end = log.last_stable_offset, log.high_watermark
    return FetchedPartition(None, found, end, stable, log.start_offset, led.leader_epoch, diverging, aborted)


async def _all_done(turns: Sequence[asyncio.Future[None]]) -> None:
    if turns:
        await asyncio.wait(turns)
