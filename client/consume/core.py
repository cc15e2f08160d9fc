"""The parts of a consumer that its calls share, and the reading call that drives them.

Each turn of a reading call does what is due, in this order: the rebalance, periodic commits, starting
positions; then it returns records, or waits for some. Events (a heartbeat that announces a rebalance, a
failed task, `stop`) wake it. Work that nobody waits for runs in tasks, whose failures are raised from the
reading call: none is silent.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any, Final, Generic, TypeVar

from muster.client.consume.assigned import Assigned
from muster.client.consume.auto_commit import AutoCommit
from muster.client.consume.delivery import Delivery, Deserializer
from muster.client.consume.following import follow
from muster.client.consume.health import Health
from muster.client.consume.listener import Calls
from muster.client.consume.missing import MissingTopics
from muster.client.consume.parts import cluster_of, fetch_settings, group_settings
from muster.client.consume.reader_watch import ReaderWatch
from muster.client.consume.rebalancing import Rebalancing
from muster.client.consume.scope import Scopes
from muster.client.consume.settings import ConsumerSettings
from muster.client.consume.starting import Starting
from muster.client.consume.subscription import Subscription
from muster.client.consume.tasks import Tasks
from muster.client.errors import (
    AuthenticationFailed,
    ClientError,
    Closed,
    ConcurrentUse,
    NoOffset,
    TimedOut,
    again,
)
from muster.client.fetch.fetcher import SESSION_CLOSE_S, Fetcher, Reset
from muster.client.group.group import Group
from muster.client.group.outcomes import CommitResult
from muster.client.network.cluster import ANY
from muster.client.network.connection import deadline
from muster.client.partitions import OffsetAndMetadata, TopicPartition
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.metadata import MetadataRequest, MetadataResponse
from muster.protocol.types import ZERO_UUID
from muster.realtime import RealTime

K = TypeVar("K")
V = TypeVar("V")

_LOG: Final = logging.getLogger("muster.client.consumer")

_LEAVE_S: Final = 2.0
"""The part of the closing time reserved for leaving the group."""
_PART_S: Final = 5.0
"""The part before that, reserved for the last commit and the listener: the reader may finish only before
it."""
_AT_LEAST_S: Final = 0.05
"""How long the group, and then the brokers, are told at least that the consumer ends: enough to send it."""
_WORK: Final = "a scope's task"
_A_WHILE_S: Final = 60.0  # unbounded waits are split into these


class ConsumerCore(Generic[K, V]):
    """One consumer's parts. `Consumer` is the public interface."""

    def __init__(
        self,
        settings: ConsumerSettings,
        subscription: Subscription,
        calls: Calls,
        key_deserializer: Deserializer | None,
        value_deserializer: Deserializer | None,
    ) -> None:
        self.settings = settings
        self.subscription = subscription
        self.calls = calls
        self.state = "new"
        self.orderly = False
        """Whether the reader's loop should end as if there were no more records."""
        self.disturbed = False
        """Whether there may be work other than returning buffered records."""
        self.last_error: Exception | None = None
        self.records_at: float | None = None
        self.committed_at: float | None = None
        self.scopes = Scopes(self.fail)
        self.delivery: Delivery[K, V] = Delivery(key_deserializer, value_deserializer)
        self.assigned = Assigned(subscription, self.delivery)
        self.watch = ReaderWatch(
            settings.max_poll_interval_ms / 1000,
            # With heartbeats in their own thread, a blocked loop does not hold them up.
            silence_s=settings.session_timeout_ms / 1000 if settings.heartbeat == "loop" else None,
            missed=lambda: self.rebalancing is not None and bool(self.rebalancing.owned),
            progress=self.delivery.progress,
            asked=self._asked,
        )
        self.group: Group | None = None
        self.auto_commit: AutoCommit | None = None
        self.rebalancing: Rebalancing | None = None
        self.reader: asyncio.Task[Any] | None = None
        """The task that handles the records."""
        self._starting = False
        self._reading = False
        self._abandoned = False
        self._tasks = Tasks(self._cannot_read)
        self._following: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        """What a scope's task raised, and nobody has heard yet."""
        self._obstacle: BaseException | None = None
        """Why reading cannot go on; of no interest once it is to end."""
        self._close_by = 0.0

    # --- life -----------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Create the parts, without contacting the cluster. Raises Closed if it is closed meanwhile."""
        if self._starting:
            raise ConcurrentUse("the consumer is being started already")
        self._starting = True
        try:
            await self._open()
        finally:
            self._starting = False

    async def _open(self) -> None:
        given = self.settings
        self.loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            self.cluster = cluster_of(given)
            stack.push_async_callback(self.cluster.close)
            self.fetcher = Fetcher(
                self.cluster,
                fetch_settings(given),
                on_reset=self._was_reset,
                on_failure=self._tasks.tell,
                on_missing=self._is_missing,
            )
            self.assigned.open(self.fetcher)
            self.missing = MissingTopics(self.cluster, self.subscription, self.assigned, given, self._tasks)
            stack.push_async_callback(self._close_fetcher)
            if given.group_id is not None:
                await self._open_group(given.group_id, stack)  # waits for its thread
                if self.state == "closed":
                    raise Closed("the consumer was closed while it started")
            self.starting = Starting(
                self.cluster, self.fetcher, self.group, self.auto_commit, given, self._tasks, self.note
            )
            stack.push_async_callback(self.watch.close)
            stack.push_async_callback(self._tasks.end)
            self.watch.start(thread=given.heartbeat == "thread")
            self.state = "running"
            self.subscribed()
            self._stack = stack.pop_all()

    async def _open_group(self, group_id: str, stack: AsyncExitStack) -> None:
        given = self.settings
        self.group = Group(
            given.bootstrap_servers,
            group_settings(given, group_id),
            on_wake=self._group_wakes,
            apart=given.heartbeat == "thread",
            security=given.security,
        )
        stack.push_async_callback(self._close_group)
        await self.group.start()
        if given.enable_auto_commit:
            self.auto_commit = AutoCommit(
                # A deleted topic has nothing to commit: no rebalance waits for it.
                partial(self.commit, waits_for_topics=False),
                self.assigned.handled,
                self.wake,
                self._are_gone,
                self.group.committed,
                lambda: self.subscription.by_group,
                interval_s=given.auto_commit_interval_ms / 1000,
                attempt_s=given.request_timeout_ms / 1000,
                retry_backoff_s=given.retry_backoff_ms / 1000,
            )
            stack.push_async_callback(self.auto_commit.close)
        self.rebalancing = Rebalancing(
            self.group,
            self.subscription,
            self.calls,
            self.scopes,
            self.auto_commit,
            hold=self.assigned.hold,
            adopt=self._adopt,
            grace_s=given.revocation_grace_ms / 1000,
            rebalance_s=given.max_poll_interval_ms / 1000,
        )

    def check(self) -> None:
        """Raise Closed unless the consumer is running, ClientError if it runs on another loop."""
        if self.state == "new":
            raise Closed("the consumer is not started: use `async with`, or `await consumer.start()`")
        if self.state == "closed":
            raise Closed("the consumer is closed")
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is not self.loop:
            raise ClientError("the consumer was started on another event loop: use it on that one")

    def changeable(self) -> None:
        """Raise unless the subscription may be changed now."""
        if self.state != "new":
            self.check()

    def stop(self) -> None:
        """Return no new records."""
        if self.state == "running":
            self.state = "stopping"
            self.wake()

    def refuse_if_stopped(self, caller: asyncio.Task[Any] | None) -> None:
        """Raise Closed once stopped: a caller that asks again has handled its last records, but gets no
        more."""
        if self.state == "stopping" and not (self._reading or self.calls.waits_for(caller)):
            self.delivery.asked()
            self._tasks.tell()
            raise Closed("the consumer was stopped: it returns no more records")

    @property
    def ended_in_order(self) -> bool:
        """Whether the consumer is closed, but the reader's loop should end without an error."""
        return self.state == "closed" and self.orderly

    async def close(self, timeout: float, *, error: BaseException | None = None, drain: bool = False) -> None:
        """Commit handled records, give up all partitions, leave the group, end all tasks and connections.
        With `error`, which the reader's block was left by, the record in hand was not handled. With `drain`,
        the reader may finish it, and the scopes' tasks may take longer than their grace period. In the end,
        raises what the listener, the last commit, a scope's task or an assignor has raised: the first, the
        others are logged.
        """
        if self.state == "new":
            self.state = "closed"
        if self.state == "closed":
            return
        self.check()
        task = asyncio.current_task()
        by_reader = task is self.reader
        if self.calls.waits_for(task) or self.scopes.has(task):
            raise ClientError("callbacks and scopes' tasks are waited for by the close: they call stop()")
        until = deadline(timeout)
        if self._close_by:
            while self.state != "closed":
                await self._tasks.hear(until, "the end of the consumer, which is being closed elsewhere,")
            return
        self._close_by = until
        self.orderly |= drain
        self.stop()
        try:
            await self._end(until, timeout, clean=error is None, by_reader=by_reader, drain=drain)
        except BaseException as failure:
            self._raise_the_rest(failure)
            raise
        self._raise_the_rest(error)

    def _raise_the_rest(self, error: BaseException | None) -> None:
        """Raise what no call has raised yet; log what cannot be, because `error` or another failure is."""
        raised = error
        for what, raise_failure in (
            (
                "the last automatic commit",
                None if self.auto_commit is None else self.auto_commit.raise_failure,
            ),
            (_WORK, self._raise_failure),
            ("an assignor", None if self.group is None else self.group.raise_assignor_failure),
        ):
            try:
                if raise_failure is not None:
                    raise_failure()
            except BaseException as failure:
                if raised is None:
                    raised = failure
                elif raised is not failure:
                    _log(what, failure)
        if raised is not None and raised is not error:
            raise raised

    async def _end(self, until: float, timeout: float, *, clean: bool, by_reader: bool, drain: bool) -> None:
        part_by = until - min(_LEAVE_S, timeout / 4)
        self.calls.closes_by = (part_by + until) / 2  # the rest is for leaving the group
        try:
            async with asyncio.timeout_at(part_by) as bound:
                await self._reader_is_out(part_by - min(_PART_S, timeout / 4), finish=drain)
                if clean and (by_reader or self._reader_returned()):
                    self.delivery.asked()
                self._abandoned = True
                half_s = (part_by - deadline(0)) / 2  # the last commit and the listener take time as well
                grace_s = self.settings.revocation_grace_ms / 1000
                await self._part(part_by, half_s if drain else min(half_s, grace_s))
        except TimeoutError:
            if not bound.expired():
                raise
            _LOG.warning(
                "closing took longer than %.1f s: the last processed records may be read again", timeout
            )
        finally:
            try:
                await self._stack.aclose()
            finally:
                self.state = "closed"
                self.assigned.end()
                self._tasks.tell()

    async def leave(self, timeout: float, reason: str) -> None:
        """Give up all partitions, and leave the group. If the reader itself calls this, the records it has in
        hand count as handled. If cancelled, the group is still told, but not waited for."""
        until = deadline(timeout)
        cancelled = False
        self._begin_reading(asyncio.current_task())
        try:
            if asyncio.current_task() is self.reader:
                self.delivery.asked()
            await self._part(until, self.settings.revocation_grace_ms / 1000)
        except asyncio.CancelledError:
            cancelled = True
            raise
        finally:
            self._reading = False
            self._tasks.tell()
            by_group = self.subscription.by_group
            self.subscription.clear()
            self.subscribed()
            if by_group and self.group is not None:
                await self.group.leave(reason, until, wait=not cancelled)

    async def _part(self, until: float, grace_s: float) -> None:
        """Give up all partitions."""
        grace_s = max(0.0, min(grace_s, until - deadline(0)))
        if self.subscription.by_group and self.rebalancing is not None:
            await self.rebalancing.leave(until, grace_s)
        else:
            partitions = self.assigned.partitions
            self.assigned.hold(partitions)
            await self.scopes.end(partitions, grace_s)
            if self.auto_commit is not None:
                await self.auto_commit.catch_up(partitions, until, until)
        if self.auto_commit is not None:
            self.auto_commit.raise_failure()

    async def _reader_is_out(self, until: float, *, finish: bool) -> None:
        """Wait for a reading call in progress in another task; with `finish`, also wait, up to `until`, for
        the reader to ask once more, which means that it has finished what it has in hand, or to end."""
        finish = finish and asyncio.current_task() is not self.reader
        while self._reading or (
            finish
            and deadline(0) < until
            and self.delivery.in_hand()
            and not (self.reader is None or self.reader.done())
        ):
            reader = self.reader
            if reader is not None and not reader.done():
                reader.add_done_callback(self._reader_ended)
            try:
                with suppress(TimedOut):
                    await self._tasks.hear(max(until, deadline(0.1)), "the end of the reading call")
            finally:
                if reader is not None:
                    reader.remove_done_callback(self._reader_ended)

    def _reader_ended(self, _: asyncio.Task[Any]) -> None:
        self._tasks.tell()

    def _reader_returned(self) -> bool:
        """Whether the reading task has ended without a failure."""
        reader = self.reader
        if reader is None:
            return True
        return reader.done() and not reader.cancelled() and reader.exception() is None

    async def _close_group(self) -> None:
        assert self.group is not None
        await self.group.close(max(_AT_LEAST_S, self._close_by - deadline(0)))

    async def _close_fetcher(self) -> None:
        await self.fetcher.close(min(SESSION_CLOSE_S, max(_AT_LEAST_S, self._close_by - deadline(0))))

    # --- the reading call -----------------------------------------------------------------------------------

    async def more(
        self, until: float | None, max_records: int, reader: asyncio.Task[Any] | None = None
    ) -> bool:
        """Count records in hand as handled, and do what is due. Returns True once `delivery` has something,
        ideally this many records; False if `until` came first or the consumer is stopped. `reader` (None for
        this task) handles the records."""
        self.check()
        reader = asyncio.current_task() if reader is None else reader
        self._begin_reading(reader)
        self.reader = reader
        self.watch.came(self.reader)
        self.delivery.asked()
        self._tasks.tell()
        at_a_time = max(max_records, self.settings.max_poll_records)
        let_others_run = True
        try:
            if self.state == "running" and self.subscription.is_empty:
                raise ClientError(
                    "there is nothing to read: subscribe(...) to topics, or assign(...) partitions"
                )
            while True:
                self.disturbed = False
                self._raise_failure()
                self._raise_obstacle()
                if self.state == "stopping":
                    return False
                await self._do_what_is_due(until)
                if self.state == "stopping":
                    return False
                if self.delivery.is_ready():
                    if let_others_run:
                        # A reader that never awaits anything else would monopolise the loop.
                        let_others_run = False
                        await asyncio.sleep(0)
                        continue
                    return True
                wait_s = _A_WHILE_S if until is None else min(_A_WHILE_S, max(0.0, until - deadline(0)))
                self.watch.waits()
                batches = await self.fetcher.poll(at_a_time, wait_s)
                self.watch.went()
                if batches:
                    self.records_at = RealTime.monotonic()
                    self.delivery.add(batches)
                elif until is not None and deadline(0) >= until:
                    return False
                let_others_run = False
        finally:
            self._reading = False
            self.watch.went()
            self._tasks.tell()

    def read_by(self, reader: asyncio.Task[Any] | None) -> None:
        """This task (None: the calling one) handles the record that it got without calling `more`."""
        self.reader = self.watch.reader = asyncio.current_task() if reader is None else reader

    def _begin_reading(self, caller: asyncio.Task[Any] | None) -> None:
        if self._reading or self.calls.waits_for(caller):
            raise ConcurrentUse(
                "another reading call is in progress: a consumer has one reader, and callbacks can neither "
                "read nor unsubscribe; several tasks share the work with scope(), or each have a consumer"
            )
        self._reading = True

    async def _do_what_is_due(self, until: float | None) -> None:
        if self.group is not None:
            self.group.polled()
        if self.auto_commit is not None:
            self.auto_commit.tick()
        if self.rebalancing is not None and self.subscription.by_group:
            patience_s = self.settings.max_poll_interval_ms / 1000  # the limit of each step
            await self.rebalancing.go_on(deadline(patience_s) if until is None else until)
        if self.starting.due:
            self.starting.look()

    def wake(self) -> None:
        """Make the reader check what is due."""
        self.disturbed = True
        self.delivery.interrupt()
        self.fetcher.wake()

    def fail(self, failure: BaseException) -> None:
        """Raise this from the next reading call, or when the consumer closes; log it if that is too late, or
        has something else to raise."""
        if self._failure is not None or self.state == "closed":
            _log(_WORK, failure)
        else:
            self._failure = failure
            self.wake()

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if isinstance(failure, (StopIteration, StopAsyncIteration)):
            # As such it would end the reader's loop without a word.
            raise RuntimeError(f"{_WORK} raised {type(failure).__name__}") from failure
        if failure is not None:
            raise failure

    def _cannot_read(self, obstacle: BaseException) -> None:
        """Raise this from the next reading call. As long as it is true, it comes again."""
        if self._obstacle is None:
            self._obstacle = obstacle
        self.wake()

    def _raise_obstacle(self) -> None:
        obstacle, self._obstacle = self._obstacle, None
        if obstacle is not None:
            raise obstacle

    def _asked(self) -> None:
        """The reader got records without calling `more`. What an assignor raised waits for its next call or
        the close: the group has woken it."""
        try:
            if self.group is not None:
                self.group.polled(of_assignor=False)
        except Exception as failure:
            self._cannot_read(failure)

    def _group_wakes(self) -> None:
        if self.group is not None and self.group.lost and self.rebalancing is not None:
            self.rebalancing.lost()
        self.wake()

    # --- what is read ---------------------------------------------------------------------------------------

    def subscribed(self) -> None:
        """The subscription has changed."""
        if self.state == "new":
            return
        if self._following is not None:
            self._following.cancel()
            self._following = None
        self.missing.forget()
        # A pattern matches existing topics: asking for one just deleted must not re-create it.
        by_pattern, remote = self.subscription.pattern is not None, self.subscription.remote
        self.cluster.auto_create_topics = (
            self.settings.allow_auto_create_topics and not by_pattern and remote is None
        )
        if by_pattern:
            assert self.group is not None
            following = follow(
                self.cluster,
                self.group,
                self.subscription,
                self.settings,
                wake=self.wake,
                note=self.note,
                fail=self._cannot_read,
            )
            self._following = self._tasks.spawn(following, "topics that match the pattern")
        elif self.subscription.by_group:
            assert self.group is not None
            if remote is None:
                self.group.subscribe(self.subscription.topics)
                if self.rebalancing is not None and self.rebalancing.count:
                    self.missing.look()  # in the consumer protocol, the assignment may stay as it is
            else:
                self.group.subscribe(frozenset(), regex=remote.pattern)
        else:
            self._adopt(self.subscription.assigned)
        self.wake()

    def let_go(self) -> None:
        """Give up the partitions that the user no longer assigns."""
        gone = self.assigned.partitions - self.subscription.assigned
        self.scopes.drop(gone)
        if self.auto_commit is not None:
            self.auto_commit.let_go(gone)

    def _adopt(self, partitions: frozenset[TopicPartition], *, settled: bool = True) -> None:
        """See `Assigned.adopt`."""
        if self.auto_commit is not None:
            self.auto_commit.forget(self.assigned.partitions - partitions)
        self.assigned.adopt(partitions, settled=settled)
        self.starting.anew(due=bool(partitions))
        if settled:
            self.missing.look()

    # --- positions ------------------------------------------------------------------------------------------

    def consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets for a commit that gives none: after the records returned or, once closing no longer
        waits for the reader, after those handled."""
        return self.assigned.handled() if self._abandoned else self.assigned.given_out()

    async def _are_gone(self, partitions: Iterable[TopicPartition], until: float) -> bool:
        """Whether none of these partitions' topics exists any more, according to the brokers that led them:
        others may not know a new topic yet. Asking creates no topic."""
        ids, image = self.fetcher.topic_ids(partitions), self.cluster.image
        for where in {each.topic: each for each in partitions}.values():  # one of each topic
            led = image.partition(where)
            request = MetadataRequest(
                topics=[MetadataRequest.Topic(name=where.topic)], allow_auto_topic_creation=False
            )
            try:
                told: MetadataResponse = await self.cluster.call(
                    request, until, node=ANY if led is None else led.leader
                )
            except ClientError:
                return False
            for topic in told.topics:
                is_same = topic.topic_id in (ids.get(where, topic.topic_id), ZERO_UUID)
                if is_same and topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    return False
        return True

    def commit(
        self,
        offsets: dict[TopicPartition, OffsetAndMetadata],
        until: float,
        *,
        waits_for_topics: bool = True,
    ) -> Coroutine[Any, Any, CommitResult]:
        """Commit these offsets, of the topics that the partitions belong to at the time of the call."""
        topic_ids = self.assigned.topic_ids(offsets)
        return self._commit(offsets, until, topic_ids, waits_for_topics=waits_for_topics)

    async def _commit(
        self,
        offsets: dict[TopicPartition, OffsetAndMetadata],
        until: float,
        topic_ids: Mapping[TopicPartition, uuid.UUID],
        *,
        waits_for_topics: bool,
    ) -> CommitResult:
        assert self.group is not None
        result = await self.group.commit(offsets, until, topic_ids, waits_for_topics=waits_for_topics)
        if result.committed:
            self.committed_at = RealTime.monotonic()
            if self.auto_commit is not None:
                # Nobody would forget the others, which are not ours, or no longer.
                ours = result.committed.keys() & self.assigned.partitions
                self.auto_commit.known({where: result.committed[where].offset for where in ours})
        return result

    async def position(self, where: TopicPartition, until: float) -> int:
        """The offset of the next record to return, looked up if necessary."""
        while True:
            self.check()
            self.assigned.check(where)
            place = self.assigned.place(where)
            if place is not None:
                return place.offset
            self.starting.look()
            await self._tasks.hear(until, f"the position of {where}", lambda: self._trouble_with(where))
            if isinstance(self._obstacle, (NoOffset, KafkaError, AuthenticationFailed)):
                self._raise_obstacle()
            trouble = self.fetcher.troubles.get(where)
            if trouble is not None and isinstance(trouble.error, AuthenticationFailed):
                raise again(trouble.error)

    def _was_reset(self, reset: Reset) -> None:
        if reset.former_topic is not None:
            self.assigned.replaced(reset.partition, reset.former_topic)
            if self.auto_commit is not None:
                self.auto_commit.forget([reset.partition])
        if reset.from_offset is None:  # The fetcher itself reports lost positions.
            _LOG.info("%s is read from offset %d on: %s", reset.partition, reset.to_offset, reset.why)
        self._tasks.tell()

    def _is_missing(self, where: TopicPartition, why: Exception) -> None:
        """The fetcher has found that a partition does not exist. The group would assign it to nobody."""
        if not self.subscription.by_group:
            _LOG.warning("%s is assigned and does not exist: waiting for it (%s)", where, why)

    def health(self) -> Health:
        """See Health."""
        now = RealTime.monotonic()
        group = None if self.group is None else self.group.health()
        troubles = {} if self.state != "running" else self.fetcher.troubles
        return Health(
            state=self.state,
            membership="" if group is None else group.state.name,
            generation_id=-1 if group is None else group.generation_id,
            member_id="" if group is None else group.member_id,
            assignment=self.assigned.partitions,
            rebalances=0 if self.rebalancing is None else self.rebalancing.count,
            heartbeat_age_s=None if group is None else group.heartbeat_answered_s,
            heartbeat_overdue_s=0.0 if group is None else group.heartbeat_overdue_s,
            records_age_s=None if self.records_at is None else now - self.records_at,
            commit_age_s=None if self.committed_at is None else now - self.committed_at,
            reader_away_s=self.watch.away_s,
            loop_lag_s=self.watch.loop_lag_s,
            troubles={where: str(each.error) for where, each in troubles.items()},
            missing_topics=self.missing.topics if self.state == "running" else frozenset(),
            last_error=str((group and group.last_error) or self.last_error or ""),
        )

    # --- what went wrong ------------------------------------------------------------------------------------

    def note(self, error: Exception) -> None:
        """Note a failure that is retried."""
        self.last_error = error
        _LOG.info("%s; trying again", error)

    def _trouble_with(self, where: TopicPartition) -> object:
        """Why the partition cannot be read, if so."""
        trouble = self.fetcher.troubles.get(where)
        return self.last_error if trouble is None else trouble.error


def _log(what: str, failure: BaseException) -> None:
    """Log what no call can raise."""
    _LOG.error("%s failed: %r", what, failure, exc_info=failure)
