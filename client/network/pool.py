"""The connections of a cluster: one per node and lane, opened as needed. A node that refuses connections is
left alone for a backoff that doubles with every failure (KIP-580). If any broker will do, the one with the
fewest requests in flight is used, among those that have not just failed; who tries again asks another one
(`Tries`). If no known broker responds, the search restarts at the bootstrap addresses (KIP-899).
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, Self

from muster.client.errors import (
    AuthenticationFailed,
    ClientError,
    Closed,
    ConnectionLost,
    NotKafka,
    RequestTimedOut,
    Unreachable,
    WrongBroker,
)
from muster.client.network.connection import Address, BrokerIdentity, Connection, deadline
from muster.client.network.metadata import Node
from muster.client.security.security import Security

log = logging.getLogger(__name__)

ANY: Final = -1
"""Any broker."""

_STAGGER_S: Final = 1.0  # how long one address may be silent before the next one is tried in parallel
_TURNS_TO_HEAR: Final = 2  # turns of the loop: it polls its sockets in the first, and calls us in the second
_QUIET_S: Final = 1.0  # idle time after which it is worth a turn of the loop to check a connection
_TRIES_WITHOUT_ANSWER: Final = 3  # if a broker closed the connection each time, it will go on doing so
_DISTRUST_S: Final = 10.0
"""How long a failed broker ranks last if any broker will do. Longer than the reconnect backoff, which may be
over at the next try: a broker that accepts connections and closes them would be chosen every time, since it
has the fewest requests in flight."""


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Connection settings, with Kafka's names and defaults."""

    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 1_000
    socket_connection_setup_timeout_ms: int = 10_000
    socket_connection_setup_timeout_max_ms: int = 30_000
    connections_max_idle_ms: int = 540_000


class _Candidate(NamedTuple):
    """Where to look for a broker; `node_id` is ANY for a bootstrap address."""

    node_id: int
    address: Address


class _Lane:
    """The connection to a node for one kind of request."""

    __slots__ = ("again_at", "connection", "failure", "opening")

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.opening = asyncio.Lock()
        self.again_at = 0.0  # not reopened before this time, however often it is closed
        self.failure: ClientError | None = None  # of the last attempt to open it


class _Failures:
    """A node's connection failures."""

    __slots__ = ("again_at", "count")

    def __init__(self) -> None:
        self.count = 0
        self.again_at = 0.0


class Tries:
    """The tries of one caller. What any broker can answer is asked, `with tries`, of the same one within a
    try, and after `again` of one not asked yet, or asked longest ago. Tries may contain others."""

    def __init__(self, pool: Pool, backoff_s: Callable[[int], float]) -> None:
        self._pool = pool
        self._backoff_s = backoff_s
        self._number = 0
        self._asked: dict[Address, int] = {}  # in which try last
        self._before: tuple[Tries, ...] = ()

    def __enter__(self) -> Self:
        self._before = TRYING.get()
        TRYING.set((*self._before, self))
        return self

    def __exit__(self, *_: object) -> None:
        TRYING.set(self._before)  # no reset: an abandoned task may end in another context

    def again(self) -> float:
        """A try has failed: who was asked may not know yet, so the next one asks another broker. If there is
        no connection to another, one is opened meanwhile; until it is, the same broker is asked. Returns how
        many seconds to wait."""
        asked = [address for address, number in self._asked.items() if number == self._number]
        self._number += 1
        if asked:
            self._pool.meet_another(asked)
        return self._backoff_s(self._number - 1)

    def asks(self, address: Address) -> None:
        """Note who is asked in this try."""
        self._asked[address] = self._number

    def asked(self, address: Address) -> int:
        """The earlier try that asked it last; -1 if none did, or this one has."""
        number = self._asked.get(address, -1)
        return -1 if number == self._number else number


TRYING: Final[ContextVar[tuple[Tries, ...]]] = ContextVar("TRYING", default=())
"""Who asks, in this context."""


