"""Reading topics: as a member of a group, or partitions of one's own choice.

Rebalances, look-ups and fetching happen inside the reading calls (`muster.client.consume.core`); records
that are here already are given out without any of that, until something is due.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar, Unpack, overload

from muster.client.admin.offsets import EARLIEST as FIRST_OFFSET
from muster.client.admin.offsets import LATEST as END_OFFSET
from muster.client.admin.offsets import READ_COMMITTED, READ_UNCOMMITTED, list_offsets
from muster.client.consume.core import ConsumerCore
from muster.client.consume.health import Health
from muster.client.consume.listener import Calls
from muster.client.consume.scope import AssignmentScope
from muster.client.consume.settings import ConsumerOptions, ConsumerSettings
from muster.client.consume.subscription import Subscription, SubscriptionPattern, Topics
from muster.client.errors import ClientError
from muster.client.fetch.positions import EARLIEST, LATEST, ResetStrategy
from muster.client.fetch.records import Batch, ConsumerRecord
from muster.client.group.group import Group
from muster.client.group.outcomes import CommitResult
from muster.client.network.connection import deadline
from muster.client.network.servers import DEFAULT_BOOTSTRAP
from muster.client.partitions import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition

K = TypeVar("K")
V = TypeVar("V")

_HURRIED_CLOSE_S: Final = 10.0
"""How long the end of a block may take that is left by an exception or a cancellation."""
_STRETCH_S: Final = 0.02
"""How long a handler that never waits may keep the loop to itself before others get their turn."""
_FIRST_STRETCH: Final = 16  # records, until it is known how long they take


class GroupMetadata(NamedTuple):
    """What a group knows a member by; the generation is -1 outside of one, and the member epoch in the
    consumer protocol (KIP-848)."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None


class RebalanceListener:
    """Override what you need; each may be a plain method or a coroutine.

    The order is Kafka's. With eager assignors everything is revoked before the group is joined again, and
    everything that came out is assigned; with cooperative ones (KIP-429) only what moves is revoked, after
    the group was joined, and only what is new is assigned. `assigned` is called after every rebalance, with
    an empty set too. In the consumer protocol (KIP-848) it is as with cooperative assignors, but nothing is
    revoked before the coordinator says so. A member that the group went on without is told that it has lost
    its partitions: they may have other owners by now, so there is nothing to commit any more.

    They are called inside the reading calls, on the reading task, while no record is being handled that the
    reader waits for. Any of the consumer's methods may be called but the reading ones. What they raise is
    raised from the reading call, after the rebalance has gone its way.
    """

    def on_partitions_revoked(
        self, consumer: Consumer[Any, Any], partitions: Iterable[TopicPartition]
    ) -> Any:
        """These are about to go to other members, or the consumer closes. They are still ours: this is the
        time to finish and to commit."""

    def on_partitions_assigned(
        self, consumer: Consumer[Any, Any], partitions: Iterable[TopicPartition]
    ) -> Any:
        """These are ours from now on; nothing of them is read yet, so this is the time to seek."""

    def on_partitions_lost(self, consumer: Consumer[Any, Any], partitions: Iterable[TopicPartition]) -> Any:
        """These were ours, and may have other owners by now. Does what `on_partitions_revoked` does unless it
        is overridden."""
        return self.on_partitions_revoked(consumer, partitions)


