"""Sends what a producer has accumulated: makes requests to partition leaders, and reports the outcome for
each record. One task decides what to send, and sleeps until something happens; each request has its own task,
which ends with the response. Every record's future is settled: by a response, a timeout, or `abort`.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import repeat
from typing import Final, NamedTuple, Protocol

from muster.client.errors import (
    AuthenticationFailed,
    ClientError,
    Closed,
    DeliveryTimedOut,
    TimedOut,
    Unreachable,
    refusal,
)
from muster.client.network.cluster import Cluster
from muster.client.network.connection import deadline
from muster.client.partitions import grouped
from muster.client.produce.accumulator import (
    NEVER,
    Accumulator,
    Batch,
    Outgoing,
    PartitionQueue,
    ProducerIdentity,
)
from muster.client.produce.leaders import Leaders
from muster.client.produce.settings import ProducerSettings
from muster.protocol.errors import EncodeError, ErrorCode, KafkaError
from muster.protocol.messages.data import ProduceRequest, ProduceResponse
from muster.protocol.messages.transactions import InitProducerIdRequest

log = logging.getLogger(__name__)

NO_OFFSET: Final = -1
_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
_OUT_OF_ORDER: Final = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})
_OTHER_PRODUCER: Final = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING})
_PERHAPS_WRITTEN: Final = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
        # Kafka's answer also when the leader changed while the batch waited for other replicas.
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)
_LED_ELSEWHERE: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REPLICA_NOT_AVAILABLE,
    }
)


STILL_ENDING_S: Final = 0.02
"""The pause before resending a request that arrived while the coordinator was still ending the previous
transaction (Java's clients wait as long)."""


class RecordMetadata(NamedTuple):
    """Where a record went. The offset is -1 if unknown: with acks=0, and for a retried batch that was written
    so long ago that the broker no longer remembers where. The timestamp (epoch ms) is the one that consumers
    see."""

    topic: str
    partition: int
    offset: int
    timestamp: int


_metadata: Final = partial(tuple.__new__, RecordMetadata)
"""A RecordMetadata from a tuple: called for every record, and twice as fast as naming the fields."""

RecordFuture = asyncio.Future[RecordMetadata]


class InTransactions(Protocol):
    """What a sender needs from its producer's transactions."""

    transactional_id: str

    @property
    def produce_version_max(self) -> int:
        """The last version of Produce that the transaction may use."""

    def sends(self) -> None:
        """Records of the transaction are being sent."""

    def join(self, partitions: Iterable[PartitionQueue]) -> None:
        """Records wait for these partitions to be in the transaction."""

    def record_failed(self, error: Exception) -> Exception:
        """A record of the transaction was not acknowledged, and never will be. Returns the error that says so
        to whoever sent it."""


class _Flush:
    """Batches that a `flush` waits for."""

    __slots__ = ("batches", "future")

    def __init__(self, batches: set[Batch], future: asyncio.Future[None]) -> None:
        self.batches = batches
        self.future = future


class Sender:
    """Sends for one producer. `on_room` is called when records are settled, `on_death` if the sender's own
    task fails unexpectedly."""

    def __init__(
        self,
        cluster: Cluster,
        accumulator: Accumulator,
        settings: ProducerSettings,
        *,
        on_room: Callable[[], None],
        on_death: Callable[[ClientError], None],
    ) -> None:
        self._cluster = cluster
        self._accumulator = accumulator
        self._acks = settings.required_acks
        self._request_timeout_s = settings.request_timeout_ms / 1000
        self._delivery_timeout_s = settings.delivery_timeout_ms / 1000
        self._on_room = on_room
        self._on_death = on_death
        self._loop = asyncio.get_running_loop()
        self.leaders = Leaders(
            cluster,
            accumulator.topics,
            request_timeout_s=self._request_timeout_s,
            metadata_max_age_s=settings.metadata_max_age_ms / 1000,
            on_news=self.wake,
            on_refused=self._refused,
            on_end=self._ended,
        )
        self.transactions: InTransactions | None = None
        """The transactions that every record belongs to, if the producer is transactional."""
        self._quiet: asyncio.Future[None] | None = None
        self._dead = False
        self._alarm: asyncio.Future[None] | None = None
        self._identifying: asyncio.Task[None] | None = None
        self._no_identity: Exception | None = None  # why there is no producer id
        self._requests: set[asyncio.Task[None]] = set()
        self._flushes: list[_Flush] = []
        self._next_expiry = 0.0
        self._task = asyncio.create_task(self._run(), name="sender of a producer")

    def wake(self) -> None:
        """Something happened: check what is due."""
        if self._alarm is not None and not self._alarm.done():
            self._alarm.set_result(None)

    def expires(self, queue: PartitionQueue, called_at: float) -> None:
        """The delivery timeout of the partition's last record starts at `called_at`."""
        self._accumulator.began(queue, called_at)
        expires_at = called_at + self._delivery_timeout_s
        if expires_at < self._next_expiry:
            self._next_expiry = expires_at
            self.wake()

    async def flush(self, until: float) -> None:
        """Return when every current record is settled. Raises TimedOut."""
        batches = set(self._accumulator.unsettled())
        for batch in batches:
            self._accumulator.seal(batch)
        self.wake()
        if not batches:
            return
        flush = _Flush(batches, self._loop.create_future())
        self._flushes.append(flush)
        try:
            async with asyncio.timeout_at(until):
                await flush.future
        except TimeoutError:
            count = sum(len(batch.tickets) for batch in flush.batches)
            raise TimedOut(f"{count} records are not acknowledged yet; they stay on their way") from None
        finally:
            self._flushes.remove(flush)

    def drop(self, error: Callable[[Batch], Exception]) -> None:
        """Send nothing more: unacknowledged records fail with the `error` of their batch."""
        self._fail_all(error)
        self.wake()

    async def quiet(self) -> None:
        """Return when nothing is in flight or waiting. After `drop`, that takes no longer than the request
        timeout."""
        while not self._accumulator.is_idle and not self._dead:
            if self._quiet is None or self._quiet.done():
                self._quiet = self._loop.create_future()
            await asyncio.wait([self._quiet])

    async def abort(self, why: str) -> None:
        """End all tasks; unsettled records fail with Closed."""
        tasks = [
            task
            for task in (self._task, self._identifying, self.leaders.task, *self._requests)
            if task is not None
        ]
        for task in tasks:
            task.cancel()
        self._fail_all(lambda batch: Closed(f"{batch.where}: {why}; {_fate(batch)}"))
        if tasks:
            await asyncio.wait(tasks)

    # --- sending --------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while True:
                ask_again_at = self._send_due()
                self._alarm = self._loop.create_future()
                timer = None
                if ask_again_at < NEVER:
                    timer = self._loop.call_at(ask_again_at, self.wake)
                try:
                    await self._alarm
                finally:
                    if timer is not None:
                        timer.cancel()
        except Exception as error:
            self._died(error)

    def _send_due(self) -> float:
        """Send what may go out now. Returns when to check again at the latest."""
        accumulator = self._accumulator
        now = self._loop.time()
        ask_again_at = min(self._expire(now), self.leaders.renew(now))
        while True:
            due = accumulator.due(now)
            for request in due.requests:
                task = asyncio.create_task(self._deliver(request), name=f"produce to {request.node}")
                self._requests.add(task)
                task.add_done_callback(self._ended)
            if not due.requests:
                break
        if due.leaderless:
            self.leaders.seek({queue.where.topic for queue in due.leaderless})
        if self.transactions is not None:
            if due.outside:
                self.transactions.join(due.outside)
            return min(ask_again_at, due.ask_again_at)
        identifying = self._identifying is not None and not self._identifying.done()
        if accumulator.identity is None and not accumulator.is_idle and not identifying:
            self._identifying = asyncio.create_task(self._identify(), name="producer id")
            self._identifying.add_done_callback(self._ended)
        return min(ask_again_at, due.ask_again_at)

    def _expire(self, now: float) -> float:
        if now >= self._next_expiry:
            over, next_at = self._accumulator.expired(now)
            for batch in over:
                self._fail(batch, self._timed_out(batch))
            self._next_expiry = min(next_at, now + self._delivery_timeout_s)
        return self._next_expiry

    def _timed_out(self, batch: Batch) -> DeliveryTimedOut:
        queue = batch.queue
        why: object = queue.last_error or "no response came"
        if not queue.last_error and queue.leader is None:
            why = "the partition had no leader"
        elif self._accumulator.identity is None:
            why = self._no_identity or why
        return DeliveryTimedOut(
            f"{batch.where}: not acknowledged within delivery_timeout_ms"
            f" ({round(self._delivery_timeout_s * 1000)}): {why}; {_fate(batch)}"
        )

    async def _identify(self) -> None:
        """Get a producer id. Each attempt has its timeout, and waiting records have theirs."""
        tries = self._cluster.tries()
        while self._accumulator.identity is None:
            try:
                with tries:
                    response = await self._cluster.call(
                        InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0),
                        deadline(self._request_timeout_s),
                    )
                if not response.error_code:
                    self._accumulator.identified(
                        ProducerIdentity(response.producer_id, response.producer_epoch)
                    )
                    break
                raise refusal(response.error_code, about="no producer id for an idempotent producer")
            except (ClientError, KafkaError) as error:
                self._no_identity = error
                # Waiting records outlast an answer that makes no sense: the next one may.
                if isinstance(error, (KafkaError, AuthenticationFailed)) and self._cluster.is_final(error):
                    if isinstance(error, KafkaError) and error.code is ErrorCode.UNSUPPORTED_VERSION:
                        error = KafkaError(error.code, f"{error.why}; enable_idempotence=False does without")
                    self._fail_waiting(lambda _: True, error)
                    return
            await asyncio.sleep(tries.again())
        self.wake()

    # --- requests and responses -----------------------------------------------------------------------------

    async def _deliver(self, outgoing: Outgoing) -> None:
        """Send one request, and handle its response."""
        node, sent = outgoing
        codec = self._accumulator.codec
        until = deadline(self._request_timeout_s)
        topics = grouped((batch.where, batch) for batch in sent)
        transactions, last_version = self.transactions, None
        if transactions is not None:
            transactions.sends()
            last_version = transactions.produce_version_max
        request = ProduceRequest(
            transactional_id=None if transactions is None else transactions.transactional_id,
            acks=self._acks,
            timeout_ms=round(self._request_timeout_s * 1000),
            topic_data=[
                ProduceRequest.TopicProduceData(
                    name=name,
                    partition_data=[
                        ProduceRequest.PartitionProduceData(
                            index=index,
                            records=batch.encoded(codec, transactional=transactions is not None),
                        )
                        for index, batch in parts
                    ],
                )
                for name, parts in topics.items()
            ],
        )
        response: ProduceResponse | None = None
        failed: Exception | None = None
        try:
            if self._acks == 0:
                connection = await self._cluster.connection(node, until)
                await connection.tell(request, until)
            else:
                response = await self._cluster.call(request, until, node=node, last_version=last_version)
        except (ClientError, KafkaError, EncodeError) as error:
            failed = error
        now = self._loop.time()
        self._accumulator.arrived(node, 0.0 if response is None else now + response.throttle_time_ms / 1000)
        if failed is not None:
            for batch in sent:
                self._unanswered(batch, failed, now)
        elif response is None:
            for batch in sent:
                self._written(batch, NO_OFFSET, -1)
        else:
            self._answered(sent, response, now)
        self._on_room()
        self.wake()
        if self._quiet is not None and not self._quiet.done() and self._accumulator.is_idle:
            self._quiet.set_result(None)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._requests.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._died(error)

    def _unanswered(self, batch: Batch, error: Exception, now: float) -> None:
        if isinstance(error, (KafkaError, EncodeError, AuthenticationFailed)):
            # No common version, not to be encoded, or not let in.
            self._refuse(batch, error)
            return
        batch.queue.leader = None  # the node may be gone for good
        self._retry(batch, error, now, in_doubt=not isinstance(error, Unreachable))

    def _answered(self, sent: Iterable[Batch], response: ProduceResponse, now: float) -> None:
        told = {
            (topic.name, each.index): each
            for topic in response.responses
            for each in topic.partition_responses
        }
        for batch in sent:
            answer = told.get(batch.where)
            if answer is None:
                error = ClientError(f"the broker's answer to Produce leaves out {batch.where}")
                self._retry(batch, error, now, in_doubt=True)
            elif answer.error_code:
                self._not_written(batch, answer, response, now)
            else:
                self._written(batch, answer.base_offset, answer.log_append_time_ms)

    def _not_written(
        self,
        batch: Batch,
        answer: ProduceResponse.TopicProduceResponse.PartitionProduceResponse,
        response: ProduceResponse,
        now: float,
    ) -> None:
        error = refusal(answer.error_code, answer.error_message, about=str(batch.where))
        numbered = batch.sequence >= 0
        if error.code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            self._written(batch, NO_OFFSET, -1)
        elif error.code in _TOO_LARGE and len(batch.tickets) > 1:
            halves = self._accumulator.split(batch)
            for flush in self._flushes:
                if batch in flush.batches:
                    flush.batches.remove(batch)
                    flush.batches.update(halves)
        elif numbered and self._ends_transaction(batch, error):
            self._refuse(batch, error)
        elif numbered and error.code in _OUT_OF_ORDER | _OTHER_PRODUCER:
            if error.code in _OTHER_PRODUCER:
                self._accumulator.forget_identity(batch.identity)
            self._accumulator.out_of_order(batch, error, self._retry_at(batch, now))
        elif error.code.retriable:
            if error.code in _LED_ELSEWHERE:
                self._look_for_leader(batch, answer, response)
            self._retry(batch, error, now, in_doubt=error.code in _PERHAPS_WRITTEN)
            if error.code is ErrorCode.CONCURRENT_TRANSACTIONS:
                batch.queue.retry_at = now + STILL_ENDING_S
        else:
            self._refuse(batch, error, _blamed(batch, answer, error))

    def _ends_transaction(self, batch: Batch, error: KafkaError) -> bool:
        """Whether numbering can only restart with the next transaction."""
        if self.transactions is None:
            return False
        if error.code in _OUT_OF_ORDER:
            return batch.queue.is_oldest(batch)
        return error.code in _OTHER_PRODUCER

    def _look_for_leader(
        self,
        batch: Batch,
        answer: ProduceResponse.TopicProduceResponse.PartitionProduceResponse,
        response: ProduceResponse,
    ) -> None:
        """Take the leader that the broker names (KIP-951), or have it looked up."""
        queue = batch.queue
        hint = answer.current_leader
        if self._cluster.new_leader(batch.where, hint.leader_id, hint.leader_epoch, response.node_endpoints):
            queue.leader = hint.leader_id
        else:
            queue.leader = None

    def _retry(self, batch: Batch, error: Exception, now: float, *, in_doubt: bool) -> None:
        self._accumulator.retry(batch, error, self._retry_at(batch, now), in_doubt=in_doubt)

    def _retry_at(self, batch: Batch, now: float) -> float:
        """When the batch may be resent; batches that fail together count as one attempt."""
        queue = batch.queue
        if queue.halted:
            return queue.retry_at
        queue.tries += 1
        return now + self._cluster.backoff_s(queue.tries - 1)

    # --- settling -------------------------------------------------------------------------------------------

    def _written(self, batch: Batch, base_offset: int, log_append_time_ms: int) -> None:
        self._accumulator.acknowledged(batch)
        if batch.done:
            return
        topic, partition = batch.where
        count = len(batch.tickets)
        offsets = range(base_offset, base_offset + count) if base_offset >= 0 else repeat(NO_OFFSET)
        stamped = batch.timestamps if log_append_time_ms < 0 else repeat(log_append_time_ms)
        facts = zip(repeat(topic), repeat(partition), offsets, stamped, strict=False)
        for future, metadata in zip(batch.tickets, map(_metadata, facts), strict=False):
            try:
                future.set_result(metadata)
            except asyncio.InvalidStateError:  # cancelled by its waiter
                continue
        self._settled(batch)

    def _refuse(self, batch: Batch, error: Exception, each: Mapping[int, Exception] | None = None) -> None:
        """The batch is refused permanently, by its broker or because nobody lets this client in."""
        self._accumulator.give_up(batch)
        if not batch.done:
            if batch.in_doubt and not (isinstance(error, KafkaError) and error.code in _OUT_OF_ORDER):
                error = _after_a_try(error)
                each = {index: _after_a_try(blamed) for index, blamed in (each or {}).items()}
            self._fail(batch, error, each)

    def _refused(self, topic: str, error: Exception) -> None:
        """The cluster refuses metadata of the topic permanently, so nothing can be sent to it."""
        self._fail_waiting(lambda batch: batch.where.topic == topic, error)

    def _fail_waiting(self, concerned: Callable[[Batch], bool], error: Exception) -> None:
        """Fail the batches not in flight."""
        for batch in list(self._accumulator.unsettled()):
            if concerned(batch) and batch not in batch.queue.in_flight:
                self._refuse(batch, error)

    def _fail(self, batch: Batch, error: Exception, each: Mapping[int, Exception] | None = None) -> None:
        """Settle the batch's futures with separate errors; `each` holds those of single records. If nobody
        retrieves them, asyncio warns once, not for every record."""
        if self.transactions is not None:
            error = self.transactions.record_failed(error)
        told = self.transactions is not None  # then the commit reports it
        for index, future in enumerate(batch.tickets):
            if future.done():
                continue
            own = (each or {}).get(index)
            if own is None:
                own = copy.copy(error)
                own.__cause__ = error.__cause__
            future.set_exception(own)
            if told:
                future.exception()
            told = True
        self._settled(batch)

    def _fail_all(self, error: Callable[[Batch], Exception]) -> None:
        for batch in list(self._accumulator.unsettled()):
            why = error(batch)
            if batch in batch.queue.in_flight:
                batch.done = True
            else:
                self._accumulator.give_up(batch)
            self._fail(batch, why)

    def _settled(self, batch: Batch) -> None:
        self._on_room()
        batch.tickets = []  # so that holders of the batch do not keep them
        for flush in self._flushes:
            flush.batches.discard(batch)
            if not flush.batches and not flush.future.done():
                flush.future.set_result(None)

    def _died(self, error: BaseException) -> None:
        log.error("a producer's sender failed; this is a defect of the client", exc_info=error)
        self._dead = True
        if self._quiet is not None and not self._quiet.done():
            self._quiet.set_result(None)
        self._on_death(_dead(error, "make another producer"))
        self._fail_all(lambda batch: _dead(error, _fate(batch)))


