"""`Broker` and `Cluster`: brokers with their own event loop in their own thread; every call is
thread-safe."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from concurrent.futures import wait
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from muster.coordinator.base.clock import Clock as Time
from muster.coordinator.config import Settings
from muster.coordinator.testing.clock import AsyncClock, Clock
from muster.coordinator.testing.core import Core
from muster.coordinator.testing.faces import Async, Blocking, Calls, both, finished, waits
from muster.coordinator.testing.faults import AsyncFaults, Faults
from muster.coordinator.testing.groups import AsyncGroup, Group, GroupFacts, reached
from muster.coordinator.testing.snapshot import Snapshot, put_back, taken
from muster.coordinator.testing.thread import CALL_S
from muster.coordinator.testing.timeline import Timeline
from muster.coordinator.testing.topics import AsyncTopic, Record, Sent, Topic, create, read, write
from muster.coordinator.testing.traces import told

_LEASE_MS: Final = 1_000
_LEASE_ALONE_MS: Final = 30_000


class ClusterCalls(Calls):
    """What can be asked of brokers, whichever face they have."""

    __slots__ = ()

    def __repr__(self) -> str:
        core = self._core
        where = self.bootstrap if core.started_up else "closed" if core.thread.ended else "not started"
        return f"<{type(self).__name__} {where}>"

    # --- where, the same on both faces ----------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        """What the brokers were started with."""
        return self._core.settings

    @property
    def bootstrap(self) -> str:
        """`host:port` of every broker, as `bootstrap.servers` takes it."""
        return self._core.brokers.bootstrap

    @property
    def ports(self) -> list[int]:
        """The port of each broker, by index."""
        return [node.port for node in self._core.brokers.brokers]

    def coordinator_of(self, group_id: str) -> int | None:
        """Index of the broker that holds the group's shard now; None while nobody does."""

        async def index() -> int | None:
            node = self._core.coordinator(group_id)
            return None if node is None else self._core.brokers.brokers.index(node)

        return self._look(index)

    def leader_of(self, topic: str, partition: int = 0) -> int:
        """Index of the broker that leads the partition now. Raises KafkaError while nobody does."""

        async def index() -> int:
            node = self._core.leader(self._core.topic(topic), partition)
            return self._core.brokers.brokers.index(node)

        return self._look(index)

    def group_state(self, group_id: str) -> str:
        """Kafka's name of the group's state; Dead for one that does not exist."""
        return Group(self._core, group_id).state

    def groups(self) -> list[str]:
        """The groups there are, by name."""

        async def known() -> list[str]:
            hosts = [host for node in self._core.brokers.running for host in node.runtime.hosts()]
            return sorted(
                group_id for host in hosts if host.machine is not None for group_id in host.machine.groups
            )

        return self._look(known)

    def stories(self) -> dict[str, list[str]]:
        """What the journals have of every group, a line for each entry."""

        async def known() -> dict[str, Timeline]:
            nodes = self._core.brokers.brokers
            groups = sorted({group_id for node in nodes for group_id in node.journal.groups()})
            return {group_id: Timeline(self._core.entries(group_id)) for group_id in groups}

        return {group_id: str(timeline).splitlines() for group_id, timeline in self._look(known).items()}

    # --- topics and records ---------------------------------------------------------------------------------

    @both
    async def create_topic(
        self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic, known to every broker on return. Raises KafkaError, and TypeError for what is no
        name, number or config."""
        await create(self._core, name, partitions, configs)

    @both
    async def produce(self, topic: str, records: Iterable[Sent], *, partition: int = 0) -> int:
        """Write records to one partition of a topic, as one batch; the offset of the first. Raises
        KafkaError, and ValueError for no records."""
        return await write(self._core, topic, records, partition)

    @both
    async def records(self, topic: str) -> list[Record]:
        """All records of a topic, by partition and offset. Raises KafkaError."""
        return await read(self._core, topic)

    # --- groups ---------------------------------------------------------------------------------------------

    @waits
    async def wait_for_group(
        self, group_id: str, state: str = "Stable", *, members: int | None = None, timeout_s: float = 30.0
    ) -> GroupFacts:
        """Wait until the group is in `state`, with that many members if given. Raises WaitFailed. See `group`
        for more."""
        return await reached(AsyncGroup(self._core, group_id), state, members, timeout_s)

    # --- faults ---------------------------------------------------------------------------------------------
    # Brokers are named by their index; each call raises LookupError for one that there is not, and FaultError
    # for one that was stopped or killed and would have to run.

    def _checked(self, index: int, *, runs: bool = True) -> int:
        count = len(self._core.brokers.brokers)
        if index not in range(count):
            there = "only that of index 0" if count == 1 else f"those of index 0 to {count - 1}"
            raise LookupError(f"there is no broker of index {index!r}, {there}")
        self._core.brokers.check_runs(index, f"the broker of index {index}", runs=runs)
        return index

    @both
    async def stop(self, index: int) -> None:
        """Stop one broker cleanly: it hands over its shards and leaves."""
        await self._core.brokers.stop_one(self._checked(index))

    @both
    async def kill(self, index: int) -> None:
        """Let one broker die: its connections are cut, its leases are not released and run out."""
        await self._core.brokers.kill_one(self._checked(index))

    @both
    async def restart(self, index: int) -> None:
        """Start a stopped or killed broker again, on its port. Raises FaultError for one that runs."""
        await self._core.brokers.start_one(self._checked(index, runs=False))

    @both
    async def pause(self, index: int) -> None:
        """Freeze one broker, as SIGSTOP would: its timers stand still and nothing is read or answered."""
        self._core.brokers.brokers[self._checked(index)].pause()

    @both
    async def resume(self, index: int) -> None:
        """Let a paused broker go on from where it stood; its leases may be gone by now."""
        self._core.brokers.brokers[self._checked(index)].resume()

    @both
    async def move(self, group_id: str, to: int) -> None:
        """Have the broker of index `to` coordinate the group, with all of its shard, and keep it until
        `unpin`; done when every broker sends clients there. Raises FaultError when it cannot take it."""
        await self._core.brokers.move_coordinator(group_id, self._checked(to))

    @both
    async def unpin(self, group_id: str) -> bool:
        """Take `move` back; whether there was anything to take back."""
        return self._core.brokers.unpin(group_id)

    @both
    async def hold(self, group_id: str, *, reload: bool = True) -> None:
        """Have the group's coordinator load its shard anew, and hold that open until `release`, for a minute
        at most: clients are told COORDINATOR_LOAD_IN_PROGRESS. Without `reload` it is held open when it is
        loaded next, after a `kill`, say."""
        await self._core.brokers.hold_load(group=group_id, reload=reload)

    @both
    async def release(self, group_id: str) -> bool:
        """Take `hold` back; whether there was anything to take back."""
        return self._core.brokers.release_load(group=group_id)

    # --- state ----------------------------------------------------------------------------------------------

    @both
    async def snapshot(self) -> Snapshot:
        """All that clients can see, as it is now: topics with their records, offsets, groups, configs. Only
        for brokers in memory: ValueError for others. See `restore`."""
        return await taken(self._core.brokers)

    @both
    async def restore(self, snapshot: Snapshot) -> None:
        """Put back what a snapshot of these brokers has, at the same address. Clients' connections are cut,
        and partitions get a new leader epoch, as after a failover.

        A group is again what it was: its members of then are members, with a full session; those who joined
        since are unknown and join anew. Take snapshots while nobody is in a group, unless that is what the
        test is about. The clock is not put back, nor are faults, and ids of idempotent producers are never
        given out twice. Raises ValueError for a snapshot of other brokers, and while one of them is stopped
        or paused.
        """
        # To its end, also when the caller is cancelled: nothing in between is a state to leave brokers in.
        await asyncio.shield(asyncio.ensure_future(put_back(self._core.brokers, snapshot)))


def _check_known(setting: str) -> None:
    """Raises TypeError for what is no setting."""
    known = [each.name for each in fields(Settings)]
    if setting not in known:
        close = get_close_matches(setting.replace(".", "_"), known, 1)
        perhaps = f"; perhaps {close[0]}" if close else ""
        raise TypeError(f"{setting}: no such setting{perhaps}; they are those of muster serve --help")


class Cluster(ClusterCalls, Blocking):
    """Several brokers in one process, sharing a store and splitting shards and partitions by lease.

        with Cluster(3) as cluster:
            producer = Producer({"bootstrap.servers": cluster.bootstrap})
            cluster.kill(cluster.coordinator_of("orders"))

    `async with Cluster(3) as cluster` gives the same with calls that are awaited; `aio` and `blocking` lead
    from one to the other.

    `data` names a data directory; without one everything lives in memory, or in the database that `store`
    names. `settings` are fields of `muster.coordinator.config.Settings`: Kafka's names with underscores. Two
    defaults are for tests: the initial rebalance delay is 0 ms instead of 3 s, and leases last a second, so
    that a killed broker is missed soon; those of a broker alone half a minute, since nobody waits for them,
    and a busy machine is not to cost it its groups. (With kafka-python 3.0 give
    `group_initial_rebalance_delay_ms=200`: it sometimes loses its topic's metadata when its group is complete
    within 100 ms, and then consumes nothing for minutes.)
    """

    __slots__ = ()

    def __init__(
        self,
        brokers: int = 3,
        *,
        data: str | Path | None = None,
        port: int = 0,
        clock: Time | None = None,
        **settings: Any,
    ) -> None:
        __tracebackhide__ = True
        defaults: dict[str, Any] = {
            "group_initial_rebalance_delay_ms": 0,
            "lease_term_ms": _LEASE_ALONE_MS if brokers == 1 else _LEASE_MS,
            "ephemeral": data is None and settings.get("store") is None,
            "test_mode": settings.get("store") is None,
        }
        if data is not None:
            defaults["data"] = str(data)
        for name in settings:
            _check_known(name)
        try:
            checked = Settings(**{**defaults, "brokers": brokers, "port": port, **settings})
        except ValueError as error:
            raise told(error)  # noqa: B904 - the same error
        super().__init__(Core(checked, clock))

    @classmethod
    def _over(cls, core: Core) -> Self:
        face = cls.__new__(cls)
        Calls.__init__(face, core)
        return face

    @property
    def aio(self) -> AsyncCluster:
        """The same brokers, with calls that are awaited."""
        return AsyncCluster(self._core)

    @property
    def blocking(self) -> Self:
        """These. For what is given either face, and needs this one."""
        return self

    @property
    def clock(self) -> Clock:
        """The brokers' clock, to be moved instead of waiting."""
        return Clock(self._core)

    @property
    def faults(self) -> Faults:
        """What requests of clients meet: errors, delays, lost responses, lost connections."""
        return Faults(self._core)

    def start(self) -> Self:
        """Start and return once every broker accepts connections and has loaded its shards. Harmless when
        repeated."""
        self._core.start()
        return self

    def close(self) -> None:
        """Stop every broker that still runs, and the thread. Harmless when repeated."""
        self._core.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> AsyncCluster:
        return await self.aio.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aio.close()

    def group(self, group_id: str) -> Group:
        """A group: facts about it, waits for it, and what may be done to it. It need not exist yet."""
        return Group(self._core, group_id)

    def topic(self, name: str) -> Topic:
        """A topic: facts about it, and waits for it. It need not exist yet."""
        return Topic(self._core, name)


class AsyncCluster(ClusterCalls, Async):
    """The brokers of a `Cluster`, with calls that are awaited. Made by `async with Cluster(3) as cluster`."""

    __slots__ = ()

    @property
    def blocking(self) -> Cluster:
        """The same brokers, with calls that block."""
        return Cluster._over(self._core)

    @property
    def aio(self) -> Self:
        """These. For what is given either face, and needs this one."""
        return self

    @property
    def clock(self) -> AsyncClock:
        """The brokers' clock, to be moved instead of waiting."""
        return AsyncClock(self._core)

    @property
    def faults(self) -> AsyncFaults:
        """What requests of clients meet: errors, delays, lost responses, lost connections."""
        return AsyncFaults(self._core)

    async def start(self) -> Self:
        """See `Cluster.start`."""
        core = self._core
        core.thread.start()
        try:
            await finished(core.thread.submit(core.started, CALL_S))
        except BaseException:
            # Cancelled it may be in the very moment in which all has started.
            core.thread.end(core.stopped)
            raise
        return self

    async def close(self) -> None:
        """See `Cluster.close`. Whoever is cancelled meanwhile still leaves nothing behind."""
        core = self._core
        if core.thread.running:
            stopping = core.thread.submit(core.stopped, CALL_S)
            try:
                await finished(stopping, take_back=False)
            finally:
                wait([stopping])
                core.thread.end()

    def group(self, group_id: str) -> AsyncGroup:
        """A group: facts about it, waits for it, and what may be done to it. It need not exist yet."""
        return AsyncGroup(self._core, group_id)

    def topic(self, name: str) -> AsyncTopic:
        """A topic: facts about it, and waits for it. It need not exist yet."""
        return AsyncTopic(self._core, name)


class Broker(Cluster):
    """One broker.

        with Broker() as broker:
            consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "orders"})

    `async with Broker() as broker` gives the same with calls that are awaited. For its arguments see
    `Cluster`.
    """

    __slots__ = ()

    def __init__(
        self, *, data: str | Path | None = None, port: int = 0, clock: Time | None = None, **settings: Any
    ) -> None:
        __tracebackhide__ = True
        super().__init__(1, data=data, port=port, clock=clock, **settings)

    @property
    def port(self) -> int:
        """The port listened on."""
        return self.ports[0]

    @property
    def aio(self) -> AsyncBroker:
        """The same broker, with calls that are awaited."""
        return AsyncBroker(self._core)

    async def __aenter__(self) -> AsyncBroker:
        return await self.aio.start()


class AsyncBroker(AsyncCluster):
    """The broker of a `Broker`, with calls that are awaited. Made by `async with Broker() as broker`."""

    __slots__ = ()

    @property
    def port(self) -> int:
        """The port listened on."""
        return self.ports[0]

    @property
    def blocking(self) -> Broker:
        """The same broker, with calls that block."""
        return Broker._over(self._core)