class Consumer(Generic[K, V]):
    """Reads topics as a member of a group, or partitions that are assigned to it.

        async with Consumer("127.0.0.1:9092", group_id="billing", topics=["orders"]) as consumer:
            async for record in consumer:
                await handle(record)

    `topics` is one name, several, a compiled pattern that has to match whole names, or a
    `SubscriptionPattern`, whose topics the brokers find; the other settings are those of
    `muster.client.consume.settings.ConsumerSettings`. Deserializers turn bytes into something else; a null
    stays None.

    A record counts as handled when the next one is asked for, and at a clean end: then it is committed with
    the next automatic commit. Not when the block is left by an exception or a cancellation: it is read again.

    A consumer has one reader: of the reading calls (the loop, `get`, `get_many`, `batches`) one is under way
    at a time. The other methods may be called at any time, from other tasks and from callbacks too. What may
    pass (a broker that is gone, a group that rebalances) is waited for by the reading calls, without end, and
    by the others until their `timeout`, in seconds, `default_api_timeout_ms` if there is none. Calls raise
    KafkaError for what a broker refuses and ClientError for the rest.
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
        """Begin; `async with` does it. Brokers are asked by what needs an answer. Raises ClientError if it
        was started before."""
        if self._core.state != "new":
            raise ClientError(f"the consumer was started before and is {self._core.state}")
        await self._core.open()
        return self

    async def close(self, timeout: float = 30.0) -> None:
        """Commit what was handled (with auto-commit), call the listener, leave the group (a static member
        stays in it until its session times out), and end everything.

        Takes no longer than `timeout`; what is not done by then is left undone, except that the group is
        left. Raises what kept the last commit from being made, and what the listener raised, when everything
        is closed. Harmless when repeated. From another task than the reader's, the record in hand counts as
        not handled.

        The end of an `async with` block does this too; with 10 seconds, and the record in hand not handled,
        when it is left by an exception or a cancellation.
        """
        await self._core.close(timeout, clean=True)

    async def drain(self, timeout: float = 30.0) -> None:
        """Come to an orderly end, from whatever task: hand out nothing new, let the reader finish what it has
        in hand and the scopes' tasks end, then close. The reader's loop ends as if there were no more
        records.
        """
        await self._core.close(timeout, clean=True, drain=True)

    def stop(self) -> None:
        """Hand out nothing new: the reader's loop ends when it asks for the next record, and a reading call
        that waits for records ends without any. Closing is left to the reader's block. Made for signal
        handlers."""
        self._core.orderly = True
        self._core.stop()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        clean = kind is None
        await self._core.close(30.0 if clean else _HURRIED_CLOSE_S, clean=clean)

    # --- what is read ---------------------------------------------------------------------------------------

    def subscribe(self, topics: Topics, listener: RebalanceListener | None = None) -> None:
        """Read these topics, shared with the group, in place of those read so far. With a pattern, topics
        that appear later are read as well. A listener given here takes the place of the one before. Raises
        ValueError, and ClientError where partitions are assigned."""
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
        """Read these partitions, whoever else reads them, in place of those read so far. With a group_id they
        begin at its committed offsets and may be committed. Raises ValueError."""
        self._core.changeable()
        self._subscription.assign(partitions)
        self._core.subscribed()

    async def unsubscribe(self, timeout: float | None = None) -> None:
        """Read nothing any more: commit what was handled (with auto-commit), call the listener, leave the
        group. The consumer may subscribe again. It takes longer than `timeout` only if the listener does."""
        self._core.check()
        await self._core.leave(self._seconds(timeout), "the consumer unsubscribed from all topics")

    @property
    def subscription(self) -> frozenset[str]:
        """The topics subscribed to: with a pattern, those known that match."""
        return self._subscription.topics

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are read at present."""
        return self._core.assigned.partitions

    async def partitions_for(self, topic: str, timeout: float | None = None) -> list[TopicPartition]:
        """The partitions that a topic has, in order. Raises KafkaError where there is no such topic."""
        self._core.check()
        known = await self._core.cluster.topic(topic, self._until(timeout))
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
        return self

    async def __anext__(self) -> ConsumerRecord[K, V]:
        for record in self._delivery.run:
            return record
        found = None if self._core.ended_in_order else await self._next(None)
        if found is None:
            raise StopAsyncIteration
        return found

    def get(self, timeout: float | None = None) -> Coroutine[Any, Any, ConsumerRecord[K, V] | None]:
        """The next record. None when none comes within `timeout` seconds, or when the consumer is stopped."""
        return self._get(timeout, _caller())

    async def _get(
        self, timeout: float | None, reader: asyncio.Task[Any] | None
    ) -> ConsumerRecord[K, V] | None:
        for record in self._delivery.run:
            return record
        self._core.refuse_if_stopped()
        return await self._next(None if timeout is None else deadline(timeout), reader)

    def get_many(
        self, max_records: int | None = None, timeout: float | None = None
    ) -> Coroutine[Any, Any, list[ConsumerRecord[K, V]]]:
        """The next records, of each partition in order, at most `max_records` (max_poll_records if there is
        no number); as soon as there are any. An empty list when none come within `timeout` seconds, or
        when the consumer is stopped. All of them count as handled when more are asked for."""
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
        """As `get_many`, in batches, each of one partition."""
        return self._get_batches(max_records, timeout, _caller())

    async def _get_batches(
        self, max_records: int | None, timeout: float | None, reader: asyncio.Task[Any] | None
    ) -> list[Batch[K, V]]:
        most = self._positive("max_records", max_records)
        self._core.refuse_if_stopped()
        if not await self._core.more(None if timeout is None else deadline(timeout), most, reader):
            return []
        return self._delivery.take(most)

    async def batches(self, max_records: int | None = None) -> AsyncIterator[Batch[K, V]]:
        """The next records as batches, each of one partition and of at most `max_records`. A batch counts as
        handled when the next one is asked for. It is the fastest way to read: see the columns of Batch."""
        most = self._positive("max_records", max_records)
        while not self._core.ended_in_order and await self._core.more(None, most):
            began = time.perf_counter()
            while taken := self._delivery.take(most, max_batches=1):
                yield taken[0]
                if self._core.disturbed or time.perf_counter() - began > _STRETCH_S:
                    break
                self._delivery.asked()

    async def _next(
        self, until: float | None, reader: asyncio.Task[Any] | None = None
    ) -> ConsumerRecord[K, V] | None:
        now = time.perf_counter()
        if now - self._stretch_began > _STRETCH_S:
            self._stretch = max(1, int(self._stretch * _STRETCH_S / (now - self._stretch_began)))
        else:
            self._stretch = min(self._stretch * 2, self._settings.max_poll_records)
        if not await self._core.more(until, self._settings.max_poll_records, reader):
            return None
        self._delivery.start_run(self._stretch)
        self._stretch_began = time.perf_counter()
        return next(self._delivery.run)

    # --- where ----------------------------------------------------------------------------------------------

    async def position(self, partition: TopicPartition, timeout: float | None = None) -> int:
        """The offset of the record that is given out next, looked up if need be. Raises ClientError for what
        is not assigned, NoOffset, TimedOut."""
        self._core.check()
        return await self._core.position(partition, self._until(timeout))

    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Go on from there: the record given out next of the partition is the first one at or after the
        offset. Raises ClientError for what is not assigned."""
        place = _place(offset)
        self._core.check()
        self._core.assigned.check(partition)
        self._core.assigned.seek(partition, place)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Go on from the first record that there is; which that is is looked up when it is needed."""
        self._reset(partitions, EARLIEST)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Go on from where the partitions end when that is looked up."""
        self._reset(partitions, LATEST)

    def _reset(self, partitions: tuple[TopicPartition, ...], strategy: ResetStrategy) -> None:
        self._core.check()
        self._core.assigned.check(*partitions)
        self._core.assigned.reset(partitions, strategy, "the consumer was told to")

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int | datetime], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """For each partition the first record that is as young as a time: epoch ms, or a datetime with a time
        zone. None where there is none."""
        for where, at in times.items():
            if isinstance(at, int) and at < 0:
                raise ValueError(f"times: {at} for {where}: it takes epoch milliseconds, 0 or more")
        return await self._list_offsets(times, timeout)

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The first offset that each partition still has."""
        return await self._offsets(partitions, FIRST_OFFSET, timeout)

    async def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset behind the last record of each partition; with read_committed, behind the last one that
        no open transaction holds back."""
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
        for where in wanted:
            _partition(where)
        outcomes = await list_offsets(self._core.cluster, wanted, self._until(timeout), isolation_level=level)
        return outcomes.raise_for_failures()

    def lag(self, *partitions: TopicPartition) -> dict[TopicPartition, int | None]:
        """How many records each partition (all assigned ones if none is named) has left to give out, as far
        as the last fetch told; None where there was none yet."""
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
        """Commit these offsets, of the records to be read next; without any, behind all records given out so
        far, the one in hand included.

        The result says for each partition what became of it: Committed; StaleOwner, it is not this member's,
        or not any more; Retry, not known or not yet. Raises KafkaError for what cannot be helped.
        """
        self._group("commit")
        if offsets is not None and not isinstance(offsets, Mapping):
            raise ValueError(f"offsets={offsets!r}: it takes a mapping of TopicPartition to offset, or None")
        wanted = (
            self._core.consumed()
            if offsets is None
            else {_partition(where): _place(offset) for where, offset in offsets.items()}
        )
        if not wanted:
            return CommitResult({})
        return await self._core.commit(wanted, self._until(timeout))

    async def committed(
        self, partitions: Iterable[TopicPartition] | None = None, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed for these partitions, or for all assigned ones; None for nothing."""
        group = self._group("committed")
        wanted = (
            self._core.assigned.partitions if partitions is None else frozenset(map(_partition, partitions))
        )
        return await group.committed(wanted, self._until(timeout)) if wanted else {}

    def group_metadata(self) -> GroupMetadata:
        """What the group knows this member by."""
        group = self._group("group_metadata")
        assert self._settings.group_id is not None
        return GroupMetadata(
            self._settings.group_id, group.generation_id, group.member_id, self._settings.group_instance_id
        )

    # --- flow -----------------------------------------------------------------------------------------------

    def pause(self, *partitions: TopicPartition) -> None:
        """Give out nothing of these until they are resumed; they stay assigned. Lasts through rebalances for
        as long as a partition stays this member's. Raises ClientError for what is not assigned."""
        self._core.check()
        self._core.assigned.check(*partitions)
        self._core.assigned.pause(partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        """Give out records of these again. Raises ClientError for what is not assigned."""
        self._core.check()
        self._core.assigned.check(*partitions)
        self._core.assigned.resume(partitions)
        self._core.wake()

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """What is paused."""
        return self._core.assigned.paused

    def scope(self, partition: TopicPartition) -> AssignmentScope:
        """For the tasks that work on the partition: they get `revocation_grace_ms` to end when it goes to
        another member, and are cancelled when it is lost. Raises ClientError for what is not assigned.

        Commit by hand then: automatic commits count a record as handled when the next one is asked for,
        whatever its task does.
        """
        self._core.check()
        self._core.assigned.check(partition)
        return self._core.scopes.of(partition)

    def health(self) -> Health:
        """How it is doing."""
        return self._core.health()

    # --- small things ---------------------------------------------------------------------------------------

    def _group(self, what: str) -> Group:
        self._core.check()
        if self._core.group is None:
            raise ClientError(f"{what} requires a group: give the consumer a group_id")
        return self._core.group

    def _seconds(self, timeout: float | None) -> float:
        return self._settings.default_api_timeout_ms / 1000 if timeout is None else timeout

    def _until(self, timeout: float | None) -> float:
        return deadline(self._seconds(timeout))

    def _positive(self, name: str, given: int | None) -> int:
        if given is None:
            return self._settings.max_poll_records
        if given < 1:
            raise ValueError(f"{name}={given}: it takes a whole number above 0")
        return given


def _caller() -> asyncio.Task[Any] | None:
    """Who calls, and so handles the record: another task may only wait for it (asyncio.wait_for before
    Python 3.12, create_task). None outside of a running loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def _partition(given: object) -> TopicPartition:
    if not isinstance(given, TopicPartition):
        raise ValueError(f"partitions: {given!r} is not allowed; it takes TopicPartition(topic, partition)")
    return given


def _place(given: int | OffsetAndMetadata) -> OffsetAndMetadata:
    place = OffsetAndMetadata(given) if isinstance(given, int) else given
    if not isinstance(place, OffsetAndMetadata) or place.offset < 0:
        raise ValueError(f"offset {given!r}: it takes a whole number, 0 or more, or OffsetAndMetadata")
    return place
