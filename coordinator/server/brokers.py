"""The brokers of one process: one data directory, memory or database, one event loop, any number of nodes.

They share store and logs and divide shards and partitions by lease, exactly like brokers on several machines
that share a database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

from muster.coordinator.base.clock import Clock, LoopClock
from muster.coordinator.base.endpoints import Endpoint, Listening
from muster.coordinator.base.log import Logger
from muster.coordinator.base.movable_clock import MovableClock
from muster.coordinator.base.system import connections_max
from muster.coordinator.config import Settings
from muster.coordinator.journal.entries import Entry
from muster.coordinator.runtime.holds import HOLD_DEFAULT_MS
from muster.coordinator.server.broker import Broker, Shared
from muster.coordinator.server.listener import Listener
from muster.coordinator.server.test_mode.advancing import Advancing, ClockFixed
from muster.coordinator.server.test_mode.cluster_faults import ClusterFaults
from muster.coordinator.server.test_mode.faults import FaultError, Faults, NotAsThingsAre, Rule
from muster.coordinator.storage.store import Ageing, LeaseKind, Store, StoreError, StoreLocked
from muster.coordinator.topics.logs import Logs

_log: Final = Logger(part="topics")
_FILE_THREADS: Final = 4

Watcher = Callable[[Sequence[Entry]], None]


class Brokers:
    """Call `start`, then `stop`; a single broker can be stopped, killed, paused, resumed and started again by
    its index."""

    def __init__(
        self, settings: Settings, clock: Clock | None = None, *, port_named: str | None = None
    ) -> None:
        """`clock` is the clock of groups and fetches; by default the loop's. `port_named` is what errors call
        the setting of the port; by default the option."""
        self.settings = settings
        self.brokers: list[Broker] = []
        self.page: Endpoint | None = None
        """Where browsers find the page about these brokers; to be set before `start`, so that others can link
        to it."""
        self.faults = Faults()
        """Faults for the requests of all brokers, including those started again."""
        self._clock = clock
        self._port_named = port_named or ("--port" if settings.listeners is None else "port in --listeners")
        self._shared: Shared | None = None
        self._shard_faults: ClusterFaults | None = None
        self._advancing: Advancing | None = None
        self._watching: list[Watcher] = []
        self._running: set[int] = set()
        self._changing = [asyncio.Lock() for _ in range(settings.brokers)]
        """Each is held while the broker of its index is stopped, killed or started."""

    @property
    def bootstrap(self) -> str:
        """`host:port` of every broker, with commas."""
        return ",".join(broker.address for broker in self.brokers)

    @property
    def running(self) -> list[Broker]:
        """The brokers that were started and neither stopped nor killed; a paused one is among them."""
        return [self.brokers[index] for index in sorted(self._running)]

    def watch(self, watcher: Watcher) -> None:
        """Call `watcher` with every entry of these brokers' journals, including those of brokers started
        again; it must be quick and must not raise."""
        self._watching.append(watcher)
        for broker in self.brokers:
            broker.journal.listeners.append(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        """Undo `watch`."""
        self._watching.remove(watcher)
        for broker in self.brokers:
            broker.journal.listeners.remove(watcher)

    @property
    def shared(self) -> Shared:
        """What they have in common, from `start` to `stop`."""
        if self._shared is None:
            raise RuntimeError("the brokers are not running")
        return self._shared

    @property
    def shards(self) -> int:
        """Number of shards that groups are divided into."""
        assert self._shared is not None
        return self._shared.counts.leases[LeaseKind.GROUP]

    async def start(self) -> None:
        """Open the store and start every broker; on return all of them accept connections.

        Raises StoreLocked, StoreError and BindError, with nothing left behind.
        """
        settings = self.settings
        store, logs = _store_and_logs(settings)
        await store.open()
        try:
            counts = await store.counts()
        except BaseException:
            await store.close()
            raise
        real_time = LoopClock(asyncio.get_running_loop())
        clock = self._clock or real_time
        if settings.test_mode and isinstance(store, Ageing):
            clock = movable = MovableClock(clock)
            self._advancing = Advancing(movable, store, lambda: self.running)
        self._shared = Shared(
            settings=settings,
            store=store,
            counts=counts,
            logs=logs,
            clock=clock,
            lease_clock=real_time,
            file_threads=ThreadPoolExecutor(_FILE_THREADS, thread_name_prefix="muster-files"),
            upkeep_thread=ThreadPoolExecutor(1, thread_name_prefix="muster-upkeep"),
            validation_thread=ThreadPoolExecutor(1, thread_name_prefix="muster-validation"),
            connections_max=max(connections_max() // settings.brokers, 1),
            page=self.page,
            faults=self.faults,
            listen=partial(Listener, option=self._port_named),
        )
        self._shard_faults = ClusterFaults(self._shared, lambda: self.running)
        try:
            if settings.store is None:
                await self._refuse_a_second(store)
            await self._settle_left_over_logs()
            await self._start_all()
        except BaseException:
            await self.stop()
            raise

    async def _refuse_a_second(self, store: Store) -> None:
        """The lock on the data directory is per process, so look for other brokers in this process. Raises
        StoreLocked."""
        if await store.nodes():
            raise StoreLocked(f"{self.settings.data} is in use by other brokers of this process")

    async def _settle_left_over_logs(self) -> None:
        """Remove or put aside the logs of topics that the store does not list (`Logs.settle`)."""
        assert self._shared is not None
        topic_ids = [topic.topic_id for topic in await self._shared.store.topics()]
        try:
            left = await asyncio.get_running_loop().run_in_executor(
                self._shared.file_threads, self._shared.logs.settle, topic_ids
            )
        except OSError as error:
            where = self.settings.data if self.settings.store is None else "the database"
            raise StoreError(f"cannot use the logs in {where}: {error}") from error
        gone = [str(topic_id) for topic_id, kept_in in left.items() if kept_in is None]
        if gone:
            _log.warning("removed the logs of deleted topics", topic_ids=gone)
        kept = {str(topic_id): kept_in for topic_id, kept_in in left.items() if kept_in is not None}
        if kept:
            _log.warning(
                "put aside the logs of topics that the store does not list: they were deleted just before "
                "the process died, or the store is from an older backup",
                kept_in=kept,
            )

    async def _start_all(self) -> None:
        assert self._shared is not None
        for index in range(self.settings.brokers):
            self.brokers.append(self._make(index, self.settings.listening(index)))
        nodes = [await broker.bind() for broker in self.brokers]
        # Register all before the first one claims its leases, or it would take everything and give it away
        # again.
        for index, (broker, node) in enumerate(zip(self.brokers, nodes, strict=True)):
            self._running.add(index)
            await broker.register(node)
        for broker, node in zip(self.brokers, nodes, strict=True):
            await broker.start(node)

    def _make(self, index: int, listening: Sequence[Listening]) -> Broker:
        assert self._shared is not None
        broker = Broker(self._shared, self.settings.node_id + index, listening)
        broker.journal.listeners.extend(self._watching)
        return broker

    async def superseded(self) -> StoreError:
        """Wait until another broker takes the node id of one of these, which is then killed; returns why."""
        waiting = {
            asyncio.create_task(broker.membership.superseded.wait()): index
            for index, broker in enumerate(self.brokers)
        }
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
        index = waiting[done.pop()]
        await self.kill_one(index)
        why = self.brokers[index].membership.superseded_by
        assert why is not None
        return why

    # --- time -----------------------------------------------------------------------------------------------

    async def advance(self, ms: int, *, expire_all: bool = False) -> None:
        """Let `ms` pass; see `Advancing.advance` and what it raises. Raises ClockFixed if the clock
        cannot be moved."""
        await self._movable.advance(ms, expire_all=expire_all)

    def now_ms(self) -> int:
        """Epoch milliseconds, as groups and topics see them."""
        return self.shared.clock.now_ms()

    def stall(self, group_id: str, member_id: str) -> None:
        """See `Advancing.stall`. Raises LookupError, and ClockFixed if the clock cannot be moved."""
        self._movable.stall(group_id, member_id)

    def unstall(self, group_id: str, member_id: str) -> None:
        """See `Advancing.unstall`. Raises ClockFixed if the clock cannot be moved."""
        self._movable.unstall(group_id, member_id)

    @property
    def _movable(self) -> Advancing:
        if self._advancing is not None:
            return self._advancing
        if self.settings.store is not None:
            raise ClockFixed("with --store the clock is the database's and cannot be moved")
        raise ClockFixed("the clock can be moved only in test mode: muster serve --test-mode")

    def read_certificates(self) -> None:
        """Read keys and certificates again, for new connections."""
        for broker in self.running:
            broker.doors.read_certificates()

    # --- one by one -----------------------------------------------------------------------------------------

    def index_of(self, name: str, node_id: object) -> int:
        """The index of the broker with this node id; `name` is the field that gave it. Raises FaultError."""
        node_ids = [broker.node_id for broker in self.brokers]
        if isinstance(node_id, bool) or node_id not in node_ids:
            there = ", ".join(map(str, node_ids))
            raise FaultError(f"{name}: {node_id!r} is not a broker here; choose from {there}")
        return node_ids.index(node_id)

    def check_runs(self, index: int, who: str, *, runs: bool = True) -> None:
        """Raises NotAsThingsAre unless the broker runs, or does not run, as `runs` demands; `who` names it in
        the error."""
        if (index in self._running) != runs:
            is_so = "is running; stop or kill it" if index in self._running else "is not running; restart it"
            raise NotAsThingsAre(f"{who} {is_so} first")

    async def stop_one(self, index: int) -> None:
        """Shut one broker down cleanly. What has begun to change a broker goes on even if the caller is
        cancelled, and the next change of the same broker waits for it."""
        await self._change(index, self._stop_one)

    async def kill_one(self, index: int) -> None:
        """Kill one broker; the others take over when its leases have expired."""
        await self._change(index, self._kill_one)

    async def start_one(self, index: int) -> None:
        """Start a stopped or killed broker again, on the port it had."""
        await self._change(index, self._start_one)

    async def settled(self, index: int | None = None) -> None:
        """Wait until this broker, or every broker, is neither being stopped, killed nor started."""
        for changing in self._changing if index is None else [self._changing[index]]:
            async with changing:
                pass

    async def _change(self, index: int, change: Callable[[int], Coroutine[Any, Any, None]]) -> None:
        # Cut short, it would leave a broker that holds its port and its leases and is in no list.
        lock = self._changing[index]
        await lock.acquire()
        changing = asyncio.ensure_future(change(index))
        changing.add_done_callback(lambda _: lock.release())
        await asyncio.shield(changing)

    async def _stop_one(self, index: int) -> None:
        if index in self._running:
            self._running.discard(index)
            self.brokers[index].resume()
            await self.brokers[index].stop()

    async def _kill_one(self, index: int) -> None:
        if index in self._running:
            self._running.discard(index)
            await self.brokers[index].kill()

    async def _start_one(self, index: int) -> None:
        if index not in self._running:
            store = self.shared.store
            before = self.brokers[index]
            broker = self._make(index, before.listening)
            node = await broker.bind()
            # One that was killed is certainly dead: its registration need not expire first.
            await store.remove_node(before.node_id, before.incarnation)
            self.brokers[index] = broker
            self._running.add(index)
            await broker.register(node)
            await broker.start(node)

    # --- faults ---------------------------------------------------------------------------------------------

    def add_fault(self, rule: Rule) -> int:
        """Put a rule into force; returns its id. Raises FaultError, also for an unknown broker."""
        if rule.broker is not None:
            self.index_of("broker", rule.broker)
        return self.faults.add(rule)

    @property
    def shard_faults(self) -> ClusterFaults:
        """Moves group shards, or holds them open while they load, on purpose."""
        assert self._shard_faults is not None
        return self._shard_faults

    async def move_coordinator(self, group_id: str, to: int, who: str | None = None) -> None:
        """Make the broker of index `to` coordinate the group, with all of its shard, whenever it runs, until
        `unpin`. Raises FaultError if it cannot, and TimeoutError; `who` names it in the error, otherwise its
        node id."""
        faults, target = self.shard_faults, self.brokers[to]
        await faults.move(faults.lease_of(group=group_id), target, who or f"broker {target.node_id}")

    def unpin(self, group_id: str) -> bool:
        """Undo `move_coordinator`; whether there was anything to undo."""
        faults = self.shard_faults
        return faults.unpin(faults.lease_of(group=group_id))

    async def hold_load(
        self,
        *,
        group: str | None = None,
        shard: int | None = None,
        limit_ms: int = HOLD_DEFAULT_MS,
        reload: bool = False,
    ) -> None:
        """See ClusterFaults.hold; for a shard, or the shard of a group."""
        faults = self.shard_faults
        await faults.hold(faults.lease_of(group=group, shard=shard), limit_ms, reload=reload)

    def release_load(self, *, group: str | None = None, shard: int | None = None) -> bool:
        """Undo `hold_load`; whether there was a hold."""
        faults = self.shard_faults
        return faults.release(faults.lease_of(group=group, shard=shard))

    # --- the end --------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stop whatever runs and close the store. Harmless when repeated."""
        shared, self._shared = self._shared, None
        if shared is None:
            return
        if self._advancing is not None:
            self._advancing.end()
        # One after the other: each hands over to those still running, and the last one to nobody.
        for index in range(len(self.brokers)):
            await self.stop_one(index)
        for broker in self.brokers:
            broker.unbind()
        await shared.store.close()
        shared.validation_thread.shutdown(cancel_futures=True)
        shared.file_threads.shutdown()
        shared.upkeep_thread.shutdown()
        await asyncio.to_thread(shared.logs.close)


def _store_and_logs(settings: Settings) -> tuple[Store, Logs]:
    """The store and the logs, not opened yet; only the ones used are imported. Raises StoreError."""
    if settings.store is not None:
        from muster.coordinator.storage.postgres import PostgresStore

        name = f"muster-{settings.node_id}"
        store = PostgresStore(settings.store, name=name)
        return store, Logs.in_postgres(settings.store, name=name, eras=store.eras)
    if settings.ephemeral:
        from muster.coordinator.storage.memory import MemoryStore

        return MemoryStore(), Logs.in_memory()
    from muster.coordinator.storage.sqlite import SqliteStore

    directory = Path(settings.data)
    embedded = SqliteStore(directory)
    return embedded, Logs.on_disk(directory / "topics", embedded.give_to_retention)
