"""`Broker` and `Cluster`: brokers with an event loop in their own thread. Every call is thread-safe."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from muster.coordinator.base.clock import Clock as Time
from muster.coordinator.config import RETENTION_IN_TESTS_MS, SETTINGS, SettingError, Settings
from muster.coordinator.testing.arguments import check_text, check_whole_number
from muster.coordinator.testing.clock import AsyncClock, Clock
from muster.coordinator.testing.core import Core
from muster.coordinator.testing.faces import Async, Blocking, Calls, both, finished, waits
from muster.coordinator.testing.faults import AsyncFaults, Faults
from muster.coordinator.testing.groups import AsyncGroup, Group, GroupFacts, reached
from muster.coordinator.testing.security import Security
from muster.coordinator.testing.snapshot import Snapshot, put_back, taken
from muster.coordinator.testing.timeline import Timeline
from muster.coordinator.testing.topics import AsyncTopic, Record, Sent, Topic, create, read, write
from muster.coordinator.testing.traces import told
from muster.coordinator.testing.transactions import (
    AsyncTransaction,
    Transaction,
    TransactionFacts,
    all_of,
    none_open,
)
from muster.coordinator.testing.waiting import TIMEOUT_S, Duration

_LEASE_MS: Final = 1_000
_LEASE_ALONE_MS: Final = 30_000


class ClusterCalls(Calls):
    """The calls that the blocking and the async API share."""

    __slots__ = ()

    def __repr__(self) -> str:
        core = self._core
        where = self.bootstrap if core.started_up else "closed" if core.closed else "not started"
        return f"<{type(self).__name__} {where}>"

    # --- where, the same on both faces ----------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        """The settings the brokers were started with."""
        return self._core.settings

    @property
    def bootstrap(self) -> str:
        """`host:port` of every broker, for `bootstrap.servers`."""
        return self._core.brokers.bootstrap

    def client_settings(self, client: str) -> dict[str, Any]:
        """The settings that let a client connect: `Consumer(broker.client_settings("confluent-kafka"))`.
        Clients are confluent-kafka, kafka-python, aiokafka, muster, java and kafkajs. kafka-python, aiokafka
        and muster take them as keyword arguments, kafkajs as JSON. Raises TypeError for any other client."""
        return self._core.security.client_settings(client, self.bootstrap)

    @property
    def ports(self) -> list[int]:
        """The port of each broker, by index."""
        return [node.port for node in self._core.brokers.brokers]

    def coordinator_of(self, group_id: str) -> int | None:
        """Index of the broker that coordinates the group; None if there is none right now."""
        __tracebackhide__ = True
        check_text("group_id", group_id)

        async def index() -> int | None:
            node = self._core.coordinator(group_id)
            return None if node is None else self._core.brokers.brokers.index(node)

        return self._look(index)

    def leader_of(self, topic: str, partition: int = 0) -> int:
        """Index of the partition's leader. Raises KafkaError if there is none right now."""
        __tracebackhide__ = True
        check_text("topic", topic)
        check_whole_number("partition", partition)

        async def index() -> int:
            node = self._core.leader(self._core.topic(topic), partition)
            return self._core.brokers.brokers.index(node)

        return self._look(index)

    def group_state(self, group_id: str) -> str:
        """Kafka's name of the group's state; Dead if it does not exist."""
        return Group(self._core, group_id).state

    def groups(self) -> list[str]:
        """The group ids, sorted."""

        async def known() -> list[str]:
            return sorted(group_id for shard in self._core.shards() for group_id in shard.groups)

        return self._look(known)

    def stories(self) -> dict[str, list[str]]:
        """The journals of all groups, one line per entry."""

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
        """Create a topic, known on return to every broker that is not paused. Raises KafkaError, TypeError
        for an invalid name, number or config, and FaultError if all brokers are paused."""
        await create(self._core, name, partitions, configs)

    @both
    async def produce(self, topic: str, records: Iterable[Sent], *, partition: int = 0) -> int:
        """Write records to one partition as one batch; returns the offset of the first. If its leader is
        paused, waits for the next one. Raises KafkaError, ValueError if there are no records, and FaultError
        if the leader stays paused, at once if all brokers are."""
        return await write(self._core, topic, records, partition)

    @both
    async def records(self, topic: str, *, isolation_level: str = "read_uncommitted") -> list[Record]:
        """The records of a topic, by partition and offset: all of them, or those that a reader with
        `isolation_level` "read_committed" sees; those of a paused broker, too. Raises KafkaError, and
        ValueError for any other isolation level."""
        return await read(self._core, topic, isolation_level)

    # --- groups ---------------------------------------------------------------------------------------------

    @waits
    async def wait_for_group(
        self, group_id: str, state: str = "Stable", *, members: int | None = None, timeout_s: float = 30.0
    ) -> GroupFacts:
        """Wait until the group is in `state`, with that many members if given. Raises WaitFailed. See `group`
        for more."""
        return await reached(AsyncGroup(self._core, group_id), state, members, timeout_s)

    # --- transactions ---------------------------------------------------------------------------------------

    def transactions(self) -> list[TransactionFacts]:
        """All transactional ids, sorted, with or without a transaction. Raises KafkaError while any has no
        coordinator."""
        return self._look(lambda: all_of(self._core))

    @waits
    async def no_open_transaction(self, *, timeout: Duration = TIMEOUT_S) -> None:
        """Wait until no transactional id has an open transaction: those that were open are committed or
        aborted, and all their partitions have their markers. Raises WaitFailed."""
        await none_open(self._core, timeout)

    # --- faults ---------------------------------------------------------------------------------------------
    # Brokers are named by index. Each call raises LookupError for an unknown index, and FaultError if the
    # broker was stopped or killed but must be running.

    def _known(self, index: int) -> int:
        count = len(self._core.brokers.brokers)
        if index not in range(count):
            there = "its only index is 0" if count == 1 else f"the indexes are 0 to {count - 1}"
            raise LookupError(f"there is no broker of index {index!r}; {there}")
        return index

    def _checked(self, index: int, *, runs: bool = True) -> int:
        self._core.brokers.check_runs(self._known(index), _of_index(index), runs=runs)
        return index

    async def _after_changes(self, index: int, *, runs: bool = True) -> int:
        """The index, checked when neither a snapshot nor another of these calls is under way: one that was
        cancelled goes on."""
        await self._core.brokers.settled(self._known(index))
        await self._core.no_snapshot_under_way()
        return self._checked(index, runs=runs)

    @both
    async def stop(self, index: int) -> None:
        """Stop a broker cleanly: it hands over its shards and leaves."""
        await self._core.brokers.stop_one(await self._after_changes(index))

    @both
    async def kill(self, index: int) -> None:
        """Kill a broker: its connections are cut and its leases are left to expire."""
        await self._core.brokers.kill_one(await self._after_changes(index))

    @both
    async def restart(self, index: int) -> None:
        """Restart a stopped or killed broker on its port. Raises FaultError if it is running."""
        await self._core.brokers.start_one(await self._after_changes(index, runs=False))

    @both
    async def pause(self, index: int) -> None:
        """Freeze a broker, like SIGSTOP: its timers stop and it neither reads nor responds."""
        self._core.brokers.brokers[await self._after_changes(index)].pause()

    @both
    async def resume(self, index: int) -> None:
        """Resume a paused broker; its leases may have expired."""
        self._core.brokers.brokers[await self._after_changes(index)].resume()

    @both
    async def move(self, group_id: str, to: int) -> None:
        """Move the group, with its whole shard, to the broker of index `to`, and keep it there until `unpin`;
        returns when every broker directs clients there. Raises FaultError if the broker cannot take it."""
        check_text("group_id", group_id)
        await self._core.brokers.move_coordinator(group_id, self._checked(to), _of_index(to))

    @both
    async def unpin(self, group_id: str) -> bool:
        """Undo `move`; returns whether there was anything to undo."""
        check_text("group_id", group_id)
        return self._core.brokers.unpin(group_id)

    @both
    async def hold(self, group_id: str, *, reload: bool = True) -> None:
        """Reload the group's shard and hold the load until `release`, for at most a minute: clients get
        COORDINATOR_LOAD_IN_PROGRESS. Raises FaultError if every broker is stopped or paused. Without
        `reload`, hold the next load, for example after a `kill`."""
        check_text("group_id", group_id)
        await self._core.brokers.settled()
        await self._core.no_snapshot_under_way()
        await self._core.brokers.hold_load(group=group_id, reload=reload)

    @both
    async def release(self, group_id: str) -> bool:
        """Undo `hold`; returns whether there was anything to undo."""
        check_text("group_id", group_id)
        return self._core.brokers.release_load(group=group_id)

    # --- state ----------------------------------------------------------------------------------------------

    @both
    async def snapshot(self) -> Snapshot:
        """Capture everything clients can see at this moment: topics with their records, offsets, groups,
        configs. Raises ValueError unless the brokers are in memory. See `restore`."""
        async with self._core.snapshots:
            return await taken(self._core.brokers)

    @both
    async def restore(self, snapshot: Snapshot) -> None:
        """Restore a snapshot of these brokers, at the same address. Client connections are cut, and
        partitions get a new leader epoch, as after a failover.

        Groups are restored, too: the members at the time are members again, with a full session; those that
        joined since are unknown and must rejoin. Take snapshots while groups are empty, unless this is what
        the test is about. The clock and faults are not restored, and producer ids are never reused. Raises
        ValueError for a snapshot of other brokers, while a broker is stopped or paused, and while a shard's
        load is held.
        """
        core = self._core
        await core.snapshots.acquire()
        # Once begun, run to the end even if the caller is cancelled: an intermediate state would be unusable.
        restoring = asyncio.ensure_future(put_back(core.brokers, snapshot))
        restoring.add_done_callback(lambda _: core.snapshots.release())
        await asyncio.shield(restoring)


