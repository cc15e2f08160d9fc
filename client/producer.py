"""`Producer`: records in, acknowledgements out.

A record goes straight into its partition's batch and is sent with the records that follow; its future holds
the outcome. Nothing is lost silently and nothing waits forever: every future is settled within
`delivery_timeout_ms`, or when the producer is closed.
"""

from __future__ import annotations

import asyncio
import time
from asyncio import get_running_loop
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar, Unpack, overload

from muster.client.errors import BufferFull, ClientError, Closed, ConcurrentUse, TimedOut, again
from muster.client.network.cluster import Cluster
from muster.client.network.connection import deadline
from muster.client.network.servers import DEFAULT_BOOTSTRAP
from muster.client.produce.accumulator import Accumulator, PartitionQueue, TopicQueues
from muster.client.produce.leaders import Patience
from muster.client.produce.partitioner import partition_of
from muster.client.produce.sender import RecordFuture, RecordMetadata, Sender
from muster.client.produce.settings import ProducerOptions, ProducerSettings
from muster.client.produce.transaction import Transaction
from muster.client.produce.transactions import Transactions
from muster.client.settings import seconds_of
from muster.protocol.errors import KafkaError

__all__ = ["Producer", "RecordFuture", "RecordMetadata"]

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

_NOT_STARTED: Final = "the producer was not started: use `async with`, or await start()"
_CLOSED: Final = "the producer is closed; make another one"
_HURRIED_CLOSE_S: Final = 5.0
"""How long a block left by an exception or a cancellation waits for records in flight."""
_INT64_MAX: Final = 2**63 - 1


