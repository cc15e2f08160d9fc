"""Runs a broker's shards of one kind: routes requests to them, owns and disowns them as leases come and
go."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, NamedTuple

from muster.coordinator.base.answers import Answered
from muster.coordinator.base.clock import Clock, Timer
from muster.coordinator.base.histogram import Histogram
from muster.coordinator.base.log import Logger
from muster.coordinator.base.step import RequestContext
from muster.coordinator.cluster.lease import LeaseKeeper
from muster.coordinator.runtime.appender import FULL_PAUSE_MS, Appender, RecordsWritten
from muster.coordinator.runtime.holds import LoadHolds
from muster.coordinator.runtime.loader import load, newest_entries
from muster.coordinator.runtime.machine import NO_TRAITS, M, MachineKind, Operation
from muster.coordinator.runtime.recorder import Recorder
from muster.coordinator.runtime.shard_host import UNWRITTEN, HostState, Limits, ShardHost
from muster.coordinator.storage.store import (
    Lease,
    Store,
    StoreDamaged,
    StoreError,
    StoreFull,
)
from muster.protocol.errors import ErrorCode, KafkaError

Observer = Callable[[int, Sequence[Any]], None]
"""Called with the shard number and the events of durable steps, in step order."""

_STOPPED: Final = "the broker was stopped"
_RELOAD_AFTER_MS: Final = 100
_RELOAD_AFTER_MAX_MS: Final = 10_000
_AWAY_RELOAD_AFTER_MAX_MS: Final = 1_000
"""An unreachable store is not the shard's fault, and may be back at any time."""
_HEALTHY_AFTER_MS: Final = 60_000
"""A shard that ran this long before it failed is reloaded as if it had never failed before."""
_UNWRITTEN_AGAIN_MS: Final = FULL_PAUSE_MS // 2
"""A shard that ran this long before it could not write is reloaded at once; one that fails again sooner
writes whenever it is loaded, and would reload in a loop. It is loaded some time after the pause began, so it
has run for less than the pause by the next attempt."""


