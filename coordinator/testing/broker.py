"""`Broker` and `Cluster`: brokers with their own event loop in their own thread; every call is
thread-safe."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

from muster.coordinator.config import Settings
from muster.coordinator.group.effects import RequestContext
from muster.coordinator.group.shard import Shard
from muster.coordinator.runtime.clock import Clock
from muster.coordinator.server.broker import Broker as Node
from muster.coordinator.server.brokers import Brokers
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.group_admin import DescribeGroupsResponse

T = TypeVar("T")

_CALL_S: Final = 30.0
_LOOK_AGAIN_S: Final = 0.01
_CONTEXT: Final = RequestContext(
    api_version=5, client_id="muster-testing", client_host="/127.0.0.1", connection_id=0
)


class GroupFacts(NamedTuple):
    """A group as it stands. `state` is Kafka's name: Empty, PreparingRebalance, CompletingRebalance, Stable,
    Dead (also for a group that does not exist)."""

    state: str
    members: int


class Cluster:
    """Several brokers in one process, sharing a store and splitting shards and partitions by lease.

        with Cluster(3) as cluster:
            producer = Producer({"bootstrap.servers": cluster.bootstrap})
            cluster.kill(cluster.coordinator_of("orders"))

    `data` names a data directory; without one everything lives in memory, or in the database that `store`
    names. `settings` are fields of `muster.coordinator.config.Settings`: Kafka's names with underscores. Two
    defaults are for tests: the initial rebalance delay is 0 ms instead of 3 s, and leases last a second, so
    that a killed broker is missed soon. (With kafka-python 3.0 give `group_initial_rebalance_delay_ms=200`:
    it sometimes loses its topic's metadata when its group is complete within 100 ms, and then consumes
    nothing for minutes.)
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        data: str | Path | None = None,
        port: int = 0,
        clock: Clock | None = None,
        **settings: Any,
    ) -> None:
        defaults: dict[str, Any] = {
            "group_initial_rebalance_delay_ms": 0,
            "lease_term_ms": 1_000,
            "ephemeral": data is None and settings.get("store") is None,
        }
        if data is not None:
            defaults["data"] = str(data)
        self.settings = Settings(**{**defaults, "brokers": brokers, "port": port, **settings})
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._brokers: Brokers | None = None

    # --- life -----------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start and return once every broker accepts connections and has loaded its shards."""
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), name="muster", daemon=True)
        self._thread.start()
        started.wait()
        try:
            self._call(self._start())
        except BaseException:
            self._end()
            raise
        return self

    def close(self) -> None:
        """Stop every broker that still runs, and the thread. Harmless when repeated."""
        if self._thread is not None:
            try:
                if self._brokers is not None:
                    self._call(self._brokers.stop())
            finally:
                self._end()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, started: threading.Event) -> None:
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            self._loop.call_soon(started.set)
            self._loop.run_forever()

    async def _start(self) -> None:
        self._brokers = Brokers(self.settings, self._clock)
        await self._brokers.start()
        for node in self._brokers.brokers:
            await node.runtime.loaded()

    def _end(self) -> None:
        assert self._loop is not None
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._thread = self._brokers = None

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the brokers' loop and wait for it."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_CALL_S)

    # --- where ----------------------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """`host:port` of every broker, as `bootstrap.servers` takes it."""
        return self._started.bootstrap

    @property
    def ports(self) -> list[int]:
        """The port of each broker, by index."""
        return [node.port for node in self._started.brokers]

    @property
    def _started(self) -> Brokers:
        if self._brokers is None:
            raise RuntimeError("not started: use `with`, or call start()")
        return self._brokers

    # --- faults ---------------------------------------------------------------------------------------------

    def stop(self, index: int) -> None:
        """Stop one broker cleanly: it hands over its shards and leaves."""
        self._call(self._started.stop_one(index))

    def kill(self, index: int) -> None:
        """Let one broker die: its connections are cut, its leases are not released and run out."""
        self._call(self._started.kill_one(index))

    def restart(self, index: int) -> None:
        """Start a stopped or killed broker again, on its port."""
        self._call(self._started.start_one(index))

    def pause(self, index: int) -> None:
        """Freeze one broker, as SIGSTOP would: its timers stand still and nothing is read or answered."""
        self._call(_in_loop(self._started.brokers[index].pause))

    def resume(self, index: int) -> None:
        """Let a paused broker go on from where it stood; its leases may be gone by now."""
        self._call(_in_loop(self._started.brokers[index].resume))

    # --- topics and groups ----------------------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        """Create a topic, known to every broker on return. Raises KafkaError."""
        self._call(self._create_topic(name, partitions, configs))

    async def _create_topic(self, name: str, partitions: int, configs: Mapping[str, str] | None) -> None:
        nodes = self._started.running
        await nodes[0].catalogue.create(name, partitions=partitions, configs=configs)
        for node in nodes:
            await node.catalogue.refresh()

    def group(self, group_id: str) -> GroupFacts:
        """The group as its coordinator has it. Raises KafkaError while no broker coordinates it."""
        return self._call(self._group(group_id))

    def group_state(self, group_id: str) -> str:
        """Kafka's name of the group's state; Dead for one that does not exist."""
        return self.group(group_id).state

    def wait_for_group(
        self, group_id: str, state: str = "Stable", *, members: int | None = None, timeout_s: float = 30.0
    ) -> GroupFacts:
        """Return once the group is in `state`, with that many members if given. Raises TimeoutError, saying
        how it is."""
        return self._call(self._wait_for_group(group_id, state, members, timeout_s))

    async def _wait_for_group(
        self, group_id: str, state: str, members: int | None, timeout_s: float
    ) -> GroupFacts:
        deadline = time.monotonic() + timeout_s
        while True:
            seen: object
            try:
                facts = await self._group(group_id)
            except KafkaError as error:
                seen = error
            else:
                if facts.state == state and members in (None, facts.members):
                    return facts
                seen = facts
            if time.monotonic() >= deadline:
                wanted = state if members is None else f"{state} with {members} members"
                raise TimeoutError(f"group {group_id} is not {wanted} after {timeout_s} s, but {seen}")
            await asyncio.sleep(_LOOK_AGAIN_S)

    def coordinator_of(self, group_id: str) -> int | None:
        """Index of the broker that holds the group's shard now; None while nobody does."""
        return self._call(self._coordinator_of(group_id))

    async def _coordinator_of(self, group_id: str) -> int | None:
        for node in self._started.running:
            if node.membership.serving(node.topology.group_lease(group_id)):
                return self._started.brokers.index(node)
        return None

    async def _group(self, group_id: str) -> GroupFacts:
        index = await self._coordinator_of(group_id)
        if index is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"nobody coordinates {group_id} right now")
        node: Node = self._started.brokers[index]
        described: DescribeGroupsResponse.DescribedGroup = await node.runtime.call(
            group_id, Shard.describe, group_id, _CONTEXT
        )
        return GroupFacts(str(described.group_state), len(described.members))


class Broker(Cluster):
    """One broker.

    with Broker() as broker:
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "orders"})
    """

    def __init__(
        self, *, data: str | Path | None = None, port: int = 0, clock: Clock | None = None, **settings: Any
    ) -> None:
        super().__init__(1, data=data, port=port, clock=clock, **settings)

    @property
    def port(self) -> int:
        """The port listened on."""
        return self.ports[0]


async def _in_loop(action: Any) -> None:
    action()