class Pool:
    """Open connections, by node and lane. `learn` sets where the nodes are."""

    def __init__(
        self,
        bootstrap: Sequence[Address],
        client_id: str,
        settings: ConnectionSettings,
        *,
        request_timeout_s: float = 0.0,
        security: Security | None = None,
        patient: bool = False,
        on_wrong_broker: Callable[[int], None] = lambda _: None,
        find_nodes: Callable[[float], None] = lambda _: None,
    ) -> None:
        """`patient`: callers retry even if no broker has ever answered, so failures are logged. Otherwise
        the caller gets the first failure at once. `find_nodes` begins to look for the nodes, until a
        deadline, and has them set by `learn`."""
        self.reached = False
        """Whether any broker has ever answered a request. An open connection is not enough: a SASL listener
        opens one for clients without SASL too, and closes it at their first request."""
        self._bootstrap = list(dict.fromkeys(bootstrap))
        self._client_id = client_id
        self._settings = settings
        self._request_timeout_s = request_timeout_s
        self._security = security
        self._patient = patient
        self._on_wrong_broker = on_wrong_broker
        self._find_nodes = find_nodes
        self._nodes: Mapping[int, Node] = {}
        self._last: Address | None = None  # who was asked last, if any would do
        self._meeting: asyncio.Task[None] | None = None
        self._cluster_id: str | None = None
        self._lanes: dict[tuple[int, str], _Lane] = {}
        self._failures: dict[int, _Failures] = {}
        self._distrust_s = max(_DISTRUST_S, settings.reconnect_backoff_max_ms / 1000)
        self._failed_at: dict[Address, tuple[float, int]] = {}  # the time and number of the failure
        self._failure_count = 0
        self._cut_off = False  # no broker responded at the last attempt
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False

    # --- nodes ----------------------------------------------------------------------------------------------

    def learn(self, nodes: Mapping[int, Node], cluster_id: str | None) -> None:
        """Set the nodes. A connection to a bootstrap address becomes the connection of the node there."""
        self._nodes, self._cluster_id = nodes, cluster_id
        for (node_id, name), given in list(self._lanes.items()):
            connection = given.connection
            if node_id != ANY or connection is None or not connection.is_open:
                continue
            for node in nodes.values():
                if connection.address == (node.host, node.port):
                    lane = self._lanes.setdefault((node.node_id, name), _Lane())
                    if lane.connection is None and not lane.opening.locked():
                        lane.connection, given.connection = connection, None
                        connection.node_id = node.node_id
                    break

    @property
    def is_hopeless(self) -> bool:
        """Whether no broker has ever answered a request, after a few failures for each bootstrap address."""
        tries = _TRIES_WITHOUT_ANSWER * len(self._bootstrap)
        return not self.reached and self._failure_count >= tries

    def address_of(self, node_id: int) -> Address | None:
        """The node's address, if known."""
        node = self._nodes.get(node_id)
        return None if node is None else Address(node.host, node.port)

    def least_loaded(self, lane: str = "") -> int:
        """The node with the fewest requests in flight: among connected ones that have not just failed, else
        among those that have not failed, else the one that failed longest ago. ANY if no node is known."""

        def burden(node: Node) -> tuple[int, bool, int, float]:
            there = self._open(node.node_id, lane)
            in_flight = there.in_flight if there else 0
            rank = self._rank(Address(node.host, node.port))
            return rank, there is None, in_flight, random.random()

        best = min(self._nodes.values(), key=burden, default=None)
        return ANY if best is None else best.node_id

    def failed(self, node_id: int, address: Address) -> None:
        """Record a failure: leave the node alone for a while, and its address if another will do."""
        self._distrust(address)
        if node_id == ANY:
            return
        failures = self._failures.setdefault(node_id, _Failures())
        settings = self._settings
        failures.again_at = deadline(
            backoff_s(failures.count, settings.reconnect_backoff_ms, settings.reconnect_backoff_max_ms)
        )
        failures.count += 1

    def _distrust(self, address: Address) -> None:
        since = deadline(-self._distrust_s)
        recent = {each: (at, number) for each, (at, number) in self._failed_at.items() if at > since}
        self._failure_count += 1
        self._failed_at = recent | {address: (deadline(0), self._failure_count)}

    def _rank(self, address: Address) -> int:
        """Lower ranks first if any broker will do: 0 without a recent failure, then the oldest failure."""
        at, number = self._failed_at.get(address, (-math.inf, 0))
        return number if at > deadline(-self._distrust_s) else 0

    def _candidates(self) -> list[_Candidate]:
        """Where a broker may be: the known nodes, then the bootstrap addresses."""
        nodes = [_Candidate(node.node_id, Address(node.host, node.port)) for node in self._nodes.values()]
        known = {each.address for each in nodes}
        return nodes + [_Candidate(ANY, address) for address in self._bootstrap if address not in known]

    # --- connections ----------------------------------------------------------------------------------------

    async def connection(self, node_id: int, lane: str, until: float) -> Connection:
        """An open connection to the node, or to any broker. Raises ClientError."""
        connection = await self._connection(node_id, lane, until)
        if node_id == ANY:
            self._last = connection.address
            for tries in TRYING.get():
                tries.asks(connection.address)
        return connection

    async def _connection(self, node_id: int, lane: str, until: float) -> Connection:
        if self._closed:
            raise Closed("the client is closed")
        there = self._open_to_any(lane) if node_id == ANY else self._open(node_id, lane)
        if there is not None:
            if there.in_flight or deadline(0) - there.used_at < _QUIET_S:
                return there
            # A broker closes idle connections. That may have happened while the loop was busy: check first.
            for _ in range(_TURNS_TO_HEAR):
                await asyncio.sleep(0)
            if there.is_open:
                return there
        return await self._opened(node_id, lane, until)

    async def close(self) -> None:
        """Close all connections. Safe to call again; complete even if cancelled."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        connections = [lane.connection for lane in self._lanes.values() if lane.connection is not None]
        self._lanes = {}
        closing = [asyncio.ensure_future(connection.close()) for connection in connections]
        if self._meeting is not None:
            self._meeting.cancel()
            closing.append(self._meeting)
        try:
            if closing:
                await asyncio.wait(closing)
        finally:
            for connection in connections:
                connection.abort()
            for task in closing:
                task.cancel()

    def drop_nodes(self) -> None:
        """Forget all nodes, and drop all connections, also those to bootstrap addresses."""
        for lane in self._lanes.values():
            if lane.connection is not None:
                lane.connection.abandon("the cluster asked its clients to begin anew")
        self._nodes = {}

    def _open(self, node_id: int, lane: str) -> Connection | None:
        """The node's connection, if one is open at the node's current address."""
        found = self._lanes.get((node_id, lane))
        connection = None if found is None else found.connection
        if connection is None or not connection.is_open or connection.address != self.address_of(node_id):
            return None
        return connection

    def _open_to_any(self, lane: str) -> Connection | None:
        """An open connection with the fewest requests in flight, nodes first, among those that this caller's
        earlier tries did not use, or longest ago. Skips connections on which a request timed out, and those
        to a broker that failed later than another candidate: any broker will do. Among equals it is the one
        of the last time."""
        best = self._best_rank()
        tries = TRYING.get()
        nodes = (self._open(node_id, lane) for node_id in self._nodes)
        open_to_nodes = [each for each in nodes if each is not None and self._serves(each, best)]

        def preference(connection: Connection) -> tuple[int, int, bool]:
            address = connection.address
            asked = max((each.asked(address) for each in tries), default=-1)
            return asked, connection.in_flight, address != self._last

        if open_to_nodes:
            return min(open_to_nodes, key=preference)
        given = self._lanes.get((ANY, lane))
        there = None if given is None else given.connection
        return there if there is not None and self._serves(there, best) else None

    def _best_rank(self) -> int:
        return min((self._rank(each.address) for each in self._candidates()), default=0)

    def _serves(self, connection: Connection, best: int) -> bool:
        return connection.is_open and not connection.suspect and self._rank(connection.address) <= best

    def meet_another(self, asked: Collection[Address]) -> None:
        """Begin to open a connection to a node with another address, unless one is open, or all have just
        failed. If Metadata has not told the nodes yet, begin to ask for them, for the next call."""
        if self._closed or (self._meeting is not None and not self._meeting.done()):
            return
        if not self._nodes or self._cluster_id is None:  # others may be known from FindCoordinator
            self._find_nodes(deadline(self._settings.socket_connection_setup_timeout_max_ms / 1000))
        best = self._best_rank()
        others = []
        for each in self._candidates():
            if each.node_id == ANY or each.address in asked or self._rank(each.address) > best:
                continue
            there = self._open(each.node_id, "")
            if there is None:
                others.append(each)
            elif self._serves(there, best):
                return
        if others:
            random.shuffle(others)
            self._meeting = asyncio.create_task(self._meet(others), name="another broker")

    async def _meet(self, candidates: Sequence[_Candidate]) -> None:
        until = deadline(self._settings.socket_connection_setup_timeout_max_ms / 1000)
        with suppress(ClientError):  # then the caller goes on with who is there
            connection = await _first(partial(self._open_candidate, each, until) for each in candidates)
            self._keep(connection, "", for_any=False)

    async def _opened(self, node_id: int, lane: str, until: float) -> Connection:
        """Open a connection, or wait for one that another caller is opening."""
        slot = self._lanes.setdefault((node_id, lane), _Lane())
        try:
            async with asyncio.timeout_at(until):  # the caller that opens it may have more time
                await slot.opening.acquire()
        except TimeoutError:
            raise self._too_late(node_id, slot, "no answer in time") from None
        try:
            there = self._open_to_any(lane) if node_id == ANY else self._open(node_id, lane)
            if there is not None:
                return there
            if slot.connection is not None:
                slot.connection.abandon(f"another connection to {self.named(node_id)} took its place")
                slot.connection = None
            await self._until_it_may(node_id, slot, until)
            slot.again_at = deadline(backoff_s(0, self._settings.reconnect_backoff_ms))
            if node_id == ANY:
                connection = await self._open_any(until)
            else:
                connection = await self._open_node(node_id, until)
            slot.failure = None
        except ClientError as error:
            slot.failure = error
            raise
        finally:
            slot.opening.release()
        return self._keep(connection, lane, for_any=node_id == ANY)

    def _keep(self, connection: Connection, lane: str, *, for_any: bool) -> Connection:
        if self._closed:
            connection.abort()
            raise Closed("the client was closed while it connected")
        place = connection.node_id
        there = self._open(place, lane)
        if there is not None and there.suspect and for_any:
            # Requests to a particular node stay on one connection, whose end settles all that was sent: they
            # cannot overtake each other.
            place = ANY
        elif there is not None:  # two callers, one of which wanted any node, chose the same one
            connection.abort()
            return there
        slot = self._lanes.setdefault((place, lane), _Lane())
        if slot.connection is not None:
            slot.connection.abandon(f"another connection to {self.named(place)} took its place")
        slot.connection = connection
        if self._sweep is None:
            self._sweep_later()
        return connection

    async def _until_it_may(self, node_id: int, slot: _Lane, until: float) -> None:
        """Wait until the reconnect backoff has passed."""
        failures = self._failures.get(node_id)
        again_at = max(slot.again_at, 0.0 if failures is None else failures.again_at)
        wait_s = again_at - deadline(0)
        if wait_s > 0:
            await asyncio.sleep(min(wait_s, max(0.0, until - deadline(0))))
        if again_at >= until or deadline(0) >= until:  # the loop may wake us a millisecond early
            why = "no time left to try again" if wait_s > 0 else "no answer in time"
            raise self._too_late(node_id, slot, why)

    def _too_late(self, node_id: int, slot: _Lane, why: str) -> Unreachable:
        """The error for a caller with no time left for its own attempt; it names the last failure."""
        if slot.failure is None:
            return Unreachable(f"no connection to {self.named(node_id)}: {why}")
        return Unreachable(f"{slot.failure}; {why}")

    async def _open_node(self, node_id: int, until: float) -> Connection:
        address = self.address_of(node_id)
        if address is None:
            raise Unreachable(f"broker {node_id} is not in the cluster at the moment")
        try:
            return await self._open_candidate(_Candidate(node_id, address), until)
        except WrongBroker:
            raise
        except (Unreachable, ConnectionLost, RequestTimedOut) as error:
            # Whatever ended it, nothing was sent yet. For an address that the user did not give, say where
            # it came from.
            origin = "" if address in self._bootstrap else f" (broker {node_id} advertises this address)"
            raise Unreachable(f"{error}{origin}") from error

    async def _open_any(self, until: float) -> Connection:
        """A connection to the first broker that responds: known nodes are tried first, then bootstrap
        addresses, then those that have just failed. A silent one does not hold up the others."""
        candidates = self._candidates()
        random.shuffle(candidates)
        candidates.sort(key=lambda each: (self._rank(each.address), each.node_id == ANY))
        try:
            connection = await _first(partial(self._open_candidate, each, until) for each in candidates)
        except ClientError as error:
            if not self._cut_off and (self._patient or self.reached):
                self._cut_off = True
                log.warning("no broker can be reached: %s", error)
            raise
        if self._cut_off:
            self._cut_off = False
            log.info("brokers can be reached again, at %s", connection.address)
        return connection

    async def _open_candidate(self, candidate: _Candidate, until: float) -> Connection:
        node_id, address = candidate
        failures = self._failures.get(node_id)
        settings = self._settings
        setup_ms = min(
            settings.socket_connection_setup_timeout_max_ms,
            settings.socket_connection_setup_timeout_ms * 2 ** min(failures.count if failures else 0, 10),
        )
        expected = None
        if node_id != ANY and self._cluster_id is not None:
            expected = BrokerIdentity(self._cluster_id, node_id)
        began = deadline(0)
        try:
            connection = await Connection.open(
                address,
                self._client_id,
                min(until, deadline(setup_ms / 1000)),
                expected=expected,
                request_timeout_s=self._request_timeout_s,
                security=self._security,
            )
        except asyncio.CancelledError:
            if deadline(0) - began >= _STAGGER_S:
                self._distrust(address)  # another was faster
            raise
        except ClientError as error:
            self.failed(node_id, address)
            if isinstance(error, WrongBroker):
                self._on_wrong_broker(node_id)
            raise
        connection.node_id = node_id
        connection.on_failed = self._distrust
        self._failures.pop(node_id, None)
        return connection

    def named(self, node_id: int) -> str:
        """The node's name in messages: its address, if known."""
        if node_id == ANY:
            return ", ".join(str(address) for address in self._bootstrap)
        address = self.address_of(node_id)
        return f"broker {node_id}" if address is None else str(address)

    # --- idle -----------------------------------------------------------------------------------------------

    def _sweep_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweep = loop.call_later(self._settings.connections_max_idle_ms / 10_000, self._close_idle)

    def _close_idle(self) -> None:
        """Close connections idle for connections.max.idle.ms, before brokers do."""
        now = deadline(0)
        for lane in self._lanes.values():
            connection = lane.connection
            if connection is None or connection.in_flight:
                continue
            if (now - connection.used_at) * 1000 >= self._settings.connections_max_idle_ms:
                connection.abandon(f"the connection to {connection.address} was not used for long")
        self._sweep_later()