def _of_index(index: int) -> str:
    return f"the broker of index {index}"


def _check_given(data: object, clock: object, settings: Mapping[str, Any]) -> None:
    """Raises TypeError for what is not for brokers in a test, and SettingError for a contradiction."""
    __tracebackhide__ = True
    if not isinstance(data, str | Path | None):
        raise TypeError(f"data: it takes the path of a directory, not {data!r}")
    if clock is not None and not (hasattr(clock, "now_ms") and hasattr(clock, "at")):
        raise TypeError(f"clock: it takes an object with now_ms() and at(), not {clock!r}")
    for name in settings:
        if name.startswith("http") or name == "advertised_http":
            raise TypeError(
                f"{name}: brokers in a test serve no HTTP; for that use `muster serve --test-mode --http`"
            )
        if name in ("log_level", "log_format"):
            raise TypeError(
                f"{name}: it is of a whole process, and has no effect on brokers in a test: they log "
                "warnings and errors to stderr"
            )
        _check_known(name)
    if data is not None and settings.get("ephemeral"):
        raise SettingError("data", str(data), "nothing beside ephemeral=True, which keeps nothing there")
    if data is not None and settings.get("store") is not None:
        raise SettingError("data", str(data), "nothing beside store=..., a database, which keeps everything")


def _check_known(setting: str) -> None:
    """Raises TypeError for unknown settings."""
    known = [each.name for each in fields(Settings)]
    if setting not in known:
        close = get_close_matches(setting.replace(".", "_"), known, 1)
        perhaps = f" (did you mean {close[0]}?)" if close else ""
        raise TypeError(f"unknown setting {setting}{perhaps}; muster serve --help lists them")