LOAD_BUCKETS: Final[tuple[float, ...]] = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Upper bounds, in seconds."""
LOADS_AT_ONCE: Final = 8
"""Shards that a broker loads at a time; it may take over many from one that died."""


class ShardStatus(NamedTuple):
    """The status of a shard. `failure` says why it stopped, until it has been loaded again."""

    number: int
    epoch: int
    state: str
    failure: str | None


@dataclass(slots=True)
class _Failure:
    times: int
    text: str
    timer: Timer | None


class RuntimeOptions(NamedTuple):
    """The optional arguments of a runtime."""

    shard_count: int = 50
    """Number of leases of the kind in the store."""
    limits: Limits = Limits()
    observer: Observer | None = None
    """Must be quick and not raise: an exception stops the shard."""
    before_load: Callable[[], Awaitable[None]] | None = None
    """Awaited before a shard is loaded."""
    holds: LoadHolds | None = None
    """Shards whose loading a test holds open."""
    recorder: Recorder | None = None
    """None: there is no journal."""
    records_written: RecordsWritten = lambda shard, records: None
    """Called with records that have become durable."""
    journal_written: Callable[[int, int], None] = lambda shard, size_bytes: None
    """Called with the shard and the size in bytes of journal rows that have become durable."""


class Runtime(Generic[M]):
    """The shards of one kind over a store. Belongs to the event loop it was made on.

    `leases` (the membership) says whether a lease may still be used, by the clock of the leases; `clock` is
    the machines' time, which a test may move on its own.
    """

    def __init__(
        self,
        kind: MachineKind,
        store: Store,
        clock: Clock,
        leases: LeaseKeeper,
        options: RuntimeOptions | None = None,
    ) -> None:
        options = options or RuntimeOptions()
        self._kind = kind
        self._log = Logger(part=kind.coordinator.part)
        self._route = kind.coordinator.route
        self._lease_kind = kind.coordinator.lease
        self._store = store
        self._clock = clock
        self._leases = leases
        self.serving = leases.serving
        self._shard_count = options.shard_count
        self._limits = options.limits
        self._observer = options.observer
        self._before_load = options.before_load
        self._recorder = recorder = options.recorder
        self.holds = options.holds or LoadHolds()
        self._appender = Appender(
            store,
            clock,
            log=self._log,
            write_timeout_ms=self._limits.write_timeout_ms,
            records_written=options.records_written,
            journal_written=options.journal_written,
            journal_dropped=(lambda count: None) if recorder is None else recorder.count_dropped,
        )
        self._hosts: dict[int, ShardHost[M]] = {}
        self._loading: dict[int, asyncio.Task[None]] = {}
        self._load_slots = asyncio.Semaphore(LOADS_AT_ONCE)
        self._ready: dict[int, tuple[int, asyncio.Future[None]]] = {}  # with the epoch
        self._failures: dict[int, _Failure] = {}
        self._coming_to_rest: set[asyncio.Task[None]] = set()
        self.stops = 0
        """Number of times a shard has stopped because of a failure."""
        self.last_stop = ""
        """Which shard stopped last, and why."""
        self.loads = Histogram(LOAD_BUCKETS)
        """Load times of shards that were not empty."""
        self.unloads = 0
        """Number of non-empty shards given up."""
        self._loaded = asyncio.Event()
        self._loaded.set()

    def __repr__(self) -> str:
        return (
            f"<Runtime shards={list(self._hosts)} loading={list(self._loading)} "
            f"failed={[status.number for status in self.shards() if status.failure]}>"
        )

    # --- requests -------------------------------------------------------------------------------------------

    async def call(self, key: str, operation: Operation, request: Any, context: RequestContext) -> Any:
        """Send one request to the shard of a key: `await runtime.call(key, Shard.join, request, context)`.

        Returns the machine's reply. Raises KafkaError: the machine's refusal; NOT_COORDINATOR when the
        shard is not this broker's, or stopped meanwhile; COORDINATOR_NOT_AVAILABLE at the bounds of `Limits`.
        While the shard loads, or waits to be loaded again because the store was full or busy, the
        operation's `Traits` give the answer: COORDINATOR_LOAD_IN_PROGRESS for most.
        """
        host = self._host_of(key)
        if host is None:
            raise self._not_here(key)
        return await self._call(host, operation, request, context)

    async def call_shard(
        self, number: int, operation: Operation, request: Any, context: RequestContext
    ) -> Any:
        """As `call`, with the shard given by number: `0 <= number < shard_count`."""
        host = self._hosts.get(number)
        if host is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f"shard {number} is not on this broker")
        return await self._call(host, operation, request, context)

    async def _call(
        self, host: ShardHost[M], operation: Operation, request: Any, context: RequestContext
    ) -> Any:
        if host.comes_back:
            answer = self._while_loading(host, operation)
            if isinstance(answer, KafkaError):
                raise answer
            return answer
        return await host.call(operation, request, context)

    def number_of(self, key: str) -> int:
        """The number of a key's shard, wherever the shard is."""
        return self._route(key, self._shard_count)

    def call_at_once(
        self, key: str, operation: Operation, request: Any, context: RequestContext, answered: Answered
    ) -> object:
        """As `call`, but without a coroutine. Returns the answer, which may be a KafkaError, or LATER if
        `answered` has been or will be called with it."""
        host = self._hosts.get(self._route(key, self._shard_count))
        if host is None:
            return self._not_here(key)
        if host.comes_back:
            return self._while_loading(host, operation)
        return host.call_at_once(operation, request, context, answered)

    def _host_of(self, key: str) -> ShardHost[M] | None:
        return self._hosts.get(self._route(key, self._shard_count))

    def _not_here(self, key: str) -> KafkaError:
        number = self._route(key, self._shard_count)
        return KafkaError(ErrorCode.NOT_COORDINATOR, f"shard {number} of {key!r} is not on this broker")

    async def call_shards(self, operation: Operation, request: Any, context: RequestContext) -> list[Any]:
        """Send one request to every shard of this broker (ListGroups); return the answers by shard number.

        Shards that this broker gives up meanwhile are skipped, like those of other brokers. One that is
        loading, or failed and will be claimed and loaded again, raises COORDINATOR_LOAD_IN_PROGRESS, since an
        answer without it would look complete. One whose rows cannot be read, or that fails as soon as it is
        loaded, is skipped: it would keep the others from being listed until it is repaired.
        """
        hosts = self.hosts()
        for host in hosts:
            if host.comes_back and isinstance(answer := self._while_loading(host, operation), KafkaError):
                raise answer
        for lease in self._leases.reclaiming:
            if lease.kind is self._lease_kind and self._answers_soon(lease):
                raise self._loaded_again(lease)
        answers = await asyncio.gather(
            *(host.call(operation, request, context) for host in hosts), return_exceptions=True
        )
        found = []
        for host, answer in zip(hosts, answers, strict=True):
            if isinstance(answer, KafkaError) and answer.code is ErrorCode.NOT_COORDINATOR:
                if self._answers_soon(host.lease):
                    raise self._loaded_again(host.lease)
                continue
            if isinstance(answer, BaseException):
                raise answer
            found.append(answer)
        return found

    def _answers_soon(self, lease: Lease) -> bool:
        """Whether a shard that does not answer is still this broker's, and will be loaded again."""
        host = self._hosts.get(lease.number)
        if host is None:
            return lease in self._leases.reclaiming
        return not host.unreadable and (self.serving(lease) or lease in self._leases.reclaiming)

    @staticmethod
    def _loaded_again(lease: Lease) -> KafkaError:
        return KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"shard {lease.number} is loaded again")

    def _while_loading(self, host: ShardHost[M], operation: Operation) -> object:
        answer = self._kind.operations.get(operation, NO_TRAITS).while_loading
        if isinstance(answer, ErrorCode):
            return KafkaError(answer, f"shard {host.lease.number} is loading")
        return answer

    # --- leases ---------------------------------------------------------------------------------------------

    def own(self, number: int, epoch: int) -> asyncio.Future[None]:
        """This broker now holds lease `number` of the kind at `epoch`: load the shard and serve it.

        Replaces what ran before. The future is done when the shard is first loaded under this epoch, or
        when a test holds its loading open, and cancelled when neither will happen.
        """
        self._let_go(number)
        self._end_waiting(number)
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ready[number] = epoch, ready
        self._begin(number, epoch)
        return ready

    def _begin(self, number: int, epoch: int) -> None:
        self._let_go(number)
        host: ShardHost[M] = ShardHost(
            Lease(self._lease_kind, number),
            epoch,
            kind=self._kind,
            owner=self,
            appender=self._appender,
            clock=self._clock,
            limits=self._limits,
            recorder=self._recorder,
        )
        self._hosts[number] = host
        self._loaded.clear()
        self._loading[number] = asyncio.get_running_loop().create_task(
            self._load(host), name=f"load shard {number}"
        )

    def disown(self, number: int, why: str = _STOPPED) -> Awaitable[None]:
        """Stop serving at once; `why` is for the journal. The awaitable is done when nothing is in flight to
        the store."""
        self._forget_failure(number)
        self._end_waiting(number)
        host = self._let_go(number, why)
        at_rest = asyncio.get_running_loop().create_task(
            self._disowned(number, host), name=f"disown shard {number}"
        )
        self._coming_to_rest.add(at_rest)
        at_rest.add_done_callback(self._coming_to_rest.discard)
        return at_rest

    def flush(self) -> None:
        """Write now what waits to be written along with other rows, such as journal entries."""
        self._appender.flush()

    def under_way(self) -> Iterator[str]:
        """Describe unfinished background work; yields nothing when all is at rest and durable."""
        for number in self._loading:
            if self.holds.holding(number):
                continue  # on purpose, until the hold is released
            yield f"{self._lease_kind} shard {number} is still loading"
        for number, failure in self._failures.items():
            host = self._hosts.get(number)
            if host is not None and host.state is not HostState.ACTIVE:
                yield f"{self._lease_kind} shard {number} is waiting to reload after {failure.text}"
        if not self._appender.at_rest:
            yield f"{self._lease_kind} records are still being written"
        for host in self._hosts.values():
            if not host.at_rest:
                yield f"{self._lease_kind} shard {host.lease.number} still has steps to finish"

    def load_again(self, number: int) -> None:
        """Have a shard, if it is here, claimed and loaded again, as after a failure."""
        host = self._hosts.get(number)
        if host is not None:
            self._leases.reclaim(host.lease, host.epoch)

    async def loaded(self) -> None:
        """Return when no shard is loading."""
        await self._loaded.wait()

    def hosts(self) -> list[ShardHost[M]]:
        """The hosts of the shards that are here, for inspection."""
        return [host for _, host in sorted(self._hosts.items())]

    def shards(self) -> list[ShardStatus]:
        """The status of this broker's shards, including failed ones."""
        statuses = []
        for host in self.hosts():
            failure = self._failures.get(host.lease.number)
            text = failure.text if failure is not None and host.state is not HostState.ACTIVE else None
            statuses.append(ShardStatus(host.lease.number, host.epoch, host.state.value, text))
        return statuses

    async def close(self) -> None:
        """Disown everything and wait for what is in flight to the store."""
        for number in list(self._failures):
            self._forget_failure(number)
        for number in list(self._ready):
            self._end_waiting(number)
        loading = list(self._loading.values())
        hosts = [self._let_go(number) for number in list(self._hosts)]
        await asyncio.gather(*(self._settled(host) for host in hosts))
        await self._appender.settled()
        await asyncio.gather(*loading, return_exceptions=True)

    def kill(self) -> None:
        """Die as a process does: unload and write nothing, and answer only NOT_COORDINATOR."""
        for number in list(self._failures):
            self._forget_failure(number)
        for number in list(self._ready):
            self._end_waiting(number)
        self._appender.kill()
        for task in (*self._loading.values(), *self._coming_to_rest):
            task.cancel()
        for host in self._hosts.values():
            host.abandon()
        self._hosts.clear()
        self._loading.clear()
        self._note_loaded()

    def _let_go(self, number: int, why: str = _STOPPED) -> ShardHost[M] | None:
        host = self._hosts.pop(number, None)
        if host is not None:
            host.close(why)
        if (task := self._loading.pop(number, None)) is not None:
            task.cancel()
            self._note_loaded()
        return host

    @staticmethod
    async def _settled(host: ShardHost[M] | None) -> None:
        if host is not None:
            await host.settled()

    async def _disowned(self, number: int, host: ShardHost[M] | None) -> None:
        await self._settled(host)
        if self._recorder is not None and number not in self._hosts:
            self._recorder.journal.forget(number)

    async def _load(self, host: ShardHost[M]) -> None:
        number = host.lease.number
        began_ms = self._clock.now_ms()
        from_broker: int | None = None
        try:
            if self.holds.has(number):
                # As Kafka does: clients are sent to a coordinator that is still loading.
                self._tell_ready(host)
                await self.holds.released(number, self._clock)
            async with self._load_slots:
                if self._before_load is not None:
                    await self._before_load()
                machine: M = self._kind.make(number)
                loading = load(self._store, host.lease, machine)
                if self._recorder is None or not self._recorder.stored:
                    await loading
                else:
                    # Concurrently: the journal must not hold up the groups. With two arguments the result
                    # would be typed as a tuple, which compiled code insists on.
                    newest = asyncio.ensure_future(newest_entries(self._store, host.lease))
                    await asyncio.gather(*(loading, newest))
                    entries = newest.result()
                    self._recorder.journal.restore(number, entries)
                    from_broker = entries[-1].broker if entries else None
            loading_ms = self._clock.now_ms() - began_ms
            if machine.contents():
                self.loads.observe(loading_ms / 1000)
            host.activate(machine, self._taken_over(loading_ms, from_broker))
            if host.state is HostState.ACTIVE:  # its first step may have failed
                self._activated(host)
                self._tell_ready(host)
        except Exception as error:
            host.fail(error)
        if self._loading.get(number) is asyncio.current_task():
            del self._loading[number]
            self._note_loaded()

    def _activated(self, host: ShardHost[M]) -> None:
        """A shard was loaded: a hook to notify it."""

    def _taken_over(self, loading_ms: int, from_broker: int | None) -> dict[str, Any]:
        """What the journal records about a load."""
        facts: dict[str, Any] = {"took_ms": loading_ms, "from_broker": from_broker}
        if from_broker is None or self._recorder is None or from_broker == self._recorder.broker:
            return facts
        silent_ms = self._leases.silent_ms(from_broker)
        if silent_ms is not None:
            facts["from_silent_ms"] = silent_ms
        return facts

    def _tell_ready(self, host: ShardHost[M]) -> None:
        """Notify whoever waits until the shard is loaded under its present epoch."""
        number = host.lease.number
        epoch, ready = self._ready.get(number, (0, None))
        if ready is not None and epoch == host.epoch:
            del self._ready[number]
            ready.set_result(None)

    def _end_waiting(self, number: int) -> None:
        """Cancel the wait until the shard is loaded under its present epoch."""
        _, ready = self._ready.pop(number, (0, None))
        if ready is not None:
            ready.cancel()

    def _note_loaded(self) -> None:
        if not self._loading:
            self._loaded.set()

    # --- from the hosts -------------------------------------------------------------------------------------

    def observe(self, lease: Lease, events: Sequence[Any]) -> None:
        if self._observer is not None:
            self._observer(lease.number, events)

    def unloaded(self) -> None:
        """A non-empty shard is being given up."""
        self.unloads += 1

    def failed(self, host: ShardHost[M], why: Exception | None) -> None:
        """Have the shard loaded again, with backoff; at once if the lease was lost.

        If the store was too busy or too full to write, nothing from the host can reach it any more, and the
        epoch stays: a new one could not be written either.
        """
        number = host.lease.number
        if self._hosts.get(number) is not host:
            return  # Disowned meanwhile; nobody waits for it.
        if why is None:
            self._log.warning("shard lost its lease", shard=number, epoch=host.epoch)
            del self._hosts[number]
            self._end_waiting(number)
            self._leases.reclaim(host.lease, host.epoch)
            return
        now_ms = self._clock.now_ms()
        before = self._failures.get(number)
        ran_ms = 0 if host.active_since_ms is None else now_ms - host.active_since_ms
        unwritten = isinstance(why, UNWRITTEN)
        healthy_ms = _UNWRITTEN_AGAIN_MS if unwritten else _HEALTHY_AFTER_MS
        times = 1 if before is None or ran_ms >= healthy_ms else before.times + 1
        text = f"{type(why).__name__}: {why}"
        self.stops += 1
        self.last_stop = f"{self._lease_kind} shard {number} stopped: {text}"
        if unwritten and times == 1:
            self._log.info("reloading shard", shard=number, why=text)
            self._failures[number] = _Failure(times, text, None)
            self._begin(number, host.epoch)
            return
        away = isinstance(why, StoreError) and not isinstance(why, (StoreFull, StoreDamaged))
        delay_max_ms = _AWAY_RELOAD_AFTER_MAX_MS if away else _RELOAD_AFTER_MAX_MS
        delay_ms = min(_RELOAD_AFTER_MS * 2 ** min(times - 1, 20), delay_max_ms)
        said: dict[str, object] = {"why": text} if isinstance(why, StoreError) else {"exc_info": why}
        self._log.error("shard stopped", shard=number, loaded_again_in_ms=delay_ms, **said)
        timer = self._clock.at(now_ms + delay_ms, partial(self._reload, host, unwritten))
        self._failures[number] = _Failure(times, text, timer)

    def _reload(self, host: ShardHost[M], unwritten: bool) -> None:
        if self._hosts.get(host.lease.number) is not host:
            return
        if unwritten:
            self._begin(host.lease.number, host.epoch)
        else:
            # A new epoch, so that nothing the failed host had in flight can reach the store once the new
            # one is loading.
            self._leases.reclaim(host.lease, host.epoch)

    def _forget_failure(self, number: int) -> None:
        failure = self._failures.pop(number, None)
        if failure is not None and failure.timer is not None:
            failure.timer.cancel()