def _dead(error: BaseException, then: str) -> ClientError:
    why = ClientError(f"the producer's sender failed with {type(error).__name__}: {error}; {then}")
    why.__cause__ = error
    return why


def _after_a_try(error: Exception) -> Exception:
    """The error for a batch that was sent before, without an answer that says what became of it."""
    perhaps = "an earlier try may have been written all the same"
    why: Exception
    if isinstance(error, KafkaError):
        why = KafkaError(error.code, f"{error.why}; {perhaps}")
    else:
        why = type(error)(f"{error}; {perhaps}")
    why.__cause__ = error.__cause__
    return why


def _fate(batch: Batch) -> str:
    """What is known about an unacknowledged batch."""
    if batch.in_doubt or batch in batch.queue.in_flight:
        return "it may have been written all the same"
    return "it was not written"


def _blamed(
    batch: Batch,
    answer: ProduceResponse.TopicProduceResponse.PartitionProduceResponse,
    error: KafkaError,
) -> dict[int, Exception]:
    """The errors of single records (KIP-467): the broker's for those at fault; for the others, that they were
    in the same batch."""
    if not answer.record_errors:
        return {}
    why = answer.error_message or error.code.text
    blamed: dict[int, Exception] = {
        index: KafkaError(error.code, f"{batch.where}: not written, for another record of its batch: {why}")
        for index in range(len(batch.tickets))
    }
    for each in answer.record_errors:
        blamed[each.batch_index] = KafkaError(
            error.code, f"{batch.where}: {each.batch_index_error_message or why}"
        )
    return blamed