async def _first(openings: Iterable[Callable[[], Coroutine[Any, Any, Connection]]]) -> Connection:
    """The first connection to succeed. The next attempt starts when one has failed or has been silent for a
    while; surplus connections are closed."""
    waiting = list(reversed(list(openings)))
    pending: set[asyncio.Task[Connection]] = set()
    failures: list[ClientError] = []
    try:
        while waiting or pending:
            if waiting:
                pending.add(asyncio.ensure_future(waiting.pop()()))
            done, _ = await asyncio.wait(
                pending, timeout=_STAGGER_S if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                pending.discard(task)
                try:
                    connection = task.result()
                except AuthenticationFailed:
                    raise  # the others would refuse it too, and some count refusals
                except ClientError as error:
                    failures.append(error)
                else:
                    pending |= done - {task}
                    return connection
    finally:
        for task in pending:
            task.add_done_callback(_drop)
            task.cancel()
    kind = NotKafka if failures and all(isinstance(each, NotKafka) for each in failures) else Unreachable
    raise kind("; ".join(map(str, failures)) or "there is no address to connect to")


def _drop(task: asyncio.Task[Connection]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().abort()


def backoff_s(tries: int, base_ms: int = 100, max_ms: int = 1_000) -> float:
    """How long to wait before the next attempt, as in Kafka's clients: doubling, ±20 % (KIP-580)."""
    return min(max_ms, base_ms * 2.0 ** min(tries, 20)) / 1000 * random.uniform(0.8, 1.2)