class Cluster(ClusterCalls, Blocking):
    """Several brokers in one process that share a store and split shards and partitions by lease.

        with Cluster(3) as cluster:
            producer = Producer({"bootstrap.servers": cluster.bootstrap})
            cluster.kill(cluster.coordinator_of("orders"))

    `async with Cluster(3) as cluster` gives the async API; `aio` and `blocking` convert between the two.

    `data` names a data directory; without it, everything lives in memory, or in the database that `store`
    names. `security` is the protocol of the listener: PLAINTEXT, SSL (clients have certificates),
    SASL_PLAINTEXT or SASL_SSL (SCRAM or PLAIN). A CA and a user are created; `client_settings` gives the
    settings for clients. `settings` are fields of `muster.coordinator.config.Settings`: Kafka's names with
    underscores. Three defaults differ for tests: the initial rebalance delay is 0 ms instead of 3 s; leases
    last one second, so that a killed broker is replaced soon, or half a minute for a single broker, which has
    no replacement and must not lose its groups on a busy machine; and records do not expire, unless their
    topic sets `retention.ms`, since their producers' clocks do not move with the brokers'. (With kafka-python
    3.0 use `group_initial_rebalance_delay_ms=200`: if its group completes within 100 ms, it sometimes loses
    its topic's metadata and consumes nothing for minutes.)
    """

    __slots__ = ()

    def __init__(
        self,
        brokers: int = 3,
        *,
        data: str | Path | None = None,
        port: int = 0,
        clock: Time | None = None,
        security: str = "PLAINTEXT",
        **settings: Any,
    ) -> None:
        __tracebackhide__ = True
        _check_given(data, clock, settings)
        secured = Security(security)
        defaults: dict[str, Any] = {
            "group_initial_rebalance_delay_ms": 0,
            "lease_term_ms": _LEASE_ALONE_MS if brokers == 1 else _LEASE_MS,
            "log_retention_ms": RETENTION_IN_TESTS_MS,
            "ephemeral": data is None and settings.get("store") is None,
            "test_mode": settings.get("store") is None,
        }
        if data is not None:
            defaults["data"] = str(data)
        if secured.has_tls or secured.has_sasl:
            defaults |= secured.broker_settings(settings.get("host", "127.0.0.1"), port)
            advertised = settings.get("advertised")
            given = {"listeners", "advertised_listeners"} & settings.keys()
            if not given and SETTINGS["advertised"].allows(advertised):
                # Beside a listener with a name, that name is part of the address.
                del settings["advertised"]
                defaults["advertised_listeners"] = f"{secured.protocol}://{advertised}"
        try:
            checked = Settings(**{**defaults, "brokers": brokers, "port": port, **settings})
        except ValueError as error:
            raise told(error)  # noqa: B904 - the same error
        super().__init__(Core(checked, clock, secured))

    @classmethod
    def _over(cls, core: Core) -> Self:
        face = cls.__new__(cls)
        Calls.__init__(face, core)
        return face

    @property
    def aio(self) -> AsyncCluster:
        """The async API of the same brokers."""
        return AsyncCluster(self._core)

    @property
    def blocking(self) -> Self:
        """Self, for code that is given either API."""
        return self

    @property
    def clock(self) -> Clock:
        """The brokers' clock, which a test can advance."""
        return Clock(self._core)

    @property
    def faults(self) -> Faults:
        """Faults injected into client requests: errors, delays, lost responses, lost connections."""
        return Faults(self._core)

    def start(self) -> Self:
        """Start; returns once every broker accepts connections and has loaded its shards. Idempotent; waits
        for a close that is under way."""
        self._core.start()
        return self

    def close(self) -> None:
        """Stop all running brokers and the thread. Idempotent; waits for a close that is under way."""
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
        """A group: its facts, waits, and actions on it. It need not exist yet."""
        __tracebackhide__ = True
        return Group(self._core, group_id)

    def transaction(self, transactional_id: str) -> Transaction:
        """A transactional id: its facts, waits, and actions on it. It need not exist yet."""
        __tracebackhide__ = True
        return Transaction(self._core, transactional_id)

    def topic(self, name: str) -> Topic:
        """A topic: its facts and waits. It need not exist yet."""
        __tracebackhide__ = True
        return Topic(self._core, name)


