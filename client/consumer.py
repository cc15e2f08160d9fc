"""Reads topics as a group member, or manually assigned partitions. Rebalances, look-ups and fetching happen
inside the reading calls (`muster.client.consume.core`); buffered records are returned directly, without that
work, until something is due.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar, Unpack, overload

from muster.client.admin.offsets import EARLIEST as FIRST_OFFSET
from muster.client.admin.offsets import LATEST as END_OFFSET
from muster.client.admin.offsets import READ_COMMITTED, READ_UNCOMMITTED, list_offsets, timestamp_of
from muster.client.consume.core import ConsumerCore
from muster.client.consume.health import Health
from muster.client.consume.listener import Calls
from muster.client.consume.scope import AssignmentScope
from muster.client.consume.settings import ConsumerOptions, ConsumerSettings
from muster.client.consume.subscription import Subscription, SubscriptionPattern, Topics
from muster.client.errors import ClientError, TransactionAborted
from muster.client.fetch.positions import EARLIEST, LATEST, ResetStrategy
from muster.client.fetch.records import Batch, ConsumerRecord
from muster.client.group.group import Group
from muster.client.group.group_metadata import GroupMetadata
from muster.client.group.outcomes import CommitResult
from muster.client.network.connection import deadline
from muster.client.network.servers import DEFAULT_BOOTSTRAP
from muster.client.partitions import (
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicPartition,
    checked_partition,
    place_of,
)
from muster.client.settings import seconds_of
from muster.protocol.errors import ErrorCode
from muster.realtime import RealTime

K = TypeVar("K")
V = TypeVar("V")

_HURRIED_CLOSE_S: Final = 10.0
"""How long closing may take when the block is left by an exception or a cancellation."""
_STRETCH_S: Final = 0.02
"""How long a handler that never awaits may hold the loop before other tasks get a turn."""
_FIRST_STRETCH: Final = 16  # records, until the handler's speed is known


class RebalanceListener:
    """Override what you need; each method may be plain or a coroutine.

    The order is Kafka's. With eager assignors, all partitions are revoked before the member rejoins, and the
    whole new assignment is passed to `assigned`. With cooperative ones (KIP-429), only partitions that move
    are revoked, after the join, and only new ones are passed to `assigned`. `assigned` is called after every
    rebalance, even with an empty set. The consumer protocol (KIP-848) works as cooperative assignors do, but
    nothing is revoked before the coordinator says so. For a member that was evicted from the group, `lost` is
    called: its partitions may have other owners by now, so it is too late to commit.

    Callbacks run inside the reading calls, on the reading task, never while that task handles a record. They
    may call any method of the consumer except the reading ones, `unsubscribe`, `close` and `drain`, which
    raise ClientError there, and in a task that the callback awaits, directly or in `asyncio.gather`; to end
    the consumer, they call `stop`. If a callback raises an exception, the reading call raises it once the
    rebalance is done. While the consumer closes, a callback runs in a task of its own, which is cancelled
    when the time for it is up, and not waited for much longer.
    """

    def on_partitions_revoked(
        self, consumer: Consumer[Any, Any], partitions: Iterable[TopicPartition]
    ) -> Any:
        """These partitions are about to move to other members, or the consumer is closing. This member still
        owns them: finish work and commit now."""

    def on_partitions_assigned(
        self, consumer: Consumer[Any, Any], partitions: Iterable[TopicPartition]
    ) -> Any:
        """This member owns these partitions from now on. Nothing has been read from them yet, so seek now if
        you need to."""

    def on_partitions_lost(self, consumer: Consumer[Any, Any], partitions: Iterable[TopicPartition]) -> Any:
        """This member has lost these partitions, and they may have other owners by now. Calls
        `on_partitions_revoked` unless overridden."""
        return self.on_partitions_revoked(consumer, partitions)


class Consumer(Generic[K, V]):
    """Reads topics as a group member, or partitions assigned by hand.

        async with Consumer("127.0.0.1:9092", group_id="billing", topics=["orders"]) as consumer:
            async for record in consumer:
                await handle(record)

    `topics` is one name, several, a compiled pattern that must match whole names, or a
    `SubscriptionPattern`, which the brokers match. The other settings are those of
    `muster.client.consume.settings.ConsumerSettings`. Deserializers convert bytes; a null stays None.

    A record counts as handled when the next one is requested, and when the block ends cleanly; the next
    automatic commit then covers it. If the block is left by an exception or a cancellation, the record in
    hand does not count and is read again.

    A consumer has one reader: only one reading call (the loop, `get`, `get_many`, `batches`) may be in
    progress. The other methods may be called at any time, also from other tasks; `unsubscribe` only between
    reading calls. For callbacks, see `RebalanceListener`. Reading calls retry temporary failures (a broker is
    down, the group rebalances) forever; the other methods retry until their `timeout`, in seconds (default:
    `default_api_timeout_ms`). Calls raise KafkaError if a broker refuses, and ClientError otherwise.
    """

    @overload
    def __init__(
        self: Consumer[bytes | None, bytes | None],
        bootstrap_servers: str | Sequence[str] = ...,
        *,
        topics: Topics | None = ...,
        listener: RebalanceListener | None = ...,
        **settings: Unpack[ConsumerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: Consumer[bytes | None, V | None],
        bootstrap_servers: str | Sequence[str] = ...,
        *,
        topics: Topics | None = ...,
        listener: RebalanceListener | None = ...,
        value_deserializer: Callable[[bytes], V],
        **settings: Unpack[ConsumerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: Consumer[K | None, bytes | None],
        bootstrap_servers: str | Sequence[str] = ...,
        *,
        topics: Topics | None = ...,
        listener: RebalanceListener | None = ...,
        key_deserializer: Callable[[bytes], K],
        **settings: Unpack[ConsumerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: Consumer[K | None, V | None],
        bootstrap_servers: str | Sequence[str] = ...,
        *,
        topics: Topics | None = ...,
        listener: RebalanceListener | None = ...,
        key_deserializer: Callable[[bytes], K],
        value_deserializer: Callable[[bytes], V],
        **settings: Unpack[ConsumerOptions],
    ) -> None: ...

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] = DEFAULT_BOOTSTRAP,
        *,
        topics: Topics | None = None,
        listener: RebalanceListener | None = None,
        key_deserializer: Callable[[bytes], Any] | None = None,
        value_deserializer: Callable[[bytes], Any] | None = None,
        **settings: Unpack[ConsumerOptions],
    ) -> None:
        for name, given in (
            ("key_deserializer", key_deserializer),
            ("value_deserializer", value_deserializer),
        ):
            if given is not None and not callable(given):
                raise ValueError(f"{name}={given!r}: it takes a function of bytes, or None")
        self._settings = ConsumerSettings.of(bootstrap_servers, settings)
        self._subscription = Subscription()
        self._calls = Calls(self, RebalanceListener())
        self._core: ConsumerCore[K, V] = ConsumerCore(
            self._settings, self._subscription, self._calls, key_deserializer, value_deserializer
        )
        self._delivery = self._core.delivery
        self._stretch = _FIRST_STRETCH
        self._stretch_began = 0.0
        if topics is not None:
            self.subscribe(topics, listener)
        elif listener is not None:
            raise ValueError("listener: it is for subscribed topics, and there are none")

    def __repr__(self) -> str:
        group = "" if self._settings.group_id is None else f" in {self._settings.group_id}"
        return f"<Consumer{group} {self._core.state}: {self._subscription}>"

    # --- life -----------------------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Start the consumer; `async with` does this. It connects when a call first needs a broker. Raises
        ClientError if already started, ConcurrentUse if it is being started, and Closed if it is closed
        meanwhile."""
        if self._core.state != "new":
            raise ClientError(f"the consumer was started before and is {self._core.state}")
        await self._core.open()
        return self

    async def close(self, timeout: float = 30.0) -> None:
        """Commit handled records (with auto-commit), call the listener, leave the group (a static member
        stays in it until its session times out), and release all resources. Takes at most `timeout` seconds;
        whatever is not done by then is skipped, except that the group is told, if not waited for. Once
        everything is closed, raises what the listener raised, the failure of the last commit, or what a
        scope's task raised and no reading call has; if there are several, the others are logged as errors.
        Safe to call again. If called from a task other than the reader's, the record in hand counts as not
        handled.

        Leaving an `async with` block does this too; after an exception or a cancellation, with a 10-second
        timeout, and the record in hand counts as not handled.
        """
        await self._core.close(seconds_of(timeout))

    async def drain(self, timeout: float = 30.0) -> None:
        """Shut down gracefully; any task may call it. Returns no new records, lets the reader finish what it
        has in hand and the scopes' tasks end, then closes. The reader's loop ends as if there were no more
        records.
        """
        await self._core.close(seconds_of(timeout), drain=True)

    def stop(self) -> None:
        """Return no new records: the reader's loop ends at the next record, and a waiting reading call
        returns without any. The reader's block still has to close the consumer. Meant for signal handlers."""
        self._core.orderly = True
        self._core.stop()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._core.close(30.0 if error is None else _HURRIED_CLOSE_S, error=error)

    # --- what is read ---------------------------------------------------------------------------------------

    def subscribe(self, topics: Topics, listener: RebalanceListener | None = None) -> None:
        """Subscribe to these topics as part of the group; replaces the current subscription. A pattern also
        covers topics created later. A listener given here replaces the previous one. Raises ValueError, and
        ClientError if partitions are assigned by hand, or to switch between names and a pattern."""
        if self._settings.group_id is None:
            raise ValueError(
                "group_id: subscribing requires one, because a group divides the partitions; or use assign"
            )
        if not (listener is None or isinstance(listener, RebalanceListener)):
            raise ValueError(f"listener={listener!r}: it takes a RebalanceListener, or None")
        if isinstance(topics, SubscriptionPattern) and self._settings.group_protocol == "classic":
            raise ValueError(
                f"topics={topics}: the brokers look for it in the consumer protocol alone; set "
                "group_protocol='consumer' or 'auto', or give re.compile(...)"
            )
        self._core.changeable()
        self._subscription.subscribe(topics)
        if listener is not None:
            self._calls.listener = listener
        self._core.subscribed()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions, regardless of who else reads them; replaces the current assignment. With a
        group_id, reading starts at the group's committed offsets, and offsets can be committed. Handled
        records of partitions that are no longer assigned are committed (with auto-commit), and the tasks of
        their scopes are cancelled. Raises ValueError."""
        self._core.changeable()
        self._subscription.assign(partitions)
        self._core.let_go()
        self._core.subscribed()

    async def unsubscribe(self, timeout: float | None = None) -> None:
        """Stop reading: commit handled records (with auto-commit), call the listener, leave the group. The
        consumer may subscribe again. Takes longer than `timeout` only if the listener does. If cancelled, it
        still leaves the group, without waiting for it. Raises ConcurrentUse while a reading call is in
        progress, and so in callbacks."""
        self._core.check()
        await self._core.leave(self._seconds(timeout), "the consumer unsubscribed from all topics")

    @property
    def subscription(self) -> frozenset[str]:
        """The subscribed topics; with a pattern, the known topics that match."""
        return self._subscription.topics

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions currently assigned."""
        return self._core.assigned.partitions

    async def partitions_for(self, topic: str, timeout: float | None = None) -> list[TopicPartition]:
        """A topic's partitions, in order. Raises KafkaError if the topic does not exist."""
        self._core.check()
        cluster, until = self._core.cluster, self._until(timeout)
        known = await cluster.retrying(lambda: cluster.topic(topic, until), until)
        return [TopicPartition(topic, each) for each in sorted(known.partitions)]

    async def list_topics(self, timeout: float | None = None) -> dict[str, list[TopicPartition]]:
        """All topics with their partitions."""
        self._core.check()
        cluster, until = self._core.cluster, self._until(timeout)
        await cluster.retrying(lambda: cluster.refresh(None, until), until)
        return {
            name: [TopicPartition(name, each) for each in sorted(topic.partitions)]
            for name, topic in sorted(cluster.image.topics.items())
        }

    # --- reading --------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        if _caller() is not self._core.reader:
            self._delivery.interrupt()  # so that the loop's first call tells who reads now
        return self

    async def __anext__(self) -> ConsumerRecord[K, V]:
        core = self._core
        for record in self._delivery.run:
            if core.reader is None or core.reader.done():  # cheaper than to look who calls
                core.read_by(None)
            return record
        found = None if self._core.ended_in_order else await self._next(None)
        if found is None:
            raise StopAsyncIteration
        return found

    def get(self, timeout: float | None = None) -> Coroutine[Any, Any, ConsumerRecord[K, V] | None]:
        """The next record, or None if none arrives within `timeout` seconds or the consumer is stopped."""
        return self._get(timeout, _caller())

    async def _get(
        self, timeout: float | None, reader: asyncio.Task[Any] | None
    ) -> ConsumerRecord[K, V] | None:
        for record in self._delivery.run:
            if reader is not self._core.reader:
                self._core.read_by(reader)
            return record
        self._core.refuse_if_stopped(reader)
        return await self._next(None if timeout is None else deadline(seconds_of(timeout)), reader)

    def get_many(
        self, max_records: int | None = None, timeout: float | None = None
    ) -> Coroutine[Any, Any, list[ConsumerRecord[K, V]]]:
        """The next records, in order within each partition: at most `max_records` (default:
        max_poll_records), as soon as there are any. An empty list if none arrive within `timeout` seconds or
        the consumer is stopped. All of them count as handled when more are requested."""
        return self._get_many(max_records, timeout, _caller())

    async def _get_many(
        self, max_records: int | None, timeout: float | None, reader: asyncio.Task[Any] | None
    ) -> list[ConsumerRecord[K, V]]:
        records: list[ConsumerRecord[K, V]] = []
        for batch in await self._get_batches(max_records, timeout, reader):
            records += batch.records
        return records

    def get_batches(
        self, max_records: int | None = None, timeout: float | None = None
    ) -> Coroutine[Any, Any, list[Batch[K, V]]]:
        """Like `get_many`, but in batches, each of one partition."""
        return self._get_batches(max_records, timeout, _caller())

    async def _get_batches(
        self, max_records: int | None, timeout: float | None, reader: asyncio.Task[Any] | None
    ) -> list[Batch[K, V]]:
        most = self._positive("max_records", max_records)
        self._core.refuse_if_stopped(reader)
        until = None if timeout is None else deadline(seconds_of(timeout))
        if not await self._core.more(until, most, reader):
            return []
        return self._delivery.take(most)

    async def batches(self, max_records: int | None = None) -> AsyncIterator[Batch[K, V]]:
        """The next records as batches, each of one partition and of at most `max_records`. A batch counts as
        handled when the next one is requested. This is the fastest way to read; see the columns of Batch."""
        most = self._positive("max_records", max_records)
        while not self._core.ended_in_order and await self._core.more(None, most):
            began = RealTime.perf_counter()
            while taken := self._delivery.take(most, max_batches=1):
                yield taken[0]
                if self._core.disturbed or RealTime.perf_counter() - began > _STRETCH_S:
                    break
                self._delivery.asked()

    async def _next(
        self, until: float | None, reader: asyncio.Task[Any] | None = None
    ) -> ConsumerRecord[K, V] | None:
        now = RealTime.perf_counter()
        if now - self._stretch_began > _STRETCH_S:
            self._stretch = max(1, int(self._stretch * _STRETCH_S / (now - self._stretch_began)))
        else:
            self._stretch = min(self._stretch * 2, self._settings.max_poll_records)
        if not await self._core.more(until, self._settings.max_poll_records, reader):
            return None
        self._delivery.start_run(self._stretch)
        self._stretch_began = RealTime.perf_counter()
        return next(self._delivery.run)

    # --- positions ------------------------------------------------------------------------------------------

    async def position(self, partition: TopicPartition, timeout: float | None = None) -> int:
        """The offset of the next record to be returned, looked up if necessary. Raises ClientError if the
        partition is not assigned, NoOffset, AuthenticationFailed, TimedOut."""
        self._core.check()
        return await self._core.position(partition, self._until(timeout))

    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Continue from this offset: the next record returned is the first one at or after it. Raises
        ClientError if the partition is not assigned, TypeError or ValueError for what is no offset."""
        place = place_of(offset)
        self._core.check()
        self._core.assigned.check(partition)
        self._core.assigned.seek(partition, place)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Continue from the first available record, looked up when needed."""
        self._reset(partitions, EARLIEST)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Continue from the end of the partitions, looked up when needed."""
        self._reset(partitions, LATEST)

    def _reset(self, partitions: tuple[TopicPartition, ...], strategy: ResetStrategy) -> None:
        self._core.check()
        self._core.assigned.check(*partitions)
        self._core.assigned.reset(partitions, strategy, "the consumer was told to")

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int | datetime], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """For each partition, the first record at or after a time: epoch ms, or a datetime with a time zone.
        None if there is none. Raises TypeError, ValueError for what is no time."""
        for where, at in times.items():
            if timestamp_of(at, f"times: {where}") < 0:
                raise ValueError(f"times: {at} for {where}: it takes epoch milliseconds, 0 or more")
        return await self._list_offsets(times, timeout)

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The first available offset of each partition."""
        return await self._offsets(partitions, FIRST_OFFSET, timeout)

    async def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The end offset of each partition; with read_committed, the last stable offset."""
        return await self._offsets(partitions, END_OFFSET, timeout)

    async def _offsets(
        self, partitions: Iterable[TopicPartition], which: int, timeout: float | None
    ) -> dict[TopicPartition, int]:
        found = await self._list_offsets(dict.fromkeys(partitions, which), timeout)
        return {where: place.offset for where, place in found.items() if place is not None}

    async def _list_offsets(
        self, wanted: Mapping[TopicPartition, int | datetime], timeout: float | None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        self._core.check()
        level = READ_COMMITTED if self._settings.isolation_level == "read_committed" else READ_UNCOMMITTED
        checked = {checked_partition(where): at for where, at in wanted.items()}
        outcomes = await list_offsets(
            self._core.cluster, checked, self._until(timeout), isolation_level=level
        )
        return outcomes.raise_for_failures()

    def lag(self, *partitions: TopicPartition) -> dict[TopicPartition, int | None]:
        """How many records are left to read in each partition (default: all assigned ones), as of its last
        fetch. None before the first fetch."""
        self._core.check()
        self._core.assigned.check(*partitions)
        return {
            where: self._core.assigned.lag(where) for where in partitions or self._core.assigned.partitions
        }

    # --- commits --------------------------------------------------------------------------------------------

    async def commit(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        timeout: float | None = None,
    ) -> CommitResult:
        """Commit these offsets, each that of the next record to read. Without offsets, commit all records
        returned so far, including the one in hand.

        The result has an outcome for each partition: Committed; StaleOwner if the partition is not (or no
        longer) this member's; Retry if the outcome is unknown or the commit is not yet possible. Raises
        KafkaError or AuthenticationFailed for permanent failures, and ClientError if the group is waiting
        for this member, whose assignor has raised; the next reading call raises that too.
        """
        self._group("commit")
        if offsets is not None and not isinstance(offsets, Mapping):
            raise ValueError(f"offsets={offsets!r}: it takes a mapping of TopicPartition to offset, or None")
        wanted = (
            self._core.consumed()
            if offsets is None
            else {checked_partition(where): place_of(offset) for where, offset in offsets.items()}
        )
        if not wanted:
            return CommitResult({})
        return await self._core.commit(wanted, self._until(timeout))

    async def committed(
        self, partitions: Iterable[TopicPartition] | None = None, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets for these partitions (default: all assigned ones); None where nothing
        is committed."""
        group = self._group("committed")
        wanted = (
            self._core.assigned.partitions
            if partitions is None
            else frozenset(map(checked_partition, partitions))
        )
        return await group.committed(wanted, self._until(timeout)) if wanted else {}

    async def offsets_for_transaction(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None, until: float, since: float
    ) -> tuple[GroupMetadata, dict[TopicPartition, OffsetAndMetadata]]:
        """The group metadata and the offsets that `Transaction.commit_offsets` commits in a transaction of
        what was returned since this time of the loop's. From the first call on, nothing is committed
        automatically.
        Raises TransactionAborted if the offsets are not this member's to commit, or records were returned
        whose partition has been given up since."""
        group = self._group("commit_offsets")
        if self._core.auto_commit is not None:
            await self._core.auto_commit.hand_over(until)
        places = (
            self._core.consumed()
            if offsets is None
            else {checked_partition(where): place_of(offset) for where, offset in offsets.items()}
        )
        is_member = not self._subscription.assigned
        if is_member and group.lost:
            raise TransactionAborted(
                f"the consumer has lost its place in group {self._settings.group_id}:"
                " its partitions may be other members'"
            )
        if is_member and group.generation_id < 0:
            raise TransactionAborted(f"the consumer is in no generation of group {self._settings.group_id}")
        if is_member and (foreign := places.keys() - self._core.assigned.partitions):
            raise TransactionAborted(
                f"{min(foreign)} is not this consumer's in generation {group.generation_id} of group"
                f" {self._settings.group_id}"
            )
        gone = self._core.assigned.take(since)
        if gone is not None and is_member and offsets is None:
            raise TransactionAborted(
                f"{gone} was given up in a rebalance after records of it had been returned"
            )
        return self.group_metadata(), places

    def transaction_refused(self, code: ErrorCode, group: GroupMetadata) -> bool:
        """The group has changed, and refused a transaction's offsets. Returns whether this member may soon
        learn of its next generation."""
        return self._group("commit_offsets").transaction_refused(code, group.generation_id)

    def group_metadata(self) -> GroupMetadata:
        """Identifies this member to its group."""
        group = self._group("group_metadata")
        assert self._settings.group_id is not None
        return GroupMetadata(
            self._settings.group_id, group.generation_id, group.member_id, self._settings.group_instance_id
        )

    # --- flow -----------------------------------------------------------------------------------------------

    def pause(self, *partitions: TopicPartition) -> None:
        """Return no records of these partitions until they are resumed; they stay assigned. Survives
        rebalances as long as this member keeps the partition. Raises ClientError if one is not assigned."""
        self._core.check()
        self._core.assigned.check(*partitions)
        self._core.assigned.pause(partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        """Return records of these partitions again. Raises ClientError if one is not assigned."""
        self._core.check()
        self._core.assigned.check(*partitions)
        self._core.assigned.resume(partitions)
        self._core.wake()

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The paused partitions."""
        return self._core.assigned.paused

    def scope(self, partition: TopicPartition) -> AssignmentScope:
        """A scope for tasks that work on the partition: they get `revocation_grace_ms` to finish when it is
        revoked, and are cancelled when it is lost. Raises ClientError if it is not assigned.

        Commit manually then: automatic commits count a record as handled when the next one is requested,
        whatever its task does.
        """
        self._core.check()
        self._core.assigned.check(partition)
        return self._core.scopes.of(partition)

    def health(self) -> Health:
        """The state of the consumer; see Health."""
        return self._core.health()

    # --- helpers --------------------------------------------------------------------------------------------

    def _group(self, what: str) -> Group:
        self._core.check()
        if self._core.group is None:
            raise ClientError(f"{what} requires a group: give the consumer a group_id")
        return self._core.group

    def _seconds(self, timeout: float | None) -> float:
        return seconds_of(timeout, self._settings.default_api_timeout_ms / 1000)

    def _until(self, timeout: float | None) -> float:
        return deadline(self._seconds(timeout))

    def _positive(self, name: str, given: int | None) -> int:
        if given is None:
            return self._settings.max_poll_records
        if given < 1:
            raise ValueError(f"{name}={given}: it takes a whole number above 0")
        return given


def _caller() -> asyncio.Task[Any] | None:
    """The calling task, which handles the record; the call itself may run in another task (asyncio.wait_for
    before Python 3.12, create_task). None outside a running loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
