"""Runs a membership on a loop: makes the requests due, and reports their outcomes. The membership decides;
the connections, the clock and the tasks are here. Requests that a coordinator may hold (JoinGroup, SyncGroup)
have their own connection, so heartbeats, commits and LeaveGroup never queue behind them. If the coordinator
is lost, all connections to it are closed: waiting requests fail at once and go to the next one.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any, Final

from muster.client.assignors import TopicPartitions
from muster.client.errors import (
    AuthenticationFailed,
    ClientError,
    Closed,
    NotKafka,
    RequestTimedOut,
    Unreachable,
    may_pass,
    refusal,
)
from muster.client.group.assignor_calls import AssignorFailed
from muster.client.group.consumer_answers import not_offered
from muster.client.group.member import Member
from muster.client.group.membership_types import Ask, Kind
from muster.client.network.cluster import Cluster
from muster.client.network.connection import Connection, Versioned, deadline
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.message import Message
from muster.protocol.messages.classic_group import JoinGroupRequest, LeaveGroupRequest
from muster.protocol.messages.connection import ApiVersionsRequest
from muster.protocol.messages.consumer_group import ConsumerGroupHeartbeatRequest
from muster.protocol.messages.metadata import MetadataRequest, MetadataResponse
from muster.realtime import RealTime

JOIN_LANE: Final = "join"
LANE: Final = "group"
LEAVE_TRIES: Final = 4

_LOG: Final = logging.getLogger(__name__)
_MEMBERS_IN_LEAVE: Final = 3  # the first LeaveGroup version that names several members
_REGEX_IN_HEARTBEAT: Final = 1  # the first ConsumerGroupHeartbeat version with regular expressions


def now_ms() -> int:
    """The clock that memberships use, the same in every thread."""
    return RealTime.monotonic_ns() // 1_000_000


class Driver:
    """`lock` is held around every use of the membership, since calls may come from another thread;
    `on_change` is called on this loop whenever something may have changed. Everything else may be used on
    this loop only."""

    def __init__(
        self,
        cluster: Cluster,
        membership: Member,
        lock: AbstractContextManager[Any],
        on_change: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._membership = membership
        self._lock = lock
        self._on_change = on_change
        self._group_id = membership.settings.group_id
        self._loop = asyncio.get_running_loop()
        self._step_handle: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._exchange: asyncio.Task[None] | None = None
        self._join_connection: Connection | None = None
        self._joined = False
        """The join connection is idle, but the coordinator last heard from the member on it."""
        self._first_heartbeat: Ask | None = None
        """The first heartbeat sent since joining."""
        self._lanes: dict[str, Connection] = {}
        self._finding = cluster.tries()
        self._looking = cluster.tries()
        """For what the brokers know of topics."""
        self._node: int | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self._poll_expirations = 0
        self._over: asyncio.Future[None] = self._loop.create_future()
        self.crashed: BaseException | None = None
        """The error that ended it, if any."""

    @property
    def _closed(self) -> bool:
        return self._over.done()

    # --- called by others -----------------------------------------------------------------------------------

    def kick(self) -> None:
        """Check the membership soon."""
        if self._step_handle is None and not self._closed:
            self._step_handle = self._loop.call_soon(self._step)

    async def changed(self, until: float) -> bool:
        """Wait until something may have changed; False if `until` came first."""
        self.raise_if_crashed()
        if deadline(0) >= until:
            await asyncio.sleep(0)  # A caller that polls without waiting must not block the loop.
            return False
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(waiter)
        try:
            done, _ = await asyncio.wait([waiter], timeout=until - deadline(0))
            return bool(done)
        finally:
            if not waiter.done():
                waiter.cancel()
                self._waiting.remove(waiter)

    async def pause(self, seconds: float) -> None:
        """Sleep. Raises Closed as soon as the member is closed."""
        await asyncio.wait([self._over], timeout=seconds)
        self._raise_if_closed()

    def announce(self) -> None:
        """Wake all waiters for a change."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.set_result(None)

    def raise_if_crashed(self) -> None:
        if self.crashed is not None:
            raise ClientError(
                f"group {self._group_id}: internal error in the client, which is no longer a member: "
                f"{type(self.crashed).__name__}: {self.crashed}"
            ) from self.crashed

    async def coordinator(self, until: float) -> int:
        """The group's coordinator. Raises the reason if it is not found, at `until` at the latest."""
        self._raise_if_closed()  # Nobody would look for it.
        with self._lock:
            self._membership.coordinator_users += 1
        self.kick()
        try:
            while True:
                with self._lock:
                    node, error = self._membership.coordinator, self._membership.last_error
                if node is not None:
                    return node
                if not await self.changed(until):
                    why = f"the last failure: {error}" if error is not None else "no response came"
                    raise RequestTimedOut(
                        f"the coordinator of group {self._group_id} was not found in time;"
                        f" {self._cluster.named()} was asked, {why}"
                    )
                error = self._membership.error
                if isinstance(error, ClientError):
                    raise error  # not taken: the caller may retry, and the reader must see it
                self.raise_error()
        finally:
            with self._lock:
                self._membership.coordinator_users -= 1

    async def call(self, node: int, request: Message | Versioned, until: float) -> Any:
        """The coordinator's response to a request that it does not hold. If the coordinator is unreachable,
        or does not respond within the request timeout, it is looked up again; running into the caller's own,
        shorter timeout does not count."""
        request_until = deadline(self._membership.settings.request_timeout_ms / 1000)
        try:
            async with asyncio.timeout_at(until):
                connection = await self._connection(node, LANE, request_until)
                return await connection.call(request, request_until)
        except TimeoutError:
            raise RequestTimedOut(
                f"the coordinator of group {self._group_id} did not respond in time"
            ) from None
        except ClientError:
            self.coordinator_lost(node)
            raise

    def coordinator_lost(self, node: int) -> None:
        """This node is not the coordinator."""
        with self._lock:
            self._membership.coordinator_lost(node, now_ms())
        self.kick()

    def serve(self, membership: Member) -> None:
        """Run this membership from now on. Call with the lock held."""
        self._membership = membership
        self.kick()

    @property
    def exchange(self) -> asyncio.Task[None] | None:
        """The JoinGroup or SyncGroup request in progress."""
        return self._exchange

    async def leave(self, request: Message, exchange: asyncio.Task[None] | None, until: float) -> None:
        """Send the leave request, with a few attempts, and end `exchange`, the join that was in progress when
        the member left. Raises ClientError or KafkaError if that fails: the group then removes the member
        when its session expires."""
        with self._lock:
            node = self._membership.coordinator
        backoff_ms = self._membership.settings.retry_backoff_ms
        try:
            for tries_left in reversed(range(LEAVE_TRIES)):
                try:
                    if node is None:
                        node = await self._find(until)
                    with self._lock:
                        if self._membership.has_rejoined(request):
                            return
                    response = await self._leave(node, request, until)
                    if not response.error_code:
                        return
                    raise refusal(response.error_code, about=f"leaving group {self._group_id}")
                except (ClientError, KafkaError) as error:
                    if not tries_left or _is_final(error) or deadline(backoff_ms / 1000) >= until:
                        raise
                node = None
                await self.pause(backoff_ms / 1000)
        finally:
            # The member may have rejoined meanwhile.
            if self._exchange in (None, exchange) and (ending := self.end_exchange()):
                await asyncio.wait(ending)

    def end_exchange(self) -> list[asyncio.Task[None]]:
        """Drop outstanding JoinGroup and SyncGroup requests; returns the tasks that end with them."""
        exchange, connection = self._exchange, self._join_connection
        self._join_connection = None
        closing = self._close_soon(connection)
        if exchange is not None:
            exchange.cancel()
        return [each for each in (exchange, closing) if each is not None]

    def raise_error(self, *, of_assignor: bool = True) -> None:
        """Raise a permanent error not reported yet; an assignor's only if `of_assignor`."""
        self.raise_if_crashed()
        self._raise_if_closed()
        error = self._membership.error
        if error is not None and (of_assignor or not isinstance(error, AssignorFailed)):
            with self._lock:
                error = self._membership.take_error()
            if error is not None:
                raise error

    def _raise_if_closed(self) -> None:
        if self._closed:
            raise Closed(f"group {self._group_id}: the member is closed")

    async def close(self) -> None:
        """End everything at once."""
        if not self._closed:
            self._over.set_result(None)
        for handle in (self._step_handle, self._timer):
            if handle is not None:
                handle.cancel()
        for task in self._tasks:
            task.cancel()
        self.announce()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    # --- stepping -------------------------------------------------------------------------------------------

    def _step(self) -> None:
        self._step_handle = None
        if self._closed or self.crashed is not None:
            self.announce()
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        membership = self._membership
        try:
            with self._lock:
                asks = membership.due(now_ms())
                wake_ms = membership.next_deadline_ms()
                node = membership.coordinator
                expirations = membership.poll_expirations
        except Exception as error:
            self._crash(error)
            return
        if node != self._node:
            if self._node is not None:
                self._disconnect()
            self._node = node
        if expirations != self._poll_expirations:
            self._poll_expirations = expirations
            _LOG.warning(
                "group %s: nobody asked for records for %d ms (max_poll_interval_ms), so the member left the "
                "group; handle fewer records between two reading calls, or allow more time",
                self._group_id,
                membership.settings.max_poll_interval_ms,
            )
        for ask in asks:
            self._begin(ask)
        if wake_ms is not None:
            self._timer = self._loop.call_later(max(0, wake_ms - now_ms()) / 1000, self.kick)
        self.announce()
        self._on_change()

    def _begin(self, ask: Ask) -> None:
        if ask.kind in (Kind.JOIN, Kind.SYNC):
            self._joined, self._first_heartbeat = False, None
        elif ask.kind is Kind.HEARTBEAT and self._joined:
            self._first_heartbeat = ask
        if isinstance(ask.request, JoinGroupRequest):
            _LOG.info("group %s: joining (%s)", self._group_id, ask.request.reason or "first time")
            if self._exchange is not None and not self._exchange.done():
                # It belongs to an exchange that was dropped.
                self._exchange.cancel()
                self._close_soon(self._join_connection)
                self._join_connection = None
        elif isinstance(ask.request, ConsumerGroupHeartbeatRequest) and not ask.request.member_epoch:
            _LOG.info("group %s: joining by the consumer protocol", self._group_id)
        task = self.spawn(self._do(ask), f"{ask.kind.name} of group {self._group_id}")
        if ask.kind in (Kind.JOIN, Kind.SYNC):
            self._exchange = task

    def spawn(self, coroutine: Any, name: str) -> asyncio.Task[None]:
        """A task of the driver's: it ends when the driver is closed, and an exception in it is the user's to
        see."""
        task: asyncio.Task[None] = self._loop.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task is self._exchange:
            self._exchange = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._crash(error)

    def _crash(self, error: BaseException) -> None:
        if self.crashed is None and not self._closed:
            _LOG.error("group %s: internal error in the client", self._group_id, exc_info=error)
            self.crashed = error
            self.announce()
            self._on_change()

    async def _do(self, ask: Ask) -> None:
        try:
            answer = await self._perform(ask)
        except (ClientError, KafkaError) as error:
            self._failed(ask, error)
        else:
            with self._lock:
                self._membership.answered(ask, answer, now_ms())
            if ask.kind is Kind.SYNC and not answer.error_code:
                self._joined = True
            elif ask is self._first_heartbeat:
                # Not earlier: when the connection on which a coordinator last heard from a member ends, it
                # considers the member gone.
                self._joined, self._first_heartbeat = False, None
                self._close_soon(self._join_connection)
                self._join_connection = None
        self.kick()

    def _failed(self, ask: Ask, error: ClientError | KafkaError) -> None:
        with self._lock:
            self._membership.failed(ask, error, now_ms(), final=_is_final(error))

    async def _perform(self, ask: Ask) -> Any:
        until = deadline(ask.timeout_ms / 1000)
        match ask.kind:
            case Kind.FIND_COORDINATOR:
                return await self._find(until)
            case Kind.JOIN | Kind.SYNC:
                connection = self._join_connection
                if connection is None or not connection.is_open:
                    connect_until = deadline(self._membership.settings.request_timeout_ms / 1000)
                    connection = await self._connection(ask.node, JOIN_LANE, connect_until)
                    if self._membership.coordinator != ask.node:
                        raise Unreachable(f"broker {ask.node} does not coordinate {self._group_id} any more")
                    self._join_connection = connection
                return await connection.call(_present(ask), until)
            case Kind.HEARTBEAT if isinstance(ask.request, ConsumerGroupHeartbeatRequest):
                return await self._consumer_heartbeat(ask, until)
            case Kind.HEARTBEAT | Kind.ASSIGNED:
                return await (await self._connection(ask.node, LANE, until)).call(_present(ask), until)
            case Kind.LEAVE:
                return await self._leave(ask.node, _present(ask), until)
            case Kind.PROBE:
                return await (await self._connection(ask.node, LANE, until)).call(ApiVersionsRequest(), until)
            case Kind.TOPICS | Kind.WATCH:
                return await self._topics(ask.topics, until)
            case Kind.NAMES:
                return await self._names(ask.topic_ids, until)
            case Kind.ASSIGN:
                return ask.work()

    # --- requests -------------------------------------------------------------------------------------------

    async def _find(self, until: float) -> int:
        self._cluster.forget_coordinator(self._group_id)
        try:
            with self._finding:
                return await self._cluster.coordinator(self._group_id, until)
        except (ClientError, KafkaError):
            self._finding.again()  # the member decides when
            raise

    async def _topics(self, topics: frozenset[str], until: float) -> dict[str, TopicPartitions]:
        """The topics that exist. Raises KafkaError if the member may not read one it subscribes to."""
        if not topics:
            return {}
        membership = self._membership
        create = membership.settings.allow_auto_create_topics and not membership.is_by_pattern
        response = await self._look(lambda: self._cluster.metadata(sorted(topics), until, create=create))
        racks = {each.node_id: each.rack for each in response.brokers}
        known = {}
        for topic in response.topics:
            if topic.error_code and topic.name in self._membership.topics:
                error = refusal(topic.error_code, about=f"topic {topic.name}")
                if error.code in (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_TOPIC_EXCEPTION):
                    raise error
            if topic.name is None or topic.error_code or not topic.partitions:
                continue
            replicas = {each.partition_index: each.replica_nodes for each in topic.partitions}
            count = max(replicas) + 1
            known[topic.name] = TopicPartitions(
                count,
                tuple(
                    frozenset(rack for node in replicas.get(index, ()) if (rack := racks.get(node)))
                    for index in range(count)
                )
                if any(racks.values())
                else (),
            )
        if topics - known.keys():
            self._looking.again()  # the member decides when
        return known

    async def _names(self, topic_ids: frozenset[uuid.UUID], until: float) -> dict[uuid.UUID, str]:
        """The names of the topics that the broker knows."""
        topics = [MetadataRequest.Topic(topic_id=each, name=None) for each in sorted(topic_ids)]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        response = await self._look(lambda: self._cluster.call(request, until))
        known = {
            topic.topic_id: topic.name
            for topic in response.topics
            if topic.name and topic.topic_id in topic_ids and not topic.error_code
        }
        if topic_ids - known.keys():
            self._looking.again()
        return known

    async def _look(self, ask: Callable[[], Awaitable[MetadataResponse]]) -> MetadataResponse:
        try:
            with self._looking:
                return await ask()
        except (ClientError, KafkaError):
            self._looking.again()
            raise

    async def _consumer_heartbeat(self, ask: Ask, until: float) -> Any:
        def build(version: int) -> Message:
            request = _present(ask)
            assert isinstance(request, ConsumerGroupHeartbeatRequest)
            if version < _REGEX_IN_HEARTBEAT and not request.subscribed_topic_regex:
                request.subscribed_topic_regex = None  # such a broker has none to clear
            return request

        connection = await self._connection(ask.node, LANE, until)
        try:
            response = await connection.call(Versioned(ApiKey.CONSUMER_GROUP_HEARTBEAT, build), until)
        except KafkaError as error:
            raise not_offered(f"broker {ask.node} at {connection.address}", str(error)) from error
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            raise not_offered(f"broker {ask.node} at {connection.address}", response.error_message)
        return response

    async def _leave(self, node: int, request: Message, until: float) -> Any:
        def build(version: int) -> Message:
            assert isinstance(request, LeaveGroupRequest)
            if version >= _MEMBERS_IN_LEAVE:
                return request
            return LeaveGroupRequest(group_id=request.group_id, member_id=request.members[0].member_id)

        connection = await self._connection(node, LANE, until)
        if isinstance(request, LeaveGroupRequest):
            return await connection.call(Versioned(ApiKey.LEAVE_GROUP, build), until)
        return await connection.call(request, until)

    # --- connections ----------------------------------------------------------------------------------------

    async def _connection(self, node: int, lane: str, until: float) -> Connection:
        connection = await self._cluster.connection(node, until, lane)
        self._lanes[lane] = connection
        return connection

    def _disconnect(self) -> None:
        """Disconnect from a former coordinator."""
        for connection in self._lanes.values():
            self._close_soon(connection)
        self._lanes.clear()
        self._join_connection = None

    def _close_soon(self, connection: Connection | None) -> asyncio.Task[None] | None:
        """Close it, even if the caller is cancelled."""
        if connection is None or not connection.is_open:
            return None
        return self.spawn(connection.close(), "closing a connection to a coordinator")


def _present(ask: Ask) -> Message:
    assert ask.request is not None, ask
    return ask.request


def _is_final(error: Exception) -> bool:
    """Whether retrying cannot help."""
    if isinstance(error, KafkaError):
        return not may_pass(error.code)
    return isinstance(error, (NotKafka, AuthenticationFailed, AssignorFailed))