class AsyncCluster(ClusterCalls, Async):
    """The async API of a `Cluster`. Created by `async with Cluster(3) as cluster`."""

    __slots__ = ()

    @property
    def blocking(self) -> Cluster:
        """The blocking API of the same brokers."""
        return Cluster._over(self._core)

    @property
    def aio(self) -> Self:
        """Self, for code that is given either API."""
        return self

    @property
    def clock(self) -> AsyncClock:
        """The brokers' clock, which a test can advance."""
        return AsyncClock(self._core)

    @property
    def faults(self) -> AsyncFaults:
        """Faults injected into client requests: errors, delays, lost responses, lost connections."""
        return AsyncFaults(self._core)

    async def start(self) -> Self:
        """See `Cluster.start`."""
        ending = self._core.thread.ending
        if ending is not None:
            with suppress(Exception):  # it is for those who close
                await finished(ending, take_back=False)
        with self._core.starting() as starting:
            await finished(starting, take_back=False)
        return self

    async def close(self) -> None:
        """See `Cluster.close`. Cleans up even if the caller is cancelled."""
        thread = self._core.thread
        ending = thread.begin_end(self._core.stopped)
        try:
            await finished(ending, take_back=False)
        finally:
            thread.left()

    def group(self, group_id: str) -> AsyncGroup:
        """A group: its facts, waits, and actions on it. It need not exist yet."""
        __tracebackhide__ = True
        return AsyncGroup(self._core, group_id)

    def transaction(self, transactional_id: str) -> AsyncTransaction:
        """A transactional id: its facts, waits, and actions on it. It need not exist yet."""
        __tracebackhide__ = True
        return AsyncTransaction(self._core, transactional_id)

    def topic(self, name: str) -> AsyncTopic:
        """A topic: its facts and waits. It need not exist yet."""
        __tracebackhide__ = True
        return AsyncTopic(self._core, name)


class Broker(Cluster):
    """One broker.

        with Broker() as broker:
            consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "orders"})

    `async with Broker() as broker` gives the async API. For the arguments see `Cluster`.
    """

    __slots__ = ()

    def __init__(
        self,
        *,
        data: str | Path | None = None,
        port: int = 0,
        clock: Time | None = None,
        security: str = "PLAINTEXT",
        **settings: Any,
    ) -> None:
        __tracebackhide__ = True
        if "brokers" in settings:
            raise TypeError(f"brokers: a Broker is one broker; use Cluster({settings['brokers']!r})")
        super().__init__(1, data=data, port=port, clock=clock, security=security, **settings)

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self.ports[0]

    @property
    def aio(self) -> AsyncBroker:
        """The async API of the same broker."""
        return AsyncBroker(self._core)

    async def __aenter__(self) -> AsyncBroker:
        return await self.aio.start()


class AsyncBroker(AsyncCluster):
    """The async API of a `Broker`. Created by `async with Broker() as broker`."""

    __slots__ = ()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self.ports[0]

    @property
    def blocking(self) -> Broker:
        """The blocking API of the same broker."""
        return Broker._over(self._core)