class Producer(Generic[K, V]):
    """Sends records to a cluster.

        async with Producer("127.0.0.1:9092") as producer:
            metadata = await producer.send("orders", b"...", key=b"42")

    Any number of tasks may share a producer. Records that one task posts to a partition keep their order,
    even across retries and with several requests in flight.

    With a `transactional_id`, records become visible together, or not at all:

        async with producer.transaction() as transaction:
            await transaction.send("orders", b"...")

    The settings are those of `muster.client.produce.settings.ProducerSettings`. Serializers convert keys and
    values to bytes; without serializers they must be bytes. None stays null.

    It is used on the event loop that it was started on. Calls raise KafkaError if a broker refuses, and
    ClientError otherwise.
    """

    @overload
    def __init__(
        self: Producer[bytes, bytes],
        bootstrap_servers: str | Sequence[str] = ...,
        **settings: Unpack[ProducerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: Producer[bytes, V],
        bootstrap_servers: str | Sequence[str] = ...,
        *,
        value_serializer: Callable[[V], bytes | None],
        **settings: Unpack[ProducerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: Producer[K, bytes],
        bootstrap_servers: str | Sequence[str] = ...,
        *,
        key_serializer: Callable[[K], bytes | None],
        **settings: Unpack[ProducerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: Producer[K, V],
        bootstrap_servers: str | Sequence[str] = ...,
        *,
        key_serializer: Callable[[K], bytes | None],
        value_serializer: Callable[[V], bytes | None],
        **settings: Unpack[ProducerOptions],
    ) -> None: ...

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] = DEFAULT_BOOTSTRAP,
        *,
        key_serializer: Callable[[Any], bytes | None] | None = None,
        value_serializer: Callable[[Any], bytes | None] | None = None,
        **settings: Unpack[ProducerOptions],
    ) -> None:
        for name, given in (("key_serializer", key_serializer), ("value_serializer", value_serializer)):
            if given is not None and not callable(given):
                raise ValueError(f"{name}={given!r}: it takes a function that makes bytes, or None")
        self._settings = checked = ProducerSettings.of(bootstrap_servers, settings)
        self._accumulator = Accumulator(
            idempotent=checked.idempotent,
            codec=checked.codec,
            batch_size_bytes=min(checked.batch_size, checked.max_request_size),
            linger_s=checked.linger_ms / 1000,
            max_in_flight=checked.max_in_flight,
            request_bytes_max=checked.max_request_size,
            delivery_timeout_s=checked.delivery_timeout_ms / 1000,
        )
        self._topics: dict[str, TopicQueues] = {}
        self._buffer_memory = checked.buffer_memory
        self._partitioner = checked.partitioner
        self._key_serializer = key_serializer
        self._value_serializer = value_serializer
        self._serializes = key_serializer is not None or value_serializer is not None
        self._turns: deque[asyncio.Future[None]] = deque()
        """Callers waiting for room in the buffer, first come first served."""
        self._lines: dict[str, _Line] = {}
        """Callers waiting for anything, by topic; later ones queue behind them."""
        self._pause = True
        """Whether the next record must wait, or will be refused."""
        self._unusable: ClientError | KafkaError | None = Closed(_NOT_STARTED)
        self._transactions: Transactions | None = None
        self._starting = False
        self._closing: asyncio.Task[None] | None = None
        self._cluster: Cluster
        self._sender: Sender
        self._loop: asyncio.AbstractEventLoop

    def __repr__(self) -> str:
        servers = ",".join(map(str, self._settings.bootstrap_servers))
        state = "open" if self._unusable is None else str(self._unusable)
        return f"<Producer {servers}, {self._accumulator.size_bytes} bytes not acknowledged, {state}>"

    # --- life -----------------------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Accept records from now on. It connects when the first record is sent, so the cluster may start
        later.

        With a transactional_id it connects at once: an earlier producer with the same id is fenced, and the
        transaction it left open is aborted. Raises TimedOut if that takes longer than max_block_ms,
        ProducerFenced if another producer with the id starts meanwhile, and KafkaError; after any of these it
        may be started again. Raises Closed if it is closed meanwhile, ConcurrentUse if it is being started
        already."""
        if self._unusable is None:
            self._check()
            return self
        self._raise_if_closed()
        if self._starting:
            raise ConcurrentUse("the producer is being started already")
        self._loop = asyncio.get_running_loop()
        settings = self._settings
        self._cluster = Cluster(
            settings.bootstrap_servers,
            client_id=settings.client_id,
            metadata_max_age_ms=settings.metadata_max_age_ms,
            retry_backoff_ms=settings.retry_backoff_ms,
            retry_backoff_max_ms=settings.retry_backoff_max_ms,
            auto_create_topics=settings.allow_auto_create_topics,
            request_timeout_ms=settings.request_timeout_ms,
            security=settings.security,
            patient=True,
        )
        self._sender = Sender(
            self._cluster, self._accumulator, settings, on_room=self._next_turn, on_death=self._died
        )
        self._topics = self._sender.leaders.current
        if settings.transactional_id is not None:
            self._starting = True
            try:
                await self._start_transactions()
            finally:
                self._starting = False
        self._unusable = None
        return self

    def _raise_if_closed(self) -> None:
        """Raise if it was closed before it had started."""
        if self._unusable is not None and self._unusable.args[0] != _NOT_STARTED:
            raise again(self._unusable)

    async def _start_transactions(self) -> None:
        self._transactions = self._sender.transactions = Transactions(
            self._cluster,
            self._accumulator,
            self._sender,
            self._settings,
            on_stop=self._stop_records,
            on_death=self._died,
        )
        try:
            await self._transactions.start()
            self._raise_if_closed()
        except BaseException as error:
            self._transactions = None
            await self._sender.abort("the producer was not started")
            await self._cluster.close()
            if isinstance(error, Closed):  # by `close`
                self._raise_if_closed()
            raise

    def transaction(self) -> Transaction[K, V]:
        """A transaction, for `async with`: see `Transaction`. A producer with a transactional_id sends
        records only in transactions, one at a time. Raises ClientError without a transactional_id."""
        self._check()
        if self._transactions is None:
            raise ClientError("transaction() requires a transactional_id: give the producer one")
        return Transaction(self, self._transactions)

    async def close(self, timeout: float | None = None) -> None:
        """Send all buffered records, wait up to `timeout` seconds for them (None: delivery_timeout_ms, within
        which every record is settled), and close. Records not acknowledged by then fail with Closed, which
        says whether they may have been written. Safe to call again. If cancelled, it closes at once, and such
        records fail in the same way.

        An open transaction is aborted, and one that is ending is waited for, within the same time.

        Leaving an `async with` block does this too; after an exception, with a 5-second timeout."""
        if self._closing is None:
            limit_s = self._limit_s(timeout)
            never_started = isinstance(self._unusable, Closed)
            if not never_started or self._starting:
                self._check_loop()
            if never_started or self._unusable is None:
                self._unusable = Closed(_CLOSED)
            self._pause = True
            if never_started:
                if self._starting:
                    await self._cluster.close()  # so that `start` ends
                return
            self._closing = asyncio.create_task(self._close(limit_s), name="close of a producer")
        try:
            if not self._closing.done():
                self._check_loop()
                await asyncio.wait([self._closing])
        except asyncio.CancelledError:
            self._closing.cancel()
            await asyncio.wait([self._closing])
            raise
        if not self._closing.cancelled():
            self._closing.result()

    async def _close(self, limit_s: float) -> None:
        until = deadline(limit_s)
        try:
            if self._transactions is not None:
                await self._transactions.close(limit_s)
            await self._sender.flush(until)
        except (TimedOut, asyncio.CancelledError):
            pass
        finally:
            self._let_all_go()
            try:
                await self._sender.abort("the producer was closed before the record was acknowledged")
            finally:
                await self._cluster.close()

    def _limit_s(self, timeout: float | None) -> float:
        return seconds_of(timeout, self._settings.delivery_timeout_ms / 1000)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(None if error is None else _HURRIED_CLOSE_S)

    def _stop_records(self) -> None:
        """The transaction takes no more records."""
        self._pause = True

    def _died(self, why: ClientError | KafkaError) -> None:
        self._unusable = why
        self._pause = True
        self._let_all_go()

    # --- records --------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: V | None = None,
        *,
        key: K | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
    ) -> RecordMetadata:
        """Send a record, and return where it went once it is acknowledged. `post` is faster for many records.
        Records to a topic keep the order of the calls, even from concurrent tasks. `timestamp_ms` is epoch ms
        (default: now). Returns or raises within delivery_timeout_ms of the call; it waits at most
        max_block_ms of that for the topic and for room in the buffer.

        Raises KafkaError if a broker refuses (MESSAGE_TOO_LARGE, TOPIC_AUTHORIZATION_FAILED, ...),
        AuthenticationFailed, Unreachable or RequestTimedOut if no broker described the topic in time,
        DeliveryTimedOut, BufferFull, TimedOut, Closed; TypeError or ValueError if the record is invalid.

        With a transactional_id, also raises NoTransaction outside a transaction, TransactionAborted in one
        that has failed, and ProducerFenced.

        If cancelled while it waits for the topic or for room, the record is not sent. If cancelled while it
        waits for the acknowledgement, the record is still sent, and its outcome is lost.
        """
        future = await self.post(
            topic,
            value,
            key=key,
            partition=partition,
            timestamp_ms=timestamp_ms,
            headers=headers,
            urgent=True,
        )
        return await future

    async def post(
        self,
        topic: str,
        value: V | None = None,
        *,
        key: K | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        urgent: bool = False,
    ) -> RecordFuture:
        """Hand a record to the producer, and return a future for its metadata. Waits only for a topic not
        known yet, for a partition being added (5 s at most), for room in the buffer (all up to max_block_ms),
        and for a turn of the loop when a batch is full. `urgent`: the record does not linger while no request
        to its broker is in flight.

        The future is settled within delivery_timeout_ms of the return (`urgent`: of the call); its errors are
        those of `send`. Raises Unreachable or RequestTimedOut if no broker described the topic in time,
        BufferFull, TimedOut (earlier records to the topic waited for max_block_ms), Closed, KafkaError for
        the topic or a record that is too large; TypeError or ValueError if the record is invalid. If it
        raises or is cancelled, the record was not taken.

        Written for speed: the common case comes first, the rest is in `_wait` and `_begin`.
        """
        raw_key: Any = key
        raw_value: Any = value
        if self._serializes:
            if self._key_serializer is not None and key is not None:
                raw_key = self._key_serializer(key)
            if self._value_serializer is not None and value is not None:
                raw_value = self._value_serializer(value)
        if headers:
            try:
                headers = tuple(headers)
            except TypeError as error:
                raise _no_headers(error) from error
        found = self._topics.get(topic)
        accumulator = self._accumulator
        called_at = None
        if (
            found is None
            or self._pause
            or topic in self._lines
            or accumulator.size_bytes >= self._buffer_memory
            or (partition is not None and (type(partition) is not int or partition >= found.count))
            or get_running_loop() is not self._loop
        ):
            self._check()
            if self._transactions is not None:
                self._transactions.check(None)
            called_at = self._loop.time()
            found = await self._wait(topic, partition, self._patience(urgent=urgent))
        if timestamp_ms is None:
            timestamp_ms = int(time.time() * 1000)
        elif not hasattr(timestamp_ms, "__index__"):
            raise TypeError(f"timestamp_ms takes a whole number, not {type(timestamp_ms).__name__}")
        elif not 0 <= timestamp_ms <= _INT64_MAX:
            raise ValueError(f"timestamp_ms={timestamp_ms}: it takes epoch ms, from 0 to 2**63 - 1")
        if partition is None:
            if self._partitioner is not None:
                partition = self._chosen(found, raw_key, raw_value)
        elif partition < 0:
            raise ValueError(f"partition={partition}: partitions are numbered from 0")
        future: RecordFuture = asyncio.Future(loop=self._loop)
        keyless = False
        size_bytes_max = accumulator.batch_size_bytes
        try:
            if partition is not None:
                queue = found.queues[partition]
            elif raw_key is None:
                queue = found.sticky
                size_bytes_max = found.size_bytes_max
                keyless = True
            else:
                if type(raw_key) is not bytes and isinstance(raw_key, (bytearray, memoryview)):
                    raw_key = bytes(raw_key)
                queue = found.queues[partition_of(raw_key, found.count)]
            if not accumulator.add(queue, timestamp_ms, raw_key, raw_value, headers, future, size_bytes_max):
                queue = self._begin(
                    found, None if keyless else queue, timestamp_ms, raw_key, raw_value, headers, future
                )
        except (TypeError, AttributeError) as error:
            raise _no_record(raw_key, raw_value, headers, error) from error
        except ValueError as error:
            if not headers:
                raise
            raise _no_headers(error) from error
        if urgent:
            if called_at is not None:
                self._sender.expires(queue, called_at)
            if accumulator.hurry(queue):
                self._sender.wake()
        return future

    def _begin(
        self,
        topic: TopicQueues,
        queue: PartitionQueue | None,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Iterable[tuple[str, bytes | None]],
        future: RecordFuture,
    ) -> PartitionQueue:
        """Put a record into a new batch of this partition or, if None, of any. Returns the partition's
        queue."""
        topic.used_at = now = self._loop.time()
        if queue is None:
            begun = self._accumulator.begin_keyless(topic, timestamp_ms, value, headers, future, now)
            queue = topic.sticky
        else:
            begun = self._accumulator.begin(queue, timestamp_ms, key, value, headers, future, now)
        if begun is not None:
            self._sender.wake()
        if self._accumulator.filled:
            # Without this, a caller that posts in a loop never yields, and nothing is sent until the buffer
            # is full.
            self._accumulator.filled = False
            self._pause = True
        return queue

    async def flush(self, timeout: float | None = None) -> None:
        """Send all buffered records without lingering, and return when all are settled: acknowledged or
        failed, as their futures show. Raises TimedOut after `timeout` seconds (None: delivery_timeout_ms);
        the records then stay in flight."""
        self._check()
        await self._sender.flush(deadline(self._limit_s(timeout)))
        if self._unusable is not None and not isinstance(self._unusable, Closed):
            raise again(self._unusable)

    async def partitions_for(self, topic: str) -> int:
        """The number of partitions of the topic. Raises as `post` does."""
        self._check()
        found = self._topics.get(topic)
        if found is None:
            found = await self._sender.leaders.topic(topic, self._patience())
        found.used_at = self._loop.time()
        return found.count

    def _chosen(self, topic: TopicQueues, key: bytes | None, value: bytes | None) -> int:
        assert self._partitioner is not None
        count = topic.count
        partition = self._partitioner(topic.name, key, value, count)
        if not 0 <= partition < count:
            raise ValueError(
                f"the partitioner chose partition {partition} for topic {topic.name}, which has {count}"
            )
        return partition

    # --- waiting --------------------------------------------------------------------------------------------

    def _patience(self, *, urgent: bool = False) -> Patience:
        """How long a call waits for a topic or for room. If it also waits for the acknowledgement (`urgent`),
        it waits no longer than the record's own limit."""
        settings = self._settings
        name, limit_ms = "max_block_ms", settings.max_block_ms
        if urgent and settings.delivery_timeout_ms < limit_ms:
            name, limit_ms = "delivery_timeout_ms", settings.delivery_timeout_ms
        return Patience(deadline(limit_ms / 1000), f"{name} ({limit_ms})")

    async def _wait(self, name: str, partition: int | None, patience: Patience) -> TopicQueues:
        """Wait for whatever a record needs, behind earlier records of its topic: concurrent tasks keep the
        order in which they called."""
        if partition is not None and not hasattr(partition, "__index__"):
            raise TypeError(f"partition takes a whole number, not {type(partition).__name__}")
        line = self._lines.setdefault(name, _Line())
        place = line.join()
        transaction = None if self._transactions is None else self._transactions.current
        try:
            await self._turn(line, place, name, patience)
            return await self._ready(line, name, partition, patience, transaction)
        finally:
            # The record is taken before any caller behind it runs.
            if line.leave(place):
                del self._lines[name]

    async def _turn(self, line: _Line, place: asyncio.Future[None], name: str, patience: Patience) -> None:
        try:
            async with asyncio.timeout_at(patience.until):
                await line.first(place)
        except TimeoutError:
            if line.failure is not None:  # Whatever held up those before us held us up as well.
                raise again(line.failure) from None
            raise TimedOut(
                f"other records to {name} waited before this one for all of {patience.setting}"
            ) from None

    async def _ready(
        self, line: _Line, name: str, partition: int | None, patience: Patience, transaction: object
    ) -> TopicQueues:
        self._check_record(transaction)
        if self._pause:
            self._pause = bool(self._turns)
            await asyncio.sleep(0)
        topic = self._topics.get(name)
        if topic is None:
            topic = await line.needs(self._sender.leaders.topic(name, patience))
        if partition is not None and partition >= topic.count:
            topic = await self._sender.leaders.partition(name, partition, patience)
        if self._turns or self._accumulator.size_bytes >= self._buffer_memory:
            await line.needs(self._room(patience))
        self._check_record(transaction)
        return topic

    def _check_record(self, transaction: object) -> None:
        """Raise unless a record can be taken in the transaction it was given in."""
        self._check()
        if self._transactions is not None:
            self._transactions.check(transaction)

    def _check(self) -> None:
        """Raise unless the producer can be used, and on this loop."""
        if self._unusable is not None:
            raise again(self._unusable) from self._unusable.__cause__
        self._check_loop()

    def _check_loop(self) -> None:
        try:
            here = get_running_loop()
        except RuntimeError:
            here = None
        if here is not self._loop:
            raise ClientError("the producer was started on another event loop: use it on that one")

    async def _room(self, patience: Patience) -> None:
        turn: asyncio.Future[None] = self._loop.create_future()
        self._turns.append(turn)
        self._pause = True
        try:
            async with asyncio.timeout_at(patience.until):
                await turn
        except TimeoutError:
            raise BufferFull(
                f"no room for a record within {patience.setting}: {self._accumulator.size_bytes} bytes are"
                f" not acknowledged, buffer_memory is {self._buffer_memory}"
            ) from None
        finally:
            self._turns.remove(turn)
            self._next_turn()

    def _let_all_go(self) -> None:
        """Release all callers that wait for room: there will be no more."""
        for turn in self._turns:
            if not turn.done():
                turn.set_result(None)

    def _next_turn(self) -> None:
        there_is_room = self._accumulator.size_bytes < self._buffer_memory
        if there_is_room and self._turns and not self._turns[0].done():
            self._turns[0].set_result(None)


class _Line:
    """Callers waiting to add a record to a topic, in order of arrival."""

    def __init__(self) -> None:
        self._places: deque[asyncio.Future[None]] = deque()
        self.failure: ClientError | KafkaError | None = None
        """Why the last caller gave up, if it concerns all of them."""

    def __len__(self) -> int:
        return len(self._places)

    def join(self) -> asyncio.Future[None]:
        """Take a place at the end."""
        place = asyncio.get_running_loop().create_future()
        self._places.append(place)
        return place

    async def first(self, place: asyncio.Future[None]) -> None:
        """Wait until all earlier callers are gone."""
        if self._places[0] is not place:
            await place

    async def needs(self, waiting: Awaitable[T]) -> T:
        """Wait for what every caller needs."""
        try:
            return await waiting
        except (ClientError, KafkaError) as error:
            self.failure = error
            raise

    def leave(self, place: asyncio.Future[None]) -> bool:
        """Leave the line, and wake the next caller if it was this one's turn. Returns whether nobody is
        left."""
        self._places.remove(place)
        if self._places and not self._places[0].done():
            self._places[0].set_result(None)
        return not self._places


def _no_record(key: object, value: object, headers: object, error: Exception) -> TypeError:
    """The error for an invalid record; it names the argument that is wrong."""
    for name, data in (("key", key), ("value", value)):
        if data is not None and not isinstance(data, (bytes, bytearray, memoryview)):
            return TypeError(
                f"{name} takes bytes or None, not {type(data).__name__};"
                f" {name}_serializer makes bytes of others"
            )
    if headers:
        return _no_headers(error)
    return TypeError(f"timestamp_ms takes a whole number: {error}")


def _no_headers(error: Exception) -> TypeError:
    return TypeError(f"headers take (text, bytes or None) pairs: {error}")
