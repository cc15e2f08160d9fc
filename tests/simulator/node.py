"""A broker in the simulation: the product's `Broker` over a simulated store, listener, clock and executor."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any

from muster.coordinator.base.clock import LoopClock
from muster.coordinator.base.endpoints import Endpoint, Listening
from muster.coordinator.cluster.placement import shard_of
from muster.coordinator.config import Settings
from muster.coordinator.group.shard import Shard
from muster.coordinator.runtime.shard_host import HostState, ShardHost
from muster.coordinator.server.broker import Broker, Shared
from muster.coordinator.server.listener import Listener
from muster.coordinator.storage.store import Lease, LeaseKind
from muster.coordinator.topics.logs import Logs
from muster.coordinator.transactions.shard import TransactionShard
from tests.simulator.network import Address, Network
from tests.simulator.store import Durable, SimulatedStore, Weather, run

EPOCH_MS = 1_700_000_000_000
"""The wall time at which every run begins."""
PORT = 9092
_SKEWS_MS = (0, 0, 0, 300, -300, 60_000, -60_000, 7_200_000, -7_200_000)


class InlineExecutor(Executor):
    """Runs each call at once on the loop: in virtual time nothing blocks."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class FileThreads(Executor):
    """A broker's file threads in virtual time: a call takes effect after a moment, and its result comes back
    after another. Some calls that a broker had made when it died still take effect."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rng: random.Random) -> None:
        self._loop = loop
        self._rng = rng
        self._dead = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._loop.call_later(self._delay_s(), self._run, future, partial(fn, *args, **kwargs))
        return future

    def crash(self) -> None:
        self._dead = True

    def _delay_s(self) -> float:
        return self._rng.uniform(0.0001, 0.002) * self._rng.choice((1, 1, 1, 20))

    def _run(self, future: Future[Any], call: Callable[[], Any]) -> None:
        if future.cancelled() or (self._dead and self._rng.random() < 0.5):
            return
        try:
            tell = partial(future.set_result, call())
        except Exception as error:
            tell = partial(future.set_exception, error)
        self._loop.call_later(self._delay_s(), self._finish, future, tell)

    def _finish(self, future: Future[Any], tell: Callable[[], None]) -> None:
        if not self._dead and not future.cancelled():
            tell()


class _Listener(Listener):
    """Listens on the simulated network."""

    def __init__(
        self, network: Network, host: str, port: int, connect: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        super().__init__(host, port, connect)
        self._network = network

    async def bind(self) -> int:
        return self.port

    async def accept(self) -> None:
        self._network.listen((self.host, self.port), self.connect)

    async def close(self) -> None:
        self._network.unlisten((self.host, self.port))


class Node:
    """One node of the cluster: a broker that can die and be restarted."""

    def __init__(
        self,
        node_id: int,
        *,
        loop: asyncio.AbstractEventLoop,
        rng: random.Random,
        durable: Durable,
        weather: Weather,
        network: Network,
        settings: Settings,
        logs: Logs | None,
    ) -> None:
        """`logs` are those of all brokers, if clients write to topics."""
        self.node_id = node_id
        self.address: Address = (f"10.1.0.{node_id}", PORT)  # a host name would have to be resolved
        self.broker: Broker | None = None
        self.started = False
        self.paused = False
        self.kills = 0
        self.skew_ms = 0
        """How far its wall clock is ahead; drawn anew at each start."""
        self.store: SimulatedStore | None = None
        self._loop = loop
        self._rng = rng
        self._durable = durable
        self._weather = weather
        self._network = network
        self._settings = settings
        self._logs = logs
        self._file_threads: FileThreads | None = None
        self._stood_still_s = 0.0
        self._paused_since_s = 0.0

    def __repr__(self) -> str:
        return f"<Node {self.node_id} {self._state}>"

    @property
    def _state(self) -> str:
        if self.broker is None:
            return "down"
        if not self.started:
            return "starting"
        return "paused" if self.paused else "up"

    @property
    def up(self) -> bool:
        return self.started and not self.paused

    def running_s(self) -> float:
        """Virtual time minus the time this node was paused; its deadlines are counted in it."""
        paused_s = self._loop.time() - self._paused_since_s if self.paused else 0
        return self._loop.time() - self._stood_still_s - paused_s

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Returns when the broker accepts connections. Raises StoreError."""
        store = SimulatedStore(self._loop, self._rng, self._durable, self._weather)
        self.skew_ms = self._rng.choice(_SKEWS_MS)
        start_ms = EPOCH_MS + int(self._loop.time() * 1000) + self.skew_ms
        clock = LoopClock(self._loop, start_ms=start_ms)
        if self._logs is not None:
            self._file_threads = FileThreads(self._loop, random.Random(self._rng.getrandbits(64)))
        shared = Shared(
            settings=self._settings,
            store=store,
            counts=run(self._durable.memory.counts()),
            logs=self._logs or Logs.in_memory(),
            clock=clock,
            lease_clock=clock,
            file_threads=self._file_threads or InlineExecutor(),
            upkeep_thread=InlineExecutor(),
            validation_thread=InlineExecutor(),
            connections_max=1_000_000,
            listen=partial(_Listener, self._network),
        )
        broker = Broker(shared, self.node_id, [Listening(Endpoint("", *self.address), None)])
        self.broker, self.store, self.paused = broker, store, False
        node = await broker.bind()
        await broker.register(node)
        await broker.start(node)
        self.started = True

    async def kill(self) -> None:
        broker, store = self.broker, self.store
        if broker is None or store is None:
            return
        self._end_pause()
        self.started = False
        self.kills += 1
        self.broker = self.store = None
        store.crash()
        if self._file_threads is not None:
            self._file_threads.crash()
        await broker.kill()

    async def stop(self) -> None:
        """Shut down cleanly."""
        broker, self.broker, self.started = self.broker, None, False
        if broker is None:
            return
        if self.paused:
            self._end_pause()
            broker.resume()
        await broker.stop()
        self.store = None

    def pause(self) -> None:
        if self.broker is not None and not self.paused:
            self.paused = True
            self._paused_since_s = self._loop.time()
            self.broker.pause()

    def resume(self) -> None:
        if self.broker is not None and self.paused:
            self._end_pause()
            self.broker.resume()

    def _end_pause(self) -> None:
        if self.paused:
            if self.store is not None:
                self.store.resumed(self._paused_since_s)
            self._stood_still_s += self._loop.time() - self._paused_since_s
            self.paused = False

    # --- what the checkers look into --------------------------------------------------------------

    def _hosts(self) -> Iterator[ShardHost[Any]]:
        if self.broker is not None:
            yield from self.broker.runtime.hosts()
            yield from self.broker.transaction_runtime.hosts()

    def at_rest(self) -> bool:
        """Whether no write of its shards is in flight to the store, in the broker or beyond."""
        hosts = self._hosts()
        return all(host._handed_over == host._durable for host in hosts if host.state is HostState.ACTIVE)

    def loads(self, group_id: str) -> bool:
        """Whether it is loading the group's shard."""
        hosts = self.broker.runtime.hosts() if self.broker is not None else ()
        shards = run(self._durable.memory.counts()).leases[LeaseKind.GROUP]
        lease = Lease(LeaseKind.GROUP, shard_of(group_id, shards))
        return any(host.lease == lease and host.state is HostState.LOADING for host in hosts)

    def live_shards(self) -> dict[Lease, Shard | TransactionShard]:
        """The shards this broker is serving and certain that nobody else serves."""
        broker = self.broker
        if broker is None or self.paused:
            return {}
        return {
            host.lease: host.machine
            for host in self._hosts()
            if host.state is HostState.ACTIVE
            and host.machine is not None
            and broker.membership.serving(host.lease)
        }
