"""The shards of one broker: routes requests to them, owns and disowns them as leases come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from muster.coordinator.base.clock import Clock, Timer
from muster.coordinator.base.log import Logger
from muster.coordinator.cluster.lease import LeaseKeeper
from muster.coordinator.cluster.placement import shard_of
from muster.coordinator.group.config import GroupConfig
from muster.coordinator.group.effects import Event, RequestContext, TopicsImage
from muster.coordinator.group.events import MemberIdentity
from muster.coordinator.group.hard_state import CommittedOffset, TopicPartition
from muster.coordinator.group.shard import Shard
from muster.coordinator.journal.entries import WHOLE_BROKER, Member
from muster.coordinator.runtime.appender import FULL_PAUSE_MS, Appender, RecordsWritten
from muster.coordinator.runtime.holds import LoadHolds
from muster.coordinator.runtime.loader import load, newest_entries
from muster.coordinator.runtime.outbox import Deliver, Outbox
from muster.coordinator.runtime.recorder import Recorder
from muster.coordinator.runtime.shard_host import UNWRITTEN, Answered, HostState, Limits, Operation, ShardHost
from muster.coordinator.storage.store import (
    Lease,
    LeaseKind,
    Store,
    StoreDamaged,
    StoreError,
    StoreFull,
)
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.classic_group import HeartbeatRequest, HeartbeatResponse, SyncGroupRequest

_log: Final = Logger(part="groups")

Observer = Callable[[int, Sequence[Event]], None]
"""Told the shard number and the events of steps that are durable, in step order."""
ShardFactory = Callable[[int], Shard]

_RELOAD_AFTER_MS: Final = 100
_RELOAD_AFTER_MAX_MS: Final = 10_000
_AWAY_RELOAD_AFTER_MAX_MS: Final = 1_000
"""A store that cannot be reached is no fault of the shard, and may be back at any time."""
_HEALTHY_AFTER_MS: Final = 60_000
"""A shard that ran this long before it failed is reloaded as if it had never failed before."""
_UNWRITTEN_AGAIN_MS: Final = FULL_PAUSE_MS // 2
"""A shard that ran this long before it could not write is reloaded at once; one that could not so soon again
writes whenever it is loaded, and would go round and round. It is loaded some time after the pause began, so
at the next attempt it has run for less than the pause."""


LOADS_AT_ONCE: Final = 8
"""Shards that a broker loads at a time; what it takes over from one that died may be many."""


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """How a shard is. `failure` says why the shard stopped, until it has been loaded again."""

    number: int
    epoch: int
    state: str
    failure: str | None


@dataclass(slots=True)
class _Failure:
    times: int
    text: str
    timer: Timer | None


class Runtime:
    """Group shards of one broker over a store. Belongs to the event loop it was made on.

    `tenure` (the membership) says whether a lease may still be used, by the clock of the leases; `clock` is
    the groups' time, which a test may move on its own. `shard_count` is the store's count of group leases.
    `observer` must be quick and not raise: an exception of its stops the shard. `before_load` is awaited
    before a shard is loaded, so that `topics_changed` can tell topics at least as new as the offsets that
    will be judged by them: an older view takes the offsets of a topic that was made anew for those of the
    deleted one. `holds` are shards whose loading a test holds open. Without a `recorder` there is no
    journal; `journal_written(shard, bytes)` is told of rows of it that are durable, `records_written`
    of records that are.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        tenure: LeaseKeeper,
        config: GroupConfig | None = None,
        *,
        shard_count: int = 50,
        limits: Limits | None = None,
        observer: Observer | None = None,
        deliver: Deliver | None = None,
        make_shard: ShardFactory | None = None,
        before_load: Callable[[], Awaitable[None]] | None = None,
        holds: LoadHolds | None = None,
        recorder: Recorder | None = None,
        records_written: RecordsWritten = lambda shard, records: None,
        journal_written: Callable[[int, int], None] = lambda shard, size_bytes: None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._tenure = tenure
        self.serving = tenure.serving
        self._shard_count = shard_count
        self._limits = limits or Limits()
        self._observer = observer
        self._before_load = before_load
        self._recorder = recorder
        self.holds = holds or LoadHolds()
        self._make_shard = make_shard or partial(_make_shard, config or GroupConfig())
        self._appender = Appender(
            store,
            clock,
            write_timeout_ms=self._limits.write_timeout_ms,
            records_written=records_written,
            journal_written=journal_written,
            journal_dropped=(lambda count: None) if recorder is None else recorder.count_dropped,
        )
        self._outbox = Outbox(clock, deliver or _nowhere)
        self._hosts: dict[int, ShardHost] = {}
        self._loading: dict[int, asyncio.Task[None]] = {}
        self._load_slots = asyncio.Semaphore(LOADS_AT_ONCE)
        self._ready: dict[int, tuple[int, asyncio.Future[None]]] = {}  # with the epoch
        self._failures: dict[int, _Failure] = {}
        self._coming_to_rest: set[asyncio.Task[None]] = set()
        self.stops = 0
        """How often a shard has stopped because something failed."""
        self.last_stop = ""
        """Which one did so last, and why."""
        self._image: TopicsImage | None = None
        self._loaded = asyncio.Event()
        self._loaded.set()

    def __repr__(self) -> str:
        return (
            f"<Runtime shards={list(self._hosts)} loading={list(self._loading)} "
            f"failed={[status.number for status in self.shards() if status.failure]}>"
        )

    # --- requests -------------------------------------------------------------------------------------------

    async def call(self, group_id: str, operation: Operation, request: Any, context: RequestContext) -> Any:
        """Put one request to the group's shard: `await runtime.call(group_id, Shard.join, request, context)`.

        Returns what the core replies. Raises KafkaError: the core's refusal; NOT_COORDINATOR when the shard
        is not this broker's, or stopped meanwhile; COORDINATOR_NOT_AVAILABLE at the bounds of `Limits`. While
        the shard loads, or waits to be loaded again because the store had no room or no time:
        COORDINATOR_LOAD_IN_PROGRESS, but REBALANCE_IN_PROGRESS for SyncGroup and no error for Heartbeat.
        """
        number = shard_of(group_id, self._shard_count)
        host = self._hosts.get(number)
        if host is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f"shard {number} of group {group_id!r} is not here")
        if host.comes_back:
            return self._while_loading(host, request)
        return await host.call(operation, request, context)

    def call_at_once(
        self, group_id: str, operation: Operation, request: Any, context: RequestContext, answered: Answered
    ) -> object:
        """What `call` does, without a coroutine: the answer, which may be a KafkaError, or LATER when
        `answered` has been or will be called with it."""
        number = shard_of(group_id, self._shard_count)
        host = self._hosts.get(number)
        if host is None:
            return KafkaError(ErrorCode.NOT_COORDINATOR, f"shard {number} of group {group_id!r} is not here")
        if host.comes_back:
            try:
                return self._while_loading(host, request)
            except KafkaError as refusal:
                return refusal
        return host.call_at_once(operation, request, context, answered)

    async def call_shards(self, operation: Operation, request: Any, context: RequestContext) -> list[Any]:
        """Put one request to every shard of this broker (ListGroups): their answers, by shard number.

        Shards that stop meanwhile are skipped, as shards of others are; one that loads raises
        COORDINATOR_LOAD_IN_PROGRESS, since an answer without it would look complete.
        """
        hosts = self.hosts()
        for host in hosts:
            if host.comes_back:
                self._while_loading(host, request)
        answers = await asyncio.gather(
            *(host.call(operation, request, context) for host in hosts), return_exceptions=True
        )
        found = []
        for answer in answers:
            if isinstance(answer, KafkaError) and answer.code is ErrorCode.NOT_COORDINATOR:
                continue
            if isinstance(answer, BaseException):
                raise answer
            found.append(answer)
        return found

    def _while_loading(self, host: ShardHost, request: Any) -> Any:
        if isinstance(request, HeartbeatRequest):
            # As Kafka: the member will be known again in a moment, with a full session timeout.
            return HeartbeatResponse()
        if isinstance(request, SyncGroupRequest):
            # Kafka's present coordinator answers 14, which no client's SyncGroup handler knows; its
            # predecessor answered 27, which makes the member rejoin.
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, f"shard {host.lease.number} is loading")
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"shard {host.lease.number} is loading")

    # --- what groups have committed -------------------------------------------------------------------------

    def committed(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """The offsets of a group, perhaps a moment before they are durable; empty where it is not here."""
        host = self._hosts.get(shard_of(group_id, self._shard_count))
        if host is None or host.shard is None or host.state is not HostState.ACTIVE:
            return {}
        return host.shard.hard.offsets.get(group_id, {})

    def members(self, group_id: str) -> list[MemberIdentity]:
        """The members of a group, perhaps a moment before they are durable; empty where it is not here."""
        host = self._hosts.get(shard_of(group_id, self._shard_count))
        group = None if host is None or host.shard is None else host.shard.groups.get(group_id)
        return [] if group is None else [each.identity for each in group.members.values()]

    def committing_groups(self, number: int | None = None) -> list[str]:
        """The groups that have committed offsets, of one shard or of all that are here."""
        return [
            group_id
            for host in self._hosts.values()
            if host.shard is not None and (number is None or host.lease.number == number)
            for group_id in host.shard.hard.offsets
        ]

    # --- the journal ----------------------------------------------------------------------------------------

    def note(
        self,
        type: str,
        data: Mapping[str, Any],
        *,
        group_id: str | None = None,
        member: Member | None = None,
        at_ms: int | None = None,
    ) -> None:
        """Put down something that happened outside the core, just now or at `at_ms`: to a group, and then it
        is stored if the group is here; or to the whole broker, and then it is kept in memory."""
        if self._recorder is None:
            return
        now_ms = self._clock.now_ms() if at_ms is None else at_ms
        if group_id is None:
            self._recorder.show([self._recorder.of(type, now_ms, WHOLE_BROKER, data, member=member)])
            return
        number = shard_of(group_id, self._shard_count)
        host = self._hosts.get(number)
        group = None if host is None or host.shard is None else host.shard.groups.get(group_id)
        generation = None if group is None else group.generation_id
        entry = self._recorder.of(
            type, now_ms, number, data, group=group_id, generation=generation, member=member
        )
        if host is None:
            self._recorder.show([entry])
        else:
            host.note(entry)

    # --- what shards are told -------------------------------------------------------------------------------

    def connection_closed(self, connection_id: int) -> None:
        """Tell the shards, after the requests that came over the connection."""
        for host in self._hosts.values():
            host.tell_connection_closed(connection_id)

    def topics_changed(self, image: TopicsImage) -> None:
        """Tell every shard which topics there are, and which went. One that is loaded later is told then."""
        self._image = image
        for host in self._hosts.values():
            host.tell(lambda shard, now_ms, out: shard.topics_changed(image, now_ms, out))

    # --- leases ---------------------------------------------------------------------------------------------

    def own(self, number: int, epoch: int) -> asyncio.Future[None]:
        """The group lease `number` is this broker's at `epoch`: load the shard and serve it.

        Replaces what ran before. Done when the shard is loaded for the first time under this epoch; cancelled
        when that is not to be any more.
        """
        self._let_go(number)
        self._end_waiting(number)
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ready[number] = epoch, ready
        self._begin(number, epoch)
        return ready

    def _begin(self, number: int, epoch: int) -> None:
        self._let_go(number)
        host = ShardHost(
            Lease(LeaseKind.GROUP, number),
            epoch,
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

    def disown(self, number: int) -> Awaitable[None]:
        """Stop serving at once. The awaitable is done when nothing is on its way to the store."""
        self._forget_failure(number)
        self._end_waiting(number)
        host = self._let_go(number)
        at_rest = asyncio.get_running_loop().create_task(
            self._disowned(number, host), name=f"disown shard {number}"
        )
        self._coming_to_rest.add(at_rest)
        at_rest.add_done_callback(self._coming_to_rest.discard)
        return at_rest

    def hurry(self) -> None:
        """Have what waits for others to be written with, as entries of the journal do, written now."""
        self._appender.hurry()

    def under_way(self) -> Iterator[str]:
        """What is being done without being asked for, in words; nothing when all is at rest and durable."""
        for number in self._loading:
            if self.holds.holding(number):
                continue  # on purpose, for as long as whoever holds it wants
            yield f"shard {number} is being loaded"
        for number, failure in self._failures.items():
            host = self._hosts.get(number)
            if host is not None and host.state is not HostState.ACTIVE:
                yield f"shard {number} is to be loaded again, after {failure.text}"
        if not self._appender.at_rest:
            yield "records of groups are being written"
        if self._outbox.sending:
            yield "requests to other shards are being sent"
        for host in self._hosts.values():
            if not host.at_rest:
                yield f"shard {host.lease.number} has steps to finish"

    def load_again(self, number: int) -> None:
        """Have a shard that is here claimed and loaded anew, as after a failure; nothing else."""
        host = self._hosts.get(number)
        if host is not None:
            self._tenure.reclaim(host.lease, host.epoch)

    async def loaded(self) -> None:
        """Return when no shard is loading."""
        await self._loaded.wait()

    def hosts(self) -> list[ShardHost]:
        """What runs the shards that are here, for those who look inside."""
        return [host for _, host in sorted(self._hosts.items())]

    def shards(self) -> list[ShardStatus]:
        """The shards that are here or would be if they had not failed."""
        statuses = []
        for host in self.hosts():
            failure = self._failures.get(host.lease.number)
            text = failure.text if failure is not None and host.state is not HostState.ACTIVE else None
            statuses.append(ShardStatus(host.lease.number, host.epoch, host.state.value, text))
        return statuses

    async def close(self) -> None:
        """Disown everything and wait for what is on its way to the store."""
        for number in list(self._failures):
            self._forget_failure(number)
        self._outbox.close()
        for number in list(self._ready):
            self._end_waiting(number)
        loading = list(self._loading.values())
        hosts = [self._let_go(number) for number in list(self._hosts)]
        await asyncio.gather(*(self._settled(host) for host in hosts))
        await self._appender.settled()
        await asyncio.gather(*loading, return_exceptions=True)

    def kill(self) -> None:
        """Die as a process does: no unloading, nothing written or answered any more but NOT_COORDINATOR."""
        for number in list(self._failures):
            self._forget_failure(number)
        for number in list(self._ready):
            self._end_waiting(number)
        self._outbox.close()
        self._appender.kill()
        for task in (*self._loading.values(), *self._coming_to_rest):
            task.cancel()
        for host in self._hosts.values():
            host.abandon()
        self._hosts.clear()
        self._loading.clear()
        self._note_loaded()

    def _let_go(self, number: int) -> ShardHost | None:
        host = self._hosts.pop(number, None)
        if host is not None:
            host.close()
        if (task := self._loading.pop(number, None)) is not None:
            task.cancel()
            self._note_loaded()
        return host

    @staticmethod
    async def _settled(host: ShardHost | None) -> None:
        if host is not None:
            await host.settled()

    async def _disowned(self, number: int, host: ShardHost | None) -> None:
        await self._settled(host)
        if self._recorder is not None and number not in self._hosts:
            self._recorder.journal.forget(number)

    async def _load(self, host: ShardHost) -> None:
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
                shard = self._make_shard(number)
                loading = load(self._store, host.lease, shard)
                if self._recorder is None or not self._recorder.stored:
                    await loading
                else:
                    # Beside each other: what is told of groups is not to hold up the groups.
                    _, entries = await asyncio.gather(loading, newest_entries(self._store, host.lease))
                    self._recorder.journal.restore(number, entries)
                    from_broker = entries[-1].broker if entries else None
        except Exception as error:
            host.fail(error)
        else:
            loading_ms = self._clock.now_ms() - began_ms
            host.activate(shard, self._taken_over(loading_ms, from_broker))
            if self._image is not None:
                image = self._image
                host.tell(lambda shard, now_ms, out: shard.topics_changed(image, now_ms, out))
            self._tell_ready(host)
        if self._loading.get(number) is asyncio.current_task():
            del self._loading[number]
            self._note_loaded()

    def _taken_over(self, loading_ms: int, from_broker: int | None) -> dict[str, Any]:
        """What is told of a load."""
        facts: dict[str, Any] = {"took_ms": loading_ms, "from_broker": from_broker}
        if from_broker is None or self._recorder is None or from_broker == self._recorder.broker:
            return facts
        silent_ms = self._tenure.silent_ms(from_broker)
        if silent_ms is not None:
            facts["from_silent_ms"] = silent_ms
        return facts

    def _tell_ready(self, host: ShardHost) -> None:
        """Those who wait until the shard is loaded under its present epoch."""
        number = host.lease.number
        epoch, ready = self._ready.get(number, (0, None))
        if ready is not None and epoch == host.epoch:
            del self._ready[number]
            ready.set_result(None)

    def _end_waiting(self, number: int) -> None:
        """For those who wait until the shard is loaded under its present epoch."""
        _, ready = self._ready.pop(number, (0, None))
        if ready is not None:
            ready.cancel()

    def _note_loaded(self) -> None:
        if not self._loading:
            self._loaded.set()

    # --- from the hosts -------------------------------------------------------------------------------------

    def observe(self, lease: Lease, events: Sequence[Event]) -> None:
        if self._observer is not None:
            self._observer(lease.number, events)

    def forward(self, requests: Sequence[object]) -> None:
        self._outbox.send(requests)

    def failed(self, host: ShardHost, why: Exception | None) -> None:
        """Have the shard loaded again, backing off; at once when what was lost is the lease.

        When the store was too busy or too full to write, nothing of the host can reach it any more, and the
        epoch stays: a new one could not be written either.
        """
        number = host.lease.number
        if self._hosts.get(number) is not host:
            return  # Disowned meanwhile; nobody waits for it.
        if why is None:
            _log.warning("shard lost its lease", shard=number, epoch=host.epoch)
            del self._hosts[number]
            self._end_waiting(number)
            self._tenure.reclaim(host.lease, host.epoch)
            return
        now_ms = self._clock.now_ms()
        before = self._failures.get(number)
        ran_ms = 0 if host.active_since_ms is None else now_ms - host.active_since_ms
        unwritten = isinstance(why, UNWRITTEN)
        healthy_ms = _UNWRITTEN_AGAIN_MS if unwritten else _HEALTHY_AFTER_MS
        times = 1 if before is None or ran_ms >= healthy_ms else before.times + 1
        text = f"{type(why).__name__}: {why}"
        self.stops += 1
        self.last_stop = f"shard {number} stopped: {text}"
        if unwritten and times == 1:
            _log.info("shard is loaded again", shard=number, why=text)
            self._failures[number] = _Failure(times, text, None)
            self._begin(number, host.epoch)
            return
        away = isinstance(why, StoreError) and not isinstance(why, (StoreFull, StoreDamaged))
        delay_max_ms = _AWAY_RELOAD_AFTER_MAX_MS if away else _RELOAD_AFTER_MAX_MS
        delay_ms = min(_RELOAD_AFTER_MS * 2 ** min(times - 1, 20), delay_max_ms)
        said: dict[str, object] = {"why": text} if isinstance(why, StoreError) else {"exc_info": why}
        _log.error("shard stopped", shard=number, loaded_again_in_ms=delay_ms, **said)
        timer = self._clock.at(now_ms + delay_ms, partial(self._reload, host, unwritten))
        self._failures[number] = _Failure(times, text, timer)

    def _reload(self, host: ShardHost, unwritten: bool) -> None:
        if self._hosts.get(host.lease.number) is not host:
            return
        if unwritten:
            self._begin(host.lease.number, host.epoch)
        else:
            # A new epoch, so that nothing the failed host had under way can reach the store behind the new
            # one's loading.
            self._tenure.reclaim(host.lease, host.epoch)

    def _forget_failure(self, number: int) -> None:
        failure = self._failures.pop(number, None)
        if failure is not None and failure.timer is not None:
            failure.timer.cancel()


async def _nowhere(request: object) -> None:
    raise LookupError(f"no way to other shards was given, and {request!r} needs one")


def _make_shard(config: GroupConfig, number: int) -> Shard:
    return Shard(number, config)
