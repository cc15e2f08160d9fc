"""A consumer's membership in its group: joining, heartbeating, committing.

    group = Group(bootstrap, GroupSettings(group_id="billing", assignors=(assignor("range"),)), on_wake=wake)
    await group.start()
    group.subscribe(frozenset({"orders"}))
    while group.rejoin_needed:
        preparation = group.prepare(owned)
        ...                                        # give up what it says
        joined = await group.join(preparation.kept, deadline(1.0))

`Membership` decides, `Driver` acts; this module combines them, on the consumer's loop or, with `apart`, on a
loop in its own thread, so that a handler that blocks its loop does not lose the membership. Either way, the
methods are called on the consumer's loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self, TypeVar

from muster.client.assignors import RebalanceProtocol
from muster.client.errors import ClientError, Closed
from muster.client.group.assignor_calls import AssignorFailed
from muster.client.group.choosing import classic_instead, membership_of
from muster.client.group.consumer_answers import not_offered, turned_away
from muster.client.group.driver import Driver, now_ms
from muster.client.group.loop_thread import LoopThread
from muster.client.group.member import Member
from muster.client.group.membership import Membership
from muster.client.group.membership_types import GroupSettings, Joined, Preparation, State
from muster.client.group.offsets import Offsets
from muster.client.group.outcomes import CommitResult, Retry
from muster.client.network.cluster import Cluster
from muster.client.network.connection import Address, deadline
from muster.client.partitions import OffsetAndMetadata, TopicPartition
from muster.client.security.security import Security
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.message import Message

__all__ = ["Group", "GroupHealth", "GroupSettings", "Joined", "Preparation", "State"]

T = TypeVar("T")

_LOG: Final = logging.getLogger(__name__)

CLOSE_S: Final = 30.0


class GroupHealth(NamedTuple):
    """The health of a membership. Ages are in seconds, None for never."""

    state: State
    generation_id: int
    member_id: str
    coordinator: int | None
    """The node, if known."""
    heartbeat_sent_s: float | None
    heartbeat_answered_s: float | None
    heartbeat_overdue_s: float
    """How long the answer to a heartbeat is overdue, 0 if none is."""
    last_error: Exception | None
    """The last error; it may have passed."""


class Group:
    """See above. `on_wake` is called on the consumer's loop when a reading call has something to do: join,
    take the result of a join, or raise. Permanent errors are raised by `polled` or the next call that waits:
    KafkaError for refusals by the coordinator, ClientError otherwise. What an assignor raised is left to
    `polled` and `join`, since the member can commit all the same; a commit raises it too if the group takes
    none until the member joins again. Any call may be cancelled; joining continues, and the next `join` picks
    it up. Assignors run on the loop that has the connections.
    """

    def __init__(
        self,
        bootstrap: Sequence[Address],
        settings: GroupSettings,
        *,
        on_wake: Callable[[], None],
        apart: bool = False,
        security: Security | None = None,
    ) -> None:
        self.settings = settings
        self._security = security
        self._bootstrap = list(bootstrap)
        self._on_wake = on_wake
        self._membership = membership_of(settings)
        self._lock = threading.RLock()
        self._apart = apart
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: LoopThread | None = None
        self._inside: _Inside | None = None
        self._ending: asyncio.Task[None] | None = None
        self._calls_for: object = None  # what the consumer was last woken for

    def __repr__(self) -> str:
        return f"<Group {self._membership!r}{' apart' if self._apart else ''}>"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Call once, before anything else. Does not connect yet."""
        if self._loop is not None:
            raise ClientError("a group is started once")
        self._loop = asyncio.get_running_loop()
        if self._apart:
            self._thread = LoopThread(f"muster group {self.settings.group_id}")
            await self._thread.start()
        self._inside = await self._run(self._open())

    async def close(self, timeout: float = CLOSE_S, *, leave: bool | None = None) -> None:
        """End the membership and its tasks within `timeout` seconds. `leave`: send LeaveGroup; None does so
        for a dynamic member only, since a static one may come back under its instance id. Safe to call again;
        if cancelled, it finishes without notifying the group."""
        if self._loop is None:
            return
        if self._ending is None:
            self._ending = asyncio.create_task(self._end(timeout, leave), name="closing a group")
        try:
            await asyncio.shield(self._ending)
        except asyncio.CancelledError:
            if self._inside is not None and not self._ending.done():
                self._inside.hurry()
                await asyncio.wait([self._ending])
            raise

    # --- state ----------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        return self._membership.state

    @property
    def generation_id(self) -> int:
        """-1 outside a generation."""
        return self._membership.generation_id

    @property
    def member_id(self) -> str:
        """Empty if there is none."""
        return self._membership.member_id

    @property
    def is_leader(self) -> bool:
        return self._membership.is_leader

    @property
    def protocol(self) -> RebalanceProtocol:
        """The current rebalance protocol."""
        return self._membership.protocol

    @property
    def rejoin_needed(self) -> bool:
        """Whether to call `prepare` and `join`."""
        with self._lock:
            return self._membership.rejoin_needed

    @property
    def lost(self) -> bool:
        """Whether the membership was lost while the consumer owned partitions: others may own them now."""
        return self._membership.lost

    def health(self) -> GroupHealth:
        """For readiness probes."""
        with self._lock:
            membership, now = self._membership, now_ms()
            sent, answered = membership.heartbeat.last_sent_ms, membership.heartbeat.last_answered_ms
            return GroupHealth(
                membership.state,
                membership.generation_id,
                membership.member_id,
                membership.coordinator,
                None if sent is None else (now - sent) / 1000,
                None if answered is None else (now - answered) / 1000,
                membership.heartbeat.overdue_ms(now) / 1000,
                membership.last_error,
            )

    # --- membership -----------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: frozenset[str],
        accepts: Callable[[str], bool] | None = None,
        *,
        regex: str | None = None,
    ) -> None:
        """Set the subscribed topics; a change triggers a rebalance. `accepts` says whether another topic also
        belongs to the subscription: the leader may know more topics that match a pattern. `regex`: the
        coordinator finds the topics. Raises KafkaError if it cannot do that."""
        with self._lock:
            if regex is not None and isinstance(self._membership, Membership):
                raise turned_away(regex, not_offered("the group's coordinator"))
            self._membership.subscribe(topics, accepts, regex=regex)
        self._kick()

    @property
    def revokes_first(self) -> bool:
        """Whether `prepare` may have partitions revoked before the group is joined."""
        return self._membership.revokes_first

    def request_rejoin(self, reason: str) -> None:
        """Trigger a rebalance (Kafka's enforceRebalance)."""
        with self._lock:
            self._membership.request_rejoin(reason)
        self._kick()

    def polled(self, *, of_assignor: bool = True) -> None:
        """Every reading call must call this: the member leaves after max.poll.interval.ms without a call.
        Raises a permanent error not reported yet, an assignor's only if `of_assignor`."""
        self._membership.polled(now_ms())  # a single assignment, which needs no lock
        if self._inside is not None:
            self._inside.driver.raise_error(of_assignor=of_assignor)

    def raise_assignor_failure(self) -> None:
        """Raise what an assignor raised, if no call has yet; also after `close`."""
        with self._lock:
            if isinstance(self._membership.error, AssignorFailed) and (
                error := self._membership.take_error()
            ):
                raise error

    def prepare(self, owned: frozenset[TopicPartition]) -> Preparation:
        """Which of `owned` to give up before `join`. Never repeated: after `join` is called, nothing needs to
        be given up until it is done or the membership is lost."""
        with self._lock:
            return self._membership.prepare(owned)

    async def join(self, owned: frozenset[TopicPartition], until: float) -> Joined | None:
        """Join the group, keeping `owned`, and wait for the assignment. Returns None if it has not come yet,
        or if the membership was lost meanwhile and `prepare` must be called again. Retriable failures are
        retried forever; permanent ones are raised."""
        inside = self._started()
        with self._lock:
            joined = self._membership.result
        if joined is None:
            joined = await self._run(inside.join(owned, self._seconds(until)))
        if joined is None:
            self._started()  # raises if closed meanwhile
            return None
        with self._lock:
            taken = self._membership.take(joined)
        return joined if taken else None

    def reconciled(self, joined: Joined) -> None:
        """Call this once `joined` has been applied, callbacks included."""
        with self._lock:
            self._membership.reconciled(joined, now_ms())
        self._kick()

    async def leave(self, reason: str, until: float, *, wait: bool = True) -> None:
        """Leave the group and drop the subscription; later commits are a non-member's. A dynamic member sends
        LeaveGroup, which may fail harmlessly: the group removes the member when its session expires. Without
        `wait`, or if cancelled, it is sent all the same, until `until`."""
        inside = self._started()
        with self._lock:  # at once, not on the driver's loop: the next `subscribe` may come before that
            request = self._membership.leave(reason, static_too=False)
        self._kick()
        seconds = self._seconds(until)
        self._call(lambda: inside.begin_leave(request, seconds))  # which a cancellation cannot catch
        if wait:
            await self._run(inside.left(seconds))

    # --- offsets --------------------------------------------------------------------------------------------

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        until: float,
        topic_ids: Mapping[TopicPartition, uuid.UUID] = MappingProxyType({}),
        *,
        waits_for_topics: bool = True,
    ) -> CommitResult:
        """Commit as this member or, without a subscription, as a non-member: then the group must have no
        members. Retriable failures are retried until `until`, a missing topic only if `waits_for_topics`.
        With `topic_ids`, nothing is committed for a topic that was deleted and created again. Raises
        KafkaError for refusals."""
        inside = self._started()
        return await self._run(
            inside.commit(offsets, self._seconds(until), topic_ids, waits_for_topics=waits_for_topics)
        )

    def transaction_refused(self, code: ErrorCode, generation_id: int) -> bool:
        """The group refused a transaction's offsets of this generation with this code. Returns whether the
        member is in another generation, or may be soon."""
        with self._lock:
            membership = self._membership
            if not membership.is_subscribed:
                return False
            if membership.generation_id == generation_id:
                membership.commit_refused(code, membership.generation)
            if membership.generation_id != generation_id:
                goes_on = membership.generation.is_valid
            else:  # in the consumer protocol, the next heartbeat decides
                goes_on = not isinstance(membership, Membership)
        self._kick()
        return goes_on

    async def committed(
        self, partitions: Collection[TopicPartition], until: float
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets; None for a partition without one. If they cannot be fetched, raises
        the reason at `until`, or at once if it is permanent."""
        inside = self._started()
        return await self._run(inside.committed(partitions, self._seconds(until)))

    # --- inside ---------------------------------------------------------------------------------------------

    def _started(self) -> _Inside:
        if self._inside is None or self._ending is not None:
            raise Closed(f"group {self.settings.group_id}: the member is closed, or was never started")
        return self._inside

    def _seconds(self, until: float) -> float:
        """The seconds left until this time of this loop; another loop's clock may differ."""
        return max(0.0, until - deadline(0))

    async def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._thread is None:
            return await coroutine
        return await self._thread.run(coroutine)

    def _call(self, callback: Callable[[], object]) -> None:
        """Call this on the driver's loop."""
        if self._thread is None:
            callback()
        else:
            self._thread.call_soon(callback)

    def _kick(self) -> None:
        if self._inside is not None:
            self._call(self._inside.driver.kick)

    async def _open(self) -> _Inside:
        return _Inside(self._bootstrap, self._security, self._membership, self._lock, self._changed)

    def _changed(self) -> None:
        """On the driver's loop: wake the consumer if it has something new to do."""
        inside = self._inside
        with self._lock:
            if inside is not None and (classic := classic_instead(self._membership)) is not None:
                _LOG.info("%s; joining as a classic member", self._membership.last_error)
                self._membership = classic
                inside.serve(classic)
            crashed = inside is not None and inside.driver.crashed is not None
            calls_for = self._membership.calls_for_reader(), crashed
        if calls_for == self._calls_for:
            return
        self._calls_for = calls_for
        if not any(calls_for):
            return
        if self._thread is None:
            self._on_wake()
        elif self._loop is not None:
            with suppress(RuntimeError):  # the consumer's loop is closed
                self._loop.call_soon_threadsafe(self._on_wake)

    async def _end(self, timeout: float, leave: bool | None) -> None:
        try:
            if self._inside is not None:
                await self._run(self._inside.close(timeout, leave))
        finally:
            if self._thread is not None:
                await self._thread.stop()


class _Inside:
    """The part on the loop with the connections. Times are seconds from now."""

    def __init__(
        self,
        bootstrap: Sequence[Address],
        security: Security | None,
        membership: Member,
        lock: threading.RLock,
        on_change: Callable[[], None],
    ) -> None:
        settings = membership.settings
        self._membership = membership
        self._lock = lock
        self._cluster = Cluster(
            bootstrap,
            client_id=settings.client_id,
            metadata_max_age_ms=settings.metadata_max_age_ms,
            retry_backoff_ms=settings.retry_backoff_ms,
            retry_backoff_max_ms=settings.retry_backoff_max_ms,
            security=security,
            patient=True,
        )
        self.driver = Driver(self._cluster, membership, lock, on_change)
        self._offsets = Offsets(self.driver, membership, lock)
        self._hurry = asyncio.Event()
        self._leaving: set[asyncio.Task[None]] = set()
        """They outlive a cancelled caller: otherwise the group would wait for a member that is gone."""
        self._loop = asyncio.get_running_loop()

    def serve(self, membership: Member) -> None:
        """Act as this member from now on. Call with the lock held."""
        self._membership = membership
        self.driver.serve(membership)
        self._offsets.serve(membership)

    async def join(self, owned: frozenset[TopicPartition], seconds: float) -> Joined | None:
        until = deadline(seconds)
        driver = self.driver
        driver.raise_error()
        with self._lock:
            membership = self._membership
            membership.join(owned, now_ms())
            membership.readers += 1
        driver.kick()
        try:
            while True:
                driver.raise_error()
                with self._lock:
                    membership = self._membership
                    joined, goes_on = membership.result, membership.is_joining
                if joined is not None or not goes_on or not await driver.changed(until):
                    return joined
        finally:
            with self._lock:
                membership = self._membership
                membership.readers -= 1
                membership.polled(now_ms())

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        seconds: float,
        topic_ids: Mapping[TopicPartition, uuid.UUID],
        *,
        waits_for_topics: bool,
    ) -> CommitResult:
        self.driver.raise_error(of_assignor=False)
        result = await self._offsets.commit(
            offsets, deadline(seconds), topic_ids, waits_for_topics=waits_for_topics
        )
        error = self._membership.error
        if isinstance(error, AssignorFailed) and any(map(_is_rebalancing, result.retry.values())):
            raise error  # Only a reading call can join again, and that raises it first.
        return result

    async def committed(
        self, partitions: Collection[TopicPartition], seconds: float
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        self.driver.raise_error(of_assignor=False)
        return await self._offsets.fetch(partitions, deadline(seconds))

    async def leave(self, reason: str, seconds: float, *, static_too: bool) -> None:
        with self._lock:
            request = self._membership.leave(reason, static_too=static_too)
        self.driver.kick()
        self.begin_leave(request, seconds)
        await self.left(seconds)

    def begin_leave(self, request: Message | None, seconds: float) -> None:
        """Send the request, if there is one, and end the join in progress, not one that begins after this.
        `left` waits for it."""
        driver = self.driver
        if request is None:
            ending = driver.end_exchange()
        else:
            leaving = self._leave(request, driver.exchange, deadline(seconds))
            ending = [driver.spawn(leaving, "leaving a group")]
        for task in ending:
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def left(self, seconds: float) -> None:
        """Wait for the end of all requests to leave."""
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=seconds)

    async def _leave(self, request: Message, exchange: asyncio.Task[None] | None, until: float) -> None:
        with suppress(ClientError, KafkaError):
            await self.driver.leave(request, exchange, until)

    def hurry(self) -> None:
        """Make `close` skip LeaveGroup. Callable from any thread."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._hurry.set)

    async def close(self, seconds: float, leave: bool | None) -> None:
        try:
            await self._offsets.close()
            if leave is not False:
                await self._leave_at_last(seconds, static_too=leave is True)
        finally:
            await self.driver.close()
            await self._cluster.close()

    async def _leave_at_last(self, seconds: float, *, static_too: bool) -> None:
        leaving = asyncio.ensure_future(self.leave("the consumer is closed", seconds, static_too=static_too))
        hurry = asyncio.ensure_future(self._hurry.wait())
        try:
            await asyncio.wait([leaving, hurry], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (leaving, hurry):
                task.cancel()
            await asyncio.wait([leaving, hurry])
        if not leaving.cancelled():
            leaving.result()


def _is_rebalancing(retry: Retry) -> bool:
    """Whether the group takes no commit before all its members have an assignment."""
    return isinstance(retry.why, KafkaError) and retry.why.code is ErrorCode.REBALANCE_IN_PROGRESS
