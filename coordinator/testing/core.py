"""The core shared by the blocking and async APIs of a `Broker` or `Cluster`: the brokers, their thread, and
the facts read there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Final

from muster.coordinator.base.clock import Clock
from muster.coordinator.base.step import RequestContext
from muster.coordinator.cluster.coordinators import GROUPS, TRANSACTIONS, CoordinatorKind
from muster.coordinator.config import Settings
from muster.coordinator.group.shard import Shard
from muster.coordinator.journal.entries import Entry
from muster.coordinator.runtime.machine import Operation
from muster.coordinator.runtime.ring import together
from muster.coordinator.server.broker import Broker as Node
from muster.coordinator.server.brokers import Brokers
from muster.coordinator.server.test_mode.faults import NotAsThingsAre
from muster.coordinator.storage.store import LeaseKind
from muster.coordinator.testing.security import Security
from muster.coordinator.testing.thread import CALL_S, LoopThread, closed, result_of
from muster.coordinator.testing.waiting import TIMEOUT_S
from muster.coordinator.topics.catalogue import Topic
from muster.protocol.errors import ErrorCode, KafkaError

_CONTEXT: Final = RequestContext(
    api_version=5, client_id="muster-testing", client_host="/127.0.0.1", connection_id=0
)


_LOOK_AGAIN_S: Final = 0.005


class Core:
    """The brokers of one process and their thread. All but `start`, `starting`, `close` and `thread` must
    be used on that thread."""

    def __init__(self, settings: Settings, clock: Clock | None, security: Security) -> None:
        self.settings = settings
        self.security = security
        self.thread = LoopThread("muster")
        self._clock = clock
        self._brokers: Brokers | None = None
        self._stopped = False
        self._begins = threading.Lock()
        self._starting: Future[None] | None = None
        self._waiting = 0  # callers that wait for it
        self._in_use = False  # some caller has been told that everything has started
        self._news: asyncio.Future[None] | None = None
        self.snapshots = asyncio.Lock()
        """Held while a snapshot is taken or restored."""

    # --- life, from any other thread ------------------------------------------------------------------------

    def start(self) -> None:
        """Returns when every broker accepts connections and has loaded its shards. Raises what
        `Brokers.start` raises, leaving nothing behind."""
        with self.starting() as starting:
            result_of(starting, take_back=False)

    @contextmanager
    def starting(self) -> Iterator[Future[None]]:
        """Begin to start, or join the start that is under way; the block waits for it, and does not cancel
        it. If the block raises, the start is taken back, unless others wait for it or use what it started.
        Raises as `LoopThread.start`."""
        with self._begins:
            if not self.thread.running:
                self._in_use = False
            self.thread.start()
            if self._starting is None or self._starting.done():
                self._starting = self.thread.submit(self._start, CALL_S)
            self._waiting += 1
        try:
            yield self._starting
        except BaseException:
            with self._begins:
                self._waiting -= 1
                if not self._waiting and not self._in_use:
                    # Everything may have started at the very moment of the interruption.
                    self.thread.end(self.stopped)
            raise
        with self._begins:
            self._waiting -= 1
            self._in_use = True

    def close(self) -> None:
        """Stop all running brokers and the thread. Idempotent; waits for a close that is under way."""
        __tracebackhide__ = True
        self.thread.end(self.stopped)

    # --- life, on the thread --------------------------------------------------------------------------------

    async def _start(self) -> None:
        if self._brokers is not None:
            return
        self._news, self.snapshots, self._stopped = None, asyncio.Lock(), False  # of the previous loop
        brokers = Brokers(self.settings, self._clock, port_named="port")
        await brokers.start()
        try:
            await all_loaded(brokers.brokers)
            await self.security.let_in(brokers.brokers[0])
        except BaseException:
            await brokers.stop()
            raise
        brokers.watch(self._heard)
        self._brokers = brokers

    async def stopped(self) -> None:
        brokers, self._brokers = self._brokers, None
        if brokers is None:
            return
        self._stopped = True
        if self.settings.ephemeral and len(brokers.brokers) > 1:
            # Skip the handover: nobody will use these shards again.
            for index in range(len(brokers.brokers)):
                await brokers.kill_one(index)
        await brokers.stop()

    @property
    def brokers(self) -> Brokers:
        __tracebackhide__ = True
        if self._brokers is None:
            raise closed() if self._stopped else self.thread.not_running()
        return self._brokers

    @property
    def started_up(self) -> bool:
        """Whether the brokers are started; never raises."""
        return self._brokers is not None

    @property
    def closed(self) -> bool:
        """Whether the brokers have been stopped, or are being stopped; never raises."""
        return self._stopped or self.thread.ended

    @property
    def running(self) -> list[Node]:
        """The running brokers, at least one. Raises KafkaError if all were stopped or killed."""
        running = self.brokers.running
        if not running:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "no broker runs: all were stopped or killed")
        return running

    @property
    def awake(self) -> list[Node]:
        """The running brokers that are not paused, at least one. Raises FaultError if all are paused, and
        KafkaError as `running`."""
        running = self.running
        awake = [node for node in running if not node.paused]
        if not awake:
            raise self._paused(running[0])
        return awake

    def _paused(self, node: Node) -> NotAsThingsAre:
        return NotAsThingsAre(f"broker {self.brokers.brokers.index(node)} is paused: resume it first")

    # --- news -----------------------------------------------------------------------------------------------

    def _heard(self, _: Sequence[Entry]) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def news(self) -> asyncio.Future[None]:
        """A future that completes at the next journal entry, shared by all waiters."""
        if self._news is None or self._news.done():
            self._news = asyncio.get_running_loop().create_future()
        return self._news

    # --- what tests do to the brokers -----------------------------------------------------------------------

    async def no_snapshot_under_way(self) -> None:
        """Wait until no snapshot is taken or restored, which needs all brokers as they are."""
        async with self.snapshots:
            pass

    async def undisturbed(self) -> None:
        """Undo what a test has put in force and no snapshot has: faults, held markers and loads, moves.
        Raises NotAsThingsAre if a broker is stopped, killed or paused, and KafkaError if all are."""
        await self.brokers.settled()
        if len(self.awake) < len(self.brokers.brokers):
            raise NotAsThingsAre("a broker is stopped, killed or paused")
        self.brokers.faults.clear()
        self.brokers.shard_faults.clear()

    # --- coordinators ---------------------------------------------------------------------------------------

    def coordinator(self, key: str, kind: CoordinatorKind = GROUPS) -> Node | None:
        """The broker that holds the shard of a group, or of a key of another kind."""
        for node in self.brokers.running:
            if node.membership.serving(kind.lease_of(key, node.topology.counts)):
                return node
        return None

    def shards(self) -> list[Shard]:
        """The shards of groups that running brokers serve and have loaded."""
        return [
            host.machine
            for node in self.brokers.running
            for host in node.runtime.hosts()
            if node.runtime.serving(host.lease) and host.machine is not None
        ]

    async def ask(self, group_id: str, operation: Operation, request: Any) -> Any:
        """Send a request to the group's shard as if from a client. Raises KafkaError, also if the group has
        no coordinator right now."""
        node = self.coordinator(group_id)
        if node is None:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"group {group_id} has no coordinator right now"
            )
        return await node.runtime.call(group_id, operation, request, _CONTEXT)

    async def ask_transaction(self, transactional_id: str, operation: Operation, request: Any) -> Any:
        """Likewise, to the shard of a transactional id."""
        node = self.coordinator(transactional_id, TRANSACTIONS)
        if node is None:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"transactional id {transactional_id} has no coordinator right now",
            )
        return await node.transaction_runtime.call(transactional_id, operation, request, _CONTEXT)

    async def ask_transaction_shards(self, operation: Operation, request: Any) -> list[Any]:
        """The answers of all transaction shards. Raises KafkaError while any has no coordinator."""
        runtimes = [node.transaction_runtime for node in self.running]
        found = [await each.call_shards(operation, request, _CONTEXT) for each in runtimes]
        answers = [answer for of_node in found for answer in of_node]
        if len(answers) < self.brokers.shared.counts.leases[LeaseKind.TRANSACTION]:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, "some transactional ids have no coordinator right now"
            )
        return answers

    def entries(self, group_id: str) -> list[Entry]:
        """The group's entries in the journals of all brokers, by time."""
        return together([node.journal.of(group_id) for node in self.brokers.brokers])

    # --- topics ---------------------------------------------------------------------------------------------

    def topic(self, name: str) -> Topic:
        """Raises KafkaError: UNKNOWN_TOPIC_OR_PARTITION, BROKER_NOT_AVAILABLE."""
        return self._informed.catalogue.named(name)

    def find_topic(self, name: str) -> Topic | None:
        """The topic of that name, if any."""
        return self._informed.catalogue.by_name(name)

    @property
    def _informed(self) -> Node:
        """A running broker that learns of changes, as a paused one does not, unless all are paused."""
        running = self.running
        return next((node for node in running if not node.paused), running[0])

    def leader(self, topic: Topic, partition: int) -> Node:
        """The partition's leader. Raises KafkaError if there is none right now, or no such partition."""
        if not 0 <= partition < topic.partitions:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic.name} has no partition {partition}"
            )
        for node in self.brokers.running:
            if node.partitions.leader_epoch(topic, partition) is not None:
                return node
        raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic.name}-{partition} has no leader right now")

    async def next_leader(self, topic: Topic, partition: int, *, awake: bool = False) -> Node:
        """The partition's leader; waits up to TIMEOUT_S for one if there is none, or if it has to be `awake`
        and is paused. Raises KafkaError, and FaultError if it stays paused, at once if all brokers are.

        Leases of a `Cluster` last a second, so a stall of the machine may cost a broker its partitions.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + TIMEOUT_S
        while True:
            try:
                leader = self.leader(topic, partition)
            except KafkaError as error:
                if error.code is not ErrorCode.LEADER_NOT_AVAILABLE or loop.time() >= until:
                    raise
            else:
                if not awake or leader in self.awake:
                    return leader
                if loop.time() >= until:
                    raise self._paused(leader)
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def offsets(self, topic: Topic, partition: int) -> tuple[int, int]:
        """Start and end of a partition's log. Raises KafkaError."""
        return await self.leader(topic, partition).partitions.of(topic).offsets(topic, partition)


async def all_loaded(nodes: Sequence[Node]) -> None:
    """Wait, for at most TIMEOUT_S, until the brokers have loaded and announced everything they claimed: data
    partitions and coordinator shards."""
    for node in nodes:
        await node.membership.until(lambda node=node: not node.membership.unannounced(), TIMEOUT_S)  # type: ignore[misc]
        await node.runtime.loaded()
        await node.transaction_runtime.loaded()
